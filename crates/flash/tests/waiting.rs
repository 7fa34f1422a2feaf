//! Stores that wait for space: on a device that is half full nobody waits in vain, and who has waited for too
//! long is refused.

use crate::opening::{self, DATABASE, live, open_with, run, world};
use plimsoll_flash::Options;
use plimsoll_kv::{Device, Durability, Error, Expiry, Op, Output, Request, Value};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

const SEGMENT_BYTES: u32 = 64 << 10;
const DISK: usize = 24 << 20;
const KEYS: u64 = 1000;
const CLIENTS: u64 = 400;
const STORES: u64 = 100;

fn store(number: u64) -> Op {
    opening::store(format!("k{number}"), Value::from(vec![1; 12_000]), Expiry::Never)
}

/// More stores waited than the space that had come free was for. Those that it was not for were told that
/// there is none, for at that instant nothing was left to clean.
#[test]
fn who_finds_others_quicker_waits_on() {
    live(&world(DISK), |reactor| async move {
        let options = Options { known_bytes: 64 << 10, ..Options::default() };
        let partition = open_with(&reactor, SEGMENT_BYTES, options).await;
        for number in 0..KEYS {
            run(&partition, store(number)).await.expect("there is room");
        }
        let metrics = partition.metrics();
        assert!(metrics.live_bytes < metrics.live_bytes_max * 6 / 10, "about half full: {metrics:?}");
        let left = Rc::new(Cell::new(CLIENTS));
        for client in 0..CLIENTS {
            let (partition, left) = (partition.clone(), left.clone());
            reactor.spawn(plimsoll_reactor::Work::Kv, async move {
                for step in 0..STORES {
                    let scattered = (client * STORES + step).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                    let number = (scattered >> 33) % KEYS;
                    run(&partition, store(number)).await.expect("it is half full");
                }
                left.set(left.get() - 1);
            });
        }
        while left.get() > 0 {
            reactor.sleep_ns(10_000_000).await;
        }
        assert!(partition.metrics().cleaned_segments > 50, "{:?}", partition.metrics());
        assert_eq!(partition.metrics().no_space, 0);
    });
}

/// Stores of half of the clients may wait for a millisecond. Those that are refused have changed nothing.
#[test]
fn who_has_waited_for_too_long_is_refused_and_has_changed_nothing() {
    live(&world(DISK), |reactor| async move {
        let options = Options { known_bytes: 64 << 10, ..Options::default() };
        let partition = open_with(&reactor, SEGMENT_BYTES, options).await;
        let (left, refused) = (Rc::new(Cell::new(CLIENTS)), Rc::new(Cell::new(0)));
        let stored: Rc<RefCell<BTreeMap<u64, u8>>> = Rc::default();
        for client in 0..CLIENTS {
            let (own, partition) = (reactor.clone(), partition.clone());
            let (left, refused, stored) = (left.clone(), refused.clone(), stored.clone());
            reactor.spawn(plimsoll_reactor::Work::Kv, async move {
                for step in 0..STORES {
                    let number = client * 2 + step % 2;
                    let value = Value::from(vec![step as u8; 12_000]);
                    let op = opening::store(format!("k{number}"), value, Expiry::Never);
                    let is_hasty = client % 2 == 0;
                    let deadline_ns = if is_hasty { own.now_ns() + 1_000_000 } else { 0 };
                    let request = Request { deadline_ns, ..Request::new(Durability::Sync, op) };
                    match partition.clone().execute(request).await {
                        Ok(_) => drop(stored.borrow_mut().insert(number, step as u8)),
                        Err(Error::Overloaded) if is_hasty => refused.set(refused.get() + 1),
                        Err(error) => panic!("{error}"),
                    }
                }
                left.set(left.get() - 1);
            });
        }
        while left.get() > 0 {
            reactor.sleep_ns(10_000_000).await;
        }
        let (refused, hasty) = (refused.get(), CLIENTS / 2 * STORES);
        assert!((1..hasty).contains(&refused), "{refused} of {hasty} are refused");
        for (number, last) in stored.take() {
            let (key, range) = (format!("k{number}").into_bytes(), None);
            let found = run(&partition, Op::Retrieve { container: DATABASE, key, range, pin: false }).await;
            let Ok(Output::Found(item)) = found else { panic!("k{number}: {found:?}") };
            assert_eq!((item.bytes.len(), item.bytes[0]), (12_000, last), "k{number}");
        }
    });
}
