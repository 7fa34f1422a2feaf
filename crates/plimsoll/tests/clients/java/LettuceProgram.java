// Lettuce as its users use it: LettuceProgram HOST PORT

import io.lettuce.core.KeyScanCursor;
import io.lettuce.core.KeyValue;
import io.lettuce.core.LettuceFutures;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisFuture;
import io.lettuce.core.ScanArgs;
import io.lettuce.core.ScanCursor;
import io.lettuce.core.SetArgs;
import io.lettuce.core.TransactionResult;
import io.lettuce.core.api.StatefulRedisConnection;
import io.lettuce.core.api.async.RedisAsyncCommands;
import io.lettuce.core.api.sync.RedisCommands;
import io.lettuce.core.codec.ByteArrayCodec;
import io.lettuce.core.codec.StringCodec;
import io.lettuce.core.output.MapOutput;
import io.lettuce.core.output.StatusOutput;
import io.lettuce.core.protocol.CommandArgs;
import io.lettuce.core.protocol.CommandType;
import io.lettuce.core.pubsub.RedisPubSubAdapter;
import io.lettuce.core.pubsub.StatefulRedisPubSubConnection;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.TimeUnit;

final class LettuceProgram {
    private static final byte[] large = Program.large();
    private static RedisClient client;
    private static StatefulRedisConnection<String, String> connection;
    private static RedisCommands<String, String> redis;

    public static void main(String[] args) {
        client = RedisClient.create("redis://" + args[0] + ":" + args[1]);
        connection = client.connect();
        redis = connection.sync();
        Program.run("io.lettuce", "lettuce-core", LettuceProgram::connects, LettuceProgram::setsAndGets,
                LettuceProgram::expires, LettuceProgram::counts, LettuceProgram::scansAndDeletes,
                LettuceProgram::largeValues, LettuceProgram::pipelines, LettuceProgram::transactions,
                LettuceProgram::messages, LettuceProgram::errors, LettuceProgram::outlivesARestart);
    }

    private static void connects() {
        Program.equal("PONG", redis.ping());
        MapOutput<String, String> output = new MapOutput<>(StringCodec.UTF8);
        // The map holds an integer, whatever its type says.
        Map<?, ?> hello = redis.dispatch(CommandType.HELLO, output);
        Program.equal(3L, hello.get("proto"));
        Program.equal("OK", redis.flushall());
    }

    private static void setsAndGets() {
        Program.equal("OK", redis.set("a", "1"));
        Program.equal("1", redis.get("a"));
        Program.equal(null, redis.get("absent"));
        Program.equal(null, redis.set("a", "2", SetArgs.Builder.nx()));
        Program.equal("1", redis.setGet("a", "2", SetArgs.Builder.xx()));
        Program.equal("OK", redis.mset(Map.of("b", "3", "späße", "ünïcode ✓")));
        List<String> many = new ArrayList<>();
        for (KeyValue<String, String> pair : redis.mget("a", "absent", "b", "späße")) {
            many.add(pair.getValueOrElse(null));
        }
        Program.equal(Arrays.asList("2", null, "3", "ünïcode ✓"), many);
        Program.equal(2L, redis.exists("a", "b", "absent"));
        Program.equal(3L, redis.append("a", "34"));
        Program.equal("34", redis.getrange("a", 1, -1));
    }

    private static void expires() throws Exception {
        Program.equal("OK", redis.set("e", "1", SetArgs.Builder.ex(100)));
        long left = redis.ttl("e");
        Program.isTrue(left > 90 && left <= 100);
        Program.equal(true, redis.persist("e"));
        Program.equal(-1L, redis.ttl("e"));
        Program.equal(true, redis.expire("e", 50));
        Program.equal(true, redis.pexpire("e", Duration.ofMillis(20)));
        Program.until("expiry", () -> redis.get("e") == null);
        Program.equal(-2L, redis.ttl("e"));
    }

    private static void counts() {
        Program.equal(1L, redis.incr("n"));
        Program.equal(42L, redis.incrby("n", 41));
        Program.equal(41L, redis.decr("n"));
        Program.equal(1.5, redis.incrbyfloat("f", 1.5));
    }

    private static void scansAndDeletes() {
        Set<String> wanted = new HashSet<>();
        for (int number = 0; number < 1000; number++) {
            wanted.add("scan:" + number);
            redis.set("scan:" + number, "");
        }
        Set<String> seen = new HashSet<>();
        KeyScanCursor<String> page = redis.scan(ScanArgs.Builder.matches("scan:*").limit(100));
        seen.addAll(page.getKeys());
        while (!page.isFinished()) {
            page = redis.scan(ScanCursor.of(page.getCursor()), ScanArgs.Builder.matches("scan:*").limit(100));
            seen.addAll(page.getKeys());
        }
        Program.equal(wanted, seen);
        Program.equal(1000L, redis.del(seen.toArray(new String[0])));
        Program.equal(1L, redis.unlink("a", "absent"));
        Program.equal(null, redis.get("a"));
    }

