//! Keys that are known: of which key the record at a location is, for records written lately.
//!
//! Role: the index has 54 bits of a key; whether the record that it points to is of the key itself has to
//! be read. Who replaces or deletes a record whose key stands here reads nothing. Place on the path: a
//! write, between the index and the flash.
//!
//! The memory is given once and does not grow. Each key has two buckets of a cache line, and goes into
//! the one with more room (Azar, Broder, Karlin and Upfal, 1994); where both are full it takes the place
//! of the oldest of one of them, which is then read again when it is overwritten or deleted.
//!
//! Invariants:
//! * if the identity of a key of the slot and fingerprint is known at a location to which the index points
//!   there, the record is that key's: every transition that points the index to a location makes it
//!   forgotten, and only who wrote the record says it anew. (Others that share the buckets may have left
//!   an identity at the location; it is never that of a key of this place.)
//! * a key that is not known costs a read and nothing else.
//!
//! Never: it is not written to flash, and nothing depends on it after a restart.

use plimsoll_kv::Slot;
use std::hash::{BuildHasher, RandomState};

/// Words of a bucket: five cells of three, and one that counts.
const BUCKET_WORDS: usize = 16;
const CELL_WORDS: usize = 3;
const CELLS: usize = 5;
/// The word of a bucket that says which cell is the next to go.
const NEXT: usize = CELLS * CELL_WORDS;
/// Bytes of a bucket.
const BUCKET_BYTES: usize = BUCKET_WORDS * size_of::<u32>();
/// Bits of the hash that stand in a cell, with 38 of the location and two that say what the record is.
const HASH_BITS: u32 = 56;
const LOCATION_HIGH_BITS: u32 = crate::index::LOCATION_BITS - 32;
const EXPIRING_SHIFT: u32 = LOCATION_HIGH_BITS;
const KEEPER_SHIFT: u32 = EXPIRING_SHIFT + 1;
const HASH_SHIFT: u32 = KEEPER_SHIFT + 1;
const _: () = assert!(HASH_SHIFT + HASH_BITS == 64);

/// The hash of a key, by which it is told from every other: with slot and fingerprint, 110 bits that
/// depend on a secret of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity(u64);

/// What is known of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KnownRecord {
    /// Of which key it is.
    pub(crate) identity: Identity,
    /// It has an expiry time.
    pub(crate) is_expiring: bool,
    /// It keeps what another key held, and holds no value of its own.
    pub(crate) is_keeper: bool,
}

/// What is known of records, by slot, fingerprint and location.
pub(crate) struct Known {
    hasher: RandomState,
    words: Vec<u32>,
    /// Where the first bucket begins, so that each has a cache line for itself.
    first: usize,
    buckets: usize,
}

impl Known {
    /// Room in so many bytes.
    pub(crate) fn of_bytes(bytes: usize) -> Known {
        let buckets = bytes / BUCKET_BYTES;
        let spare = if buckets == 0 { 0 } else { BUCKET_WORDS };
        let words = vec![0u32; buckets * BUCKET_WORDS + spare];
        let first = words.as_ptr().align_offset(BUCKET_BYTES).min(spare);
        Known { hasher: RandomState::new(), words, first, buckets }
    }

    /// True if there is memory for anything.
    pub(crate) fn is_kept(&self) -> bool {
        self.buckets > 0
    }

    /// The identity of a key in a generation of a container.
    pub(crate) fn identity(&self, generation: u32, key: &[u8]) -> Identity {
        Identity(self.hasher.hash_one((generation, key)) >> (64 - HASH_BITS))
    }

    /// Says what the record at a location is, which was just written. The location was forgotten: by the
    /// transition that points to it.
    pub(crate) fn note(&mut self, slot: Slot, fingerprint: u64, location: u64, record: KnownRecord) {
        if !self.is_kept() {
            return;
        }
        let (a, b) = self.buckets_of(slot, fingerprint);
        let at = self.room_in(a, b);
        self.words[at..at + CELL_WORDS].copy_from_slice(&pack(location, record));
    }

