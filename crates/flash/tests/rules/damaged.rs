//! Records whose heads have rotted: nobody can prove whose they are, and still their keys are written again.

use super::{Store, delete, get, value};
use crate::opening::{DATABASE, DISK_BYTES, live, open, run, upload, world};
use plimsoll_flash::Partition;
use plimsoll_kv::transaction::{Action, Held};
use plimsoll_kv::{Condition, Deleted, Error, Expiry, Op, Output, Result, Value, Version};
use plimsoll_reactor::sim::World;
use std::rc::Rc;

/// Bytes before a record's key (`docs/on-flash-format.md`).
const RECORD_HEADER_BYTES: usize = 64;

/// Flips a bit in the head of every record of a key that is on the disk.
fn rot(world: &World, key: &[u8]) {
    world.with_disk("disk", |disk| {
        let image = disk.durable().to_vec();
        let places =
            (RECORD_HEADER_BYTES..image.len() - key.len()).filter(|at| image[*at..].starts_with(key));
        let places: Vec<usize> = places.collect();
        assert!(!places.is_empty(), "its record is on the disk");
        places.iter().for_each(|at| disk.flip_bit(at - RECORD_HEADER_BYTES + 20, 3));
    });
}

/// Stores keys, each with a value of one record.
async fn store_all(partition: &Rc<Partition>, keys: &[&[u8]]) {
    for key in keys {
        run(partition, Store::of(key).bytes(&[7; 3000])).await.expect("stored");
    }
}

/// Lets the heads of keys rot.
async fn rot_all(world: &World, partition: &Rc<Partition>, keys: &[&[u8]]) {
    for key in keys {
        rot(world, key);
        assert!(is_unreadable(&run(partition, get(key)).await));
    }
}

fn is_unreadable<T>(told: &Result<T>) -> bool {
    matches!(told, Err(Error::Unreadable(_)))
}

/// Runs a test: what stands below a checkpoint when it rots, what is done then, and what there is after it,
/// after a power loss, and after a clean stop.
fn lives(
    before: impl AsyncFn(&Rc<Partition>) + Copy + 'static,
    first: impl AsyncFn(&World, &Rc<Partition>) + Copy + 'static,
    then: impl AsyncFn(&Rc<Partition>) + Copy + 'static,
) {
    let world = world(DISK_BYTES);
    live(&world, move |reactor| async move {
        let partition = open(&reactor).await;
        before(&partition).await;
        partition.close().await.expect("nothing fails");
    });
    let disks = world.clone();
    live(&world, move |reactor| {
        let disks = disks.clone();
        async move {
            let partition = open(&reactor).await;
            first(&disks, &partition).await;
            partition.check_accounts().expect("the accounts agree");
            then(&partition).await;
        }
    });
    for _ in 0..2 {
        live(&world, move |reactor| async move {
            let partition = open(&reactor).await;
            then(&partition).await;
            partition.check_accounts().expect("the accounts agree");
            partition.close().await.expect("nothing fails");
        });
    }
}

