//! The log: frames appended to segments, made durable, acknowledged in order.
//!
//! Role: gives records and notes their place and their order, writes them with group commit, and
//! says when they are durable. Place on the path: the last stage of a store before the device.
//!
//! Invariants:
//! * the order of frames is the order in which transitions were applied;
//! * a frame is durable only when every frame before it is: what is acknowledged is a prefix;
//! * a block is written once in a use of its segment: each frame begins on a fresh block;
//! * after a failed write nothing more is written: the partition is read-only until reopened;
//! * bytes that wait to be written are bounded ([`PENDING_BYTES_MAX`]).
//!
//! Never: it does not know keys, and does not touch the index.

mod building;
mod segment;
mod writer;

use crate::format::chain::TRANSITION_BYTES_MAX;
use crate::format::note::encode_note;
use crate::format::{
    Chain, FrameHeader, RecordHeader, SegmentKind, Transition, TransitionKind, UNIT_BYTES, record, round_up,
};
use crate::layout::Layout;
use crate::planted::{Bug, is_planted};
use crate::segments::SegmentTable;
use building::Building;
use plimsoll_kv::block::Block;
use plimsoll_kv::{Durability, Error, Result};
use plimsoll_reactor::sync::WaitList;
use plimsoll_reactor::{Buf, Reactor, Work};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

/// A frame is closed when it has this many bytes, even if more could join it.
const FRAME_BYTES_MAX: usize = 256 << 10;
/// Bytes appended and not yet durable; appenders wait above it.
pub const PENDING_BYTES_MAX: usize = 16 << 20;

/// Where the log goes on when a partition is opened.
#[derive(Clone, Copy, Debug)]
pub struct LogPosition {
    /// The owner's epoch.
    pub epoch: u32,
    /// The number of the next segment in the log.
    pub log_number: u64,
    /// The number of the next frame.
    pub frame: u64,
    /// The segment in which it goes on, free until now.
    pub segment: u32,
    /// The segment after that, if one was reserved by an earlier life.
    pub reserved: Option<u32>,
}

/// A frame closed and not yet durable.
struct Pending {
    number: u64,
    /// Device offset of the write.
    device_offset: u64,
    buf: Rc<Buf>,
    started: bool,
    written: bool,
}

struct Tail {
    segment: u32,
    sequence: u64,
    log_number: u64,
    next_segment: u32,
    building: Building,
    /// Transitions of the segment so far: its summary. Each is preceded by how much further its
    /// frame is than that of the one before.
    summary: Vec<u8>,
    /// The frame of the last transition in the summary, and what the next one differs from.
    summary_frame: u64,
    summary_chain: Chain,
    pending: VecDeque<Pending>,
    pending_bytes: usize,
    /// Keys with a transition that is not durable: the frame to wait for.
    pending_keys: BTreeMap<(u16, u64), u64>,
    /// The last frame that holds anything.
    last_content: u64,
}

/// The log of a partition.
pub struct Log {
    reactor: Reactor,
    block: Rc<dyn Block>,
    layout: Layout,
    epoch: u32,
    tail: RefCell<Tail>,
    /// The number of the frame being built.
    frame: Cell<u64>,
    durable: Cell<u64>,
    /// The highest `durable` that a durable frame states.
    proven: Cell<u64>,
    next_sequence: Cell<u64>,
    failed: RefCell<Option<String>>,
    closing: Cell<bool>,
    work: WaitList,
    progress: WaitList,
    /// Who waits for which frame to be durable.
    acknowledging: RefCell<BTreeMap<u64, Vec<Waker>>>,
    /// Frames written since it was opened, for metrics.
    pub frames_written: Cell<u64>,
}

