//! The superblock: what a drive is, in two copies.
//!
//! Role: says that a drive is ours, keeps the secret of its names, the owner's epoch and the horizon of
//! riders. Place on the path: read and written when a drive is opened; written when the horizon moves.
//!
//! Invariant: what a superblock says is used only when both copies say it, durably, so that either may rot.

use crate::drive::DriveKey;
use crate::names::Secret;
use crate::object::{FORMAT, Reader, crc32c, put_version};
use plimsoll_kv::Version;

/// Under which keys the copies stand.
pub(crate) const SUPERBLOCK_KEYS: [DriveKey; 2] =
    [DriveKey(*b"plimsoll-slots-0"), DriveKey(*b"plimsoll-slots-1")];
const MAGIC: &[u8; 8] = b"PLSLOTSB";
const BYTES: usize = 8 + 2 + 2 + 4 + 4 + 4 + 12 + 32 + 4;

/// What a drive is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    /// Starts of the owner.
    pub(crate) epoch: u32,
    /// Bytes of every part of an upload but the last.
    pub(crate) part_bytes: u32,
    /// Bytes of the longest value of one store.
    pub(crate) value_bytes_max: u32,
    /// Riders whose sequence is lower are void.
    pub(crate) horizon: Version,
    /// The key of the names.
    pub(crate) secret: Secret,
}

impl Superblock {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&FORMAT.to_le_bytes());
        out.extend_from_slice(&[0; 2]);
        for number in [self.epoch, self.part_bytes, self.value_bytes_max] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        put_version(&mut out, self.horizon);
        self.secret.iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
        let crc = crc32c(&out);
        out.extend_from_slice(&crc.to_le_bytes());
        assert_eq!(out.len(), BYTES, "a superblock has a fixed size");
        out
    }

    /// True if this was written later.
    pub(crate) fn is_after(&self, other: &Superblock) -> bool {
        (self.epoch, self.horizon) > (other.epoch, other.horizon)
    }

    /// Nothing if these bytes are no superblock of this format.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Superblock> {
        let (covered, crc) = bytes.split_at_checked(BYTES - 4)?;
        if crc != crc32c(covered).to_le_bytes() {
            return None;
        }
        let mut reader = Reader(covered);
        let is_ours = reader.bytes(8)? == MAGIC && reader.u16()? == FORMAT && reader.u16()? == 0;
        let (epoch, part_bytes, value_bytes_max) = (reader.u32()?, reader.u32()?, reader.u32()?);
        let horizon = reader.version()?;
        let secret = [reader.u64()?, reader.u64()?, reader.u64()?, reader.u64()?];
        let is_sound = is_ours && part_bytes > 0 && value_bytes_max > 0;
        is_sound.then_some(Superblock { epoch, part_bytes, value_bytes_max, horizon, secret })
    }
}
