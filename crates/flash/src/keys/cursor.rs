//! Cursors: through a run, and through tables and runs merged.
//!
//! Place on the path: what listings and merges read names with.
//!
//! Invariants: names come in order and once each, with what the newest source says of them; memory
//! is bounded by a span of blocks a source, whatever the runs hold.

use super::block::{BlockKind, BlockWalk, Extent};
use super::run::{Run, RunBlocks, RunIo};
use super::table::TableCursor;
use futures_util::future::try_join_all;
use plimsoll_kv::Result;
use plimsoll_kv::block::Origin;
use std::rc::Rc;

/// Bytes that a cursor reads at once at most.
const SPAN_BYTES_MAX: u64 = 128 << 10;

/// A block in which a cursor stands.
struct Inside {
    blocks: Rc<RunBlocks>,
    extent: Extent,
    walk: BlockWalk,
}

/// A place in a run.
pub(crate) struct RunCursor {
    io: Rc<RunIo>,
    run: Rc<Run>,
    origin: Origin,
    /// The block after the one it stands in.
    next: usize,
    inside: Option<Inside>,
    /// Bytes of the next read: they double while the cursor goes on.
    span_bytes: u64,
}

impl RunCursor {
    /// Stands nowhere until it is sent somewhere. `whole`: it will go through the whole run.
    pub(crate) fn new(io: &Rc<RunIo>, run: &Rc<Run>, origin: Origin, whole: bool) -> RunCursor {
        let span_bytes = if whole { SPAN_BYTES_MAX } else { 0 };
        RunCursor { io: io.clone(), run: run.clone(), origin, next: 0, inside: None, span_bytes }
    }

    /// Goes to the first name that is not below `name`.
    pub(crate) async fn seek(&mut self, name: &[u8]) -> Result<()> {
        let (mut first, mut last) = self.run.sparse.candidates(name);
        while first < last {
            // Only where long names share more than a separator keeps.
            let middle = (first + last).div_ceil(2);
            self.enter(middle).await?;
            let below = self.current().is_some_and(|(found, _)| found <= name);
            if below { first = middle } else { last = middle - 1 }
        }
        self.enter(first).await?;
        while self.current().is_some_and(|(found, _)| found < name) {
            self.step().await?;
        }
        Ok(())
    }

    /// Goes to the first name of a block, or behind the last.
    async fn enter(&mut self, block: usize) -> Result<()> {
        self.next = block;
        self.advance().await
    }

    /// Goes to the next name.
    pub(crate) async fn step(&mut self) -> Result<()> {
        let Some(inside) = &mut self.inside else { return Ok(()) };
        if inside.blocks.step(&self.io, inside.extent, &mut inside.walk)? {
            return Ok(());
        }
        self.advance().await
    }

    /// Goes to the first name of the next block that has one.
    async fn advance(&mut self) -> Result<()> {
        while self.next < self.run.sparse.len() {
            let extent = self.run.sparse.extent(self.next);
            let read = self.inside.take().map(|inside| inside.blocks);
            let blocks = match read.filter(|blocks| blocks.get(extent).is_some()) {
                Some(blocks) => blocks,
                None => Rc::new(self.read_row().await?),
            };
            self.next += 1;
            let mut walk = blocks.open(&self.io, &self.run.held, extent, BlockKind::Names)?;
            if blocks.step(&self.io, extent, &mut walk)? {
                self.inside = Some(Inside { blocks, extent, walk });
                return Ok(());
            }
        }
        self.inside = None;
        Ok(())
    }

    /// Reads the next block and those behind it that stand in a row, up to a span.
    async fn read_row(&mut self) -> Result<RunBlocks> {
        let (sparse, layout) = (&self.run.sparse, &self.io.layout);
        let mut row = vec![sparse.extent(self.next)];
        let mut blocks = u64::from(row[0].blocks);
        let segment_of =
            |extent: Extent| u64::from(extent.position) * layout.block_bytes / layout.segment_bytes;
        while self.next + row.len() < sparse.len() {
            let extent = sparse.extent(self.next + row.len());
            let in_row = u64::from(extent.position) == u64::from(row[0].position) + blocks
                && segment_of(extent) == segment_of(row[0]);
            blocks += u64::from(extent.blocks);
            if !in_row || blocks * layout.block_bytes > self.span_bytes {
                break;
            }
            row.push(extent);
        }
        let read = RunBlocks::read(&self.io, &self.run.held, &row, self.origin).await?;
        self.span_bytes = (2 * self.span_bytes.max(read.bytes.len() as u64)).min(SPAN_BYTES_MAX);
        Ok(read)
    }

    /// The name at which it stands, and whether that key was deleted.
    pub(crate) fn current(&self) -> Option<(&[u8], bool)> {
        self.inside.as_ref().map(|inside| (inside.walk.name(), inside.walk.deleted()))
    }
}

/// A source of names.
pub(crate) enum Source {
    Table(TableCursor),
    Run(RunCursor),
}

impl Source {
    fn current(&self) -> Option<(&[u8], bool)> {
        match self {
            Source::Table(cursor) => cursor.current(),
            Source::Run(cursor) => cursor.current(),
        }
    }

    async fn step(&mut self) -> Result<()> {
        match self {
            Source::Table(cursor) => {
                cursor.step();
                Ok(())
            }
            Source::Run(cursor) => cursor.step().await,
        }
    }

    async fn seek(&mut self, name: &[u8]) -> Result<()> {
        match self {
            Source::Table(cursor) => {
                cursor.seek(name);
                Ok(())
            }
            Source::Run(cursor) => cursor.seek(name).await,
        }
    }
}

/// Sources merged: the newest one that has a name decides.
pub(crate) struct Merged {
    /// Newest first.
    sources: Vec<Source>,
}

impl Merged {
    /// Merges sources, newest first.
    pub(crate) fn new(sources: Vec<Source>) -> Merged {
        Merged { sources }
    }

    /// Goes to the first name that is not below `name`.
    pub(crate) async fn seek(&mut self, name: &[u8]) -> Result<()> {
        try_join_all(self.sources.iter_mut().map(|source| source.seek(name))).await.map(|_| ())
    }

    /// Takes the next name into `name`; whether its key was deleted, or nothing at the end.
    pub(crate) async fn next(&mut self, name: &mut Vec<u8>) -> Result<Option<bool>> {
        let heads = self.sources.iter().filter_map(Source::current);
        // Of equal names the first is the newest.
        let Some((lowest, deleted)) = heads.min_by(|a, b| a.0.cmp(b.0)) else { return Ok(None) };
        name.clear();
        name.extend_from_slice(lowest);
        for source in &mut self.sources {
            if source.current().is_some_and(|(found, _)| found == name.as_slice()) {
                source.step().await?;
            }
        }
        Ok(Some(deleted))
    }
}

#[cfg(test)]
#[path = "cursor_tests.rs"]
mod tests;
