//! Committing: from what writes come to, to what is on the drive.
//!
//! Role: writes a plan in as few commands as can be, all or nothing. Place on the path: after the plan.
//!
//! One change is one object, in a slot of its key: in place, or in the other slot if what is there is to be
//! retained. Several short ones ride behind the head of the longest. What is too long for that is one object
//! of its own, an intent, from which each goes to its slot later.
//!
//! Invariants:
//! * one command makes all of it count, and before that none does;
//! * what is retained stands in a slot, durably, before what retains it is sent;
//! * what takes an object's place takes its riders along.
//!
//! Never: memory knows of anything here before it is as durable as was asked for.

use crate::drive::{DriveKey, StoreIf};
use crate::hosts::{Encoded, KeyOf};
use crate::index::{At, Body};
use crate::install::{Placed, Spot};
use crate::intent::IntentHead;
use crate::object::{self, RIDERS_BYTES_MAX, Record, Rider};
use crate::plan::{Change, Mode, Write};
use crate::slots::Slots;
use plimsoll_kv::{ContainerId, Durability, Error, Output, Result, Version};
use std::rc::Rc;

/// Bytes of a record that rides on another's object.
const RIDER_BYTES_MAX: usize = 1 << 10;
/// How long what nobody waits for may stay without a flush.
const FLUSH_DELAY_NS: u64 = 500_000_000;

/// Writes under way: the horizon does not pass them.
pub(crate) struct UnderWay {
    slots: Rc<Slots>,
    first: Version,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut state = self.slots.state.borrow_mut();
        let count = state.under_way.get_mut(&self.first).expect("it was counted");
        *count -= 1;
        if *count == 0 {
            state.under_way.remove(&self.first);
        }
    }
}

impl Slots {
    /// Whatever is written from now on has sequences from here on.
    pub(crate) fn begin(self: &Rc<Self>) -> UnderWay {
        let first = self.next_version();
        *self.state.borrow_mut().under_way.entry(first).or_default() += 1;
        UnderWay { slots: self.clone(), first }
    }

    /// Writes, all or nothing. The keys are held.
    pub(crate) async fn write(
        self: &Rc<Self>,
        writes: Vec<Write>,
        mode: Mode,
        durability: Durability,
    ) -> Result<Vec<Output>> {
        self.write_as(writes, mode, durability, None).await
    }

    /// As [`Slots::write`], or in place of a transaction's intent.
    pub(crate) async fn write_as(
        self: &Rc<Self>,
        writes: Vec<Write>,
        mode: Mode,
        durability: Durability,
        intent: Option<(DriveKey, IntentHead)>,
    ) -> Result<Vec<Output>> {
        self.check_writable()?;
        let _under_way = self.begin();
        let mut plan = self.plan(writes, mode).await?;
        self.prepare(&plan.changes).await?;
        let placed = self.commit(&plan.changes, intent).await?;
        if durability != Durability::Async {
            self.flushed(placed.flush).await?;
        } else {
            self.flush_soon();
        }
        let outputs = std::mem::take(&mut plan.outputs);
        self.install(plan, placed);
        self.kick();
        Ok(outputs)
    }

    /// What was stored without a flush gets one.
    fn flush_soon(self: &Rc<Self>) {
        if self.flush_is_due.replace(true) {
            return;
        }
        let slots = self.clone();
        self.reactor.spawn(plimsoll_reactor::Work::Background, async move {
            slots.reactor.sleep_ns(FLUSH_DELAY_NS).await;
            slots.flush_is_due.set(false);
            // One that fails is told to whoever writes next.
            let _ = slots.flushed(slots.flushes.next()).await;
        });
    }

    /// What has to be durable before anything is written: retained records, in their slots, and parts.
    async fn prepare(&self, changes: &[Change]) -> Result<()> {
        for change in changes {
            if let Body::Parts(parts) = &change.body {
                self.flushed(parts.flush()).await?;
            }
            if !change.retains {
                continue;
            }
            self.give_home(change.container, &change.key).await?;
            let flush = {
                let state = self.state.borrow();
                let current = state.entry(change.container, &change.key).and_then(|e| e.current.as_ref());
                let current = current.expect("what is retained is there while its key is held");
                assert!(matches!(current.at, At::Slot(_)), "it has a slot of its own now");
                current.flush
            };
            self.flushed(flush).await?;
        }
        Ok(())
    }

    /// The key of a change, as hosts know it.
    pub(crate) fn key_of(change: &Change) -> KeyOf {
        (change.container, change.generation, change.key.as_slice().into())
    }

    async fn commit(&self, changes: &[Change], intent: Option<(DriveKey, IntentHead)>) -> Result<Placed> {
        if let Some((key, head)) = intent {
            return self.commit_intent(changes, key, head).await;
        }
        match changes {
            // A transaction that changes nothing: what it read is durable before it is told that it is done.
            [] => Ok(Placed { spots: Vec::new(), flush: self.flushes.next(), intent: None }),
            [change] if matches!(change.body, Body::Gone) => self.commit_delete(change).await,
            changes => match self.host_of(changes) {
                Some((host, riders)) => self.commit_host(changes, host, riders).await,
                None => {
                    let (key, head) = self.new_intent();
                    self.commit_intent(changes, key, head).await
                }
            },
        }
    }

