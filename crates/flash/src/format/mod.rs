//! The on-flash format: every byte that the engine writes, drawn in `docs/on-flash-format.md`.
//!
//! Role: encodes and decodes superblock, anchor, segment header and footer, frame, note, record, list of
//! transitions, intent and checkpoint chunk. Place on the path: between the engine's structures and the
//! blocks of the device.
//!
//! Invariants: integers are little-endian; every structure carries a CRC-32C over all its bytes,
//! and those that could be mistaken for one elsewhere (frames, records) mix their own place into
//! it; a decoder trusts nothing, allocates no more than the bytes it was given, and never panics.
//!
//! Never: no I/O and no state.

pub mod anchor;
pub mod bits;
pub mod chain;
pub mod checkpoint;
pub mod frame;
pub mod intent;
pub mod note;
pub mod record;
pub mod segment;
pub mod superblock;
pub mod transition;

pub use anchor::Anchor;
pub use chain::Chain;
pub use frame::FrameHeader;
pub use intent::Intent;
pub use record::{RecordHeader, RecordKind};
pub use segment::{SegmentFooter, SegmentHeader, SegmentKind};
pub use superblock::Superblock;
pub use transition::{Transition, TransitionKind};

use crc_fast::{CrcAlgorithm, Digest, checksum};

/// Locations count in these units: every record and frame begins at a multiple.
pub const UNIT_BYTES: u64 = 16;

/// CRC-32C of `bytes`.
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// CRC-32C of several pieces, as if they stood in one.
#[must_use]
pub fn crc32c_of(pieces: &[&[u8]]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    for piece in pieces {
        digest.update(piece);
    }
    digest.finalize() as u32
}

/// Rounds up to a multiple of `unit`, a power of two.
#[must_use]
pub fn round_up(bytes: u64, unit: u64) -> u64 {
    debug_assert!(unit.is_power_of_two());
    (bytes + unit - 1) & !(unit - 1)
}

/// What a decoder found wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Not this kind of structure at all: never written, or overwritten by another.
    #[error("no {0} here")]
    Absent(&'static str),
    /// The checksum does not match.
    #[error("{0} has a wrong checksum")]
    Checksum(&'static str),
    /// The checksum matches and a field makes no sense, or belongs to another place.
    #[error("{structure} has an invalid {field}")]
    Field {
        /// Which structure.
        structure: &'static str,
        /// Which field.
        field: &'static str,
    },
    /// Fewer bytes than the structure needs.
    #[error("{0} is cut short")]
    Short(&'static str),
}

pub(crate) fn field(structure: &'static str, field: &'static str) -> DecodeError {
    DecodeError::Field { structure, field }
}
