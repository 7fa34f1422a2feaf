//! Keys in order: for each partition a log-structured merge tree of names alone.
//!
//! Role: lets a listing walk keys by prefix without holding them in memory and without reading
//! records. Place on the path: beside the log; every store of a new key and every delete is noted
//! here in the breath in which it is committed.
//!
//! A reader's order: `block` (bytes), `table` (memory), `sparse` and `run` (flash), `cursor`
//! (reading), `write`, `merge` (picking and merging), `weigh` (what a merge would leave), `name` (in a
//! checkpoint), `start` (after a restart), `task` (what runs when), `list`.
//!
//! Sources, newest first: the table being filled, frozen tables, runs. The newest that has a name
//! says whether its key exists. Tables are flushed as runs when they are full and at every
//! checkpoint; the checkpoint names the runs. After a restart the log since the checkpoint is
//! walked again in the background: a store of a new key names its record, a delete its tombstone.
//! What is built so is older than what happened since the start, and is put below it. If runs are
//! damaged or missing, they are built anew from the records that the index points to.
//!
//! Invariants:
//! * the runs that an anchor names, and the log from its frame on, hold together what became of
//!   every key;
//! * memory is bounded: tables by [`TABLES_BYTES_MAX`] (stores wait above it), runs by their sparse
//!   indexes, listings and merges by a span a source;
//! * a segment of a run is given back when no anchor names it and nobody reads it.

mod block;
mod cursor;
mod list;
mod merge;
mod name;
mod run;
mod sparse;
mod start;
mod table;
mod task;
mod weigh;
mod write;

pub(crate) use start::KeysFound;

use crate::format::SegmentKind;
use crate::layout::Layout;
use crate::metrics::PartitionMetrics;
use crate::partition::Partition;
use crate::segments::KEPT_MIN;
use cursor::{Merged, RunCursor, Source};
use plimsoll_kv::block::{Block, Origin};
use plimsoll_kv::{Error, Result};
use plimsoll_reactor::sync::{Bell, WaitList};
use run::{Held, Run, RunIo};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use table::{Table, TableCursor};
use weigh::Weighed;

/// Bytes of memory of all tables of a partition.
const TABLES_BYTES_MAX: usize = 4 << 20;
/// The same on a small partition, at least.
const TABLES_BYTES_MIN: usize = 64 << 10;
/// Runs smaller than this are written again with the next flush, so that there are few of them.
const SMALL_RUN_BYTES: u64 = 512 << 10;

/// So often it is tried at the end to bring together the keys from before the start.
const CLOSING_FAILURES: u64 = 5;

/// What a checkpoint waits for: so many tables on flash. Counts of what may come between.
#[derive(Clone, Copy)]
pub(crate) struct Frozen {
    tables: u64,
    failures: u64,
    recoveries: u64,
}

/// The keys of a partition in order.
pub(crate) struct Keys {
    io: Rc<RunIo>,
    tables_bytes_max: usize,
    /// The table being filled.
    active: RefCell<Rc<Table>>,
    /// Full tables, oldest first.
    frozen: RefCell<VecDeque<Rc<Table>>>,
    /// Oldest first.
    runs: RefCell<Vec<Rc<Run>>>,
    /// During recovery: so many runs are older than what happened since the start.
    older: Cell<usize>,
    /// The segments that the anchor in force names.
    anchored: RefCell<Vec<Rc<Held>>>,
    /// Everything from before the start is there.
    ready: Cell<bool>,
    /// How often everything from before was found or built.
    recoveries: Cell<u64>,
    /// Tables frozen and flushed since the start.
    tables_frozen: Cell<u64>,
    tables_flushed: Cell<u64>,
    /// Pieces of work that failed, and why the last one did.
    failures: Cell<u64>,
    /// Reads that failed one after the other.
    unreadable: Cell<u32>,
    failure: RefCell<Option<Error>>,
    /// A checkpoint waits until so many tables were flushed.
    checkpoint_waits: Cell<Option<u64>>,
    /// Segments that a merge waits for.
    wanted_segments: Cell<u32>,
    /// What merging all runs would leave, if a merge that had no room was looked at.
    weighed: Cell<Option<Weighed>>,
    /// There is no way to make room for the merge that is due.
    merge_given_up: Cell<bool>,
    stopping: Cell<bool>,
    stopped: Cell<bool>,
    /// Wakes the task.
    work: Bell,
    /// Wakes who waits for the task.
    changed: WaitList,
    /// Bytes of runs that tables became.
    flushed_bytes: Cell<u64>,
    /// Bytes of runs written, merges ended, and builds from the records.
    written_bytes: Cell<u64>,
    merges: Cell<u64>,
    rebuilds: Cell<u64>,
}