impl Log {
    /// Opens the log at a position, in a fresh segment.
    ///
    /// # Errors
    /// `NoSpace`: there is no second segment to reserve.
    pub fn open(
        reactor: &Reactor,
        block: Rc<dyn Block>,
        layout: Layout,
        position: LogPosition,
        segments: &mut SegmentTable,
    ) -> Result<Rc<Log>> {
        let first = position.segment;
        let next_sequence = Cell::new(u64::from(position.epoch) << 40 | 1);
        let take = || next_sequence.replace(next_sequence.get() + 1);
        let sequence = take();
        segments.open(first, SegmentKind::Log, sequence, position.frame);
        segments.get_mut(first).log_number = position.log_number;
        let next_segment = match position.reserved {
            Some(reserved) => {
                segments.open(reserved, SegmentKind::Log, 0, position.frame);
                reserved
            }
            None => segments.allocate(SegmentKind::Log, 0, position.frame, 0).ok_or(Error::NoSpace)?,
        };
        let tail = Tail {
            segment: first,
            sequence,
            log_number: position.log_number,
            next_segment,
            building: Building::first(layout.block_bytes),
            summary: Vec::new(),
            summary_frame: position.frame,
            summary_chain: Chain::default(),
            pending: VecDeque::new(),
            pending_bytes: 0,
            pending_keys: BTreeMap::new(),
            last_content: 0,
        };
        let log = Rc::new(Log {
            reactor: reactor.clone(),
            block,
            layout,
            epoch: position.epoch,
            tail: RefCell::new(tail),
            frame: Cell::new(position.frame),
            durable: Cell::new(position.frame - 1),
            proven: Cell::new(position.frame - 1),
            next_sequence,
            failed: RefCell::default(),
            closing: Cell::new(false),
            work: WaitList::default(),
            progress: WaitList::default(),
            acknowledging: RefCell::default(),
            frames_written: Cell::new(0),
        });
        reactor.spawn(Work::Device, log.clone().write_frames());
        Ok(log)
    }

    /// The owner's epoch.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// The number of the frame being built: transitions appended now stand in it.
    pub fn frame(&self) -> u64 {
        self.frame.get()
    }

    /// The last durable frame.
    pub fn durable(&self) -> u64 {
        self.durable.get()
    }

    /// A sequence for a segment, never given before.
    pub fn take_sequence(&self) -> u64 {
        self.next_sequence.replace(self.next_sequence.get() + 1)
    }

    /// The segment being filled and its number in the log.
    pub fn position(&self) -> (u32, u64) {
        let tail = self.tail.borrow();
        (tail.segment, tail.log_number)
    }

    /// Why nothing is written any more, if so.
    pub fn failure(&self) -> Option<Error> {
        self.failed.borrow().as_ref().map(|what| Error::ReadOnly(what.clone()))
    }

    /// Waits until appended bytes are within bounds.
    pub async fn wait_for_room(&self) -> Result<()> {
        self.progress
            .wait_for(|| {
                if let Some(error) = self.failure() {
                    return Some(Err(error));
                }
                (self.tail.borrow().pending_bytes < PENDING_BYTES_MAX).then_some(Ok(()))
            })
            .await
    }

    /// Waits for something that [`Log::nudge`], progress of the log or its failure brings about.
    pub(crate) async fn wait_until<T>(&self, condition: impl FnMut() -> Option<T>) -> T {
        self.progress.wait_for(condition).await
    }

    /// Lets everyone who waits for progress look again.
    pub(crate) fn nudge(&self) {
        self.progress.wake_all();
    }

    /// Makes room for items of `bytes` in all with `transitions`, in one frame. The items must be
    /// pushed before the caller waits for anything.
    ///
    /// # Errors
    /// `NoSpace`: no segment is free to go on in; try again when one is.
    pub fn reserve(
        self: &Rc<Self>,
        bytes: usize,
        transitions: usize,
        segments: &mut SegmentTable,
    ) -> Result<()> {
        let mut tail = self.tail.borrow_mut();
        let used = tail.building.bytes.len();
        if used > 0 && used + bytes > FRAME_BYTES_MAX {
            self.close_frame(&mut tail);
        }
        if !self.fits(&tail, bytes, transitions) {
            self.next_segment(&mut tail, segments, true)?;
            assert!(self.fits(&tail, bytes, transitions), "an append fits an empty segment");
        }
        if tail.building.bytes.is_empty() {
            let now_ns = self.reactor.now_ns();
            tail.building.open(now_ns, bytes);
        }
        Ok(())
    }

    /// True if items of `bytes` with `transitions` fit the segment being filled.
    pub fn has_room(&self, bytes: usize, transitions: usize) -> bool {
        let tail = self.tail.borrow();
        let used = tail.building.bytes.len();
        // A frame that would become too long is closed, and the items begin another.
        let padding = if used + bytes > FRAME_BYTES_MAX { self.layout.block_bytes as usize } else { 0 };
        self.fits(&tail, bytes + padding, transitions)
    }

