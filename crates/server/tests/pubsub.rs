//! Publishing and listening, over cores and protocols.

use crate::common::{Setup, encoded, run, send_in_background, show};
use plimsoll_server::budget::Budget;

#[test]
fn messages_reach_every_listener_on_every_core_in_order() {
    for cores in [1, 2, 6] {
        run(Setup { cores, ..Setup::default() }, |bench| async move {
            let mut listeners = Vec::new();
            for number in 0..8 {
                let mut c = bench.client().await;
                if number % 2 == 1 {
                    c.call(&["HELLO", "3"]).await;
                }
                c.send(encoded(&["SUBSCRIBE", "news", "other"])).await;
                c.next().await.unwrap();
                c.next().await.unwrap();
                listeners.push(c);
            }
            let mut by_pattern = bench.client().await;
            by_pattern.send(encoded(&["PSUBSCRIBE", "n?ws"])).await;
            assert_eq!(show(&by_pattern.next().await.unwrap()), "[psubscribe n?ws :1]");
            let mut c = bench.client().await;
            c.expect("PUBSUB CHANNELS", "[news other]").await;
            c.expect("PUBSUB CHANNELS n*", "[news]").await;
            c.expect("PUBSUB NUMSUB news absent", "[news :8 absent :0]").await;
            c.expect("PUBSUB NUMPAT", ":1").await;
            c.expect("PUBLISH absent x", ":0").await;
            for message in 0..50 {
                c.expect(&format!("PUBLISH news m{message}"), ":9").await;
            }
            for (number, listener) in listeners.iter_mut().enumerate() {
                for message in 0..50 {
                    let text = show(&listener.next().await.unwrap());
                    let expected = format!("message news m{message}");
                    assert!(text.contains(&expected) || text.contains("Push"), "{number}: {text}");
                }
            }
            for message in 0..50 {
                let text = show(&by_pattern.next().await.unwrap());
                assert_eq!(text, format!("[pmessage n?ws news m{message}]"));
            }
            drop(listeners);
            by_pattern.socket.shutdown();
        });
    }
}

#[test]
fn a_resp2_client_that_listens_is_told_what_it_may_send() {
    run(Setup::default(), |bench| async move {
        let mut c = bench.client().await;
        c.expect("UNSUBSCRIBE", "[unsubscribe nil :0]").await;
        c.expect("SUBSCRIBE a", "[subscribe a :1]").await;
        c.expect("SUBSCRIBE a", "[subscribe a :1]").await;
        c.expect("PSUBSCRIBE p*", "[psubscribe p* :2]").await;
        c.expect("PING", "[pong ]").await;
        c.expect("PING x", "[pong x]").await;
        let refused = "-ERR Can't execute 'get': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are \
                       allowed in this context";
        c.expect("GET k", refused).await;
        c.expect("PUNSUBSCRIBE", "[punsubscribe p* :1]").await;
        c.expect("UNSUBSCRIBE b a", "[unsubscribe b :1]").await;
        assert_eq!(show(&c.next().await.unwrap()), "[unsubscribe a :0]");
        c.expect("GET k", "nil").await;
        c.expect("SUBSCRIBE a", "[subscribe a :1]").await;
        c.expect("RESET", "+RESET").await;
        c.expect("PUBLISH a x", ":0").await;
        // A RESP3 client goes on with anything.
        c.call(&["HELLO", "3"]).await;
        c.call(&["SUBSCRIBE", "a"]).await;
        c.expect("GET k", "nil").await;
        c.expect("PING", "+PONG").await;
        let long = "n".repeat(8 << 20);
        c.expect(
            &format!("SUBSCRIBE {long}"),
            "-ERR the names of one client's subscriptions may have 8388608 bytes at most",
        )
        .await;
        c.expect("QUIT", "+OK").await;
        bench.pause_ms(10).await;
        bench.client().await.expect("PUBSUB CHANNELS", "[]").await;
    });
}

#[test]
fn a_listener_that_does_not_read_is_cut() {
    run(Setup { cores: 1, partitions: 1, ..Setup::default() }, |bench| async move {
        let deaf = bench.client().await;
        deaf.send(encoded(&["SUBSCRIBE", "news"])).await;
        let mut c = bench.client().await;
        let message = "m".repeat(1 << 20);
        let mut heard = 0;
        while show(&c.call(&["PUBLISH", "news", &message]).await) == ":1" {
            heard += 1;
            assert!(heard < 60, "it is cut");
        }
        assert!(heard >= 32, "{heard} messages of 1 MiB");
        assert_eq!(bench.shared.connections(), 1);
    });
}

#[test]
fn names_that_stand_with_the_server_count_among_what_a_client_holds() {
    let budget = Budget { client_bytes_max: 8 << 20, ..Budget::NOT_GIVEN };
    run(Setup { cores: 1, partitions: 1, budget, ..Setup::default() }, |bench| async move {
        let mut honest = bench.client().await;
        honest.expect("SET k v", "+OK").await;
        let before = bench.held_bytes();
        // What is let go counts no more.
        let names: Vec<String> = (0..1000).map(|number| format!("name:{number}")).collect();
        let words =
            |command| [&[command], &names.iter().map(String::as_str).collect::<Vec<_>>()[..]].concat();
        for (command, opposite) in
            [("SUBSCRIBE", "UNSUBSCRIBE"), ("PSUBSCRIBE", "RESET"), ("WATCH", "UNWATCH")]
        {
            let client = bench.client().await;
            client.send(encoded(&words(command))).await;
            bench.pause_ms(100).await;
            assert!(bench.held_bytes() > before + 256_000, "{command}: {}", bench.held_bytes());
            client.send(encoded(&[opposite])).await;
            bench.pause_ms(100).await;
            assert!(bench.held_bytes() < before + 256_000, "{opposite}: {}", bench.held_bytes());
        }
        // Many clients together are held to their share, and others go on.
        let mut hostile = Vec::new();
        for _ in 0..40 {
            let client = bench.client().await;
            client.send(encoded(&words("SUBSCRIBE"))).await;
            bench.pause_ms(100).await;
            hostile.push(client);
        }
        assert!(bench.cut() >= 1, "one of them is cut");
        assert!(bench.held_bytes() <= 8 << 20);
        honest.expect("GET k", "v").await;
        drop(hostile);
        bench.pause_ms(100).await;
        assert_eq!(bench.held_bytes(), before);
    });
}

#[test]
fn a_hundred_thousand_channels_of_one_client_are_counted_one_by_one() {
    const CHANNELS: usize = 100_000;
    run(Setup { cores: 1, partitions: 1, ..Setup::default() }, |bench| async move {
        let mut client = bench.client().await;
        let before = bench.held_bytes();
        // Each channel is a command of its own: what a command costs may not grow with those before it.
        for (command, counts) in [
            ("SUBSCRIBE", (1..=CHANNELS).collect::<Vec<_>>()),
            ("SUBSCRIBE", vec![CHANNELS; CHANNELS]),
            ("UNSUBSCRIBE", (0..CHANNELS).rev().collect()),
        ] {
            let all = (0..CHANNELS).flat_map(|number| encoded(&[command, &format!("c{number}")])).collect();
            send_in_background(&bench, &client, all);
            for (number, count) in counts.into_iter().enumerate() {
                let told = show(&client.next().await.unwrap());
                assert_eq!(told, format!("[{} c{number} :{count}]", command.to_lowercase()));
            }
        }
        bench.pause_ms(100).await;
        assert!(bench.held_bytes() < before + 256_000, "{} bytes are held", bench.held_bytes());
    });
}
