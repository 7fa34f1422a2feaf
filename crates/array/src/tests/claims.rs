//! More members go away than a mechanism survives, and come back: what they had is there again, and nothing
//! that was overwritten or deleted meanwhile.

use super::bench::{Bench, DB, bytes, del, execute, get, keys, run, set, store_in};
use super::together::{hold, step, write};
use crate::placement;
use crate::{Array, Mechanism, MemberState, OpenError, Policy, SizeRange};
use plimsoll_kv::fault::FaultPolicy;
use plimsoll_kv::transaction::Action;
use plimsoll_kv::{Error, Op, Output, Request};
use plimsoll_reactor::Reactor;
use std::collections::BTreeMap;
use std::rc::Rc;

fn bench(reactor: &Reactor, mechanism: Mechanism) -> Bench {
    Bench::by_size(reactor, 6, &[mechanism.into()])
}

async fn fill(array: &Rc<Array>, value: &[u8]) {
    for key in 0..60 {
        set(array, &format!("k{key}"), value).await.unwrap();
    }
}

async fn leaves(array: &Rc<Array>, members: &[usize]) {
    for member in members {
        array.take_out_now(*member, "its cable was pulled").await.unwrap();
    }
}

/// They were emptied when they came back, and then nobody had what they had had.
#[test]
fn devices_that_went_away_together_have_what_they_had_when_they_are_back() {
    let cases = [
        (Mechanism::Hashing, vec![2]),
        (Mechanism::Replication { copies: 3 }, vec![1, 2, 3]),
        (Mechanism::Splitting { data: 4, parities: 2 }, vec![5, 0, 1]),
        (Mechanism::Splitting { data: 4, parities: 2 }, vec![3, 1, 5, 0]),
        (Mechanism::Packing { data: 4, parities: 2 }, vec![5, 0, 1]),
        (Mechanism::Packing { data: 2, parities: 1 }, vec![3, 1, 5, 0]),
    ];
    for (mechanism, gone) in cases {
        run(|reactor| {
            let (bench, gone) = (bench(&reactor, mechanism), gone.clone());
            async move {
                let array = bench.open().await;
                fill(&array, b"old").await;
                // Who went first misses these.
                leaves(&array, &gone[..gone.len() - 1]).await;
                for key in 0..60 {
                    let _ = set(&array, &format!("k{key}"), b"new").await;
                }
                leaves(&array, &gone[gone.len() - 1..]).await;
                let mut right = BTreeMap::new();
                for key in (0..60).map(|key| format!("k{key}")) {
                    // Where nobody takes this, nobody has it later.
                    let written = set(&array, &key, b"newer").await;
                    right.insert(key, written.is_ok());
                }
                assert!(right.values().any(|written| !written), "{mechanism:?}: some cannot be written");
                array.close().await;
                let array = bench.open().await;
                bench.whole(&array).await;
                for (key, is_newest) in &right {
                    let value = bytes(&array, key).await;
                    let value = value.as_deref().map(|value| std::str::from_utf8(value).unwrap());
                    match is_newest {
                        true => assert_eq!(value, Some("newer"), "{mechanism:?}: {key}"),
                        false => {
                            assert!(matches!(value, Some("old" | "new")), "{mechanism:?}: {key}: {value:?}")
                        }
                    }
                }
                assert_eq!(keys(&array).await, 60, "{mechanism:?}");
            }
        });
    }
}

/// At run time, too: an operator asks for it when the device answers again.
#[test]
fn a_device_that_answers_again_has_what_it_had() {
    run(async |reactor| {
        let bench = bench(&reactor, Mechanism::Hashing);
        let array = bench.open().await;
        fill(&array, b"v").await;
        bench.members[4].set_policy(FaultPolicy::From(1));
        let lost = (0..60).map(|key| format!("k{key}"));
        let lost: Vec<String> = lost.filter(|key| placement::primary(key.as_bytes(), 6) == 4).collect();
        for key in &lost {
            assert!(set(&array, key, b"new").await.is_err() && del(&array, key).await.is_err());
            assert!(matches!(get(&array, key).await, Err(Error::Unreadable(_) | Error::ReadOnly(_))));
        }
        bench.members[4].set_policy(FaultPolicy::Never);
        array.rebuild(4);
        bench.whole(&array).await;
        for key in &lost {
            assert_eq!(bytes(&array, key).await.as_deref(), Some(&b"v"[..]), "{key}");
        }
    });
}

