//! Aligned memory for direct I/O.
//!
//! Role: owns a block of memory that O_DIRECT accepts, from the first byte written by the engine
//! to the completion of the operation. Freed blocks of a power of two of pages are kept a thread for
//! reuse, so that reads and writes of up to 256 KiB cost no system allocation.
//!
//! They come from one arena of the process while it lasts: the rings register it with the kernel, which
//! then need not pin a block's pages for every operation. Half of it is for short blocks, which most
//! reads take.
//!
//! Invariants: address and capacity are multiples of [`ALIGN_BYTES`]; memory is always
//! initialised (a fresh block is zeroed, a reused one holds old bytes of this process); the arena
//! is never freed, and a block of it goes back into a pool, never to the system allocator.

use crate::limits::ALIGN_BYTES;
use crate::non_temporal::copy_for_device;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::RefCell;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Blocks up to this many bytes are pooled.
const POOLED_BYTES_MAX: usize = 256 << 10;
/// Longer blocks, which frames of the log and cleaning take, get this part of the arena at most.
const SHORT_BLOCK_BYTES_MAX: usize = 64 << 10;
const LONG_BLOCKS_PART: usize = 2;
/// Blocks of each size that a thread keeps: many of those that reads take, few of those of log and cleaning.
const POOLED_BLOCKS_MAX: [usize; CLASSES] = [256, 256, 256, 256, 256, 8, 32];
const CLASSES: usize = 7;
const _: () = assert!(ALIGN_BYTES << (CLASSES - 1) == POOLED_BYTES_MAX);

thread_local! {
    static POOL: RefCell<[Vec<Block>; CLASSES]> = const { RefCell::new([const { Vec::new() }; CLASSES]) };
}

/// Memory for the pooled blocks of every core.
struct Arena {
    base: NonNull<u8>,
    bytes: usize,
    /// Bytes handed out; blocks are cut from the front and never come back here.
    used: AtomicUsize,
    /// Of them those of long blocks.
    used_by_long: AtomicUsize,
}

// SAFETY: the arena is plain memory, cut into disjoint blocks by an atomic counter.
unsafe impl Send for Arena {}
// SAFETY: as above; nothing is reached through a shared reference but the counter.
unsafe impl Sync for Arena {}

/// Absent where nobody made it: in the simulator and in tools.
static ARENA: OnceLock<Option<Arena>> = OnceLock::new();

/// The kernel pins memory by the page; big pages make for few.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Makes the arena of this process; the first call decides its size.
pub(crate) fn make_arena(bytes: usize) {
    ARENA.get_or_init(|| {
        allow_huge_pages(true);
        let arena = Arena::new(bytes);
        allow_huge_pages(false);
        match arena {
            Ok(arena) => Some(arena),
            Err(error) => {
                tracing::warn!(%error, "no arena: disk operations cost about a tenth more");
                None
            }
        }
    });
}

/// Big pages that the kernel takes by itself are for the arena alone. Elsewhere the first byte of one costs
/// a core the clearing of 2 MiB, on a virtual machine up to 6 ms: all clients wait for what one has sent.
fn allow_huge_pages(allowed: bool) {
    // A kernel without them has nothing to allow.
    let _ = rustix::thread::disable_transparent_huge_pages(!allowed);
}

/// Where the arena lies and how long it is.
pub(crate) fn arena() -> Option<(NonNull<u8>, usize)> {
    let arena = ARENA.get()?.as_ref()?;
    Some((arena.base, arena.bytes))
}

impl Arena {
    fn new(bytes: usize) -> std::io::Result<Arena> {
        use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
        assert!(bytes > 0 && bytes.is_multiple_of(ALIGN_BYTES));
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let mapped = bytes + HUGE_PAGE_BYTES;
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice overlaps nothing.
        let raw = unsafe { mmap_anonymous(std::ptr::null_mut(), mapped, access, MapFlags::PRIVATE) }?;
        let raw = NonNull::new(raw.cast::<u8>()).expect("the kernel maps nothing at null");
        let skipped = raw.as_ptr().align_offset(HUGE_PAGE_BYTES);
        assert!(skipped <= mapped - bytes);
        // SAFETY: `skipped` is less than a huge page, by which the mapping is longer than `bytes`.
        let base = unsafe { raw.add(skipped) };
        // SAFETY: advice on memory that we just mapped; it changes no content.
        let _ = unsafe { madvise(base.as_ptr().cast(), bytes, Advice::LinuxHugepage) };
        // Pinned by the rings soon; taken now, while big pages may be had.
        // SAFETY: writes nothing into pages that are there, and zeros into others, all of them ours.
        let _ = unsafe { madvise(base.as_ptr().cast(), bytes, Advice::LinuxPopulateWrite) };
        Ok(Arena { base, bytes, used: AtomicUsize::new(0), used_by_long: AtomicUsize::new(0) })
    }

