//! What operations ask of the drive.

use super::bench::{
    DB, bytes, del_op, execute, execute_as, formatted, open, release_op, retain_op, revert_op, run, set_op,
    store_op,
};
use crate::{Commands, Medium, Slots};
use plimsoll_kv::{Condition, ContainerId, Durability, Edit, Error, Expiry, Op, Result, Value};
use std::rc::Rc;

/// What an operation asks of the drive, flushes left out, with those in the background.
async fn asked(slots: &Rc<Slots>, medium: &Medium, op: Op) -> (u64, u64, u64) {
    slots.idle().await;
    medium.commands();
    execute(slots, op).await.unwrap();
    let before: Commands = medium.commands();
    slots.idle().await;
    let behind = medium.commands();
    assert_eq!(before.others + behind.others, 0);
    (before.stores + behind.stores, before.retrieves + behind.retrieves, before.deletes + behind.deletes)
}

fn get_op(key: &str) -> Op {
    Op::Retrieve { container: DB, key: key.as_bytes().to_vec(), range: None, pin: false }
}

#[test]
fn operations_are_as_few_commands_as_can_be() {
    run(1, |reactor| async move {
        let medium = formatted(&reactor).await;
        let slots = open(&reactor, &medium).await;
        let ask = async |op| asked(&slots, &medium, op).await;
        assert_eq!(ask(set_op("k", b"new")).await, (1, 0, 0), "a store");
        assert_eq!(ask(set_op("k", b"again")).await, (1, 0, 0), "in place");
        assert_eq!(ask(get_op("k")).await, (0, 1, 0), "a retrieve");
        let exist = Op::Exist { container: DB, key: b"k".to_vec() };
        assert_eq!(ask(exist).await, (0, 0, 0), "memory knows");
        assert_eq!(ask(retain_op("k", b"above")).await, (1, 0, 0), "a store that retains");
        assert_eq!(ask(release_op("k")).await, (0, 0, 1), "a release");
        assert_eq!(ask(retain_op("k", b"above")).await, (1, 0, 0));
        assert_eq!(ask(revert_op("k")).await, (1, 1, 1), "what was replaced is written once more");
        assert_eq!(ask(del_op("k")).await, (0, 0, 1), "a delete");
        assert_eq!(medium.objects().len(), 2, "the superblock is left");
        let books = ContainerId(3969);
        let journal = || store_op(books, "j1", Value::from(vec![1; 100]), false);
        for _ in 0..3 {
            let batch = Op::Batch(vec![set_op("k", &[7; 1000]), journal()]);
            assert_eq!(ask(batch).await, (1, 0, 0), "a batch of a long and a short value");
        }
        assert_eq!(ask(Op::Batch(vec![retain_op("k", &[8; 1000]), journal()])).await, (1, 0, 0));
        assert_eq!(ask(release_op("k")).await, (0, 0, 1));
        let append = store_op(DB, "k", Value::Edit(Edit::Append(b"!".to_vec())), false);
        assert_eq!(ask(append).await, (1, 1, 0), "an edit");
        let (key, expiry, condition) = (b"k".to_vec(), Expiry::At(u64::MAX), Condition::None);
        let persist = Op::SetExpiry { container: DB, key, expiry, condition };
        assert_eq!(ask(persist).await, (1, 1, 0), "a change of expiry");
        assert_eq!(ask(Op::Clear { container: DB }).await.0, 2, "a generation, and a rider that has to move");
    });
}

