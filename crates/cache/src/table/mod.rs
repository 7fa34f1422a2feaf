//! What is kept: a table of short values under a budget of bytes.
//!
//! Role: finds a value by its key, and lets go of others to make room. Place on the path: below the rules
//! of `device`, which says what may be given and kept; here is no I/O and no clock.
//!
//! A hash table with chains over slots; each full slot stands in the queue of the policy (`sieve`). A
//! database that is emptied gets another number (its *space*): what it held is found by nobody from then on,
//! and goes when its turn comes, so that emptying takes no time.
//!
//! Invariants: `used_bytes` is at most the budget, and counts the table's head, its slots, and each entry
//! with its key and value; an entry is in exactly one chain and once in the queue.
//!
//! Never: it keeps anything that takes more than a sixteenth of the budget.

mod sieve;
#[cfg(test)]
mod tests;

use plimsoll_kv::{Item, Version};
use sieve::Queue;

/// No slot; they are named from 1 on, so that an empty table is zeros, which take no memory before they are
/// written.
const NONE: u32 = 0;
/// Slots are made so many at a time.
const CHUNK_SLOTS: usize = 256;
/// Bytes of a chunk, and what the list of chunks takes for it, room to grow included.
const CHUNK_BYTES: usize = CHUNK_SLOTS * size_of::<Slot>() + 4 * size_of::<usize>();
/// Bytes of a cache for each chain: entries of a usual size make chains of one or two.
const BYTES_PER_CHAIN: usize = 512;
/// One entry takes at most this share of the budget.
const SHARE_MAX: usize = 16;

/// Where a value belongs.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    /// The hash of container and key.
    pub(crate) hash: u64,
    /// The container as it is since it was last emptied.
    pub(crate) space: u64,
    pub(crate) key: &'a [u8],
}

/// A value that is kept.
pub(crate) struct Entry {
    hash: u64,
    space: u64,
    version: Version,
    expiry_ms: Option<u64>,
    stored_bytes: u64,
    /// The key, then the value.
    bytes: Box<[u8]>,
    key_bytes: u32,
    /// The next of its chain.
    next: u32,
    /// Its neighbours in the queue.
    newer: u32,
    older: u32,
    /// Asked for since the hand last passed.
    visited: bool,
}

enum Slot {
    Free(u32),
    Full(Box<Entry>),
}

/// Short values by key.
pub(crate) struct Table {
    budget_bytes: usize,
    used_bytes: usize,
    /// The first slot of each chain.
    chains: Box<[u32]>,
    chunks: Vec<Box<[Slot]>>,
    /// The first free slot.
    free: u32,
    queue: Queue,
    entries: u64,
    evictions: u64,
}

impl Entry {
    fn is_at(&self, place: Place<'_>) -> bool {
        self.hash == place.hash && self.space == place.space && self.key() == place.key
    }

    fn key(&self) -> &[u8] {
        &self.bytes[..self.key_bytes as usize]
    }

    fn value(&self) -> &[u8] {
        &self.bytes[self.key_bytes as usize..]
    }

    pub(crate) fn is_expired(&self, now_ms: u64) -> bool {
        self.expiry_ms.is_some_and(|at_ms| at_ms <= now_ms)
    }

    /// True if it expires at some time.
    pub(crate) fn expires(&self) -> bool {
        self.expiry_ms.is_some()
    }

    /// What a read gives, with the bytes of a range: first byte and number of bytes.
    pub(crate) fn item(&self, (first, count): (u64, u64)) -> Item {
        let value = self.value();
        let length = value.len() as u64;
        let end = first.saturating_add(count).min(length);
        Item {
            version: self.version,
            length,
            expiry_ms: self.expiry_ms,
            bytes: value[first.min(end) as usize..end as usize].to_vec(),
            stored_bytes: self.stored_bytes,
            upload: None,
        }
    }
}

impl Table {
    /// A table that keeps itself, with what else `taken_bytes` of the budget is used for, within it.
    pub(crate) fn new(budget_bytes: usize, taken_bytes: usize) -> Table {
        // Slots are named by 32 bits: above some hundred gigabytes there are no more of them.
        let sought = (budget_bytes / BYTES_PER_CHAIN).clamp(1, 1 << 31);
        let chains = vec![NONE; sought.next_power_of_two()].into_boxed_slice();
        Table {
            budget_bytes,
            used_bytes: taken_bytes + size_of::<Table>() + size_of_val(&*chains),
            chains,
            chunks: Vec::new(),
            free: NONE,
            queue: Queue::default(),
            entries: 0,
            evictions: 0,
        }
    }

    /// Bytes in use, bookkeeping included.
    pub(crate) fn used_bytes(&self) -> usize {
        self.used_bytes
    }

    /// Values kept, those of emptied databases included until their turn comes.
    pub(crate) fn entries(&self) -> u64 {
        self.entries
    }

    /// Values let go of to make room.
    pub(crate) fn evictions(&self) -> u64 {
        self.evictions
    }

    fn chain_of(&self, hash: u64) -> usize {
        // The lower bits say the stripe of changes; the upper ones are as good.
        (hash >> 32) as usize & (self.chains.len() - 1)
    }

