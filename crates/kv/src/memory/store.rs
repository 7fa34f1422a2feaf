//! Reads and writes of the memory device.
//!
//! Invariants: a condition is decided against what is there at that instant, and the write follows
//! in the same instant; a batch that fails leaves every key as it was.

use super::container::{Container, Current, Entry, Stored};
use super::{MemoryOptions, State};
use crate::completion::{Deleted, Item, ListPage, Output, ScanPage, Stats};
use crate::edit::Edit;
use crate::error::{Error, Result};
use crate::limits::KEPT_HEAD_BYTES_MAX;
use crate::request::{Condition, ContainerId, Expiry, Kept, Op, Value};
use crate::version::Version;

/// The key is there, and only its current version.
const NOTHING_RETAINED: Error = Error::Invalid("no version is retained");

impl State {
    fn is_live(&self, entry: &Entry) -> bool {
        entry.current.expiry_ms.is_none_or(|at_ms| at_ms > self.wall_ms)
    }

    /// The entry of a key that has not expired.
    fn live(&self, container: ContainerId, key: &[u8]) -> Option<&Entry> {
        let entry = self.containers.get(&container)?.get(key)?;
        self.is_live(entry).then_some(entry)
    }

    fn set(&mut self, container: ContainerId, key: &[u8], entry: Option<Entry>) {
        let change = self.containers.entry(container).or_default().set(key, entry);
        self.used_bytes = self.used_bytes.saturating_add_signed(change);
    }

    pub(super) fn next_version(&mut self) -> Version {
        self.version = self.version.next(self.wall_ms);
        self.version
    }

    fn check(&self, container: ContainerId, key: &[u8], condition: Condition) -> Result<()> {
        let current = self.live(container, key).map(|entry| entry.current.version);
        match (condition, current) {
            (Condition::None, _) | (Condition::MustNotExist, None) | (Condition::MustExist, Some(_)) => {
                Ok(())
            }
            (Condition::MustNotExist, Some(_)) => Err(Error::Exists),
            (Condition::MustExist | Condition::IfVersion(_), None) => Err(Error::NotFound),
            (Condition::IfVersion(wanted), Some(version)) if wanted == version => Ok(()),
            (Condition::IfVersion(_), Some(_)) => Err(Error::VersionMismatch),
        }
    }

    /// A store, delete or change of expiry.
    pub(super) fn write(&mut self, op: Op, options: &MemoryOptions) -> Result<Output> {
        match op {
            Op::Store { container, key, value: Value::Edit(edit), condition, expiry, retain, .. } => {
                self.check(container, &key, condition)?;
                let bytes = self.edited(container, &key, &edit, options)?;
                let stored = self.stored(&key, Value::from(bytes.clone()), options)?;
                match self.store(container, &key, stored, expiry, (retain, false)) {
                    Output::Stored { version, .. } => Ok(Output::Edited { version, bytes }),
                    _ => unreachable!("a store gives what it stored"),
                }
            }
            Op::Store { container, key, value, condition, expiry, retain, want_previous, .. } => {
                self.check(container, &key, condition)?;
                if let Value::Kept(kept) = &value {
                    if retain {
                        return Err(Error::Invalid("what is kept under another key retains nothing"));
                    }
                    if self.live(kept.container, &kept.key).is_none() {
                        return Ok(Output::Done);
                    }
                }
                let stored = self.stored(&key, value, options)?;
                Ok(self.store(container, &key, stored, expiry, (retain, want_previous)))
            }
            Op::Delete { container, key, condition } => {
                self.check(container, &key, condition)?;
                let entry = self.live(container, &key).ok_or(Error::NotFound)?;
                let version = entry.current.item(&key).version;
                self.set(container, &key, None);
                Ok(Output::Deleted(Deleted::Version(version)))
            }
            Op::SetExpiry { container, key, expiry, condition } => {
                self.check(container, &key, condition)?;
                let mut entry = self.live(container, &key).ok_or(Error::NotFound)?.clone();
                entry.current.version = self.next_version();
                entry.current.expiry_ms = expiry_ms(expiry, Some(&entry));
                let item = entry.current.item(&key);
                self.set(container, &key, Some(entry));
                Ok(Output::ExpirySet(item))
            }
            _ => Err(Error::Invalid("a batch holds stores, deletes and changes of expiry")),
        }
    }

