//! Reading: retrieve, exist.
//!
//! Place on the path: index to flash read to reply. A value that fits a record costs exactly one
//! flash read, or none if it was written lately and is short; one that is kept under another key two.
//!
//! Invariant: nothing is revealed that a crash could take back: a reader waits for the write of
//! its key that is not durable yet, and an expired key is deleted durably before its absence is told.

use crate::fetch::{Extent, Found, Lookup, ReadFrom};
use crate::format::record::{CHECKSUM_SPAN_BYTES, Keeper, Manifest, verify_spans};
use crate::format::{DecodeError, RecordKind, UNIT_BYTES};
use crate::index::Entry;
use crate::kept::KeptRecord;
use crate::looks::Look;
use crate::partition::{Partition, Place};
use crate::planted::{Bug, is_planted};
use plimsoll_kv::{ContainerId, Error, Item, Output, Result, Slot, Stats, UploadId};
use std::rc::Rc;

impl Partition {
    /// An error that says where stored data could not be read.
    pub(crate) fn unreadable(&self, location: u64, what: &str) -> Error {
        let offset = self.layout.device_offset(location);
        self.counts.unreadable.set(self.counts.unreadable.get() + 1);
        tracing::error!(partition = self.layout.partition, offset, what, "a record cannot be read");
        Error::Unreadable(format!("{what}, partition {}, device offset {offset}", self.layout.partition))
    }

    /// Waits until every write of a key that came before has its place in the log. Whoever queues up
    /// behind is concurrent: waiting for those too could go on for ever.
    async fn turn(&self, container: ContainerId, key: &[u8]) -> Place {
        let place = self.place(container, key);
        if !self.locks.is_free(place.slot.0, place.fingerprint) {
            drop(self.lock(&place).await);
        }
        self.place(container, key)
    }

    /// The frame that holds the last write of a key, or of its container, while it is not durable.
    pub(crate) fn pending_frame(&self, place: &Place) -> Option<u64> {
        let of_key = self.log.pending_frame(place.slot.0, place.fingerprint);
        of_key.max(self.log.pending_frame(0, u64::from(place.container.0)))
    }

    /// Waits until the last write of a key is durable: what was just read of it may be told then.
    pub(crate) async fn settle(&self, place: &Place) -> Result<()> {
        match self.pending_frame(place) {
            Some(frame) if !is_planted(Bug::DirtyRead) => self.log.wait_durable(frame).await,
            _ => Ok(()),
        }
    }

    /// The record of a key that is live when this begins: of two reads of which one began first, the second
    /// never sees a key that had expired for the first, whichever ends first.
    /// What a value in parts was made of when this began stays until the look is dropped.
    async fn look_up(
        self: &Rc<Self>,
        container: ContainerId,
        key: &[u8],
        extent: Extent,
        from: ReadFrom,
    ) -> Result<(Found, Look)> {
        let since_ms = self.now_ms();
        loop {
            let place = self.turn(container, key).await;
            let look = Look::new(self);
            let found = match self.find(&place, key, extent, from).await? {
                Lookup::Moved => continue,
                Lookup::Absent => Err(Error::NotFound),
                Lookup::Found(found) if found.is_expired(since_ms) => {
                    drop(look);
                    if !self.expire(&place, key).await? {
                        continue;
                    }
                    Err(Error::NotFound)
                }
                Lookup::Found(found) => {
                    self.state.borrow().segments.marks.set(found.entry.location);
                    Ok((found, look))
                }
            };
            self.settle(&place).await?;
            return found;
        }
    }

