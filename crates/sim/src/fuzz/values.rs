//! Values that say who wrote them: every written value can be told from every other.
//!
//! Place: clients take values from here and give back what they read.
//!
//! Invariants: a value is written at most once to a key; every 16 bytes of a long value name it, or the
//! older value that it took them from, so that a range is known by its bytes; a value that was read is
//! accepted only if every byte of it is what was written to that very key.
//!
//! Never: two values share all their bytes for one key.

use crate::checker::ValueId;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;

/// The bytes that name a value.
const BLOCK_BYTES: usize = 16;
/// Bytes of a block that say of which value it is: a block that was cut short has them, too, if it is found.
pub(super) const NAME_BYTES: u64 = 8;
/// Numbers of values look like no others.
const NAME_MASK: u64 = 0x5bd1_e995_0000_0000;

/// A container and a key's bytes.
pub(super) type KeyName = (u32, Vec<u8>);

#[derive(Default)]
pub(super) struct Values {
    /// By id less 1.
    written: Vec<Written>,
    /// Values too short to name themselves.
    short: BTreeMap<(KeyName, Vec<u8>), ValueId>,
}

/// A value that was written.
struct Written {
    key: KeyName,
    /// Its pieces in order: where each ends, and of which value its bytes are.
    pieces: Vec<(usize, u64)>,
}

impl Written {
    fn length(&self) -> usize {
        self.pieces.last().map_or(0, |(end, _)| *end)
    }

    /// `length` bytes from block `first` on.
    fn content(&self, first: u64, length: usize) -> Vec<u8> {
        let (mut bytes, start) = (Vec::with_capacity(length), first as usize * BLOCK_BYTES);
        for (end, id) in &self.pieces {
            let at = start + bytes.len();
            let wanted = (*end.min(&(start + length))).saturating_sub(at);
            bytes.extend_from_slice(&content(*id, (at / BLOCK_BYTES) as u64, wanted));
        }
        bytes
    }
}