async fn listed(partition: &Rc<Partition>) -> Vec<Vec<u8>> {
    let op = Op::List { container: DATABASE, prefix: Vec::new(), after: None, limit: 100 };
    match run(partition, op).await {
        Ok(Output::Listed(page)) => page.keys,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_damaged_is_overwritten_and_deleted() {
    const ROTTEN: [&[u8]; 7] =
        [b"stored-anew", b"deleted", b"batched", b"batch-deleted", b"executed", b"retained", b"long-anew"];
    lives(
        async |partition| store_all(partition, &ROTTEN).await,
        async |world, partition| {
            rot_all(world, partition, &ROTTEN).await;
            let stored = run(partition, Store::of(b"stored-anew").bytes(b"1")).await;
            assert!(matches!(stored, Ok(Output::Stored { previous: None, .. })), "{stored:?}");
            assert_eq!(run(partition, delete(b"deleted")).await, Ok(Output::Deleted(Deleted::Unreadable)));
            assert_eq!(run(partition, delete(b"deleted")).await, Err(Error::NotFound));
            let batch = vec![Store::of(b"batched").bytes(b"2"), delete(b"batch-deleted")];
            let Ok(Output::Batch(told)) = run(partition, Op::Batch(batch)).await else { panic!("a batch") };
            assert_eq!(told[1], Output::Deleted(Deleted::Unreadable));
            commit(partition, Store::of(b"executed").bytes(b"3")).await;
            let retaining = Store { retain: true, ..Store::of(b"retained") };
            run(partition, retaining.bytes(b"4")).await.expect("stored");
            let revert = Op::Revert { container: DATABASE, key: b"retained".to_vec() };
            assert!(matches!(run(partition, revert).await, Err(Error::Invalid(_))), "nothing was kept");
            let parts = upload(partition, b"long-anew", &[9; 100_000]).await.expect("uploaded");
            run(partition, Store::of(b"long-anew").value(Value::Upload(parts))).await.expect("stored");
        },
        async |partition| {
            for (key, is) in
                [(&b"stored-anew"[..], "1"), (b"batched", "2"), (b"executed", "3"), (b"retained", "4")]
            {
                assert_eq!(value(partition, key).await.as_deref(), Some(is.as_bytes()));
            }
            for gone in [&b"deleted"[..], b"batch-deleted"] {
                assert_eq!(value(partition, gone).await, None);
            }
            let mut there: Vec<&[u8]> =
                vec![b"stored-anew", b"batched", b"executed", b"retained", b"long-anew"];
            there.sort_unstable();
            assert_eq!(listed(partition).await, there);
        },
    );
}

/// A write in a transaction of its own.
async fn commit(partition: &Rc<Partition>, write: Op) {
    let keys = vec![(DATABASE, write.key().expect("it has one").to_vec())];
    let hold = Action::Hold(Held::keys(keys));
    let request = Op::Transaction { partition: 0, id: None, action: hold };
    let Ok(Output::Held(id)) = run(partition, request).await else { panic!("held") };
    let commit =
        Op::Transaction { partition: 0, id: Some(id), action: Action::Commit { writes: vec![write] } };
    run(partition, commit).await.expect("committed");
}

#[test]
fn a_write_that_asks_for_what_is_damaged_is_an_error() {
    lives(
        async |partition| store_all(partition, &[b"asked"]).await,
        async |world, partition| {
            rot_all(world, partition, &[b"asked"]).await;
            let plain = Store::of(b"asked");
            let asking = [
                Store { condition: Condition::MustNotExist, ..plain },
                Store { condition: Condition::MustExist, ..plain },
                Store { condition: Condition::IfVersion(Version::ZERO), ..plain },
                Store { expiry: Expiry::Keep, ..plain },
            ];
            for asks in asking {
                assert!(is_unreadable(&run(partition, asks.bytes(b"1")).await));
                assert!(is_unreadable(&run(partition, Op::Batch(vec![asks.bytes(b"1")])).await));
            }
            let condition = Condition::IfVersion(Version::ZERO);
            let delete = Op::Delete { container: DATABASE, key: b"asked".to_vec(), condition };
            assert!(is_unreadable(&run(partition, delete).await));
        },
        async |partition| assert!(is_unreadable(&run(partition, get(b"asked")).await)),
    );
}

/// Its parts, or what is kept below it, would stay for ever.
#[test]
fn a_damaged_record_with_which_something_goes_stays() {
    lives(
        async |partition| {
            let parts = upload(partition, b"in-parts", &[9; 100_000]).await.expect("uploaded");
            run(partition, Store::of(b"in-parts").value(Value::Upload(parts))).await.expect("stored");
            run(partition, Store::of(b"kept-below").bytes(b"1")).await.expect("stored");
            let retaining = Store { retain: true, ..Store::of(b"kept-below") };
            run(partition, retaining.bytes(b"2")).await.expect("stored");
        },
        async |world, partition| rot_all(world, partition, &[b"in-parts", b"kept-below"]).await,
        async |partition| {
            for key in [&b"in-parts"[..], b"kept-below"] {
                assert!(is_unreadable(&run(partition, Store::of(key).bytes(b"3")).await));
                assert!(is_unreadable(&run(partition, delete(key)).await));
            }
        },
    );
}
