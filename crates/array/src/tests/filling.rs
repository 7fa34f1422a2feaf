//! Filling: a new device gets what it should hold of sets, each of which is told once.

use super::bench::{DB, del, run, set};
use super::packing::{bench, check, fill, found_sets, listed, settled, value};
use crate::placement::{JOURNAL, sets};
use futures_util::TryStreamExt;
use futures_util::future::join_all;
use plimsoll_kv::fault::FaultPolicy;
use plimsoll_kv::{Error, Op, Request};
use std::collections::BTreeSet;

#[test]
fn each_set_is_told_once_by_all_that_hold_it() {
    run(async |reactor| {
        let bench = bench(&reactor, 6, 4, 2);
        let array = bench.open().await;
        for some in (0..2_400).collect::<Vec<_>>().chunks(48) {
            let each = some.iter().map(async |number| set(&array, &format!("n:{number}"), b"a value").await);
            join_all(each).await.into_iter().for_each(|stored| drop(stored.unwrap()));
        }
        settled(&reactor).await;
        let told: Vec<_> = array.each_set(DB).try_collect().await.unwrap();
        let (sets, ghosts) = found_sets(&bench).await;
        assert!(sets.len() > 2 * crate::walk::PAGE_KEYS && ghosts == 0, "{} sets", sets.len());
        let names: BTreeSet<_> = told.iter().map(|(name, _)| *name).collect();
        assert_eq!((told.len(), names), (sets.len(), sets.iter().map(|set| set.name).collect()));
        for (name, members) in &told {
            let set = sets.iter().find(|set| set.name == *name).unwrap();
            let holders: BTreeSet<usize> = set.holders.iter().map(|holder| usize::from(*holder)).collect();
            assert_eq!(holders, members.iter().copied().collect());
        }
    });
}

/// Values that their sets go on needing were overwritten, before the device went and while it was out: the
/// new one has what the sets need of it, too.
#[test]
fn a_new_device_has_what_sets_need_of_it_whatever_was_overwritten() {
    for lost in 0..6 {
        run(move |reactor| async move {
            let mut bench = bench(&reactor, 6, 4, 2);
            let array = bench.open().await;
            fill(&array, 180, 1).await;
            settled(&reactor).await;
            for number in (0..180).step_by(7) {
                set(&array, &format!("key:{number}"), &value(number, 2)).await.unwrap();
            }
            array.take_out(lost, "for a test");
            reactor.sleep_ns(1_000_000).await;
            for number in (0..180).step_by(5) {
                set(&array, &format!("key:{number}"), &value(number, 3)).await.unwrap();
            }
            let fresh = bench.fresh(lost, 77);
            array.replace(lost, fresh).await.unwrap();
            bench.whole(&array).await;
            for other in [lost + 1, lost + 2] {
                array.take_out(other % 6, "for a test");
                reactor.sleep_ns(1_000_000).await;
            }
            for number in 0..180 {
                let age = if number % 5 == 0 { 3 } else { 1 + u8::from(number % 7 == 0) };
                let found = super::bench::bytes(&array, &format!("key:{number}")).await;
                assert_eq!(
                    found,
                    Some(value(number, age)),
                    "key:{number}, without {lost} and its neighbours"
                );
            }
        });
    }
}

/// All that were lost one after the other are filled from what the ones before them were given.
#[test]
fn devices_that_are_replaced_one_after_the_other_lose_nothing() {
    run(async |reactor| {
        let mut bench = bench(&reactor, 6, 4, 2);
        let array = bench.open().await;
        fill(&array, 180, 1).await;
        settled(&reactor).await;
        for member in 0..6 {
            let fresh = bench.fresh(member, 80 + member as u8);
            array.replace(member, fresh).await.unwrap();
            bench.whole(&array).await;
            check(&array, 180, 1).await;
        }
        array.take_out(2, "for a test");
        array.take_out(5, "for a test");
        reactor.sleep_ns(1_000_000).await;
        check(&array, 180, 1).await;
    });
}

