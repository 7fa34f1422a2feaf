//! What one turn moves for long values.
//!
//! Role: whoever copies many bytes to or from a socket takes a share of what a turn moves, and waits for a
//! later turn when nothing is left. Place on the path: before a long receive or send is submitted.
//!
//! Invariants:
//! * one turn grants at most [`BULK_BYTES_PER_TURN`], so short requests wait for that much copying and not
//!   for as much as there are long values under way; who asks for more has a turn to itself;
//! * shares are granted in the order in which they were asked for;
//! * while anybody waits, the core does not sleep: the task that began to wait was work of its turn.

use crate::limits::BULK_BYTES_PER_TURN;
use crate::sync::{Permit, Permits};
use std::cell::RefCell;
use std::rc::Rc;

/// The bytes that are left of this turn, and the shares that are not.
pub(crate) struct Bulk {
    left: Rc<Permits>,
    granted: RefCell<Vec<Permit>>,
}

impl Default for Bulk {
    fn default() -> Bulk {
        Bulk { left: Permits::new(BULK_BYTES_PER_TURN), granted: RefCell::default() }
    }
}

impl Bulk {
    /// A turn begins: what was granted in the one before is to be had again.
    pub(crate) fn begin_turn(&self) {
        self.granted.borrow_mut().clear();
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
        bulk.begin_turn();
        assert!(!is_granted(fourth.as_mut()), "it came later");
        assert!(is_granted(third.as_mut()) && !is_granted(fourth.as_mut()), "nothing is left");
        bulk.begin_turn();
        assert!(is_granted(fourth.as_mut()));
    }

    #[test]
    fn a_share_larger_than_a_turn_has_one_to_itself_and_one_given_up_holds_up_none() {
        let bulk = Bulk::default();
        assert!(is_granted(pin!(bulk.share(2 * BULK_BYTES_PER_TURN))));
        let (mut gone, mut next) = (Box::pin(bulk.share(BULK_BYTES_PER_TURN)), pin!(bulk.share(1)));
        assert!(!is_granted(gone.as_mut()) && !is_granted(next.as_mut()));
        drop(gone);
        bulk.begin_turn();
        assert!(is_granted(next.as_mut()));
    }
}
