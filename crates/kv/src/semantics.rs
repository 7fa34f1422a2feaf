//! What every operation means: tests that every device passes that stores keys itself.
//!
//! Role: the semantics of the trait, said once, for the memory device and for whoever does the same by other
//! means. Place on the path: none; only tests use this. Each runs on a simulated core, in virtual time.
//!
//! Never: durability, crashes, or what a device costs. Those have tests of their own.

use crate::completion::Output;
use crate::device::{Device, LocalFuture};
use crate::error::Error;
use crate::limits::{KEPT_HEAD_BYTES_MAX, KEY_BYTES_MAX};
use crate::memory::MemoryOptions;
use crate::request::{Condition, Expiry, Kept, Op, UploadId, Value};
use crate::testing::{DB, execute, get_each_way as get, run, store_op};
use crate::version::Version;
use plimsoll_reactor::Reactor;
use std::rc::Rc;

/// Says how many values in parts are pinned, and how many uploads are begun and not stored.
pub type Leaks = Box<dyn Fn() -> (usize, usize)>;

/// Makes an empty device.
pub type Make = fn(Reactor, MemoryOptions) -> LocalFuture<(Rc<dyn Device>, Leaks)>;

/// Short values and parts, so that little is much.
const SMALL: MemoryOptions = MemoryOptions { capacity_bytes: 1 << 20, value_bytes_max: 64, part_bytes: 16 };

fn store_with(key: &[u8], value: &[u8], change: impl FnOnce(&mut Condition, &mut Expiry, &mut bool)) -> Op {
    let mut op = store_op(key, value);
    if let Op::Store { condition, expiry, retain, .. } = &mut op {
        change(condition, expiry, retain);
    }
    op
}

async fn version(memory: &Rc<dyn Device>, key: &[u8]) -> Version {
    get(memory, key).await.unwrap().version
}

async fn upload(m: &Rc<dyn Device>, key: &[u8], value: &[u8]) -> UploadId {
    let begin = Op::UploadBegin {
        container: DB,
        key: key.to_vec(),
        length: value.len() as u64,
        shared_bytes: 0,
        form: None,
    };
    let Ok(Output::Upload(upload)) = execute(m, begin).await else { panic!() };
    for part in value.chunks(16) {
        let op = Op::UploadPart { upload, key: key.to_vec(), bytes: part.to_vec() };
        execute(m, op).await.unwrap();
    }
    upload
}

fn store_upload(key: &[u8], upload: UploadId) -> Op {
    let mut op = store_op(key, b"");
    if let Op::Store { value, .. } = &mut op {
        *value = Value::Upload(upload);
    }
    op
}

/// Conditions of stores and deletes.
pub fn conditions_decide(make: Make) {
    run(move |reactor, _| async move {
        let (m, _) = make(reactor.clone(), SMALL).await;
        let with = |condition| store_with(b"k", b"v", |c, _, _| *c = condition);
        assert_eq!(execute(&m, with(Condition::MustExist)).await, Err(Error::NotFound));
        assert_eq!(execute(&m, with(Condition::IfVersion(Version::ZERO))).await, Err(Error::NotFound));
        assert!(execute(&m, with(Condition::MustNotExist)).await.is_ok());
        assert_eq!(execute(&m, with(Condition::MustNotExist)).await, Err(Error::Exists));
        let first = version(&m, b"k").await;
        assert!(execute(&m, with(Condition::IfVersion(first))).await.is_ok());
        assert_eq!(execute(&m, with(Condition::IfVersion(first))).await, Err(Error::VersionMismatch));
        assert!(version(&m, b"k").await > first);
        let delete = |condition| Op::Delete { container: DB, key: b"k".to_vec(), condition };
        assert_eq!(execute(&m, delete(Condition::IfVersion(first))).await, Err(Error::VersionMismatch));
        assert!(matches!(execute(&m, delete(Condition::None)).await, Ok(Output::Deleted(_))));
        assert_eq!(execute(&m, delete(Condition::None)).await, Err(Error::NotFound));
    });
}

