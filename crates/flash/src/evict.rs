//! Evicting: a device that is used as a cache makes room instead of refusing stores.
//!
//! Place on the path: in the background, before live records take all that they may; a store waits for it
//! only if it comes faster. Eviction deletes and cleaning moves: what is left of a segment that was walked
//! here is cleaning's business.
//!
//! Who goes: what has expired, in the segments where most of it must be; then a hand goes over the segments
//! from the oldest to the youngest and round again (CLOCK). Of each it takes all but the records that were
//! read since it last passed (`marks`, and what the layer above says). What it takes earns it the right to
//! spare so many times as much, so that it comes to something to take before long even where all is read.
//!
//! Invariants:
//! * a key that is evicted is deleted as a request deletes it: its tombstone is durable before anyone hears
//!   that it is gone, and the layer above forgets it in the same breath;
//! * what a transaction holds, what has a record kept below it, and a long value that someone reads
//!   stay; parts stay with the key that they belong to, and go when the hand comes to that;
//! * nothing is evicted while live records leave room, or cleaning makes some at a fair price, and the
//!   index has memory.
//!
//! Never: it moves a record, waits for a key, or takes the space that cleaning and checkpoints need.

use crate::clean::Move;
use crate::format::note::note_bytes_max;
use crate::format::record::{self, Manifest, record_bytes, verify_value};
use crate::format::transition::FLAG_PREVIOUS_EXPIRING;
use crate::format::{RecordKind, SegmentKind, Transition, TransitionKind, UNIT_BYTES};
use crate::metrics::add;
use crate::options::OnFull;
use crate::partition::Partition;
use crate::planted::{Bug, is_planted};
use crate::segments::{Segment, SegmentState};
use crate::walk::{read_segment, record_locations};
use plimsoll_kv::block::Origin;
use plimsoll_kv::{ContainerId, Durability, Error, Result};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// Segments that are kept empty for stores ahead of need; of a small device at most so large a part.
const AHEAD_SEGMENTS: u64 = 4;
const AHEAD_PART: u64 = 16;
/// This part of the objects that the index may hold is kept free ahead of need.
const OBJECTS_AHEAD_PART: u64 = 64;
/// For each unit taken so many are spared at most, and in a row so many segments, or such a part of a small
/// device.
const SPARED_PER_TAKEN: u64 = 3;
const SPARED_SEGMENTS_MAX: u64 = 64;
const SPARED_PART: u64 = 4;
/// After a round that found nothing to evict the next one waits so long: each reads the whole device.
const FRUITLESS_REST_NS: u64 = 1_000_000_000;
/// Stores that wait are woken after so many deletes.
const WAKE_DELETES: u64 = 64;

/// Stores that wait for room, by what they need.
#[derive(Default)]
pub(crate) struct Wanted(RefCell<BTreeMap<u64, u32>>);

/// A store that waits; dropping it takes its wish back.
pub(crate) struct Want<'a> {
    wanted: &'a Wanted,
    units: u64,
}

impl Wanted {
    /// A store waits for so many units.
    pub(crate) fn want(&self, units: u64) -> Want<'_> {
        *self.0.borrow_mut().entry(units).or_default() += 1;
        Want { wanted: self, units }
    }

    /// The most that one store waits for.
    fn most_units(&self) -> u64 {
        self.0.borrow().last_key_value().map_or(0, |(units, _)| *units)
    }
}

impl Drop for Want<'_> {
    fn drop(&mut self) {
        let mut wanted = self.wanted.0.borrow_mut();
        let count = wanted.get_mut(&self.units).expect("counted while it waits");
        *count -= 1;
        if *count == 0 {
            wanted.remove(&self.units);
        }
    }
}

/// Where eviction stands.
#[derive(Default)]
pub(crate) struct Hand {
    /// A round has begun: what cleaning has not filled up yet is to be part of it.
    begins: bool,
    /// Age and place of the segment that it passed last.
    passed: Option<(u64, u32)>,
    /// This round ends where the log was when it began: what came since is for the next.
    until: u64,
    /// Units that it may spare.
    credit_units: u64,
    /// Segments in a row that gave nothing.
    fruitless: usize,
    /// Until then no round begins, unless a checkpoint adds to what can be evicted: its number in the log.
    rests_until_ns: u64,
    rests_at: u64,
}

