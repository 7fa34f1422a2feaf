//! The array over members in memory: what it stores where, what it does when they fail, and against a single
//! device that does the same.

mod behind;
mod bench;
mod beside;
mod bring_back;
mod claims;
mod company;
mod custom;
mod described;
mod failures;
mod filled;
mod filling;
mod hindered;
mod histories;
mod model;
mod named;
mod opening;
mod pace;
mod packing;
mod parts;
mod picker;
mod pins;
mod room;
mod scans;
mod scripts;
mod scrubbed;
mod sets;
mod shards;
mod sizes;
mod slow;
mod ssd;
mod stateless;
mod together;
mod undone;
mod unfinished;
mod worlds;

use crate::placement::{self, container};
use bench::{Bench, DB, bytes, del, edit, execute, get, keys, retrieve_op, run, set, store_op};
use plimsoll_kv::{Condition, Deleted, Device, Edit, Error, Expiry, Op, Output, Value};

#[test]
fn each_copy_stands_where_the_hash_says_behind_a_header_that_says_which_it_is() {
    run(async |reactor| {
        let bench = Bench::new(&reactor, 5, 3);
        let array = bench.open().await;
        set(&array, "a key", b"a value").await.unwrap();
        let primary = placement::primary(b"a key", 5);
        for role in 0..5 {
            let member = &bench.below[(primary + role) % 5];
            let stored = execute(member, retrieve_op(container(DB, role.min(2)), "a key")).await;
            if role >= 3 {
                assert_eq!(stored, Err(Error::NotFound), "no copy here");
                continue;
            }
            let Ok(Output::Found(item)) = stored else { panic!("no copy in role {role}") };
            assert_eq!(&item.bytes[32..], b"a value");
            assert_eq!((item.bytes[0], item.bytes[4], item.bytes[6]), (0xd1, 3, role as u8));
        }
        let item = get(&array, "a key").await.unwrap();
        assert_eq!((item.bytes.as_slice(), item.length), (&b"a value"[..], 7));
        assert_eq!(keys(&array).await, 1, "copies are no keys");
    });
}

#[test]
fn what_a_device_does_the_array_does() {
    run(async |reactor| {
        let array = Bench::new(&reactor, 4, 2).open().await;
        assert_eq!(get(&array, "k").await, Err(Error::NotFound));
        let Ok(Output::Stored { version: first, .. }) = set(&array, "k", b"1").await else {
            panic!("stored")
        };
        assert_eq!(get(&array, "k").await.unwrap().version, first, "the version that the store told");
        let Ok(Output::Edited { bytes: sum, .. }) = edit(&array, "k", Edit::Add(41)).await else {
            panic!("edited")
        };
        assert_eq!(sum, b"42");
        assert!(edit(&array, "k", Edit::Append(b"!".to_vec())).await.is_ok());
        assert_eq!(bytes(&array, "k").await.as_deref(), Some(&b"42!"[..]));
        let conditional = |condition| match store_op("k", Value::from(b"new".to_vec())) {
            Op::Store { container, key, value, expiry, retain, .. } => Op::Store {
                container,
                key,
                value,
                condition,
                expiry,
                retain,
                want_previous: true,
                form: None,
            },
            _ => unreachable!(),
        };
        assert_eq!(execute(&array, conditional(Condition::MustNotExist)).await, Err(Error::Exists));
        assert_eq!(
            execute(&array, conditional(Condition::IfVersion(first))).await,
            Err(Error::VersionMismatch)
        );
        let now = get(&array, "k").await.unwrap().version;
        match execute(&array, conditional(Condition::IfVersion(now))).await {
            Ok(Output::Stored { previous: Some(previous), .. }) => assert_eq!(previous.bytes, b"42!"),
            other => panic!("{other:?}"),
        }
        let range = Op::Retrieve { container: DB, key: b"k".to_vec(), range: Some((1, 5)), pin: false };
        assert!(matches!(execute(&array, range).await, Ok(Output::Found(item)) if item.bytes == b"ew"));
        let version = get(&array, "k").await.unwrap().version;
        assert_eq!(del(&array, "k").await, Ok(Output::Deleted(Deleted::Version(version))));
        assert_eq!(del(&array, "k").await, Err(Error::NotFound));
        assert_eq!(keys(&array).await, 0);
        assert_eq!(set(&array, "k", &[0; 1001]).await, Err(Error::ValueTooLong));
        assert_eq!(array.value_bytes_max(), 1000);
    });
}

