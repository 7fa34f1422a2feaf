//! The index in memory: for each slot, fingerprints and locations in the order of fingerprints.
//!
//! Role: tells where a key's record may be; 12 bytes an entry. Place on the path: between the
//! engine's operations and the device.
//!
//! A slot's table is an array with gaps, sorted by fingerprint: an entry stands at or after its
//! home `fingerprint x homes / 2^40`, as in linear probing with ordered chains (Amble and
//! Knuth, 1974). So lookups touch a cache line or two, growth is a merge without hashing (by an
//! eighth, one slot at a time: no doubling), a scan's position is a fingerprint that no
//! growth moves, and a checkpoint is written in order. What is done to the cells of a table is in
//! `table`, where they stand in `pool`.
//!
//! Invariants: a location stands in a table at most once; different keys with one fingerprint have
//! an entry each. Never: it reads no flash and does not know keys.

mod coding;
mod pool;
mod table;

use crate::format::bits::bits_of;
use plimsoll_kv::Slot;
use plimsoll_reactor::prefetch;
use pool::Pool;
use table::Table;

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

/// The index of a partition: a table for each of its slots.
pub struct Index {
    first_slot: u32,
    tables: Vec<Table>,
    pool: Pool,
    count: u64,
    /// No entry since the last clear was longer.
    longest: u32,
    /// Reused from slot to slot while a checkpoint is loaded.
    decoded: Vec<Entry>,
    /// A table is laid out here before it has a place.
    laid_out: Vec<Packed>,
}

impl Index {
    /// An empty index of a range of slots.
    #[must_use]
    pub fn new(slots: std::ops::Range<u32>) -> Index {
        let first_slot = slots.start;
        let tables = slots.map(|_| Table::default()).collect();
        let pool = Pool::default();
        Index { first_slot, tables, pool, count: 0, longest: 0, decoded: Vec::new(), laid_out: Vec::new() }
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
        tables.iter().flat_map(|table| table::entries(self.pool.cells(table.place)).map(Packed::unpack))
    }

