//! Values that share parts with the value before, and slices of parts.

use crate::opening::{DISK_BYTES, live, open, open_with, run, world};
use plimsoll_flash::{Options, Partition};
use plimsoll_kv::{Condition, ContainerId, Device, Error, Expiry, Item, Op, Output, Result, UploadId, Value};
use plimsoll_reactor::Reactor;
use std::rc::Rc;

const KEY: &[u8] = b"k";
const DB: ContainerId = ContainerId(0);

/// Bytes that tell where they stand, and in which value.
fn content(seed: u64, length: usize) -> Vec<u8> {
    let byte = |at: usize| ((at as u64 ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8;
    (0..length).map(byte).collect()
}

async fn begin(partition: &Rc<Partition>, length: usize, shared_bytes: usize) -> UploadId {
    let (length, shared_bytes) = (length as u64, shared_bytes as u64);
    let op = Op::UploadBegin { container: DB, key: KEY.to_vec(), length, shared_bytes, form: None };
    let Ok(Output::Upload(upload)) = run(partition, op).await else { panic!("an upload begins") };
    upload
}

async fn write(partition: &Rc<Partition>, upload: UploadId, bytes: &[u8]) {
    run(partition, Op::UploadPart { upload, key: KEY.to_vec(), bytes: bytes.to_vec() }).await.unwrap();
}

async fn share(partition: &Rc<Partition>, upload: UploadId, from: UploadId, parts: u32) -> Result<Output> {
    run(partition, Op::UploadShare { upload, key: KEY.to_vec(), from, parts }).await
}

async fn store(partition: &Rc<Partition>, upload: UploadId) {
    let op = Op::Store {
        container: DB,
        key: KEY.to_vec(),
        value: Value::Upload(upload),
        condition: Condition::None,
        expiry: Expiry::Never,
        retain: false,
        want_previous: false,
        form: None,
    };
    run(partition, op).await.unwrap();
}

async fn set(partition: &Rc<Partition>, bytes: &[u8]) {
    let upload = begin(partition, bytes.len(), 0).await;
    for part in bytes.chunks(partition.part_bytes()) {
        write(partition, upload, part).await;
    }
    store(partition, upload).await;
}

async fn pin(partition: &Rc<Partition>) -> (UploadId, Item) {
    let op = Op::Retrieve { container: DB, key: KEY.to_vec(), range: None, pin: true };
    let Ok(Output::Found(item)) = run(partition, op).await else { panic!("the key is there") };
    (item.upload.expect("a value in parts"), item)
}

async fn unpin(partition: &Rc<Partition>, upload: UploadId) {
    run(partition, Op::Unpin { upload, key: KEY.to_vec() }).await.unwrap();
}

async fn part(
    partition: &Rc<Partition>,
    upload: UploadId,
    part: u32,
    range: Option<(u64, u64)>,
) -> Result<Vec<u8>> {
    match run(partition, Op::RetrievePart { upload, key: KEY.to_vec(), part, range }).await? {
        Output::Found(item) => Ok(item.bytes),
        other => panic!("{other:?}"),
    }
}

async fn whole(partition: &Rc<Partition>, upload: UploadId, length: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for number in 0..length.div_ceil(partition.part_bytes()) {
        bytes.extend(part(partition, upload, number as u32, None).await.unwrap());
    }
    bytes
}

async fn value(partition: &Rc<Partition>) -> Vec<u8> {
    let (upload, item) = pin(partition).await;
    let bytes = whole(partition, upload, item.length as usize).await;
    unpin(partition, upload).await;
    bytes
}

/// Writes the second part anew and appends some bytes: the others are shared.
async fn change(partition: &Rc<Partition>, old: &[u8], seed: u64) -> Vec<u8> {
    let part_bytes = partition.part_bytes();
    let mut new = old.to_vec();
    new[part_bytes..2 * part_bytes].copy_from_slice(&content(seed, part_bytes));
    new.extend_from_slice(&content(seed, 100));
    let last = old.len() / part_bytes;
    let (from, _) = pin(partition).await;
    let upload = begin(partition, new.len(), (last - 1) * part_bytes).await;
    share(partition, upload, from, 1).await.unwrap();
    write(partition, upload, &new[part_bytes..2 * part_bytes]).await;
    share(partition, upload, from, last as u32 - 2).await.unwrap();
    for bytes in new[last * part_bytes..].chunks(part_bytes) {
        write(partition, upload, bytes).await;
    }
    store(partition, upload).await;
    unpin(partition, from).await;
    new
}

#[test]
fn an_upload_that_is_pinned_is_read_and_shared_after_it_was_given_up() {
    let world = world(DISK_BYTES);
    live(&world, |reactor| async move {
        let partition = open(&reactor).await;
        let part_bytes = partition.part_bytes();
        let bytes = content(3, 3 * part_bytes + 7);
        let first = begin(&partition, bytes.len(), 0).await;
        for part in bytes.chunks(part_bytes) {
            write(&partition, first, part).await;
        }
        let key = || KEY.to_vec();
        run(&partition, Op::Pin { upload: first, key: key() }).await.unwrap();
        let second = begin(&partition, bytes.len(), 3 * part_bytes).await;
        run(&partition, Op::UploadAbort { upload: first, key: key() }).await.unwrap();
        reactor.sleep_ns(1_000_000_000).await;
        share(&partition, second, first, 3).await.unwrap();
        write(&partition, second, b"another").await;
        assert!(whole(&partition, first, bytes.len()).await == bytes);
        unpin(&partition, first).await;
        reactor.sleep_ns(1_000_000_000).await;
        let gone = run(&partition, Op::Pin { upload: first, key: key() }).await;
        assert_eq!(gone, Err(Error::Invalid("no such upload")));
        store(&partition, second).await;
        assert!(value(&partition).await == [&bytes[..3 * part_bytes], b"another"].concat());
    });
}

#[test]
fn a_changed_value_shares_what_it_does_not_change() {
    let world = world(DISK_BYTES);
    live(&world, |reactor| async move {
        let partition = open(&reactor).await;
        let old = content(1, 10 * partition.part_bytes() + 50);
        set(&partition, &old).await;
        let (reader, _) = pin(&partition).await;
        let before = partition.metrics().stored_bytes;
        let new = change(&partition, &old, 2).await;
        let written = partition.metrics().stored_bytes - before;
        assert!(written < 3 * partition.part_bytes() as u64, "{written} bytes were written");
        assert_eq!(value(&partition).await, new);
        assert_eq!(whole(&partition, reader, old.len()).await, old, "a reader keeps its version");
        unpin(&partition, reader).await;
        reactor.sleep_ns(1_000_000_000).await;
        assert!(
            matches!(part(&partition, reader, 1, None).await, Err(Error::NotFound)),
            "the old one is gone"
        );
        assert_eq!(value(&partition).await, new, "and what it shared is not");
        partition.close().await.unwrap();
    });
    live(&world, |reactor| async move {
        let partition = open(&reactor).await;
        let part_bytes = partition.part_bytes();
        let mut wanted = content(1, 10 * part_bytes + 50);
        wanted[part_bytes..2 * part_bytes].copy_from_slice(&content(2, part_bytes));
        wanted.extend(content(2, 100));
        assert_eq!(value(&partition).await, wanted, "after a restart");
        run(&partition, Op::Delete { container: DB, key: KEY.to_vec(), condition: Condition::None })
            .await
            .unwrap();
        reactor.sleep_ns(2_000_000_000).await;
        assert_eq!(partition.metrics().live_bytes, 0, "nothing is left of it");
        partition.close().await.unwrap();
    });
}

#[test]
fn the_last_part_is_written_with_its_value() {
    live(&world(DISK_BYTES), |reactor| async move {
        let partition = open(&reactor).await;
        for parts in [1, 3] {
            let before = partition.metrics().frames;
            let value = content(1, parts * partition.part_bytes() - 9);
            let upload = begin(&partition, value.len(), 0).await;
            for part in value.chunks(partition.part_bytes()) {
                write(&partition, upload, part).await;
                // As from a client: what comes next comes when what was begun has been written.
                reactor.sleep_ns(1_000_000).await;
            }
            store(&partition, upload).await;
            assert_eq!(partition.metrics().frames - before, parts as u64, "of a value of {parts} parts");
            // What comes now is proof of the last frame, and of the end of the value before.
            reactor.sleep_ns(1_000_000_000).await;
        }
    });
}

#[test]
fn only_parts_that_are_alike_are_shared() {
    live(&world(DISK_BYTES), |reactor| async move {
        let partition = open(&reactor).await;
        let part_bytes = partition.part_bytes();
        set(&partition, &content(1, 3 * part_bytes + 50)).await;
        let (from, _) = pin(&partition).await;
        let longer = begin(&partition, 5 * part_bytes, 0).await;
        assert!(
            matches!(share(&partition, longer, from, 4).await, Err(Error::Invalid(_))),
            "the last is longer"
        );
        share(&partition, longer, from, 3).await.unwrap();
        assert!(matches!(share(&partition, longer, from, 1).await, Err(Error::Invalid(_))));
        assert!(share(&partition, longer, UploadId(999), 1).await.is_err(), "of nothing");
        assert!(share(&partition, UploadId(999), from, 1).await.is_err(), "into nothing");
        assert!(share(&partition, from, from, 1).await.is_err(), "into what is stored");
        assert!(share(&partition, longer, from, u32::MAX).await.is_err());
        run(&partition, Op::UploadAbort { upload: longer, key: KEY.to_vec() }).await.unwrap();
        unpin(&partition, from).await;
        assert_eq!(value(&partition).await, content(1, 3 * part_bytes + 50));
    });
}

/// Cleaning moves shared records; a crash comes after each change. The value is right in every life.
#[test]
fn shared_parts_outlive_cleaning_and_crashes() {
    let world = world(DISK_BYTES);
    for round in 0..6 {
        live(&world, move |reactor| async move {
            let partition = open(&reactor).await;
            let part_bytes = partition.part_bytes();
            let mut wanted = content(100, 8 * part_bytes + 50);
            if round == 0 {
                set(&partition, &wanted).await;
            }
            for seed in 1..=round {
                wanted[part_bytes..2 * part_bytes].copy_from_slice(&content(seed, part_bytes));
                wanted.extend(content(seed, 100));
            }
            assert_eq!(value(&partition).await, wanted, "life {round}");
            let (reader, _) = pin(&partition).await;
            let old = wanted.clone();
            wanted = change(&partition, &wanted, round + 1).await;
            let cleaned = partition.metrics().cleaned_bytes;
            fill(&partition, &reactor, round).await;
            assert!(partition.metrics().cleaned_bytes > cleaned, "cleaning went on in life {round}");
            assert_eq!(whole(&partition, reader, old.len()).await, old, "of a reader in life {round}");
            unpin(&partition, reader).await;
            assert_eq!(value(&partition).await, wanted, "after cleaning in life {round}");
        });
    }
}

/// Overwrites other keys until cleaning had much to do.
async fn fill(partition: &Rc<Partition>, reactor: &Reactor, round: u64) {
    for number in 0..4_000_u64 {
        let op = Op::Store {
            container: DB,
            key: format!("other:{}", (number ^ round).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32 & 511)
                .into_bytes(),
            value: Value::from(content(number, 4_000)),
            condition: Condition::None,
            expiry: Expiry::Never,
            retain: false,
            want_previous: false,
            form: None,
        };
        run(partition, op).await.unwrap();
        if number % 100 == 0 {
            reactor.yield_now().await;
        }
    }
}

#[test]
fn a_slice_of_a_part_is_what_stands_there() {
    let world = world(192 << 20);
    live(&world, |reactor| async move {
        let partition = open_with(&reactor, 4 << 20, Options::default()).await;
        let part_bytes = partition.part_bytes();
        assert_eq!(part_bytes, 256 << 10, "many checksum spans");
        set(&partition, &content(5, part_bytes + 40_000)).await;
        partition.close().await.unwrap();
    });
    live(&world, |reactor| async move {
        let partition = open_with(&reactor, 4 << 20, Options::default()).await;
        let part_bytes = partition.part_bytes();
        let bytes = content(5, part_bytes + 40_000);
        let (upload, _) = pin(&partition).await;
        let ends = [0_usize, 1, 16_383, 16_384, 16_385, 39_999, 40_000, 100_000, part_bytes - 1, part_bytes];
        for (number, start, length) in [(0, 0, part_bytes), (1, part_bytes, 40_000)] {
            for first in ends {
                for count in ends {
                    let wanted = &bytes[start + first.min(length)..start + (first + count).min(length)];
                    let range = Some((first as u64, count as u64));
                    let read = part(&partition, upload, number, range).await.unwrap();
                    assert!(read == wanted, "{count} bytes from {first} of part {number}");
                }
            }
        }
        assert_eq!(part(&partition, upload, 0, Some((u64::MAX, u64::MAX))).await.unwrap(), b"");
        assert!(part(&partition, upload, 2, Some((0, 1))).await.is_err());
    });
}
