//! What becomes of a store that one member has no room for, where others have none either, or fail.

use super::bench::{Bench, DB, bytes, execute, retrieve_op, run, set, wish_op};
use crate::placement::{container, primary};
use crate::{Mechanism, MemberState, Policy};
use plimsoll_kv::fault::{FaultDevice, FaultPolicy};
use plimsoll_kv::{Condition, Error, Expiry, Form, Op, Output, Request, Room, Value};
use std::cell::Cell;
use std::rc::Rc;

/// Whether a request is about keys that begin so.
fn is_about(op: &Op, name: &[u8]) -> bool {
    match op {
        Op::Batch(ops) => ops.iter().any(|op| is_about(op, name)),
        Op::Store { key, .. } | Op::Delete { key, .. } | Op::Retrieve { key, .. } => key.starts_with(name),
        _ => false,
    }
}

fn is_store(op: &Op, name: &[u8]) -> bool {
    !matches!(op, Op::Delete { .. } | Op::Retrieve { .. }) && is_about(op, name)
}

/// A device that refuses what this says of the stores of keys that begin with k, counted from 1.
async fn refusing(bench: &mut Bench, member: usize, refuses: fn(usize) -> bool) -> Rc<FaultDevice> {
    let full = FaultDevice::new(bench.below[member].clone(), FaultPolicy::Never, Error::NoSpace);
    bench.members[member] = full.clone();
    let times = Cell::new(0);
    let is_refused = move |request: &Request| {
        let is_store = is_store(&request.op, b"k");
        times.set(times.get() + usize::from(is_store));
        is_store && refuses(times.get())
    };
    full.set_policy(FaultPolicy::When(Box::new(is_refused)));
    full
}

/// The device that had no room goes, and its failing is seen when the value before is read there (seeds 1499
/// and 4115 of the worlds): nobody else has that any more, so the new one stands.
#[test]
fn a_store_stands_where_what_it_replaced_cannot_be_read_any_more() {
    run(async |reactor| {
        let mut bench = Bench::new(&reactor, 3, 3);
        // The first store is the old value, the second is refused.
        let full = refusing(&mut bench, 1, |time| time == 2).await;
        let rotten = Error::Unreadable("for a test".to_owned());
        let unread = FaultDevice::new(full, FaultPolicy::Never, rotten);
        bench.members[1] = unread.clone();
        let array = bench.open().await;
        set(&array, "k", b"old").await.unwrap();
        let reads = |request: &Request| matches!(request.op, Op::Retrieve { .. });
        unread.set_policy(FaultPolicy::When(Box::new(reads)));
        set(&array, "k", b"new").await.unwrap();
        unread.set_policy(FaultPolicy::Never);
        for member in 0..3 {
            let only = (0..3).filter(|other| *other != member);
            only.for_each(|other| bench.members[other].set_policy(FaultPolicy::When(Box::new(reads))));
            assert_eq!(bytes(&array, "k").await.as_deref(), Some(&b"new"[..]), "{member}");
            bench.members.iter().for_each(|member| member.set_policy(FaultPolicy::Never));
        }
    });
}

/// Neither what was there before nor what was refused can be had on all: the client must not take it for
/// refused, for it may be read (seed 599 of the worlds).
#[test]
fn a_store_that_cannot_be_taken_back_is_not_told_to_have_done_nothing() {
    run(async |reactor| {
        let mut bench = Bench::new(&reactor, 3, 3);
        let faults = [0, 1, 2].map(|member| bench.fails(member, &Error::NoSpace));
        let array = bench.open().await;
        set(&array, "k", b"old").await.unwrap();
        for (member, fault) in faults.iter().enumerate() {
            let times = Cell::new(0);
            let refuses = move |request: &Request| {
                let writes = !matches!(request.op, Op::Retrieve { .. }) && is_about(&request.op, b"k");
                times.set(times.get() + usize::from(writes));
                writes && (member == 1 || times.get() > 1)
            };
            fault.set_policy(FaultPolicy::When(Box::new(refuses)));
        }
        let told = set(&array, "k", b"a longer one").await.unwrap_err();
        assert!(!told.changed_nothing(), "{told:?}");
        faults.iter().for_each(|fault| fault.set_policy(FaultPolicy::Never));
        let found = bytes(&array, "k").await;
        assert_eq!(found.as_deref(), Some(&b"a longer one"[..]));
        assert_eq!(array.status().unsettled, 0);
    });
}

