//! A device that is full of values in parts: who is refused is refused at once, and what one value leaves
//! another of its length takes.

use crate::opening::{delete, live, open_with, run, store, upload, world};
use plimsoll_flash::{Options, Partition};
use plimsoll_kv::{Error, Expiry, Result, Value};
use plimsoll_reactor::Reactor;
use std::cell::Cell;
use std::rc::Rc;

/// Four parts, of which seven fit a segment: an eighth of each stays empty.
const VALUE_BYTES: usize = 4 * (SEGMENT_BYTES as usize / 8);
const SEGMENT_BYTES: u32 = 256 << 10;
const DISK_BYTES: usize = 64 << 20;

fn key(number: u64) -> Vec<u8> {
    format!("key:{number}").into_bytes()
}

async fn set(partition: &Rc<Partition>, key: Vec<u8>) -> Result<()> {
    let upload = upload(partition, &key, &[7; VALUE_BYTES]).await?;
    run(partition, store(key, Value::Upload(upload), Expiry::Never)).await.map(|_| ())
}

async fn open(reactor: &Reactor) -> Rc<Partition> {
    open_with(reactor, SEGMENT_BYTES, Options::default()).await
}

/// Stores values until one is refused, for which nothing is cleaned in vain; how many were stored.
async fn fill(partition: &Rc<Partition>, first: u64) -> u64 {
    let cleaned = || partition.metrics().cleaned_segments;
    for number in first.. {
        let before = cleaned();
        match set(partition, key(number)).await {
            Ok(()) => continue,
            Err(error) => assert_eq!(error, Error::NoSpace),
        }
        assert_eq!(cleaned() - before, 0, "segments were cleaned for the one that was refused");
        return number - first;
    }
    unreachable!("every device is full some time")
}

#[test]
fn a_device_full_of_parts_refuses_at_once_and_takes_what_fits() {
    let world = world(DISK_BYTES);
    let next = Rc::new(Cell::new(0));
    let stored = next.clone();
    live(&world, move |reactor| {
        let stored = stored.clone();
        async move {
            let partition = open(&reactor).await;
            let first = fill(&partition, 0).await;
            let share = first as f64 * VALUE_BYTES as f64 / DISK_BYTES as f64;
            assert!(share > 0.7, "{share:.2} of the device was filled");
            stored.set(first);
            for number in 0..first / 2 {
                run(&partition, delete(key(number))).await.unwrap();
                let more = fill(&partition, stored.get()).await;
                assert!(more > 0, "nothing went in the place of {number}");
                stored.set(stored.get() + more);
            }
            partition.check_accounts().unwrap();
            partition.close().await.unwrap();
        }
    });
    live(&world, move |reactor| {
        let next = next.clone();
        async move {
            let partition = open(&reactor).await;
            let more = fill(&partition, next.get()).await;
            assert!(more < 3, "{more} more were taken after a restart");
            // What the segment that was open had left counts as taken now that it is closed.
            run(&partition, delete(key(next.get() - 1))).await.unwrap();
            run(&partition, delete(key(next.get() - 2))).await.unwrap();
            assert!(fill(&partition, next.get() + more).await > 0, "nothing went in the place of two");
        }
    });
}

/// One record of which three fit a segment, and short ones beside it.
const LONG_BYTES: usize = 65_000;
const SHORT_BYTES: usize = 7_600;
const SHORT_BESIDE: u64 = 24;

/// Stores a value in one record; false if it is refused.
async fn set_record(partition: &Rc<Partition>, key: String, bytes: usize) -> bool {
    match run(partition, store(key, Value::from(vec![7; bytes]), Expiry::Never)).await {
        Ok(_) => true,
        Err(error) => {
            assert_eq!(error, Error::NoSpace);
            false
        }
    }
}

/// Stores long records, each with short ones beside it, until one is refused; how many long ones.
async fn fill_mixed(partition: &Rc<Partition>) -> u64 {
    for group in 0.. {
        if !set_record(partition, format!("long:{group}"), LONG_BYTES).await {
            return group;
        }
        for number in 0..SHORT_BESIDE {
            if !set_record(partition, format!("short:{group}:{number}"), SHORT_BYTES).await {
                return group + 1;
            }
        }
    }
    unreachable!("every device is full some time")
}

/// The slack of a segment was once reckoned as if all of its records were as long as the longest: of what
/// died beside that one nothing was given back.
#[test]
fn one_long_record_among_short_ones_does_not_keep_what_dies_beside_it() {
    live(&world(DISK_BYTES), |reactor| async move {
        let partition = open(&reactor).await;
        let groups = fill_mixed(&partition).await;
        for group in 0..groups {
            for number in 0..SHORT_BESIDE / 8 {
                run(&partition, delete(format!("short:{group}:{number}"))).await.unwrap();
            }
        }
        let (mut again, short) = (0, groups * (SHORT_BESIDE / 8));
        while set_record(&partition, format!("again:{again}"), SHORT_BYTES).await {
            again += 1;
        }
        assert!(again * 10 > short * 9, "{again} short ones in the place of {short}");
        for group in 0..groups {
            run(&partition, delete(format!("long:{group}"))).await.unwrap();
        }
        let mut long = 0;
        while set_record(&partition, format!("more:{long}"), LONG_BYTES).await {
            long += 1;
        }
        // Three to a segment, and no short ones beside them any more.
        assert!(long * 10 > groups * 7, "{long} long ones in the place of {groups}");
    });
}

/// What short records leave empty is not slack: some of it is padding that cleaning takes.
#[test]
fn short_records_are_not_refused_for_slack() {
    live(&world(DISK_BYTES), |reactor| async move {
        let partition = open(&reactor).await;
        let live_bytes_max = partition.metrics().live_bytes_max;
        let mut number = 0;
        while set_record(&partition, format!("short:{number}"), SHORT_BYTES).await {
            number += 1;
        }
        let metrics = partition.metrics();
        assert!(metrics.live_bytes + 2 * SHORT_BYTES as u64 > metrics.live_bytes_max, "{metrics:?}");
        // Runs of keys and checkpoints take a segment or two more than at the beginning.
        let taken = live_bytes_max - metrics.live_bytes_max;
        assert!(taken <= 4 * u64::from(SEGMENT_BYTES), "{taken} bytes are not for live records any more");
        partition.check_accounts().unwrap();
    });
}
