//! Commands that read a key and change it: alone, among others, and on values in parts.

use crate::common::{Setup, encoded, run, show};
use plimsoll_kv::delay::Delay;
use plimsoll_kv::fault::FaultPolicy;
use plimsoll_kv::memory::MemoryOptions;
use plimsoll_kv::{Op, Request};
use plimsoll_reactor::Work;
use std::cell::Cell;
use std::rc::Rc;

const SLOW: Delay = Delay { fixed_ns: 100_000, byte_ps: 0 };

/// Values above 4 KiB go in parts of 1 KiB.
const PARTS: MemoryOptions =
    MemoryOptions { capacity_bytes: 64 << 20, value_bytes_max: 4096, part_bytes: 1024 };

fn pattern(length: usize, salt: usize) -> String {
    (0..length).map(|n| char::from(b'a' + ((n * 7 + n / 1000 + salt) % 26) as u8)).collect()
}

#[test]
fn many_clients_count_without_losing_one() {
    for cores in [1, 2, 6] {
        run(Setup { cores, partitions: 8, delay: SLOW, ..Setup::default() }, |bench| async move {
            let done = Rc::new(Cell::new(0));
            for number in 0..8 {
                let (inner, done) = (bench.clone(), done.clone());
                bench.reactor.spawn(Work::Kv, async move {
                    let mut c = inner.client().await;
                    c.send((0..50).flat_map(|_| encoded(&["INCRBY", "n", "3"])).collect()).await;
                    let mut last = 0;
                    for _ in 0..50 {
                        let now: i64 = show(&c.next().await.unwrap())[1..].parse().unwrap();
                        assert!(now > last, "the counts of one client grow");
                        last = now;
                    }
                    let word = format!("{number};");
                    c.send((0..50).flat_map(|_| encoded(&["APPEND", "words", &word])).collect()).await;
                    for _ in 0..50 {
                        c.next().await.unwrap();
                    }
                    done.set(done.get() + 1);
                });
            }
            while done.get() < 8 {
                bench.pause_ms(1).await;
            }
            let mut c = bench.client().await;
            c.expect("GET n", "1200").await;
            let words = show(&c.call(&["GET", "words"]).await);
            for number in 0..8 {
                assert_eq!(words.matches(&format!("{number};")).count(), 50);
            }
        });
    }
}

#[test]
fn long_values_are_changed_part_by_part() {
    for cores in [1, 2] {
        run(Setup { cores, partitions: 3, memory: PARTS, ..Setup::default() }, |bench| async move {
            let mut c = bench.client().await;
            let mut model = String::new();
            // Grows from nothing over the limit of a record, and on.
            for (step, length) in [3000, 1000, 97, 1, 1023, 1024, 1025, 4000].into_iter().enumerate() {
                let bytes = pattern(length, step);
                model.push_str(&bytes);
                c.expect(&format!("APPEND k {bytes}"), &format!(":{}", model.len())).await;
                c.expect("STRLEN k", &format!(":{}", model.len())).await;
                assert!(show(&c.call(&["GET", "k"]).await) == model, "after {step} steps");
            }
            c.expect("EXPIRE k 100", ":1").await;
            for (offset, length) in
                [(0, 10), (5000, 2100), (1023, 2), (model.len() - 3, 3), (model.len() - 1, 900)]
            {
                let bytes = pattern(length, offset);
                let end = model.len().min(offset + length);
                model.replace_range(offset..end, &bytes);
                c.expect(&format!("SETRANGE k {offset} {bytes}"), &format!(":{}", model.len())).await;
                assert!(show(&c.call(&["GET", "k"]).await) == model, "at {offset}");
            }
            c.expect("TTL k", ":100").await;
            let length = model.len() as i64;
            for (start, end) in
                [(0, 0), (1000, 1050), (1024, 2047), (0, -1), (-1500, -200), (5000, 9000), (-1, -1)]
            {
                let place = |at: i64| if at < 0 { length + at } else { at } as usize;
                let expected = &model[place(start)..=place(end)];
                let range = format!("GETRANGE k {start} {end}");
                let words: Vec<&str> = range.split(' ').collect();
                assert!(show(&c.call(&words).await) == expected, "{range}");
            }
            c.expect("GETRANGE k 99999999 -1", "").await;
            c.expect("INCR k", "-ERR value is not an integer or out of range").await;
            c.expect("INCRBYFLOAT k 1", "-ERR value is not a valid float").await;
            c.expect("DELIFEQ k short", ":0").await;
            assert!(show(&c.call(&["GETEX", "k", "PERSIST"]).await) == model);
            c.expect("TTL k", ":-1").await;
            assert!(show(&c.call(&["GETDEL", "k"]).await) == model);
            c.expect("EXISTS k", ":0").await;
            c.expect("SETRANGE far 10000 x", ":10001").await;
            c.expect("GETRANGE far 9999 10000", "\0x").await;
            c.expect(
                "SETRANGE far 536870911 xx",
                "-ERR string exceeds maximum allowed size (proto-max-bulk-len)",
            )
            .await;
            bench.pause_ms(10).await;
            for memory in bench.memories.borrow().iter() {
                assert_eq!((memory.uploading(), memory.pinned()), (0, 0), "uploads and pins");
            }
        });
    }
}

