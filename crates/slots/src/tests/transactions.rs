//! Transactions, and batches that no slot can carry: whole or absent whenever power is lost.

use super::bench::{DB, bytes, del_op, execute, formatted, get, open, run, set_op, store_op};
use crate::{Medium, Slots};
use plimsoll_kv::transaction::{Action, Held, Outstanding, Status};
use plimsoll_kv::{ContainerId, Error, Expiry, Op, Output, Result, TransactionId, UploadId, Value};
use plimsoll_reactor::{Reactor, Work};
use std::cell::Cell;
use std::rc::Rc;

const OTHER: ContainerId = ContainerId(1);

async fn step(slots: &Rc<Slots>, id: Option<TransactionId>, action: Action) -> Result<Output> {
    execute(slots, Op::Transaction { partition: 3, id, action }).await
}

async fn hold(slots: &Rc<Slots>, held: Held) -> TransactionId {
    match step(slots, None, Action::Hold(held)).await {
        Ok(Output::Held(id)) => id,
        other => panic!("{other:?}"),
    }
}

fn keys(names: &[&str]) -> Held {
    Held::keys(names.iter().map(|name| (DB, name.as_bytes().to_vec())).collect())
}

async fn outstanding(slots: &Rc<Slots>) -> Vec<Outstanding> {
    match step(slots, None, Action::Outstanding).await {
        Ok(Output::Outstanding(known)) => known,
        other => panic!("{other:?}"),
    }
}

async fn upload(slots: &Rc<Slots>, name: &str, value: &[u8]) -> UploadId {
    let key = || name.as_bytes().to_vec();
    let length = value.len() as u64;
    let begin = Op::UploadBegin { container: DB, key: key(), length, shared_bytes: 0, form: None };
    let Ok(Output::Upload(upload)) = execute(slots, begin).await else { panic!("an upload") };
    for part in value.chunks(100) {
        execute(slots, Op::UploadPart { upload, key: key(), bytes: part.to_vec() }).await.unwrap();
    }
    upload
}

async fn whole(slots: &Rc<Slots>, name: &str) -> Option<Vec<u8>> {
    let key = name.as_bytes().to_vec();
    let op = Op::Retrieve { container: DB, key, range: Some((0, u64::MAX)), pin: false };
    match execute(slots, op).await {
        Ok(Output::Found(item)) => Some(item.bytes),
        Err(Error::NotFound) => None,
        other => panic!("{name}: {other:?}"),
    }
}

fn lose(reactor: &Reactor, medium: &Medium) {
    let reactor = reactor.clone();
    medium.lose_power(move |states| (reactor.random_u64() % states as u64) as usize);
}

#[test]
fn what_is_held_waits_and_what_is_committed_is_there_together() {
    run(1, |reactor| async move {
        let medium = formatted(&reactor).await;
        let slots = open(&reactor, &medium).await;
        execute(&slots, set_op("a", b"old")).await.unwrap();
        let id = hold(&slots, keys(&["a", "b", "a"])).await;
        let seen = Rc::new(Cell::new(false));
        let (reader, told) = (slots.clone(), seen.clone());
        reactor.spawn(Work::Kv, async move {
            assert_eq!(bytes(&reader, "a").await.as_deref(), Some(&b"new"[..]));
            told.set(true);
        });
        let read = |name: &str| {
            let key = name.as_bytes().to_vec();
            Action::Retrieve { container: DB, key, range: None, pin: false }
        };
        let Ok(Output::Found(item)) = step(&slots, Some(id), read("a")).await else { panic!("held") };
        assert_eq!(item.bytes, b"old");
        reactor.sleep_ns(1_000_000_000).await;
        assert!(!seen.get(), "a reader waits while the key is held");
        assert!(step(&slots, Some(id), read("c")).await.is_err(), "it does not hold that key");
        let writes = vec![set_op("c", b"never")];
        assert!(step(&slots, Some(id), Action::Commit { writes }).await.is_err());
        let writes = vec![set_op("a", b"new"), set_op("b", b"new"), del_op("b")];
        step(&slots, Some(id), Action::Commit { writes }).await.unwrap();
        assert!(step(&slots, Some(id), read("a")).await.is_err(), "it has ended");
        reactor.sleep_ns(1_000_000).await;
        assert!(seen.get());
        lose(&reactor, &medium);
        let slots = open(&reactor, &medium).await;
        assert_eq!(bytes(&slots, "a").await.as_deref(), Some(&b"new"[..]));
        assert_eq!(bytes(&slots, "b").await, None);
    });
}

