//! What a connection holds of the clients' memory.
//!
//! Invariants: each byte is counted once, wherever it is on its way; a change is told the core at once; what
//! a connection that is cut held is given back when it has ended, as a whole.

use super::Connection;
use super::account::Account;
use crate::core::{Reservation, Turn};
use crate::limits::{
    GROWING_BYTES_MAX, LONG_COMMAND_BYTES, REPLY_BYTES_MAX, STANDING_NAME_BYTES, UNREAD_BYTES_MUCH,
};
use futures_util::future::{Either, select};
use plimsoll_kv::{Error, Result};
use std::pin::pin;

impl Connection {
    /// A command under way holds so many bytes more.
    pub(crate) fn hold_more(&self, bytes: usize) {
        self.hold_instead(0, bytes);
    }

    /// And so many less.
    pub(crate) fn hold_less(&self, bytes: usize) {
        self.hold_instead(bytes, 0);
    }

    /// So many bytes now, where it held others before.
    pub(super) fn hold_instead(&self, before: usize, now: usize) {
        self.request_bytes.set(self.request_bytes.get() - before + now);
        self.recount();
    }

    /// Gives back what was received and is not needed, slowly if it is long.
    pub(super) fn discard(&self, received: Vec<u8>) {
        let used = received.len();
        self.core.reactor.discard(received, used);
    }

    /// Bytes of the longest reply that is made whole.
    pub(crate) fn reply_bytes_max(&self) -> usize {
        self.core.shared.settings.budget.reply_bytes_max()
    }

    /// Room for a reply that is made whole.
    ///
    /// # Errors
    /// [`Error::Overloaded`]: others hold too much for too long, or nobody is there any more to take it.
    pub(crate) async fn reserve_reply(&self, bytes: usize) -> Result<Reservation> {
        if bytes <= REPLY_BYTES_MAX {
            return Ok(self.core.reserve_short_reply(bytes));
        }
        let reserved = self.core.reserve_long_reply(bytes, || self.counted_bytes.get());
        let gone = self.end.wait_for(|| self.dead.get().then_some(()));
        match select(pin!(gone), pin!(reserved)).await {
            Either::Left(_) => Err(Error::Overloaded),
            Either::Right((reserved, _)) => reserved,
        }
    }

    /// About how many bytes it holds.
    pub(crate) fn held_bytes(&self) -> usize {
        self.standing_bytes.get()
            + self.received_bytes.get()
            + self.backlog_bytes.get()
            + self.request_bytes.get()
            + self.running_bytes.get()
            + self.multi.borrow().as_ref().map_or(0, |multi| multi.bytes)
            + self.sending_bytes.get()
            + self.lagging_bytes.get()
            + self.queue.borrow().held_bytes()
            + self.stream.held_bytes()
    }

    /// A command that was received is under way. What is short is told the core with what comes next.
    pub(super) fn holds_while_running(&self, account: &Account) {
        self.running_bytes.set(self.running_bytes.get() + account.request_bytes);
        if account.request_bytes >= LONG_COMMAND_BYTES {
            self.recount();
        }
    }

    /// Names of so many bytes stand here until the client lets them go.
    pub(crate) fn stands(&self, names: usize, bytes: usize) {
        let more = names * STANDING_NAME_BYTES + bytes;
        self.standing_bytes.set(self.standing_bytes.get() + more);
        self.recount();
    }

    /// It let them go.
    pub(crate) fn stands_no_more(&self, names: usize, bytes: usize) {
        let less = names * STANDING_NAME_BYTES + bytes;
        self.standing_bytes.set(self.standing_bytes.get() - less);
        self.recount();
    }

    /// Who is cut first when all hold too much. As long as anybody holds much, none of those who do not; of
    /// those who do, last who asked not to be; else first who takes none of its replies, then who could go on
    /// with a long command and does not, and last who does; of each the largest, without commands under way,
    /// whose memory a cut gives back no sooner, as long as there is any that holds much else.
    pub(crate) fn eviction_rank(&self) -> (bool, bool, u8, bool, usize) {
        let takes_nothing = self.takes_nothing();
        let stalls = match self.turn.borrow().as_ref().and_then(Turn::is_used) {
            _ if takes_nothing => 3,
            Some(false) => 2,
            None => 1,
            Some(true) => 0,
        };
        let bytes = self.counted_bytes.get();
        let other_bytes = bytes.saturating_sub(self.running_bytes.get());
        // Of those who take nothing there may be thousands, and they hold what they do for nothing.
        let much = if takes_nothing { UNREAD_BYTES_MUCH } else { GROWING_BYTES_MAX };
        let is_much = |bytes| bytes >= much;
        let weight = if is_much(other_bytes) { other_bytes } else { bytes };
        (is_much(bytes), !self.no_evict.get(), stalls, is_much(other_bytes), weight)
    }

    /// Tells the core what it holds now.
    pub(super) fn recount(&self) {
        if self.loops.get() == 0 || self.dead.get() {
            return; // It has ended, or will: what it held is given back as a whole.
        }
        let now = self.held_bytes();
        let before = self.counted_bytes.replace(now);
        self.core.hold(before, now);
    }
}
