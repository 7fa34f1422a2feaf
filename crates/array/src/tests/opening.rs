//! Opening: who belongs to an array, who is missing, and what was half done.

use super::bench::{Bench, DB, bytes, execute, run, set, store_in};
use crate::header::Header;
use crate::journal::Journal;
use crate::membership::roster_key;
use crate::placement::{self, container};
use crate::{Mechanism, MemberState, OpenError, is_member};
use plimsoll_kv::fault::FaultPolicy;
use plimsoll_kv::{Condition, Device, Error, Form, Op, Output, Request, Value, Version};
use std::rc::Rc;

#[test]
fn an_array_is_found_again() {
    run(async |reactor| {
        let bench = Bench::new(&reactor, 3, 2);
        let array = bench.open().await;
        set(&array, "k", b"v").await.unwrap();
        array.close().await;
        let first = bench.open().await;
        assert_eq!(bytes(&first, "k").await.as_deref(), Some(&b"v"[..]));
        let lone: Rc<dyn Device> = bench.members[0].clone();
        assert_eq!(is_member(&lone, 0, 1).await, Ok(true));
        let other: Rc<dyn Device> = Bench::new(&reactor, 1, 1).members[0].clone();
        assert_eq!(is_member(&other, 0, 1).await, Ok(false));
    });
}

#[test]
fn what_cannot_be_an_array_is_refused_in_words() {
    run(async |reactor| {
        let bench = Bench::new(&reactor, 3, 2);
        assert_eq!(bench.try_open(&[1]).await.err(), Some(OpenError::Incomplete("d1".to_owned())));
        assert_eq!(bench.try_open(&[0, 1, 2]).await.err(), Some(OpenError::Nothing));
        set(&bench.below[2], "k", b"v").await.unwrap();
        assert_eq!(bench.try_open(&[]).await.err(), Some(OpenError::HoldsData("d2".to_owned())));

        let bench = Bench::new(&reactor, 3, 2);
        bench.open().await.close().await;
        let mut swapped = bench.clone();
        swapped.members.swap(0, 1);
        let mut given = swapped.given(&[]);
        (given[0].id, given[1].id) = (given[1].id, given[0].id);
        let opened = crate::Array::open(&reactor, 0, 1, given, bench.options.clone()).await;
        let order = OpenError::Order { name: "d0".to_owned(), is: 2, given: 1 };
        assert_eq!(opened.err(), Some(order));
        let mut given = bench.given(&[]);
        given[2].id = [99; 16];
        // It has a roster, so it is no empty device.
        let opened = crate::Array::open(&reactor, 0, 1, given, bench.options.clone()).await;
        assert_eq!(opened.err(), Some(OpenError::Stranger("d2".to_owned())));
        let mut given = bench.given(&[]);
        given.pop();
        let opened = crate::Array::open(&reactor, 0, 1, given, bench.options.clone()).await;
        assert_eq!(opened.err(), Some(OpenError::Size { has: 3, given: 2 }));
        let other = Bench::new(&reactor, 3, 2);
        other.open().await.close().await;
        let mut mixed = bench.clone();
        mixed.members[1] = other.members[1].clone();
        assert_eq!(mixed.try_open(&[]).await.err(), Some(OpenError::OtherArray("d1".to_owned())));
    });
}

#[test]
fn an_array_goes_on_without_a_minority() {
    run(async |reactor| {
        let bench = Bench::new(&reactor, 3, 3);
        let array = bench.open().await;
        set(&array, "k", b"1").await.unwrap();
        array.close().await;
        let array = bench.try_open(&[1]).await.expect("two of three are there");
        assert_eq!(array.status().members[1].state, MemberState::Out);
        set(&array, "k", b"2").await.unwrap();
        array.close().await;
        // The one that was left behind, and one more: they cannot know. One more is missing than may be.
        let refused = bench.try_open(&[0, 2]).await.err().expect("a stale minority");
        assert!(
            matches!(&refused, OpenError::TooManyMissing { missing } if missing == "d0, d2 are"),
            "{refused}"
        );
        let array = bench.open().await;
        assert_eq!(bytes(&array, "k").await.as_deref(), Some(&b"2"[..]));
        bench.whole(&array).await;
        array.close().await;
        let mut alone = bench.clone();
        alone.options.degraded = true;
        let array = alone.try_open(&[0, 2]).await.expect("told so");
        assert_eq!(bytes(&array, "k").await.as_deref(), Some(&b"2"[..]));
    });
}

