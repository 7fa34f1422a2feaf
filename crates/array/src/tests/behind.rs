//! Values of members that are out, kept behind the stubs that told of them.

use super::bench::{Asked, Bench, DB, bytes, del, execute, keys, run, set, store_op};
use super::packing::{bench, check, fill, found_sets, pieces, settled, value};
use crate::manner::Manner;
use crate::{Array, placement};
use plimsoll_kv::fault::FaultPolicy;
use plimsoll_kv::memory::MemoryOptions;
use plimsoll_kv::{Condition, Durability, Error, Expiry, Item, Op, Output, Request};
use plimsoll_reactor::Reactor;
use std::rc::Rc;

const COUNT: usize = 90;

fn name(number: usize) -> String {
    format!("key:{number}")
}

fn primary(number: usize) -> usize {
    placement::primary(name(number).as_bytes(), 6)
}

/// Six members, values that are packed 4+2, and some members out.
async fn without(reactor: &Reactor, bench: &Bench, out: &[usize]) -> Rc<Array> {
    let array = bench.open().await;
    fill(&array, COUNT, 1).await;
    settled(reactor).await;
    for member in out {
        bench.members[*member].set_policy(FaultPolicy::From(1));
        array.take_out(*member, "for the test");
    }
    settled(reactor).await;
    array
}

/// Values of members that are out.
fn lost(out: &[usize]) -> u64 {
    (0..COUNT).filter(|number| out.contains(&primary(*number))).count() as u64
}

async fn comes_back(array: &Rc<Array>, bench: &mut Bench, out: &[usize]) {
    for (at, member) in out.iter().enumerate() {
        let fresh = bench.fresh(*member, 70 + at as u8);
        array.replace(*member, fresh).await.unwrap();
    }
    bench.whole(array).await;
}

/// How many requests a read of each key takes, and that it gives the right value.
async fn asked(array: &Rc<Array>, bench: &Bench) -> Asked {
    bench.asked();
    check(array, COUNT, 1).await;
    bench.asked()
}

async fn scrubbed(reactor: &Reactor, array: &Rc<Array>) {
    array.scrub();
    while array.status().scrubbing {
        reactor.sleep_ns(1_000_000).await;
    }
}

/// Pieces of all keys that are no stubs alone.
async fn whole_pieces(bench: &Bench) -> usize {
    let mut whole = 0;
    for number in 1..COUNT {
        whole += pieces(bench, &name(number), 3).await.iter().flatten().count();
    }
    whole
}

#[test]
fn what_was_read_without_its_device_takes_one_request_from_then_on() {
    run(async |reactor| {
        for out in [&[2][..], &[2, 3], &[1, 4]] {
            let bench = bench(&reactor, 6, 4, 2);
            let array = without(&reactor, &bench, out).await;
            let first = asked(&array, &bench).await;
            settled(&reactor).await;
            assert_eq!(array.status().values_kept, lost(out), "{out:?}");
            let again = asked(&array, &bench).await;
            settled(&reactor).await;
            assert_eq!(array.status().values_kept, lost(out), "no more than once");
            assert!(first.reads >= COUNT as u64 + lost(out) * 3, "{first:?}");
            // A look counts keys on each member besides.
            assert!(again.reads <= COUNT as u64 + 20, "{again:?} after {first:?}");
        }
    });
}

#[test]
fn a_range_of_what_is_kept_is_read_as_of_any_value() {
    run(async |reactor| {
        let bench = bench(&reactor, 6, 4, 2);
        let array = without(&reactor, &bench, &[0, 1]).await;
        for _ in ["recovered", "kept"] {
            for number in 0..COUNT {
                let whole = value(number, 1);
                let end = whole.len();
                for (first, length) in [(0, 1), (0, end), (end / 2, 7), (end.saturating_sub(3), 9), (end, 4)]
                {
                    let range = Some((first as u64, length as u64));
                    let op = Op::Retrieve { container: DB, key: name(number).into(), range, pin: false };
                    let Ok(Output::Found(item)) = execute(&array, op).await else { panic!("{number}") };
                    assert_eq!(item.bytes, whole[first..end.min(first + length)], "{number}: {range:?}");
                    assert_eq!(item.length, end as u64);
                }
            }
            settled(&reactor).await;
        }
        assert_eq!(array.status().values_kept, lost(&[0, 1]));
    });
}

