//! MULTI, EXEC, WATCH; MSET, MSETNX, RENAME, COPY: over several cores and partitions, alone and among others.

use crate::common::{Bench, Setup, encoded, run, show};
use plimsoll_kv::delay::Delay;
use plimsoll_kv::memory::MemoryOptions;
use plimsoll_reactor::Work;
use plimsoll_resp::Reply;
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
fn what_is_between_multi_and_exec_is_done_at_exec() {
    run(Setup { partitions: 8, ..Setup::default() }, |bench| async move {
        let mut c = bench.client().await;
        let mut other = bench.client().await;
        c.dialogue(&[
            ("MULTI", "+OK"),
            ("SET a 1", "+QUEUED"),
            ("incr a", "+QUEUED"),
            ("GET a", "+QUEUED"),
            ("MGET a b a", "+QUEUED"),
            ("DEL a b", "+QUEUED"),
            ("EXISTS a", "+QUEUED"),
            ("SET b 2 PX 100000", "+QUEUED"),
            ("PERSIST b", "+QUEUED"),
            ("PTTL b", "+QUEUED"),
        ])
        .await;
        other.expect("MGET a b", "[nil nil]").await;
        c.expect("EXEC", "[+OK :2 2 [2 nil 2] :1 :0 +OK :1 :-1]").await;
        other.expect("MGET a b", "[nil 2]").await;
        c.dialogue(&[("MULTI", "+OK"), ("EXEC", "[]"), ("EXEC", "-ERR EXEC without MULTI")]).await;
        c.dialogue(&[("MULTI", "+OK"), ("PING", "+QUEUED"), ("ECHO x", "+QUEUED"), ("EXEC", "[+PONG x]")])
            .await;
    });
}

#[test]
fn mistakes_are_answered_as_redis_does() {
    run(Setup::default(), |bench| async move {
        let mut c = bench.client().await;
        let aborted = "-EXECABORT Transaction discarded because of previous errors.";
        c.dialogue(&[
            ("DISCARD", "-ERR DISCARD without MULTI"),
            ("MULTI", "+OK"),
            ("MULTI", "-ERR MULTI calls can not be nested"),
            ("WATCH a", "-ERR WATCH inside MULTI is not allowed"),
            ("SET a 1", "+QUEUED"),
            ("DISCARD", "+OK"),
            ("GET a", "nil"),
            ("MULTI", "+OK"),
            ("SET a", "-ERR wrong number of arguments for 'set' command"),
            ("SET a 1", "+QUEUED"),
            ("EXEC", aborted),
            ("GET a", "nil"),
            ("MULTI", "+OK"),
            ("NOSUCH x", "-ERR unknown command 'NOSUCH', with args beginning with: 'x' "),
            ("EXEC", aborted),
            ("MULTI", "+OK"),
            ("SUBSCRIBE x", "-ERR Command not allowed inside a transaction"),
            ("EXEC", aborted),
            ("MULTI", "+OK"),
            ("SET text word", "+QUEUED"),
            ("INCR text", "+QUEUED"),
            ("SET after 1", "+QUEUED"),
            ("EXEC", "[+OK -ERR value is not an integer or out of range +OK]"),
            ("GET after", "1"),
            ("MULTI", "+OK"),
            ("RESET", "+RESET"),
            ("EXEC", "-ERR EXEC without MULTI"),
        ])
        .await;
    });
}

