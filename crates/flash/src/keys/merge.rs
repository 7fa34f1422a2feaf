//! Merging: tables into runs, runs into longer runs.
//!
//! Place on the path: in the background. Runs are grouped by size, each tier four times the one
//! below; four runs of a tier become one of the next. So a name is written once a tier, and a
//! listing looks at three runs a tier at most once merges have caught up.
//!
//! Invariants: only runs that are neighbours in age are merged, and the result takes their place;
//! a delete is dropped only where nothing older is left that it could hide; memory is bounded.
//!
//! A merge needs room for all that it reads, for it may have to write it all, unless that was weighed
//! before ([`super::weigh`]).

use super::block::split_name;
use super::cursor::{Merged, RunCursor, Source};
use super::run::Run;
use super::table::{Table, TableCursor};
use super::weigh::Weighed;
use super::write::RunWriter;
use super::{Keys, SMALL_RUN_BYTES};
use crate::metrics::add;
use crate::partition::Partition;
use plimsoll_kv::block::Origin;
use plimsoll_kv::{Error, Result};
use std::ops::Range;
use std::rc::Rc;

/// Runs of a tier that are merged.
const TIER_RUNS: usize = 4;
/// Runs of one merge at most: each takes a span of memory.
const MERGE_RUNS_MAX: usize = 24;
/// Names merged without a pause.
const NAMES_PER_STEP: usize = 256;
/// Deletes kept in runs before they are a reason to merge everything: then a quarter of all names.
const DELETED_MIN: u64 = 4096;

/// Size and deletes of a run, as far as picking goes.
#[derive(Clone, Copy, Debug)]
struct Weight {
    bytes: u64,
    names: u64,
    deleted: u64,
}

/// The tier of a run: 0 below four small runs, then each four times as long.
fn tier(bytes: u64) -> u32 {
    (bytes / SMALL_RUN_BYTES).max(1).ilog2() / 2
}

/// All runs, if there are few enough for one merge, and a quarter of their names are deletes.
fn pick_all(runs: &[Weight]) -> Option<Range<usize>> {
    let deleted: u64 = runs.iter().map(|run| run.deleted).sum();
    let names: u64 = runs.iter().map(|run| run.names).sum();
    let is_mostly_deleted = deleted >= DELETED_MIN && deleted * 4 > names;
    ((2..=MERGE_RUNS_MAX).contains(&runs.len()) && is_mostly_deleted).then_some(0..runs.len())
}

/// Four runs of a tier, oldest first, if there are any.
fn pick(runs: &[Weight]) -> Option<Range<usize>> {
    // A run that is older than a longer one belongs to that one's tier: neighbours merge.
    let mut end = runs.len();
    let mut level = 0;
    let mut start = end;
    while end > 0 {
        level = level.max(tier(runs[end - 1].bytes));
        while start > 0 && tier(runs[start - 1].bytes) <= level {
            start -= 1;
        }
        if end - start >= TIER_RUNS {
            return Some(start..end.min(start + MERGE_RUNS_MAX));
        }
        end = start;
    }
    None
}

/// What a merge leaves out.
struct Filter {
    /// Nothing older than the result exists: deletes hide nothing.
    bottom: bool,
    /// The generation looked at last, and whether it was emptied.
    generation: Option<(u32, bool)>,
}

impl Filter {
    fn new(bottom: bool) -> Filter {
        Filter { bottom, generation: None }
    }

    fn keeps(&mut self, partition: &Partition, name: &[u8], deleted: bool) -> bool {
        if deleted && self.bottom {
            return false;
        }
        let Some((generation, _)) = split_name(name) else { return false };
        let (known, dead) = self.generation.unwrap_or((!generation, false));
        if known == generation {
            return !dead;
        }
        let dead = partition.state.borrow().is_dead(generation);
        self.generation = Some((generation, dead));
        !dead
    }
}

/// What becomes of the names that a merge keeps.
enum Output {
    Run(Box<RunWriter>),
    /// They are weighed, and nothing is written.
    Weight(Weighed),
}

impl Output {
    async fn push(&mut self, partition: &Partition, name: &[u8], deleted: bool) -> Result<()> {
        match self {
            Output::Run(writer) => writer.push(partition, name, deleted).await,
            Output::Weight(weighed) => {
                weighed.add(name);
                Ok(())
            }
        }
    }

