//! What worlds of arrays found (`plimsoll sim fuzz --arrays`): a named test for each.

use super::bench::{Bench, DB, bytes, execute, keys, retrieve_op, run, set, store_in};
use crate::MemberState;
use crate::header::Header;
use crate::manner::Manner;
use crate::placement::container;
use crate::told::Proof;
use futures_util::future::{Either, select};
use plimsoll_kv::fault::{FaultDevice, FaultPolicy};
use plimsoll_kv::{Condition, Error, Expiry, Form, Op, Output, Request, Value, Version};
use std::cell::Cell;
use std::pin::pin;

#[test]
fn a_previous_value_in_parts_is_refused_and_nothing_is_done() {
    run(async |reactor| {
        let bench = Bench::new(&reactor, 3, 2);
        let array = bench.open().await;
        let key = b"k".to_vec();
        let begin =
            Op::UploadBegin { container: DB, key: key.clone(), length: 150, shared_bytes: 0, form: None };
        let Ok(Output::Upload(upload)) = execute(&array, begin).await else { panic!("an upload") };
        for length in [96, 54] {
            let part = Op::UploadPart { upload, key: key.clone(), bytes: vec![7; length] };
            execute(&array, part).await.unwrap();
        }
        execute(&array, store_in(DB, "k", Value::Upload(upload))).await.unwrap();
        let swap = Op::Store {
            container: DB,
            key,
            value: Value::from(b"new".to_vec()),
            condition: Condition::None,
            expiry: Expiry::Never,
            retain: false,
            want_previous: true,
            form: None,
        };
        assert!(matches!(execute(&array, swap).await, Err(Error::Invalid(_))));
        let Ok(Output::Found(item)) = execute(&array, retrieve_op(DB, "k")).await else { panic!("it stays") };
        assert_eq!((item.length, item.upload.is_some()), (150, true));
    });
}

#[test]
fn a_member_that_was_being_resynchronised_at_a_crash_goes_on_and_gives_way() {
    run(async |reactor| {
        let mut bench = Bench::new(&reactor, 2, 2);
        let array = bench.open().await;
        for number in 0..600 {
            set(&array, &format!("key:{number}"), b"v").await.unwrap();
        }
        bench.members[0].set_policy(FaultPolicy::From(1));
        set(&array, "key:0", b"w").await.unwrap();
        array.close().await;
        bench.members[0].set_policy(FaultPolicy::Never);
        bench.options.rebuild_bytes_per_s = 1;
        let array = bench.open().await;
        bench.until(&array, 0, MemberState::Resyncing).await;
        // A delete that the crash cut short: the other member has made it.
        let role = crate::placement::primary(b"gone", 2);
        let version = Version { epoch: 1, clock: 1 };
        let header =
            Header { form: Form::Copies(2), role: role as u8, version, value_bytes: 5, is_stub: false };
        let stale = store_in(container(DB, role), "gone", Value::from(header.before(b"stale".to_vec())));
        execute(&bench.below[0], stale).await.unwrap();
        let slot = array.journal.slot().await;
        execute(&bench.below[1], slot.entry(DB, b"gone")).await.unwrap();
        drop((slot, array));
        bench.options.rebuild_bytes_per_s = 0;
        let array = bench.open().await;
        assert_eq!(array.status().members[0].state, MemberState::Resyncing);
        bench.whole(&array).await;
        array.take_out(1, "for a test");
        reactor.sleep_ns(1_000_000).await;
        assert_eq!(bytes(&array, "gone").await, None, "it does not come back");
        assert_eq!(bytes(&array, "key:0").await.as_deref(), Some(&b"w"[..]));
    });
}

#[test]
fn a_rebuilt_member_is_marked_too_so_that_the_next_start_compares_no_keys() {
    run(async |reactor| {
        let bench = Bench::new(&reactor, 3, 2);
        let array = bench.open().await;
        set(&array, "k", b"v").await.unwrap();
        array.close().await;
        bench.try_open(&[1]).await.expect("two of three are there").close().await;
        let array = bench.open().await;
        bench.whole(&array).await;
        array.close().await;
        assert!(!bench.open().await.distrusted.get());
    });
}

