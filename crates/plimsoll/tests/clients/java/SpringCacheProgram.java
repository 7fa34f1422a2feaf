// Spring's cache over Redis as its users use it, in a small context: SpringCacheProgram HOST PORT
//
// Annotated methods are called; that a cached one is not run again shows that the value came from the
// server. Clearing a cache sends KEYS or SCAN, and DEL.

import java.io.Serializable;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.atomic.AtomicInteger;
import org.springframework.cache.Cache;
import org.springframework.cache.CacheManager;
import org.springframework.cache.annotation.CacheEvict;
import org.springframework.cache.annotation.CachePut;
import org.springframework.cache.annotation.Cacheable;
import org.springframework.cache.annotation.EnableCaching;
import org.springframework.context.annotation.AnnotationConfigApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.data.redis.cache.BatchStrategies;
import org.springframework.data.redis.cache.RedisCacheConfiguration;
import org.springframework.data.redis.cache.RedisCacheManager;
import org.springframework.data.redis.cache.RedisCacheWriter;
import org.springframework.data.redis.connection.RedisConnectionFactory;
import org.springframework.data.redis.connection.lettuce.LettuceConnectionFactory;
import org.springframework.data.redis.core.RedisCallback;
import org.springframework.data.redis.core.RedisOperations;
import org.springframework.data.redis.core.SessionCallback;
import org.springframework.data.redis.core.StringRedisTemplate;

public class SpringCacheProgram {
    static String host;
    static int port;
    static AnnotationConfigApplicationContext context;
    static Books books;
    static Cache waitingCache;

    public record Book(String title, int pages) implements Serializable {}

    /** What an application has: slow methods, whose results are cached. */
    public static class Books {
        final AtomicInteger runs = new AtomicInteger();

        @Cacheable("books")
        public Book find(String title) {
            runs.incrementAndGet();
            return title.equals("absent") ? null : new Book(title, title.length());
        }

        @Cacheable(cacheNames = "short", sync = true)
        public String briefly(String word) {
            runs.incrementAndGet();
            return word + "!";
        }

        @CachePut(cacheNames = "books", key = "#book.title()")
        public Book change(Book book) {
            return book;
        }

        @CacheEvict("books")
        public void forget(String title) {}

        @CacheEvict(cacheNames = "books", allEntries = true)
        public void forgetAll() {}

        public int runs() {
            return runs.get();
        }
    }

    @Configuration
    @EnableCaching
    public static class Settings {
        @Bean
        public LettuceConnectionFactory connections() {
            return new LettuceConnectionFactory(host, port);
        }

        @Bean
        public CacheManager caches(RedisConnectionFactory connections) {
            RedisCacheConfiguration defaults = RedisCacheConfiguration.defaultCacheConfig();
            RedisCacheWriter writer = RedisCacheWriter.create(connections,
                    with -> with.enableLocking().immediateWrites().batchStrategy(BatchStrategies.scan(100)));
            RedisCacheManager waiting = RedisCacheManager.builder(writer).build();
            waiting.afterPropertiesSet();
            waitingCache = waiting.getCache("waiting");
            return RedisCacheManager.builder(connections)
                    .cacheDefaults(defaults.entryTtl(Duration.ofMinutes(10)))
                    .withCacheConfiguration("short", defaults.entryTtl(Duration.ofMillis(30)))
                    .enableStatistics()
                    .build();
        }

        @Bean
        public StringRedisTemplate template(RedisConnectionFactory connections) {
            return new StringRedisTemplate(connections);
        }

        @Bean
        public Books books() {
            return new Books();
        }
    }

    public static void main(String[] args) {
        host = args[0];
        port = Integer.parseInt(args[1]);
        context = new AnnotationConfigApplicationContext(Settings.class);
        books = context.getBean(Books.class);
        Program.run("org.springframework.data", "spring-data-redis", SpringCacheProgram::caches,
                SpringCacheProgram::evicts, SpringCacheProgram::expires, SpringCacheProgram::clears,
                SpringCacheProgram::locks, SpringCacheProgram::templates,
                SpringCacheProgram::outlivesARestart);
    }

