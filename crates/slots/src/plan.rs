//! Plans: what writes come to, before any of them is written.
//!
//! Role: judges conditions, makes edits, draws versions; of several writes of one key the last remains. Place
//! on the path: between holding the keys and writing.
//!
//! Invariants: a plan that fails has changed nothing; conditions are judged in the order of the writes, each
//! as if those before it had happened.
//!
//! Never: it writes.

use crate::index::{Body, Entry};
use crate::object::{Expires, Kind, Record};
use crate::parts::Parts;
use crate::slots::{GENERATIONS, Slots};
use plimsoll_kv::{
    Condition, ContainerId, Deleted, Edit, Error, Expiry, Item, Op, Output, Result, UploadId, Value, Version,
};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// What to write of a key.
#[derive(Clone)]
pub(crate) enum What {
    Bytes(Vec<u8>),
    Upload(UploadId),
    Parts(Rc<Parts>),
    Edit(Edit),
    Delete,
    SetExpiry,
    /// The key is the container's number, among the adapter's own.
    Clear,
}

/// A write.
#[derive(Clone)]
pub(crate) struct Write {
    pub(crate) container: ContainerId,
    pub(crate) key: Vec<u8>,
    pub(crate) what: What,
    pub(crate) condition: Condition,
    pub(crate) expiry: Expiry,
    pub(crate) retain: bool,
    pub(crate) want_previous: bool,
}

/// Whose writes these are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// A client's.
    Client,
    /// A transaction's, which holds its keys since then: what is not there is not deleted, and no error.
    Transaction { since_ms: u64 },
}

/// What a key will hold.
pub(crate) struct Change {
    pub(crate) container: ContainerId,
    pub(crate) generation: u32,
    pub(crate) key: Vec<u8>,
    pub(crate) sequence: Version,
    pub(crate) version: Version,
    pub(crate) expiry_ms: Option<u64>,
    pub(crate) body: Body,
    /// Of a whole value.
    pub(crate) bytes: Vec<u8>,
    /// Keeps the record that is current now, below this one.
    pub(crate) retains: bool,
    /// Keeps the record that is retained now.
    pub(crate) keeps: bool,
    /// The sequence of what is kept.
    pub(crate) below: Version,
}

impl Change {
    /// The value as it is stored.
    pub(crate) fn value(&self) -> Cow<'_, [u8]> {
        match &self.body {
            Body::Whole => Cow::Borrowed(&self.bytes),
            Body::Parts(parts) => Cow::Owned(parts.manifest().encode()),
            Body::Gone => Cow::Borrowed(&[]),
        }
    }

    /// Bytes of that.
    pub(crate) fn value_bytes(&self) -> usize {
        self.value().len()
    }

    pub(crate) fn record(&self) -> Record {
        let kind = match self.body {
            Body::Whole => Kind::Value,
            Body::Parts(_) => Kind::Manifest,
            Body::Gone => Kind::Tombstone,
        };
        Record {
            kind,
            container: self.container,
            generation: self.generation,
            key: self.key.clone(),
            sequence: self.sequence,
            version: self.version,
            below: self.below,
            expires: self.expiry_ms.map_or(Expires::Never, Expires::At),
        }
    }

    pub(crate) fn length(&self) -> u64 {
        match &self.body {
            Body::Whole => self.bytes.len() as u64,
            Body::Parts(parts) => parts.length,
            Body::Gone => 0,
        }
    }
}

/// What writes come to.
pub(crate) struct Plan {
    mode: Mode,
    pub(crate) changes: Vec<Change>,
    at: BTreeMap<(ContainerId, Vec<u8>), usize>,
    pub(crate) outputs: Vec<Output>,
    pub(crate) uploads: BTreeSet<UploadId>,
    /// Containers that will have been emptied.
    cleared: BTreeMap<ContainerId, u32>,
}

/// What a write finds.
struct Found {
    item: Item,
    sequence: Version,
    body: Body,
    /// Of the change that it is; nothing if it stands on the drive.
    change: Option<usize>,
    retained: Option<Version>,
}

impl Write {
    pub(crate) fn from_op(op: Op) -> Result<Write> {
        let (none, never) = (Condition::None, Expiry::Keep);
        let of = |container, key, what, condition, expiry| Write {
            container,
            key,
            what,
            condition,
            expiry,
            retain: false,
            want_previous: false,
        };
        Ok(match op {
            Op::Store { container, key, value, condition, expiry, retain, want_previous, .. } => {
                let what = match value {
                    Value::Bytes(bytes) => What::Bytes(bytes.into_bytes().into()),
                    Value::Upload(upload) => What::Upload(upload),
                    Value::Edit(edit) => What::Edit(edit),
                    Value::Kept(_) => return Err(Error::Unsupported("keeping a value under another key")),
                };
                Write { retain, want_previous, ..of(container, key, what, condition, expiry) }
            }
            Op::Delete { container, key, condition } => of(container, key, What::Delete, condition, never),
            Op::SetExpiry { container, key, expiry, condition } => {
                of(container, key, What::SetExpiry, condition, expiry)
            }
            Op::Clear { container } => Write { condition: none, ..Write::clear(container) },
            _ => return Err(Error::Invalid("a batch holds stores, deletes and changes of expiry")),
        })
    }