impl Keys {
    /// The keys of a partition that is being opened. `anchored`: the segments of each run that its
    /// anchor names.
    pub(crate) fn new(block: &Rc<dyn Block>, layout: Layout, found: &KeysFound) -> Keys {
        let io = RunIo::new(block.clone(), layout);
        let capacity = u64::from(layout.segments) * layout.segment_bytes;
        let anchored = found.runs.iter().flatten();
        let anchored = anchored.map(|run| Rc::new(Held::new(&io, run.segments.clone()))).collect();
        Keys {
            io,
            tables_bytes_max: (capacity as usize / 64).clamp(TABLES_BYTES_MIN, TABLES_BYTES_MAX),
            active: RefCell::default(),
            frozen: RefCell::default(),
            runs: RefCell::default(),
            older: Cell::new(0),
            anchored: RefCell::new(anchored),
            ready: Cell::new(false),
            recoveries: Cell::new(0),
            tables_frozen: Cell::new(0),
            tables_flushed: Cell::new(0),
            failures: Cell::new(0),
            unreadable: Cell::new(0),
            failure: RefCell::default(),
            checkpoint_waits: Cell::new(None),
            wanted_segments: Cell::new(0),
            weighed: Cell::new(None),
            merge_given_up: Cell::new(false),
            stopping: Cell::new(false),
            stopped: Cell::new(false),
            work: Bell::default(),
            changed: WaitList::default(),
            flushed_bytes: Cell::new(0),
            written_bytes: Cell::new(0),
            merges: Cell::new(0),
            rebuilds: Cell::new(0),
        }
    }

    /// Notes that a key exists now, or does not any more: with the commit that made it so.
    pub(crate) fn note(&self, generation: u32, key: &[u8], deleted: bool) {
        self.active.borrow().note(generation, key, deleted);
        self.freeze_if_full();
    }

    /// Bytes of a table that is full.
    fn table_bytes(&self) -> usize {
        self.tables_bytes_max / 2
    }

    fn freeze_if_full(&self) {
        if self.active.borrow().bytes() >= self.table_bytes() && self.frozen.borrow().is_empty() {
            self.freeze();
        }
    }

    /// Freezes the table being filled.
    fn freeze(&self) {
        if !self.active.borrow().is_empty() {
            let full = self.active.take();
            self.frozen.borrow_mut().push_back(full);
            self.tables_frozen.set(self.tables_frozen.get() + 1);
            self.work.ring();
        }
    }

    /// Freezes what was noted up to the frame of a checkpoint, which waits for its flush.
    pub(crate) fn freeze_for_checkpoint(&self) -> Frozen {
        self.freeze();
        let tables = self.tables_frozen.get();
        self.checkpoint_waits.set(Some(tables));
        Frozen { tables, failures: self.failures.get(), recoveries: self.recoveries.get() }
    }

    /// The checkpoint ended, well or not.
    pub(crate) fn end_checkpoint(&self) {
        self.checkpoint_waits.set(None);
    }

    fn tables_bytes(&self) -> usize {
        let frozen: usize = self.frozen.borrow().iter().map(|table| table.bytes()).sum();
        frozen + self.active.borrow().bytes()
    }

    /// True if tables are within bounds.
    pub(crate) fn has_room(&self) -> bool {
        self.tables_bytes() < self.tables_bytes_max
    }

    /// An anchor that names these runs is in force. If it names none, the log from before it is no
    /// help any more: they are built anew.
    pub(crate) fn adopt(&self, named: Option<&[Rc<Run>]>) {
        if named.is_none() {
            self.io.damaged.set(true);
        }
        let named = named.unwrap_or_default();
        self.anchored.replace(named.iter().map(|run| run.held.clone()).collect());
        self.merge_given_up.set(false);
        self.work.ring();
    }

    /// An anchor that names these runs may be in force, or the one before: both stay.
    pub(crate) fn adopt_perhaps(&self, named: Option<&[Rc<Run>]>) {
        let named = named.unwrap_or_default();
        self.anchored.borrow_mut().extend(named.iter().map(|run| run.held.clone()));
    }

    /// Segments that nobody refers to any more.
    pub(crate) fn take_given_up(&self) -> Vec<u32> {
        self.io.given_up.take()
    }

    /// Space came free.
    pub(crate) fn space_freed(&self) {
        self.work.ring();
    }

    /// Segments of the runs.
    pub(crate) fn run_segments(&self) -> u32 {
        self.runs.borrow().iter().map(|run| run.held.len() as u32).sum()
    }

    /// Segments of the run that all runs would become.
    pub(crate) fn merged_segments(&self) -> u32 {
        self.segments_of(self.runs.borrow().iter().map(|run| run.bytes).sum())
    }

