//! The order of operations on one key: first come, first served.
//!
//! Role: a store that has to read before it writes holds its key from its first poll until its
//! record has a place in the log; whoever comes later waits in order. Place on the path: the first
//! step of every operation on a key in the engine.
//!
//! Invariant: the order in which guards are given out is the order of the first polls.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

type KeyId = (u16, u64);

#[derive(Default)]
struct Queue {
    waiting: VecDeque<(u64, Option<Waker>)>,
}

/// The keys that are held or waited for.
#[derive(Default)]
pub(crate) struct KeyLocks {
    queues: RefCell<BTreeMap<KeyId, Queue>>,
    next_ticket: Cell<u64>,
}

/// A key held (or its place in the queue); dropping gives it to the next.
pub(crate) struct KeyGuard {
    locks: Rc<KeyLocks>,
    key: KeyId,
    ticket: u64,
}

impl KeyLocks {
    /// True if nobody holds or waits for a key.
    #[must_use]
    pub(crate) fn is_free(&self, slot: u16, fingerprint: u64) -> bool {
        !self.queues.borrow().contains_key(&(slot, fingerprint))
    }

    /// Waits for a key. Keys with one fingerprint share a queue, which only costs time.
    pub(crate) async fn lock(self: &Rc<Self>, slot: u16, fingerprint: u64) -> KeyGuard {
        let ticket = self.next_ticket.replace(self.next_ticket.get() + 1);
        let key = (slot, fingerprint);
        self.queues.borrow_mut().entry(key).or_default().waiting.push_back((ticket, None));
        let guard = KeyGuard { locks: self.clone(), key, ticket };
        poll_fn(|cx| {
            let mut queues = self.queues.borrow_mut();
            let queue = queues.get_mut(&key).expect("a queue lives while a ticket is in it");
            if queue.waiting.front().is_some_and(|(front, _)| *front == ticket) {
                return Poll::Ready(());
            }
            let place = queue.waiting.iter_mut().find(|(queued, _)| *queued == ticket);
            place.expect("a ticket stays in its queue until its guard is dropped").1 =
                Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
        guard
    }
}

impl Drop for KeyGuard {
    fn drop(&mut self) {
        let mut queues = self.locks.queues.borrow_mut();
        let queue = queues.get_mut(&self.key).expect("a queue lives while a ticket is in it");
        queue.waiting.retain(|(ticket, _)| *ticket != self.ticket);
        match queue.waiting.front_mut() {
            None => drop(queues.remove(&self.key)),
            Some((_, waker)) => {
                if let Some(waker) = waker.take() {
                    waker.wake();
                }
            }
        }
    }
}
