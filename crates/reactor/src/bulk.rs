//! What one turn moves for long values.
//!
//! Role: whoever copies many bytes to or from a socket takes a share of what a turn moves, and waits for a
//! later turn when nothing is left. Place on the path: before a long receive or send is submitted.
//!
//! Invariants:
//! * one turn grants at most [`BULK_BYTES_PER_TURN`], so short requests wait for that much copying and not
//!   for as much as there are long values under way; who asks for more has a turn to itself;
//! * a turn that begins while short reads are with the drive grants no receive, unless [`BULK_WAIT_NS_MAX`]
//!   have gone by since one did: the turns that a short request still needs have no such copying in them;
//! * receives are granted in the order in which they were asked for, and so are sends;
//! * a share that was granted stays granted, however late its task is polled.

use crate::limits::{BULK_BYTES_PER_TURN, BULK_WAIT_NS_MAX};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// Which way the bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Receive,
    Send,
}

/// Who waits for a share, or has one and does not know yet.
struct Waiting {
    ticket: u64,
    way: Way,
    bytes: usize,
    granted: bool,
    waker: Waker,
}

/// What is left of this turn, and who waits for the next.
#[derive(Default)]
pub(crate) struct Bulk {
    left: Cell<usize>,
    /// What was granted to those who do not know yet.
    granted: Cell<usize>,
    /// This turn grants receives.
    receives: Cell<bool>,
    /// When the last turn began that did.
    received_ns: Cell<u64>,
    waiting: RefCell<VecDeque<Waiting>>,
    next_ticket: Cell<u64>,
}

impl Bulk {
    /// A turn begins: who waits is granted what it has room for.
    pub(crate) fn begin_turn(&self, now_ns: u64, has_short_reads: bool) {
        let receives = !has_short_reads || now_ns >= self.received_ns.get() + BULK_WAIT_NS_MAX;
        // Those that do not know of theirs yet may come to it in this turn.
        self.left.set(BULK_BYTES_PER_TURN - self.granted.get());
        self.receives.set(receives);
        if receives {
            self.received_ns.set(now_ns);
        }
        let mut waiting = self.waiting.borrow_mut();
        for one in waiting.iter_mut().filter(|one| !one.granted && self.grants(one.way)) {
            if !self.take(one.bytes) {
                return;
            }
            one.granted = true;
            self.granted.set(self.granted.get() + one.bytes);
            one.waker.wake_by_ref();
        }
    }

    /// True if anybody waits for a later turn.
    pub(crate) fn has_waiting(&self) -> bool {
        !self.waiting.borrow().is_empty()
    }

    /// When receives are granted again whatever is under way, if any waits for that.
    pub(crate) fn deadline_ns(&self) -> Option<u64> {
        let waits = |one: &Waiting| one.way == Way::Receive && !one.granted;
        let any_waits = self.waiting.borrow().iter().any(waits);
        any_waits.then(|| self.received_ns.get() + BULK_WAIT_NS_MAX)
    }

    fn grants(&self, way: Way) -> bool {
        way == Way::Send || self.receives.get()
    }

    fn take(&self, bytes: usize) -> bool {
        let left = self.left.get().checked_sub(bytes);
        self.left.set(left.unwrap_or(self.left.get()));
        left.is_some()
    }

    /// Waits for a share of so many bytes.
    pub(crate) async fn share(&self, way: Way, bytes: usize) {
        let bytes = bytes.min(BULK_BYTES_PER_TURN);
        let is_first = !self.waiting.borrow().iter().any(|one| !one.granted && self.grants(one.way));
        if is_first && self.grants(way) && self.take(bytes) {
            return;
        }
        let ticket = self.next_ticket.replace(self.next_ticket.get() + 1);
        let _place = Place { bulk: self, ticket };
        poll_fn(|cx| {
            let mut waiting = self.waiting.borrow_mut();
            match waiting.iter_mut().find(|one| one.ticket == ticket) {
                Some(one) if one.granted => return Poll::Ready(()),
                Some(one) => one.waker.clone_from(cx.waker()),
                None => {
                    let waker = cx.waker().clone();
                    waiting.push_back(Waiting { ticket, way, bytes, granted: false, waker });
                }
            }
            Poll::Pending
        })
        .await;
    }
}

