//! SLOWLOG, CONFIG SET, LATENCY, INFO's counts, ACL and what is refused, over several cores.

use crate::common::{self, Bench, Client, Setup, run, show};
use plimsoll_kv::delay::Delay;
use plimsoll_resp::Reply;
use plimsoll_server::config::DebugCommand;
use plimsoll_server::counters::Gauges;
use std::cell::Cell;
use std::rc::Rc;

/// Devices that take so many milliseconds for each operation.
fn slow(cores: usize, ms: u64) -> Setup {
    Setup { cores, delay: Delay { fixed_ns: ms * 1_000_000, ..Delay::default() }, ..Setup::default() }
}

fn items(reply: Reply) -> Vec<Reply> {
    let Reply::Array(items) = reply else { panic!("{reply:?}") };
    items
}

fn integer(reply: &Reply) -> i64 {
    let Reply::Integer(value) = reply else { panic!("{reply:?}") };
    *value
}

/// A client on each core, if connections are spread so, and more in any case.
async fn several(bench: &Bench) -> Vec<Client> {
    let mut clients = Vec::new();
    for _ in 0..8 {
        clients.push(bench.client().await);
    }
    clients
}

#[test]
fn slow_commands_of_all_cores_are_told_latest_first() {
    for cores in [1, 2, 6] {
        run(slow(cores, 20), |bench| async move {
            let mut clients = several(&bench).await;
            for (number, client) in clients.iter_mut().enumerate() {
                client.expect(&format!("CLIENT SETNAME c{number}"), "+OK").await;
                client.expect(&format!("SET key{number} v"), "+OK").await;
            }
            let c = &mut clients[0];
            c.expect("SLOWLOG LEN", ":8").await;
            let entries = items(c.call(&["SLOWLOG", "GET", "3"]).await);
            assert_eq!(entries.len(), 3);
            let first = items(entries[0].clone());
            assert_eq!(first.len(), 6, "as Redis has them: clients read no further");
            assert_eq!(show(&first[3]), "[SET key7 v]");
            assert_eq!(show(&first[5]), "c7");
            assert!(show(&first[4]).contains(':'), "{first:?}");
            let ids: Vec<i64> = entries.iter().map(|e| integer(&items(e.clone())[0])).collect();
            assert_eq!(ids, [7, 6, 5]);
            let entries = items(c.call(&["SLOWLOG", "GET", "-1", "WITHDEVICE"]).await);
            for entry in entries.iter().map(|entry| items(entry.clone())) {
                let (duration, device) = (integer(&entry[2]), integer(&entry[6]));
                assert!((20_000..40_000).contains(&duration), "{duration}");
                assert!(device >= 20_000 && device <= duration, "{device} of {duration}");
            }
            c.expect("SLOWLOG RESET", "+OK").await;
            c.expect("SLOWLOG LEN", ":0").await;
            c.expect("SLOWLOG GET", "[]").await;
        });
    }
}

#[test]
fn the_slow_log_keeps_what_it_is_told_to_and_cuts_long_commands() {
    run(Setup::default(), |bench| async move {
        let mut c = bench.client().await;
        c.expect("SET k v", "+OK").await;
        c.expect("SLOWLOG LEN", ":0").await;
        c.expect("CONFIG SET slowlog-log-slower-than 0 slowlog-max-len 3", "+OK").await;
        c.expect(
            "AUTH secret",
            "-ERR AUTH <password> called without any password configured for the default user. \
             Are you sure your configuration is correct?",
        )
        .await;
        let latest = |reply: Reply| show(&items(items(reply)[0].clone())[3]);
        assert_eq!(latest(c.call(&["SLOWLOG", "GET", "1"]).await), "[AUTH (redacted)]");
        let long = "x".repeat(140);
        c.expect(&format!("SET k {long}"), "+OK").await;
        let cut = format!("[SET k {}... (12 more bytes)]", "x".repeat(128));
        assert_eq!(latest(c.call(&["SLOWLOG", "GET", "1"]).await), cut);
        let many: Vec<String> = (0..40).map(|n| n.to_string()).collect();
        c.expect(&format!("EXISTS {}", many.join(" ")), ":0").await;
        let reply = latest(c.call(&["SLOWLOG", "GET", "1"]).await);
        assert!(
            reply.starts_with("[EXISTS 0 1 ") && reply.ends_with(" 29 ... (10 more arguments)]"),
            "{reply}"
        );
        assert_eq!(items(c.call(&["SLOWLOG", "GET", "-1"]).await).len(), 3);
        c.expect("CONFIG SET slowlog-log-slower-than -1", "+OK").await;
        c.expect("SLOWLOG RESET", "+OK").await;
        c.expect("GET k", &long).await;
        c.expect("SLOWLOG LEN", ":0").await;
    });
}

