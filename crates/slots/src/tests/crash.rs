//! Power losses at any command: what was acknowledged is there, and nothing comes back that had gone.
//!
//! The model says of each key which states it may be in: the last one that was acknowledged as durable, and
//! those that later writes would have led to. After each loss it is the one that the drive gives.

use super::bench::{del_op, execute_as, formatted, open, release_op, retain_op, revert_op, run, set_op};
use crate::{Cost, DelaySsd, Medium, Slots};
use plimsoll_kv::{ContainerId, Durability, Error, Op, Output, Value, Version};
use plimsoll_reactor::Reactor;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::rc::Rc;

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
    /// Several at a time, of keys of their own.
    Together(Vec<(usize, bool, Durability)>),
    Clear,
    Sync,
    Compact,
    Rest,
    /// Power is lost at the n-th command from here, before its effect or after.
    LosePower(u64, bool),
}

fn durability() -> impl Strategy<Value = Durability> {
    prop_oneof![3 => Just(Durability::Sync), 1 => Just(Durability::Async)]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let key = 0..KEYS;
    let length = prop_oneof![4 => 0_usize..60, 1 => 1000_usize..3000];
    let entry = (key.clone(), proptest::option::weighted(0.7, length.clone()));
    let step = prop_oneof![
        4 => (key.clone(), length.clone(), durability()).prop_map(|(k, n, d)| Step::Set(k, n, d)),
        4 => (key.clone(), length.clone(), durability()).prop_map(|(k, n, d)| Step::Retain(k, n, d)),
        2 => (key.clone(), length.clone(), durability(), any::<bool>())
            .prop_map(|(k, n, d, back)| Step::Briefly(k, n, d, back)),
        2 => key.clone().prop_map(Step::Release),
        2 => key.clone().prop_map(Step::Revert),
        3 => (key.clone(), durability()).prop_map(|(k, d)| Step::Delete(k, d)),
        5 => (proptest::collection::vec(entry, 1..5), 0_u8..KEYS, any::<bool>(), durability())
            .prop_map(|(entries, book, retain, d)| Step::Batch(entries, book, retain, d)),
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

/// What a key holds, and what it retains below that: versions and values.
#[derive(Clone, Default, PartialEq)]
struct Held {
    current: Option<Vec<u8>>,
    retained: Option<Vec<u8>>,
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = |value: &Option<Vec<u8>>| {
            value.as_ref().map(|value| (value[0], value.get(1).copied().unwrap_or_default()))
        };
        write!(f, "{:?} over {:?}", number(&self.current), number(&self.retained))
    }
}

type Name = (ContainerId, String);

/// Everything, at an instant.
type World = BTreeMap<Name, Held>;

struct Test {
    reactor: Reactor,
    medium: Medium,
    slots: Rc<Slots>,
    cost: Cost,
    /// What it holds if everything that was asked for happened.
    now: World,
    /// Every state of a key since it was last durable, the durable one first.
    maybe: BTreeMap<Name, Vec<Held>>,
    /// Keys that changed together, and their states after that: there together or not at all, as long as none
    /// is durable otherwise.
    together: Vec<World>,
    written: u32,
    versions: BTreeSet<Version>,
}

impl Test {
    fn held(&self, name: &Name) -> Held {
        self.now.get(name).cloned().unwrap_or_default()
    }

    fn value(&mut self, length: usize) -> Vec<u8> {
        self.written += 1;
        let mut value = self.written.to_le_bytes().to_vec();
        value.resize(length.max(4), self.written as u8);
        value
    }

    /// What was asked for may have happened from here on.
    fn may_be(&mut self, changes: &World) {
        for (name, held) in changes {
            let before = self.held(name);
            self.maybe.entry(name.clone()).or_insert_with(|| vec![before]).push(held.clone());
        }
        if changes.len() > 1 {
            self.together.push(changes.clone());
        }
    }

    /// It has happened; durably, if so.
    fn is(&mut self, changes: World, durable: bool) {
        self.now.extend(changes.clone());
        if durable {
            // A flush is of everything that was completed.
            self.maybe.clear();
            self.together.clear();
        }
    }

    /// Asks for something that changes keys; false if power was lost at it.
    async fn ask(&mut self, op: Op, durability: Durability, changes: World) -> bool {
        self.may_be(&changes);
        match execute_as(&self.slots, op.clone(), durability).await {
            Ok(output) => {
                let mut versions = BTreeSet::new();
                versions_of(&output, &mut versions);
                for version in versions {
                    assert!(self.versions.insert(version), "{version} was used twice");
                }
                self.is(changes, durability == Durability::Sync);
                true
            }
            Err(Error::ReadOnly(why) | Error::Unreadable(why)) if why.contains("power was lost") => {
                self.reopen().await;
                false
            }
            Err(error) => panic!("{op:?}: {error}"),
        }
    }

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
        ops.push(super::bench::store_op(OTHER, &key, Value::Bytes(value.clone()), false));
        changes.insert((OTHER, key), Held { current: Some(value), retained: None });
        self.ask(Op::Batch(ops), durability, changes).await;
    }

    /// Batches of a key each, and of a book each that rides on it; keys that hold something are deleted too.
    async fn together(&mut self, each: Vec<(usize, bool, Durability)>) {
        let mut asked = Vec::new();
        for (number, (length, retain, durability)) in each.into_iter().enumerate() {
            let (key, book) = (format!("k{number}"), format!("book{number}"));
            let name = (super::bench::DB, key.clone());
            let (value, title) = (self.value(length), self.value(20));
            let before = self.held(&name);
            let mut ops = vec![super::bench::store_op(OTHER, &book, Value::Bytes(title.clone()), false)];
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

    /// Power is lost; what is left is looked at, and is what there is from then on.
    async fn reopen(&mut self) {
        let reactor = self.reactor.clone();
        self.medium.lose_power(move |states| (reactor.random_u64() % states as u64) as usize);
        loop {
            // Power is lost while it is opened, too.
            if self.reactor.random_u64().is_multiple_of(4) {
                self.medium.lose_power_at(1 + self.reactor.random_u64() % 30, true);
            }
            let drive = DelaySsd::new(&self.reactor, self.medium.connect(), self.cost);
            match Slots::open(&self.reactor, drive).await {
                Ok(slots) => {
                    self.slots = slots;
                    break;
                }
                Err(error) => assert!(error.to_string().contains("power was lost"), "{error}"),
            }
            let reactor = self.reactor.clone();
            self.medium.lose_power(move |states| (reactor.random_u64() % states as u64) as usize);
        }
        self.look().await;
    }

    async fn found(&self, name: &Name) -> Option<Vec<u8>> {
        let op = Op::Retrieve {
            container: name.0,
            key: name.1.clone().into_bytes(),
            range: Some((0, u64::MAX)),
            pin: false,
        };
        match execute_as(&self.slots, op, Durability::Sync).await {
            Ok(Output::Found(item)) => Some(item.bytes),
            Err(Error::NotFound) => None,
            other => panic!("{name:?}: {other:?}"),
        }
    }

    /// What a key retains: put back, and both written anew, by a connection that is thrown away.
    async fn retained(&self, snapshot: &Medium, name: &Name) -> Option<Vec<u8>> {
        let slots = open(&self.reactor, snapshot).await;
        let op = Op::Revert { container: name.0, key: name.1.clone().into_bytes() };
        match execute_as(&slots, op, Durability::Sync).await {
            Ok(_) => {
                let op = Op::Retrieve {
                    container: name.0,
                    key: name.1.clone().into_bytes(),
                    range: Some((0, u64::MAX)),
                    pin: false,
                };
                match execute_as(&slots, op, Durability::Sync).await {
                    Ok(Output::Found(item)) => Some(item.bytes),
                    other => panic!("{name:?}: {other:?}"),
                }
            }
            Err(Error::Invalid(_) | Error::NotFound) => None,
            Err(error) => panic!("{name:?}: {error}"),
        }
    }

    /// Compares each key with the states that it may be in.
    async fn look(&mut self) {
        let names: BTreeSet<Name> = self.now.keys().chain(self.maybe.keys()).cloned().collect();
        let snapshot = self.medium.copy();
        let mut seen = World::new();
        for name in names {
            let current = self.found(&name).await;
            let retained = match current {
                Some(_) => self.retained(&snapshot, &name).await,
                None => None,
            };
            let held = Held { current, retained };
            match self.maybe.get(&name) {
                Some(states) => assert!(states.contains(&held), "{name:?} is {held:?}, of {states:?}"),
                None => assert_eq!(held, self.held(&name), "{name:?} was durable"),
            }
            seen.insert(name, held);
        }
        self.compare_batches(&seen);
        let keys = seen.iter().filter(|(name, held)| name.0 == super::bench::DB && held.current.is_some());
        let keys = keys.count() as u64;
        let stats = Op::Stats { container: super::bench::DB };
        match execute_as(&self.slots, stats, Durability::Sync).await {
            Ok(Output::Stats(stats)) => assert_eq!(stats.keys, keys),
            other => panic!("{other:?}"),
        }
        // It has been read by a drive that was opened since: it is durable.
        self.now = seen;
        self.maybe.clear();
        self.together.clear();
    }

    /// Where one key is as a batch left it, no other is as it was before. Keys that were twice in the same
    /// state tell nothing.
    fn compare_batches(&self, seen: &World) {
        for changes in &self.together {
            let mut ranks = Vec::new();
            for (name, held) in changes {
                let states = &self.maybe[name];
                let at = |wanted: &Held| {
                    let mut each = states.iter().enumerate().filter(|(_, state)| *state == wanted);
                    each.next().map(|(at, _)| at).filter(|_| each.next().is_none())
                };
                if let (Some(batch), Some(is)) = (at(held), at(&seen[name])) {
                    ranks.push((batch, is));
                }
            }
            let is_there = ranks.iter().any(|(batch, is)| is == batch);
            let is_missing = ranks.iter().any(|(batch, is)| is < batch);
            assert!(!(is_there && is_missing), "a batch is there in part: {changes:?} of {seen:?}");
        }
    }
}

fn versions_of(output: &Output, versions: &mut BTreeSet<Version>) {
    match output {
        Output::Stored { version, .. } | Output::Edited { version, .. } => {
            assert!(versions.insert(*version));
        }
        Output::Batch(outputs) => outputs.iter().for_each(|output| versions_of(output, versions)),
        _ => {}
    }
}

async fn walk(reactor: Reactor, steps: Vec<Step>) {
    let medium = formatted(&reactor).await;
    let cost = Cost { fixed_ns: 20_000, spread_ns: 80_000, byte_ps: 0, flush_ns: 100_000 };
    let drive = DelaySsd::new(&reactor, medium.connect(), cost);
    let slots = Slots::open(&reactor, drive).await.unwrap();
    let (now, maybe) = (World::new(), BTreeMap::new());
    let (together, versions) = (Vec::new(), BTreeSet::new());
    let mut test = Test { reactor, medium, slots, cost, now, maybe, together, written: 0, versions };
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
