//! Opening: who belongs to an array, who is missing, and what was half done.

use super::bench::{Bench, DB, bytes, execute, run, set, store_in};
use crate::header::Header;
use crate::journal::Journal;
use crate::placement::{self, container};
use crate::{MemberState, OpenError, is_member};
use plimsoll_kv::{Device, Error, Form, Op, Value, Version};
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
