//! The index in memory: for each slot, fingerprints and locations in the order of fingerprints.
//!
//! Role: tells where a key's record may be; 12 bytes an entry. Place on the path: between the
//! engine's operations and the device.
//!
//! A slot's table is an array with gaps, sorted by fingerprint: an entry stands at or after its
//! home `fingerprint x capacity / 2^40`, as in linear probing with ordered chains (Amble and
//! Knuth, 1974). So lookups touch a cache line or two, growth is a merge without hashing (by an
//! eighth, one slot at a time: no pause, no doubling), a scan's position is a fingerprint that no
//! growth moves, and a checkpoint is written in order.
//!
//! Invariants: a location stands in a table at most once; different keys with one fingerprint have
//! an entry each. Never: it reads no flash and does not know keys.

mod coding;

use crate::format::bits::bits_of;
use plimsoll_kv::Slot;
use plimsoll_reactor::prefetch;

/// Bits of a fingerprint.
pub const FINGERPRINT_BITS: u32 = 40;
/// Bits of a location: 4 TiB of 16-byte units.
pub const LOCATION_BITS: u32 = 38;
/// Bits of a length in units: a 2 MiB value with the longest key fits.
pub const LENGTH_BITS: u32 = 18;
const _: () = assert!(FINGERPRINT_BITS + LOCATION_BITS + LENGTH_BITS == 96);

/// Bytes of an entry in memory.
pub const ENTRY_BYTES: usize = 12;

/// A fingerprint, where its record is and how long it is, in units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Part of the key's hash.
    pub fingerprint: u64,
    /// Where the record begins; never 0.
    pub location: u64,
    /// How many units it takes.
    pub length: u32,
}

#[derive(Clone, Copy)]
struct Packed([u32; 3]);
const EMPTY: Packed = Packed([0; 3]);

impl Packed {
    fn pack(entry: Entry) -> Packed {
        assert!(entry.fingerprint >> FINGERPRINT_BITS == 0 && entry.location >> LOCATION_BITS == 0);
        assert!(entry.location != 0 && entry.length >> LENGTH_BITS == 0);
        let high =
            (entry.fingerprint >> 32) as u32 | entry.length << 8 | ((entry.location >> 32) as u32) << 26;
        Packed([entry.fingerprint as u32, high, entry.location as u32])
    }
    fn location(self) -> u64 {
        u64::from(self.0[1] >> 26) << 32 | u64::from(self.0[2])
    }
    fn fingerprint(self) -> u64 {
        u64::from(self.0[1] & 0xff) << 32 | u64::from(self.0[0])
    }
    fn is_empty(self) -> bool {
        self.location() == 0
    }
    fn unpack(self) -> Entry {
        let length = self.0[1] >> 8 & ((1 << LENGTH_BITS) - 1);
        Entry { fingerprint: self.fingerprint(), location: self.location(), length }
    }
}

/// The first table of a slot has so many homes.
const HOMES_LEAST: u32 = 4;

/// The table of one slot.
#[derive(Default)]
struct Table {
    cells: Box<[Packed]>,
    count: u32,
    /// Homes are spread over this many cells; the rest takes what overflows at the end.
    homes: u32,
}

/// Cells past the last home.
fn overflow_cells(homes: usize) -> usize {
    8 + homes / 64
}

impl Table {
    fn home(&self, fingerprint: u64) -> usize {
        ((u128::from(fingerprint) * u128::from(self.homes)) >> FINGERPRINT_BITS) as usize
    }

    /// The first cell at or after the home that is empty or has a fingerprint not below.
    fn lower_bound(&self, fingerprint: u64) -> usize {
        let mut at = self.home(fingerprint);
        while at < self.cells.len()
            && !self.cells[at].is_empty()
            && self.cells[at].fingerprint() < fingerprint
        {
            at += 1;
        }
        at
    }

    fn position(&self, fingerprint: u64, location: u64) -> Option<usize> {
        let mut at = self.lower_bound(fingerprint);
        while let Some(cell) = self.cells.get(at) {
            if cell.is_empty() || cell.fingerprint() != fingerprint {
                return None;
            }
            if cell.location() == location {
                return Some(at);
            }
            at += 1;
        }
        None
    }

    fn is_full(&self) -> bool {
        u64::from(self.count) * 10 >= u64::from(self.homes) * 9
    }

    fn insert(&mut self, entry: Entry) {
        while self.is_full() || !self.try_insert(Packed::pack(entry)) {
            self.grow();
        }
        self.count += 1;
    }

