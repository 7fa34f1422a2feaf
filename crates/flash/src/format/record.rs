//! The record: a key and its value. Header, key, checksums of the value (one for each 16 KiB, so
//! that ranges verify), value; padded to 16 bytes.
//!
//! The header's checksum covers header, key and value checksums, and the record's own place: the
//! sequence of its segment and its location. A record found elsewhere is not taken for one.

use super::{DecodeError, Transition, TransitionKind, UNIT_BYTES, crc32c, crc32c_of, field, round_up};
use plimsoll_kv::Version;
use plimsoll_reactor::copy_for_device;
use std::ops::Range;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of the header.
pub const RECORD_HEADER_BYTES: usize = 64;
/// Bytes of value under one checksum.
pub const CHECKSUM_SPAN_BYTES: usize = 16 << 10;

/// What a record holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum RecordKind {
    /// A key and its value.
    Value = 1,
    /// A key whose value stands in the parts of an upload: the value holds a [`Manifest`].
    Manifest = 2,
    /// A part of an upload. The key is the upload and the part's number.
    Part = 3,
    /// A key that was deleted. It stands in the log alone, for the transition of the delete, and is
    /// never live.
    Tombstone = 4,
    /// A key whose value is that of another record, kept below this one: the value holds a [`Keeper`].
    Keeper = 5,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Raw {
    crc: U32,
    kind: u8,
    flags: u8,
    codec: u8,
    lifetime: u8,
    key_bytes: U32,
    value_bytes: U32,
    raw_bytes: U32,
    container: U32,
    epoch: U32,
    placement_epoch: U32,
    clock: U64,
    expiry_ms: U64,
    cipher_key: U16,
    slot: U16,
    previous_length: U32,
    previous: U64,
}
const _: () = assert!(size_of::<Raw>() == RECORD_HEADER_BYTES);

/// What stands at the head of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// What it holds.
    pub kind: RecordKind,
    /// How long it is expected to live.
    pub lifetime: u8,
    /// Bytes of the key.
    pub key_bytes: u32,
    /// Bytes of the value as stored.
    pub value_bytes: u32,
    /// The container's generation.
    pub container: u32,
    /// The slot of the key; a part has the slot of its upload's key.
    pub slot: u16,
    /// The version of the write.
    pub version: Version,
    /// When it expires, in wall-clock milliseconds; 0: never.
    pub expiry_ms: u64,
    /// The flags of the transition that this record stands for in the log.
    pub flags: u8,
    /// The location of the record that it replaced when it was stored; 0: none.
    pub previous: u64,
    /// Units of that record.
    pub previous_length: u32,
}

/// Checksums a value of this many bytes has.
fn checksums(value_bytes: u32) -> usize {
    (value_bytes as usize).div_ceil(CHECKSUM_SPAN_BYTES)
}

impl RecordHeader {
    /// Bytes before the value: header, key, checksums.
    #[must_use]
    pub fn head_bytes(&self) -> usize {
        head_bytes(self.key_bytes as usize, self.value_bytes)
    }

    /// Bytes of the whole record, padding included.
    #[must_use]
    pub fn record_bytes(&self) -> u64 {
        record_bytes(self.key_bytes as usize, self.value_bytes as usize)
    }