impl Hand {
    /// True if a round has begun since this was last asked.
    pub(crate) fn begins_round(&mut self) -> bool {
        std::mem::take(&mut self.begins)
    }
}

/// A record that may be evicted, as it is now.
struct Candidate {
    delete: Transition,
    expired: bool,
    /// The upload that goes with it.
    upload: Option<u64>,
}

/// What a walk takes.
pub(crate) enum Takes<'a> {
    Expired,
    /// And then what was not read, as far as the hand may spare the rest; also if live records take no more
    /// than they may.
    Unread(&'a mut Hand, bool),
}

impl Partition {
    /// True if a full device makes room.
    pub(crate) fn evicts(&self) -> bool {
        self.options.on_full == OnFull::Evict
    }

    /// True if live records take so much that stores would soon have to wait, or one waits; or if the index
    /// does.
    pub(crate) fn must_evict(&self) -> bool {
        if !self.evicts() {
            return false;
        }
        let ahead_units = self.ahead_units().max(self.wanted.most_units());
        let awaited_units = if self.room_is_awaited() { self.ahead_units() } else { 0 };
        self.claimed_units() + awaited_units + ahead_units > self.live_units_max()
            || self.objects_left() < self.options.objects_max / OBJECTS_AHEAD_PART
    }

    /// Units that are kept empty for stores ahead of need.
    pub(crate) fn ahead_units(&self) -> u64 {
        (AHEAD_SEGMENTS * self.layout.segment_units()).min(self.live_units_max() / AHEAD_PART)
    }

    /// True if a device that evicts is so full that it rather does that than squeeze out the last room.
    pub(crate) fn is_crowded(&self) -> bool {
        self.evicts() && self.is_mostly_full()
    }

    /// Evicts from one segment; false if a whole round found nothing. For want of free segments, though
    /// live records take no more than they may, if `is_short`.
    pub(crate) async fn evict(&self, hand: &mut Hand, is_short: bool) -> Result<bool> {
        if let Some(segment) = self.due_segment(&self.evictable_segments(), false) {
            self.evict_from(segment, Takes::Expired).await?;
            return Ok(true);
        }
        let (now_ns, checkpoint) = (self.reactor.now_ns(), self.anchor.borrow().log_number);
        let rests = now_ns < hand.rests_until_ns && checkpoint == hand.rests_at;
        if rests || self.locks.is_everything_kept() {
            return Ok(false);
        }
        let candidates = self.evictable_segments();
        if hand.fruitless >= candidates.len() {
            let rests_until_ns = now_ns + FRUITLESS_REST_NS;
            *hand = Hand { rests_until_ns, rests_at: checkpoint, ..Hand::default() };
            return Ok(false);
        }
        let (age, segment) = self.next_of(hand, &candidates);
        hand.passed = Some((age, segment));
        let credit_units = hand.credit_units;
        let evicted = self.evict_from(segment, Takes::Unread(hand, is_short)).await?;
        let spared = hand.credit_units < credit_units;
        hand.fruitless = if evicted || spared { 0 } else { hand.fruitless + 1 };
        Ok(true)
    }

    /// The next segment of this round, or the first of another.
    fn next_of(&self, hand: &mut Hand, candidates: &[(u64, u32)]) -> (u64, u32) {
        let is_next = |candidate: &&(u64, u32)| Some(**candidate) > hand.passed && candidate.0 <= hand.until;
        let next = candidates.iter().filter(is_next).min().or_else(|| {
            (hand.until, hand.begins) = (self.log.frame(), true);
            hand.credit_units = hand.credit_units.max(self.layout.segment_units());
            candidates.iter().min()
        });
        *next.expect("there is a candidate")
    }

