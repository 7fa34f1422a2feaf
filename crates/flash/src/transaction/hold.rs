//! Holding: what a transaction begins with.
//!
//! Place on the path: before its first read. Invariants: all keys of a transaction are asked for in one
//! instant, so that no two transactions wait for each other's; what is held is what its keys are now, though
//! their container was emptied while it waited.

use super::{Holding, TRANSACTIONS_MAX};
use crate::partition::Partition;
use plimsoll_kv::key_locks::KeyId;
use plimsoll_kv::limits::KEY_BYTES_MAX;
use plimsoll_kv::transaction::Held;
use plimsoll_kv::{ContainerId, Error, Output, Result, TransactionId};
use plimsoll_reactor::Pacer;
use std::collections::{BTreeMap, BTreeSet};

impl Partition {
    /// The keys of a transaction as queues know them, each once.
    async fn ids(&self, held: &Held) -> BTreeSet<KeyId> {
        let (mut ids, pacer) = (BTreeSet::new(), Pacer::new(&self.reactor));
        for (container, key) in &held.keys {
            ids.insert(self.place(*container, key).lock_id());
            pacer.step().await;
        }
        ids
    }

    /// How often the containers of these keys have been emptied.
    fn generations(&self, held: &Held) -> BTreeMap<ContainerId, u32> {
        let state = self.state.borrow();
        held.keys.iter().map(|(container, _)| (*container, state.generation(*container))).collect()
    }

    pub(super) async fn hold_for(&self, id: Option<TransactionId>, held: &Held) -> Result<Output> {
        if held.keys.iter().any(|(_, key)| key.len() > KEY_BYTES_MAX) {
            return Err(Error::KeyTooLong);
        }
        if self.transactions.open.borrow().len() >= TRANSACTIONS_MAX {
            return Err(Error::Overloaded);
        }
        let holding = self.hold_with_room(held).await;
        let id = id.unwrap_or_else(|| TransactionId {
            partition: self.layout.partition,
            version: self.next_version(),
        });
        let before = self.transactions.open.borrow_mut().insert(id, holding);
        assert!(before.is_none(), "a transaction holds at a partition once");
        Ok(Output::Held(id))
    }

    pub(super) async fn hold_now(&self, held: &Held) -> Holding {
        let none = |everything| Holding {
            keys: Vec::new(),
            ids: BTreeSet::new(),
            everything,
            prepared: None,
            room_units: 0,
            since_ms: self.now_ms(),
        };
        if held.everything {
            let everything = self.locks.lock_everything().await;
            return none(Some(everything));
        }
        loop {
            let generations = self.generations(held);
            let ids = self.ids(held).await;
            let keys = self.locks.keep(&ids.iter().copied().collect::<Vec<_>>()).await;
            // If a container was emptied meanwhile, its keys are others now.
            if self.generations(held) == generations {
                return Holding { keys, ids, ..none(None) };
            }
        }
    }
}
