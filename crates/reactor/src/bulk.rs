//! What one turn moves for long values.
//!
//! Role: whoever copies many bytes to or from a socket takes a share of what a turn moves, and waits for a
//! later turn when nothing is left. Place on the path: before a long receive or send is submitted.
//!
//! Invariants:
//! * one turn grants at most [`BULK_BYTES_PER_TURN`], so short requests wait for that much copying and not
//!   for as much as there are long values under way; who asks for more has a turn to itself;
//! * while short reads are with the drive nothing is granted, for [`BULK_WAIT_NS_MAX`] at most after what was
//!   granted last: the turns that a short request still needs have no copying in them;
//! * shares are granted in the order in which they were asked for.

use crate::limits::{BULK_BYTES_PER_TURN, BULK_WAIT_NS_MAX};
use crate::sync::{Permit, Permits};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// The bytes that are left of this turn, and the shares that are not.
pub(crate) struct Bulk {
    left: Rc<Permits>,
    granted: RefCell<Vec<Permit>>,
    /// When the turn began that grants, or the first of those that do not.
    open_ns: Cell<u64>,
}

impl Default for Bulk {
    fn default() -> Bulk {
        let left = Permits::new(BULK_BYTES_PER_TURN);
        Bulk { left, granted: RefCell::default(), open_ns: Cell::new(0) }
    }
}

impl Bulk {
    /// A turn begins: what was granted in the one before is to be had again, unless short reads are under
    /// way.
    pub(crate) fn begin_turn(&self, now_ns: u64, has_short_reads: bool) {
        if has_short_reads && now_ns < self.open_ns.get() + BULK_WAIT_NS_MAX {
            if self.left.free() > 0 {
                self.granted.borrow_mut().push(self.left.take_free());
            }
            return;
        }
        self.open_ns.set(now_ns);
        self.granted.borrow_mut().clear();
    }

    /// When shares are granted again whatever is under way, if anybody waits for one.
    pub(crate) fn deadline_ns(&self) -> Option<u64> {
        self.left.has_waiting().then(|| self.open_ns.get() + BULK_WAIT_NS_MAX)
    }

    /// Waits for a share of so many bytes.
    pub(crate) async fn share(&self, bytes: usize) {
        let share = self.left.acquire(bytes.min(BULK_BYTES_PER_TURN)).await;
        self.granted.borrow_mut().push(share);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::{Pin, pin};
    use std::task::{Context, Waker};

    fn is_granted(share: Pin<&mut impl Future<Output = ()>>) -> bool {
        share.poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn a_turn_grants_so_many_bytes_in_order() {
        let bulk = Bulk::default();
        let half = BULK_BYTES_PER_TURN / 2;
        assert!(is_granted(pin!(bulk.share(half))) && is_granted(pin!(bulk.share(half))));
        let (mut third, mut fourth) = (pin!(bulk.share(2 * half)), pin!(bulk.share(1)));
        assert!(!is_granted(third.as_mut()) && !is_granted(fourth.as_mut()));
        bulk.begin_turn(0, false);
        assert!(!is_granted(fourth.as_mut()), "it came later");
        assert!(is_granted(third.as_mut()) && !is_granted(fourth.as_mut()), "nothing is left");
        bulk.begin_turn(0, false);
        assert!(is_granted(fourth.as_mut()));
    }

    #[test]
    fn a_share_larger_than_a_turn_has_one_to_itself_and_one_given_up_holds_up_none() {
        let bulk = Bulk::default();
        assert!(is_granted(pin!(bulk.share(2 * BULK_BYTES_PER_TURN))));
        let (mut gone, mut next) = (Box::pin(bulk.share(BULK_BYTES_PER_TURN)), pin!(bulk.share(1)));
        assert!(!is_granted(gone.as_mut()) && !is_granted(next.as_mut()));
        drop(gone);
        bulk.begin_turn(0, false);
        assert!(is_granted(next.as_mut()));
    }

    #[test]
    fn nothing_is_granted_beside_short_reads_but_for_so_long() {
        let bulk = Bulk::default();
        bulk.begin_turn(1000, true);
        let mut share = pin!(bulk.share(1));
        assert!(!is_granted(share.as_mut()));
        let until_ns = bulk.deadline_ns().expect("somebody waits");
        bulk.begin_turn(until_ns - 1, true);
        assert!(!is_granted(share.as_mut()));
        bulk.begin_turn(until_ns, true);
        assert!(is_granted(share.as_mut()) && bulk.deadline_ns().is_none());
        bulk.begin_turn(until_ns + 1, true);
        let mut share = pin!(bulk.share(1));
        assert!(!is_granted(share.as_mut()), "it has been granted just now");
        bulk.begin_turn(until_ns + 2, false);
        assert!(is_granted(share), "the reads have come");
    }
}
