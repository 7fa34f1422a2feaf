//! What one turn moves for long values.
//!
//! Role: whoever copies many bytes to or from a socket takes a share of what a turn moves, and waits for a
//! later turn when nothing is left. Place on the path: before a long receive or send is submitted.
//!
//! Invariants:
//! * one turn grants at most [`BULK_BYTES_PER_TURN`], or a single share that is larger: so short requests
//!   wait for that much copying and not for as much as there are long values under way;
//! * shares are granted in the order in which they were asked for;
//! * while anybody waits, the core does not sleep: the task that began to wait was work of its turn.

use crate::limits::BULK_BYTES_PER_TURN;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

struct Waiting {
    number: u64,
    bytes: usize,
    waker: Waker,
}

/// What is left of this turn, and who waits for another.
#[derive(Default)]
pub(crate) struct Bulk(RefCell<Inner>);

#[derive(Default)]
struct Inner {
    granted_bytes: usize,
    waiting: VecDeque<Waiting>,
    /// The number of the next one that has to wait.
    next: u64,
}

impl Inner {
    fn grants(&mut self, bytes: usize) -> bool {
        let fits = self.granted_bytes == 0 || self.granted_bytes + bytes <= BULK_BYTES_PER_TURN;
        if fits {
            self.granted_bytes += bytes;
        }
        fits
    }
}

impl Bulk {
    /// A turn begins: those who waited longest get their shares of it.
    pub(crate) fn begin_turn(&self) {
        let mut inner = self.0.borrow_mut();
        inner.granted_bytes = 0;
        while let Some(bytes) = inner.waiting.front().map(|first| first.bytes) {
            if !inner.grants(bytes) {
                break;
            }
            inner.waiting.pop_front().expect("it is there").waker.wake();
        }
    }

    /// Waits for a share of so many bytes.
    pub(crate) fn share(&self, bytes: usize) -> Share<'_> {
        Share { bulk: self, bytes, number: None }
    }
}

/// Waits for its share.
pub(crate) struct Share<'a> {
    bulk: &'a Bulk,
    bytes: usize,
    number: Option<u64>,
}

impl Future for Share<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let (bulk, bytes) = (self.bulk, self.bytes);
        let mut inner = bulk.0.borrow_mut();
        let Some(number) = self.number else {
            if inner.waiting.is_empty() && inner.grants(bytes) {
                return Poll::Ready(());
            }
            let number = inner.next;
            inner.next += 1;
            inner.waiting.push_back(Waiting { number, bytes, waker: cx.waker().clone() });
            self.number = Some(number);
            return Poll::Pending;
        };
        match inner.waiting.iter_mut().find(|one| one.number == number) {
            Some(one) => {
                one.waker.clone_from(cx.waker());
                Poll::Pending
            }
            // Whoever does not wait any more has been granted its share.
            None => Poll::Ready(()),
        }
    }
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.bulk.0.borrow_mut().waiting.retain(|one| one.number != number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;

    fn is_granted(share: Pin<&mut Share<'_>>) -> bool {
        share.poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn a_turn_grants_so_many_bytes_in_order() {
        let bulk = Bulk::default();
        let half = BULK_BYTES_PER_TURN / 2;
        let [mut first, mut second] = [half, half].map(|bytes| Box::pin(bulk.share(bytes)));
        assert!(is_granted(first.as_mut()) && is_granted(second.as_mut()));
        let (mut third, mut fourth) = (Box::pin(bulk.share(2 * half)), Box::pin(bulk.share(1)));
        assert!(!is_granted(third.as_mut()) && !is_granted(fourth.as_mut()));
        bulk.begin_turn();
        assert!(!is_granted(fourth.as_mut()), "it came later, and nothing is left");
        assert!(is_granted(third.as_mut()));
        bulk.begin_turn();
        assert!(is_granted(fourth.as_mut()));
    }

    #[test]
    fn a_share_larger_than_a_turn_has_one_to_itself_and_one_given_up_holds_up_none() {
        let bulk = Bulk::default();
        assert!(is_granted(pin!(bulk.share(2 * BULK_BYTES_PER_TURN))));
        let (mut gone, mut next) = (Box::pin(bulk.share(BULK_BYTES_PER_TURN)), Box::pin(bulk.share(1)));
        assert!(!is_granted(gone.as_mut()) && !is_granted(next.as_mut()));
        drop(gone);
        bulk.begin_turn();
        assert!(is_granted(next.as_mut()));
    }
}
