//! The memory device: every operation of the trait in RAM.
//!
//! Role: the reference for what an operation means, and the store of tests and of the simulator's
//! protocol worlds. Place on the path: where the flash engine stands.
//!
//! Invariants:
//! * an operation takes effect whole in the first poll of its future, or, if a transaction holds its key,
//!   when that has ended;
//! * versions grow, and a key seen expired is never seen again, even if the wall clock steps back;
//! * a scan's position is `slot << 40 | 40 bits of the key's hash`, as the flash engine has it.
//!
//! A store or delete gives up the version retained below the one it replaces. Expired keys hold
//! their bytes until they are overwritten, deleted or cleared.
//!
//! Never: durable. A `Sync` succeeds because there is nothing to wait for.

mod container;
mod store;
#[cfg(test)]
mod tests;
mod transaction;
mod upload;

use crate::clock::WallClock;
use crate::completion::{Completion, NO_PIECES, Output};
use crate::device::{Device, LocalFuture};
use crate::error::{Error, Result};
use crate::limits::{BATCH_OPS_MAX, KEY_BYTES_MAX, LIST_KEYS_MAX, PART_BYTES_MAX, RECORD_VALUE_BYTES_MAX};
use crate::request::{ContainerId, Op, Request, UploadId};
use crate::transaction::TransactionId;
use crate::version::Version;
use container::Container;
use plimsoll_reactor::sync::WaitList;
use plimsoll_reactor::{Reactor, Work};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use transaction::Holding;
use upload::{Parts, Pending};

/// Keys dropped in one background slice after a `Clear`.
const DROPPED_PER_SLICE: usize = 1024;

/// How a memory device is made.
#[derive(Clone, Copy, Debug)]
pub struct MemoryOptions {
    /// Bytes of keys and values that fit; past it stores fail with [`Error::NoSpace`].
    pub capacity_bytes: u64,
    /// Longest value of one store.
    pub value_bytes_max: usize,
    /// Bytes of every part of an upload but the last.
    pub part_bytes: usize,
}

impl Default for MemoryOptions {
    fn default() -> MemoryOptions {
        MemoryOptions {
            capacity_bytes: u64::MAX,
            value_bytes_max: RECORD_VALUE_BYTES_MAX,
            part_bytes: PART_BYTES_MAX,
        }
    }
}

/// Key-value pairs in RAM.
pub struct Memory {
    reactor: Reactor,
    clock: Rc<WallClock>,
    options: MemoryOptions,
    state: RefCell<State>,
    /// Woken when a transaction has ended.
    ended: WaitList,
}

struct State {
    containers: BTreeMap<ContainerId, Container>,
    uploads: BTreeMap<UploadId, Pending>,
    pins: BTreeMap<UploadId, (Rc<Parts>, u32)>,
    next_upload: u64,
    version: Version,
    /// What the clock said last.
    wall_ms: u64,
    used_bytes: u64,
    transactions: BTreeMap<TransactionId, Holding>,
}

impl Memory {
    /// An empty device on this core.
    #[must_use]
    pub fn new(reactor: &Reactor, options: MemoryOptions) -> Rc<Memory> {
        assert!(options.part_bytes > 0 && options.value_bytes_max > 0);
        let state = State {
            containers: BTreeMap::new(),
            uploads: BTreeMap::new(),
            pins: BTreeMap::new(),
            next_upload: 1,
            version: Version { epoch: 1, clock: 0 },
            wall_ms: 0,
            used_bytes: 0,
            transactions: BTreeMap::new(),
        };
        let (reactor, clock) = (reactor.clone(), Rc::new(WallClock::new(reactor)));
        Rc::new(Memory { reactor, clock, options, state: RefCell::new(state), ended: WaitList::default() })
    }

    /// The clock by which keys expire here.
    #[must_use]
    pub fn clock(&self) -> Rc<WallClock> {
        self.clock.clone()
    }

    /// Values in parts that somebody has pinned; for tests of leaks.
    #[must_use]
    pub fn pinned(&self) -> usize {
        self.state.borrow().pins.len()
    }

