//! The adapter: a KV device over a KV SSD.
//!
//! Role: takes requests apart, keeps the order of each key, hands them to what does them. Place on the path:
//! the first step.
//!
//! Invariants: what changes something holds its keys from its first poll to its end, and is seen through
//! though whoever asked goes away; after a command failed of which it is not known what it did, nothing is
//! written any more.
//!
//! Never: it waits for one key while it holds another, but for keys that it asked for in one instant, and the
//! books of layers above, in their order, after those.

use crate::drive::{DriveError, DriveKey, KvSsd};
use crate::flush::Flushes;
use crate::hosts::{Hosts, KeyOf};
use crate::index::{Container, Entry};
use crate::keeper::Keeper;
use crate::names::{Names, Of};
use crate::object::Record;
use crate::parts::{Doomed, Part, Uploads};
use crate::plan::{Mode, Write};
use crate::superblock::Superblock;
use crate::transaction::Transactions;
use plimsoll_kv::key_locks::{EverythingGuard, KeyGuard, KeyId, KeyLocks};
use plimsoll_kv::limits::{BATCH_OPS_MAX, KEY_BYTES_MAX, LIST_KEYS_MAX};
use plimsoll_kv::{
    Completion, ContainerId, Device, Durability, Error, LocalFuture, NO_PIECES, Op, Output, Request, Result,
    Slot, UploadId, Version, WallClock,
};
use plimsoll_reactor::sync::oneshot;
use plimsoll_reactor::{Reactor, Work};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Container of the adapter's own keys: for each container that was emptied, its generation. Such records are
/// written, carried and recovered as any others.
pub(crate) const GENERATIONS: ContainerId = ContainerId(u32::MAX);

/// A KV device over a KV SSD.
pub struct Slots {
    pub(crate) reactor: Reactor,
    pub(crate) clock: Rc<WallClock>,
    pub(crate) drive: Rc<dyn KvSsd>,
    pub(crate) names: Names,
    pub(crate) locks: Rc<KeyLocks>,
    pub(crate) flushes: Flushes,
    pub(crate) doomed: Rc<Doomed>,
    pub(crate) keeper: Keeper,
    pub(crate) superblock: RefCell<Superblock>,
    pub(crate) state: RefCell<State>,
    pub(crate) transactions: RefCell<Transactions>,
    /// Why nothing is written any more.
    pub(crate) broken: RefCell<Option<String>>,
    /// A flush of what was stored without one will come by itself.
    pub(crate) flush_is_due: Cell<bool>,
    /// Parts that were found on the drive, while it is opened: those that nobody names go.
    pub(crate) found_parts: RefCell<BTreeMap<(u64, u32), Rc<Part>>>,
}

/// What memory knows of the drive.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) containers: BTreeMap<ContainerId, Container>,
    pub(crate) hosts: Hosts,
    pub(crate) uploads: Uploads,
    pub(crate) version: Version,
    /// Objects of which the head cannot be read: whose they are is not known.
    pub(crate) damaged: BTreeSet<DriveKey>,
    /// The first sequences of writes under way.
    pub(crate) under_way: BTreeMap<Version, u32>,
}

impl State {
    pub(crate) fn entry(&self, container: ContainerId, key: &[u8]) -> Option<&Entry> {
        self.containers.get(&container)?.get(key)
    }

    pub(crate) fn generation(&self, container: ContainerId) -> u32 {
        self.containers.get(&container).map_or(0, |container| container.generation)
    }

    pub(crate) fn key_of(&self, container: ContainerId, key: &[u8]) -> KeyOf {
        let of = self.containers.get(&container);
        let shared = of.map_or_else(|| key.into(), |of| of.shared(key));
        (container, self.generation(container), shared)
    }
}

/// Keys that are held.
pub(crate) struct Guards {
    _keys: Vec<KeyGuard>,
    _everything: Option<EverythingGuard>,
}

impl Slots {
    /// The clock by which keys expire here.
    #[must_use]
    pub fn clock(&self) -> Rc<WallClock> {
        self.clock.clone()
    }

    pub(crate) fn lock_id(container: ContainerId, key: &[u8]) -> KeyId {
        (Slot::of(key).0, xxh3_64_with_seed(key, u64::from(container.0)))
    }

    pub(crate) fn next_version(&self) -> Version {
        let mut state = self.state.borrow_mut();
        state.version = state.version.next(self.clock.now_ms());
        state.version
    }

    /// Where a slot of a key stands on the drive.
    pub(crate) fn place(&self, of: &KeyOf, slot: u8) -> DriveKey {
        self.names.slot(of.0, of.1, &of.2, slot)
    }

    /// Where an object stands that its record names.
    pub(crate) fn named(&self, of: Of, record: &Record) -> DriveKey {
        self.names.name(of, record.container, record.generation, &record.key)
    }

    pub(crate) fn check_writable(&self) -> Result<()> {
        self.broken.borrow().clone().map_or(Ok(()), |why| Err(Error::ReadOnly(why)))
    }

