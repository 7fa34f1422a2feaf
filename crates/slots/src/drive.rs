//! The bare drive: what a KV SSD offers, and no more.
//!
//! Role: the commands of the NVMe Key Value command set (Store, Retrieve, Delete, Exist, List, and Flush) as
//! a trait. Place on the path: the lowest; [`crate::Slots`] makes a KV device of it.
//!
//! Invariants that an implementation keeps:
//! * a store replaces the value of its key whole or not at all, whenever power is lost;
//! * what was stored or deleted is on stable media when a flush that began after its completion has ended; of
//!   what was not, any part may be lost, each key by itself;
//! * commands under way at the same time are in no order.
//!
//! Never: versions, conditions but absence, containers, expiry, or anything over several keys.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

/// Bytes of a key of ours on a drive: the most that the command set allows.
pub const DRIVE_KEY_BYTES: usize = 16;

/// A key on a drive, of full length. Drives may hold shorter ones; those are not ours.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DriveKey(pub [u8; DRIVE_KEY_BYTES]);

impl fmt::Display for DriveKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Debug for DriveKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// Why a command failed; each is a status of the command set (generic command status, NVM Express Key Value
/// Command Set 1.1, section 3).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DriveError {
    /// 0x87.
    #[error("the drive has no such key")]
    KeyNotFound,
    /// 0x89: the store was to happen only if the key was absent.
    #[error("the drive has that key already")]
    KeyExists,
    /// 0x81: nothing was stored.
    #[error("the drive is full")]
    CapacityExceeded,
    /// 0x85: longer than the drive takes. Nothing was stored.
    #[error("a value of {0} bytes is longer than the drive takes")]
    InvalidValueSize(usize),
    /// 0x88, and whatever else a drive reports. A command that changes something may have done so.
    #[error("{0}")]
    Unrecovered(String),
}

/// When a store happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreIf {
    /// Whatever is there.
    Always,
    /// If the key is absent.
    Absent,
}

/// A part of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retrieved {
    /// The bytes asked for: as many of them as there are.
    pub bytes: Vec<u8>,
    /// Bytes of the whole value.
    pub length: usize,
}

/// A future of a command, on this thread.
pub type DriveFuture<T> = Pin<Box<dyn Future<Output = Result<T, DriveError>>>>;

/// A KV SSD, or one namespace of it.
pub trait KvSsd {
    /// Stores a value.
    fn store(&self, key: DriveKey, value: Vec<u8>, when: StoreIf) -> DriveFuture<()>;

    /// Reads `length` bytes of a value from `offset` on, or as many as there are.
    fn retrieve(&self, key: DriveKey, offset: usize, length: usize) -> DriveFuture<Retrieved>;

    /// Deletes a key; one that is absent is deleted already.
    fn delete(&self, key: DriveKey) -> DriveFuture<()>;

    /// Whether there is a key.
    fn exist(&self, key: DriveKey) -> DriveFuture<bool>;

    /// Keys in the drive's own order, which is stable while nothing is stored or deleted: at most `limit`
    /// from this key on, itself included if it is there; an empty one begins.
    fn list(&self, from: Vec<u8>, limit: usize) -> DriveFuture<Vec<Vec<u8>>>;

    /// Makes everything durable that was completed before.
    fn flush(&self) -> DriveFuture<()>;

    /// Bytes of the longest value.
    fn value_bytes_max(&self) -> usize;
}
