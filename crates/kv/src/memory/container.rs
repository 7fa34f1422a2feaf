//! One container of the memory device: keys in order, keys by scan position, counters.
//!
//! Invariants: both orders hold the same keys; the counters are those of the entries.
//!
//! Never: it knows conditions or time; that is the store's part.

use super::upload::Parts;
use crate::completion::{Item, Stats};
use crate::request::UploadId;
use crate::slot::Slot;
use crate::version::Version;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

const FINGERPRINT_BITS: u32 = 40;

/// The bytes behind a key.
#[derive(Clone)]
pub(super) enum Stored {
    Whole(Rc<[u8]>),
    Parts(UploadId, Rc<Parts>),
}

impl Stored {
    pub(super) fn length(&self) -> u64 {
        match self {
            Stored::Whole(bytes) => bytes.len() as u64,
            Stored::Parts(_, parts) => parts.length(),
        }
    }
}

/// One version of a key.
#[derive(Clone)]
pub(super) struct Current {
    pub(super) version: Version,
    pub(super) expiry_ms: Option<u64>,
    pub(super) stored: Stored,
}

/// A key's versions: the current one, and the one kept below it if a store asked for that.
#[derive(Clone)]
pub(super) struct Entry {
    pub(super) current: Current,
    pub(super) retained: Option<Box<Current>>,
}

impl Current {
    /// What the version holds, without its bytes.
    pub(super) fn item(&self, key: &[u8]) -> Item {
        let length = self.stored.length();
        Item {
            version: self.version,
            length,
            expiry_ms: self.expiry_ms,
            bytes: Vec::new(),
            stored_bytes: length + key.len() as u64,
            upload: match self.stored {
                Stored::Whole(_) => None,
                Stored::Parts(upload, _) => Some(upload),
            },
        }
    }
}

#[derive(Default)]
pub(super) struct Container {
    entries: BTreeMap<Rc<[u8]>, Entry>,
    positions: BTreeSet<(u64, Rc<[u8]>)>,
    stats: Stats,
}

/// Where a key stands in a scan.
fn position(key: &[u8]) -> u64 {
    // FNV-1a: stable, and good enough to spread the keys of one slot.
    let hash =
        key.iter().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3));
    u64::from(Slot::of(key).0) << FINGERPRINT_BITS | hash >> (64 - FINGERPRINT_BITS)
}

impl Container {
    pub(super) fn get(&self, key: &[u8]) -> Option<&Entry> {
        self.entries.get(key)
    }

    pub(super) fn stats(&self) -> Stats {
        self.stats
    }

    fn bytes_of(key: &[u8], entry: &Entry) -> u64 {
        let retained = entry.retained.as_ref().map_or(0, |kept| kept.stored.length());
        key.len() as u64 + entry.current.stored.length() + retained
    }

    /// Puts an entry in place of the key's current one; the change of bytes held.
    pub(super) fn set(&mut self, key: &[u8], entry: Option<Entry>) -> i64 {
        let before = self.entries.get(key).map_or(0, |old| {
            self.stats.keys -= 1;
            self.stats.expiring_keys -= u64::from(old.current.expiry_ms.is_some());
            Container::bytes_of(key, old)
        });
        let after = entry.as_ref().map_or(0, |new| {
            self.stats.keys += 1;
            self.stats.expiring_keys += u64::from(new.current.expiry_ms.is_some());
            Container::bytes_of(key, new)
        });
        self.stats.bytes = self.stats.bytes - before + after;
        match entry {
            Some(entry) => match self.entries.get_mut(key) {
                Some(kept) => *kept = entry,
                None => {
                    let shared: Rc<[u8]> = key.into();
                    self.positions.insert((position(key), shared.clone()));
                    self.entries.insert(shared, entry);
                }
            },
            None => {
                if let Some((shared, _)) = self.entries.remove_entry(key) {
                    assert!(
                        self.positions.remove(&(position(key), shared)),
                        "both orders hold the same keys"
                    );
                }
            }
        }
        after as i64 - before as i64
    }

    /// Entries after a key, in the order of keys.
    pub(super) fn after<'a>(
        &'a self,
        after: Option<&[u8]>,
        prefix: &[u8],
    ) -> impl Iterator<Item = (&'a Rc<[u8]>, &'a Entry)> + use<'a> {
        use std::ops::Bound::{Excluded, Included, Unbounded};
        let from = match after {
            Some(after) if after >= prefix => Excluded(after),
            _ => Included(prefix),
        };
        self.entries.range::<[u8], _>((from, Unbounded))
    }

    /// Keys from a scan position on, each with its position.
    pub(super) fn scan(&self, cursor: u64) -> impl Iterator<Item = (u64, &Rc<[u8]>)> {
        let from: (u64, Rc<[u8]>) = (cursor, Rc::from(&[][..]));
        self.positions.range(from..).map(|(position, key)| (*position, key))
    }

    /// Frees some entries of a container that nobody sees any more; false when it is empty.
    pub(super) fn drop_some(&mut self, count: usize) -> bool {
        for _ in 0..count {
            if self.entries.pop_first().is_none() && self.positions.pop_first().is_none() {
                return false;
            }
        }
        true
    }
}
