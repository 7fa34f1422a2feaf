//! The keys after a restart: the runs that the anchor names, and the log since then walked again.
//!
//! Place on the path: in the background, while requests are served; listings and the next
//! checkpoint wait for it. The log it walks is pinned until that checkpoint.
//!
//! Invariants:
//! * what is found is older than everything noted since the start, and is put below it;
//! * a store of a new key names its record, a delete its tombstone, in the order of the log; of
//!   records nothing but the heads is read;
//! * if runs or records cannot be made sense of, the runs are built from the records that the index
//!   points to: those are right whatever the log says;
//! * a sector that can never be read costs the keys of its records, and holds up nothing.

use super::name;
use super::run::{Run, RunName};
use super::table::Table;
use crate::bulk::read_bulk;
use crate::format::anchor::ANCHOR_BYTES;
use crate::format::record::{self, RECORD_HEADER_BYTES, RecordHeader};
use crate::format::{RecordKind, SegmentHeader, SegmentKind, TransitionKind, UNIT_BYTES, round_up};
use crate::index::Entry;
use crate::layout::Layout;
use crate::metrics::add;
use crate::partition::Partition;
use crate::segments::{SegmentState, SegmentTable};
use crate::walk::{Frame, frame_at, next_frame_after, read_segment_around, read_summary};
use futures_util::future::join_all;
use plimsoll_kv::block::Origin;
use plimsoll_kv::{Error, Result, Slot};
use std::rc::Rc;

/// Names taken from the log without a pause.
const NAMES_PER_STEP: usize = 256;
/// Bytes of a segment in which heads of records are read together.
const WINDOW_BYTES: u64 = 256 << 10;
/// Bytes read behind the last record head sought: header and a usual key.
const HEAD_BYTES: u64 = 512;
/// Entries of the index looked at in one step of building runs from records.
const ENTRIES_PER_STEP: usize = 256;
/// Reads of records under way at a time.
const READS_MAX: usize = 32;
/// A record that cannot be read is tried so often, with such rests.
const RECORD_ATTEMPTS: u32 = 3;
const RECORD_REST_NS: u64 = 100_000_000;

/// What recovery found of the keys.
#[derive(Default)]
pub(crate) struct KeysFound {
    /// The runs that the checkpoint names, oldest first; nothing if it names none that make sense.
    pub(crate) runs: Option<Vec<RunName>>,
    /// The log segments since then.
    log: Vec<LogSegment>,
    /// The first frame that the runs may lack.
    first_frame: u64,
}

/// What recovery took of a log segment.
#[derive(Clone, Copy)]
struct LogSegment {
    segment: u32,
    sequence: u64,
    /// Its frames: what follows them in the segment was never acknowledged.
    frames: (u64, u64),
}

impl KeysFound {
    /// Loads the section of a checkpoint; false if it is not one.
    pub(crate) fn load(&mut self, section: &[u8], layout: &Layout) -> bool {
        self.runs = name::decode(section, layout);
        self.runs.is_some()
    }

    /// A log segment was walked up to the frame `end`.
    pub(crate) fn walked(&mut self, segment: u32, header: &SegmentHeader, end: u64) {
        let frames = (header.first_frame, end);
        self.log.push(LogSegment { segment, sequence: header.sequence, frames });
    }

    /// Marks the segments of the runs as used; `others` are used otherwise. The log goes on in
    /// segment `tail`: what is there now holds nothing and will be written anew.
    pub(crate) fn claim(&mut self, segments: &mut SegmentTable, others: &[u32], first_frame: u64, tail: u32) {
        self.first_frame = first_frame;
        self.log.retain(|walked| walked.segment != tail);
        let Some(runs) = &self.runs else { return };
        if !name::agrees(runs, segments, others) {
            tracing::error!("the checkpoint names keys where there are none");
            self.runs = None;
            return;
        }
        for (segment, sequence) in runs.iter().flat_map(|run| &run.segments) {
            // The snapshot may be older than the run.
            if segments.get(*segment).state == SegmentState::Free {
                segments.open(*segment, SegmentKind::Keys, *sequence, 0);
            }
            let info = segments.get_mut(*segment);
            (info.kind, info.sequence) = (SegmentKind::Keys, *sequence);
        }
    }

