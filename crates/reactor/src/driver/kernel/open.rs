//! Opening files and block devices for direct I/O, with errors that say the mend.
//!
//! Role: from a path to a locked descriptor with its size and block size. Place on the path:
//! start-up only; everything here blocks.
//!
//! Invariants:
//! * two processes never hold the same file or device open for writing: an exclusive `flock`, and
//!   on a block device the kernel's own claim (`O_EXCL`), stand from opening to closing;
//! * the cores of one process share one open file, so that partitions of a device can be served
//!   by several cores;
//! * a file made here is as long as asked, its space reserved, and its name durable.

use crate::file::FileOptions;
use crate::limits::ALIGN_BYTES;
use rustix::fs::{AtFlags, FallocateFlags, FileType, FlockOperation, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The finest unit any device is given, whatever it says.
const BLOCK_BYTES_MIN: u32 = 512;
/// What `statfs(2)` says of a file system in memory (tmpfs).
pub const TMPFS_MAGIC: u64 = 0x0102_1994;

/// An open file, shared by the cores of this process.
pub(in crate::driver) struct DirectFile {
    pub(in crate::driver) descriptor: OwnedFd,
    pub(in crate::driver) size_bytes: u64,
    pub(in crate::driver) block_bytes: u32,
}

/// A file's identity: whether it is a block device, its device number, its inode.
type Identity = (bool, u64, u64);

/// Files open for writing in this process. A lock, but one of start-up.
static OPEN: Mutex<BTreeMap<Identity, Weak<DirectFile>>> = Mutex::new(BTreeMap::new());

fn failure(path: &str, error: impl Into<io::Error>, words: &str) -> io::Error {
    let error = error.into();
    io::Error::new(error.kind(), format!("{path}: {words} ({error})"))
}

fn refusal(kind: io::ErrorKind, path: &str, words: &str) -> io::Error {
    io::Error::new(kind, format!("{path}: {words}"))
}

fn identity(stat: &rustix::fs::Stat) -> Identity {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::BlockDevice => (true, stat.st_rdev, 0),
        _ => (false, stat.st_dev, stat.st_ino),
    }
}

/// Opens `path`; also tells whether that made it.
pub(in crate::driver) fn open(path: &str, options: &FileOptions) -> io::Result<(Arc<DirectFile>, bool)> {
    // Held from the first look, for another core may make the file between a look and the opening.
    let mut all = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    let found = match rustix::fs::stat(path) {
        Ok(stat) => Some(stat),
        Err(Errno::NOENT) if options.create_bytes.is_some() && !options.read_only => None,
        Err(error) => return Err(failure(path, error, "cannot open the device")),
    };
    let kind = found.as_ref().map(|stat| FileType::from_raw_mode(stat.st_mode));
    if !matches!(kind, None | Some(FileType::RegularFile | FileType::BlockDevice)) {
        return Err(refusal(io::ErrorKind::InvalidInput, path, "neither a file nor a block device"));
    }
    if options.read_only {
        let descriptor = open_descriptor(path, OFlags::RDONLY)?;
        return Ok((Arc::new(describe(path, descriptor)?), false));
    }
    all.retain(|_, file| file.strong_count() > 0);
    if let Some(shared) = found.as_ref().and_then(|stat| all.get(&identity(stat))).and_then(Weak::upgrade) {
        return Ok((shared, false));
    }
    let opened = open_locked(path, options, kind);
    if opened.is_err() && found.is_none() {
        // What we made and could not finish; the error to report is the one that stopped us.
        let _ = std::fs::remove_file(path);
    }
    let (file, created) = opened?;
    let file = Arc::new(file);
    let stat = rustix::fs::fstat(&file.descriptor).map_err(|e| failure(path, e, "cannot be examined"))?;
    all.insert(identity(&stat), Arc::downgrade(&file));
    Ok((file, created))
}

fn open_locked(path: &str, options: &FileOptions, kind: Option<FileType>) -> io::Result<(DirectFile, bool)> {
    let flags = match kind {
        Some(FileType::BlockDevice) => OFlags::RDWR | OFlags::EXCL,
        Some(_) => OFlags::RDWR,
        None => OFlags::RDWR | OFlags::CREATE,
    };
    let descriptor = open_descriptor(path, flags)?;
    rustix::fs::flock(&descriptor, FlockOperation::NonBlockingLockExclusive).map_err(
        |error| match error {
            Errno::WOULDBLOCK => {
                let words = "in use by another process: stop it, or give this one another device";
                refusal(io::ErrorKind::WouldBlock, path, words)
            }
            error => failure(path, error, "cannot be locked: does its file system know flock(2)?"),
        },
    )?;
    let created = match (kind, options.create_bytes) {
        (Some(FileType::BlockDevice), _) | (_, None) => false,
        // Also a file of no bytes: one that we made before a crash.
        (_, Some(bytes)) => {
            let stat = rustix::fs::fstat(&descriptor).map_err(|e| failure(path, e, "cannot be examined"))?;
            stat.st_size == 0 && reserve(path, &descriptor, bytes).map(|()| true)?
        }
    };
    Ok((describe(path, descriptor)?, created))
}

