//! Values in parts, uploaded, changed and read by calls: what a session does, with what only a caller can do.
//!
//! Invariant: an upload that is not stored is given up, and a pin that was taken too.

use super::{Caller, condition, container, expiry, store};
use crate::checker::{self, Input, ValueId};
use crate::fuzz::workload::Key;
use plimsoll_kv::{Condition, Durability, Error, Expiry, Form, Item, Op, Output, Retrieved, UploadId, Value};

impl Caller {
    /// Uploads a value part by part.
    async fn upload(
        &self,
        key: &Key,
        (bytes, form): (&[u8], Option<Form>),
        parts: usize,
    ) -> Result<UploadId, Error> {
        let (container, name) = (container(key), key.name.1.clone());
        let begin = Op::UploadBegin {
            container,
            key: name.clone(),
            length: bytes.len() as u64,
            shared_bytes: 0,
            form,
        };
        let Output::Upload(upload) = self.call(Durability::Sync, begin).await? else {
            return Err(Error::Unsupported("an upload was begun and has no number"));
        };
        for part in bytes.chunks(self.device.part_bytes()).take(parts) {
            let op = Op::UploadPart { upload, key: name.clone(), bytes: part.to_vec() };
            if let Err(error) = self.call(Durability::Sync, op).await {
                let abort = Op::UploadAbort { upload, key: name };
                drop(self.call(Durability::Sync, abort).await);
                return Err(error);
            }
        }
        Ok(upload)
    }

    /// Sets a key to a value in parts.
    pub(super) async fn set_long(
        &self,
        key: &Key,
        length: usize,
        when: checker::Condition,
        until: checker::Expiry,
    ) {
        let (value, bytes) = self.new_value(key, length);
        let input = Input::Set { value, condition: when, expiry: until, get_old: false };
        let asked = self.begin(key, input);
        let upload = match self.upload(key, (&bytes, self.shape.wish(value)), usize::MAX).await {
            Ok(upload) => upload,
            Err(error) => return self.failed(&asked, Some(&error), true),
        };
        let op = store(key, Value::Upload(upload), condition(when), expiry(until), false);
        let called = self.call(self.shape.durability(key.number), op).await;
        if called.is_err() {
            let abort = Op::UploadAbort { upload, key: key.name.1.clone() };
            drop(self.call(Durability::Sync, abort).await);
        }
        self.stored(key, &asked, value, Some(called), false);
    }

    /// Uploads a part or two of a value and gives it up.
    pub(super) async fn abandon(&self, key: &Key, length: usize) {
        let asked = self.journal.watch(|| format!("client {} abandons an upload", self.client));
        let bytes = vec![7; length.max(1)];
        match self.upload(key, (&bytes, None), 2).await {
            Ok(upload) => {
                let op = Op::UploadAbort { upload, key: key.name.1.clone() };
                match self.call(Durability::Sync, op).await {
                    Ok(_) => self.journal.withdraw(&asked, "done"),
                    Err(error) => self.failed(&asked, Some(&error), false),
                }
            }
            Err(error) => self.failed(&asked, Some(&error), true),
        }
    }

    /// Reads a pinned value part by part, and gives up the pin.
    pub(super) async fn read_parts(&self, key: &Key, item: Item) -> Result<Retrieved, Error> {
        let read = self.read_pinned(key, &item).await;
        self.unpin(key, &item).await?;
        Ok(Retrieved { value: read?.into(), item })
    }

    async fn unpin(&self, key: &Key, item: &Item) -> Result<Output, Error> {
        let upload = item.upload.expect("asked for a value in parts");
        self.call(Durability::Sync, Op::Unpin { upload, key: key.name.1.clone() }).await
    }

    /// Reads a pinned value part by part, some parts in two pieces.
    async fn read_pinned(&self, key: &Key, item: &Item) -> Result<Vec<u8>, Error> {
        let upload = item.upload.expect("asked for a value in parts");
        let part_bytes = self.device.part_bytes() as u64;
        let mut bytes = Vec::new();
        for part in 0..item.length.div_ceil(part_bytes) as u32 {
            let cut = self.workload.borrow_mut().random.below(2 * part_bytes);
            let ranges =
                if cut < part_bytes { vec![Some((0, cut)), Some((cut, part_bytes))] } else { vec![None] };
            for range in ranges {
                let op = Op::RetrievePart { upload, key: key.name.1.clone(), part, range };
                match self.call(Durability::Sync, op).await {
                    Ok(Output::Found(piece)) => bytes.extend_from_slice(&piece.bytes),
                    Err(Error::NotFound) => {
                        let text = format!("part {part} of a pinned value of {} bytes is gone", item.length);
                        return Err(Error::Unreadable(text));
                    }
                    Err(error) => return Err(error),
                    Ok(_) => return Err(Error::Unsupported("a part gave something else")),
                }
            }
        }
        Ok(bytes)
    }