    fn fits(&self, tail: &Tail, bytes: usize, transitions: usize) -> bool {
        let block = self.layout.block_bytes;
        let building = tail.building.bytes.len().max(tail.building.headers_bytes());
        let end = tail.building.offset + round_up((building + bytes) as u64, block);
        let summary = round_up((tail.summary.len() + transitions * SUMMARY_ENTRY_BYTES_MAX) as u64, block);
        end + summary + block <= self.layout.segment_bytes
    }

    /// Bytes of items that one frame can hold at most.
    pub fn frame_capacity(layout: &Layout) -> usize {
        (layout.segment_bytes - layout.segment_bytes / 8 - 4 * layout.block_bytes) as usize
    }

    /// The sequence and the location of the next item.
    fn place(&self, tail: &Tail) -> (u64, u64) {
        let offset = tail.building.offset + tail.building.bytes.len() as u64;
        (tail.sequence, self.layout.location(tail.segment, offset))
    }

    /// Appends a record after [`Log::reserve`]; gives the transition that it stands for.
    pub fn push_record(
        &self,
        header: &RecordHeader,
        key: &[u8],
        fingerprint: u64,
        value: [&[u8]; 2],
        urgency: Durability,
    ) -> Transition {
        let tail = &mut *self.tail.borrow_mut();
        let (sequence, location) = self.place(tail);
        let out = tail.building.bytes.append(header.record_bytes() as usize);
        record::encode(header, key, value, (sequence, location), out);
        tail.building.items += 1;
        tail.building.urgency = tail.building.urgency.min(urgency);
        let transition = header.transition(key, fingerprint, location);
        self.summarise(tail, &transition);
        transition
    }

    /// Appends a note after [`Log::reserve`].
    pub fn push_note(&self, transitions: &[Transition], urgency: Durability) {
        let mut tail = self.tail.borrow_mut();
        let (sequence, location) = self.place(&tail);
        let note = encode_note(transitions, sequence, location);
        tail.building.bytes.append(note.len()).copy_from_slice(&note);
        tail.building.items += 1;
        tail.building.urgency = tail.building.urgency.min(urgency);
        if transitions.len() > NOTE_SUMMARISED_MAX {
            // A long note stands in the summary by its place.
            let reference = Transition {
                location,
                length: (note.len() as u64 / UNIT_BYTES) as u32,
                ..Transition::new(TransitionKind::Note)
            };
            self.summarise(&mut tail, &reference);
        } else {
            transitions.iter().for_each(|transition| self.summarise(&mut tail, transition));
        }
    }

    /// Notes that a transition stands in the frame being built: a reader of its key has to wait.
    pub fn note_transition(&self, transition: &Transition, urgency: Durability) {
        let mut tail = self.tail.borrow_mut();
        let frame = self.frame.get();
        tail.last_content = frame;
        if urgency != Durability::Async {
            tail.pending_keys.insert((transition.slot, transition.fingerprint), frame);
        }
        drop(tail);
        self.work.wake_all();
    }

    /// The frame that a reader of a key has to wait for, if any.
    pub fn pending_frame(&self, slot: u16, fingerprint: u64) -> Option<u64> {
        let frame = self.tail.borrow().pending_keys.get(&(slot, fingerprint)).copied();
        frame.filter(|frame| *frame > self.durable.get())
    }

    /// Looks at a record that is not yet on flash.
    pub fn with_pending<T>(&self, location: u64, bytes: u64, look: impl FnOnce(&[u8]) -> T) -> Option<T> {
        let tail = self.tail.borrow();
        let start = self.layout.device_offset(location);
        let building_start = self.layout.segment_offset(tail.segment) + tail.building.offset;
        let inside = |from: u64, length: usize| start >= from && start + bytes <= from + length as u64;
        if inside(building_start, tail.building.bytes.len()) {
            let at = (start - building_start) as usize;
            return Some(look(&tail.building.bytes[at..at + bytes as usize]));
        }
        let pending = tail.pending.iter().find(|frame| inside(frame.device_offset, frame.buf.len()))?;
        let at = (start - pending.device_offset) as usize;
        Some(look(&pending.buf[at..at + bytes as usize]))
    }

