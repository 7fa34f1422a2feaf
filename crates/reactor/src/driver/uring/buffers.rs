//! Buffers that a core's idle connections share.
//!
//! Role: a ring of buffers from which the kernel takes one when bytes have arrived, so that a
//! connection that waits holds no memory. Place on the path: the very first copy of a request.
//!
//! Invariants: a buffer is the kernel's from [`ReceiveBuffers::give_back`] to a completion that
//! names it, and ours from there to the next `give_back`; each completion that names a buffer is
//! followed by exactly one `give_back`, whatever its result.

use crate::buf::Buf;
use crate::limits::ALIGN_BYTES;
use io_uring::{Submitter, types::BufRingEntry};
use std::io;
use std::sync::atomic::{AtomicU16, Ordering};

/// Buffers a core. When all are taken, receives fall back to memory of their own.
const BUFFERS_MAX: u16 = 256;
/// Bytes of each: a common request fits; larger ones are announced and received directly.
pub(super) const BUFFER_BYTES: usize = 16 << 10;
/// The group the ring is registered as.
pub(super) const GROUP: u16 = 0;

const _: () = assert!(BUFFERS_MAX.is_power_of_two());
const _: () = assert!(BUFFERS_MAX as usize * size_of::<BufRingEntry>() <= ALIGN_BYTES);

pub(super) struct ReceiveBuffers {
    /// The ring shared with the kernel: one page of entries.
    entries: Buf,
    bytes: Vec<u8>,
    tail: u16,
}

impl ReceiveBuffers {
    /// Registers the buffers with a ring, which must be dropped before them.
    pub(super) fn register(submitter: &Submitter<'_>) -> io::Result<ReceiveBuffers> {
        let mut buffers = ReceiveBuffers::new();
        let address = buffers.entries.as_mut_ptr() as u64;
        // SAFETY: the page is aligned, large enough for the entries (asserted above), and lives
        // until the ring is gone, as this function's caller promises.
        unsafe { submitter.register_buf_ring_with_flags(address, BUFFERS_MAX, GROUP, 0) }?;
        for id in 0..BUFFERS_MAX {
            buffers.give_back(id);
        }
        Ok(buffers)
    }

    pub(super) fn new() -> ReceiveBuffers {
        let bytes = vec![0; BUFFERS_MAX as usize * BUFFER_BYTES];
        ReceiveBuffers { entries: Buf::zeroed(ALIGN_BYTES), bytes, tail: 0 }
    }

    /// The first `len` bytes of a buffer that a completion named.
    pub(super) fn received(&self, id: u16, len: usize) -> &[u8] {
        assert!(id < BUFFERS_MAX && len <= BUFFER_BYTES);
        let start = id as usize * BUFFER_BYTES;
        &self.bytes[start..start + len]
    }

    /// Lets the kernel fill the buffer again.
    pub(super) fn give_back(&mut self, id: u16) {
        assert!(id < BUFFERS_MAX);
        let address = self.bytes[id as usize * BUFFER_BYTES..].as_mut_ptr() as u64;
        let base = self.entries.as_mut_ptr().cast::<BufRingEntry>();
        let index = (self.tail & (BUFFERS_MAX - 1)) as usize;
        // SAFETY: the index is below BUFFERS_MAX, so the entry lies in the page; any bytes are a
        // valid entry. The kernel does not read this entry before it sees the tail stored below.
        let entry = unsafe { &mut *base.add(index) };
        entry.set_addr(address);
        entry.set_len(BUFFER_BYTES as u32);
        entry.set_bid(id);
        self.tail = self.tail.wrapping_add(1);
        // SAFETY: the kernel defines the tail as a field of the first entry, aligned for u16, in
        // a page that we own; this thread alone writes it and the kernel reads it atomically.
        let tail = unsafe { AtomicU16::from_ptr(BufRingEntry::tail(base).cast_mut()) };
        tail.store(self.tail, Ordering::Release);
    }

    /// How many were given back since it was made.
    #[cfg(test)]
    pub(super) fn given_back(&self) -> u16 {
        self.tail
    }
}
