//! Deletes of packed values that go to a member together.

use super::bench::{Bench, bytes, del, get, keys, run, set};
use super::packing::{bench, check, fill, found_sets, settled, value};
use super::slow;
use super::slow::Late;
use crate::{Array, MemberState};
use futures_util::future::join_all;
use plimsoll_kv::fault::{FaultDevice, FaultPolicy};
use plimsoll_kv::{Error, Op, Output, Request, Result};
use plimsoll_reactor::Reactor;
use std::rc::Rc;

const KEYS: usize = 48;
/// What each request to a member takes: long enough that others come meanwhile.
const BUSY_NS: u64 = 100_000;

/// Values that are packed, on devices that are busy for a while with each request.
async fn packed(reactor: &Reactor, bench: &Bench) -> (Rc<Array>, Vec<Rc<Late>>) {
    let (array, late) = slow::open(reactor, bench).await;
    late.iter().for_each(|late| late.late_ns.set(BUSY_NS));
    fill(&array, KEYS, 1).await;
    settled(reactor).await;
    (array, late)
}

/// Deletes keys, all at once.
async fn delete(array: &Rc<Array>, numbers: impl Iterator<Item = usize>) -> Vec<Result<Output>> {
    join_all(numbers.map(async |number| del(array, &format!("key:{number}")).await)).await
}

/// Operations of a request.
fn ops(request: &Request) -> usize {
    match &request.op {
        Op::Batch(ops) => ops.len(),
        _ => 1,
    }
}

#[test]
fn deletes_that_come_together_ask_each_member_once() {
    run(async |reactor| {
        let bench = bench(&reactor, 6, 4, 2);
        let (array, _) = packed(&reactor, &bench).await;
        bench.asked();
        assert!(delete(&array, 0..KEYS / 2).await.iter().all(Result::is_ok));
        let asked = bench.asked();
        assert!(asked.writes <= KEYS as u64 / 2, "three for each would be {}: {asked:?}", 3 * KEYS / 2);
        for number in 0..KEYS {
            let expected = (number >= KEYS / 2).then(|| value(number, 1));
            assert_eq!(bytes(&array, &format!("key:{number}")).await, expected);
        }
        assert!(delete(&array, KEYS / 2..KEYS).await.iter().all(Result::is_ok));
        settled(&reactor).await;
        assert_eq!(keys(&array).await, 0);
        assert_eq!(found_sets(&bench).await, (Vec::new(), 0), "nothing is left of their sets");
    });
}

/// The server dies at any request to any member while keys are deleted together; then two devices are lost.
#[test]
fn a_crash_while_keys_are_deleted_together_takes_none_but_those() {
    run(async |reactor| {
        for nth in 1.. {
            let bench = bench(&reactor, 6, 4, 2);
            let (array, _) = packed(&reactor, &bench).await;
            bench.dies_at(nth, |_| true);
            let done = delete(&array, (0..KEYS).filter(|number| number % 3 == 0)).await;
            let array = bench.open().await;
            for member in [nth % 6, (nth + 1 + nth / 6 % 5) % 6] {
                bench.members[member].set_policy(FaultPolicy::From(1));
            }
            for number in 0..KEYS {
                let given = match get(&array, &format!("key:{number}")).await {
                    Ok(item) => Some(item.bytes),
                    Err(Error::NotFound) => None,
                    Err(error) => panic!("key:{number} after a crash at {nth}: {error}"),
                };
                let is_gone = number % 3 == 0 && done[number / 3].is_ok();
                assert!(given.is_none() || !is_gone, "key:{number} came back after a crash at {nth}");
                assert!(
                    given == Some(value(number, 1)) || number % 3 == 0 && given.is_none(),
                    "key:{number} after a crash at {nth}: {given:?}"
                );
            }
            if done.iter().all(Result::is_ok) {
                assert!(nth > 30, "{nth}");
                break;
            }
        }
    });
}

#[test]
fn keys_that_are_not_there_are_told_so_and_the_others_go() {
    run(async |reactor| {
        let bench = bench(&reactor, 6, 4, 2);
        let (array, _) = packed(&reactor, &bench).await;
        let done = delete(&array, (0..KEYS).chain(KEYS..KEYS + 10)).await;
        assert!(done[..KEYS].iter().all(Result::is_ok), "{done:?}");
        assert!(done[KEYS..].iter().all(|done| *done == Err(Error::NotFound)), "{done:?}");
        assert_eq!(keys(&array).await, 0);
    });
}

