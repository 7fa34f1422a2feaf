//! What is kept: a table of short values under a budget of bytes.
//!
//! Role: finds a value by its key, and lets go of others to make room. Place on the path: below the rules
//! of `device`, which says what may be given and kept; here is no I/O and no clock.
//!
//! A hash table with chains over slots, which are small and lie close together; what is kept of a key is one
//! run of bytes behind its slot. Each full slot stands in the queue of the policy (`sieve`). A
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
use plimsoll_reactor::prefetch;
use sieve::Queue;
use std::hint::black_box;

/// No slot; they are named from 1 on, so that an empty table is zeros, which take no memory before they are
/// written.
const NONE: u32 = 0;
/// Slots are made so many at a time.
const CHUNK_SLOTS: usize = 256;
/// Bytes of a chunk, and what the list of chunks takes for it, room to grow included.
const CHUNK_BYTES: usize = CHUNK_SLOTS * size_of::<Slot>() + 4 * size_of::<usize>();
/// Bytes of a cache for each chain: entries of a usual size make chains of one or two.
const BYTES_PER_CHAIN: usize = 512;
/// The bytes of an entry that stand for its first cache lines.
const TOUCHED_LINES: [usize; 4] = [0, LINE_BYTES, 2 * LINE_BYTES, 3 * LINE_BYTES];
/// Bytes after those that are asked of memory, too, and not waited for. What follows them the processor
/// fetches by itself, as it is read in a row; for short values it begins too late with that.
const ASKED_BYTES_MAX: usize = 1024;
const LINE_BYTES: usize = 64;
/// Hashes whose entries are brought closer together.
pub(crate) const TOUCHED_MAX: usize = 16;
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

/// A value that is kept is one run of bytes: this head, the key, the value. So a hit waits for memory once.
///
/// These are the offsets of the head's fields, in little-endian order.
const SPACE: usize = 0;
/// Eight bytes: when it expires in milliseconds; 0: never.
const EXPIRY_MS: usize = 8;
/// Eight bytes: the clock of its version.
const CLOCK: usize = 16;
/// Four bytes: the epoch of its version.
const EPOCH: usize = 24;
/// Four bytes: the key's length.
const KEY_BYTES: usize = 28;
/// Eight bytes: what it takes on flash.
const STORED_BYTES: usize = 32;
/// Where the key begins.
const HEAD_BYTES: usize = 40;

/// A value that is kept, as a reader sees it.
pub(crate) struct Entry<'a>(&'a [u8]);

/// A slot: what leads to an entry, and its place in the queue; or a free one.
struct Slot {
    /// The upper half of the hash: it says the chain.
    tag: u32,
    /// The next of its chain, or of the free slots.
    next: u32,
    /// Its neighbours in the queue.
    newer: u32,
    older: u32,
    /// Empty in a free slot.
    bytes: Box<[u8]>,
    /// Asked for since the hand last passed.
    visited: bool,
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

impl<'a> Entry<'a> {
    /// Puts a head, a key and a value together.
    fn encode(place: Place<'_>, item: &Item, value: &[u8]) -> Box<[u8]> {
        let mut head = [0; HEAD_BYTES];
        let mut put = |at: usize, field: &[u8]| head[at..at + field.len()].copy_from_slice(field);
        put(SPACE, &place.space.to_le_bytes());
        put(EXPIRY_MS, &item.expiry_ms.unwrap_or(0).to_le_bytes());
        put(CLOCK, &item.version.clock.to_le_bytes());
        put(EPOCH, &item.version.epoch.to_le_bytes());
        put(KEY_BYTES, &(place.key.len() as u32).to_le_bytes());
        put(STORED_BYTES, &item.stored_bytes.to_le_bytes());
        let mut bytes = Vec::with_capacity(Table::entry_bytes(place.key.len(), value.len()));
        bytes.extend_from_slice(&head);
        bytes.extend_from_slice(place.key);
        bytes.extend_from_slice(value);
        bytes.into_boxed_slice()
    }

    fn u64_at(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.0[at..at + 8].try_into().expect("eight bytes"))
    }

