//! Fetching: which record is a key's, and as much of it as is needed, proved.
//!
//! Place on the path: between the index and what an operation does with the record that is there.
//!
//! Invariants: whose a record is its own head says, never the index alone; the segment that is read is
//! guarded until that is proved.
//!
//! Never: it gives bytes of a value that were not proved.

use crate::format::record::{self, CHECKSUM_SPAN_BYTES, RecordHeader};
use crate::format::{DecodeError, RecordKind, UNIT_BYTES, round_up};
use crate::index::Entry;
use crate::metrics::add;
use crate::partition::{Partition, Place};
use crate::planted::{Bug, is_planted};
use crate::state::ExpiryOverride;
use bytes::Bytes;
use plimsoll_kv::block::Origin;
use plimsoll_kv::limits::RECORD_VALUE_BYTES_MAX;
use plimsoll_kv::{Class, Error, Result};
use plimsoll_reactor::Buf;
use std::ops::Range;

/// Bytes of a record read to see its key: header, a usual key, checksums.
const HEAD_READ_BYTES: u64 = 512;

/// How much of a record to read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    Head,
    /// So many bytes from its beginning on, if there are as many.
    First(u64),
    Whole,
}

impl Extent {
    /// As much of the record of a key as proves a range of its value.
    pub(crate) fn of_range(key: &[u8], range: Option<(u64, u64)>) -> Extent {
        let Some((first, count)) = range else { return Extent::Whole };
        let end = first.saturating_add(count).min(RECORD_VALUE_BYTES_MAX as u64);
        let head = record::head_bytes(key.len(), RECORD_VALUE_BYTES_MAX as u32) as u64;
        Extent::First(head + round_up(end, CHECKSUM_SPAN_BYTES as u64))
    }
}

/// Where a record may be read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReadFrom {
    /// In memory, too, if it was written lately and is short.
    Anywhere,
    /// Where it stands, for whoever has to know what stands there.
    Flash,
}

impl ReadFrom {
    /// The background looks after what is on flash.
    pub(crate) fn of(class: Class) -> ReadFrom {
        match class {
            Class::Foreground => ReadFrom::Anywhere,
            Class::Background => ReadFrom::Flash,
        }
    }
}

/// A record that was found, its head proved.
pub(crate) struct Found {
    pub(crate) entry: Entry,
    pub(crate) header: RecordHeader,
    /// When it expires, overrides included; 0: never.
    pub(crate) expiry_ms: u64,
    /// The record's bytes, as many as were read.
    pub(crate) bytes: RecordBytes,
}

/// Bytes of a record: in a read buffer, or copied from a frame in memory.
pub(crate) enum RecordBytes {
    Read(Buf, usize),
    Copied(Vec<u8>),
}

impl std::ops::Deref for RecordBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            RecordBytes::Read(buf, from) => &buf[*from..],
            RecordBytes::Copied(bytes) => bytes,
        }
    }
}

impl RecordBytes {
    /// A range of the record, where it stands.
    pub(crate) fn into_range(self, range: Range<usize>) -> Bytes {
        match self {
            RecordBytes::Read(buf, from) => {
                Bytes::from_owner(buf).slice(from + range.start..from + range.end)
            }
            RecordBytes::Copied(bytes) => Bytes::from(bytes).slice(range),
        }
    }
}

impl Found {
    /// Whether a store that replaces it may retain it.
    ///
    /// # Errors
    /// It is a keeper: what it keeps would be given up before it.
    pub(crate) fn judge_retain(&self) -> Result<()> {
        match self.header.kind {
            RecordKind::Keeper => Err(Error::Invalid("what is kept under another key is not retained")),
            _ => Ok(()),
        }
    }

    pub(crate) fn is_expired(&self, now_ms: u64) -> bool {
        self.expiry_ms != 0 && self.expiry_ms <= now_ms
    }
}

/// What a look for a key gave.
pub(crate) enum Lookup<T = Found> {
    Found(T),
    Absent,
    /// A candidate moved or went while it was read: look again.
    Moved,
}

impl Partition {
    /// Looks for a key's record: reads the candidates until one has the key.
    pub(crate) async fn find(
        &self,
        place: &Place,
        key: &[u8],
        extent: Extent,
        from: ReadFrom,
    ) -> Result<Lookup> {
        if self.transactions.is_stale(place.lock_id())
            && let Some(failure) = self.log.failure()
        {
            return Err(failure);
        }
        let candidates: Vec<Entry> = self.state.borrow().index.find(place.slot, place.fingerprint).collect();
        let mut unreadable = None;
        for entry in candidates {
            // While one was read, the next may have gone, and its expiry override with it.
            if !self.is_current(place, &entry) {
                return Ok(Lookup::Moved);
            }
            match self.read_record(entry, extent, from).await {
                Ok(found) if self.is_same_key(&found, place, key) => return Ok(Lookup::Found(found)),
                Ok(_) => {}
                Err(error) => unreadable = Some(error),
            }
            if !self.is_current(place, &entry) {
                return Ok(Lookup::Moved);
            }
        }
        unreadable.map_or(Ok(Lookup::Absent), Err)
    }