    /// True if a run names a segment.
    pub(crate) fn names(&self, segment: u32) -> bool {
        self.runs.iter().flatten().flat_map(|run| &run.segments).any(|(named, _)| *named == segment)
    }
}

/// A record whose key appeared or went: its location, and whether it is a tombstone.
type Sought = (u64, bool);

/// Bytes of a log segment, read as needed.
struct Window {
    segment: u32,
    sequence: u64,
    start: u64,
    bytes: Vec<u8>,
}

impl Partition {
    /// Brings the keys from before the start together; without `found`, from the records.
    pub(crate) async fn recover_keys(&self, found: Option<&KeysFound>) -> Result<()> {
        self.drop_recovered(found);
        let named = found.and_then(|found| found.runs.as_ref().map(|runs| (found, runs)));
        let mut table = Rc::new(Table::default());
        match named {
            None => self.rebuild_keys(&mut table).await?,
            Some((found, runs)) => {
                self.open_runs(runs).await?;
                self.replay_keys(found, &mut table).await?;
            }
        }
        self.take_recovered(&table).await
    }

    /// Drops what an attempt has left that did not end. From the records everything is built anew.
    pub(crate) fn drop_recovered(&self, found: Option<&KeysFound>) {
        let keys = &self.keys;
        if keys.ready.get() {
            return;
        }
        let is_named = found.is_some_and(|found| found.runs.is_some());
        let left = if is_named { keys.older.get() } else { keys.runs.borrow().len() };
        keys.runs.borrow_mut().drain(..left);
        keys.older.set(0);
    }

    async fn open_runs(&self, names: &[RunName]) -> Result<()> {
        let keys = &self.keys;
        for (number, name) in names.iter().enumerate() {
            let held = keys.anchored.borrow()[number].clone();
            let run = Run::open(&keys.io, name, held).await?;
            keys.runs.borrow_mut().insert(number, Rc::new(run));
            keys.older.set(number + 1);
        }
        Ok(())
    }

    async fn replay_keys(&self, found: &KeysFound, table: &mut Rc<Table>) -> Result<()> {
        for log_segment in &found.log {
            let (sought, mut window) = self.sought(*log_segment, found.first_frame).await?;
            for (number, (location, deleted)) in sought.iter().enumerate() {
                let name = self.name_at(&mut window, *location, *deleted, &sought[number..]).await?;
                let (generation, key) = name;
                table.note(generation, &key, *deleted);
                self.flush_recovered(table).await?;
                if number % NAMES_PER_STEP == NAMES_PER_STEP - 1 {
                    self.reactor.yield_now().await;
                }
            }
        }
        Ok(())
    }

