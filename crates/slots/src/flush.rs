//! Flushes, shared by all who wait for one.
//!
//! Role: numbers the drive's flushes, so that it can be said of every store which of them makes it durable.
//! Place on the path: between a store's completion and its acknowledgement.
//!
//! Invariants: a flush makes durable what was completed before it began; at most one is under way, and all
//! who come meanwhile share the next.
//!
//! Never: it goes on after one has failed. What is durable is not known from there on.

use crate::drive::{DriveError, KvSsd};
use plimsoll_reactor::sync::WaitList;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// The flushes of a drive.
#[derive(Default)]
pub(crate) struct Flushes {
    begun: Cell<u64>,
    done: Cell<u64>,
    under_way: Cell<bool>,
    failed: RefCell<Option<DriveError>>,
    ended: WaitList,
}

impl Flushes {
    /// The flush that makes durable what has been completed by now.
    pub(crate) fn next(&self) -> u64 {
        self.begun.get() + 1
    }

    /// True if a flush has ended.
    pub(crate) fn is_done(&self, flush: u64) -> bool {
        self.done.get() >= flush
    }

    /// Waits until a flush has ended; begins it if nobody has. Whoever waits is seen through to the end.
    pub(crate) async fn reach(&self, drive: &Rc<dyn KvSsd>, flush: u64) -> Result<(), DriveError> {
        loop {
            if self.is_done(flush) {
                return Ok(());
            }
            if let Some(error) = self.failed.borrow().clone() {
                return Err(error);
            }
            if self.under_way.get() {
                let ended = self.begun.get();
                let over = || (!self.under_way.get() || self.begun.get() > ended).then_some(());
                self.ended.wait_for(over).await;
                continue;
            }
            self.under_way.set(true);
            let this = self.begun.get() + 1;
            self.begun.set(this);
            let result = drive.flush().await;
            self.under_way.set(false);
            match result {
                Ok(()) => self.done.set(this),
                Err(error) => *self.failed.borrow_mut() = Some(error),
            }
            self.ended.wake_all();
        }
    }
}