/// A place among those who wait; dropping it gives it up.
struct Place<'a> {
    bulk: &'a Bulk,
    ticket: u64,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut waiting = self.bulk.waiting.borrow_mut();
        let place = waiting.iter().position(|one| one.ticket == self.ticket);
        // It was not polled if it has none.
        let left = place.and_then(|place| waiting.remove(place)).filter(|one| one.granted);
        self.bulk.granted.set(self.bulk.granted.get() - left.map_or(0, |one| one.bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::{Pin, pin};
    use std::task::Context;

    fn is_granted(share: Pin<&mut impl Future<Output = ()>>) -> bool {
        share.poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn a_turn_grants_so_many_bytes_in_order() {
        let bulk = Bulk::default();
        bulk.begin_turn(0, false);
        let half = BULK_BYTES_PER_TURN / 2;
        assert!(
            is_granted(pin!(bulk.share(Way::Send, half))) && is_granted(pin!(bulk.share(Way::Receive, half)))
        );
        let (mut third, mut fourth) = (pin!(bulk.share(Way::Send, 2 * half)), pin!(bulk.share(Way::Send, 1)));
        assert!(!is_granted(third.as_mut()) && !is_granted(fourth.as_mut()));
        bulk.begin_turn(1, false);
        assert!(!is_granted(fourth.as_mut()), "it came later");
        assert!(is_granted(third.as_mut()) && !is_granted(fourth.as_mut()), "nothing is left");
        bulk.begin_turn(2, false);
        assert!(is_granted(fourth.as_mut()));
    }

    #[test]
    fn a_share_larger_than_a_turn_has_one_to_itself_and_one_given_up_holds_up_none() {
        let bulk = Bulk::default();
        bulk.begin_turn(0, false);
        assert!(is_granted(pin!(bulk.share(Way::Send, 2 * BULK_BYTES_PER_TURN))));
        let mut gone = Box::pin(bulk.share(Way::Send, BULK_BYTES_PER_TURN));
        let mut next = pin!(bulk.share(Way::Send, 1));
        assert!(!is_granted(gone.as_mut()) && !is_granted(next.as_mut()));
        drop(gone);
        bulk.begin_turn(1, false);
        assert!(is_granted(next.as_mut()));
    }

    #[test]
    fn no_receive_is_granted_beside_short_reads_but_for_so_long() {
        let bulk = Bulk::default();
        bulk.begin_turn(1000, true);
        let (mut receive, mut send) = (pin!(bulk.share(Way::Receive, 1)), pin!(bulk.share(Way::Send, 1)));
        assert!(!is_granted(receive.as_mut()) && is_granted(send.as_mut()));
        let until_ns = bulk.deadline_ns().expect("somebody waits");
        bulk.begin_turn(until_ns - 1, true);
        assert!(!is_granted(receive.as_mut()));
        bulk.begin_turn(until_ns, true);
        assert!(is_granted(receive.as_mut()) && bulk.deadline_ns().is_none());
        bulk.begin_turn(until_ns + 1, true);
        let mut receive = pin!(bulk.share(Way::Receive, 1));
        assert!(!is_granted(receive.as_mut()), "one has been granted just now");
        bulk.begin_turn(until_ns + 2, false);
        assert!(is_granted(receive), "the reads have come");
    }

    /// A busy core polls who was granted a share some turns later: it had been taken away meanwhile, again
    /// and again (found by a reader).
    #[test]
    fn a_share_that_was_granted_stays_granted() {
        let bulk = Bulk::default();
        bulk.begin_turn(1000, true);
        let shares = [(); 2].map(|()| Box::pin(bulk.share(Way::Receive, 1000)));
        let mut shares = shares.map(|mut share| {
            assert!(!is_granted(share.as_mut()));
            share
        });
        let open_ns = bulk.deadline_ns().expect("somebody waits");
        bulk.begin_turn(open_ns, true);
        bulk.begin_turn(open_ns + 1, true);
        let rest = BULK_BYTES_PER_TURN - 2 * 1000;
        assert!(!is_granted(pin!(bulk.share(Way::Send, rest + 1))), "theirs is not granted twice");
        assert!(is_granted(pin!(bulk.share(Way::Send, rest))));
        assert!(shares.iter_mut().all(|share| is_granted(share.as_mut())), "both, by one turn");
    }
}
