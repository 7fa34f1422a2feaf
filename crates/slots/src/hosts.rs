//! Hosts: objects that carry the newest records of other keys.
//!
//! Role: knows of every object which riders of it are in force, so that they go with whatever takes the
//! object's place, or have found a place of their own before it goes. Place on the path: beside every store
//! and delete.
//!
//! Invariants:
//! * the newest record of every key is durably on the drive before anything goes that holds the one before
//!   it: an object whose rider was overtaken by a record that is not durable yet is not overwritten or
//!   deleted;
//! * a key of which some object may still carry a record (it was *ridden*) is deleted by a record, not by
//!   nothing.
//!
//! Never: it talks to the drive.

use crate::drive::DriveKey;
use plimsoll_kv::{ContainerId, Version};
use std::collections::BTreeMap;
use std::rc::Rc;

/// A key of one generation of its container.
pub(crate) type KeyOf = (ContainerId, u32, Rc<[u8]>);

/// A rider in force: as it is encoded.
pub(crate) type Encoded = Rc<[u8]>;

/// The hosts of a drive.
#[derive(Default)]
pub(crate) struct Hosts {
    by_host: BTreeMap<DriveKey, BTreeMap<KeyOf, Encoded>>,
    /// Objects of which a rider was overtaken, and the flush that makes durable what did so.
    overtaken: BTreeMap<DriveKey, u64>,
    /// Keys that were carried since the horizon, and the newest sequence in which they were.
    ridden: BTreeMap<KeyOf, Version>,
    bytes: usize,
}

impl Hosts {
    /// A rider is in force.
    pub(crate) fn add(&mut self, host: DriveKey, of: KeyOf, encoded: Encoded) {
        self.bytes += encoded.len();
        let before = self.by_host.entry(host).or_default().insert(of, encoded);
        assert!(before.is_none(), "an object carries a key once");
    }

    /// Some object carries a value of this key, in force or not.
    pub(crate) fn ride(&mut self, of: KeyOf, sequence: Version) {
        let newest = self.ridden.entry(of).or_insert(sequence);
        *newest = (*newest).max(sequence);
    }

    /// A rider is not in force any more; what is so instead will be durable with this flush.
    pub(crate) fn remove(&mut self, host: DriveKey, of: &KeyOf, flush: u64) {
        // A flush that has ended is forgotten with the next.
        let riders = self.by_host.get_mut(&host).expect("a rider's host is known");
        let encoded = riders.remove(of).expect("a rider is with its host");
        self.bytes -= encoded.len();
        if riders.is_empty() {
            self.by_host.remove(&host);
        }
        let latest = self.overtaken.entry(host).or_insert(flush);
        *latest = (*latest).max(flush);
    }

    /// A rider in force.
    pub(crate) fn get(&self, host: DriveKey, of: &KeyOf) -> Option<Encoded> {
        self.by_host.get(&host)?.get(of).cloned()
    }

    /// The riders of an object that are in force.
    pub(crate) fn riders(&self, host: DriveKey) -> impl Iterator<Item = (&KeyOf, &Encoded)> {
        self.by_host.get(&host).into_iter().flatten()
    }

    /// True if an object carries a record that is in force.
    pub(crate) fn carries(&self, host: DriveKey) -> bool {
        self.by_host.contains_key(&host)
    }

    /// The flush before which an object must not go.
    pub(crate) fn goes_after(&self, host: DriveKey) -> Option<u64> {
        self.overtaken.get(&host).copied()
    }

    /// A flush has ended: what it made durable need not be remembered.
    pub(crate) fn flushed(&mut self, is_done: impl Fn(u64) -> bool) {
        self.overtaken.retain(|_, flush| !is_done(*flush));
    }

    /// True if some object may still carry a record of a key.
    pub(crate) fn is_ridden(&self, of: &KeyOf) -> bool {
        self.ridden.contains_key(of)
    }

    /// Keys that were carried since the horizon.
    pub(crate) fn ridden(&self) -> usize {
        self.ridden.len()
    }

    /// Every rider in force.
    pub(crate) fn all(&self) -> Vec<KeyOf> {
        self.by_host.values().flat_map(BTreeMap::keys).cloned().collect()
    }

    /// Bytes of the riders in force.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Riders below the horizon are void.
    pub(crate) fn pass_horizon(&mut self, horizon: Version) {
        self.ridden.retain(|_, sequence| *sequence >= horizon);
    }
}
