//! What may be half written when an array is opened is named on every member.

use super::bench::{Bench, DB, bytes, execute, run, set};
use super::packing::listed;
use crate::journal::named;
use crate::placement::{self, JOURNAL};
use futures_util::future::join_all;
use plimsoll_kv::fault::FaultPolicy;
use plimsoll_kv::{Op, Output};
use plimsoll_reactor::Reactor;
use std::collections::BTreeSet;

const MS: u64 = 1_000_000;

/// Keys that a member names.
async fn names(bench: &Bench, member: usize) -> BTreeSet<Vec<u8>> {
    let mut names = BTreeSet::new();
    for key in listed(bench, member, JOURNAL).await {
        let op = Op::Retrieve { container: JOURNAL, key, range: None, pin: false };
        let Ok(Output::Found(item)) = execute(&bench.below[member], op).await else { panic!("it is listed") };
        let (container, key) = named(&item.bytes).expect("it names a key");
        assert_eq!(container, DB);
        names.insert(key);
    }
    names
}

/// A key of the first of three devices, of which that alone has the newest.
async fn half_written(reactor: &Reactor, bench: &Bench) -> String {
    let array = bench.open().await;
    let mut keys = (0..).map(|number| format!("key:{number}"));
    let key = keys.find(|key| placement::primary(key.as_bytes(), 3) == 0).unwrap();
    set(&array, &key, b"old").await.unwrap();
    for number in 0..20 {
        set(&array, &format!("other:{number}"), b"v").await.unwrap();
    }
    [1, 2].into_iter().for_each(|member| bench.loses(member, |_| true));
    let name = key.clone();
    reactor.spawn(plimsoll_reactor::Work::Kv, async move {
        let _ = set(&array, &name, b"new").await;
    });
    reactor.sleep_ns(MS).await;
    let names_it = async |member| names(bench, member).await.contains(key.as_bytes());
    assert!(names_it(0).await && !names_it(1).await);
    key
}

#[test]
fn what_one_device_names_all_do_after_a_start_and_no_more_slots_are_used_for_it() {
    run(async |reactor| {
        let bench = Bench::new(&reactor, 3, 3);
        let key = half_written(&reactor, &bench).await;
        let mut slots = Vec::new();
        for _ in 0..9 {
            bench.open().await;
            for member in 0..3 {
                assert!(names(&bench, member).await.contains(key.as_bytes()), "{member}");
            }
            slots.push(listed(&bench, 1, JOURNAL).await.len());
        }
        assert!(slots.iter().all(|count| *count == slots[0]), "{slots:?}");
    });
}

/// Names that were made by a start stay for ever, and with more devices than a value stands on, whose writes
/// are named on some alone, each start made others: after a few there were none left (found by reading).
#[test]
fn starts_do_not_run_out_of_slots() {
    run(async |reactor| {
        let bench = Bench::new(&reactor, 7, 3);
        let mut counts = Vec::new();
        for start in 0..12 {
            let array = bench.open().await;
            assert!(!array.distrusted.get());
            let each = (0..100).map(|number| format!("key:{number}"));
            join_all(each.map(async |key| set(&array, &key, &[start; 9]).await.unwrap())).await;
            reactor.sleep_ns(1000 * MS).await;
            counts.push(listed(&bench, 1, JOURNAL).await.len());
        }
        assert!(counts[1..].iter().all(|count| *count == counts[0]), "{counts:?}");
    });
}

/// What makes a key whole names it nowhere: cut short, and without the device that named it, two others
/// differed, and nobody knew (found by reading).
#[test]
fn what_one_device_named_is_known_when_that_is_lost_with_a_start_that_was_cut_short() {
    run(async |reactor| {
        let mut seen = BTreeSet::new();
        for nth in 1..60 {
            for fails in [1, 2] {
                let bench = Bench::new(&reactor, 3, 3);
                let key = half_written(&reactor, &bench).await;
                let array = bench.open().await;
                bench.dies_at(nth, |_| true);
                reactor.sleep_ns(20 * MS).await;
                drop(array);
                let array = bench.try_open(&[0]).await.expect("two of three are there");
                let read = bytes(&array, &key).await;
                assert!(matches!(read.as_deref(), Some(b"old" | b"new")), "{read:?}");
                bench.members[fails].set_policy(FaultPolicy::From(1));
                assert_eq!(bytes(&array, &key).await, read, "without {fails}, cut at {nth}");
                seen.insert(read);
            }
        }
        assert_eq!(seen.len(), 2, "it was old in some, and new in others");
    });
}
