//! Waiting between tasks of one core: wait lists, bells, one-shot values, FIFO permits.
//!
//! Nothing here is an atomic or a lock: all of it belongs to one thread.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// Who waits, in the order of registration. Mostly it is one, for whom nothing is allocated.
#[derive(Default)]
struct Waiting {
    first: Option<Waker>,
    /// There are none without a first.
    others: Vec<Waker>,
}

/// Tasks that wait for a condition; whoever makes it true wakes them and they look again.
#[derive(Default)]
pub struct WaitList(RefCell<Waiting>);

impl WaitList {
    /// Adds a waiter. It may be woken in vain.
    pub fn register(&self, waker: &Waker) {
        let mut waiting = self.0.borrow_mut();
        let Some(first) = &waiting.first else {
            waiting.first = Some(waker.clone());
            return;
        };
        if !first.will_wake(waker) && !waiting.others.iter().any(|kept| kept.will_wake(waker)) {
            waiting.others.push(waker.clone());
        }
    }

    /// True if nobody waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.borrow().first.is_none()
    }

    /// Wakes every waiter, in the order of registration.
    pub fn wake_all(&self) {
        let Some(first) = self.0.borrow_mut().first.take() else { return };
        let others = std::mem::take(&mut self.0.borrow_mut().others);
        first.wake();
        others.into_iter().for_each(Waker::wake);
    }

    /// Waits until `condition` gives a value; it is asked again after every [`WaitList::wake_all`].
    pub async fn wait_for<T>(&self, mut condition: impl FnMut() -> Option<T>) -> T {
        poll_fn(|cx| match condition() {
            Some(value) => Poll::Ready(value),
            None => {
                self.register(cx.waker());
                Poll::Pending
            }
        })
        .await
    }
}

/// Calls a task to work. A call that comes while the task is busy is kept: it looks once more.
#[derive(Default)]
pub struct Bell {
    rung: Cell<bool>,
    waiting: WaitList,
}

impl Bell {
    /// Calls the task.
    pub fn ring(&self) {
        self.rung.set(true);
        self.waiting.wake_all();
    }

    /// True if it was rung since the task looked last.
    #[must_use]
    pub fn is_rung(&self) -> bool {
        self.rung.get()
    }

    /// Waits until it was rung since the last time.
    pub async fn heard(&self) {
        self.waiting.wait_for(|| self.rung.replace(false).then_some(())).await;
    }
}

struct Shared<T> {
    value: Option<T>,
    waker: Option<Waker>,
    sender_gone: bool,
}

/// The giving end of a one-shot value.
pub struct Sender<T>(Rc<RefCell<Shared<T>>>);
/// The taking end of a one-shot value: a future of it, or `None` if the sender was dropped.
pub struct Receiver<T>(Rc<RefCell<Shared<T>>>);

/// A value to be given once.
#[must_use]
pub fn oneshot<T>() -> (Sender<T>, Receiver<T>) {
    let shared = Rc::new(RefCell::new(Shared { value: None, waker: None, sender_gone: false }));
    (Sender(shared.clone()), Receiver(shared))
}

impl<T> Sender<T> {
    /// Gives the value.
    pub fn send(self, value: T) {
        self.0.borrow_mut().value = Some(value);
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let mut shared = self.0.borrow_mut();
        shared.sender_gone = true;
        if let Some(waker) = shared.waker.take() {
            waker.wake();
        }
    }
}

impl<T> Future for Receiver<T> {
    type Output = Option<T>;
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let mut shared = self.0.borrow_mut();
        if let Some(value) = shared.value.take() {
            return Poll::Ready(Some(value));
        }
        if shared.sender_gone {
            return Poll::Ready(None);
        }
        shared.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

/// A counted set of permits, given out first come, first served.
pub struct Permits {
    free: Cell<usize>,
    next_ticket: Cell<u64>,
    waiting: RefCell<VecDeque<(u64, usize, Option<Waker>)>>,
}

impl Permits {
    /// `count` permits, all free.
    #[must_use]
    pub fn new(count: usize) -> Rc<Permits> {
        Rc::new(Permits { free: Cell::new(count), next_ticket: Cell::new(0), waiting: RefCell::default() })
    }

    /// Permits that nobody holds.
    #[must_use]
    pub fn free(&self) -> usize {
        self.free.get()
    }

    /// True if who asks for one permit now gets it at once.
    #[must_use]
    pub fn has_one(&self) -> bool {
        self.free.get() > 0 && self.waiting.borrow().is_empty()
    }

    /// One permit, if it is to be had at once; it returns when the guard is dropped.
    #[must_use]
    pub fn take_one(self: &Rc<Self>) -> Option<Permit> {
        if !self.has_one() {
            return None;
        }
        self.free.set(self.free.get() - 1);
        Some(Permit { permits: self.clone(), count: 1 })
    }

    /// Waits for `count` permits; they return when the guard is dropped.
    pub async fn acquire(self: &Rc<Self>, count: usize) -> Permit {
        let ticket = self.next_ticket.get();
        self.next_ticket.set(ticket + 1);
        let mut queued = Queued { permits: self, ticket, active: true };
        self.waiting.borrow_mut().push_back((ticket, count, None));
        poll_fn(|cx| {
            let mut waiting = self.waiting.borrow_mut();
            let first = waiting.front().is_some_and(|(front, ..)| *front == ticket);
            if first && self.free.get() >= count {
                waiting.pop_front();
                self.free.set(self.free.get() - count);
                return Poll::Ready(());
            }
            let entry = waiting.iter_mut().find(|(queued, ..)| *queued == ticket);
            entry.expect("a waiter stays in the queue until served").2 = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
        queued.active = false;
        self.wake_first();
        Permit { permits: self.clone(), count }
    }

    fn wake_first(&self) {
        let mut waiting = self.waiting.borrow_mut();
        if let Some((_, count, waker)) = waiting.front_mut()
            && self.free.get() >= *count
            && let Some(waker) = waker.take()
        {
            waker.wake();
        }
    }
}

struct Queued<'a> {
    permits: &'a Permits,
    ticket: u64,
    active: bool,
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        if self.active {
            self.permits.waiting.borrow_mut().retain(|(ticket, ..)| *ticket != self.ticket);
            self.permits.wake_first();
        }
    }
}

/// Permits held; dropping gives them back.
pub struct Permit {
    permits: Rc<Permits>,
    count: usize,
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.permits.free.set(self.permits.free.get() + self.count);
        self.permits.wake_first();
    }
}

#[cfg(test)]
mod tests {
    use super::{Permits, WaitList};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    use std::task::{Wake, Waker};

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    #[test]
    fn each_that_waits_is_woken_once() {
        let (list, woken): (_, [Arc<Woken>; 3]) = (WaitList::default(), Default::default());
        let wakers = woken.clone().map(Waker::from);
        for _ in 0..2 {
            wakers.iter().for_each(|waker| list.register(waker));
        }
        assert!(!list.is_empty());
        list.wake_all();
        list.wake_all();
        assert!(list.is_empty());
        assert_eq!(woken.map(|woken| woken.0.load(Relaxed)), [1, 1, 1]);
    }

    #[test]
    fn a_permit_that_is_taken_at_once_comes_back() {
        let permits = Permits::new(1);
        let taken = permits.take_one().expect("it is free");
        assert!(permits.take_one().is_none() && permits.free() == 0);
        drop(taken);
        assert!(permits.has_one());
    }
}
