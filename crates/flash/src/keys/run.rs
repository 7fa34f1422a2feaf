//! The run: sorted names on flash that do not change, with their sparse index in memory.
//!
//! Place on the path: between the cursors that read it and the device. A run stands in segments of
//! its own; `write` makes it, `name` says how a checkpoint names it.
//!
//! Invariant: the segments of a run are given back after the last reference to it is dropped: that
//! of the set of runs, of a checkpoint that names it, of a listing or merge that reads it.

use super::block::{BlockKind, BlockPlace, BlockWalk, Extent};
use super::sparse::{SEPARATOR_BYTES_MAX, Sparse};
use crate::layout::Layout;
use crate::metrics::add;
use plimsoll_kv::block::{Block, Origin};
use plimsoll_kv::{Error, Result};
use plimsoll_reactor::Buf;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// The device as runs see it, and what they count.
pub(crate) struct RunIo {
    block: Rc<dyn Block>,
    pub(crate) layout: Layout,
    /// Reads of blocks, for listings and merges.
    pub(crate) reads: Cell<u64>,
    /// A block was read whose bytes are wrong: the runs must be built anew.
    pub(crate) damaged: Cell<bool>,
    /// Segments of runs that nobody refers to any more.
    pub(crate) given_up: RefCell<Vec<u32>>,
    /// Segments that runs hold.
    pub(crate) held: Cell<u32>,
}

impl RunIo {
    pub(crate) fn new(block: Rc<dyn Block>, layout: Layout) -> Rc<RunIo> {
        Rc::new(RunIo {
            block,
            layout,
            reads: Cell::new(0),
            damaged: Cell::new(false),
            given_up: RefCell::default(),
            held: Cell::new(0),
        })
    }

    /// Reads bytes of a run: they stand in one segment.
    async fn read(&self, held: &Held, position: u64, bytes: usize, origin: Origin) -> Result<Buf> {
        let (segment, offset) = self.place(held, position);
        let start = self.layout.segment_offset(segment.0) + offset;
        add(&self.reads, 1);
        let read = self.block.read(origin, start, bytes).await;
        read.map_err(|error| Error::Unreadable(format!("{error}, keys at device offset {start}")))
    }

    /// The segment that holds a byte of a run, its sequence, and the offset in it.
    fn place(&self, held: &Held, position: u64) -> ((u32, u64), u64) {
        let ordinal = (position / self.layout.segment_bytes) as usize;
        (held.segments.borrow()[ordinal], position % self.layout.segment_bytes)
    }

    fn block_place(&self, held: &Held, position: u64) -> BlockPlace {
        let ((segment, sequence), offset) = self.place(held, position);
        let offset = u64::from(segment) * self.layout.segment_bytes + offset;
        BlockPlace { identity: self.layout.identity, sequence, offset }
    }
}

/// The segments of a run.
pub(crate) struct Held {
    io: Rc<RunIo>,
    /// Place and sequence of each.
    segments: RefCell<Vec<(u32, u64)>>,
}

impl Held {
    /// Holds segments that are open in the table.
    pub(crate) fn new(io: &Rc<RunIo>, segments: Vec<(u32, u64)>) -> Held {
        io.held.set(io.held.get() + segments.len() as u32);
        Held { io: io.clone(), segments: RefCell::new(segments) }
    }

    /// Holds one more.
    pub(crate) fn push(&self, segment: u32, sequence: u64) {
        self.io.held.set(self.io.held.get() + 1);
        self.segments.borrow_mut().push((segment, sequence));
    }

    /// Segments.
    pub(crate) fn len(&self) -> usize {
        self.segments.borrow().len()
    }

    /// The last segment and its sequence.
    pub(crate) fn last(&self) -> Option<(u32, u64)> {
        self.segments.borrow().last().copied()
    }

    /// All of them.
    pub(crate) fn segments(&self) -> Vec<(u32, u64)> {
        self.segments.borrow().clone()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let segments = self.segments.get_mut();
        self.io.held.set(self.io.held.get() - segments.len() as u32);
        self.io.given_up.borrow_mut().extend(segments.iter().map(|(segment, _)| *segment));
    }
}

/// What a checkpoint says of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RunName {
    /// Place and sequence of its segments.
    pub(crate) segments: Vec<(u32, u64)>,
    /// Where its index blocks are.
    pub(crate) index: Vec<Extent>,
    /// Bytes of its blocks of names.
    pub(crate) bytes: u64,
    /// Names in it, and those of deleted keys among them.
    pub(crate) names: u64,
    pub(crate) deleted: u64,
}

/// Sorted names on flash.
pub(crate) struct Run {
    pub(crate) held: Rc<Held>,
    pub(crate) sparse: Sparse,
    /// Where its index blocks are.
    pub(crate) index: Vec<Extent>,
    /// Bytes of its blocks of names.
    pub(crate) bytes: u64,
    /// Names in it, and those of deleted keys among them.
    pub(crate) names: u64,
    pub(crate) deleted: u64,
}

