//! What long records leave empty at the end of segments, and what is empty beside damaged ones: no cleaning
//! gives it back.
//!
//! Place on the path: beside the table; it counts as taken where the device says how full it is.
//!
//! Invariant: the sum is exact: it is counted after every change of what a segment's slack follows from.

use super::{SegmentState, SegmentTable};

/// A record of this part of a segment, or more, leaves slack at its end that is worth counting.
const LONG_RECORD_PART: u64 = 32;

/// The long records of a segment.
#[derive(Clone, Default)]
struct Long {
    longest_units: u64,
    /// Of all of them.
    units: u64,
}

impl SegmentTable {
    /// Reckons after a start how much slack there is, from all records that may be long, given by location
    /// and length.
    pub(super) fn reckon_slack(&mut self, records: impl Iterator<Item = (u64, u32)>) {
        let mut long: Vec<Long> = vec![Long::default(); self.segments.len()];
        for (location, length) in records.filter(|(location, length)| self.holds(*location, *length)) {
            let units = u64::from(length);
            if units >= self.long_units() {
                let of = &mut long[self.of(location) as usize];
                (of.longest_units, of.units) = (of.longest_units.max(units), of.units + units);
            }
        }
        for (segment, long) in (0..).zip(long) {
            let slack_units = self.likely_slack_units(segment, &long);
            let info = &mut self.segments[segment as usize];
            info.longest_units = long.longest_units;
            info.dead_units = self.units_per_segment.saturating_sub(info.live_units + slack_units);
            self.count_slack(segment);
        }
    }

    /// What a full segment of such records leaves empty, if long ones are all of it; of fewer as much less.
    fn likely_slack_units(&self, segment: u32, long: &Long) -> u64 {
        if long.units == 0 {
            return 0;
        }
        let room_units = self.units_per_segment - self.header_units;
        let left_units = self.units_per_segment - room_units / long.longest_units * long.longest_units;
        left_units * long.units / self.segments[segment as usize].live_units.max(long.units)
    }

    /// Units of a record from which on it leaves slack that is worth counting.
    pub(crate) fn long_units(&self) -> u64 {
        (self.units_per_segment / LONG_RECORD_PART).max(1)
    }

    /// Units that long records leave empty in closed segments, and that cleaning would not give back.
    #[must_use]
    pub fn slack_units(&self) -> u64 {
        self.slack_units
    }

    /// The same, counted anew, to prove it.
    #[must_use]
    pub fn recount_slack_units(&self) -> u64 {
        (0..self.segments.len() as u32).map(|segment| self.slack_of(segment)).sum()
    }

    /// What one long record does not fit is no longer than it. What short ones leave is not counted.
    fn slack_of(&self, segment: u32) -> u64 {
        let info = &self.segments[segment as usize];
        let is_full = info.state == SegmentState::Closed && info.live_units > 0;
        if is_full && info.damaged {
            return self.units_per_segment.saturating_sub(info.live_units);
        }
        if !is_full || info.longest_units < self.long_units() {
            return 0;
        }
        let full_units = info.live_units + self.gain_units(segment);
        self.units_per_segment.saturating_sub(full_units).min(info.longest_units)
    }

    /// To be called after every change of what a segment's slack follows from.
    pub(super) fn count_slack(&mut self, segment: u32) {
        let slack_units = self.slack_of(segment);
        let before = std::mem::replace(&mut self.segments[segment as usize].slack_units, slack_units);
        self.slack_units = self.slack_units - before + slack_units;
    }
}