/// A change of many parts is overtaken by short ones all the time: it is done once more with the key held.
#[test]
fn a_change_of_a_long_value_ends_beside_others() {
    run(
        Setup { cores: 1, partitions: 1, memory: PARTS, delay: SLOW, ..Setup::default() },
        |bench| async move {
            let mut c = bench.client().await;
            c.expect(&format!("SET k {}", pattern(40_000, 0)), "+OK").await;
            let (inner, ended) = (bench.clone(), Rc::new(Cell::new(false)));
            let (stop, appends) = (ended.clone(), Rc::new(Cell::new(0)));
            let count = appends.clone();
            bench.reactor.spawn(Work::Kv, async move {
                let mut other = inner.client().await;
                while !stop.get() {
                    other.call(&["APPEND", "k", "x"]).await;
                    count.set(count.get() + 1);
                }
            });
            while appends.get() < 3 {
                bench.pause_ms(1).await;
            }
            let long = pattern(30_000, 5);
            let changed = show(&c.call(&["SETRANGE", "k", "0", &long]).await);
            assert!(changed.starts_with(":40"), "{changed}");
            ended.set(true);
            assert!(show(&c.call(&["GET", "k"]).await).starts_with(&long));
        },
    );
}

#[test]
fn a_full_device_refuses_a_change_and_keeps_the_value() {
    let memory = MemoryOptions { capacity_bytes: 20_000, ..PARTS };
    run(Setup { cores: 1, partitions: 1, memory, ..Setup::default() }, |bench| async move {
        let mut c = bench.client().await;
        let oom = "-OOM command not allowed: no space left on device";
        let value = pattern(12_000, 0);
        c.expect(&format!("SET k {value}"), "+OK").await;
        c.expect("APPEND k x", oom).await;
        c.expect("SETRANGE k 5 x", oom).await;
        assert!(show(&c.call(&["GET", "k"]).await) == value);
        c.expect("SET n 1", "+OK").await;
        c.expect("INCR n", ":2").await;
        bench.pause_ms(10).await;
        assert_eq!(bench.memories.borrow()[0].uploading(), 0);
    });
}

