//! Writing checkpoints: the tables and the snapshot, so that recovery replays only what came after.
//!
//! Place on the path: in the background, a chunk at a time, while requests go on.
//!
//! Invariants:
//! * the snapshot is taken at the edge of a frame, and each group of tables too: see `state`;
//! * the anchor that names a checkpoint is written when all its chunks, and all the log that its
//!   tables point to, are durable; only then the old checkpoint and its log are given up.

use crate::format::anchor::{ANCHOR_BYTES, Anchor, CHECKPOINT_SEGMENTS_MAX};
use crate::format::checkpoint::{CHUNK_HEADER_BYTES, CHUNK_PAYLOAD_BYTES_MAX, encode};
use crate::format::{SegmentHeader, SegmentKind, round_up};
use crate::metrics::add;
use crate::partition::Partition;
use crate::planted::{Bug, is_planted};
use crate::snapshot;
use plimsoll_kv::block::Origin;
use plimsoll_kv::{Error, Result, Slot};
use plimsoll_reactor::Buf;
use std::rc::Rc;

/// Begins a section of the checkpoint's stream: its kind, then its length in 8 bytes.
pub(crate) const SECTION_SNAPSHOT: u8 = b'S';
/// A section of tables: the first frame they do not hold, the first slot, the number of slots, the bits
/// of a location, then the tables.
pub(crate) const SECTION_TABLES: u8 = b'T';
/// A section that names the runs of keys: those that the snapshot's frame has, or newer ones.
pub(crate) const SECTION_KEYS: u8 = b'K';
/// Bytes of tables in one section, roughly: encoded without a pause.
const TABLES_BYTES: usize = 128 << 10;

/// Cuts a stream of bytes into chunks in freshly allocated segments.
struct ChunkWriter<'a> {
    partition: &'a Partition,
    id: u64,
    stream: Vec<u8>,
    chunks: u64,
    segments: Vec<u32>,
    offset: u64,
}

