//! The index: which keys there are, and where what they hold stands.
//!
//! Role: what the memory device keeps of its keys, with a place on the drive instead of the bytes. Place on
//! the path: asked by every operation; rebuilt when a drive is opened.
//!
//! Invariants: both orders hold the same keys; the counters are those of the keys that are there; a slot that
//! is not marked as occupied is durably empty.
//!
//! Never: values. Those of riders are with their hosts.

use crate::drive::DriveKey;
use crate::parts::Parts;
use plimsoll_kv::{Item, Slot, Stats, Version};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use xxhash_rust::xxh3::xxh3_64;

const FINGERPRINT_BITS: u32 = 40;

/// What stands behind a version of a key.
#[derive(Clone)]
pub(crate) enum Body {
    /// Bytes, in the object itself.
    Whole,
    /// Parts, which the object names.
    Parts(Rc<Parts>),
    /// Nothing: the key was deleted, and older records of it may still be on the drive.
    Gone,
}

/// Where a record stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum At {
    /// In this slot of its key.
    Slot(u8),
    /// Behind the head of this object.
    Rider(DriveKey),
}

/// A record of a key.
#[derive(Clone)]
pub(crate) struct Live {
    pub(crate) sequence: Version,
    pub(crate) version: Version,
    pub(crate) expiry_ms: Option<u64>,
    pub(crate) length: u64,
    pub(crate) body: Body,
    pub(crate) at: At,
    /// The flush that makes it durable.
    pub(crate) flush: u64,
}

/// What is known of a key.
#[derive(Clone, Default)]
pub(crate) struct Entry {
    /// The newest record.
    pub(crate) current: Option<Live>,
    /// What that retains. It stands in a slot.
    pub(crate) retained: Option<Box<Live>>,
    /// Whether something stands in a slot, be it of use or not.
    pub(crate) occupied: [bool; 2],
}

impl Live {
    pub(crate) fn is_gone(&self) -> bool {
        matches!(self.body, Body::Gone)
    }

    pub(crate) fn parts(&self) -> Option<&Rc<Parts>> {
        if let Body::Parts(parts) = &self.body { Some(parts) } else { None }
    }

    /// What clients are told of it, without its bytes.
    pub(crate) fn item(&self, key: &[u8]) -> Item {
        Item {
            version: self.version,
            length: self.length,
            expiry_ms: self.expiry_ms,
            bytes: Vec::new(),
            stored_bytes: self.length + key.len() as u64,
            upload: self.parts().map(|parts| parts.upload),
        }
    }
}

impl Entry {
    /// The current record, unless it says that there is no such key, or has expired.
    pub(crate) fn live(&self, now_ms: u64) -> Option<&Live> {
        self.current.as_ref().filter(|live| !live.is_gone() && live.expiry_ms.is_none_or(|at| at > now_ms))
    }

    /// The slot of the current record.
    pub(crate) fn current_slot(&self) -> Option<u8> {
        slot_of(self.current.as_ref())
    }

    /// The slot of the retained record.
    pub(crate) fn retained_slot(&self) -> Option<u8> {
        slot_of(self.retained.as_deref())
    }

    /// Slots in which something stands that is of no use.
    pub(crate) fn stale_slots(&self) -> impl Iterator<Item = u8> + use<> {
        let used = [self.current_slot(), self.retained_slot()];
        let occupied = self.occupied;
        (0..2).filter(move |slot| occupied[usize::from(*slot)] && !used.contains(&Some(*slot)))
    }

    fn is_key(&self) -> bool {
        self.current.as_ref().is_some_and(|live| !live.is_gone())
    }

    fn bytes(&self, key: &[u8]) -> u64 {
        let length = |live: Option<&Live>| live.filter(|live| !live.is_gone()).map_or(0, |live| live.length);
        key.len() as u64 + length(self.current.as_ref()) + length(self.retained.as_deref())
    }
}

