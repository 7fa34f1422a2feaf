//! Headroom: room for one client at a time whose backlog is longer than what is left for others.
//!
//! Role: lets clients that together send more than may wait come to an end one after the other. Place on the
//! path: before a receive that makes a backlog longer.
//!
//! Invariants:
//! * backlogs alone do not bring clients to half of what they may hold, from where on turns are taken
//!   ([`super::turns`]): each grows as long as its client holds less than is left of that half, as the queues
//!   of a switch do (Choudhury and Hahne, Dynamic queue length thresholds, 1998);
//! * beyond that one grows, at most by the longest command; after [`LINE_WAIT_NS_MAX`] the next one does, if
//!   there is as much room once more. Replies that wait come on top, a megabyte a client: those who take none
//!   of them are cut where they keep others waiting ([`Core::cut_stalled`]).

use super::Core;
use crate::limits::LINE_WAIT_NS_MAX;
use plimsoll_reactor::sync::WaitList;
use std::cell::Cell;

#[derive(Default)]
pub(super) struct Headroom {
    /// The client that has it, and since when.
    holder: Cell<Option<(u64, u64)>>,
    changed: WaitList,
}

impl Headroom {
    /// Those who wait look again: room may have come about, or time gone by. They may be thousands, so this
    /// is done when one has ended or left, and each second, not for each reply that is taken.
    pub(super) fn wake(&self) {
        if !self.changed.is_empty() {
            self.changed.wake_all();
        }
    }
}

impl Core {
    /// Waits until the backlog of a client that holds so many bytes may grow.
    pub(crate) async fn wait_for_headroom(&self, client: u64, held_bytes: impl Fn() -> usize) {
        let may_grow = || self.lets_lag(held_bytes()) || self.takes_headroom(client);
        self.headroom.changed.wait_for(|| may_grow().then_some(())).await;
    }

    /// True if less waits than is left of the half that nobody is held back for.
    pub(crate) fn lets_lag(&self, bytes: usize) -> bool {
        let half = self.shared.settings.budget.client_bytes_max / 2;
        bytes < half.saturating_sub(self.held_bytes.get())
    }

    fn takes_headroom(&self, client: u64) -> bool {
        let now_ns = self.reactor.now_ns();
        let is_free = match self.headroom.holder.get() {
            Some((holder, _)) if holder == client => return true,
            Some((_, since_ns)) => now_ns >= since_ns + LINE_WAIT_NS_MAX && self.fits(2),
            None => self.fits(1),
        };
        if is_free {
            self.headroom.holder.set(Some((client, now_ns)));
        }
        is_free
    }

    /// The backlog of a client is empty, or it has ended.
    pub(crate) fn leave_headroom(&self, client: u64) {
        if self.headroom.holder.get().is_some_and(|(holder, _)| holder == client) {
            self.headroom.holder.set(None);
            self.headroom.wake();
        }
    }
}
