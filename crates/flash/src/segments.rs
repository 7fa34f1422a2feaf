//! The segment table: what each segment of a partition is used for and how much of it is live.
//!
//! Role: gives out free segments and takes back empty ones. Place on the path: beside the index;
//! both change by the same transitions.
//!
//! Invariants:
//! * a segment is given back only when nothing in it is live, no read is under way in it, the
//!   transitions that emptied it are durable, and (log segments) no recovery would replay it;
//! * live units are exact: the sum over the records that index, uploads and retained versions
//!   point to;
//! * what long records leave empty, and no cleaning gives back, counts as taken: summed over closed segments.

mod reclaim;
mod slack;

use crate::expiring::Expiring;
use crate::format::bits::bits_of;
use crate::format::{SegmentKind, UNIT_BYTES};
use crate::layout::Layout;
use crate::marks::Marks;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;

/// Segments kept free on the smallest device: for the next opening, and a checkpoint.
pub const KEPT_MIN: u32 = 3;

/// A segment is cleaned if that gives back more than so much of it.
pub(crate) const GAIN_PERCENT_MIN: u64 = 3;

/// What a segment is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentState {
    /// Nothing: it may be given out.
    Free,
    /// Being filled, or reserved to be.
    Open,
    /// Filled.
    Closed,
}

/// One segment.
#[derive(Clone, Debug)]
pub struct Segment {
    /// What it is doing.
    pub state: SegmentState,
    /// What it is for, while it is not free.
    pub kind: SegmentKind,
    /// The sequence of this use.
    pub sequence: u64,
    /// Log segments: the number in the log.
    pub log_number: u64,
    /// The frame being built when it was opened: its age.
    pub opened_frame: u64,
    /// Units of live records.
    pub live_units: u64,
    /// Units that cleaning would give back: what died in it, what was left empty when it was closed early,
    /// and of a log segment what frames take beside records. The slack that is left where the next record
    /// did not fit is not among them: the same records would leave it again.
    dead_units: u64,
    /// Units of the longest record that was put into it.
    longest_units: u64,
    /// What the table counts of it as slack: see [`SegmentTable::slack_units`].
    slack_units: u64,
    /// The last frame with a transition that took live units away.
    changed_frame: u64,
    /// A record in it is damaged: it is not cleaned, so that the damage stays visible, before that record is
    /// gone, or the next start.
    pub damaged: bool,
    /// Units of live records that could not be read when it was marked so.
    unread_units: u64,
    /// What expires of it.
    pub expiring: Expiring,
    readers: Rc<Cell<u32>>,
}

/// A read under way: its segment is not given back before the guard is dropped.
pub struct ReadGuard(Rc<Cell<u32>>);

impl Drop for ReadGuard {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// The segments of a partition.
pub struct SegmentTable {
    segments: Vec<Segment>,
    units_per_segment: u64,
    /// Units at the beginning of a segment that its header takes.
    header_units: u64,
    free: BTreeSet<u32>,
    /// Of them those that are prepared: looked at for every store.
    free_prepared: u32,
    /// Closed segments with nothing live, by what recovery would replay: see [`Segment::pin`].
    emptied: BTreeSet<(u64, u32)>,
    /// Where records stood that could not be read when their segments were marked damaged.
    damaged: BTreeSet<u64>,
    live_units: u64,
    slack_units: u64,
    /// Free segments that only a checkpoint (which frees others) and the opening of the partition
    /// take: without them it could not go on.
    pub kept: u32,
    /// Segments below this have been written once; see the superblock's `written_ahead`.
    prepared: u32,
    /// What was read lately, if the device evicts.
    pub(crate) marks: Marks,
}

impl SegmentTable {
    /// The segments of a partition, all free.
    #[must_use]
    pub fn all_free(layout: &Layout) -> SegmentTable {
        SegmentTable::new(layout.segments, layout.segment_units(), layout.block_bytes / UNIT_BYTES)
    }

    /// `count` free segments, whose headers take so many units.
    #[must_use]
    pub fn new(count: u32, units_per_segment: u64, header_units: u64) -> SegmentTable {
        let segment = || Segment {
            state: SegmentState::Free,
            kind: SegmentKind::Log,
            sequence: 0,
            log_number: 0,
            opened_frame: 0,
            live_units: 0,
            dead_units: 0,
            longest_units: 0,
            slack_units: 0,
            changed_frame: 0,
            damaged: false,
            unread_units: 0,
            expiring: Expiring::NOTHING,
            readers: Rc::default(),
        };
        SegmentTable {
            segments: (0..count).map(|_| segment()).collect(),
            units_per_segment,
            header_units,
            free: (0..count).collect(),
            free_prepared: 0,
            emptied: BTreeSet::new(),
            damaged: BTreeSet::new(),
            live_units: 0,
            slack_units: 0,
            kept: KEPT_MIN,
            prepared: 0,
            marks: Marks::default(),
        }
    }