fn open_descriptor(path: &str, flags: OFlags) -> io::Result<OwnedFd> {
    let mode = Mode::RUSR | Mode::WUSR;
    rustix::fs::open(path, flags | OFlags::DIRECT | OFlags::CLOEXEC, mode).map_err(|error| match error {
        Errno::INVAL => {
            let words = "the file system refuses direct I/O (O_DIRECT): put the device file on ext4 or xfs, or \
                         use a block device";
            refusal(io::ErrorKind::Unsupported, path, words)
        }
        Errno::BUSY => {
            let words = "in use, mounted or claimed by another process: stop or unmount it, or give another device";
            refusal(io::ErrorKind::WouldBlock, path, words)
        }
        error => failure(path, error, "cannot open the device"),
    })
}

/// Gives a new file its size and makes it and its name durable.
fn reserve(path: &str, descriptor: &OwnedFd, bytes: u64) -> io::Result<()> {
    if bytes == 0 || !bytes.is_multiple_of(ALIGN_BYTES as u64) {
        return Err(refusal(io::ErrorKind::InvalidInput, path, "its size must be a multiple of 4096 bytes"));
    }
    match rustix::fs::fallocate(descriptor, FallocateFlags::empty(), 0, bytes) {
        Ok(()) => {}
        Err(Errno::OPNOTSUPP) => {
            tracing::warn!(path, "the file system reserves no space: writes may fail when it is full");
            let resized = rustix::fs::ftruncate(descriptor, bytes);
            resized.map_err(|error| failure(path, error, "cannot be given its size"))?;
        }
        Err(error) => {
            let words = format!("cannot reserve {bytes} bytes: free space or ask for a smaller size");
            return Err(failure(path, error, &words));
        }
    }
    let synced = rustix::fs::fsync(descriptor).map_err(io::Error::from).and_then(|()| {
        let parent = Path::new(path).parent().filter(|parent| !parent.as_os_str().is_empty());
        std::fs::File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
    });
    synced.map_err(|error| failure(path, error, "cannot be made durable"))
}

/// Size and block size of an open file or device.
fn describe(path: &str, descriptor: OwnedFd) -> io::Result<DirectFile> {
    let examined = |error: Errno| failure(path, error, "cannot be examined");
    let stat = rustix::fs::fstat(&descriptor).map_err(examined)?;
    let is_device = FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice;
    let block_bytes = block_bytes(path, &descriptor, is_device)?;
    let size_bytes = if is_device {
        rustix::fs::seek(&descriptor, rustix::fs::SeekFrom::End(0)).map_err(examined)?
    } else {
        stat.st_size as u64
    };
    let size_bytes = size_bytes - size_bytes % u64::from(block_bytes);
    if size_bytes == 0 {
        return Err(refusal(io::ErrorKind::InvalidInput, path, "holds not even one block"));
    }
    // The file system of a device's node is that of /dev.
    if !is_device && rustix::fs::fstatfs(&descriptor).is_ok_and(|fs| fs.f_type as u64 == TMPFS_MAGIC) {
        tracing::warn!(
            path,
            "lies in memory (tmpfs): nothing written to it outlives the machine's next stop"
        );
    }
    Ok(DirectFile { descriptor, size_bytes, block_bytes })
}

fn block_bytes(path: &str, descriptor: &OwnedFd, is_device: bool) -> io::Result<u32> {
    let asked = rustix::fs::statx(descriptor, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN);
    let told = asked.ok().filter(|statx| statx.stx_mask & StatxFlags::DIOALIGN.bits() != 0);
    let unit = match told {
        Some(statx) if statx.stx_dio_offset_align == 0 => {
            let words = "does not allow direct I/O: put it on ext4 or xfs without encryption or data journal";
            return Err(refusal(io::ErrorKind::Unsupported, path, words));
        }
        Some(statx) => statx.stx_dio_offset_align.max(statx.stx_dio_mem_align),
        None if is_device => {
            let asked = rustix::fs::ioctl_blksszget(descriptor);
            asked.map_err(|error| failure(path, error, "does not tell its block size"))?
        }
        // Before Linux 6.1 file systems do not tell: a page is enough for all of them.
        None => ALIGN_BYTES as u32,
    };
    let unit = unit.max(BLOCK_BYTES_MIN);
    if !unit.is_power_of_two() || unit as usize > ALIGN_BYTES {
        let words = format!("has blocks of {unit} bytes; at most {ALIGN_BYTES} can be served");
        return Err(refusal(io::ErrorKind::Unsupported, path, &words));
    }
    Ok(unit)
}
