//! The key block: sorted names of keys, prefix-compressed, under one checksum. A run is a row of
//! key blocks, then the index blocks that tell where each of them begins.
//!
//! Role: encodes and decodes. Place on the path: between the cursors and writers of runs and the
//! blocks of the device.
//!
//! A name is the container's generation (four bytes, big-endian) and then the key, so that names
//! in the order of bytes are keys in the order of generation and key.
//!
//! Invariants: the checksum covers the whole block and its own place (partition, sequence of its
//! segment, offset), so a block found elsewhere is not taken for one; names grow within a block; a
//! decoder trusts nothing and never panics.
//!
//! Never: no I/O and no state.

use crate::format::{DecodeError, crc32c_of, field, round_up};
use plimsoll_kv::limits::KEY_BYTES_MAX;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of the header.
pub(crate) const HEADER_BYTES: usize = 32;
/// Bytes of a name: generation and key.
pub(crate) const NAME_BYTES_MAX: usize = 4 + KEY_BYTES_MAX;
/// Bytes that an entry takes at most besides its suffix: two varints, and two more in an index.
pub(crate) const ENTRY_OVERHEAD_BYTES: usize = 4 * 5;
const MAGIC: [u8; 4] = *b"PKEY";
const NAME: &str = "key block";

/// What a block holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum BlockKind {
    /// Names of keys that exist or were deleted.
    Names = 1,
    /// A separator for each block of names, and where the block is.
    Index = 2,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Raw {
    magic: [u8; 4],
    crc: U32,
    kind: u8,
    reserved: [u8; 3],
    entries: U32,
    payload_bytes: U32,
    reserved_2: U32,
    reserved_3: U64,
}
const _: () = assert!(size_of::<Raw>() == HEADER_BYTES);

/// Where a block stands, as its checksum has it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockPlace {
    /// The partition.
    pub(crate) identity: u64,
    /// The use of the segment.
    pub(crate) sequence: u64,
    /// Bytes from the beginning of the partition.
    pub(crate) offset: u64,
}

/// Where a block of a run is: in device blocks from the beginning of the run, as if its segments
/// stood in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// The first device block.
    pub(crate) position: u32,
    /// Device blocks.
    pub(crate) blocks: u16,
}

/// The name of a key of a generation.
pub(crate) fn name_of(generation: u32, key: &[u8]) -> Vec<u8> {
    let mut name = Vec::with_capacity(4 + key.len());
    name.extend_from_slice(&generation.to_be_bytes());
    name.extend_from_slice(key);
    name
}

/// The generation and the key of a name; nothing if it is too short to be one.
pub(crate) fn split_name(name: &[u8]) -> Option<(u32, &[u8])> {
    let (generation, key) = name.split_first_chunk::<4>()?;
    Some((u32::from_be_bytes(*generation), key))
}