#[test]
fn what_exec_runs_is_logged_and_counted_one_by_one() {
    run(slow(3, 20), |bench| async move {
        let mut c = bench.client().await;
        c.expect("SET word abc", "+OK").await;
        c.expect("CONFIG RESETSTAT", "+OK").await;
        c.expect("SLOWLOG RESET", "+OK").await;
        c.expect("MULTI", "+OK").await;
        for queued in ["SET k v", "INCR word", "MGET a b word", "PUBLISH c m", "INCR word"] {
            c.expect(queued, "+QUEUED").await;
        }
        let error = "-ERR value is not an integer or out of range";
        c.expect("EXEC", &format!("[+OK {error} [nil nil abc] :0 {error}]")).await;
        // A SET waits for no device before the end; the second INCR knows its key already. EXEC is not there.
        let entries = items(c.call(&["SLOWLOG", "GET", "-1", "WITHDEVICE"]).await);
        let entries: Vec<Vec<Reply>> = entries.into_iter().map(items).collect();
        let words: Vec<String> = entries.iter().map(|entry| show(&entry[3])).collect();
        assert_eq!(words, ["[INCR word]", "[MGET a b word]", "[INCR word]"], "{entries:?}");
        for (entry, reads) in entries.iter().zip([1, 3, 2]) {
            let (duration, device) = (integer(&entry[2]), integer(&entry[6]));
            assert!(
                (reads * 20_000..(reads + 1) * 20_000).contains(&duration),
                "{duration} for {reads} reads"
            );
            assert!(device >= reads * 20_000 && device <= duration, "{device} of {duration}");
        }
        let stats = show(&c.call(&["INFO", "commandstats"]).await);
        for (command, calls, failed) in [("set", 1, 0), ("incr", 2, 2), ("mget", 1, 0), ("exec", 1, 0)] {
            let line = stats.lines().find(|line| line.starts_with(&format!("cmdstat_{command}:"))).unwrap();
            assert!(line.contains(&format!("calls={calls},")), "{line}");
            assert!(line.ends_with(&format!("failed_calls={failed}")), "{line}");
        }
        assert!(show(&c.call(&["INFO", "errorstats"]).await).contains("errorstat_ERR:count=2"));
        let histogram = show(&c.call(&["LATENCY", "HISTOGRAM", "mget"]).await);
        assert!(histogram.contains("calls :1"), "{histogram}");
    });
}

#[test]
fn several_parameters_are_set_all_or_not_at_all() {
    run(Setup::default(), |bench| async move {
        let mut c = bench.client().await;
        let mut other = bench.client().await;
        c.expect(
            "CONFIG SET timeout 5 TIMEOUT 6",
            "-ERR CONFIG SET failed (possibly related to argument \
            'TIMEOUT') - duplicate parameter",
        )
        .await;
        c.expect(
            "CONFIG SET timeout 5 slowlog-max-len x",
            "-ERR CONFIG SET failed (possibly related to \
            argument 'slowlog-max-len') - argument couldn't be parsed into an integer",
        )
        .await;
        c.expect(
            "CONFIG SET timeout 5 port 7",
            "-ERR CONFIG SET failed (possibly related to argument 'port') - \
            can't set immutable config",
        )
        .await;
        other.expect("CONFIG GET timeout", "[timeout 0]").await;
        c.expect("CONFIG SET timeout 5 latency-monitor-threshold 7", "+OK").await;
        other.expect("CONFIG GET timeout latency-m*", "[latency-monitor-threshold 7 timeout 5]").await;
        c.expect("CONFIG REWRITE", "-ERR The server is running without a config file").await;
    });
}

#[test]
fn idle_clients_are_cut_and_those_who_listen_are_not() {
    run(Setup::default(), |bench| async move {
        let (mut c, mut idle, mut listener) =
            (bench.client().await, bench.client().await, bench.client().await);
        idle.expect("PING", "+PONG").await;
        listener.expect("SUBSCRIBE a", "[subscribe a :1]").await;
        c.expect("CONFIG SET timeout 3", "+OK").await;
        for _ in 0..6 {
            bench.pause_ms(1_000).await;
            c.expect("PING", "+PONG").await;
        }
        assert!(idle.next().await.is_none());
        c.expect("PUBLISH a m", ":1").await;
        c.expect("CONFIG SET timeout 0", "+OK").await;
        bench.pause_ms(10_000).await;
        c.expect("PING", "+PONG").await;
    });
}

