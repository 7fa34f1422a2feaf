//! Transactions over partitions of which one fails: who forgets them, and what is left of them.

use crate::common::{Bench, Setup, run, show};
use plimsoll_kv::fault::FaultPolicy;
use plimsoll_kv::memory::MemoryOptions;
use plimsoll_kv::transaction::Action;
use plimsoll_kv::{Op, Request, Slot};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

const PARTITIONS: u16 = 3;

/// Counts the transactions that each partition is told to forget, and lets syncs fail at one of them.
struct Watch {
    forgets: Rc<RefCell<[u32; PARTITIONS as usize]>>,
    fails: Rc<Cell<bool>>,
}

fn watch(bench: &Bench, failing: u16) -> Watch {
    let watch = Watch { forgets: Rc::default(), fails: Rc::new(Cell::new(true)) };
    for (partition, device) in bench.faults.borrow().iter() {
        let (partition, forgets, fails) = (*partition, watch.forgets.clone(), watch.fails.clone());
        device.set_policy(FaultPolicy::When(Box::new(move |request: &Request| {
            if let Op::Transaction { action: Action::Forget, .. } = request.op {
                forgets.borrow_mut()[usize::from(partition)] += 1;
            }
            request.op == Op::Sync && partition == failing && fails.get()
        })));
    }
    watch
}

/// A key of a partition.
fn key_at(partition: u16) -> String {
    let mut keys = (0..).map(|number| format!("k{number}"));
    keys.find(|key| Slot::of(key.as_bytes()).partition(PARTITIONS) == partition).unwrap()
}

#[test]
fn a_partition_that_fails_to_sync_holds_up_only_its_own_transactions() {
    run(Setup { partitions: PARTITIONS, ..Setup::default() }, |bench| async move {
        let [zero, one, two] = std::array::from_fn(|partition| key_at(partition as u16));
        let watch = watch(&bench, 2);
        let mut c = bench.client().await;
        c.expect(&format!("MSET {zero} 1 {one} 1"), "+OK").await;
        c.expect(&format!("MSET {one} 2 {two} 2"), "+OK").await;
        bench.pause_ms(5000).await;
        assert_eq!(*watch.forgets.borrow(), [1, 1, 0], "the first one is forgotten, the second is not");
        watch.fails.set(false);
        bench.pause_ms(5000).await;
        assert_eq!(*watch.forgets.borrow(), [1, 2, 1], "when all have synced, the second is too");
    });
}

#[test]
fn a_transaction_that_cannot_be_committed_leaves_no_long_value() {
    let memory = MemoryOptions { value_bytes_max: 4096, part_bytes: 1024, ..MemoryOptions::default() };
    run(Setup { partitions: PARTITIONS, memory, ..Setup::default() }, |bench| async move {
        let mut c = bench.client().await;
        let refuses = |request: &Request| {
            let Op::Transaction { action, .. } = &request.op else { return false };
            matches!(action, Action::Prepare { .. } | Action::Commit { .. })
        };
        bench.faults.borrow()[&1].set_policy(FaultPolicy::When(Box::new(refuses)));
        let [zero, one, two] = std::array::from_fn(|partition| key_at(partition as u16));
        for keys in [vec![&zero, &one, &two], vec![&one]] {
            let long = "x".repeat(10_000);
            let mut mset = vec!["MSET"];
            keys.iter().for_each(|key| mset.extend([key.as_str(), &long]));
            let reply = show(&c.call(&mset).await);
            assert!(reply.starts_with('-'), "{reply}");
            c.expect(&format!("EXISTS {zero} {one} {two}"), ":0").await;
        }
        for memory in bench.memories.borrow().iter() {
            assert_eq!((memory.pinned(), memory.uploading()), (0, 0));
        }
    });
}