#[test]
fn keys_expire_by_one_clock_and_their_time_can_be_changed() {
    run(async |reactor| {
        let array = Bench::new(&reactor, 3, 3).open().await;
        set(&array, "k", b"v").await.unwrap();
        let at = |ms| Op::SetExpiry {
            container: DB,
            key: b"k".to_vec(),
            expiry: Expiry::At(ms),
            condition: Condition::None,
        };
        let soon = reactor.wall_ms() + 50;
        let Ok(Output::ExpirySet(item)) = execute(&array, at(soon)).await else { panic!("set") };
        assert_eq!((item.expiry_ms, item.length), (Some(soon), 1));
        assert_eq!(get(&array, "k").await.unwrap().version, item.version);
        // An edit keeps nothing unless it is told to.
        reactor.sleep_ns(49_000_000).await;
        assert!(get(&array, "k").await.is_ok());
        reactor.sleep_ns(2_000_000).await;
        assert_eq!(get(&array, "k").await, Err(Error::NotFound));
        assert_eq!(execute(&array, at(soon + 1000)).await, Err(Error::NotFound));
    });
}

#[test]
fn lists_and_scans_tell_each_key_of_all_members() {
    run(async |reactor| {
        let array = Bench::new(&reactor, 5, 3).open().await;
        let names: Vec<String> = (0..100).map(|number| format!("key:{number:03}")).collect();
        for name in &names {
            set(&array, name, b"v").await.unwrap();
        }
        let mut listed = Vec::new();
        loop {
            let after = listed.last().cloned();
            let op = Op::List { container: DB, prefix: b"key:".to_vec(), after, limit: 7 };
            let Ok(Output::Listed(page)) = execute(&array, op).await else { panic!("listed") };
            listed.extend(page.keys);
            if !page.more {
                break;
            }
        }
        assert_eq!(listed, names.iter().map(|name| name.as_bytes().to_vec()).collect::<Vec<_>>());
        let (mut scanned, mut cursor) = (std::collections::BTreeSet::new(), 0);
        loop {
            let op = Op::Scan { container: DB, cursor, limit: 9 };
            let Ok(Output::Scanned(page)) = execute(&array, op).await else { panic!("scanned") };
            scanned.extend(page.keys);
            cursor = page.cursor;
            if cursor == 0 {
                break;
            }
        }
        assert_eq!(scanned.into_iter().collect::<Vec<_>>(), listed);
        execute(&array, Op::Clear { container: DB }).await.unwrap();
        assert_eq!(keys(&array).await, 0);
        assert_eq!(bytes(&array, "key:007").await, None);
    });
}

#[test]
fn what_an_array_does_not_do_it_refuses_in_words() {
    run(async |reactor| {
        let array = Bench::new(&reactor, 2, 2).open().await;
        let far = plimsoll_kv::ContainerId(placement::ARRAY_CONTAINERS);
        let op = Op::Exist { container: far, key: b"k".to_vec() };
        assert!(matches!(execute(&array, op).await, Err(Error::Invalid(_))));
        assert!(matches!(execute(&array, Op::Batch(Vec::new())).await, Err(Error::Unsupported(_))));
        let op = Op::Release { container: DB, key: b"k".to_vec() };
        assert!(matches!(execute(&array, op).await, Err(Error::Unsupported(_))));
    });
}
