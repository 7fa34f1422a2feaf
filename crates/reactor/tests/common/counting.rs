//! An allocator that counts what it moves, for tests of any crate: code of its kind stands in this one alone.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The system's allocator, which counts.
pub(crate) struct Counting;

/// Bytes of long blocks that were made longer, as they were before.
pub(crate) static MOVED_BYTES: AtomicUsize = AtomicUsize::new(0);
const LONG_BLOCK_BYTES: usize = 32 << 10;

// SAFETY: all of it is the system's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as the caller's.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        if layout.size() >= LONG_BLOCK_BYTES && bytes > layout.size() {
            MOVED_BYTES.fetch_add(layout.size(), Relaxed);
        }
        // SAFETY: as the caller's.
        unsafe { System.realloc(block, layout, bytes) }
    }
}
