//! A scrub that the end of the server cuts short goes on where it was.

use super::bench::{Bench, DB, execute, run, set, store_in};
use super::packing::{bench, listed, settled};
use crate::Array;
use crate::placement::{self, ROSTER, container, sets};
use plimsoll_kv::{Condition, Op, Value};
use plimsoll_reactor::Reactor;
use std::rc::Rc;

const MS: u64 = 1_000_000;

/// An array of 1500 keys, of each of which one copy is spoilt, and a scrub that is through half of them.
async fn half_scrubbed(reactor: &Reactor, bench: &mut Bench) -> Rc<Array> {
    bench.options.rebuild_bytes_per_s = 100_000;
    let array = bench.open().await;
    for number in 0..1500 {
        let key = format!("key:{number}");
        set(&array, &key, &[7; 100]).await.unwrap();
        let role = number % 3;
        let member = (placement::primary(key.as_bytes(), 3) + role) % 3;
        let spoilt = store_in(container(DB, role), &key, Value::from(b"\xd1rubbish".to_vec()));
        execute(&bench.below[member], spoilt).await.unwrap();
    }
    array.scrub();
    while array.status().keys_scrubbed < 2000 {
        reactor.sleep_ns(MS).await;
    }
    array
}

async fn has_ended(reactor: &Reactor, array: &Rc<Array>) {
    while array.status().scrubbing {
        reactor.sleep_ns(MS).await;
    }
}

/// Whether a member says how far a scrub is.
async fn says(bench: &Bench, member: usize) -> bool {
    listed(bench, member, ROSTER).await.contains(&b"{0}scrubbed".to_vec())
}

#[test]
fn what_was_compared_before_a_crash_is_not_compared_again() {
    run(async |reactor| {
        let mut bench = Bench::new(&reactor, 3, 3);
        let array = half_scrubbed(&reactor, &mut bench).await;
        let before = array.status();
        bench.options.rebuild_bytes_per_s = 0;
        let array = bench.open().await;
        let status = array.status();
        assert!(status.scrubbing && (1700..=2010).contains(&status.keys_scrubbed), "{status:?}");
        has_ended(&reactor, &array).await;
        let status = array.status();
        assert_eq!((status.keys_scrubbed, status.keys_to_scrub), (4500, 4500));
        // What it had mended behind the page that it noted last is right by now, and not counted.
        assert!((1500 - 256..=1500).contains(&status.scrub_errors), "{status:?}");
        let mended: u64 = [before, status].iter().flat_map(|it| &it.members).map(|it| it.repaired).sum();
        assert_eq!(mended, 1500);
        assert!(!says(&bench, 1).await, "it has ended");
        assert!(!bench.open().await.status().scrubbing);
    });
}

/// Cut short while it looks through sets it looks through all of them.
#[test]
fn a_scrub_that_was_at_sets_goes_through_all_of_them() {
    run(async |reactor| {
        let mut bench = bench(&reactor, 6, 4, 2);
        bench.options.rebuild_bytes_per_s = 20_000;
        let array = bench.open().await;
        for number in 0..100 {
            set(&array, &format!("key:{number}"), &[7; 100]).await.unwrap();
        }
        settled(&reactor).await;
        let mut removed = 0;
        for member in 0..6 {
            for key in listed(&bench, member, sets(DB)).await.into_iter().step_by(4) {
                let delete = Op::Delete { container: sets(DB), key, condition: Condition::None };
                execute(&bench.below[member], delete).await.unwrap();
                removed += 1;
            }
        }
        array.scrub();
        let repaired =
            |array: &Rc<Array>| -> u64 { array.status().members.iter().map(|member| member.repaired).sum() };
        while repaired(&array) < 3 {
            reactor.sleep_ns(MS / 10).await;
        }
        let before = repaired(&array);
        assert!(array.status().scrubbing && before < removed, "it is at sets: {before} of {removed}");
        let array = bench.open().await;
        let status = array.status();
        assert!(status.scrubbing && status.keys_scrubbed == 300, "{status:?}");
        has_ended(&reactor, &array).await;
        // What was under way has been written, and not counted.
        assert!(repaired(&array) > 0 && before + repaired(&array) <= removed);
        array.scrub();
        has_ended(&reactor, &array).await;
        assert_eq!(array.status().scrub_errors, 0);
    });
}

/// Where nothing says which keys may be half written every scrub begins anew.
#[test]
fn an_array_that_is_distrusted_is_scrubbed_from_its_beginning() {
    run(async |reactor| {
        let mut bench = Bench::new(&reactor, 3, 3);
        let array = half_scrubbed(&reactor, &mut bench).await;
        drop(array);
        assert!(says(&bench, 0).await);
        let mark = Op::Delete { container: ROSTER, key: b"{0}named".to_vec(), condition: Condition::None };
        execute(&bench.below[0], mark).await.unwrap();
        let array = bench.open().await;
        assert!(array.distrusted.get() && array.status().keys_scrubbed < 100, "{:?}", array.status());
        has_ended(&reactor, &array).await;
        assert_eq!((array.status().keys_scrubbed, says(&bench, 0).await), (4500, false));
    });
}