#[test]
fn a_write_is_seen_through_though_whoever_asked_goes_away() {
    run(async |reactor| {
        let bench = Bench::new(&reactor, 3, 3);
        let array = bench.open().await;
        for patience_ns in 0..40 {
            let value = format!("{patience_ns}").into_bytes();
            let (asked, timer) = (set(&array, "k", &value), reactor.sleep_ns(patience_ns * 500));
            if let Either::Left((done, _)) = select(pin!(asked), pin!(timer)).await {
                done.unwrap();
            }
            reactor.sleep_ns(10_000_000).await;
            let mut copies = Vec::new();
            for role in 0..3 {
                let member = (crate::placement::primary(b"k", 3) + role) % 3;
                let read = execute(&bench.below[member], retrieve_op(container(DB, role), "k")).await;
                let Ok(Output::Found(item)) = read else { panic!("a copy") };
                copies.push(item.bytes[32..].to_vec());
            }
            assert_eq!(copies, vec![value; 3], "after {patience_ns}");
        }
    });
}

/// What was made whole behind a resynchronisation's back used to be missing on the member that came in (seed
/// 507).
#[test]
fn a_key_that_is_made_whole_is_so_on_members_that_are_being_resynchronised() {
    run(async |reactor| {
        let mut bench = Bench::split(&reactor, 4, 2, 2);
        let array = bench.open().await;
        // More than the journal names: those are made whole at once.
        for number in 0..3000 {
            set(&array, &format!("key:{number}"), b"v").await.unwrap();
        }
        array.close().await;
        bench.options.rebuild_bytes_per_s = 1;
        bench.try_open(&[3]).await.expect("three of four are there").close().await;
        let array = bench.open().await;
        bench.until(&array, 3, MemberState::Resyncing).await;
        let (new, gone) = (array.place(DB, b"new").unwrap(), array.place(DB, b"gone").unwrap());
        let stores = array.stores(
            &new,
            (array.form_for(None, 0).unwrap(), &b"half written".to_vec().into()),
            Expiry::Never,
        );
        for (role, store) in stores.into_iter().filter(|(role, _)| array.member_of(&new, *role) < 2) {
            execute(&bench.below[array.member_of(&new, role)], store).await.unwrap();
        }
        // One shard of two that it takes, and one that was copied from there.
        let stores = array.stores(
            &gone,
            (array.form_for(None, 0).unwrap(), &b"half written".to_vec().into()),
            Expiry::Never,
        );
        for (role, store) in stores.into_iter().filter(|(role, _)| array.member_of(&gone, *role) > 1) {
            execute(&bench.below[array.member_of(&gone, role)], store).await.unwrap();
        }
        array.suspect(&new);
        array.suspect(&gone);
        assert_eq!(bytes(&array, "new").await.as_deref(), Some(&b"half written"[..]));
        assert_eq!(bytes(&array, "gone").await, None);
        assert_eq!(array.status().members[3].state, MemberState::Resyncing);
        for (place, expected) in [(&gone, Err(Error::NotFound)), (&new, Ok(()))] {
            let role = (0..4).find(|role| array.member_of(place, *role) == 3).unwrap();
            let key = String::from_utf8(place.key.clone()).unwrap();
            let has = execute(&bench.below[3], retrieve_op(container(DB, role), &key)).await;
            assert_eq!(has.map(|_| ()), expected, "{key}");
        }
    });
}

/// A member that was being resynchronised saw the key expire, before a change of that came there: it came in
/// without it (seeds 5567 and 9788).
#[test]
fn a_key_that_expired_on_a_member_that_is_being_resynchronised_is_brought_there_again() {
    run(async |reactor| {
        let mut bench = Bench::new(&reactor, 3, 3);
        let array = bench.open().await;
        for number in 0..3000 {
            set(&array, &format!("key:{number}"), b"v").await.unwrap();
        }
        array.close().await;
        bench.options.rebuild_bytes_per_s = 1;
        bench.try_open(&[2]).await.expect("two of three are there").close().await;
        let array = bench.open().await;
        bench.until(&array, 2, MemberState::Resyncing).await;
        set(&array, "k", b"new").await.unwrap();
        let place = array.place(DB, b"k").unwrap();
        let role = (0..3).find(|role| array.member_of(&place, *role) == 2).unwrap();
        let gone =
            Op::Delete { container: container(DB, role), key: b"k".to_vec(), condition: Condition::None };
        execute(&bench.below[2], gone).await.unwrap();
        let (key, expiry) = (b"k".to_vec(), Expiry::At(reactor.wall_ms() + 1_000_000));
        let change = Op::SetExpiry { container: DB, key, expiry, condition: Condition::None };
        execute(&array, change).await.unwrap();
        assert_eq!(array.status().members[2].state, MemberState::Resyncing);
        let item = match execute(&bench.below[2], retrieve_op(container(DB, role), "k")).await {
            Ok(Output::Found(item)) => item,
            other => panic!("{other:?}"),
        };
        assert_eq!(Expiry::At(item.expiry_ms.unwrap()), expiry);
    });
}