    /// Puts an entry in order; false if the cells run out at the end.
    fn try_insert(&mut self, packed: Packed) -> bool {
        let at = self.lower_bound(packed.fingerprint());
        let Some(free) = (at..self.cells.len()).find(|at| self.cells[*at].is_empty()) else { return false };
        self.cells.copy_within(at..free, at + 1);
        self.cells[at] = packed;
        true
    }

    fn grow(&mut self) {
        let mut homes =
            (self.homes as usize + self.homes as usize / 8).max((self.homes + HOMES_LEAST) as usize);
        loop {
            if let Some(table) = Table::build(homes, self.entries(), self.count) {
                *self = table;
                return;
            }
            homes += homes / 8 + 4;
        }
    }

    /// A table of entries given in the order of fingerprints, or nothing if they do not fit.
    fn build(homes: usize, entries: impl Iterator<Item = Packed>, count: u32) -> Option<Table> {
        let cells = vec![EMPTY; homes + overflow_cells(homes)].into_boxed_slice();
        let mut table = Table { cells, count, homes: homes as u32 };
        let mut next = 0;
        for packed in entries {
            let at = next.max(table.home(packed.fingerprint()));
            *table.cells.get_mut(at)? = packed;
            next = at + 1;
        }
        Some(table)
    }

    fn entries(&self) -> impl Iterator<Item = Packed> + Clone {
        self.cells.iter().copied().filter(|cell| !cell.is_empty())
    }

    /// Takes an entry out and closes the gap, so that no probe is cut short.
    fn remove_at(&mut self, at: usize) {
        let mut gap = at;
        loop {
            self.cells[gap] = EMPTY;
            let next = gap + 1;
            if next >= self.cells.len() || self.cells[next].is_empty() {
                break;
            }
            if self.home(self.cells[next].fingerprint()) > gap {
                break;
            }
            self.cells[gap] = self.cells[next];
            gap = next;
        }
        self.count -= 1;
        if self.is_sparse() {
            self.shrink();
        }
    }

    /// True if so much is empty that less memory would do, and a good many keys more would fit there.
    fn is_sparse(&self) -> bool {
        let is_large = self.homes > HOMES_LEAST;
        self.count == 0 || is_large && u64::from(self.count) * 10 < u64::from(self.homes) * 6
    }

    fn shrink(&mut self) {
        if self.count == 0 {
            *self = Table::default();
            return;
        }
        let mut homes = (self.count as usize * 4 / 3).max(HOMES_LEAST as usize);
        while homes < self.homes as usize {
            if let Some(table) = Table::build(homes, self.entries(), self.count) {
                *self = table;
                return;
            }
            homes += homes / 8 + 4;
        }
    }
}

/// The index of a partition: a table for each of its slots.
pub struct Index {
    first_slot: u32,
    tables: Vec<Table>,
    count: u64,
    /// No entry since the last clear was longer.
    longest: u32,
    /// Reused from slot to slot while a checkpoint is loaded.
    decoded: Vec<Entry>,
}

impl Index {
    /// An empty index of a range of slots.
    #[must_use]
    pub fn new(slots: std::ops::Range<u32>) -> Index {
        let first_slot = slots.start;
        let tables = slots.map(|_| Table::default()).collect();
        Index { first_slot, tables, count: 0, longest: 0, decoded: Vec::new() }
    }

    /// The slots it covers.
    #[must_use]
    pub fn slots(&self) -> std::ops::Range<u32> {
        self.first_slot..self.first_slot + self.tables.len() as u32
    }