#[test]
fn what_was_prepared_is_held_after_a_crash_until_it_is_known_what_became_of_it() {
    for (seed, applies) in [(2, true), (3, false)] {
        run(seed, move |reactor| async move {
            let medium = formatted(&reactor).await;
            let slots = open(&reactor, &medium).await;
            let value: Vec<u8> = (0..250).collect();
            for name in ["a", "gone"] {
                execute(&slots, set_op(name, b"old")).await.unwrap();
            }
            let forgotten = upload(&slots, "long", &value).await;
            let kept = upload(&slots, "long", &value).await;
            let id = hold(&slots, keys(&["a", "gone", "long"])).await;
            let at_ms = reactor.wall_ms() + 1_000_000;
            let expiry = Op::SetExpiry {
                container: DB,
                key: b"a".to_vec(),
                expiry: Expiry::At(at_ms),
                condition: plimsoll_kv::Condition::None,
            };
            let long = store_op(DB, "long", Value::Upload(kept), false);
            let writes = vec![expiry, del_op("gone"), long];
            let prepare = Action::Prepare { participants: vec![3, 5], writes };
            step(&slots, Some(id), prepare).await.unwrap();
            assert_eq!(step(&slots, Some(id), Action::Status).await, Ok(Output::Status(Status::Prepared)));
            assert_eq!(slots.uploading(), 1, "one is not stored");
            assert_ne!(forgotten, kept);
            for round in 0..2 {
                lose(&reactor, &medium);
                let slots = open(&reactor, &medium).await;
                let known = outstanding(&slots).await;
                assert_eq!(known, [Outstanding { id, participants: vec![3, 5], status: Status::Prepared }]);
                let seen = Rc::new(Cell::new(false));
                let (reader, told) = (slots.clone(), seen.clone());
                reactor.spawn(Work::Kv, async move {
                    // After another loss it is told of that, or never told.
                    let _ = get(&reader, "a").await;
                    told.set(true);
                });
                slots.compact();
                reactor.sleep_ns(1_000_000_000).await;
                assert!(!seen.get(), "it is held, {round}");
            }
            let slots = open(&reactor, &medium).await;
            let action = if applies { Action::Apply } else { Action::Release };
            step(&slots, Some(id), action).await.unwrap();
            lose(&reactor, &medium);
            let slots = open(&reactor, &medium).await;
            slots.compact();
            slots.idle().await;
            let left = outstanding(&slots).await;
            assert_eq!(left.len(), usize::from(applies));
            assert_eq!(whole(&slots, "long").await, applies.then(|| value.clone()));
            assert_eq!(bytes(&slots, "gone").await.is_some(), !applies);
            assert_eq!(get(&slots, "a").await.unwrap().expiry_ms, applies.then_some(at_ms));
            let status = if applies { Status::Applied } else { Status::Unknown };
            assert_eq!(step(&slots, Some(id), Action::Status).await, Ok(Output::Status(status)));
            step(&slots, Some(id), Action::Forget).await.unwrap();
            slots.idle().await;
            let slots = open(&reactor, &medium).await;
            assert!(outstanding(&slots).await.is_empty());
            slots.idle().await;
            // The superblock; a, and gone or long with its parts.
            let objects = if applies { 2 + 1 + 1 + 3 } else { 2 + 2 };
            assert_eq!(medium.objects().len(), objects, "nothing is left over");
        });
    }
}

/// Longer than the drive's longest value, so it stands in chunks.
fn many() -> Vec<Op> {
    (0..400).map(|number| set_op(&format!("k{number}"), &[number as u8; 3500])).collect()
}

async fn count(slots: &Rc<Slots>) -> usize {
    let mut there = 0;
    for number in 0..400 {
        if let Some(bytes) = bytes(slots, &format!("k{number}")).await {
            assert_eq!(bytes, [number as u8; 3500]);
            there += 1;
        }
    }
    there
}