/// What a member has of its roster and of a key, to put it back later.
async fn as_it_is(bench: &Bench, member: usize, key: &str) -> Vec<Op> {
    let roster = (placement::ROSTER, roster_key(&placement::tag(0, 1)));
    let role = (member + 3 - placement::primary(key.as_bytes(), 3)) % 3;
    let mut stores = Vec::new();
    for (held, key) in [roster, (container(DB, role), key.as_bytes().to_vec())] {
        let op = Op::Retrieve { container: held, key: key.clone(), range: None, pin: false };
        let Ok(Output::Found(item)) = execute(&bench.below[member], op).await else { panic!("it is there") };
        stores.push(store_in(held, std::str::from_utf8(&key).unwrap(), Value::from(item.bytes)));
    }
    stores
}

/// It was read as if it had missed nothing: an old copy of a device's file, put in its place while the server
/// was stopped.
#[test]
fn a_member_that_is_put_back_to_an_earlier_time_is_not_read_before_it_is_rebuilt() {
    run(async |reactor| {
        let bench = Bench::new(&reactor, 3, 3);
        let array = bench.open().await;
        set(&array, "k", b"old").await.unwrap();
        array.close().await;
        let mut earlier = Vec::new();
        for member in 0..3 {
            earlier.push(as_it_is(&bench, member, "k").await);
        }
        let array = bench.open().await;
        set(&array, "k", b"new").await.unwrap();
        array.close().await;
        let primary = placement::primary(b"k", 3);
        for op in &earlier[primary] {
            execute(&bench.below[primary], op.clone()).await.unwrap();
        }
        let array = bench.open().await;
        assert_eq!(array.status().members[primary].state, MemberState::Out);
        assert_eq!(bytes(&array, "k").await.as_deref(), Some(&b"new"[..]));
        bench.whole(&array).await;
        array.close().await;
        let array = bench.open().await;
        assert_eq!(array.status().members[primary].state, MemberState::In, "it is one of them again");
        array.close().await;
        // Two of three: which of them are right cannot be known. All of them: that was the array once.
        for op in earlier[..2].iter().flatten().zip([0, 0, 1, 1]) {
            execute(&bench.below[op.1], op.0.clone()).await.unwrap();
        }
        let refused = bench.try_open(&[]).await.err().expect("too few are left");
        assert!(
            refused.to_string().starts_with("d0 as it was last, d1 as it was last are missing"),
            "{refused}"
        );
        for op in &earlier[2] {
            execute(&bench.below[2], op.clone()).await.unwrap();
        }
        let array = bench.open().await;
        assert_eq!(bytes(&array, "k").await.as_deref(), Some(&b"old"[..]));
    });
}

/// Its reader asked for the others for ever.
#[test]
fn a_first_piece_whose_others_are_gone_is_no_value() {
    run(async |reactor| {
        let mut bench = Bench::split(&reactor, 3, 2, 1);
        bench.open().await.close().await;
        // There are two forms by then: what a value was made into its first piece tells.
        bench.options.policy = Mechanism::Replication { copies: 2 }.into();
        bench.open().await.close().await;
        bench.options.policy = bench.policies[0].clone();
        let array = bench.open().await;
        set(&array, "k", b"a value in shards").await.unwrap();
        let primary = placement::primary(b"k", 3);
        for role in 1..3 {
            let op =
                Op::Delete { container: container(DB, role), key: b"k".to_vec(), condition: Condition::None };
            execute(&bench.below[(primary + role) % 3], op).await.unwrap();
        }
        let read = execute(&array, super::retrieve_op(DB, "k")).await;
        assert!(matches!(&read, Err(Error::Unreadable(_))), "{read:?}");
    });
}

/// The server was killed between the making of a device and its taking another's place: it did not start
/// again.
#[test]
fn a_replacement_that_was_cut_short_is_finished_and_an_empty_device_is_no_member_that_was_in() {
    run(async |reactor| {
        let mut bench = Bench::new(&reactor, 3, 2);
        let array = bench.open().await;
        set(&array, "k", b"v").await.unwrap();
        array.close().await;
        let (id, member) = (bench.ids[1], (bench.below[1].clone(), bench.members[1].clone()));
        bench.fresh(1, 77);
        let refused = bench.try_open(&[]).await.err();
        assert_eq!(refused, Some(OpenError::Empty("d1".to_owned())));
        (bench.ids[1], (bench.below[1], bench.members[1])) = (id, member);
        bench.open().await.close().await;
        bench.try_open(&[1]).await.expect("two of three are there").close().await;
        bench.fresh(1, 78);
        let array = bench.open().await;
        assert_eq!(array.status().members[1].id, [78; 16]);
        bench.whole(&array).await;
        assert_eq!(bytes(&array, "k").await.as_deref(), Some(&b"v"[..]));
        array.close().await;
        assert_eq!(bench.open().await.status().members[1].state, MemberState::In);
    });
}

