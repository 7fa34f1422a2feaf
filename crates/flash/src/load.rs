//! Loading a checkpoint: chunks are proved and put together, and each section goes where it belongs.
//!
//! Place on the path: the first part of recovery; the log is replayed upon what this gives.
//!
//! Invariants: memory is bounded by a segment and the longest section; a chunk that cannot be proved
//! ends the opening, because what it held cannot be had from elsewhere.

use crate::checkpoint::{SECTION_KEYS, SECTION_SNAPSHOT, SECTION_TABLES};
use crate::format::checkpoint::{CHUNK_HEADER_BYTES, decode, decode_header};
use crate::format::round_up;
use crate::index::LOCATION_BITS;
use crate::recover::{OpenError, Recovery};
use crate::snapshot::{self, Reader};
use crate::state::State;
use crate::walk::read_segment;
use plimsoll_kv::Slot;
use plimsoll_kv::block::Origin;

impl Recovery<'_> {
    /// Loads snapshot and tables, section by section.
    pub(crate) async fn load_checkpoint(&mut self) -> Result<(), OpenError> {
        let segments = self.anchor.checkpoint_segments.clone();
        let mut stream = Vec::new();
        let mut chunk = 0;
        for segment in segments {
            if segment >= self.layout.segments {
                return Err(self.damaged(format!("the anchor names segment {segment}, which does not exist")));
            }
            let read = read_segment(self.block, &self.layout, segment, Origin::FOREGROUND).await;
            let bytes = read.map_err(|error| self.io(error))?;
            let mut offset = self.layout.block_bytes as usize;
            while chunk < self.anchor.checkpoint_chunks && offset + CHUNK_HEADER_BYTES <= bytes.len() {
                let Some(length) = self.load_chunk(&bytes[offset..], chunk, &mut stream) else { break };
                offset += length;
                chunk += 1;
            }
            self.load_sections(&mut stream)?;
        }
        if chunk < self.anchor.checkpoint_chunks || !stream.is_empty() {
            let id = self.anchor.checkpoint_id;
            return Err(self.damaged(format!("chunk {chunk} of checkpoint {id} cannot be read")));
        }
        Ok(())
    }

    /// Appends a chunk's payload to the stream; bytes the chunk takes.
    fn load_chunk(&self, bytes: &[u8], chunk: u64, stream: &mut Vec<u8>) -> Option<usize> {
        let id = self.anchor.checkpoint_id;
        let header = decode_header(bytes, id, chunk).ok()?;
        let payload = decode(bytes, id, chunk, self.layout.identity).ok()?;
        stream.extend_from_slice(payload);
        let length = CHUNK_HEADER_BYTES as u64 + u64::from(header.payload_bytes);
        Some(round_up(length, self.layout.block_bytes) as usize)
    }

    fn load_sections(&mut self, stream: &mut Vec<u8>) -> Result<(), OpenError> {
        let mut used = 0;
        while let Some(head) = stream.get(used..used + 9) {
            let length = u64::from_le_bytes(head[1..].try_into().expect("eight bytes")) as usize;
            let Some(section) = stream.get(used + 9..).and_then(|rest| rest.get(..length)) else { break };
            let loaded = match head[0] {
                SECTION_SNAPSHOT => snapshot::decode(section, &mut self.state),
                SECTION_TABLES => load_tables(section, &mut self.state),
                SECTION_KEYS => self.keys.load(section, &self.layout),
                _ => false,
            };
            if !loaded {
                let id = self.anchor.checkpoint_id;
                return Err(self.damaged(format!("checkpoint {id} has a section that makes no sense")));
            }
            used += 9 + length;
        }
        stream.drain(..used);
        Ok(())
    }
}

/// Loads a section of tables.
pub(crate) fn load_tables(section: &[u8], state: &mut State) -> bool {
    let mut reader = Reader(section);
    let (Some(frame), Some(first), Some(count)) = (reader.u64(), reader.u32(), reader.u32()) else {
        return false;
    };
    let Some([location_bits]) = reader.take(1) else { return false };
    let location_bits = u32::from(*location_bits);
    let slots = state.index.slots();
    let is_within = first >= slots.start && first.checked_add(count).is_some_and(|end| end <= slots.end);
    if !is_within || !(1..=LOCATION_BITS).contains(&location_bits) {
        return false;
    }
    for slot in first..first + count {
        if !state.index.decode_slot(Slot(slot as u16), location_bits, &mut reader.0) {
            return false;
        }
        let frames = state.slot_frames.as_mut().expect("recovery keeps the frame of each slot");
        frames[(slot - slots.start) as usize] = frame;
    }
    reader.0.is_empty()
}
