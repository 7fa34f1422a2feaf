//! The open files of one core, and the entries that read and write them.
//!
//! Role: names files, keeps them registered with the ring, builds disk entries and judges their
//! results. Place on the path: the last stage of a disk operation.
//!
//! Invariants:
//! * a file is closed only when no operation names it;
//! * a transfer is whole: what the kernel left is asked for again, a block at a time at least;
//! * a registered buffer is used only for memory inside the arena that this very ring registered,
//!   told by its address: where a block was made, and by whom, does not matter.

use super::open::{self, DirectFile};
use super::ring::Ring;
use super::{RETRIES_MAX, Step};
use crate::buf;
use crate::file::{FileOptions, Opened};
use crate::ops::FileId;
use io_uring::{opcode, squeue, types};
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::Arc;

/// Files registered with the ring; further ones are used by their descriptors.
const REGISTERED_MAX: usize = 64;
/// The arena is the only buffer in the ring's table.
const ARENA_INDEX: u16 = 0;

struct Slot {
    file: Arc<DirectFile>,
    registered: bool,
    /// Operations that name the file.
    in_flight: u32,
    closing: bool,
}

#[derive(Default)]
pub(super) struct Files {
    slots: Vec<Option<Slot>>,
    table: bool,
    /// Addresses of the memory registered with the ring.
    arena: Range<usize>,
}

/// How far a transfer has come.
#[derive(Clone, Copy)]
pub(super) struct Transfer {
    pub(super) address: *mut u8,
    pub(super) len: usize,
    pub(super) offset: u64,
    /// Bytes moved by earlier entries.
    pub(super) moved: usize,
}

impl Files {
    /// Registers a table of files and the arena with `ring`, as far as the kernel allows.
    pub(super) fn register(ring: &Ring) -> Files {
        let table = ring.submitter().register_files_sparse(REGISTERED_MAX as u32);
        if let Err(error) = &table {
            tracing::warn!(%error, "files are not registered: disk operations cost a little more");
        }
        let mut files = Files { table: table.is_ok(), ..Files::default() };
        if let Some((base, bytes)) = buf::arena() {
            let vector = libc::iovec { iov_base: base.as_ptr().cast(), iov_len: bytes };
            // SAFETY: the arena is never freed, so it outlives every ring.
            match unsafe { ring.submitter().register_buffers(&[vector]) } {
                Ok(()) => files.arena = base.addr().get()..base.addr().get() + bytes,
                Err(error) => tracing::warn!(
                    %error,
                    "buffers are not registered: disk operations cost about a tenth more. The limit of locked \
                     memory (ulimit -l) is the usual reason"
                ),
            }
        }
        files
    }

    pub(super) fn open(&mut self, ring: &Ring, path: &str, options: &FileOptions) -> io::Result<Opened> {
        let (file, created) = open::open(path, options)?;
        let index = self.slots.iter().position(Option::is_none).unwrap_or(self.slots.len());
        if index == self.slots.len() {
            self.slots.push(None);
        }
        let descriptor = file.descriptor.as_raw_fd();
        let registered = self.table
            && index < REGISTERED_MAX
            && ring.submitter().register_files_update(index as u32, &[descriptor]).is_ok();
        let (size_bytes, block_bytes) = (file.size_bytes, file.block_bytes);
        self.slots[index] = Some(Slot { file, registered, in_flight: 0, closing: false });
        Ok(Opened { id: FileId(index as u32), size_bytes, block_bytes, created })
    }

    fn slot(&mut self, file: FileId) -> &mut Slot {
        self.slots[file.0 as usize].as_mut().expect("a file in use is open")
    }

    /// Notes an operation on the file.
    pub(super) fn hold(&mut self, file: FileId) {
        let slot = self.slot(file);
        assert!(!slot.closing, "no operation starts on a closed file");
        slot.in_flight += 1;
    }

    /// Notes the end of an operation; the last one of a closed file closes it.
    pub(super) fn release(&mut self, ring: &Ring, file: FileId) {
        let slot = self.slot(file);
        slot.in_flight -= 1;
        if slot.closing && slot.in_flight == 0 {
            self.remove(ring, file);
        }
    }

    /// Closes the file now or, while operations name it, when the last of them is over.
    pub(super) fn close(&mut self, ring: &Ring, file: FileId) {
        let slot = self.slot(file);
        assert!(!slot.closing, "a file is closed once");
        slot.closing = true;
        if slot.in_flight == 0 {
            self.remove(ring, file);
        }
    }