#[test]
fn the_limit_of_clients_can_be_changed() {
    run(Setup { clients_max: 2, ..Setup::default() }, |bench| async move {
        let (mut a, _b) = (bench.client().await, bench.client().await);
        assert_eq!(show(&bench.client().await.next().await.unwrap()), "-ERR max number of clients reached");
        a.expect("CONFIG SET maxclients 3", "+OK").await;
        bench.client().await.expect("PING", "+PONG").await;
        assert!(show(&a.call(&["INFO", "clients"]).await).contains("maxclients:3\r\n"));
    });
}

#[test]
fn spikes_are_remembered_by_second_and_drawn() {
    for cores in [1, 6] {
        run(slow(cores, 30), |bench| async move {
            let mut clients = several(&bench).await;
            let text = show(&clients[0].call(&["LATENCY", "DOCTOR"]).await);
            assert!(text.contains("monitoring is disabled"), "{text}");
            clients[0].expect("LATENCY LATEST", "[]").await;
            clients[0].expect("CONFIG SET latency-monitor-threshold 25", "+OK").await;
            for client in &mut clients {
                client.expect("SET k v", "+OK").await;
                client.expect("GET k", "v").await;
                bench.pause_ms(1_000).await;
            }
            let c = &mut clients[0];
            let latest = items(c.call(&["LATENCY", "LATEST"]).await);
            assert_eq!(latest.len(), 2);
            let command = items(latest[0].clone());
            assert_eq!(show(&command[0]), "command");
            assert!((30..40).contains(&integer(&command[2])) && integer(&command[3]) >= 30, "{command:?}");
            assert_eq!(show(&items(latest[1].clone())[0]), "fast-command");
            let history = items(c.call(&["LATENCY", "HISTORY", "command"]).await);
            assert_eq!(history.len(), 8, "a sample for each second that had one");
            c.expect("LATENCY HISTORY nosuch", "[]").await;
            let graph = show(&c.call(&["LATENCY", "GRAPH", "command"]).await);
            assert!(graph.starts_with("command - high 3") && graph.contains("\n------"), "{graph}");
            let doctor = show(&c.call(&["LATENCY", "DOCTOR"]).await);
            assert!(doctor.contains("1. command: 8 latency spikes (average 3"), "{doctor}");
            c.expect("LATENCY RESET command nosuch", ":1").await;
            c.expect("LATENCY GRAPH command", "-ERR No samples available for event 'command'").await;
            c.expect("LATENCY RESET", ":1").await;
            c.expect("LATENCY LATEST", "[]").await;
        });
    }
}

#[test]
fn histograms_and_percentiles_are_those_of_the_commands() {
    run(slow(2, 3), |bench| async move {
        let mut clients = several(&bench).await;
        for client in &mut clients {
            client.expect("GET k", "nil").await;
        }
        let c = &mut clients[0];
        c.call(&["HELLO", "3"]).await;
        let reply = show(&c.call(&["LATENCY", "HISTOGRAM", "get", "nosuch", "ttl"]).await);
        assert_eq!(reply, "%get=%calls=:8 histogram_usec=%:4194=:8");
        let info = show(&c.call(&["INFO", "latencystats"]).await);
        assert!(info.contains("latency_percentiles_usec_get:p50=3"), "{info}");
        let info = show(&c.call(&["INFO", "commandstats", "errorstats"]).await);
        assert!(info.contains("cmdstat_get:calls=8,"), "{info}");
        assert!(info.contains("cmdstat_latency|histogram:calls=1,"), "{info}");
        assert!(!info.contains("errorstat_"), "{info}");
        c.expect("NOSUCH", "-ERR unknown command 'NOSUCH', with args beginning with: ").await;
        c.expect("AUTH a b", "-WRONGPASS invalid username-password pair or user is disabled.").await;
        let info = show(&c.call(&["INFO", "errorstats"]).await);
        assert!(info.contains("errorstat_ERR:count=1\r\nerrorstat_WRONGPASS:count=1\r\n"), "{info}");
        c.expect("CONFIG RESETSTAT", "+OK").await;
        c.expect("LATENCY HISTOGRAM get", "%").await;
    });
}