    /// Age and place of the segments from which something can be evicted. What recovery would replay comes
    /// free only with the next checkpoint.
    fn evictable_segments(&self) -> Vec<(u64, u32)> {
        let state = self.state.borrow();
        let replay_from = self.anchor.borrow().log_number;
        let fits = |segment: &Segment| {
            segment.state == SegmentState::Closed
                && segment.live_units > 0
                && !segment.damaged
                && (segment.kind != SegmentKind::Log || segment.log_number < replay_from)
        };
        let all = (0..).zip(state.segments.all()).filter(|(_, segment)| fits(segment));
        all.map(|(number, segment)| (segment.opened_frame, number)).collect()
    }

    /// Walks a segment and evicts; true if anything went.
    pub(crate) async fn evict_from(&self, segment: u32, takes: Takes<'_>) -> Result<bool> {
        let first = u64::from(segment) * self.layout.segment_units();
        let (info, _guard) = {
            let state = self.state.borrow();
            // Held, so that what was read of it is what stands there.
            (state.segments.get(segment).clone(), state.segments.guard(first))
        };
        let read = read_segment(&*self.block, &self.layout, segment, Origin::BACKGROUND).await;
        let bytes =
            read.map_err(|error| self.unreadable(self.layout.location(segment, 0), &error.to_string()))?;
        let locations = record_locations(&*self.block, &self.layout, segment, &info, &bytes).await;
        let records: Vec<(&[u8], Move)> = locations
            .iter()
            .filter_map(|location| {
                let rest = &bytes[((location - first) * UNIT_BYTES) as usize..];
                let header = record::verify_head(rest, info.sequence, *location).ok()?;
                let head = &rest[..header.head_bytes()];
                Some((rest, self.describe(head, header, *location)))
            })
            .collect();
        let before = self.counts.evicted.get() + self.counts.expired.get();
        self.evict_each(&records, |candidate, _| candidate.expired).await?;
        self.note_expiring(segment, &records);
        if let Takes::Unread(hand, is_short) = takes
            && (is_short || self.must_evict())
        {
            let most =
                (SPARED_SEGMENTS_MAX * self.layout.segment_units()).min(self.live_units_max() / SPARED_PART);
            let is_taken = |_: &Candidate, (rest, moved): &(&[u8], Move)| {
                let units = u64::from(moved.length);
                let spared =
                    units <= hand.credit_units && self.was_read(moved, record::key(rest, &moved.header));
                hand.credit_units = match spared {
                    true => hand.credit_units - units,
                    false => most.min(hand.credit_units + units * SPARED_PER_TAKEN),
                };
                !spared
            };
            self.evict_each(&records, is_taken).await?;
            self.state.borrow().segments.marks.forget(segment, self.layout.segment_units());
        }
        self.space.wake_all();
        Ok(self.counts.evicted.get() + self.counts.expired.get() > before)
    }

    /// Evicts those records that are to be taken, as each is when its turn comes.
    async fn evict_each(
        &self,
        records: &[(&[u8], Move)],
        mut is_taken: impl FnMut(&Candidate, &(&[u8], Move)) -> bool,
    ) -> Result<()> {
        let mut deletes = 0;
        for record in records {
            let (rest, moved) = record;
            if !self.candidate(rest, moved).is_some_and(|candidate| is_taken(&candidate, record)) {
                continue;
            }
            let key = record::key(rest, &moved.header);
            self.reserve_eviction(key.len()).await?;
            if let Some(candidate) = self.candidate(rest, moved) {
                self.push_eviction(&candidate, moved, key);
                deletes += 1;
            }
            if deletes % WAKE_DELETES == 0 {
                self.space.wake_all();
            }
            self.reactor.yield_now().await;
        }
        Ok(())
    }