    /// The change that carries the others, and those, if they are short enough.
    fn host_of(&self, changes: &[Change]) -> Option<(usize, Vec<Option<Encoded>>)> {
        let stores = changes.iter().enumerate().filter(|(_, change)| !matches!(change.body, Body::Gone));
        let (host, _) = stores.max_by_key(|(_, change)| change.value_bytes())?;
        let encode = |(at, change): (usize, &Change)| {
            (at != host).then(|| object::encode_rider(&change.record(), &change.value()).into())
        };
        let riders: Vec<Option<Encoded>> = changes.iter().enumerate().map(encode).collect();
        let key = self.place(&Slots::key_of(&changes[host]), self.slot_for(&changes[host]).0);
        let carried: usize = self.state.borrow().hosts.riders(key).map(|(_, encoded)| encoded.len()).sum();
        let lengths = || riders.iter().flatten().map(|rider| rider.len());
        let is_short = lengths().all(|bytes| bytes <= RIDER_BYTES_MAX)
            && lengths().sum::<usize>() + carried <= RIDERS_BYTES_MAX;
        is_short.then_some((host, riders))
    }

    /// In which slot a change is written, and whether something stands there.
    fn slot_for(&self, change: &Change) -> (u8, bool) {
        let state = self.state.borrow();
        if state.generation(change.container) != change.generation {
            return (0, false); // Nothing stands in a generation that begins with this.
        }
        let Some(entry) = state.entry(change.container, &change.key) else { return (0, false) };
        let kept = match (change.retains, change.keeps) {
            (true, _) => entry.current_slot(),
            (false, true) => entry.retained_slot(),
            (false, false) => None,
        };
        let current = entry.current_slot().filter(|_| !change.retains);
        let free = || match kept {
            Some(kept) => 1 - kept,
            None => u8::from(!entry.occupied[0] && entry.occupied[1]),
        };
        let slot = current.unwrap_or_else(free);
        assert!(Some(slot) != kept, "what is kept is not overwritten");
        (slot, entry.occupied[usize::from(slot)])
    }

    /// Waits until an object may go: what overtook its riders is durable, those too that go while it is
    /// waited.
    pub(crate) async fn may_go(&self, key: DriveKey) -> Result<()> {
        loop {
            let flush = self.state.borrow().hosts.goes_after(key);
            let Some(flush) = flush.filter(|flush| !self.flushes.is_done(*flush)) else { return Ok(()) };
            self.flushed(flush).await?;
        }
    }

    /// Stores an object in a slot, with the riders that what stands there carries, but for those that are
    /// `overtaken` by it; the flush that makes it durable.
    pub(crate) async fn store_in_slot(
        &self,
        (of, slot, is_occupied): (&KeyOf, u8, bool),
        record: &Record,
        value: &[u8],
        riders: &[Encoded],
        overtaken: &[Change],
    ) -> Result<u64> {
        let key = self.place(of, slot);
        self.may_go(key).await?;
        let object = {
            let state = self.state.borrow();
            let goes = |of: &KeyOf| {
                let is_it = |change: &Change| {
                    (change.container, change.generation) == (of.0, of.1) && change.key[..] == of.2[..]
                };
                overtaken.iter().any(is_it)
            };
            let carried = state.hosts.riders(key).filter(|(of, _)| !goes(of)).map(|(_, encoded)| encoded);
            let all: Vec<Encoded> = riders.iter().chain(carried).cloned().collect();
            object::encode(record, value, &all)
        };
        let when = if is_occupied { StoreIf::Always } else { StoreIf::Absent };
        let stored = self.drive.store(key, object, when).await;
        stored.map_err(|error| self.failed(&format!("a store of {key}"), error))?;
        Ok(self.flushes.next())
    }

    async fn commit_host(
        &self,
        changes: &[Change],
        host: usize,
        riders: Vec<Option<Encoded>>,
    ) -> Result<Placed> {
        let change = &changes[host];
        let (slot, is_occupied) = self.slot_for(change);
        let of = Slots::key_of(change);
        let riding: Vec<Encoded> = riders.iter().flatten().cloned().collect();
        let place = (&of, slot, is_occupied);
        let flush = self.store_in_slot(place, &change.record(), &change.value(), &riding, changes).await?;
        let key = self.place(&of, slot);
        let spot = |rider: Option<Encoded>| rider.map_or(Spot::Slot(slot), |rider| Spot::Rider(key, rider));
        Ok(Placed { spots: riders.into_iter().map(spot).collect(), flush, intent: None })
    }