/// Who took it fails when it is to give it back: it is out, and the others have what was there before.
#[test]
fn a_device_that_goes_out_while_a_store_is_taken_back_hinders_no_other() {
    run(async |reactor| {
        let mut bench = Bench::new(&reactor, 3, 3);
        refusing(&mut bench, 1, |time| time == 2).await;
        let broken = bench.fails(0, &Error::ReadOnly("broken for a test".to_owned()));
        let array = bench.open().await;
        set(&array, "k", b"old").await.unwrap();
        let times = Cell::new(0);
        let fails = move |request: &Request| {
            times.set(times.get() + usize::from(is_store(&request.op, b"k")));
            is_store(&request.op, b"k") && times.get() > 1
        };
        broken.set_policy(FaultPolicy::When(Box::new(fails)));
        assert_eq!(set(&array, "k", b"new").await, Err(Error::NoSpace));
        assert_eq!(array.status().members[0].state, MemberState::Out);
        assert_eq!(array.status().unsettled, 0);
        assert_eq!(bytes(&array, "k").await.as_deref(), Some(&b"old"[..]));
    });
}

/// It was there when the store was taken back, and had expired when it was read for that (seed 6281 of the
/// worlds: the client was told of an error).
#[test]
fn what_has_expired_by_then_is_not_given_back() {
    run(async |reactor| {
        let mut bench = Bench::new(&reactor, 3, 3);
        let full = refusing(&mut bench, 1, |time| time == 2).await;
        let expired = FaultDevice::new(full, FaultPolicy::Never, Error::NotFound);
        bench.members[1] = expired.clone();
        let array = bench.open().await;
        set(&array, "k", b"old").await.unwrap();
        let times = Cell::new(0);
        let has_expired = move |request: &Request| {
            let is_read = matches!(request.op, Op::Retrieve { .. });
            times.set(times.get() + usize::from(is_read));
            is_read && times.get() > 1
        };
        expired.set_policy(FaultPolicy::When(Box::new(has_expired)));
        assert_eq!(set(&array, "k", b"new").await, Err(Error::NoSpace));
        let place = array.place(DB, b"k").unwrap();
        for member in [0, 2] {
            let role = (0..3).find(|role| array.member_of(&place, *role) == member).unwrap();
            let left = execute(&bench.below[member], retrieve_op(container(DB, role), "k")).await;
            assert_eq!(left, Err(Error::NotFound), "{member}");
        }
    });
}

/// What is refused took room that the value before had: that comes back into what is kept for such (seed 155
/// of the worlds: it stood on one device alone, and was lost with that).
#[test]
fn what_is_given_back_takes_the_room_that_is_kept_for_what_makes_room() {
    run(async |reactor| {
        let mut bench = Bench::new(&reactor, 3, 3);
        let faults = [0, 1, 2].map(|member| bench.fails(member, &Error::NoSpace));
        let array = bench.open().await;
        set(&array, "k", b"longer than the new one").await.unwrap();
        for (member, fault) in faults.iter().enumerate() {
            let times = Cell::new(0);
            let refuses = move |request: &Request| {
                let is_store = is_store(&request.op, b"k");
                times.set(times.get() + usize::from(is_store));
                is_store && request.room == Room::OfStores && (member == 1 || times.get() > 1)
            };
            fault.set_policy(FaultPolicy::When(Box::new(refuses)));
        }
        assert_eq!(set(&array, "k", b"new").await, Err(Error::NoSpace));
        assert_eq!(array.status().unsettled, 0);
        let held = |member: usize| {
            let place = array.place(DB, b"k").unwrap();
            let role = (0..3).find(|role| array.member_of(&place, *role) == member).unwrap();
            execute(&bench.below[member], retrieve_op(container(DB, role), "k"))
        };
        for member in 0..3 {
            let found = held(member).await;
            assert!(
                matches!(&found, Ok(Output::Found(item)) if item.bytes.ends_with(b"longer than the new one"))
            );
        }
    });
}