    /// What may be evicted of a record, if it is still what its key points to.
    fn candidate(&self, rest: &[u8], moved: &Move) -> Option<Candidate> {
        let upload = upload_of(rest, moved)?;
        let state = self.state.borrow();
        let stays = !state.index.contains(moved.slot, moved.fingerprint, moved.from)
            || state.is_dead(moved.header.container)
            || state.kept.below(moved.from).is_some()
            || state.kept.is_kept(moved.from)
            || self.locks.is_kept(moved.slot.0, moved.fingerprint)
            || upload.is_some_and(|upload| self.pins.borrow().contains_key(&upload));
        if stays {
            return None;
        }
        let expiry_ms = state.expiry_ms(moved.from, moved.header.expiry_ms);
        let flags = if expiry_ms == 0 { 0 } else { FLAG_PREVIOUS_EXPIRING };
        let delete = Transition { flags, ..moved.removal(TransitionKind::Delete) };
        Some(Candidate { delete, expired: expiry_ms != 0 && expiry_ms <= self.now_ms(), upload })
    }

    /// Makes room for a tombstone and what goes with it, as deletes do: what cleaning needs is left alone.
    async fn reserve_eviction(&self, key_bytes: usize) -> Result<()> {
        let bytes = record_bytes(key_bytes, 0) as usize + note_bytes_max(1);
        self.log.wait_for_room().await?;
        self.wait_for_keys_unless_full().await?;
        if let Err(Error::NoSpace) = self.reserve_small(bytes, 2) {
            self.log.flush().await?;
            self.reclaim();
            return self.reserve_small(bytes, 2);
        }
        Ok(())
    }

    /// Pushes the delete of a record for which there is room, and applies it.
    fn push_eviction(&self, candidate: &Candidate, moved: &Move, key: &[u8]) {
        let parts_units = candidate.upload.map_or(0, |upload| self.parts_units(upload));
        if is_planted(Bug::EvictionUnlogged) {
            self.state.borrow_mut().apply(&candidate.delete, self.log.frame());
        } else {
            // Not asynchronously: who sees the key gone waits until it is durably so.
            self.push_tombstone(&candidate.delete, key, Durability::Group);
        }
        let doom: Vec<Transition> = candidate.upload.map(Partition::doom_note).into_iter().collect();
        self.commit_note(&doom, Durability::Group);
        let container = self.container_of(moved.header.container);
        if let (Some(above), Some(container), false) =
            (self.above(), container, is_planted(Bug::EvictionUntold))
        {
            above.evicted(container, key);
        }
        if candidate.expired {
            add(&self.counts.expired, 1);
        } else {
            add(&self.counts.evicted, 1);
            add(&self.counts.evicted_bytes, (u64::from(moved.length) + parts_units) * UNIT_BYTES);
        }
    }

    /// Units of the parts of a long value.
    pub(crate) fn parts_units(&self, upload: u64) -> u64 {
        let state = self.state.borrow();
        let parts = state.uploads.get(&upload).into_iter().flat_map(|upload| upload.parts.values());
        parts.map(|(_, units)| u64::from(*units)).sum()
    }

    /// True if a key was read since the hand last passed: here, or from what the layer above keeps.
    fn was_read(&self, moved: &Move, key: &[u8]) -> bool {
        let container = self.container_of(moved.header.container);
        let above = self.above().zip(container).is_some_and(|(above, of)| above.was_read(of, key));
        self.state.borrow().segments.marks.is_set(moved.from) || above
    }

    /// The container whose generation this is.
    fn container_of(&self, generation: u32) -> Option<ContainerId> {
        let state = self.state.borrow();
        let emptied = state.generations.iter().find(|(_, current)| **current == generation);
        let number = emptied.map_or(generation, |(number, _)| *number);
        (number < plimsoll_kv::limits::CONTAINERS_MAX).then_some(ContainerId(number))
    }
}

/// The upload that goes with a record, if it has one; nothing if the record is no key's, or damaged.
pub(crate) fn upload_of(rest: &[u8], moved: &Move) -> Option<Option<u64>> {
    match moved.header.kind {
        RecordKind::Value | RecordKind::Keeper => Some(None),
        RecordKind::Manifest => {
            let value = verify_value(rest, &moved.header).ok()?;
            Some(Some(Manifest::decode(value).ok()?.upload))
        }
        RecordKind::Part | RecordKind::Tombstone => None,
    }
}
