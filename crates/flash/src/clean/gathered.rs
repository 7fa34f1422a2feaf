//! What was taken from victims and is yet to be written, by the head that it goes to.
//!
//! Place on the path: between victims, which hold the bytes, and heads, which take a copy.
//!
//! Invariant: nothing gathered outlives its victim.

use super::Move;
use crate::format::SegmentKind;

/// Records that go to one head.
#[derive(Default)]
struct Pile<'a> {
    records: Vec<(Move, &'a [u8])>,
    bytes: usize,
}

/// Records moved once, and those moved more often.
#[derive(Default)]
pub(super) struct Gathered<'a> {
    cleaned: Pile<'a>,
    cold: Pile<'a>,
}

impl<'a> Gathered<'a> {
    fn of(&mut self, kind: SegmentKind) -> &mut Pile<'a> {
        if kind == SegmentKind::Cleaned { &mut self.cleaned } else { &mut self.cold }
    }

    /// Adds a record; the bytes of all of its kind.
    pub(super) fn add(&mut self, kind: SegmentKind, moved: Move, bytes: &'a [u8]) -> usize {
        let pile = self.of(kind);
        pile.records.push((moved, bytes));
        pile.bytes += bytes.len();
        pile.bytes
    }

    pub(super) fn take(&mut self, kind: SegmentKind) -> Vec<(Move, &'a [u8])> {
        std::mem::take(self.of(kind)).records
    }
}
