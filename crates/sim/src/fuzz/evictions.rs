//! What a server says of the keys that it deletes to make room.
//!
//! Place: between a partition and its cache, if it has one.
//!
//! Invariants: what goes up is passed on as it is; every eviction is written down in the breath in which it
//! happens.

use super::life::Life;
use plimsoll_cache::Cache;
use plimsoll_kv::{Above, ContainerId};
use std::rc::{Rc, Weak};

/// Hears what a partition evicts.
pub(super) struct Evictions {
    life: Weak<Life>,
    cache: Option<Rc<Cache>>,
}

impl Evictions {
    pub(super) fn new(life: &Rc<Life>, cache: Option<Rc<Cache>>) -> Rc<Evictions> {
        Rc::new(Evictions { life: Rc::downgrade(life), cache })
    }
}

impl Above for Evictions {
    fn was_read(&self, container: ContainerId, key: &[u8]) -> bool {
        self.cache.as_ref().is_some_and(|cache| cache.was_read(container, key))
    }

    fn evicted(&self, container: ContainerId, key: &[u8]) {
        if let Some(cache) = &self.cache {
            cache.evicted(container, key);
        }
        let Some(life) = self.life.upgrade() else { return };
        if container.0 < life.shape.containers {
            life.journal.evicted(&(container.0, key.to_vec()));
        } else {
            life.extras.evicted(&life, key);
        }
    }
}
