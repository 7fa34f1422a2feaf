//! The keeper: what is done behind the requests.
//!
//! Role: deletes what nobody needs, gives riders slots of their own, moves the horizon. Place on the path:
//! beside it. It runs while there is something to do, and not longer.
//!
//! Invariants:
//! * nothing is deleted before what makes it needless is durable, nor while riders in force are on it;
//! * the horizon passes only what has no rider in force below it, nor a write under way that might bring one;
//! * it takes one key at a time, and none that somebody else has.
//!
//! Never: a request waits for it.

use crate::drive::{DriveKey, StoreIf};
use crate::hosts::KeyOf;
use crate::index::{At, Container};
use crate::intent::{Intent, IntentHead};
use crate::slots::Slots;
use crate::superblock::SUPERBLOCK_KEYS;
use futures_util::future::join_all;
use plimsoll_kv::{ContainerId, Result};
use plimsoll_reactor::Work;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::rc::Rc;

/// Keys looked at in one round.
const KEYS_MAX: usize = 256;
/// Objects deleted together.
const DELETES_MAX: usize = 64;
/// Entries of an emptied container taken at a time.
const EMPTIED_MAX: usize = 256;
/// Bytes of riders in memory from which on they are given slots of their own.
const RIDER_BYTES_MAX: usize = 8 << 20;
/// Keys that were carried since the horizon from which on it moves.
const RIDDEN_MAX: usize = 8192;
/// How long what somebody else has is left alone.
const RETRY_DELAY_NS: u64 = 10_000_000;

type Named = (ContainerId, Vec<u8>);

/// Keys of which something is to be done.
#[derive(Default)]
struct Queue {
    names: RefCell<BTreeSet<Named>>,
    /// Whom was looked at last.
    last: RefCell<Named>,
}

/// What is to be done.
#[derive(Default)]
pub(crate) struct Keeper {
    running: Cell<bool>,
    /// Keys of which something stands where it is of no use.
    tidy: Queue,
    /// Keys whose newest record is a rider that is to have a slot.
    homes: Queue,
    /// Keys that are gone, and wait for the horizon.
    gone: RefCell<BTreeSet<Named>>,
    emptied: RefCell<Vec<(ContainerId, Container)>>,
    /// Objects that carry the writes of batches and transactions.
    committed: RefCell<BTreeMap<DriveKey, Intent>>,
    /// Everything is given a slot, and the horizon moves.
    horizon_is_due: Cell<bool>,
}

/// How far a task got.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Done,
    /// Something else has to be done first, or somebody else be done.
    Later,
}

impl Keeper {
    pub(crate) fn tidy(&self, container: ContainerId, key: &[u8]) {
        self.tidy.names.borrow_mut().insert((container, key.to_vec()));
    }

    pub(crate) fn give_home(&self, container: ContainerId, key: &[u8]) {
        self.homes.names.borrow_mut().insert((container, key.to_vec()));
    }

    pub(crate) fn emptied(&self, container: ContainerId, before: Container) {
        self.emptied.borrow_mut().push((container, before));
    }

    pub(crate) fn committed(&self, key: DriveKey, intent: Intent) {
        self.committed.borrow_mut().insert(key, intent);
    }

    /// Chunks of what is carried still are needed.
    pub(crate) fn keep_chunks(&self, chunks: &mut BTreeSet<DriveKey>) {
        for intent in self.committed.borrow().values() {
            chunks.retain(|chunk| !intent.chunks.contains(chunk));
        }
    }

    /// What an intent carries is to have a slot.
    pub(crate) fn give_home_if_committed(&self, host: DriveKey, container: ContainerId, key: &[u8]) {
        if self.committed.borrow().contains_key(&host) {
            self.give_home(container, key);
        }
    }

    /// A transaction is forgotten: true if its object carries its writes still, and goes later.
    pub(crate) fn forget(&self, key: DriveKey) -> bool {
        let mut committed = self.committed.borrow_mut();
        let Some(intent) = committed.get_mut(&key) else { return false };
        intent.head = IntentHead::Batch(0);
        true
    }

