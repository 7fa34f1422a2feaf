//! Arrays whose members' memory is not asked: which requests that costs, and that nothing else is different.
//!
//! What stands between the array and a member fails the test if an array that is `stateless` asks it for what
//! it has in memory.

use super::bench::{Asked, Bench, bytes, del, get, keys, run, set};
use super::parts::long;
use super::scripts::{Leavings, crash, roles_of, settled};
use super::sizes::{PAIRS, SCRIPTS, bench};
use crate::{Array, Mechanism, MemberState, Policy};
use crate::{SizeRange, placement};
use futures_util::future::join_all;
use plimsoll_kv::Error;
use plimsoll_reactor::Reactor;
use std::rc::Rc;

const HASHING: Mechanism = Mechanism::Hashing;
const COPIES: Mechanism = Mechanism::Replication { copies: 3 };
const SPLITTING: Mechanism = Mechanism::Splitting { data: 4, parities: 2 };
const PACKING: Mechanism = Mechanism::Packing { data: 4, parities: 2 };

/// Members of which values of up to 100 bytes are protected so, and longer ones in the other way, if there
/// is one.
fn members(reactor: &Reactor, small: Mechanism, large: Option<Mechanism>, stateless: bool) -> Bench {
    let range = |value_bytes_max, mechanism| SizeRange { value_bytes_max, mechanism };
    let policy = match large {
        Some(large) => Policy::by_size(&[range(100, small), range(u64::MAX, large)]).unwrap(),
        None => small.into(),
    };
    let mut bench = Bench::by_size(reactor, 6, &[policy]);
    bench.options.stateless = stateless;
    bench
}

fn asked(reads: u64, writes: u64) -> Asked {
    Asked { reads, writes, behind: 0 }
}

/// The requests of a store, an update, a retrieve, a delete, and a delete of what is not there.
async fn requests(bench: &Bench) -> [Asked; 5] {
    let array = bench.open().await;
    set(&array, "another", b"before it").await.unwrap();
    settled(&bench.reactor).await;
    bench.asked();
    set(&array, "k", &long(40, 1)).await.unwrap();
    let stored = bench.asked();
    settled(&bench.reactor).await;
    assert_eq!(bench.asked(), asked(0, 0), "nothing was replaced");
    set(&array, "k", &long(50, 2)).await.unwrap();
    let updated = bench.asked();
    settled(&bench.reactor).await;
    bench.asked();
    assert_eq!(bytes(&array, "k").await, Some(long(50, 2)));
    let retrieved = bench.asked();
    del(&array, "k").await.unwrap();
    let deleted = bench.asked();
    settled(&bench.reactor).await;
    bench.asked();
    assert_eq!(del(&array, "k").await, Err(Error::NotFound));
    [stored, updated, retrieved, deleted, bench.asked()]
}

/// The paper's: in its hybrid mode each store and each delete reads the primary before.
#[test]
fn a_write_of_several_forms_reads_the_primary_once_more_and_of_one_form_nothing() {
    run(async |reactor| {
        let others = [(HASHING, COPIES, 1, 1), (COPIES, SPLITTING, 3, 1), (SPLITTING, COPIES, 6, 4)];
        for (mechanism, other, pieces, needed) in others {
            for stateless in [false, true] {
                let alone = requests(&members(&reactor, mechanism, None, stateless)).await;
                let retrieved = asked(needed, 0);
                let write = asked(0, pieces);
                assert_eq!(alone, [write, write, retrieved, write, write], "{mechanism}");
                let mixed = requests(&members(&reactor, mechanism, Some(other), stateless)).await;
                let read = u64::from(stateless);
                let (write, sure) = (asked(read, pieces), pieces.min(other.form().roles() as u64));
                let absent = asked(read, sure);
                assert_eq!(mixed, [write, write, retrieved, write, absent], "{mechanism} beside {other}");
            }
        }
    });
}

/// What is left of the version before goes by what was read of it, and nobody else is asked to delete it.
#[test]
fn what_was_read_before_says_what_has_to_go() {
    run(async |reactor| {
        for (small, large, left) in [(HASHING, COPIES, 2), (COPIES, SPLITTING, 3), (HASHING, SPLITTING, 5)] {
            let bench = members(&reactor, small, Some(large), true);
            let array = bench.open().await;
            set(&array, "k", &long(400, 1)).await.unwrap();
            bench.asked();
            set(&array, "k", &long(4, 2)).await.unwrap();
            let pieces = small.form().roles() as u64;
            assert_eq!(bench.asked(), asked(1, pieces), "{small} after {large}");
            settled(&reactor).await;
            // It is given up by who has the new one, and deleted by the others.
            assert_eq!(bench.asked(), Asked { behind: pieces + left, ..asked(0, 0) });
            assert_eq!(roles_of(&bench, "k").await, (0..pieces as usize).collect::<Vec<_>>());
            // The other way round nothing is left.
            set(&array, "k", &long(400, 3)).await.unwrap();
            bench.asked();
            settled(&reactor).await;
            let pieces = large.form().roles() as u64;
            assert_eq!(bench.asked(), Asked { behind: pieces, ..asked(0, 0) });
        }
    });
}

