//! What a checkpoint takes, and what must be free for the next one.
//!
//! Place on the path: stores ask how many segments they must leave; the writer asserts that it takes no
//! more than was reckoned.
//!
//! Invariant: never less than is written, whatever the entries are. A piece's segments are given back when
//! the pieces that replace it are in force, and nothing says that the tables that grew are where others
//! shrank: so what must be free is reckoned piece by piece.

use crate::format::Anchor;
use crate::format::checkpoint::{CHUNK_HEADER_BYTES, CHUNK_PAYLOAD_BYTES_MAX};
use crate::index::Index;
use crate::layout::Layout;
use crate::partition::Partition;
use crate::state::State;

/// A checkpoint has about so many pieces, if they do not become too small.
const PIECES: u64 = 16;
/// Bytes of tables in one section: encoded without a pause. Of a small segment: an eighth.
const SECTION_BYTES: u64 = 128 << 10;
/// Bytes before the tables of a section.
const SECTION_HEAD_BYTES: u64 = 9 + 17;
/// Bytes of a snapshot for each segment, and those that are always there.
const SEGMENT_ENTRY_BYTES: u64 = 34;
const BASE_BYTES: u64 = 1024;
/// Bytes of names of runs for each of their segments.
const RUN_SEGMENT_BYTES: u64 = 64;
/// It is reckoned anew after one transition for so many bytes of a segment and for so many entries: what
/// may have come meanwhile is a small part of a segment and of the checkpoint.
const RECKONED_SEGMENT_BYTES: u64 = 1024;
const RECKONED_ENTRIES: u64 = 1024;
/// Bytes by which a transition makes a checkpoint longer at most.
const TRANSITION_BYTES: u64 = 40;

/// What was reckoned, and when.
#[derive(Clone, Copy, Default)]
pub(crate) struct Room {
    /// The anchor in force and the transitions since the checkpoint, then.
    at: (u64, u64),
    /// Bytes of a whole checkpoint.
    bytes: u64,
    /// Segments of a whole checkpoint.
    segments: u32,
    /// Segments that must be free for it.
    free_segments: u32,
}

/// Bytes of tables in one section, about.
pub(super) fn section_bytes(layout: &Layout) -> u64 {
    SECTION_BYTES.min(layout.segment_bytes / 8)
}

/// Segments that `pieces` streams of so many bytes take at most.
pub(super) fn segments_for(layout: &Layout, bytes: u64, pieces: u64) -> u64 {
    let usable = layout.segment_bytes - layout.block_bytes;
    let heads = usable.div_ceil(CHUNK_PAYLOAD_BYTES_MAX as u64) * CHUNK_HEADER_BYTES as u64;
    // The last chunk of a piece is padded, and has a header that it would not have elsewhere.
    let padding = pieces * (CHUNK_HEADER_BYTES as u64 + layout.block_bytes);
    (bytes + padding).div_ceil(usable - heads)
}

/// Segments that so many bytes of tables take at most, in pieces of `piece_bytes`.
fn segments_of_tables(layout: &Layout, bytes: u64, piece_bytes: u64) -> u64 {
    let sections = bytes / section_bytes(layout) + 2;
    let pieces = sections.min(bytes / piece_bytes.max(1) + 2);
    segments_for(layout, bytes + sections * SECTION_HEAD_BYTES, pieces)
}

/// Bytes of what stands beside the tables.
fn snapshot_bytes(state: &State, run_segments: u64) -> u64 {
    let uploads: usize = state.uploads.values().map(|upload| 29 + upload.parts.len() * 16).sum();
    let lists = state.generations.len() * 8
        + state.counters.len() * 28
        + state.dead.len() * 12
        + state.kept.len() * 36
        + state.expiry_overrides.len() * 28
        + state.transactions.len() * 24
        + uploads;
    let segments = state.segments.all().len() as u64 * SEGMENT_ENTRY_BYTES;
    BASE_BYTES + lists as u64 + segments + run_segments * RUN_SEGMENT_BYTES
}