#[test]
fn a_key_that_is_kept_is_in_its_set_as_before() {
    run(async |reactor| {
        let mut bench = bench(&reactor, 6, 4, 2);
        let array = without(&reactor, &bench, &[5]).await;
        check(&array, COUNT, 1).await;
        settled(&reactor).await;
        assert!(lost(&[5]) > 5 && array.status().values_kept == lost(&[5]));
        // Overwritten and deleted, in turns: what is left of their sets needs what they were.
        let (mut deleted, mut written) = (Vec::new(), Vec::new());
        for number in (1..COUNT).filter(|number| primary(*number) == 5) {
            match number % 2 {
                0 => deleted.push(number),
                _ => written.push(number),
            }
        }
        for number in &deleted {
            del(&array, &name(*number)).await.unwrap();
        }
        for number in &written {
            set(&array, &name(*number), &value(*number, 2)).await.unwrap();
        }
        let right = |number: usize| match (deleted.contains(&number), written.contains(&number)) {
            (true, _) => None,
            (_, true) => Some(value(number, 2)),
            _ => Some(value(number, 1)),
        };
        // One more may be lost: two are out then.
        for other in 0..5 {
            bench.members[other]
                .set_policy(FaultPolicy::When(Box::new(|request| matches!(request.op, Op::Retrieve { .. }))));
            for number in 0..COUNT {
                assert_eq!(bytes(&array, &name(number)).await, right(number), "{number} without {other}");
            }
            bench.members[other].set_policy(FaultPolicy::Never);
            settled(&reactor).await;
        }
        comes_back(&array, &mut bench, &[5]).await;
        for number in 0..COUNT {
            assert_eq!(bytes(&array, &name(number)).await, right(number), "{number}, all in");
        }
        assert_eq!(keys(&array).await, (COUNT - deleted.len()) as u64);
    });
}

#[test]
fn a_device_that_is_filled_gets_what_is_kept_and_the_room_is_given_back() {
    run(async |reactor| {
        for out in [&[3][..], &[3, 4], &[0, 2]] {
            let mut bench = bench(&reactor, 6, 4, 2);
            let array = without(&reactor, &bench, out).await;
            check(&array, COUNT, 1).await;
            settled(&reactor).await;
            comes_back(&array, &mut bench, out).await;
            settled(&reactor).await;
            scrubbed(&reactor, &array).await;
            settled(&reactor).await;
            assert_eq!(array.status().scrub_errors, 0, "{out:?}: nothing was wrong");
            check(&array, COUNT, 1).await;
            let (found, ghosts) = found_sets(&bench).await;
            let packed: usize = found.iter().map(|set| set.values.len()).sum();
            assert_eq!(ghosts, 0, "{out:?}");
            // Each of those once, and the others as copies.
            assert_eq!(
                whole_pieces(&bench).await,
                (COUNT - 1) + 2 * (COUNT - 1 - packed.min(COUNT - 1)),
                "{out:?}"
            );
        }
    });
}

#[test]
fn nothing_is_kept_where_there_is_no_room_to_spare() {
    run(async |reactor| {
        let each = MemoryOptions { capacity_bytes: 200_000, ..MemoryOptions::default() };
        let policy = crate::Mechanism::Packing { data: 4, parities: 2 }.into();
        let bench = Bench::with(&reactor, 6, &[policy], each);
        let array = bench.open().await;
        fill(&array, COUNT, 1).await;
        for number in 0..120 {
            set(&array, &format!("more:{number}"), &[7; 4000]).await.unwrap();
            if number % 20 == 19 {
                settled(&reactor).await;
            }
        }
        array.take_out(1, "for the test");
        settled(&reactor).await;
        for number in 0..COUNT {
            assert_eq!(bytes(&array, &name(number)).await, Some(value(number, 1)));
        }
        settled(&reactor).await;
        assert_eq!(array.status().values_kept, 0);
    });
}