    /// What an edit makes of a key's value.
    fn edited(
        &self,
        container: ContainerId,
        key: &[u8],
        edit: &Edit,
        options: &MemoryOptions,
    ) -> Result<Vec<u8>> {
        let old = match self.live(container, key).map(|entry| &entry.current.stored) {
            Some(Stored::Parts(..)) => return Err(Error::ValueTooLong),
            Some(Stored::Whole(bytes)) => Some(bytes.as_ref()),
            None => None,
        };
        if edit.bytes_max(old.map_or(0, |old| old.len() as u64)) > options.value_bytes_max as u64 {
            return Err(Error::ValueTooLong);
        }
        Ok(edit.apply(old)?)
    }

    fn stored(&mut self, key: &[u8], value: Value, options: &MemoryOptions) -> Result<Stored> {
        match value {
            Value::Bytes(bytes) => {
                if bytes.len() > options.value_bytes_max {
                    return Err(Error::ValueTooLong);
                }
                let bytes_needed = (key.len() + bytes.len()) as u64;
                if self.used_bytes.saturating_add(bytes_needed) > options.capacity_bytes {
                    return Err(Error::NoSpace);
                }
                Ok(Stored::Whole(bytes.parts().concat().into()))
            }
            Value::Upload(upload) => Ok(Stored::Parts(upload, self.upload_take(upload, key)?)),
            Value::Edit(_) => unreachable!("an edit is stored as the bytes that it gives"),
            Value::Kept(kept) => {
                let bytes = [&kept.head[..], self.kept_bytes(&kept)?].concat();
                self.stored(key, Value::from(bytes), options)
            }
        }
    }

    /// What is behind the head of a value that another key holds.
    fn kept_bytes(&self, Kept { head, bytes: told, container, key }: &Kept) -> Result<&[u8]> {
        if head.len() > KEPT_HEAD_BYTES_MAX {
            return Err(Error::Invalid("a long head of a value that is kept"));
        }
        match &self.live(*container, key).ok_or(Error::NotFound)?.current.stored {
            Stored::Whole(bytes) if told.is_some_and(|told| told != bytes.len() as u64) => {
                Err(Error::Invalid("what is to be kept has another length"))
            }
            Stored::Whole(bytes) => Ok(bytes),
            Stored::Parts(..) => Err(Error::ValueTooLong),
        }
    }

    fn store(
        &mut self,
        container: ContainerId,
        key: &[u8],
        stored: Stored,
        expiry: Expiry,
        (retain, want_previous): (bool, bool),
    ) -> Output {
        let before = self.live(container, key).cloned();
        let version = self.next_version();
        let current = Current { version, expiry_ms: expiry_ms(expiry, before.as_ref()), stored };
        let previous = before.as_ref().filter(|_| want_previous).map(|entry| {
            let mut item = entry.current.item(key);
            if let Stored::Whole(bytes) = &entry.current.stored {
                item.bytes = bytes.to_vec();
            }
            item
        });
        let retained = before.filter(|_| retain).map(|entry| Box::new(entry.current));
        self.set(container, key, Some(Entry { current, retained }));
        Output::Stored { version, previous }
    }

    pub(super) fn batch(&mut self, ops: Vec<Op>, options: &MemoryOptions) -> Result<Output> {
        let mut before: Vec<(ContainerId, Vec<u8>, Option<Entry>)> = Vec::with_capacity(ops.len());
        let mut taken = Vec::new();
        let mut outputs = vec![Output::Done; ops.len()];
        let mut ops: Vec<(usize, Op)> = ops.into_iter().enumerate().collect();
        // What is kept of a key is what it held before the batch.
        ops.sort_by_key(|(_, op)| op.kept().is_none());
        for (number, op) in ops {
            let (container, key, upload) = match &op {
                Op::Store { container, key, value, .. } => {
                    let upload = if let Value::Upload(upload) = value { Some(*upload) } else { None };
                    (*container, key.clone(), upload)
                }
                Op::Delete { container, key, .. } | Op::SetExpiry { container, key, .. } => {
                    (*container, key.clone(), None)
                }
                _ => (ContainerId(0), Vec::new(), None),
            };
            let kept = self.containers.get(&container).and_then(|c| c.get(&key)).cloned();
            before.push((container, key.clone(), kept));
            match self.write(op, options) {
                Ok(output) => {
                    taken.extend(upload.map(|upload| (upload, container, key)));
                    outputs[number] = output;
                }
                Err(error) => {
                    self.undo(before, taken);
                    return Err(error);
                }
            }
        }
        Ok(Output::Batch(outputs))
    }