/// Expiry, and a clock that is set back.
pub fn expired_keys_are_gone_and_never_come_back(make: Make) {
    run(move |reactor, world| async move {
        let (m, _) = make(reactor.clone(), SMALL).await;
        let at_ms = reactor.wall_ms() + 1000;
        execute(&m, store_with(b"k", b"v", |_, e, _| *e = Expiry::At(at_ms))).await.unwrap();
        execute(&m, store_with(b"k", b"w", |_, e, _| *e = Expiry::Keep)).await.unwrap();
        assert_eq!(get(&m, b"k").await.unwrap().expiry_ms, Some(at_ms));
        reactor.sleep_ns(1_000_000_000).await;
        assert_eq!(get(&m, b"k").await, Err(Error::NotFound));
        world.step_wall_ms(-60_000);
        assert_eq!(get(&m, b"k").await, Err(Error::NotFound));
        execute(&m, store_with(b"k", b"x", |c, e, _| (*c, *e) = (Condition::MustNotExist, Expiry::Keep)))
            .await
            .unwrap();
        assert_eq!(get(&m, b"k").await.unwrap().expiry_ms, None);
        let set = Op::SetExpiry {
            container: DB,
            key: b"k".to_vec(),
            expiry: Expiry::At(u64::MAX),
            condition: Condition::None,
        };
        let Ok(Output::ExpirySet(item)) = execute(&m, set).await else { panic!() };
        assert_eq!((item.expiry_ms, item.length), (Some(u64::MAX), 1));
    });
}

/// Retain, revert, release.
pub fn retained_versions_come_back_or_go(make: Make) {
    run(move |reactor, _| async move {
        let (m, _) = make(reactor.clone(), SMALL).await;
        let key = || b"k".to_vec();
        execute(&m, store_op(b"k", b"old")).await.unwrap();
        let old = version(&m, b"k").await;
        execute(&m, store_with(b"k", b"new", |_, _, r| *r = true)).await.unwrap();
        execute(&m, Op::Revert { container: DB, key: key() }).await.unwrap();
        let item = get(&m, b"k").await.unwrap();
        assert_eq!((item.version, item.bytes.as_slice()), (old, &b"old"[..]));
        execute(&m, store_with(b"k", b"new", |_, _, r| *r = true)).await.unwrap();
        execute(&m, Op::Release { container: DB, key: key() }).await.unwrap();
        assert_eq!(
            execute(&m, Op::Revert { container: DB, key: key() }).await,
            Err(Error::Invalid("no version is retained"))
        );
        assert_eq!(get(&m, b"k").await.unwrap().bytes, b"new");
        let Ok(Output::Stats(stats)) = execute(&m, Op::Stats { container: DB }).await else { panic!() };
        assert_eq!((stats.keys, stats.expiring_keys, stats.bytes), (1, 0, 4));
    });
}

/// Batches that fail, and that do not.
pub fn a_batch_happens_whole_or_not_at_all(make: Make) {
    run(move |reactor, _| async move {
        let (m, _) = make(reactor.clone(), SMALL).await;
        execute(&m, store_op(b"a", b"1")).await.unwrap();
        let before = version(&m, b"a").await;
        let delete = |key: &[u8]| Op::Delete { container: DB, key: key.to_vec(), condition: Condition::None };
        let failing = Op::Batch(vec![store_op(b"a", b"2"), store_op(b"b", b"2"), delete(b"absent")]);
        assert_eq!(execute(&m, failing).await, Err(Error::NotFound));
        assert_eq!(version(&m, b"a").await, before);
        assert_eq!(get(&m, b"b").await, Err(Error::NotFound));
        let passing = Op::Batch(vec![store_op(b"b", b"2"), delete(b"a")]);
        let Ok(Output::Batch(outputs)) = execute(&m, passing).await else { panic!() };
        assert_eq!(outputs.len(), 2);
        assert_eq!(get(&m, b"a").await, Err(Error::NotFound));
        let nested = Op::Batch(vec![store_op(b"c", b"1"), Op::Sync]);
        assert!(matches!(execute(&m, nested).await, Err(Error::Invalid(_))));
        assert_eq!(get(&m, b"c").await, Err(Error::NotFound));
    });
}

