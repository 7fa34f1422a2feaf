//! What has expired, and when.

use super::{Store, get, value};
use crate::opening::{DISK_BYTES, live, open, run, world};
use plimsoll_flash::Partition;
use plimsoll_kv::{Condition, ContainerId, Error, Expiry, Op, Output};
use std::future::Future;
use std::rc::Rc;

/// A key that expired, was seen to be expired, and would be there if the clock were believed again.
fn expired_stays_absent<F: Future<Output = ()> + 'static>(see: impl Fn(Rc<Partition>) -> F + 'static + Copy) {
    let world = world(DISK_BYTES);
    live(&world, |reactor| async move {
        let partition = open(&reactor).await;
        let expiry = Expiry::At(reactor.wall_ms() + 1000);
        run(&partition, Store { expiry, ..Store::of(b"k") }.bytes(b"1")).await.unwrap();
    });
    world.step_wall_ms(5000);
    live(&world, move |reactor| async move { see(open(&reactor).await).await });
    world.step_wall_ms(-5000);
    live(&world, |reactor| async move {
        assert_eq!(value(&open(&reactor).await, b"k").await, None);
    });
}

#[test]
fn a_conditional_store_that_saw_a_key_expired_keeps_it_so() {
    expired_stays_absent(|partition| async move {
        let store = Store { condition: Condition::MustExist, ..Store::of(b"k") };
        assert_eq!(run(&partition, store.bytes(b"2")).await, Err(Error::NotFound));
    });
}

#[test]
fn a_change_of_expiry_that_saw_a_key_expired_keeps_it_so() {
    expired_stays_absent(|partition| async move {
        let (container, key) = (ContainerId(0), b"k".to_vec());
        let op = Op::SetExpiry { container, key, expiry: Expiry::Never, condition: Condition::None };
        assert_eq!(run(&partition, op).await, Err(Error::NotFound));
    });
}

#[test]
fn a_batch_that_saw_a_key_expired_keeps_it_so() {
    expired_stays_absent(|partition| async move {
        let store = Store { condition: Condition::MustExist, ..Store::of(b"k") };
        assert_eq!(run(&partition, Op::Batch(vec![store.bytes(b"2")])).await, Err(Error::NotFound));
    });
}

#[test]
fn a_scan_that_hid_an_expired_key_keeps_it_so() {
    expired_stays_absent(|partition| async move {
        match run(&partition, Op::Scan { container: ContainerId(0), cursor: 0, limit: 10 }).await {
            Ok(Output::Scanned(page)) => assert!(page.keys.is_empty(), "{page:?}"),
            other => panic!("{other:?}"),
        }
    });
}

/// GET and TTL of a pipeline are made at once: GET, which reads more, used to judge by when it ended, and
/// told of a key as absent that TTL then told of as there.
#[test]
fn a_read_sees_a_key_as_of_when_it_began() {
    live(&world(DISK_BYTES), |reactor| async move {
        let partition = open(&reactor).await;
        let at_ms = reactor.wall_ms() + 1000;
        let store = Store { expiry: Expiry::At(at_ms), ..Store::of(b"k") };
        run(&partition, store.bytes(&[b'v'; 2000])).await.unwrap();
        while reactor.wall_ms() < at_ms - 1 {
            reactor.sleep_ns(10_000).await;
        }
        reactor.sleep_ns(980_000).await;
        assert!(reactor.wall_ms() < at_ms, "it begins before the key expires");
        let read = run(&partition, get(b"k")).await;
        assert!(reactor.wall_ms() >= at_ms, "and ends after that");
        assert!(matches!(read, Ok(Output::Found(_))), "{read:?}");
        assert_eq!(value(&partition, b"k").await, None);
    });
}

/// They had been taken for damaged, and their segment was never cleaned again, over restarts too.
#[test]
fn records_that_expire_while_cleaning_moves_them_hold_up_no_segment() {
    live(&world(DISK_BYTES), |reactor| async move {
        let partition = open(&reactor).await;
        for number in 0..12_000_u64 {
            let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let (key, expiry) =
                (format!("k{}", mixed % 900), Expiry::At(reactor.wall_ms() + 50 + mixed % 197));
            run(&partition, Store { expiry, ..Store::of(key.as_bytes()) }.bytes(&[b'v'; 2000]))
                .await
                .unwrap();
        }
        let metrics = partition.metrics();
        assert!(metrics.cleaned_segments > 50 && metrics.cleaned_bytes > 1 << 20, "{metrics:?}");
        assert!(metrics.expired > 100, "{metrics:?}");
        assert_eq!(metrics.damaged_bytes, 0, "{metrics:?}");
        partition.check_accounts().unwrap();
    });
}

