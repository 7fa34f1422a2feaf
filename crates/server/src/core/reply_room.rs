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
use super::line::Line;
use futures_util::future::select;
use plimsoll_kv::{Error, Result};
use std::pin::pin;
use std::rc::Rc;

/// Room for a reply that is made whole. What there is of it is counted until this is dropped: just before the
/// reply is given to those that wait for the client.
pub(crate) struct Reservation {
    core: Rc<Core>,
    room_bytes: usize,
    counted_bytes: usize,
}

impl Reservation {
    /// Bytes that there is room for.
    pub(crate) fn room_bytes(&self) -> usize {
        self.room_bytes
    }

    /// There are so many of the reply by now.
    pub(crate) fn grow_to(&mut self, bytes: usize) {
        assert!(bytes <= self.room_bytes, "{bytes} bytes are made where {} have room", self.room_bytes);
        let more = bytes.saturating_sub(self.counted_bytes);
        self.counted_bytes += more;
        self.core.hold(0, more);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.core.hold(self.counted_bytes, 0);
    }
}

/// A place in the line. Dropping it gives it up.
struct Place<'a> {
    line: &'a Line,
    number: u64,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.line.leave(self.number);
    }
}

impl Core {
    /// Room for a short reply, which there always is: it is counted as it is made.
    pub(crate) fn reserve_short_reply(self: &Rc<Self>, bytes: usize) -> Reservation {
        Reservation { core: self.clone(), room_bytes: bytes, counted_bytes: 0 }
    }

    /// Room for a long reply to a client that holds `own_bytes`, as soon as there is: counted at once.
    ///
    /// # Errors
    /// [`Error::Overloaded`]: that takes too long.
    pub(crate) async fn reserve_long_reply(
        self: &Rc<Self>,
        bytes: usize,
        own_bytes: impl Fn() -> usize,
    ) -> Result<Reservation> {
        let (number, bell) = self.reply_line.join();
        let (place, deadline_ns) = (Place { line: &self.reply_line, number }, self.volume.deadline_ns());
        while !(self.reply_line.is_first(number) && self.has_reply_room(bytes, own_bytes())) {
            if deadline_ns == 0 {
                bell.heard().await;
            } else if self.reactor.now_ns() < deadline_ns {
                select(pin!(bell.heard()), pin!(self.reactor.sleep_until(deadline_ns))).await;
            } else {
                return Err(Error::Overloaded);
            }
        }
        let mut reservation = self.reserve_short_reply(bytes);
        reservation.grow_to(bytes);
        drop(place);
        Ok(reservation)
    }

    fn has_reply_room(&self, bytes: usize, own_bytes: usize) -> bool {
        let (budget, all_bytes) = (&self.shared.settings.budget, self.staying_bytes());
        let others_bytes = all_bytes.saturating_sub(own_bytes);
        all_bytes + bytes <= budget.client_bytes_max
            && others_bytes + bytes + budget.command_bytes_max() <= budget.client_bytes_max
    }
}
