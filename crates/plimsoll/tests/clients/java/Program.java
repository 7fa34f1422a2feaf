// What the programs for Java share: expectations, and asking for a restart of the server.
//
// The test that starts a program kills the server when it reads "restart", starts it again at the same
// address, and answers "restarted". Anything that is not as expected ends the program with an error.

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.util.Objects;
import java.util.Properties;
import java.util.concurrent.Callable;

final class Program {
    private static final BufferedReader answers = new BufferedReader(new InputStreamReader(System.in));

    private Program() {}

    /** A step of a program. */
    interface Step {
        void run() throws Exception;
    }

    static void restart() throws IOException {
        System.out.println("restart");
        equal("restarted", answers.readLine());
    }

    static void equal(Object wanted, Object given) {
        if (!Objects.deepEquals(wanted, given)) {
            throw new AssertionError("wanted " + wanted + ", given " + given);
        }
    }

    static void isTrue(boolean is) {
        if (!is) {
            throw new AssertionError("not so");
        }
    }

    /** Expects an exception whose text has these words. */
    static void refused(String words, Step step) throws Exception {
        try {
            step.run();
        } catch (Exception refusal) {
            String text = String.valueOf(refusal.getMessage());
            if (!text.contains(words)) {
                throw new AssertionError("wanted " + words + ", given " + text, refusal);
            }
            return;
        }
        throw new AssertionError("not refused: " + words);
    }

    static void until(String what, Callable<Boolean> done) throws Exception {
        long deadline = System.nanoTime() + 30_000_000_000L;
        while (!done.call()) {
            if (System.nanoTime() > deadline) {
                throw new AssertionError("it does not come: " + what);
            }
            Thread.sleep(5);
        }
    }

    /** Two MiB in which every byte and no period of a record's size occurs. */
    static byte[] large() {
        byte[] large = new byte[2 << 20];
        for (int at = 0; at < large.length; at++) {
            large[at] = (byte) (at * 31 + (at >> 8) * 7 + (at >> 16));
        }
        return large;
    }

    /** Runs the steps and says which version of an artifact did them. */
    static void run(String group, String artifact, Step... steps) {
        try {
            for (Step step : steps) {
                step.run();
            }
            Properties properties = new Properties();
            String file = "/META-INF/maven/" + group + "/" + artifact + "/pom.properties";
            properties.load(Program.class.getResourceAsStream(file));
            System.out.println(artifact + " " + properties.getProperty("version") + ": ok");
            System.exit(0);
        } catch (Throwable failure) {
            failure.printStackTrace();
            System.exit(1);
        }
    }
}
