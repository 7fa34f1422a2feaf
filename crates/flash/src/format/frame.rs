//! The frame: one write of the log. Header, then items (records and notes), padded to blocks.
//!
//! A frame is recovered whole or not at all, so a batch is atomic by standing in one frame.

use super::{DecodeError, crc32c_of, field};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of the header.
pub const FRAME_HEADER_BYTES: usize = 48;
const MAGIC: [u8; 4] = *b"PFRM";
const NAME: &str = "frame";

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Raw {
    magic: [u8; 4],
    crc: U32,
    sequence: U64,
    number: U64,
    durable: U64,
    epoch: U32,
    items: U32,
    payload_bytes: U32,
    reserved: U32,
}
const _: () = assert!(size_of::<Raw>() == FRAME_HEADER_BYTES);

/// What stands at the head of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// The sequence of its segment.
    pub sequence: u64,
    /// Its number in the partition's log: one more than the frame before.
    pub number: u64,
    /// The last frame that was durable when this one was written: proof that frames up to it were
    /// acknowledged, so that damage in them is never taken for a torn tail.
    pub durable: u64,
    /// The owner's epoch. Epochs never fall along the log, so a leftover of an earlier life that
    /// stands where a frame is expected is not taken for it.
    pub epoch: u32,
    /// Items in it.
    pub items: u32,
    /// Bytes of the items.
    pub payload_bytes: u32,
}

impl FrameHeader {
    /// Encodes it for its place: the offset in the partition, in bytes.
    #[must_use]
    pub fn encode(&self, identity: u64, offset: u64) -> [u8; FRAME_HEADER_BYTES] {
        let mut raw = Raw {
            magic: MAGIC,
            crc: 0.into(),
            sequence: self.sequence.into(),
            number: self.number.into(),
            durable: self.durable.into(),
            epoch: self.epoch.into(),
            items: self.items.into(),
            payload_bytes: self.payload_bytes.into(),
            reserved: 0.into(),
        };
        let place = offset.to_le_bytes();
        raw.crc = crc32c_of(&[&identity.to_le_bytes(), &place, raw.as_bytes()]).into();
        let mut bytes = [0; FRAME_HEADER_BYTES];
        bytes.copy_from_slice(raw.as_bytes());
        bytes
    }

    /// Decodes the header that stands at `offset` of the partition, in a segment of `sequence`.
    ///
    /// # Errors
    /// Not a frame, damaged, of another place, or of another use of the segment.
    pub fn decode(
        bytes: &[u8],
        identity: u64,
        offset: u64,
        sequence: u64,
    ) -> Result<FrameHeader, DecodeError> {
        let header = FrameHeader::decode_of_any_use(bytes, identity, offset)?;
        if header.sequence != sequence {
            return Err(field(NAME, "sequence"));
        }
        Ok(header)
    }

    /// Decodes the header that stands at `offset` of the partition, in whatever use of its segment.
    ///
    /// # Errors
    /// Not a frame, damaged, or of another place.
    pub fn decode_of_any_use(bytes: &[u8], identity: u64, offset: u64) -> Result<FrameHeader, DecodeError> {
        let (mut raw, _) = Raw::read_from_prefix(bytes).map_err(|_| DecodeError::Short(NAME))?;
        if raw.magic != MAGIC {
            return Err(DecodeError::Absent(NAME));
        }
        let crc = raw.crc.get();
        raw.crc = 0.into();
        if crc32c_of(&[&identity.to_le_bytes(), &offset.to_le_bytes(), raw.as_bytes()]) != crc {
            return Err(DecodeError::Checksum(NAME));
        }
        if raw.durable.get() >= raw.number.get() {
            return Err(field(NAME, "durable frame"));
        }
        Ok(FrameHeader {
            sequence: raw.sequence.get(),
            number: raw.number.get(),
            durable: raw.durable.get(),
            epoch: raw.epoch.get(),
            items: raw.items.get(),
            payload_bytes: raw.payload_bytes.get(),
        })
    }
}