#[test]
fn what_a_crash_left_half_written_is_made_whole_before_it_is_seen() {
    run(async |reactor| {
        for newer_at in 0..3 {
            let bench = Bench::new(&reactor, 3, 3);
            let array = bench.open().await;
            set(&array, "k", b"old").await.unwrap();
            drop(array); // A crash.
            let version = Version { epoch: 1, clock: u64::MAX };
            let primary = placement::primary(b"k", 3);
            let header = Header {
                form: Form::Copies(3),
                role: newer_at as u8,
                version,
                value_bytes: 3,
                is_stub: false,
            };
            let store = store_in(container(DB, newer_at), "k", Value::from(header.before(b"new".to_vec())));
            let slot = Journal::new(&placement::tag(0, 1)).slot().await;
            let batch = Op::Batch(vec![store, slot.entry(DB, b"k")]);
            execute(&bench.below[(primary + newer_at) % 3], batch).await.unwrap();
            let array = bench.open().await;
            assert_eq!(bytes(&array, "k").await.as_deref(), Some(&b"new"[..]), "role {newer_at}");
            for member in 0..2 {
                array.take_out((primary + member) % 3, "for a test");
            }
            reactor.sleep_ns(1_000_000).await;
            assert_eq!(bytes(&array, "k").await.as_deref(), Some(&b"new"[..]), "on the last copy, too");
        }
    });
}

#[test]
fn a_member_formatted_anew_is_not_taken_for_what_it_was() {
    run(async |reactor| {
        let mut bench = Bench::new(&reactor, 3, 2);
        let array = bench.open().await;
        for number in 0..50 {
            set(&array, &format!("key:{number}"), b"v").await.unwrap();
        }
        array.close().await;
        bench.fresh(1, 2);
        let array = bench.open().await;
        for number in 0..50 {
            assert_eq!(bytes(&array, &format!("key:{number}")).await.as_deref(), Some(&b"v"[..]));
        }
        bench.whole(&array).await;
        let gone = execute(&array, super::retrieve_op(DB, "none")).await;
        assert_eq!(gone, Err(Error::NotFound));
    });
}

/// The start alone marked what was missing as having missed writes, and it was emptied when it came back:
/// values that had no other copy were gone, though nobody had written.
#[test]
fn a_start_does_not_give_up_what_stands_on_a_missing_member_alone() {
    run(async |reactor| {
        for (copies, missing) in [(1, vec![1]), (2, vec![1, 2])] {
            let mut bench = Bench::new(&reactor, 6, copies);
            let array = bench.open().await;
            let keys: Vec<String> = (0..40).map(|key| format!("k{key}")).collect();
            for key in &keys {
                set(&array, key, key.as_bytes()).await.unwrap();
            }
            array.close().await;
            let refused = bench.try_open(&missing).await.err().expect("values cannot be read");
            assert!(matches!(refused, OpenError::LosesValues { .. }), "{refused}");
            let array = bench.open().await;
            for key in &keys {
                assert_eq!(bytes(&array, key).await.as_deref(), Some(key.as_bytes()), "{copies} copies");
            }
            array.close().await;
            // Whoever says so gives that up, and no more; the next start asks nobody.
            bench.options.degraded = true;
            bench.try_open(&missing).await.expect("told so").close().await;
            bench.options.degraded = false;
            let array = bench.try_open(&missing).await.expect("nothing more is lost");
            let readable =
                |primary: usize| (0..copies as usize).any(|at| !missing.contains(&((primary + at) % 6)));
            for key in &keys {
                let read = execute(&array, super::retrieve_op(DB, key)).await;
                assert_eq!(
                    read.is_ok(),
                    readable(placement::primary(key.as_bytes(), 6)),
                    "{copies}: {read:?}"
                );
            }
        }
    });
}

/// Two members whose keys nobody else told were being resynchronised for ever, also when everything was
/// deleted; and keys of which too few pieces were left were not counted.
#[test]
fn what_is_lost_can_be_given_up() {
    run(async |reactor| {
        let mut bench = Bench::new(&reactor, 6, 2);
        let array = bench.open().await;
        let keys: Vec<String> = (0..40).map(|key| format!("k{key}")).collect();
        for key in &keys {
            set(&array, key, key.as_bytes()).await.unwrap();
        }
        array.close().await;
        bench.options.degraded = true;
        bench.try_open(&[1, 2]).await.expect("told so").close().await;
        [1, 2].into_iter().for_each(|member| drop(bench.fresh(member, 70 + member as u8)));
        let array = bench.open().await;
        reactor.sleep_ns(5_000_000_000).await;
        let states =
            |array: &crate::Array| array.status().members.iter().map(|m| m.state).collect::<Vec<_>>();
        assert!(states(&array)[1..3].iter().all(|state| *state == MemberState::Resyncing));
        let is_lost = |key: &&String| placement::primary(key.as_bytes(), 6) == 1;
        for key in keys.iter().filter(is_lost) {
            let read = execute(&array, super::retrieve_op(DB, key)).await;
            assert!(matches!(&read, Err(Error::Unreadable(_))), "never a wrong answer: {read:?}");
        }
        array.accept_loss();
        [1, 2].into_iter().for_each(|member| array.rebuild(member));
        bench.whole(&array).await;
        for key in &keys {
            let right = (!is_lost(&key)).then(|| key.as_bytes().to_vec());
            assert_eq!(bytes(&array, key).await, right);
        }
        let lost = keys.iter().filter(is_lost).count() as u64;
        assert!(lost > 0);
        assert_eq!(super::bench::keys(&array).await, 40 - lost);
        set(&array, "another", b"v").await.unwrap();
    });
}