impl Run {
    /// Opens a run that a checkpoint names: reads its index blocks.
    pub(crate) async fn open(io: &Rc<RunIo>, name: &RunName, held: Rc<Held>) -> Result<Run> {
        let mut sparse = Sparse::default();
        for extent in &name.index {
            let block = RunBlocks::read(io, &held, &[*extent], Origin::BACKGROUND).await?;
            let mut walk = block.open(io, &held, *extent, BlockKind::Index)?;
            while block.step(io, *extent, &mut walk)? {
                if walk.name().len() > SEPARATOR_BYTES_MAX || !fits(&io.layout, held.len(), walk.extent()) {
                    return Err(damaged(io, block.device_offset, "a block of keys has no place"));
                }
                sparse.push(walk.name(), walk.extent());
            }
        }
        if sparse.len() == 0 {
            let first = held.segments().first().map_or(0, |(segment, _)| io.layout.segment_offset(*segment));
            return Err(damaged(io, first, "a run of keys is empty"));
        }
        sparse.shrink();
        Ok(Run {
            held,
            sparse,
            index: name.index.clone(),
            bytes: name.bytes,
            names: name.names,
            deleted: name.deleted,
        })
    }

    /// What a checkpoint says of it.
    pub(crate) fn name(&self) -> RunName {
        RunName {
            segments: self.held.segments(),
            index: self.index.clone(),
            bytes: self.bytes,
            names: self.names,
            deleted: self.deleted,
        }
    }
}

/// True if an extent lies inside one of so many segments.
pub(crate) fn fits(layout: &Layout, segments: usize, extent: Extent) -> bool {
    let start = u64::from(extent.position) * layout.block_bytes;
    let end = start + u64::from(extent.blocks) * layout.block_bytes;
    extent.blocks > 0
        && end <= segments as u64 * layout.segment_bytes
        && start / layout.segment_bytes == (end - 1) / layout.segment_bytes
}

/// Notes damage: the runs will be built anew from the records.
fn damaged(io: &RunIo, offset: u64, what: &str) -> Error {
    io.damaged.set(true);
    tracing::error!(partition = io.layout.partition, offset, what, "the keys' order on flash is damaged");
    Error::Unreadable(format!("{what}, partition {}, device offset {offset}", io.layout.partition))
}

/// Blocks of a run that were read at once.
pub(crate) struct RunBlocks {
    position: u32,
    /// Where they begin on the device.
    device_offset: u64,
    pub(crate) bytes: Buf,
    block_bytes: u64,
}

impl RunBlocks {
    /// Reads blocks that stand in a row in one segment.
    pub(crate) async fn read(io: &RunIo, held: &Held, row: &[Extent], origin: Origin) -> Result<RunBlocks> {
        let block_bytes = io.layout.block_bytes;
        let blocks: u64 = row.iter().map(|extent| u64::from(extent.blocks)).sum();
        let position = row[0].position;
        let start = u64::from(position) * block_bytes;
        let bytes = io.read(held, start, (blocks * block_bytes) as usize, origin).await?;
        let (segment, offset) = io.place(held, start);
        let device_offset = io.layout.segment_offset(segment.0) + offset;
        Ok(RunBlocks { position, device_offset, bytes, block_bytes })
    }

    /// The bytes of a block, if it was read.
    pub(crate) fn get(&self, extent: Extent) -> Option<&[u8]> {
        let from = u64::from(extent.position.checked_sub(self.position)?) * self.block_bytes;
        let to = from + u64::from(extent.blocks) * self.block_bytes;
        self.bytes.get(from as usize..to as usize)
    }

    /// Where a block begins on the device.
    fn device_offset(&self, extent: Extent) -> u64 {
        self.device_offset + u64::from(extent.position.saturating_sub(self.position)) * self.block_bytes
    }

    /// Proves a block that was read, and stands before its first entry.
    pub(crate) fn open(&self, io: &RunIo, held: &Held, extent: Extent, kind: BlockKind) -> Result<BlockWalk> {
        let at = self.device_offset(extent);
        let bytes = self.get(extent).ok_or_else(|| damaged(io, at, "a block of keys was not read"))?;
        let place = io.block_place(held, u64::from(extent.position) * self.block_bytes);
        BlockWalk::open(bytes, place, kind).map_err(|error| damaged(io, at, &error.to_string()))
    }

    /// Goes on in a block; false after its last entry.
    pub(crate) fn step(&self, io: &RunIo, extent: Extent, walk: &mut BlockWalk) -> Result<bool> {
        let at = self.device_offset(extent);
        let bytes = self.get(extent).ok_or_else(|| damaged(io, at, "a block of keys was not read"))?;
        walk.step(bytes).map_err(|error| damaged(io, at, &error.to_string()))
    }
}
