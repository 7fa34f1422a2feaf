//! The order of operations on keys: first come, first served.
//!
//! Role: a store that has to read before it writes holds its key from its first poll until its
//! record has a place in the log; whoever comes later waits in order. A transaction holds many keys, or
//! everything. Readers of a key that nobody holds share it. Place on the path: the first step of every
//! operation on a key in the engine.
//!
//! Invariants:
//! * the order in which keys are given out is the order of the first polls;
//! * whoever wants several keys of a partition gets its places in all of their queues at one instant, so
//!   that no two wait for each other;
//! * who holds everything is alone: those who came before have ended, those who came later wait;
//! * a key is given out when those who read it have ended, who all came before.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// Slot and fingerprint of a key.
pub type KeyId = (u16, u64);

/// Somebody in a queue.
struct Place {
    ticket: u64,
    waker: Option<Waker>,
    /// It is a transaction's, which looks at its keys without waiting for them.
    kept: bool,
}

/// Who waits for whom.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    /// For those who want everything and came before.
    Behind,
    /// For nobody but those before it at its key.
    Beside,
}

/// Somebody who wants everything.
struct Sole {
    ticket: u64,
    waker: Option<Waker>,
    /// Keys held or waited for since before it came.
    before: usize,
}

#[derive(Default)]
struct Queues {
    keys: BTreeMap<KeyId, VecDeque<Place>>,
    /// Those who read keys that nobody held.
    readers: BTreeMap<KeyId, usize>,
    /// Places in `keys`, and readers.
    places: usize,
    everything: VecDeque<Sole>,
}

/// The keys that are held or waited for.
#[derive(Default)]
pub struct KeyLocks {
    queues: RefCell<Queues>,
    next_ticket: Cell<u64>,
}

/// A key held (or its place in the queue); dropping gives it to the next.
pub struct KeyGuard {
    locks: Rc<KeyLocks>,
    key: KeyId,
    ticket: u64,
    order: Order,
}

/// A key that is read; dropping ends that.
pub struct ReadGuard {
    locks: Rc<KeyLocks>,
    key: KeyId,
}

/// Everything held; dropping gives it back.
pub struct EverythingGuard {
    locks: Rc<KeyLocks>,
    ticket: u64,
}

impl KeyLocks {
    /// True if nobody holds or waits for a key.
    #[must_use]
    pub fn is_free(&self, slot: u16, fingerprint: u64) -> bool {
        let queues = self.queues.borrow();
        queues.everything.is_empty() && !queues.keys.contains_key(&(slot, fingerprint))
    }

    /// Reads a key beside others, if nobody holds or waits for it: who comes later waits until it is read.
    #[must_use]
    pub fn read(self: &Rc<Self>, slot: u16, fingerprint: u64) -> Option<ReadGuard> {
        if !self.is_free(slot, fingerprint) {
            return None;
        }
        let (key, mut queues) = ((slot, fingerprint), self.queues.borrow_mut());
        *queues.readers.entry(key).or_default() += 1;
        queues.places += 1;
        Some(ReadGuard { locks: self.clone(), key })
    }

    /// True if a transaction holds a key.
    #[must_use]
    pub fn is_kept(&self, slot: u16, fingerprint: u64) -> bool {
        let queues = self.queues.borrow();
        let first = queues.keys.get(&(slot, fingerprint)).and_then(VecDeque::front);
        queues.everything.front().is_some_and(|sole| sole.before == 0)
            || first.is_some_and(|place| place.kept)
    }

    /// True if anybody holds everything, or waits for it.
    #[must_use]
    pub fn is_everything_wanted(&self) -> bool {
        !self.queues.borrow().everything.is_empty()
    }

    /// True if a transaction holds everything.
    #[must_use]
    pub fn is_everything_kept(&self) -> bool {
        self.queues.borrow().everything.front().is_some_and(|sole| sole.before == 0)
    }

    fn take_ticket(&self) -> u64 {
        self.next_ticket.replace(self.next_ticket.get() + 1)
    }

    fn queue_up(self: &Rc<Self>, key: KeyId, kept: bool) -> KeyGuard {
        let ticket = self.take_ticket();
        let mut queues = self.queues.borrow_mut();
        queues.keys.entry(key).or_default().push_back(Place { ticket, waker: None, kept });
        queues.places += 1;
        KeyGuard { locks: self.clone(), key, ticket, order: Order::Behind }
    }

    /// Waits for a key. Keys with one fingerprint share a queue, which only costs time.
    pub async fn lock(self: &Rc<Self>, slot: u16, fingerprint: u64) -> KeyGuard {
        let guard = self.queue_up((slot, fingerprint), false);
        poll_fn(|cx| guard.poll(cx)).await;
        guard
    }

    /// Waits for a key that who holds everything does not hold.
    pub async fn lock_beside(self: &Rc<Self>, slot: u16, fingerprint: u64) -> KeyGuard {
        let mut guard = self.queue_up((slot, fingerprint), false);
        guard.order = Order::Beside;
        poll_fn(|cx| guard.poll(cx)).await;
        guard
    }

