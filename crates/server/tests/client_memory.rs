//! What clients hold: it is bounded, and little where there is little to do.

use crate::common::{Bench, Client, Setup, encoded, run, send_in_background, show};
use plimsoll_kv::memory::MemoryOptions;

/// A command of so many MiB that waits for EXEC.
fn queued(mib: usize) -> Vec<u8> {
    let name = "x".repeat(1 << 20);
    [encoded(&["MULTI"]), encoded(&[&["DEL"], &vec![name.as_str(); mib][..]].concat())].concat()
}

/// So many clients more, each of which queues a long command at the same instant and stays.
async fn hold(bench: &Bench, clients: &mut Vec<Client>, count: usize, mib: usize) {
    let first = clients.len();
    for _ in 0..count {
        clients.push(bench.client().await);
    }
    for client in &clients[first..] {
        send_in_background(bench, client, queued(mib));
    }
    bench.pause_ms(60_000).await;
}

/// What a connection held that was cut was reckoned until it had ended: one after the other was cut for it.
#[test]
fn for_what_one_holds_too_much_one_is_cut() {
    run(Setup { cores: 1, partitions: 1, ..Setup::default() }, |bench| async move {
        let mut clients = Vec::new();
        hold(&bench, &mut clients, 5, 50).await;
        // They come at the same instant: the first of them that is too much lets one be cut.
        hold(&bench, &mut clients, 30, 1).await;
        assert_eq!(bench.cut(), 1, "without one of 50 MiB the others fit 256 MiB");
    });
}

/// What comes of long arguments was counted and led to nothing: 30 clients held 1.7 GiB.
#[test]
fn long_arguments_under_way_are_held_to_the_limit() {
    let one = |bytes: usize| format!("${bytes}\r\n{}", "x".repeat(bytes));
    let beginnings = [
        format!("*3\r\n$6\r\nAPPEND\r\n$1\r\na\r\n$60000000\r\n{}", "x".repeat(30 << 20)),
        format!("*3\r\n$4\r\nMSET\r\n$1\r\na\r\n$60000000\r\n{}", "x".repeat(50 << 20)),
        format!("*99\r\n$4\r\nMSET\r\n{}", format!("$1\r\na\r\n{}\r\n", one(1 << 20)).repeat(40)),
    ];
    for beginning in beginnings {
        run(Setup { cores: 1, partitions: 1, ..Setup::default() }, |bench| {
            let beginning = beginning.clone().into_bytes();
            async move {
                let mut clients = Vec::new();
                for _ in 0..12 {
                    let client = bench.client().await;
                    send_in_background(&bench, &client, beginning.clone());
                    clients.push(client);
                }
                bench.client().await.expect("SET k v", "+OK").await;
                // They wait for each other's turns, which none of them ends.
                bench.pause_ms(60_000).await;
                let held = bench.held_bytes();
                assert!(bench.cut() >= 4 && held <= 256 << 20, "{} cut, {held} bytes held", bench.cut());
                bench.client().await.expect("SET k v", "+OK").await;
            }
        });
    }
}

/// A long command used to come in two receives: what a usual one brings, and the rest.
#[test]
fn long_commands_come_with_one_receive_each_and_leave_no_memory_behind() {
    run(Setup { cores: 1, partitions: 1, ..Setup::default() }, |bench| async move {
        let mut client = bench.client().await;
        let value = "v".repeat(16 << 10);
        let receives = |bench: &Bench| bench.shared.sum(|counters| counters.receives.get());
        client.expect("PING", "+PONG").await;
        let held_before = bench.held_bytes();
        client.call(&["SET", "k", &value]).await;
        let before = receives(&bench);
        for _ in 0..20 {
            assert_eq!(show(&client.call(&["SET", "k", &value]).await), "+OK");
        }
        let receives = receives(&bench) - before;
        assert!(receives < 30, "{receives}: the network tears some of them");
        assert!(bench.held_bytes() - held_before >= 32 << 10, "what waits with room of its own is reckoned");
        for _ in 0..2 {
            client.expect("PING", "+PONG").await;
        }
        assert!(bench.held_bytes() - held_before < 1 << 10, "{} bytes", bench.held_bytes() - held_before);
    });
}

#[test]
fn clients_that_hold_too_much_together_are_cut_and_others_go_on() {
    run(Setup { cores: 1, partitions: 1, ..Setup::default() }, |bench| async move {
        let mut honest = bench.client().await;
        let mut hostile = Vec::new();
        hold(&bench, &mut hostile, 6, 55).await;
        assert_eq!(bench.cut(), 2, "four times 55 MiB fit 256 MiB");
        honest.expect("SET k v", "+OK").await;
        honest.expect("GET k", "v").await;
        let list = show(&honest.call(&["CLIENT", "LIST"]).await);
        let held = list.split("tot-mem=").skip(1).map(|rest| rest.split(' ').next().unwrap());
        let held: usize = held.map(|bytes| bytes.parse::<usize>().unwrap()).sum();
        assert!((150 << 20..257 << 20).contains(&held), "{held}");
        drop(hostile);
        bench.pause_ms(20_000).await;
        honest
            .expect(
                &format!("CLIENT SETNAME {}", "n".repeat(513)),
                "-ERR Client names have at most 512 bytes",
            )
            .await;
    });
}

/// Long values are not copied out of what was received: while they are on their way to another core more is
/// received, elsewhere.
#[test]
fn long_values_are_what_was_sent_whatever_comes_behind_them() {
    let memory = MemoryOptions { value_bytes_max: 96 << 10, ..MemoryOptions::default() };
    let value = |n: usize| {
        let word = format!("<{n}>");
        word.repeat([5, 9_000, 20_000, 70_000, 3_000][n % 5] / word.len())
    };
    for cores in [1, 3] {
        run(Setup { cores, partitions: 5, memory, ..Setup::default() }, move |bench| async move {
            let mut c = bench.client().await;
            c.expect("PING", "+PONG").await;
            let held_before = bench.held_bytes();
            let sets = (0..600).flat_map(|n| encoded(&["SET", &format!("k{}", n % 97), &value(n)]));
            send_in_background(&bench, &c, sets.collect());
            for _ in 0..600 {
                assert_eq!(show(&c.next().await.unwrap()), "+OK");
            }
            for n in 600 - 97..600 {
                assert_eq!(show(&c.call(&["GET", &format!("k{}", n % 97)]).await), value(n), "value {n}");
            }
            for _ in 0..3 {
                c.expect("PING", "+PONG").await;
            }
            assert!(bench.held_bytes() <= held_before + (64 << 10), "{} bytes are held", bench.held_bytes());
        });
    }
}