/// Uploads and pins.
pub fn values_in_parts_are_pinned_while_they_are_read(make: Make) {
    run(move |reactor, _| async move {
        let (m, leaks) = make(reactor.clone(), SMALL).await;
        let value: Vec<u8> = (0..100).collect();
        let id = upload(&m, b"k", &value).await;
        assert_eq!(get(&m, b"k").await, Err(Error::NotFound));
        execute(&m, store_upload(b"k", id)).await.unwrap();
        let pin = Op::Retrieve { container: DB, key: b"k".to_vec(), range: None, pin: true };
        let Ok(Output::Found(item)) = execute(&m, pin).await else { panic!() };
        assert_eq!((item.length, item.bytes.len(), item.upload), (100, 0, Some(id)));
        execute(&m, store_op(b"k", b"other")).await.unwrap();
        let mut read = Vec::new();
        for part in 0..7 {
            let op = Op::RetrievePart { upload: id, key: b"k".to_vec(), part, range: None };
            let Ok(Output::Found(item)) = execute(&m, op).await else { panic!() };
            read.extend(item.bytes);
        }
        assert_eq!(read, value);
        execute(&m, Op::Unpin { upload: id, key: b"k".to_vec() }).await.unwrap();
        assert_eq!(leaks(), (0, 0));
        let late = Op::RetrievePart { upload: id, key: b"k".to_vec(), part: 0, range: None };
        assert!(matches!(execute(&m, late).await, Err(Error::Invalid(_))));
    });
}

/// Ranges of whole values and of values in parts.
pub fn ranges_give_as_much_as_there_is(make: Make) {
    run(move |reactor, _| async move {
        let (m, leaks) = make(reactor.clone(), SMALL).await;
        execute(&m, store_op(b"whole", b"0123456789")).await.unwrap();
        let value: Vec<u8> = (0..100).collect();
        let id = upload(&m, b"parts", &value).await;
        execute(&m, store_upload(b"parts", id)).await.unwrap();
        for (key, range, expected) in [
            (&b"whole"[..], (2, 3), &b"234"[..]),
            (b"whole", (8, 100), b"89"),
            (b"whole", (20, u64::MAX), b""),
            (b"parts", (15, 3), &[15, 16, 17]),
            (b"parts", (98, 9), &[98, 99]),
        ] {
            let op = Op::Retrieve { container: DB, key: key.to_vec(), range: Some(range), pin: false };
            let Ok(Output::Found(item)) = execute(&m, op).await else { panic!() };
            assert_eq!(item.bytes, expected);
        }
        assert_eq!(leaks(), (0, 0));
    });
}

/// Parts of wrong lengths and for other keys; uploads that fail and are given up.
pub fn uploads_keep_their_rules(make: Make) {
    run(move |reactor, _| async move {
        let (m, leaks) = make(reactor.clone(), SMALL).await;
        let begin =
            Op::UploadBegin { container: DB, key: b"k".to_vec(), length: 20, shared_bytes: 0, form: None };
        let Ok(Output::Upload(id)) = execute(&m, begin).await else { panic!() };
        let part = |key: &[u8], bytes: usize| Op::UploadPart {
            upload: id,
            key: key.to_vec(),
            bytes: vec![0; bytes],
        };
        assert!(execute(&m, part(b"k", 15)).await.is_err());
        assert!(execute(&m, part(b"other", 16)).await.is_err());
        execute(&m, part(b"k", 16)).await.unwrap();
        assert!(execute(&m, store_upload(b"k", id)).await.is_err());
        assert!(execute(&m, part(b"k", 5)).await.is_err());
        execute(&m, part(b"k", 4)).await.unwrap();
        let failing = Op::Batch(vec![store_upload(b"k", id), Op::Sync]);
        assert!(execute(&m, failing).await.is_err());
        execute(&m, Op::UploadAbort { upload: id, key: b"k".to_vec() }).await.unwrap();
        assert!(execute(&m, store_upload(b"k", id)).await.is_err());
        assert_eq!(leaks(), (0, 0));
        let long = Op::UploadBegin {
            container: DB,
            key: b"k".to_vec(),
            length: u64::MAX,
            shared_bytes: 0,
            form: None,
        };
        assert_eq!(execute(&m, long).await, Err(Error::ValueTooLong));
    });
}

