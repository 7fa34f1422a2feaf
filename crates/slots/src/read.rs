//! Reads.
//!
//! Invariants: nothing is told but what the object says of itself under its checksum, if its key, generation
//! and sequence are those that memory has; a key that somebody writes is read after that.
//!
//! Never: it changes anything on the drive.

use crate::drive::DriveError;
use crate::hosts::KeyOf;
use crate::index::{At, Body, Live};
use crate::object::{Head, Kind, RECORD_BYTES};
use crate::parts::{Part, Parts};
use crate::slots::Slots;
use plimsoll_kv::key_locks::KeyGuard;
use plimsoll_kv::{ContainerId, Error, Item, ListPage, Output, Result, ScanPage, UploadId};

/// A range of a value: its first byte, and how many.
type Range = Option<(u64, u64)>;

/// As much of a range as there is.
fn cut(bytes: &[u8], range: Range) -> Vec<u8> {
    let (first, count) = range.unwrap_or((0, u64::MAX));
    let first = first.min(bytes.len() as u64);
    let end = first.saturating_add(count).min(bytes.len() as u64);
    bytes[first as usize..end as usize].to_vec()
}

impl Slots {
    /// Refuses a key of which an object cannot be read: it might hold anything.
    pub(crate) fn check_whole(&self, container: ContainerId, generation: u32, key: &[u8]) -> Result<()> {
        // Borrowed by some callers already, but never changed by them meanwhile.
        let state = self.state.borrow();
        if state.damaged.is_empty() {
            return Ok(());
        }
        for slot in 0..2 {
            let place = self.names.slot(container, generation, key, slot);
            if state.damaged.contains(&place) {
                return Err(Error::Unreadable(format!("the head of object {place}")));
            }
        }
        Ok(())
    }

    /// Waits while somebody writes a key; what is returned is held.
    async fn settled(&self, container: ContainerId, key: &[u8]) -> Option<KeyGuard> {
        let (slot, fingerprint) = Slots::lock_id(container, key);
        if self.locks.is_free(slot, fingerprint) {
            return None;
        }
        Some(self.lock_key(container, key).await)
    }

    /// The newest record of a key that has not expired.
    fn live(&self, container: ContainerId, key: &[u8], now_ms: u64) -> Result<(KeyOf, Live)> {
        let state = self.state.borrow();
        self.check_whole(container, state.generation(container), key)?;
        let entry = state.entry(container, key).ok_or(Error::NotFound)?;
        let Some(live) = entry.live(now_ms) else {
            if entry.live(0).is_some() {
                self.keeper.tidy(container, key);
            }
            return Err(Error::NotFound);
        };
        Ok((state.key_of(container, key), live.clone()))
    }

    pub(crate) async fn exist(&self, container: ContainerId, key: &[u8]) -> Result<Item> {
        let _guard = self.settled(container, key).await;
        Ok(self.live(container, key, self.clock.now_ms())?.1.item(key))
    }

    pub(crate) async fn retrieve(
        &self,
        container: ContainerId,
        key: &[u8],
        range: Range,
        pin: bool,
    ) -> Result<Output> {
        let mut guard = self.settled(container, key).await;
        loop {
            let (of, live) = self.live(container, key, self.clock.now_ms())?;
            match self.read_live(&of, &live, range, pin).await? {
                Some(item) => return Ok(Output::Found(item)),
                None if guard.is_some() => return Err(self.misplaced(&of, &live)),
                // Somebody wrote it meanwhile.
                None => guard = Some(self.lock_key(container, key).await),
            }
        }
    }

