//! What has expired, and when.

use super::opening::{DISK_BYTES, live, open, run, world};
use super::{Store, get, value};
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