#[test]
fn locks_are_let_go_by_their_holder_alone() {
    run(Setup::default(), |bench| async move {
        let mut c = bench.client().await;
        c.expect("SET lock a NX PX 10000", "+OK").await;
        c.expect("DELIFEQ lock b", ":0").await;
        c.expect("DELEX lock IFEQ b", ":0").await;
        c.expect("DELEX lock IFNE a", ":0").await;
        c.expect("DELEX lock IFEQ", "-ERR syntax error").await;
        c.expect("DELEX lock IFXX a", "-ERR syntax error").await;
        c.expect("DELEX lock IFEQ a", ":1").await;
        c.expect("DELIFEQ lock a", ":0").await;
        c.expect("SET lock a", "+OK").await;
        c.expect("DELEX lock IFNE b", ":1").await;
        c.expect("SET lock a", "+OK").await;
        c.expect("DELEX lock", ":1").await;
        c.expect("WAITAOF 1 0 0", "[:1 :0]").await;
        c.expect("WAITAOF 2 0 0", "-ERR value is out of range, must be between 0 and 1").await;
        c.expect("BGSAVE", "+Background saving started").await;
        c.expect("BGSAVE now", "-ERR syntax error").await;
        c.expect("SET k 0123456789", "+OK").await;
        let usage = show(&c.call(&["MEMORY", "USAGE", "k", "SAMPLES", "5"]).await);
        assert!(usage[1..].parse::<u64>().is_ok_and(|bytes| bytes > 10), "{usage}");
        c.expect("RANDOMKEY", "k").await;
        c.expect("KEYS *", "[k]").await;
    });
}

/// SET had neither IFEQ nor IFNE: locks could be let go by their holder alone, but not handed on.
#[test]
fn set_ifeq_replaces_what_it_compares_with() {
    run(Setup::default(), |bench| async move {
        let mut c = bench.client().await;
        c.expect("SET k new IFEQ old", "nil").await;
        c.expect("EXISTS k", ":0").await;
        c.expect("SET k old", "+OK").await;
        c.expect("SET k new IFEQ other", "nil").await;
        c.expect("SET k new ifeq old EX 100", "+OK").await;
        c.expect("TTL k", ":100").await;
        c.expect("SET k newer IFEQ new KEEPTTL GET", "new").await;
        c.expect("TTL k", ":100").await;
        c.expect("SET k x GET IFEQ new", "newer").await;
        c.expect("SET k x IFNE newer", "nil").await;
        c.expect("SET k x IFNE newer GET", "newer").await;
        c.expect("SET k x IFNE y", "+OK").await;
        c.expect("GET k", "x").await;
        c.expect("TTL k", ":-1").await;
        c.expect("SET absent x IFNE y GET", "nil").await;
        c.expect("GET absent", "x").await;
        for wrong in ["NX IFEQ x", "IFEQ x XX", "IFEQ x IFEQ x", "IFEQ x IFNE y", "IFEQ", "EX 1 IFNE"] {
            c.expect(&format!("SET k v {wrong}"), "-ERR syntax error").await;
        }
        c.expect("MULTI", "+OK").await;
        c.expect("SET k 2 IFEQ x", "+QUEUED").await;
        c.expect("SET k 3 IFEQ x", "+QUEUED").await;
        c.expect("SET k 4 IFEQ 2 GET", "+QUEUED").await;
        c.expect("EXEC", "[+OK nil 2]").await;
        c.expect("GET k", "4").await;
    });
}

/// A value in parts was taken to differ from all that it was compared with: DELIFEQ never deleted one, and
/// DELEX IFNE always.
#[test]
fn values_in_parts_are_compared_whole() {
    const RELEASE: &str = "c3f8721cbb97f72bc19e972846bd7aaf91901658";
    run(Setup { cores: 2, partitions: 3, memory: PARTS, ..Setup::default() }, |bench| async move {
        let mut c = bench.client().await;
        for length in [4096, 4097, 5120, 5121, 10_000] {
            let value = pattern(length, 3);
            let mut last = value.clone();
            last.replace_range(length - 1.., "!");
            c.expect(&format!("SET k {value}"), "+OK").await;
            c.expect(&format!("DELEX k IFNE {value}"), ":0").await;
            for other in [&last, &value[1..], "short"] {
                c.expect(&format!("DELIFEQ k {other}"), ":0").await;
                c.expect(&format!("SET k x IFEQ {other}"), "nil").await;
            }
            c.expect(&format!("SET k short IFEQ {value}"), "+OK").await;
            c.expect(&format!("SET k {value} IFEQ other"), "nil").await;
            c.expect(&format!("SET k {value} IFEQ short"), "+OK").await;
            c.expect("MULTI", "+OK").await;
            c.expect(&format!("SET k {last} IFEQ {value}"), "+QUEUED").await;
            c.expect(&format!("DELEX k IFNE {last}"), "+QUEUED").await;
            c.expect(&format!("DELEX k IFEQ {last}"), "+QUEUED").await;
            c.expect("EXEC", "[+OK :0 :1]").await;
            c.expect(&format!("SET k {value}"), "+OK").await;
            c.expect(&format!("EVALSHA {RELEASE} 1 k {value}"), ":1").await;
            c.expect("EXISTS k", ":0").await;
        }
        bench.pause_ms(10).await;
        for memory in bench.memories.borrow().iter() {
            assert_eq!((memory.uploading(), memory.pinned()), (0, 0), "uploads and pins");
        }
    });
}