/// What is deleted with everything else would come back with it.
#[test]
fn everything_is_not_deleted_while_a_device_that_may_come_back_has_some_of_it() {
    run(async |reactor| {
        let mut bench = bench(&reactor, Mechanism::Hashing);
        let array = bench.open().await;
        fill(&array, b"v").await;
        leaves(&array, &[1]).await;
        let cleared = execute(&array, Op::Clear { container: DB }).await;
        assert!(
            matches!(&cleared, Err(Error::ReadOnly(what)) if what.starts_with("d1 is not in")),
            "{cleared:?}"
        );
        let fresh = bench.fresh(1, 77);
        array.replace(1, fresh).await.unwrap();
        bench.whole(&array).await;
        execute(&array, Op::Clear { container: DB }).await.unwrap();
        assert_eq!(keys(&array).await, 0);
    });
}

/// The one that was emptied, or was put back to what it had before, claims nothing.
#[test]
fn who_has_not_got_what_it_had_claims_nothing() {
    run(async |reactor| {
        let mut bench = bench(&reactor, Mechanism::Hashing);
        bench.open().await.close().await;
        let array = bench.open().await;
        fill(&array, b"v").await;
        leaves(&array, &[1]).await;
        array.close().await;
        // Another device with the same name, and nothing on it.
        let id = bench.ids[1];
        let _ = bench.fresh(1, id);
        for _ in 0..2 {
            let array = bench.open().await;
            bench.whole(&array).await;
            let left = (0..60).filter(|key| placement::primary(format!("k{key}").as_bytes(), 6) != 1).count();
            assert_eq!(keys(&array).await, left as u64);
            array.close().await;
        }
    });
}

/// It was emptied for good, and what it had when it went out claimed nothing later.
#[test]
fn an_older_copy_is_not_emptied_unasked() {
    run(async |reactor| {
        let mut bench = bench(&reactor, Mechanism::Hashing);
        bench.open().await.close().await;
        let roster = super::retrieve_op(placement::ROSTER, &format!("{}roster", placement::tag(0, 1)));
        let Ok(Output::Found(older)) = execute(&bench.below[1], roster).await else { panic!("a roster") };
        let array = bench.open().await;
        fill(&array, b"v").await;
        leaves(&array, &[1]).await;
        array.close().await;
        let (id, newest) = (bench.ids[1], (bench.below[1].clone(), bench.members[1].clone()));
        drop(bench.fresh(1, id));
        let key = format!("{}roster", placement::tag(0, 1));
        execute(&bench.below[1], store_in(placement::ROSTER, &key, older.bytes.into())).await.unwrap();
        let array = bench.open().await;
        reactor.sleep_ns(5_000_000_000).await;
        let status = array.status();
        assert_eq!(status.members[1].state, MemberState::Out);
        assert!(status.members[1].reason.starts_with("it is older"), "{}", status.members[1].reason);
        array.close().await;
        (bench.below[1], bench.members[1]) = newest;
        let array = bench.open().await;
        bench.whole(&array).await;
        assert_eq!(keys(&array).await, 60);
    });
}