    fn cut(&self, capacity: usize) -> Option<Block> {
        if capacity > SHORT_BLOCK_BYTES_MAX {
            take(&self.used_by_long, capacity, self.bytes / LONG_BLOCKS_PART)?;
        }
        let start = take(&self.used, capacity, self.bytes)?;
        // SAFETY: `start + capacity` lies within the mapping; the counter gives each range once.
        let address = unsafe { self.base.add(start) };
        Some(Block { address, capacity, origin: Origin::Arena })
    }
}

/// Takes so many bytes of at most so many; how many were taken before, if they are to be had.
fn take(used: &AtomicUsize, bytes: usize, bytes_max: usize) -> Option<usize> {
    // Looked at first, so that what is exhausted costs no locked addition.
    if used.load(Ordering::Relaxed) + bytes > bytes_max {
        return None;
    }
    let before = used.fetch_add(bytes, Ordering::Relaxed);
    (before + bytes <= bytes_max).then_some(before)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    Heap,
    Arena,
}

struct Block {
    address: NonNull<u8>,
    capacity: usize,
    origin: Origin,
}

// SAFETY: a Block is plain owned memory; nothing about it is tied to the thread that made it.
unsafe impl Send for Block {}

impl Block {
    fn layout(capacity: usize) -> Layout {
        Layout::from_size_align(capacity, ALIGN_BYTES).expect("capacity is bounded far below isize::MAX")
    }

    fn new(capacity: usize) -> Block {
        assert!(capacity > 0 && capacity.is_multiple_of(ALIGN_BYTES));
        if class_of(capacity).is_some() // Else it would not come back into a pool.
            && let Some(arena) = ARENA.get().and_then(Option::as_ref)
            && let Some(block) = arena.cut(capacity)
        {
            return block;
        }
        let layout = Block::layout(capacity);
        // SAFETY: the layout has a size above zero, asserted above.
        let raw = unsafe { alloc_zeroed(layout) };
        let address = NonNull::new(raw).unwrap_or_else(|| handle_alloc_error(layout));
        Block { address, capacity, origin: Origin::Heap }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if self.origin == Origin::Arena {
            return; // Its thread is ending: the arena's memory ends with the process.
        }
        // SAFETY: allocated in `new` from the heap with the same layout, freed once.
        unsafe { dealloc(self.address.as_ptr(), Block::layout(self.capacity)) }
    }
}

fn class_of(capacity: usize) -> Option<usize> {
    let pages = capacity / ALIGN_BYTES;
    (pages.is_power_of_two() && capacity <= POOLED_BYTES_MAX).then(|| pages.trailing_zeros() as usize)
}

/// An aligned, initialised block of memory with a length.
#[derive(Default)]
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

    /// A block of `len` bytes: the parts one after the other, then zeros.
    #[must_use]
    pub fn padded(parts: &[&[u8]], len: usize) -> Buf {
        let mut buf = Buf::for_read(len);
        let mut at = 0;
        for part in parts {
            copy_for_device(&mut buf[at..at + part.len()], part);
            at += part.len();
        }
        buf[at..].fill(0);
        buf
    }

    /// An empty block with room for so many bytes, to be appended to.
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Buf {
        let mut buf = Buf::for_read(capacity);
        buf.len = 0;
        buf
    }

    /// Makes the block longer by `more` bytes of unspecified content, and gives those. Without room it
    /// moves to one of twice the size.
    pub fn append(&mut self, more: usize) -> &mut [u8] {
        let (before, len) = (self.len, self.len + more);
        let capacity = self.block.as_ref().map_or(0, |block| block.capacity);
        if len > capacity {
            let mut longer = Buf::for_read(len.max(2 * capacity));
            longer[..before].copy_from_slice(self);
            *self = longer;
        }
        self.len = len;
        &mut self[before..]
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
            // Blocks of the arena are always kept: the arena bounds them.
            if let Ok(mut pool) = pool.try_borrow_mut()
                && (pool[class].len() < POOLED_BLOCKS_MAX[class] || block.origin == Origin::Arena)
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

impl AsRef<[u8]> for Buf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl std::fmt::Debug for Buf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buf({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_appended_stays_where_it_is() {
        let (mut buf, mut model) = (Buf::with_capacity(100), Vec::new());
        for step in 0..400_usize {
            let more = [0, 1, 700, 4096, 5000][step % 5];
            buf.append(more).fill(step as u8);
            model.resize(model.len() + more, step as u8);
            assert!(buf.as_ptr().addr().is_multiple_of(ALIGN_BYTES));
        }
        assert!(*buf == *model);
        let mut empty = Buf::default();
        assert!(empty.append(0).is_empty() && empty.is_empty());
        empty.append(3).copy_from_slice(b"abc");
        assert_eq!(*empty, *b"abc");
    }

    /// A block that is used again holds what was in it: nothing of that is written.
    #[test]
    fn padding_holds_nothing_old() {
        for len in [512, 8192, 200 << 10, 300 << 10] {
            let mut old = Buf::zeroed(len);
            old.fill(7);
            drop(old);
            let buf = Buf::padded(&[b"ab", b"", b"c"], len);
            assert!(buf.len() == len && buf.starts_with(b"abc") && buf[3..].iter().all(|byte| *byte == 0));
        }
    }
}
