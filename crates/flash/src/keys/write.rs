//! Writing a run: names in order become blocks in segments taken one after the other, then the
//! index blocks.
//!
//! Place on the path: in the background, at the end of a merge of tables and runs.
//!
//! Invariants: memory is bounded by one write and the sparse index; a block stands in one segment;
//! a run that is not finished gives its segments back when it is dropped.

use super::block::{BlockBuilder, BlockKind, BlockPlace, Extent};
use super::run::{Held, Run};
use super::sparse::{Sparse, separator};
use crate::format::{SegmentHeader, SegmentKind};
use crate::layout::Layout;
use crate::metrics::add;
use crate::partition::Partition;
use crate::prepare::Taken;
use crate::segments::SegmentTable;
use plimsoll_kv::block::Origin;
use plimsoll_kv::{Error, Result};
use plimsoll_reactor::Buf;
use std::rc::Rc;

/// Bytes of one write.
const WRITE_BYTES: usize = 256 << 10;
/// Bytes of a block; long keys make it longer.
const BLOCK_BYTES: usize = 16 << 10;
/// A block has this many names, unless it would become longer than [`LONG_BLOCK_BYTES_MAX`]: so
/// that long keys do not make the sparse index long.
const BLOCK_NAMES_MIN: u32 = 64;
const LONG_BLOCK_BYTES_MAX: usize = 64 << 10;

/// Bytes of a usual block and of one with few names: small segments have small blocks.
fn block_bytes(layout: &Layout) -> (usize, usize) {
    let segment = layout.segment_bytes as usize;
    (BLOCK_BYTES.min(segment / 16), LONG_BLOCK_BYTES_MAX.min(segment / 8))
}

/// A run that is being written.
pub(crate) struct RunWriter {
    flush: bool,
    held: Held,
    builder: BlockBuilder,
    /// Bytes of the last segment that are not written yet, and where they begin in it.
    pending: Vec<u8>,
    offset: u64,
    sparse: Sparse,
    index: Vec<Extent>,
    /// The separator of the block that is being filled.
    separator: Vec<u8>,
    last: Vec<u8>,
    bytes: u64,
    names: u64,
    deleted: u64,
}

impl RunWriter {
    /// An empty run. A `flush` may take segments that merges leave alone.
    pub(crate) fn new(partition: &Partition, flush: bool) -> RunWriter {
        RunWriter {
            flush,
            held: Held::new(&partition.keys.io, Vec::new()),
            builder: BlockBuilder::new(BlockKind::Names),
            pending: Vec::new(),
            offset: 0,
            sparse: Sparse::default(),
            index: Vec::new(),
            separator: Vec::new(),
            last: Vec::new(),
            bytes: 0,
            names: 0,
            deleted: 0,
        }
    }

    /// Appends a name. Names come in order.
    pub(crate) async fn push(&mut self, partition: &Partition, name: &[u8], deleted: bool) -> Result<()> {
        let (usual, long) = block_bytes(&partition.layout);
        let bytes = self.builder.bytes_with(name);
        let entries = self.builder.entries();
        if entries > 0 && bytes > if entries < BLOCK_NAMES_MIN { long } else { usual } {
            self.end_block(partition).await?;
        }
        if self.builder.entries() == 0 && self.names > 0 {
            self.separator = separator(&self.last, name).to_vec();
        }
        self.builder.push(name, deleted);
        self.last.clear();
        self.last.extend_from_slice(name);
        self.names += 1;
        self.deleted += u64::from(deleted);
        Ok(())
    }

    async fn end_block(&mut self, partition: &Partition) -> Result<()> {
        let extent = self.place(partition, BlockKind::Names).await?;
        self.bytes += u64::from(extent.blocks) * partition.layout.block_bytes;
        self.sparse.push(&self.separator, extent);
        Ok(())
    }

