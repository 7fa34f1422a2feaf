//! Values that say who wrote them: every written value can be told from every other.
//!
//! Place: clients take values from here and give back what they read.
//!
//! Invariants: a value is written at most once to a key; every 16 bytes of a long value name it, so
//! that a range is known by its bytes; a value that was read is accepted only if every byte of it
//! is what was written to that very key.
//!
//! Never: two values share their bytes for one key.

use crate::checker::ValueId;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// The bytes that name a value.
const BLOCK_BYTES: usize = 16;

/// A container and a key's bytes.
pub(super) type KeyName = (u32, Vec<u8>);

#[derive(Default)]
pub(super) struct Values {
    /// By id less 1: whose, and how long.
    written: Vec<(KeyName, usize)>,
    /// Values too short to name themselves.
    short: BTreeMap<(KeyName, Vec<u8>), ValueId>,
}

fn mix(a: u64, b: u64) -> u64 {
    let mixed = (a ^ b.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

fn block(id: u64, index: u64) -> [u8; BLOCK_BYTES] {
    let mut bytes = [0; BLOCK_BYTES];
    bytes[..8].copy_from_slice(&(id ^ 0x5bd1_e995_0000_0000).to_le_bytes());
    bytes[8..].copy_from_slice(&mix(id, index).to_le_bytes());
    bytes
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
        self.written.push((key.clone(), bytes.len()));
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
        let mut eight = [0; 8];
        eight.copy_from_slice(&bytes[..8]);
        let id = u64::from_le_bytes(eight) ^ 0x5bd1_e995_0000_0000;
        let Some((owner, length)) = id.checked_sub(1).and_then(|at| self.written.get(at as usize)) else {
            return Err(format!("{} bytes were read that no client ever wrote", bytes.len()));
        };
        if owner != key {
            let owner = String::from_utf8_lossy(&owner.1);
            return Err(format!("value v{id} was read, which was written to key {owner:?}"));
        }
        let expected = if whole { *length } else { bytes.len() };
        if bytes.len() != expected || bytes != content(id, first, bytes.len()) {
            let wrong = content(id, first, bytes.len()).iter().zip(bytes).position(|(a, b)| a != b);
            return Err(format!(
                "value v{id} of {length} bytes was read as {} bytes, the first wrong one at {wrong:?}",
                bytes.len()
            ));
        }
        Ok(ValueId(id))
    }
}
