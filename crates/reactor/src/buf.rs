//! Aligned memory for direct I/O.
//!
//! Role: owns a block of memory that O_DIRECT accepts, from the first byte written by the engine
//! to the completion of the operation. Freed blocks of the common sizes are kept a thread for
//! reuse, so that a read costs no system allocation.
//!
//! Invariants: address and capacity are multiples of [`ALIGN_BYTES`]; memory is always
//! initialised (a fresh block is zeroed, a reused one holds old bytes of this process).

use crate::limits::ALIGN_BYTES;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::RefCell;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Blocks up to this many bytes are pooled.
const POOLED_BYTES_MAX: usize = 64 << 10;
/// Blocks kept for each size: 256 x 64 KiB bounds a thread's pool to 16 MiB a size class.
const POOLED_BLOCKS_MAX: usize = 256;
const CLASSES: usize = 5;
const _: () = assert!(ALIGN_BYTES << (CLASSES - 1) == POOLED_BYTES_MAX);

thread_local! {
    static POOL: RefCell<[Vec<Block>; CLASSES]> = const { RefCell::new([const { Vec::new() }; CLASSES]) };
}

struct Block {
    address: NonNull<u8>,
    capacity: usize,
}

// SAFETY: a Block is plain owned memory; nothing about it is tied to the thread that made it.
unsafe impl Send for Block {}

impl Block {
    fn layout(capacity: usize) -> Layout {
        Layout::from_size_align(capacity, ALIGN_BYTES).expect("capacity is bounded far below isize::MAX")
    }

    fn new(capacity: usize) -> Block {
        assert!(capacity > 0 && capacity.is_multiple_of(ALIGN_BYTES));
        let layout = Block::layout(capacity);
        // SAFETY: the layout has a size above zero, asserted above.
        let raw = unsafe { alloc_zeroed(layout) };
        let address = NonNull::new(raw).unwrap_or_else(|| handle_alloc_error(layout));
        Block { address, capacity }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with the same layout, freed once.
        unsafe { dealloc(self.address.as_ptr(), Block::layout(self.capacity)) }
    }
}

fn class_of(capacity: usize) -> Option<usize> {
    let pages = capacity / ALIGN_BYTES;
    (pages.is_power_of_two() && capacity <= POOLED_BYTES_MAX).then(|| pages.trailing_zeros() as usize)
}

/// An aligned, initialised block of memory with a length.
pub struct Buf {
    block: Option<Block>,
    len: usize,
}

impl Buf {
    /// A block of `len` bytes whose content is unspecified (but initialised): for reads.
    #[must_use]
    pub fn for_read(len: usize) -> Buf {
        if len == 0 {
            return Buf { block: None, len };
        }
        let pages = len.div_ceil(ALIGN_BYTES);
        let capacity = if len <= POOLED_BYTES_MAX { pages.next_power_of_two() } else { pages } * ALIGN_BYTES;
        let pooled = class_of(capacity).and_then(|class| POOL.with_borrow_mut(|pool| pool[class].pop()));
        Buf { block: Some(pooled.unwrap_or_else(|| Block::new(capacity))), len }
    }

    /// A block of `len` zero bytes: for writes, so that padding never leaks old memory.
    #[must_use]
    pub fn zeroed(len: usize) -> Buf {
        let mut buf = Buf::for_read(len);
        buf.fill(0);
        buf
    }

    /// Shortens the block to its first `len` bytes.
    pub fn truncate(&mut self, len: usize) {
        assert!(len <= self.len);
        self.len = len;
    }
}

impl Drop for Buf {
    fn drop(&mut self) {
        let Some(block) = self.block.take() else {
            return;
        };
        let Some(class) = class_of(block.capacity) else {
            return;
        };
        // The pool is gone while a thread shuts down: the block is then freed by its own drop.
        let _ = POOL.try_with(|pool| {
            if let Ok(mut pool) = pool.try_borrow_mut()
                && pool[class].len() < POOLED_BLOCKS_MAX
            {
                pool[class].push(block);
            }
        });
    }
}

impl Deref for Buf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match &self.block {
            None => &[],
            // SAFETY: the block holds `capacity >= len` initialised bytes and lives as long as self.
            Some(block) => unsafe { std::slice::from_raw_parts(block.address.as_ptr(), self.len) },
        }
    }
}

impl DerefMut for Buf {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.block {
            None => &mut [],
            // SAFETY: as in `deref`, and self is borrowed uniquely.
            Some(block) => unsafe { std::slice::from_raw_parts_mut(block.address.as_ptr(), self.len) },
        }
    }
}

impl std::fmt::Debug for Buf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buf({} bytes)", self.len)
    }
}