    /// The records of a log segment whose keys appeared or went.
    async fn sought(&self, walked: LogSegment, from: u64) -> Result<(Vec<Sought>, Window)> {
        let LogSegment { segment, sequence, frames: (first, end) } = walked;
        let io = |error: std::io::Error| Error::Unreadable(format!("{error}, log segment {segment}"));
        let seek = |t: &crate::format::Transition| match t.kind {
            TransitionKind::Store if t.previous == 0 => Some((t.location, false)),
            // What was deleted unread has no tombstone: the store of the key follows.
            TransitionKind::Delete if t.location != 0 => Some((t.location, true)),
            _ => None,
        };
        let mut window = Window { segment, sequence, start: 0, bytes: Vec::new() };
        if end <= from {
            return Ok((Vec::new(), window));
        }
        let summary =
            read_summary(&*self.block, Origin::BACKGROUND, &self.layout, segment, sequence, first).await;
        if let Some((footer, transitions)) = summary.map_err(io)? {
            if footer.last_frame + 1 != end {
                return Err(self.keys_damaged("a log segment has another end than when it was walked"));
            }
            let within = transitions.iter().filter(|(frame, _)| *frame >= from);
            return Ok((within.filter_map(|(_, t)| seek(t)).collect(), window));
        }
        let read = read_segment_around(&*self.block, &self.layout, segment, Origin::BACKGROUND).await;
        let read = read.map_err(io)?;
        let (mut sought, mut offset, mut number) = (Vec::new(), self.layout.block_bytes, first);
        while number < end {
            let frame = frame_at(&read.bytes, &self.layout, segment, sequence, offset);
            let is_next =
                |frame: &Frame| frame.header.number == number && (number < from || frame.heads_whole);
            if let Some(frame) = frame.filter(is_next) {
                if number >= from {
                    sought.extend(frame.transitions.iter().filter_map(seek));
                }
                (offset, number) = (frame.end, number + 1);
                continue;
            }
            // Nothing of a frame that the runs have is needed.
            let (place, numbers) = ((segment, sequence), number + 1..=from);
            let next = next_frame_after(&read.bytes, &self.layout, place, (offset, 0), numbers);
            let Some(next) = next else {
                read.prove_read(offset..self.layout.segment_bytes).map_err(io)?;
                return Err(self.keys_damaged("a frame of the log is gone"));
            };
            (offset, number) = next;
        }
        window.bytes = read.bytes;
        Ok((sought, window))
    }

    /// Generation and key of the record at a location. `rest` are the records sought from it on.
    async fn name_at(
        &self,
        window: &mut Window,
        location: u64,
        deleted: bool,
        rest: &[Sought],
    ) -> Result<(u32, Vec<u8>)> {
        let first = u64::from(window.segment) * self.layout.segment_units();
        let offset = |location: u64| location.checked_sub(first).map(|units| units * UNIT_BYTES);
        let inside = offset(location).filter(|offset| *offset < self.layout.segment_bytes);
        let Some(at) = inside else { return Err(self.keys_damaged("a record outside its segment")) };
        let header_bytes = RECORD_HEADER_BYTES as u64;
        if !window.holds(at, header_bytes) {
            // As far as the last of those sought that are near: one read for all of them.
            let near = rest.iter().filter_map(|(location, _)| offset(*location));
            let last = near.take_while(|near| (at..at + WINDOW_BYTES).contains(near)).last().unwrap_or(at);
            self.fill_window(window, at, header_bytes, last + HEAD_BYTES).await?;
        }
        let Ok(header) = RecordHeader::decode(window.from(at)) else {
            return Err(self.keys_damaged("no record where the log names one"));
        };
        self.fill_window(window, at, header.head_bytes() as u64, 0).await?;
        let bytes = window.from(at);
        let right = (header.kind == RecordKind::Tombstone) == deleted && header.kind != RecordKind::Part;
        if !right || record::verify_head(bytes, window.sequence, location).is_err() {
            return Err(self.keys_damaged("a record is damaged or not the one the log names"));
        }
        Ok((header.container, record::key(bytes, &header).to_vec()))
    }

    /// Reads on if the window does not hold bytes of its segment; as far as `hint`, about.
    async fn fill_window(&self, window: &mut Window, at: u64, length: u64, hint: u64) -> Result<()> {
        let layout = &self.layout;
        if window.holds(at, length) {
            return Ok(());
        }
        let start = at / layout.block_bytes * layout.block_bytes;
        let end = round_up((at + length).max(hint), layout.block_bytes).min(layout.segment_bytes);
        let offset = layout.segment_offset(window.segment) + start;
        let read = read_bulk(&*self.block, Origin::BACKGROUND, offset, end - start).await;
        let unreadable = |error| Error::Unreadable(format!("{error}, device offset {offset}"));
        (window.start, window.bytes) = (start, read.map_err(unreadable)?);
        Ok(())
    }