/// What had been written again had rotted again before the change came there: the client was told of it (seed
/// 9856).
#[test]
fn a_piece_that_rots_again_while_its_expiry_is_changed_is_written_again_once_more() {
    run(async |reactor| {
        let mut bench = Bench::new(&reactor, 3, 3);
        let error = Error::Unreadable("it has rotted".to_owned());
        let rotten = FaultDevice::new(bench.below[1].clone(), FaultPolicy::Never, error);
        bench.members[1] = rotten.clone();
        let array = bench.open().await;
        set(&array, "k", b"v").await.unwrap();
        let left = Cell::new(2);
        let rots = move |request: &Request| {
            let is_change = matches!(request.op, Op::SetExpiry { .. }) && left.get() > 0;
            left.set(left.get() - u32::from(is_change));
            is_change
        };
        rotten.set_policy(FaultPolicy::When(Box::new(rots)));
        let (key, expiry) = (b"k".to_vec(), Expiry::At(reactor.wall_ms() + 1_000_000));
        let change = Op::SetExpiry { container: DB, key, expiry, condition: Condition::None };
        execute(&array, change).await.unwrap();
        let Ok(Output::Found(item)) = execute(&array, retrieve_op(DB, "k")).await else {
            panic!("it is there")
        };
        assert_eq!(Expiry::At(item.expiry_ms.unwrap()), expiry);
    });
}

/// One member had seen the key expire, and another had not: the key was counted, and could not be read (seed
/// 585).
#[test]
fn a_key_that_expires_while_its_time_is_changed_is_gone() {
    run(async |reactor| {
        for mut bench in [Bench::new(&reactor, 3, 3), Bench::split(&reactor, 3, 2, 1)] {
            let expired = FaultDevice::new(bench.below[1].clone(), FaultPolicy::Never, Error::NotFound);
            bench.members[1] = expired.clone();
            let array = bench.open().await;
            set(&array, "k", b"v").await.unwrap();
            let is_change = |request: &Request| matches!(request.op, Op::SetExpiry { .. });
            expired.set_policy(FaultPolicy::When(Box::new(is_change)));
            let (key, expiry) = (b"k".to_vec(), Expiry::Never);
            let persist = Op::SetExpiry { container: DB, key, expiry, condition: Condition::None };
            assert_eq!(execute(&array, persist).await, Err(Error::NotFound));
            assert_eq!((bytes(&array, "k").await, keys(&array).await), (None, 0));
            for below in &bench.below {
                for role in 0..3 {
                    let left = execute(below, Op::Stats { container: container(DB, role) }).await;
                    assert!(matches!(left, Ok(Output::Stats(stats)) if stats.keys == 0), "{left:?}");
                }
            }
        }
    });
}

/// A device came in while a key was made whole: it was neither asked nor given its copy, and the key was
/// absent when the first one went (seed 4737).
#[test]
fn who_comes_in_while_a_key_is_made_whole_is_given_its_copy() {
    run(async |reactor| {
        let bench = Bench::new(&reactor, 3, 3);
        let array = bench.open().await;
        set(&array, "k", b"v").await.unwrap();
        let place = array.place(DB, b"k").unwrap();
        let (late, below) = (array.member_of(&place, 1), container(DB, 1));
        let delete = Op::Delete { container: below, key: b"k".to_vec(), condition: Condition::None };
        execute(&bench.below[late], delete).await.unwrap();
        // The others were asked while it was being filled.
        let told = array.ask_all(&place, Proof::Record, &Manner::background()).await.unwrap();
        let right = told[0].1.clone();
        array.bring_along(&place, &right, (&[0, 2], &[0, 2])).await.unwrap();
        assert!(execute(&bench.below[late], retrieve_op(below, "k")).await.is_ok());
    });
}