    /// Gives the block its place; it is written with others.
    async fn place(&mut self, partition: &Partition, kind: BlockKind) -> Result<Extent> {
        let layout = &partition.layout;
        let length = self.builder.sealed_bytes(layout.block_bytes);
        let end = self.offset + self.pending.len() as u64 + length;
        if self.held.len() == 0 || end > layout.segment_bytes {
            self.write(partition).await?;
            self.open_segment(partition).await?;
        }
        let (segment, sequence) = self.held.last().expect("a segment was opened");
        let at = self.offset + self.pending.len() as u64;
        let offset = u64::from(segment) * layout.segment_bytes + at;
        let place = BlockPlace { identity: layout.identity, sequence, offset };
        let sealed = self.builder.seal(place, layout.block_bytes, &mut self.pending);
        assert!(sealed == length && at + length <= layout.segment_bytes, "a block fits a segment");
        let position = (self.held.len() as u64 - 1) * layout.segment_bytes + at;
        let extent = Extent {
            position: u32::try_from(position / layout.block_bytes).expect("runs are bounded by the device"),
            blocks: u16::try_from(length / layout.block_bytes)
                .expect("blocks are bounded by the longest key"),
        };
        if self.pending.len() >= WRITE_BYTES || kind == BlockKind::Index {
            self.write(partition).await?;
        }
        Ok(extent)
    }

    async fn open_segment(&mut self, partition: &Partition) -> Result<()> {
        let (layout, log) = (&partition.layout, &partition.log);
        let keep = |segments: &SegmentTable| {
            if self.flush { partition.keys.kept_by_flush(segments.kept) } else { segments.kept }
        };
        let Taken { segment, sequence, frame } = partition.take_segment(SegmentKind::Keys, keep).await?;
        self.held.push(segment, sequence);
        let header = SegmentHeader {
            kind: SegmentKind::Keys,
            segment,
            sequence,
            epoch: log.epoch(),
            next_segment: 0,
            log_number: 0,
            first_frame: frame,
            durable_frame: log.durable(),
            created_ms: partition.now_ms(),
        };
        self.offset = 0;
        self.pending.extend_from_slice(&header.encode(layout.identity));
        self.pending.resize(layout.block_bytes as usize, 0);
        Ok(())
    }

    /// Writes what is pending.
    async fn write(&mut self, partition: &Partition) -> Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let (segment, _) = self.held.last().expect("what is pending has a segment");
        let start = partition.layout.segment_offset(segment) + self.offset;
        let buf = Buf::padded(&[&self.pending], self.pending.len());
        self.offset += self.pending.len() as u64;
        self.pending.clear();
        add(&partition.keys.written_bytes, buf.len() as u64);
        // Durable at once: a segment given back soon must hold nothing that could still land in it.
        let written = partition.block.write(Origin::BACKGROUND, start, Rc::new(buf), true).await;
        written.map_err(|error| Error::ReadOnly(format!("writing keys: {error}")))
    }

    /// Ends the run; nothing if no name was appended. It is durable after the next flush.
    pub(crate) async fn finish(mut self, partition: &Partition) -> Result<Option<Run>> {
        if self.names == 0 {
            return Ok(None);
        }
        self.end_block(partition).await?;
        self.write_index(partition).await?;
        self.write(partition).await?;
        for (segment, _) in self.held.segments() {
            partition.state.borrow_mut().segments.close(segment);
        }
        self.sparse.shrink();
        Ok(Some(Run {
            held: Rc::new(self.held),
            sparse: self.sparse,
            index: self.index,
            bytes: self.bytes,
            names: self.names,
            deleted: self.deleted,
        }))
    }

    async fn write_index(&mut self, partition: &Partition) -> Result<()> {
        let (_, bytes_max) = block_bytes(&partition.layout);
        self.builder = BlockBuilder::new(BlockKind::Index);
        for block in 0..self.sparse.len() {
            let separator = self.sparse.separator(block);
            if self.builder.entries() > 0 && self.builder.bytes_with(&separator) > bytes_max {
                let extent = self.place(partition, BlockKind::Index).await?;
                self.index.push(extent);
            }
            self.builder.push_extent(&separator, self.sparse.extent(block));
        }
        let extent = self.place(partition, BlockKind::Index).await?;
        self.index.push(extent);
        Ok(())
    }
}