    /// What empties a container.
    pub(crate) fn clear(container: ContainerId) -> Write {
        Write {
            container: GENERATIONS,
            key: container.0.to_le_bytes().to_vec(),
            what: What::Clear,
            condition: Condition::None,
            expiry: Expiry::Never,
            retain: false,
            want_previous: false,
        }
    }
}

fn expiry_ms(expiry: Expiry, before: Option<&Found>) -> Option<u64> {
    match expiry {
        Expiry::Never => None,
        Expiry::At(at_ms) => Some(at_ms),
        Expiry::Keep => before.and_then(|found| found.item.expiry_ms),
    }
}

fn judge(condition: Condition, before: Option<&Found>) -> Result<()> {
    match (condition, before.map(|found| found.item.version)) {
        (Condition::None, _) | (Condition::MustNotExist, None) | (Condition::MustExist, Some(_)) => Ok(()),
        (Condition::MustNotExist, Some(_)) => Err(Error::Exists),
        (Condition::MustExist | Condition::IfVersion(_), None) => Err(Error::NotFound),
        (Condition::IfVersion(wanted), Some(version)) if wanted == version => Ok(()),
        (Condition::IfVersion(_), Some(_)) => Err(Error::VersionMismatch),
    }
}

impl Plan {
    fn generation(&self, slots: &Slots, container: ContainerId) -> u32 {
        let cleared = self.cleared.get(&container).copied();
        cleared.unwrap_or_else(|| slots.state.borrow().generation(container))
    }

    /// What a key holds after the changes so far.
    fn find(&self, slots: &Slots, container: ContainerId, key: &[u8]) -> Option<Found> {
        if let Some(at) = self.at.get(&(container, key.to_vec())) {
            let change = &self.changes[*at];
            let item = Item {
                version: change.version,
                length: change.length(),
                expiry_ms: change.expiry_ms,
                ..Item::default()
            };
            let found = Found {
                item,
                sequence: change.sequence,
                body: change.body.clone(),
                change: Some(*at),
                retained: None,
            };
            return Some(found).filter(|found| !matches!(found.body, Body::Gone));
        }
        if self.cleared.contains_key(&container) {
            return None;
        }
        let now_ms = match self.mode {
            Mode::Client => slots.clock.now_ms(),
            Mode::Transaction { since_ms } => since_ms,
        };
        let state = slots.state.borrow();
        let entry: &Entry = state.entry(container, key)?;
        let live = entry.live(now_ms)?;
        Some(Found {
            item: live.item(key),
            sequence: live.sequence,
            body: live.body.clone(),
            change: None,
            retained: entry.retained.as_ref().map(|kept| kept.sequence),
        })
    }

    /// The bytes of a whole value.
    async fn bytes(
        &self,
        slots: &Slots,
        container: ContainerId,
        key: &[u8],
        found: &Found,
    ) -> Result<Vec<u8>> {
        match found.change {
            Some(at) => Ok(self.changes[at].bytes.clone()),
            None => slots.read_current(container, key).await,
        }
    }

    fn put(&mut self, change: Change) {
        let place = (change.container, change.key.clone());
        match self.at.get(&place) {
            Some(at) => self.changes[*at] = change,
            None => {
                self.at.insert(place, self.changes.len());
                self.changes.push(change);
            }
        }
    }

    async fn add(&mut self, slots: &Slots, write: Write) -> Result<()> {
        if matches!(write.what, What::Clear) {
            return self.clear(slots, write);
        }
        slots.check_whole(write.container, self.generation(slots, write.container), &write.key)?;
        let before = self.find(slots, write.container, &write.key);
        if before.is_none()
            && matches!(write.what, What::Delete | What::SetExpiry)
            && self.mode != Mode::Client
        {
            self.outputs.push(Output::Done);
            return Ok(());
        }
        judge(write.condition, before.as_ref())?;
        match write.what {
            What::Delete => self.delete(slots, write, before),
            What::SetExpiry => self.set_expiry(slots, write, before).await,
            _ => self.store(slots, write, before).await,
        }
    }

    fn change(&self, slots: &Slots, write: Write, body: Body, bytes: Vec<u8>) -> Change {
        let sequence = slots.next_version();
        Change {
            generation: self.generation(slots, write.container),
            container: write.container,
            key: write.key,
            sequence,
            version: sequence,
            expiry_ms: None,
            body,
            bytes,
            retains: false,
            keeps: false,
            below: Version::ZERO,
        }
    }

    fn clear(&mut self, slots: &Slots, write: Write) -> Result<()> {
        let number = write.key.as_slice().try_into().expect("a container's number has four bytes");
        let container = ContainerId(u32::from_le_bytes(number));
        if self.changes.iter().any(|change| change.container == container) || container == GENERATIONS {
            return Err(Error::Invalid("a container is emptied before it is written to"));
        }
        if !self.cleared.contains_key(&container) {
            let generation = self.generation(slots, container) + 1;
            self.cleared.insert(container, generation);
            self.put(self.change(slots, write, Body::Whole, generation.to_le_bytes().to_vec()));
        }
        self.outputs.push(Output::Done);
        Ok(())
    }