    fn slot(&mut self, slot: u32) -> &mut Slot {
        let at = slot as usize - 1;
        &mut self.chunks[at / CHUNK_SLOTS][at % CHUNK_SLOTS]
    }

    fn entry(&self, slot: u32) -> &Entry {
        let at = slot as usize - 1;
        match &self.chunks[at / CHUNK_SLOTS][at % CHUNK_SLOTS] {
            Slot::Full(entry) => entry,
            Slot::Free(_) => panic!("a free slot is in no chain and not in the queue"),
        }
    }

    fn entry_mut(&mut self, slot: u32) -> &mut Entry {
        match self.slot(slot) {
            Slot::Full(entry) => entry,
            Slot::Free(_) => panic!("a free slot is in no chain and not in the queue"),
        }
    }

    fn find(&self, place: Place<'_>) -> Option<u32> {
        let mut slot = self.chains[self.chain_of(place.hash)];
        while slot != NONE {
            let entry = self.entry(slot);
            if entry.is_at(place) {
                return Some(slot);
            }
            slot = entry.next;
        }
        None
    }

    /// The value of a key, which counts as asked for.
    pub(crate) fn get(&mut self, place: Place<'_>) -> Option<&Entry> {
        let slot = self.find(place)?;
        let entry = self.entry_mut(slot);
        entry.visited = true;
        Some(entry)
    }

    /// Whether a key was asked for since the hand last passed, or since this: from now on it was not.
    pub(crate) fn take_visited(&mut self, place: Place<'_>) -> bool {
        let Some(slot) = self.find(place) else { return false };
        std::mem::take(&mut self.entry_mut(slot).visited)
    }

    /// Bytes that an entry takes beside its slot.
    fn entry_bytes(key_bytes: usize, value_bytes: usize) -> usize {
        size_of::<Entry>() + key_bytes + value_bytes
    }

    /// Keeps a value whose bytes are all in `item`, in place of what is kept of its key; false if it is too
    /// long for that.
    pub(crate) fn insert(&mut self, place: Place<'_>, item: &Item) -> bool {
        self.remove(place);
        let bytes = Table::entry_bytes(place.key.len(), item.bytes.len());
        if bytes > self.budget_bytes / SHARE_MAX || !self.make_room(bytes) {
            return false;
        }
        let slot = self.take_slot();
        let mut kept = Vec::with_capacity(place.key.len() + item.bytes.len());
        kept.extend_from_slice(place.key);
        kept.extend_from_slice(&item.bytes);
        let chain = self.chain_of(place.hash);
        let next = std::mem::replace(&mut self.chains[chain], slot);
        *self.slot(slot) = Slot::Full(Box::new(Entry {
            hash: place.hash,
            space: place.space,
            version: item.version,
            expiry_ms: item.expiry_ms,
            stored_bytes: item.stored_bytes,
            bytes: kept.into_boxed_slice(),
            key_bytes: place.key.len() as u32,
            next,
            newer: NONE,
            older: NONE,
            visited: false,
        }));
        self.enqueue(slot);
        self.entries += 1;
        self.used_bytes += bytes;
        true
    }

    /// Lets go of others until there is room for so many bytes and a slot.
    fn make_room(&mut self, bytes: usize) -> bool {
        loop {
            let slot_bytes = if self.free == NONE { CHUNK_BYTES } else { 0 };
            let has_names = self.free != NONE || (self.chunks.len() + 1) * CHUNK_SLOTS < u32::MAX as usize;
            if self.used_bytes + slot_bytes + bytes <= self.budget_bytes && has_names {
                return true;
            }
            let Some(victim) = self.victim() else { return false };
            self.release(victim);
            self.evictions += 1;
        }
    }

    /// A free slot; its bytes are within the budget.
    fn take_slot(&mut self) -> u32 {
        if self.free == NONE {
            let first = (self.chunks.len() * CHUNK_SLOTS) as u32 + 1;
            let link = |at: u32| if at + 1 < CHUNK_SLOTS as u32 { first + at + 1 } else { NONE };
            self.chunks.push((0..CHUNK_SLOTS as u32).map(|at| Slot::Free(link(at))).collect());
            self.used_bytes += CHUNK_BYTES;
            self.free = first;
        }
        let slot = self.free;
        let Slot::Free(next) = *self.slot(slot) else { panic!("a full slot is not free") };
        self.free = next;
        slot
    }

    /// Lets go of what is kept of a key; false if nothing is.
    pub(crate) fn remove(&mut self, place: Place<'_>) -> bool {
        let Some(slot) = self.find(place) else { return false };
        self.release(slot);
        true
    }

    fn release(&mut self, slot: u32) {
        self.dequeue(slot);
        let (hash, next) = (self.entry(slot).hash, self.entry(slot).next);
        let chain = self.chain_of(hash);
        let mut before = self.chains[chain];
        if before == slot {
            self.chains[chain] = next;
        } else {
            while self.entry(before).next != slot {
                before = self.entry(before).next;
            }
            self.entry_mut(before).next = next;
        }
        let free = self.free;
        let released = std::mem::replace(self.slot(slot), Slot::Free(free));
        let Slot::Full(entry) = released else { panic!("looked at above") };
        self.free = slot;
        self.entries -= 1;
        self.used_bytes -= size_of::<Entry>() + entry.bytes.len();
    }
}