#[test]
fn keys_that_cannot_be_read_are_counted() {
    run(async |reactor| {
        let bench = Bench::split(&reactor, 6, 4, 2);
        let array = bench.open().await;
        for key in 0..40 {
            set(&array, &format!("k{key}"), b"a value in shards").await.unwrap();
        }
        for member in 0..3 {
            array.take_out_now(member, "it is lost").await.unwrap();
        }
        for key in 0..40 {
            let read = execute(&array, super::retrieve_op(DB, &format!("k{key}"))).await;
            assert!(matches!(&read, Err(Error::Unreadable(_))), "{read:?}");
            assert_eq!(super::bench::keys(&array).await, 40, "after {key} were asked for");
        }
    });
}

/// One rotten record of one device kept the whole array from starting.
#[test]
fn a_device_whose_roster_cannot_be_read_counts_as_missing() {
    run(async |reactor| {
        let mut bench = Bench::new(&reactor, 3, 3);
        let rot = Error::Unreadable("rot".to_owned());
        let faults = [0, 1, 2].map(|member| bench.fails(member, &rot));
        let array = bench.open().await;
        set(&array, "k", b"v").await.unwrap();
        array.close().await;
        let is_roster =
            |op: &Op| matches!(op, Op::Retrieve { key, .. } if *key == roster_key(&placement::tag(0, 1)));
        let rots = || FaultPolicy::When(Box::new(move |request: &Request| is_roster(&request.op)));
        faults[1].set_policy(rots());
        let array = bench.open().await;
        let members = array.status().members;
        assert_eq!(members[1].state, MemberState::Out, "{members:?}");
        assert!(members[1].reason.contains("its roster cannot be read"), "{members:?}");
        assert_eq!(bytes(&array, "k").await.as_deref(), Some(&b"v"[..]));
        set(&array, "k", b"w").await.unwrap();
        array.close().await;
        // It can be read again: it is given what it lacks.
        faults[1].set_policy(FaultPolicy::Never);
        let array = bench.open().await;
        bench.whole(&array).await;
        assert_eq!(bytes(&array, "k").await.as_deref(), Some(&b"w"[..]));
        array.close().await;
        faults.iter().for_each(|fault| fault.set_policy(rots()));
        let refused = bench.try_open(&[]).await.err();
        assert!(matches!(&refused, Some(OpenError::Device { .. })), "{refused:?}");
    });
}

/// Each start compared every key, as long as no write took the slot, and said that devices had been full.
#[test]
fn what_has_rotted_of_the_journal_is_taken_away() {
    run(async |reactor| {
        let mut bench = Bench::new(&reactor, 3, 3);
        let fault = bench.fails(1, &Error::Unreadable("rot".to_owned()));
        for (is_rotten, is_taken_away) in [(is_journal as fn(&Op) -> bool, true), (is_mark, false)] {
            let array = bench.open().await;
            set(&array, "k", b"v").await.unwrap();
            array.close().await;
            fault.set_policy(FaultPolicy::When(Box::new(move |request| is_rotten(&request.op))));
            let array = bench.open().await;
            assert!(array.distrusted.get(), "any key may have been at work");
            while array.distrusted.get() {
                reactor.sleep_ns(1_000_000).await;
            }
            assert_eq!(bytes(&array, "k").await.as_deref(), Some(&b"v"[..]));
            array.close().await;
            // A mark is written again; an entry is gone: whoever listed it would find it rotten.
            if !is_taken_away {
                fault.set_policy(FaultPolicy::Never);
            }
            let array = bench.open().await;
            assert!(!array.distrusted.get(), "once is enough");
            assert!(array.all_in());
            array.close().await;
            fault.set_policy(FaultPolicy::Never);
        }
    });
}

fn is_journal(op: &Op) -> bool {
    matches!(op, Op::Retrieve { container: placement::JOURNAL, .. })
}

fn is_mark(op: &Op) -> bool {
    matches!(op, Op::Exist { container: placement::ROSTER, .. })
}