/// Seed 244: an expiry is set between the read that recovers a value and its being kept, and the device
/// counts no other version.
#[test]
fn what_is_kept_expires_when_its_key_does() {
    run(async |reactor| {
        let bench = bench(&reactor, 6, 4, 2);
        let array = without(&reactor, &bench, &[4]).await;
        let number = (1..COUNT).find(|number| primary(*number) == 4).unwrap();
        let key = name(number);
        let expiry = Expiry::At(array.now_ms() + 60_000);
        let expire =
            Op::SetExpiry { container: DB, key: key.clone().into(), expiry, condition: Condition::None };
        execute(&array, expire).await.unwrap();
        let (place, manner) = (array.place(DB, key.as_bytes()).unwrap(), Manner::background());
        let device = array.readable(array.member_of(&place, 1)).unwrap();
        let piece = array.read_piece(&device, &place, 1, Some((0, 0)), &manner).await.unwrap();
        let (header, stub) = (piece.header.unwrap(), piece.stub.unwrap());
        let asks = Manner::of(&Request::new(Durability::Sync, Op::Sync));
        let as_before = Item { expiry_ms: None, ..piece.item };
        array.keep_behind(&place, (&as_before, header), (&stub, &value(number, 1)), &asks);
        settled(&reactor).await;
        assert_eq!(array.status().values_kept, 1);
        let kept = array.read_piece(&device, &place, 1, None, &manner).await.unwrap();
        assert_eq!((kept.item.bytes, kept.item.expiry_ms.map(Expiry::At)), (value(number, 1), Some(expiry)));
        reactor.sleep_ns(60_000_000_000).await;
        assert_eq!(bytes(&array, &key).await, None);
    });
}

/// Nobody has written the key: who watches it, or stores what it made of it, must not be told so.
#[test]
fn what_is_kept_has_the_version_that_was_told_before() {
    run(async |reactor| {
        let mut bench = bench(&reactor, 6, 4, 2);
        let array = without(&reactor, &bench, &[3]).await;
        let of_lost = (1..COUNT).filter(|number| primary(*number) == 3);
        let versions = async || {
            let mut versions = Vec::new();
            for number in of_lost.clone() {
                let exist = Op::Exist { container: DB, key: name(number).into() };
                let Ok(Output::Found(item)) = execute(&array, exist).await else { panic!("{number}") };
                versions.push(item.version);
            }
            versions
        };
        let before = versions().await;
        check(&array, COUNT, 1).await;
        settled(&reactor).await;
        assert_eq!(array.status().values_kept, before.len() as u64);
        assert_eq!(versions().await, before);
        for (number, version) in of_lost.clone().zip(&before) {
            let Op::Store { container, key, value, expiry, .. } =
                store_op(&name(number), b"new".to_vec().into())
            else {
                panic!("a store")
            };
            let store = |condition| Op::Store {
                container,
                key: key.clone(),
                value: value.clone(),
                condition,
                expiry,
                retain: false,
                want_previous: false,
                form: None,
            };
            execute(&array, store(Condition::IfVersion(*version))).await.unwrap();
            let again = execute(&array, store(Condition::IfVersion(*version))).await;
            assert_eq!(again.map(drop), Err(Error::VersionMismatch), "{number}");
        }
        comes_back(&array, &mut bench, &[3]).await;
        for number in of_lost {
            assert_eq!(bytes(&array, &name(number)).await, Some(b"new".to_vec()));
        }
    });
}

/// What a scrub asks for itself is kept by nobody, and a value that stands behind its stub is not lost.
#[test]
fn a_scrub_without_a_device_keeps_nothing_and_takes_what_is_kept_for_right() {
    run(async |reactor| {
        let bench = bench(&reactor, 6, 4, 2);
        let array = without(&reactor, &bench, &[2]).await;
        scrubbed(&reactor, &array).await;
        settled(&reactor).await;
        assert_eq!((array.status().values_kept, array.status().scrub_errors), (0, 0));
        check(&array, COUNT, 1).await;
        settled(&reactor).await;
        scrubbed(&reactor, &array).await;
        assert_eq!((array.status().values_kept, array.status().scrub_errors), (lost(&[2]), 0));
        check(&array, COUNT, 1).await;
    });
}
