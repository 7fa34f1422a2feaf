//! The frame that is being filled, in the memory that it is written from.
//!
//! Place on the path: appenders put records and notes into it; the log closes it and hands it to the writer.
//!
//! Invariant: it is empty until it is opened, and begins with room for the frame's header from then on.

use super::FRAME_BYTES_MAX;
use crate::format::UNIT_BYTES;
use crate::format::frame::FRAME_HEADER_BYTES;
use plimsoll_kv::Durability;
use plimsoll_reactor::Buf;

/// Where frames are so long, one has memory for the longest: it would be copied as it grows.
const LONG_BYTES: usize = 32 << 10;

/// The frame that is being filled.
pub(super) struct Building {
    /// Where it begins in its segment.
    pub(super) offset: u64,
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
    pub(super) fn new(offset: u64) -> Building {
        assert!(offset.is_multiple_of(UNIT_BYTES));
        Building {
            offset,
            bytes: Buf::default(),
            likely_bytes: 0,
            items: 0,
            opened_ns: 0,
            urgency: Durability::Async,
        }
    }

    /// Leaves room for the header, and takes memory for the first item, of so many bytes at most, and for
    /// those that are likely to follow.
    pub(super) fn open(&mut self, now_ns: u64, bytes: usize) {
        let likely_bytes = self.likely_bytes.max(FRAME_HEADER_BYTES + bytes);
        let is_short = likely_bytes < LONG_BYTES;
        let longest = FRAME_BYTES_MAX.max(FRAME_HEADER_BYTES + bytes);
        self.bytes = Buf::with_capacity(if is_short { likely_bytes } else { longest });
        self.bytes.append(FRAME_HEADER_BYTES).fill(0);
        self.opened_ns = now_ns;
    }
}