    fn undo(
        &mut self,
        before: Vec<(ContainerId, Vec<u8>, Option<Entry>)>,
        taken: Vec<(crate::UploadId, ContainerId, Vec<u8>)>,
    ) {
        let mut uploads = Vec::new();
        for (upload, container, key) in taken {
            let entry = self.containers.get(&container).and_then(|c| c.get(&key));
            if let Some(Stored::Parts(stored, parts)) = entry.map(|entry| &entry.current.stored)
                && *stored == upload
            {
                uploads.push((upload, key, parts.clone()));
            }
        }
        for (container, key, entry) in before.into_iter().rev() {
            self.set(container, &key, entry);
        }
        for (upload, key, parts) in uploads {
            self.upload_put_back(upload, &key, parts);
        }
    }

    pub(super) fn retrieve(
        &mut self,
        container: ContainerId,
        key: &[u8],
        range: Option<(u64, u64)>,
        pin: bool,
    ) -> Result<Output> {
        let entry = self.live(container, key).ok_or(Error::NotFound)?;
        let mut item = entry.current.item(key);
        let stored = entry.current.stored.clone();
        match (&stored, range) {
            (Stored::Whole(bytes), None) => item.bytes = bytes.to_vec(),
            (Stored::Whole(bytes), Some((first, count))) => {
                let first = first.min(bytes.len() as u64);
                let end = first.saturating_add(count).min(bytes.len() as u64);
                item.bytes = bytes[first as usize..end as usize].to_vec();
            }
            (Stored::Parts(_, parts), Some((first, count))) => item.bytes = parts.range(first, count),
            (Stored::Parts(..), None) => {}
        }
        if let (true, Stored::Parts(upload, parts)) = (pin, &stored) {
            self.pin(*upload, parts);
        }
        Ok(Output::Found(item))
    }

    pub(super) fn exist(&self, container: ContainerId, key: &[u8]) -> Result<Item> {
        let entry = self.live(container, key).ok_or(Error::NotFound)?;
        Ok(entry.current.item(key))
    }

    pub(super) fn release(&mut self, container: ContainerId, key: &[u8]) -> Result<Output> {
        let mut entry = self.live(container, key).ok_or(Error::NotFound)?.clone();
        entry.retained.take().ok_or(NOTHING_RETAINED)?;
        self.set(container, key, Some(entry));
        Ok(Output::Done)
    }

    pub(super) fn revert(&mut self, container: ContainerId, key: &[u8]) -> Result<Output> {
        let entry = self.containers.get(&container).and_then(|c| c.get(key)).ok_or(Error::NotFound)?;
        let kept = entry.retained.clone().ok_or(NOTHING_RETAINED)?;
        self.set(container, key, Some(Entry { current: *kept, retained: None }));
        Ok(Output::Done)
    }

    pub(super) fn clear(&mut self, container: ContainerId) -> Option<Container> {
        let cleared = self.containers.remove(&container)?;
        self.used_bytes -= cleared.stats().bytes;
        Some(cleared)
    }

    pub(super) fn stats(&self, container: ContainerId) -> Stats {
        self.containers.get(&container).map(Container::stats).unwrap_or_default()
    }

    pub(super) fn list(
        &self,
        container: ContainerId,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> ListPage {
        let mut page = ListPage::default();
        let Some(container) = self.containers.get(&container) else { return page };
        for (key, entry) in container.after(after, prefix) {
            if !key.starts_with(prefix) {
                break;
            }
            if !self.is_live(entry) {
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

    pub(super) fn scan(&self, container: ContainerId, cursor: u64, limit: usize) -> ScanPage {
        let mut page = ScanPage::default();
        let Some(container) = self.containers.get(&container) else { return page };
        let (mut looked_at, mut last) = (0, None);
        for (position, key) in container.scan(cursor) {
            // Keys of one position cannot be told apart by a cursor: they share a page.
            if looked_at >= limit && last != Some(position) {
                page.cursor = position;
                break;
            }
            (looked_at, last) = (looked_at + 1, Some(position));
            if container.get(key).is_some_and(|entry| self.is_live(entry)) {
                page.keys.push(key.to_vec());
            }
        }
        page
    }
}

fn expiry_ms(expiry: Expiry, before: Option<&Entry>) -> Option<u64> {
    match expiry {
        Expiry::Never => None,
        Expiry::At(at_ms) => Some(at_ms),
        Expiry::Keep => before.and_then(|entry| entry.current.expiry_ms),
    }
}
