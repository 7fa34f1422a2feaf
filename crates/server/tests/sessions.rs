//! Connections under pressure: deep pipelines, long values, hostile bytes, ends.

use crate::common::{Bench, SERVER, Setup, encoded, run, send_in_background, show};
use plimsoll_kv::delay::Delay;
use plimsoll_kv::memory::MemoryOptions;
use plimsoll_reactor::Work;
use plimsoll_reactor::sim::Random;
use std::cell::Cell;
use std::rc::Rc;

const SLOW: Delay = Delay { fixed_ns: 100_000, byte_ps: 0 };

/// Values above 4 KiB go in parts of 1 KiB.
const PARTS: MemoryOptions =
    MemoryOptions { capacity_bytes: 64 << 20, value_bytes_max: 4096, part_bytes: 1024 };

#[test]
fn a_pipeline_of_ten_thousand_commands_is_answered_in_order() {
    for cores in [1, 2, 6] {
        run(Setup { cores, partitions: 8, delay: SLOW, ..Setup::default() }, |bench| async move {
            let mut c = bench.client().await;
            let mut pipeline = Vec::new();
            for n in 0..2_500 {
                let (key, value) = (format!("k{}", n % 50), n.to_string());
                pipeline.extend(encoded(&["SET", &key, &value]));
                pipeline.extend(encoded(&["GET", &key]));
                pipeline
                    .extend(encoded(&["EXPIRE", &key, "1000", if n % 100 == 0 { "NX" } else { "100" }][..3]));
                pipeline.extend(encoded(&["PING", &value]));
            }
            send_in_background(&bench, &c, pipeline);
            for n in 0..2_500 {
                assert_eq!(show(&c.next().await.unwrap()), "+OK");
                assert_eq!(show(&c.next().await.unwrap()), n.to_string());
                assert_eq!(show(&c.next().await.unwrap()), ":1");
                assert_eq!(show(&c.next().await.unwrap()), n.to_string());
            }
        });
    }
}

#[test]
fn commands_of_several_steps_keep_their_place() {
    run(Setup { cores: 2, partitions: 8, delay: SLOW, ..Setup::default() }, |bench| async move {
        let mut c = bench.client().await;
        let commands: [(&[&str], &str); 11] = [
            (&["SET", "k", "1"], "+OK"),
            (&["EXPIRE", "k", "100", "NX"], ":1"),
            (&["SET", "k", "2", "GET"], "1"),
            (&["TTL", "k"], ":-1"),
            (&["SET", "k", "3"], "+OK"),
            (&["MGET", "k", "absent", "k"], "[3 nil 3]"),
            (&["FLUSHDB"], "+OK"),
            (&["GET", "k"], "nil"),
            (&["SET", "k", "4"], "+OK"),
            (&["DBSIZE"], ":1"),
            (&["DEL", "k"], ":1"),
        ];
        for _ in 0..50 {
            c.send(commands.iter().flat_map(|(args, _)| encoded(args)).collect()).await;
            for (args, expected) in commands {
                assert_eq!(show(&c.next().await.unwrap()), expected, "{args:?}");
            }
        }
    });
}

#[test]
fn reads_of_one_pipeline_overlap() {
    run(Setup { cores: 1, partitions: 1, delay: SLOW, ..Setup::default() }, |bench| async move {
        let mut c = bench.client().await;
        let start_ns = bench.reactor.now_ns();
        c.send((0..640).flat_map(|n| encoded(&["GET", &format!("k{n}")])).collect()).await;
        for _ in 0..640 {
            assert_eq!(show(&c.next().await.unwrap()), "nil");
        }
        let took_us = (bench.reactor.now_ns() - start_ns) / 1000;
        assert!(took_us < 4_000, "640 reads of 100 us took {took_us} us: ten at once would take 6400");
    });
}

fn pattern(length: usize, salt: usize) -> String {
    (0..length).map(|n| char::from(b'a' + ((n * 7 + n / 1000 + salt) % 26) as u8)).collect()
}

