//! Power losses at any command: what was acknowledged is there, and nothing comes back that had gone.

use super::bench::{del_op, execute_as, formatted, open, release_op, retain_op, revert_op, run, set_op};
use super::states::{Held, InDoubt, Test, World};
use crate::{Cost, DelaySsd, Slots};
use plimsoll_kv::transaction::{Action, Held as Holds};
use plimsoll_kv::{ContainerId, Durability, Error, Op, Output, Value};
use plimsoll_reactor::Reactor;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const KEYS: u8 = 6;
const OTHER: ContainerId = ContainerId(4000);

#[derive(Clone, Debug)]
enum Step {
    Set(u8, usize, Durability),
    Retain(u8, usize, Durability),
    Release(u8),
    Revert(u8),
    /// Retains, and releases or reverts at once.
    Briefly(u8, usize, Durability, bool),
    Delete(u8, Durability),
    /// Stores of so many bytes, deletes where there are none, and a short value of a container of books.
    Batch(Vec<(u8, Option<usize>)>, u8, bool, Durability),
    Upload(u8, usize),
    /// Stores and deletes of a transaction, which commits alone, or prepares and applies or releases.
    Transact(Vec<(u8, Option<usize>)>, End),
    /// Several at a time, of keys of their own.
    Together(Vec<(usize, bool, Durability)>),
    Clear,
    Sync,
    Compact,
    Rest,
    /// Power is lost at the n-th command from here, before its effect or after.
    LosePower(u64, bool),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Commit,
    Apply,
    Release,
}

fn durability() -> impl Strategy<Value = Durability> {
    prop_oneof![3 => Just(Durability::Sync), 1 => Just(Durability::Async)]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let key = 0..KEYS;
    let length = prop_oneof![4 => 0_usize..60, 1 => 1000_usize..3000];
    let end = prop_oneof![Just(End::Commit), Just(End::Apply), Just(End::Release)];
    let entry = (key.clone(), proptest::option::weighted(0.7, length.clone()));
    let step = prop_oneof![
        4 => (key.clone(), length.clone(), durability()).prop_map(|(k, n, d)| Step::Set(k, n, d)),
        4 => (key.clone(), length.clone(), durability()).prop_map(|(k, n, d)| Step::Retain(k, n, d)),
        2 => (key.clone(), length.clone(), durability(), any::<bool>())
            .prop_map(|(k, n, d, back)| Step::Briefly(k, n, d, back)),
        2 => key.clone().prop_map(Step::Release),
        2 => key.clone().prop_map(Step::Revert),
        3 => (key.clone(), durability()).prop_map(|(k, d)| Step::Delete(k, d)),
        5 => (proptest::collection::vec(entry.clone(), 1..5), 0_u8..KEYS, any::<bool>(), durability())
            .prop_map(|(entries, book, retain, d)| Step::Batch(entries, book, retain, d)),
        3 => (proptest::collection::vec(entry.clone(), 1..5), end)
            .prop_map(|(entries, end)| Step::Transact(entries, end)),
        4 => proptest::collection::vec((length, any::<bool>(), durability()), 2..KEYS as usize)
            .prop_map(Step::Together),
        1 => (key, 0_usize..350).prop_map(|(k, n)| Step::Upload(k, n)),
        1 => Just(Step::Clear),
        1 => Just(Step::Sync),
        1 => Just(Step::Compact),
        2 => Just(Step::Rest),
        4 => (1_u64..25, any::<bool>()).prop_map(|(n, after)| Step::LosePower(n, after)),
    ];
    proptest::collection::vec(step, 1..50)
}

impl Test {
    async fn take(&mut self, step: Step) {
        let db = super::bench::DB;
        let key = |key: u8| format!("k{key}");
        let name = |number: u8| (db, key(number));
        match step {
            Step::Set(k, length, durability) => {
                let value = self.value(length);
                let held = Held { current: Some(value.clone()), retained: None };
                self.ask(set_op(&key(k), &value), durability, World::from([(name(k), held)])).await;
            }
            Step::Retain(k, length, durability) => {
                let value = self.value(length);
                let held = Held { current: Some(value.clone()), retained: self.held(&name(k)).current };
                self.ask(retain_op(&key(k), &value), durability, World::from([(name(k), held)])).await;
            }
            Step::Release(k) => {
                let before = self.held(&name(k));
                if before.retained.is_some() && before.current.is_some() {
                    let held = Held { retained: None, ..before };
                    self.ask(release_op(&key(k)), Durability::Sync, World::from([(name(k), held)])).await;
                }
            }
            Step::Revert(k) => {
                let before = self.held(&name(k));
                if before.retained.is_some() {
                    let held = Held { current: before.retained, retained: None };
                    self.ask(revert_op(&key(k)), Durability::Sync, World::from([(name(k), held)])).await;
                }
            }
            Step::Briefly(k, length, durability, back) => {
                Box::pin(self.take(Step::Retain(k, length, durability))).await;
                let then = if back { Step::Revert(k) } else { Step::Release(k) };
                Box::pin(self.take(then)).await;
            }
            Step::Delete(k, durability) => {
                if self.held(&name(k)).current.is_some() {
                    self.ask(del_op(&key(k)), durability, World::from([(name(k), Held::default())])).await;
                }
            }
            Step::Batch(entries, book, retain, durability) => {
                self.batch(entries, book, retain, durability).await
            }
            Step::Upload(k, length) => self.upload(k, length).await,
            Step::Transact(entries, end) => self.transact(entries, end).await,
            Step::Together(each) => self.together(each).await,
            Step::Clear => {
                let gone = (0..KEYS).map(|number| (name(number), Held::default())).collect();
                self.ask(Op::Clear { container: db }, Durability::Sync, gone).await;
            }
            Step::Sync => {
                self.ask(Op::Sync, Durability::Sync, World::new()).await;
            }
            Step::Compact => self.slots.compact(),
            Step::Rest => self.reactor.sleep_ns(self.reactor.random_u64() % 30_000_000).await,
            Step::LosePower(nth, after) => self.medium.lose_power_at(nth, after),
        }
    }

