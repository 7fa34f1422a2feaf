//! The cache as a device: what may be given from memory, what is kept, what is forgotten.
//!
//! Role: one for each partition. Place on the path: between the volume and the partition.
//!
//! Invariants:
//! * a change forgets its keys in the same poll in which it goes below, and counts as under way until its
//!   future is gone; meanwhile reads of its keys pass through and fill nothing;
//! * a read fills only if no change of its key began while it was below;
//! * what expires is judged by the clock of the device below;
//! * an operation that is not known to change nothing changes everything;
//! * a key that the device below evicts is forgotten in the same breath, and no read that began before
//!   brings it back.
//!
//! Never: an answer that the device below could not have given at the same instant.

use crate::changes::{Changes, Changing, Instant};
use crate::planted::{Bug, is_planted};
use crate::table::{Entry, Place, TOUCHED_MAX, Table};
use crate::transactions::Holding;
use plimsoll_kv::limits::CONTAINERS_MAX;
use plimsoll_kv::{
    Above, Completion, ContainerId, Device, Item, LocalFuture, Op, Output, Request, Result, Retrieved,
    TransactionId, WallClock,
};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// What a cache counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheMetrics {
    /// Reads answered from memory.
    pub hits: u64,
    /// Reads that went to the device below.
    pub misses: u64,
    /// Values kept, those of emptied databases included until their turn comes.
    pub entries: u64,
    /// Bytes in use, keys and bookkeeping included.
    pub bytes: u64,
    /// Bytes that it may use.
    pub capacity_bytes: u64,
    /// Values let go of to make room.
    pub evictions: u64,
}

/// A device that remembers what was read from the one below.
pub struct Cache {
    pub(crate) below: Rc<dyn Device>,
    clock: Rc<WallClock>,
    hash_secret: u64,
    budget_bytes: usize,
    table: RefCell<Table>,
    pub(crate) changes: Rc<Changes>,
    /// What transactions hold, as far as they were seen to begin to.
    pub(crate) held: RefCell<BTreeMap<TransactionId, Holding>>,
    /// The number of each container's present content.
    spaces: RefCell<Vec<u64>>,
    next_space: Cell<u64>,
    hits: Cell<u64>,
    misses: Cell<u64>,
}

impl Cache {
    /// Keeps up to `budget_bytes` of what is read from a device, whose clock this is. The secret keeps
    /// clients from choosing keys that meet in one chain.
    #[must_use]
    pub fn new(
        below: Rc<dyn Device>,
        clock: Rc<WallClock>,
        hash_secret: u64,
        budget_bytes: usize,
    ) -> Rc<Cache> {
        let changes = Changes::new(budget_bytes);
        let taken_bytes = size_of::<Cache>() + changes.bytes();
        Rc::new(Cache {
            below,
            clock,
            hash_secret,
            budget_bytes,
            table: RefCell::new(Table::new(budget_bytes, taken_bytes)),
            changes,
            held: RefCell::default(),
            spaces: RefCell::default(),
            next_space: Cell::new(0),
            hits: Cell::new(0),
            misses: Cell::new(0),
        })
    }

    /// What it counts.
    #[must_use]
    pub fn metrics(&self) -> CacheMetrics {
        let table = self.table.borrow();
        CacheMetrics {
            hits: self.hits.get(),
            misses: self.misses.get(),
            entries: table.entries(),
            bytes: table.used_bytes() as u64,
            capacity_bytes: self.budget_bytes as u64,
            evictions: table.evictions(),
        }
    }

    /// The hash of a key; it stays the same when its container is emptied.
    pub(crate) fn hash(&self, container: ContainerId, key: &[u8]) -> u64 {
        let seed = self.hash_secret ^ u64::from(container.0).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        xxhash_rust::xxh3::xxh3_64_with_seed(key, seed)
    }

    fn fresh_space(&self) -> u64 {
        self.next_space.set(self.next_space.get() + 1);
        self.next_space.get()
    }

    /// The number of a container's present content; none if there is no such container.
    fn space(&self, container: ContainerId) -> Option<u64> {
        if container.0 >= CONTAINERS_MAX {
            return None;
        }
        let mut spaces = self.spaces.borrow_mut();
        while spaces.len() <= container.0 as usize {
            spaces.push(self.fresh_space());
        }
        Some(spaces[container.0 as usize])
    }

