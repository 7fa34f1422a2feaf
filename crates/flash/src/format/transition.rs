//! The transition: one change of the index, 48 bytes. The summary of a log segment and the notes
//! in frames are lists of them; a record in a frame stands for one.

use super::{DecodeError, UNIT_BYTES, crc32c_of, field};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of a transition.
pub const TRANSITION_BYTES: usize = 48;

/// What changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum TransitionKind {
    /// A record was stored at `location` in place of the one at `previous`, if any.
    Store = 1,
    /// The record at `previous` was deleted.
    Delete = 2,
    /// The record at `previous` was moved to `location` by the cleaner; it says itself that it
    /// expires at `argument`.
    Relocate = 3,
    /// The record at `location` expires at `argument` (0: never), whatever it says itself. `flags`
    /// tell whether it expires now and whether it did.
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
}

const KINDS: [TransitionKind; 15] = [
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

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Raw {
    kind: u8,
    flags: u8,
    slot: U16,
    container: U32,
    fingerprint: U64,
    location: U64,
    previous: U64,
    argument: U64,
    length: U32,
    previous_length: U32,
}
const _: () = assert!(size_of::<Raw>() == TRANSITION_BYTES);

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

    /// Encodes it.
    #[must_use]
    pub fn encode(&self) -> [u8; TRANSITION_BYTES] {
        let raw = Raw {
            kind: self.kind as u8,
            flags: self.flags,
            slot: self.slot.into(),
            container: self.container.into(),
            fingerprint: self.fingerprint.into(),
            location: self.location.into(),
            previous: self.previous.into(),
            argument: self.argument.into(),
            length: self.length.into(),
            previous_length: self.previous_length.into(),
        };
        let mut bytes = [0; TRANSITION_BYTES];
        bytes.copy_from_slice(raw.as_bytes());
        bytes
    }

    /// Decodes one; the checksum is that of the list it stands in.
    ///
    /// # Errors
    /// Cut short, or an unknown kind.
    pub fn decode(bytes: &[u8]) -> Result<Transition, DecodeError> {
        const NAME: &str = "transition";
        let (raw, _) = Raw::read_from_prefix(bytes).map_err(|_| DecodeError::Short(NAME))?;
        let kind = KINDS.get(usize::from(raw.kind).wrapping_sub(1)).ok_or(field(NAME, "kind"))?;
        Ok(Transition {
            kind: *kind,
            flags: raw.flags,
            slot: raw.slot.get(),
            container: raw.container.get(),
            fingerprint: raw.fingerprint.get(),
            location: raw.location.get(),
            previous: raw.previous.get(),
            argument: raw.argument.get(),
            length: raw.length.get(),
            previous_length: raw.previous_length.get(),
        })
    }
}

/// Bytes of the header of a note.
pub const NOTE_HEADER_BYTES: usize = 16;
/// The byte that begins a note, where a record has its kind.
pub const NOTE_KIND: u8 = 0x40;

/// Encodes a note: an item of a frame that holds transitions and no record.
#[must_use]
pub fn encode_note(transitions: &[Transition], sequence: u64, location: u64) -> Vec<u8> {
    let mut bytes = vec![0; NOTE_HEADER_BYTES];
    bytes[4] = NOTE_KIND;
    bytes[8..12].copy_from_slice(&(transitions.len() as u32).to_le_bytes());
    for transition in transitions {
        bytes.extend_from_slice(&transition.encode());
    }
    let crc = crc32c_of(&[&sequence.to_le_bytes(), &location.to_le_bytes(), &bytes[4..]]);
    bytes[..4].copy_from_slice(&crc.to_le_bytes());
    assert!((bytes.len() as u64).is_multiple_of(UNIT_BYTES));
    bytes
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
    let count = u32::from_le_bytes([header[8], header[9], header[10], header[11]]) as usize;
    let length = count.checked_mul(TRANSITION_BYTES).and_then(|bytes| bytes.checked_add(NOTE_HEADER_BYTES));
    let note = length.and_then(|length| bytes.get(..length)).ok_or(DecodeError::Short(NAME))?;
    let crc = u32::from_le_bytes([note[0], note[1], note[2], note[3]]);
    if crc32c_of(&[&sequence.to_le_bytes(), &location.to_le_bytes(), &note[4..]]) != crc {
        return Err(DecodeError::Checksum(NAME));
    }
    let transitions = note[NOTE_HEADER_BYTES..].chunks_exact(TRANSITION_BYTES).map(Transition::decode);
    Ok((transitions.collect::<Result<_, _>>()?, note.len()))
}