    /// The next of those in a queue, which stay there: those that somebody holds hold up no others.
    fn look(queue: &Queue) -> Vec<Named> {
        let names = queue.names.borrow();
        let after = names.range((Bound::Excluded(queue.last.take()), Bound::Unbounded));
        let next: Vec<Named> = after.chain(names.iter()).take(KEYS_MAX.min(names.len())).cloned().collect();
        *queue.last.borrow_mut() = next.last().cloned().unwrap_or_default();
        next
    }
}

impl Slots {
    fn has_work(&self) -> bool {
        let keeper = &self.keeper;
        let state = self.state.borrow();
        let is_full = state.hosts.bytes() > RIDER_BYTES_MAX || state.hosts.ridden() > RIDDEN_MAX;
        let is_idle = self.doomed.is_empty()
            && keeper.tidy.names.borrow().is_empty()
            && keeper.homes.names.borrow().is_empty()
            && keeper.emptied.borrow().is_empty()
            && keeper.committed.borrow().is_empty();
        !is_idle || is_full || keeper.horizon_is_due.get()
    }

    /// Sees to it that what is to be done is done.
    pub(crate) fn kick(self: &Rc<Self>) {
        if self.keeper.running.get() || !self.has_work() || self.check_writable().is_err() {
            return;
        }
        self.keeper.running.set(true);
        let slots = self.clone();
        self.reactor.spawn(Work::Background, async move {
            while slots.has_work() {
                match slots.keep().await {
                    Ok(Step::Done) => slots.reactor.yield_now().await,
                    Ok(Step::Later) => slots.reactor.sleep_ns(RETRY_DELAY_NS).await,
                    // A full drive has room again some time; one that takes no writes never.
                    Err(_) if slots.check_writable().is_ok() => slots.reactor.sleep_ns(RETRY_DELAY_NS).await,
                    Err(_) => break,
                }
            }
            slots.keeper.running.set(false);
        });
    }

    /// Gives everything a slot of its own and moves the horizon: what deletes left behind goes. For tests,
    /// and whoever wants a drive as small as can be.
    pub fn compact(self: &Rc<Self>) {
        self.keeper.horizon_is_due.set(true);
        self.kick();
    }

    /// Waits until nothing is left to be done. For tests.
    pub async fn idle(self: &Rc<Self>) {
        self.kick();
        while self.keeper.running.get() {
            self.reactor.sleep_ns(1_000_000).await;
        }
    }

    /// One round of everything.
    async fn keep(self: &Rc<Self>) -> Result<Step> {
        let mut step = Step::Later;
        let mut note = |one: Step| step = if one == Step::Done { one } else { step };
        note(self.take_emptied());
        note(self.delete_doomed().await?);
        for (container, key) in Keeper::look(&self.keeper.homes) {
            if self.move_home(container, &key).await? == Step::Done {
                self.keeper.homes.names.borrow_mut().remove(&(container, key));
                note(Step::Done);
            }
        }
        for (container, key) in Keeper::look(&self.keeper.tidy) {
            // What is found meanwhile is found anew.
            let name = (container, key);
            self.keeper.tidy.names.borrow_mut().remove(&name);
            match self.tidy(name.0, &name.1).await {
                Ok(Step::Done) => note(Step::Done),
                later => {
                    self.keeper.tidy(name.0, &name.1);
                    later?;
                }
            }
        }
        note(self.retire_intents().await?);
        let is_full = {
            let state = self.state.borrow();
            state.hosts.bytes() > RIDER_BYTES_MAX || state.hosts.ridden() > RIDDEN_MAX
        };
        if is_full || self.keeper.horizon_is_due.get() {
            note(self.move_horizon().await?);
        }
        Ok(step)
    }

    /// What an emptied container held is doomed, some of it at a time.
    fn take_emptied(&self) -> Step {
        let Some((container, mut before)) = self.keeper.emptied.borrow_mut().pop() else {
            return Step::Later;
        };
        let taken = before.take_some(EMPTIED_MAX);
        if taken.is_empty() {
            return Step::Done;
        }
        let mut state = self.state.borrow_mut();
        for (key, entry) in taken {
            let of: KeyOf = (container, before.generation, key);
            if let Some(At::Rider(host)) = entry.current.as_ref().map(|live| live.at) {
                // Nothing takes its place: the generation of the container is durable.
                state.hosts.remove(host, &of, 0);
            }
            let occupied = (0..2).filter(|slot| entry.occupied[usize::from(*slot)]);
            occupied.for_each(|slot| self.doomed.add(self.place(&of, slot)));
        }
        drop(state);
        self.keeper.emptied(container, before);
        Step::Done
    }