impl ChunkWriter<'_> {
    async fn section(&mut self, kind: u8, payload: &[u8]) -> Result<()> {
        self.stream.push(kind);
        self.stream.extend_from_slice(&(payload.len() as u64).to_le_bytes());
        self.stream.extend_from_slice(payload);
        while self.stream.len() >= CHUNK_PAYLOAD_BYTES_MAX {
            self.write_chunk().await?;
        }
        Ok(())
    }

    /// Writes the next chunk: as long as a chunk may be, or as what is left of the segment.
    async fn write_chunk(&mut self) -> Result<()> {
        let layout = self.partition.layout;
        if self.segments.is_empty() || self.offset == layout.segment_bytes {
            self.open_segment().await?;
        }
        let room = (layout.segment_bytes - self.offset).min(CHUNK_PAYLOAD_BYTES_MAX as u64);
        let length = self.stream.len().min(room as usize - CHUNK_HEADER_BYTES);
        let payload: Vec<u8> = self.stream.drain(..length).collect();
        let mut bytes = Vec::with_capacity(CHUNK_HEADER_BYTES + payload.len());
        encode(self.id, self.chunks, &payload, layout.identity, &mut bytes);
        let mut buf = Buf::zeroed(round_up(bytes.len() as u64, layout.block_bytes) as usize);
        buf[..bytes.len()].copy_from_slice(&bytes);
        let segment = *self.segments.last().expect("a segment was opened");
        let (offset, length) = (layout.segment_offset(segment) + self.offset, buf.len() as u64);
        self.write(offset, buf).await?;
        self.offset += length;
        self.chunks += 1;
        Ok(())
    }

    async fn open_segment(&mut self) -> Result<()> {
        if self.segments.len() == CHECKPOINT_SEGMENTS_MAX {
            return Err(Error::NoSpace);
        }
        let partition = self.partition;
        let layout = partition.layout;
        let (sequence, frame) = (partition.log.take_sequence(), partition.log.frame());
        let allocated =
            partition.state.borrow_mut().segments.allocate(SegmentKind::Checkpoint, sequence, frame, 0);
        let segment = allocated.ok_or(Error::NoSpace)?;
        self.segments.push(segment);
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

impl Partition {
    /// Writes a checkpoint; with `clean` the log is closed after it.
    pub(crate) async fn checkpoint(&self, clean: bool) -> Result<()> {
        // Until the keys are complete, the log that they are found in stays with the old anchor.
        let with_keys = self.keys_to_be_named().await?;
        // The segment in which replay will begin must have its header on flash.
        self.log.seal(&self.state).await?;
        let id = self.log.take_sequence();
        let mut writer = ChunkWriter {
            partition: self,
            id,
            stream: Vec::new(),
            chunks: 0,
            segments: Vec::new(),
            offset: 0,
        };
        let written = self.write_checkpoint(&mut writer, clean, with_keys).await;
        self.keys.end_checkpoint();
        if written.is_err() {
            let mut state = self.state.borrow_mut();
            for segment in writer.segments {
                state.segments.release(segment);
            }
        }
        written
    }

    async fn write_checkpoint(
        &self,
        writer: &mut ChunkWriter<'_>,
        clean: bool,
        with_keys: bool,
    ) -> Result<()> {
        self.log.close_building();
        let frame_number = self.log.frame();
        let (log_segment, log_number) = self.log.position();
        let transitions_before = self.transitions_since.get();
        let mut payload = Vec::new();
        snapshot::encode(&self.state.borrow(), &mut payload);
        let frozen = with_keys.then(|| self.keys.freeze_for_checkpoint());
        writer.section(SECTION_SNAPSHOT, &payload).await?;
        let slots = self.state.borrow().index.slots();
        let mut slot = slots.start;
        while slot < slots.end {
            slot = self.encode_tables(slot, slots.end, &mut payload);
            writer.section(SECTION_TABLES, &payload).await?;
        }
        let runs = self.named_runs(frozen).await?;
        if let Some(runs) = &runs {
            payload.clear();
            crate::keys::encode_names(runs, &mut payload);
            writer.section(SECTION_KEYS, &payload).await?;
        }
        while !writer.stream.is_empty() {
            writer.write_chunk().await?;
        }
        if !is_planted(Bug::CheckpointBeforeData) {
            let flushed = self.block.flush(Origin::BACKGROUND).await;
            flushed.map_err(|error| Error::ReadOnly(format!("flushing a checkpoint: {error}")))?;
            self.log.flush().await?;
        }
        let anchor = Anchor {
            generation: self.anchor.borrow().generation + 1,
            epoch: self.log.epoch(),
            clean,
            log_segment,
            log_number,
            frame_number,
            checkpoint_id: writer.id,
            checkpoint_chunks: writer.chunks,
            checkpoint_segments: writer.segments.clone(),
        };
        // From here on recovery may find this anchor: if its writing fails, nobody may touch what
        // it names.
        writer.segments.clear();
        if let Err(error) = write_anchor(&*self.block, &self.layout, &anchor, 0).await {
            self.keys.adopt_perhaps(runs.as_deref());
            self.log.fail(&format!("writing an anchor of partition {}: {error}", self.layout.partition));
            return Err(self.log.failure().expect("just failed"));
        }
        self.transitions_since.set(self.transitions_since.get() - transitions_before);
        self.keys.adopt(runs.as_deref());
        self.adopt(anchor);
        add(&self.counts.checkpoints, 1);
        Ok(())
    }

    /// Encodes tables from `slot` on, as of the edge of a frame; the first slot left.
    fn encode_tables(&self, slot: u32, end: u32, payload: &mut Vec<u8>) -> u32 {
        self.log.close_building();
        payload.clear();
        payload.extend_from_slice(&self.log.frame().to_le_bytes());
        payload.extend_from_slice(&slot.to_le_bytes());
        payload.extend_from_slice(&0_u32.to_le_bytes());
        let state = self.state.borrow();
        let location_bits = state.segments.location_bits();
        payload.push(location_bits as u8);
        let mut next = slot;
        while next < end && payload.len() < TABLES_BYTES {
            state.index.encode_slot(Slot(next as u16), location_bits, payload);
            next += 1;
        }
        payload[12..16].copy_from_slice(&(next - slot).to_le_bytes());
        next
    }

    /// Makes a written anchor the one in force: what the old one held is given up.
    fn adopt(&self, anchor: Anchor) {
        let old = self.anchor.replace(anchor);
        let mut state = self.state.borrow_mut();
        for segment in old.checkpoint_segments {
            state.segments.release(segment);
        }
        for segment in &self.anchor.borrow().checkpoint_segments {
            state.segments.close(*segment);
        }
        drop(state);
        self.reclaim();
    }

    /// Gives back what nothing needs any more.
    pub(crate) fn reclaim(&self) {
        let durable = if is_planted(Bug::EarlyReclaim) { u64::MAX } else { self.log.durable() };
        let early = is_planted(Bug::EarlyTombstoneDrop);
        let replay_from = if early { self.log.position().1 } else { self.anchor.borrow().log_number };
        let released = self.release_keys();
        if self.state.borrow_mut().segments.reclaim(durable, replay_from) + released > 0 {
            self.space.wake_all();
            self.keys.space_freed();
        }
    }
}

/// Writes both copies of an anchor, one after the other and `first` first, so that one is whole at
/// any instant: if only one can be read, the other is written first.
pub(crate) async fn write_anchor(
    block: &dyn plimsoll_kv::Block,
    layout: &crate::layout::Layout,
    anchor: &Anchor,
    first: u64,
) -> std::io::Result<()> {
    let mut buf = Buf::zeroed(ANCHOR_BYTES);
    buf.copy_from_slice(&anchor.encode(layout.identity));
    let buf = Rc::new(buf);
    for copy in [first, 1 - first] {
        let offset = layout.anchor_offset + copy * ANCHOR_BYTES as u64;
        block.write(Origin::BACKGROUND, offset, buf.clone(), true).await?;
    }
    Ok(())
}
