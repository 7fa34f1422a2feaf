//! Answers of members to what a read asked of them.
//!
//! Role: holds what was asked and has not been answered, and what was answered while something else was done.
//! Place on the path: inside gathering, and reads of parts.
//!
//! Invariant: what was asked for is polled as long as anybody waits for anything here, or is dropped: a read
//! that nobody polls keeps its turn at its device, and what waits behind it may be what is waited for.

use futures_util::future::{Either, select};
use futures_util::stream::{FuturesUnordered, StreamExt};
use plimsoll_reactor::Reactor;
use std::collections::VecDeque;
use std::pin::pin;

/// A member that has not answered a read for so long is slow: the next one is asked, too.
const HEDGE_NS: u64 = 20_000_000;

/// Reads that are under way, and answers that nobody has taken yet.
pub(crate) struct Answers<F: Future> {
    coming: FuturesUnordered<F>,
    came: VecDeque<F::Output>,
}

impl<F: Future> Answers<F> {
    pub(crate) fn new() -> Answers<F> {
        Answers { coming: FuturesUnordered::new(), came: VecDeque::new() }
    }

    pub(crate) fn ask(&mut self, read: F) {
        self.coming.push(read);
    }

    /// How many are to be taken.
    pub(crate) fn len(&self) -> usize {
        self.coming.len() + self.came.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The next answer, in the order in which they come; nothing if none is to come.
    pub(crate) async fn next(&mut self) -> Option<F::Output> {
        match self.came.pop_front() {
            None => self.coming.next().await,
            came => came,
        }
    }

    /// The next answer, or that none is to come; nothing if it is slow, and another member may be asked, too,
    /// unless who asks can do nothing but wait.
    pub(crate) async fn next_unless_slow(
        &mut self,
        reactor: &Reactor,
        only_waits: bool,
    ) -> Option<Option<F::Output>> {
        if only_waits {
            return Some(self.next().await);
        }
        match select(pin!(self.next()), pin!(reactor.sleep_ns(HEDGE_NS))).await {
            Either::Left((answer, _)) => Some(answer),
            Either::Right(_) => None,
        }
    }

    /// Does something else while they come.
    pub(crate) async fn beside<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        while !self.coming.is_empty() {
            match select(work.as_mut(), self.coming.next()).await {
                Either::Left((done, _)) => return done,
                Either::Right((answer, _)) => self.came.extend(answer),
            }
        }
        work.await
    }
}
