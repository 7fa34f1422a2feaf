//! The open files of one core, and the entries that read and write them.
//!
//! Role: names files, keeps them registered with the ring and builds disk entries. Place on the path:
//! the last stage of a disk operation.
//!
//! Invariants:
//! * a file is closed only when no operation names it;
//! * a registered buffer is used only for memory inside the arena that this very ring registered,
//!   told by its address: where a block was made, and by whom, does not matter.

use super::ring::Ring;
use crate::buf;
use crate::driver::kernel::open::{self, DirectFile};
use crate::driver::kernel::table::Table;
use crate::driver::kernel::transfer::Transfer;
use crate::file::{FileOptions, Opened};
use crate::ops::FileId;
use io_uring::{opcode, squeue, types};
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Once};

/// Files registered with the ring; further ones are used by their descriptors.
const REGISTERED_MAX: usize = 64;
/// The arena is the only buffer in the ring's table.
const ARENA_INDEX: u16 = 0;

/// A server says once that it has no registered buffers.
static TOLD: Once = Once::new();

struct Registered {
    file: Arc<DirectFile>,
    /// Whether it stands in the ring's table.
    registered: bool,
}

#[derive(Default)]
pub(super) struct Files {
    files: Table<Registered>,
    table: bool,
    /// Addresses of the memory registered with the ring.
    arena: Range<usize>,
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
                // Mostly it is all cores, for one reason.
                Err(error) => TOLD.call_once(|| {
                    tracing::warn!(
                        %error,
                        "buffers are not registered: disk operations cost about a tenth more. The limit of \
                         locked memory (ulimit -l) is the usual reason"
                    );
                }),
            }
        }
        files
    }

    pub(super) fn open(&mut self, ring: &Ring, path: &str, options: &FileOptions) -> io::Result<Opened> {
        let (file, created) = open::open(path, options)?;
        let descriptor = file.descriptor.as_raw_fd();
        let (size_bytes, block_bytes) = (file.size_bytes, file.block_bytes);
        let index = self.files.insert(Registered { file, registered: false });
        self.files.get(index).registered = self.table
            && (index as usize) < REGISTERED_MAX
            && ring.submitter().register_files_update(index, &[descriptor]).is_ok();
        Ok(Opened { id: FileId(index), size_bytes, block_bytes, created })
    }

    /// Notes an operation on the file.
    pub(super) fn hold(&mut self, file: FileId) {
        self.files.hold(file.0);
    }

    /// Notes the end of an operation; the last one of a closed file closes it.
    pub(super) fn release(&mut self, ring: &Ring, file: FileId) {
        let removed = self.files.release(file.0);
        removed.inspect(|removed| forget(ring, file, removed));
    }

    /// Closes the file now or, while operations name it, when the last of them is over.
    pub(super) fn close(&mut self, ring: &Ring, file: FileId) {
        let removed = self.files.close(file.0);
        removed.inspect(|removed| forget(ring, file, removed));
    }

    /// The unit of direct I/O of a file.
    pub(super) fn block_bytes(&mut self, file: FileId) -> u32 {
        self.files.get(file.0).file.block_bytes
    }

    fn target(&mut self, file: FileId) -> (types::Fd, squeue::Flags) {
        let open = self.files.get(file.0);
        if open.registered {
            (types::Fd(file.0 as i32), squeue::Flags::FIXED_FILE)
        } else {
            (types::Fd(open.file.descriptor.as_raw_fd()), squeue::Flags::empty())
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
}

/// Takes a file that is being closed out of the ring's table.
fn forget(ring: &Ring, file: FileId, removed: &Registered) {
    if removed.registered
        && let Err(error) = ring.submitter().register_files_update(file.0, &[-1])
    {
        // The table keeps the file open, and with it the lock, until the ring is gone.
        tracing::warn!(%error, "a closed file stays registered");
    }
}
