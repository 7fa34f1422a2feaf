//! Headroom: room for one client at a time whose backlog is longer than what is left for others.
//!
//! Role: lets clients that together send more than may wait come to an end one after the other. Place on the
//! path: before a receive that makes a backlog longer.
//!
//! Invariants:
//! * backlogs alone do not bring clients to half of what they may hold, from where on turns are taken
//!   ([`super::turns`]): each grows as long as its client holds less than is left of that half, as the queues
//!   of a switch do (Choudhury and Hahne, Dynamic queue length thresholds, 1998);
//! * beyond that one grows, at most by the longest command. When it has sent nothing for
//!   [`TURN_STALL_NS_MAX`], or [`LINE_WAIT_NS_MAX`] have gone by, another one does, if what that may grow by
//!   fits beside the longest command that comes in by its turn: what the first has sent stays and is counted;
//! * replies that wait come on top, a megabyte a client: those who take none of them are cut where they keep
//!   others waiting ([`Core::cut_stalled`]).

use super::Core;
use crate::limits::{LINE_WAIT_NS_MAX, STALL_NS_MAX, TURN_STALL_NS_MAX};
use plimsoll_reactor::sync::WaitList;
use std::cell::{Cell, RefCell};

/// One that was given headroom, and whose backlog is not empty since.
struct Holder {
    client: u64,
    since_ns: u64,
    /// When it last received something.
    grown_ns: u64,
}

#[derive(Default)]
pub(super) struct Headroom {
    /// The last one may grow.
    holders: RefCell<Vec<Holder>>,
    /// When somebody last got it, or let it go.
    passed_ns: Cell<u64>,
    changed: WaitList,
}

impl Headroom {
    /// Those who wait look again: room may have come about, or time gone by. They may be thousands, so this
    /// is done when one has ended or left, and each second, not for each reply that is taken.
    pub(super) fn wake(&self) {
        self.changed.wake_all();
    }

    /// Forgets a client; true if it was known.
    fn forget(&self, client: u64) -> bool {
        let mut holders = self.holders.borrow_mut();
        let before = holders.len();
        holders.retain(|holder| holder.client != client);
        holders.len() < before
    }
}

impl Core {
    /// Waits until the backlog of a client that holds so many bytes may grow.
    pub(crate) async fn wait_for_headroom(&self, client: u64, held_bytes: impl Fn() -> usize) {
        let may_grow = || self.lets_lag(held_bytes()) || self.takes_headroom(client, held_bytes());
        self.headroom.changed.wait_for(|| may_grow().then_some(())).await;
    }

    /// True if less waits than is left of the half that nobody is held back for.
    pub(crate) fn lets_lag(&self, bytes: usize) -> bool {
        let half = self.shared.settings.budget.client_bytes_max / 2;
        bytes < half.saturating_sub(self.held_bytes.get())
    }

    fn takes_headroom(&self, client: u64, held_bytes: usize) -> bool {
        let now_ns = self.reactor.now_ns();
        let growth_bytes = self.shared.settings.budget.command_bytes_max().saturating_sub(held_bytes);
        let is_free = match self.headroom.holders.borrow().last() {
            None => self.fits_beside(0),
            Some(last) if last.client == client => return true,
            Some(last) => {
                // It may have sent all that it has.
                let has_stalled = now_ns >= last.grown_ns + TURN_STALL_NS_MAX;
                (has_stalled || now_ns >= last.since_ns + LINE_WAIT_NS_MAX) && self.fits_beside(growth_bytes)
            }
        };
        if is_free {
            self.headroom.forget(client);
            let holder = Holder { client, since_ns: now_ns, grown_ns: now_ns };
            self.headroom.holders.borrow_mut().push(holder);
            self.headroom.passed_ns.set(now_ns);
        }
        is_free
    }

    /// The backlog of a client has grown.
    pub(crate) fn uses_headroom(&self, client: u64) {
        if let Some(last) = self.headroom.holders.borrow_mut().last_mut()
            && last.client == client
        {
            last.grown_ns = self.reactor.now_ns();
        }
    }

    /// The backlog of a client is empty, or it has ended.
    pub(crate) fn leave_headroom(&self, client: u64) {
        if self.headroom.forget(client) {
            self.headroom.passed_ns.set(self.reactor.now_ns());
            self.headroom.wake();
        }
    }

    /// True if nobody has got headroom for so long that those who wait for it may be what is in the way.
    pub(crate) fn headroom_stands_still(&self) -> bool {
        self.reactor.now_ns() >= self.headroom.passed_ns.get() + STALL_NS_MAX
    }
}
