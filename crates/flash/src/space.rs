//! Space: who may take some, who waits, and when the device is full.
//!
//! Invariants: stores leave enough free segments for deletes, cleaning and a checkpoint; a store
//! that fails for want of space has changed nothing and may be tried again; deletes go on.

use crate::format::UNIT_BYTES;
use crate::metrics::add;
use crate::partition::Partition;
use crate::segments::KEPT_MIN;
use plimsoll_kv::{Error, Result};

/// Bytes of a checkpoint for each segment, and those that are always there.
const SEGMENT_ENTRY_BYTES: u64 = 34;
const CHECKPOINT_BASE_BYTES: u64 = 4096;
/// What a checkpoint takes is reckoned anew after so many transitions, or one for so many entries.
const RECKONED_TRANSITIONS: u64 = 64;
const RECKONED_ENTRIES: u64 = 1024;
/// Bytes by which a transition makes a checkpoint longer at most.
const TRANSITION_BYTES: u64 = 40;
/// Free segments that stores leave to cleaning, beyond those kept.
const BACKGROUND_SEGMENTS: u32 = 3;
/// Free segments below which deletes wait: cleaning takes one to clean into and one for the log, and
/// without it a device full of deletes would never have space again.
const DELETE_RESERVE: u32 = KEPT_MIN + 2;
/// Segments that never count as room for live records: the open ones, and slack to clean with.
const CLEANING_SEGMENTS: u32 = 6;

impl Partition {
    /// Bytes that one checkpoint takes at most: tables, and what it says of each segment.
    pub(crate) fn checkpoint_bytes(&self) -> u64 {
        let now = (self.anchor.borrow().generation, self.transitions_since.get());
        let ((generation, transitions), bytes) = self.reckoned.get();
        let entries = self.state.borrow().index.len();
        let interval = RECKONED_TRANSITIONS + entries / RECKONED_ENTRIES;
        if bytes > 0 && generation == now.0 && transitions.abs_diff(now.1) < interval {
            return bytes;
        }
        let state = self.state.borrow();
        let tables = state.index.encoded_bytes_max(state.segments.location_bits());
        let bytes = tables
            + u64::from(self.layout.segments) * SEGMENT_ENTRY_BYTES
            + interval * TRANSITION_BYTES
            + CHECKPOINT_BASE_BYTES;
        self.reckoned.set((now, bytes));
        bytes
    }

    /// Segments that one checkpoint takes.
    pub(crate) fn checkpoint_segments(&self) -> u32 {
        (self.checkpoint_bytes() / (self.layout.segment_bytes * 7 / 8)) as u32 + 1
    }

    /// Free segments below which stores wait.
    pub(crate) fn store_reserve(&self) -> u32 {
        self.steady_reserve() + self.keys.wanted_segments()
    }

    /// The reserve when no merge of keys waits for segments.
    fn steady_reserve(&self) -> u32 {
        BACKGROUND_SEGMENTS + self.kept_segments()
    }

    /// Segments that only a checkpoint (with the flush of keys that it waits for) and the next
    /// opening may take.
    pub(crate) fn kept_segments(&self) -> u32 {
        KEPT_MIN - 1 + self.checkpoint_segments() + self.keys.flush_segments()
    }

    /// Units that may be live: the rest is what cleaning needs to make headway.
    pub(crate) fn live_units_max(&self) -> u64 {
        // Runs of keys take segments, and so does the one that they are merged into. Whether a
        // merge waits just now must not decide whether the device is full.
        let keys = self.keys.run_segments() + self.keys.merged_segments();
        let reserve = self.steady_reserve() + self.checkpoint_segments() + CLEANING_SEGMENTS + keys;
        let usable = u64::from(self.layout.segments.saturating_sub(reserve));
        usable * (self.layout.segment_units() * 15 / 16)
    }

    /// Lets a store of so many bytes in, after waiting for its turn; or refuses it.
    pub(crate) async fn admit(&self, bytes: u64) -> Result<()> {
        if let Some(error) = self.log.failure() {
            return Err(error);
        }
        self.log.wait_for_room().await?;
        self.wait_for_keys().await?;
        let units = bytes / UNIT_BYTES;
        let fits = |partition: &Partition| {
            partition.state.borrow().segments.live_units() + units <= partition.live_units_max()
        };
        if !fits(self) && self.has_debris() {
            self.wait_while(|partition| !fits(partition) && partition.has_debris()).await?;
        }
        if !fits(self) {
            add(&self.counts.no_space, 1);
            return Err(Error::NoSpace);
        }
        self.wait_to_store().await
    }

    /// Makes room in the log for a store. It leaves the segments of the background alone: many stores
    /// are let in while there is space, and all of them append afterwards.
    pub(crate) fn reserve_for_store(&self, bytes: usize, transitions: usize) -> Result<()> {
        self.reserve_above(self.store_reserve(), bytes, transitions)
    }

    /// Makes room in the log for a delete, or another small change that goes on when the device is
    /// full.
    pub(crate) fn reserve_for_delete(&self, bytes: usize, transitions: usize) -> Result<()> {
        self.reserve_above(DELETE_RESERVE, bytes, transitions)
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
        self.wait_while(|partition| partition.state.borrow().segments.free_count() < DELETE_RESERVE).await
    }

    /// True if something counts as live that the background is about to forget.
    fn has_debris(&self) -> bool {
        let state = self.state.borrow();
        let doomed = |upload: &crate::state::Upload| upload.state == crate::state::UploadState::Doomed;
        !state.dead.is_empty() || state.uploads.values().any(doomed)
    }

    /// Something died: who waits for space and was told that there is none may wait for this.
    pub(crate) fn hope(&self) {
        if self.hungry.get() > 0 {
            self.stuck.set(false);
            self.background.ring();
        }
    }

    async fn wait_while(&self, lacking: impl Fn(&Partition) -> bool) -> Result<()> {
        self.hungry.set(self.hungry.get() + 1);
        self.stuck.set(false);
        self.background.ring();
        let waited = self
            .space
            .wait_for(|| {
                if let Some(error) = self.log.failure() {
                    return Some(Err(error));
                }
                if !lacking(self) {
                    return Some(Ok(()));
                }
                (self.stuck.get() || self.closing.get()).then_some(Err(Error::NoSpace))
            })
            .await;
        self.hungry.set(self.hungry.get() - 1);
        if waited == Err(Error::NoSpace) {
            add(&self.counts.no_space, 1);
        }
        waited
    }
}
