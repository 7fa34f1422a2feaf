//! Operations on a whole database inside a transaction: counting, scanning, listing.
//!
//! They see the database as it is at that moment, with what the transaction has written; keys that others
//! write meanwhile may be among it or not, as outside of a transaction.

use super::Transaction;
use super::overlay::Change;
use plimsoll_kv::{ContainerId, Item, ListPage, Op, Output, Result, ScanPage, Stats};
use std::collections::BTreeSet;

const WRONG_OUTPUT: &str = "an operation gives its own output";

impl Transaction {
    fn changes(&self, container: ContainerId) -> (bool, Vec<Change>) {
        let overlay = self.overlay.borrow();
        (overlay.is_cleared(container), overlay.changes(container))
    }

    pub(super) async fn stats(&self, container: ContainerId) -> Result<Output> {
        let (cleared, changes) = self.changes(container);
        let mut stats = Stats::default();
        if !cleared {
            let Output::Stats(counted) = self.aside(Op::Stats { container }).await? else {
                unreachable!("{WRONG_OUTPUT}")
            };
            stats = counted;
        }
        let expires = |item: &Option<Item>| item.as_ref().is_some_and(|item| item.expiry_ms.is_some());
        for Change { key, base, now } in changes {
            let before = match base {
                Some(base) => base,
                None => self.base(container, key).await?,
            };
            let changed = |count: u64, now: bool, before: bool| {
                (count + u64::from(now)).saturating_sub(u64::from(before))
            };
            stats.keys = changed(stats.keys, now.is_some(), before.is_some());
            stats.expiring_keys = changed(stats.expiring_keys, expires(&now), expires(&before));
        }
        Ok(Output::Stats(stats))
    }

    pub(super) async fn scan(&self, container: ContainerId, cursor: u64, limit: usize) -> Result<Output> {
        let (cleared, changes) = self.changes(container);
        let mut page = ScanPage::default();
        if !cleared {
            let scanned = self.aside(Op::Scan { container, cursor, limit }).await?;
            let Output::Scanned(scanned) = scanned else { unreachable!("{WRONG_OUTPUT}") };
            page = scanned;
        }
        let changed: BTreeSet<Vec<u8>> = changes.iter().map(|change| change.key.clone()).collect();
        page.keys.retain(|key| !changed.contains(key));
        if page.cursor == 0 {
            // What was written comes with the last page.
            page.keys.extend(changes.into_iter().filter(|change| change.now.is_some()).map(|c| c.key));
        }
        Ok(Output::Scanned(page))
    }

    pub(super) async fn list(
        &self,
        container: ContainerId,
        prefix: Vec<u8>,
        mut after: Option<Vec<u8>>,
        limit: usize,
    ) -> Result<Output> {
        let (cleared, changes) = self.changes(container);
        loop {
            let mut page = ListPage::default();
            if !cleared {
                let op = Op::List { container, prefix: prefix.clone(), after: after.clone(), limit };
                let Output::Listed(listed) = self.aside(op).await? else { unreachable!("{WRONG_OUTPUT}") };
                page = listed;
            }
            // Of what comes after the page, nothing is known yet.
            let end = page.keys.last().filter(|_| page.more).cloned();
            let mut keys: BTreeSet<Vec<u8>> = page.keys.into_iter().collect();
            for Change { key, now, .. } in &changes {
                let is_later = after.as_ref().is_none_or(|after| key > after);
                let is_within = end.as_ref().is_none_or(|end| key <= end);
                if now.is_none() {
                    keys.remove(key);
                } else if is_later && is_within && key.starts_with(&prefix) {
                    keys.insert(key.clone());
                }
            }
            if keys.is_empty() && end.is_some() {
                after = end; // The transaction has deleted the whole page.
                continue;
            }
            let more = page.more || keys.len() > limit;
            return Ok(Output::Listed(ListPage { keys: keys.into_iter().take(limit).collect(), more }));
        }
    }
}
