//! Memory: where it comes from, and that what was long goes back to the system at once.
//!
//! Role: the allocator of the binary. Place on the path: below everything. mimalloc keeps what was freed for
//! a second, and until somebody allocates again: a server whose clients sent long commands and were cut took
//! two to three times what clients may hold, and stayed there while it was idle. To keep nothing costs a
//! durable SET of 1 KiB a fifth more processor time; so that is done for long blocks alone, and for those
//! that are discarded, which few operations have.
//!
//! Never: a block that is in use is touched.

use mimalloc::MiMalloc;
use rustix::mm::{Advice, madvise};
use std::alloc::{GlobalAlloc, Layout};
use std::ops::Range;

/// Blocks of so many bytes go back at once: more than any record or part of a value has.
const LONG_BLOCK_BYTES: usize = 4 << 20;

/// mimalloc, which gives long blocks back when they are freed.
pub struct Allocator;

// SAFETY: all of it is mimalloc's; a block's pages are given up only when it is freed, or nothing is in it.
unsafe impl GlobalAlloc for Allocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller's.
        unsafe { MiMalloc.alloc(layout) }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller's.
        unsafe { MiMalloc.alloc_zeroed(layout) }
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if layout.size() >= LONG_BLOCK_BYTES {
            // SAFETY: the caller gives the block up, and it is as long as it says.
            unsafe { give_back(block, layout.size()) };
        }
        // SAFETY: as the caller's.
        unsafe { MiMalloc.dealloc(block, layout) }
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // SAFETY: as the caller's.
        unsafe { MiMalloc.realloc(block, layout, bytes) }
    }
}

/// The pages of a range of what an empty vector has room for become the system's, before it is freed.
pub(crate) fn give_back_spare(block: &mut Vec<u8>, range: Range<usize>) {
    let spare = &mut block.spare_capacity_mut()[range];
    // SAFETY: nothing is there, and nobody else has it.
    unsafe { give_back(spare.as_mut_ptr().cast(), spare.len()) }
}

/// The pages of a block that are all its own become the system's: whoever gets it next finds zeros there.
///
/// # Safety
/// It is a block of so many bytes that nobody uses any more.
#[cold]
unsafe fn give_back(block: *mut u8, bytes: usize) {
    let page = rustix::param::page_size();
    let before = block.align_offset(page);
    let whole = bytes.saturating_sub(before) / page * page;
    if whole > 0 {
        // SAFETY: the range lies in the block. That the system refuses it changes nothing.
        let _ = unsafe { madvise(block.add(before).cast(), whole, Advice::LinuxDontNeed) };
    }
}

/// Gives back what this thread has freed and the allocator has kept for longer than a second. For who knows
/// that much was: nobody else does it while the thread rests.
pub fn give_back_kept_memory() {
    // SAFETY: it takes no memory that is in use.
    unsafe { mi_collect(false) };
}

// SAFETY: as mimalloc.h declares it. The crate declares it too, for who takes another crate of C's types.
unsafe extern "C" {
    fn mi_collect(force: bool);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_block_that_was_freed_is_of_zeros_and_can_be_had_again() {
        let layout = Layout::from_size_align(LONG_BLOCK_BYTES + 5, 8).unwrap();
        for round in 0..3_u8 {
            // SAFETY: the block is used within its layout, and freed once.
            unsafe {
                let block = Allocator.alloc(layout);
                assert!(!block.is_null());
                block.write_bytes(round + 1, layout.size());
                let longer = Allocator.realloc(block, layout, layout.size() * 2);
                let longer_layout = Layout::from_size_align(layout.size() * 2, 8).unwrap();
                assert_eq!((longer.read(), longer.add(layout.size() - 1).read()), (round + 1, round + 1));
                give_back(longer, longer_layout.size());
                assert_eq!(longer.add(longer_layout.size() / 2).read(), 0, "its pages went");
                Allocator.dealloc(longer, longer_layout);
            }
        }
        give_back_kept_memory();
    }
}
