//! What a transaction sees of a key that it has changed itself: found beside redis-server.

use crate::common::{Setup, encoded, run, show};

/// What was stored with a time in the past was there for the commands that followed
/// in the transaction, which lost what they wrote with it, or kept it for good.
#[test]
fn what_expires_in_the_past_is_gone_for_the_commands_that_follow() {
    run(Setup { partitions: 8, ..Setup::default() }, |bench| async move {
        let mut c = bench.client().await;
        let follow = [
            ("GET k", "nil", "nil"),
            ("PERSIST k", ":0", "nil"),
            ("EXPIRE k 100", ":0", "nil"),
            ("INCR k", ":1", "1"),
            ("APPEND k 1", ":1", "1"),
            ("SETRANGE k 0 1", ":1", "1"),
            ("SET k 6 KEEPTTL", "+OK", "6"),
            ("SETNX k 1", ":1", "1"),
            ("SET k 1 XX", "nil", "nil"),
            ("DBSIZE", ":0", "nil"),
        ];
        for first in ["SET k v PXAT 1000", "SET k v EXAT 1"] {
            for (words, reply, left) in follow {
                c.expect("SET k before", "+OK").await;
                c.dialogue(&[("MULTI", "+OK"), (first, "+QUEUED"), (words, "+QUEUED")]).await;
                c.expect("EXEC", &format!("[+OK {reply}]")).await;
                c.expect("GET k", left).await;
                c.expect("DEL k", if left == "nil" { ":0" } else { ":1" }).await;
            }
        }
        c.dialogue(&[("MULTI", "+OK"), ("SET k v PXAT 1000", "+QUEUED"), ("EXEC", "[+OK]")]).await;
        c.dialogue(&[("GET k", "nil"), ("DBSIZE", ":0")]).await;
    });
}

#[test]
fn a_key_that_is_named_twice_is_deleted_once() {
    run(Setup { partitions: 8, ..Setup::default() }, |bench| async move {
        let mut c = bench.client().await;
        for delete in ["DEL a a b", "UNLINK a a"] {
            c.dialogue(&[("SET a 1", "+OK"), ("MULTI", "+OK"), (delete, "+QUEUED"), ("EXEC", "[:1]")]).await;
        }
    });
}

#[test]
fn a_pause_of_writes_does_not_hold_a_transaction_that_reads() {
    run(Setup::default(), |bench| async move {
        let (mut reader, mut writer, mut c) =
            (bench.client().await, bench.client().await, bench.client().await);
        reader.dialogue(&[("SET a 1", "+OK"), ("MULTI", "+OK"), ("GET a", "+QUEUED")]).await;
        writer.dialogue(&[("MULTI", "+OK"), ("SET a 2", "+QUEUED")]).await;
        c.expect("CLIENT PAUSE 60000 WRITE", "+OK").await;
        reader.expect("EXEC", "[1]").await;
        writer.send(encoded(&["EXEC"])).await;
        bench.pause_ms(10).await;
        c.dialogue(&[("GET a", "1"), ("CLIENT UNPAUSE", "+OK")]).await;
        assert_eq!(writer.next().await.as_ref().map(show).as_deref(), Some("[+OK]"));
        c.expect("GET a", "2").await;
    });
}

#[test]
fn the_list_of_clients_tells_their_state() {
    run(Setup::default(), |bench| async move {
        let (mut writer, mut listener, mut c) =
            (bench.client().await, bench.client().await, bench.client().await);
        writer.dialogue(&[("MULTI", "+OK"), ("GET a", "+QUEUED")]).await;
        listener.expect("SUBSCRIBE a", "[subscribe a :1]").await;
        let list = show(&c.call(&["CLIENT", "LIST"]).await);
        let has = |words: &[&str]| list.lines().any(|line| words.iter().all(|word| line.contains(word)));
        assert!(has(&["flags=x ", "multi=1 ", "cmd=get "]), "{list}");
        assert!(has(&["flags=P ", "sub=1 "]), "{list}");
        assert!(has(&["flags=N ", "cmd=client|list "]), "{list}");
        c.expect("CLIENT LIST ID 0", "").await;
    });
}