#[test]
fn flushes_are_shared_and_left_out_where_nobody_waits() {
    run(2, |reactor| async move {
        let medium = formatted(&reactor).await;
        let slots = open(&reactor, &medium).await;
        medium.commands();
        execute(&slots, set_op("k", b"v")).await.unwrap();
        assert_eq!(medium.commands().flushes, 1);
        let keys: Vec<String> = (0..100).map(|number| format!("k{number}")).collect();
        let stores = keys.iter().map(|key| execute(&slots, set_op(key, b"v")));
        let all: Vec<Result<_>> = futures_util::future::join_all(stores).await;
        assert!(all.iter().all(Result::is_ok));
        let asked = medium.commands();
        assert_eq!(asked.stores, 100);
        assert!(asked.flushes <= 100, "{asked:?}");
        execute_as(&slots, set_op("k", b"w"), Durability::Async).await.unwrap();
        assert_eq!(medium.commands().flushes, 0);
        reactor.sleep_ns(600_000_000).await;
        assert_eq!(medium.commands().flushes, 1, "it comes by itself");
    });
}

#[test]
fn a_drive_that_is_full_refuses_and_is_not_broken() {
    run(3, |reactor| async move {
        let medium = Medium::new(1 << 20, 100_000);
        let options = super::bench::options(4000, 100);
        Slots::format(&reactor, medium.connect(), options).await.unwrap();
        let slots = open(&reactor, &medium).await;
        let mut stored = 0;
        while execute(&slots, set_op(&format!("k{stored}"), &[0; 1000])).await.is_ok() {
            stored += 1;
        }
        assert!((80..95).contains(&stored), "{stored} stored");
        assert_eq!(execute(&slots, set_op("more", &[0; 1000])).await, Err(Error::NoSpace));
        assert_eq!(bytes(&slots, "k0").await, Some(vec![0; 1000]));
        execute(&slots, del_op("k0")).await.unwrap();
        execute(&slots, set_op("more", &[0; 1000])).await.unwrap();
    });
}

#[test]
fn after_a_command_failed_nothing_is_written_and_reads_go_on() {
    run(4, |reactor| async move {
        let medium = formatted(&reactor).await;
        let slots = open(&reactor, &medium).await;
        execute(&slots, set_op("a", b"1")).await.unwrap();
        medium.set_fault(|command| {
            let is_store = matches!(command, crate::Command::Store(..));
            is_store.then(|| crate::DriveError::Unrecovered("worn out".to_owned()))
        });
        assert!(matches!(execute(&slots, set_op("b", b"1")).await, Err(Error::ReadOnly(_))));
        medium.clear_fault();
        assert!(matches!(execute(&slots, set_op("b", b"1")).await, Err(Error::ReadOnly(_))));
        assert_eq!(bytes(&slots, "a").await.as_deref(), Some(&b"1"[..]));
        let slots = open(&reactor, &medium).await;
        execute(&slots, set_op("b", b"1")).await.unwrap();
    });
}

/// What `docs/rfcs/2026-11-23-kv-ssd.md` says.
#[test]
fn a_key_costs_so_much_memory() {
    let bytes = crate::memory_bytes_per_key(16);
    assert_eq!(bytes, 272, "bytes for a key of 16");
}

/// A store and a delete of a key that was not there come to nothing.
#[test]
fn what_a_batch_takes_back_was_never_there() {
    run(5, |reactor| async move {
        let medium = formatted(&reactor).await;
        let slots = open(&reactor, &medium).await;
        execute(&slots, Op::Batch(vec![set_op("k", b"v"), del_op("k")])).await.unwrap();
        assert_eq!(bytes(&slots, "k").await, None);
        slots.idle().await;
        assert_eq!(medium.objects().len(), 2);
    });
}

#[test]
fn keys_whose_time_has_come_go_when_somebody_asks_for_them() {
    run(6, |reactor| async move {
        let medium = formatted(&reactor).await;
        let slots = open(&reactor, &medium).await;
        let mut op = set_op("k", b"v");
        if let Op::Store { expiry, .. } = &mut op {
            *expiry = Expiry::At(reactor.wall_ms() + 10);
        }
        execute(&slots, op).await.unwrap();
        reactor.sleep_ns(20_000_000).await;
        assert_eq!(medium.objects().len(), 3);
        assert_eq!(bytes(&slots, "k").await, None);
        slots.idle().await;
        assert_eq!(medium.objects().len(), 2);
    });
}