/// redis-py and others load a script and then name it by its digest; SCRIPT LOAD was unknown, and the digest
/// of a script that was sent before, too.
#[test]
fn a_known_script_that_was_sent_is_named_by_its_digest() {
    const TEXT: &str = "if redis.call('get', KEYS[1]) == ARGV[1] then -- ours\n\treturn redis.call('del', \
                        KEYS[1]);\nelse return 0 end";
    run(Setup { cores: 2, ..Setup::default() }, |bench| async move {
        let (mut c, mut other) = (bench.client().await, bench.client().await);
        let digest = show(&c.call(&["SCRIPT", "LOAD", TEXT]).await);
        assert_eq!(digest.len(), 40, "{digest}");
        c.expect(&format!("SCRIPT EXISTS {digest}"), "[:1]").await;
        c.expect("SET lock a", "+OK").await;
        other.expect(&format!("EVALSHA {digest} 1 lock b"), ":0").await;
        other.expect(&format!("EVALSHA {digest} 1 lock a"), ":1").await;
        // Redis gives this digest for it.
        let text = "return redis.call('incrby', KEYS[1], ARGV[1])";
        let digest = "65b45e1e1b8b36c8c3e885080b88ae484e64fde6";
        c.expect(&format!("EVALSHA {digest} 1 n 5"), "-NOSCRIPT No matching script. Please use EVAL.").await;
        assert_eq!(show(&c.call(&["EVAL", text, "1", "n", "5"]).await), ":5");
        c.expect(&format!("EVALSHA {digest} 1 n 5"), ":10").await;
        let refused = show(&c.call(&["SCRIPT", "LOAD", "return 1"]).await);
        assert!(refused.starts_with("-ERR there are no scripts here"), "{refused}");
    });
}

