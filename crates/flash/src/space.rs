//! Space: who may take some, who waits, and when the device is full.
//!
//! Invariants: stores leave enough free segments for deletes, cleaning and a checkpoint; a store
//! that fails for want of space has changed nothing and may be tried again; deletes go on.

use crate::format::UNIT_BYTES;
use crate::index::ENTRY_BYTES;
use crate::metrics::add;
use crate::partition::Partition;
use crate::segments::KEPT_MIN;
use plimsoll_kv::{Error, Result};

/// Free segments that stores leave to cleaning, beyond those kept.
const BACKGROUND_SEGMENTS: u32 = 3;
/// Segments that never count as room for live records: the open ones, and slack to clean with.
const CLEANING_SEGMENTS: u32 = 6;

impl Partition {
    /// Segments that one checkpoint takes.
    pub(crate) fn checkpoint_segments(&self) -> u32 {
        let state = self.state.borrow();
        // Each slot states how many entries it has: with small segments, that is what takes most
        // (seeds 73, 382 and 389: a checkpoint took one more than was kept, and nothing went on).
        let slots = state.index.slots();
        let counts = u64::from(slots.end - slots.start) * size_of::<u32>() as u64;
        let bytes = state.index.len() * ENTRY_BYTES as u64 + counts;
        (bytes / (self.layout.segment_bytes * 7 / 8)) as u32 + 1
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
            self.dbg("fits");
            return Err(Error::NoSpace);
        }
        let reserve = self.store_reserve();
        if self.state.borrow().segments.free_count() < reserve {
            self.wait_for_space(reserve).await?;
        }
        Ok(())
    }

    /// True if something counts as live that the background is about to forget.
    fn has_debris(&self) -> bool {
        let state = self.state.borrow();
        let doomed = |upload: &crate::state::Upload| upload.state == crate::state::UploadState::Doomed;
        !state.dead.is_empty() || state.uploads.values().any(doomed)
    }

    /// Waits until so many segments are free.
    pub(crate) async fn wait_for_space(&self, segments: u32) -> Result<()> {
        let needed = segments.max(KEPT_MIN);
        self.wait_while(|partition| partition.state.borrow().segments.free_count() < needed).await
    }

    async fn wait_while(&self, lacking: impl Fn(&Partition) -> bool) -> Result<()> {
        self.hungry.set(self.hungry.get() + 1);
        self.stuck.set(false);
        self.background.wake_all();
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
            self.dbg("stuck");
        }
        waited
    }

    pub(crate) fn dbg(&self, why: &str) {
        if std::env::var("DBG").is_err() {
            return;
        }
        let state = self.state.borrow();
        let n = self.layout.segment_units();
        eprint!(
            "{why}: reserve {} kept {} keysrun {} wanted {} flush {} cp {} live {}/{} free {} prepared {} replay {} pos {:?} frame {} durable {}:",
            self.store_reserve(),
            self.kept_segments(),
            self.keys.run_segments(),
            self.keys.wanted_segments(),
            self.keys.flush_segments(),
            self.checkpoint_segments(),
            state.segments.live_units(),
            self.live_units_max(),
            state.segments.free_count(),
            state.segments.prepared,
            self.anchor.borrow().log_number,
            self.log.position(),
            self.log.frame(),
            self.log.durable()
        );
        for s in state.segments.all() {
            eprint!(
                " {:?}{:?}{}%{}",
                s.kind,
                s.state,
                s.live_units * 100 / n,
                if s.damaged { "!" } else { "" }
            );
        }
        eprintln!();
    }
}