#[test]
fn every_command_that_stores_takes_long_values() {
    let setup = Setup { partitions: 3, memory: PARTS, delay: SLOW, ..Setup::default() };
    run(setup, |bench| async move {
        let mut c = bench.client().await;
        let (a, b) = (pattern(20_000, 1), pattern(9_001, 2));
        c.expect(&format!("SETEX e 100 {a}"), "+OK").await;
        c.expect("GET e", &a).await;
        c.expect("TTL e", ":100").await;
        c.expect(&format!("SETNX n {a}"), ":1").await;
        c.expect(&format!("SETNX n {b}"), ":0").await;
        c.expect(&format!("GETSET n {b}"), &a).await;
        c.expect(&format!("PSETEX n 100000 {a}"), "+OK").await;
        c.expect(&format!("MSET m1 {a} m2 {b} m3 short"), "+OK").await;
        c.expect("MGET m1 m2 m3 n", &format!("[{a} {b} short {a}]")).await;
        c.expect(&format!("APPEND m2 {a}"), &format!(":{}", a.len() + b.len())).await;
        c.expect("GET m2", &format!("{b}{a}")).await;
        c.expect(&format!("SETRANGE m3 3 {b}"), &format!(":{}", b.len() + 3)).await;
        c.expect("GET m3", &format!("sho{b}")).await;
        c.expect("DEL e n m1 m2 m3", ":5").await;
        let mut pipeline = encoded(&["SETEX", "p", "100", &a]);
        pipeline.extend(encoded(&["GET", "p"]));
        c.send(pipeline).await;
        assert!(show(&c.next().await.unwrap()) == "+OK" && show(&c.next().await.unwrap()) == a, "in order");
        c.expect("DEL p", ":1").await;
        bench.pause_ms(10).await;
        assert_no_leaks(&bench);
    });
}

#[test]
fn long_values_stream_in_and_out() {
    for cores in [1, 2] {
        run(
            Setup { cores, partitions: 3, memory: PARTS, delay: SLOW, ..Setup::default() },
            |bench| async move {
                let mut c = bench.client().await;
                for length in [4096, 4097, 5120, 100_000, 3_000_001] {
                    let value = pattern(length, length);
                    c.expect(&format!("SET k {value}"), "+OK").await;
                    c.expect("STRLEN k", &format!(":{length}")).await;
                    assert!(show(&c.call(&["GET", "k"]).await) == value, "{length} bytes come back");
                    let other = pattern(length + 1, 3);
                    assert!(show(&c.call(&["SET", "k", &other, "GET", "EX", "100"]).await) == value);
                    assert!(show(&c.call(&["MGET", "absent", "k"]).await) == format!("[nil {other}]"));
                    c.expect("PERSIST k", ":1").await;
                    c.expect(&format!("SET k {value} NX"), "nil").await;
                    c.expect(&format!("SET k {value} NX FOO"), "-ERR syntax error").await;
                }
                let long = pattern(10_000, 0);
                c.expect(&format!("ECHO {long}"), &long).await;
                c.expect(&format!("SET {long} v"), "+OK").await;
                c.expect(&format!("DEL {long}"), ":1").await;
                c.expect(&format!("SET k {long} EX {long}"), "-ERR argument is too long").await;
                let unknown = show(&c.call(&["NOPE", &long]).await);
                assert!(unknown.starts_with("-ERR unknown command 'NOPE'"), "{unknown}");
                c.expect("PING", "+PONG").await;
                let mut pipeline = encoded(&["SET", "p", &long]);
                pipeline.extend(encoded(&["GET", "p"]));
                pipeline.extend(encoded(&["SET", "p", "short"]));
                pipeline.extend(encoded(&["GET", "p"]));
                c.send(pipeline).await;
                for expected in ["+OK", &long, "+OK", "short"] {
                    assert!(show(&c.next().await.unwrap()) == expected);
                }
                bench.pause_ms(10).await;
                assert_no_leaks(&bench);
            },
        );
    }
}

fn assert_no_leaks(bench: &Bench) {
    for memory in bench.memories.borrow().iter() {
        assert_eq!((memory.uploading(), memory.pinned()), (0, 0), "uploads and pins");
    }
}

#[test]
fn a_full_device_refuses_a_long_value_and_the_connection_goes_on() {
    let memory = MemoryOptions { capacity_bytes: 50_000, ..PARTS };
    run(Setup { cores: 1, partitions: 1, memory, ..Setup::default() }, |bench| async move {
        let mut c = bench.client().await;
        let oom = "-OOM command not allowed: no space left on device";
        c.expect(&format!("SET k {}", pattern(60_000, 0)), oom).await;
        c.expect(&format!("SET a {}", pattern(30_000, 0)), "+OK").await;
        c.expect(&format!("SET b {}", pattern(30_000, 0)), oom).await;
        c.expect("DEL a", ":1").await;
        c.expect(&format!("SET b {}", pattern(30_000, 0)), "+OK").await;
        assert_no_leaks(&bench);
    });
}

