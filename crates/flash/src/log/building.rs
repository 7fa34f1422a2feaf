//! The frame that is being filled, in the memory that it is written from.
//!
//! Place on the path: appenders put records and notes into it; the log closes it and hands it to the writer.
//!
//! Invariant: it is empty until it is opened, and begins with room for headers from then on: the segment's,
//! if it is the first frame of one, then the frame's.

use super::FRAME_BYTES_MAX;
use crate::format::UNIT_BYTES;
use crate::format::frame::FRAME_HEADER_BYTES;
use plimsoll_kv::Durability;
use plimsoll_reactor::Buf;

/// Where frames are so long, one has memory for the longest: it would be copied as it grows.
const LONG_BYTES: usize = 32 << 10;

/// The frame that is being filled.
pub(super) struct Building {
    /// Where its memory is written to in its segment.
    pub(super) offset: u64,
    /// Bytes before the frame, for the segment's header: a block in the first frame of a segment, else none.
    pub(super) head_bytes: usize,
    /// The memory that it is written from: nothing is copied once more when it is closed.
    pub(super) bytes: Buf,
    /// Bytes that there is room for when it is opened: about the most that frames before had lately.
    pub(super) likely_bytes: usize,
    pub(super) items: u32,
    /// Opened when its first item came.
    pub(super) opened_ns: u64,
    /// The most urgent durability asked of it.
    pub(super) urgency: Durability,
}

impl Building {
    /// The first frame of a segment, behind so many bytes for the segment's header.
    pub(super) fn first(head_bytes: u64) -> Building {
        Building {
            offset: 0,
            head_bytes: head_bytes as usize,
            bytes: Buf::default(),
            likely_bytes: 0,
            items: 0,
            opened_ns: 0,
            urgency: Durability::Async,
        }
    }

    /// The frame after this one, at this offset of the same segment.
    pub(super) fn next(&self, offset: u64) -> Building {
        assert!(offset > 0 && offset.is_multiple_of(UNIT_BYTES), "the segment's header comes first");
        Building { offset, ..self.next_first(0) }
    }

    /// The frame after this one, as the first of the next segment.
    pub(super) fn next_first(&self, head_bytes: u64) -> Building {
        let likely_bytes = self.bytes.len().max(self.likely_bytes - self.likely_bytes / 4);
        Building { likely_bytes, ..Building::first(head_bytes) }
    }

    /// True if it is the first frame of its segment.
    pub(super) fn is_first(&self) -> bool {
        self.head_bytes > 0
    }

    /// Bytes up to the frame's first item.
    pub(super) fn headers_bytes(&self) -> usize {
        self.head_bytes + FRAME_HEADER_BYTES
    }

    /// Leaves room for the headers, and takes memory for the first item, of so many bytes at most, and for
    /// those that are likely to follow: twice as many, as a frame that outgrows it is copied.
    pub(super) fn open(&mut self, now_ns: u64, bytes: usize) {
        let likely_bytes = self.likely_bytes.max(self.headers_bytes() + bytes);
        let is_short = likely_bytes < LONG_BYTES;
        let longest = FRAME_BYTES_MAX.max(self.headers_bytes() + bytes);
        self.bytes = Buf::with_capacity(if is_short { 2 * likely_bytes } else { longest });
        self.bytes.append(self.headers_bytes()).fill(0);
        self.opened_ns = now_ns;
    }
}
