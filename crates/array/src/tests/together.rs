//! Transactions over the members.

use super::bench::{Bench, DB, bytes, execute, keys, run, set, store_op};
use crate::{Array, MemberState};
use plimsoll_kv::fault::FaultPolicy;
use plimsoll_kv::transaction::{Action, Held, Status};
use plimsoll_kv::{Condition, Error, Op, Output, Result, TransactionId, Value};
use plimsoll_reactor::Work;
use std::cell::Cell;
use std::rc::Rc;

pub(super) async fn step(array: &Rc<Array>, id: Option<TransactionId>, action: Action) -> Result<Output> {
    execute(array, Op::Transaction { partition: 0, id, action }).await
}

pub(super) async fn hold(array: &Rc<Array>, keys: &[&str]) -> TransactionId {
    let keys = keys.iter().map(|key| (DB, key.as_bytes().to_vec())).collect();
    match step(array, None, Action::Hold(Held::keys(keys))).await {
        Ok(Output::Held(id)) => id,
        other => panic!("{other:?}"),
    }
}

/// Writes and gives back what is held.
pub(super) async fn commit(array: &Rc<Array>, id: TransactionId, writes: Vec<Op>) -> Result<Output> {
    let prepared = step(array, Some(id), Action::Commit { writes }).await?;
    assert_eq!(prepared, Output::Status(Status::Prepared));
    step(array, Some(id), Action::Apply).await
}

pub(super) fn write(key: &str, value: &[u8]) -> Op {
    store_op(key, Value::from(value.to_vec()))
}

pub(super) fn delete(key: &str) -> Op {
    Op::Delete { container: DB, key: key.as_bytes().to_vec(), condition: Condition::None }
}

#[test]
fn writes_of_a_transaction_happen_together_and_nobody_sees_them_before() {
    run(async |reactor| {
        let array = Bench::new(&reactor, 4, 3).open().await;
        set(&array, "a", b"1").await.unwrap();
        let id = hold(&array, &["a", "b"]).await;
        let read = Action::Retrieve { container: DB, key: b"a".to_vec(), range: None, pin: false };
        assert!(matches!(step(&array, Some(id), read).await, Ok(Output::Found(item)) if item.bytes == b"1"));
        let other = array.clone();
        reactor.spawn(Work::Kv, async move {
            set(&other, "a", b"later").await.unwrap();
        });
        reactor.sleep_ns(1_000_000).await;
        let writes = vec![delete("a"), write("b", b"2")];
        assert_eq!(commit(&array, id, writes).await, Ok(Output::Done));
        assert_eq!(bytes(&array, "b").await.as_deref(), Some(&b"2"[..]));
        reactor.sleep_ns(1_000_000).await;
        assert_eq!(bytes(&array, "a").await.as_deref(), Some(&b"later"[..]));
        let id = hold(&array, &["a"]).await;
        let writes = vec![write("b", b"3")];
        assert!(matches!(commit(&array, id, writes).await, Err(Error::Invalid(_))));
        assert_eq!(step(&array, Some(id), Action::Release).await, Ok(Output::Done));
        assert!(matches!(step(&array, Some(id), Action::Release).await, Err(Error::Invalid(_))));
        set(&array, "a", b"free").await.unwrap();
    });
}