/// The lock of Spring Integration, by its scripts.
#[test]
fn the_scripts_of_springs_lock_registry_are_known() {
    const OBTAIN: &str = "local lockClientId = redis.call('GET', KEYS[1])\nif lockClientId == ARGV[1] then\n\
        \tredis.call('PEXPIRE', KEYS[1], ARGV[2])\n\treturn true\nelseif not lockClientId then\n\
        \tredis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])\n\treturn true\nend\nreturn false\n";
    const RENEW: &str = "if (redis.call('GET', KEYS[1]) == ARGV[1]) then\n\
        \tredis.call('PEXPIRE', KEYS[1], ARGV[2])\n\treturn true\nend\nreturn false\n";
    const RELEASE: &str = "local lockClientId = redis.call('GET', KEYS[1])\nif lockClientId == ARGV[1] then\n\
        \tredis.call('UNLINK', KEYS[1])\n\treturn true\nend\nreturn false\n";
    const TELL: &str = "local lockClientId = redis.call('GET', KEYS[1])\n\
        if (lockClientId == ARGV[1] and redis.call('UNLINK', KEYS[1]) == 1) then\n\
        \tredis.call('PUBLISH', ARGV[2], KEYS[1])\n\treturn true\nend\nreturn false\n";
    run(Setup { cores: 2, ..Setup::default() }, |bench| async move {
        let (mut c, mut listener) = (bench.client().await, bench.client().await);
        assert_eq!(show(&c.call(&["EVAL", OBTAIN, "1", "l", "a", "60000"]).await), ":1");
        c.expect("GET l", "a").await;
        c.expect("TTL l", ":60").await;
        assert_eq!(show(&c.call(&["EVAL", OBTAIN, "1", "l", "b", "1000"]).await), "nil");
        assert_eq!(show(&c.call(&["EVAL", OBTAIN, "1", "l", "a", "90000"]).await), ":1");
        c.expect("TTL l", ":90").await;
        assert_eq!(show(&c.call(&["EVAL", RENEW, "1", "l", "b", "30000"]).await), "nil");
        assert_eq!(show(&c.call(&["EVAL", RENEW, "1", "l", "a", "30000"]).await), ":1");
        c.expect("TTL l", ":30").await;
        assert_eq!(show(&c.call(&["EVAL", RELEASE, "1", "l", "b"]).await), "nil");
        assert_eq!(show(&c.call(&["EVAL", RELEASE, "1", "l", "a"]).await), ":1");
        assert_eq!(show(&c.call(&["EVAL", RELEASE, "1", "l", "a"]).await), "nil");
        assert_eq!(show(&c.call(&["EVAL", RENEW, "1", "l", "a", "30000"]).await), "nil");
        listener.expect("SUBSCRIBE free", "[subscribe free :1]").await;
        c.expect("SET l a", "+OK").await;
        assert_eq!(show(&c.call(&["EVAL", TELL, "1", "l", "b", "free"]).await), "nil");
        assert_eq!(show(&c.call(&["EVAL", TELL, "1", "l", "a", "free"]).await), ":1");
        assert_eq!(show(&listener.next().await.unwrap()), "[message free l]");
        c.expect("EXISTS l", ":0").await;
        let invalid = show(&c.call(&["EVAL", OBTAIN, "1", "l", "a", "0"]).await);
        assert_eq!(invalid, "-ERR invalid expire time in 'set' command");
    });
}

