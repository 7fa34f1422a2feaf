//! The transition: one change of the index, about 22 bytes. Notes in frames and the summary of a
//! log segment are lists of them; a record in a frame stands for one.

use super::{DecodeError, UNIT_BYTES, crc32c_of, field};

/// Bytes of a transition at most.
pub const TRANSITION_BYTES_MAX: usize = 9 + 3 * 5 + 3 * 10;

/// What changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum TransitionKind {
    /// A record was stored at `location` in place of the one at `previous`, if any.
    Store = 1,
    /// The record at `previous` was deleted; its key stands in the tombstone at `location`.
    Delete = 2,
    /// The record at `previous` was moved to `location` by the cleaner, which wrote the change of
    /// its expiry time with the clock `argument` into it (0: none).
    Relocate = 3,
    /// The record at `location` expires at `argument` (0: never), whatever it says itself; the
    /// version of this change has the clock `previous` and the epoch `previous_length`. `flags` tell
    /// whether it expires now and whether it did.
    SetExpiry = 4,
    /// Container `fingerprint` was emptied: generation `container` is gone, `argument` is the new one.
    Clear = 5,
    /// Part `fingerprint` of upload `argument` was stored at `location`.
    StorePart = 6,
    /// Part `fingerprint` of upload `argument` was moved from `previous` to `location`.
    RelocatePart = 7,
    /// Upload `argument` began, for a value of `previous` bytes.
    UploadBegin = 8,
    /// Upload `argument` became the value of its key.
    UploadCommit = 9,
    /// Upload `argument` is nobody's value any more; readers may still be at it.
    UploadDoom = 10,
    /// Upload `argument` and its parts are gone.
    UploadEnd = 11,
    /// The retained record at `previous`, below the one at `location`, was given up.
    Release = 12,
    /// The retained record at `location` took the place of the one at `previous`.
    Revert = 13,
    /// Segment `location` was opened as kind `flags`, with sequence `argument`.
    OpenSegment = 14,
    /// The record at `previous`, of an emptied container, was forgotten.
    Sweep = 15,
    /// In summaries only: the transitions of the note at `location`, of `length` units, stand here.
    Note = 16,
}

const KINDS: [TransitionKind; 16] = [
    TransitionKind::Store,
    TransitionKind::Delete,
    TransitionKind::Relocate,
    TransitionKind::SetExpiry,
    TransitionKind::Clear,
    TransitionKind::StorePart,
    TransitionKind::RelocatePart,
    TransitionKind::UploadBegin,
    TransitionKind::UploadCommit,
    TransitionKind::UploadDoom,
    TransitionKind::UploadEnd,
    TransitionKind::Release,
    TransitionKind::Revert,
    TransitionKind::OpenSegment,
    TransitionKind::Sweep,
    TransitionKind::Note,
];

/// The stored record has an expiry time.
pub const FLAG_EXPIRING: u8 = 1;
/// The replaced or deleted record had an expiry time.
pub const FLAG_PREVIOUS_EXPIRING: u8 = 2;
/// The replaced record stays until it is released.
pub const FLAG_RETAIN: u8 = 4;
/// The container held every key of the partition: the index was dropped as a whole.
pub const FLAG_WHOLE: u8 = 8;

/// One change of the index. Locations and lengths count in units of [`UNIT_BYTES`]; location 0 is
/// none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transition {
    /// What changed.
    pub kind: TransitionKind,
    /// `FLAG_*`, or a segment kind.
    pub flags: u8,
    /// The slot of the key.
    pub slot: u16,
    /// The container's generation.
    pub container: u32,
    /// The key's fingerprint.
    pub fingerprint: u64,
    /// Where the record is now.
    pub location: u64,
    /// Where it was.
    pub previous: u64,
    /// Depends on the kind.
    pub argument: u64,
    /// Units of the record at `location`.
    pub length: u32,
    /// Units of the record at `previous`.
    pub previous_length: u32,
}

impl Transition {
    /// A transition of `kind` with nothing else set.
    #[must_use]
    pub fn new(kind: TransitionKind) -> Transition {
        Transition {
            kind,
            flags: 0,
            slot: 0,
            container: 0,
            fingerprint: 0,
            location: 0,
            previous: 0,
            argument: 0,
            length: 0,
            previous_length: 0,
        }
    }

    /// Appends it: kind, flags, slot, fingerprint in fixed bytes, then the numbers in LEB128.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.push(self.kind as u8);
        out.push(self.flags);
        out.extend_from_slice(&self.slot.to_le_bytes());
        assert!(self.fingerprint >> 40 == 0, "fingerprints have 40 bits");
        out.extend_from_slice(&self.fingerprint.to_le_bytes()[..5]);
        put_varint(out, u64::from(self.container));
        put_varint(out, self.location);
        put_varint(out, self.previous);
        put_varint(out, u64::from(self.length));
        put_varint(out, u64::from(self.previous_length));
        put_varint(out, self.argument);
        assert!(out.len() - start <= TRANSITION_BYTES_MAX);
    }

    /// Decodes the one that `bytes` begins with and moves past it; the checksum is that of the
    /// list it stands in.
    ///
    /// # Errors
    /// Cut short, or an unknown kind.
    pub fn decode(bytes: &mut &[u8]) -> Result<Transition, DecodeError> {
        const NAME: &str = "transition";
        let (head, mut rest) = bytes.split_at_checked(9).ok_or(DecodeError::Short(NAME))?;
        let kind = KINDS.get(usize::from(head[0]).wrapping_sub(1)).ok_or(field(NAME, "kind"))?;
        let mut number = || take_varint(&mut rest).ok_or(DecodeError::Short(NAME));
        let narrow = |wide: u64| u32::try_from(wide).map_err(|_| field(NAME, "number"));
        let transition = Transition {
            kind: *kind,
            flags: head[1],
            slot: u16::from_le_bytes([head[2], head[3]]),
            fingerprint: u64::from_le_bytes([head[4], head[5], head[6], head[7], head[8], 0, 0, 0]),
            container: narrow(number()?)?,
            location: number()?,
            previous: number()?,
            length: narrow(number()?)?,
            previous_length: narrow(number()?)?,
            argument: number()?,
        };
        *bytes = rest;
        Ok(transition)
    }
}

/// Appends a number in LEB128.
pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Takes a number in LEB128; nothing if it is cut short or does not fit 64 bits.
pub(crate) fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        let part = u64::from(byte & 0x7f);
        if shift == 63 && part > 1 {
            return None;
        }
        value |= part << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// Bytes of the header of a note.
pub const NOTE_HEADER_BYTES: usize = 16;
/// The byte that begins a note, where a record has its kind.
pub const NOTE_KIND: u8 = 0x40;

/// Encodes a note: an item of a frame that holds transitions and no record.
#[must_use]
pub fn encode_note(transitions: &[Transition], sequence: u64, location: u64) -> Vec<u8> {
    let mut bytes = vec![0; NOTE_HEADER_BYTES];
    for transition in transitions {
        transition.encode(&mut bytes);
    }
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
    let mut transitions = Vec::new();
    for _ in 0..count {
        transitions.push(Transition::decode(&mut payload)?);
    }
    Ok((transitions, length))
}
