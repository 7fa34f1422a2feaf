//! Scanning: pages of keys in the order of slot and fingerprint.
//!
//! The order does not depend on the size of the tables or on where records are, so a key that
//! exists from the first page to the last is given, whatever grows or is cleaned meanwhile. All
//! entries of one fingerprint are given in one page, so that a cursor never stands between them. A record
//! whose head is damaged is left out, and the page says so: its key is not known, and the pages behind it
//! are.

use crate::fetch::{Extent, ReadFrom};
use crate::format::{RecordHeader, RecordKind, record};
use crate::index::{Entry, FINGERPRINT_BITS};
use crate::partition::{Partition, Place};
use futures_util::future::join_all;
use plimsoll_kv::{ContainerId, Error, Output, Result, ScanPage, Slot};
use std::cell::Cell;
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
        let (mut keys, lacks_some) = (Vec::new(), Cell::new(false));
        for entries in entries.chunks(READS_MAX) {
            let read = entries.iter().map(|(slot, entry)| {
                let place = Place { container, generation, slot: *slot, fingerprint: entry.fingerprint };
                self.scan_key(place, *entry, &lacks_some)
            });
            for key in join_all(read).await {
                keys.extend(key?);
            }
        }
        // What was seen is true after a crash too.
        self.log.flush().await?;
        Ok(Output::Scanned(ScanPage { keys, cursor: next, lacks_some: lacks_some.get() }))
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

    /// The keys that an entry stands for, if they are live ones of this generation; what has expired is
    /// deleted durably, as for any other reader.
    async fn scan_key(&self, place: Place, entry: Entry, lacks_some: &Cell<bool>) -> Result<Vec<Vec<u8>>> {
        'changed: loop {
            if self.state.borrow().generation(place.container) != place.generation {
                return Ok(Vec::new()); // The container was emptied.
            }
            let mut keys = Vec::new();
            for (entry, read) in self.read_entry(place.slot, entry).await {
                let found = match read {
                    // Once more: a key that is only hard to read is not to be missing. What cannot be
                    // read at all has been logged and counted; the pages after it are to be had.
                    Err(Error::Unreadable(_)) if self.is_current(&place, &entry) => {
                        match self.read_record(entry, Extent::Head, ReadFrom::Flash).await {
                            Err(Error::Unreadable(_)) => {
                                lacks_some.set(true);
                                continue;
                            }
                            read => read?,
                        }
                    }
                    read => read?,
                };
                if !is_of(&found.header, place.generation) {
                    continue;
                }
                let key = record::key(&found.bytes, &found.header);
                if !found.is_expired(self.now_ms()) {
                    keys.push(key.to_vec());
                    continue;
                }
                match self.transactions.holds_since_ms(place.lock_id()) {
                    None => {
                        if !self.expire(&place, key).await? {
                            continue 'changed;
                        }
                    }
                    // The transaction may be the one that scans: what had not expired when it began is there
                    // until it has ended.
                    Some(since_ms) if !found.is_expired(since_ms) => keys.push(key.to_vec()),
                    Some(_) => {}
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
