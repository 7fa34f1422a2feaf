//! Segment header (first block) and, in closed log segments, footer (last block).

use super::{DecodeError, crc32c_of, field};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of the header and of the footer; the rest of their block is zero.
pub const SEGMENT_HEADER_BYTES: usize = 72;
const HEADER_MAGIC: [u8; 4] = *b"PSEG";
const FOOTER_MAGIC: [u8; 4] = *b"PEND";

/// What a segment is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum SegmentKind {
    /// Frames of the log: stores, deletes and notes in the order in which they took effect.
    Log = 1,
    /// Records that were cleaned once.
    Cleaned = 2,
    /// Records that were cleaned more than once.
    Cold = 3,
    /// Chunks of a checkpoint.
    Checkpoint = 4,
    /// Blocks of a run of keys in order.
    Keys = 5,
}

impl SegmentKind {
    /// The kind a stored byte names.
    #[must_use]
    pub fn from_byte(byte: u8) -> Option<SegmentKind> {
        use SegmentKind::{Checkpoint, Cleaned, Cold, Keys, Log};
        [Log, Cleaned, Cold, Checkpoint, Keys].into_iter().find(|kind| *kind as u8 == byte)
    }
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Raw {
    magic: [u8; 4],
    crc: U32,
    kind: u8,
    reserved: [u8; 3],
    segment: U32,
    sequence: U64,
    epoch: U32,
    next_segment: U32,
    log_number: U64,
    first_frame: U64,
    durable_frame: U64,
    created_ms: U64,
    reserved_2: U64,
}
const _: () = assert!(size_of::<Raw>() == SEGMENT_HEADER_BYTES);

/// The first block of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// What it is for.
    pub kind: SegmentKind,
    /// Its place in the partition.
    pub segment: u32,
    /// Differs for every use of every segment: epoch in the upper 24 bits, a counter below.
    pub sequence: u64,
    /// The owner's epoch when it was opened.
    pub epoch: u32,
    /// Log segments: the segment in which the log goes on.
    pub next_segment: u32,
    /// Log segments: the number in the log, one more than that of the segment before.
    pub log_number: u64,
    /// Log segments: the first frame.
    pub first_frame: u64,
    /// Log segments: the last frame known to be durable when this was written.
    pub durable_frame: u64,
    /// When it was opened, in wall-clock milliseconds.
    pub created_ms: u64,
}

impl SegmentHeader {
    /// Encodes it for the partition that `identity` names.
    #[must_use]
    pub fn encode(&self, identity: u64) -> [u8; SEGMENT_HEADER_BYTES] {
        let mut raw = Raw {
            magic: HEADER_MAGIC,
            crc: 0.into(),
            kind: self.kind as u8,
            reserved: [0; 3],
            segment: self.segment.into(),
            sequence: self.sequence.into(),
            epoch: self.epoch.into(),
            next_segment: self.next_segment.into(),
            log_number: self.log_number.into(),
            first_frame: self.first_frame.into(),
            durable_frame: self.durable_frame.into(),
            created_ms: self.created_ms.into(),
            reserved_2: 0.into(),
        };
        raw.crc = crc32c_of(&[&identity.to_le_bytes(), raw.as_bytes()]).into();
        let mut bytes = [0; SEGMENT_HEADER_BYTES];
        bytes.copy_from_slice(raw.as_bytes());
        bytes
    }

    /// Decodes the header of the segment at place `segment`.
    ///
    /// # Errors
    /// Not a header, damaged, or of another segment or partition.
    pub fn decode(bytes: &[u8], identity: u64, segment: u32) -> Result<SegmentHeader, DecodeError> {
        const NAME: &str = "segment header";
        let (mut raw, _) = Raw::read_from_prefix(bytes).map_err(|_| DecodeError::Short(NAME))?;
        if raw.magic != HEADER_MAGIC {
            return Err(DecodeError::Absent(NAME));
        }
        let crc = raw.crc.get();
        raw.crc = 0.into();
        if crc32c_of(&[&identity.to_le_bytes(), raw.as_bytes()]) != crc {
            return Err(DecodeError::Checksum(NAME));
        }
        if raw.segment.get() != segment {
            return Err(field(NAME, "place"));
        }
        Ok(SegmentHeader {
            kind: SegmentKind::from_byte(raw.kind).ok_or(field(NAME, "kind"))?,
            segment,
            sequence: raw.sequence.get(),
            epoch: raw.epoch.get(),
            next_segment: raw.next_segment.get(),
            log_number: raw.log_number.get(),
            first_frame: raw.first_frame.get(),
            durable_frame: raw.durable_frame.get(),
            created_ms: raw.created_ms.get(),
        })
    }
}

/// Bytes of the footer.
pub const SEGMENT_FOOTER_BYTES: usize = 40;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawFooter {
    magic: [u8; 4],
    crc: U32,
    sequence: U64,
    last_frame: U64,
    transitions_bytes: U32,
    transitions_crc: U32,
    summary_bytes: U32,
    reserved: U32,
}
const _: () = assert!(size_of::<RawFooter>() == SEGMENT_FOOTER_BYTES);

/// The last block of a closed log segment; the summary stands right before that block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentFooter {
    /// The segment's sequence: a footer of an earlier use does not match.
    pub sequence: u64,
    /// The last frame in the segment.
    pub last_frame: u64,
    /// Bytes of the summary.
    pub transitions_bytes: u32,
    /// CRC-32C of the summary.
    pub transitions_crc: u32,
    /// The same, padded to blocks.
    pub summary_bytes: u32,
}

impl SegmentFooter {
    /// Encodes it.
    #[must_use]
    pub fn encode(&self, identity: u64) -> [u8; SEGMENT_FOOTER_BYTES] {
        let mut raw = RawFooter {
            magic: FOOTER_MAGIC,
            crc: 0.into(),
            sequence: self.sequence.into(),
            last_frame: self.last_frame.into(),
            transitions_bytes: self.transitions_bytes.into(),
            transitions_crc: self.transitions_crc.into(),
            summary_bytes: self.summary_bytes.into(),
            reserved: 0.into(),
        };
        raw.crc = crc32c_of(&[&identity.to_le_bytes(), raw.as_bytes()]).into();
        let mut bytes = [0; SEGMENT_FOOTER_BYTES];
        bytes.copy_from_slice(raw.as_bytes());
        bytes
    }

    /// Decodes the footer of a segment in its use `sequence`.
    ///
    /// # Errors
    /// Not a footer, damaged, or of another use of the segment.
    pub fn decode(bytes: &[u8], identity: u64, sequence: u64) -> Result<SegmentFooter, DecodeError> {
        const NAME: &str = "segment footer";
        let (mut raw, _) = RawFooter::read_from_prefix(bytes).map_err(|_| DecodeError::Short(NAME))?;
        if raw.magic != FOOTER_MAGIC {
            return Err(DecodeError::Absent(NAME));
        }
        let crc = raw.crc.get();
        raw.crc = 0.into();
        if crc32c_of(&[&identity.to_le_bytes(), raw.as_bytes()]) != crc {
            return Err(DecodeError::Checksum(NAME));
        }
        if raw.sequence.get() != sequence {
            return Err(field(NAME, "sequence"));
        }
        if raw.transitions_bytes.get() > raw.summary_bytes.get() {
            return Err(field(NAME, "length"));
        }
        Ok(SegmentFooter {
            sequence,
            last_frame: raw.last_frame.get(),
            transitions_bytes: raw.transitions_bytes.get(),
            transitions_crc: raw.transitions_crc.get(),
            summary_bytes: raw.summary_bytes.get(),
        })
    }
}