    /// Units of a segment.
    #[must_use]
    pub fn units_per_segment(&self) -> u64 {
        self.units_per_segment
    }

    /// Bits that the location of any record fits.
    #[must_use]
    pub fn location_bits(&self) -> u32 {
        bits_of(self.segments.len() as u64 * self.units_per_segment - 1).max(1)
    }

    /// All segments, by place.
    #[must_use]
    pub fn all(&self) -> &[Segment] {
        &self.segments
    }

    /// One segment.
    #[must_use]
    pub fn get(&self, segment: u32) -> &Segment {
        &self.segments[segment as usize]
    }

    /// One segment, to be changed during recovery.
    pub(crate) fn get_mut(&mut self, segment: u32) -> &mut Segment {
        &mut self.segments[segment as usize]
    }

    /// The segment that holds a location.
    #[must_use]
    pub fn of(&self, location: u64) -> u32 {
        (location / self.units_per_segment) as u32
    }

    /// The sequence of the segment that holds a location: with that it names a record for good.
    #[must_use]
    pub fn sequence_at(&self, location: u64) -> u64 {
        self.get(self.of(location)).sequence
    }

    /// True if a location and length lie inside one segment.
    #[must_use]
    pub fn holds(&self, location: u64, length: u32) -> bool {
        let last = location.saturating_add(u64::from(length).max(1) - 1);
        location > 0
            && location / self.units_per_segment == last / self.units_per_segment
            && (last / self.units_per_segment) < self.segments.len() as u64
    }

    /// Free segments that are prepared.
    #[must_use]
    pub fn free_count(&self) -> u32 {
        self.free_prepared
    }

    /// Segments below this have been written once.
    #[must_use]
    pub fn prepared(&self) -> u32 {
        self.prepared
    }

    /// Segments below this have been written once, as it turns out.
    pub fn set_prepared(&mut self, prepared: u32) {
        self.prepared = prepared;
        self.free_prepared = self.free.range(..prepared).count() as u32;
    }

    /// Free segments, prepared or not.
    #[must_use]
    pub fn free_count_all(&self) -> u32 {
        self.free.len() as u32
    }

    /// Units of all live records.
    #[must_use]
    pub fn live_units(&self) -> u64 {
        self.live_units
    }

    /// Units of live records that cleaning could not read.
    #[must_use]
    pub fn damaged_units(&self) -> u64 {
        let damaged = self.segments.iter().filter(|info| info.damaged);
        damaged.map(|info| info.live_units.min(info.unread_units)).sum()
    }

    /// After a start: what could not be read before is tried once more, nobody knows what expires, and how
    /// much slack there is follows from all records that may be long, given by location and length.
    pub(crate) fn begin_anew(&mut self, records: impl Iterator<Item = (u64, u32)>) {
        for info in self.segments.iter_mut().filter(|info| info.state != SegmentState::Free) {
            (info.damaged, info.expiring) = (false, Expiring::UNKNOWN);
        }
        self.damaged.clear();
        self.reckon_slack(records);
        self.emptied = self.recount_emptied();
    }

    /// Takes the first free prepared segment, if more than `keep` are free.
    pub fn allocate(&mut self, kind: SegmentKind, sequence: u64, frame: u64, keep: u32) -> Option<u32> {
        if self.free_count() <= keep {
            return None;
        }
        let segment = *self.free.range(..self.prepared).next()?;
        self.open(segment, kind, sequence, frame);
        Some(segment)
    }

    /// Marks a segment as open for a use.
    #[track_caller]
    pub fn open(&mut self, segment: u32, kind: SegmentKind, sequence: u64, frame: u64) {
        self.forget_emptied(segment);
        self.free_prepared -= u32::from(self.free.remove(&segment) && segment < self.prepared);
        let info = &mut self.segments[segment as usize];
        assert_eq!(info.live_units, 0, "a segment that is opened holds nothing live");
        assert_eq!(info.readers.get(), 0, "a segment that is opened is read by nobody");
        info.state = SegmentState::Open;
        info.kind = kind;
        info.sequence = sequence;
        info.opened_frame = frame;
        info.dead_units = 0;
        info.longest_units = 0;
        info.changed_frame = 0;
        info.damaged = false;
        info.expiring = Expiring::NOTHING;
        self.marks.forget(segment, self.units_per_segment);
    }

    /// Marks a segment as filled.
    pub fn close(&mut self, segment: u32) {
        self.segments[segment as usize].state = SegmentState::Closed;
        self.count_slack(segment);
        self.note_emptied(segment);
    }

    /// Marks a segment of the log as filled, at whose end so many units were left. If it has long records,
    /// that is slack, but no more than the longest of them would take: short ones that came together will not
    /// come so again. And so is what is so little that nobody would clean it for that.
    pub fn close_log(&mut self, segment: u32, left_units: u64) {
        let info = &self.segments[segment as usize];
        let has_long = info.longest_units >= self.long_units();
        let slack_units = if has_long { left_units.min(info.longest_units) } else { 0 };
        let dead_units = self.units_per_segment.saturating_sub(info.live_units + slack_units);
        let is_vain = has_long && dead_units * 100 <= self.units_per_segment * GAIN_PERCENT_MIN;
        self.segments[segment as usize].dead_units = if is_vain { 0 } else { dead_units };
        self.close(segment);
    }