    /// Entries in it.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.count
    }

    /// True if it has no entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// All entries, if one of so many units or more may be among them.
    pub fn all_if_long(&self, units: u64) -> impl Iterator<Item = Entry> {
        let tables = if u64::from(self.longest) >= units { &self.tables[..] } else { &[] };
        tables.iter().flat_map(|table| table.entries().map(Packed::unpack))
    }

    /// Bytes that its tables take.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        let cells: usize = self.tables.iter().map(|table| table.cells.len()).sum();
        (cells * ENTRY_BYTES + self.tables.len() * size_of::<Table>()) as u64
    }

    fn table(&self, slot: Slot) -> &Table {
        &self.tables[(u32::from(slot.0) - self.first_slot) as usize]
    }

    fn table_mut(&mut self, slot: Slot) -> &mut Table {
        &mut self.tables[(u32::from(slot.0) - self.first_slot) as usize]
    }

    /// The entries with a fingerprint: where the key's record may be.
    pub fn find(&self, slot: Slot, fingerprint: u64) -> impl Iterator<Item = Entry> {
        let table = self.table(slot);
        let from = table.lower_bound(fingerprint);
        let same = move |cell: &&Packed| !cell.is_empty() && cell.fingerprint() == fingerprint;
        table.cells[from.min(table.cells.len())..].iter().take_while(same).map(|cell| cell.unpack())
    }

    /// Brings the cells where some keys' entries stand, or would, from memory into the processor's caches:
    /// they come while the processor goes on.
    pub fn touch(&self, keys: impl Iterator<Item = (Slot, u64)>) {
        for (slot, fingerprint) in keys {
            let table = self.table(slot);
            table.cells.get(table.home(fingerprint)).into_iter().for_each(prefetch);
        }
    }

    /// True if there is an entry for the record at `location`.
    #[must_use]
    pub fn contains(&self, slot: Slot, fingerprint: u64, location: u64) -> bool {
        self.table(slot).position(fingerprint, location).is_some()
    }

    /// Adds an entry.
    pub fn insert(&mut self, slot: Slot, entry: Entry) {
        debug_assert!(!self.contains(slot, entry.fingerprint, entry.location));
        self.table_mut(slot).insert(entry);
        self.count += 1;
        self.longest = self.longest.max(entry.length);
    }

    /// Points the entry for `previous` elsewhere; false if there is none.
    pub fn replace(&mut self, slot: Slot, previous: u64, entry: Entry) -> bool {
        let table = self.table_mut(slot);
        let Some(at) = table.position(entry.fingerprint, previous) else { return false };
        table.cells[at] = Packed::pack(entry);
        self.longest = self.longest.max(entry.length);
        true
    }

    /// Removes the entry for a location; false if there is none.
    pub fn remove(&mut self, slot: Slot, fingerprint: u64, location: u64) -> bool {
        let table = self.table_mut(slot);
        let Some(at) = table.position(fingerprint, location) else { return false };
        table.remove_at(at);
        self.count -= 1;
        true
    }

    /// Removes everything.
    pub fn clear(&mut self) {
        for table in &mut self.tables {
            *table = Table::default();
        }
        (self.count, self.longest) = (0, 0);
    }

    /// Removes everything in one slot.
    pub fn clear_slot(&mut self, slot: Slot) {
        let removed = std::mem::take(self.table_mut(slot));
        self.count -= u64::from(removed.count);
    }

    /// The entries of a slot from a fingerprint on, in order.
    pub fn from(&self, slot: Slot, fingerprint: u64) -> impl Iterator<Item = Entry> {
        let table = self.table(slot);
        let from = if table.homes == 0 { 0 } else { table.lower_bound(fingerprint) };
        let rest = table.cells[from.min(table.cells.len())..].iter();
        rest.filter(move |cell| !cell.is_empty() && cell.fingerprint() >= fingerprint)
            .map(|cell| cell.unpack())
    }

    /// Appends a slot's table to a checkpoint.
    pub fn encode_slot(&self, slot: Slot, location_bits: u32, out: &mut Vec<u8>) {
        coding::encode(self.table(slot).entries().map(Packed::unpack), location_bits, out);
    }

    /// Takes a slot's table, as [`Index::encode_slot`] gave it, off the front of `bytes`.
    /// False if it makes no sense: the checkpoint was not written by this code.
    #[must_use]
    pub fn decode_slot(&mut self, slot: Slot, location_bits: u32, bytes: &mut &[u8]) -> bool {
        let mut entries = std::mem::take(&mut self.decoded);
        let decoded = coding::decode(bytes, location_bits, &mut entries).is_some();
        if decoded {
            self.load_slot(slot, &entries);
        }
        self.decoded = entries;
        decoded
    }

    fn load_slot(&mut self, slot: Slot, entries: &[Entry]) {
        let count = entries.len();
        let mut homes = count * 10 / 9 + 4;
        let table = loop {
            match Table::build(homes, entries.iter().copied().map(Packed::pack), count as u32) {
                Some(table) => break table,
                None => homes += homes / 8 + 4,
            }
        };
        let replaced = std::mem::replace(self.table_mut(slot), table);
        self.count = self.count - u64::from(replaced.count) + count as u64;
        self.longest = entries.iter().fold(self.longest, |longest, entry| longest.max(entry.length));
    }

    /// Bytes that the table of a slot takes in a checkpoint at most.
    #[must_use]
    pub fn encoded_bytes_max(&self, slot: u32, location_bits: u32) -> u64 {
        let entries = self.tables[(slot - self.first_slot) as usize].count;
        coding::table_bytes_max(entries, location_bits, bits_of(u64::from(self.longest)))
    }
}

#[cfg(test)]
#[path = "index_tests.rs"]
mod tests;
