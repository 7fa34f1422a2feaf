//! The checkpoint chunk: a header and a payload under one checksum. A checkpoint is a numbered
//! row of them in its segments.

use super::{DecodeError, crc32c_of, field};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of the header.
pub const CHUNK_HEADER_BYTES: usize = 48;
/// Bytes of a payload: what is held in memory at a time.
pub const CHUNK_PAYLOAD_BYTES_MAX: usize = 256 << 10;
const MAGIC: [u8; 4] = *b"PCKP";

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Raw {
    magic: [u8; 4],
    crc: U32,
    checkpoint: U64,
    number: U64,
    payload_bytes: U32,
    reserved: [U32; 5],
}
const _: () = assert!(size_of::<Raw>() == CHUNK_HEADER_BYTES);

/// What stands at the head of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkHeader {
    /// Bytes of the payload.
    pub payload_bytes: u32,
}

/// Appends chunk `number` of checkpoint `checkpoint` to `out`.
pub fn encode(checkpoint: u64, number: u64, payload: &[u8], identity: u64, out: &mut Vec<u8>) {
    assert!(payload.len() <= CHUNK_PAYLOAD_BYTES_MAX);
    let mut raw = Raw {
        magic: MAGIC,
        crc: 0.into(),
        checkpoint: checkpoint.into(),
        number: number.into(),
        payload_bytes: (payload.len() as u32).into(),
        reserved: [0.into(); 5],
    };
    raw.crc = crc32c_of(&[&identity.to_le_bytes(), raw.as_bytes(), payload]).into();
    out.extend_from_slice(raw.as_bytes());
    out.extend_from_slice(payload);
}

/// Reads the length of a chunk from its header, unproved.
///
/// # Errors
/// Not a chunk of this checkpoint and number.
pub fn decode_header(bytes: &[u8], checkpoint: u64, number: u64) -> Result<ChunkHeader, DecodeError> {
    const NAME: &str = "checkpoint chunk";
    let (raw, _) = Raw::read_from_prefix(bytes).map_err(|_| DecodeError::Short(NAME))?;
    if raw.magic != MAGIC {
        return Err(DecodeError::Absent(NAME));
    }
    if raw.checkpoint.get() != checkpoint || raw.number.get() != number {
        return Err(field(NAME, "number"));
    }
    if raw.payload_bytes.get() as usize > CHUNK_PAYLOAD_BYTES_MAX {
        return Err(field(NAME, "length"));
    }
    Ok(ChunkHeader { payload_bytes: raw.payload_bytes.get() })
}

/// Proves a chunk and gives its payload.
///
/// # Errors
/// Not the chunk sought, cut short or damaged.
pub fn decode(bytes: &[u8], checkpoint: u64, number: u64, identity: u64) -> Result<&[u8], DecodeError> {
    const NAME: &str = "checkpoint chunk";
    let header = decode_header(bytes, checkpoint, number)?;
    let payload = bytes.get(CHUNK_HEADER_BYTES..).and_then(|rest| rest.get(..header.payload_bytes as usize));
    let payload = payload.ok_or(DecodeError::Short(NAME))?;
    let stored = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
    let crc =
        crc32c_of(&[&identity.to_le_bytes(), &bytes[..4], &[0; 4], &bytes[8..CHUNK_HEADER_BYTES], payload]);
    if crc != stored {
        return Err(DecodeError::Checksum(NAME));
    }
    Ok(payload)
}
