//! Bytes that rot: an error of their key, and nothing else.

use super::bench::{DB, execute, formatted, get, open, run, set_op, store_op, try_open};
use crate::OpenError;
use crate::superblock::SUPERBLOCK_KEYS;
use plimsoll_kv::{Device, Error, Op, Output, Value};
use proptest::prelude::*;
use std::collections::BTreeMap;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// Whatever byte rots while the drive is closed, or while it is open: each key gives what it holds, or an
    /// error, and at most one gives an error.
    #[test]
    fn a_byte_that_rots_is_an_error_of_one_key(
        object in any::<prop::sample::Index>(),
        at in any::<prop::sample::Index>(),
        bit in 0_u8..8,
        reopens in any::<bool>(),
    ) {
        run(1, move |reactor| async move {
            let medium = formatted(&reactor).await;
            let mut slots = open(&reactor, &medium).await;
            let mut model = BTreeMap::new();
            for number in 0..12_u8 {
                let (host, rider) = (format!("host{}", number % 6), format!("rider{}", number % 5));
                let batch = vec![set_op(&host, &[number; 40]), set_op(&rider, &[number; 4])];
                execute(&slots, Op::Batch(batch)).await.unwrap();
                model.insert(host, vec![number; 40]);
                model.insert(rider, vec![number; 4]);
            }
            let is_superblock = |key: &[u8]| SUPERBLOCK_KEYS.iter().any(|copy| copy.0[..] == *key);
            let mut objects: Vec<_> = medium.objects().into_iter().collect();
            objects.retain(|(key, _)| !is_superblock(key));
            let (key, bytes) = &objects[object.index(objects.len())];
            let at = at.index(bytes.len());
            medium.corrupt(key, |bytes| bytes[at] ^= 1 << bit);
            if reopens {
                slots = open(&reactor, &medium).await;
            }
            let mut damaged = 0;
            for (key, value) in &model {
                match get(&slots, key).await {
                    Ok(item) => assert_eq!(&item.bytes, value, "{key}"),
                    Err(Error::Unreadable(_)) => damaged += 1,
                    Err(error) => panic!("{key}: {error}"),
                }
            }
            assert!(damaged <= 1, "{damaged} keys are damaged");
            // What is not damaged can be written.
            let mut refused = 0;
            for key in model.keys() {
                refused += usize::from(execute(&slots, set_op(key, b"new")).await.is_err());
            }
            assert!(refused <= 1);
        });
    }
}

#[test]
fn what_cannot_be_told_from_damage_to_anything_is_not_opened() {
    run(2, |reactor| async move {
        let medium = formatted(&reactor).await;
        let slots = open(&reactor, &medium).await;
        execute(&slots, set_op("k", b"v")).await.unwrap();
        let is_superblock = |key: &[u8]| SUPERBLOCK_KEYS.iter().any(|copy| copy.0[..] == *key);
        let key = medium.objects().into_keys().find(|key| !is_superblock(key)).unwrap();
        medium.corrupt(&key, |bytes| bytes.iter_mut().skip(8).for_each(|byte| *byte ^= 1));
        assert!(matches!(try_open(&reactor, &medium).await.err(), Some(OpenError::Damaged(_))));
    });
}

#[test]
fn a_container_does_not_come_back_because_its_generation_rots() {
    run(3, |reactor| async move {
        let medium = formatted(&reactor).await;
        let slots = open(&reactor, &medium).await;
        execute(&slots, Op::Clear { container: DB }).await.unwrap();
        slots.idle().await;
        let is_superblock = |key: &[u8]| SUPERBLOCK_KEYS.iter().any(|copy| copy.0[..] == *key);
        let key = medium.objects().into_keys().find(|key| !is_superblock(key)).unwrap();
        medium.corrupt(&key, |bytes| bytes[30] ^= 1);
        let Some(OpenError::Damaged(why)) = try_open(&reactor, &medium).await.err() else { panic!("opened") };
        assert!(why.contains("how often container 0 was emptied"), "{why}");
    });
}

#[test]
fn a_part_that_is_missing_is_an_error_of_its_value() {
    run(4, |reactor| async move {
        let medium = formatted(&reactor).await;
        let slots = open(&reactor, &medium).await;
        let key = b"long".to_vec();
        let begin =
            Op::UploadBegin { container: DB, key: key.clone(), length: 250, shared_bytes: 0, form: None };
        let Ok(Output::Upload(upload)) = execute(&slots, begin).await else { panic!("an upload") };
        let before = medium.objects();
        for bytes in [vec![1; 100], vec![2; 100], vec![3; 50]] {
            execute(&slots, Op::UploadPart { upload, key: key.clone(), bytes }).await.unwrap();
        }
        let part = medium.objects().into_keys().find(|key| !before.contains_key(key)).unwrap();
        execute(&slots, store_op(DB, "long", Value::Upload(upload), false)).await.unwrap();
        execute(&slots, set_op("other", b"v")).await.unwrap();
        medium.corrupt(&part, |bytes| bytes[20] ^= 1);
        let range = Op::Retrieve { container: DB, key, range: Some((0, 250)), pin: false };
        assert!(matches!(execute(&slots, range.clone()).await, Err(Error::Unreadable(_))));
        let slots = open(&reactor, &medium).await;
        assert!(matches!(execute(&slots, range).await, Err(Error::Unreadable(_))));
        assert_eq!(get(&slots, "other").await.unwrap().bytes, b"v");
        assert!(!slots.lacks(DB, b"nothing"), "who knows what the damaged object is of");
    });
}
