//! The superblock: what a device is. Two copies, in the first and in the last 4 KiB.

use super::{DecodeError, crc32c, field};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of one copy.
pub const SUPERBLOCK_BYTES: usize = 4096;
/// The first eight bytes of a device of ours.
pub const MAGIC: [u8; 8] = *b"PLIMSOLL";
/// The format this code writes. Readers refuse a higher one.
pub const FORMAT_VERSION: u32 = 1;
/// Keepers may stand on it: a reader that does not know them would take records that they need for dead.
pub const FEATURE_KEEPERS: u64 = 1;
/// Incompatible features this code knows: a device with any other bit is refused.
pub const INCOMPATIBLE_KNOWN: u64 = FEATURE_KEEPERS;
/// Read-only-compatible features this code knows. With any other bit a later release may open the
/// device for reading; this one refuses it.
pub const READ_ONLY_KNOWN: u64 = 0;
/// Partitions of a device at most: their anchors stand between the superblock and the data.
pub const PARTITIONS_MAX: u16 = 64;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Raw {
    magic: [u8; 8],
    format_version: U32,
    crc: U32,
    features_compatible: U64,
    features_read_only: U64,
    features_incompatible: U64,
    device_id: [u8; 16],
    created_ms: U64,
    device_bytes: U64,
    data_offset: U64,
    hash_secret: U64,
    segment_bytes: U32,
    block_bytes: U32,
    segments_per_partition: U32,
    placement_epoch: U32,
    partitions: U16,
    written_ahead: u8,
    reserved: [u8; 5],
}
const RAW_BYTES: usize = size_of::<Raw>();
const _: () = assert!(RAW_BYTES == 112);

/// What a device is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// The format it was written in.
    pub format_version: u32,
    /// Features that older readers may ignore.
    pub features_compatible: u64,
    /// Features with which older readers may read.
    pub features_read_only: u64,
    /// Features with which older readers must refuse.
    pub features_incompatible: u64,
    /// Names the device among all devices.
    pub device_id: [u8; 16],
    /// When it was formatted, in wall-clock milliseconds.
    pub created_ms: u64,
    /// Bytes of the device when it was formatted.
    pub device_bytes: u64,
    /// Where the first partition begins.
    pub data_offset: u64,
    /// Keys the hash of fingerprints: no client can aim for collisions.
    pub hash_secret: u64,
    /// Bytes of a segment.
    pub segment_bytes: u32,
    /// The unit of writes in bytes.
    pub block_bytes: u32,
    /// Segments of each partition.
    pub segments_per_partition: u32,
    /// Which placement function spreads keys over devices.
    pub placement_epoch: u32,
    /// Partitions, fixed for good.
    pub partitions: u16,
    /// True if the whole device has been written once or needs not be (block devices): then no
    /// file-system metadata changes when a segment is written.
    pub written_ahead: bool,
}