/// Pages of a listing.
pub fn listing_is_in_order_and_resumes(make: Make) {
    run(move |reactor, _| async move {
        let (m, _) = make(reactor.clone(), SMALL).await;
        for n in (0..100).rev() {
            execute(&m, store_op(format!("p{n:03}").as_bytes(), b"")).await.unwrap();
            execute(&m, store_op(format!("q{n:03}").as_bytes(), b"")).await.unwrap();
        }
        let (mut after, mut all) = (None, Vec::new());
        loop {
            let op = Op::List { container: DB, prefix: b"p".to_vec(), after: after.clone(), limit: 7 };
            let Ok(Output::Listed(page)) = execute(&m, op).await else { panic!() };
            assert!(page.keys.len() <= 7);
            all.extend(page.keys);
            if !page.more {
                break;
            }
            after = all.last().cloned();
        }
        assert_eq!(all.len(), 100);
        assert!(all.is_sorted() && all.iter().all(|key| key.starts_with(b"p")));
    });
}

/// Pages of a scan, while others come and go.
pub fn a_scan_gives_every_key_that_stays(make: Make) {
    run(move |reactor, _| async move {
        let (m, _) = make(reactor.clone(), SMALL).await;
        for n in 0..500 {
            execute(&m, store_op(format!("k{n}").as_bytes(), b"")).await.unwrap();
        }
        let (mut cursor, mut seen, mut pages) = (0, std::collections::BTreeSet::new(), 0);
        loop {
            let op = Op::Scan { container: DB, cursor, limit: 10 };
            let Ok(Output::Scanned(page)) = execute(&m, op).await else { panic!() };
            seen.extend(page.keys);
            cursor = page.cursor;
            pages += 1;
            // Others come and go meanwhile.
            execute(&m, store_op(format!("x{pages}").as_bytes(), b"")).await.unwrap();
            let gone = format!("x{}", pages - 3).into_bytes();
            let _ = execute(&m, Op::Delete { container: DB, key: gone, condition: Condition::None }).await;
            if cursor == 0 {
                break;
            }
        }
        assert!((0..500).all(|n| seen.contains(format!("k{n}").as_bytes())));
        assert!((50..60).contains(&pages), "{pages} pages");
    });
}

