//! Replies that leave where they are ready: as many sends as there are, in order, and counted.

use crate::common::{Bench, Setup, encoded, run, show};
use plimsoll_server::limits::{POSTED_BYTES_MAX, STALL_LOOK_NS};

fn sends(bench: &Bench) -> u64 {
    bench.shared.sum(|counters| counters.sends.get())
}

fn setup() -> Setup {
    Setup { cores: 1, partitions: 1, ..Setup::default() }
}

#[test]
fn commands_that_come_one_by_one_have_a_send_each_and_those_that_come_together_few() {
    run(setup(), |bench| async move {
        let mut c = bench.client().await;
        let before = sends(&bench);
        for number in 0..50 {
            c.expect(&format!("SET k{number} v{number}"), "+OK").await;
            c.expect(&format!("GET k{number}"), &format!("v{number}")).await;
        }
        assert_eq!(sends(&bench) - before, 100);
        let before = sends(&bench);
        let gets: Vec<u8> = (0..50).flat_map(|number| encoded(&["GET", &format!("k{number}")])).collect();
        c.send(gets).await;
        for number in 0..50 {
            assert_eq!(show(&c.next().await.unwrap()), format!("v{number}"));
        }
        let together = sends(&bench) - before;
        assert!(together < 25, "{together} sends for 50 commands that came together");
    });
}

/// Each reply is posted until the connection takes no more; those behind wait for it, and leave in order.
#[test]
fn a_posted_reply_that_nobody_takes_is_counted_and_others_wait_behind_it() {
    const ROUNDS: usize = 200;
    run(setup(), |bench| async move {
        let mut c = bench.client().await;
        let value_bytes = POSTED_BYTES_MAX - 4096;
        for number in 0..ROUNDS {
            c.expect(&format!("SET k{number} {}", format!("{number:04}").repeat(value_bytes / 4)), "+OK")
                .await;
        }
        let held = || bench.shared.sum(|counters| counters.held_bytes.get()) as usize;
        let before = sends(&bench);
        let mut asked = 0;
        while sends(&bench) - before == asked as u64 && asked < ROUNDS {
            c.send(encoded(&["GET", &format!("k{asked}")])).await;
            bench.pause_ms(1).await;
            asked += 1;
        }
        // The last one is not counted as sent: it waits for the one that was posted.
        assert!((2..ROUNDS).contains(&asked), "{asked}");
        bench.pause_ms(2 * STALL_LOOK_NS / 1_000_000).await;
        let waits = held();
        assert!((value_bytes..4 * value_bytes).contains(&waits), "{waits} bytes are counted");
        for number in asked..ROUNDS {
            c.send(encoded(&["GET", &format!("k{number}")])).await;
        }
        for number in 0..ROUNDS {
            let reply = show(&c.next().await.unwrap());
            assert!(reply == format!("{number:04}").repeat(value_bytes / 4), "{number}");
        }
        bench.pause_ms(2 * STALL_LOOK_NS / 1_000_000).await;
        assert!(held() < value_bytes, "{} bytes, though nothing waits any more", held());
    });
}
