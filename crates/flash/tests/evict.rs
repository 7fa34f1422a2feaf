//! A full device that makes room: what goes, what stays, and what a restart finds.

use crate::opening::{DISK_BYTES, delete, live, open_with, run, upload, world};
use plimsoll_flash::{OnFull, Options, Partition};
use plimsoll_kv::transaction::{Action, Held};
use plimsoll_kv::{Above, Condition, ContainerId, Device, Error, Expiry, Op, Output, UploadId, Value};
use plimsoll_reactor::{Reactor, Work};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

const DATABASE: ContainerId = ContainerId(0);
const SEGMENT_BYTES: u32 = 64 << 10;
const VALUE_BYTES: usize = 2000;
/// Several times what the device holds.
const MANY: u64 = 8000;

async fn open(reactor: &Reactor) -> Rc<Partition> {
    let options = Options { on_full: OnFull::Evict, ..Options::default() };
    open_with(reactor, SEGMENT_BYTES, options).await
}

fn store(key: &str, value: Value, expiry: Expiry, retain: bool) -> Op {
    let (key, want_previous) = (key.as_bytes().to_vec(), false);
    Op::Store {
        container: DATABASE,
        key,
        value,
        condition: Condition::None,
        expiry,
        retain,
        want_previous,
        form: None,
    }
}

async fn put(partition: &Rc<Partition>, key: &str) {
    let bytes = Value::from(key.as_bytes().repeat(VALUE_BYTES / key.len()));
    run(partition, store(key, bytes, Expiry::Never, false)).await.expect("there is room, always");
}

fn retrieve(key: &str, pin: bool) -> Op {
    Op::Retrieve { container: DATABASE, key: key.as_bytes().to_vec(), range: None, pin }
}

async fn is_there(partition: &Rc<Partition>, key: &str) -> bool {
    match run(partition, retrieve(key, false)).await {
        Ok(Output::Found(item)) => {
            let expected = key.as_bytes().repeat(VALUE_BYTES / key.len());
            assert!(item.upload.is_some() || item.bytes == expected, "{key} has another value");
            true
        }
        Err(Error::NotFound) => false,
        other => panic!("{other:?}"),
    }
}

/// Stores `count` keys that nobody reads.
async fn press(partition: &Rc<Partition>, name: &str, count: u64) {
    for number in 0..count {
        put(partition, &format!("{name}{number}")).await;
    }
}

/// The accounts agree, and the number of keys is that of a scan.
async fn check(partition: &Rc<Partition>) {
    loop {
        let evicted = partition.metrics().evicted;
        partition.check_accounts().unwrap();
        let stats = run(partition, Op::Stats { container: DATABASE }).await;
        let (Ok(Output::Stats(stats)), keys) = (stats, scanned(partition).await) else {
            panic!("keys are counted")
        };
        // Unless more went meanwhile.
        if partition.metrics().evicted == evicted {
            return assert_eq!(keys, stats.keys);
        }
    }
}

async fn scanned(partition: &Rc<Partition>) -> u64 {
    let (mut keys, mut cursor) = (BTreeSet::new(), 0);
    loop {
        let scan = Op::Scan { container: DATABASE, cursor, limit: 256 };
        let Ok(Output::Scanned(page)) = run(partition, scan).await else { panic!("a scan goes on") };
        keys.extend(page.keys);
        cursor = page.cursor;
        if cursor == 0 {
            return keys.len() as u64;
        }
    }
}

#[test]
fn stores_go_on_and_what_is_gone_stays_gone() {
    let world = world(DISK_BYTES);
    let gone: Rc<RefCell<BTreeSet<u64>>> = Rc::default();
    let seen = gone.clone();
    live(&world, move |reactor| {
        let seen = seen.clone();
        async move {
            let partition = open(&reactor).await;
            press(&partition, "k", MANY).await;
            check(&partition).await;
            let metrics = partition.metrics();
            assert!(metrics.evicted > MANY / 2 && metrics.no_space == 0, "{metrics:?}");
            assert!(metrics.evicted_bytes >= metrics.evicted * VALUE_BYTES as u64, "{metrics:?}");
            assert!(
                metrics.live_bytes * 10 > metrics.live_bytes_max * 8,
                "no more goes than must: {metrics:?}"
            );
            for number in 0..MANY {
                if !is_there(&partition, &format!("k{number}")).await {
                    seen.borrow_mut().insert(number);
                }
            }
            assert!(seen.borrow().iter().all(|number| *number < MANY - 100), "the youngest stay");
        }
    });
    live(&world, move |reactor| {
        let gone = gone.clone();
        async move {
            let partition = open(&reactor).await;
            check(&partition).await;
            assert!(partition.metrics().objects <= MANY - gone.borrow().len() as u64);
            let gone = gone.borrow().clone();
            for number in &gone {
                assert!(!is_there(&partition, &format!("k{number}")).await, "k{number} came back");
            }
            press(&partition, "again", 1000).await;
            check(&partition).await;
        }
    });
}