#[test]
fn a_long_batch_is_there_whole_or_not_at_all_whenever_power_is_lost() {
    run(4, |reactor| async move {
        let mut all = 0;
        let often = (0..60).map(|number| 1 + number % 6); // While it is committed.
        for nth in often.chain(7..40).chain([100, 200, 300, 400, 406, 407, 408, 409, 410, 500]) {
            let medium = formatted(&reactor).await;
            let slots = open(&reactor, &medium).await;
            execute(&slots, set_op("k0", &[0; 3500])).await.unwrap();
            medium.lose_power_at(nth, reactor.random_u64().is_multiple_of(2));
            let stored = execute(&slots, Op::Batch(many())).await;
            reactor.sleep_ns(300_000_000).await;
            lose(&reactor, &medium);
            let slots = open(&reactor, &medium).await;
            let there = count(&slots).await;
            assert!(there == 400 || (there == 1 && stored.is_err()), "{there} after {nth}");
            all += usize::from(there == 400);
            slots.compact();
            slots.idle().await;
            assert_eq!(count(&slots).await, there);
            assert_eq!(medium.objects().len(), 2 + there, "nothing is left over, {nth}");
        }
        assert!((10..100).contains(&all), "{all} of 103 times it was there");
    });
}

#[test]
fn a_transaction_empties_a_container_and_writes_to_it() {
    run(5, |reactor| async move {
        for prepares in [false, true] {
            let medium = formatted(&reactor).await;
            let slots = open(&reactor, &medium).await;
            for name in ["a", "b"] {
                execute(&slots, set_op(name, b"old")).await.unwrap();
            }
            execute(&slots, store_op(OTHER, "a", Value::from(b"other".to_vec()), false)).await.unwrap();
            let clear = || Op::Clear { container: DB };
            let one = hold(&slots, keys(&["a"])).await;
            let writes = vec![clear()];
            assert!(step(&slots, Some(one), Action::Commit { writes }).await.is_err(), "it holds one key");
            step(&slots, Some(one), Action::Release).await.unwrap();
            let id = hold(&slots, Held::everything()).await;
            let writes = vec![clear(), set_op("a", b"new"), set_op("c", b"new")];
            if prepares {
                let participants = vec![3];
                step(&slots, Some(id), Action::Prepare { participants, writes }).await.unwrap();
                step(&slots, Some(id), Action::Apply).await.unwrap();
                step(&slots, Some(id), Action::Forget).await.unwrap();
            } else {
                step(&slots, Some(id), Action::Commit { writes }).await.unwrap();
            }
            lose(&reactor, &medium);
            let slots = open(&reactor, &medium).await;
            for (name, value) in [("a", Some(&b"new"[..])), ("b", None), ("c", Some(b"new"))] {
                assert_eq!(bytes(&slots, name).await.as_deref(), value, "{name}");
            }
            for (container, there) in [(DB, 2), (OTHER, 1)] {
                let stats = execute(&slots, Op::Stats { container }).await;
                let Ok(Output::Stats(stats)) = stats else { panic!("statistics") };
                assert_eq!(stats.keys, there);
            }
            // That it was forgotten need not be durable.
            for known in outstanding(&slots).await {
                assert_eq!(known.status, Status::Applied);
                step(&slots, Some(known.id), Action::Forget).await.unwrap();
            }
            slots.compact();
            slots.idle().await;
            assert_eq!(medium.objects().len(), 2 + 3 + 1, "the superblock, three keys, a generation");
        }
    });
}

#[test]
fn an_intent_that_rots_is_damage_and_the_drive_is_not_opened() {
    run(6, |reactor| async move {
        let medium = formatted(&reactor).await;
        let slots = open(&reactor, &medium).await;
        let before = medium.objects();
        let id = hold(&slots, keys(&["a"])).await;
        let prepare = Action::Prepare { participants: vec![3], writes: vec![set_op("a", b"new")] };
        step(&slots, Some(id), prepare).await.unwrap();
        let intent = medium.objects().into_keys().find(|key| !before.contains_key(key)).unwrap();
        medium.corrupt(&intent, |bytes| {
            let at = bytes.len() - 20;
            bytes[at] ^= 1;
        });
        assert!(matches!(
            super::bench::try_open(&reactor, &medium).await.err(),
            Some(crate::OpenError::Damaged(_))
        ));
    });
}