    /// Decodes the fields of a header; [`verify_head`] proves them.
    ///
    /// # Errors
    /// Cut short, or not a record.
    pub fn decode(bytes: &[u8]) -> Result<RecordHeader, DecodeError> {
        const NAME: &str = "record";
        let (raw, _) = Raw::read_from_prefix(bytes).map_err(|_| DecodeError::Short(NAME))?;
        let kind = match raw.kind {
            1 => RecordKind::Value,
            2 => RecordKind::Manifest,
            3 => RecordKind::Part,
            4 => RecordKind::Tombstone,
            5 => RecordKind::Keeper,
            _ => return Err(DecodeError::Absent(NAME)),
        };
        if raw.key_bytes.get() as usize > plimsoll_kv::limits::KEY_BYTES_MAX {
            return Err(field(NAME, "key length"));
        }
        if raw.value_bytes.get() as usize > plimsoll_kv::limits::RECORD_VALUE_BYTES_MAX {
            return Err(field(NAME, "value length"));
        }
        if raw.codec != 0 || raw.cipher_key.get() != 0 {
            return Err(field(NAME, "codec or cipher"));
        }
        Ok(RecordHeader {
            kind,
            lifetime: raw.lifetime,
            key_bytes: raw.key_bytes.get(),
            value_bytes: raw.value_bytes.get(),
            container: raw.container.get(),
            slot: raw.slot.get(),
            version: Version { epoch: raw.epoch.get(), clock: raw.clock.get() },
            expiry_ms: raw.expiry_ms.get(),
            flags: raw.flags,
            previous: raw.previous.get(),
            previous_length: raw.previous_length.get(),
        })
    }

    fn raw(&self) -> Raw {
        Raw {
            crc: 0.into(),
            kind: self.kind as u8,
            flags: self.flags,
            codec: 0,
            lifetime: self.lifetime,
            key_bytes: self.key_bytes.into(),
            value_bytes: self.value_bytes.into(),
            raw_bytes: self.value_bytes.into(),
            container: self.container.into(),
            epoch: self.version.epoch.into(),
            placement_epoch: 0.into(),
            clock: self.version.clock.into(),
            expiry_ms: self.expiry_ms.into(),
            cipher_key: 0.into(),
            slot: self.slot.into(),
            previous_length: self.previous_length.into(),
            previous: self.previous.into(),
        }
    }

    /// The transition that a record in the log stands for: it was stored at `location`, or (a
    /// tombstone) what it names was deleted.
    #[must_use]
    pub fn transition(&self, key: &[u8], fingerprint: u64, location: u64) -> Transition {
        let transition = Transition {
            flags: self.flags,
            slot: self.slot,
            container: self.container,
            fingerprint,
            location,
            length: (self.record_bytes() / UNIT_BYTES) as u32,
            previous: self.previous,
            previous_length: self.previous_length,
            ..Transition::new(TransitionKind::Store)
        };
        match self.part(key) {
            None if self.kind == RecordKind::Tombstone => {
                Transition { kind: TransitionKind::Delete, ..transition }
            }
            None => transition,
            Some((upload, part)) => Transition {
                kind: TransitionKind::StorePart,
                fingerprint: u64::from(part),
                argument: upload,
                ..transition
            },
        }
    }

    /// Upload and number of a part, from its key.
    #[must_use]
    pub fn part(&self, key: &[u8]) -> Option<(u64, u32)> {
        if self.kind != RecordKind::Part || key.len() != 12 {
            return None;
        }
        let upload = key[..8].try_into().map(u64::from_le_bytes).ok()?;
        Some((upload, key[8..].try_into().map(u32::from_le_bytes).ok()?))
    }
}

/// Bytes before the value of a record with such a key and value.
#[must_use]
pub fn head_bytes(key_bytes: usize, value_bytes: u32) -> usize {
    round_up((RECORD_HEADER_BYTES + key_bytes) as u64, 4) as usize + 4 * checksums(value_bytes)
}

/// Bytes of a record with such a key and value, padding included.
#[must_use]
pub fn record_bytes(key_bytes: usize, value_bytes: usize) -> u64 {
    round_up((head_bytes(key_bytes, value_bytes as u32) + value_bytes) as u64, UNIT_BYTES)
}

