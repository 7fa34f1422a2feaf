//! A partition: one log-structured store of a share of the slots, owned by one reactor.
//!
//! Role: the KV device that the layers above see; this file holds what its operations share and
//! sends each operation to its file. Place on the path: stage 3 of a request.
//!
//! Invariants:
//! * a transition is applied to the state in the same breath in which its record or note gets its
//!   place in the log: no await between them;
//! * a reply waits for the durability its request asks for, and a reader waits for what it would
//!   otherwise reveal too early;
//! * whatever was learnt before an await is looked at again after it.

use crate::evict::Wanted;
use crate::fetch::ReadFrom;
use crate::format::{Transition, TransitionKind, UNIT_BYTES};
use crate::index::Entry;
use crate::keys::Keys;
use crate::layout::Layout;
use crate::log::Log;
use crate::looks::Looks;
use crate::metrics::{Counts, PartitionMetrics};
use crate::options::Options;
use crate::planted::{Bug, is_planted};
use crate::space::Beyond;
use crate::state::State;
use crate::transaction::Transactions;
use plimsoll_kv::block::Block;
use plimsoll_kv::key_locks::KeyLocks;
use plimsoll_kv::{
    Above, Completion, ContainerId, Device, Durability, Error, LocalFuture, NO_PIECES, Op, Output, Request,
    Result, Retrieved, Slot, Value, Version, WallClock,
};
use plimsoll_reactor::Reactor;
use plimsoll_reactor::sync::{Bell, WaitList};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};

/// The partition of a device.
pub struct Partition {
    pub(crate) reactor: Reactor,
    pub(crate) block: Rc<dyn Block>,
    pub(crate) layout: Layout,
    pub(crate) options: Options,
    pub(crate) state: RefCell<State>,
    pub(crate) log: Rc<Log>,
    pub(crate) locks: Rc<KeyLocks>,
    /// The keys in order.
    pub(crate) keys: Keys,
    pub(crate) version: Cell<Version>,
    /// Time never runs backwards here.
    pub(crate) clock: Rc<WallClock>,
    /// Readers of values in parts, and those that have not found theirs yet.
    pub(crate) pins: RefCell<BTreeMap<u64, u32>>,
    pub(crate) looks: Looks,
    /// Tasks that wait for space.
    pub(crate) space: WaitList,
    /// Wakes the background task.
    pub(crate) background: Bell,
    pub(crate) anchor: RefCell<crate::format::Anchor>,
    /// Transitions since the last checkpoint began.
    pub(crate) transitions_since: Cell<u64>,
    /// What the next checkpoint takes.
    pub(crate) room: Cell<crate::checkpoint::Room>,
    /// Stores that wait for space: the background task must make some.
    pub(crate) hungry: Cell<u32>,
    /// Why nothing can be cleaned: stores fail with it rather than wait.
    pub(crate) stuck: RefCell<Option<Error>>,
    /// Until then no store waits for what has expired: one did in vain.
    pub(crate) vain_until_ns: Cell<u64>,
    /// Until then room is wanted: a store found none.
    pub(crate) wanted_until_ns: Cell<u64>,
    /// What stores wait for that is to be evicted.
    pub(crate) wanted: Wanted,
    /// Whoever keeps values of the keys.
    pub(crate) above: RefCell<Option<Weak<dyn Above>>>,
    /// Somebody writes a segment ahead.
    pub(crate) preparing: Cell<bool>,
    pub(crate) closing: Cell<bool>,
    pub(crate) background_done: Cell<bool>,
    /// What transactions hold and have prepared.
    pub(crate) transactions: Transactions,
    pub(crate) counts: Counts,
}

/// Where a key belongs: everything that follows from its bytes and its container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) container: ContainerId,
    pub(crate) generation: u32,
    pub(crate) slot: Slot,
    pub(crate) fingerprint: u64,
}

impl Place {
    /// What holds the key: see `key_locks`.
    pub(crate) fn lock_id(&self) -> (u16, u64) {
        (self.slot.0, self.fingerprint)
    }
}

impl Device for Partition {
    fn execute(self: Rc<Self>, request: Request) -> LocalFuture<Result<Completion>> {
        Box::pin(async move {
            let output = self.dispatch(request).await?;
            Ok(Completion::new(output))
        })
    }

    fn retrieve_whole(
        self: Rc<Self>,
        container: ContainerId,
        key: Rc<[u8]>,
    ) -> LocalFuture<Result<Retrieved>> {
        Box::pin(self.retrieve_directly(container, key, true, ReadFrom::Anywhere))
    }

    fn announce(&self, container: ContainerId, keys: &[&[u8]], _: u32) -> bool {
        let places = keys.iter().map(|key| self.place(container, key));
        self.state.borrow().index.touch(places.map(|place| (place.slot, place.fingerprint)));
        false
    }