    /// Reads a key as it is, whoever holds it.
    pub(crate) async fn retrieve_aside(
        &self,
        (container, key): (ContainerId, &[u8]),
        range: Range,
        pin: bool,
    ) -> Result<Output> {
        loop {
            let (of, live) = self.live(container, key, self.clock.now_ms())?;
            if let Some(item) = self.read_live(&of, &live, range, pin).await? {
                return Ok(Output::Found(item));
            }
            let (now_of, now_live) = self.live(container, key, self.clock.now_ms())?;
            if now_of == of && now_live.sequence == live.sequence {
                return Err(self.misplaced(&of, &live));
            }
        }
    }

    /// Reads a key that a transaction holds.
    pub(crate) async fn retrieve_kept(
        &self,
        (container, key): (ContainerId, &[u8]),
        range: Range,
        pin: bool,
        since_ms: u64,
    ) -> Result<Output> {
        let (of, live) = self.live(container, key, since_ms)?;
        let item = self.read_live(&of, &live, range, pin).await?;
        item.map(Output::Found).ok_or_else(|| self.misplaced(&of, &live))
    }

    fn misplaced(&self, of: &KeyOf, live: &Live) -> Error {
        let At::Slot(slot) = live.at else {
            return Error::Unreadable("a record in memory is gone".to_owned());
        };
        Error::Unreadable(format!("object {} is not what was stored there", self.place(of, slot)))
    }

    /// What a record holds; nothing if it is not there any more.
    async fn read_live(&self, of: &KeyOf, live: &Live, range: Range, pin: bool) -> Result<Option<Item>> {
        let mut item = live.item(&of.2);
        match &live.body {
            Body::Whole if matches!(range, Some((_, 0))) => {}
            Body::Whole => match self.read_whole(of, live).await? {
                Some(bytes) => item.bytes = cut(&bytes, range),
                None => return Ok(None),
            },
            Body::Parts(parts) => {
                if pin {
                    self.state.borrow_mut().uploads.pin(parts);
                }
                if let Some((first, count)) = range {
                    match self.read_parts(parts, first, count).await {
                        Ok(bytes) => item.bytes = bytes,
                        Err(error) => {
                            if pin {
                                self.unpin(parts.upload)?;
                            }
                            return Err(error);
                        }
                    }
                }
            }
            Body::Gone => return Ok(None),
        }
        Ok(Some(item))
    }

    /// The bytes of a whole value; nothing if its object is another by now.
    async fn read_whole(&self, of: &KeyOf, live: &Live) -> Result<Option<Vec<u8>>> {
        let slot = match live.at {
            At::Slot(slot) => slot,
            At::Rider(host) => {
                let encoded = self.state.borrow().hosts.get(host, of);
                return Ok(encoded.map(|encoded| encoded[RECORD_BYTES + of.2.len()..].to_vec()));
            }
        };
        let place = self.place(of, slot);
        let object = match self.drive.retrieve(place, 0, self.drive.value_bytes_max()).await {
            Ok(retrieved) => retrieved.bytes,
            Err(DriveError::KeyNotFound) => return Ok(None),
            Err(error) => return Err(Error::Unreadable(format!("object {place}: {error}"))),
        };
        let damage = |damage| Error::Unreadable(format!("object {place}: {damage}"));
        let head = Head::decode(&object).map_err(damage)?;
        let record = &head.record;
        if (record.container, record.generation, &record.key[..]) != (of.0, of.1, &of.2[..]) {
            return Err(Error::Unreadable(format!("object {place} is of another key")));
        }
        if record.sequence != live.sequence || record.kind != Kind::Value {
            return Ok(None);
        }
        let value = head.value(&object).map_err(damage)?;
        assert_eq!(value.len() as u64, live.length, "a record's length does not change");
        Ok(Some(value.to_vec()))
    }

    /// The bytes of a whole value of a key that is held.
    pub(crate) async fn read_held(&self, of: &KeyOf, live: &Live) -> Result<Vec<u8>> {
        self.read_whole(of, live).await?.ok_or_else(|| self.misplaced(of, live))
    }

