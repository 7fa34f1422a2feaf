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

/// The frame that is being filled.
pub(super) struct Building {
    /// Where it begins in its segment.
    pub(super) offset: u64,
    /// The memory that it is written from: nothing is copied once more when it is closed.
    pub(super) bytes: Buf,
    /// Bytes that there is room for when it is opened: of the frame before.
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

    /// Leaves room for the header.
    pub(super) fn open(&mut self, now_ns: u64) {
        self.bytes = Buf::with_capacity(self.likely_bytes.min(FRAME_BYTES_MAX));
        self.bytes.append(FRAME_HEADER_BYTES).fill(0);
        self.opened_ns = now_ns;
    }
}