#[test]
fn a_watched_key_that_changed_stops_exec() {
    run(Setup { partitions: 8, ..Setup::default() }, |bench| async move {
        let mut c = bench.client().await;
        let mut other = bench.client().await;
        for change in ["SET w 2", "EXPIRE w 100", "DEL w", "APPEND w x", "FLUSHDB", "RENAME v w"] {
            c.expect("MSET w 1 v 1", "+OK").await;
            c.dialogue(&[("WATCH w absent", "+OK"), ("GET w", "1"), ("MULTI", "+OK")]).await;
            c.expect("SET done yes", "+QUEUED").await;
            other.call(&change.split(' ').collect::<Vec<_>>()).await;
            c.expect("EXEC", "nil").await;
            c.expect("GET done", "nil").await;
        }
        // What others read, and what was unwatched, does not matter; nor does what this client writes later.
        c.expect("SET w 1", "+OK").await;
        c.expect("WATCH w", "+OK").await;
        other.expect("GET w", "1").await;
        c.dialogue(&[("MULTI", "+OK"), ("SET w 2", "+QUEUED"), ("EXEC", "[+OK]")]).await;
        c.dialogue(&[("WATCH w", "+OK"), ("UNWATCH", "+OK")]).await;
        other.expect("SET w 3", "+OK").await;
        c.dialogue(&[("MULTI", "+OK"), ("GET w", "+QUEUED"), ("EXEC", "[3]")]).await;
        // A key that was absent and came is a change; an expired one is absent.
        c.dialogue(&[("WATCH new", "+OK"), ("MULTI", "+OK"), ("GET new", "+QUEUED")]).await;
        other.expect("SET new 1", "+OK").await;
        c.expect("EXEC", "nil").await;
        c.expect("SET brief 1 PX 50", "+OK").await;
        c.dialogue(&[("WATCH brief", "+OK"), ("MULTI", "+OK"), ("GET brief", "+QUEUED")]).await;
        bench.pause_ms(100).await;
        c.expect("EXEC", "nil").await;
    });
}

#[test]
fn several_keys_are_stored_as_one() {
    run(Setup { partitions: 8, ..Setup::default() }, |bench| async move {
        let mut c = bench.client().await;
        c.dialogue(&[
            ("MSET a 1 b 2 c 3 a 4", "+OK"),
            ("MGET a b c", "[4 2 3]"),
            ("MSET a", "-ERR wrong number of arguments for 'mset' command"),
            ("MSET a 1 b", "-ERR wrong number of arguments for 'mset' command"),
            ("MSETNX d 1 c 2", ":0"),
            ("GET d", "nil"),
            ("MSETNX d 1 e 2", ":1"),
            ("MGET d e", "[1 2]"),
            ("MSETNX f", "-ERR wrong number of arguments for 'msetnx' command"),
            ("RENAME a z", "+OK"),
            ("MGET a z", "[nil 4]"),
            ("RENAME a z", "-ERR no such key"),
            ("RENAME z z", "+OK"),
            ("RENAMENX z b", ":0"),
            ("RENAMENX z z", ":0"),
            ("RENAMENX z y", ":1"),
            ("RENAMENX z y", "-ERR no such key"),
            ("SET timed 1 EX 1000", "+OK"),
            ("RENAME timed kept", "+OK"),
            ("TTL kept", ":1000"),
            ("COPY kept copy", ":1"),
            ("TTL copy", ":1000"),
            ("COPY kept copy", ":0"),
            ("SET kept 2", "+OK"),
            ("COPY kept copy REPLACE", ":1"),
            ("TTL copy", ":-1"),
            ("GET copy", "2"),
            ("COPY kept kept", "-ERR source and destination objects are the same"),
            ("COPY kept kept DB 3", ":1"),
            ("COPY kept kept DB 99", "-ERR DB index is out of range"),
            ("COPY kept other DB", "-ERR syntax error"),
            ("COPY kept other FAST", "-ERR syntax error"),
            ("COPY absent other", ":0"),
            ("SELECT 3", "+OK"),
            ("GET kept", "2"),
            ("FLUSHALL", "+OK"),
            ("DBSIZE", ":0"),
        ])
        .await;
    });
}

#[test]
fn a_transaction_moves_between_databases_and_empties_them() {
    run(Setup { partitions: 5, cores: 3, ..Setup::default() }, |bench| async move {
        let mut c = bench.client().await;
        c.dialogue(&[
            ("MSET a 1 b 2", "+OK"),
            ("MULTI", "+OK"),
            ("SELECT 7", "+QUEUED"),
            ("SET a seven", "+QUEUED"),
            ("COPY a a DB 8", "+QUEUED"),
            ("SELECT 0", "+QUEUED"),
            ("DBSIZE", "+QUEUED"),
            ("SET early 1", "+QUEUED"),
            ("DEL a", "+QUEUED"),
            ("DBSIZE", "+QUEUED"),
            ("KEYS *", "+QUEUED"),
            ("FLUSHDB", "+QUEUED"),
            ("DBSIZE", "+QUEUED"),
            ("GET b", "+QUEUED"),
            ("SET late 1", "+QUEUED"),
            ("SCAN 0 COUNT 100", "+QUEUED"),
            ("RANDOMKEY", "+QUEUED"),
            ("EXEC", "[+OK +OK :1 +OK :2 +OK :1 :2 [b early] +OK :0 nil +OK [0 [late]] late]"),
            ("KEYS *", "[late]"),
            ("SELECT 8", "+OK"),
            ("GET a", "seven"),
            ("SELECT 7", "+OK"),
            ("MULTI", "+OK"),
            ("FLUSHALL", "+QUEUED"),
            ("SET only 1", "+QUEUED"),
            ("EXEC", "[+OK +OK]"),
            ("DBSIZE", ":1"),
            ("SELECT 0", "+OK"),
            ("DBSIZE", ":0"),
        ])
        .await;
    });
}