async fn keys(partition: &Rc<Partition>) -> u64 {
    match run(partition, Op::Stats { container: ContainerId(0) }).await {
        Ok(Output::Stats(stats)) => stats.keys,
        other => panic!("{other:?}"),
    }
}

/// Stores keys that expire at some time until none is taken any more; how many were.
async fn fill(partition: &Rc<Partition>, name: &str, at_ms: u64) -> u64 {
    for number in 0.. {
        // A few stay for ten years, among all the others.
        let at_ms = if number % 50 == 7 { at_ms + 315_000_000_000 } else { at_ms };
        let (key, expiry) = (format!("{name}{number}"), Expiry::At(at_ms));
        let store = Store { expiry, ..Store::of(key.as_bytes()) };
        match run(partition, store.bytes(&[b'v'; 2000])).await {
            Ok(_) => {}
            Err(Error::NoSpace) => return number,
            Err(error) => panic!("{error}"),
        }
    }
    unreachable!("the disk is small")
}

/// It had refused stores for ever, until somebody asked for the keys.
#[test]
fn a_device_full_of_what_has_expired_takes_stores() {
    let world = world(DISK_BYTES);
    live(&world, |reactor| async move {
        let partition = open(&reactor).await;
        let first = fill(&partition, "a", reactor.wall_ms() + 5000).await;
        assert!(first > 1000 && fill(&partition, "b", 0).await == 0, "it is full");
        reactor.sleep_ns(6_000_000_000).await;
        assert!(fill(&partition, "b", reactor.wall_ms() + 5000).await >= first * 9 / 10);
        for number in (7..first).step_by(50) {
            assert!(value(&partition, format!("a{number}").as_bytes()).await.is_some(), "a{number}");
        }
        partition.close().await.unwrap();
    });
    // After a start nobody knows of any segment what expires there.
    world.step_wall_ms(6000);
    live(&world, |reactor| async move {
        let partition = open(&reactor).await;
        let third = fill(&partition, "c", reactor.wall_ms() + 1_000_000).await;
        assert!(third > 1000, "{third}");
        partition.check_accounts().unwrap();
        assert_eq!(partition.metrics().damaged_bytes, 0);
    });
}

#[test]
fn what_has_expired_goes_though_nobody_asks_and_nothing_else_does() {
    live(&world(DISK_BYTES), |reactor| async move {
        let partition = open(&reactor).await;
        let at_ms = reactor.wall_ms() + 1000;
        for number in 0..300_u64 {
            let expiry = if number % 3 == 0 { Expiry::Never } else { Expiry::At(at_ms) };
            let key = format!("k{number}");
            run(&partition, Store { expiry, ..Store::of(key.as_bytes()) }.bytes(&[b'v'; 2000]))
                .await
                .unwrap();
        }
        reactor.sleep_ns(500_000_000).await;
        assert_eq!(keys(&partition).await, 300);
        reactor.sleep_ns(60_000_000_000).await;
        assert_eq!(keys(&partition).await, 100);
        assert_eq!(partition.metrics().expired, 200);
        for number in 0..300_u64 {
            let found = value(&partition, format!("k{number}").as_bytes()).await;
            assert_eq!(found.is_some(), number % 3 == 0, "k{number}");
        }
    });
}

/// A few among many, and one whose time was changed by a note.
#[test]
fn what_expires_among_what_stays_goes_in_a_while() {
    live(&world(DISK_BYTES), |reactor| async move {
        let partition = open(&reactor).await;
        for number in 0..300_u64 {
            let expiry = if number % 50 == 0 { Expiry::At(reactor.wall_ms() + 1000) } else { Expiry::Never };
            let (key, bytes) = (format!("k{number}"), [b'v'; 3000]);
            run(&partition, Store { expiry, ..Store::of(key.as_bytes()) }.bytes(&bytes)).await.unwrap();
        }
        let (container, expiry) = (ContainerId(0), Expiry::At(reactor.wall_ms() + 1000));
        let op = Op::SetExpiry { container, key: b"k7".to_vec(), expiry, condition: Condition::None };
        run(&partition, op).await.unwrap();
        reactor.sleep_ns(200_000_000_000).await;
        assert_eq!(keys(&partition).await, 300 - 7);
    });
}
