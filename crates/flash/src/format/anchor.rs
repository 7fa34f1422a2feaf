//! The anchor: where a partition's recovery begins. Two copies, written one after the other, so
//! that one of them is whole at any instant and both after a quiet one.

use super::{DecodeError, crc32c_of, field};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of one copy.
pub const ANCHOR_BYTES: usize = 4096;
const MAGIC: [u8; 4] = *b"PANC";
/// Segments one checkpoint can take: what fits one anchor.
pub const CHECKPOINT_SEGMENTS_MAX: usize = (ANCHOR_BYTES - RAW_BYTES) / 4;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Raw {
    magic: [u8; 4],
    crc: U32,
    generation: U64,
    epoch: U32,
    clean: U32,
    log_segment: U32,
    checkpoint_segments: U32,
    log_number: U64,
    frame_number: U64,
    checkpoint_id: U64,
    checkpoint_chunks: U64,
}
const RAW_BYTES: usize = size_of::<Raw>();
const _: () = assert!(RAW_BYTES == 64);

/// Where recovery begins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Anchor {
    /// Grows with every anchor written.
    pub generation: u64,
    /// Starts of this partition's owner.
    pub epoch: u32,
    /// True if the log was complete and closed when this was written.
    pub clean: bool,
    /// The log segment in which replay begins.
    pub log_segment: u32,
    /// That segment's number in the log.
    pub log_number: u64,
    /// The first frame to replay.
    pub frame_number: u64,
    /// The checkpoint's name in its chunks; 0: none, recovery begins with an empty index.
    pub checkpoint_id: u64,
    /// Chunks of the checkpoint.
    pub checkpoint_chunks: u64,
    /// The segments that hold the checkpoint, in order.
    pub checkpoint_segments: Vec<u32>,
}

impl Anchor {
    /// Encodes one copy for the partition that `identity` names.
    #[must_use]
    pub fn encode(&self, identity: u64) -> [u8; ANCHOR_BYTES] {
        assert!(self.checkpoint_segments.len() <= CHECKPOINT_SEGMENTS_MAX);
        let raw = Raw {
            magic: MAGIC,
            crc: 0.into(),
            generation: self.generation.into(),
            epoch: self.epoch.into(),
            clean: u32::from(self.clean).into(),
            log_segment: self.log_segment.into(),
            checkpoint_segments: (self.checkpoint_segments.len() as u32).into(),
            log_number: self.log_number.into(),
            frame_number: self.frame_number.into(),
            checkpoint_id: self.checkpoint_id.into(),
            checkpoint_chunks: self.checkpoint_chunks.into(),
        };
        let mut bytes = [0; ANCHOR_BYTES];
        bytes[..RAW_BYTES].copy_from_slice(raw.as_bytes());
        for (place, segment) in bytes[RAW_BYTES..].chunks_exact_mut(4).zip(&self.checkpoint_segments) {
            place.copy_from_slice(&segment.to_le_bytes());
        }
        let crc = crc32c_of(&[&identity.to_le_bytes(), &bytes]);
        bytes[4..8].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes one copy.
    ///
    /// # Errors
    /// Not an anchor, damaged, or of another partition.
    pub fn decode(bytes: &[u8], identity: u64) -> Result<Anchor, DecodeError> {
        const NAME: &str = "anchor";
        let bytes = bytes.get(..ANCHOR_BYTES).ok_or(DecodeError::Short(NAME))?;
        let (raw, _) = Raw::read_from_prefix(bytes).map_err(|_| DecodeError::Short(NAME))?;
        if raw.magic != MAGIC {
            return Err(DecodeError::Absent(NAME));
        }
        let crc = crc32c_of(&[&identity.to_le_bytes(), &bytes[..4], &[0; 4], &bytes[8..]]);
        if crc != raw.crc.get() {
            return Err(DecodeError::Checksum(NAME));
        }
        let count = raw.checkpoint_segments.get() as usize;
        if count > CHECKPOINT_SEGMENTS_MAX {
            return Err(field(NAME, "number of checkpoint segments"));
        }
        let segments = bytes[RAW_BYTES..].chunks_exact(4).take(count);
        Ok(Anchor {
            generation: raw.generation.get(),
            epoch: raw.epoch.get(),
            clean: raw.clean.get() != 0,
            log_segment: raw.log_segment.get(),
            log_number: raw.log_number.get(),
            frame_number: raw.frame_number.get(),
            checkpoint_id: raw.checkpoint_id.get(),
            checkpoint_chunks: raw.checkpoint_chunks.get(),
            checkpoint_segments: segments
                .map(|piece| u32::from_le_bytes([piece[0], piece[1], piece[2], piece[3]]))
                .collect(),
        })
    }
}
