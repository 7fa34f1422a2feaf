//! Recovery: from the anchor, the checkpoint and the log after it to the state of a partition.
//!
//! Place on the path: before the first request. It reads the checkpoint, the summaries of closed
//! log segments after it and the frames of the open one; never the whole device.
//!
//! Invariants:
//! * the log ends at the first frame that is not whole, and only if nothing after it states that
//!   this frame was durable: then it is damage, and the partition refuses to open rather than lose
//!   what was acknowledged;
//! * the device is flushed before anything is read: recovery builds on durable bytes alone;
//! * blocks of the old tail are never written again: the log goes on in the segment that the old
//!   tail had reserved.

mod end;

use crate::bulk::{Patchy, at};
use crate::format::anchor::ANCHOR_BYTES;
use crate::format::{Anchor, SegmentHeader, SegmentKind};
use crate::keys::KeysFound;
use crate::layout::Layout;
use crate::log::LogPosition;
use crate::planted::{Bug, is_planted};
use crate::segments::{SegmentState, SegmentTable};
use crate::state::State;
use crate::walk::{
    Frame, Framed, durable_stated_after, frame_at, next_frame_after, read_header, read_segment_around,
    read_summary, resolve_notes,
};
use end::OpenEnd;
use plimsoll_kv::block::{Block, Origin};
use plimsoll_kv::{Slot, Version};
use std::io;
use std::ops::Range;

/// Why a partition cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The device failed.
    #[error("reading partition {partition}: {error}")]
    Io {
        /// Which partition.
        partition: u16,
        /// What the device said.
        error: io::Error,
    },
    /// Acknowledged data is damaged.
    #[error("partition {partition} is damaged: {what}; restore it from redundancy or a backup")]
    Damaged {
        /// Which partition.
        partition: u16,
        /// What and where.
        what: String,
    },
    /// There is no room to go on writing.
    #[error("partition {0} has no free segment to go on in")]
    Full(u16),
}

/// What recovery found.
pub(crate) struct Recovered {
    pub(crate) state: State,
    pub(crate) anchor: Anchor,
    /// The copy it was read from.
    pub(crate) anchor_copy: u64,
    pub(crate) position: LogPosition,
    pub(crate) keys: KeysFound,
    pub(crate) replayed: u64,
    pub(crate) version: Version,
}

/// Progress is told after so many segments of the log.
const TOLD_SEGMENTS: u64 = 256;

pub(crate) struct Recovery<'a> {
    pub(crate) block: &'a dyn Block,
    pub(crate) layout: Layout,
    pub(crate) anchor: Anchor,
    anchor_copy: u64,
    pub(crate) state: State,
    /// The next frame expected.
    expected: u64,
    /// The highest epoch seen.
    epoch: u32,
    /// The epoch of the log where the walk is: it never falls.
    log_epoch: u32,
    replayed: u64,
    /// Transitions seen, replayed or older than the checkpoint.
    applied: u64,
    /// The last segment of the log, if it holds no transition: it may be written anew, so that
    /// lives that end early take no space.
    empty_tail: Option<Tail>,
    /// The snapshot is loaded.
    pub(crate) has_snapshot: bool,
    /// What the keys in order are found from.
    pub(crate) keys: KeysFound,
}

/// Where the log goes on.
#[derive(Clone, Copy)]
struct Tail {
    segment: u32,
    log_number: u64,
    frame: u64,
    reserved: Option<u32>,
}

/// How the walk of a segment ended.
struct Walked {
    next_segment: u32,
    log_number: u64,
    /// Absent if it was closed.
    open_end: Option<OpenEnd>,
}

/// Recovers the state of a partition.
pub(crate) async fn recover(block: &dyn Block, layout: Layout) -> Result<Recovered, OpenError> {
    // A process that died may have left writes in the device's volatile cache: what is read here
    // must not be taken away by a later power loss.
    let flushed = block.flush(Origin::FOREGROUND).await;
    flushed.map_err(|error| OpenError::Io { partition: layout.partition, error })?;
    let (anchor, anchor_copy) = read_anchor(block, &layout).await?;
    let slots = Slot::range_of(layout.partition, layout.partitions);
    let state = State::new(slots.clone(), SegmentTable::all_free(&layout));
    let (expected, epoch) = (anchor.frame_number, anchor.epoch);
    let mut recovery = Recovery {
        block,
        layout,
        anchor,
        anchor_copy,
        state,
        expected,
        epoch,
        log_epoch: 0,
        replayed: 0,
        applied: 0,
        empty_tail: None,
        has_snapshot: false,
        keys: KeysFound::default(),
    };
    recovery.state.slot_frames = Some(vec![0; slots.len()]);
    if recovery.anchor.checkpoint_id == 0 {
        recovery.keys.runs = Some(Vec::new());
    }
    recovery.load_checkpoint().await?;
    let tail = recovery.replay().await?;
    recovery.check_tables()?;
    Ok(recovery.finish(tail))
}

