//! The note: an item of a frame that holds transitions and no record.

use super::chain::{Chain, TRANSITION_BYTES_MAX};
use super::transition::Transition;
use super::{DecodeError, UNIT_BYTES, crc32c_of};

/// Bytes of the header of a note.
pub const NOTE_HEADER_BYTES: usize = 16;
/// The byte that begins a note, where a record has its kind.
pub const NOTE_KIND: u8 = 0x40;

/// Encodes a note: an item of a frame that holds transitions and no record.
#[must_use]
pub fn encode_note(transitions: &[Transition], sequence: u64, location: u64) -> Vec<u8> {
    let mut bytes = vec![0; NOTE_HEADER_BYTES];
    let mut chain = Chain::default();
    transitions.iter().for_each(|transition| chain.encode(transition, &mut bytes));
    bytes[4] = NOTE_KIND;
    let payload_bytes = (bytes.len() - NOTE_HEADER_BYTES) as u32;
    bytes[8..12].copy_from_slice(&(transitions.len() as u32).to_le_bytes());
    bytes[12..16].copy_from_slice(&payload_bytes.to_le_bytes());
    let padded = super::round_up(bytes.len() as u64, UNIT_BYTES) as usize;
    bytes.resize(padded, 0);
    let crc = crc32c_of(&[&sequence.to_le_bytes(), &location.to_le_bytes(), &bytes[4..]]);
    bytes[..4].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// Bytes of a note of so many transitions at most.
#[must_use]
pub fn note_bytes_max(transitions: usize) -> usize {
    NOTE_HEADER_BYTES + transitions * TRANSITION_BYTES_MAX + UNIT_BYTES as usize
}

/// Decodes a note: its transitions and its length in bytes.
///
/// # Errors
/// Not a note, cut short or damaged.
pub fn decode_note(
    bytes: &[u8],
    sequence: u64,
    location: u64,
) -> Result<(Vec<Transition>, usize), DecodeError> {
    const NAME: &str = "note";
    let header = bytes.get(..NOTE_HEADER_BYTES).ok_or(DecodeError::Short(NAME))?;
    if header[4] != NOTE_KIND {
        return Err(DecodeError::Absent(NAME));
    }
    let count = u32::from_le_bytes([header[8], header[9], header[10], header[11]]);
    let payload_bytes = u32::from_le_bytes([header[12], header[13], header[14], header[15]]);
    let length = super::round_up(NOTE_HEADER_BYTES as u64 + u64::from(payload_bytes), UNIT_BYTES) as usize;
    let note = bytes.get(..length).ok_or(DecodeError::Short(NAME))?;
    let crc = u32::from_le_bytes([note[0], note[1], note[2], note[3]]);
    if crc32c_of(&[&sequence.to_le_bytes(), &location.to_le_bytes(), &note[4..]]) != crc {
        return Err(DecodeError::Checksum(NAME));
    }
    let mut payload = &note[NOTE_HEADER_BYTES..NOTE_HEADER_BYTES + payload_bytes as usize];
    let (mut chain, mut transitions) = (Chain::default(), Vec::new());
    for _ in 0..count {
        transitions.push(chain.decode(&mut payload)?);
    }
    Ok((transitions, length))
}
