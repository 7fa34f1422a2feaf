//! The table: what became of keys lately, in memory, in the order of names.
//!
//! Place on the path: filled where stores and deletes are committed; written as a run when it is
//! full or a checkpoint begins.
//!
//! Invariant: the last thing noted for a name is what it says. A frozen table does not change.

use super::block::{ENTRY_OVERHEAD_BYTES, name_of};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Bound;
use std::rc::Rc;

/// Bytes of memory an entry takes besides its name: allocation, node, accounting.
const ENTRY_BYTES: usize = 64;

/// Names and whether their keys were deleted.
#[derive(Default)]
pub(crate) struct Table {
    entries: RefCell<BTreeMap<Box<[u8]>, bool>>,
    bytes: Cell<usize>,
}

impl Table {
    /// Notes that a key exists now, or does not any more.
    pub(crate) fn note(&self, generation: u32, key: &[u8], deleted: bool) {
        let name = name_of(generation, key).into_boxed_slice();
        let bytes = name.len() + ENTRY_BYTES;
        if self.entries.borrow_mut().insert(name, deleted).is_none() {
            self.bytes.set(self.bytes.get() + bytes);
        }
    }

    /// Keys in it.
    pub(crate) fn len(&self) -> usize {
        self.entries.borrow().len()
    }

    /// True if nothing is in it.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.borrow().is_empty()
    }

    /// Bytes of memory it takes, about.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.get()
    }

    /// Bytes that its names take in a run at most.
    pub(crate) fn encoded_bytes_max(&self) -> u64 {
        (self.bytes() - self.len() * (ENTRY_BYTES - ENTRY_OVERHEAD_BYTES)) as u64
    }

    /// Takes what an older table says of names that are not in this one.
    pub(crate) fn take_older(&self, older: &Table) {
        let mut entries = self.entries.borrow_mut();
        for (name, deleted) in older.entries.take() {
            let bytes = name.len() + ENTRY_BYTES;
            if let Entry::Vacant(place) = entries.entry(name) {
                place.insert(deleted);
                self.bytes.set(self.bytes.get() + bytes);
            }
        }
        older.bytes.set(0);
    }

    fn first(&self, from: Bound<&[u8]>) -> Option<(Vec<u8>, bool)> {
        let entries = self.entries.borrow();
        let first = entries.range::<[u8], _>((from, Bound::Unbounded)).next();
        first.map(|(name, deleted)| (name.to_vec(), *deleted))
    }
}

/// A place in a table. Names noted behind it meanwhile are not seen.
pub(crate) struct TableCursor {
    table: Rc<Table>,
    current: Option<(Vec<u8>, bool)>,
}

impl TableCursor {
    /// Stands nowhere until it is sent somewhere.
    pub(crate) fn new(table: Rc<Table>) -> TableCursor {
        TableCursor { table, current: None }
    }

    /// Goes to the first name that is not below `name`.
    pub(crate) fn seek(&mut self, name: &[u8]) {
        self.current = self.table.first(Bound::Included(name));
    }

    /// Goes to the next name.
    pub(crate) fn step(&mut self) {
        let next = self.current.as_ref().and_then(|(name, _)| self.table.first(Bound::Excluded(name)));
        self.current = next;
    }

    /// The name at which it stands, and whether that key was deleted.
    pub(crate) fn current(&self) -> Option<(&[u8], bool)> {
        self.current.as_ref().map(|(name, deleted)| (name.as_slice(), *deleted))
    }
}