    /// Those whose riders are in force are not to go yet: the riders move first.
    fn move_riders(&self, key: DriveKey) -> bool {
        let state = self.state.borrow();
        for (of, _) in state.hosts.riders(key) {
            if state.generation(of.0) == of.1 {
                self.keeper.give_home(of.0, &of.2);
            }
        }
        state.hosts.carries(key)
    }

    async fn delete_doomed(&self) -> Result<Step> {
        let doomed = self.doomed.take(DELETES_MAX);
        let (carrying, free): (Vec<_>, Vec<_>) = doomed.into_iter().partition(|key| self.move_riders(*key));
        carrying.into_iter().for_each(|key| self.doomed.add(key));
        if free.is_empty() {
            return Ok(Step::Later);
        }
        self.flushed(self.flushes.next()).await?;
        let deletes = join_all(free.iter().map(|key| self.drive.delete(*key))).await;
        for (key, result) in free.iter().zip(deletes) {
            result.map_err(|error| self.failed(&format!("a delete of {key}"), error))?;
        }
        Ok(Step::Done)
    }

    /// True if nothing is to be done of a key: it is left as it is, for what stands there cannot be read.
    fn is_damaged(&self, container: ContainerId, key: &[u8]) -> bool {
        let generation = self.state.borrow().generation(container);
        self.check_whole(container, generation, key).is_err()
    }

    fn is_held(&self, container: ContainerId, key: &[u8]) -> bool {
        let (slot, fingerprint) = Slots::lock_id(container, key);
        !self.locks.is_free(slot, fingerprint)
    }

    async fn move_home(self: &Rc<Self>, container: ContainerId, key: &[u8]) -> Result<Step> {
        if self.is_held(container, key) {
            return Ok(Step::Later);
        }
        let _guard = self.lock_key(container, key).await;
        if self.is_damaged(container, key) {
            return Ok(Step::Done);
        }
        let is_needless = {
            let state = self.state.borrow();
            let of = state.key_of(container, key);
            let current = state.entry(container, key).and_then(|entry| entry.current.as_ref());
            current.is_some_and(|live| live.is_gone()) && !state.hosts.is_ridden(&of)
        };
        if is_needless {
            self.keeper.tidy(container, key);
            return Ok(Step::Done);
        }
        self.give_home(container, key).await?;
        Ok(Step::Done)
    }

    /// Takes away what is of no use of a key.
    async fn tidy(self: &Rc<Self>, container: ContainerId, key: &[u8]) -> Result<Step> {
        if self.is_held(container, key) {
            return Ok(Step::Later);
        }
        let _guard = self.lock_key(container, key).await;
        if self.is_damaged(container, key) {
            return Ok(Step::Done);
        }
        self.expire(container, key).await?;
        let (of, flush, stale) = {
            let state = self.state.borrow();
            let Some(entry) = state.entry(container, key) else { return Ok(Step::Done) };
            let flush = entry.current.as_ref().map_or(0, |live| live.flush);
            (state.key_of(container, key), flush, entry.stale_slots().collect::<Vec<_>>())
        };
        self.flushed(flush).await?;
        for slot in stale {
            let place = self.place(&of, slot);
            if self.move_riders(place) {
                return Ok(Step::Later);
            }
            self.may_go(place).await?;
            self.delete_object(place).await?;
            self.slot_is_empty(&of, slot, false);
        }
        self.tidy_gone(&of).await
    }

    fn slot_is_empty(&self, of: &KeyOf, slot: u8, forget: bool) {
        let mut state = self.state.borrow_mut();
        if state.generation(of.0) != of.1 {
            return; // The container was emptied meanwhile.
        }
        let container = state.containers.get_mut(&of.0).expect("it has the key");
        container.update(&of.2, |entry| {
            entry.occupied[usize::from(slot)] = false;
            if forget {
                entry.current = None;
            }
        });
    }

