//! Files and block devices opened for direct I/O.
//!
//! Role: reads, writes and flushes of aligned blocks. Place on the path: under the block-device
//! trait of `kv`, above the operations in flight.
//!
//! Invariants: offset, length and memory are multiples of the device's block size; a read is
//! whole or an error, a write likewise; counters count what was asked of the device; of a file that
//! was retired nothing is asked any more.

use crate::buf::Buf;
use crate::limits::IO_BYTES_MAX;
use crate::ops::{FileId, Op, OpFuture};
use crate::reactor::Reactor;
use std::cell::Cell;
use std::io;
use std::rc::Rc;

/// How to open a file.
#[derive(Clone, Debug, Default)]
pub struct FileOptions {
    /// Make the file, at this many bytes, if it does not exist. Space is reserved, not written.
    pub create_bytes: Option<u64>,
    /// Open for reading alone, without the lock that keeps two servers off one device.
    pub read_only: bool,
}

/// What was asked of a file since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileStats {
    /// Read operations.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Write operations.
    pub writes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Flushes, and writes that flush themselves.
    pub flushes: u64,
}

/// What a driver tells of a file it opened.
pub(crate) struct Opened {
    pub(crate) id: FileId,
    pub(crate) size_bytes: u64,
    pub(crate) block_bytes: u32,
    pub(crate) created: bool,
}

/// An open file or block device. Clones share it; the last one closes it.
#[derive(Clone)]
pub struct File(Rc<FileInner>);

struct FileInner {
    reactor: Reactor,
    id: FileId,
    path: String,
    size_bytes: u64,
    block_bytes: u32,
    created: bool,
    stats: Cell<FileStats>,
}

impl Drop for FileInner {
    fn drop(&mut self) {
        if let Ok(mut ops) = self.reactor.0.ops.try_borrow_mut() {
            ops.closed(self.id);
        }
        // During `close` the driver is already borrowed and frees everything itself.
        if let Ok(mut driver) = self.reactor.0.driver.try_borrow_mut() {
            driver.close_file(self.id);
        }
    }
}

impl Reactor {
    /// Opens a file or block device for direct I/O. Blocks shortly: for start-up only.
    ///
    /// # Errors
    /// As `open(2)`; `WouldBlock` if another process holds the device's lock.
    pub fn open_file(&self, path: &str, options: &FileOptions) -> io::Result<File> {
        let opened = self.0.driver.borrow_mut().open_file(path, options)?;
        assert!(opened.block_bytes.is_power_of_two() && opened.block_bytes >= 512);
        Ok(File(Rc::new(FileInner {
            reactor: self.clone(),
            id: opened.id,
            path: path.to_owned(),
            size_bytes: opened.size_bytes,
            block_bytes: opened.block_bytes,
            created: opened.created,
            stats: Cell::default(),
        })))
    }
}

impl File {
    /// The path it was opened by.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.0.path
    }
    /// Its size in bytes.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.0.size_bytes
    }
    /// The unit of direct I/O in bytes.
    #[must_use]
    pub fn block_bytes(&self) -> u32 {
        self.0.block_bytes
    }
    /// True if opening made it.
    #[must_use]
    pub fn created(&self) -> bool {
        self.0.created
    }
    /// What was asked of it.
    #[must_use]
    pub fn stats(&self) -> FileStats {
        self.0.stats.get()
    }

    /// From here on nothing is asked of it through this or any clone: that is an error. For who opens the
    /// same device anew, while somebody may still have it as it was.
    pub fn retire(&self) {
        self.0.reactor.0.ops.borrow_mut().retire(self.0.id);
    }
    /// Reads, writes and flushes that have not ended, those that nobody waits for included.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.0.reactor.0.ops.borrow().in_flight_of(self.0.id)
    }

    /// Reads, writes and flushes that have ended, well or not, those that nobody waited for included.
    #[must_use]
    pub fn answered(&self) -> u64 {
        self.0.reactor.0.ops.borrow().answered_of(self.0.id)
    }

    fn count(&self, change: impl FnOnce(&mut FileStats)) {
        let mut stats = self.0.stats.get();
        change(&mut stats);
        self.0.stats.set(stats);
    }

    fn check(&self, offset: u64, len: usize) {
        let block = u64::from(self.0.block_bytes);
        assert!(len > 0 && len <= IO_BYTES_MAX, "transfer of {len} bytes");
        assert!(offset.is_multiple_of(block) && (len as u64).is_multiple_of(block), "unaligned transfer");
        assert!(offset + len as u64 <= self.0.size_bytes, "transfer past the end of the device");
    }

    /// Reads `len` bytes at `offset`.
    ///
    /// # Errors
    /// The device's error; nothing was read then.
    pub async fn read(&self, offset: u64, len: usize) -> io::Result<Buf> {
        self.check(offset, len);
        self.count(|s| (s.reads, s.read_bytes) = (s.reads + 1, s.read_bytes + len as u64));
        let op = Op::Read { file: self.0.id, offset, buf: Buf::for_read(len) };
        let (result, op) = OpFuture::new(self.0.reactor.clone(), op).await;
        let Op::Read { buf, .. } = op else { unreachable!("an operation keeps its kind") };
        let count = result?;
        assert_eq!(count, len as u64, "drivers complete reads whole");
        Ok(buf)
    }

    /// Writes `buf` at `offset`; with `durable` it is on stable media when this returns.
    ///
    /// # Errors
    /// The device's error; any part of the range may hold old or new bytes then.
    pub async fn write(&self, offset: u64, buf: Rc<Buf>, durable: bool) -> io::Result<()> {
        let len = buf.len();
        self.check(offset, len);
        self.count(|s| {
            (s.writes, s.written_bytes) = (s.writes + 1, s.written_bytes + len as u64);
            s.flushes += u64::from(durable);
        });
        let op = Op::Write { file: self.0.id, offset, buf, durable };
        let (result, _) = OpFuture::new(self.0.reactor.clone(), op).await;
        assert!(result.as_ref().map_or(true, |count| *count == len as u64), "drivers complete writes whole");
        result.map(|_| ())
    }

    /// Makes every write that has completed durable.
    ///
    /// # Errors
    /// The device's error; which of the writes are durable is then unknown.
    pub async fn flush(&self) -> io::Result<()> {
        self.count(|s| s.flushes += 1);
        let (result, _) = OpFuture::new(self.0.reactor.clone(), Op::Flush { file: self.0.id }).await;
        result.map(|_| ())
    }
}