/// Redlock of Node and of Go, by its scripts: the first takes several keys as one.
#[test]
fn the_scripts_of_redlock_are_known() {
    const TAKE: &str = "\n  -- Return 0 if an entry already exists.\n  for i, key in ipairs(KEYS) do\n    \
        if redis.call(\"exists\", key) == 1 then\n      return 0\n    end\n  end\n\n  -- Create an entry for \
        each provided key.\n  for i, key in ipairs(KEYS) do\n    redis.call(\"set\", key, ARGV[1], \"PX\", \
        ARGV[2])\n  end\n\n  -- Return the number of entries added.\n  return #KEYS\n";
    const EXTEND: &str = "for i, key in ipairs(KEYS) do\n if redis.call(\"get\", key) ~= ARGV[1] then\n \
        return 0\n end\n end\n for i, key in ipairs(KEYS) do\n redis.call(\"set\", key, ARGV[1], \"PX\", \
        ARGV[2])\n end\n return #KEYS";
    const RELEASE: &str = "local count = 0\n for i, key in ipairs(KEYS) do\n -- Only remove entries for *this* \
        lock value.\n if redis.call(\"get\", key) == ARGV[1] then\n redis.pcall(\"del\", key)\n count = count \
        + 1\n end\n end\n return count";
    const DELETE: &str = "local val = redis.call(\"GET\", KEYS[1])\n\tif val == ARGV[1] then\n\t\treturn \
        redis.call(\"DEL\", KEYS[1])\n\telseif val == false then\n\t\treturn -1\n\telse\n\t\treturn 0\n\tend";
    const TOUCH: &str = "if redis.call(\"GET\", KEYS[1]) == ARGV[1] then\n return redis.call(\"PEXPIRE\", \
        KEYS[1], ARGV[2])\n elseif redis.call(\"SET\", KEYS[1], ARGV[1], \"PX\", ARGV[2], \"NX\") then\n \
        return 1\n else\n return 0\n end";
    run(Setup { cores: 2, partitions: 3, ..Setup::default() }, |bench| async move {
        let mut c = bench.client().await;
        assert_eq!(show(&c.call(&["EVAL", TAKE, "3", "x", "y", "z", "a", "60000"]).await), ":3");
        assert_eq!(show(&c.call(&["EVAL", TAKE, "2", "w", "z", "b", "60000"]).await), ":0");
        c.expect("EXISTS w", ":0").await;
        c.expect("MGET x y z", "[a a a]").await;
        assert_eq!(show(&c.call(&["EVAL", EXTEND, "3", "x", "y", "z", "a", "90000"]).await), ":3");
        c.expect("TTL y", ":90").await;
        c.expect("SET y b", "+OK").await;
        assert_eq!(show(&c.call(&["EVAL", EXTEND, "3", "x", "y", "z", "a", "10000"]).await), ":0");
        c.expect("TTL x", ":90").await;
        assert_eq!(show(&c.call(&["EVAL", RELEASE, "3", "x", "y", "z", "a"]).await), ":2");
        c.expect("MGET x y z", "[nil b nil]").await;
        assert_eq!(show(&c.call(&["EVAL", DELETE, "1", "y", "a"]).await), ":0");
        assert_eq!(show(&c.call(&["EVAL", DELETE, "1", "y", "b"]).await), ":1");
        assert_eq!(show(&c.call(&["EVAL", DELETE, "1", "y", "b"]).await), ":-1");
        assert_eq!(show(&c.call(&["EVAL", TOUCH, "1", "y", "b", "20000"]).await), ":1");
        assert_eq!(show(&c.call(&["EVAL", TOUCH, "1", "y", "a", "50000"]).await), ":0");
        assert_eq!(show(&c.call(&["EVAL", TOUCH, "1", "y", "b", "50000"]).await), ":1");
        c.expect("TTL y", ":50").await;
        // Between MULTI and EXEC.
        c.expect("MULTI", "+OK").await;
        c.call(&["EVAL", TAKE, "2", "v", "w", "a", "60000"]).await;
        c.call(&["EVAL", RELEASE, "2", "v", "y", "a"]).await;
        c.expect("EXEC", "[:2 :1]").await;
        c.expect("MGET v w y", "[nil a b]").await;
        let refused = "-ERR this script takes one key and its token";
        assert_eq!(show(&c.call(&["EVAL", TAKE, "2", "v", "w", "a"]).await), refused);
        assert_eq!(show(&c.call(&["EVAL", TAKE, "0", "v", "w", "a"]).await), refused);
        let refused = "-ERR Number of keys can't be greater than number of args";
        assert_eq!(show(&c.call(&["EVAL", TAKE, "9", "v", "w", "a"]).await), refused);
    });
}

