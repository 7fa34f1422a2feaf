//! Listing: pages of keys in order, by prefix.
//!
//! Place on the path: sources merged from the page's first name on; records are looked at only
//! where keys may have expired.
//!
//! Invariants: a key that exists during the whole listing is listed, one that is absent during all
//! of it is not; nothing is revealed or hidden by a change that a crash could take back; memory is
//! bounded by the page.

use super::block::{name_of, split_name};
use crate::fetch::ReadFrom;
use crate::partition::Partition;
use futures_util::future::join_all;
use plimsoll_kv::block::Origin;
use plimsoll_kv::limits::LIST_KEYS_MAX;
use plimsoll_kv::{ContainerId, Error, ListPage, Output, Result};
use std::rc::Rc;

/// Bytes of keys of a page: long keys make it end early.
const PAGE_BYTES_MAX: usize = 1 << 20;
/// Keys looked up at a time, where keys expire.
const LOOKUPS_MAX: usize = 32;
/// Names walked without a pause.
const NAMES_PER_STEP: usize = 256;

/// What a page has so far: one key more than asked for, to know whether there are more.
struct Page {
    limit: usize,
    keys: Vec<Vec<u8>>,
    bytes: usize,
}

impl Page {
    fn is_full(&self) -> bool {
        self.keys.len() > self.limit || (self.bytes > PAGE_BYTES_MAX && self.keys.len() > 1)
    }

    fn add(&mut self, key: Vec<u8>) {
        if !self.is_full() {
            self.bytes += key.len();
            self.keys.push(key);
        }
    }

    fn finish(mut self) -> ListPage {
        let more = self.is_full();
        if more {
            self.keys.pop();
        }
        ListPage { keys: self.keys, more }
    }
}

impl Partition {
    pub(crate) async fn list(
        self: &Rc<Self>,
        container: ContainerId,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Output> {
        if !(1..=LIST_KEYS_MAX).contains(&limit) {
            return Err(Error::Invalid("number of keys of a listing page"));
        }
        let page = loop {
            self.keys_ready().await?;
            match self.list_page(container, prefix, after, limit).await {
                // The runs are damaged and will be built anew: then it goes on.
                Err(Error::Unreadable(_)) if self.keys.must_be_rebuilt() => {}
                listed => break listed?,
            }
        };
        // What was seen is true after a crash too.
        self.log.flush().await?;
        Ok(Output::Listed(page))
    }

    async fn list_page(
        self: &Rc<Self>,
        container: ContainerId,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<ListPage> {
        let (generation, expiring) = {
            let state = self.state.borrow();
            (state.generation(container), state.counters(container).expiring > 0)
        };
        let bound = name_of(generation, prefix);
        let mut name = bound.clone();
        if let Some(after) = after.filter(|after| *after >= prefix) {
            // The first name that can follow it.
            name = name_of(generation, after);
            name.push(0);
        }
        let mut merged = self.keys.merged(Origin::FOREGROUND);
        merged.seek(&name).await?;
        let mut page = Page { limit, keys: Vec::new(), bytes: 0 };
        let mut candidates = Vec::new();
        let mut walked = 0;
        while !page.is_full() {
            let next = merged.next(&mut name).await?.filter(|_| name.starts_with(&bound));
            let key = split_name(&name).map(|(_, key)| key);
            match (next, key) {
                (Some(false), Some(key)) if expiring => candidates.push(key.to_vec()),
                (Some(false), Some(key)) => page.add(key.to_vec()),
                (Some(_), _) => {}
                (None, _) => {
                    self.add_live(container, &mut candidates, &mut page).await?;
                    break;
                }
            }
            let missing = page.limit + 1 - page.keys.len();
            if candidates.len() >= missing.min(LOOKUPS_MAX) {
                self.add_live(container, &mut candidates, &mut page).await?;
            }
            walked += 1;
            if walked % NAMES_PER_STEP == 0 {
                self.reactor.yield_now().await;
            }
        }
        Ok(page.finish())
    }

    /// Adds those of the candidates that have not expired.
    async fn add_live(
        self: &Rc<Self>,
        container: ContainerId,
        candidates: &mut Vec<Vec<u8>>,
        page: &mut Page,
    ) -> Result<()> {
        // A transaction that holds a key may be the one that lists: it is there until that has ended.
        let (kept, keys): (Vec<_>, Vec<_>) = std::mem::take(candidates).into_iter().partition(|key| {
            let (slot, fingerprint) = self.place(container, key).lock_id();
            self.locks.is_kept(slot, fingerprint)
        });
        kept.into_iter().for_each(|key| page.add(key));
        let looked = join_all(keys.iter().map(|key| self.exist(container, key, ReadFrom::Flash))).await;
        for (key, looked) in keys.into_iter().zip(looked) {
            match looked {
                // One that cannot be read is there all the same.
                Ok(_) | Err(Error::Unreadable(_)) => page.add(key),
                Err(Error::NotFound) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
