//! The task of the keys: recovers them, flushes full tables, merges runs.
//!
//! Place on the path: none; it sleeps until something wakes it. It stands beside the background
//! task, so that a long checkpoint or cleaning holds up no flush, and stores do not wait for it.
//!
//! Invariants: one bounded piece of work at a time; a flush never waits for a merge; what failed is
//! tried again after a rest, and who waits for it is told.

use super::KeysFound;
use super::merge::Merge;
use crate::metrics::add;
use crate::partition::Partition;
use plimsoll_kv::{Error, Result};
use std::rc::Rc;

/// After so many reads in a row that failed the runs are built anew from the records.
const UNREADABLE_MAX: u32 = 3;
/// After a failed piece of work the task rests this long.
const RETRY_DELAY_NS: u64 = 100_000_000;

impl Partition {
    /// Runs until the partition has closed or its log failed.
    pub(crate) async fn run_keys(self: Rc<Self>, found: KeysFound) {
        let mut found = Some(found);
        let mut merge = None;
        while !self.keys.stopping.get() && self.log.failure().is_none() {
            match self.keys_step(&mut found, &mut merge).await {
                Ok(true) => {
                    self.keys.unreadable.set(0);
                    self.reactor.yield_now().await;
                }
                Ok(false) => self.keys_rest().await,
                Err(error) => {
                    merge = None;
                    // What is to be brought together anew holds no room meanwhile: a checkpoint needs it.
                    self.drop_recovered(found.as_ref());
                    self.reclaim();
                    self.keys_failed(error);
                    self.reactor.sleep_ns(RETRY_DELAY_NS).await;
                }
            }
        }
        drop(merge);
        self.keys.stopped.set(true);
        self.keys.changed.wake_all();
        self.log.nudge();
    }

    fn keys_failed(&self, error: Error) {
        if error != Error::NoSpace {
            tracing::warn!(partition = self.layout.partition, %error, "work on the keys failed; it will be tried again");
        }
        let unreadable = matches!(error, Error::Unreadable(_));
        let row = if unreadable { self.keys.unreadable.get() + 1 } else { 0 };
        self.keys.unreadable.set(row % UNREADABLE_MAX);
        if row == UNREADABLE_MAX {
            // Runs, or the log, cannot be read time after time: the records may be.
            self.keys.io.damaged.set(true);
        }
        add(&self.keys.failures, 1);
        self.keys.failure.replace(Some(error));
        self.keys.changed.wake_all();
        self.log.nudge();
        self.background.ring();
    }

    async fn keys_rest(&self) {
        self.keys.work.heard().await;
    }

    /// One piece of work; true if there may be more.
    async fn keys_step(&self, found: &mut Option<KeysFound>, merge: &mut Option<Merge>) -> Result<bool> {
        let keys = &self.keys;
        if keys.io.damaged.replace(false) {
            // Whatever is read from now on waits until the runs were built anew.
            *merge = None;
            *found = None;
            keys.ready.set(false);
        }
        if !keys.ready.get() {
            self.recover_keys(found.as_ref()).await?;
            *found = None;
            keys.older.set(0);
            keys.weighed.set(None);
            keys.failure.replace(None);
            add(&keys.recoveries, 1);
            keys.ready.set(true);
            keys.changed.wake_all();
            return Ok(true);
        }
        if self.flush_oldest(merge.as_ref()).await? {
            return Ok(true);
        }
        if let Some(going) = merge {
            if !self.step_merge(going).await?
                && let Some(done) = merge.take()
            {
                self.end_merge(done).await?;
                self.reclaim();
            }
            return Ok(true);
        }
        *merge = self.begin_merge();
        Ok(merge.is_some())
    }

    /// Flushes the oldest frozen table; false if there is none.
    pub(crate) async fn flush_oldest(&self, merging: Option<&Merge>) -> Result<bool> {
        let keys = &self.keys;
        let Some(table) = keys.frozen.borrow().front().cloned() else { return Ok(false) };
        self.flush_table(&table, false, merging).await?;
        // In one breath with the run that took its place.
        keys.frozen.borrow_mut().pop_front();
        add(&keys.tables_flushed, 1);
        if keys.ready.get() {
            keys.failure.replace(None);
        }
        keys.freeze_if_full();
        keys.changed.wake_all();
        self.log.nudge();
        Ok(true)
    }

    /// Ends the task.
    pub(crate) async fn stop_keys(&self) {
        self.keys.stopping.set(true);
        self.keys.work.ring();
        self.keys.changed.wait_for(|| self.keys.stopped.get().then_some(())).await;
    }
}
