//! Whole values by the short way: the same as by a request, for one flash read.

use crate::opening::{self, DATABASE, live, open_with, run, world};
use futures_util::future::join;
use plimsoll_flash::{Options, Partition};
use plimsoll_kv::{Device, Durability, Error, Expiry, Op, Output, Request, Result, Retrieved, Value};
use plimsoll_reactor::Work;
use std::cell::Cell;
use std::rc::Rc;

const SEGMENT_BYTES: u32 = 256 << 10;
const DISK: usize = 24 << 20;

async fn whole(partition: &Rc<Partition>, key: &str) -> Result<Retrieved> {
    partition.clone().retrieve_whole(DATABASE, key.as_bytes().into()).await
}

async fn requested(partition: &Rc<Partition>, key: &str) -> Result<Retrieved> {
    let op = Op::Retrieve { container: DATABASE, key: key.into(), range: None, pin: false };
    match run(partition, op).await? {
        Output::Found(item) => Ok(item.into()),
        other => panic!("a retrieve gave {other:?}"),
    }
}

#[test]
fn a_value_of_any_length_costs_one_flash_read() {
    live(&world(DISK), |reactor| async move {
        let partition = open_with(&reactor, SEGMENT_BYTES, Options::default()).await;
        for length in [0, 1, 511, 512, 513, 4000, 4096, 16_384, 30_000] {
            let (key, value) = (format!("k{length}"), vec![length as u8; length]);
            run(&partition, opening::store(key.as_str(), Value::from(value.clone()), Expiry::Never))
                .await
                .unwrap();
            // It is durable; until the frame is put away it is read from memory.
            reactor.sleep_ns(2_000_000_000).await;
            let before = partition.metrics().record_reads;
            let read = whole(&partition, &key).await.unwrap();
            assert_eq!(read.value, value);
            assert_eq!(partition.metrics().record_reads - before, 1, "{length} bytes");
            assert_eq!(Ok(read), requested(&partition, &key).await);
        }
        assert_eq!(whole(&partition, "absent").await, Err(Error::NotFound));
        assert_eq!(whole(&partition, &"k".repeat(70_000)).await, Err(Error::KeyTooLong));
    });
}

#[test]
fn what_has_expired_is_gone() {
    live(&world(DISK), |reactor| async move {
        let partition = open_with(&reactor, SEGMENT_BYTES, Options::default()).await;
        let at_ms = reactor.wall_ms() + 1000;
        let store = opening::store("k", Value::from(vec![1; 1000]), Expiry::At(at_ms));
        run(&partition, store).await.unwrap();
        assert_eq!(whole(&partition, "k").await.unwrap().item.expiry_ms, Some(at_ms));
        reactor.sleep_ns(1_500_000_000).await;
        assert_eq!(whole(&partition, "k").await, Err(Error::NotFound));
        assert_eq!(partition.metrics().expired, 1, "durably, before it was told");
    });
}

/// A store of the same key is under way, and its reply has not come: who reads the new value is not told
/// before the write is durable.
#[test]
fn what_a_crash_could_take_back_is_not_told() {
    live(&world(DISK), |reactor| async move {
        let partition = open_with(&reactor, SEGMENT_BYTES, Options::default()).await;
        let store = |byte| opening::store("k", Value::from(vec![byte; 1000]), Expiry::Never);
        run(&partition, store(0)).await.unwrap();
        for byte in 1..100 {
            let acknowledged = Rc::new(Cell::new(false));
            let (storing, tells) = (partition.clone(), acknowledged.clone());
            reactor.spawn(Work::Kv, async move {
                let request = Request::new(Durability::Group, store(byte));
                storing.execute(request).await.unwrap();
                tells.set(true);
            });
            reactor.sleep_ns(u64::from(byte) * 7_000).await;
            let read = whole(&partition, "k").await.unwrap().value;
            // The frame is durable in the same turn in which its writers are woken.
            reactor.yield_now().await;
            assert!(read[0] == byte - 1 || acknowledged.get(), "told before it was durable");
            while !acknowledged.get() {
                reactor.sleep_ns(100_000).await;
            }
            assert_eq!(whole(&partition, "k").await.unwrap().value, vec![byte; 1000]);
        }
    });
}

/// The one record that may be the key's is another's, and while it is read the key is stored: who asked first
/// is told what was there first (found by a reader of the code).
#[test]
fn who_asks_before_a_store_sees_nothing_of_it() {
    live(&world(DISK), |reactor| async move {
        let options = Options { fingerprint_bits: 1, ..Options::default() };
        let partition = open_with(&reactor, SEGMENT_BYTES, options).await;
        let store = |key: String| opening::store(key, Value::from(vec![1; 1000]), Expiry::Never);
        for number in 0..8 {
            run(&partition, store(format!("{{{number}}}other"))).await.unwrap();
        }
        reactor.sleep_ns(2_000_000_000).await;
        for number in 0..8 {
            let key = format!("{{{number}}}key");
            let (read, stored) = join(whole(&partition, &key), run(&partition, store(key.clone()))).await;
            assert!(stored.is_ok());
            assert_eq!(read, Err(Error::NotFound), "{key}");
            assert!(whole(&partition, &key).await.is_ok());
        }
    });
}