    fn lacks(&self, container: ContainerId, key: &[u8]) -> bool {
        let place = self.place(container, key);
        let has_none = || self.state.borrow().index.find(place.slot, place.fingerprint).next().is_none();
        let (slot, fingerprint) = place.lock_id();
        let is_held = self.transactions.is_stale(place.lock_id()) || self.locks.is_kept(slot, fingerprint);
        !is_held && has_none()
    }

    fn keeps(&self) -> bool {
        self.layout.keeps
    }

    fn gathers(&self) -> bool {
        true
    }

    fn has_room_to_spare(&self) -> bool {
        self.claimed_units() < self.live_units_max() / 2
    }

    fn value_bytes_max(&self) -> usize {
        self.layout.record_value_bytes_max()
    }

    fn part_bytes(&self) -> usize {
        self.layout.part_bytes() as usize
    }
}

impl Partition {
    async fn dispatch(self: &Rc<Self>, request: Request) -> Result<Output> {
        let (durability, from) = (request.durability, ReadFrom::of(request.class));
        let beyond = Beyond::of(&request);
        if let Some(key) = request.op.key()
            && key.len() > plimsoll_kv::limits::KEY_BYTES_MAX
        {
            return Err(Error::KeyTooLong);
        }
        match request.op {
            op @ Op::Store { value: Value::Kept(_), .. } => {
                match self.batch(vec![op], (request.lifetime, beyond), durability).await? {
                    Output::Batch(mut outputs) => Ok(outputs.remove(0)),
                    _ => unreachable!("a batch gives what its operations give"),
                }
            }
            op @ Op::Store { .. } => {
                self.store(op, (request.lifetime, beyond, request.deadline_ns), durability).await
            }
            Op::Retrieve { container, key, range: None, pin } => {
                let whole = self.clone().retrieve_directly(container, key.into(), pin, from).await?;
                Ok(Output::Found(whole.into()))
            }
            Op::Retrieve { container, key, range, pin } => {
                self.retrieve(container, &key, range, pin, from).await
            }
            Op::RetrievePart { upload, part, range, .. } => self.retrieve_part(upload, part, range).await,
            Op::Pin { upload, .. } => self.pin(upload),
            Op::Unpin { upload, .. } => self.unpin(upload),
            Op::Delete { container, key, condition } => {
                self.delete(container, &key, condition, durability).await
            }
            Op::Exist { container, key } => self.exist(container, &key, from).await,
            Op::Describe { .. } => Err(NO_PIECES),
            Op::SetExpiry { container, key, expiry, condition } => {
                self.set_expiry(container, &key, expiry, condition, durability).await
            }
            Op::List { container, prefix, after, limit } => {
                self.list(container, &prefix, after.as_deref(), limit).await
            }
            Op::Scan { container, cursor, limit } => self.scan(container, cursor, limit).await,
            Op::Clear { container } => self.clear(container, durability).await,
            Op::Batch(ops) => match Op::releases(&ops) {
                None => self.batch(ops, (request.lifetime, beyond), durability).await,
                Some(keys) => self.release_all(&keys, durability).await,
            },
            Op::Release { container, key } => self.release(container, &key, durability).await,
            Op::Revert { container, key } => self.revert(container, &key, durability).await,
            Op::UploadBegin { container, key, length, shared_bytes, .. } => {
                let begun = self.upload_begin(container, &key, (length, shared_bytes), beyond);
                self.in_time(request.deadline_ns, begun).await
            }
            Op::UploadPart { upload, key, bytes } => self.upload_part(upload, (&key, &bytes), beyond).await,
            Op::UploadShare { upload, from, parts, .. } => self.upload_share(upload, from, parts).await,
            Op::UploadAbort { upload, .. } => self.upload_abort(upload),
            Op::Stats { container } => Ok(Output::Stats(self.stats(container))),
            Op::Sync => self.log.flush().await.map(|()| Output::Done),
            Op::Transaction { id, action, .. } => {
                self.transact(id, action, request.lifetime, durability).await
            }
        }
    }

    /// Which partition of the device this is.
    #[must_use]
    pub fn number(&self) -> u16 {
        self.layout.partition
    }

    /// The clock by which keys expire here: for layers above that remember what they read.
    #[must_use]
    pub fn clock(&self) -> Rc<WallClock> {
        self.clock.clone()
    }

    /// Tells a layer above, while it lives, of every key that is evicted.
    pub fn tell(&self, above: Weak<dyn Above>) {
        self.above.replace(Some(above));
    }

    pub(crate) fn above(&self) -> Option<Rc<dyn Above>> {
        self.above.borrow().as_ref()?.upgrade()
    }

    /// Wall time that never runs backwards.
    pub(crate) fn now_ms(&self) -> u64 {
        self.clock.now_ms()
    }

    pub(crate) fn next_version(&self) -> Version {
        let version = self.version.get().next(self.now_ms());
        assert!(version > self.version.get(), "versions grow");
        if is_planted(Bug::VersionUsedTwice) && version.clock == self.version.get().clock + 1 {
            return self.version.get();
        }
        self.version.set(version);
        version
    }

