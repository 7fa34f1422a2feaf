//! Keys that are known: what is replaced or deleted without a read, what is read all the same, and that both
//! come to the same.

use crate::opening::{DATABASE, DISK_BYTES, live, open_with, run, store, upload, world};
use plimsoll_flash::{Options, Partition};
use plimsoll_kv::{Condition, Deleted, Error, Expiry, Kept, Op, Output, Value, Version};
use plimsoll_reactor::Reactor;
use std::rc::Rc;

const SEGMENT_BYTES: u32 = 64 << 10;
const KEYS: u64 = 200;

async fn open(reactor: &Reactor, known_bytes: usize) -> Rc<Partition> {
    open_with(reactor, SEGMENT_BYTES, Options { known_bytes, ..Options::default() }).await
}

fn key(number: u64) -> Vec<u8> {
    format!("k{number}").into_bytes()
}

/// Stores every key; how many were replaced without a read, and how many records were read.
async fn put_all(partition: &Rc<Partition>, byte: u8, expiry: Expiry) -> (u64, u64) {
    let before = partition.metrics();
    for number in 0..KEYS {
        run(partition, store(key(number), Value::from(vec![byte; 300]), expiry)).await.expect("a store");
    }
    let after = partition.metrics();
    partition.check_accounts().expect("the accounts agree");
    (after.known_overwrites - before.known_overwrites, after.record_reads - before.record_reads)
}

async fn value(partition: &Rc<Partition>, number: u64) -> Vec<u8> {
    let op = Op::Retrieve { container: DATABASE, key: key(number), range: None, pin: false };
    match run(partition, op).await {
        Ok(Output::Found(item)) => item.bytes,
        other => panic!("key {number}: {other:?}"),
    }
}