    /// Uploads begun and neither stored nor given up; for tests of leaks.
    #[must_use]
    pub fn uploading(&self) -> usize {
        self.state.borrow().uploads.len()
    }

    fn run(&self, op: Op) -> Result<Output> {
        check(&op)?;
        let mut state = self.state.borrow_mut();
        state.wall_ms = self.clock.now_ms();
        if let Op::Transaction { partition, id, action } = op {
            drop(state);
            let done = self.transact(partition, id, action);
            self.ended.wake_all();
            return done;
        }
        match op {
            op @ (Op::Store { .. } | Op::Delete { .. } | Op::SetExpiry { .. }) => {
                state.write(op, &self.options)
            }
            Op::Retrieve { container, key, range, pin } => state.retrieve(container, &key, range, pin),
            Op::Exist { container, key } => state.exist(container, &key).map(Output::Found),
            Op::RetrievePart { upload, part, range, .. } => state.retrieve_part(upload, part, range),
            Op::Pin { upload, key } => state.pin_begun(upload, &key),
            Op::Unpin { upload, .. } => state.unpin(upload),
            Op::List { container, prefix, after, limit } => {
                Ok(Output::Listed(state.list(container, &prefix, after.as_deref(), limit)))
            }
            Op::Scan { container, cursor, limit } => {
                Ok(Output::Scanned(state.scan(container, cursor, limit)))
            }
            Op::Clear { container } => {
                let cleared = state.clear(container);
                drop(state);
                self.drop_slowly(cleared);
                Ok(Output::Done)
            }
            Op::Describe { .. } => Err(NO_PIECES),
            Op::Batch(ops) => match Op::releases(&ops) {
                None => state.batch(ops, &self.options),
                Some(keys) => {
                    let each = keys.into_iter();
                    let each = each.map(|(of, key)| state.release(of, key).unwrap_or(Output::Done));
                    Ok(Output::Batch(each.collect()))
                }
            },
            Op::Release { container, key } => state.release(container, &key),
            Op::Revert { container, key } => state.revert(container, &key),
            Op::UploadBegin { key, length, shared_bytes, .. } => {
                state.upload_begin(key, length, shared_bytes, &self.options)
            }
            Op::UploadShare { upload, key, from, parts } => {
                state.upload_share(upload, &key, from, parts, &self.options)
            }
            Op::UploadPart { upload, key, bytes } => state.upload_part(upload, &key, bytes, &self.options),
            Op::UploadAbort { upload, key } => state.upload_abort(upload, &key),
            Op::Stats { container } => Ok(Output::Stats(state.stats(container))),
            Op::Sync => Ok(Output::Done),
            Op::Transaction { .. } => unreachable!("done above"),
        }
    }

    /// Frees an emptied container in slices that others need not wait for.
    fn drop_slowly(&self, container: Option<Container>) {
        let Some(mut container) = container else { return };
        let reactor = self.reactor.clone();
        self.reactor.spawn(Work::Background, async move {
            while container.drop_some(DROPPED_PER_SLICE) {
                reactor.yield_now().await;
            }
        });
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
        _ => Ok(()),
    }
}

impl Device for Memory {
    fn execute(self: Rc<Self>, request: Request) -> LocalFuture<Result<Completion>> {
        Box::pin(async move {
            let go_on = || (!self.state.borrow().is_kept(&request.op)).then_some(());
            if go_on().is_none() {
                self.ended.wait_for(go_on).await;
            }
            self.run(request.op).map(Completion::new)
        })
    }

    fn lacks(&self, container: ContainerId, key: &[u8]) -> bool {
        let exist = Op::Exist { container, key: key.to_vec() };
        !self.state.borrow().is_kept(&exist) && self.run(exist) == Err(Error::NotFound)
    }

    fn keeps(&self) -> bool {
        true
    }

    fn has_room_to_spare(&self) -> bool {
        self.state.borrow().used_bytes < self.options.capacity_bytes / 2
    }

    fn value_bytes_max(&self) -> usize {
        self.options.value_bytes_max
    }

    fn part_bytes(&self) -> usize {
        self.options.part_bytes
    }
}
