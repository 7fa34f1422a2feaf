// Jedis as its users use it: JedisProgram HOST PORT

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentLinkedQueue;
import redis.clients.jedis.AbstractTransaction;
import redis.clients.jedis.JedisPubSub;
import redis.clients.jedis.Pipeline;
import redis.clients.jedis.Protocol.Command;
import redis.clients.jedis.RedisClient;
import redis.clients.jedis.Response;
import redis.clients.jedis.exceptions.JedisConnectionException;
import redis.clients.jedis.params.ScanParams;
import redis.clients.jedis.params.SetParams;
import redis.clients.jedis.resps.ScanResult;
import redis.clients.jedis.util.KeyValue;

final class JedisProgram {
    private static final byte[] large = Program.large();
    private static RedisClient client;

    public static void main(String[] args) {
        client = RedisClient.create(args[0], Integer.parseInt(args[1]));
        Program.run("redis.clients", "jedis", JedisProgram::connects, JedisProgram::setsAndGets,
                JedisProgram::expires, JedisProgram::counts, JedisProgram::scansAndDeletes,
                JedisProgram::largeValues, JedisProgram::pipelines, JedisProgram::transactions,
                JedisProgram::messages, JedisProgram::errors, JedisProgram::outlivesARestart);
    }

    private static void connects() {
        Program.equal("PONG", client.ping());
        // Jedis gives the map that HELLO answers under RESP3 as pairs.
        List<?> hello = (List<?>) client.sendCommand(() -> "HELLO".getBytes(), new String[0]);
        Program.isTrue(hello.get(0) instanceof KeyValue<?, ?>);
        Program.equal("OK", client.flushAll());
    }

    private static void setsAndGets() {
        Program.equal("OK", client.set("a", "1"));
        Program.equal("1", client.get("a"));
        Program.equal(null, client.get("absent"));
        Program.equal(null, client.set("a", "2", SetParams.setParams().nx()));
        Program.equal("1", client.setGet("a", "2", SetParams.setParams().xx()));
        Program.equal("OK", client.mset("b", "3", "späße", "ünïcode ✓"));
        Program.equal(Arrays.asList("2", null, "3", "ünïcode ✓"), client.mget("a", "absent", "b", "späße"));
        Program.equal(2L, client.exists("a", "b", "absent"));
        Program.equal(3L, client.append("a", "34"));
        Program.equal("34", client.getrange("a", 1, -1));
    }

    private static void expires() throws Exception {
        Program.equal("OK", client.set("e", "1", SetParams.setParams().ex(100)));
        long left = client.ttl("e");
        Program.isTrue(left > 90 && left <= 100);
        Program.equal(1L, client.persist("e"));
        Program.equal(-1L, client.ttl("e"));
        Program.equal(1L, client.expire("e", 50));
        Program.equal(1L, client.pexpire("e", 20));
        Program.until("expiry", () -> client.get("e") == null);
        Program.equal(-2L, client.ttl("e"));
    }

    private static void counts() {
        Program.equal(1L, client.incr("n"));
        Program.equal(42L, client.incrBy("n", 41));
        Program.equal(41L, client.decr("n"));
        Program.equal(1.5, client.incrByFloat("f", 1.5));
    }

    private static void scansAndDeletes() {
        Set<String> wanted = new HashSet<>();
        for (int number = 0; number < 1000; number++) {
            wanted.add("scan:" + number);
            client.set("scan:" + number, "");
        }
        Set<String> seen = new HashSet<>();
        ScanParams params = new ScanParams().match("scan:*").count(100);
        String cursor = ScanParams.SCAN_POINTER_START;
        do {
            ScanResult<String> page = client.scan(cursor, params);
            seen.addAll(page.getResult());
            cursor = page.getCursor();
        } while (!cursor.equals(ScanParams.SCAN_POINTER_START));
        Program.equal(wanted, seen);
        Program.equal(1000L, client.del(seen.toArray(new String[0])));
        Program.equal(1L, client.unlink("a", "absent"));
        Program.equal(null, client.get("a"));
    }

    private static void largeValues() {
        Program.equal("OK", client.set("large".getBytes(), large));
        Program.isTrue(Arrays.equals(large, client.get("large".getBytes())));
        Program.equal((long) large.length, client.strlen("large"));
    }

