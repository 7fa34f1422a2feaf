//! The objects that the memory of the index is for: what is refused, what goes on, what makes room.

use crate::opening::{DATABASE, DISK_BYTES, delete, live, open_with, run, store, world};
use plimsoll_flash::{OnFull, Options, Partition};
use plimsoll_kv::{Error, Expiry, Op, Result, Value};
use plimsoll_reactor::Reactor;
use std::rc::Rc;

const SEGMENT_BYTES: u32 = 64 << 10;
const OBJECTS_MAX: u64 = 1000;

async fn open(reactor: &Reactor, objects_max: u64, on_full: OnFull) -> Rc<Partition> {
    open_with(reactor, SEGMENT_BYTES, Options { on_full, objects_max, ..Options::default() }).await
}

async fn put(partition: &Rc<Partition>, number: u64) -> Result<()> {
    let op = store(format!("k{number}"), Value::from(vec![7; 100]), Expiry::Never);
    run(partition, op).await.map(|_| ())
}

async fn is_there(partition: &Rc<Partition>, number: u64) -> bool {
    let key = format!("k{number}").into_bytes();
    run(partition, Op::Retrieve { container: DATABASE, key, range: None, pin: false }).await.is_ok()
}

async fn fill(partition: &Rc<Partition>) {
    for number in 0..OBJECTS_MAX {
        put(partition, number).await.expect("there is memory for all of these");
    }
}

#[test]
fn without_memory_stores_are_refused_and_deletes_make_room() {
    live(&world(DISK_BYTES), |reactor| async move {
        let partition = open(&reactor, OBJECTS_MAX, OnFull::Error).await;
        fill(&partition).await;
        assert_eq!(put(&partition, OBJECTS_MAX).await, Err(Error::NoMemory));
        assert!(!is_there(&partition, OBJECTS_MAX).await && is_there(&partition, 0).await);
        run(&partition, delete(b"k0")).await.expect("deletes go on");
        put(&partition, OBJECTS_MAX).await.expect("there is memory for one");
        assert_eq!(put(&partition, OBJECTS_MAX + 1).await, Err(Error::NoMemory));
        let metrics = partition.metrics();
        assert_eq!((metrics.objects, metrics.objects_max, metrics.no_space), (OBJECTS_MAX, OBJECTS_MAX, 2));
        run(&partition, Op::Clear { container: DATABASE }).await.expect("a database is emptied");
        put(&partition, 0).await.expect("a store waits for what is being forgotten");
    });
}

#[test]
fn what_is_there_is_served_even_if_there_is_memory_for_less() {
    let world = world(DISK_BYTES);
    live(&world, |reactor| async move {
        let partition = open(&reactor, OBJECTS_MAX, OnFull::Error).await;
        fill(&partition).await;
        partition.close().await.expect("it stops in order");
    });
    live(&world, |reactor| async move {
        let partition = open(&reactor, OBJECTS_MAX / 2, OnFull::Error).await;
        assert_eq!(partition.metrics().objects, OBJECTS_MAX);
        assert!(is_there(&partition, OBJECTS_MAX - 1).await);
        assert_eq!(put(&partition, OBJECTS_MAX).await, Err(Error::NoMemory));
    });
}

#[test]
fn a_cache_evicts_for_want_of_memory() {
    live(&world(DISK_BYTES), |reactor| async move {
        let partition = open(&reactor, OBJECTS_MAX, OnFull::Evict).await;
        for number in 0..5 * OBJECTS_MAX {
            put(&partition, number).await.expect("there is room, always");
            let metrics = partition.metrics();
            assert!(metrics.objects <= OBJECTS_MAX, "{metrics:?}");
        }
        let metrics = partition.metrics();
        assert!(metrics.evicted >= 4 * OBJECTS_MAX && metrics.no_space == 0, "{metrics:?}");
        assert!(metrics.live_bytes * 4 < metrics.live_bytes_max, "the device is far from full: {metrics:?}");
        assert!(is_there(&partition, 5 * OBJECTS_MAX - 1).await, "the youngest stays");
        partition.check_accounts().unwrap();
    });
}
