//! What a description tells of packed values.

use super::bench::{Bench, bytes, execute, run, set, wish_op};
use super::custom::describe;
use super::parts::long;
use crate::{Array, Mechanism, placement};
use futures_util::future::join_all;
use plimsoll_kv::{Description, Error, Form, Holds, Value, Version};
use std::collections::BTreeMap;
use std::rc::Rc;

const KEYS: usize = 48;
const FORM: Form = Form::Packed { data: 4, parities: 2 };

fn key(number: usize) -> String {
    format!("key:{number}")
}

fn holds(told: &Description) -> Vec<Holds> {
    told.pieces.iter().map(|piece| piece.holds).collect()
}

/// What is told of each key that is in a set.
async fn packed(array: &Rc<Array>) -> BTreeMap<String, Description> {
    let mut packed = BTreeMap::new();
    for number in 0..KEYS {
        let told = describe(array, &key(number)).await.unwrap();
        assert_eq!((told.form, told.length, told.pieces.len()), (FORM, 100 + number as u64, 3));
        let is_in = told.set.is_some();
        assert_eq!(told.code, is_in.then_some("Reed-Solomon, Cauchy"));
        if is_in {
            packed.insert(key(number), told);
        } else {
            assert_eq!(holds(&told), [Holds::Copy; 3]);
        }
    }
    packed
}

#[test]
fn a_packed_value_its_stubs_and_its_set_are_told_as_they_are() {
    run(async |reactor| {
        let policy = Mechanism::Packing { data: 4, parities: 2 }.into();
        let bench = Bench::by_size(&reactor, 6, &[policy]);
        let array = bench.open().await;
        set(&array, &key(0), &long(100, 1)).await.unwrap();
        let alone = describe(&array, &key(0)).await.unwrap();
        assert_eq!((holds(&alone), alone.set.clone(), alone.code), (vec![Holds::Copy; 3], None, None));
        let checksum = alone.pieces[0].read.as_ref().unwrap().checksum;
        let each = (0..KEYS).map(async |number| {
            set(&array, &key(number), &long(100 + number, 1)).await.unwrap();
        });
        join_all(each).await;
        while array.status().packing_waiting > 4 {
            reactor.sleep_ns(10_000_000).await;
        }
        reactor.sleep_ns(500_000_000).await;
        assert_eq!(array.status().sets_loose, 0);
        let before = packed(&array).await;
        assert!(before.len() >= KEYS - 4, "{}", before.len());
        let mut sets: BTreeMap<Version, Vec<String>> = BTreeMap::new();
        for (key, told) in &before {
            let (set, own) = (told.set.as_ref().unwrap(), &told.pieces[0]);
            sets.entry(set.name).or_default().push(own.device.clone());
            assert_eq!(holds(told), [Holds::Value, Holds::Stub, Holds::Stub], "{key}");
            let read = own.read.clone().unwrap();
            assert_eq!(read.bytes, told.length);
            assert!(*key != self::key(0) || read.checksum == checksum, "of the value itself");
            let stubs: Vec<_> = told.pieces[1..].iter().map(|stub| stub.read.clone().unwrap()).collect();
            assert_eq!((stubs[0].bytes, stubs[0]), (16, stubs[1]));
            assert_eq!(set.parities.len(), 2);
            assert!(!set.parities.contains(&own.device), "{told:?}");
        }
        for devices in sets.values() {
            let (count, mut devices) = (devices.len(), devices.clone());
            devices.sort_unstable();
            devices.dedup();
            assert!((1..=4).contains(&count) && devices.len() == count, "values of one set on {devices:?}");
        }

        // Without its device a value is told from its stubs, and without one of these from the other.
        let name = before.keys().next().unwrap();
        let (told, primary) = (&before[name], placement::primary(name.as_bytes(), 6));
        for (role, out) in [0, 1].map(|role| (role, (primary + role) % 6)) {
            array.take_out(out, "for a test");
            reactor.sleep_ns(500_000_000).await;
            let without = describe(&array, name).await.unwrap();
            assert_eq!((&without.set, holds(&without)), (&told.set, holds(told)), "without role {role}");
            let lost = Err(Error::Unreadable("its device is not in".to_owned()));
            assert_eq!(without.pieces[role].read, lost);
            assert_eq!(without.pieces[2], told.pieces[2]);
        }
        assert!(bytes(&array, name).await.is_some());
    });
}

#[test]
fn a_value_that_leaves_its_set_is_told_as_copies() {
    run(async |reactor| {
        let policy = Mechanism::Packing { data: 2, parities: 1 };
        let array = Bench::by_size(&reactor, 4, &[policy.into()]).open().await;
        let names: Vec<String> = (0..12).map(key).collect();
        for name in &names {
            set(&array, name, &long(50, 1)).await.unwrap();
        }
        reactor.sleep_ns(500_000_000).await;
        let mut was_packed = 0;
        for name in &names {
            let is_in = describe(&array, name).await.unwrap().set.is_some();
            was_packed += usize::from(is_in);
            let value = Value::from(long(60, 2));
            execute(&array, wish_op(name, value, Some(policy.form()))).await.unwrap();
            assert_eq!(array.status().sets_loose > 0, is_in || was_packed > 0, "{name}");
            let told = describe(&array, name).await.unwrap();
            assert_eq!((holds(&told), told.set, told.code), (vec![Holds::Copy; 2], None, None));
        }
        assert!(was_packed >= 10, "{was_packed}");
        reactor.sleep_ns(500_000_000).await;
        assert_eq!(array.status().sets_loose, 0);
    });
}