    private static StringRedisTemplate template() {
        return context.getBean(StringRedisTemplate.class);
    }

    /** It writes, forgets and clears in the background, unless told otherwise: a reader may be earlier. */
    private static void appears(String key) throws Exception {
        Program.until(key, () -> template().hasKey(key));
    }

    private static void caches() throws Exception {
        template().execute((RedisCallback<Object>) connection -> {
            connection.serverCommands().flushAll();
            return null;
        });
        Book book = new Book("Flash", 5);
        Program.equal(book, books.find("Flash"));
        appears("books::Flash");
        Program.equal(book, books.find("Flash"));
        Program.equal(1, books.runs());
        Program.equal(null, books.find("absent"));
        appears("books::absent");
        Program.equal(null, books.find("absent"));
        Program.equal(2, books.runs());
        Long left = template().getExpire("books::Flash");
        Program.isTrue(left > 500 && left <= 600);
    }

    private static void evicts() throws Exception {
        Program.equal(new Book("Flash", 7), books.change(new Book("Flash", 7)));
        Program.until("change", () -> books.find("Flash").equals(new Book("Flash", 7)));
        Program.equal(2, books.runs());
        books.forget("Flash");
        Program.until("eviction", () -> !template().hasKey("books::Flash"));
        Program.equal(new Book("Flash", 5), books.find("Flash"));
        Program.equal(3, books.runs());
    }

    private static void expires() throws Exception {
        int before = books.runs();
        Program.equal("word!", books.briefly("word"));
        Program.until("expiry", () -> books.briefly("word").equals("word!") && books.runs() > before + 1);
    }

    private static void clears() throws Exception {
        for (int number = 0; number < 300; number++) {
            books.find("book " + number);
        }
        template().opsForValue().set("other", "stays");
        appears("books::book 299");
        books.forgetAll();
        Program.until("clearing", () -> template().keys("books::*").isEmpty());
        Program.equal("stays", template().opsForValue().get("other"));
        int before = books.runs();
        books.find("book 0");
        Program.equal(before + 1, books.runs());
    }

    // The writer that locks a cache with SET NX while it changes it, clears it with SCAN, and waits.
    private static void locks() {
        for (int number = 0; number < 300; number++) {
            waitingCache.put("k" + number, "v" + number);
            Program.equal("v" + number, waitingCache.get("k" + number, String.class));
        }
        Program.equal("v7", waitingCache.putIfAbsent("k7", "other").get());
        Program.equal(null, waitingCache.putIfAbsent("new", "value"));
        waitingCache.evict("new");
        Program.equal(null, waitingCache.get("new"));
        waitingCache.clear();
        Program.equal(Set.of(), template().keys("waiting*"));
    }

    private static void templates() {
        StringRedisTemplate template = template();
        Program.equal(1L, template.opsForValue().increment("n"));
        template.opsForValue().multiSet(Map.of("x", "1", "y", "2"));
        Program.equal(List.of("1", "2"), template.opsForValue().multiGet(List.of("x", "y")));
        List<Object> replies = template.execute(new SessionCallback<List<Object>>() {
            @Override
            @SuppressWarnings("unchecked")
            public <K, V> List<Object> execute(RedisOperations<K, V> given) {
                RedisOperations<String, String> operations = (RedisOperations<String, String>) given;
                operations.watch("n");
                operations.multi();
                operations.opsForValue().increment("n");
                operations.opsForValue().set("x", "in a transaction");
                return operations.exec();
            }
        });
        Program.equal(List.of(2L, true), replies);
        Program.equal("in a transaction", template.opsForValue().get("x"));
    }

    private static void outlivesARestart() throws Exception {
        books.find("Flash");
        appears("books::Flash");
        int before = books.runs();
        Program.restart();
        Program.equal(new Book("Flash", 5), books.find("Flash"));
        Program.equal(before, books.runs());
        context.close();
    }
}
