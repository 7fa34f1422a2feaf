//! Cuts the streams of pieces into chunks, in segments taken one after the other.
//!
//! Place on the path: in the background, a chunk at a time, while requests go on.
//!
//! Invariants: a block is written once in a use of its segment; a piece begins where the one before
//! ended, on a fresh block, so that only the last segment of a checkpoint is not full; memory is bounded by
//! a chunk and the longest section.

use super::room;
use crate::format::anchor::Piece;
use crate::format::checkpoint::{CHUNK_HEADER_BYTES, CHUNK_PAYLOAD_BYTES_MAX, encode};
use crate::format::{SegmentHeader, SegmentKind, round_up};
use crate::metrics::add;
use crate::partition::Partition;
use crate::prepare::Taken;
use plimsoll_kv::block::Origin;
use plimsoll_kv::{Error, Result};
use plimsoll_reactor::Buf;
use std::rc::Rc;

/// Writes the pieces of one checkpoint.
pub(super) struct PieceWriter<'a> {
    partition: &'a Partition,
    /// The piece that is being written.
    piece: Piece,
    /// Bytes of its stream, and those of them that are not written yet.
    bytes: u64,
    stream: Vec<u8>,
    /// The end of what is written in the last segment.
    offset: u64,
    /// The pieces that are written.
    pub(super) written: Vec<Piece>,
    /// Segments that no anchor names yet: they are given back if the checkpoint fails.
    pub(super) fresh: Vec<u32>,
    /// Segments taken, and bytes of all streams.
    taken: u64,
    bytes_before: u64,
}

impl PieceWriter<'_> {
    pub(super) fn new(partition: &Partition) -> PieceWriter<'_> {
        let id = partition.log.take_sequence();
        PieceWriter {
            partition,
            piece: Piece { id, ..Piece::default() },
            bytes: 0,
            stream: Vec::new(),
            offset: 0,
            written: Vec::new(),
            fresh: Vec::new(),
            taken: 0,
            bytes_before: 0,
        }
    }

    /// Bytes of the piece that is being written.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Appends a section.
    pub(super) async fn section(&mut self, kind: u8, payload: &[u8]) -> Result<()> {
        self.stream.push(kind);
        self.stream.extend_from_slice(&(payload.len() as u64).to_le_bytes());
        self.stream.extend_from_slice(payload);
        self.bytes += 9 + payload.len() as u64;
        while self.stream.len() >= CHUNK_PAYLOAD_BYTES_MAX {
            self.write_chunk().await?;
        }
        Ok(())
    }

    /// Ends the piece, which holds no table of `end_slot` or one after it; its name.
    pub(super) async fn end_piece(&mut self, end_slot: u32) -> Result<u64> {
        while !self.stream.is_empty() {
            self.write_chunk().await?;
        }
        let layout = &self.partition.layout;
        let next = match self.piece.segments.last() {
            Some(last) if self.offset < layout.segment_bytes => vec![*last],
            _ => Vec::new(),
        };
        let offset = if next.is_empty() { layout.block_bytes } else { self.offset };
        let id = self.partition.log.take_sequence();
        let next = Piece { id, offset: offset as u32, segments: next, ..Piece::default() };
        let mut ended = std::mem::replace(&mut self.piece, next);
        assert!(ended.chunks > 0, "a piece has content");
        ended.end_slot = end_slot;
        let id = ended.id;
        self.written.push(ended);
        self.bytes_before += std::mem::take(&mut self.bytes);
        let most = room::segments_for(layout, self.bytes_before, self.written.len() as u64);
        assert!(self.taken <= most, "a checkpoint takes no more segments than were kept for it");
        Ok(id)
    }

    /// Writes the next chunk: as long as a chunk may be, or as what is left of the segment.
    async fn write_chunk(&mut self) -> Result<()> {
        let layout = self.partition.layout;
        if self.piece.segments.is_empty() || self.offset == layout.segment_bytes {
            self.open_segment().await?;
        }
        let room = (layout.segment_bytes - self.offset).min(CHUNK_PAYLOAD_BYTES_MAX as u64);
        let length = self.stream.len().min(room as usize - CHUNK_HEADER_BYTES);
        let payload: Vec<u8> = self.stream.drain(..length).collect();
        let mut bytes = Vec::with_capacity(CHUNK_HEADER_BYTES + payload.len());
        encode(self.piece.id, u64::from(self.piece.chunks), &payload, layout.identity, &mut bytes);
        let buf = Buf::padded(&[&bytes], round_up(bytes.len() as u64, layout.block_bytes) as usize);
        let segment = *self.piece.segments.last().expect("a segment was opened");
        let (offset, length) = (layout.segment_offset(segment) + self.offset, buf.len() as u64);
        self.write(offset, buf).await?;
        self.offset += length;
        self.piece.chunks += 1;
        Ok(())
    }

    async fn open_segment(&mut self) -> Result<()> {
        let partition = self.partition;
        let layout = partition.layout;
        let Taken { segment, sequence, frame } =
            partition.take_segment(SegmentKind::Checkpoint, |_| 0).await?;
        if self.piece.segments.is_empty() {
            self.piece.offset = layout.block_bytes as u32;
        }
        self.piece.segments.push(segment);
        self.fresh.push(segment);
        self.taken += 1;
        let header = SegmentHeader {
            kind: SegmentKind::Checkpoint,
            segment,
            sequence,
            epoch: partition.log.epoch(),
            next_segment: 0,
            log_number: 0,
            first_frame: frame,
            durable_frame: partition.log.durable(),
            created_ms: partition.now_ms(),
        };
        let mut buf = Buf::zeroed(layout.block_bytes as usize);
        let encoded = header.encode(layout.identity);
        buf[..encoded.len()].copy_from_slice(&encoded);
        self.write(layout.segment_offset(segment), buf).await?;
        self.offset = layout.block_bytes;
        Ok(())
    }

    async fn write(&self, offset: u64, buf: Buf) -> Result<()> {
        add(&self.partition.counts.checkpoint_bytes, buf.len() as u64);
        let written = self.partition.block.write(Origin::BACKGROUND, offset, Rc::new(buf), false).await;
        written.map_err(|error| Error::ReadOnly(format!("writing a checkpoint: {error}")))
    }
}