#[test]
fn a_connection_that_dies_leaves_nothing_behind() {
    run(
        Setup { cores: 2, partitions: 4, memory: PARTS, delay: SLOW, ..Setup::default() },
        |bench| async move {
            let mut c = bench.client().await;
            let value = pattern(2_000_000, 0);
            c.expect(&format!("SET k {value}"), "+OK").await;
            for cut_after_us in [100, 500, 1_000, 3_000, 10_000, 30_000] {
                // One dies while it sends a long value, one while it receives one.
                let sender = bench.client().await;
                let upload = encoded(&["SET", "half", &value]);
                send_in_background(&bench, &sender, upload[..upload.len() / 2].to_vec());
                let reader = bench.client().await;
                reader.send((0..5).flat_map(|_| encoded(&["GET", "k"])).collect()).await;
                bench.reactor.sleep_ns(cut_after_us * 1000).await;
                sender.socket.shutdown();
                reader.socket.shutdown();
            }
            bench.pause_ms(30_000).await;
            assert_no_leaks(&bench);
            c.expect("EXISTS half", ":0").await;
            assert_eq!(bench.shared.connections(), 1);
        },
    );
}

#[test]
fn too_many_clients_are_refused() {
    run(Setup { clients_max: 3, ..Setup::default() }, |bench| async move {
        let mut kept = Vec::new();
        for _ in 0..3 {
            let mut c = bench.client().await;
            c.expect("PING", "+PONG").await;
            kept.push(c);
        }
        let mut refused = bench.client().await;
        assert_eq!(show(&refused.next().await.unwrap()), "-ERR max number of clients reached");
        assert!(refused.next().await.is_none());
        kept.pop();
        bench.pause_ms(10).await;
        bench.client().await.expect("PING", "+PONG").await;
    });
}

#[test]
fn a_broken_protocol_is_answered_and_closed() {
    run(Setup::default(), |bench| async move {
        for (bytes, expected) in [
            (&b"*1\r\n$4\r\nPING\r\n*x\r\n"[..], "-ERR Protocol error: invalid multibulk length"),
            (b"*1\r\n$4\r\nPING\r\n*1\r\n!4\r\n", "-ERR Protocol error: expected '$', got '!'"),
            (b"*1\r\n$4\r\nPING\r\n*1\r\n$999999999999\r\n", "-ERR Protocol error: invalid bulk length"),
            (b"PING\r\nSET \"a\r\n", "-ERR Protocol error: unbalanced quotes in request"),
        ] {
            let mut c = bench.client().await;
            c.send(bytes.to_vec()).await;
            assert_eq!(show(&c.next().await.unwrap()), "+PONG");
            assert_eq!(show(&c.next().await.unwrap()), expected);
            assert!(c.next().await.is_none());
        }
        assert_eq!(bench.shared.sum(|counters| counters.protocol_errors.get()), 4);
    });
}

#[test]
fn hostile_bytes_end_a_connection_and_nothing_else() {
    for seed in 0..30 {
        run(Setup { seed, memory: PARTS, ..Setup::default() }, move |bench| async move {
            let mut random = Random::stream(seed, "hostile");
            for _ in 0..10 {
                let mut bytes = encoded(&["SET", "k", &"v".repeat(random.below(9_000) as usize)]);
                bytes.extend(encoded(&["MGET", "k", "k", "k"]));
                bytes.extend(encoded(&["CLIENT", "LIST"]));
                for _ in 0..random.below(20) {
                    let at = random.below(bytes.len() as u64) as usize;
                    bytes[at] = match random.below(4) {
                        0 => b'*',
                        1 => b'\n',
                        2 => b'9',
                        _ => random.below(256) as u8,
                    };
                }
                let c = bench.client().await;
                send_in_background(&bench, &c, bytes);
                bench.pause_ms(5).await;
            }
            bench.pause_ms(30_000).await;
            let mut c = bench.client().await;
            c.expect("PING", "+PONG").await;
            assert_eq!(bench.shared.connections(), 1);
            assert_no_leaks(&bench);
        });
    }
}