    /// The run; nothing if no name was kept, or the runs stay as they are, weighed.
    async fn finish(self, partition: &Partition) -> Result<Option<Run>> {
        match self {
            Output::Run(writer) => writer.finish(partition).await,
            Output::Weight(weighed) => {
                partition.keys.weighed.set(Some(weighed));
                Ok(None)
            }
        }
    }
}

/// A merge that goes on step by step.
pub(crate) struct Merge {
    inputs: Vec<Rc<Run>>,
    merged: Merged,
    output: Output,
    filter: Filter,
    name: Vec<u8>,
    begun: bool,
}

impl Merge {
    fn new(
        partition: &Partition,
        table: Option<&Rc<Table>>,
        inputs: Vec<Rc<Run>>,
        bottom: bool,
        output: Output,
    ) -> Merge {
        let mut sources: Vec<Source> =
            table.map(|table| Source::Table(TableCursor::new(table.clone()))).into_iter().collect();
        let cursor = |run| Source::Run(RunCursor::new(&partition.keys.io, run, Origin::BACKGROUND, true));
        sources.extend(inputs.iter().rev().map(cursor));
        let merged = Merged::new(sources);
        Merge { inputs, merged, output, filter: Filter::new(bottom), name: Vec::new(), begun: false }
    }

    /// Merges some names; true if there may be more.
    async fn step(&mut self, partition: &Partition) -> Result<bool> {
        if !std::mem::replace(&mut self.begun, true) {
            self.merged.seek(&[]).await?;
        }
        for _ in 0..NAMES_PER_STEP {
            let Some(deleted) = self.merged.next(&mut self.name).await? else { return Ok(false) };
            if self.filter.keeps(partition, &self.name, deleted) {
                self.output.push(partition, &self.name, deleted).await?;
            }
        }
        Ok(true)
    }

    /// True if this merge reads a run.
    fn reads(&self, run: &Rc<Run>) -> bool {
        self.inputs.iter().any(|input| Rc::ptr_eq(input, run))
    }
}

impl Keys {
    /// True if an anchor names a run: its segments come free with the next checkpoint at the earliest.
    fn is_anchored(&self, run: &Rc<Run>) -> bool {
        self.anchored.borrow().iter().any(|held| Rc::ptr_eq(held, &run.held))
    }

    /// Puts the result of a merge in the place of what was merged, or at `at`. `older`: it belongs
    /// to what was before the start.
    fn install(&self, inputs: &[Rc<Run>], at: usize, result: Option<Run>, older: bool) {
        let mut runs = self.runs.borrow_mut();
        let first = match inputs.first() {
            None => at,
            Some(first) => {
                let found = runs.iter().position(|run| Rc::ptr_eq(run, first));
                found.expect("what is merged stays among the runs")
            }
        };
        assert!(inputs.iter().zip(&runs[first..]).all(|(input, run)| Rc::ptr_eq(input, run)));
        let count = usize::from(result.is_some());
        runs.splice(first..first + inputs.len(), result.map(Rc::new));
        if older {
            self.older.set(self.older.get() + count - inputs.len());
        }
    }
}

impl Partition {
    /// Writes a table as the newest run, or (`older`) as the newest of what was before the start.
    /// A small run below it is written anew with it, if no merge reads it: each run takes a segment at least,
    /// and those that a start finds are merged only once all are there.
    pub(crate) async fn flush_table(
        &self,
        table: &Rc<Table>,
        older: bool,
        merging: Option<&Merge>,
    ) -> Result<()> {
        let below = self.run_to_join(table, older, merging);
        let joins = below.is_some();
        match self.flush_upon(table, below, older).await {
            Err(Error::NoSpace) if joins => {
                self.reclaim();
                self.flush_upon(table, None, older).await
            }
            flushed => flushed,
        }
    }

    /// Where a table's run belongs among the runs.
    fn place_of_flush(&self, older: bool) -> usize {
        if older { self.keys.older.get() } else { self.keys.runs.borrow().len() }
    }

    /// The small run below a table's that is written anew with it.
    fn run_to_join(&self, table: &Table, older: bool, merging: Option<&Merge>) -> Option<Rc<Run>> {
        let keys = &self.keys;
        let ready = keys.ready.get();
        let roomy = self.state.borrow().segments.free_count() > self.store_reserve();
        // Where space is short before all is there runs fill their segments: else the names of a large device
        // would take more segments than their merged run ever does.
        let half = self.layout.segment_bytes / 2;
        let small = if roomy || ready { SMALL_RUN_BYTES.min(half) } else { half };
        // Where space is short: only what comes free at once, and with no more than a flush may take.
        let fits = |run: &Rc<Run>| {
            roomy
                || !keys.is_anchored(run)
                    && keys.segments_of(run.bytes + table.encoded_bytes_max()) <= keys.flush_segments()
        };
        let below = self.place_of_flush(older).checked_sub(1);
        let below = below.filter(|below| ready || older || *below >= keys.older.get())?;
        let run = keys.runs.borrow()[below].clone();
        let joins = run.bytes <= small && fits(&run) && !merging.is_some_and(|merge| merge.reads(&run));
        joins.then_some(run)
    }

