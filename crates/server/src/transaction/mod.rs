//! A transaction: keys held at every partition that they belong to, read and written as if nobody else were
//! there, and committed as one.
//!
//! Role: stands where the volume stands while EXEC, MSET and their kin run, so that commands do in it what
//! they do elsewhere. What they write is kept in memory (`overlay`) until the end (`commit`). Place on the
//! path: between a command and the volume. What has been applied is forgotten later (`forget`); what is left
//! of transactions when the server dies is brought to its end at the next start (`resolve`). Who counts keys
//! does so between transactions (`phases`).
//!
//! Invariants:
//! * everything that is read or written is held, from before the first read until after the last write has
//!   its place in the log: strict two-phase locking, so transactions are strictly serializable;
//! * partitions are asked in the order of their numbers, so that no two transactions wait for each other;
//! * whatever happens to its client, a transaction comes to its end.
//!
//! Never: it waits for a client.

mod commit;
mod database;
mod forget;
mod overlay;
mod phases;
mod resolve;

pub(crate) use forget::{Forgetting, forget_applied};
pub(crate) use phases::{Phases, count, started};
pub(crate) use resolve::resolve;

use crate::core::Core;
use crate::limits::TRANSACTION_BYTES_MAX;
use crate::volume::Question;
use overlay::{Overlay, Written};
use plimsoll_kv::transaction::{Action, Held};
use plimsoll_kv::{
    Condition, ContainerId, Deleted, Error, Expiry, Item, Op, Output, Request, Result, TransactionId,
    UploadId, Value,
};
use plimsoll_reactor::Pacer;
use plimsoll_reactor::sync::Permit;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// A key and where it is.
pub(crate) type Key = (ContainerId, Vec<u8>);

/// A value in parts that was begun for a key, and its length.
type Begun = (Vec<u8>, u64);

/// A transaction that is under way.
pub(crate) struct Transaction {
    core: Rc<Core>,
    /// Absent if it holds nothing.
    id: Cell<Option<TransactionId>>,
    /// The partitions at which something is held.
    partitions: RefCell<Vec<u16>>,
    overlay: RefCell<Overlay>,
    /// Values in parts that were begun in it: those that it does not store are given up.
    uploads: RefCell<BTreeMap<(u16, UploadId), Begun>>,
    /// What is told when it is committed, and to nobody before.
    messages: RefCell<Vec<Question>>,
    /// A device could not do what it was asked to: then nothing is done.
    failure: RefCell<Option<Error>>,
    /// By the wall clock.
    began_ms: u64,
    pacer: Pacer,
    /// Its place among the transactions of its core, until it has ended.
    permit: RefCell<Option<Permit>>,
}

impl Transaction {
    /// Holds keys, or everything, and begins.
    ///
    /// # Errors
    /// A partition refuses; nothing is held then.
    pub(crate) async fn begin(core: &Rc<Core>, held: Held) -> Result<Rc<Transaction>> {
        let permit = core.volume.transaction().await?;
        let transaction = Rc::new(Transaction {
            core: core.clone(),
            id: Cell::new(None),
            partitions: RefCell::default(),
            overlay: RefCell::default(),
            uploads: RefCell::default(),
            messages: RefCell::default(),
            failure: RefCell::default(),
            began_ms: core.reactor.wall_ms(),
            pacer: Pacer::new(&core.reactor),
            permit: RefCell::new(Some(permit)),
        });
        for (partition, held) in transaction.share(held).await {
            if let Err(error) = transaction.hold(partition, held).await {
                transaction.release().await;
                return Err(error);
            }
        }
        Ok(transaction)
    }

    /// Tells all cores something when it is committed.
    pub(crate) fn tells(&self, message: Question) {
        self.messages.borrow_mut().push(message);
    }

    /// What is to be held at each partition, in their order.
    async fn share(&self, held: Held) -> BTreeMap<u16, Held> {
        if held.everything {
            let all = 0..self.core.volume.geometry().partitions;
            return all.map(|partition| (partition, Held::everything())).collect();
        }
        let mut shares: BTreeMap<u16, Held> = BTreeMap::new();
        for (container, key) in held.keys {
            shares.entry(self.partition_of(&key)).or_default().keys.push((container, key));
            self.pacer.step().await;
        }
        shares
    }

    fn partition_of(&self, key: &[u8]) -> u16 {
        self.core.volume.geometry().partition(key)
    }

    async fn hold(&self, partition: u16, held: Held) -> Result<()> {
        match self.step(partition, Action::Hold(held)).await? {
            Output::Held(id) => {
                assert!(self.id.get().is_none_or(|known| known == id), "a transaction has one name");
                self.id.set(Some(id));
                self.partitions.borrow_mut().push(partition);
                Ok(())
            }
            _ => unreachable!("holding gives a name"),
        }
    }

