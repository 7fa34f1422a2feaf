//! Replies that leave where they are ready: as many sends as there are, in order, and counted.

use crate::common::{Bench, Setup, encoded, run, show};
use plimsoll_kv::delay::Delay;
use plimsoll_kv::{Completion, Device, LocalFuture, Request, Result};
use plimsoll_reactor::sync::WaitList;
use plimsoll_server::limits::{POSTED_BYTES_MAX, REPLIES_WAITING_MAX, STALL_LOOK_NS};
use std::cell::Cell;
use std::rc::Rc;

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

/// The header of its array was posted by itself, and the elements waited for that (found in review).
#[test]
fn an_exec_leaves_with_one_send() {
    run(Setup { delay: Delay { fixed_ns: 100_000, byte_ps: 0 }, ..setup() }, |bench| async move {
        let mut c = bench.client().await;
        for command in ["MULTI", "SET a 1", "INCR a", "GET a"] {
            c.call(&command.split(' ').collect::<Vec<_>>()).await;
        }
        let before = sends(&bench);
        let plimsoll_resp::Reply::Array(replies) = c.call(&["EXEC"]).await else { panic!("no array") };
        assert_eq!(replies.iter().map(show).collect::<Vec<_>>(), ["+OK", ":2", "2"]);
        assert_eq!(sends(&bench) - before, 1);
    });
}

/// The writer was not told that the last reply had left, and the stop waited its longest (found in review).
#[test]
fn a_stop_ends_as_soon_as_the_last_reply_has_been_posted() {
    run(Setup { delay: Delay { fixed_ns: 10_000_000, byte_ps: 0 }, ..setup() }, |bench| async move {
        let mut c = bench.client().await;
        c.send(encoded(&["SET", "k", "v"])).await;
        bench.pause_ms(1).await;
        let core = bench.cores.borrow()[0].clone();
        let begun_ns = bench.reactor.now_ns();
        bench.reactor.spawn(plimsoll_reactor::Work::Control, async move { core.stop().await });
        assert_eq!(show(&c.next().await.unwrap()), "+OK");
        assert!(c.next().await.is_none());
        let took_ms = (bench.reactor.now_ns() - begun_ns) / 1_000_000;
        assert!(took_ms < 100, "{took_ms} ms");
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

/// Keeps what is done with two keys until a third one is asked for: then the one that came last ends first,
/// and the other in the same turn.
struct Held {
    below: Rc<dyn Device>,
    is_open: Cell<bool>,
    first: WaitList,
    last: WaitList,
}

impl Device for Held {
    fn execute(self: Rc<Self>, request: Request) -> LocalFuture<Result<Completion>> {
        Box::pin(async move {
            let open = || self.is_open.get().then_some(());
            match request.op.key() {
                Some(b"first") => self.first.wait_for(open).await,
                Some(b"last") => self.last.wait_for(open).await,
                Some(b"open") => {
                    self.is_open.set(true);
                    self.last.wake_all();
                    self.first.wake_all();
                }
                _ => {}
            }
            self.below.clone().execute(request).await
        })
    }

    fn value_bytes_max(&self) -> usize {
        self.below.value_bytes_max()
    }

    fn part_bytes(&self) -> usize {
        self.below.part_bytes()
    }
}

/// The reader looked for room while the writer was about to make it, and nobody told it (found in review).
#[test]
fn replies_that_nobody_wants_make_room_when_they_have_gone() {
    let instead = |below| -> Rc<dyn Device> {
        Rc::new(Held {
            below,
            is_open: Cell::default(),
            first: WaitList::default(),
            last: WaitList::default(),
        })
    };
    run(Setup { instead, ..setup() }, |bench| async move {
        let c = bench.client().await;
        c.send(encoded(&["CLIENT", "REPLY", "OFF"])).await;
        c.send(encoded(&["SET", "first", "v"])).await;
        for number in 0..REPLIES_WAITING_MAX - 2 {
            c.send(encoded(&["SET", &format!("k{number}"), "v"])).await;
        }
        c.send(encoded(&["SET", "last", "v"])).await;
        c.send(encoded(&["SET", "behind", "v"])).await;
        bench.pause_ms(10).await;
        let mut other = bench.client().await;
        other.expect("GET behind", "nil").await;
        other.expect("SET open v", "+OK").await;
        bench.pause_ms(10).await;
        other.expect("GET behind", "v").await;
    });
}