    pub(crate) fn forget(&self, container: ContainerId, key: &[u8]) {
        if let Some(space) = self.space(container) {
            let hash = self.hash(container, key);
            self.table.borrow_mut().remove(Place { hash, space, key });
        }
    }

    pub(crate) fn forget_container(&self, container: ContainerId) {
        if is_planted(Bug::KeptOverClear) {
            return;
        }
        if let Some(space) = self.spaces.borrow_mut().get_mut(container.0 as usize) {
            *space = self.fresh_space();
        }
    }

    /// What is below has lost something, and nobody knows what: nothing that is kept is given any more.
    pub fn lost_below(&self) {
        drop(self.begin_unknown_change());
    }

    pub(crate) fn forget_everything(&self) {
        self.spaces.borrow_mut().clear();
    }

    /// What `give` makes of what is kept of a key, if that may be given.
    fn look_up<T>(
        &self,
        hash: u64,
        container: ContainerId,
        key: &[u8],
        give: impl FnOnce(Entry<'_>) -> T,
    ) -> Option<T> {
        if self.changes.is_open(hash) && !is_planted(Bug::HitWhileHeld) {
            return None;
        }
        let place = Place { hash, space: self.space(container)?, key };
        let mut table = self.table.borrow_mut();
        let entry = table.get(place)?;
        let expires = entry.expires() && !is_planted(Bug::ExpiryIgnored);
        if expires && entry.is_expired(self.clock.now_ms()) {
            table.remove(place);
            return None;
        }
        self.hits.set(self.hits.get() + 1);
        Some(give(entry))
    }

    /// A retrieve, or a look whether a key exists: with no bytes of it.
    async fn read(self: Rc<Self>, request: Request) -> Result<Completion> {
        let (container, key, range, fills) = match &request.op {
            Op::Retrieve { container, key, range, .. } => (*container, key, *range, range.is_none()),
            Op::Exist { container, key } => (*container, key, Some((0, 0)), false),
            _ => unreachable!("not a read"),
        };
        let hash = self.hash(container, key);
        let bytes = range.unwrap_or((0, u64::MAX));
        // A value that is here is short: to pin it is to have it.
        if let Some(item) = self.look_up(hash, container, key, |entry| entry.item(bytes)) {
            return Ok(Completion::new(Output::Found(item)));
        }
        self.misses.set(self.misses.get() + 1);
        if self.changes.is_open(hash) || !fills {
            return self.below.clone().execute(request).await;
        }
        let (key, began) = (key.clone(), self.changes.now());
        let result = self.below.clone().execute(request).await;
        if let Ok(Completion { output: Output::Found(item), .. }) = &result
            && self.may_keep(began, hash)
        {
            self.keep(hash, container, &key, item, &item.bytes);
        }
        result
    }

    /// A retrieve of a whole value.
    async fn read_whole(self: Rc<Self>, container: ContainerId, key: Rc<[u8]>) -> Result<Retrieved> {
        let hash = self.hash(container, &key);
        if let Some(item) = self.look_up(hash, container, &key, |entry| entry.item((0, u64::MAX))) {
            return Ok(item.into());
        }
        self.misses.set(self.misses.get() + 1);
        if self.changes.is_open(hash) {
            return self.below.clone().retrieve_whole(container, key).await;
        }
        let began = self.changes.now();
        let result = self.below.clone().retrieve_whole(container, key.clone()).await;
        if let Ok(Retrieved { item, value }) = &result
            && self.may_keep(began, hash)
        {
            self.keep(hash, container, &key, item, value);
        }
        result
    }

    /// Whether what a read gave that began then is still what the device below holds.
    fn may_keep(&self, began: Instant, hash: u64) -> bool {
        self.changes.is_quiet_since(began, hash) || is_planted(Bug::FillAcrossChange)
    }

    /// Keeps what a whole read gave, unless it stands in parts.
    fn keep(&self, hash: u64, container: ContainerId, key: &[u8], item: &Item, value: &[u8]) {
        if item.upload.is_some() || item.length != value.len() as u64 {
            return;
        }
        if let Some(space) = self.space(container) {
            self.table.borrow_mut().insert(Place { hash, space, key }, item, value);
        }
    }

    /// Forgets what an operation changes; it is under way as long as what is given back lives.
    fn begin_change(&self, op: &Op) -> Changing {
        match op {
            Op::Store { container, key, .. }
            | Op::Delete { container, key, .. }
            | Op::SetExpiry { container, key, .. }
            | Op::Release { container, key }
            | Op::Revert { container, key } => {
                let changing = self.changes.begin_one(self.hash(*container, key));
                self.forget(*container, key);
                changing
            }
            Op::Batch(ops) if ops.iter().all(|op| op.place().is_some()) => {
                let places = || ops.iter().filter_map(Op::place);
                let changing = self.changes.begin_many(places().map(|(of, key)| self.hash(of, key)));
                places().for_each(|(container, key)| self.forget(container, key));
                changing
            }
            Op::Clear { container } => {
                let changing = self.changes.begin_everything();
                self.forget_container(*container);
                changing
            }
            _ => self.begin_unknown_change(),
        }
    }

    /// A change of which nobody knows what it concerns.
    pub(crate) fn begin_unknown_change(&self) -> Changing {
        let changing = self.changes.begin_everything();
        self.forget_everything();
        changing
    }

    async fn change(self: Rc<Self>, request: Request) -> Result<Completion> {
        let changing = self.begin_change(&request.op);
        let result = self.below.clone().execute(request).await;
        drop(changing);
        result
    }
}

impl Above for Cache {
    fn was_read(&self, container: ContainerId, key: &[u8]) -> bool {
        let Some(space) = self.space(container) else { return false };
        let hash = self.hash(container, key);
        self.table.borrow_mut().take_visited(Place { hash, space, key })
    }

