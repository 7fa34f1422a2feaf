//! Loading a checkpoint: chunks are proved and put together, and each section goes where it belongs.
//!
//! Place on the path: the first part of recovery; the log is replayed upon what this gives.
//!
//! Invariants: memory is bounded by a segment and the longest section; a chunk that cannot be proved
//! ends the opening, because what it held cannot be had from elsewhere; of a slot the newest table counts.

use crate::bulk::Patchy;
use crate::checkpoint::{SECTION_KEYS, SECTION_SNAPSHOT, SECTION_TABLES};
use crate::format::anchor::Piece;
use crate::format::checkpoint::{CHUNK_HEADER_BYTES, decode};
use crate::format::round_up;
use crate::index::LOCATION_BITS;
use crate::recover::{OpenError, Recovery};
use crate::snapshot::{self, Reader};
use crate::state::State;
use crate::walk::read_segment_around;
use plimsoll_kv::Slot;
use plimsoll_kv::block::Origin;

/// A checkpoint of so many bytes takes seconds: progress is told.
const LONG_BYTES: u64 = 512 << 20;

/// The segment read last: the next piece may begin in it.
struct Held {
    segment: u32,
    read: Patchy,
}

impl Recovery<'_> {
    /// Loads tables and snapshot, piece by piece.
    pub(crate) async fn load_checkpoint(&mut self) -> Result<(), OpenError> {
        let mut held = Held { segment: u32::MAX, read: Patchy::default() };
        let pieces = self.anchor.pieces.clone();
        let bytes = self.anchor.segments().len() as u64 * self.layout.segment_bytes;
        for (number, piece) in pieces.iter().enumerate() {
            self.load_piece(piece, &mut held).await?;
            if bytes >= LONG_BYTES {
                let (partition, loaded) = (self.layout.partition, number + 1);
                tracing::info!(partition, loaded, of = pieces.len(), bytes, "loading the checkpoint");
            }
        }
        let frames = self.state.slot_frames.iter().flatten();
        // Without a snapshot replay begins with nothing: tables of some slots may be there already.
        let lacking = frames.filter(|frame| **frame == 0).count();
        if self.anchor.checkpoint_id != 0 && (lacking > 0 || !self.has_snapshot) {
            return Err(
                self.damaged(format!("the checkpoint lacks the snapshot, or tables of {lacking} slots"))
            );
        }
        Ok(())
    }

    async fn load_piece(&mut self, piece: &Piece, held: &mut Held) -> Result<(), OpenError> {
        let mut stream = Vec::new();
        let (mut chunk, mut offset, mut unread) = (0, piece.offset as usize, None);
        for segment in &piece.segments {
            if *segment >= self.layout.segments {
                return Err(self.damaged(format!("the anchor names segment {segment}, which does not exist")));
            }
            if held.segment != *segment {
                let read = read_segment_around(self.block, &self.layout, *segment, Origin::FOREGROUND).await;
                *held = Held { segment: *segment, read: read.map_err(|error| self.io(error))? };
            }
            while chunk < piece.chunks {
                let bytes = held.read.bytes.get(offset..).unwrap_or_default();
                let Some(length) = self.load_chunk(bytes, piece.id, chunk, &mut stream) else {
                    let rest = held.read.prove_read(offset as u64..self.layout.segment_bytes);
                    unread = unread.or(rest.err());
                    break;
                };
                offset += length;
                chunk += 1;
            }
            self.load_sections(piece.id, &mut stream)?;
            offset = self.layout.block_bytes as usize;
        }
        if chunk < piece.chunks || !stream.is_empty() {
            if let Some(error) = unread {
                return Err(self.io(error));
            }
            let id = piece.id;
            return Err(self.damaged(format!("chunk {chunk} of piece {id} of the checkpoint cannot be read")));
        }
        Ok(())
    }

    /// Appends a chunk's payload to the stream; bytes the chunk takes.
    fn load_chunk(&self, bytes: &[u8], id: u64, chunk: u32, stream: &mut Vec<u8>) -> Option<usize> {
        let payload = decode(bytes, id, u64::from(chunk), self.layout.identity).ok()?;
        stream.extend_from_slice(payload);
        let length = CHUNK_HEADER_BYTES as u64 + payload.len() as u64;
        Some(round_up(length, self.layout.block_bytes) as usize)
    }

    fn load_sections(&mut self, id: u64, stream: &mut Vec<u8>) -> Result<(), OpenError> {
        let mut used = 0;
        let has_snapshot = id == self.anchor.checkpoint_id;
        while let Some(head) = stream.get(used..used + 9) {
            let length = u64::from_le_bytes(head[1..].try_into().expect("eight bytes")) as usize;
            let Some(section) = stream.get(used + 9..).and_then(|rest| rest.get(..length)) else { break };
            let loaded = match head[0] {
                SECTION_TABLES => load_tables(section, self.anchor.frame_number, &mut self.state),
                SECTION_SNAPSHOT if has_snapshot && !self.has_snapshot => {
                    self.has_snapshot = true;
                    snapshot::decode(section, &mut self.state)
                }
                SECTION_KEYS if has_snapshot => self.keys.load(section, &self.layout),
                // What the next checkpoint put in the place of other tables holds nothing else.
                _ => false,
            };
            if !loaded {
                return Err(
                    self.damaged(format!("piece {id} of the checkpoint has a section that makes no sense"))
                );
            }
            used += 9 + length;
        }
        stream.drain(..used);
        Ok(())
    }
}

/// Loads a section of tables of an anchor whose replay begins with a frame.
pub(crate) fn load_tables(section: &[u8], replay_from: u64, state: &mut State) -> bool {
    let mut reader = Reader(section);
    let (Some(frame), Some(first), Some(count)) = (reader.u64(), reader.u32(), reader.u32()) else {
        return false;
    };
    let Some([location_bits]) = reader.take(1) else { return false };
    let location_bits = u32::from(*location_bits);
    let slots = state.index.slots();
    let is_within = first >= slots.start && first.checked_add(count).is_some_and(|end| end <= slots.end);
    if frame < replay_from || !is_within || !(1..=LOCATION_BITS).contains(&location_bits) {
        return false;
    }
    for slot in first..first + count {
        if !state.index.decode_slot(Slot(slot as u16), location_bits, &mut reader.0) {
            return false;
        }
        let frames = state.slot_frames.as_mut().expect("recovery keeps the frame of each slot");
        let held = &mut frames[(slot - slots.start) as usize];
        if frame < *held {
            return false;
        }
        *held = frame;
    }
    reader.0.is_empty()
}
