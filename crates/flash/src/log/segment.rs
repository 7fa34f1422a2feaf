//! The segments of the log: their headers, going on in the next one, the summary of the one before.
//!
//! Place on the path: below the appenders; a few times a second.
//!
//! Invariants: the next segment is reserved before the present one is begun, and named by its header; a
//! footer is written after all frames of its segment are durable, so that it proves them.

use super::{Log, Tail};
use crate::format::chain::put_varint;
use crate::format::segment::SEGMENT_HEADER_BYTES;
use crate::format::{
    Chain, SegmentFooter, SegmentHeader, SegmentKind, Transition, UNIT_BYTES, crc32c, round_up,
};
use crate::segments::{KEPT_MIN, SegmentTable};
use plimsoll_kv::block::Origin;
use plimsoll_kv::{Error, Result};
use plimsoll_reactor::{Buf, Work};
use std::rc::Rc;

impl Log {
    /// Adds a transition to the summary of the segment.
    pub(super) fn summarise(&self, tail: &mut Tail, transition: &Transition) {
        let frame = self.frame.get();
        put_varint(&mut tail.summary, frame - tail.summary_frame);
        tail.summary_frame = frame;
        tail.summary_chain.encode(transition, &mut tail.summary);
    }

    /// The header of the segment being filled.
    pub(super) fn segment_header(&self, tail: &Tail) -> [u8; SEGMENT_HEADER_BYTES] {
        let header = SegmentHeader {
            kind: SegmentKind::Log,
            segment: tail.segment,
            sequence: tail.sequence,
            epoch: self.epoch,
            next_segment: tail.next_segment,
            log_number: tail.log_number,
            first_frame: self.frame.get(),
            durable_frame: self.durable.get(),
            created_ms: self.reactor.wall_ms(),
        };
        header.encode(self.layout.identity)
    }

    /// Makes the header of the segment being filled durable before its first frame is written. To be called
    /// where an earlier life has left a header and frames that hold nothing: if a first frame were torn
    /// under that header, the frames behind it would prove that something is lost (seed 11012).
    pub(crate) async fn begin_anew(&self) -> std::io::Result<()> {
        let (offset, header) = {
            let tail = self.tail.borrow();
            (self.layout.segment_offset(tail.segment), self.segment_header(&tail))
        };
        let buf = Buf::padded(&[&header], self.layout.block_bytes as usize);
        self.block.write(Origin::FOREGROUND, offset, Rc::new(buf), true).await
    }

    /// Closes the segment being filled and goes on in the next.
    ///
    /// # Errors
    /// `NoSpace`: no segment is free to be reserved.
    pub fn roll(self: &Rc<Self>, segments: &mut SegmentTable) -> Result<()> {
        self.next_segment(&mut self.tail.borrow_mut(), segments, false)
    }

    /// Goes on in the reserved segment, after closing the current one: because what comes next does not fit
    /// it, or sooner.
    pub(super) fn next_segment(
        self: &Rc<Self>,
        tail: &mut Tail,
        segments: &mut SegmentTable,
        is_full: bool,
    ) -> Result<()> {
        let frame = self.frame.get();
        let reserved = segments.allocate(SegmentKind::Log, 0, frame, KEPT_MIN - 1).ok_or(Error::NoSpace)?;
        if !tail.building.bytes.is_empty() {
            self.close_frame(tail);
        }
        let summary_bytes = self.write_summary(tail, segments);
        let left_bytes = self.layout.segment_bytes - summary_bytes - tail.building.offset;
        segments.close_log(tail.segment, if is_full { left_bytes / UNIT_BYTES } else { 0 });
        tail.segment = std::mem::replace(&mut tail.next_segment, reserved);
        tail.sequence = self.take_sequence();
        tail.log_number += 1;
        (tail.summary_frame, tail.summary_chain) = (self.frame.get(), Chain::default());
        let info = segments.get_mut(tail.segment);
        (info.sequence, info.log_number, info.opened_frame) = (tail.sequence, tail.log_number, frame);
        tail.building = tail.building.next_first(self.layout.block_bytes);
        self.work.wake_all();
        Ok(())
    }

    /// Writes summary and footer of the segment being closed, once all its frames are durable, so
    /// that a footer proves them. Nobody waits for it: without it recovery walks the frames.
    /// The bytes that both take.
    fn write_summary(self: &Rc<Self>, tail: &mut Tail, segments: &SegmentTable) -> u64 {
        let block = self.layout.block_bytes;
        let summary = std::mem::take(&mut tail.summary);
        let summary_bytes = round_up(summary.len() as u64, block);
        let mut buf = Buf::zeroed((summary_bytes + block) as usize);
        buf[..summary.len()].copy_from_slice(&summary);
        let footer = SegmentFooter {
            sequence: tail.sequence,
            last_frame: self.frame.get() - 1,
            transitions_bytes: summary.len() as u32,
            transitions_crc: crc32c(&summary),
            summary_bytes: summary_bytes as u32,
        };
        let encoded = footer.encode(self.layout.identity);
        buf[summary_bytes as usize..summary_bytes as usize + encoded.len()].copy_from_slice(&encoded);
        let end = self.layout.segment_offset(tail.segment) + self.layout.segment_bytes;
        let offset = end - summary_bytes - block;
        let guard = segments.guard(self.layout.location(tail.segment, 0));
        let (log, last_frame) = (self.clone(), footer.last_frame);
        self.reactor.spawn(Work::Device, async move {
            if log.wait_durable(last_frame).await.is_err() {
                return;
            }
            let write = log.block.write(Origin::BACKGROUND, offset, Rc::new(buf), false);
            if let Err(error) = write.await {
                tracing::warn!(%error, "a segment's summary was not written; recovery will walk its frames");
            }
            drop(guard);
        });
        summary_bytes + block
    }
}
