//! The end of the log: is it where the log ended, or where damage hides that it went on?
//!
//! Place: the last step of replay. What was acknowledged is never taken for a torn tail: later frames
//! and headers state what was durable before them, and what they state must have been found.
//!
//! Invariant: frames and headers of an earlier epoch than the log's last prove nothing: lives that end
//! early write their frames over those of earlier ones that held nothing.
//!
//! A sector that cannot be read proves nothing: the log was walked to its end before, and was read so far.
//!
//! Never: it changes anything.

use super::{OpenError, Recovery};
use crate::format::{DecodeError, SegmentHeader, SegmentKind};
use crate::segments::SegmentState;
use crate::walk::{durable_stated_after, durable_stated_since, read_header, read_segment_around};
use futures_util::future::join_all;
use plimsoll_kv::block::Origin;

/// Above the highest segment in use, the log can have gone on in one of so many.
const UNREACHED_SEGMENTS_MAX: u32 = 64;
/// Segment headers read at a time.
const HEADERS_AT_A_TIME: usize = 64;

/// A log segment that was not closed.
pub(super) struct OpenEnd {
    pub(super) segment: u32,
    /// Where the first frame that is not whole would stand.
    pub(super) offset: u64,
    pub(super) bytes: Vec<u8>,
    pub(super) sequence: u64,
    pub(super) first_frame: u64,
}

impl Recovery<'_> {
    /// The log never takes a segment that the anchor in force names. If it did, that one was replaced,
    /// and the anchors written since are lost (seed 9592).
    pub(super) fn check_anchor(&self, next_segment: u32) -> Result<(), OpenError> {
        if self.anchor.segments().contains(&next_segment) || self.keys.names(next_segment) {
            return Err(self.damaged(format!(
                "the log goes on in segment {next_segment}, which the anchor names: newer anchors are lost"
            )));
        }
        Ok(())
    }

    /// The checkpoint was put in force when all that its tables hold was durable in the log: so the log
    /// does not end before it.
    pub(super) fn check_tables(&self) -> Result<(), OpenError> {
        if self.expected < self.held_by_tables() {
            return Err(self.damaged(format!(
                "log frame {} cannot be found, though the checkpoint holds what came after it",
                self.expected
            )));
        }
        Ok(())
    }

    /// The first frame whose transitions none of the tables holds.
    pub(super) fn held_by_tables(&self) -> u64 {
        self.state.slot_frames.iter().flatten().copied().max().unwrap_or(0)
    }

    /// At the end of the log: nothing may state that the next frame was durable.
    pub(super) fn check_end(&self, open_end: Option<OpenEnd>, durable_stated: u64) -> Result<(), OpenError> {
        let Some(OpenEnd { segment, offset, bytes, sequence, first_frame }) = open_end else {
            return Ok(());
        };
        let stated = durable_stated_after(&bytes, &self.layout, segment, sequence, offset);
        // A later life that began the segment anew made its first frame durable before all others: if
        // one of them says so, the header that was to be found is the later one.
        let later = durable_stated_since(&bytes, &self.layout, segment, self.log_epoch + 1);
        if stated.max(durable_stated) >= self.expected || later >= first_frame {
            return Err(self.lost_frame(segment, offset));
        }
        Ok(())
    }

    /// At the end of the log: the segment in which it would go on has no header of the log. If
    /// frames in it state that the next frame was durable, it had one, and it is damaged.
    pub(super) async fn check_headless(&self, segment: u32) -> Result<(), OpenError> {
        let read = read_segment_around(self.block, &self.layout, segment, Origin::FOREGROUND).await;
        let bytes = read.map_err(|error| self.io(error))?.bytes;
        if durable_stated_since(&bytes, &self.layout, segment, self.log_epoch) >= self.expected {
            return Err(self.damaged(format!(
                "the header of log segment {segment} cannot be read, though frames in it prove that log frame {} was acknowledged",
                self.expected
            )));
        }
        Ok(())
    }

    /// At the end of the log: segments after it may prove that it went on, and the way to them may be
    /// lost with a header. They were free when the log took them, lowest first; so they are looked for.
    pub(super) async fn check_unreached(&self) -> Result<(), OpenError> {
        let epoch = self.log_epoch.max(self.anchor.epoch);
        let table = &self.state.segments;
        let used = |segment: &u32| table.get(*segment).state != SegmentState::Free;
        let highest = (0..self.layout.segments).rfind(used).unwrap_or(0).max(self.anchor.log_segment);
        let end = self.layout.segments.min(highest + UNREACHED_SEGMENTS_MAX);
        let empty: Vec<u32> = (0..end).filter(|segment| table.get(*segment).live_units == 0).collect();
        for some in empty.chunks(HEADERS_AT_A_TIME) {
            let read = some.iter().map(|segment| read_header(self.block, &self.layout, *segment));
            for (segment, header) in some.iter().zip(join_all(read).await) {
                let is_later = |header: &SegmentHeader| {
                    header.kind == SegmentKind::Log
                        && header.first_frame >= self.expected
                        && header.epoch >= epoch
                };
                let header = header.unwrap_or_else(|error| {
                    tracing::warn!(partition = self.layout.partition, segment, %error, "a header cannot be read");
                    Err(DecodeError::Absent("segment header"))
                });
                let Some(header) = header.ok().filter(is_later) else { continue };
                let read = read_segment_around(self.block, &self.layout, *segment, Origin::FOREGROUND).await;
                let bytes = read.map_err(|error| self.io(error))?.bytes;
                let stated = durable_stated_since(&bytes, &self.layout, *segment, epoch);
                if stated.max(header.durable_frame) >= self.expected {
                    return Err(self.damaged(format!(
                        "log frame {} cannot be found, though segment {segment} proves that it was acknowledged",
                        self.expected
                    )));
                }
            }
        }
        Ok(())
    }
}