    /// Waits until a frame is durable; if nothing was put into it, what came before it.
    pub async fn wait_durable(&self, frame: u64) -> Result<()> {
        if is_planted(Bug::EarlyAcknowledge) {
            return Ok(());
        }
        let frame = frame.min(self.last_frame());
        poll_fn(|cx| {
            if self.durable.get() >= frame {
                return Poll::Ready(Ok(()));
            }
            if let Some(error) = self.failure() {
                return Poll::Ready(Err(error));
            }
            self.acknowledging.borrow_mut().entry(frame).or_default().push(cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// Wakes those who wait for frames that are durable now, in the order of the frames.
    fn acknowledge(&self, durable: u64) {
        loop {
            let mut waiting = self.acknowledging.borrow_mut();
            let Some(entry) = waiting.first_entry().filter(|entry| *entry.key() <= durable) else { return };
            let mut wakers = entry.remove();
            drop(waiting);
            if is_planted(Bug::LostWakeup) && wakers.len() > 1 {
                wakers.pop();
            }
            wakers.into_iter().for_each(Waker::wake);
        }
    }

    /// Makes everything appended so far durable.
    pub async fn flush(&self) -> Result<()> {
        let frame = self.close_building();
        self.wait_durable(frame).await
    }

    /// Closes the frame being built, if it holds anything; the number of the last closed frame.
    pub fn close_building(&self) -> u64 {
        let mut tail = self.tail.borrow_mut();
        if !tail.building.bytes.is_empty() {
            self.close_frame(&mut tail);
            drop(tail);
            self.work.wake_all();
        }
        self.frame.get() - 1
    }

    fn close_frame(&self, tail: &mut Tail) {
        let layout = &self.layout;
        let filled_bytes = tail.building.bytes.len();
        let length = round_up(filled_bytes as u64, layout.block_bytes);
        let next = tail.building.next(tail.building.offset + length);
        let segment_header = tail.building.is_first().then(|| self.segment_header(tail));
        let mut closed = std::mem::replace(&mut tail.building, next);
        let number = self.frame.get();
        let frame = FrameHeader {
            sequence: tail.sequence,
            number,
            durable: self.durable.get(),
            epoch: self.epoch,
            items: closed.items,
            payload_bytes: (filled_bytes - closed.headers_bytes()) as u32,
        };
        let start = closed.offset + closed.head_bytes as u64;
        let encoded = frame.encode(layout.identity, u64::from(tail.segment) * layout.segment_bytes + start);
        if let Some(header) = segment_header {
            closed.bytes[..header.len()].copy_from_slice(&header);
        }
        closed.bytes[closed.head_bytes..][..encoded.len()].copy_from_slice(&encoded);
        closed.bytes.append(length as usize - filled_bytes).fill(0);
        tail.pending_bytes += closed.bytes.len();
        let device_offset = layout.segment_offset(tail.segment) + closed.offset;
        let buf = Rc::new(closed.bytes);
        tail.pending.push_back(Pending { number, device_offset, buf, started: false, written: false });
        self.frame.set(number + 1);
    }

    /// Stops writing for good.
    pub fn fail(&self, what: &str) {
        if self.failed.borrow().is_none() {
            tracing::error!(what, "a write failed: the partition is read-only until it is reopened");
            *self.failed.borrow_mut() = Some(what.to_owned());
        }
        self.acknowledge(u64::MAX);
        self.progress.wake_all();
        self.work.wake_all();
    }

    /// Writes an empty frame and waits until it is durable: the segment then has its header, and
    /// every frame before is proved.
    pub async fn seal(self: &Rc<Self>, segments: &RefCell<crate::state::State>) -> Result<()> {
        self.reserve(0, 0, &mut segments.borrow_mut().segments)?;
        self.flush().await
    }

    /// Writes what is left and ends the writer.
    pub async fn close(&self) -> Result<()> {
        self.closing.set(true);
        // With nothing left to write it has to hear of it: else it has the device open for ever.
        self.work.wake_all();
        self.flush().await
    }
}

/// Bytes of an entry of a summary at most: the step of the frame's number, then the transition.
const SUMMARY_ENTRY_BYTES_MAX: usize = 10 + TRANSITION_BYTES_MAX;
/// Notes of more transitions than this stand in the summary by their place.
const NOTE_SUMMARISED_MAX: usize = 8;