    /// Builds the runs from the records that the index points to.
    async fn rebuild_keys(&self, table: &mut Rc<Table>) -> Result<()> {
        add(&self.keys.rebuilds, 1);
        tracing::warn!(partition = self.layout.partition, "the keys' order is built from the records");
        let mut cursor = 0;
        loop {
            let (entries, next) = self.scan_entries(cursor, ENTRIES_PER_STEP);
            for entries in entries.chunks(READS_MAX) {
                let names = entries.iter().map(|(slot, entry)| self.names_of_entry(*slot, *entry));
                for names in join_all(names).await {
                    for (generation, key) in names? {
                        table.note(generation, &key, false);
                    }
                }
                self.flush_recovered(table).await?;
            }
            if next == 0 {
                return Ok(());
            }
            cursor = next;
        }
    }

    /// Generation and key of what an entry of the index stands for. Goes on without that of a record that
    /// cannot be read time after time: reads of its key fail, and say so.
    async fn names_of_entry(&self, slot: Slot, entry: Entry) -> Result<Vec<(u32, Vec<u8>)>> {
        let mut attempts = RECORD_ATTEMPTS;
        loop {
            let (mut names, mut unread) = (Vec::new(), None);
            for (entry, read) in self.read_entry(slot, entry).await {
                match read {
                    Ok(found) if self.state.borrow().is_dead(found.header.container) => {}
                    Ok(found) => {
                        let key = record::key(&found.bytes, &found.header).to_vec();
                        names.push((found.header.container, key));
                    }
                    Err(error) => unread = Some((entry.location, error)),
                }
            }
            let Some((location, error)) = unread else { return Ok(names) };
            attempts -= 1;
            if attempts == 0 {
                self.reads_anything().await?;
                let (partition, offset) = (self.layout.partition, self.layout.device_offset(location));
                tracing::error!(partition, offset, %error, "listings are without the key of a record");
                return Ok(names);
            }
            self.reactor.sleep_ns(RECORD_REST_NS).await;
        }
    }

    /// An error if the device fails to read what it surely has, either anchor: it is asked again later.
    async fn reads_anything(&self) -> Result<()> {
        let anchors = [0, ANCHOR_BYTES as u64].map(|copy| self.layout.anchor_offset + copy);
        let reads = anchors.map(|offset| self.block.read(Origin::BACKGROUND, offset, ANCHOR_BYTES));
        if join_all(reads).await.iter().any(std::result::Result::is_ok) {
            return Ok(());
        }
        Err(Error::Unreadable("building keys: the device reads nothing".to_owned()))
    }

    /// Flushes what was recovered if it is much, and what was noted meanwhile.
    async fn flush_recovered(&self, table: &mut Rc<Table>) -> Result<()> {
        if table.bytes() >= self.keys.table_bytes() {
            self.flush_table(table, true, None).await?;
            *table = Rc::default();
        }
        while self.flush_oldest(None).await? {}
        match self.log.failure() {
            Some(error) => Err(error),
            None if self.keys.stopping.get() => Err(Error::ShuttingDown),
            None => Ok(()),
        }
    }

    /// Puts the rest of what was recovered below what was noted since the start.
    async fn take_recovered(&self, table: &Rc<Table>) -> Result<()> {
        let keys = &self.keys;
        let newest = keys.runs.borrow().len() == keys.older.get() && keys.frozen.borrow().is_empty();
        let active = keys.active.borrow().clone();
        if newest && active.bytes() + table.bytes() < keys.table_bytes() {
            active.take_older(table);
            return Ok(());
        }
        self.flush_table(table, true, None).await
    }

    fn keys_damaged(&self, what: &str) -> Error {
        self.keys.io.damaged.set(true);
        tracing::error!(partition = self.layout.partition, what, "the keys cannot be found in the log");
        Error::Unreadable(format!("{what}, partition {}", self.layout.partition))
    }
}

impl Window {
    fn holds(&self, at: u64, length: u64) -> bool {
        at >= self.start && at + length <= self.start + self.bytes.len() as u64
    }

    /// The bytes from an offset on, as far as they were read.
    fn from(&self, offset: u64) -> &[u8] {
        self.bytes.get((offset - self.start) as usize..).unwrap_or_default()
    }
}