/// Encodes a record for its place: the sequence of its segment and its location in units. The value may come
/// in two pieces. `out` has the record's bytes ([`record_bytes`]); whatever stands in it is written over.
pub fn encode(
    header: &RecordHeader,
    key: &[u8],
    [start, rest_of_value]: [&[u8]; 2],
    (sequence, location): (u64, u64),
    out: &mut [u8],
) {
    assert_eq!(header.key_bytes as usize, key.len());
    assert_eq!(header.value_bytes as usize, start.len() + rest_of_value.len());
    assert_eq!(header.record_bytes(), out.len() as u64);
    let (head, rest) = out.split_at_mut(header.head_bytes());
    let (raw, keyed) = head.split_at_mut(RECORD_HEADER_BYTES);
    raw.copy_from_slice(header.raw().as_bytes());
    let (named, sums) = keyed.split_at_mut(keyed.len() - 4 * checksums(header.value_bytes));
    named[..key.len()].copy_from_slice(key);
    named[key.len()..].fill(0);
    for (number, sum) in sums.chunks_exact_mut(4).enumerate() {
        let span = number * CHECKSUM_SPAN_BYTES..(number + 1) * CHECKSUM_SPAN_BYTES;
        let after = span.start.saturating_sub(start.len())..span.end.saturating_sub(start.len());
        let crc = crc32c_of(&[within(start, span), within(rest_of_value, after)]);
        sum.copy_from_slice(&crc.to_le_bytes());
    }
    let (value, padding) = rest.split_at_mut(header.value_bytes as usize);
    let (first, second) = value.split_at_mut(start.len());
    copy_for_device(first, start);
    copy_for_device(second, rest_of_value);
    padding.fill(0);
    seal(head, sequence, location);
}

/// As much of a range as there is.
fn within(bytes: &[u8], range: Range<usize>) -> &[u8] {
    &bytes[range.start.min(bytes.len())..range.end.min(bytes.len())]
}

fn head_checksum(head: &[u8], sequence: u64, location: u64) -> u32 {
    crc32c_of(&[&sequence.to_le_bytes(), &location.to_le_bytes(), &head[4..]])
}

/// Writes the checksum of a head for its place.
fn seal(head: &mut [u8], sequence: u64, location: u64) {
    let crc = head_checksum(head, sequence, location);
    head[..4].copy_from_slice(&crc.to_le_bytes());
}

/// Gives a verified record a new place; its expiry time and version are those of `header`. The
/// checksums of the value are kept, so that they cover it end to end.
pub fn relocate(record: &mut [u8], header: &RecordHeader, sequence: u64, location: u64) {
    record[24..28].copy_from_slice(&header.version.epoch.to_le_bytes());
    record[32..40].copy_from_slice(&header.version.clock.to_le_bytes());
    record[40..48].copy_from_slice(&header.expiry_ms.to_le_bytes());
    seal(&mut record[..header.head_bytes()], sequence, location);
}

/// Proves the head of a record: `bytes` begins with it and holds all of it.
///
/// # Errors
/// Cut short, not a record, or damaged.
pub fn verify_head(bytes: &[u8], sequence: u64, location: u64) -> Result<RecordHeader, DecodeError> {
    let header = RecordHeader::decode(bytes)?;
    let head = bytes.get(..header.head_bytes()).ok_or(DecodeError::Short("record"))?;
    let stored = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
    if head_checksum(head, sequence, location) != stored {
        return Err(DecodeError::Checksum("record head"));
    }
    Ok(header)
}

/// The key of a record whose head was proved.
#[must_use]
pub fn key<'a>(bytes: &'a [u8], header: &RecordHeader) -> &'a [u8] {
    &bytes[RECORD_HEADER_BYTES..RECORD_HEADER_BYTES + header.key_bytes as usize]
}

/// Proves and gives the value of a record whose head was proved.
///
/// # Errors
/// Cut short or damaged.
pub fn verify_value<'a>(bytes: &'a [u8], header: &RecordHeader) -> Result<&'a [u8], DecodeError> {
    let start = header.head_bytes();
    let value =
        bytes.get(start..start + header.value_bytes as usize).ok_or(DecodeError::Short("record value"))?;
    verify_spans(bytes, header, 0, value)?;
    Ok(value)
}