    /// What a command that failed says to who asked: if the drive did not refuse it, nothing is written any
    /// more.
    pub(crate) fn failed(&self, what: &str, error: DriveError) -> Error {
        match error {
            DriveError::CapacityExceeded => Error::NoSpace,
            DriveError::InvalidValueSize(_) => Error::ValueTooLong,
            DriveError::KeyExists => {
                Error::Unreadable(format!("{what}: what stands on the drive there is of another key"))
            }
            error => {
                let why = format!("{what}: {error}");
                let mut broken = self.broken.borrow_mut();
                if broken.is_none() {
                    tracing::error!(why, "the drive takes no more writes");
                    *broken = Some(why.clone());
                }
                Error::ReadOnly(why)
            }
        }
    }

    /// Waits until a flush has ended.
    pub(crate) async fn flushed(&self, flush: u64) -> Result<()> {
        if self.flushes.is_done(flush) {
            return Ok(());
        }
        let reached = self.flushes.reach(&self.drive, flush).await;
        self.state.borrow_mut().hosts.flushed(|flush| self.flushes.is_done(flush));
        reached.map_err(|error| self.failed("a flush", error))
    }

    /// Deletes an object, durably.
    pub(crate) async fn delete_object(&self, key: DriveKey) -> Result<()> {
        self.drive.delete(key).await.map_err(|error| self.failed(&format!("a delete of {key}"), error))?;
        self.flushed(self.flushes.next()).await
    }

    /// Waits for the keys of writes, each once: those of clients in one instant, then the books of the layer
    /// above one by one, in their order.
    pub(crate) async fn lock_writes(&self, writes: &[Write]) -> Guards {
        let place = |write: &Write| (write.container, Slots::lock_id(write.container, &write.key));
        let (books, keys): (BTreeSet<_>, BTreeSet<_>) =
            writes.iter().map(place).partition(|(container, _)| container.is_books());
        let ids: BTreeSet<KeyId> = keys.into_iter().map(|(_, id)| id).collect();
        let mut keys = self.locks.lock_all(&ids.into_iter().collect::<Vec<_>>()).await;
        let books: BTreeSet<KeyId> = books.into_iter().map(|(_, id)| id).collect();
        for (slot, fingerprint) in books {
            keys.push(self.locks.lock_beside(slot, fingerprint).await);
        }
        Guards { _keys: keys, _everything: None }
    }

    /// Waits for one key.
    pub(crate) async fn lock_key(&self, container: ContainerId, key: &[u8]) -> KeyGuard {
        let (slot, fingerprint) = Slots::lock_id(container, key);
        if container.is_books() {
            return self.locks.lock_beside(slot, fingerprint).await;
        }
        self.locks.lock(slot, fingerprint).await
    }

    async fn write_ops(self: &Rc<Self>, ops: Vec<Op>, durability: Durability) -> Result<Vec<Output>> {
        let writes: Vec<Write> = ops.into_iter().map(Write::from_op).collect::<Result<_>>()?;
        let guards = self.lock_writes(&writes).await;
        let done = self.write(writes, Mode::Client, durability).await;
        drop(guards);
        done
    }

    /// Empties a container: one store of its generation, alone.
    async fn clear(self: &Rc<Self>, container: ContainerId) -> Result<Output> {
        let write = Write::clear(container);
        let everything = self.locks.lock_everything().await;
        let mut guards = self.lock_writes(std::slice::from_ref(&write)).await;
        guards._everything = Some(everything);
        self.write(vec![write], Mode::Client, Durability::Sync).await?;
        Ok(Output::Done)
    }

    /// An operation that changes something.
    async fn change(self: Rc<Self>, op: Op, durability: Durability) -> Result<Output> {
        match op {
            Op::Batch(ops) => match Op::releases(&ops) {
                Some(keys) => {
                    let each = keys.into_iter().map(|(container, key)| self.release(container, key));
                    let each = futures_util::future::join_all(each).await;
                    let broken = each.iter().find_map(|one| match one {
                        Err(error @ (Error::ReadOnly(_) | Error::Unreadable(_))) => Some(error.clone()),
                        _ => None,
                    });
                    match broken {
                        Some(error) => Err(error),
                        None => Ok(Output::Batch(vec![Output::Done; ops.len()])),
                    }
                }
                None => self.write_ops(ops, durability).await.map(Output::Batch),
            },
            op @ (Op::Store { .. } | Op::Delete { .. } | Op::SetExpiry { .. }) => {
                let mut outputs = self.write_ops(vec![op], durability).await?;
                Ok(outputs.pop().expect("one output for one operation"))
            }
            Op::Clear { container } => self.clear(container).await,
            Op::Release { container, key } => self.release(container, &key).await,
            Op::Revert { container, key } => self.revert(container, &key, durability).await,
            Op::UploadBegin { key, length, .. } => self.upload_begin(key, length),
            Op::UploadPart { upload, key, bytes } => self.upload_part(upload, &key, bytes).await,
            Op::UploadShare { upload, key, from, parts } => self.upload_share(upload, &key, from, parts),
            Op::UploadAbort { upload, key } => self.upload_abort(upload, &key),
            Op::Sync => {
                self.check_writable()?;
                self.flushed(self.flushes.next()).await.map(|()| Output::Done)
            }
            Op::Transaction { id, action, .. } => self.transact(id, action).await,
            _ => Err(Error::Invalid("a batch holds stores, deletes and changes of expiry")),
        }
    }