/// The newer anchor, and which copy it is. One copy is enough: the anchor before stays in force until both
/// are written.
async fn read_anchor(block: &dyn Block, layout: &Layout) -> Result<(Anchor, u64), OpenError> {
    let partition = layout.partition;
    let mut best: Option<(Anchor, u64)> = None;
    let mut problems = Vec::new();
    for copy in 0..2 {
        let offset = layout.anchor_offset + copy * ANCHOR_BYTES as u64;
        let read =
            block.read(Origin::FOREGROUND, offset, ANCHOR_BYTES).await.map_err(|error| error.to_string());
        let anchor =
            read.and_then(|read| Anchor::decode(&read, layout.identity).map_err(|error| error.to_string()));
        match anchor {
            Ok(anchor) if best.as_ref().is_none_or(|(best, _)| best.generation < anchor.generation) => {
                best = Some((anchor, copy));
            }
            Ok(_) => {}
            Err(problem) => {
                tracing::warn!(partition, copy, offset, problem, "a copy of the anchor cannot be read");
                problems.push(format!("copy {copy} at {offset}: {problem}"));
            }
        }
    }
    let what = || format!("neither anchor can be read: {}", problems.join("; "));
    best.ok_or_else(|| OpenError::Damaged { partition, what: what() })
}

impl Recovery<'_> {
    pub(crate) fn io(&self, error: io::Error) -> OpenError {
        OpenError::Io { partition: self.layout.partition, error }
    }

    pub(crate) fn damaged(&self, what: String) -> OpenError {
        OpenError::Damaged { partition: self.layout.partition, what }
    }

    /// Walks the log; where it goes on.
    async fn replay(&mut self) -> Result<Tail, OpenError> {
        let (mut segment, mut log_number) = (self.anchor.log_segment, self.anchor.log_number);
        if self.anchor.epoch == 0 {
            // Never opened: there is no log, unless both anchors written since were lost (seed 1582).
            self.check_unreached().await?;
            return Ok(self.tail(segment, log_number));
        }
        let mut open_end: Option<OpenEnd> = None;
        let mut first = true;
        loop {
            let header = match self.header(segment, log_number, first).await? {
                Some(header) if first || header.first_frame == self.expected => header,
                None if first => {
                    let what = format!("log segment {segment}, where replay begins, has no header");
                    return Err(self.damaged(what));
                }
                // The header may be what an earlier life left behind a frame that it lost, and the later
                // one, of the life that went on here, be lost itself (seed 340).
                other => {
                    self.check_end(open_end, other.map_or(0, |header| header.durable_frame))?;
                    self.check_headless(segment).await?;
                    self.check_unreached().await?;
                    return Ok(self.tail(segment, log_number));
                }
            };
            if first {
                self.expected = header.first_frame;
                first = false;
            }
            let applied = self.applied;
            let walked = self.walk(segment, &header).await?;
            self.keys.walked(segment, &header, self.expected);
            let is_empty = self.applied == applied || is_planted(Bug::RewrittenTail);
            // Frames that the tables count as durable are not numbered anew (seed 9818).
            let is_counted = header.first_frame < self.held_by_tables();
            let rewritable = is_empty && !is_counted && segment != self.anchor.log_segment;
            self.empty_tail = rewritable.then_some(Tail {
                segment,
                log_number,
                frame: header.first_frame,
                reserved: Some(header.next_segment),
            });
            open_end = walked.open_end;
            if (log_number - self.anchor.log_number) % TOLD_SEGMENTS == TOLD_SEGMENTS - 1 {
                let (partition, replayed) = (self.layout.partition, self.replayed);
                tracing::info!(partition, replayed, log_segment = log_number, "replaying the log");
            }
            (segment, log_number) = (walked.next_segment, walked.log_number);
            if segment >= self.layout.segments {
                return Err(self.damaged(format!("a log segment names segment {segment} as the next")));
            }
            self.check_anchor(segment)?;
        }
    }

    /// The header of a segment in which the log goes on, if it does; it surely has the first one.
    async fn header(
        &self,
        segment: u32,
        log_number: u64,
        first: bool,
    ) -> Result<Option<SegmentHeader>, OpenError> {
        let header = match read_header(self.block, &self.layout, segment).await {
            Ok(header) => header.ok(),
            Err(error) => {
                let error = at(&error, self.layout.segment_offset(segment));
                if first || !self.anchor.clean {
                    return Err(self.io(error));
                }
                // After a clean stop the log did not go on.
                tracing::warn!(partition = self.layout.partition, segment, %error, "a header cannot be read");
                None
            }
        };
        Ok(header.filter(|header| {
            header.kind == SegmentKind::Log
                && header.log_number == log_number
                && header.epoch >= self.log_epoch
                && (first || header.first_frame >= self.expected)
        }))
    }

    /// The end of the log: the next segment, or the last one again if it holds nothing.
    fn tail(&self, segment: u32, log_number: u64) -> Tail {
        let next = Tail { segment, log_number, frame: self.expected, reserved: None };
        self.empty_tail.unwrap_or(next)
    }

    /// Replays one log segment.
    async fn walk(&mut self, segment: u32, header: &SegmentHeader) -> Result<Walked, OpenError> {
        self.log_epoch = header.epoch;
        let info = self.state.segments.get(segment);
        if info.sequence != header.sequence {
            // What emptied it comes before it in the log. Else this is what the drive had there before it
            // lost the header of a later use, in which something was stored (seed 1540).
            if info.live_units > 0 {
                let what = "has the header of another use, though something that was stored in it is live";
                return Err(self.damaged(format!("log segment {segment} {what}")));
            }
            self.state.segments.open(segment, SegmentKind::Log, header.sequence, header.first_frame);
        }
        self.state.segments.get_mut(segment).log_number = header.log_number;
        self.state.segments.close(segment);
        let (next_segment, log_number) = (header.next_segment, header.log_number + 1);
        if let Some((last_frame, transitions)) = self.summary(segment, header).await {
            self.apply(&transitions);
            self.applied += 1; // A closed segment is not empty, whatever of it was needed.
            self.expected = last_frame + 1;
            return Ok(Walked { next_segment, log_number, open_end: None });
        }
        let read = read_segment_around(self.block, &self.layout, segment, Origin::FOREGROUND).await;
        let read = read.map_err(|error| self.io(error))?;
        let offset = self.walk_frames(segment, header, &read)?;
        let bytes = read.bytes;
        let (sequence, first_frame) = (header.sequence, header.first_frame);
        let open_end = Some(OpenEnd { segment, offset, bytes, sequence, first_frame });
        Ok(Walked { next_segment, log_number, open_end })
    }

    /// The last frame and the transitions of a closed segment, if its summary can be read.
    async fn summary(&self, segment: u32, header: &SegmentHeader) -> Option<(u64, Vec<Framed>)> {
        let (block, layout, sequence) = (self.block, &self.layout, header.sequence);
        let summary =
            read_summary(block, Origin::FOREGROUND, layout, segment, sequence, header.first_frame).await;
        let (footer, summary) = self.if_read(segment, summary)?;
        let needed = summary.into_iter().filter(|(frame, _)| *frame >= self.anchor.frame_number).collect();
        let resolved = resolve_notes(block, layout, sequence, needed).await;
        self.if_read(segment, resolved).map(|transitions| (footer.last_frame, transitions))
    }

    /// What was read of a summary; nothing if it cannot be: then its frames tell.
    fn if_read<T>(&self, segment: u32, read: io::Result<Option<T>>) -> Option<T> {
        read.unwrap_or_else(|error| {
            let partition = self.layout.partition;
            tracing::warn!(partition, segment, %error, "the summary of a log segment cannot be read");
            None
        })
    }

    /// Replays the frames of a segment until one is not whole; where that is.
    fn walk_frames(&mut self, segment: u32, header: &SegmentHeader, read: &Patchy) -> Result<u64, OpenError> {
        let (bytes, mut offset) = (&read.bytes, self.layout.block_bytes);
        let mut epoch = header.epoch;
        loop {
            // The checkpoint holds what frames before its own said, and proves that they were durable.
            let is_needed = self.expected >= self.anchor.frame_number;
            let frame = frame_at(bytes, &self.layout, segment, header.sequence, offset);
            let is_next = |frame: &Frame| frame.header.number == self.expected && frame.header.epoch >= epoch;
            let Some(frame) = frame.filter(is_next) else {
                // The segment in which replay begins has all that came before it there, without a gap.
                if is_needed || header.log_number != self.anchor.log_number {
                    self.prove_read(read, offset..offset + self.layout.block_bytes)?;
                    break;
                }
                offset = self.skip_unneeded(read, (segment, header), (offset, epoch))?;
                continue;
            };
            if !frame.whole && is_needed {
                // Torn, or damaged after it was acknowledged: what stands after it tells.
                let proof = durable_stated_after(bytes, &self.layout, segment, header.sequence, frame.end);
                let acknowledged = proof >= self.expected;
                if !acknowledged || !frame.heads_whole {
                    self.prove_read(read, offset..frame.end)?;
                }
                if !acknowledged {
                    break;
                }
                if !frame.heads_whole {
                    return Err(self.lost_frame(segment, offset));
                }
                tracing::error!(
                    frame = self.expected,
                    segment,
                    "a value in an acknowledged frame is damaged"
                );
            }
            epoch = frame.header.epoch;
            let framed: Vec<Framed> = frame.transitions.iter().map(|t| (frame.header.number, *t)).collect();
            self.apply(&framed);
            self.expected += 1;
            offset = frame.end;
        }
        self.log_epoch = epoch;
        Ok(offset)
    }

    /// Goes past what cannot be read of the frames that the checkpoint holds; where to go on: at the next
    /// one that is there, or behind the block that was to be the first of these, with the first that is
    /// needed, which may never have been written. After a clean stop it was not.
    fn skip_unneeded(
        &mut self,
        read: &Patchy,
        (segment, header): (u32, &SegmentHeader),
        (offset, epoch): (u64, u32),
    ) -> Result<u64, OpenError> {
        let (first, needed) = (self.expected, self.anchor.frame_number);
        let (place, numbers) = ((segment, header.sequence), first + 1..=needed);
        let next = next_frame_after(&read.bytes, &self.layout, place, (offset, epoch), numbers);
        let behind =
            if self.anchor.clean { self.layout.segment_bytes } else { offset + self.layout.block_bytes };
        if next.is_none() {
            self.prove_read(read, behind..self.layout.segment_bytes)?;
        }
        let (go_on, before) = next.unwrap_or((behind, needed));
        tracing::warn!(
            partition = self.layout.partition,
            offset = self.layout.segment_offset(segment) + offset,
            first,
            before,
            "log frames that the checkpoint holds cannot be read: they are not needed"
        );
        self.expected = before;
        Ok(go_on)
    }

    /// An error if a sector of what tells whether the log ends here cannot be read.
    fn prove_read(&self, read: &Patchy, within: Range<u64>) -> Result<(), OpenError> {
        read.prove_read(within).map_err(|error| self.io(error))
    }

    fn lost_frame(&self, segment: u32, offset: u64) -> OpenError {
        let at = self.layout.segment_offset(segment) + offset;
        self.damaged(format!(
            "log frame {} at device offset {at} cannot be read, though later frames prove that it was acknowledged",
            self.expected
        ))
    }

    fn apply(&mut self, transitions: &[Framed]) {
        self.applied += transitions.len() as u64;
        for (frame, transition) in transitions {
            if *frame >= self.anchor.frame_number {
                self.state.apply(transition, *frame);
                self.replayed += 1;
            }
        }
    }

    /// Frees what nothing points to.
    fn finish(mut self, tail: Tail) -> Recovered {
        self.state.slot_frames = None;
        let checkpoint = self.anchor.segments();
        for segment in &checkpoint {
            // The snapshot was taken before the checkpoint, or the next one, took its own segments.
            if self.state.segments.get(*segment).state == SegmentState::Free {
                self.state.segments.open(*segment, SegmentKind::Checkpoint, self.anchor.checkpoint_id, 0);
            }
            self.state.segments.get_mut(*segment).kind = SegmentKind::Checkpoint;
        }
        let others: Vec<u32> =
            checkpoint.iter().copied().chain([tail.segment]).chain(tail.reserved).collect();
        self.keys.claim(&mut self.state.segments, &others, self.anchor.frame_number, tail.segment);
        let mut prepared = self.state.segments.prepared();
        for segment in 0..self.layout.segments {
            let info = self.state.segments.get(segment);
            if info.state == SegmentState::Free {
                continue;
            }
            let in_log = info.kind == SegmentKind::Log && info.log_number >= self.anchor.log_number;
            let used_log = in_log && info.log_number < tail.log_number && segment != tail.segment;
            let in_runs = info.kind == SegmentKind::Keys && self.keys.names(segment);
            if info.live_units > 0 || used_log || in_runs || checkpoint.contains(&segment) {
                self.state.segments.close_early(segment); // How far it was filled is not known.
                prepared = prepared.max(segment + 1);
            } else {
                self.state.segments.release(segment);
            }
        }
        let highest = tail.segment.max(tail.reserved.unwrap_or(0));
        self.state.segments.set_prepared(prepared.max(highest + 1));
        let epoch =
            if is_planted(Bug::EpochUsedTwice) { self.epoch } else { self.epoch.max(self.log_epoch) + 1 };
        let Tail { segment, log_number, frame, reserved } = tail;
        let position = LogPosition { epoch, log_number, frame, segment, reserved };
        Recovered {
            state: self.state,
            anchor: self.anchor,
            anchor_copy: self.anchor_copy,
            position,
            keys: self.keys,
            replayed: self.replayed,
            version: Version { epoch, clock: 0 },
        }
    }
}