    /// A key that is gone needs no record of that once nothing else of it is left. It is held.
    async fn tidy_gone(self: &Rc<Self>, of: &KeyOf) -> Result<Step> {
        let (at, is_ridden) = {
            let state = self.state.borrow();
            let entry = state.entry(of.0, &of.2).filter(|_| state.generation(of.0) == of.1);
            let gone = entry.and_then(|entry| entry.current.as_ref()).filter(|live| live.is_gone());
            let Some(gone) = gone else { return Ok(Step::Done) };
            (gone.at, state.hosts.is_ridden(of))
        };
        if is_ridden {
            self.keeper.gone.borrow_mut().insert((of.0, of.2.to_vec()));
            return Ok(Step::Done);
        }
        match at {
            At::Rider(host) => {
                let mut state = self.state.borrow_mut();
                let state = &mut *state;
                state.hosts.remove(host, of, 0);
                let container = state.containers.get_mut(&of.0).expect("it has the key");
                container.update(&of.2, |entry| entry.current = None);
            }
            At::Slot(slot) => {
                let place = self.place(of, slot);
                if self.move_riders(place) {
                    return Ok(Step::Later);
                }
                self.may_go(place).await?;
                self.delete_object(place).await?;
                self.slot_is_empty(of, slot, true);
            }
        }
        Ok(Step::Done)
    }

    /// Intents of which every write has a place of its own go.
    async fn retire_intents(&self) -> Result<Step> {
        let mut step = Step::Later;
        let idle: Vec<DriveKey> = {
            let state = self.state.borrow();
            let committed = self.keeper.committed.borrow();
            committed.keys().filter(|key| !state.hosts.carries(**key)).copied().collect()
        };
        for key in idle {
            self.may_go(key).await?;
            let head = self.keeper.committed.borrow().get(&key).map(|intent| intent.head.clone());
            match head {
                Some(head @ IntentHead::Transaction(..)) => self.store_applied(key, &head).await?,
                _ => self.delete_object(key).await?,
            }
            let intent = self.keeper.committed.borrow_mut().remove(&key).expect("nobody else removes it");
            // It may have been forgotten meanwhile.
            if matches!(intent.head, IntentHead::Batch(_)) {
                self.doomed.add(key);
            }
            intent.chunks.into_iter().for_each(|chunk| self.doomed.add(chunk));
            step = Step::Done;
        }
        Ok(step)
    }

    /// Riders that came before an instant are void from then on: none is in force, for each got a slot.
    async fn move_horizon(self: &Rc<Self>) -> Result<Step> {
        let next = self.next_version();
        let (horizon, riders) = {
            let state = self.state.borrow();
            let first = state.under_way.keys().next().copied();
            (first.map_or(next, |first| first.min(next)), state.hosts.all())
        };
        for (container, generation, key) in &riders {
            if self.state.borrow().generation(*container) != *generation {
                continue; // Void already.
            }
            if self.move_home(*container, key).await? == Step::Later {
                return Ok(Step::Later);
            }
        }
        // What says that a key is gone, and is needed no more once its slots are empty, is taken away
        // instead.
        let is_left = |of: &KeyOf| {
            let state = self.state.borrow();
            let entry = state.entry(of.0, &of.2).filter(|_| state.generation(of.0) == of.1);
            let current = entry.and_then(|entry| entry.current.as_ref());
            current.is_some_and(|live| matches!(live.at, At::Rider(_)) && live.sequence < horizon)
        };
        let all = self.state.borrow().hosts.all();
        if all.iter().any(is_left) {
            return Ok(Step::Later);
        }
        self.flushed(self.flushes.next()).await?;
        self.superblock.borrow_mut().horizon = horizon;
        self.store_superblock().await?;
        self.state.borrow_mut().hosts.pass_horizon(horizon);
        self.keeper.horizon_is_due.set(false);
        for (container, key) in self.keeper.gone.take() {
            self.keeper.tidy(container, &key);
        }
        Ok(Step::Done)
    }

    /// Writes both copies of the superblock, durably.
    pub(crate) async fn store_superblock(&self) -> Result<()> {
        let bytes = self.superblock.borrow().encode();
        for key in SUPERBLOCK_KEYS {
            let stored = self.drive.store(key, bytes.clone(), StoreIf::Always).await;
            stored.map_err(|error| self.failed("a store of the superblock", error))?;
            self.flushed(self.flushes.next()).await?;
        }
        Ok(())
    }
}
