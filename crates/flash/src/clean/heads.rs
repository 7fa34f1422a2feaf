//! The segments that cleaning fills: one for records moved once, one for those moved more often.
//!
//! Place on the path: between the records taken from a victim and the device.
//!
//! Invariants: records stand one after the other, each write begins on a fresh block; a head is opened by
//! a transition of its own, so that recovery knows what the segment is.

use super::Move;
use crate::format::note::note_bytes_max;
use crate::format::{SegmentHeader, SegmentKind, Transition, TransitionKind, record, round_up};
use crate::partition::Partition;
use crate::segments::KEPT_MIN;
use futures_util::future::join_all;
use plimsoll_kv::block::Origin;
use plimsoll_kv::{Durability, Error, Result};
use plimsoll_reactor::Buf;
use std::rc::Rc;

/// Bytes of one write: what the foreground waits for at the device is bounded by it.
const WRITE_BYTES: usize = 256 << 10;
/// Writes at the device at a time.
const WRITES_MAX: usize = 2;

/// A segment into which records are moved.
pub(crate) struct Head {
    pub(super) segment: u32,
    sequence: u64,
    offset: u64,
}

/// The open heads: for records moved once, and for those moved more often.
#[derive(Default)]
pub(crate) struct Heads {
    cleaned: Option<Head>,
    cold: Option<Head>,
}

impl Heads {
    fn slot(&mut self, kind: SegmentKind) -> &mut Option<Head> {
        if kind == SegmentKind::Cleaned { &mut self.cleaned } else { &mut self.cold }
    }

    pub(super) fn take(&mut self, kind: SegmentKind) -> Option<Head> {
        self.slot(kind).take()
    }

    pub(super) fn put(&mut self, kind: SegmentKind, head: Head) {
        *self.slot(kind) = Some(head);
    }
}

impl Partition {
    /// Writes moved records durably, in pieces. None of them is under way any more when it returns.
    pub(super) async fn write_moved(&self, device_offset: u64, bytes: &[u8]) -> std::io::Result<()> {
        let offsets = (device_offset..).step_by(WRITE_BYTES);
        let pieces: Vec<(u64, &[u8])> = offsets.zip(bytes.chunks(WRITE_BYTES)).collect();
        for some in pieces.chunks(WRITES_MAX) {
            let writes = some.iter().map(|(offset, piece)| {
                let buf = Rc::new(Buf::padded(&[piece], piece.len()));
                self.block.write(Origin::BACKGROUND, *offset, buf, true)
            });
            join_all(writes).await.into_iter().collect::<std::io::Result<()>>()?;
        }
        Ok(())
    }

    /// Takes the records that fit the head, and encodes them for their new places: the moves, the bytes to be
    /// written and where they begin in the segment. Where a long one does not fit, shorter ones that come
    /// later may.
    pub(super) fn fill(
        &self,
        head: &mut Head,
        records: &mut Vec<(Move, &[u8])>,
    ) -> (Vec<Move>, Vec<u8>, u64) {
        let layout = &self.layout;
        let begin = head.offset;
        let most = records.iter().map(|(_, record_bytes)| record_bytes.len() as u64).sum::<u64>();
        let room = round_up(most + layout.block_bytes, layout.block_bytes).min(layout.segment_bytes - begin);
        let mut bytes: Vec<u8> = Vec::with_capacity(room as usize);
        if begin == 0 {
            bytes.extend_from_slice(&self.head_header(head).encode(layout.identity));
            bytes.resize(layout.block_bytes as usize, 0);
        }
        let (mut moves, mut left) = (Vec::new(), Vec::new());
        for (mut moved, record_bytes) in records.drain(..) {
            let at = bytes.len();
            let end = begin + (at + record_bytes.len()) as u64;
            if round_up(end, layout.block_bytes) > layout.segment_bytes {
                left.push((moved, record_bytes));
                continue;
            }
            moved.to = layout.location(head.segment, begin + at as u64);
            if let Some(kept) = self.state.borrow().expiry_overrides.get(&moved.from) {
                (moved.header.expiry_ms, moved.header.version) = (kept.expiry_ms, kept.version);
                moved.override_clock = kept.version.clock;
            }
            bytes.extend_from_slice(record_bytes);
            record::relocate(&mut bytes[at..], &moved.header, head.sequence, moved.to);
            moves.push(moved);
        }
        *records = left;
        bytes.resize(round_up(bytes.len() as u64, layout.block_bytes) as usize, 0);
        head.offset = begin + bytes.len() as u64;
        (moves, bytes, begin)
    }

    fn head_header(&self, head: &Head) -> SegmentHeader {
        SegmentHeader {
            kind: self.state.borrow().segments.get(head.segment).kind,
            segment: head.segment,
            sequence: head.sequence,
            epoch: self.log.epoch(),
            next_segment: 0,
            log_number: 0,
            first_frame: self.log.frame(),
            durable_frame: self.log.durable(),
            created_ms: self.now_ms(),
        }
    }

    /// The open head of a kind, or a fresh one.
    pub(super) async fn take_head(&self, kind: SegmentKind, heads: &mut Heads) -> Result<Head> {
        if let Some(head) = heads.take(kind) {
            if head.offset + self.layout.block_bytes <= self.layout.segment_bytes {
                return Ok(head);
            }
            self.state.borrow_mut().segments.close(head.segment);
        }
        self.reserve(note_bytes_max(1), 1)?;
        let (sequence, frame) = (self.log.take_sequence(), self.log.frame());
        let allocated = {
            let segments = &mut self.state.borrow_mut().segments;
            // Deletes and the log may have taken the segments of the background. What it would be cleaned
            // into is then borrowed from the next checkpoint: a victim is never what recovery would
            // replay, so it comes free at once, and gives back more than it takes (seeds 40 and 279).
            let keep = if segments.free_count() > segments.kept { segments.kept } else { KEPT_MIN - 1 };
            segments.allocate(kind, sequence, frame, keep)
        };
        let segment = allocated.ok_or(Error::NoSpace)?;
        let transition = Transition {
            flags: kind as u8,
            location: u64::from(segment),
            argument: sequence,
            ..Transition::new(TransitionKind::OpenSegment)
        };
        self.commit_note(&[transition], Durability::Async);
        Ok(Head { segment, sequence, offset: 0 })
    }
}
