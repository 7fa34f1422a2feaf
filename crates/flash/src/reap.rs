//! Reaping: the space of keys that have expired, and that nobody asks for, is taken back.
//!
//! Place on the path: in the background, before anything is evicted; a store that finds no room waits for it.
//! What has expired in a segment is deleted as eviction deletes: by a tombstone, for the layer above to hear.
//!
//! Invariants:
//! * a device that is full of what has expired takes stores again, without being asked for a key;
//! * unless somebody waits, it takes a tenth of the background's time at most, and reads a segment of which
//!   it knows nothing only when the device is crowded: after a start that is all of them.
//!
//! Never: it deletes what has not expired, or what a transaction or a reader holds.

use crate::clean::{Heads, Move};
use crate::evict::Takes;
use crate::expiring::Expiring;
use crate::format::SegmentKind;
use crate::partition::Partition;
use crate::segments::SegmentState;
use plimsoll_kv::{Error, Result};
use std::rc::Rc;

/// How often an idle partition looks whether something has expired.
pub(crate) const LOOK_NS: u64 = 1_000_000_000;
/// After a segment it rests so many times as long as that took.
const REST_TIMES: u64 = 9;
/// A segment that is being filled is closed for this at most so often: what is left of it is lost until the
/// next checkpoint.
const CLOSE_NS_MIN: u64 = 60_000_000_000;
/// The device is crowded if live records take this many of four parts of what they may.
const CROWDED_QUARTERS: u64 = 3;
/// After a wait in vain no store waits so long.
const VAIN_NS: u64 = 1_000_000_000;

/// Where reaping stands.
#[derive(Default)]
pub(crate) struct Reaper {
    rests_until_ns: u64,
    closes_at_ns: u64,
}

impl Partition {
    /// True if any key here has a time to expire.
    pub(crate) fn has_expiring(&self) -> bool {
        self.state.borrow().counters.values().any(|counters| counters.expiring > 0)
    }

    /// Takes back what has expired in one segment, if there is one that is worth it; true if so.
    pub(crate) async fn reap(self: &Rc<Self>, reaper: &mut Reaper, heads: &mut Heads) -> Result<bool> {
        let (start_ns, somebody_waits) = (self.reactor.now_ns(), self.hungry.get() > 0);
        if !self.has_expiring() || (start_ns < reaper.rests_until_ns && !somebody_waits) {
            return Ok(false);
        }
        let candidates = self.reapable_segments();
        let due = self.due_segment(&candidates);
        let Some(segment) = due.or_else(|| self.unknown_segment(&candidates, somebody_waits)) else {
            return self.close_due(reaper, heads, somebody_waits);
        };
        match self.evict_from(segment, Takes::Expired).await {
            // The rest of a step makes room for the deletes.
            Err(Error::NoSpace) => return Ok(false),
            // It is not looked at again: cleaning will tell of it.
            Err(Error::Unreadable(_)) => self.reckon(segment, Expiring::NOTHING),
            reaped => drop(reaped?),
        }
        let end_ns = self.reactor.now_ns();
        reaper.rests_until_ns = end_ns + REST_TIMES * (end_ns - start_ns);
        Ok(true)
    }

    /// Closes what is being filled, if that is all that is worth reading.
    fn close_due(self: &Rc<Self>, reaper: &mut Reaper, heads: &mut Heads, now: bool) -> Result<bool> {
        let now_ns = self.reactor.now_ns();
        let is_due = {
            let (state, now_ms) = (self.state.borrow(), self.now_ms());
            let open = state.segments.all().iter().filter(|info| info.state == SegmentState::Open);
            open.into_iter().any(|info| info.expiring.due_units(now_ms, info.live_units) > 0)
        };
        if !is_due || (now_ns < reaper.closes_at_ns && !now) {
            return Ok(false);
        }
        reaper.closes_at_ns = now_ns + CLOSE_NS_MIN;
        match self.close_open_segments(heads) {
            Err(Error::NoSpace) => Ok(false),
            closed => closed,
        }
    }

    /// Segments of which what has expired may be taken.
    fn reapable_segments(&self) -> Vec<(u64, u32)> {
        let state = self.state.borrow();
        let all = (0..).zip(state.segments.all()).filter(|(_, info)| {
            info.state == SegmentState::Closed
                && info.live_units > 0
                && !info.damaged
                && !matches!(info.kind, SegmentKind::Checkpoint | SegmentKind::Keys)
        });
        all.map(|(number, info)| (info.opened_frame, number)).collect()
    }

    /// Of some segments the one with the most that has expired, if it is worth reading.
    pub(crate) fn due_segment(&self, candidates: &[(u64, u32)]) -> Option<u32> {
        let (state, now_ms) = (self.state.borrow(), self.now_ms());
        let due = candidates.iter().filter_map(|(_, number)| {
            let info = state.segments.get(*number);
            let units = info.expiring.due_units(now_ms, info.live_units);
            (units > 0).then_some((units, *number))
        });
        due.max().map(|(_, number)| number)
    }

    /// The oldest segment of which nobody knows what expires in it, if it is to be found out. A device that
    /// evicts comes by all of them anyway.
    fn unknown_segment(&self, candidates: &[(u64, u32)], somebody_waits: bool) -> Option<u32> {
        let is_crowded = self.claimed_units() * 4 > self.live_units_max() * CROWDED_QUARTERS;
        if self.evicts() || !(is_crowded || somebody_waits) {
            return None;
        }
        let state = self.state.borrow();
        let is_unknown = |(_, number): &&(u64, u32)| !state.segments.get(*number).expiring.is_known();
        candidates.iter().filter(is_unknown).min().map(|(_, number)| *number)
    }

    /// Reckons anew what of a segment will expire; what has expired is gone, or held by somebody.
    pub(crate) fn note_expiring(&self, segment: u32, records: &[(&[u8], Move)]) {
        let mut expiring = Expiring::NOTHING;
        for (rest, moved) in records {
            if let Some(candidate) = self.candidate(rest, moved)
                && candidate.expiry_ms != 0
                && !candidate.expired
            {
                let parts_units = candidate.upload.map_or(0, |upload| self.parts_units(upload));
                expiring.add(u64::from(moved.length) + parts_units, candidate.expiry_ms);
            }
        }
        self.reckon(segment, expiring);
    }

    fn reckon(&self, segment: u32, expiring: Expiring) {
        self.state.borrow_mut().segments.get_mut(segment).expiring = expiring;
    }

    /// Lets a store that finds no room wait for what has expired: it comes back when there is room, or none
    /// comes from there.
    pub(crate) async fn wait_for_expired(&self, lacking: impl Fn(&Partition) -> bool) -> Result<()> {
        if self.reactor.now_ns() < self.vain_until_ns.get() || !self.has_expiring() {
            return Ok(());
        }
        match self.wait_for_background(lacking).await {
            Err(Error::NoSpace) => self.vain_until_ns.set(self.reactor.now_ns() + VAIN_NS),
            waited => return waited,
        }
        Ok(())
    }
}