    /// A delete of a key alone. Where its object is all that there is of it, it goes; else a record says that
    /// the key is gone, until nothing of it is left.
    async fn commit_delete(&self, change: &Change) -> Result<Placed> {
        let of = Slots::key_of(change);
        let alone = {
            let state = self.state.borrow();
            let Some(entry) = state.entry(change.container, &change.key) else {
                // It was stored by the same batch, and is not there after all.
                return Ok(Placed { spots: vec![Spot::Deleted], flush: 0, intent: None });
            };
            let slot = entry.current_slot().filter(|_| entry.stale_slots().next().is_none());
            let slot = slot.filter(|_| entry.retained.is_none() && !state.hosts.is_ridden(&of));
            slot.map(|slot| self.place(&of, slot)).filter(|key| !state.hosts.carries(*key))
        };
        if let Some(key) = alone {
            self.may_go(key).await?;
            self.delete_object(key).await?;
            return Ok(Placed { spots: vec![Spot::Deleted], flush: 0, intent: None });
        }
        let (slot, is_occupied) = self.slot_for(change);
        let changes = std::slice::from_ref(change);
        let flush = self.store_in_slot((&of, slot, is_occupied), &change.record(), &[], &[], changes).await?;
        Ok(Placed { spots: vec![Spot::Slot(slot)], flush, intent: None })
    }

    /// Deletes a key whose time has come. It is held.
    pub(crate) async fn expire(self: &Rc<Self>, container: ContainerId, key: &[u8]) -> Result<()> {
        let _under_way = self.begin();
        let generation = {
            let state = self.state.borrow();
            let Some(entry) = state.entry(container, key) else { return Ok(()) };
            let is_there = entry.live(0).is_some() && entry.retained.is_none();
            if !is_there || entry.live(self.clock.now_ms()).is_some() {
                return Ok(());
            }
            state.generation(container)
        };
        let sequence = self.next_version();
        let change = Change {
            container,
            generation,
            key: key.to_vec(),
            sequence,
            version: sequence,
            expiry_ms: None,
            body: Body::Gone,
            bytes: Vec::new(),
            retains: false,
            keeps: false,
            below: Version::ZERO,
        };
        let placed = self.commit_delete(&change).await?;
        self.flushed(placed.flush).await?;
        let spot = placed.spots.into_iter().next().expect("one place for one change");
        self.install_alone(change, spot, placed.flush);
        Ok(())
    }

    async fn commit_intent(&self, changes: &[Change], key: DriveKey, head: IntentHead) -> Result<Placed> {
        let encode = |change: &Change| object::encode_rider(&change.record(), &change.value()).into();
        let riders: Vec<Encoded> = changes.iter().map(encode).collect();
        let intent = self.store_intent(key, object::Kind::Committed, head, &riders.concat()).await?;
        let flush = self.flushes.next();
        let spots = riders.into_iter().map(|rider| Spot::Rider(key, rider)).collect();
        Ok(Placed { spots, flush, intent: Some((key, intent)) })
    }

    /// Gives the newest record of a key a slot of its own, if it rides on another's object. The key is held.
    ///
    /// What it was written with is durable first: else a power loss could leave this of a batch alone.
    pub(crate) async fn give_home(&self, container: ContainerId, key: &[u8]) -> Result<()> {
        let flush = {
            let state = self.state.borrow();
            let current = state.entry(container, key).and_then(|entry| entry.current.as_ref());
            current.filter(|live| matches!(live.at, At::Rider(_))).map(|live| live.flush)
        };
        let Some(flush) = flush else { return Ok(()) };
        self.flushed(flush).await?;
        let (of, host, encoded, slot, is_occupied) = {
            let state = self.state.borrow();
            let Some(entry) = state.entry(container, key) else { return Ok(()) };
            let Some(At::Rider(host)) = entry.current.as_ref().map(|live| live.at) else { return Ok(()) };
            let of = state.key_of(container, key);
            let encoded = state.hosts.get(host, &of).expect("a rider is with its host");
            let slot = match entry.retained_slot() {
                Some(kept) => 1 - kept,
                None => u8::from(!entry.occupied[0] && entry.occupied[1]),
            };
            (of, host, encoded, slot, entry.occupied[usize::from(slot)])
        };
        let riders = object::decode_riders(&encoded).unwrap_or_default();
        let Ok([Rider { record, value }]) = <[Rider; 1]>::try_from(riders) else {
            return Err(Error::Unreadable("a record in memory is not what was put there".to_owned()));
        };
        let flush = self.store_in_slot((&of, slot, is_occupied), &record, &value, &[], &[]).await?;
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        if state.generation(container) != of.1 {
            self.doomed.add(self.place(&of, slot)); // The container was emptied meanwhile.
            return Ok(());
        }
        state.hosts.remove(host, &of, flush);
        let of_container = state.containers.get_mut(&container).expect("it has the key");
        of_container.update(key, |entry| {
            entry.occupied[usize::from(slot)] = true;
            let current = entry.current.as_mut().expect("its key is held");
            assert_eq!(current.sequence, record.sequence, "nobody writes a key that is held");
            (current.at, current.flush) = (At::Slot(slot), flush);
        });
        Ok(())
    }
}