    /// The record of an entry of the index; if it went or moved before it was read, the records of all
    /// that have its fingerprint, so that none is missed. Nothing is read that is not current: its
    /// segment may have been given back.
    pub(crate) async fn read_entry(&self, slot: Slot, entry: Entry) -> Vec<(Entry, Result<Found>)> {
        let is_current =
            |entry: &Entry| self.state.borrow().index.contains(slot, entry.fingerprint, entry.location);
        let mut entries = vec![entry];
        'moved: loop {
            let mut records = Vec::new();
            for entry in &entries {
                let read = if is_current(entry) {
                    Some(self.read_record(*entry, Extent::Head, ReadFrom::Flash).await)
                } else {
                    None
                };
                match read {
                    Some(Ok(found)) => records.push((*entry, Ok(found))),
                    // An error says something only of what is still there.
                    Some(Err(error)) if is_current(entry) => records.push((*entry, Err(error))),
                    _ => {
                        entries = self.state.borrow().index.find(slot, entry.fingerprint).collect();
                        continue 'moved;
                    }
                }
            }
            return records;
        }
    }

    pub(crate) fn manifest(&self, found: &Found) -> Result<Manifest> {
        let value = self.value(found)?;
        let unreadable = |what: &str| self.unreadable(found.entry.location, what);
        let manifest = Manifest::decode(value).map_err(|error| unreadable(&error.to_string()))?;
        if manifest.part_bytes != self.layout.part_bytes() {
            return Err(unreadable("a value in parts of another size"));
        }
        Ok(manifest)
    }

    pub(crate) fn item(&self, found: &Found, bytes: Vec<u8>) -> Result<Item> {
        let mut item = Item {
            version: found.header.version,
            length: u64::from(found.header.value_bytes),
            expiry_ms: (found.expiry_ms != 0).then_some(found.expiry_ms),
            bytes,
            stored_bytes: u64::from(found.entry.length) * UNIT_BYTES,
            upload: None,
        };
        if found.header.kind == RecordKind::Manifest {
            let manifest = self.manifest(found)?;
            item.length = manifest.length;
            item.upload = Some(UploadId(manifest.upload));
            if let Some(upload) = self.state.borrow().uploads.get(&manifest.upload) {
                item.stored_bytes +=
                    upload.parts.values().map(|(_, length)| u64::from(*length) * UNIT_BYTES).sum::<u64>();
            }
        }
        if found.header.kind == RecordKind::Keeper {
            item.length = self.keeper(found)?.length();
        }
        Ok(item)
    }

    pub(crate) async fn retrieve(
        self: &Rc<Self>,
        container: ContainerId,
        key: &[u8],
        range: Option<(u64, u64)>,
        pin: bool,
        from: ReadFrom,
    ) -> Result<Output> {
        loop {
            let (found, _look) = self.look_up(container, key, Extent::of_range(key, range), from).await?;
            if let Some(output) = self.output_of(&found, range, pin).await? {
                return Ok(output);
            }
        }
    }

    /// What a read of a record gives; nothing if something of it moved or went while it was read: look again.
    pub(crate) async fn output_of(
        &self,
        found: &Found,
        range: Option<(u64, u64)>,
        pin: bool,
    ) -> Result<Option<Output>> {
        match found.header.kind {
            RecordKind::Keeper => self.kept_output(found, range).await,
            _ => self.found_output(found, range, pin),
        }
    }

    /// What a keeper record holds.
    fn keeper<'a>(&self, found: &'a Found) -> Result<Keeper<'a>> {
        let unreadable = |error: DecodeError| self.unreadable(found.entry.location, &error.to_string());
        Keeper::decode(self.value(found)?).map_err(unreadable)
    }

    /// What a read of a keeper record gives, and of what is kept below it, as far as that is asked for;
    /// nothing if either moved or went meanwhile: look again.
    async fn kept_output(&self, found: &Found, range: Option<(u64, u64)>) -> Result<Option<Output>> {
        let keeper = self.keeper(found)?;
        let (first, count) = range.unwrap_or((0, u64::MAX));
        let (first, end) = (first.min(keeper.length()), first.saturating_add(count).min(keeper.length()));
        let mut bytes = keeper.head.to_vec();
        if end > bytes.len() as u64 {
            let below = || self.state.borrow().kept.below(found.entry.location).copied();
            let Some(kept) = below() else {
                let slot = Slot(found.header.slot);
                let state = self.state.borrow();
                let is_current = state.index.contains(slot, found.entry.fingerprint, found.entry.location);
                drop(state);
                let nothing = || self.unreadable(found.entry.location, "nothing is kept below it");
                return if is_current { Err(nothing()) } else { Ok(None) };
            };
            let KeptRecord { fingerprint, location, length, .. } = kept;
            let read = self
                .read_record(Entry { fingerprint, location, length }, Extent::Whole, ReadFrom::Flash)
                .await;
            if below() != Some(kept) {
                return Ok(None);
            }
            let read = read?;
            let value = self.value(&read)?;
            if value.len() != keeper.kept_bytes as usize {
                return Err(self.unreadable(location, "another value than the one that is kept"));
            }
            bytes.extend_from_slice(value);
        }
        bytes.truncate(end as usize);
        bytes.drain(..(first as usize).min(bytes.len()));
        Ok(Some(Output::Found(self.item(found, bytes)?)))
    }

    /// What a read of a record gives; nothing if its parts went while it was read: look again.
    fn found_output(&self, found: &Found, range: Option<(u64, u64)>, pin: bool) -> Result<Option<Output>> {
        if found.header.kind == RecordKind::Manifest {
            let upload = self.manifest(found)?.upload;
            if pin {
                // The parts may have been doomed and ended while the manifest was read.
                if self.pin(UploadId(upload)).is_err() {
                    return Ok(None);
                }
            }
            return Ok(Some(Output::Found(self.item(found, Vec::new())?)));
        }
        let length = u64::from(found.header.value_bytes);
        let bytes = match range {
            None => self.value(found)?.to_vec(),
            Some((_, 0)) => Vec::new(),
            Some((first, count)) => {
                let end = first.saturating_add(count).min(length);
                self.ranged(found, first.min(end) as usize, end as usize)?
            }
        };
        Ok(Some(Output::Found(self.item(found, bytes)?)))
    }

    /// A range of a value, of which only the checksum spans that it touches are proved.
    fn ranged(&self, found: &Found, first: usize, end: usize) -> Result<Vec<u8>> {
        if first == end {
            return Ok(Vec::new());
        }
        let span = first / CHECKSUM_SPAN_BYTES;
        let from = span * CHECKSUM_SPAN_BYTES;
        let to = end.next_multiple_of(CHECKSUM_SPAN_BYTES).min(found.header.value_bytes as usize);
        let head = found.header.head_bytes();
        let spans = &found.bytes[head + from..head + to];
        let proved = verify_spans(&found.bytes, &found.header, span, spans);
        proved.map_err(|error| self.unreadable(found.entry.location, &error.to_string()))?;
        Ok(spans[first - from..end - from].to_vec())
    }

    /// Keeps the parts of an upload, if it is there.
    pub(crate) fn pin(&self, upload: UploadId) -> Result<Output> {
        if !self.state.borrow().uploads.contains_key(&upload.0) {
            return Err(Error::Invalid("no such upload"));
        }
        *self.pins.borrow_mut().entry(upload.0).or_default() += 1;
        Ok(Output::Done)
    }

    pub(crate) fn unpin(&self, upload: UploadId) -> Result<Output> {
        let mut pins = self.pins.borrow_mut();
        let Some(count) = pins.get_mut(&upload.0) else { return Err(Error::Invalid("no such pin")) };
        *count -= 1;
        if *count == 0 {
            pins.remove(&upload.0);
            self.background.ring();
        }
        Ok(Output::Done)
    }

    pub(crate) async fn exist(
        self: &Rc<Self>,
        container: ContainerId,
        key: &[u8],
        from: ReadFrom,
    ) -> Result<Output> {
        let (found, _) = self.look_up(container, key, Extent::Head, from).await?;
        Ok(Output::Found(self.item(&found, Vec::new())?))
    }

    pub(crate) fn stats(&self, container: ContainerId) -> Stats {
        let counters = self.state.borrow().counters(container);
        Stats { keys: counters.keys, expiring_keys: counters.expiring, bytes: counters.units * UNIT_BYTES }
    }
}
