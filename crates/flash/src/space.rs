//! Space: who may take some, who waits, and when the device is full.
//!
//! Invariants: stores leave enough free segments for deletes, cleaning and a checkpoint; a store
//! that fails for want of space, or of memory for the index, has changed nothing and may be tried
//! again; deletes go on.

use crate::format::UNIT_BYTES;
use crate::metrics::add;
use crate::partition::Partition;
use crate::segments::KEPT_MIN;
use futures_util::future::{Either, select};
use plimsoll_kv::{Class, Error, Request, Result, Room};
use std::pin::pin;

/// Free segments that stores leave to cleaning, beyond those kept.
const BACKGROUND_SEGMENTS: u32 = 3;
/// Free segments below which deletes are refused: cleaning takes one to clean into and one for the log, and
/// without it a device full of deletes would never have space again. They wait for it before, where they
/// would take what the next checkpoint needs.
const DELETE_RESERVE: u32 = KEPT_MIN + 2;
/// Segments that never count as room for live records: the open ones, and slack to clean with.
const CLEANING_SEGMENTS: u32 = 6;

/// What is left to clean with, in twelfths, that live records may take beyond what they else may. First
/// what has been acknowledged: a device that is filled with what another held leaves more empty beside
/// long records than one that has been cleaned, and has to take it all. Then what makes room, for clients
/// and last for the background: on a full device of packed values nothing goes before what others need of
/// it is kept, and a set is taken apart into copies before it goes; stores that took the last room would
/// leave none to give any back.
const BEYOND_OF: u64 = 12;
const BEYOND_TO_KEEP: u64 = 6;
const BEYOND_TO_DELETE: u64 = 7;
const BEYOND_TO_MAKE_ROOM: u64 = 8;
/// This part of the memory for keys is there for all of them.
const OBJECTS_PART: u64 = 64;

/// Free segments that a transaction which is about to hold everything finds beyond those.
const AWAITED_SEGMENTS: u32 = 2;

/// How far live records may go beyond what they may take, in parts of what is left to clean with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Beyond {
    parts: u64,
    /// It takes something away.
    deletes: bool,
}

impl Beyond {
    pub(crate) const NOTHING: Beyond = Beyond { parts: 0, deletes: false };

    /// What makes room goes as far as nobody else may; of clients not all the way, so that the background
    /// can always go on.
    pub(crate) fn of(request: &Request) -> Beyond {
        let (parts, deletes) = match (request.room, request.class) {
            (Room::OfStores, _) => return Beyond::NOTHING,
            (Room::ToKeep, _) => (BEYOND_TO_KEEP, false),
            (Room::ToMakeRoom, Class::Foreground) => (BEYOND_TO_DELETE, true),
            (Room::ToMakeRoom, Class::Background) => (BEYOND_TO_MAKE_ROOM, false),
        };
        Beyond { parts, deletes }
    }

    /// Whether it waits for segments as deletes do.
    pub(crate) fn deletes(self) -> bool {
        self.deletes
    }
}

/// Somebody waits for space: until it has come, or the one who waits is dropped.
struct Hungry<'a>(&'a Partition);

impl Hungry<'_> {
    fn new(partition: &Partition) -> Hungry<'_> {
        partition.hungry.set(partition.hungry.get() + 1);
        Hungry(partition)
    }
}

impl Drop for Hungry<'_> {
    fn drop(&mut self) {
        self.0.hungry.set(self.0.hungry.get() - 1);
    }
}

impl Partition {
    /// Free segments below which stores wait.
    pub(crate) fn store_reserve(&self) -> u32 {
        self.unawaited_reserve() + if self.room_is_awaited() { AWAITED_SEGMENTS } else { 0 }
    }

    /// The same when no transaction waits for room.
    fn unawaited_reserve(&self) -> u32 {
        self.steady_reserve() + self.keys.wanted_segments()
    }

    /// The reserve when no merge of keys waits for segments.
    fn steady_reserve(&self) -> u32 {
        BACKGROUND_SEGMENTS + self.kept_segments()
    }

    /// Segments that only a checkpoint (with the flush of keys that it waits for) and the next
    /// opening may take.
    pub(crate) fn kept_segments(&self) -> u32 {
        KEPT_MIN - 1 + self.checkpoint_free_segments() + self.keys.flush_segments()
    }