    /// Bytes that its tables take, with what those that grew have left, and what is not used yet.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        (self.pool.room_cells() * ENTRY_BYTES + self.tables.len() * size_of::<Table>()) as u64
    }

    fn number(&self, slot: Slot) -> usize {
        (u32::from(slot.0) - self.first_slot) as usize
    }

    /// The cells of a slot's table, and its homes.
    fn table(&self, slot: Slot) -> (&[Packed], u32) {
        let table = &self.tables[self.number(slot)];
        (self.pool.cells(table.place), table.homes)
    }

    /// The entries with a fingerprint: where the key's record may be.
    pub fn find(&self, slot: Slot, fingerprint: u64) -> impl Iterator<Item = Entry> {
        let (cells, homes) = self.table(slot);
        let from = table::lower_bound(cells, homes, fingerprint).min(cells.len());
        let same = move |cell: &&Packed| !cell.is_empty() && cell.fingerprint() == fingerprint;
        cells[from..].iter().take_while(same).map(|cell| cell.unpack())
    }

    /// Brings the cells where some keys' entries stand, or would, from memory into the processor's caches:
    /// they come while the processor goes on.
    pub fn touch(&self, keys: impl Iterator<Item = (Slot, u64)>) {
        for (slot, fingerprint) in keys {
            let (cells, homes) = self.table(slot);
            cells.get(table::home(homes, fingerprint)).into_iter().for_each(prefetch);
        }
    }

    /// True if there is an entry for the record at `location`.
    #[must_use]
    pub fn contains(&self, slot: Slot, fingerprint: u64, location: u64) -> bool {
        let (cells, homes) = self.table(slot);
        table::position(cells, homes, fingerprint, location).is_some()
    }

    /// Adds an entry.
    pub fn insert(&mut self, slot: Slot, entry: Entry) {
        debug_assert!(!self.contains(slot, entry.fingerprint, entry.location));
        let number = self.number(slot);
        let packed = Packed::pack(entry);
        while !self.insert_as_it_is(number, packed) {
            let homes = self.lay_out(number, self.tables[number].homes_grown());
            self.settle(number, Table { homes, ..self.tables[number] });
        }
        self.tables[number].count += 1;
        self.count += 1;
        self.longest = self.longest.max(entry.length);
    }

    /// Adds an entry to a table; false if that has to be longer first.
    fn insert_as_it_is(&mut self, number: usize, packed: Packed) -> bool {
        let table = &self.tables[number];
        !table.is_full() && table::insert(self.pool.cells_mut(table.place), table.homes, packed)
    }

    /// Lays a table out anew, with so many homes or as many more as it takes: with how many.
    fn lay_out(&mut self, number: usize, homes: usize) -> u32 {
        let entries = table::entries(self.pool.cells(self.tables[number].place));
        table::lay_out(&mut self.laid_out, homes, entries)
    }

    /// What is laid out is a slot's table from now on.
    fn settle(&mut self, number: usize, mut table: Table) {
        self.pool.free(self.tables[number].place);
        let cells = self.laid_out.len();
        table.place = self.pool.put(number as u32, &mut self.laid_out);
        self.tables[number] = table;
        self.pool.close_up(cells, &mut self.tables);
    }

    /// Points the entry for `previous` elsewhere; false if there is none.
    pub fn replace(&mut self, slot: Slot, previous: u64, entry: Entry) -> bool {
        let table = self.tables[self.number(slot)];
        let cells = self.pool.cells_mut(table.place);
        let Some(at) = table::position(cells, table.homes, entry.fingerprint, previous) else { return false };
        cells[at] = Packed::pack(entry);
        self.longest = self.longest.max(entry.length);
        true
    }

    /// Removes the entry for a location; false if there is none.
    pub fn remove(&mut self, slot: Slot, fingerprint: u64, location: u64) -> bool {
        let number = self.number(slot);
        let table = &mut self.tables[number];
        let cells = self.pool.cells_mut(table.place);
        let Some(at) = table::position(cells, table.homes, fingerprint, location) else { return false };
        table::remove(cells, table.homes, at);
        table.count -= 1;
        self.count -= 1;
        if table.count == 0 {
            self.clear_slot(slot);
        } else if table.is_sparse() {
            let before = *table;
            let homes = self.lay_out(number, before.homes_shrunk());
            if homes < before.homes {
                self.settle(number, Table { homes, ..before });
            }
        }
        true
    }

    /// Removes everything.
    pub fn clear(&mut self) {
        self.tables.fill(Table::default());
        self.pool = Pool::default();
        (self.count, self.longest) = (0, 0);
    }

    /// Removes everything in one slot.
    pub fn clear_slot(&mut self, slot: Slot) {
        let number = self.number(slot);
        let removed = std::mem::take(&mut self.tables[number]);
        let cells = self.pool.cells(removed.place).len();
        self.pool.free(removed.place);
        self.pool.close_up(cells, &mut self.tables);
        self.count -= u64::from(removed.count);
    }

    /// The entries of a slot from a fingerprint on, in order.
    pub fn from(&self, slot: Slot, fingerprint: u64) -> impl Iterator<Item = Entry> {
        let (cells, homes) = self.table(slot);
        let from = table::lower_bound(cells, homes, fingerprint).min(cells.len());
        let rest = cells[from..].iter();
        rest.filter(move |cell| !cell.is_empty() && cell.fingerprint() >= fingerprint)
            .map(|cell| cell.unpack())
    }

    /// Appends a slot's table to a checkpoint.
    pub fn encode_slot(&self, slot: Slot, location_bits: u32, out: &mut Vec<u8>) {
        coding::encode(table::entries(self.table(slot).0).map(Packed::unpack), location_bits, out);
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
        self.clear_slot(slot);
        if entries.is_empty() {
            return;
        }
        let number = self.number(slot);
        let packed = entries.iter().copied().map(Packed::pack);
        let homes = table::lay_out(&mut self.laid_out, entries.len() * 10 / 9 + 4, packed);
        self.settle(number, Table { homes, count: entries.len() as u32, ..Table::default() });
        self.count += entries.len() as u64;
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
