//! Scanning: pages of keys in the order of slot and fingerprint.
//!
//! The order does not depend on the size of the tables or on where records are, so a key that
//! exists from the first page to the last is given, whatever grows or is cleaned meanwhile. All
//! entries of one fingerprint are given in one page, so that a cursor never stands between them.

use crate::format::{RecordHeader, RecordKind, record};
use crate::index::{Entry, FINGERPRINT_BITS};
use crate::partition::{Extent, Partition, Place};
use futures_util::future::join_all;
use plimsoll_kv::{ContainerId, Output, Result, ScanPage, Slot};
use std::rc::Rc;

/// Entries looked at for one page, so that a page over another container's keys stays short.
const ENTRIES_MAX: usize = 256;
/// Reads under way at a time.
const READS_MAX: usize = 32;

/// The cursor that begins at a slot and fingerprint.
fn cursor_of(slot: u32, fingerprint: u64) -> u64 {
    u64::from(slot) << FINGERPRINT_BITS | fingerprint
}

impl Partition {
    pub(crate) async fn scan(
        self: &Rc<Self>,
        container: ContainerId,
        cursor: u64,
        limit: usize,
    ) -> Result<Output> {
        let (entries, next) = self.scan_entries(cursor, limit.clamp(1, ENTRIES_MAX));
        let generation = self.state.borrow().generation(container);
        let mut keys = Vec::new();
        for entries in entries.chunks(READS_MAX) {
            let read = entries.iter().map(|(slot, entry)| {
                let place = Place { container, generation, slot: *slot, fingerprint: entry.fingerprint };
                self.scan_key(place, *entry)
            });
            for key in join_all(read).await {
                keys.extend(key?);
            }
        }
        // What was seen is true after a crash too.
        self.log.flush().await?;
        Ok(Output::Scanned(ScanPage { keys, cursor: next }))
    }

    /// The entries from a cursor on, and the cursor after them; 0 at the end.
    pub(crate) fn scan_entries(&self, cursor: u64, limit: usize) -> (Vec<(Slot, Entry)>, u64) {
        let state = self.state.borrow();
        let slots = state.index.slots();
        let first_slot = ((cursor >> FINGERPRINT_BITS) as u32).max(slots.start);
        let mut fingerprint = cursor & ((1 << FINGERPRINT_BITS) - 1);
        let mut entries: Vec<(Slot, Entry)> = Vec::new();
        for slot in first_slot..slots.end {
            for entry in state.index.from(Slot(slot as u16), fingerprint) {
                let last = entries.last().map(|(slot, last)| (*slot, last.fingerprint));
                if entries.len() >= limit && last != Some((Slot(slot as u16), entry.fingerprint)) {
                    return (entries, cursor_of(slot, entry.fingerprint));
                }
                entries.push((Slot(slot as u16), entry));
            }
            fingerprint = 0;
        }
        (entries, 0)
    }

    /// The key of an entry, if it is a live one of this generation; if it has expired it is deleted
    /// durably, as for any other reader. If the entry went or moved before it was read, the keys of
    /// all that have its fingerprint: a key that moved must still be given.
    async fn scan_key(&self, place: Place, entry: Entry) -> Result<Vec<Vec<u8>>> {
        let is_current =
            |entry: &Entry| self.state.borrow().index.contains(place.slot, entry.fingerprint, entry.location);
        let mut entries = vec![entry];
        'moved: loop {
            if self.state.borrow().generation(place.container) != place.generation {
                return Ok(Vec::new()); // The container was emptied.
            }
            let mut keys = Vec::new();
            for entry in &entries {
                let read =
                    if is_current(entry) { Some(self.read_record(*entry, Extent::Head).await) } else { None };
                match read {
                    Some(Ok(found)) if !is_of(&found.header, place.generation) => {}
                    Some(Ok(found)) if !found.is_expired(self.now_ms()) => {
                        keys.push(record::key(&found.bytes, &found.header).to_vec());
                    }
                    Some(Ok(found))
                        if self.expire(&place, record::key(&found.bytes, &found.header)).await? => {}
                    Some(Err(error)) if is_current(entry) => return Err(error),
                    _ => {
                        entries = self.state.borrow().index.find(place.slot, place.fingerprint).collect();
                        continue 'moved;
                    }
                }
            }
            return Ok(keys);
        }
    }
}

/// True for the record of a key of this generation of a container.
fn is_of(header: &RecordHeader, generation: u32) -> bool {
    header.container == generation && header.kind != RecordKind::Part
}
