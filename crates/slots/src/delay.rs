//! A KV SSD whose commands take time.
//!
//! Role: what a drive costs, in virtual time, around any drive. Place on the path: between the adapter and a
//! drive in memory.
//!
//! Invariant: commands under way at the same time take effect in the order in which their time comes, not in
//! that in which they were given.
//!
//! Never: it fails or drops anything.

use crate::drive::{DriveFuture, DriveKey, KvSsd, Retrieved, StoreIf};
use plimsoll_reactor::Reactor;
use std::rc::Rc;

/// What commands cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Nanoseconds of every command but flushes.
    pub fixed_ns: u64,
    /// Nanoseconds more, at most, drawn for each command: what lets later ones overtake.
    pub spread_ns: u64,
    /// Picoseconds for every byte.
    pub byte_ps: u64,
    /// Nanoseconds of a flush.
    pub flush_ns: u64,
}

/// A drive that takes longer.
pub struct DelaySsd {
    reactor: Reactor,
    below: Rc<dyn KvSsd>,
    cost: Cost,
}

impl DelaySsd {
    /// Wraps a drive.
    #[must_use]
    pub fn new(reactor: &Reactor, below: Rc<dyn KvSsd>, cost: Cost) -> Rc<DelaySsd> {
        Rc::new(DelaySsd { reactor: reactor.clone(), below, cost })
    }

    /// A time drawn up to `most_ns`.
    fn draw_ns(&self, most_ns: u64) -> u64 {
        if most_ns == 0 { 0 } else { self.reactor.random_u64() % (most_ns + 1) }
    }

    /// Half of the time passes before the effect and half after, so that neither order can be relied upon.
    fn pass<T: 'static>(&self, bytes: usize, below: DriveFuture<T>) -> DriveFuture<T> {
        let cost = self.cost;
        let ns = cost.fixed_ns + cost.byte_ps * bytes as u64 / 1000;
        let (before_ns, after_ns) = (ns / 2 + self.draw_ns(cost.spread_ns), ns.div_ceil(2));
        let reactor = self.reactor.clone();
        Box::pin(async move {
            reactor.sleep_ns(before_ns).await;
            let result = below.await;
            reactor.sleep_ns(after_ns).await;
            result
        })
    }
}

impl KvSsd for DelaySsd {
    fn store(&self, key: DriveKey, value: Vec<u8>, when: StoreIf) -> DriveFuture<()> {
        self.pass(value.len(), self.below.store(key, value, when))
    }

    fn retrieve(&self, key: DriveKey, offset: usize, length: usize) -> DriveFuture<Retrieved> {
        self.pass(length.min(self.below.value_bytes_max()), self.below.retrieve(key, offset, length))
    }

    fn delete(&self, key: DriveKey) -> DriveFuture<()> {
        self.pass(0, self.below.delete(key))
    }

    fn exist(&self, key: DriveKey) -> DriveFuture<bool> {
        self.pass(0, self.below.exist(key))
    }

    fn list(&self, from: Vec<u8>, limit: usize) -> DriveFuture<Vec<Vec<u8>>> {
        self.pass(0, self.below.list(from, limit))
    }

    fn flush(&self) -> DriveFuture<()> {
        let (reactor, ns, below) = (self.reactor.clone(), self.cost.flush_ns, self.below.flush());
        Box::pin(async move {
            let result = below.await;
            reactor.sleep_ns(ns).await;
            result
        })
    }

    fn value_bytes_max(&self) -> usize {
        self.below.value_bytes_max()
    }
}