async fn counters(partition: &Rc<Partition>) -> (u64, u64) {
    match run(partition, Op::Stats { container: DATABASE }).await {
        Ok(Output::Stats(stats)) => (stats.keys, stats.expiring_keys),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_key_written_lately_is_replaced_without_a_read() {
    live(&world(DISK_BYTES), |reactor| async move {
        let partition = open(&reactor, 64 << 10).await;
        assert_eq!(put_all(&partition, 1, Expiry::Never).await, (0, 0));
        assert_eq!(put_all(&partition, 2, Expiry::Never).await, (KEYS, 0));
        assert_eq!(counters(&partition).await, (KEYS, 0));
        for number in 0..KEYS {
            assert_eq!(value(&partition, number).await, [2; 300]);
        }
    });
}

#[test]
fn known_keys_are_replaced_in_a_batch_without_a_read() {
    live(&world(DISK_BYTES), |reactor| async move {
        let partition = open(&reactor, 64 << 10).await;
        put_all(&partition, 1, Expiry::Never).await;
        let before = partition.metrics();
        for number in (0..KEYS).step_by(2) {
            let value = || Value::from(vec![2; 300]);
            let both = [number, number + 1].map(|number| store(key(number), value(), Expiry::Never));
            run(&partition, Op::Batch(both.into())).await.expect("a batch");
        }
        let after = partition.metrics();
        let known = after.known_overwrites - before.known_overwrites;
        assert_eq!((known, after.record_reads - before.record_reads), (KEYS, 0));
        partition.check_accounts().expect("the accounts agree");
        assert_eq!(counters(&partition).await, (KEYS, 0));
        for number in 0..KEYS {
            assert_eq!(value(&partition, number).await, [2; 300]);
        }
    });
}

fn delete(number: u64, condition: Condition) -> Op {
    Op::Delete { container: DATABASE, key: key(number), condition }
}

async fn is_absent(partition: &Rc<Partition>, number: u64) -> bool {
    let op = Op::Retrieve { container: DATABASE, key: key(number), range: None, pin: false };
    run(partition, op).await == Err(Error::NotFound)
}

#[test]
fn known_keys_are_deleted_without_a_read() {
    let world = world(DISK_BYTES);
    live(&world, |reactor| async move {
        let partition = open(&reactor, 64 << 10).await;
        put_all(&partition, 1, Expiry::Never).await;
        let before = partition.metrics();
        for number in 0..KEYS / 2 {
            let condition = if number % 2 == 0 { Condition::None } else { Condition::MustExist };
            let told = run(&partition, delete(number, condition)).await;
            assert_eq!(told, Ok(Output::Deleted(Deleted::Unseen)));
        }
        for number in (KEYS / 2..KEYS).step_by(2) {
            let both = [number, number + 1].map(|number| delete(number, Condition::None));
            let told = run(&partition, Op::Batch(both.into())).await;
            assert_eq!(told, Ok(Output::Batch(vec![Output::Deleted(Deleted::Unseen); 2])));
        }
        let after = partition.metrics();
        assert_eq!(after.known_deletes - before.known_deletes, KEYS);
        assert_eq!((after.record_reads, after.live_bytes), (before.record_reads, 0));
        partition.check_accounts().expect("the accounts agree");
        assert_eq!(counters(&partition).await, (0, 0));
        assert_eq!(run(&partition, delete(7, Condition::None)).await, Err(Error::NotFound));
    });
    live(&world, |reactor| async move {
        let partition = open(&reactor, 64 << 10).await;
        for number in 0..KEYS {
            assert!(is_absent(&partition, number).await, "{number} came back");
        }
    });
}

/// Whether it has expired stands in its record, and which version it has.
#[test]
fn known_keys_that_may_have_expired_and_those_of_a_version_are_looked_at() {
    live(&world(DISK_BYTES), |reactor| async move {
        let partition = open(&reactor, 64 << 10).await;
        let soon = Expiry::At(reactor.wall_ms() + 1_000);
        run(&partition, store(key(1), Value::from(vec![1; 300]), soon)).await.expect("a store");
        run(&partition, store(key(2), Value::from(vec![2; 300]), Expiry::Never)).await.expect("a store");
        let version = Condition::IfVersion(Version { epoch: 0, clock: 1 });
        assert_eq!(run(&partition, delete(2, version)).await, Err(Error::VersionMismatch));
        reactor.sleep_ns(2_000_000_000).await;
        assert_eq!(run(&partition, delete(1, Condition::None)).await, Err(Error::NotFound));
        assert_eq!(partition.metrics().known_deletes, 0);
        assert_eq!(value(&partition, 2).await, [2; 300]);
    });
}

/// The version below goes as well, be it one of a value in parts.
#[test]
fn known_keys_that_keep_a_version_are_looked_at() {
    live(&world(DISK_BYTES), |reactor| async move {
        let partition = open(&reactor, 64 << 10).await;
        put_in_parts(&partition, 1).await;
        run(&partition, retaining(1, vec![1; 10])).await.expect("replaced");
        run(&partition, delete(1, Condition::None)).await.expect("deleted");
        assert_eq!(partition.metrics().known_deletes, 0);
        // The parts go in the background.
        reactor.sleep_ns(1_000_000_000).await;
        assert_eq!(partition.metrics().live_bytes, 0);
        partition.check_accounts().expect("the accounts agree");
    });
}

/// What was kept under another key goes with that key, and neither is read.
#[test]
fn what_is_kept_under_a_known_key_is_given_up_without_a_read() {
    live(&world(DISK_BYTES), |reactor| async move {
        let partition = open(&reactor, 64 << 10).await;
        let kept = |number| {
            let (container, key) = (DATABASE, key(number));
            Value::Kept(Kept { container, key, head: vec![1; 16], bytes: Some(300) })
        };
        put_all(&partition, 1, Expiry::Never).await;
        let before = partition.metrics();
        for number in 0..KEYS {
            let keeper = store(key(KEYS + number), kept(number), Expiry::Never);
            let batch = vec![keeper, delete(number, Condition::None)];
            run(&partition, Op::Batch(batch)).await.expect("a batch");
        }
        assert!(partition.metrics().live_bytes > before.live_bytes, "it is all there, and its keepers");
        assert_eq!(value(&partition, KEYS + 7).await, [[1; 16].as_slice(), &[1; 300]].concat());
        let looked = partition.metrics();
        for number in KEYS..2 * KEYS {
            run(&partition, delete(number, Condition::None)).await.expect("a delete");
        }
        let after = partition.metrics();
        assert_eq!(after.known_deletes - before.known_deletes, 2 * KEYS);
        assert_eq!((after.record_reads, after.live_bytes), (looked.record_reads, 0));
        partition.check_accounts().expect("the accounts agree");
        assert_eq!(counters(&partition).await, (0, 0));
    });
}

/// Who keeps something holds no version that could be given up or put back, known or not.
#[test]
fn a_known_keeper_is_not_taken_for_a_store_that_retains() {
    live(&world(DISK_BYTES), |reactor| async move {
        let partition = open(&reactor, 64 << 10).await;
        run(&partition, store(key(1), Value::from(vec![1; 300]), Expiry::Never)).await.expect("a store");
        let kept = Kept { container: DATABASE, key: key(1), head: vec![2; 16], bytes: Some(300) };
        run(&partition, Op::Batch(vec![store(key(2), Value::Kept(kept), Expiry::Never)]))
            .await
            .expect("kept");
        let release = Op::Release { container: DATABASE, key: key(2) };
        assert!(matches!(run(&partition, release).await, Err(Error::Invalid(_))));
        run(&partition, store(key(2), Value::from(vec![3; 10]), Expiry::Never)).await.expect("replaced");
        assert_eq!(value(&partition, 2).await, [3; 10]);
        assert_eq!(value(&partition, 1).await, [1; 300]);
        partition.check_accounts().expect("the accounts agree");
    });
}

/// A store that keeps what it replaces.
fn retaining(number: u64, bytes: Vec<u8>) -> Op {
    match store(key(number), Value::from(bytes), Expiry::Never) {
        Op::Store { container, key, value, condition, expiry, want_previous, form, .. } => {
            Op::Store { container, key, value, condition, expiry, retain: true, want_previous, form }
        }
        _ => unreachable!("a store"),
    }
}

#[test]
fn what_known_keys_replace_is_kept_and_given_up_without_a_read() {
    live(&world(DISK_BYTES), |reactor| async move {
        let partition = open(&reactor, 64 << 10).await;
        put_all(&partition, 1, Expiry::Never).await;
        let (before, release) =
            (partition.metrics(), |number| Op::Release { container: DATABASE, key: key(number) });
        for number in 0..KEYS {
            run(&partition, retaining(number, vec![2; 300])).await.expect("a store");
        }
        let kept_bytes = partition.metrics().live_bytes;
        assert!(kept_bytes > before.live_bytes * 19 / 10, "both versions of each are there");
        for number in 0..KEYS {
            run(&partition, release(number)).await.expect("a release");
        }
        let after = partition.metrics();
        assert_eq!(after.known_overwrites - before.known_overwrites, KEYS);
        assert_eq!((after.record_reads, after.live_bytes), (before.record_reads, before.live_bytes));
        partition.check_accounts().expect("the accounts agree");
        assert!(run(&partition, release(0)).await.is_err(), "nothing is kept any more");
        // What is kept already is looked at by the next that keeps something, and goes.
        for byte in [3, 4] {
            run(&partition, retaining(7, vec![byte; 300])).await.expect("a store");
        }
        run(&partition, Op::Revert { container: DATABASE, key: key(7) }).await.expect("the one before");
        assert_eq!(value(&partition, 7).await, [3; 300]);
        assert_eq!(partition.metrics().live_bytes, before.live_bytes);
        partition.check_accounts().expect("the accounts agree");
    });
}

#[test]
fn without_memory_every_key_is_read() {
    live(&world(DISK_BYTES), |reactor| async move {
        let partition = open(&reactor, 0).await;
        put_all(&partition, 1, Expiry::Never).await;
        let (known, read) = put_all(&partition, 2, Expiry::Never).await;
        assert_eq!(known, 0);
        assert!(read > KEYS * 9 / 10, "{read}: all but those that still stand in memory");
    });
}

#[test]
fn keys_that_expire_are_counted_right() {
    live(&world(DISK_BYTES), |reactor| async move {
        let partition = open(&reactor, 64 << 10).await;
        let late = Expiry::At(reactor.wall_ms() + 1_000_000);
        put_all(&partition, 1, late).await;
        assert_eq!(counters(&partition).await, (KEYS, KEYS));
        assert_eq!(put_all(&partition, 2, Expiry::Never).await.0, KEYS);
        assert_eq!(counters(&partition).await, (KEYS, 0));
        // A change of expiry is not in the record that was written: it makes the key unknown.
        let persist =
            Op::SetExpiry { container: DATABASE, key: key(3), expiry: late, condition: Condition::None };
        run(&partition, store(key(3), Value::from(vec![5; 9000]), Expiry::Never)).await.expect("a store");
        run(&partition, persist).await.expect("it gets an expiry");
        assert_eq!(counters(&partition).await, (KEYS, 1));
        run(&partition, store(key(3), Value::from(vec![6; 300]), Expiry::Never)).await.expect("a store");
        assert_eq!(counters(&partition).await, (KEYS, 0));
        // Keep needs the record.
        put_all(&partition, 3, late).await;
        assert_eq!(put_all(&partition, 4, Expiry::Keep).await.0, 0);
        assert_eq!(counters(&partition).await, (KEYS, KEYS));
    });
}

/// Stores a key as a value in parts.
async fn put_in_parts(partition: &Rc<Partition>, number: u64) {
    let upload = upload(partition, &key(number), &[9; 20_000]).await.expect("parts");
    run(partition, store(key(number), Value::Upload(upload), Expiry::Never)).await.expect("committed");
}

/// What a value in parts takes comes back when it is replaced: such a record is read.
#[test]
fn values_in_parts_are_not_replaced_unread() {
    live(&world(DISK_BYTES), |reactor| async move {
        let partition = open(&reactor, 64 << 10).await;
        put_in_parts(&partition, 1).await;
        let before = partition.metrics();
        run(&partition, store(key(1), Value::from(vec![1; 10]), Expiry::Never)).await.expect("replaced");
        assert_eq!(partition.metrics().known_overwrites, before.known_overwrites);
        // The parts go in the background.
        reactor.sleep_ns(1_000_000_000).await;
        let metrics = partition.metrics();
        assert!(metrics.live_bytes < 1000, "{} bytes are live", metrics.live_bytes);
        partition.check_accounts().expect("the accounts agree");
    });
}

/// Nothing is known after a restart, and nothing depends on it.
#[test]
fn after_a_restart_keys_are_read_once() {
    let world = world(DISK_BYTES);
    live(&world, |reactor| async move {
        let partition = open(&reactor, 64 << 10).await;
        put_all(&partition, 1, Expiry::Never).await;
        put_all(&partition, 2, Expiry::Never).await;
        partition.close().await.expect("it stops in order");
    });
    live(&world, |reactor| async move {
        let partition = open(&reactor, 64 << 10).await;
        assert_eq!(put_all(&partition, 3, Expiry::Never).await, (0, KEYS));
        assert_eq!(put_all(&partition, 4, Expiry::Never).await, (KEYS, 0));
        assert_eq!(value(&partition, 7).await, [4; 300]);
    });
}

/// The same when it was kept for a while: the record above it is known, and says nothing of parts.
#[test]
fn values_in_parts_that_were_kept_take_their_parts_along() {
    live(&world(DISK_BYTES), |reactor| async move {
        let partition = open(&reactor, 64 << 10).await;
        put_in_parts(&partition, 1).await;
        run(&partition, retaining(1, vec![1; 10])).await.expect("replaced");
        assert!(partition.metrics().live_bytes > 20_000, "it is kept");
        run(&partition, Op::Release { container: DATABASE, key: key(1) }).await.expect("given up");
        reactor.sleep_ns(1_000_000_000).await;
        let metrics = partition.metrics();
        assert!(metrics.live_bytes < 1000, "{} bytes are live", metrics.live_bytes);
        partition.check_accounts().expect("the accounts agree");
    });
}