    private static void pipelines() {
        try (Pipeline pipeline = client.pipelined()) {
            for (int number = 0; number < 1000; number++) {
                pipeline.set("p:" + number, "v:" + number);
            }
            Program.isTrue(pipeline.syncAndReturnAll().stream().allMatch("OK"::equals));
            List<Response<String>> replies = new ArrayList<>();
            for (int number = 0; number < 1000; number++) {
                replies.add(pipeline.get("p:" + number));
            }
            pipeline.sync();
            for (int number = 0; number < 1000; number++) {
                Program.equal("v:" + number, replies.get(number).get());
            }
        }
    }

    private static void transactions() throws Exception {
        try (AbstractTransaction transaction = client.multi()) {
            transaction.set("t", "1");
            transaction.incr("t");
            transaction.get("t");
            Program.equal(Arrays.asList("OK", 2L, "2"), transaction.exec());
        }
        // Another writer between WATCH and EXEC: nothing of the transaction is done.
        try (AbstractTransaction transaction = client.transaction(false)) {
            transaction.watch("t");
            client.set("t", "changed");
            transaction.multi();
            transaction.set("t", "lost");
            Program.equal(null, transaction.exec());
            Program.equal("changed", client.get("t"));
            transaction.watch("t");
            transaction.multi();
            transaction.set("t", "won");
            Program.equal(Arrays.asList("OK"), transaction.exec());
        }
        Program.equal("won", client.get("t"));
        try (AbstractTransaction transaction = client.multi()) {
            transaction.set("t", "lost");
            transaction.discard();
        }
        Program.equal("won", client.get("t"));
        // A command that cannot be queued: EXEC does nothing.
        try (AbstractTransaction transaction = client.multi()) {
            transaction.set("t", "lost");
            transaction.sendCommand(Command.GET, new String[0]);
            Program.refused("EXECABORT", transaction::exec);
        }
        Program.equal("won", client.get("t"));
    }

    private static void messages() throws Exception {
        ConcurrentLinkedQueue<String> heard = new ConcurrentLinkedQueue<>();
        JedisPubSub listener = new JedisPubSub() {
            @Override
            public void onMessage(String channel, String text) {
                heard.add(channel + " " + text);
            }

            @Override
            public void onPMessage(String pattern, String channel, String text) {
                heard.add(pattern + " " + channel + " " + text);
            }
        };
        Thread named = new Thread(() -> client.subscribe(listener, "news"));
        named.start();
        Program.until("subscription", () -> client.publish("other", "") == 0 && listener.isSubscribed());
        listener.psubscribe("n*");
        Program.until("two listeners", () -> listener.getSubscribedChannels() == 2);
        Program.equal(2L, client.publish("news", "first"));
        Program.until("messages", () -> heard.size() == 2);
        Program.equal(Set.of("news first", "n* news first"), Set.copyOf(heard));
        listener.unsubscribe();
        listener.punsubscribe();
        named.join();
        Program.equal(0L, client.publish("news", "second"));
    }

    private static void errors() throws Exception {
        Program.refused("wrong number of arguments for 'get' command", () -> client.sendCommand(Command.GET));
        Program.refused("unknown command", () -> client.sendCommand(() -> "FLY".getBytes(), "away"));
        Program.refused("not an integer", () -> client.sendCommand(Command.SET, "a", "1", "EX", "soon"));
        client.set("text", "abc");
        Program.refused("not an integer", () -> client.incr("text"));
        Program.equal("abc", client.get("text"));
    }

    private static void outlivesARestart() throws Exception {
        long before = client.dbSize();
        Program.restart();
        // The connection of its pool is dead: the first use says so, the next makes a new one.
        Program.until("connection", () -> {
            try {
                return client.ping().equals("PONG");
            } catch (JedisConnectionException gone) {
                return false;
            }
        });
        Program.equal("41", client.get("n"));
        Program.equal(before, client.dbSize());
        Program.isTrue(Arrays.equals(large, client.get("large".getBytes())));
        Program.equal("OK", client.set("n", "after"));
        client.close();
    }
}