    /// Waits for keys, each named once, for a transaction.
    pub async fn keep(self: &Rc<Self>, keys: &[KeyId]) -> Vec<KeyGuard> {
        self.lock_each(keys, true).await
    }

    /// Waits for keys, each named once.
    pub async fn lock_all(self: &Rc<Self>, keys: &[KeyId]) -> Vec<KeyGuard> {
        self.lock_each(keys, false).await
    }

    async fn lock_each(self: &Rc<Self>, keys: &[KeyId], kept: bool) -> Vec<KeyGuard> {
        let guards: Vec<KeyGuard> = keys.iter().map(|key| self.queue_up(*key, kept)).collect();
        for guard in &guards {
            poll_fn(|cx| guard.poll(cx)).await;
        }
        guards
    }

    /// Waits for everything.
    pub async fn lock_everything(self: &Rc<Self>) -> EverythingGuard {
        let ticket = self.take_ticket();
        let before = self.queues.borrow().places;
        self.queues.borrow_mut().everything.push_back(Sole { ticket, waker: None, before });
        let guard = EverythingGuard { locks: self.clone(), ticket };
        poll_fn(|cx| guard.poll(cx)).await;
        guard
    }
}

impl Queues {
    /// Wakes the first of each queue, and the first who wants everything.
    fn wake_first(&mut self) {
        let keys = self.keys.values_mut().filter_map(|queue| queue.front_mut()?.waker.take());
        let sole = self.everything.front_mut().and_then(|sole| sole.waker.take());
        keys.chain(sole).for_each(Waker::wake);
    }
}

