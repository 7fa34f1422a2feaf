//! Segments with nothing live, and which of them are given back.
//!
//! Place on the path: beside the table, after every change of it, and before the background looks for work.
//!
//! Invariants:
//! * every closed segment with nothing live is listed, and no other: nobody looks through all segments to
//!   find them, of which a large device has hundreds of thousands;
//! * what is given back was listed, is read by nobody, and is durably empty.

use super::{Segment, SegmentState, SegmentTable};
use crate::format::SegmentKind;
use std::collections::BTreeSet;

impl Segment {
    /// What has to be below the number from which recovery replays the log, and one more, for the segment to
    /// be given back once it is empty; nothing for those that others name.
    fn pin(&self) -> Option<u64> {
        match self.kind {
            SegmentKind::Log => Some(self.log_number + 1),
            SegmentKind::Checkpoint | SegmentKind::Keys => None,
            SegmentKind::Cleaned | SegmentKind::Cold => Some(0),
        }
    }

    fn is_emptied(&self) -> bool {
        self.state == SegmentState::Closed && self.live_units == 0
    }
}

impl SegmentTable {
    /// To be called after a segment was closed, or something in it died.
    pub(super) fn note_emptied(&mut self, segment: u32) {
        let info = &self.segments[segment as usize];
        if let Some(pin) = info.pin().filter(|_| info.is_emptied()) {
            self.emptied.insert((pin, segment));
        }
    }

    /// To be called before a segment is used otherwise, or something in it comes to life.
    pub(super) fn forget_emptied(&mut self, segment: u32) {
        let info = &self.segments[segment as usize];
        if let Some(pin) = info.pin().filter(|_| info.is_emptied()) {
            self.emptied.remove(&(pin, segment));
        }
    }

    /// The list made anew, to begin with it, or to prove it.
    pub(super) fn recount_emptied(&self) -> BTreeSet<(u64, u32)> {
        let all = (0..).zip(&self.segments).filter(|(_, info)| info.is_emptied());
        all.filter_map(|(segment, info)| Some((info.pin()?, segment))).collect()
    }

    /// True if what is listed is what there is, for checkers.
    #[must_use]
    pub fn lists_all_emptied(&self) -> bool {
        let is_free = |segment: &u32| self.segments[*segment as usize].state == SegmentState::Free;
        let free = self.free.range(..self.prepared).count() as u32;
        self.emptied == self.recount_emptied() && self.free_prepared == free && self.free.iter().all(is_free)
    }

    /// Segments that nobody reads, with nothing that recovery would replay from a log segment of this number.
    fn unpinned(&self, replay_from: u64) -> impl Iterator<Item = (u32, &Segment)> {
        let emptied = self.emptied.range(..=(replay_from, u32::MAX));
        let infos = emptied.map(|(_, segment)| (*segment, &self.segments[*segment as usize]));
        infos.filter(|(_, info)| info.readers.get() == 0)
    }

    /// Gives back every closed segment that may be: see the invariants. Log segments numbered
    /// `replay_from` and above would be replayed by a recovery.
    pub fn reclaim(&mut self, durable_frame: u64, replay_from: u64) -> u32 {
        let durably = self.unpinned(replay_from).filter(|(_, info)| info.changed_frame <= durable_frame);
        let given: Vec<u32> = durably.map(|(segment, _)| segment).collect();
        given.iter().for_each(|segment| self.release(*segment));
        given.len() as u32
    }

    /// Segments that will be given back as soon as what emptied them is durable.
    #[must_use]
    pub fn coming(&self, durable_frame: u64, replay_from: u64) -> u32 {
        self.unpinned(replay_from).filter(|(_, info)| info.changed_frame > durable_frame).count() as u32
    }

    /// Closed log segments with nothing live that only a newer checkpoint can free.
    #[must_use]
    pub fn pinned_empty(&self, replay_from: u64) -> u32 {
        (self.emptied.len() - self.emptied.range(..=(replay_from, u32::MAX)).count()) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNITS: u64 = 1024;

    /// A table in which one segment of each kind was filled with one record and closed.
    fn filled() -> SegmentTable {
        let mut table = SegmentTable::new(8, UNITS, 1);
        table.set_prepared(6);
        for (kind, log_number) in [(SegmentKind::Log, 3), (SegmentKind::Cleaned, 0), (SegmentKind::Keys, 0)] {
            let segment = table.allocate(kind, 1, 1, 0).expect("some are free");
            table.get_mut(segment).log_number = log_number;
            table.add_live(u64::from(segment) * UNITS + 1, 8);
            table.close(segment);
        }
        assert!(table.lists_all_emptied());
        table
    }

    #[test]
    fn what_is_empty_comes_free_when_it_is_durably_so_and_no_recovery_needs_it() {
        let mut table = filled();
        for segment in 0..3_u32 {
            table.remove_live(u64::from(segment) * UNITS + 1, 8, 20 + u64::from(segment));
            assert!(table.lists_all_emptied());
        }
        assert_eq!((table.free_count(), table.free_count_all()), (3, 5));
        assert_eq!((table.coming(19, 3), table.coming(19, 4), table.pinned_empty(3)), (1, 2, 1));
        assert_eq!((table.reclaim(20, 3), table.reclaim(20, 4)), (0, 1), "first the log's, of frame 20");
        assert_eq!((table.reclaim(u64::MAX, 4), table.free_count()), (1, 5), "keys are named by others");
        assert!(table.lists_all_emptied());
    }

    #[test]
    fn what_is_read_or_comes_to_life_again_stays() {
        let mut table = filled();
        let at = UNITS + 1;
        table.remove_live(at, 8, 20);
        let guard = table.guard(at);
        assert_eq!((table.coming(0, 9), table.reclaim(u64::MAX, 9)), (0, 0));
        drop(guard);
        table.add_live(at, 8);
        assert_eq!(table.reclaim(u64::MAX, 9), 0);
        table.remove_all_live(30);
        assert!(table.lists_all_emptied());
        assert_eq!((table.reclaim(29, 9), table.reclaim(30, 9)), (0, 2));
    }

    #[test]
    fn free_segments_count_once_they_are_prepared() {
        let mut table = SegmentTable::new(4, UNITS, 1);
        assert_eq!((table.free_count(), table.allocate(SegmentKind::Log, 1, 1, 0)), (0, None));
        table.set_prepared(1);
        assert_eq!((table.free_count(), table.allocate(SegmentKind::Log, 1, 1, 0)), (1, Some(0)));
        table.set_prepared(4);
        assert_eq!(table.free_count(), 3);
        table.close(0);
        assert_eq!((table.reclaim(1, 0), table.reclaim(1, 1), table.free_count()), (0, 1, 4));
        table.set_prepared(1);
        assert_eq!(table.free_count(), 1);
    }
}