/// It fails for good, and as nobody writes it is in: others tell what it cannot (seeds 7513, 8310, 8973).
#[test]
fn a_device_whose_sets_cannot_be_told_keeps_no_other_from_coming_in() {
    run(async |reactor| {
        let mut bench = bench(&reactor, 6, 4, 2);
        let fails = bench.fails(4, &Error::Unreadable("broken for a test".to_owned()));
        let array = bench.open().await;
        fill(&array, 90, 1).await;
        settled(&reactor).await;
        let reads = |request: &Request| matches!(request.op, Op::List { .. } | Op::Retrieve { .. });
        fails.set_policy(FaultPolicy::When(Box::new(reads)));
        let fresh = bench.fresh(1, 77);
        array.replace(1, fresh).await.unwrap();
        bench.whole(&array).await;
        assert!(array.status().members[4].failed_requests > 0);
        check(&array, 90, 1).await;
        array.take_out(3, "for a test");
        reactor.sleep_ns(1_000_000).await;
        check(&array, 90, 1).await;
        // What three do not tell others may not have either.
        assert!(array.each_set(DB).try_collect::<Vec<_>>().await.is_ok());
        array.take_out(2, "for a test");
        reactor.sleep_ns(1_000_000).await;
        assert!(array.each_set(DB).try_collect::<Vec<_>>().await.is_err());
    });
}

/// Values that stand as copies are found by what others tell.
#[test]
fn a_device_whose_keys_cannot_be_told_keeps_no_value_from_being_packed() {
    run(async |reactor| {
        let mut bench = bench(&reactor, 6, 4, 2);
        let fails = bench.fails(4, &Error::Unreadable("broken for a test".to_owned()));
        let array = bench.open().await;
        array.take_out(1, "for a test");
        reactor.sleep_ns(1_000_000).await;
        fill(&array, 90, 1).await;
        let fresh = bench.fresh(1, 77);
        array.replace(1, fresh).await.unwrap();
        bench.whole(&array).await;
        assert!(found_sets(&bench).await.0.is_empty(), "nothing is packed while a device is out");
        // Nobody knows any more what waited to be packed.
        let lists_keys = |op: &Op| matches!(op, Op::List { container, .. } if *container != JOURNAL);
        fails.set_policy(FaultPolicy::When(Box::new(move |request| lists_keys(&request.op))));
        let array = bench.open().await;
        settled(&reactor).await;
        let (found, _) = found_sets(&bench).await;
        let packed: usize = found.iter().map(|set| set.values.len()).sum();
        assert!(packed > 80, "{packed} of 90 are packed");
        for number in 0..90 {
            let given = super::bench::bytes(&array, &format!("key:{number}")).await;
            assert_eq!(given, Some(value(number, 1)), "key:{number}");
        }
    });
}

/// Those of which the set cannot be told when they are made, as who would know is out, go with what they
/// were kept for (seeds 3465, 3834, 5856).
#[test]
fn ghosts_that_nobody_needs_go_though_a_device_is_out() {
    run(async |reactor| {
        let bench = bench(&reactor, 4, 2, 1);
        let array = bench.open().await;
        fill(&array, 90, 1).await;
        settled(&reactor).await;
        array.take_out(2, "for a test");
        reactor.sleep_ns(1_000_000).await;
        for number in (0..90).filter(|number| number % 4 != 0) {
            del(&array, &format!("key:{number}")).await.unwrap();
        }
        let scrubbed = async || {
            array.scrub();
            settled(&reactor).await;
            assert!(!array.status().scrubbing);
        };
        scrubbed().await;
        for number in (0..90).step_by(4) {
            let given = super::bench::bytes(&array, &format!("key:{number}")).await;
            assert_eq!(given, Some(value(number, 1)), "key:{number} goes on needing some");
        }
        for number in (0..90).step_by(4) {
            del(&array, &format!("key:{number}")).await.unwrap();
        }
        scrubbed().await;
        scrubbed().await;
        for member in [0, 1, 3] {
            assert_eq!(listed(&bench, member, sets(DB)).await, Vec::<Vec<u8>>::new(), "of {member}");
        }
    });
}