fn slot_of(live: Option<&Live>) -> Option<u8> {
    match live?.at {
        At::Slot(slot) => Some(slot),
        At::Rider(_) => None,
    }
}

/// The keys of a container.
#[derive(Default)]
pub(crate) struct Container {
    /// How often it was emptied.
    pub(crate) generation: u32,
    entries: BTreeMap<Rc<[u8]>, Entry>,
    positions: BTreeSet<(u64, Rc<[u8]>)>,
    stats: Stats,
}

/// Where a key stands in a scan.
fn position(key: &[u8]) -> u64 {
    u64::from(Slot::of(key).0) << FINGERPRINT_BITS | xxh3_64(key) >> (64 - FINGERPRINT_BITS)
}

impl Container {
    pub(crate) fn new(generation: u32) -> Container {
        Container { generation, ..Container::default() }
    }

    pub(crate) fn get(&self, key: &[u8]) -> Option<&Entry> {
        self.entries.get(key)
    }

    /// The key as the index has it, so that it stands in memory once.
    pub(crate) fn shared(&self, key: &[u8]) -> Rc<[u8]> {
        self.entries.get_key_value(key).map_or_else(|| key.into(), |(shared, _)| shared.clone())
    }

    pub(crate) fn stats(&self) -> Stats {
        self.stats
    }

    /// Changes what is known of a key; forgets it if nothing is left of it.
    pub(crate) fn update<T>(&mut self, key: &[u8], change: impl FnOnce(&mut Entry) -> T) -> T {
        if !self.entries.contains_key(key) {
            let shared: Rc<[u8]> = key.into();
            self.positions.insert((position(key), shared.clone()));
            self.entries.insert(shared, Entry::default());
        }
        let entry = self.entries.get_mut(key).expect("just looked at");
        let count = |stats: &mut Stats, entry: &Entry, sign: i64| {
            let Some(live) = entry.current.as_ref().filter(|_| entry.is_key()) else { return };
            stats.keys = stats.keys.wrapping_add_signed(sign);
            let expires = i64::from(live.expiry_ms.is_some());
            stats.expiring_keys = stats.expiring_keys.wrapping_add_signed(sign * expires);
            stats.bytes = stats.bytes.wrapping_add_signed(sign * entry.bytes(key) as i64);
        };
        count(&mut self.stats, entry, -1);
        let result = change(entry);
        count(&mut self.stats, entry, 1);
        if entry.current.is_none() && entry.occupied == [false; 2] {
            assert!(entry.retained.is_none(), "what is retained stands in a slot");
            let (shared, _) = self.entries.remove_entry(key).expect("just looked at");
            assert!(self.positions.remove(&(position(key), shared)), "both orders hold the same keys");
        }
        result
    }

    /// Entries after a key, in the order of keys, from this prefix on.
    pub(crate) fn after<'a>(
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
    pub(crate) fn scan(&self, cursor: u64) -> impl Iterator<Item = (u64, &Rc<[u8]>)> {
        let from: (u64, Rc<[u8]>) = (cursor, Rc::from(&[][..]));
        self.positions.range(from..).map(|(position, key)| (*position, key))
    }

    /// Takes some entries of a container that nobody sees any more.
    pub(crate) fn take_some(&mut self, count: usize) -> Vec<(Rc<[u8]>, Entry)> {
        let taken: Vec<_> = std::iter::from_fn(|| self.entries.pop_first()).take(count).collect();
        (0..count).for_each(|_| drop(self.positions.pop_first()));
        taken
    }
}

/// Bytes of memory of a key of so many bytes without riders, by the sizes of what is kept: two nodes' shares
/// of trees that are two thirds full, and the key itself behind its two counters.
#[must_use]
pub fn memory_bytes_per_key(key_bytes: usize) -> usize {
    let in_trees = size_of::<(Rc<[u8]>, Entry)>() + size_of::<(u64, Rc<[u8]>)>();
    in_trees * 3 / 2 + 16 + key_bytes.next_multiple_of(8)
}