#[test]
fn the_scripts_of_locks_are_known() {
    const RELEASE: &str = "c3f8721cbb97f72bc19e972846bd7aaf91901658";
    const EXTEND: &str = "a4e8783852e6b949f9ef3a97212805108459a890";
    const REACQUIRE: &str = "1cac51482acf5858da00f6d685d68f886cd6b6b2";
    run(Setup::default(), |bench| async move {
        let mut c = bench.client().await;
        c.expect("SET lock a PX 10000", "+OK").await;
        c.expect(&format!("EVALSHA {EXTEND} 1 lock b 5000 0"), ":0").await;
        c.expect(&format!("EVALSHA {EXTEND} 1 lock a 5000 0"), ":1").await;
        c.expect("TTL lock", ":15").await;
        c.expect(&format!("EVALSHA {EXTEND} 1 lock a 7000 1"), ":1").await;
        c.expect("TTL lock", ":7").await;
        c.expect(&format!("EVALSHA {REACQUIRE} 1 lock a 9000"), ":1").await;
        c.expect("TTL lock", ":9").await;
        c.expect("PERSIST lock", ":1").await;
        c.expect(&format!("EVALSHA {EXTEND} 1 lock a 5000 0"), ":0").await;
        c.expect(&format!("EVALSHA {RELEASE} 1 lock b"), ":0").await;
        c.expect(&format!("EVALSHA {} 1 lock a", RELEASE.to_uppercase()), ":1").await;
        c.expect(&format!("EVALSHA {RELEASE} 1 lock a"), ":0").await;
        // The scripts that django-redis counts with.
        let adds = "return redis.call('INCRBY', KEYS[1], ARGV[1])";
        let adds_if_there = "local exists = redis.call('EXISTS', KEYS[1])\n if (exists == 1) then\n \
                             return redis.call('INCRBY', KEYS[1], ARGV[1])\n else return false end";
        assert_eq!(show(&c.call(&["EVAL", adds_if_there, "1", "counted", "5"]).await), "nil");
        assert_eq!(show(&c.call(&["EVAL", adds, "1", "counted", "5"]).await), ":5");
        assert_eq!(show(&c.call(&["EVAL", adds_if_there, "1", "counted", "-2"]).await), ":3");
        let refused = show(&c.call(&["EVAL", adds, "1", "counted", "x"]).await);
        assert_eq!(refused, "-ERR value is not an integer or out of range");
        c.expect(&format!("EVALSHA {RELEASE} 2 lock a b"), "-ERR this script takes one key and its token")
            .await;
        // A time in the past takes the lock away, as PEXPIRE does.
        for shorter in ["-2000000 0", "-1 1"] {
            c.expect("SET lock a PX 1000000", "+OK").await;
            c.expect(&format!("EVALSHA {EXTEND} 1 lock a {shorter}"), ":1").await;
            c.expect("GET lock", "nil").await;
        }
        let unknown = "0".repeat(40);
        c.expect(&format!("EVALSHA {unknown} 0"), "-NOSCRIPT No matching script. Please use EVAL.").await;
        c.expect(&format!("SCRIPT EXISTS {RELEASE} {unknown}"), "[:1 :0]").await;
        c.expect("SCRIPT FLUSH", "+OK").await;
        c.expect("SET lock a", "+OK").await;
        let text = "if redis.call('GET', KEYS[1]) == ARGV[1] then\n  return redis.call('DEL', KEYS[1])\nelse\n  \
                    return 0\nend";
        assert_eq!(show(&c.call(&["EVAL", text, "1", "lock", "b"]).await), ":0");
        assert_eq!(show(&c.call(&["EVAL", text, "1", "lock", "a"]).await), ":1");
        assert!(
            show(&c.call(&["EVAL", "return 1", "0"]).await).starts_with("-ERR there are no scripts here")
        );
    });
}

/// The value was deleted, then a part of it could not be read, and the connection was cut: it was lost.
#[test]
fn a_value_that_cannot_be_given_is_not_taken_away() {
    run(Setup { memory: PARTS, ..Setup::default() }, |bench| async move {
        let is_last = |request: &Request| matches!(request.op, Op::RetrievePart { part: 9, .. });
        let (mut c, value) = (bench.client().await, pattern(10_000, 0));
        for command in ["GETDEL k", "GETSET k other", "SET k other GET", "GETEX k EXAT 1"] {
            c.expect(&format!("SET k {value}"), "+OK").await;
            for device in bench.faults.borrow().values() {
                device.set_policy(FaultPolicy::When(Box::new(is_last)));
            }
            let refused = show(&c.call(&command.split(' ').collect::<Vec<_>>()).await);
            assert!(refused.starts_with('-'), "{command}: {refused}");
            c.expect("MULTI", "+OK").await;
            c.expect(command, "+QUEUED").await;
            let refused = show(&c.call(&["EXEC"]).await);
            // Of a device that is overloaded the whole transaction is told.
            assert!(refused.starts_with('-'), "{command}: {refused}");
            for device in bench.faults.borrow().values() {
                device.set_policy(FaultPolicy::Never);
            }
            c.expect("GET k", &value).await;
            c.expect(command, &value).await;
        }
    });
}