    /// Writes a table as a run, in the place of the run below it or above that.
    async fn flush_upon(&self, table: &Rc<Table>, below: Option<Rc<Run>>, older: bool) -> Result<()> {
        let keys = &self.keys;
        let at = self.place_of_flush(older);
        let inputs: Vec<Rc<Run>> = below.into_iter().collect();
        let bottom = at == inputs.len() && (keys.ready.get() || older);
        let mut merge =
            Merge::new(self, Some(table), inputs, bottom, Output::Run(Box::new(RunWriter::new(self, true))));
        while merge.step(self).await? {
            self.reactor.yield_now().await;
        }
        let Merge { inputs, merged, output, .. } = merge;
        let result = output.finish(self).await?;
        add(&keys.flushed_bytes, result.as_ref().map_or(0, |run| run.bytes));
        keys.install(&inputs, at, result, older);
        // What was written anew comes free at once: a start flushes one table after the other.
        drop((inputs, merged));
        self.reclaim();
        Ok(())
    }

    /// The merge that is due, if there is space for it.
    pub(crate) fn begin_merge(&self) -> Option<Merge> {
        let keys = &self.keys;
        keys.wanted_segments.set(0);
        let runs = keys.runs.borrow();
        let weigh = |run: &Rc<Run>| Weight { bytes: run.bytes, names: run.names, deleted: run.deleted };
        let weights: Vec<Weight> = runs.iter().map(weigh).collect();
        let bytes = |picked: &Range<usize>| -> u64 { runs[picked.clone()].iter().map(|run| run.bytes).sum() };
        let merge = |picked: Range<usize>, output| {
            Merge::new(self, None, runs[picked.clone()].to_vec(), picked.start == 0, output)
        };
        let write = |picked| Some(merge(picked, Output::Run(Box::new(RunWriter::new(self, false)))));
        let free = self.state.borrow().segments.free_count();
        let room = free.saturating_sub(self.store_reserve());
        if let Some(all) = pick_all(&weights) {
            let read_bytes = bytes(&all);
            let segments = keys.segments_of(keys.left_bytes_max(read_bytes));
            if segments <= room {
                return write(all);
            }
            if keys.is_worth_weighing() {
                return Some(merge(all, Output::Weight(keys.begin_weighing(read_bytes))));
            }
            if !keys.merge_given_up.get() {
                return self.want_segments(segments);
            }
        }
        let mut picked = pick(&weights)?;
        let segments = |picked: &Range<usize>| keys.segments_of(bytes(picked));
        if segments(&picked) > room && !keys.merge_given_up.get() {
            return self.want_segments(segments(&picked));
        }
        // Where no more can be made free, at least the newest, with what stores leave to cleaning: else
        // runs pile up until nothing fits (seeds 613 and 843).
        let room = room.max(free.saturating_sub(self.kept_segments() + 1));
        while picked.len() > 1 && segments(&picked) > room {
            picked.start += 1;
        }
        if picked.len() > 1 { write(picked) } else { None }
    }

    /// No merge begins before there are so many free segments.
    fn want_segments(&self, segments: u32) -> Option<Merge> {
        self.keys.wanted_segments.set(segments);
        self.background.ring();
        None
    }

    /// Goes on with a merge; true if there may be more of it.
    pub(crate) async fn step_merge(&self, merge: &mut Merge) -> Result<bool> {
        merge.step(self).await
    }

    /// Ends a merge of runs.
    pub(crate) async fn end_merge(&self, merge: Merge) -> Result<()> {
        let weighs = matches!(merge.output, Output::Weight(_));
        let result = merge.output.finish(self).await?;
        if !weighs {
            if merge.filter.bottom {
                // The runs are others now, and so is the point at which they are worth being read.
                self.keys.weighed.set(None);
            }
            self.keys.install(&merge.inputs, 0, result, false);
            add(&self.keys.merges, 1);
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "merge_tests.rs"]
mod tests;