impl Superblock {
    /// Encodes one copy.
    #[must_use]
    pub fn encode(&self) -> [u8; SUPERBLOCK_BYTES] {
        let raw = Raw {
            magic: MAGIC,
            format_version: self.format_version.into(),
            crc: 0.into(),
            features_compatible: self.features_compatible.into(),
            features_read_only: self.features_read_only.into(),
            features_incompatible: self.features_incompatible.into(),
            device_id: self.device_id,
            created_ms: self.created_ms.into(),
            device_bytes: self.device_bytes.into(),
            data_offset: self.data_offset.into(),
            hash_secret: self.hash_secret.into(),
            segment_bytes: self.segment_bytes.into(),
            block_bytes: self.block_bytes.into(),
            segments_per_partition: self.segments_per_partition.into(),
            placement_epoch: self.placement_epoch.into(),
            partitions: self.partitions.into(),
            written_ahead: u8::from(self.written_ahead),
            reserved: [0; 5],
        };
        let mut bytes = [0; SUPERBLOCK_BYTES];
        bytes[..RAW_BYTES].copy_from_slice(raw.as_bytes());
        let crc = crc32c(&bytes);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes one copy. The format version is told even if it is not ours.
    ///
    /// # Errors
    /// Not a superblock, damaged, or fields that contradict each other.
    pub fn decode(bytes: &[u8]) -> Result<Superblock, DecodeError> {
        const NAME: &str = "superblock";
        let bytes = bytes.get(..SUPERBLOCK_BYTES).ok_or(DecodeError::Short(NAME))?;
        let (raw, _) = Raw::read_from_prefix(bytes).map_err(|_| DecodeError::Short(NAME))?;
        if raw.magic != MAGIC {
            return Err(DecodeError::Absent(NAME));
        }
        let mut copy = [0; SUPERBLOCK_BYTES];
        copy.copy_from_slice(bytes);
        copy[12..16].fill(0);
        if crc32c(&copy) != raw.crc.get() {
            return Err(DecodeError::Checksum(NAME));
        }
        let superblock = Superblock {
            format_version: raw.format_version.get(),
            features_compatible: raw.features_compatible.get(),
            features_read_only: raw.features_read_only.get(),
            features_incompatible: raw.features_incompatible.get(),
            device_id: raw.device_id,
            created_ms: raw.created_ms.get(),
            device_bytes: raw.device_bytes.get(),
            data_offset: raw.data_offset.get(),
            hash_secret: raw.hash_secret.get(),
            segment_bytes: raw.segment_bytes.get(),
            block_bytes: raw.block_bytes.get(),
            segments_per_partition: raw.segments_per_partition.get(),
            placement_epoch: raw.placement_epoch.get(),
            partitions: raw.partitions.get(),
            written_ahead: raw.written_ahead != 0,
        };
        superblock.check()?;
        Ok(superblock)
    }

    fn check(&self) -> Result<(), DecodeError> {
        const NAME: &str = "superblock";
        if self.format_version != FORMAT_VERSION {
            return Ok(()); // Another version's fields are not ours to judge.
        }
        if self.partitions == 0 || self.partitions > PARTITIONS_MAX {
            return Err(field(NAME, "number of partitions"));
        }
        if !self.block_bytes.is_power_of_two() || !(512..=4096).contains(&self.block_bytes) {
            return Err(field(NAME, "block size"));
        }
        if !self.segment_bytes.is_power_of_two() || !((64 << 10)..=(8 << 20)).contains(&self.segment_bytes) {
            return Err(field(NAME, "segment size"));
        }
        let partition_bytes = u64::from(self.segments_per_partition) * u64::from(self.segment_bytes);
        let data_bytes = u64::from(self.partitions).checked_mul(partition_bytes);
        let end = data_bytes.and_then(|data_bytes| self.data_offset.checked_add(data_bytes));
        if self.segments_per_partition == 0
            || end.is_none_or(|end| end > self.device_bytes)
            || !self.data_offset.is_multiple_of(4096)
            || self.data_offset < self.anchor_offset(self.partitions)
        {
            return Err(field(NAME, "layout"));
        }
        Ok(())
    }

    /// Where the first of a partition's two anchors stands.
    #[must_use]
    pub fn anchor_offset(&self, partition: u16) -> u64 {
        SUPERBLOCK_BYTES as u64 + u64::from(partition) * 2 * super::anchor::ANCHOR_BYTES as u64
    }

    /// Where a partition's segments begin.
    #[must_use]
    pub fn partition_offset(&self, partition: u16) -> u64 {
        let bytes = u64::from(self.segments_per_partition) * u64::from(self.segment_bytes);
        self.data_offset + u64::from(partition) * bytes
    }

    /// A number that differs between partitions and devices: mixed into checksums so that a block
    /// of another partition is never taken for one of this.
    #[must_use]
    pub fn partition_identity(&self, partition: u16) -> u64 {
        let mut half = [0; 8];
        half.copy_from_slice(&self.device_id[..8]);
        u64::from_le_bytes(half) ^ u64::from(partition).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}