#[test]
fn long_values_go_through_transactions() {
    run(Setup { partitions: 8, memory: PARTS, ..Setup::default() }, |bench| async move {
        let mut c = bench.client().await;
        let (long, other) = (pattern(10_000, 0), pattern(7_777, 5));
        c.expect(&format!("SET long {long}"), "+OK").await;
        c.expect("RENAME long moved", "+OK").await;
        c.expect("GET moved", &long).await;
        c.expect("COPY moved copy", ":1").await;
        c.expect("MULTI", "+OK").await;
        c.expect(&format!("SET fresh {other}"), "+QUEUED").await;
        c.expect("STRLEN fresh", "+QUEUED").await;
        c.expect("GETRANGE fresh 100 109", "+QUEUED").await;
        c.expect("APPEND copy end", "+QUEUED").await;
        c.expect("GETRANGE copy -5 -1", "+QUEUED").await;
        c.expect("MGET moved absent", "+QUEUED").await;
        c.expect("DEL moved", "+QUEUED").await;
        let (range, tail) = (&other[100..110], &long[9_998..]);
        c.expect("EXEC", &format!("[+OK :7777 {range} :10003 {tail}end [{long} nil] :1]")).await;
        c.expect("GET fresh", &other).await;
        c.expect("GET copy", &format!("{long}end")).await;
        c.expect("EXISTS moved", ":0").await;
        // What was changed is changed again, and read in between: what is sent is as it was then.
        let mut model = other.clone();
        let mut expected = Vec::new();
        c.expect("MULTI", "+OK").await;
        for step in 0..20 {
            let (bytes, at) = (pattern(700, step), step * 500);
            c.expect(&format!("APPEND fresh {bytes}"), "+QUEUED").await;
            c.expect(&format!("SETRANGE fresh {at} {bytes}"), "+QUEUED").await;
            c.expect("GET fresh", "+QUEUED").await;
            c.expect(&format!("GETRANGE fresh {at} {}", at + 1999), "+QUEUED").await;
            model.push_str(&bytes);
            model.replace_range(at..at + bytes.len(), &bytes);
            let (length, range) = (model.len(), &model[at..model.len().min(at + 2000)]);
            expected.push(format!(":{length} :{length} {model} {range}"));
        }
        c.expect("RENAME fresh renamed", "+QUEUED").await;
        c.expect("EXEC", &format!("[{} +OK]", expected.join(" "))).await;
        c.expect("GET renamed", &model).await;
        c.expect("RENAME renamed fresh", "+OK").await;
        // What is given up leaves nothing.
        c.expect("WATCH fresh", "+OK").await;
        c.expect("MULTI", "+OK").await;
        c.expect(&format!("SET never {long}"), "+QUEUED").await;
        bench.client().await.expect("SET fresh short", "+OK").await;
        c.expect("EXEC", "nil").await;
        bench.pause_ms(100).await;
        for memory in bench.memories.borrow().iter() {
            assert_eq!((memory.pinned(), memory.uploading()), (0, 0));
        }
    });
}