/// Proves whole checksum spans of a value: `spans` begins with span `first`. `head` is the proved head.
///
/// # Errors
/// Damaged.
pub fn verify_spans(
    head: &[u8],
    header: &RecordHeader,
    first: usize,
    spans: &[u8],
) -> Result<(), DecodeError> {
    let table = header.head_bytes() - 4 * checksums(header.value_bytes);
    for (index, span) in spans.chunks(CHECKSUM_SPAN_BYTES).enumerate() {
        let at = table + 4 * (first + index);
        let stored = u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        if crc32c(span) != stored {
            return Err(DecodeError::Checksum("record value"));
        }
    }
    Ok(())
}

/// The value of a manifest record: where a long value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// Bytes of the value.
    pub length: u64,
    /// The upload whose parts hold it.
    pub upload: u64,
    /// Bytes of every part but the last.
    pub part_bytes: u32,
}

/// Bytes of an encoded manifest.
pub const MANIFEST_BYTES: usize = 24;

impl Manifest {
    /// Encodes it.
    #[must_use]
    pub fn encode(&self) -> [u8; MANIFEST_BYTES] {
        let mut bytes = [0; MANIFEST_BYTES];
        bytes[..8].copy_from_slice(&self.length.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.upload.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.part_bytes.to_le_bytes());
        bytes
    }

    /// Decodes the value of a manifest record.
    ///
    /// # Errors
    /// Wrong length or impossible fields.
    pub fn decode(bytes: &[u8]) -> Result<Manifest, DecodeError> {
        const NAME: &str = "manifest";
        let bytes: &[u8; MANIFEST_BYTES] = bytes.try_into().map_err(|_| DecodeError::Short(NAME))?;
        let word = |at: usize| {
            let mut eight = [0; 8];
            eight.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(eight)
        };
        let manifest = Manifest { length: word(0), upload: word(8), part_bytes: word(16) as u32 };
        if manifest.part_bytes == 0 || manifest.length > plimsoll_kv::limits::VALUE_BYTES_MAX {
            return Err(field(NAME, "length"));
        }
        Ok(manifest)
    }

    /// The number of parts.
    #[must_use]
    pub fn parts(&self) -> u32 {
        self.length.div_ceil(u64::from(self.part_bytes)) as u32
    }
}

/// The value of a keeper record: what stands before the value of the record that is kept below it, and how
/// long that value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keeper<'a> {
    /// What stands before it.
    pub head: &'a [u8],
    /// Bytes of the value that follows.
    pub kept_bytes: u32,
}

/// Bytes of a keeper record's value beside its head.
pub const KEEPER_BYTES: usize = 4;

impl Keeper<'_> {
    /// Decodes the value of a keeper record.
    ///
    /// # Errors
    /// Wrong length or impossible fields.
    pub fn decode(bytes: &[u8]) -> Result<Keeper<'_>, DecodeError> {
        const NAME: &str = "keeper";
        let (head, kept_bytes) = bytes.split_last_chunk::<KEEPER_BYTES>().ok_or(DecodeError::Short(NAME))?;
        let kept_bytes = u32::from_le_bytes(*kept_bytes);
        if head.len() > plimsoll_kv::limits::KEPT_HEAD_BYTES_MAX
            || kept_bytes as usize > plimsoll_kv::limits::RECORD_VALUE_BYTES_MAX
        {
            return Err(field(NAME, "length"));
        }
        Ok(Keeper { head, kept_bytes })
    }

    /// Bytes of the value in all.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.head.len() as u64 + u64::from(self.kept_bytes)
    }
}

/// The key under which a part is stored.
#[must_use]
pub fn part_key(upload: u64, part: u32) -> [u8; 12] {
    let mut key = [0; 12];
    key[..8].copy_from_slice(&upload.to_le_bytes());
    key[8..].copy_from_slice(&part.to_le_bytes());
    key
}