#[test]
fn info_has_the_sections_of_redis_and_each_line_once() {
    run(Setup::default(), |bench| async move {
        let mut c = bench.client().await;
        c.call(&["GET", "k"]).await;
        c.call(&["AUTH", "a", "b"]).await;
        let text = show(&c.call(&["INFO", "everything"]).await);
        for section in [
            "Server",
            "Clients",
            "Memory",
            "Persistence",
            "Stats",
            "Replication",
            "CPU",
            "Modules",
            "Commandstats",
            "Errorstats",
            "Latencystats",
            "Cluster",
            "Keyspace",
        ] {
            assert_eq!(text.matches(&format!("# {section}\r\n")).count(), 1, "{section}");
        }
        let names: Vec<&str> = text.split("\r\n").filter_map(|line| Some(line.split_once(':')?.0)).collect();
        let mut once = names.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), names.len(), "{names:?}");
        let field = |name: &str| {
            let line = text.split("\r\n").find_map(|line| line.strip_prefix(&format!("{name}:")));
            line.unwrap_or_else(|| panic!("no {name}")).to_owned()
        };
        assert_eq!(field("acl_access_denied_auth"), "1");
        // The network may part what was sent.
        assert!(field("total_reads_processed").parse::<u64>().unwrap() >= 3);
        assert_eq!(field("total_writes_processed"), "2");
        for name in ["rdb_last_save_time", "pubsub_channels", "master_repl_offset", "mem_clients_normal"] {
            assert!(field(name).parse::<u64>().is_ok(), "{name}");
        }
    });
}

#[test]
fn there_is_one_user() {
    for password in [None, Some("secret")] {
        run(Setup { password, ..Setup::default() }, |bench| async move {
            let mut c = bench.client().await;
            if bench.shared.settings.password.is_some() {
                c.expect("ACL WHOAMI", "-NOAUTH Authentication required.").await;
                c.expect("AUTH secret", "+OK").await;
                c.expect("ACL LIST", "[user default on #(redacted) ~* &* +@all]").await;
            } else {
                c.expect("ACL LIST", "[user default on nopass ~* &* +@all]").await;
            }
            c.expect("ACL WHOAMI", "default").await;
            let strings = show(&c.call(&["ACL", "CAT", "STRING"]).await);
            assert!(strings.contains("getex") && !strings.contains("expire"), "{strings}");
            c.expect(
                "ACL SETUSER x on",
                "-ERR ACL SETUSER is not supported: there is one user, 'default'; its password is set at the start",
            )
            .await;
        });
    }
}

#[test]
fn debug_is_refused_unless_it_is_allowed_and_holds_up_nobody_else() {
    let refused = "-ERR DEBUG command not allowed. If the enable-debug-command option is set to \"local\", you can \
                   run it from a local connection, otherwise you need to set this option in the configuration \
                   file, and then restart the server.";
    run(Setup::default(), |bench| async move {
        bench.client().await.expect("DEBUG SLEEP 0", refused).await;
        bench.client().await.expect("DEBUG OBJECT k", refused).await;
    });
    let setup = Setup { cores: 1, debug_command: DebugCommand::Local, ..Setup::default() };
    run(setup, |bench| async move {
        let (mut sleeper, mut c) = (bench.client().await, bench.client().await);
        sleeper.send(common::encoded(&["DEBUG", "SLEEP", "2.5"])).await;
        let start_ns = bench.reactor.now_ns();
        c.expect("SET k 12", "+OK").await;
        assert!(bench.reactor.now_ns() - start_ns < 1_000_000_000);
        assert_eq!(show(&sleeper.next().await.unwrap()), "+OK");
        assert!(bench.reactor.now_ns() - start_ns >= 2_000_000_000);
        let object = show(&c.call(&["DEBUG", "OBJECT", "k"]).await);
        assert!(object.starts_with("+Value at:0x0 refcount:1 encoding:int serializedlength:"), "{object}");
        c.expect("DEBUG OBJECT absent", "-ERR no such key").await;
        for seconds in ["-1", "nan", "x"] {
            c.expect(&format!("DEBUG SLEEP {seconds}"), "+OK").await;
        }
    });
}