/// Found by audits: who counted waited for the keys of who waited until nobody counts, and KEYS between MULTI
/// and EXEC for its own.
#[test]
fn who_counts_or_lists_waits_for_nobodys_keys() {
    run(async |reactor| {
        let array = Bench::new(&reactor, 3, 2).open().await;
        set(&array, "a", b"1").await.unwrap();
        let id = hold(&array, &["a", "b"]).await;
        for key in ["a", "b"] {
            array.suspect(&array.place(DB, key.as_bytes()).unwrap());
        }
        assert_eq!(keys(&array).await, 1);
        let list = Op::List { container: DB, prefix: Vec::new(), after: None, limit: 10 };
        assert!(matches!(execute(&array, list).await, Ok(Output::Listed(page)) if page.keys == [b"a"]));
        let scan = Op::Scan { container: DB, cursor: 0, limit: 10 };
        let Ok(Output::Scanned(page)) = execute(&array, scan).await else { panic!("a page") };
        assert!(page.keys.contains(&b"a".to_vec()));
        let writes = vec![write("a", b"2"), write("b", b"2")];
        let prepared = step(&array, Some(id), Action::Commit { writes }).await;
        assert_eq!((prepared, keys(&array).await), (Ok(Output::Status(Status::Prepared)), 1));
        step(&array, Some(id), Action::Apply).await.unwrap();
        assert_eq!(keys(&array).await, 2);
    });
}

#[test]
fn a_container_is_emptied_by_who_holds_everything() {
    run(async |reactor| {
        let array = Bench::new(&reactor, 3, 2).open().await;
        for number in 0..30 {
            set(&array, &format!("key:{number}"), b"v").await.unwrap();
        }
        let Ok(Output::Held(id)) = step(&array, None, Action::Hold(Held::everything())).await else {
            panic!("held")
        };
        let writes = vec![Op::Clear { container: DB }, write("k", b"after")];
        commit(&array, id, writes).await.unwrap();
        assert_eq!(keys(&array).await, 1);
        assert_eq!(bytes(&array, "k").await.as_deref(), Some(&b"after"[..]));
    });
}

#[test]
fn a_member_that_fails_in_a_transaction_is_out_and_the_others_go_on() {
    run(async |reactor| {
        let bench = Bench::new(&reactor, 3, 3);
        let array = bench.open().await;
        let id = hold(&array, &["a", "b"]).await;
        bench.members[1].set_policy(FaultPolicy::From(1));
        let writes = vec![write("a", b"1"), write("b", b"2")];
        commit(&array, id, writes).await.unwrap();
        assert_eq!(array.status().members[1].state, MemberState::Out);
        assert_eq!(bytes(&array, "a").await.as_deref(), Some(&b"1"[..]));
        assert_eq!(bytes(&array, "b").await.as_deref(), Some(&b"2"[..]));
    });
}

#[test]
fn a_container_is_emptied_though_a_member_fails() {
    run(async |reactor| {
        let bench = Bench::new(&reactor, 2, 2);
        let array = bench.open().await;
        set(&array, "k", b"v").await.unwrap();
        bench.members[0].set_policy(FaultPolicy::From(1));
        execute(&array, Op::Clear { container: DB }).await.unwrap();
        assert_eq!(keys(&array).await, 0);
        execute(&array, Op::Clear { container: DB }).await.unwrap();
    });
}

/// A member that came in before a transaction was resolved had not prepared it: the transaction was given up
/// where others had applied it (`plimsoll sim fuzz --arrays`, seed 726).
#[test]
fn a_member_comes_in_after_the_transactions_that_were_found_have_ended() {
    run(async |reactor| {
        for applies in [true, false] {
            let bench = Bench::new(&reactor, 3, 3);
            let array = bench.open().await;
            bench.members[2].set_policy(FaultPolicy::From(1));
            set(&array, "k", b"old").await.unwrap();
            let id = hold(&array, &["k"]).await;
            let prepare = Action::Prepare { participants: vec![0, 1], writes: vec![write("k", b"new")] };
            step(&array, Some(id), prepare).await.unwrap();
            bench.members[2].set_policy(FaultPolicy::Never);
            let array = bench.open().await;
            reactor.sleep_ns(60_000_000_000).await;
            assert_eq!(array.status().members[2].state, MemberState::Out);
            let status = step(&array, Some(id), Action::Status).await;
            assert_eq!(status, Ok(Output::Status(Status::Prepared)));
            let end = if applies { Action::Apply } else { Action::Release };
            step(&array, Some(id), end).await.unwrap();
            bench.whole(&array).await;
            array.take_out(0, "for a test");
            array.take_out(1, "for a test");
            reactor.sleep_ns(1_000_000).await;
            let right: &[u8] = if applies { b"new" } else { b"old" };
            assert_eq!(bytes(&array, "k").await.as_deref(), Some(right));
        }
    });
}

