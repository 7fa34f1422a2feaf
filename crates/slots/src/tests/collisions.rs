//! Keys that share a name on the drive, and objects that are not what they should be.

use super::bench::{bytes, execute, formatted, get, open, run, set_op, try_open};
use crate::names::Names;
use crate::superblock::SUPERBLOCK_KEYS;
use crate::{DriveKey, OpenError, Slots};
use plimsoll_kv::Error;
use std::collections::BTreeMap;

#[test]
fn a_key_whose_name_another_has_is_refused_and_neither_is_told_for_the_other() {
    run(1, |reactor| async move {
        let medium = formatted(&reactor).await;
        let weak = || Some(Names::weak([1, 2, 3, 4], 6));
        let slots = Slots::open_named(&reactor, medium.connect(), weak()).await.unwrap();
        let mut stored = BTreeMap::new();
        for number in 0..200 {
            let key = format!("k{number}");
            match execute(&slots, set_op(&key, key.as_bytes())).await {
                Ok(_) => drop(stored.insert(key.clone(), key.into_bytes())),
                Err(Error::Unreadable(_)) => {}
                Err(error) => panic!("{error}"),
            }
        }
        assert!((20..=32).contains(&stored.len()), "{} of 32 names are taken", stored.len());
        let slots = Slots::open_named(&reactor, medium.connect(), weak()).await.unwrap();
        for number in 0..200 {
            let key = format!("k{number}");
            assert_eq!(bytes(&slots, &key).await, stored.get(&key).cloned());
        }
    });
}

#[test]
fn what_is_not_ours_is_not_opened_nor_formatted() {
    run(2, |reactor| async move {
        let medium = formatted(&reactor).await;
        medium.plant(b"short", b"anything");
        let refused = try_open(&reactor, &medium).await.err();
        assert_eq!(refused, Some(OpenError::Foreign("73686f7274".to_owned())));
        let options = super::bench::options(4000, 100);
        assert!(Slots::format(&reactor, medium.connect(), options).await.is_err());
        let medium = formatted(&reactor).await;
        medium.plant(&[7; 16], b"somebody else's bytes");
        assert!(matches!(try_open(&reactor, &medium).await.err(), Some(OpenError::Foreign(_))));
        let empty = crate::Medium::new(1 << 20, u64::MAX);
        assert_eq!(try_open(&reactor, &empty).await.err(), Some(OpenError::NotFormatted));
        empty.plant(&[7; 16], b"somebody else's bytes");
        assert!(matches!(try_open(&reactor, &empty).await.err(), Some(OpenError::Foreign(_))));
        let small = crate::Medium::new(50_000, u64::MAX);
        let format = Slots::format(&reactor, small.connect(), super::bench::options(100, 100)).await;
        assert!(matches!(format, Err(OpenError::TooSmall(50_000, _))));
    });
}

#[test]
fn either_copy_of_the_superblock_is_enough() {
    run(3, |reactor| async move {
        for copy in SUPERBLOCK_KEYS {
            let medium = formatted(&reactor).await;
            let slots = open(&reactor, &medium).await;
            execute(&slots, set_op("k", b"v")).await.unwrap();
            let before = get(&slots, "k").await.unwrap().version;
            assert!(medium.corrupt(&copy.0, |bytes| bytes[20] ^= 1));
            let slots = open(&reactor, &medium).await;
            assert_eq!(bytes(&slots, "k").await.as_deref(), Some(&b"v"[..]));
            execute(&slots, set_op("k", b"w")).await.unwrap();
            assert!(get(&slots, "k").await.unwrap().version.epoch > before.epoch);
            for copy in SUPERBLOCK_KEYS {
                medium.corrupt(&copy.0, |bytes| bytes[20] ^= 1);
            }
            assert!(matches!(try_open(&reactor, &medium).await.err(), Some(OpenError::Damaged(_))));
        }
    });
}

#[test]
fn a_newer_format_is_refused() {
    run(4, |reactor| async move {
        let medium = formatted(&reactor).await;
        let slots = open(&reactor, &medium).await;
        execute(&slots, set_op("k", b"v")).await.unwrap();
        let is_superblock = |key: &[u8]| SUPERBLOCK_KEYS.iter().any(|copy| copy.0[..] == *key);
        let key = medium.objects().into_keys().find(|key| !is_superblock(key)).unwrap();
        medium.corrupt(&key, |bytes| {
            bytes[4] = 2;
            let at = bytes.len() - 10;
            bytes[at] = 2;
            let tail = bytes.len() - 4;
            let crc = crate::object::crc32c(&bytes[tail - 12..tail]);
            bytes[tail..].copy_from_slice(&crc.to_le_bytes());
        });
        let key = DriveKey(key.try_into().unwrap());
        assert_eq!(try_open(&reactor, &medium).await.err(), Some(OpenError::Format(key, 2)));
    });
}
