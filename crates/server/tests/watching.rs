//! MONITOR, CLIENT PAUSE and CLIENT REPLY, over several cores.

use crate::common::{Client, Setup, encoded, run, show};
use plimsoll_kv::memory::MemoryOptions;
use plimsoll_server::limits::LISTENER_BYTES_MAX;

async fn line(client: &mut Client) -> String {
    show(&client.next().await.expect("a monitor is told"))
}

#[test]
fn a_monitor_sees_the_commands_of_all_cores_and_no_password() {
    for cores in [1, 2, 6] {
        run(Setup { cores, ..Setup::default() }, |bench| async move {
            let mut monitor = bench.client().await;
            monitor.expect("MONITOR", "+OK").await;
            for number in 0..6 {
                let mut c = bench.client().await;
                c.expect("SELECT 3", "+OK").await;
                c.expect(&format!("SET k{number} a\"b"), "+OK").await;
                c.call(&["AUTH", "default", "secret"]).await;
                c.call(&["CONFIG", "GET", "timeout"]).await;
                c.call(&["NOSUCH"]).await;
                assert!(line(&mut monitor).await.ends_with(r#"] "SELECT" "3""#));
                let set = line(&mut monitor).await;
                assert!(
                    set.contains(" [3 ") && set.ends_with(&format!(r#"] "SET" "k{number}" "a\"b""#)),
                    "{set}"
                );
                let auth = line(&mut monitor).await;
                assert!(auth.ends_with(r#"] "AUTH" "(redacted)" "(redacted)""#), "{auth}");
            }
            monitor.expect("GET k", "-ERR Replica can't interact with the keyspace").await;
            assert!(show(&monitor.call(&["INFO", "clients"]).await).contains("monitor_clients:1\r\n"));
            assert!(line(&mut monitor).await.ends_with(r#""INFO" "clients""#));
            monitor.expect("RESET", "+RESET").await;
            bench.client().await.expect("PING", "+PONG").await;
            bench.pause_ms(10).await;
            // The line of RESET was under way or not; afterwards nothing comes.
            let reply = show(&monitor.call(&["ECHO", "x"]).await);
            assert_eq!(if reply.contains("RESET") { line(&mut monitor).await } else { reply }, "x");
            assert!(show(&monitor.call(&["INFO", "clients"]).await).contains("monitor_clients:0\r\n"));
        });
    }
}

/// As Redis 7 tells it: what a transaction runs when it runs, and EXEC behind that.
#[test]
fn a_monitor_sees_exec_behind_what_it_ran() {
    run(Setup { cores: 1, ..Setup::default() }, |bench| async move {
        let (mut monitor, mut c) = (bench.client().await, bench.client().await);
        monitor.expect("MONITOR", "+OK").await;
        c.expect("MULTI", "+OK").await;
        c.expect("SET k v", "+QUEUED").await;
        c.expect("exec", "[+OK]").await;
        c.expect("EXEC", "-ERR EXEC without MULTI").await;
        for shown in [r#""MULTI""#, r#""SET" "k" "v""#, r#""exec""#, r#""EXEC""#] {
            let line = line(&mut monitor).await;
            assert!(line.ends_with(shown), "{line}, not {shown}");
        }
    });
}

#[test]
fn a_monitor_that_does_not_read_is_cut() {
    run(Setup { cores: 2, ..Setup::default() }, |bench| async move {
        let monitor = bench.client().await;
        monitor.send(encoded(&["MONITOR"])).await;
        let mut c = bench.client().await;
        bench.pause_ms(10).await;
        let value = "x".repeat(60 << 10);
        let mut sent = 0;
        while bench.shared.connections() == 2 {
            c.expect(&format!("ECHO {value}"), &value).await;
            sent += value.len();
            assert!(sent < 3 * LISTENER_BYTES_MAX, "it is still there");
        }
        c.expect("PING", "+PONG").await;
        drop(monitor);
    });
}

#[test]
fn a_pause_holds_writes_or_all_on_every_core_until_its_end() {
    for cores in [1, 2, 6] {
        run(Setup { cores, ..Setup::default() }, |bench| async move {
            let mut c = bench.client().await;
            let mut others = Vec::new();
            for _ in 0..6 {
                others.push(bench.client().await);
            }
            c.expect("SET k old", "+OK").await;
            c.expect("CLIENT PAUSE 60000 WRITE", "+OK").await;
            for other in &mut others {
                other.expect("GET k", "old").await;
                other.send([encoded(&["SET", "k", "new"]), encoded(&["GET", "k"])].concat()).await;
            }
            bench.pause_ms(5_000).await;
            c.expect("GET k", "old").await;
            c.expect("CLIENT UNPAUSE", "+OK").await;
            for other in &mut others {
                assert_eq!(show(&other.next().await.unwrap()), "+OK");
                assert_eq!(show(&other.next().await.unwrap()), "new");
            }
            let start_ns = bench.reactor.now_ns();
            c.expect("CLIENT PAUSE 3000 ALL", "+OK").await;
            for other in &mut others {
                other.expect("PING", "+PONG").await;
            }
            let waited_ms = (bench.reactor.now_ns() - start_ns) / 1_000_000;
            assert!((2_900..3_500).contains(&waited_ms), "{waited_ms}");
        });
    }
}

#[test]
fn a_pause_of_writes_holds_nothing_that_cannot_write() {
    run(Setup::default(), |bench| async move {
        let mut c = bench.client().await;
        c.expect("CLIENT PAUSE 60000 WRITE", "+OK").await;
        let start_ns = bench.reactor.now_ns();
        c.expect("SCRIPT EXISTS abc", "[:0]").await;
        c.expect("SET k", "-ERR wrong number of arguments for 'set' command").await;
        assert!(bench.reactor.now_ns() - start_ns < 1_000_000_000);
        c.expect("CLIENT UNPAUSE", "+OK").await;
    });
}

#[test]
fn inline_commands_and_long_values_are_held_and_shown_too() {
    let memory = MemoryOptions { value_bytes_max: 4096, part_bytes: 16 << 10, ..MemoryOptions::default() };
    run(Setup { cores: 2, memory, ..Setup::default() }, |bench| async move {
        let (mut c, mut inline, mut long, mut monitor) =
            (bench.client().await, bench.client().await, bench.client().await, bench.client().await);
        monitor.expect("MONITOR", "+OK").await;
        c.expect("CONFIG SET timeout 2", "+OK").await;
        c.expect("CLIENT PAUSE 60000 WRITE", "+OK").await;
        inline.send(b"GET a\r\nSET a 'x y'\r\nGET a\r\n".to_vec()).await;
        assert_eq!(show(&inline.next().await.unwrap()), "nil");
        let value = "v".repeat(100_000);
        long.send(encoded(&["SET", "b", &value])).await;
        bench.pause_ms(5_000).await;
        c.expect("EXISTS a b", ":0").await;
        c.expect("CLIENT UNPAUSE", "+OK").await;
        assert_eq!(show(&inline.next().await.unwrap()), "+OK");
        assert_eq!(show(&inline.next().await.unwrap()), "x y");
        assert_eq!(show(&long.next().await.unwrap()), "+OK");
        c.expect("STRLEN b", ":100000").await;
        let mut lines = Vec::new();
        while lines.len() < 8 {
            lines.push(line(&mut monitor).await);
        }
        let lines = lines.join("\n");
        assert!(lines.contains(r#""SET" "a" "x y""#), "{lines}");
        assert!(lines.contains(r#""SET" "b" "... (100000 bytes)""#), "{lines}");
        assert!(lines.contains(r#""CLIENT" "UNPAUSE""#), "{lines}");
    });
}

#[test]
fn a_client_that_is_held_can_be_cut_and_a_server_stops_with_one() {
    run(Setup { cores: 1, ..Setup::default() }, |bench| async move {
        let (mut c, mut held) = (bench.client().await, bench.client().await);
        held.expect("CLIENT SETNAME held", "+OK").await;
        c.expect("CLIENT PAUSE 9223372036854775807 WRITE", "+OK").await;
        held.send(encoded(&["SET", "k", "v"])).await;
        bench.pause_ms(10).await;
        let id = show(&c.call(&["CLIENT", "ID"]).await);
        c.expect("CLIENT KILL TYPE normal", ":1").await;
        assert!(held.next().await.is_none());
        assert_eq!(show(&c.call(&["CLIENT", "ID"]).await), id);
        let late = bench.client().await;
        late.send(encoded(&["SET", "k", "v"])).await;
        bench.pause_ms(10).await;
        let start_ns = bench.reactor.now_ns();
        let core = bench.cores.borrow()[0].clone();
        core.stop().await;
        assert!(bench.reactor.now_ns() - start_ns < 1_000_000_000, "nobody is waited for in vain");
    });
}

#[test]
fn replies_are_left_out_as_asked() {
    run(Setup::default(), |bench| async move {
        let mut c = bench.client().await;
        let pipeline = [
            "CLIENT REPLY SKIP",
            "SET k skipped",
            "GET k",
            "CLIENT REPLY OFF",
            "SET k silent",
            "GET k",
            "NOSUCH",
            "MGET k k k",
            "CLIENT REPLY SKIP",
            "PING",
            "CLIENT REPLY ON",
            "GET k",
        ];
        let bytes: Vec<u8> =
            pipeline.iter().flat_map(|line| encoded(&line.split(' ').collect::<Vec<_>>())).collect();
        c.send(bytes).await;
        for expected in ["skipped", "+OK", "silent"] {
            assert_eq!(show(&c.next().await.unwrap()), expected);
        }
        // Many in a row, begun in one receive.
        let silent = [encoded(&["CLIENT", "REPLY", "OFF"]), encoded(&["INCR", "n"]).repeat(3_000)].concat();
        c.send([silent, encoded(&["CLIENT", "REPLY", "ON"]), encoded(&["GET", "n"])].concat()).await;
        assert_eq!(show(&c.next().await.unwrap()), "+OK");
        assert_eq!(show(&c.next().await.unwrap()), "3000");
        c.expect("CLIENT REPLY MAYBE", "-ERR syntax error").await;
        c.expect("CLIENT REPLY", "-ERR wrong number of arguments for 'client|reply' command").await;
    });
}