    fn u32_at(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.0[at..at + 4].try_into().expect("four bytes"))
    }

    fn is_at(&self, place: Place<'_>) -> bool {
        self.u64_at(SPACE) == place.space && self.key() == place.key
    }

    fn key(&self) -> &'a [u8] {
        &self.0[HEAD_BYTES..][..self.u32_at(KEY_BYTES) as usize]
    }

    pub(crate) fn value(&self) -> &'a [u8] {
        &self.0[HEAD_BYTES + self.u32_at(KEY_BYTES) as usize..]
    }

    pub(crate) fn is_expired(&self, now_ms: u64) -> bool {
        self.expires() && self.u64_at(EXPIRY_MS) <= now_ms
    }

    /// True if it expires at some time.
    pub(crate) fn expires(&self) -> bool {
        self.u64_at(EXPIRY_MS) != 0
    }

    /// What a read gives, with the bytes of a range: first byte and number of bytes.
    pub(crate) fn item(&self, (first, count): (u64, u64)) -> Item {
        let value = self.value();
        let length = value.len() as u64;
        let end = first.saturating_add(count).min(length);
        Item {
            version: Version { epoch: self.u32_at(EPOCH), clock: self.u64_at(CLOCK) },
            length,
            expiry_ms: self.expires().then(|| self.u64_at(EXPIRY_MS)),
            bytes: value[first.min(end) as usize..end as usize].to_vec(),
            stored_bytes: self.u64_at(STORED_BYTES),
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

    fn chain_of(&self, tag: u32) -> usize {
        tag as usize & (self.chains.len() - 1)
    }

    fn slot(&self, slot: u32) -> &Slot {
        let at = slot as usize - 1;
        &self.chunks[at / CHUNK_SLOTS][at % CHUNK_SLOTS]
    }

    fn slot_mut(&mut self, slot: u32) -> &mut Slot {
        let at = slot as usize - 1;
        &mut self.chunks[at / CHUNK_SLOTS][at % CHUNK_SLOTS]
    }

    fn find(&self, place: Place<'_>) -> Option<u32> {
        let tag = tag_of(place);
        let mut at = self.first(tag);
        while at != NONE {
            let slot = self.slot(at);
            if slot.tag == tag && Entry(&slot.bytes).is_at(place) {
                return Some(at);
            }
            at = slot.next;
        }
        None
    }

    /// Brings what leads to the entries of some hashes, and their heads, from memory into the processor's
    /// caches, and asks for what follows these. Each round of loads depends on the round before and on
    /// nothing within it: so the processor waits for memory three times for all of them, and not three times
    /// for each. Tells which of them lead to an entry at once; others may be kept all the same, further down
    /// their chains.
    pub(crate) fn touch(&self, hashes: &[u64]) -> [bool; TOUCHED_MAX] {
        assert!(hashes.len() <= TOUCHED_MAX);
        let mut firsts = [NONE; TOUCHED_MAX];
        for (first, hash) in firsts.iter_mut().zip(hashes) {
            *first = self.first(tag_of_hash(*hash));
        }
        let mut slots = [None; TOUCHED_MAX];
        for ((slot, first), hash) in slots.iter_mut().zip(firsts).zip(hashes) {
            *slot = self.led_to(first, tag_of_hash(*hash));
        }
        let line = |slot: &Slot, at: usize| slot.bytes.get(at).copied().unwrap_or(0);
        let heads = slots.iter().flatten().map(|slot| TOUCHED_LINES.map(|at| line(slot, at)));
        black_box(heads.flatten().fold(0, |all, byte| all ^ byte));
        slots.iter().flatten().for_each(|slot| slot.ask_for_rest());
        slots.map(|slot| slot.is_some())
    }

    /// The first step to the entry of one hash: asks memory for the slot that its chain begins with; false if
    /// it has none. Others run until that has come, and then [`Table::touch_lone`] goes on.
    pub(crate) fn approach(&self, hash: u64) -> bool {
        let first = self.first(tag_of_hash(hash));
        if first != NONE {
            prefetch(self.slot(first));
        }
        first != NONE
    }

    /// The last step: asks memory for the entry; false if that is not the first of its chain.
    pub(crate) fn touch_lone(&self, hash: u64) -> bool {
        let tag = tag_of_hash(hash);
        let slot = self.led_to(self.first(tag), tag);
        let lines = slot.into_iter().flat_map(|slot| TOUCHED_LINES.map(|at| slot.bytes.get(at)));
        lines.flatten().for_each(prefetch);
        slot.inspect(|slot| slot.ask_for_rest()).is_some()
    }

    /// The first slot of the chain of a tag.
    fn first(&self, tag: u32) -> u32 {
        self.chains[self.chain_of(tag)]
    }

    /// A slot, if there is one and it has this tag.
    fn led_to(&self, slot: u32, tag: u32) -> Option<&Slot> {
        (slot != NONE).then(|| self.slot(slot)).filter(|slot| slot.tag == tag)
    }

    /// The value of a key, which counts as asked for.
    pub(crate) fn get(&mut self, place: Place<'_>) -> Option<Entry<'_>> {
        let at = self.find(place)?;
        let slot = self.slot_mut(at);
        slot.visited = true;
        Some(Entry(&slot.bytes))
    }

    /// Whether a key was asked for since the hand last passed, or since this: from now on it was not.
    pub(crate) fn take_visited(&mut self, place: Place<'_>) -> bool {
        let Some(at) = self.find(place) else { return false };
        std::mem::take(&mut self.slot_mut(at).visited)
    }

    /// Bytes that an entry takes beside its slot.
    fn entry_bytes(key_bytes: usize, value_bytes: usize) -> usize {
        HEAD_BYTES + key_bytes + value_bytes
    }

    /// Keeps a value and what is known of its key, in place of what is kept of that; false if it is too long.
    pub(crate) fn insert(&mut self, place: Place<'_>, item: &Item, value: &[u8]) -> bool {
        self.remove(place);
        let bytes = Table::entry_bytes(place.key.len(), value.len());
        if bytes > self.budget_bytes / SHARE_MAX || !self.make_room(bytes) {
            return false;
        }
        let tag = tag_of(place);
        let slot = self.take_slot();
        let chain = self.chain_of(tag);
        let next = std::mem::replace(&mut self.chains[chain], slot);
        let bytes_kept = Entry::encode(place, item, value);
        *self.slot_mut(slot) =
            Slot { tag, next, newer: NONE, older: NONE, bytes: bytes_kept, visited: false };
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
            self.chunks.push((0..CHUNK_SLOTS as u32).map(|at| Slot::free(link(at))).collect());
            self.used_bytes += CHUNK_BYTES;
            self.free = first;
        }
        let slot = self.free;
        let free = self.slot(slot);
        assert!(free.bytes.is_empty(), "a free slot holds nothing");
        self.free = free.next;
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
        let Slot { tag, next, .. } = *self.slot(slot);
        let chain = self.chain_of(tag);
        let mut before = self.chains[chain];
        if before == slot {
            self.chains[chain] = next;
        } else {
            while self.slot(before).next != slot {
                before = self.slot(before).next;
            }
            self.slot_mut(before).next = next;
        }
        let free = Slot::free(self.free);
        let released = std::mem::replace(self.slot_mut(slot), free);
        self.free = slot;
        self.entries -= 1;
        self.used_bytes -= released.bytes.len();
    }
}

impl Slot {
    /// Asks memory for what stands behind the first lines.
    fn ask_for_rest(&self) {
        let rest = self.bytes.get(TOUCHED_LINES.len() * LINE_BYTES..).unwrap_or_default();
        rest[..rest.len().min(ASKED_BYTES_MAX)].iter().step_by(LINE_BYTES).for_each(prefetch);
    }

    fn free(next: u32) -> Slot {
        Slot { tag: 0, next, newer: NONE, older: NONE, bytes: Box::default(), visited: false }
    }
}

fn tag_of(place: Place<'_>) -> u32 {
    tag_of_hash(place.hash)
}

/// The lower bits of a hash say the stripe of changes; the upper ones are as good.
fn tag_of_hash(hash: u64) -> u32 {
    (hash >> 32) as u32
}