/// The old pieces that are given back before the end: the slot up to which new pieces must be in force,
/// and the segments, in the order of slots.
fn released(anchor: &Anchor) -> Vec<(u32, u64)> {
    let nexts = anchor.pieces.iter().skip(1).map(|next| next.segments.first()).chain([None]);
    let mut released: Vec<(u32, u64)> = anchor
        .pieces
        .iter()
        .zip(nexts)
        .filter(|(piece, _)| piece.id != anchor.checkpoint_id)
        .map(|(piece, next)| {
            // A segment that the next piece begins in goes with that one.
            let shared = next.is_some() && piece.segments.last() == next;
            (piece.end_slot, piece.segments.len() as u64 - u64::from(shared))
        })
        .collect();
    released.sort_unstable();
    released
}

/// Segments that must be free for a checkpoint that replaces that of `anchor`; `rest_bytes` stand beside
/// the tables, and a piece is about `piece_bytes`.
fn free_segments(
    layout: &Layout,
    index: &Index,
    anchor: &Anchor,
    location_bits: u32,
    rest_bytes: u64,
    piece_bytes: u64,
) -> u64 {
    let slots = index.slots();
    let (mut tables, mut slot, mut longest) = (0, slots.start, 0);
    let mut up_to = |end: u32| {
        while slot < end.min(slots.end) {
            let bytes = index.encoded_bytes_max(slot, location_bits);
            (tables, longest, slot) = (tables + bytes, u64::max(longest, bytes), slot + 1);
        }
        (tables, longest)
    };
    let (mut free, mut given_back) = (0, 0);
    let unnamed = |bytes: u64, longest: u64| bytes + piece_bytes + section_bytes(layout) + longest;
    for (end_slot, segments) in released(anchor) {
        // Until the new pieces reach this slot, the old piece stays.
        let (bytes, longest) = up_to(end_slot);
        let taken = segments_of_tables(layout, unnamed(bytes, longest), piece_bytes);
        free = free.max(taken.saturating_sub(given_back));
        given_back += segments;
    }
    let (bytes, _) = up_to(slots.end);
    let taken = segments_of_tables(layout, bytes + rest_bytes, piece_bytes);
    free.max(taken.saturating_sub(given_back)).max(1)
}

impl Partition {
    /// Bytes that a whole checkpoint takes at most.
    pub(crate) fn checkpoint_bytes(&self) -> u64 {
        self.room().bytes
    }

    /// Segments that a whole checkpoint takes at most.
    pub(crate) fn checkpoint_segments(&self) -> u32 {
        self.room().segments
    }

    /// Segments that must be free for the next checkpoint. It takes more than that: it gives back pieces
    /// of the old one on its way.
    pub(crate) fn checkpoint_free_segments(&self) -> u32 {
        self.room().free_segments
    }

    /// Bytes of a piece, about.
    pub(super) fn piece_bytes(&self) -> u64 {
        self.room().bytes / PIECES
    }

    fn room(&self) -> Room {
        let anchor = self.anchor.borrow();
        let at = (anchor.generation, self.transitions_since.get());
        let room = self.room.get();
        let state = self.state.borrow();
        let interval =
            self.layout.segment_bytes / RECKONED_SEGMENT_BYTES + state.index.len() / RECKONED_ENTRIES;
        if room.segments > 0 && room.at.0 == at.0 && room.at.1.abs_diff(at.1) < interval {
            return room;
        }
        let (index, location_bits) = (&state.index, state.segments.location_bits());
        let run_segments =
            self.keys.run_segments() + self.keys.merged_segments() + self.keys.flush_segments();
        let rest = snapshot_bytes(&state, u64::from(run_segments)) + interval * TRANSITION_BYTES;
        let bytes: u64 =
            index.slots().map(|slot| index.encoded_bytes_max(slot, location_bits)).sum::<u64>() + rest;
        let piece_bytes = bytes / PIECES;
        let free = free_segments(&self.layout, index, &anchor, location_bits, rest, piece_bytes);
        let segments = segments_of_tables(&self.layout, bytes, piece_bytes);
        let room = Room { at, bytes, segments: segments as u32, free_segments: free as u32 };
        self.room.set(room);
        room
    }
}
