//! Values in parts.

use super::bench::{Bench, DB, del, execute, get, run, store_op};
use crate::placement::{self, container};
use crate::{Array, MemberState};
use plimsoll_kv::fault::{FaultDevice, FaultPolicy};
use plimsoll_kv::{Condition, Device, Error, Form, Item, Op, Output, UploadId, Value};
use std::cell::Cell;
use std::rc::Rc;

pub(super) async fn upload(array: &Rc<Array>, key: &str, value: &[u8]) -> UploadId {
    upload_as(array, key, value, None).await
}

pub(super) async fn upload_as(array: &Rc<Array>, key: &str, value: &[u8], form: Option<Form>) -> UploadId {
    let (key, length) = (key.as_bytes().to_vec(), value.len() as u64);
    let begin = Op::UploadBegin { container: DB, key: key.clone(), length, shared_bytes: 0, form };
    let Ok(Output::Upload(upload)) = execute(array, begin).await else { panic!("begun") };
    for part in value.chunks(array.part_bytes()) {
        let op = Op::UploadPart { upload, key: key.clone(), bytes: part.to_vec() };
        execute(array, op).await.unwrap();
    }
    upload
}

pub(super) async fn pin(array: &Rc<Array>, key: &str) -> Item {
    let op = Op::Retrieve { container: DB, key: key.as_bytes().to_vec(), range: Some((0, 0)), pin: true };
    match execute(array, op).await {
        Ok(Output::Found(item)) => item,
        other => panic!("{other:?}"),
    }
}

pub(super) async fn read(array: &Rc<Array>, key: &str, item: &Item) -> Vec<u8> {
    let upload = item.upload.expect("in parts");
    let parts = item.length.div_ceil(array.part_bytes() as u64) as u32;
    let mut value = Vec::new();
    for part in 0..parts {
        let op = Op::RetrievePart { upload, key: key.as_bytes().to_vec(), part, range: None };
        match execute(array, op).await {
            Ok(Output::Found(item)) => value.extend(item.bytes),
            other => panic!("{other:?}"),
        }
    }
    value
}

