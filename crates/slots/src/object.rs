//! Objects: the bytes behind a key of the drive.
//!
//! Role: encodes and decodes them. Place on the path: between the adapter and the drive.
//!
//! ```text
//! object   head | value | tail                                              all numbers little endian
//! head     magic "PLSO" | format u16 | riders u16 | head bytes u32 | 0 u32 | record | key | riders | CRC-32C
//! record   kind u8 | flags u8 | key bytes u16 | container u32 | generation u32 | sequence | version | below
//!          | expiry u64 | value bytes u32 | CRC-32C of the value             a version: epoch u32, clock u64
//! rider    record | key | value
//! tail     riders once more | their bytes u32 | their number u16 | format u16 | magic "PLST" | CRC-32C
//! ```
//!
//! The riders stand twice: they are other keys' newest records, and must not be lost with the head of an
//! object that rots. The tail tells then what was carried, and that it was nothing more.
//!
//! Invariants: every byte but the value is under the head's or the tail's checksum, the value under its own;
//! a decoder takes memory in proportion to what it is given.
//!
//! Never: it panics on any bytes.

use crc_fast::{CrcAlgorithm, checksum};
use plimsoll_kv::limits::KEY_BYTES_MAX;
use plimsoll_kv::{ContainerId, Version};

const MAGIC: &[u8; 4] = b"PLSO";
const TAIL_MAGIC: &[u8; 4] = b"PLST";
pub(crate) const FORMAT: u16 = 1;
/// Bytes before the record.
const PREFIX_BYTES: usize = 16;
/// Bytes of a record without its key and value.
pub(crate) const RECORD_BYTES: usize = 64;
/// Bytes of a tail without riders.
pub(crate) const TAIL_BYTES: usize = 16;
/// Bytes of the riders of one object.
pub(crate) const RIDERS_BYTES_MAX: usize = 16 << 10;
/// Bytes of a head.
const HEAD_BYTES_MAX: usize = PREFIX_BYTES + RECORD_BYTES + KEY_BYTES_MAX + RIDERS_BYTES_MAX + 4;
/// Bytes of an object beside its value, at most.
pub const OVERHEAD_BYTES_MAX: usize = HEAD_BYTES_MAX + RIDERS_BYTES_MAX + TAIL_BYTES;

const FLAG_EXPIRES: u8 = 1;
const FLAG_KEEPS_EXPIRY: u8 = 2;

/// What a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// A key's value.
    Value = 1,
    /// Where the parts of a key's value are.
    Manifest = 2,
    /// There is no such key.
    Tombstone = 3,
    /// A slot of a key that holds nothing but riders.
    Husk = 4,
    /// A part of an upload.
    Part = 5,
    /// A piece of what an intent writes.
    Chunk = 6,
    /// Writes that are in force.
    Committed = 7,
    /// Writes that a transaction can do.
    Prepared = 8,
    /// A transaction that was applied.
    Applied = 9,
    /// A write of a transaction: changes an expiry time.
    SetExpiry = 10,
    /// A write of a transaction: empties the container.
    Clear = 11,
}

impl Kind {
    fn decode(byte: u8) -> Option<Kind> {
        use Kind::*;
        let all =
            [Value, Manifest, Tombstone, Husk, Part, Chunk, Committed, Prepared, Applied, SetExpiry, Clear];
        all.into_iter().find(|kind| *kind as u8 == byte)
    }
}

/// When a record expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expires {
    Never,
    At(u64),
    /// As the key does now: in writes of transactions alone.
    AsBefore,
}

/// A record, without its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) kind: Kind,
    pub(crate) container: ContainerId,
    pub(crate) generation: u32,
    pub(crate) key: Vec<u8>,
    /// Orders the records of a key: of two the one with the higher counts.
    pub(crate) sequence: Version,
    /// What clients are told.
    pub(crate) version: Version,
    /// The sequence of what this retains; zero if nothing.
    pub(crate) below: Version,
    pub(crate) expires: Expires,
}

impl Record {
    /// A record of nothing but a kind and a name: parts, chunks, intents.
    pub(crate) fn named(kind: Kind, key: Vec<u8>) -> Record {
        Record {
            kind,
            container: ContainerId(0),
            generation: 0,
            key,
            sequence: Version::ZERO,
            version: Version::ZERO,
            below: Version::ZERO,
            expires: Expires::Never,
        }
    }

    pub(crate) fn expiry_ms(&self) -> Option<u64> {
        if let Expires::At(at_ms) = self.expires { Some(at_ms) } else { None }
    }
}

/// A record whose value stands with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rider {
    pub(crate) record: Record,
    pub(crate) value: Vec<u8>,
}