/// A time that reaches to the end of time stopped the server when TTL rounded it.
#[test]
fn scripts_of_locks_take_the_times_that_pexpire_takes() {
    const EXTEND: &str = "EVALSHA a4e8783852e6b949f9ef3a97212805108459a890 1 l t";
    let renew = "if redis.call('get',KEYS[1]) == ARGV[1] then return redis.call('pexpire',KEYS[1],ARGV[2]) \
                 else return 0 end";
    run(Setup::default(), move |bench| async move {
        let mut c = bench.client().await;
        let invalid = "-ERR invalid expire time in 'pexpire' command";
        c.expect("SET l t PX 100000", "+OK").await;
        let longest = "9223372036854775807";
        assert_eq!(show(&c.call(&["EVAL", renew, "1", "l", "t", longest]).await), invalid);
        c.expect(&format!("{EXTEND} {longest} 0"), invalid).await;
        c.expect("TTL l", ":100").await;
        for ms in ["-1", "-9223372036854775808"] {
            assert_eq!(show(&c.call(&["EVAL", renew, "1", "l", "t", ms]).await), ":1");
            c.dialogue(&[("EXISTS l", ":0"), ("SET l t", "+OK")]).await;
        }
        // The token first: it is another's lock, whatever the time.
        assert_eq!(show(&c.call(&["EVAL", renew, "1", "l", "other", "abc"]).await), ":0");
        assert_eq!(show(&c.call(&["EVAL", renew, "1", "absent", "t", "abc"]).await), ":0");
        let no_number = "-ERR value is not an integer or out of range";
        assert_eq!(show(&c.call(&["EVAL", renew, "1", "l", "t", "abc"]).await), no_number);
        for ms in ["5000", "-1", "0"] {
            c.expect(&format!("{EXTEND} {ms} 1"), ":0").await;
        }
        c.expect("TTL l", ":-1").await;
        c.expect("SET l t PXAT 9223372036854775807", "+OK").await;
        c.expect(&format!("{EXTEND} 4000000000000000000 0"), ":1").await;
        let left = show(&c.call(&["TTL", "l"]).await);
        assert!(left.starts_with(":92233"), "{left}");
    });
}

/// Whether its time is one was looked at before it was known who has the lock.
#[test]
fn who_touches_a_lock_of_its_own_with_a_time_in_the_past_lets_it_go() {
    let touch = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pexpire', KEYS[1], ARGV[2]) \
                 elseif redis.call('set', KEYS[1], ARGV[1], 'PX', ARGV[2], 'NX') then return 1 \
                 else return 0 end";
    run(Setup::default(), move |bench| async move {
        let mut c = bench.client().await;
        for ms in ["-1", "0"] {
            c.expect("SET l t PX 100000", "+OK").await;
            assert_eq!(show(&c.call(&["EVAL", touch, "1", "l", "t", ms]).await), ":1");
            c.expect("GET l", "nil").await;
            let refused = show(&c.call(&["EVAL", touch, "1", "l", "t", ms]).await);
            assert_eq!(refused, "-ERR invalid expire time in 'set' command");
        }
        assert_eq!(show(&c.call(&["EVAL", touch, "1", "l", "t", "100000"]).await), ":1");
        c.expect("TTL l", ":100").await;
    });
}

#[test]
fn getex_persist_of_what_does_not_expire_changes_nothing() {
    run(Setup::default(), |bench| async move {
        let (mut c, mut other) = (bench.client().await, bench.client().await);
        c.dialogue(&[("SET k v", "+OK"), ("WATCH k", "+OK")]).await;
        other.expect("GETEX k PERSIST", "v").await;
        c.dialogue(&[("MULTI", "+OK"), ("SET k w", "+QUEUED"), ("EXEC", "[+OK]")]).await;
    });
}