    /// Units that may be live: the rest is what cleaning needs to make headway.
    pub(crate) fn live_units_max(&self) -> u64 {
        // The checkpoint in force takes segments beside what the next one needs free.
        // Runs of keys take segments, and so does the one that they are merged into. Whether a
        // merge waits just now must not decide whether the device is full.
        let keys = self.keys.run_segments() + self.keys.merged_segments();
        let reserve = self.steady_reserve() + self.checkpoint_segments() + CLEANING_SEGMENTS + keys;
        let usable = u64::from(self.layout.segments.saturating_sub(reserve));
        usable * (self.layout.segment_units() * 15 / 16)
    }

    /// Units that are live, or promised to be, or that long records leave empty beside them.
    pub(crate) fn claimed_units(&self) -> u64 {
        let segments = &self.state.borrow().segments;
        segments.live_units() + segments.slack_units() + self.transactions.promised_units()
    }

    /// True if live records take three quarters of what they may.
    pub(crate) fn is_mostly_full(&self) -> bool {
        self.claimed_units() * 4 > self.live_units_max() * 3
    }

    /// True if there is room for one more store of so many units.
    fn has_room(&self, units: u64, beyond: Beyond) -> bool {
        let (kept_units, kept_objects) =
            if self.room_is_awaited() { (self.ahead_units(), 1) } else { (0, 0) };
        let units_max = self.live_units_max();
        let segment_units = self.layout.segment_units();
        let to_clean_units = units_max / 15 + u64::from(CLEANING_SEGMENTS) * segment_units;
        // One that evicts makes room by itself.
        let parts = if self.evicts() { 0 } else { beyond.parts };
        let objects_more = if parts > 0 { self.options.objects_max / OBJECTS_PART } else { 0 };
        self.claimed_units() + kept_units + units <= units_max + to_clean_units * parts / BEYOND_OF
            && self.objects_left().saturating_add(objects_more) > kept_objects
    }

    /// True if there is the room that a transaction waits for: what eviction keeps ahead of need, free
    /// segments to write it to, and memory in the index.
    pub(crate) fn has_room_ahead(&self) -> bool {
        self.claimed_units() + self.ahead_units() <= self.live_units_max()
            && self.state.borrow().segments.free_count() >= self.unawaited_reserve() + AWAITED_SEGMENTS
            && self.objects_left() > 0
    }

    /// Lets a store of so many bytes in, after waiting for its turn; or refuses it.
    pub(crate) async fn admit(&self, bytes: u64, beyond: Beyond) -> Result<()> {
        if let Some(error) = self.log.failure() {
            return Err(error);
        }
        self.log.wait_for_room().await?;
        self.wait_for_keys().await?;
        let units = bytes / UNIT_BYTES;
        let fits = |partition: &Partition| partition.has_room(units, beyond);
        if !fits(self) && self.has_debris() {
            let comes =
                self.wait_for_background(|partition| !fits(partition) && partition.has_debris()).await;
            // Somebody may still read it: then room comes from elsewhere, or from nowhere (seed 473).
            comes.or_else(|error| if error == Error::NoSpace { Ok(()) } else { Err(error) })?;
        }
        if !fits(self) && self.evicts() && units <= self.live_units_max() {
            let _want = self.wanted.want(units);
            self.wait_while(|partition| !fits(partition)).await?;
        }
        if !fits(self) && !self.evicts() {
            self.wait_for_expired(|partition| !fits(partition)).await?;
        }
        if !fits(self) {
            add(&self.counts.no_space, 1);
            let has_space = self.claimed_units() + units <= self.live_units_max();
            return Err(if has_space { Error::NoMemory } else { Error::NoSpace });
        }
        // What takes something away waits for segments as deletes do.
        if beyond.deletes() { Ok(()) } else { self.wait_to_store().await }
    }

    /// Waits for what comes before a change, of which nothing is done by then; an error if that takes until
    /// after the deadline. 0: as long as it takes.
    pub(crate) async fn in_time<T>(
        &self,
        deadline_ns: u64,
        waits: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        if deadline_ns == 0 {
            return waits.await;
        }
        match select(pin!(waits), pin!(self.reactor.sleep_until(deadline_ns))).await {
            Either::Left((waited, _)) => waited,
            Either::Right(_) => Err(Error::Overloaded),
        }
    }

    /// Lets a small store in that goes on when the device is full, as deletes do.
    pub(crate) async fn admit_small(&self) -> Result<()> {
        if let Some(error) = self.log.failure() {
            return Err(error);
        }
        self.log.wait_for_room().await?;
        self.wait_for_keys().await
    }