    /// An operation that changes nothing, or nothing on the drive. Nothing if it is of the other kind.
    async fn look(self: &Rc<Self>, op: &Op) -> Option<Result<Output>> {
        use plimsoll_kv::transaction::Action;
        Some(match op {
            Op::Retrieve { container, key, range, pin } => self.retrieve(*container, key, *range, *pin).await,
            Op::Exist { container, key } => self.exist(*container, key).await.map(Output::Found),
            Op::RetrievePart { upload, part, range, .. } => self.retrieve_part(*upload, *part, *range).await,
            Op::Pin { upload, key } => self.pin_begun(*upload, key),
            Op::Unpin { upload, .. } => {
                let unpinned = self.unpin(*upload);
                self.kick();
                unpinned
            }
            Op::Describe { .. } => Err(NO_PIECES),
            Op::List { container, prefix, after, limit } => {
                Ok(Output::Listed(self.list(*container, prefix, after.as_deref(), *limit)))
            }
            Op::Scan { container, cursor, limit } => {
                Ok(Output::Scanned(self.scan(*container, *cursor, *limit)))
            }
            Op::Stats { container } => {
                let state = self.state.borrow();
                let stats = state.containers.get(container).map(Container::stats);
                Ok(Output::Stats(stats.unwrap_or_default()))
            }
            Op::Transaction { partition, id, action: Action::Hold(held) } => {
                self.hold(*partition, *id, held).await
            }
            Op::Transaction { id: None, action: Action::Retrieve { container, key, range, pin }, .. } => {
                self.retrieve_aside((*container, key), *range, *pin).await
            }
            Op::Transaction {
                id: Some(id), action: Action::Retrieve { container, key, range, pin }, ..
            } => self.retrieve_held(*id, *container, key, *range, *pin).await,
            _ => return None,
        })
    }

    /// Values in parts that somebody has pinned; for tests of leaks.
    #[must_use]
    pub fn pinned(&self) -> usize {
        self.state.borrow().uploads.pins.len()
    }

    /// Uploads begun and neither stored nor given up; for tests of leaks.
    #[must_use]
    pub fn uploading(&self) -> usize {
        self.state.borrow().uploads.pending.len()
    }

    /// A number that no upload had.
    pub(crate) fn next_upload(&self) -> UploadId {
        let state = self.state.borrow();
        let next = state.uploads.next.get();
        state.uploads.next.set(next + 1);
        UploadId(u64::from(self.superblock.borrow().epoch) << 32 | next)
    }
}

/// Refuses what no device takes.
fn check(op: &Op) -> Result<()> {
    if op.key().is_some_and(|key| key.len() > KEY_BYTES_MAX) {
        return Err(Error::KeyTooLong);
    }
    match op {
        Op::List { limit, .. } if !(1..=LIST_KEYS_MAX).contains(limit) => {
            Err(Error::Invalid("number of keys of a listing page"))
        }
        Op::Scan { limit: 0, .. } => Err(Error::Invalid("number of keys of a scan page")),
        Op::Batch(ops) if ops.len() > BATCH_OPS_MAX => Err(Error::Invalid("number of operations in a batch")),
        Op::Batch(ops) => ops.iter().try_for_each(check),
        _ => Ok(()),
    }
}

impl Device for Slots {
    fn execute(self: Rc<Self>, request: Request) -> LocalFuture<Result<Completion>> {
        Box::pin(async move {
            check(&request.op)?;
            if let Some(looked) = self.look(&request.op).await {
                return looked.map(Completion::new);
            }
            let (sender, receiver) = oneshot();
            let changed = self.clone().change(request.op, request.durability);
            self.reactor.spawn_now(Work::Kv, async move { sender.send(changed.await) });
            receiver.await.unwrap_or(Err(Error::ShuttingDown)).map(Completion::new)
        })
    }

    fn lacks(&self, container: ContainerId, key: &[u8]) -> bool {
        let (slot, fingerprint) = Slots::lock_id(container, key);
        let state = self.state.borrow();
        let lives =
            state.entry(container, key).is_some_and(|entry| entry.live(self.clock.now_ms()).is_some());
        !lives && state.damaged.is_empty() && self.locks.is_free(slot, fingerprint)
    }

    fn value_bytes_max(&self) -> usize {
        self.superblock.borrow().value_bytes_max as usize
    }

    fn part_bytes(&self) -> usize {
        self.superblock.borrow().part_bytes as usize
    }
}