    private static void largeValues() {
        try (StatefulRedisConnection<byte[], byte[]> binary = client.connect(ByteArrayCodec.INSTANCE)) {
            Program.equal("OK", binary.sync().set("large".getBytes(), large));
            Program.isTrue(Arrays.equals(large, binary.sync().get("large".getBytes())));
        }
        Program.equal((long) large.length, redis.strlen("large"));
    }

    private static void pipelines() throws Exception {
        RedisAsyncCommands<String, String> pipeline = connection.async();
        connection.setAutoFlushCommands(false);
        List<RedisFuture<String>> replies = new ArrayList<>();
        for (int number = 0; number < 1000; number++) {
            pipeline.set("p:" + number, "v:" + number);
            replies.add(pipeline.get("p:" + number));
        }
        connection.flushCommands();
        connection.setAutoFlushCommands(true);
        RedisFuture<?>[] all = replies.toArray(new RedisFuture<?>[0]);
        Program.isTrue(LettuceFutures.awaitAll(30, TimeUnit.SECONDS, all));
        for (int number = 0; number < 1000; number++) {
            Program.equal("v:" + number, replies.get(number).get());
        }
    }

    private static void transactions() throws Exception {
        redis.multi();
        redis.set("t", "1");
        redis.incr("t");
        redis.get("t");
        TransactionResult done = redis.exec();
        Program.equal(Arrays.asList("OK", 2L, "2"), done.stream().toList());
        // Another writer between WATCH and EXEC: nothing of the transaction is done.
        try (StatefulRedisConnection<String, String> other = client.connect()) {
            redis.watch("t");
            other.sync().set("t", "changed");
            redis.multi();
            redis.set("t", "lost");
            Program.isTrue(redis.exec().wasDiscarded());
            Program.equal("changed", other.sync().get("t"));
            redis.watch("t");
            redis.multi();
            redis.set("t", "won");
            Program.isTrue(!redis.exec().wasDiscarded());
            Program.equal("won", other.sync().get("t"));
        }
        redis.multi();
        redis.set("t", "lost");
        Program.equal("OK", redis.discard());
        Program.equal("won", redis.get("t"));
    }

    private static void messages() throws Exception {
        ConcurrentLinkedQueue<String> heard = new ConcurrentLinkedQueue<>();
        try (StatefulRedisPubSubConnection<String, String> listener = client.connectPubSub()) {
            listener.addListener(new RedisPubSubAdapter<String, String>() {
                @Override
                public void message(String channel, String text) {
                    heard.add(channel + " " + text);
                }

                @Override
                public void message(String pattern, String channel, String text) {
                    heard.add(pattern + " " + channel + " " + text);
                }
            });
            listener.sync().subscribe("news");
            listener.sync().psubscribe("n*");
            Program.until("two listeners", () -> redis.publish("news", "first") == 2);
            Program.until("messages", () -> heard.containsAll(Set.of("news first", "n* news first")));
            listener.sync().unsubscribe("news");
            listener.sync().punsubscribe("n*");
            Program.until("their end", () -> redis.publish("news", "second") == 0);
        }
    }

    private static void errors() throws Exception {
        StatusOutput<String, String> output = new StatusOutput<>(StringCodec.UTF8);
        Program.refused("wrong number of arguments for 'get' command",
                () -> redis.dispatch(CommandType.GET, output, new CommandArgs<>(StringCodec.UTF8)));
        StatusOutput<String, String> second = new StatusOutput<>(StringCodec.UTF8);
        CommandArgs<String, String> soon = new CommandArgs<>(StringCodec.UTF8);
        soon.addKey("a").addValue("1").add("EX").add("soon");
        Program.refused("not an integer", () -> redis.dispatch(CommandType.SET, second, soon));
        redis.set("text", "abc");
        Program.refused("not an integer", () -> redis.incr("text"));
        Program.equal("abc", redis.get("text"));
    }

    private static void outlivesARestart() throws Exception {
        long before = redis.dbsize();
        Program.restart();
        // It connects again by itself. What is sent meanwhile waits.
        Program.equal("41", redis.get("n"));
        Program.equal(before, redis.dbsize());
        try (StatefulRedisConnection<byte[], byte[]> binary = client.connect(ByteArrayCodec.INSTANCE)) {
            Program.isTrue(Arrays.equals(large, binary.sync().get("large".getBytes())));
        }
        Program.equal("OK", redis.set("n", "after"));
        connection.close();
        client.shutdown(Duration.ZERO, Duration.ofSeconds(5));
    }
}
