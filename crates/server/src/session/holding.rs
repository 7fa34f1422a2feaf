//! What a connection holds of the clients' memory.
//!
//! Invariants: each byte is counted once, wherever it is on its way; a change is told the core at once; what
//! a connection that is cut held is given back when it has ended, as a whole.

use super::Connection;
use super::account::Account;
use crate::core::{Core, Turn};
use crate::limits::{
    GROWING_BYTES_MAX, LONG_COMMAND_BYTES, REPLY_BYTES_MAX, STANDING_NAME_BYTES, UNREAD_BYTES_MUCH,
};
use futures_util::future::{Either, select};
use plimsoll_kv::{Error, Result};
use std::pin::pin;
use std::rc::Rc;

/// Room for a reply that is made whole. What there is of it is counted, by the core, until this is dropped:
/// just before the reply is given to those that wait.
pub(crate) struct Made {
    core: Rc<Core>,
    room_bytes: usize,
    counted_bytes: usize,
}

impl Made {
    /// Bytes that there is room for.
    pub(crate) fn room_bytes(&self) -> usize {
        self.room_bytes
    }

    /// There are so many by now.
    pub(crate) fn has_come_to(&mut self, bytes: usize) {
        assert!(bytes <= self.room_bytes, "{bytes} bytes are made where {} have room", self.room_bytes);
        let more = bytes.saturating_sub(self.counted_bytes);
        self.counted_bytes += more;
        self.core.hold(0, more);
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        self.core.hold(self.counted_bytes, 0);
    }
}

impl Connection {
    /// A command under way holds so many bytes more.
    pub(crate) fn hold_more(&self, bytes: usize) {
        self.request_bytes.set(self.request_bytes.get() + bytes);
        self.recount();
    }

    /// And so many less.
    pub(crate) fn hold_less(&self, bytes: usize) {
        self.request_bytes.set(self.request_bytes.get() - bytes);
        self.recount();
    }

    /// Room for a reply that is made whole. There always is for a short one; a long one is counted at once.
    ///
    /// # Errors
    /// [`Error::Overloaded`]: others hold too much for too long, or nobody is there any more to take it.
    pub(crate) async fn room_for_reply(&self, bytes: usize) -> Result<Made> {
        let is_long = bytes > REPLY_BYTES_MAX;
        if is_long {
            let room = self.core.wait_for_reply_room(bytes, || self.counted_bytes.get());
            let gone = self.end.wait_for(|| self.dead.get().then_some(()));
            match select(pin!(gone), pin!(room)).await {
                Either::Left(_) => return Err(Error::Overloaded),
                Either::Right((room, _)) => room?,
            }
        }
        let mut made = Made { core: self.core.clone(), room_bytes: bytes, counted_bytes: 0 };
        made.has_come_to(if is_long { bytes } else { 0 });
        Ok(made)
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