    /// Segments that so many bytes of names take at most: blocks do not fill the last of each.
    fn segments_of(&self, bytes: u64) -> u32 {
        (bytes / (self.io.layout.segment_bytes * 3 / 4)) as u32 + 1
    }

    /// Segments that only the next checkpoint gives back.
    pub(crate) fn pinned_segments(&self) -> u32 {
        let runs = self.runs.borrow();
        let in_use = |held: &&Rc<Held>| !runs.iter().any(|run| Rc::ptr_eq(&run.held, held));
        let anchored = self.anchored.borrow();
        if self.ready.get() { anchored.iter().filter(in_use).map(|held| held.len() as u32).sum() } else { 0 }
    }

    /// Segments that the tables take when they are flushed.
    pub(crate) fn flush_segments(&self) -> u32 {
        self.segments_of(self.table_bytes() as u64)
    }

    /// Free segments that a flush leaves alone, of those kept for checkpoints: the last but what an
    /// opening needs are for the flush that a checkpoint waits for.
    pub(crate) fn kept_by_flush(&self, kept: u32) -> u32 {
        let waits = self.checkpoint_waits.get();
        let is_waited_for = waits.is_some_and(|tables| self.tables_flushed.get() < tables);
        if is_waited_for || !self.ready.get() {
            return KEPT_MIN - 1;
        }
        kept.saturating_sub(self.flush_segments())
    }

    /// Segments that a merge waits for.
    pub(crate) fn wanted_segments(&self) -> u32 {
        self.wanted_segments.get()
    }

    /// No more can be made free: the merge that waits is given up until something changes. True if
    /// one waited.
    pub(crate) fn give_up_merge(&self) -> bool {
        let waited = self.wanted_segments.replace(0) > 0;
        if waited {
            self.merge_given_up.set(true);
            // A smaller one may do (seeds 613 and 843: nobody looked).
            self.work.ring();
        }
        waited
    }

    /// True if the last piece of work failed for want of space.
    fn is_full(&self) -> bool {
        *self.failure.borrow() == Some(Error::NoSpace)
    }

    /// True if what is on flash is damaged: it will be built anew.
    fn must_be_rebuilt(&self) -> bool {
        self.io.damaged.get() || !self.ready.get()
    }

    /// True unless a checkpoint would have to wait until what was before the start is there.
    pub(crate) fn let_checkpoint(&self) -> bool {
        self.ready.get() || self.is_full()
    }

    /// All sources merged: what is true from now on until the last name was taken.
    fn merged(&self, origin: Origin) -> Merged {
        let table = |table: &Rc<Table>| Source::Table(TableCursor::new(table.clone()));
        let mut sources = vec![table(&self.active.borrow())];
        sources.extend(self.frozen.borrow().iter().rev().map(table));
        let run = |run: &Rc<Run>| Source::Run(RunCursor::new(&self.io, run, origin, false));
        sources.extend(self.runs.borrow().iter().rev().map(run));
        Merged::new(sources)
    }

    /// Adds what the keys count.
    pub(crate) fn count(&self, metrics: &mut PartitionMetrics) {
        let (runs, frozen) = (self.runs.borrow(), self.frozen.borrow());
        metrics.key_runs = runs.len() as u64;
        metrics.key_run_names = runs.iter().map(|run| run.names).sum();
        metrics.key_run_bytes = runs.iter().map(|run| run.bytes).sum();
        metrics.key_segments = u64::from(self.io.held.get());
        metrics.key_index_bytes = runs.iter().map(|run| run.sparse.memory_bytes()).sum();
        metrics.key_table_names =
            (self.active.borrow().len() + frozen.iter().map(|table| table.len()).sum::<usize>()) as u64;
        metrics.key_table_bytes =
            (self.active.borrow().bytes() + frozen.iter().map(|table| table.bytes()).sum::<usize>()) as u64;
        metrics.key_reads = self.io.reads.get();
        metrics.key_written_bytes = self.written_bytes.get();
        metrics.key_merges = self.merges.get();
        metrics.key_rebuilds = self.rebuilds.get();
    }
}

/// Appends the names of runs to a checkpoint.
pub(crate) fn encode_names(runs: &[Rc<Run>], out: &mut Vec<u8>) {
    let names: Vec<_> = runs.iter().map(|run| run.name()).collect();
    name::encode(&names, out);
}

impl Partition {
    /// Waits until everything from before the start is there.
    pub(crate) async fn keys_ready(&self) -> Result<()> {
        self.keys.work.ring();
        let ready = || self.keys.ready.get() && !self.keys.io.damaged.get();
        self.keys.changed.wait_for(|| ready().then_some(Ok(())).or_else(|| self.no_keys())).await
    }

