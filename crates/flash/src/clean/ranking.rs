//! Which segments are cleaned next: the best of all, found a slice at a time, and used up before others
//! are sought.
//!
//! Place on the path: before a victim is read. By cost and benefit (Rosenblum and Ousterhout, 1992):
//! (1 - u) x age / (1 + u).
//!
//! Invariants: what was found is looked at again before it is cleaned; others have their turn after each
//! slice, of which a large device has many.

use crate::format::SegmentKind;
use crate::partition::Partition;
use crate::segments::{GAIN_PERCENT_MIN, Segment, SegmentState};

/// Segments found at a time: this part of all, so that they are still the best when their turn comes.
const FOUND_PART: u32 = 128;
/// More are not found at a time.
const FOUND_MAX: usize = 256;
/// Segments looked at in a turn: some microseconds. The devices of tests have more, too.
const SLICE_SEGMENTS: u32 = 256;
/// Victims that are cleaned together are so many at most, and so many bytes.
const BATCH_MAX: u64 = 8;
const BATCH_BYTES_MAX: u64 = 8 << 20;
/// A segment of a crowded device that evicts is cleaned if that gives back more than so much of it: what
/// gives back less costs more writing than it is worth.
const CROWDED_GAIN_PERCENT_MIN: u64 = 25;

/// What the last search has found and was not cleaned yet.
#[derive(Default)]
pub(crate) struct Ranking {
    /// Segments and what they were used for then, the best last.
    found: Vec<(u32, u64)>,
}

impl Partition {
    /// The best victim, if there is one worth cleaning, and if stores wait or will soon the next best, as
    /// long as what is live of all of them fits one segment: several take no more space than one before they
    /// give it back. Segments that recovery would replay come free only with the next checkpoint, so others
    /// go first.
    pub(crate) async fn victims(&self, ranking: &mut Ranking) -> Vec<u32> {
        let (most, gain_units_min) = (self.victims_at_once(), self.gain_units_min());
        ranking.found.retain(|(segment, sequence)| {
            let is_same = self.state.borrow().segments.get(*segment).sequence == *sequence;
            is_same && self.is_victim(*segment, gain_units_min)
        });
        if ranking.found.len() < most {
            self.find_victims(ranking, most, gain_units_min).await;
        }
        let (mut victims, mut live_units) = (Vec::new(), 0);
        while victims.len() < most
            && let Some((segment, _)) = ranking.found.last()
        {
            live_units += self.state.borrow().segments.get(*segment).live_units;
            if !victims.is_empty() && live_units > self.layout.segment_units() {
                break;
            }
            victims.extend(ranking.found.pop().map(|(segment, _)| segment));
        }
        victims
    }

    /// How many victims are cleaned together at most: one, unless stores wait or will soon.
    fn victims_at_once(&self) -> usize {
        if !self.is_pressed() {
            return 1;
        }
        (BATCH_BYTES_MAX / self.layout.segment_bytes).clamp(1, BATCH_MAX) as usize
    }

    /// Looks through all segments for the best: for so many, or more on a device of many.
    async fn find_victims(&self, ranking: &mut Ranking, most: usize, gain_units_min: u64) {
        let found_max = ((self.layout.segments / FOUND_PART) as usize).min(FOUND_MAX).max(most);
        let best_first = |a: &(f64, u32), b: &(f64, u32)| b.0.total_cmp(&a.0);
        let mut scored: Vec<(f64, u32)> = Vec::new();
        for begin in (0..self.layout.segments).step_by(SLICE_SEGMENTS as usize) {
            if begin > 0 {
                self.reactor.yield_now().await;
            }
            let slice = begin..self.layout.segments.min(begin + SLICE_SEGMENTS);
            let candidates = slice.filter(|segment| self.is_victim(*segment, gain_units_min));
            scored.extend(candidates.map(|segment| (self.victim_score(segment), segment)));
            if scored.len() > found_max {
                scored.select_nth_unstable_by(found_max, best_first);
                scored.truncate(found_max);
            }
        }
        scored.sort_unstable_by(best_first);
        // Others may have taken some meanwhile.
        scored.retain(|(_, segment)| self.is_victim(*segment, gain_units_min));
        let segments = &self.state.borrow().segments;
        let with_use = |(_, segment): &(f64, u32)| (*segment, segments.get(*segment).sequence);
        ranking.found = scored.iter().rev().map(with_use).collect();
    }

    /// What cleaning a segment has to give back.
    fn gain_units_min(&self) -> u64 {
        let percent_min = if self.is_crowded() { CROWDED_GAIN_PERCENT_MIN } else { GAIN_PERCENT_MIN };
        self.layout.segment_units() * percent_min / 100 + 1
    }

    /// True if cleaning a segment gives back so much, and at once.
    fn is_victim(&self, segment: u32, gain_units_min: u64) -> bool {
        let segments = &self.state.borrow().segments;
        let Segment { state, kind, log_number, live_units, .. } = segments.get(segment);
        *state == SegmentState::Closed
            && *live_units > 0
            && segments.gain_units(segment) >= gain_units_min
            && (*kind != SegmentKind::Log || *log_number < self.anchor.borrow().log_number)
    }

    fn victim_score(&self, segment: u32) -> f64 {
        let segments = &self.state.borrow().segments;
        let (info, units) = (segments.get(segment), self.layout.segment_units() as f64);
        let now = self.log.frame();
        let used = info.live_units as f64 / units;
        let age = (now - info.opened_frame.min(now) + 1) as f64;
        segments.gain_units(segment) as f64 / units * age / (1.0 + used)
    }
}