/// Four keys with a primary each, of which no two are the same.
fn four(round: usize) -> Vec<String> {
    let named = |primary: usize| {
        let names = (0..).map(|number| format!("{round}:{number}"));
        let mut its = names.filter(|name| placement::primary(name.as_bytes(), 6) == primary);
        its.next().expect("there are names without end")
    };
    (round..round + 4).map(|primary| named(primary % 6)).collect()
}

async fn set_four(array: &Rc<Array>, round: usize, generation: u8) {
    let names = four(round);
    let each = names.iter().map(async |name| set(array, name, &long(40, generation)).await.unwrap());
    join_all(each).await;
}

/// The paper's packing reads each object's primary before and stores 14 records of four.
#[test]
fn four_stores_that_are_packed_read_four_primaries_and_make_six_requests() {
    run(async |reactor| {
        for (other, stateless) in [(None, false), (None, true), (Some(COPIES), false), (Some(COPIES), true)] {
            let bench = members(&reactor, PACKING, other, stateless);
            let array = bench.open().await;
            // Until others are to be expected nobody waits for them.
            for round in 0..40 {
                set_four(&array, round, 1).await;
            }
            let context = format!("beside {other:?}, stateless: {stateless}");
            bench.asked();
            set_four(&array, 100, 1).await;
            let stored = bench.asked();
            assert_eq!((stored.reads, stored.writes), (4 * u64::from(stateless), 6), "{context}");
            set_four(&array, 100, 2).await;
            let updated = bench.asked();
            assert_eq!((updated.reads, updated.writes), (4, 6), "{context}");
            let name = &four(100)[0];
            assert_eq!(bytes(&array, name).await, Some(long(40, 2)));
            assert_eq!(bench.asked().reads, 1);
            // Where it says which its set is, for which its member keeps the value where it is; of several
            // forms its header before.
            del(&array, name).await.unwrap();
            let (deleted, reads) = (bench.asked(), 1 + u64::from(stateless && other.is_some()));
            assert_eq!((deleted.reads, deleted.writes), (reads, 3), "{context}");
        }
    });
}

/// A value of another form is in no set: its header says so, and nobody else is asked.
#[test]
fn what_is_not_packed_is_read_once_beside_what_is() {
    run(async |reactor| {
        for stateless in [false, true] {
            let bench = members(&reactor, COPIES, Some(PACKING), stateless);
            let [stored, updated, _, deleted, absent] = requests(&bench).await;
            let read = u64::from(stateless);
            assert_eq!([stored, updated], [asked(read, 3), asked(1, 3)]);
            // Memory cannot tell what a piece in the second role is.
            assert_eq!([deleted, absent], [asked(1, 3), asked(read, 3)]);
            let bench = members(&reactor, HASHING, Some(PACKING), stateless);
            let [stored, updated, _, deleted, absent] = requests(&bench).await;
            assert_eq!([stored, updated, deleted, absent], [asked(read, 1); 4]);
        }
    });
}

#[test]
fn a_crash_between_any_two_requests_leaves_one_whole_version_without_memory() {
    run(async |reactor| {
        let packed = [(HASHING, PACKING), (PACKING, COPIES)];
        for (pair, script) in
            PAIRS.into_iter().chain(packed).flat_map(|pair| SCRIPTS.map(|script| (pair, script)))
        {
            for leavings in [Leavings::GoBetween, Leavings::GoBeside, Leavings::Wait] {
                let mut nth = 1;
                let without_memory = || {
                    let mut bench = bench(&reactor, pair.0, pair.1);
                    bench.options.stateless = true;
                    bench
                };
                while crash(without_memory(), (script, leavings), |bench| bench.dies_at(nth, |_| true)).await
                {
                    nth += 1;
                }
            }
        }
    });
}

#[test]
fn a_primary_that_does_not_answer_holds_up_no_write_for_good() {
    run(async |reactor| {
        for other in [HASHING, SPLITTING] {
            let bench = members(&reactor, other, Some(COPIES), true);
            let array = bench.open().await;
            set(&array, "k", &long(400, 1)).await.unwrap();
            let primary = placement::primary(b"k", 6);
            bench.loses(primary, |_| true);
            let begun_ns = reactor.now_ns();
            set(&array, "k", &long(401, 2)).await.unwrap();
            assert!(reactor.now_ns() - begun_ns < 30_000_000_000, "beside {other}");
            assert_eq!(array.status().members[primary].state, MemberState::Out);
            assert_eq!(bytes(&array, "k").await, Some(long(401, 2)));
        }
    });
}

/// A condition was judged by a look that told the form, too.
#[test]
fn what_was_looked_at_is_not_read_again() {
    run(async |reactor| {
        let bench = members(&reactor, COPIES, Some(SPLITTING), true);
        let array = bench.open().await;
        set(&array, "k", &long(400, 1)).await.unwrap();
        let version = get(&array, "k").await.unwrap().version;
        bench.asked();
        let mut op = super::bench::store_op("k", plimsoll_kv::Value::from(long(4, 2)));
        if let plimsoll_kv::Op::Store { condition, .. } = &mut op {
            *condition = plimsoll_kv::Condition::IfVersion(version);
        }
        super::bench::execute(&array, op).await.unwrap();
        assert_eq!(bench.asked(), asked(1, 3));
        settled(&reactor).await;
        assert_eq!((roles_of(&bench, "k").await, keys(&array).await), (vec![0, 1, 2], 1));
    });
}
