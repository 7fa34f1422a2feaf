//! Reading a victim: as much of it as may be live.
//!
//! Place on the path: between the choice of a victim and the moves of its records.
//!
//! Invariants: what is not read is dead, by the summary of a closed log segment and the index; of a
//! segment without a summary everything is read.

use crate::bulk::{BACKGROUND_READ_BYTES, read_bulk};
use crate::format::{SegmentKind, Transition, TransitionKind, UNIT_BYTES, round_up};
use crate::partition::Partition;
use crate::segments::{ReadGuard, Segment};
use crate::walk::{read_segment, read_summary, record_locations};
use futures_util::future::join_all;
use plimsoll_kv::Slot;
use plimsoll_kv::block::Origin;
use plimsoll_reactor::Buf;

/// A segment is read in pieces if they are less than this part of it together.
const PIECES_PART: u64 = 2;
/// What lies between two live records is read with them if it is shorter than this: a read more costs more.
const GAP_BYTES: u64 = 32 << 10;
/// A segment that cannot be read so many times in a row is damaged: what hinders may pass.
const TRIES: usize = 3;
const RETRY_DELAY_NS: u64 = 100_000_000;
/// Runs that are read at a time.
const READS_MAX: usize = 4;

/// What was read of a victim.
pub(super) struct Victim {
    pub(super) kind: SegmentKind,
    pub(super) sequence: u64,
    /// Where the records are that may be live, in order.
    pub(super) records: Vec<u64>,
    /// Runs of bytes, and where each begins in the segment, in order.
    pieces: Vec<(u64, Piece)>,
    /// The location of the segment's first byte.
    pub(super) first: u64,
    /// What was read of it is what stands there.
    _guard: ReadGuard,
}

enum Piece {
    Read(Buf),
    Whole(Vec<u8>),
}

impl std::ops::Deref for Piece {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Piece::Read(buf) => buf,
            Piece::Whole(bytes) => bytes,
        }
    }
}

impl Victim {
    /// The bytes from a record on, at least to its end.
    pub(super) fn from(&self, location: u64) -> &[u8] {
        let offset = (location - self.first) * UNIT_BYTES;
        let after = self.pieces.partition_point(|(begin, _)| *begin <= offset);
        let (begin, bytes) = &self.pieces[after - 1];
        bytes.get((offset - begin) as usize..).unwrap_or_default()
    }
}

impl Partition {
    /// Reads what may be live of a segment; of one that the drive does not give, again and again, nothing.
    pub(super) async fn read_victim(&self, segment: u32) -> Victim {
        let first = u64::from(segment) * self.layout.segment_units();
        let (info, guard) = {
            let state = self.state.borrow();
            (state.segments.get(segment).clone(), state.segments.guard(first))
        };
        let (mut records, mut pieces) = Default::default();
        for _ in 0..TRIES {
            match self.read_live(segment, &info).await {
                Ok(read) => {
                    (records, pieces) = read;
                    break;
                }
                Err(error) => drop(self.unreadable(first, &error.to_string())),
            }
            self.reactor.sleep_ns(RETRY_DELAY_NS).await;
        }
        let Segment { kind, sequence, .. } = info;
        Victim { kind, sequence, records, pieces, first, _guard: guard }
    }

    /// Where the records are that may be live, and the bytes that hold them.
    async fn read_live(
        &self,
        segment: u32,
        info: &Segment,
    ) -> std::io::Result<(Vec<u64>, Vec<(u64, Piece)>)> {
        let live = self.live_by_summary(segment, info).await;
        if let Some(live) = &live {
            let runs = self.runs(segment, live);
            if runs.iter().map(|(_, length)| length).sum::<u64>() * PIECES_PART < self.layout.segment_bytes {
                let records = live.iter().map(|(location, _)| *location).collect();
                return Ok((records, self.read_runs(segment, &runs).await?));
            }
        }
        let bytes = read_segment(&*self.block, &self.layout, segment, Origin::BACKGROUND).await?;
        let records = match live {
            Some(live) => live.into_iter().map(|(location, _)| location).collect(),
            None => record_locations(&*self.block, &self.layout, segment, info, &bytes).await,
        };
        Ok((records, vec![(0, Piece::Whole(bytes))]))
    }

    /// The records of a closed log segment that may be live, and how many units they take; nothing if it has
    /// no summary.
    async fn live_by_summary(&self, segment: u32, info: &Segment) -> Option<Vec<(u64, u32)>> {
        if info.kind != SegmentKind::Log {
            return None;
        }
        let (block, layout) = (&*self.block, &self.layout);
        let summary = read_summary(block, Origin::BACKGROUND, layout, segment, info.sequence, 0).await;
        let (_, transitions) = summary.ok()??;
        let live = transitions.iter().filter(|(_, transition)| self.may_be_live(transition));
        Some(live.map(|(_, transition)| (transition.location, transition.length)).collect())
    }

    fn may_be_live(&self, t: &Transition) -> bool {
        let state = self.state.borrow();
        match t.kind {
            TransitionKind::StorePart => state.uploads.is_held(t.location, t.length),
            TransitionKind::Store => {
                state.index.contains(Slot(t.slot), t.fingerprint, t.location)
                    || state.kept.is_kept(t.location)
            }
            _ => false,
        }
    }

    /// The blocks that hold records, in runs: where each begins in the segment, and its bytes. A run is one
    /// read, unless a record in it is longer than that.
    fn runs(&self, segment: u32, records: &[(u64, u32)]) -> Vec<(u64, u64)> {
        let first = u64::from(segment) * self.layout.segment_units();
        let block = self.layout.block_bytes;
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for (location, units) in records {
            let begin = (location - first) * UNIT_BYTES;
            let end = round_up(begin + u64::from(*units) * UNIT_BYTES, block).min(self.layout.segment_bytes);
            let begin = begin / block * block;
            match runs.last_mut() {
                Some((from, length))
                    if begin <= *from + *length + GAP_BYTES && end - *from <= BACKGROUND_READ_BYTES =>
                {
                    *length = (*length).max(end - *from);
                }
                _ => runs.push((begin, end - begin)),
            }
        }
        runs
    }

    async fn read_runs(&self, segment: u32, runs: &[(u64, u64)]) -> std::io::Result<Vec<(u64, Piece)>> {
        let start = self.layout.segment_offset(segment);
        let mut pieces = Vec::with_capacity(runs.len());
        for some in runs.chunks(READS_MAX) {
            let reads = some.iter().map(|(offset, length)| self.read_run(start + offset, *length));
            for ((offset, _), read) in some.iter().zip(join_all(reads).await) {
                pieces.push((*offset, read?));
            }
        }
        Ok(pieces)
    }

    /// The bytes of a run stand together, for each record is looked at as a whole.
    async fn read_run(&self, offset: u64, length: u64) -> std::io::Result<Piece> {
        if length <= BACKGROUND_READ_BYTES {
            return self.block.read(Origin::BACKGROUND, offset, length as usize).await.map(Piece::Read);
        }
        read_bulk(&*self.block, Origin::BACKGROUND, offset, length).await.map(Piece::Whole)
    }
}
