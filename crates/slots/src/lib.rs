//! A KV device over a bare KV SSD.
//!
//! Role: makes of a drive with the NVMe Key Value command set (keys of 16 bytes, each store atomic by itself,
//! and nothing else) a whole [`plimsoll_kv::Device`]: versions, retained versions, batches, containers,
//! expiry, uploads, transactions. Place on the path: where the flash engine stands; below an array or alone.
//! The decision and its alternatives: `docs/rfcs/2026-11-23-kv-ssd.md`.
//!
//! Invariants:
//! * versions stand in records, never in keys of the drive: every key has two slots, which alternate where
//!   the version before is retained;
//! * of all records of a key on the drive the one with the highest sequence counts, and it is durable before
//!   anything goes that holds an older one;
//! * every delete on the drive is durable before memory knows of it;
//! * a record is answered only if the key in it is the one that was asked for, and its sequence the one that
//!   the index knows.
//!
//! Never: values in memory, but for those of batches that have no object of their own yet.
#![forbid(unsafe_code)]

mod commit;
mod delay;
mod drive;
mod flush;
#[doc(hidden)]
pub mod fuzz;
mod hosts;
mod index;
mod install;
mod intent;
mod keeper;
mod memory;
mod names;
mod object;
mod open;
mod parts;
mod plan;
mod read;
mod recover;
mod retained;
mod slots;
mod superblock;
#[cfg(test)]
mod tests;
mod transaction;
mod upload;

pub use delay::{Cost, DelaySsd};
pub use drive::{DRIVE_KEY_BYTES, DriveError, DriveFuture, DriveKey, KvSsd, Retrieved, StoreIf};
pub use index::memory_bytes_per_key;
pub use memory::{Command, Commands, Medium, MemorySsd};
pub use object::OVERHEAD_BYTES_MAX;
pub use open::{FormatOptions, OpenError};
pub use slots::Slots;