    async fn batch(
        &mut self,
        entries: Vec<(u8, Option<usize>)>,
        book: u8,
        retain: bool,
        durability: Durability,
    ) {
        let (mut ops, mut changes) = (Vec::new(), World::new());
        for (k, length) in entries {
            let (key, name) = (format!("k{k}"), (super::bench::DB, format!("k{k}")));
            if changes.contains_key(&name) {
                continue;
            }
            let before = self.held(&name);
            match length {
                Some(length) => {
                    let value = self.value(length);
                    ops.push(if retain { retain_op(&key, &value) } else { set_op(&key, &value) });
                    let retained = before.current.filter(|_| retain);
                    changes.insert(name, Held { current: Some(value), retained });
                }
                None if before.current.is_some() => {
                    ops.push(del_op(&key));
                    changes.insert(name, Held::default());
                }
                None => {}
            }
        }
        let value = self.value(20);
        let key = format!("book{book}");
        ops.push(super::bench::store_op(OTHER, &key, Value::from(value.clone()), false));
        changes.insert((OTHER, key), Held { current: Some(value), retained: None });
        self.ask(Op::Batch(ops), durability, changes).await;
    }

    async fn step(&self, in_doubt: &InDoubt, action: Action) -> bool {
        let op = Op::Transaction { partition: 3, id: Some(in_doubt.id), action };
        match execute_as(&self.slots, op, Durability::Sync).await {
            Ok(_) => true,
            Err(Error::ReadOnly(why) | Error::Unreadable(why)) if why.contains("power was lost") => false,
            Err(error) => panic!("{error}"),
        }
    }

    async fn transact(&mut self, entries: Vec<(u8, Option<usize>)>, end: End) {
        let (mut writes, mut changes, mut keys) = (Vec::new(), World::new(), Vec::new());
        for (k, length) in entries {
            let (key, name) = (format!("k{k}"), (super::bench::DB, format!("k{k}")));
            if changes.contains_key(&name) {
                continue;
            }
            keys.push((super::bench::DB, key.clone().into_bytes()));
            let value = length.map(|length| self.value(length));
            writes.push(value.as_ref().map_or_else(|| del_op(&key), |value| set_op(&key, value)));
            // A delete of what is not there leaves what is there: nothing.
            changes.insert(name, Held { current: value, retained: None });
        }
        let op = Op::Transaction { partition: 3, id: None, action: Action::Hold(Holds::keys(keys)) };
        let Ok(Output::Held(id)) = execute_as(&self.slots, op, Durability::Sync).await else {
            panic!("nothing is held")
        };
        self.may_be(&changes);
        let mut in_doubt = InDoubt { id, changes, has_prepared: false, applies: None };
        let mut goes_on = if end == End::Commit {
            self.step(&in_doubt, Action::Commit { writes }).await
        } else {
            let prepare = Action::Prepare { participants: vec![3, 4], writes };
            in_doubt.has_prepared = self.step(&in_doubt, prepare).await;
            in_doubt.has_prepared
        };
        if goes_on && end != End::Commit {
            in_doubt.applies = Some(end == End::Apply);
            let action = if end == End::Apply { Action::Apply } else { Action::Release };
            goes_on = self.step(&in_doubt, action).await;
        }
        if !goes_on {
            self.in_doubt = (end != End::Commit).then_some(in_doubt);
            return self.reopen().await;
        }
        match end {
            End::Commit => self.is(in_doubt.changes, true),
            End::Release => self.never_was(&in_doubt.changes),
            End::Apply => {
                // It need not be durable before others have heard of it; here it is.
                self.is(in_doubt.changes.clone(), true);
                if !self.step(&in_doubt, Action::Forget).await {
                    self.reopen().await;
                }
            }
        }
    }