/// A member has no room for what several ask of it, and has for each by itself.
#[test]
fn nobody_is_refused_for_the_sake_of_others() {
    run(async |reactor| {
        let mut bench = bench(&reactor, 6, 4, 2);
        let small = FaultDevice::new(bench.below[2].clone(), FaultPolicy::Never, Error::NoSpace);
        bench.members[2] = small.clone();
        let (array, _) = packed(&reactor, &bench).await;
        small.set_policy(FaultPolicy::When(Box::new(|request| ops(request) > 3)));
        assert!(delete(&array, 0..KEYS / 2).await.iter().all(Result::is_ok));
        assert!(small.failed() > 0, "several were refused together");
        small.set_policy(FaultPolicy::Never);
        assert_eq!(array.status().unsettled, 0);
        assert_eq!(array.status().members[2].state, MemberState::In);
        assert_eq!(keys(&array).await, (KEYS - KEYS / 2) as u64);
    });
}

#[test]
fn a_member_that_fails_while_keys_are_deleted_together_is_out_and_they_are_gone() {
    run(async |reactor| {
        for nth in 1.. {
            let bench = bench(&reactor, 6, 4, 2);
            let (array, _) = packed(&reactor, &bench).await;
            let mut left = nth;
            bench.members[3].set_policy(FaultPolicy::When(Box::new(move |request| {
                left -= i32::from(left > 0 && ops(request) > 1);
                left == 0
            })));
            assert!(delete(&array, 0..KEYS / 2).await.iter().all(Result::is_ok));
            let is_out = array.status().members[3].state == MemberState::Out;
            for number in 0..KEYS {
                let expected = (number >= KEYS / 2).then(|| value(number, 1));
                assert_eq!(bytes(&array, &format!("key:{number}")).await, expected, "{number}, {nth}");
            }
            if !is_out {
                assert!(nth > 2, "{nth}");
                break;
            }
        }
    });
}

/// Each member has a line of its own.
#[test]
fn keys_of_other_members_do_not_wait_for_one_that_is_slow() {
    run(async |reactor| {
        let bench = bench(&reactor, 6, 4, 2);
        let (array, late) = packed(&reactor, &bench).await;
        let is_its = |number: &usize| {
            let place = array.place(super::bench::DB, format!("key:{number}").as_bytes()).unwrap();
            (0..3).any(|role| array.member_of(&place, role) == 5)
        };
        let (its, others): (Vec<usize>, Vec<usize>) = (0..KEYS).partition(is_its);
        assert!(its.len() > 5 && others.len() > 5, "{its:?} {others:?}");
        late[5].late_to.set(|op| matches!(op, Op::Batch(_)));
        late[5].late_ns.set(2_000_000_000);
        let began_ns = reactor.now_ns();
        let slow = delete(&array, its.into_iter());
        let quick = async {
            let done = delete(&array, others.into_iter()).await;
            (done, reactor.now_ns() - began_ns)
        };
        let (slow, (quick, took_ns)) = futures_util::future::join(slow, quick).await;
        assert!(slow.iter().chain(&quick).all(Result::is_ok));
        assert!(took_ns < 100_000_000, "{took_ns}");
        assert!((2_000_000_000..7_000_000_000).contains(&(reactor.now_ns() - began_ns)));
        set(&array, "key:0", b"again").await.unwrap();
        assert_eq!(bytes(&array, "key:0").await.as_deref(), Some(&b"again"[..]));
    });
}

#[test]
fn deletes_and_stores_of_a_key_keep_their_order() {
    run(async |reactor| {
        let bench = bench(&reactor, 6, 4, 2);
        let (array, _) = packed(&reactor, &bench).await;
        let (deleted, ()) = futures_util::future::join(delete(&array, 0..KEYS), fill(&array, KEYS, 2)).await;
        assert!(deleted.iter().all(Result::is_ok));
        check(&array, KEYS, 2).await;
    });
}