#[test]
fn what_was_begun_before_the_end_of_the_stream_is_answered() {
    run(Setup { delay: SLOW, ..Setup::default() }, |bench| async move {
        let mut c = bench.client().await;
        c.send((0..100).flat_map(|_| encoded(&["SET", "k", "v"])).collect()).await;
        c.send(encoded(&["QUIT"])).await;
        c.send(encoded(&["SET", "k", "after"])).await;
        for _ in 0..101 {
            assert_eq!(show(&c.next().await.unwrap()), "+OK");
        }
        assert!(c.next().await.is_none());
        bench.client().await.expect("GET k", "v").await;
    });
}

#[test]
fn a_stop_answers_what_was_begun_and_ends() {
    run(Setup { delay: SLOW, cores: 2, ..Setup::default() }, |bench| async move {
        let mut idle = bench.client().await;
        idle.expect("PING", "+PONG").await;
        let mut busy = bench.client().await;
        send_in_background(&bench, &busy, (0..5_000).flat_map(|_| encoded(&["SET", "k", "v"])).collect());
        bench.pause_ms(1).await;
        let stopped = Rc::new(Cell::new(0));
        for core in bench.cores.borrow().iter() {
            let (core, stopped) = (core.clone(), stopped.clone());
            bench.reactor.spawn(Work::Control, async move {
                core.stop().await;
                stopped.set(stopped.get() + 1);
            });
        }
        let mut answered = 0;
        while let Some(reply) = busy.next().await {
            assert_eq!(show(&reply), "+OK");
            answered += 1;
        }
        assert!((1..5_000).contains(&answered), "{answered}");
        assert!(idle.next().await.is_none());
        bench.pause_ms(100).await;
        assert_eq!(stopped.get(), 2);
        assert_eq!(bench.shared.connections(), 0);
        assert!(bench.reactor.connect(std::net::SocketAddr::from(([127, 0, 0, 1], 6379))).is_err());
    });
}

#[test]
fn a_seed_gives_the_same_run_twice() {
    let trace = |seed| {
        let trace = Rc::new(Cell::new(0));
        let out = trace.clone();
        run(Setup { seed, cores: 6, partitions: 8, delay: SLOW, ..Setup::default() }, move |bench| {
            let out = out.clone();
            async move {
                let mut c = bench.client().await;
                for n in 0..100 {
                    c.send((0..20).flat_map(|m| encoded(&["SET", &format!("k{}", n * m), "v"])).collect())
                        .await;
                    for _ in 0..20 {
                        c.next().await.unwrap();
                    }
                }
                c.call(&["INFO", "everything"]).await;
                out.set(bench.world.trace());
            }
        });
        trace.get()
    };
    assert_eq!(trace(5), trace(5));
    assert_ne!(trace(5), trace(6));
}

#[test]
fn a_server_that_dies_resets_its_clients() {
    run(Setup::default(), |bench| async move {
        let mut c = bench.client().await;
        c.expect("SET k v", "+OK").await;
        let world = bench.world.clone();
        bench.cores.borrow_mut().clear();
        // Not from within a turn of that process: this is a task of the clients'.
        world.kill(SERVER, true);
        assert!(c.next().await.is_none());
    });
}

#[test]
fn a_client_that_takes_nothing_of_a_long_value_is_cut_and_the_value_let_go() {
    let memory = MemoryOptions { capacity_bytes: 64 << 20, value_bytes_max: 4096, part_bytes: 64 << 10 };
    run(Setup { cores: 1, partitions: 1, memory, ..Setup::default() }, |bench| async move {
        let mut c = bench.client().await;
        c.expect(&format!("SET k {}", pattern(20 << 20, 0)), "+OK").await;
        let stalled = bench.client().await;
        stalled.send([encoded(&["PING"]), encoded(&["GET", "k"])].concat()).await;
        let slow = bench.client().await;
        slow.send(encoded(&["GET", "k"])).await;
        bench.pause_ms(50_000).await;
        assert_eq!(bench.memories.borrow()[0].pinned(), 1, "the value is held for its readers");
        // Who takes some now and then is not cut.
        let (read, _) = slow.socket.receive(Vec::new(), 1 << 20).await;
        let mut taken = read.expect("the value is on its way");
        bench.pause_ms(40_000).await;
        assert_eq!(bench.shared.connections(), 2, "the one that stalled is gone");
        while taken < "$20971520\r\n".len() + (20 << 20) + "\r\n".len() {
            let (read, _) = slow.socket.receive(Vec::new(), 1 << 20).await;
            taken += read.ok().filter(|count| *count > 0).expect("the connection was cut");
        }
        bench.pause_ms(10).await;
        assert_no_leaks(&bench);
        drop(stalled);
    });
}