    fn remove(&mut self, ring: &Ring, file: FileId) {
        let slot = self.slots[file.0 as usize].take().expect("a file is removed once");
        if slot.registered
            && let Err(error) = ring.submitter().register_files_update(file.0, &[-1])
        {
            // The table keeps the file open, and with it the lock, until the ring is gone.
            tracing::warn!(%error, "a closed file stays registered");
        }
    }

    fn target(&mut self, file: FileId) -> (types::Fd, squeue::Flags) {
        let slot = self.slot(file);
        if slot.registered {
            (types::Fd(file.0 as i32), squeue::Flags::FIXED_FILE)
        } else {
            (types::Fd(slot.file.descriptor.as_raw_fd()), squeue::Flags::empty())
        }
    }

    fn in_arena(&self, address: *const u8, len: usize) -> bool {
        self.arena.contains(&address.addr()) && address.addr() + len <= self.arena.end
    }

    pub(super) fn read_entry(&mut self, file: FileId, transfer: Transfer) -> squeue::Entry {
        let (target, flags) = self.target(file);
        let (address, len, offset) = transfer.rest();
        let entry = if self.in_arena(address, len as usize) {
            opcode::ReadFixed::new(target, address, len, ARENA_INDEX).offset(offset).build()
        } else {
            opcode::Read::new(target, address, len).offset(offset).build()
        };
        entry.flags(flags)
    }

    pub(super) fn write_entry(&mut self, file: FileId, transfer: Transfer, durable: bool) -> squeue::Entry {
        let (target, flags) = self.target(file);
        let (address, len, offset) = transfer.rest();
        let how = if durable { libc::RWF_DSYNC } else { 0 };
        let entry = if self.in_arena(address, len as usize) {
            let fixed = opcode::WriteFixed::new(target, address, len, ARENA_INDEX);
            fixed.offset(offset).rw_flags(how).build()
        } else {
            opcode::Write::new(target, address, len).offset(offset).rw_flags(how).build()
        };
        entry.flags(flags)
    }

    pub(super) fn flush_entry(&mut self, file: FileId) -> squeue::Entry {
        let (target, flags) = self.target(file);
        opcode::Fsync::new(target).flags(types::FsyncFlags::DATASYNC).build().flags(flags)
    }

    /// What follows from the result of a read or write of which `moved` bytes were already there.
    pub(super) fn judge(&mut self, file: FileId, len: usize, moved: usize, result: i32) -> Progress {
        if result < 0 {
            return Progress::Failed(-result);
        }
        let moved = moved + result as usize;
        assert!(moved <= len, "the kernel moved more than asked");
        if moved == len {
            return Progress::Whole;
        }
        // Direct I/O goes on at a block: a part of one is transferred again.
        let block_bytes = self.slot(file).file.block_bytes as usize;
        Progress::Part(moved - moved % block_bytes)
    }
}

/// What an entry has achieved.
pub(super) enum Progress {
    /// The transfer is complete.
    Whole,
    /// So many bytes are there; the rest is to be asked for.
    Part(usize),
    /// The error code.
    Failed(i32),
}

impl Progress {
    /// The next step of a transfer of `len` bytes; keeps `moved` and `retries` up to date.
    pub(super) fn step(self, len: usize, moved: &mut usize, retries: &mut u8) -> Step {
        match self {
            Progress::Whole => Step::Done(Ok(len as u64)),
            Progress::Part(now) if now > *moved => {
                *moved = now;
                Step::Again
            }
            Progress::Part(_) => Step::Done(Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the device ended before the transfer did",
            ))),
            Progress::Failed(libc::EINTR | libc::EAGAIN) if *retries < RETRIES_MAX => {
                *retries += 1;
                Step::Again
            }
            Progress::Failed(code) => Step::Done(Err(io::Error::from_raw_os_error(code))),
        }
    }
}

impl Transfer {
    /// Address, length and offset of what is still to be moved.
    fn rest(self) -> (*mut u8, u32, u64) {
        assert!(self.moved < self.len);
        let len = u32::try_from(self.len - self.moved).expect("transfers are bounded by IO_BYTES_MAX");
        (self.address.wrapping_add(self.moved), len, self.offset + self.moved as u64)
    }
}
