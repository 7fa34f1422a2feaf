//! Reaping: the space of keys that have expired, and that nobody asks for, is taken back.
//!
//! Place on the path: in the background, in turns with all that makes room; a store that finds none waits for
//! it. What has expired in a segment is deleted as eviction deletes: by a tombstone, for the layer above to
//! hear.
//!
//! Invariants:
//! * a device that is full of what has expired takes stores again, without being asked for a key;
//! * unless a store found no room it takes a tenth of the background's time at most, and reads a segment of
//!   which it knows nothing only when the device is mostly full: after a start that is all of them;
//! * what has expired and is held by somebody, or could not be read, is looked at again later.
//!
//! Never: it deletes what has not expired, or what a transaction or a reader holds; it keeps cleaning from
//! its turn, or a store waiting for long.

use crate::clean::{Heads, Move};
use crate::evict::{Takes, upload_of};
use crate::expiring::Expiring;
use crate::format::SegmentKind;
use crate::partition::Partition;
use crate::segments::{Segment, SegmentState};
use futures_util::future::{Either, select};
use plimsoll_kv::{Error, Result};
use std::pin::pin;

/// How often an idle partition looks whether something has expired.
pub(crate) const LOOK_NS: u64 = 1_000_000_000;
/// After a segment it rests so many times as long as that took.
const REST_TIMES: u64 = 9;
/// What is being filled is closed for this at most so often, and so often when room is wanted: what is left
/// of a segment of the log is lost until the next checkpoint.
const CLOSE_NS_MIN: u64 = 60_000_000_000;
const CLOSE_WANTED_NS_MIN: u64 = 1_000_000_000;
/// A store that finds no room waits so long at most; for so long after it, room is wanted.
const WAIT_NS_MAX: u64 = 1_000_000_000;
const WANTED_NS: u64 = 5_000_000_000;
/// After a wait in vain no store waits so long.
const VAIN_NS: u64 = 1_000_000_000;
/// When what has expired and could not be taken is looked at again.
const AGAIN_MS: u64 = 10_000;

/// Where reaping stands.
#[derive(Default)]
pub(crate) struct Reaper {
    rests_until_ns: u64,
    closes_at_ns: u64,
    /// It has had its turn: what else makes room comes first.
    pub(crate) had_its_turn: bool,
}

impl Partition {
    /// True if any key here has a time to expire, and goes by itself then.
    pub(crate) fn has_expiring(&self) -> bool {
        !self.options.is_member && self.state.borrow().counters.values().any(|counters| counters.expiring > 0)
    }

    /// True if a store found no room a while ago.
    fn wants_room(&self) -> bool {
        self.reactor.now_ns() < self.wanted_until_ns.get()
    }

    /// Takes back what has expired in one segment, if there is one that is worth it; true if so.
    pub(crate) async fn reap(&self, reaper: &mut Reaper, heads: &mut Heads) -> Result<bool> {
        let (start_ns, is_wanted) = (self.reactor.now_ns(), self.wants_room());
        let rests = start_ns < reaper.rests_until_ns && !is_wanted;
        if rests || !self.has_expiring() || self.locks.is_everything_kept() {
            return Ok(false);
        }
        let mut chosen = self.segment_to_reap(is_wanted);
        if chosen.is_some() && self.log.durable() + 1 < self.log.frame() {
            // What was closed just now may have frames on their way; meanwhile it may have come free.
            self.log.flush().await?;
            chosen = self.segment_to_reap(is_wanted);
        }
        let Some(segment) = chosen else {
            reaper.rests_until_ns = start_ns + LOOK_NS;
            return self.close_due(reaper, heads, is_wanted);
        };
        let reaped = self.evict_from(segment, Takes::Expired).await;
        let end_ns = self.reactor.now_ns();
        reaper.rests_until_ns = end_ns + REST_TIMES * (end_ns - start_ns);
        match reaped {
            // Others make room for the deletes.
            Err(Error::NoSpace) => return Ok(false),
            Err(Error::Unreadable(_)) => self.look_again(segment),
            reaped => drop(reaped?),
        }
        Ok(true)
    }

    /// The segment that is to be read next, if there is one.
    fn segment_to_reap(&self, is_wanted: bool) -> Option<u32> {
        let candidates = self.reapable_segments();
        self.due_segment(&candidates, is_wanted).or_else(|| self.unknown_segment(&candidates, is_wanted))
    }

