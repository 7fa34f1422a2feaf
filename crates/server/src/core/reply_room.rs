//! Room for long replies that are made whole before any of them leaves: of EXEC, DUMP and KEYS.
//!
//! Role: a few bytes ask for megabytes, so how much is made at once is not left to who asks. Place on the
//! path: before such a reply is made; those that leave while they are made ([`crate::session`]) need none.
//!
//! Invariants:
//! * it is made when it fits beside what others hold and the longest command that may come in meanwhile
//!   ([`super::turns`]), who asked first before who asked later, and is counted from before on, whatever
//!   becomes of its client;
//! * who waits has done nothing and holds no key, so it may be refused: after `tryagain-after` it is.

use super::Core;
use futures_util::future::{Either, select};
use plimsoll_kv::{Error, Result};
use plimsoll_reactor::sync::WaitList;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::pin::pin;

#[derive(Default)]
pub(super) struct ReplyRoom {
    /// Those who wait, the first first.
    line: RefCell<VecDeque<u64>>,
    numbers: Cell<u64>,
    changed: WaitList,
}

impl ReplyRoom {
    /// Clients hold less than before, or one waits no more.
    pub(super) fn wake(&self) {
        if !self.changed.is_empty() {
            self.changed.wake_all();
        }
    }

    fn line_up(&self) -> Place<'_> {
        let number = self.numbers.get();
        self.numbers.set(number + 1);
        self.line.borrow_mut().push_back(number);
        Place { room: self, number }
    }
}

/// A place in the line. Dropping it gives it up.
struct Place<'a> {
    room: &'a ReplyRoom,
    number: u64,
}

impl Place<'_> {
    fn is_first(&self) -> bool {
        self.room.line.borrow().front() == Some(&self.number)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.room.line.borrow_mut().retain(|number| *number != self.number);
        self.room.wake();
    }
}

impl Core {
    /// Waits until a reply of so many bytes may be made for a client that holds `own_bytes`. They are counted
    /// by the caller, in the same poll.
    ///
    /// # Errors
    /// [`Error::Overloaded`]: that takes too long.
    pub(crate) async fn wait_for_reply_room(
        &self,
        bytes: usize,
        own_bytes: impl Fn() -> usize,
    ) -> Result<()> {
        let budget = &self.shared.settings.budget;
        let others_bytes_max = budget.client_bytes_max.saturating_sub(budget.command_bytes_max() + bytes);
        let (place, deadline_ns) = (self.reply_room.line_up(), self.volume.deadline_ns());
        let has_room = || {
            let all_bytes = self.staying_bytes();
            place.is_first()
                && all_bytes.saturating_sub(own_bytes()) <= others_bytes_max
                && all_bytes + bytes <= budget.client_bytes_max
        };
        let room = self.reply_room.changed.wait_for(|| has_room().then_some(()));
        if deadline_ns == 0 {
            room.await;
            return Ok(());
        }
        match select(pin!(room), pin!(self.reactor.sleep_until(deadline_ns))).await {
            Either::Left(_) => Ok(()),
            Either::Right(_) => Err(Error::Overloaded),
        }
    }
}