    async fn step(&self, partition: u16, action: Action) -> Result<Output> {
        let durability = self.core.shared.settings.durability;
        self.core.volume.clone().step(partition, self.id.get(), action, durability).await
    }

    /// Does an operation that waits for nobody's keys.
    async fn aside(&self, op: Op) -> Result<Output> {
        let request = Request::new(self.core.shared.settings.durability, op);
        self.core.volume.clone().execute_for_transaction(request).await
    }

    /// Does an operation as the transaction sees its keys.
    ///
    /// # Errors
    /// Those of the operation.
    pub(crate) async fn execute(self: Rc<Self>, op: Op) -> Result<Output> {
        self.pacer.step().await;
        let done = self.perform(op).await;
        if let Err(error) = &done
            && is_of_a_device(error)
        {
            self.failure.borrow_mut().get_or_insert(error.clone());
        }
        let superseded = self.overlay.borrow_mut().take_superseded();
        for ((_, key), upload) in superseded {
            self.uploads.borrow_mut().remove(&(self.partition_of(&key), upload));
            self.give_up(upload, key).await;
        }
        done
    }

    async fn perform(&self, op: Op) -> Result<Output> {
        match op {
            Op::Store { container, key, value, condition, expiry, want_previous, form, .. } => {
                if want_previous {
                    return Err(Error::Unsupported("the previous value of a store in a transaction"));
                }
                let place = (container, key);
                if condition != Condition::None || expiry == Expiry::Keep || self.is_past(expiry) {
                    self.look(&place).await?;
                }
                self.overlay.borrow().judge(&place, condition)?;
                let (value, edited) = self.new_value(&place, value).await?;
                let mut overlay = self.overlay.borrow_mut();
                if overlay.written_bytes() + value.held_bytes() > TRANSACTION_BYTES_MAX {
                    let error = Error::Invalid("the transaction writes too much");
                    self.failure.borrow_mut().get_or_insert(error.clone());
                    return Err(error);
                }
                let gone = self.is_past(expiry).then(|| place.clone());
                let version = overlay.store(place, (value, form), expiry);
                gone.into_iter().for_each(|place| overlay.delete(place));
                Ok(match edited {
                    Some(bytes) => Output::Edited { version, bytes },
                    None => Output::Stored { version, previous: None },
                })
            }
            Op::Delete { container, key, condition } => {
                let place = (container, key);
                let item = self.look(&place).await?.ok_or(Error::NotFound)?;
                self.overlay.borrow().judge(&place, condition)?;
                self.overlay.borrow_mut().delete(place);
                Ok(Output::Deleted(Deleted::Version(item.version)))
            }
            Op::SetExpiry { container, key, expiry, condition } => {
                let place = (container, key);
                self.look(&place).await?.ok_or(Error::NotFound)?;
                self.overlay.borrow().judge(&place, condition)?;
                let mut overlay = self.overlay.borrow_mut();
                let changed = overlay.set_expiry(&place, expiry);
                if self.is_past(expiry) {
                    overlay.delete(place);
                }
                Ok(Output::ExpirySet(changed))
            }
            Op::Exist { container, key } => {
                self.look(&(container, key)).await?.map(Output::Found).ok_or(Error::NotFound)
            }
            Op::Retrieve { container, key, range, pin } => {
                self.retrieve((container, key), range, pin).await.map(Output::Found)
            }
            Op::Clear { container } => {
                self.overlay.borrow_mut().clear(container);
                Ok(Output::Done)
            }
            Op::Stats { container } => self.stats(container).await,
            Op::Scan { container, cursor, limit } => self.scan(container, cursor, limit).await,
            Op::List { container, prefix, after, limit } => self.list(container, prefix, after, limit).await,
            Op::UploadBegin { container, key, length, shared_bytes, form } => {
                let begin = Op::UploadBegin { container, key: key.clone(), length, shared_bytes, form };
                let begun = self.aside(begin).await?;
                if let Output::Upload(upload) = begun {
                    let place = (self.partition_of(&key), upload);
                    self.uploads.borrow_mut().insert(place, (key, length));
                }
                Ok(begun)
            }
            Op::UploadPart { .. }
            | Op::UploadShare { .. }
            | Op::UploadAbort { .. }
            | Op::RetrievePart { .. }
            | Op::Pin { .. }
            | Op::Unpin { .. }
            | Op::Sync => self.aside(op).await,
            Op::Batch(_)
            | Op::Describe { .. }
            | Op::Release { .. }
            | Op::Revert { .. }
            | Op::Transaction { .. } => Err(Error::Unsupported("this operation in a transaction")),
        }
    }