/// Bytes that two names have in common at their beginning.
pub(crate) fn common_bytes(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

fn put_varint(mut value: u32, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn take_varint(bytes: &[u8], at: &mut usize) -> Option<u32> {
    let mut value = 0_u64;
    for step in 0..5 {
        let byte = *bytes.get(*at)?;
        *at += 1;
        value |= u64::from(byte & 0x7f) << (7 * step);
        if byte < 0x80 {
            return u32::try_from(value).ok();
        }
    }
    None
}

/// A block that is being filled.
pub(crate) struct BlockBuilder {
    kind: BlockKind,
    payload: Vec<u8>,
    entries: u32,
    last: Vec<u8>,
}

impl BlockBuilder {
    /// An empty block.
    pub(crate) fn new(kind: BlockKind) -> BlockBuilder {
        BlockBuilder { kind, payload: Vec::new(), entries: 0, last: Vec::new() }
    }

    /// Entries in it.
    pub(crate) fn entries(&self) -> u32 {
        self.entries
    }

    /// Bytes of the block if this name joined it, at most.
    pub(crate) fn bytes_with(&self, name: &[u8]) -> usize {
        let suffix = name.len() - common_bytes(&self.last, name);
        HEADER_BYTES + self.payload.len() + ENTRY_OVERHEAD_BYTES + suffix
    }

    /// Appends a name. Names come in order.
    pub(crate) fn push(&mut self, name: &[u8], deleted: bool) {
        assert_eq!(self.kind, BlockKind::Names);
        assert!(self.entries == 0 || *self.last < *name, "names of a block grow");
        self.put_name(name, deleted);
    }

    /// Appends a separator and the block that it stands for.
    pub(crate) fn push_extent(&mut self, separator: &[u8], extent: Extent) {
        assert_eq!(self.kind, BlockKind::Index);
        self.put_name(separator, false);
        put_varint(extent.position, &mut self.payload);
        put_varint(u32::from(extent.blocks), &mut self.payload);
    }

    fn put_name(&mut self, name: &[u8], deleted: bool) {
        assert!(name.len() <= NAME_BYTES_MAX);
        let shared = common_bytes(&self.last, name);
        put_varint((name.len() - shared) as u32 * 2 + u32::from(deleted), &mut self.payload);
        put_varint(shared as u32, &mut self.payload);
        self.payload.extend_from_slice(&name[shared..]);
        self.last.truncate(shared);
        self.last.extend_from_slice(&name[shared..]);
        self.entries += 1;
    }

    /// Appends the block to `out`, padded to device blocks, and begins the next one; its bytes.
    pub(crate) fn seal(&mut self, place: BlockPlace, block_bytes: u64, out: &mut Vec<u8>) -> u64 {
        let mut raw = Raw {
            magic: MAGIC,
            crc: 0.into(),
            kind: self.kind as u8,
            reserved: [0; 3],
            entries: self.entries.into(),
            payload_bytes: (self.payload.len() as u32).into(),
            reserved_2: 0.into(),
            reserved_3: 0.into(),
        };
        raw.crc = checksum(place, raw.as_bytes(), &self.payload).into();
        let length = round_up((HEADER_BYTES + self.payload.len()) as u64, block_bytes);
        let start = out.len();
        out.extend_from_slice(raw.as_bytes());
        out.extend_from_slice(&self.payload);
        out.resize(start + length as usize, 0);
        self.payload.clear();
        self.last.clear();
        self.entries = 0;
        length
    }

    /// Bytes of the block as it is, padded to device blocks.
    pub(crate) fn sealed_bytes(&self, block_bytes: u64) -> u64 {
        round_up((HEADER_BYTES + self.payload.len()) as u64, block_bytes)
    }
}

fn checksum(place: BlockPlace, header: &[u8], payload: &[u8]) -> u32 {
    let (identity, sequence) = (place.identity.to_le_bytes(), place.sequence.to_le_bytes());
    crc32c_of(&[&identity, &sequence, &place.offset.to_le_bytes(), header, payload])
}

/// A walk through the entries of a block that was proved.
#[derive(Debug)]
pub(crate) struct BlockWalk {
    kind: BlockKind,
    left: u32,
    at: usize,
    end: usize,
    name: Vec<u8>,
    deleted: bool,
    extent: Extent,
    first: bool,
}

impl BlockWalk {
    /// Proves the block that `bytes` begin with, and stands before its first entry.
    ///
    /// # Errors
    /// Not a block of this kind and place, cut short or damaged.
    pub(crate) fn open(bytes: &[u8], place: BlockPlace, kind: BlockKind) -> Result<BlockWalk, DecodeError> {
        let (mut raw, rest) = Raw::read_from_prefix(bytes).map_err(|_| DecodeError::Short(NAME))?;
        if raw.magic != MAGIC {
            return Err(DecodeError::Absent(NAME));
        }
        let payload = rest.get(..raw.payload_bytes.get() as usize).ok_or(DecodeError::Short(NAME))?;
        let stored = std::mem::take(&mut raw.crc).get();
        if checksum(place, raw.as_bytes(), payload) != stored {
            return Err(DecodeError::Checksum(NAME));
        }
        if raw.kind != kind as u8 {
            return Err(field(NAME, "kind"));
        }
        Ok(BlockWalk {
            kind,
            left: raw.entries.get(),
            at: HEADER_BYTES,
            end: HEADER_BYTES + payload.len(),
            name: Vec::new(),
            deleted: false,
            extent: Extent { position: 0, blocks: 0 },
            first: true,
        })
    }

    /// Goes to the next entry; false after the last. `bytes` are those it was opened with.
    ///
    /// # Errors
    /// An entry makes no sense.
    pub(crate) fn step(&mut self, bytes: &[u8]) -> Result<bool, DecodeError> {
        if self.left == 0 {
            return if self.at == self.end { Ok(false) } else { Err(field(NAME, "length")) };
        }
        let payload = bytes.get(..self.end).ok_or(DecodeError::Short(NAME))?;
        self.entry(payload).ok_or(field(NAME, "entry"))?;
        self.left -= 1;
        self.first = false;
        Ok(true)
    }

    fn entry(&mut self, payload: &[u8]) -> Option<()> {
        let head = take_varint(payload, &mut self.at)?;
        let shared = take_varint(payload, &mut self.at)? as usize;
        let end = self.at.checked_add((head / 2) as usize)?;
        let suffix = payload.get(self.at..end)?;
        if shared > self.name.len() || shared + suffix.len() > NAME_BYTES_MAX {
            return None;
        }
        let grows = *suffix > self.name[shared..];
        if !(grows || self.first || (self.kind == BlockKind::Index && *suffix == self.name[shared..])) {
            return None;
        }
        self.name.truncate(shared);
        self.name.extend_from_slice(suffix);
        self.deleted = head & 1 != 0;
        self.at = end;
        if self.kind == BlockKind::Index {
            let position = take_varint(payload, &mut self.at)?;
            let blocks = u16::try_from(take_varint(payload, &mut self.at)?).ok()?;
            self.extent = Extent { position, blocks };
        }
        Some(())
    }

    /// The name at which it stands.
    pub(crate) fn name(&self) -> &[u8] {
        &self.name
    }

    /// True if that key was deleted.
    pub(crate) fn deleted(&self) -> bool {
        self.deleted
    }

    /// In an index: the block for which the name stands.
    pub(crate) fn extent(&self) -> Extent {
        self.extent
    }
}

#[cfg(test)]
#[path = "block_tests.rs"]
mod tests;
