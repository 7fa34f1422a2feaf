//! What the tests with power losses know: which states each key may be in.
//!
//! Of each key: the last state that was acknowledged as durable, and those that later writes would have led
//! to. After each loss it is one of these, and that is what it is from then on.

use super::bench::{DB, execute_as, open};
use crate::{Cost, DelaySsd, Medium, Slots};
use plimsoll_kv::transaction::{Action, Status};
use plimsoll_kv::{ContainerId, Durability, Error, Op, Output, TransactionId, Version};
use plimsoll_reactor::Reactor;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::rc::Rc;

/// What a key holds, and what it retains below that: versions and values.
#[derive(Clone, Default, PartialEq)]
pub(super) struct Held {
    pub(super) current: Option<Vec<u8>>,
    pub(super) retained: Option<Vec<u8>>,
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = |value: &Option<Vec<u8>>| {
            value.as_ref().map(|value| (value[0], value.get(1).copied().unwrap_or_default()))
        };
        write!(f, "{:?} over {:?}", number(&self.current), number(&self.retained))
    }
}

pub(super) type Name = (ContainerId, String);

/// Everything, at an instant.
pub(super) type World = BTreeMap<Name, Held>;

/// A transaction of which it is not known what becomes of it.
pub(super) struct InDoubt {
    pub(super) id: TransactionId,
    pub(super) changes: World,
    /// That was acknowledged.
    pub(super) has_prepared: bool,
    /// It was asked to apply, or to release.
    pub(super) applies: Option<bool>,
}

pub(super) struct Test {
    pub(super) reactor: Reactor,
    pub(super) medium: Medium,
    pub(super) slots: Rc<Slots>,
    pub(super) cost: Cost,
    /// What it holds if everything that was asked for happened.
    pub(super) now: World,
    /// Every state of a key since it was last durable, the durable one first.
    pub(super) maybe: BTreeMap<Name, Vec<Held>>,
    /// Keys that changed together, and their states after that: there together or not at all, as long as none
    /// is durable otherwise.
    pub(super) together: Vec<World>,
    pub(super) written: u32,
    pub(super) versions: BTreeSet<Version>,
    /// A transaction that has begun to commit or prepare.
    pub(super) in_doubt: Option<InDoubt>,
}

impl Test {
    pub(super) fn held(&self, name: &Name) -> Held {
        self.now.get(name).cloned().unwrap_or_default()
    }

    pub(super) fn value(&mut self, length: usize) -> Vec<u8> {
        self.written += 1;
        let mut value = self.written.to_le_bytes().to_vec();
        value.resize(length.max(4), self.written as u8);
        value
    }

    /// What was asked for may have happened from here on.
    pub(super) fn may_be(&mut self, changes: &World) {
        for (name, held) in changes {
            let before = self.held(name);
            self.maybe.entry(name.clone()).or_insert_with(|| vec![before]).push(held.clone());
        }
        if changes.len() > 1 {
            self.together.push(changes.clone());
        }
    }

    /// What was last asked for has not happened, and will not.
    pub(super) fn never_was(&mut self, changes: &World) {
        for name in changes.keys() {
            let states = self.maybe.get_mut(name).expect("it may have been");
            states.pop();
            if states.len() == 1 {
                self.maybe.remove(name);
            }
        }
        if changes.len() > 1 {
            self.together.pop();
        }
    }

    /// What becomes of a transaction that was cut short: as was decided, or either.
    async fn settle(&mut self) {
        let Some(InDoubt { id, changes, has_prepared, applies }) = self.in_doubt.take() else { return };
        let step = |action| {
            let op = Op::Transaction { partition: 3, id: Some(id), action };
            execute_as(&self.slots, op, Durability::Sync)
        };
        let Ok(Output::Status(status)) = step(Action::Status).await else { panic!("a status") };
        let happens = match (status, applies) {
            (Status::Unknown, Some(true)) => panic!("a transaction that was to be applied is forgotten"),
            (Status::Unknown, None) => {
                assert!(!has_prepared, "a transaction that had prepared is forgotten");
                false
            }
            (Status::Unknown, Some(false)) => false,
            (Status::Applied, applies) => {
                assert_eq!(applies, Some(true), "nobody said that it was to be applied");
                true
            }
            (Status::Prepared, applies) => {
                let applies = applies.unwrap_or_else(|| self.reactor.random_u64().is_multiple_of(2));
                step(if applies { Action::Apply } else { Action::Release }).await.expect("it is done");
                applies
            }
        };
        if happens {
            step(Action::Forget).await.expect("it is forgotten");
            changes.keys().for_each(|name| drop(self.maybe.remove(name)));
            self.together.retain(|others| others.keys().all(|name| !changes.contains_key(name)));
            self.now.extend(changes);
        } else {
            self.never_was(&changes);
        }
    }

    /// It has happened; durably, if so.
    pub(super) fn is(&mut self, changes: World, durable: bool) {
        self.now.extend(changes.clone());
        if durable {
            // A flush is of everything that was completed.
            self.maybe.clear();
            self.together.clear();
        }
    }

    /// Asks for something that changes keys; false if power was lost at it.
    pub(super) async fn ask(&mut self, op: Op, durability: Durability, changes: World) -> bool {
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

    /// Power is lost; what is left is looked at, and is what there is from then on.
    pub(super) async fn reopen(&mut self) {
        let reactor = self.reactor.clone();
        self.medium.lose_power(move |states| (reactor.random_u64() % states as u64) as usize);
        loop {
            let drive = DelaySsd::new(&self.reactor, self.medium.connect(), self.cost);
            // Power is lost while it is opened, too.
            if self.reactor.random_u64().is_multiple_of(4) {
                let after = self.reactor.random_u64().is_multiple_of(2);
                self.medium.lose_power_at(1 + self.reactor.random_u64() % 20, after);
            }
            let opened = Slots::open(&self.reactor, drive).await;
            match opened {
                Ok(slots) => {
                    self.medium.calm();
                    self.slots = slots;
                    break;
                }
                Err(error) => assert!(error.to_string().contains("power was lost"), "{error}"),
            }
            let reactor = self.reactor.clone();
            self.medium.lose_power(move |states| (reactor.random_u64() % states as u64) as usize);
        }
        self.settle().await;
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
    pub(super) async fn look(&mut self) {
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
        let keys = seen.iter().filter(|(name, held)| name.0 == DB && held.current.is_some());
        let keys = keys.count() as u64;
        let stats = Op::Stats { container: DB };
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