/// Moves amounts between accounts, with WATCH or without, until all clients have done their share.
async fn transfers(bench: Bench, number: usize, done: Rc<Cell<usize>>) {
    let mut c = bench.client().await;
    for turn in 0..40 {
        let (from, to) = ((number * 7 + turn * 3) % 10, (number * 5 + turn * 11 + 1) % 10);
        if from == to {
            continue;
        }
        if turn % 2 == 0 {
            c.send([["MULTI"].as_slice(), &["DECRBY", &format!("account{from}"), "3"]].map(encoded).concat())
                .await;
            c.send([["INCRBY", &format!("account{to}"), "3"].as_slice(), &["EXEC"]].map(encoded).concat())
                .await;
            for _ in 0..4 {
                c.next().await.unwrap();
            }
            continue;
        }
        loop {
            let (source, target) = (format!("account{from}"), format!("account{to}"));
            c.call(&["WATCH", &source, &target]).await;
            let balance: i64 = show(&c.call(&["GET", &source]).await).parse().unwrap();
            let other: i64 = show(&c.call(&["GET", &target]).await).parse().unwrap();
            c.call(&["MULTI"]).await;
            let (less, more) = ((balance - 1).to_string(), (other + 1).to_string());
            c.call(&["MSET", &source, &less, &target, &more]).await;
            if show(&c.call(&["EXEC"]).await) != "nil" {
                break;
            }
        }
    }
    done.set(done.get() + 1);
}

#[test]
fn money_is_neither_made_nor_lost() {
    for (cores, partitions) in [(1, 1), (2, 8), (6, 4)] {
        let setup = Setup { cores, partitions, delay: SLOW, ..Setup::default() };
        run(setup, |bench| async move {
            let mut c = bench.client().await;
            let accounts: Vec<String> = (0..10).map(|number| format!("account{number}")).collect();
            for account in &accounts {
                c.expect(&format!("SET {account} 100"), "+OK").await;
            }
            let done = Rc::new(Cell::new(0));
            for number in 0..8 {
                bench.reactor.spawn(Work::Kv, transfers(bench.clone(), number, done.clone()));
            }
            let every = format!("MGET {}", accounts.join(" "));
            let mut audits = 0;
            while done.get() < 8 {
                c.call(&["MULTI"]).await;
                c.call(&every.split(' ').collect::<Vec<_>>()).await;
                let seen = show(&c.call(&["EXEC"]).await);
                let sum: i64 =
                    seen.trim_matches(['[', ']']).split(' ').map(|n| n.parse::<i64>().unwrap()).sum();
                assert_eq!(sum, 1000, "{seen}");
                audits += 1;
            }
            assert!(audits > 20, "{audits} audits");
        });
    }
}

#[test]
fn messages_do_not_come_between_the_elements_of_an_array() {
    let setup = Setup { partitions: 8, delay: SLOW, ..Setup::default() };
    run(setup, |bench| async move {
        let mut listener = bench.client().await;
        listener.call(&["HELLO", "3"]).await;
        listener.call(&["SUBSCRIBE", "news"]).await;
        let publisher = bench.client().await;
        let keys: Vec<String> = (0..200).map(|number| format!("k{number}")).collect();
        let mget: Vec<&str> = std::iter::once("MGET").chain(keys.iter().map(String::as_str)).collect();
        listener.send(encoded(&mget)).await;
        let publish = encoded(&["PUBLISH", "news", "x"]);
        publisher.send(publish.repeat(20)).await;
        let (mut arrays, mut messages) = (0, 0);
        while arrays + messages < 21 {
            match listener.next().await.unwrap() {
                Reply::Push(_) => messages += 1,
                reply => {
                    assert_eq!(show(&reply).matches("nil").count(), 200);
                    arrays += 1;
                }
            }
        }
        assert_eq!((arrays, messages), (1, 20));
    });
}

#[test]
fn publishing_is_part_of_what_is_done() {
    run(Setup::default(), |bench| async move {
        let mut listener = bench.client().await;
        listener.call(&["SUBSCRIBE", "news"]).await;
        let mut c = bench.client().await;
        c.dialogue(&[("WATCH w", "+OK"), ("MULTI", "+OK"), ("PUBLISH news no", "+QUEUED")]).await;
        bench.client().await.expect("SET w 1", "+OK").await;
        c.expect("EXEC", "nil").await;
        c.dialogue(&[
            ("MULTI", "+OK"),
            ("SET result 1", "+QUEUED"),
            ("PUBLISH news yes", "+QUEUED"),
            ("GET result", "+QUEUED"),
            ("EXEC", "[+OK :1 1]"),
        ])
        .await;
        assert_eq!(show(&listener.next().await.unwrap()), "[message news yes]");
    });
}