    /// Why nobody works on the keys any more, if so.
    fn no_keys(&self) -> Option<Result<()>> {
        self.keys.stopped.get().then(|| Err(self.log.failure().unwrap_or(Error::ShuttingDown)))
    }

    /// Waits until a checkpoint can name the runs. False if there is no space to complete them: then
    /// it goes on without them, for it is what makes space.
    ///
    /// # Errors
    /// The log failed, or, at the end, nothing that the device has can be read.
    pub(crate) async fn keys_to_be_named(&self) -> Result<bool> {
        let keys = &self.keys;
        keys.work.ring();
        let failures = keys.failures.get();
        let known = keys.changed.wait_for(|| {
            if keys.ready.get() && !keys.io.damaged.get() {
                return Some(Ok(true));
            }
            if keys.is_full() {
                return Some(Ok(false));
            }
            if self.closing.get() && keys.failures.get() >= failures + CLOSING_FAILURES {
                return keys.failure.borrow().clone().map(Err);
            }
            self.no_keys().map(|error| error.map(|()| false))
        });
        known.await
    }

    /// The runs that a checkpoint names: they have what became of keys up to the frame at which
    /// the tables were frozen. They may know of later frames too: those are durable before the
    /// anchor, and replayed upon the runs. Nothing if there is no space to write them.
    pub(crate) async fn named_runs(&self, frozen: Option<Frozen>) -> Result<Option<Vec<Rc<Run>>>> {
        let Some(frozen) = frozen else { return Ok(None) };
        match self.keys_flushed(frozen).await {
            Err(Error::NoSpace) => return Ok(None),
            flushed => flushed?,
        }
        let keys = &self.keys;
        let same = keys.recoveries.get() == frozen.recoveries;
        let whole = same && keys.ready.get() && !keys.io.damaged.get();
        if whole { Ok(Some(keys.runs.borrow().clone())) } else { Err(Error::Overloaded) }
    }

    /// Waits until the tables frozen so far are on flash.
    async fn keys_flushed(&self, frozen: Frozen) -> Result<()> {
        let keys = &self.keys;
        keys.work.ring();
        let flushed = keys.changed.wait_for(|| {
            if keys.tables_flushed.get() >= frozen.tables {
                return Some(Ok(()));
            }
            if keys.failures.get() > frozen.failures {
                return Some(Err(keys.failure.borrow().clone().unwrap_or(Error::NoSpace)));
            }
            self.no_keys()
        });
        flushed.await
    }

    /// Waits until the tables are within bounds.
    ///
    /// # Errors
    /// The log failed, or there is no space to flush them.
    pub(crate) async fn wait_for_keys(&self) -> Result<()> {
        if self.keys.has_room() {
            return Ok(());
        }
        self.keys.work.ring();
        self.log
            .wait_until(|| {
                if let Some(error) = self.log.failure() {
                    return Some(Err(error));
                }
                if self.keys.has_room() {
                    return Some(Ok(()));
                }
                let hopeless = self.stuck.borrow().is_some() && self.keys.is_full();
                (hopeless || self.closing.get()).then_some(Err(Error::NoSpace))
            })
            .await
    }

    /// As [`Partition::wait_for_keys`], but without space deletes go on.
    pub(crate) async fn wait_for_keys_patiently(&self) -> Result<()> {
        match self.wait_for_keys().await {
            Err(Error::NoSpace) => Ok(()),
            waited => waited,
        }
    }

    /// As [`Partition::wait_for_keys`], for the background: it cannot wait for space that it has to make.
    pub(crate) async fn wait_for_keys_unless_full(&self) -> Result<()> {
        let keys = &self.keys;
        if keys.has_room() {
            return Ok(());
        }
        keys.work.ring();
        let waited = self.log.wait_until(|| {
            if let Some(error) = self.log.failure() {
                return Some(Err(error));
            }
            if keys.has_room() {
                return Some(Ok(()));
            }
            (keys.is_full() || self.closing.get()).then_some(Err(Error::NoSpace))
        });
        waited.await
    }

    /// Gives the segments of runs back that nobody refers to any more; how many.
    pub(crate) fn release_keys(&self) -> u32 {
        let given_up = self.keys.take_given_up();
        let mut state = self.state.borrow_mut();
        for segment in &given_up {
            state.segments.release(*segment);
        }
        given_up.len() as u32
    }

    /// Looks whether the segments that runs hold are those that are not free.
    pub(crate) fn check_key_segments(&self) -> std::result::Result<(), String> {
        let used = self.state.borrow().segments.used(SegmentKind::Keys);
        let held = self.keys.io.held.get() + self.keys.io.given_up.borrow().len() as u32;
        if used == held { Ok(()) } else { Err(format!("segments of keys: {held} held, {used} used")) }
    }
}