/// The value before was given back to a member that is being filled, and went out with the only one that had
/// it besides: the write stands, on that one, too (seed 12041 of the worlds: an acknowledged value was lost).
#[test]
fn a_store_that_stands_in_the_end_is_on_those_that_had_given_it_back() {
    run(async |reactor| {
        let mut bench = Bench::new(&reactor, 3, 3);
        bench.options.rebuild_bytes_per_s = 1000;
        refusing(&mut bench, 1, |time| time == 2).await;
        let last = bench.fails(2, &Error::NoSpace);
        let array = bench.open().await;
        let name =
            (0..).map(|number| format!("k{number}")).find(|name| primary(name.as_bytes(), 3) == 0).unwrap();
        set(&array, &name, b"old").await.unwrap();
        for number in 0..100 {
            set(&array, &format!("other:{number}"), b"v").await.unwrap();
        }
        let fresh = bench.fresh(0, 77);
        array.replace(0, fresh).await.unwrap();
        bench.until(&array, 0, MemberState::Resyncing).await;
        let (times, own, key) = (Cell::new(0), array.clone(), name.clone().into_bytes());
        last.set_policy(FaultPolicy::When(Box::new(move |request| {
            times.set(times.get() + usize::from(is_store(&request.op, &key)));
            let is_given_back = is_store(&request.op, &key) && times.get() == 2;
            if is_given_back {
                // At once: it had failed a request of somebody else.
                own.set_state(1, MemberState::Out, "for a test");
                own.roster.borrow_mut().epoch += 1;
            }
            is_given_back
        })));
        set(&array, &name, b"new").await.unwrap();
        assert_eq!(array.status().members[0].state, MemberState::Resyncing);
        let found = execute(&bench.below[0], retrieve_op(container(DB, 0), &name)).await;
        assert!(matches!(&found, Ok(Output::Found(item)) if item.bytes.ends_with(b"new")), "{found:?}");
    });
}

/// Members judged differently whether a key had expired, so it was to go from all: of a key that the first of
/// them had let go it went from those alone that have a piece of every key (seed 1735 of the worlds).
#[test]
fn a_key_that_expires_while_its_time_is_changed_goes_from_all_that_were_seen_to_have_it() {
    run(async |reactor| {
        let pack = Mechanism::Packing { data: 2, parities: 1 };
        let three = Mechanism::Replication { copies: 3 };
        let policy = Policy::from(pack).with_custom(&[three]).unwrap();
        let mut bench = Bench::by_size(&reactor, 3, &[policy]);
        bench.options.stateless = true;
        let its = primary(b"k", 3);
        let first = bench.fails(its, &Error::NotFound);
        let array = bench.open().await;
        let value = Value::from(b"value".to_vec());
        execute(&array, wish_op("k", value, Some(Form::Copies(3)))).await.unwrap();
        let has_expired = Cell::new(false);
        let expired = move |request: &Request| {
            has_expired.set(has_expired.get() || matches!(request.op, Op::SetExpiry { .. }));
            has_expired.get() && !matches!(request.op, Op::Delete { .. }) && is_about(&request.op, b"k")
                || matches!(request.op, Op::SetExpiry { .. })
        };
        first.set_policy(FaultPolicy::When(Box::new(expired)));
        let key = b"k".to_vec();
        let persist = Op::SetExpiry { container: DB, key, expiry: Expiry::Never, condition: Condition::None };
        assert_eq!(execute(&array, persist).await, Err(Error::NotFound));
        for (member, below) in bench.below.iter().enumerate().filter(|(member, _)| *member != its) {
            for role in 0..3 {
                let left = execute(below, Op::Stats { container: container(DB, role) }).await;
                assert!(matches!(&left, Ok(Output::Stats(stats)) if stats.keys == 0), "{member}: {left:?}");
            }
        }
    });
}