impl KeyGuard {
    fn poll(&self, cx: &Context<'_>) -> Poll<()> {
        let mut queues = self.locks.queues.borrow_mut();
        // Those who want everything and came later wait for this one.
        let is_late = self.order == Order::Behind
            && queues.everything.front().is_some_and(|sole| sole.ticket < self.ticket);
        let is_read = queues.readers.contains_key(&self.key);
        let queue = queues.keys.get_mut(&self.key).expect("a queue lives while a ticket is in it");
        if !is_late && !is_read && queue.front().is_some_and(|place| place.ticket == self.ticket) {
            return Poll::Ready(());
        }
        let place = queue.iter_mut().find(|place| place.ticket == self.ticket);
        place.expect("a ticket stays in its queue until its guard is dropped").waker =
            Some(cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for KeyGuard {
    fn drop(&mut self) {
        let mut queues = self.locks.queues.borrow_mut();
        let queues = &mut *queues;
        let queue = queues.keys.get_mut(&self.key).expect("a queue lives while a ticket is in it");
        queue.retain(|place| place.ticket != self.ticket);
        let next = match queue.front_mut() {
            None => {
                queues.keys.remove(&self.key);
                None
            }
            Some(place) => place.waker.take(),
        };
        queues.places -= 1;
        for sole in queues.everything.iter_mut().filter(|sole| sole.ticket > self.ticket) {
            sole.before -= 1;
        }
        let alone = queues.everything.front_mut().filter(|sole| sole.before == 0);
        let alone = alone.and_then(|sole| sole.waker.take());
        next.into_iter().chain(alone).for_each(Waker::wake);
    }
}

impl Drop for ReadGuard {
    fn drop(&mut self) {
        let mut queues = self.locks.queues.borrow_mut();
        let queues = &mut *queues;
        let readers = queues.readers.get_mut(&self.key).expect("a key is read until its guards are dropped");
        *readers -= 1;
        let mut next = None;
        if *readers == 0 {
            queues.readers.remove(&self.key);
            next = queues.keys.get_mut(&self.key).and_then(|queue| queue.front_mut()?.waker.take());
        }
        queues.places -= 1;
        // A key is not read any more once somebody wants everything: all of these came later.
        queues.everything.iter_mut().for_each(|sole| sole.before -= 1);
        let alone = queues.everything.front_mut().filter(|sole| sole.before == 0);
        let alone = alone.and_then(|sole| sole.waker.take());
        next.into_iter().chain(alone).for_each(Waker::wake);
    }
}

impl EverythingGuard {
    fn poll(&self, cx: &Context<'_>) -> Poll<()> {
        let mut queues = self.locks.queues.borrow_mut();
        let is_first = queues.everything.front().is_some_and(|sole| sole.ticket == self.ticket);
        let sole = queues.everything.iter_mut().find(|sole| sole.ticket == self.ticket);
        let sole = sole.expect("a ticket stays in its queue until its guard is dropped");
        if is_first && sole.before == 0 {
            return Poll::Ready(());
        }
        sole.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for EverythingGuard {
    fn drop(&mut self) {
        let mut queues = self.locks.queues.borrow_mut();
        queues.everything.retain(|sole| sole.ticket != self.ticket);
        queues.wake_first();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::task::Context;

    fn ready<T>(future: std::pin::Pin<&mut impl Future<Output = T>>) -> Option<T> {
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        }
    }

    #[test]
    fn who_wants_everything_waits_for_those_before_and_holds_up_those_after() {
        let locks = Rc::new(KeyLocks::default());
        let first = ready(pin!(locks.lock(1, 7))).expect("nobody holds it");
        let mut everything = pin!(locks.lock_everything());
        assert!(ready(everything.as_mut()).is_none(), "a key is held");
        let mut later = pin!(locks.lock(2, 9));
        assert!(ready(later.as_mut()).is_none(), "it came after");
        assert!(!locks.is_free(3, 3) && !locks.is_kept(3, 3));
        drop(first);
        let alone = ready(everything.as_mut()).expect("all before have ended");
        assert!(ready(later.as_mut()).is_none() && locks.is_kept(3, 3));
        drop(alone);
        assert!(ready(later.as_mut()).is_some());
    }

    #[test]
    fn several_keys_are_waited_for_from_one_instant_on() {
        let locks = Rc::new(KeyLocks::default());
        let held = ready(pin!(locks.lock(0, 2))).unwrap();
        let mut both = pin!(locks.keep(&[(0, 1), (0, 2)]));
        assert!(ready(both.as_mut()).is_none());
        let mut other_way_round = pin!(locks.keep(&[(0, 2), (0, 1)]));
        assert!(ready(other_way_round.as_mut()).is_none());
        let mut everything = pin!(locks.lock_everything());
        assert!(ready(everything.as_mut()).is_none());
        drop(held);
        let both = ready(both.as_mut()).expect("the first in both queues");
        assert!(locks.is_kept(0, 1) && ready(other_way_round.as_mut()).is_none());
        drop(both);
        drop(ready(other_way_round.as_mut()).expect("the next in both queues"));
        assert!(ready(everything.as_mut()).is_some());
    }

    #[test]
    fn who_wants_everything_does_not_come_between_the_keys_of_a_batch() {
        let locks = Rc::new(KeyLocks::default());
        let held = ready(pin!(locks.lock(0, 1))).unwrap();
        let mut batch = pin!(locks.lock_all(&[(0, 1), (0, 2)]));
        assert!(ready(batch.as_mut()).is_none());
        let mut everything = pin!(locks.lock_everything());
        assert!(ready(everything.as_mut()).is_none());
        drop(held);
        let batch = ready(batch.as_mut()).expect("its second key was asked for before everything was");
        assert!(!locks.is_kept(0, 1) && ready(everything.as_mut()).is_none());
        drop(batch);
        assert!(ready(everything.as_mut()).is_some());
    }

    #[test]
    fn who_holds_everything_holds_up_nobody_beside() {
        let locks = Rc::new(KeyLocks::default());
        let alone = ready(pin!(locks.lock_everything())).expect("nobody is there");
        let beside = ready(pin!(locks.lock_beside(1, 7))).expect("its key is free");
        assert!(ready(pin!(locks.lock_beside(1, 7))).is_none(), "and is not now");
        let mut next = pin!(locks.lock_everything());
        assert!(ready(next.as_mut()).is_none());
        drop(alone);
        assert!(ready(next.as_mut()).is_none(), "one that came before has not ended");
        drop(beside);
        assert!(ready(next.as_mut()).is_some());
    }

    #[test]
    fn who_reads_a_key_holds_up_those_who_want_it_later() {
        let locks = Rc::new(KeyLocks::default());
        let readers = [locks.read(0, 1).unwrap(), locks.read(0, 1).unwrap()];
        assert!(locks.is_free(0, 1) && ready(pin!(locks.lock(0, 2))).is_some());
        let mut write = pin!(locks.lock(0, 1));
        assert!(ready(write.as_mut()).is_none(), "it is read");
        assert!(locks.read(0, 1).is_none(), "somebody waits for it");
        let mut everything = pin!(locks.lock_everything());
        assert!(ready(everything.as_mut()).is_none() && locks.read(0, 3).is_none());
        let [first, second] = readers;
        drop(first);
        assert!(ready(write.as_mut()).is_none(), "one reads it still");
        drop(second);
        let written = ready(write.as_mut()).expect("it is read");
        assert!(ready(everything.as_mut()).is_none());
        drop(written);
        assert!(ready(everything.as_mut()).is_some());
        assert!(locks.queues.borrow().readers.is_empty() && locks.queues.borrow().places == 0);
    }

    #[test]
    fn places_that_are_given_up_hold_nobody_up() {
        let locks = Rc::new(KeyLocks::default());
        let held = ready(pin!(locks.lock(0, 1))).unwrap();
        let mut given_up = Box::pin(locks.lock_everything());
        assert!(ready(given_up.as_mut()).is_none());
        drop(given_up);
        assert!(ready(pin!(locks.lock(0, 2))).is_some());
        drop(held);
        assert!(locks.is_free(0, 1));
    }
}