fn mix(a: u64, b: u64) -> u64 {
    let mixed = (a ^ b.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

fn block(id: u64, index: u64) -> [u8; BLOCK_BYTES] {
    let mut bytes = [0; BLOCK_BYTES];
    bytes[..8].copy_from_slice(&(id ^ NAME_MASK).to_le_bytes());
    bytes[8..].copy_from_slice(&mix(id, index).to_le_bytes());
    bytes
}

/// Where blocks of values stand in an image of a disk.
pub(super) fn named_blocks(image: &[u8]) -> Vec<usize> {
    let upper = &NAME_MASK.to_le_bytes()[4..];
    let is_named = |at: &usize| image[at + 4..].starts_with(upper);
    (0..image.len().saturating_sub(NAME_BYTES as usize)).filter(is_named).collect()
}

/// The value that a block names.
fn named(block: &[u8; BLOCK_BYTES]) -> u64 {
    let mut eight = [0; 8];
    eight.copy_from_slice(&block[..8]);
    u64::from_le_bytes(eight) ^ NAME_MASK
}

/// `length` bytes of a value from block `first` on.
fn content(id: u64, first: u64, length: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(length + BLOCK_BYTES);
    let mut index = first;
    while bytes.len() < length {
        bytes.extend_from_slice(&block(id, index));
        index += 1;
    }
    bytes.truncate(length);
    bytes
}

impl Values {
    /// A new value for a key, of about this length.
    pub(super) fn write(&mut self, key: &KeyName, length: usize) -> (ValueId, Vec<u8>) {
        let id = ValueId(self.written.len() as u64 + 1);
        let mut bytes = content(id.0, 0, length);
        if length < BLOCK_BYTES {
            // Short ones hold the end of a block, which differs more.
            bytes = mix(id.0, 0).to_le_bytes().into_iter().cycle().take(length).collect();
            let named = (key.clone(), bytes.clone());
            match self.short.entry(named) {
                Entry::Occupied(_) => bytes = content(id.0, 0, BLOCK_BYTES),
                Entry::Vacant(vacant) => drop(vacant.insert(id)),
            }
        }
        self.written.push(Written { key: key.clone(), pieces: vec![(bytes.len(), id.0)] });
        (id, bytes)
    }

    /// A new value for a key: an older one of it with the bytes of `changed` new, and those after its end.
    /// All bounds but the length are whole blocks, and at least one block changes.
    pub(super) fn change(
        &mut self,
        key: &KeyName,
        base: ValueId,
        changed: &Range<usize>,
        length: usize,
    ) -> (ValueId, Vec<u8>) {
        let id = ValueId(self.written.len() as u64 + 1);
        assert!(changed.len() >= BLOCK_BYTES && changed.end <= length, "a change names its value");
        let base = &self.written[base.0 as usize - 1];
        // Of a value that grows the last block is new, if it was not whole.
        let whole = base.length() / BLOCK_BYTES * BLOCK_BYTES;
        let old_end = if length > base.length() { whole } else { length };
        let mut pieces = Vec::new();
        for (end, of) in &base.pieces {
            pieces.push(((*end).min(changed.start).min(old_end), *of));
        }
        pieces.push((changed.end, id.0));
        for (end, of) in base.pieces.iter().filter(|(end, _)| *end > changed.end) {
            pieces.push(((*end).min(old_end), *of));
        }
        pieces.push((length, id.0));
        let written = Written { key: key.clone(), pieces };
        let bytes = written.content(0, length);
        self.written.push(written);
        (id, bytes)
    }

    /// Which value of a key was read from its block `first` on: whole, or (a range) as far as `whole`
    /// does not ask for all of it.
    pub(super) fn read(
        &self,
        key: &KeyName,
        bytes: &[u8],
        first: u64,
        whole: bool,
    ) -> Result<ValueId, String> {
        if bytes.len() < BLOCK_BYTES {
            let id = self.short.get(&(key.clone(), bytes.to_vec()));
            return id.copied().ok_or_else(|| {
                format!("{} bytes {bytes:02x?} were read that nobody wrote to it", bytes.len())
            });
        }
        // A value is newer than those that it took bytes from.
        let id = bytes.as_chunks::<BLOCK_BYTES>().0.iter().map(named).max().unwrap_or(0);
        let Some(written) = id.checked_sub(1).and_then(|at| self.written.get(at as usize)) else {
            return Err(format!("{} bytes were read that no client ever wrote", bytes.len()));
        };
        if written.key != *key {
            let owner = String::from_utf8_lossy(&written.key.1);
            return Err(format!("value v{id} was read, which was written to key {owner:?}"));
        }
        let length = written.length();
        let expected = if whole { length } else { bytes.len() };
        let content = written.content(first, bytes.len());
        if bytes.len() != expected || bytes != content {
            let wrong = content.iter().zip(bytes).position(|(a, b)| a != b);
            return Err(format!(
                "value v{id} of {length} bytes was read as {} bytes, the first wrong one at {wrong:?}",
                bytes.len()
            ));
        }
        Ok(ValueId(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What changes may lie behind the end of what there was, which was not at a block's end (seed 1857).
    #[test]
    fn a_changed_value_is_known_by_its_bytes() {
        let key = (0, b"k".to_vec());
        let mut values = Values::default();
        for (old, changed, length) in [
            (25_902, 40_960..49_152, 70_959),
            (25_902, 8192..16_384, 70_959),
            (70_959, 65_536..70_959, 70_959),
        ] {
            let base = values.write(&key, old).0;
            let (id, bytes) = values.change(&key, base, &changed, length);
            assert_eq!((bytes.len(), values.read(&key, &bytes, 0, true)), (length, Ok(id)));
            let (next, bytes) = values.change(&key, id, &(16..64), length + 5);
            assert_eq!((bytes.len(), values.read(&key, &bytes, 0, true)), (length + 5, Ok(next)));
        }
    }
}