    /// Batches of a key each, and of a book each that rides on it; keys that hold something are deleted too.
    async fn together(&mut self, each: Vec<(usize, bool, Durability)>) {
        let mut asked = Vec::new();
        for (number, (length, retain, durability)) in each.into_iter().enumerate() {
            let (key, book) = (format!("k{number}"), format!("book{number}"));
            let name = (super::bench::DB, key.clone());
            let (value, title) = (self.value(length), self.value(20));
            let before = self.held(&name);
            let mut ops = vec![super::bench::store_op(OTHER, &book, Value::from(title.clone()), false)];
            let held = match (before.current, length % 5) {
                (Some(_), 0) => {
                    ops.push(del_op(&key));
                    Held::default()
                }
                (current, _) => {
                    ops.push(if retain { retain_op(&key, &value) } else { set_op(&key, &value) });
                    Held { current: Some(value), retained: current.filter(|_| retain) }
                }
            };
            let book = ((OTHER, book), Held { current: Some(title), retained: None });
            asked.push((Op::Batch(ops), durability, World::from([(name, held), book])));
        }
        asked.iter().for_each(|(_, _, changes)| self.may_be(changes));
        let done = asked.iter().map(|(op, durability, _)| execute_as(&self.slots, op.clone(), *durability));
        let done = futures_util::future::join_all(done).await;
        let (mut unsure, mut is_flushed, mut is_lost) = (BTreeSet::new(), false, false);
        for ((op, durability, changes), result) in asked.into_iter().zip(done) {
            match result {
                Ok(_) if durability == Durability::Sync => is_flushed = true,
                Ok(_) => unsure.extend(changes.keys().cloned()),
                Err(Error::ReadOnly(why) | Error::Unreadable(why)) if why.contains("power was lost") => {
                    unsure.extend(changes.keys().cloned());
                    is_lost = true;
                    continue;
                }
                Err(error) => panic!("{op:?}: {error}"),
            }
            self.now.extend(changes);
        }
        if is_flushed {
            // What was completed before is durable; of those beside nothing is known but what was told.
            self.maybe.retain(|name, _| unsure.contains(name));
            self.together.retain(|changes| changes.keys().all(|name| unsure.contains(name)));
        }
        if is_lost {
            self.reopen().await;
        }
    }

    async fn upload(&mut self, k: u8, length: usize) {
        let (key, value) = (format!("k{k}"), self.value(length));
        let begin = Op::UploadBegin {
            container: super::bench::DB,
            key: key.clone().into_bytes(),
            length: value.len() as u64,
            shared_bytes: 0,
            form: None,
        };
        let Ok(Output::Upload(upload)) = execute_as(&self.slots, begin, Durability::Sync).await else {
            return self.reopen().await;
        };
        for part in value.chunks(100) {
            let part = Op::UploadPart { upload, key: key.clone().into_bytes(), bytes: part.to_vec() };
            if execute_as(&self.slots, part, Durability::Sync).await.is_err() {
                return self.reopen().await;
            }
        }
        let op = super::bench::store_op(super::bench::DB, &key, Value::Upload(upload), false);
        let held = Held { current: Some(value), retained: None };
        let changes = World::from([((super::bench::DB, key), held)]);
        self.ask(op, Durability::Sync, changes).await;
    }
}

async fn walk(reactor: Reactor, steps: Vec<Step>) {
    let medium = formatted(&reactor).await;
    let cost = Cost { fixed_ns: 20_000, spread_ns: 80_000, byte_ps: 0, flush_ns: 100_000 };
    let drive = DelaySsd::new(&reactor, medium.connect(), cost);
    let slots = Slots::open(&reactor, drive).await.unwrap();
    let (now, maybe) = (World::new(), BTreeMap::new());
    let (together, versions) = (Vec::new(), BTreeSet::new());
    let mut test =
        Test { reactor, medium, slots, cost, now, maybe, together, written: 0, versions, in_doubt: None };
    for step in steps {
        test.take(step).await;
    }
    test.reopen().await;
    // What the keeper leaves behind when it has done everything.
    test.slots.compact();
    test.slots.idle().await;
    if test.slots.check_writable().is_err() {
        test.reopen().await;
        test.medium.calm();
        test.slots = open(&test.reactor, &test.medium).await;
        test.slots.compact();
        test.slots.idle().await;
    }
    test.look().await;
    test.slots = open(&test.reactor, &test.medium).await;
    test.look().await;
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, max_shrink_iters: 300, ..ProptestConfig::default() })]

    #[test]
    fn what_was_acknowledged_is_there_and_what_had_gone_does_not_come_back(
        seed in any::<u64>(),
        steps in steps(),
    ) {
        run(seed, |reactor| walk(reactor, steps.clone()));
    }
}