    /// Forgets what was known of some locations.
    pub(crate) fn forget(&mut self, slot: Slot, fingerprint: u64, locations: &[u64]) {
        if !self.is_kept() {
            return;
        }
        let (a, b) = self.buckets_of(slot, fingerprint);
        for at in cells(a).chain(cells(b)) {
            if locations.contains(&self.location(at)) {
                self.words[at..at + CELL_WORDS].fill(0);
            }
        }
    }

    /// A record was moved: what was known of it goes along.
    pub(crate) fn relocate(&mut self, slot: Slot, fingerprint: u64, from: u64, to: u64) {
        let record = self.find(slot, fingerprint, from);
        self.forget(slot, fingerprint, &[from, to]);
        if let Some(record) = record {
            self.note(slot, fingerprint, to, record);
        }
    }

    /// What is known of the record at a location.
    pub(crate) fn find(&self, slot: Slot, fingerprint: u64, location: u64) -> Option<KnownRecord> {
        if !self.is_kept() {
            return None;
        }
        let (a, b) = self.buckets_of(slot, fingerprint);
        let at = cells(a).chain(cells(b)).find(|at| self.location(*at) == location)?;
        let word = u64::from(self.words[at + 1]) | u64::from(self.words[at + 2]) << 32;
        Some(KnownRecord {
            identity: Identity(word >> HASH_SHIFT),
            is_expiring: word >> EXPIRING_SHIFT & 1 == 1,
            is_keeper: word >> KEEPER_SHIFT & 1 == 1,
        })
    }

    /// The words where the two buckets of a fingerprint begin.
    fn buckets_of(&self, slot: Slot, fingerprint: u64) -> (usize, usize) {
        let mixed = (fingerprint << 14 ^ u64::from(slot.0)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ mixed >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
        let bucket = |hash: u64| {
            self.first + (((hash & 0xffff_ffff) * self.buckets as u64) >> 32) as usize * BUCKET_WORDS
        };
        (bucket(mixed >> 32), bucket(mixed))
    }

    fn location(&self, at: usize) -> u64 {
        let high = u64::from(self.words[at + 1]) & ((1 << LOCATION_HIGH_BITS) - 1);
        high << 32 | u64::from(self.words[at])
    }

    /// A cell to be written: one that is empty, in the bucket that has more of them, or else the oldest.
    fn room_in(&mut self, a: usize, b: usize) -> usize {
        let empty = |bucket: usize| cells(bucket).filter(|at| self.location(*at) == 0).count();
        let bucket = if empty(a) >= empty(b) { a } else { b };
        if let Some(at) = cells(bucket).find(|at| self.location(*at) == 0) {
            return at;
        }
        // Both are full. The buckets take turns, each by its own count, so that both are used.
        let bucket = if self.words[a + NEXT] <= self.words[b + NEXT] { a } else { b };
        let next = self.words[bucket + NEXT];
        self.words[bucket + NEXT] = next.wrapping_add(1);
        bucket + next as usize % CELLS * CELL_WORDS
    }
}

/// The words where the cells of a bucket begin.
fn cells(bucket: usize) -> impl Iterator<Item = usize> {
    (0..CELLS).map(move |cell| bucket + cell * CELL_WORDS)
}

fn pack(location: u64, record: KnownRecord) -> [u32; CELL_WORDS] {
    assert!(location != 0 && location >> crate::index::LOCATION_BITS == 0);
    let expiring = u64::from(record.is_expiring) << EXPIRING_SHIFT;
    let keeper = u64::from(record.is_keeper) << KEEPER_SHIFT;
    let word = record.identity.0 << HASH_SHIFT | keeper | expiring | location >> 32;
    [location as u32, word as u32, (word >> 32) as u32]
}

#[cfg(test)]
#[path = "known_tests.rs"]
mod tests;