/// The head of an object, as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) record: Record,
    pub(crate) value_bytes: usize,
    value_crc: u32,
    pub(crate) riders: Vec<Rider>,
    /// Where the value begins.
    pub(crate) head_bytes: usize,
    riders_bytes: usize,
}

/// Why bytes are no object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Damage {
    /// More bytes are needed: so many of the object.
    #[error("it ends early: {0} bytes are needed")]
    Short(usize),
    /// It was never one of ours.
    #[error("it is no object of this store")]
    Foreign,
    /// It is of another version of the format.
    #[error("it is of format {0}, this is {FORMAT}")]
    Format(u16),
    /// What is wrong.
    #[error("{0}")]
    Corrupt(&'static str),
}

pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// Takes numbers from the front of bytes.
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }
    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }
    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }
    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }
    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
    pub(crate) fn version(&mut self) -> Option<Version> {
        Some(Version { epoch: self.u32()?, clock: self.u64()? })
    }
}

pub(crate) fn put_version(out: &mut Vec<u8>, version: Version) {
    out.extend_from_slice(&version.epoch.to_le_bytes());
    out.extend_from_slice(&version.clock.to_le_bytes());
}

fn put_record(out: &mut Vec<u8>, record: &Record, value: &[u8]) {
    let begin = out.len();
    let (flags, expiry_ms) = match record.expires {
        Expires::Never => (0, 0),
        Expires::At(at_ms) => (FLAG_EXPIRES, at_ms),
        Expires::AsBefore => (FLAG_KEEPS_EXPIRY, 0),
    };
    out.extend_from_slice(&[record.kind as u8, flags]);
    out.extend_from_slice(&u16::try_from(record.key.len()).expect("a key has a limit").to_le_bytes());
    out.extend_from_slice(&record.container.0.to_le_bytes());
    out.extend_from_slice(&record.generation.to_le_bytes());
    put_version(out, record.sequence);
    put_version(out, record.version);
    put_version(out, record.below);
    out.extend_from_slice(&expiry_ms.to_le_bytes());
    out.extend_from_slice(&u32::try_from(value.len()).expect("a value has a limit").to_le_bytes());
    out.extend_from_slice(&crc32c(value).to_le_bytes());
    assert_eq!(out.len() - begin, RECORD_BYTES, "a record has a fixed size");
    out.extend_from_slice(&record.key);
}

/// A record, the length of its value and that one's checksum.
fn take_record(reader: &mut Reader<'_>) -> Option<(Record, usize, u32)> {
    let kind = Kind::decode(reader.u8()?)?;
    let flags = reader.u8()?;
    let key_bytes = usize::from(reader.u16()?);
    let (container, generation) = (ContainerId(reader.u32()?), reader.u32()?);
    let (sequence, version, below) = (reader.version()?, reader.version()?, reader.version()?);
    let expires = match (flags, reader.u64()?) {
        (0, 0) => Expires::Never,
        (FLAG_EXPIRES, at_ms) => Expires::At(at_ms),
        (FLAG_KEEPS_EXPIRY, 0) => Expires::AsBefore,
        _ => return None,
    };
    let (value_bytes, value_crc) = (reader.u32()? as usize, reader.u32()?);
    let key = reader.bytes(key_bytes)?.to_vec();
    let record = Record { kind, container, generation, key, sequence, version, below, expires };
    Some((record, value_bytes, value_crc))
}

/// The bytes of a rider.
pub(crate) fn encode_rider(record: &Record, value: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(RECORD_BYTES + record.key.len() + value.len());
    put_record(&mut out, record, value);
    out.extend_from_slice(value);
    out
}

/// Riders that stand one after the other, and nothing else.
pub(crate) fn decode_riders(bytes: &[u8]) -> Result<Vec<Rider>, Damage> {
    let mut reader = Reader(bytes);
    let mut riders = Vec::new();
    while !reader.0.is_empty() {
        let (record, value_bytes, crc) = take_record(&mut reader).ok_or(Damage::Corrupt("a rider"))?;
        let value = reader.bytes(value_bytes).ok_or(Damage::Corrupt("a rider's length"))?.to_vec();
        if crc32c(&value) != crc {
            return Err(Damage::Corrupt("a rider's checksum"));
        }
        riders.push(Rider { record, value });
    }
    Ok(riders)
}