    /// Objects that the index may still take. Stores that were let in together may take a few more.
    pub(crate) fn objects_left(&self) -> u64 {
        self.options.objects_max.saturating_sub(self.state.borrow().index.len())
    }

    /// Makes room in the log for a store. It leaves the segments of the background alone: many stores
    /// are let in while there is space, and all of them append afterwards.
    pub(crate) fn reserve_for_store(&self, bytes: usize, transitions: usize) -> Result<()> {
        self.reserve_above(self.store_reserve(), bytes, transitions)
    }

    /// Makes room in the log for a client's delete, or another small change that goes on when the device is
    /// full.
    pub(crate) fn reserve_for_delete(&self, bytes: usize, transitions: usize) -> Result<()> {
        // Nothing more can be made free: they go on with what there is.
        let is_stuck = self.stuck.borrow().is_some();
        let reserve = if is_stuck { DELETE_RESERVE } else { self.delete_reserve() };
        self.reserve_above(reserve, bytes, transitions)
    }

    /// The same for what makes room itself, or was promised.
    pub(crate) fn reserve_small(&self, bytes: usize, transitions: usize) -> Result<()> {
        self.reserve_above(DELETE_RESERVE, bytes, transitions)
    }

    /// Free segments below which deletes wait for the background.
    fn delete_reserve(&self) -> u32 {
        DELETE_RESERVE.max(self.kept_segments() + 1)
    }

    fn reserve_above(&self, reserve: u32, bytes: usize, transitions: usize) -> Result<()> {
        if !self.log.has_room(bytes, transitions) && self.state.borrow().segments.free_count() < reserve {
            return Err(Error::NoSpace);
        }
        self.reserve(bytes, transitions)
    }

    /// Waits after [`Partition::reserve_for_store`] found no room.
    pub(crate) async fn wait_to_store(&self) -> Result<()> {
        let lacking = |partition: &Partition| {
            partition.state.borrow().segments.free_count() < partition.store_reserve()
        };
        if lacking(self) { self.wait_while(lacking).await } else { Ok(()) }
    }

    /// Waits after [`Partition::reserve_for_delete`] found no room.
    pub(crate) async fn wait_to_delete(&self) -> Result<()> {
        let free = |partition: &Partition| partition.state.borrow().segments.free_count();
        let waited = self.wait_for_background(|partition| free(partition) < partition.delete_reserve()).await;
        if waited == Err(Error::NoSpace) && free(self) >= DELETE_RESERVE {
            return Ok(());
        }
        self.count_refusal(waited)
    }

    /// Waits after [`Partition::reserve_small`] found no room.
    pub(crate) async fn wait_for_small(&self) -> Result<()> {
        self.wait_while(|partition| partition.state.borrow().segments.free_count() < DELETE_RESERVE).await
    }

    /// True if something counts as live that the background is about to forget.
    fn has_debris(&self) -> bool {
        let state = self.state.borrow();
        !state.dead.is_empty() || !state.uploads.doomed().is_empty()
    }

    /// Something died: who waits for space and was told that there is none may wait for this.
    pub(crate) fn hope(&self) {
        if self.hungry.get() > 0 {
            self.stuck.take();
            self.background.ring();
        }
    }

    /// Waits for the background to make room; an error if it cannot.
    pub(crate) async fn wait_while(&self, lacking: impl Fn(&Partition) -> bool) -> Result<()> {
        let waited = self.wait_for_background(lacking).await;
        self.count_refusal(waited)
    }

    fn count_refusal(&self, waited: Result<()>) -> Result<()> {
        if waited == Err(Error::NoSpace) {
            add(&self.counts.no_space, 1);
        }
        waited
    }

    /// The same, for who is not refused by it.
    pub(crate) async fn wait_for_background(&self, lacking: impl Fn(&Partition) -> bool) -> Result<()> {
        let _hungry = Hungry::new(self);
        self.stuck.take();
        self.background.ring();
        self.space
            .wait_for(|| {
                if let Some(error) = self.log.failure() {
                    return Some(Err(error));
                }
                if !lacking(self) {
                    return Some(Ok(()));
                }
                let stuck = self.stuck.borrow().clone();
                stuck.or(self.closing.get().then_some(Error::NoSpace)).map(Err)
            })
            .await
    }
}
