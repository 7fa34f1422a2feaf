//! A member comes back without a start, if its device is the one that went.

use super::bench::{Bench, bytes, del, execute, keys, run, set};
use crate::join::read_roster;
use crate::membership::roster_store;
use crate::roster::Roster;
use crate::{Array, MemberState, OpenError};
use plimsoll_kv::Device;
use plimsoll_kv::fault::FaultPolicy;
use plimsoll_reactor::Reactor;
use std::rc::Rc;

/// An array of three with two copies of each key, of which the last went and has been let go.
async fn without_the_last(reactor: &Reactor) -> (Bench, Rc<Array>) {
    let bench = Bench::new(reactor, 3, 2);
    let array = bench.open().await;
    for number in 0..40 {
        set(&array, &format!("k{number}"), b"old").await.unwrap();
    }
    bench.members[2].set_policy(FaultPolicy::From(1));
    for number in 0..20 {
        set(&array, &format!("k{number}"), b"new").await.unwrap();
    }
    for number in 10..30 {
        del(&array, &format!("k{number}")).await.unwrap();
    }
    bench.members[2].set_policy(FaultPolicy::Never);
    assert_eq!(array.status().members[2].state, MemberState::Out);
    array.let_go(2);
    array.rebuild(2);
    reactor.sleep_ns(1_000_000_000).await;
    let status = &array.status().members[2];
    assert!(status.state == MemberState::Out && !status.is_there, "there is nothing to fill: {status:?}");
    (bench, array)
}

#[test]
fn what_went_is_filled_with_what_it_missed() {
    run(async |reactor| {
        let (bench, array) = without_the_last(&reactor).await;
        array.bring_back(2, bench.opened_anew(2)).await.unwrap();
        array.rebuild(2);
        bench.whole(&array).await;
        // Without another one nothing is missing, and nothing is there that was deleted.
        bench.members[1].set_policy(FaultPolicy::From(1));
        for number in 0..40 {
            let there = [Some(&b"new"[..]), None, None, Some(&b"old"[..])][number / 10];
            assert_eq!(bytes(&array, &format!("k{number}")).await.as_deref(), there, "k{number}");
        }
        bench.members[1].set_policy(FaultPolicy::Never);
        assert_eq!(keys(&array).await, 20);
    });
}

#[test]
fn what_did_not_go_is_refused() {
    run(async |reactor| {
        let (bench, array) = without_the_last(&reactor).await;
        let refused = async |change: fn(&mut Roster)| {
            let device: Rc<dyn Device> = bench.members[2].clone();
            let was = read_roster(&device, &array.tag).await.unwrap().expect("it was a member");
            let mut other = was.clone();
            change(&mut other);
            execute(&device, roster_store(&array.tag, other.encode())).await.unwrap();
            let refused = array.bring_back(2, bench.opened_anew(2)).await;
            execute(&device, roster_store(&array.tag, was.encode())).await.unwrap();
            refused
        };
        let name = || "d2".to_owned();
        assert_eq!(refused(|roster| roster.array = [9; 16]).await, Err(OpenError::OtherArray(name())));
        assert_eq!(refused(|roster| roster.epoch += 100).await, Err(OpenError::Ahead(name())));
        let mut stranger = bench.opened_anew(2);
        stranger.id = [99; 16];
        assert_eq!(array.bring_back(2, stranger).await, Err(OpenError::Stranger(name())));
        assert!(!array.status().members[2].is_there, "none of them is taken");
        array.bring_back(2, bench.opened_anew(2)).await.unwrap();
        array.rebuild(2);
        bench.whole(&array).await;
    });
}