    pub(crate) fn place(&self, container: ContainerId, key: &[u8]) -> Place {
        let generation = self.state.borrow().generation(container);
        let slot = Slot::of(key);
        assert!(
            slot.partition(self.layout.partitions) == self.layout.partition,
            "a key of another partition"
        );
        Place { container, generation, slot, fingerprint: self.fingerprint(generation, key) }
    }

    pub(crate) fn fingerprint(&self, generation: u32, key: &[u8]) -> u64 {
        self.layout.fingerprint(generation, key)
    }

    /// True if the entry is what the index holds now.
    pub(crate) fn is_current(&self, place: &Place, entry: &Entry) -> bool {
        let state = self.state.borrow();
        state.generation(place.container) == place.generation
            && state.index.contains(place.slot, place.fingerprint, entry.location)
    }

    /// Applies a transition whose record or note was just pushed.
    pub(crate) fn commit(&self, transition: &Transition, urgency: Durability) {
        self.log.note_transition(transition, urgency);
        self.state.borrow_mut().apply(transition, self.log.frame());
        self.transitions_since.set(self.transitions_since.get() + 1);
        match transition.kind {
            // It gives its space back.
            TransitionKind::UploadDoom | TransitionKind::Forget => self.background.ring(),
            TransitionKind::Clear | TransitionKind::Delete => self.hope(),
            _ => {}
        }
    }

    /// Pushes a note after [`Partition::reserve`] and applies its transitions.
    pub(crate) fn commit_note(&self, transitions: &[Transition], urgency: Durability) {
        if transitions.is_empty() {
            return;
        }
        self.log.push_note(transitions, urgency);
        for transition in transitions {
            self.commit(transition, urgency);
        }
    }

    /// Makes room in the log; no await until the items are pushed.
    pub(crate) fn reserve(&self, bytes: usize, transitions: usize) -> Result<()> {
        let number = self.log.position().1;
        let reserved = self.log.reserve(bytes, transitions, &mut self.state.borrow_mut().segments);
        if self.log.position().1 != number {
            self.background.ring();
        }
        reserved
    }

    /// Waits as long as the durability of a request asks.
    pub(crate) async fn acknowledge(&self, frame: u64, durability: Durability) -> Result<()> {
        if durability == Durability::Async {
            return self.log.failure().map_or(Ok(()), Err);
        }
        self.log.wait_durable(frame).await
    }

    /// What the partition counts, for metrics and tests.
    #[must_use]
    pub fn metrics(&self) -> PartitionMetrics {
        let state = self.state.borrow();
        let live_units_max = self.live_units_max().saturating_sub(state.segments.slack_units());
        let mut metrics = PartitionMetrics {
            objects: state.index.len(),
            objects_max: self.options.objects_max,
            index_bytes: state.index.memory_bytes(),
            live_bytes: state.segments.live_units() * UNIT_BYTES,
            damaged_bytes: state.segments.damaged_units() * UNIT_BYTES,
            capacity_bytes: u64::from(self.layout.segments) * self.layout.segment_bytes,
            free_segments: u64::from(state.segments.free_count_all()),
            segments: u64::from(self.layout.segments),
            frames: self.log.frames_written.get(),
            record_reads: self.counts.record_reads.get(),
            unreadable: self.counts.unreadable.get(),
            known_overwrites: self.counts.known_overwrites.get(),
            known_deletes: self.counts.known_deletes.get(),
            recent_reads: self.counts.recent_reads.get(),
            checkpoints: self.counts.checkpoints.get(),
            checkpoint_bytes: self.counts.checkpoint_bytes.get(),
            cleaned_segments: self.counts.cleaned_segments.get(),
            cleaned_bytes: self.counts.cleaned_bytes.get(),
            stored_bytes: self.counts.stored_bytes.get(),
            expired: self.counts.expired.get(),
            evicted: self.counts.evicted.get(),
            evicted_bytes: self.counts.evicted_bytes.get(),
            mark_bytes: state.segments.marks.bytes(),
            live_bytes_max: live_units_max * UNIT_BYTES,
            no_space: self.counts.no_space.get(),
            read_only: u64::from(self.log.failure().is_some()),
            ..PartitionMetrics::default()
        };
        self.keys.count(&mut metrics);
        metrics
    }

    /// Looks whether the counters agree with what they count; for tests and the simulator.
    ///
    /// # Errors
    /// Says what does not agree.
    pub fn check_accounts(&self) -> std::result::Result<(), String> {
        let state = self.state.borrow();
        state.check_units()?;
        let keys: u64 = state.counters.values().map(|c| c.keys).sum();
        let dead: u64 = state.dead.values().sum();
        if keys + dead != state.index.len() {
            return Err(format!("keys: {keys} and {dead} dead kept, {} in the index", state.index.len()));
        }
        let stale = state.stale_overrides();
        if stale > 0 {
            return Err(format!("expiry: {stale} times of records that are gone"));
        }
        drop(state);
        self.check_key_segments()
    }
}