/// A start looked through all transactions for each of them: with ten thousand it took a minute.
#[test]
fn who_asks_about_a_transaction_looks_through_no_others() {
    run(async |reactor| {
        let bench = Bench::new(&reactor, 3, 3);
        let array = bench.open().await;
        let mut ids = Vec::new();
        for key in (0..20).map(|key| format!("k{key}")) {
            let id = hold(&array, &[&key]).await;
            let prepare = Action::Prepare { participants: vec![0, 1], writes: vec![write(&key, b"v")] };
            step(&array, Some(id), prepare).await.unwrap();
            ids.push(id);
        }
        let array = bench.open().await;
        reactor.sleep_ns(1_000_000_000).await;
        bench.asked();
        for id in &ids {
            let status = step(&array, Some(*id), Action::Status).await;
            assert_eq!(status, Ok(Output::Status(Status::Prepared)));
        }
        assert_eq!(bench.asked().behind, 3 * ids.len() as u64, "each member once");
    });
}

/// Members were taken out, as if they did not answer, while a transaction waited for other partitions.
#[test]
fn who_waits_for_a_transaction_that_was_found_does_not_blame_the_members() {
    run(async |reactor| {
        let bench = Bench::new(&reactor, 3, 3);
        let array = bench.open().await;
        set(&array, "k", b"old").await.unwrap();
        let id = hold(&array, &["k"]).await;
        let prepare = Action::Prepare { participants: vec![0, 1], writes: vec![write("k", b"new")] };
        step(&array, Some(id), prepare).await.unwrap();
        let array = bench.open().await;
        let (reader, read) = (array.clone(), Rc::new(Cell::new(None)));
        let told = read.clone();
        reactor.spawn(Work::Kv, async move { told.set(bytes(&reader, "k").await) });
        reactor.sleep_ns(60_000_000_000).await;
        assert!(array.status().members.iter().all(|member| member.state == MemberState::In));
        assert_eq!(read.take(), None);
        step(&array, Some(id), Action::Apply).await.unwrap();
        reactor.sleep_ns(1_000_000_000).await;
        assert_eq!(read.take().as_deref(), Some(&b"new"[..]));
    });
}

/// It asked as somebody else, and waited for itself, where members may differ (seed 732).
#[test]
fn a_transaction_reads_what_it_holds_though_members_may_differ() {
    run(async |reactor| {
        let array = Bench::new(&reactor, 3, 2).open().await;
        set(&array, "a", b"1").await.unwrap();
        let id = hold(&array, &["a"]).await;
        array.suspect(&array.place(DB, b"a").unwrap());
        let read = Action::Retrieve { container: DB, key: b"a".to_vec(), range: None, pin: false };
        assert!(matches!(step(&array, Some(id), read).await, Ok(Output::Found(item)) if item.bytes == b"1"));
    });
}

/// A transaction used to go on where fewer members took its shards than it takes to read them.
#[test]
fn a_transaction_without_enough_members_for_its_shards_is_refused() {
    run(async |reactor| {
        let bench = Bench::split(&reactor, 4, 3, 1);
        let array = bench.open().await;
        set(&array, "k", b"old").await.unwrap();
        let id = hold(&array, &["k"]).await;
        for member in [0, 1] {
            bench.members[member].set_policy(FaultPolicy::From(1));
        }
        let writes = vec![write("k", b"new")];
        let refused = commit(&array, id, writes).await;
        assert!(
            matches!(&refused, Err(Error::ReadOnly(what)) if what.contains("fewer than 3")),
            "{refused:?}"
        );
        step(&array, Some(id), Action::Release).await.unwrap();
    });
}