    fn delete(&mut self, slots: &Slots, write: Write, before: Option<Found>) -> Result<()> {
        let before = before.ok_or(Error::NotFound)?;
        self.put(self.change(slots, write, Body::Gone, Vec::new()));
        self.outputs.push(Output::Deleted(Deleted::Version(before.item.version)));
        Ok(())
    }

    async fn set_expiry(&mut self, slots: &Slots, write: Write, before: Option<Found>) -> Result<()> {
        let before = before.ok_or(Error::NotFound)?;
        let bytes = match before.body {
            Body::Whole => self.bytes(slots, write.container, &write.key, &before).await?,
            _ => Vec::new(),
        };
        let expiry_ms = expiry_ms(write.expiry, Some(&before));
        let mut change = self.change(slots, write, before.body.clone(), bytes);
        change.expiry_ms = expiry_ms;
        match before.change {
            Some(at) => {
                let earlier = &self.changes[at];
                (change.retains, change.keeps, change.below) =
                    (earlier.retains, earlier.keeps, earlier.below);
            }
            None => {
                change.keeps = before.retained.is_some();
                change.below = before.retained.unwrap_or(Version::ZERO);
            }
        }
        let item = Item { version: change.version, expiry_ms, ..before.item };
        self.put(change);
        self.outputs.push(Output::ExpirySet(item));
        Ok(())
    }

    async fn store(&mut self, slots: &Slots, write: Write, before: Option<Found>) -> Result<()> {
        let expiry_ms = expiry_ms(write.expiry, before.as_ref());
        if write.retain && before.as_ref().is_some_and(|found| found.change.is_some()) {
            return Err(Error::Invalid("a batch retains what it wrote itself"));
        }
        let mut previous = None;
        if let Some(found) = before.as_ref().filter(|_| write.want_previous) {
            let mut item = found.item.clone();
            if matches!(found.body, Body::Whole) {
                item.bytes = self.bytes(slots, write.container, &write.key, found).await?;
            }
            previous = Some(item);
        }
        let (body, bytes) = match &write.what {
            What::Bytes(bytes) => (Body::Whole, bytes.clone()),
            What::Parts(parts) => (Body::Parts(parts.clone()), Vec::new()),
            What::Upload(upload) => {
                let parts = slots.upload_whole(*upload, &write.key)?;
                if !self.uploads.insert(*upload) {
                    return Err(Error::Invalid("no such upload"));
                }
                (Body::Parts(parts), Vec::new())
            }
            What::Edit(edit) => (Body::Whole, self.edited(slots, &write, edit, before.as_ref()).await?),
            What::Delete | What::SetExpiry | What::Clear => unreachable!("no stores"),
        };
        if bytes.len() > self.value_bytes_max(slots) {
            return Err(Error::ValueTooLong);
        }
        let is_edit = matches!(write.what, What::Edit(_));
        let retains = before.as_ref().filter(|_| write.retain).map(|found| found.sequence);
        let mut change = self.change(slots, write, body, bytes);
        change.expiry_ms = expiry_ms;
        (change.retains, change.below) = (retains.is_some(), retains.unwrap_or(Version::ZERO));
        let version = change.version;
        self.outputs.push(match is_edit {
            true => Output::Edited { version, bytes: change.bytes.clone() },
            false => Output::Stored { version, previous },
        });
        self.put(change);
        Ok(())
    }

    fn value_bytes_max(&self, slots: &Slots) -> usize {
        slots.superblock.borrow().value_bytes_max as usize
    }

    async fn edited(
        &self,
        slots: &Slots,
        write: &Write,
        edit: &Edit,
        before: Option<&Found>,
    ) -> Result<Vec<u8>> {
        if before.is_some_and(|found| matches!(found.body, Body::Parts(_))) {
            return Err(Error::ValueTooLong);
        }
        let old_bytes = before.map_or(0, |found| found.item.length);
        if edit.bytes_max(old_bytes) > self.value_bytes_max(slots) as u64 {
            return Err(Error::ValueTooLong);
        }
        let old = match before {
            Some(found) => Some(self.bytes(slots, write.container, &write.key, found).await?),
            None => None,
        };
        Ok(edit.apply(old.as_deref())?)
    }
}

impl Slots {
    /// What writes come to. Their keys are held.
    pub(crate) async fn plan(&self, writes: Vec<Write>, mode: Mode) -> Result<Plan> {
        let mut plan = Plan {
            mode,
            changes: Vec::new(),
            at: BTreeMap::new(),
            outputs: Vec::new(),
            uploads: BTreeSet::new(),
            cleared: BTreeMap::new(),
        };
        for write in writes {
            plan.add(self, write).await?;
        }
        Ok(plan)
    }
}