#[test]
fn nothing_goes_while_there_is_room() {
    live(&world(DISK_BYTES), |reactor| async move {
        let partition = open(&reactor).await;
        // Written over many times: all of the room comes from cleaning.
        for number in 0..9000_u64 {
            put(&partition, &format!("k{}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % 800)).await;
        }
        let metrics = partition.metrics();
        assert!(metrics.cleaned_segments > 0 && metrics.evicted == 0, "{metrics:?}");
        assert_eq!(metrics.objects, 800);
    });
}

#[test]
fn what_is_read_stays() {
    live(&world(DISK_BYTES), |reactor| async move {
        let partition = open(&reactor).await;
        let hot: Vec<String> = (0..100).map(|number| format!("hot{number}")).collect();
        for number in 0..MANY {
            // Hot keys stand among cold ones: it is not their segments that are spared.
            if number % 8 == 0 && number / 8 < 100 {
                put(&partition, &hot[(number / 8) as usize]).await;
            }
            put(&partition, &format!("cold{number}")).await;
            if number > 800 {
                is_there(&partition, &hot[(number % 100) as usize]).await;
            }
        }
        let mut left = 0;
        for key in &hot {
            left += usize::from(is_there(&partition, key).await);
        }
        assert!(left > 95, "{left} of 100 keys that are read are left");
        assert!(partition.metrics().objects < MANY / 2);
    });
}

#[test]
fn what_has_expired_goes_first() {
    live(&world(DISK_BYTES), |reactor| async move {
        let partition = open(&reactor).await;
        press(&partition, "old", 200).await;
        let soon = Expiry::At(reactor.wall_ms() + 1000);
        for number in 0..500 {
            let value = Value::from(vec![1; VALUE_BYTES]);
            run(&partition, store(&format!("brief{number}"), value, soon, false)).await.unwrap();
        }
        press(&partition, "more", 200).await;
        reactor.sleep_ns(2_000_000_000).await;
        press(&partition, "new", 550).await;
        let metrics = partition.metrics();
        assert!(metrics.expired > 300, "{metrics:?}");
        assert_eq!(metrics.evicted, 0, "the oldest are live, and stay: {metrics:?}");
        assert!(is_there(&partition, "old0").await);
    });
}

async fn long_value(partition: &Rc<Partition>, key: &str, parts: usize) -> UploadId {
    let bytes = vec![3; parts * partition.part_bytes()];
    let upload = upload(partition, key.as_bytes(), &bytes).await.expect("there is room, always");
    run(partition, store(key, Value::Upload(upload), Expiry::Never, false)).await.unwrap();
    upload
}

#[test]
fn long_values_go_as_a_whole_and_stay_while_they_are_read() {
    live(&world(DISK_BYTES), |reactor| async move {
        let partition = open(&reactor).await;
        // Each spans several segments: most segments hold parts alone.
        let pinned = long_value(&partition, "pinned", 40).await;
        run(&partition, retrieve("pinned", true)).await.unwrap();
        for number in 0..20 {
            long_value(&partition, &format!("long{number}"), 30).await;
        }
        partition.check_accounts().unwrap();
        assert!(is_there(&partition, "long19").await && !is_there(&partition, "long0").await);
        assert!(is_there(&partition, "pinned").await);
        for part in 0..40 {
            let read = Op::RetrievePart { key: b"pinned".to_vec(), upload: pinned, part, range: None };
            run(&partition, read).await.expect("it is being read");
        }
        run(&partition, Op::Unpin { key: b"pinned".to_vec(), upload: pinned }).await.unwrap();
        press(&partition, "k", 2 * MANY).await;
        assert!(!is_there(&partition, "pinned").await, "nobody reads it any more");
        let metrics = partition.metrics();
        assert!(metrics.no_space == 0 && metrics.evicted_bytes > 20 * 20 * 8000, "{metrics:?}");
        check(&partition).await;
    });
}

#[test]
fn what_transactions_hold_and_what_is_retained_stays() {
    live(&world(DISK_BYTES), |reactor| async move {
        let partition = open(&reactor).await;
        put(&partition, "held").await;
        put(&partition, "kept").await;
        let value = Value::from(b"kept".repeat(VALUE_BYTES / 4));
        run(&partition, store("kept", value, Expiry::Never, true)).await.unwrap();
        let held = Held { keys: vec![(DATABASE, b"held".to_vec())], everything: false };
        let hold = Op::Transaction { partition: 0, id: None, action: Action::Hold(held) };
        let Ok(Output::Held(id)) = run(&partition, hold).await else { panic!("a transaction holds") };
        press(&partition, "k", MANY).await;
        let action = Action::Retrieve { container: DATABASE, key: b"held".to_vec(), range: None, pin: false };
        let read = Op::Transaction { partition: 0, id: Some(id), action };
        run(&partition, read).await.expect("it is held");
        let release = Op::Transaction { partition: 0, id: Some(id), action: Action::Release };
        run(&partition, release).await.unwrap();
        let revert = Op::Revert { container: DATABASE, key: b"kept".to_vec() };
        run(&partition, revert).await.expect("a version is retained");
        press(&partition, "again", MANY).await;
        check(&partition).await;
    });
}

#[test]
fn more_than_can_be_made_free_is_refused_at_once() {
    live(&world(DISK_BYTES), |reactor| async move {
        let partition = open(&reactor).await;
        press(&partition, "k", 500).await;
        let begin = |length| Op::UploadBegin {
            container: DATABASE,
            key: b"huge".to_vec(),
            length,
            shared_bytes: 0,
            form: None,
        };
        assert_eq!(run(&partition, begin(8 << 20)).await, Err(Error::NoSpace));
        assert_eq!(partition.metrics().evicted, 0);
        // What fits when all else is gone is let in.
        let most = partition.metrics().live_bytes_max;
        run(&partition, begin(most * 9 / 10)).await.unwrap();
        assert!(partition.metrics().evicted > 300, "{:?}", partition.metrics());
    });
}

/// The only thing to evict stands where the log is being written: nothing comes that would make it go on.
#[test]
fn a_long_value_makes_room_for_the_next() {
    live(&world(DISK_BYTES), |reactor| async move {
        let partition = open(&reactor).await;
        let part_bytes = plimsoll_kv::Device::part_bytes(&*partition) as u64;
        let parts = (partition.metrics().live_bytes_max * 6 / 10 / part_bytes) as usize;
        for number in 0..4 {
            long_value(&partition, &format!("long{number}"), parts).await;
            assert!(is_there(&partition, &format!("long{number}")).await);
        }
        assert_eq!(partition.metrics().no_space, 0);
        check(&partition).await;
    });
}

/// The layer above: what it is told, and what it says was read.
#[derive(Default)]
struct Upper {
    evicted: RefCell<BTreeSet<Vec<u8>>>,
    asked: Cell<u64>,
}

impl Above for Upper {
    fn was_read(&self, container: ContainerId, key: &[u8]) -> bool {
        assert_eq!(container, DATABASE);
        self.asked.set(self.asked.get() + 1);
        key == b"hot"
    }

    fn evicted(&self, container: ContainerId, key: &[u8]) {
        assert_eq!(container, DATABASE);
        assert!(self.evicted.borrow_mut().insert(key.to_vec()), "told once");
    }
}

#[test]
fn the_layer_above_is_asked_and_told() {
    live(&world(DISK_BYTES), |reactor| async move {
        let partition = open(&reactor).await;
        let upper = Rc::new(Upper::default());
        let above: Rc<dyn Above> = upper.clone();
        partition.tell(Rc::downgrade(&above));
        // Its generation is another after this.
        run(&partition, Op::Clear { container: DATABASE }).await.unwrap();
        put(&partition, "hot").await;
        press(&partition, "k", MANY).await;
        assert!(is_there(&partition, "hot").await && upper.asked.get() > 0);
        assert_eq!(upper.evicted.borrow().len() as u64, partition.metrics().evicted);
        assert!(upper.evicted.borrow().contains(b"k0".as_slice()));
    });
}

/// Nothing can be evicted while a transaction holds everything, so there is room when it begins to.
#[test]
fn a_transaction_that_holds_everything_has_room() {
    live(&world(DISK_BYTES), |reactor| async move {
        let partition = open(&reactor).await;
        let pressing = Rc::new(Cell::new(true));
        for writer in 0..64 {
            let (partition, pressing) = (partition.clone(), pressing.clone());
            reactor.spawn(Work::Background, async move {
                for number in 0_u64.. {
                    if !pressing.get() {
                        break;
                    }
                    put(&partition, &format!("k{writer}-{number}")).await;
                }
            });
        }
        press(&partition, "full", MANY / 4).await;
        for round in 0..30 {
            let hold = |action, id| Op::Transaction { partition: 0, id, action };
            let everything = Action::Hold(Held::everything());
            let Ok(Output::Held(id)) = run(&partition, hold(everything, None)).await else {
                panic!("it holds")
            };
            let keys = scanned(&partition).await;
            let write = |number| {
                let key = format!("t{round}-{number}");
                store(&key, Value::from(key.as_bytes().repeat(VALUE_BYTES / key.len())), Expiry::Never, false)
            };
            reactor.sleep_ns(1_000_000).await;
            assert_eq!(scanned(&partition).await, keys, "nobody else is there");
            let commit = Action::Commit { writes: (0..20).map(write).collect() };
            run(&partition, hold(commit, Some(id))).await.expect("there is room, always");
        }
        pressing.set(false);
        assert_eq!(partition.metrics().no_space, 0);
        check(&partition).await;
    });
}

/// Seed 473: it was refused, as nothing was evicted for who waited for what the reader holds.
#[test]
fn a_long_value_has_room_while_somebody_reads_one_that_was_deleted() {
    live(&world(DISK_BYTES), |reactor| async move {
        let partition = open(&reactor).await;
        long_value(&partition, "read", 10).await;
        run(&partition, retrieve("read", true)).await.unwrap();
        run(&partition, delete(b"read")).await.unwrap();
        press(&partition, "k", MANY).await;
        let before = partition.metrics().evicted;
        long_value(&partition, "long", 60).await;
        assert!(is_there(&partition, "long").await && partition.metrics().evicted > before);
        check(&partition).await;
    });
}