    fn evicted(&self, container: ContainerId, key: &[u8]) {
        // It ends where it begins: reads from before fill nothing, those from now on find nothing below.
        drop(self.changes.begin_one(self.hash(container, key)));
        self.forget(container, key);
    }
}

impl Device for Cache {
    fn execute(self: Rc<Self>, request: Request) -> LocalFuture<Result<Completion>> {
        match &request.op {
            Op::Retrieve { .. } | Op::Exist { .. } => Box::pin(self.read(request)),
            Op::Store { .. }
            | Op::Delete { .. }
            | Op::SetExpiry { .. }
            | Op::Batch(_)
            | Op::Release { .. }
            | Op::Revert { .. }
            | Op::Clear { .. } => Box::pin(self.change(request)),
            Op::Transaction { .. } => Box::pin(self.transact(request)),
            // What uploads write is no key's value before it is stored.
            Op::UploadBegin { .. }
            | Op::UploadPart { .. }
            | Op::UploadShare { .. }
            | Op::UploadAbort { .. }
            | Op::RetrievePart { .. }
            | Op::Pin { .. }
            | Op::Unpin { .. }
            | Op::List { .. }
            | Op::Scan { .. }
            | Op::Stats { .. }
            | Op::Describe { .. }
            | Op::Sync => self.below.clone().execute(request),
        }
    }

    fn retrieve_whole(
        self: Rc<Self>,
        container: ContainerId,
        key: Rc<[u8]>,
    ) -> LocalFuture<Result<Retrieved>> {
        Box::pin(self.read_whole(container, key))
    }

    fn announce(&self, container: ContainerId, keys: &[&[u8]], round: u32) -> bool {
        if let [key] = keys {
            let (table, hash) = (self.table.borrow(), self.hash(container, key));
            return match round {
                0 if table.approach(hash) => true,
                1 if table.touch_lone(hash) => false,
                _ => self.below.announce(container, keys, 0),
            };
        }
        if round > 0 {
            return false; // All was brought at once.
        }
        for some in keys.chunks(TOUCHED_MAX) {
            let mut hashes = [0; TOUCHED_MAX];
            hashes.iter_mut().zip(some).for_each(|(hash, key)| *hash = self.hash(container, key));
            let led = self.table.borrow().touch(&hashes[..some.len()]);
            let (mut absent, mut count) = ([&[][..]; TOUCHED_MAX], 0);
            for (key, _) in some.iter().zip(led).filter(|(_, led)| !led) {
                absent[count] = *key;
                count += 1;
            }
            if count > 0 {
                self.below.announce(container, &absent[..count], 0);
            }
        }
        false
    }

    fn recall(&self, container: ContainerId, key: &[u8], give: &mut dyn FnMut(&[u8])) -> bool {
        self.look_up(self.hash(container, key), container, key, |entry| give(entry.value())).is_some()
    }

    fn value_bytes_max(&self) -> usize {
        self.below.value_bytes_max()
    }

    fn part_bytes(&self) -> usize {
        self.below.part_bytes()
    }
}