/// An acknowledged transaction that a device had prepared and not applied when it went away was given up when
/// it came back, and one that it had not prepared held its keys for ever.
#[test]
fn a_transaction_that_a_device_holds_when_it_goes_away_ends_when_it_is_back() {
    for at_apply in [false, true] {
        run(|reactor| async move {
            let bench = bench(&reactor, Mechanism::Hashing);
            let array = bench.open().await;
            let keys = ["a", "b", "c", "d"];
            for key in keys {
                set(&array, key, b"old").await.unwrap();
            }
            let gone = placement::primary(b"a", 6);
            let mut is_gone = false;
            let fails = move |request: &Request| {
                is_gone |= match &request.op {
                    Op::Transaction { action: Action::Prepare { .. }, .. } => !at_apply,
                    Op::Transaction { action: Action::Apply, .. } => at_apply,
                    _ => false,
                };
                is_gone
            };
            bench.members[gone].set_policy(FaultPolicy::When(Box::new(fails)));
            let id = hold(&array, &keys).await;
            let writes = keys.map(|key| write(key, b"new")).to_vec();
            let is_done = step(&array, Some(id), Action::Commit { writes }).await.is_ok();
            assert_eq!(is_done, at_apply, "its keys stand nowhere else");
            let end = if is_done { Action::Apply } else { Action::Release };
            step(&array, Some(id), end).await.unwrap();
            assert_eq!(array.status().members[gone].state, MemberState::Out);
            reactor.sleep_ns(2_000_000_000).await;
            bench.members[gone].set_policy(FaultPolicy::Never);
            array.rebuild(gone);
            bench.whole(&array).await;
            let right: &[u8] = if is_done { b"new" } else { b"old" };
            for key in keys {
                assert_eq!(bytes(&array, key).await.as_deref(), Some(right), "{key}");
            }
        });
    }
}

/// Where some of what a device has may have been overwritten, and some stands nowhere else, it is not emptied
/// before somebody says so.
#[test]
fn what_nobody_else_has_is_not_given_up_unasked() {
    run(async |reactor| {
        let ranges = [
            SizeRange { value_bytes_max: 8, mechanism: Mechanism::Hashing },
            SizeRange { value_bytes_max: u64::MAX, mechanism: Mechanism::Replication { copies: 3 } },
        ];
        let bench = Bench::by_size(&reactor, 6, &[Policy::by_size(&ranges).unwrap()]);
        let array = bench.open().await;
        fill(&array, b"short").await;
        leaves(&array, &[1]).await;
        array.close().await;
        let array = bench.open().await;
        reactor.sleep_ns(5_000_000_000).await;
        let status = array.status();
        assert_eq!(status.members[1].state, MemberState::Out);
        assert!(status.members[1].reason.contains("no other device has"), "{}", status.members[1].reason);
        // Of what is not there nothing can be lost.
        let mut other = self::bench(&reactor, Mechanism::Replication { copies: 3 });
        let few = [SizeRange { value_bytes_max: u64::MAX, mechanism: Mechanism::Replication { copies: 3 } }];
        let policy = Policy::by_size(&few).unwrap().with_custom(&[Mechanism::Hashing]).unwrap();
        other.options.policy = policy;
        let with_custom = other.open().await;
        fill(&with_custom, b"v").await;
        leaves(&with_custom, &[1]).await;
        with_custom.rebuild(1);
        other.whole(&with_custom).await;

        array.accept_loss();
        array.rebuild(1);
        bench.whole(&array).await;
        let left = (0..60).filter(|key| placement::primary(format!("k{key}").as_bytes(), 6) != 1).count();
        assert_eq!(keys(&array).await, left as u64);
    });
}

/// It took them, and began anew with nothing when the server had been killed.
#[test]
fn a_member_that_is_being_filled_makes_no_write_count() {
    run(async |reactor| {
        let mut bench = Bench::new(&reactor, 6, 2);
        let array = bench.open().await;
        for key in 0..3000 {
            set(&array, &format!("k{key}"), b"v").await.unwrap();
        }
        array.close().await;
        bench.options.rebuild_bytes_per_s = 1;
        bench.try_open(&[2]).await.expect("five of six are there").close().await;
        let array = bench.open().await;
        bench.until(&array, 2, MemberState::Resyncing).await;
        leaves(&array, &[3]).await;
        let key = (0..).map(|key| format!("another{key}"));
        let key = key.into_iter().find(|key| placement::primary(key.as_bytes(), 6) == 2).unwrap();
        let refused = set(&array, &key, b"v").await;
        assert!(matches!(refused, Err(Error::ReadOnly(_))), "{refused:?}");
    });
}