    /// What a key holds now, without its bytes.
    async fn look(&self, place: &Key) -> Result<Option<Item>> {
        if let Some(known) = self.overlay.borrow().known(place) {
            return Ok(known);
        }
        let found = self.base(place.0, place.1.clone()).await?;
        let mut overlay = self.overlay.borrow_mut();
        overlay.found(place.clone(), found);
        // What the same command has done to the key meanwhile hides what is there.
        Ok(overlay.known(place).expect("just found"))
    }

    /// True if what expires then is gone at once, for the commands that follow too. In a transaction time
    /// stands still.
    fn is_past(&self, expiry: Expiry) -> bool {
        matches!(expiry, Expiry::At(at_ms) if at_ms <= self.began_ms)
    }

    /// What a key holds at its partition, without its bytes.
    async fn base(&self, container: ContainerId, key: Vec<u8>) -> Result<Option<Item>> {
        match self.read(&(container, key), Some((0, 0)), false).await {
            Ok(item) => Ok(Some(item)),
            Err(Error::NotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads a held key as it is at its partition.
    async fn read(&self, (container, key): &Key, range: Option<(u64, u64)>, pin: bool) -> Result<Item> {
        let action = Action::Retrieve { container: *container, key: key.clone(), range, pin };
        match self.step(self.partition_of(key), action).await? {
            Output::Found(item) => Ok(item),
            _ => unreachable!("a retrieve gives what it found"),
        }
    }

    async fn retrieve(&self, place: Key, range: Option<(u64, u64)>, pin: bool) -> Result<Item> {
        let mut item = self.look(&place).await?.ok_or(Error::NotFound)?;
        let written = self.overlay.borrow().written(&place);
        match written {
            None => {
                let read = self.read(&place, range, pin).await?;
                (item.bytes, item.upload) = (read.bytes, read.upload);
            }
            Some(Value::Bytes(bytes)) => item.bytes = cut(bytes.into_bytes().into(), range),
            Some(Value::Upload(upload)) => {
                if pin {
                    self.aside(Op::Pin { upload, key: place.1 }).await?;
                }
                item.upload = Some(upload);
            }
            Some(Value::Edit(_)) => unreachable!("an edit is kept as what came of it"),
            Some(Value::Kept(_)) => unreachable!("no client stores it"),
        }
        Ok(item)
    }

    /// What a store writes; of an edit, what came of it.
    async fn new_value(&self, place: &Key, value: Value) -> Result<(Written, Option<Vec<u8>>)> {
        match value {
            Value::Kept(_) => unreachable!("no client stores it"),
            Value::Bytes(bytes) => Ok((Written::Bytes(bytes.into_bytes().into()), None)),
            Value::Upload(upload) => {
                let begun = self.uploads.borrow().get(&(self.partition_of(&place.1), upload)).cloned();
                let (_, length) = begun.ok_or(Error::Invalid("an upload of another transaction"))?;
                Ok((Written::Upload(upload, length), None))
            }
            Value::Edit(edit) => {
                let old = match self.look(place).await? {
                    None => None,
                    Some(_) => Some(self.retrieve(place.clone(), None, false).await?),
                };
                let longest = self.core.volume.geometry().value_bytes_max as u64;
                let length = old.as_ref().map_or(0, |old| old.length);
                let is_long = old.as_ref().is_some_and(|old| old.upload.is_some());
                if is_long || edit.bytes_max(length) > longest {
                    return Err(Error::ValueTooLong);
                }
                let bytes = edit.apply(old.as_ref().map(|old| old.bytes.as_slice()))?;
                Ok((Written::Bytes(bytes.clone()), Some(bytes)))
            }
        }
    }
}

/// True for what is no answer to what was asked.
fn is_of_a_device(error: &Error) -> bool {
    matches!(
        error,
        Error::NoSpace
            | Error::NoMemory
            | Error::Unreadable(_)
            | Error::ReadOnly(_)
            | Error::Overloaded
            | Error::ShuttingDown
    )
}

/// True for what a partition answers until it is opened again.
fn is_left_to_the_next_start(error: &Error) -> bool {
    matches!(error, Error::ReadOnly(_) | Error::ShuttingDown)
}

/// A range of bytes.
fn cut(mut bytes: Vec<u8>, range: Option<(u64, u64)>) -> Vec<u8> {
    let Some((first, count)) = range else { return bytes };
    let length = bytes.len() as u64;
    let (first, end) = (first.min(length), first.saturating_add(count).min(length));
    bytes.truncate(end as usize);
    bytes.split_off(first as usize)
}
