//! Clients that come while partitions are being opened: they are told so, and lose nothing but time. Those
//! that come right after that see what was committed.

use crate::common::{Setup, encoded, run, show};
use plimsoll_kv::delay::Delay;
use plimsoll_kv::memory::MemoryOptions;
use plimsoll_kv::transaction::{Action, Outstanding, Status};
use plimsoll_kv::{
    Completion, ContainerId, Device, Durability, LocalFuture, Op, Output, Request, Result, Slot,
    TransactionId, Version,
};
use std::cell::Cell;
use std::rc::Rc;

const LOADING: &str = "-LOADING Redis is loading the dataset in memory";

/// The first core has its partitions after 100 ms, the last one after 150; from 200 on all serve keys.
fn opening() -> Setup {
    let memory = MemoryOptions { capacity_bytes: 64 << 20, value_bytes_max: 4096, part_bytes: 1024 };
    Setup { cores: 2, partitions: 8, memory, opens_ms: 100, ..Setup::default() }
}

#[test]
fn what_needs_keys_is_refused_until_all_partitions_are_open() {
    run(opening(), |bench| async move {
        let mut c = bench.client().await;
        for until_ms in [20, 120, 170] {
            bench.pause_ms(until_ms - bench.reactor.now_ns() / 1_000_000).await;
            let refused =
                ["PING", "GET k", "SET k v", "DBSIZE", "SCAN 0", "WATCH k", "EVAL x 0", "KV.META k"];
            for words in refused {
                c.expect(words, LOADING).await;
            }
            c.expect("SELECT 3", "+OK").await;
            c.expect("ECHO hello", "hello").await;
            c.expect("CLIENT SETNAME early", "+OK").await;
            c.expect("CONFIG GET timeout", "[timeout 0]").await;
            c.expect("PUBSUB NUMPAT", ":0").await;
            assert!(show(&c.call(&["OBJECT", "HELP"]).await).contains("OBJECT <subcommand>"));
            c.expect("GET", "-ERR wrong number of arguments for 'get' command").await;
            let info = show(&c.call(&["INFO"]).await);
            assert!(info.contains("loading:1\r\n"), "{info}");
            assert!(info.ends_with("# Keyspace\r\n"), "{info}");
        }
        bench.pause_ms(40).await;
        for n in 0..20 {
            c.expect(&format!("SET k{n} v"), "+OK").await;
        }
        c.expect("DBSIZE", ":20").await;
        let info = show(&c.call(&["INFO"]).await);
        assert!(info.contains("loading:0\r\n") && info.contains("db3:keys=20,"), "{info}");
        let errors = show(&c.call(&["INFO", "errorstats"]).await);
        assert!(errors.contains("errorstat_LOADING:count=24"), "{errors}");
    });
}

#[test]
fn a_transaction_that_began_too_early_runs_not_at_all() {
    run(opening(), |bench| async move {
        let mut c = bench.client().await;
        c.expect("MULTI", "+OK").await;
        c.expect("SET k 1", LOADING).await;
        bench.pause_ms(210).await;
        c.expect("SET k 2", "+QUEUED").await;
        c.expect("EXEC", "-EXECABORT Transaction discarded because of previous errors.").await;
        c.expect("GET k", "nil").await;
    });
}

#[test]
fn a_long_value_that_comes_too_early_is_read_to_its_end_and_not_begun() {
    run(opening(), |bench| async move {
        let mut c = bench.client().await;
        let long = "x".repeat(100_000);
        let set = encoded(&["SET", "k", &long]);
        // Its head comes before the partitions are open, and its end after that.
        c.send(set[..50_000].to_vec()).await;
        bench.pause_ms(210).await;
        c.send([&set[50_000..], &encoded(&["GET", "k"])[..]].concat()).await;
        assert_eq!(show(&c.next().await.unwrap()), "+OK");
        assert_eq!(show(&c.next().await.unwrap()), long);
        assert!(bench.memories.borrow().iter().all(|memory| memory.uploading() == 0));
    });
}

#[test]
fn a_long_value_that_has_come_too_early_is_refused_in_its_place() {
    run(opening(), |bench| async move {
        let mut c = bench.client().await;
        let long = "x".repeat(100_000);
        c.send([encoded(&["SET", "k", &long]), encoded(&["ECHO", "after"])].concat()).await;
        assert_eq!(show(&c.next().await.unwrap()), LOADING);
        assert_eq!(show(&c.next().await.unwrap()), "after");
        bench.pause_ms(210).await;
        c.expect("GET k", "nil").await;
    });
}

#[test]
fn a_server_that_stops_while_partitions_are_being_opened_ends_its_clients() {
    run(opening(), |bench| async move {
        let mut c = bench.client().await;
        c.expect("GET k", LOADING).await;
        let cores = bench.cores.borrow().clone();
        for core in cores {
            core.stop().await;
        }
        assert!(c.next().await.is_none());
    });
}

/// One of two partitions at which a FLUSHDB had prepared when the server ended.
struct Flushed {
    below: Rc<dyn Device>,
    status: Cell<Status>,
}

impl Device for Flushed {
    fn execute(self: Rc<Self>, request: Request) -> LocalFuture<Result<Completion>> {
        Box::pin(async move {
            let Op::Transaction { action, .. } = &request.op else {
                return self.below.clone().execute(request).await;
            };
            let output = match action {
                Action::Outstanding => {
                    let id = TransactionId { partition: 0, version: Version { epoch: 1, clock: 1 } };
                    let status = self.status.get();
                    Output::Outstanding(vec![Outstanding { id, participants: vec![0, 1], status }])
                }
                Action::Status => {
                    self.below.clone().execute(Request { op: Op::Sync, ..request }).await?;
                    Output::Status(self.status.get())
                }
                Action::Apply => {
                    let op = Op::Clear { container: ContainerId(0) };
                    self.below.clone().execute(Request { op, ..request }).await?;
                    self.status.set(Status::Applied);
                    Output::Done
                }
                Action::Forget => Output::Done,
                _ => unreachable!("no other transaction is there"),
            };
            Ok(Completion::new(output))
        })
    }

    fn value_bytes_max(&self) -> usize {
        self.below.value_bytes_max()
    }

    fn part_bytes(&self) -> usize {
        self.below.part_bytes()
    }
}

/// Seed 5127 of the arrays: after a kill SCAN gave a key that a FLUSHDB had removed.
#[test]
fn keys_are_listed_after_what_had_been_committed_is_applied() {
    for (cores, words, nothing) in
        [(1, "SCAN 0", "[0 []]"), (2, "SCAN 0", "[0 []]"), (2, "KEYS *", "[]"), (2, "RANDOMKEY", "nil")]
    {
        let setup = Setup {
            cores,
            partitions: 2,
            delay: Delay { fixed_ns: 5_000_000, byte_ps: 0 },
            instead: |below| Rc::new(Flushed { below, status: Cell::new(Status::Prepared) }),
            ..opening()
        };
        run(setup, move |bench| async move {
            let memories = bench.memories.borrow().clone();
            for key in (0..20).map(|n| format!("k{n}").into_bytes()) {
                let memory = memories[usize::from(Slot::of(&key).partition(2))].clone();
                memory
                    .execute(Request::new(Durability::Sync, Op::store(ContainerId(0), key, &b"v"[..])))
                    .await
                    .unwrap();
            }
            let mut c = bench.client().await;
            c.expect(words, LOADING).await;
            bench.pause_ms(201 - bench.reactor.now_ns() / 1_000_000).await;
            c.expect(words, nothing).await;
            c.expect("DBSIZE", ":0").await;
        });
    }
}