/// What was kept below the one before it was given up, and with it what stood below the half that was left.
#[test]
fn what_stood_before_a_refused_overwrite_is_kept() {
    run(async |reactor| {
        let bench = bench(&reactor, Mechanism::Splitting { data: 2, parities: 2 });
        let array = bench.open().await;
        for value in [b"1", b"2"] {
            set(&array, "k", value).await.unwrap();
        }
        let member = |role| (placement::primary(b"k", 6) + role) % 6;
        (1..4).for_each(|role| bench.members[member(role)].set_policy(FaultPolicy::From(1)));
        set(&array, "k", b"3").await.expect_err("one of two took it");
        for number in 0..40 {
            // Where so few can be written what they keep is given up together with what others do.
            let _ = set(&array, &format!("k{}", number % 20), b"v").await;
        }
        reactor.sleep_ns(1_000_000_000).await;
        let revert = Op::Revert { container: placement::container(DB, 0), key: b"k".to_vec() };
        execute(&bench.below[member(0)], revert).await.expect("what was there before");
    });
}

/// By the new policy more had been needed for a write than by the old one: what had been overwritten while
/// they were away was there again, and what had been deleted.
#[test]
fn objects_are_not_protected_in_another_way_while_devices_are_away() {
    run(async |reactor| {
        let policies = [Mechanism::Replication { copies: 3 }, Mechanism::Packing { data: 4, parities: 2 }];
        let [old, new] = policies.map(Policy::from);
        let mut bench = Bench::by_size(&reactor, 6, std::slice::from_ref(&old));
        let array = bench.open().await;
        fill(&array, b"old").await;
        leaves(&array, &[3, 4, 5]).await;
        let mut written = Vec::new();
        for key in (0..60).map(|key| format!("k{key}")) {
            if set(&array, &key, b"new").await.is_ok() {
                written.push(key);
            }
        }
        array.close().await;
        bench.options.policy = new.clone();
        let refused = bench.try_open(&[]).await.err().expect("another policy");
        assert!(matches!(&refused, OpenError::Changed(device) if device == "d5"), "{refused}");
        bench.options.policy = old;
        let array = bench.open().await;
        bench.whole(&array).await;
        for key in &written {
            assert_eq!(bytes(&array, key).await.as_deref(), Some(&b"new"[..]), "{key}");
        }
        array.close().await;
        bench.options.policy = new;
        bench.open().await;
    });
}

/// One alone could not be read, so they were emptied, one after the other.
#[test]
fn devices_that_hold_something_together_are_not_emptied_one_by_one() {
    run(async |reactor| {
        let ranges = [
            SizeRange { value_bytes_max: 8, mechanism: Mechanism::Replication { copies: 4 } },
            SizeRange { value_bytes_max: u64::MAX, mechanism: Mechanism::Splitting { data: 4, parities: 2 } },
        ];
        let bench = Bench::by_size(&reactor, 6, &[Policy::by_size(&ranges).unwrap()]);
        let array = bench.open().await;
        fill(&array, b"a longer value").await;
        leaves(&array, &[1, 2, 3, 4]).await;
        array.close().await;
        let array = bench.open().await;
        reactor.sleep_ns(5_000_000_000).await;
        let states = array.status().members.iter().map(|member| member.state).collect::<Vec<_>>();
        let (is_in, out) = (MemberState::In, MemberState::Out);
        assert_eq!(states, [is_in, out, out, out, is_in, is_in]);
        for member in [1, 2, 3] {
            let stats =
                execute(&bench.below[member], Op::Stats { container: placement::container(DB, 0) }).await;
            assert!(matches!(stats, Ok(Output::Stats(stats)) if stats.keys > 0), "{member} was emptied");
        }
    });
}