    /// Changes some parts of a long value, of which the others are shared, and perhaps its length.
    pub(super) async fn change(&self, key: &Key, length: usize) {
        let read = Op::retrieve_whole(container(key), &key.name.1);
        let item = match self.call(Durability::Sync, read).await {
            Ok(Output::Found(item)) if item.upload.is_some() => item,
            _ => {
                return self
                    .set_long(key, length, checker::Condition::Always, checker::Expiry::Discard)
                    .await;
            }
        };
        let looked = self.journal.events();
        let read = self.read_pinned(key, &item).await;
        let base = read.map(|bytes| self.journal.values.borrow().read(&key.name, &bytes, 0, true));
        match base {
            Ok(Ok(base)) => self.change_pinned(key, (&item, looked), base, length).await,
            Ok(Err(text)) => self.journal.violate("values", format!("a value to be changed: {text}")),
            Err(_) => {}
        }
        // The pin stood until the new value was stored, or until a moment before.
        let _ = self.unpin(key, &item).await;
    }

    async fn change_pinned(&self, key: &Key, (item, looked): (&Item, u64), base: ValueId, length: usize) {
        let part_bytes = self.device.part_bytes();
        let old = item.length as usize;
        let (length, changed) = {
            let mut workload = self.workload.borrow_mut();
            // Longer, or as long: as what appends and what overwrites.
            let length = if workload.random.chance_ppm(500_000) { length.max(old) } else { old };
            let parts = length.div_ceil(part_bytes) as u64;
            let first = workload.random.below(parts.max(2) - 1) as usize;
            let end = (first + 1 + workload.random.below(2) as usize) * part_bytes;
            (length, first * part_bytes..end.min(length))
        };
        let (value, bytes) = self.journal.values.borrow_mut().change(&key.name, base, &changed, length);
        let asked = self.begin(key, Input::set(value.0));
        let alike = |part: usize| {
            let (start, end) = (part * part_bytes, length.min((part + 1) * part_bytes));
            end == old.min((part + 1) * part_bytes) && (end <= changed.start || start >= changed.end)
        };
        let upload = match self.upload_changed(key, item, (&bytes, self.shape.wish(value)), alike).await {
            Ok(upload) => upload,
            Err(error) => return self.failed(&asked, Some(&error), true),
        };
        let condition = Condition::IfVersion(item.version);
        let op = store(key, Value::Upload(upload), condition, Expiry::Never, false);
        let called = self.call(self.shape.durability(key.number), op).await;
        if called.is_err() {
            let abort = Op::UploadAbort { upload, key: key.name.1.clone() };
            drop(self.call(Durability::Sync, abort).await);
        }
        self.swapped(key, &asked, ((item.version, looked), value), Some(called));
    }

    /// Uploads a value of which some parts are alike in a pinned one.
    async fn upload_changed(
        &self,
        key: &Key,
        item: &Item,
        (bytes, form): (&[u8], Option<Form>),
        alike: impl Fn(usize) -> bool,
    ) -> Result<UploadId, Error> {
        let (container, name) = (container(key), key.name.1.clone());
        let length = bytes.len() as u64;
        let begin = Op::UploadBegin { container, key: name.clone(), length, shared_bytes: length, form };
        let Output::Upload(upload) = self.call(Durability::Sync, begin).await? else {
            return Err(Error::Unsupported("an upload was begun and has no number"));
        };
        for (part, bytes) in bytes.chunks(self.device.part_bytes()).enumerate() {
            let (key, from) = (name.clone(), item.upload.expect("a value in parts"));
            let op = if alike(part) {
                Op::UploadShare { upload, key, from, parts: 1 }
            } else {
                Op::UploadPart { upload, key, bytes: bytes.to_vec() }
            };
            if let Err(error) = self.call(Durability::Sync, op).await {
                let abort = Op::UploadAbort { upload, key: name };
                drop(self.call(Durability::Sync, abort).await);
                return Err(error);
            }
        }
        Ok(upload)
    }
}