    /// So many units that are live in a segment cannot be read, as far as is known at these locations: it
    /// will not be given back as long as they are there.
    pub(crate) fn mark_damaged(&mut self, segment: u32, unread_units: u64, locations: &[u64]) {
        let info = &mut self.segments[segment as usize];
        (info.damaged, info.unread_units) = (true, unread_units);
        self.damaged.extend(locations);
        self.count_slack(segment);
    }

    /// What could not be read at a location is gone: its segment may be cleaned again.
    pub(crate) fn look_again(&mut self, location: u64) {
        let segment = self.of(location);
        self.segments[segment as usize].damaged = false;
        self.count_slack(segment);
    }

    /// Marks a segment as filled that is not, or of which nobody knows how far it is.
    pub fn close_early(&mut self, segment: u32) {
        let info = &mut self.segments[segment as usize];
        info.dead_units = self.units_per_segment.saturating_sub(info.live_units);
        self.close(segment);
    }

    /// Units that cleaning a closed segment is sure to give back. Two segments that are half empty
    /// become one.
    #[must_use]
    pub fn gain_units(&self, segment: u32) -> u64 {
        let info = &self.segments[segment as usize];
        let empty_units = self.units_per_segment.saturating_sub(info.live_units);
        match (info.damaged, empty_units * 2 >= self.units_per_segment) {
            (true, _) => 0,
            (false, true) => empty_units,
            (false, false) => info.dead_units.min(empty_units),
        }
    }

    /// Gives a segment back.
    pub fn release(&mut self, segment: u32) {
        self.forget_emptied(segment);
        let info = &mut self.segments[segment as usize];
        assert_eq!(info.live_units, 0, "a segment given back holds nothing live");
        assert_eq!(info.readers.get(), 0, "a segment given back is read by nobody");
        info.state = SegmentState::Free;
        // Of what was dead when it was marked nobody says that it goes.
        let first = u64::from(segment) * self.units_per_segment;
        let gone: Vec<u64> = self.damaged.range(first..first + self.units_per_segment).copied().collect();
        gone.iter().for_each(|location| assert!(self.damaged.remove(location)));
        self.free_prepared += u32::from(self.free.insert(segment) && segment < self.prepared);
    }

    /// A record became live.
    pub fn add_live(&mut self, location: u64, length: u32) {
        let segment = self.of(location);
        self.forget_emptied(segment);
        let info = &mut self.segments[segment as usize];
        info.live_units += u64::from(length);
        info.longest_units = info.longest_units.max(u64::from(length));
        self.live_units += u64::from(length);
        self.count_slack(segment);
    }

    /// A record died by a transition in `frame`.
    pub fn remove_live(&mut self, location: u64, length: u32, frame: u64) {
        let segment = self.of(location);
        let info = &mut self.segments[segment as usize];
        assert!(info.live_units >= u64::from(length), "segment {segment} has fewer live units than die");
        info.live_units -= u64::from(length);
        info.dead_units += u64::from(length);
        info.changed_frame = info.changed_frame.max(frame);
        self.live_units -= u64::from(length);
        if self.damaged.remove(&location) {
            self.look_again(location);
        }
        self.count_slack(segment);
        self.note_emptied(segment);
    }

    /// Everything died by a transition in `frame`.
    pub fn remove_all_live(&mut self, frame: u64) {
        for segment in 0..self.segments.len() as u32 {
            let info = &mut self.segments[segment as usize];
            if info.live_units > 0 {
                info.live_units = 0;
                info.changed_frame = info.changed_frame.max(frame);
                self.count_slack(segment);
                self.note_emptied(segment);
            }
        }
        self.live_units = 0;
        self.damaged.clear();
    }

    /// So many units that stand somewhere, or go with what does, expire.
    pub fn note_expiry(&mut self, location: u64, units: u64, expiry_ms: u64) {
        let segment = self.of(location);
        self.segments[segment as usize].expiring.add(units, expiry_ms);
    }

    /// Holds the segment of a location while it is read.
    #[must_use]
    #[track_caller]
    pub fn guard(&self, location: u64) -> ReadGuard {
        let info = &self.segments[self.of(location) as usize];
        assert!(info.state != SegmentState::Free, "what is read holds something live");
        let readers = &info.readers;
        readers.set(readers.get() + 1);
        ReadGuard(readers.clone())
    }

    /// Segments in use of a kind.
    #[must_use]
    pub fn used(&self, kind: SegmentKind) -> u32 {
        let used = |info: &&Segment| info.state != SegmentState::Free && info.kind == kind;
        self.segments.iter().filter(used).count() as u32
    }
}
