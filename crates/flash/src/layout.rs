//! Where things stand in a partition, in bytes and in units.

use crate::format::superblock::FEATURE_KEEPERS;
use crate::format::{Superblock, UNIT_BYTES};
use crate::index::FINGERPRINT_BITS;

/// The geometry of one partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Which partition.
    pub partition: u16,
    /// How many the device has.
    pub partitions: u16,
    /// Where its segments begin on the device, in bytes.
    pub offset: u64,
    /// Where its two anchors begin on the device, in bytes.
    pub anchor_offset: u64,
    /// Segments.
    pub segments: u32,
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// The unit of device writes in bytes.
    pub block_bytes: u64,
    /// Mixed into the checksums of anchors, segments, frames, chunks and blocks of keys. Records and
    /// notes are proved by their place and the sequence of their segment.
    pub identity: u64,
    /// Keys the fingerprints.
    pub hash_secret: u64,
    /// Keepers may stand on it.
    pub keeps: bool,
    /// Bits of a fingerprint that are used: fewer only in tests, to make keys collide.
    pub fingerprint_bits: u32,
}

impl Layout {
    /// The geometry of a partition of a device.
    #[must_use]
    pub fn new(superblock: &Superblock, partition: u16) -> Layout {
        assert!(partition < superblock.partitions);
        Layout {
            partition,
            partitions: superblock.partitions,
            offset: superblock.partition_offset(partition),
            anchor_offset: superblock.anchor_offset(partition),
            segments: superblock.segments_per_partition,
            segment_bytes: u64::from(superblock.segment_bytes),
            block_bytes: u64::from(superblock.block_bytes),
            identity: superblock.partition_identity(partition),
            hash_secret: superblock.hash_secret,
            keeps: superblock.features_incompatible & FEATURE_KEEPERS != 0,
            fingerprint_bits: FINGERPRINT_BITS,
        }
    }

    /// The fingerprint of a key in a generation of a container: the top bits of a keyed hash.
    #[must_use]
    pub fn fingerprint(&self, generation: u32, key: &[u8]) -> u64 {
        let seed = self.hash_secret ^ u64::from(generation).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let hash = xxhash_rust::xxh3::xxh3_64_with_seed(key, seed);
        hash >> (64 - self.fingerprint_bits) << (FINGERPRINT_BITS - self.fingerprint_bits)
    }

    /// Units of a segment.
    #[must_use]
    pub fn segment_units(&self) -> u64 {
        self.segment_bytes / UNIT_BYTES
    }

    /// The location of a byte of a segment.
    #[must_use]
    pub fn location(&self, segment: u32, offset: u64) -> u64 {
        assert!(offset < self.segment_bytes && offset.is_multiple_of(UNIT_BYTES));
        u64::from(segment) * self.segment_units() + offset / UNIT_BYTES
    }

    /// Where a segment begins on the device, in bytes.
    #[must_use]
    pub fn segment_offset(&self, segment: u32) -> u64 {
        assert!(segment < self.segments);
        self.offset + u64::from(segment) * self.segment_bytes
    }

    /// Where a location stands on the device, in bytes.
    #[must_use]
    pub fn device_offset(&self, location: u64) -> u64 {
        self.offset + location * UNIT_BYTES
    }

    /// Bytes of the longest value in one record: four records of it fit a segment.
    #[must_use]
    pub fn record_value_bytes_max(&self) -> usize {
        (self.segment_bytes as usize / 4).min(plimsoll_kv::limits::RECORD_VALUE_BYTES_MAX)
    }

    /// Bytes of a part of an upload.
    #[must_use]
    pub fn part_bytes(&self) -> u32 {
        (self.segment_bytes / 8).min(plimsoll_kv::limits::PART_BYTES_MAX as u64) as u32
    }
}