    pub(crate) fn is_same_key(&self, found: &Found, place: &Place, key: &[u8]) -> bool {
        if is_planted(Bug::FingerprintIsKey) {
            return true;
        }
        found.header.container == place.generation
            && found.header.kind != RecordKind::Part
            && record::key(&found.bytes, &found.header) == key
    }

    /// Reads and proves the record of an entry, from memory if it is not on flash yet.
    pub(crate) async fn read_record(&self, entry: Entry, extent: Extent, from: ReadFrom) -> Result<Found> {
        let record_bytes = u64::from(entry.length) * UNIT_BYTES;
        let (guard, sequence, expiry_override) = {
            let state = self.state.borrow();
            let sequence = state.segments.sequence_at(entry.location);
            let expiry = state.expiry_overrides.get(&entry.location).copied();
            (state.segments.guard(entry.location), sequence, expiry)
        };
        let bytes = match self.in_memory(&entry, sequence, from) {
            Some(bytes) => RecordBytes::Copied(bytes),
            None => {
                let most = match extent {
                    Extent::Head => HEAD_READ_BYTES,
                    Extent::First(bytes) => bytes,
                    Extent::Whole => record_bytes,
                };
                self.read_flash(entry.location, 0..record_bytes.min(most)).await?
            }
        };
        let header = record::verify_head(&bytes, sequence, entry.location);
        // A long key: its head, or the manifest after it, is longer than what was read at first.
        let is_cut = match &header {
            Ok(header) => {
                let names = matches!(header.kind, RecordKind::Manifest | RecordKind::Keeper);
                names && (bytes.len() as u64) < record_bytes
            }
            Err(error) => *error == DecodeError::Short("record"),
        };
        if is_cut && extent != Extent::Whole {
            // The segment was guarded all the while: else it might have been given back by now, and
            // be opened for something else under this read.
            let bytes = self.read_flash(entry.location, 0..record_bytes).await?;
            let header = record::verify_head(&bytes, sequence, entry.location);
            drop(guard);
            return self.found(entry, header, expiry_override, bytes);
        }
        drop(guard);
        self.found(entry, header, expiry_override, bytes)
    }

    /// The record of an entry that is not on flash yet, or is short and was written lately.
    fn in_memory(&self, entry: &Entry, sequence: u64, from: ReadFrom) -> Option<Vec<u8>> {
        let record_bytes = u64::from(entry.length) * UNIT_BYTES;
        let pending = self.log.with_pending(entry.location, record_bytes, <[u8]>::to_vec);
        if pending.is_some() || from == ReadFrom::Flash {
            return pending;
        }
        let state = self.state.borrow();
        let recent = state.recent.get(sequence, entry.location, record_bytes)?;
        add(&self.counts.recent_reads, 1);
        Some(recent.to_vec())
    }

    fn found(
        &self,
        entry: Entry,
        header: std::result::Result<RecordHeader, DecodeError>,
        expiry_override: Option<ExpiryOverride>,
        bytes: RecordBytes,
    ) -> Result<Found> {
        let mut header = header.map_err(|error| self.unreadable(entry.location, &error.to_string()))?;
        if header.record_bytes() != u64::from(entry.length) * UNIT_BYTES {
            return Err(self.unreadable(entry.location, "record of another length"));
        }
        if let Some(kept) = expiry_override {
            (header.expiry_ms, header.version) = (kept.expiry_ms, kept.version);
        }
        Ok(Found { entry, header, expiry_ms: header.expiry_ms, bytes })
    }

    /// Reads bytes of a record whose segment is guarded.
    pub(crate) async fn read_flash(&self, location: u64, range: Range<u64>) -> Result<RecordBytes> {
        let block = self.layout.block_bytes;
        let record = self.layout.device_offset(location);
        let (start, end) = (record + range.start, record + range.end);
        let first = start / block * block;
        let length = round_up(end, block) - first;
        self.counts.record_reads.set(self.counts.record_reads.get() + 1);
        let read = self.block.read(Origin::FOREGROUND, first, length as usize).await;
        let mut buf = read.map_err(|error| self.unreadable(location, &error.to_string()))?;
        buf.truncate((end - first) as usize);
        Ok(RecordBytes::Read(buf, (start - first) as usize))
    }

    /// The value of a whole record, proved.
    pub(crate) fn value<'a>(&self, found: &'a Found) -> Result<&'a [u8]> {
        if is_planted(Bug::UnverifiedValue) {
            let start = found.header.head_bytes();
            return Ok(&found.bytes[start..start + found.header.value_bytes as usize]);
        }
        let value = record::verify_value(&found.bytes, &found.header);
        value.map_err(|error| self.unreadable(found.entry.location, &error.to_string()))
    }
}