/// The bytes of an object.
pub(crate) fn encode(record: &Record, value: &[u8], riders: &[impl AsRef<[u8]>]) -> Vec<u8> {
    let riders_bytes: usize = riders.iter().map(|rider| rider.as_ref().len()).sum();
    assert!(riders_bytes <= RIDERS_BYTES_MAX, "riders have a limit");
    let count = u16::try_from(riders.len()).expect("riders are fewer than their bytes").to_le_bytes();
    let head_bytes = PREFIX_BYTES + RECORD_BYTES + record.key.len() + riders_bytes + 4;
    let mut out = Vec::with_capacity(head_bytes + value.len() + riders_bytes + TAIL_BYTES);
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&FORMAT.to_le_bytes());
    out.extend_from_slice(&count);
    out.extend_from_slice(&u32::try_from(head_bytes).expect("a head has a limit").to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    put_record(&mut out, record, value);
    riders.iter().for_each(|rider| out.extend_from_slice(rider.as_ref()));
    let crc = crc32c(&out);
    out.extend_from_slice(&crc.to_le_bytes());
    assert_eq!(out.len(), head_bytes, "the head says where the value begins");
    out.extend_from_slice(value);
    let tail_begin = out.len();
    riders.iter().for_each(|rider| out.extend_from_slice(rider.as_ref()));
    out.extend_from_slice(&(riders_bytes as u32).to_le_bytes());
    out.extend_from_slice(&count);
    out.extend_from_slice(&FORMAT.to_le_bytes());
    out.extend_from_slice(TAIL_MAGIC);
    let crc = crc32c(&out[tail_begin..]);
    out.extend_from_slice(&crc.to_le_bytes());
    out
}

impl Head {
    /// The head at the front of an object's bytes, of which some may be missing at the end.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Head, Damage> {
        let prefix = bytes.get(..PREFIX_BYTES).ok_or(Damage::Short(PREFIX_BYTES))?;
        let mut reader = Reader(prefix);
        if reader.bytes(4) != Some(MAGIC) {
            return Err(Damage::Foreign);
        }
        const TORN: Damage = Damage::Corrupt("the head's length");
        let (format, count) = (reader.u16().ok_or(TORN)?, reader.u16().ok_or(TORN)?);
        if format != FORMAT {
            return Err(Damage::Format(format));
        }
        let head_bytes = reader.u32().ok_or(TORN)? as usize;
        if !(PREFIX_BYTES + RECORD_BYTES + 4..=HEAD_BYTES_MAX).contains(&head_bytes) {
            return Err(TORN);
        }
        let head = bytes.get(..head_bytes).ok_or(Damage::Short(head_bytes))?;
        let (covered, crc) = head.split_at(head_bytes - 4);
        if crc != crc32c(covered).to_le_bytes() {
            return Err(Damage::Corrupt("the head's checksum"));
        }
        let mut reader = Reader(&covered[PREFIX_BYTES..]);
        let (record, value_bytes, value_crc) =
            take_record(&mut reader).ok_or(Damage::Corrupt("the head's record"))?;
        let riders_bytes = reader.0.len();
        let riders = decode_riders(reader.0)?;
        if riders.len() != usize::from(count) || riders_bytes > RIDERS_BYTES_MAX {
            return Err(Damage::Corrupt("the number of riders"));
        }
        Ok(Head { record, value_bytes, value_crc, riders, head_bytes, riders_bytes })
    }

    /// Bytes of the whole object.
    pub(crate) fn object_bytes(&self) -> usize {
        self.head_bytes + self.value_bytes + self.riders_bytes + TAIL_BYTES
    }

    /// The value of the whole object that this is the head of.
    pub(crate) fn value<'a>(&self, object: &'a [u8]) -> Result<&'a [u8], Damage> {
        if object.len() != self.object_bytes() {
            return Err(Damage::Corrupt("the object's length"));
        }
        let value = &object[self.head_bytes..self.head_bytes + self.value_bytes];
        if crc32c(value) == self.value_crc { Ok(value) } else { Err(Damage::Corrupt("the value's checksum")) }
    }
}

/// What an object carried, by its tail: for one whose head cannot be read.
pub(crate) fn decode_tail(object: &[u8]) -> Result<Vec<Rider>, Damage> {
    const NONE: Damage = Damage::Corrupt("neither head nor tail");
    let (before, tail) = object.split_last_chunk::<TAIL_BYTES>().ok_or(NONE)?;
    let mut reader = Reader(tail);
    let riders_bytes = reader.u32().ok_or(NONE)? as usize;
    let (count, format) = (reader.u16().ok_or(NONE)?, reader.u16().ok_or(NONE)?);
    if reader.bytes(4) != Some(TAIL_MAGIC) || riders_bytes > RIDERS_BYTES_MAX {
        return Err(NONE);
    }
    if format != FORMAT {
        return Err(Damage::Format(format));
    }
    let begin = before.len().checked_sub(riders_bytes).ok_or(NONE)?;
    let covered = &object[begin..object.len() - 4];
    if reader.u32() != Some(crc32c(covered)) {
        return Err(NONE);
    }
    let riders = decode_riders(&before[begin..])?;
    if riders.len() == usize::from(count) { Ok(riders) } else { Err(NONE) }
}

#[cfg(test)]
#[path = "object_tests.rs"]
mod tests;