    /// The bytes of what a key holds now. The key is held.
    pub(crate) async fn read_current(&self, container: ContainerId, key: &[u8]) -> Result<Vec<u8>> {
        let (of, live) = {
            let state = self.state.borrow();
            let entry = state.entry(container, key).ok_or(Error::NotFound)?;
            (state.key_of(container, key), entry.current.clone().ok_or(Error::NotFound)?)
        };
        self.read_held(&of, &live).await
    }

    /// A range of a value in parts.
    async fn read_parts(&self, parts: &Parts, first: u64, count: u64) -> Result<Vec<u8>> {
        let end = first.saturating_add(count).min(parts.length);
        let part_bytes = u64::from(self.superblock.borrow().part_bytes);
        let mut bytes = Vec::new();
        let mut at = first.min(end);
        while at < end {
            let part = &parts.parts[(at / part_bytes) as usize];
            let whole = self.read_part(part).await?;
            let within = at % part_bytes;
            bytes.extend(cut(&whole, Some((within, end - at))));
            at = at - within + part_bytes;
        }
        Ok(bytes)
    }

    /// A part, whole.
    async fn read_part(&self, part: &Part) -> Result<Vec<u8>> {
        let place = part.key;
        let damage = |damage: &dyn std::fmt::Display| Error::Unreadable(format!("object {place}: {damage}"));
        let retrieved = self.drive.retrieve(place, 0, self.drive.value_bytes_max()).await;
        let object = retrieved.map_err(|error| damage(&error))?.bytes;
        let head = Head::decode(&object).map_err(|error| damage(&error))?;
        if head.record.kind != Kind::Part || head.record.key != Part::name(part.upload, part.number) {
            return Err(damage(&"it is another part"));
        }
        Ok(head.value(&object).map_err(|error| damage(&error))?.to_vec())
    }

    pub(crate) async fn retrieve_part(&self, upload: UploadId, number: u32, range: Range) -> Result<Output> {
        let (part, length) = {
            let state = self.state.borrow();
            let pinned = state.uploads.pins.get(&upload).map(|(parts, _)| (&parts.parts, parts.length));
            let begun = state.uploads.pending.get(&upload).map(|pending| (&pending.parts, pending.length));
            let (parts, length) = pinned.or(begun).ok_or(Error::Invalid("no such pin"))?;
            (parts.get(number as usize).ok_or(Error::Invalid("no such part"))?.clone(), length)
        };
        let bytes = cut(&self.read_part(&part).await?, range);
        Ok(Output::Found(Item { length, bytes, ..Item::default() }))
    }

    pub(crate) fn list(
        &self,
        container: ContainerId,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> ListPage {
        let (mut page, now_ms) = (ListPage::default(), self.clock.now_ms());
        let state = self.state.borrow();
        let Some(container) = state.containers.get(&container) else { return page };
        for (key, entry) in container.after(after, prefix) {
            if !key.starts_with(prefix) {
                break;
            }
            if entry.live(now_ms).is_none() {
                continue;
            }
            if page.keys.len() == limit {
                page.more = true;
                break;
            }
            page.keys.push(key.to_vec());
        }
        page
    }

    pub(crate) fn scan(&self, container: ContainerId, cursor: u64, limit: usize) -> ScanPage {
        let (mut page, now_ms) = (ScanPage::default(), self.clock.now_ms());
        let state = self.state.borrow();
        page.lacks_some = !state.damaged.is_empty();
        let Some(container) = state.containers.get(&container) else { return page };
        let (mut looked_at, mut last) = (0, None);
        for (position, key) in container.scan(cursor) {
            // Keys of one position cannot be told apart by a cursor: they share a page.
            if looked_at >= limit && last != Some(position) {
                page.cursor = position;
                break;
            }
            (looked_at, last) = (looked_at + 1, Some(position));
            if container.get(key).is_some_and(|entry| entry.live(now_ms).is_some()) {
                page.keys.push(key.to_vec());
            }
        }
        page
    }
}
