//! What a full server deletes to make room, in worlds where it may.
//!
//! Place: between a partition and its cache, if it has one. Keys that fill the device may go at any time;
//! those that are judged by count as just read, so that they stay if anything else can go.
//!
//! Invariants: what goes up is passed on as it is; if a key that is judged by goes all the same, that is
//! known before any client can miss it.

use super::client::Shared;
use plimsoll_cache::Cache;
use plimsoll_kv::{Above, ContainerId};
use std::rc::Rc;

/// Keys that may go begin so.
pub(super) const FILLING: &str = "fill";

/// Hears what a partition evicts.
pub(super) struct Evictions {
    pub(super) shared: Rc<Shared>,
    pub(super) cache: Option<Rc<Cache>>,
}

impl Above for Evictions {
    fn was_read(&self, container: ContainerId, key: &[u8]) -> bool {
        !key.starts_with(FILLING.as_bytes())
            || self.cache.as_ref().is_some_and(|cache| cache.was_read(container, key))
    }

    fn evicted(&self, container: ContainerId, key: &[u8]) {
        if let Some(cache) = &self.cache {
            cache.evicted(container, key);
        }
        self.shared.note(|| format!("{} is evicted", String::from_utf8_lossy(key)));
        if !key.starts_with(FILLING.as_bytes()) {
            self.shared.has_lost_evidence.set(true);
        }
        self.shared.evicted.set(self.shared.evicted.get() + 1);
    }
}