pub(super) fn long(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|at| (at as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

#[test]
fn a_value_in_parts_stands_on_every_member_and_is_read_from_any() {
    run(async |reactor| {
        let bench = Bench::new(&reactor, 3, 3);
        let array = bench.open().await;
        assert_eq!(array.part_bytes(), 96);
        let value = long(1234, 1);
        let id = upload(&array, "k", &value).await;
        execute(&array, store_op("k", Value::Upload(id))).await.unwrap();
        let item = get(&array, "k").await.unwrap();
        assert_eq!((item.length, item.bytes.len()), (1234, 0));
        let item = pin(&array, "k").await;
        assert_eq!(read(&array, "k", &item).await, value);
        let range = Some((50, 20));
        let (key, upload) = (b"k".to_vec(), item.upload.unwrap());
        let op = Op::RetrievePart { upload, key: key.clone(), part: 2, range };
        assert!(
            matches!(execute(&array, op).await, Ok(Output::Found(item)) if item.bytes == value[242..262])
        );
        // The pinned version stays, whatever becomes of the key, and of two members.
        del(&array, "k").await.unwrap();
        for member in 0..2 {
            bench.members[member].set_policy(FaultPolicy::From(1));
            array.take_out(member, "for a test");
        }
        reactor.sleep_ns(1_000_000).await;
        assert_eq!(read(&array, "k", &item).await, value);
        execute(&array, Op::Unpin { upload, key: key.clone() }).await.unwrap();
        let op = Op::RetrievePart { upload, key, part: 0, range: None };
        assert!(matches!(execute(&array, op).await, Err(Error::Invalid(_))));
    });
}

#[test]
fn parts_are_shared_with_the_version_before() {
    run(async |reactor| {
        let array = Bench::new(&reactor, 3, 2).open().await;
        let first = long(250, 1);
        let id = upload(&array, "k", &first).await;
        execute(&array, store_op("k", Value::Upload(id))).await.unwrap();
        let old = pin(&array, "k").await;
        let key = b"k".to_vec();
        let begin =
            Op::UploadBegin { container: DB, key: key.clone(), length: 252, shared_bytes: 192, form: None };
        let Ok(Output::Upload(next)) = execute(&array, begin).await else { panic!("begun") };
        let share = Op::UploadShare { upload: next, key: key.clone(), from: old.upload.unwrap(), parts: 2 };
        execute(&array, share).await.unwrap();
        let op = Op::UploadPart { upload: next, key: key.clone(), bytes: long(60, 9) };
        execute(&array, op).await.unwrap();
        execute(&array, store_op("k", Value::Upload(next))).await.unwrap();
        let item = pin(&array, "k").await;
        assert_eq!(read(&array, "k", &item).await, [&first[..192], &long(60, 9)].concat());
        assert_eq!(read(&array, "k", &old).await, first, "its reader keeps the old one");
    });
}

#[test]
fn a_value_in_parts_is_copied_to_a_new_member() {
    run(async |reactor| {
        let mut bench = Bench::new(&reactor, 2, 2);
        let array = bench.open().await;
        let (value, next) = (long(777, 5), long(555, 6));
        let id = upload(&array, "k", &value).await;
        execute(&array, store_op("k", Value::Upload(id))).await.unwrap();
        // Begun while the old member was there, stored while the new one is.
        let begun = upload(&array, "late", &next).await;
        let fresh = bench.fresh(1, 50);
        array.replace(1, fresh).await.unwrap();
        execute(&array, store_op("late", Value::Upload(begun))).await.unwrap();
        bench.whole(&array).await;
        array.take_out(0, "for a test");
        reactor.sleep_ns(1_000_000).await;
        for (key, value) in [("k", value), ("late", next)] {
            let item = pin(&array, key).await;
            assert_eq!(read(&array, key, &item).await, value);
        }
    });
}

/// Its source went out between its answer and the first part: a member that was being filled got a value
/// without bytes in the place of the one that was acknowledged (seed 8362).
#[test]
fn a_value_in_parts_is_copied_from_others_where_its_source_goes_out() {
    run(async |reactor| {
        let mut bench = Bench::new(&reactor, 3, 3);
        let array = bench.open().await;
        let value = long(777, 5);
        let id = upload(&array, "k", &value).await;
        execute(&array, store_op("k", Value::Upload(id))).await.unwrap();
        let gone = Rc::new(Cell::new(None));
        for member in 0..2 {
            let (array, gone) = (Rc::downgrade(&array), gone.clone());
            bench.members[member].set_policy(FaultPolicy::When(Box::new(move |request| {
                let is_read = matches!(&request.op, Op::Retrieve { key, range: None, .. } if key == b"k");
                if is_read && gone.get().is_none() {
                    gone.set(Some(member));
                    array.upgrade().unwrap().set_state(member, MemberState::Out, "for a test");
                }
                false
            })));
        }
        let fresh = bench.fresh(2, 50);
        array.replace(2, fresh).await.unwrap();
        while array.status().members[2].state != MemberState::In {
            reactor.sleep_ns(1_000_000).await;
        }
        array.take_out(1 - gone.get().expect("one was read"), "for a test");
        reactor.sleep_ns(1_000_000).await;
        let item = pin(&array, "k").await;
        assert_eq!(read(&array, "k", &item).await, value);
    });
}

/// An upload of "k" that a member knows nothing of: it was away, and is in again.
async fn upload_without(bench: &mut Bench, array: &Rc<Array>, member: usize, value: &[u8]) -> UploadId {
    array.take_out(member, "for a test");
    bench.reactor.sleep_ns(1_000_000).await;
    let begun = upload(array, "k", value).await;
    let fresh = bench.fresh(member, 50);
    array.replace(member, fresh).await.unwrap();
    bench.whole(array).await;
    begun
}

/// A store of it ended with the error of the source, though another had all that was needed (seed 4719).
#[test]
fn a_value_in_parts_is_given_by_others_where_one_cannot() {
    run(async |reactor| {
        let mut bench = Bench::new(&reactor, 3, 3);
        let rot = Error::Unreadable("rot".to_owned());
        let sources = [0, 1].map(|member| bench.fails(member, &rot));
        let array = bench.open().await;
        let value = long(777, 5);
        let begun = upload_without(&mut bench, &array, 2, &value).await;
        let rotten = Rc::new(Cell::new(None));
        for (member, source) in sources.iter().enumerate() {
            let rotten = rotten.clone();
            source.set_policy(FaultPolicy::When(Box::new(move |request| {
                let is_given = matches!(&request.op, Op::RetrievePart { part: 1, range: None, .. });
                if is_given && rotten.get().is_none() {
                    rotten.set(Some(member));
                }
                is_given && rotten.get() == Some(member)
            })));
        }
        execute(&array, store_op("k", Value::Upload(begun))).await.unwrap();
        let rotten = rotten.get().expect("the new device was given it");
        sources.iter().for_each(|source| source.set_policy(FaultPolicy::Never));
        array.take_out(rotten, "for a test");
        array.take_out(1 - rotten, "for a test");
        reactor.sleep_ns(1_000_000).await;
        let item = pin(&array, "k").await;
        assert_eq!(read(&array, "k", &item).await, value);
    });
}

#[test]
fn what_was_uploaded_while_a_member_was_away_is_given_to_it_when_it_is_stored() {
    run(async |reactor| {
        let mut bench = Bench::new(&reactor, 2, 2);
        let array = bench.open().await;
        let value = long(777, 5);
        let begun = upload_without(&mut bench, &array, 1, &value).await;
        execute(&array, store_op("k", Value::Upload(begun))).await.unwrap();
        array.take_out(0, "for a test");
        reactor.sleep_ns(1_000_000).await;
        let item = pin(&array, "k").await;
        assert_eq!(read(&array, "k", &item).await, value);
    });
}

/// The server died when one member had it, and a part of that has rotted since: it was not acknowledged, and
/// what the others have is right (seed 9466).
#[test]
fn a_value_in_parts_that_one_member_had_and_that_rotted_there_hides_nothing() {
    run(async |reactor| {
        let mut bench = Bench::new(&reactor, 2, 2);
        let primary = placement::primary(b"k", 2);
        let rots = |request: &plimsoll_kv::Request| matches!(request.op, Op::RetrievePart { part: 2, .. });
        let rot = Error::Unreadable("rotten for a test".to_owned());
        let second = bench.below[1 - primary].clone();
        bench.members[1 - primary] = FaultDevice::new(second, FaultPolicy::When(Box::new(rots)), rot);
        let array = bench.open().await;
        let id = upload(&array, "k", &long(777, 5)).await;
        execute(&array, store_op("k", Value::Upload(id))).await.unwrap();
        let delete =
            Op::Delete { container: container(DB, 0), key: b"k".to_vec(), condition: Condition::None };
        execute(&bench.below[primary], delete).await.unwrap();
        array.suspect(&array.place(DB, b"k").unwrap());
        assert_eq!(get(&array, "k").await, Err(Error::NotFound));
        assert_eq!(array.status().unsettled, 0);
        execute(&array, store_op("k", Value::from(b"new".to_vec()))).await.unwrap();
        assert_eq!(get(&array, "k").await.unwrap().bytes, b"new");
    });
}

/// Whoever sent it gives it up, too, and was told that there is no such upload.
#[test]
fn an_upload_of_which_a_part_was_refused_may_be_given_up() {
    run(async |reactor| {
        let mut bench = Bench::new(&reactor, 3, 3);
        let full = FaultDevice::new(bench.below[1].clone(), FaultPolicy::Never, Error::NoSpace);
        bench.members[1] = full.clone();
        let array = bench.open().await;
        let key = b"k".to_vec();
        let begin =
            Op::UploadBegin { container: DB, key: key.clone(), length: 500, shared_bytes: 0, form: None };
        let Ok(Output::Upload(upload)) = execute(&array, begin).await else { panic!("begun") };
        full.set_policy(FaultPolicy::When(Box::new(|request| matches!(request.op, Op::UploadPart { .. }))));
        let part = Op::UploadPart { upload, key: key.clone(), bytes: vec![1; 96] };
        assert_eq!(execute(&array, part).await, Err(Error::NoSpace));
        assert_eq!(execute(&array, Op::UploadAbort { upload, key }).await, Ok(Output::Done));
        assert_eq!(get(&array, "k").await, Err(Error::NotFound));
    });
}