#[test]
fn commands_of_a_whole_database_wait_for_nobody_inside() {
    let setup = Setup { partitions: 8, cores: 3, delay: SLOW, ..Setup::default() };
    run(setup, |bench| async move {
        let mut c = bench.client().await;
        let mut other = bench.client().await;
        for round in 0..20 {
            c.expect("MSET a 1 b 2", "+OK").await;
            c.expect("SET timed x PX 100000", "+OK").await;
            c.expect("SET brief x PX 1", "+OK").await;
            c.expect("MULTI", "+OK").await;
            for queued in ["GET a", "KEYS *", "SCAN 0", "DBSIZE", "RANDOMKEY", "OBJECT ENCODING a"] {
                c.expect(queued, "+QUEUED").await;
            }
            c.send(encoded(&["EXEC"])).await;
            other.send([["FLUSHDB"].as_slice(), &["GET", "timed"]].map(encoded).concat()).await;
            let Reply::Array(replies) = c.next().await.unwrap() else { panic!("round {round}") };
            assert_eq!(replies.len(), 6);
            assert_eq!(show(&other.next().await.unwrap()), "+OK");
            other.next().await.unwrap();
        }
    });
}

#[test]
fn time_stands_still_inside() {
    run(Setup { partitions: 5, delay: SLOW, ..Setup::default() }, |bench| async move {
        let mut c = bench.client().await;
        c.expect("SET k v PX 20", "+OK").await;
        c.expect("MULTI", "+OK").await;
        c.expect("EXISTS k", "+QUEUED").await;
        let many = 400;
        for _ in 0..many {
            c.expect("GET other", "+QUEUED").await;
        }
        for queued in ["GET k", "EXISTS k", "PERSIST k", "DEL k", "DBSIZE"] {
            c.expect(queued, "+QUEUED").await;
        }
        c.expect("DISCARD", "+OK").await;
        // The key expires while EXEC runs: 400 reads take longer than it lives.
        c.expect("SET k v PX 30", "+OK").await;
        let mut commands = encoded(&["MULTI"]);
        commands.extend(encoded(&["EXISTS", "k"]));
        commands.extend(encoded(&["GET", "other"]).repeat(many));
        for words in [&["GET", "k"][..], &["PERSIST", "k"], &["DBSIZE"], &["EXEC"]] {
            commands.extend(encoded(words));
        }
        c.send(commands).await;
        for _ in 0..many + 5 {
            c.next().await.unwrap();
        }
        let Reply::Array(replies) = c.next().await.unwrap() else { panic!("EXEC is answered") };
        let shown: Vec<String> = replies.iter().map(show).collect();
        let end = &shown[many + 1..];
        assert_eq!((shown[0].as_str(), end), (":1", &["v".to_owned(), ":1".to_owned(), ":1".to_owned()][..]));
        c.expect("GET k", "v").await;
    });
}

#[test]
fn a_transaction_that_writes_too_much_does_nothing() {
    let memory = MemoryOptions { capacity_bytes: 1 << 30, ..MemoryOptions::default() };
    run(Setup { memory, ..Setup::default() }, |bench| async move {
        let mut c = bench.client().await;
        c.expect("MULTI", "+OK").await;
        for number in 0..40 {
            c.expect(&format!("SETRANGE k{number} 2000000 x"), "+QUEUED").await;
        }
        assert!(show(&c.call(&["EXEC"]).await).contains("the transaction writes too much"));
        c.expect("DBSIZE", ":0").await;
    });
}

#[test]
fn what_looks_at_a_whole_database_sees_what_was_committed() {
    run(Setup { partitions: 8, cores: 3, delay: SLOW, ..Setup::default() }, |bench| async move {
        let mut c = bench.client().await;
        for round in 0..30 {
            let mut commands = encoded(&["MULTI"]);
            for number in 0..20 {
                commands.extend(encoded(&["SET", &format!("k{round}:{number}"), "v"]));
            }
            for words in [&["EXEC"][..], &["DBSIZE"], &["KEYS", "*"]] {
                commands.extend(encoded(words));
            }
            c.send(commands).await;
            for _ in 0..22 {
                c.next().await.unwrap();
            }
            let expected = 20 * (round + 1);
            assert_eq!(show(&c.next().await.unwrap()), format!(":{expected}"), "round {round}");
            let Reply::Array(keys) = c.next().await.unwrap() else { panic!("KEYS gives an array") };
            assert_eq!(keys.len(), expected, "round {round}");
        }
    });
}