    /// Closes what is being filled, if that is all that is worth reading.
    fn close_due(&self, reaper: &mut Reaper, heads: &mut Heads, is_wanted: bool) -> Result<bool> {
        let (now_ns, now_ms) = (self.reactor.now_ns(), self.now_ms());
        if now_ns < reaper.closes_at_ns {
            return Ok(false);
        }
        let is_due = |info: &Segment| {
            let is_open = info.state == SegmentState::Open && info.live_units > 0;
            is_open && info.expiring.due_units(now_ms, info.live_units, is_wanted) > 0
        };
        let (log_is_due, heads_are_due, may_roll) = {
            let segments = &self.state.borrow().segments;
            let heads_are_due =
                segments.all().iter().any(|info| info.kind != SegmentKind::Log && is_due(info));
            let may_roll = segments.free_count() > self.store_reserve();
            (is_due(segments.get(self.log.position().0)), heads_are_due, may_roll)
        };
        let closed = heads_are_due && self.close_heads(heads);
        let rolled = log_is_due && may_roll && self.roll_live_log()?;
        if closed || rolled {
            let pause_ns = if is_wanted { CLOSE_WANTED_NS_MIN } else { CLOSE_NS_MIN };
            (reaper.closes_at_ns, reaper.rests_until_ns) = (now_ns + pause_ns, now_ns);
        }
        Ok(closed || rolled)
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
    pub(crate) fn due_segment(&self, candidates: &[(u64, u32)], is_wanted: bool) -> Option<u32> {
        let (state, now_ms) = (self.state.borrow(), self.now_ms());
        let due = candidates.iter().filter_map(|(_, number)| {
            let info = state.segments.get(*number);
            let units = info.expiring.due_units(now_ms, info.live_units, is_wanted);
            (units > 0).then_some((units, *number))
        });
        due.max().map(|(_, number)| number)
    }

    /// The oldest segment of which nobody knows what expires in it, if it is to be found out. A device that
    /// evicts comes by all of them anyway.
    fn unknown_segment(&self, candidates: &[(u64, u32)], is_wanted: bool) -> Option<u32> {
        if self.evicts() || !(is_wanted || self.is_mostly_full()) {
            return None;
        }
        let state = self.state.borrow();
        let is_unknown = |(_, number): &&(u64, u32)| !state.segments.get(*number).expiring.is_known();
        candidates.iter().filter(is_unknown).min().map(|(_, number)| *number)
    }

    /// Reckons anew what of a segment expires. What has expired and is still there is held by somebody, or
    /// expired since it was looked at.
    pub(crate) fn note_expiring(&self, segment: u32, records: &[(&[u8], Move)]) {
        let (mut expiring, now_ms) = (Expiring::NOTHING, self.now_ms());
        for (units, expiry_ms) in records.iter().filter_map(|(rest, moved)| self.expires(rest, moved)) {
            expiring.add(units, if expiry_ms <= now_ms { now_ms + AGAIN_MS } else { expiry_ms });
        }
        self.state.borrow_mut().segments.get_mut(segment).expiring = expiring;
    }

    /// Units that expire with a record, and when, if it is still what its key points to.
    fn expires(&self, rest: &[u8], moved: &Move) -> Option<(u64, u64)> {
        let parts_units = upload_of(rest, moved)?.map_or(0, |upload| self.parts_units(upload));
        let state = self.state.borrow();
        let is_live = state.index.contains(moved.slot, moved.fingerprint, moved.from)
            && !state.is_dead(moved.header.container);
        let expiry_ms = state.expiry_ms(moved.from, moved.header.expiry_ms);
        (is_live && expiry_ms != 0).then_some((u64::from(moved.length) + parts_units, expiry_ms))
    }

    /// A segment that could not be read is looked at again later, whatever is known of it.
    fn look_again(&self, segment: u32) {
        let mut expiring = Expiring::NOTHING;
        expiring.add(1, self.now_ms() + AGAIN_MS);
        self.state.borrow_mut().segments.get_mut(segment).expiring = expiring;
    }

    /// Lets a store that finds no room wait for what has expired: it comes back when there is room, when none
    /// comes from there, or when it has waited for long.
    pub(crate) async fn wait_for_expired(&self, lacking: impl Fn(&Partition) -> bool) -> Result<()> {
        let now_ns = self.reactor.now_ns();
        if now_ns < self.vain_until_ns.get() || !self.has_expiring() {
            return Ok(());
        }
        self.wanted_until_ns.set(now_ns + WANTED_NS);
        let late = self.reactor.sleep_ns(WAIT_NS_MAX);
        match select(pin!(self.wait_for_background(lacking)), pin!(late)).await {
            Either::Left((Err(Error::NoSpace), _)) => {
                self.vain_until_ns.set(self.reactor.now_ns() + VAIN_NS);
                Ok(())
            }
            Either::Left((waited, _)) => waited,
            Either::Right(_) => Ok(()),
        }
    }
}