#[test]
fn what_there_is_none_of_is_said_to_be_none() {
    run(Setup::default(), |bench| async move {
        let mut c = bench.client().await;
        c.expect(
            "CLIENT TRACKING ON",
            "-ERR CLIENT TRACKING is not supported: this server does not tell of \
            changed keys",
        )
        .await;
        c.expect("FUNCTION STATS", "[running_script nil engines []]").await;
        c.expect("SHUTDOWN", "-ERR Errors trying to SHUTDOWN. Check logs.").await;
        let stats = show(&c.call(&["MEMORY", "STATS"]).await);
        assert!(stats.contains("clients.normal :"), "{stats}");
        c.expect("MEMORY DOCTOR", "No memory problem was found.\n").await;
        assert!(show(&c.call(&["LOLWUT"]).await).contains("Plimsoll ver. "));
        c.expect("SET k v", "+OK").await;
        assert!(show(&c.call(&["OBJECT", "IDLETIME", "k"]).await).contains("idle time not tracked"));
        let docs = show(&c.call(&["COMMAND", "DOCS", "get", "nosuch"]).await);
        assert_eq!(docs, "[get [summary Get the value of a key. since 1.0.0 group string complexity O(1)]]");
        assert!(items(c.call(&["COMMAND", "DOCS"]).await).len() > 100);
        c.expect(&format!("COMMAND INFO{}", " get".repeat(4097)), "-ERR at most 4096 names can be asked for")
            .await;
        c.expect("COMMAND GETKEYSANDFLAGS MGET a b", "[[a [+RO +access]] [b [+RO +access]]]").await;
    });
}

#[test]
fn info_tells_the_numbers_of_all_devices_as_they_are_now() {
    for cores in [1, 2, 6] {
        run(Setup { cores, partitions: 6, ..Setup::default() }, |bench| async move {
            // Stand-ins for the devices of each core: their numbers change, and nobody publishes them.
            let numbers: Rc<Cell<u64>> = Rc::default();
            for (number, core) in bench.cores.borrow().iter().enumerate() {
                let label = format!("partition=\"{number}\"");
                let gauges = Gauges::new(label, &["expired", "evicted", "objects"]);
                let (gauges, numbers) = (bench.shared.add_gauges(gauges), numbers.clone());
                core.set_publisher(Rc::new(move || {
                    let now = numbers.get();
                    gauges.publish(&[now, 10 * now, 100 * now]);
                }));
            }
            let cores = bench.cores.borrow().len() as u64;
            let mut c = bench.client().await;
            for now in [0, 7, 8] {
                numbers.set(now);
                let before_ns = bench.reactor.now_ns();
                let info = show(&c.call(&["INFO", "stats"]).await);
                let expected =
                    format!("expired_keys:{}\r\nevicted_keys:{}\r\n", now * cores, 10 * now * cores);
                assert!(info.contains(&expected), "{info}");
                let stats = show(&c.call(&["MEMORY", "STATS"]).await);
                assert!(stats.contains(&format!("keys.count :{}", 100 * now * cores)), "{stats}");
                assert!(
                    bench.reactor.now_ns() < before_ns + 10_000_000,
                    "nothing waits for a second to pass"
                );
            }
            // What sessions count needs nobody to be asked, on whatever core it was counted.
            for key in 0..20 {
                let mut other = bench.client().await;
                other.expect(&format!("SET {key} v"), "+OK").await;
                other.expect(&format!("MGET {key} absent"), "[v nil]").await;
                let info = show(&c.call(&["INFO", "stats"]).await);
                let expected = format!("keyspace_hits:{}\r\nkeyspace_misses:{}\r\n", key + 1, key + 1);
                assert!(info.contains(&expected), "{info}");
            }
        });
    }
}

/// As redis-server 7.0 counts them: some that look at a key were left out.
#[test]
fn what_looks_at_a_key_is_a_hit_or_a_miss() {
    run(Setup::default(), |bench| async move {
        let mut c = bench.client().await;
        for (words, hits, misses) in [
            ("EXISTS there absent there", 2, 1),
            ("TOUCH there absent", 1, 1),
            ("GETSET there 5", 1, 0),
            ("SET there 5 GET", 1, 0),
            ("SET there 5", 0, 0),
            ("DUMP there", 1, 0),
            ("COPY there copied", 1, 0),
            ("COPY absent copied", 0, 1),
            ("RENAME copied other", 0, 0),
            ("OBJECT ENCODING there", 1, 0),
            ("MEMORY USAGE there", 0, 0),
            ("DEL other absent", 0, 0),
            ("STRLEN absent", 0, 1),
        ] {
            c.expect("SET there 5", "+OK").await;
            c.expect("CONFIG RESETSTAT", "+OK").await;
            c.call(&words.split(' ').collect::<Vec<_>>()).await;
            let info = show(&c.call(&["INFO", "stats"]).await);
            let expected = format!("keyspace_hits:{hits}\r\nkeyspace_misses:{misses}\r\n");
            assert!(info.contains(&expected), "{words}: {info}");
        }
    });
}