/// Values that other keys are given; devices that do not keep them refuse.
pub fn a_value_is_kept_under_another_key(make: Make) {
    run(move |reactor, _| async move {
        let (m, _) = make(reactor.clone(), SMALL).await;
        let keeps_told = |keeper: &[u8], head: &[u8], key: &[u8], bytes: Option<u64>| {
            let mut op = store_op(keeper, b"");
            if let Op::Store { value, .. } = &mut op {
                *value = Value::Kept(Kept { head: head.to_vec(), bytes, container: DB, key: key.to_vec() });
            }
            op
        };
        let keeps = |keeper: &[u8], head: &[u8], key: &[u8]| keeps_told(keeper, head, key, None);
        execute(&m, store_op(b"k", b"old")).await.unwrap();
        if !m.keeps() {
            assert!(matches!(execute(&m, keeps(b"g", b"", b"k")).await, Err(Error::Unsupported(_))));
            return;
        }
        assert_eq!(execute(&m, keeps(b"g", b"", b"absent")).await, Ok(Output::Done));
        assert_eq!(get(&m, b"g").await, Err(Error::NotFound));
        let long = keeps(b"g", &[0; KEPT_HEAD_BYTES_MAX + 1], b"k");
        assert!(matches!(execute(&m, long).await, Err(Error::Invalid(_))));
        assert!(matches!(execute(&m, keeps_told(b"g", b"", b"k", Some(4))).await, Err(Error::Invalid(_))));
        assert!(execute(&m, keeps_told(b"g", b"", b"k", Some(3))).await.is_ok());
        let mut retaining = keeps(b"g", b"", b"k");
        if let Op::Store { retain, .. } = &mut retaining {
            *retain = true;
        }
        assert!(matches!(execute(&m, retaining).await, Err(Error::Invalid(_))));
        // What it held before the batch is meant, wherever that stands in it.
        let batch = Op::Batch(vec![store_op(b"k", b"new"), keeps(b"g", b"head:", b"k")]);
        let Ok(Output::Batch(outputs)) = execute(&m, batch).await else { panic!() };
        assert_eq!(outputs.len(), 2);
        assert_eq!(get(&m, b"g").await.unwrap().bytes, b"head:old");
        assert_eq!(get(&m, b"k").await.unwrap().bytes, b"new");
        let delete = |key: &[u8]| Op::Delete { container: DB, key: key.to_vec(), condition: Condition::None };
        execute(&m, Op::Batch(vec![delete(b"k"), keeps(b"h", b"", b"k")])).await.unwrap();
        assert_eq!(get(&m, b"k").await, Err(Error::NotFound));
        assert_eq!(get(&m, b"h").await.unwrap().bytes, b"new");
        let whole = get(&m, b"g").await.unwrap();
        assert_eq!((whole.length, whole.bytes.len()), (8, 8));
        execute(&m, delete(b"g")).await.unwrap();
        assert_eq!(get(&m, b"g").await, Err(Error::NotFound));
    });
}

/// What is too long.
pub fn limits_are_told(make: Make) {
    run(move |reactor, _| async move {
        let (m, _) = make(reactor.clone(), SMALL).await;
        assert_eq!(execute(&m, store_op(&[0; KEY_BYTES_MAX + 1], b"")).await, Err(Error::KeyTooLong));
        assert_eq!(execute(&m, store_op(b"k", &[0; 65])).await, Err(Error::ValueTooLong));
        let list = Op::List { container: DB, prefix: vec![], after: None, limit: 0 };
        assert!(matches!(execute(&m, list).await, Err(Error::Invalid(_))));
        assert_eq!((m.value_bytes_max(), m.part_bytes()), (64, 16));
    });
}

/// Makes a test of each.
#[macro_export]
macro_rules! device_semantics {
    ($make:expr) => {
        #[test]
        fn conditions_decide() {
            $crate::semantics::conditions_decide($make);
        }
        #[test]
        fn expired_keys_are_gone_and_never_come_back() {
            $crate::semantics::expired_keys_are_gone_and_never_come_back($make);
        }
        #[test]
        fn retained_versions_come_back_or_go() {
            $crate::semantics::retained_versions_come_back_or_go($make);
        }
        #[test]
        fn a_batch_happens_whole_or_not_at_all() {
            $crate::semantics::a_batch_happens_whole_or_not_at_all($make);
        }
        #[test]
        fn values_in_parts_are_pinned_while_they_are_read() {
            $crate::semantics::values_in_parts_are_pinned_while_they_are_read($make);
        }
        #[test]
        fn ranges_give_as_much_as_there_is() {
            $crate::semantics::ranges_give_as_much_as_there_is($make);
        }
        #[test]
        fn uploads_keep_their_rules() {
            $crate::semantics::uploads_keep_their_rules($make);
        }
        #[test]
        fn listing_is_in_order_and_resumes() {
            $crate::semantics::listing_is_in_order_and_resumes($make);
        }
        #[test]
        fn a_scan_gives_every_key_that_stays() {
            $crate::semantics::a_scan_gives_every_key_that_stays($make);
        }
        #[test]
        fn a_value_is_kept_under_another_key() {
            $crate::semantics::a_value_is_kept_under_another_key($make);
        }
        #[test]
        fn limits_are_told() {
            $crate::semantics::limits_are_told($make);
        }
    };
}
