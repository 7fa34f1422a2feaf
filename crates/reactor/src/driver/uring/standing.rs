//! Standing receives: one entry stays with the kernel and brings what a peer sends, again and again.
//!
//! Role: the state of a socket whose requests are short; what was brought and not asked for yet. Place on
//! the path: between the ring and whoever receives. A receive for every request would have to be submitted,
//! looked for in vain, and woken; a standing one is woken only. Long requests want memory of their own
//! (`RECEIVE_DIRECT_BYTES_MIN`): there each receive is submitted by itself, as for all sockets at first.
//!
//! Invariants:
//! * while an entry stands, or anything that it brought is left, no other receive of the socket is given
//!   to the kernel: bytes keep their order;
//! * each buffer brought is given back once: when its last byte was taken, or when the socket is closed;
//! * who sends and is not listened to holds few of the shared buffers: the entry is recalled.
//!
//! Never: it talks to no kernel; what is to be done it tells its driver.

use super::buffers::{BUFFER_BYTES, ReceiveBuffers};
use crate::ops::{SocketId, Token};
use std::collections::VecDeque;

/// After so many short receives in a row the next one stands.
const SHORT_MIN: u8 = 4;
/// What is short: less than this.
const SHORT_BYTES: usize = BUFFER_BYTES / 2;
/// An entry that brought so many buffers that nobody asked for is recalled.
const HELD_MAX: usize = 2;
/// User data of standing receives: their socket, and a bit that no token has (slots are fewer).
const STANDING_BIT: u64 = 1 << 31;

/// The user data of a socket's standing receive.
pub(super) fn data_of(socket: SocketId) -> u64 {
    u64::from(socket.0) << 32 | STANDING_BIT
}

/// The socket whose standing receive completed, if that is what did.
pub(super) fn socket_of(data: u64) -> Option<SocketId> {
    (data as u32 == STANDING_BIT as u32).then_some(SocketId((data >> 32) as u32))
}

/// What the driver has to do for a receive that begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    /// Submit it by itself.
    Single,
    /// Submit an entry that stands.
    Stand,
    /// Call the entry that stands back.
    Recall,
    /// There is something already.
    Ready,
    /// Wait for the entry that stands.
    Wait,
}

/// A buffer that the kernel has filled.
struct Filled {
    id: u16,
    taken: usize,
    len: usize,
}

/// What a socket receives.
#[derive(Default)]
pub(super) struct Inbox {
    /// The kernel has an entry that stands.
    stands: bool,
    recalled: bool,
    /// Who waits for what it brings.
    waiting: Option<Token>,
    held: VecDeque<Filled>,
    /// How an entry ended that nobody waited for: 0 or a negative code.
    ended: Option<i32>,
    /// Short receives in a row.
    short: u8,
    closed: bool,
}

impl Inbox {
    /// A receive begins; `single`: it has memory of its own, or none may stand.
    pub(super) fn ask(&mut self, token: Token, single: bool) -> Ask {
        assert!(self.waiting.is_none(), "one receive of a socket at a time");
        let ask = if !self.held.is_empty() || self.ended.is_some() {
            Ask::Ready
        } else if self.stands {
            if single { self.recall() } else { Ask::Wait }
        } else if !single && self.short >= SHORT_MIN {
            (self.stands, self.recalled) = (true, false);
            Ask::Stand
        } else {
            return Ask::Single;
        };
        self.waiting = Some(token);
        ask
    }

    fn recall(&mut self) -> Ask {
        if std::mem::replace(&mut self.recalled, true) { Ask::Wait } else { Ask::Recall }
    }

    /// A receive that was submitted by itself brought so many bytes.
    pub(super) fn received(&mut self, count: usize) {
        self.short = if count < SHORT_BYTES { self.short.saturating_add(1) } else { 0 };
    }

    /// The standing entry completed: with a result, a buffer, and `more` if it still stands. True if it is to
    /// be called back.
    pub(super) fn brought(&mut self, result: i32, buffer: Option<u16>, more: bool) -> bool {
        assert!(self.stands, "an entry that completes was submitted");
        if let Some(id) = buffer {
            self.held.push_back(Filled { id, taken: 0, len: result.max(0) as usize });
        }
        if result >= SHORT_BYTES as i32 || [libc::ENOBUFS, libc::EINVAL].contains(&-result) {
            self.short = 0;
        }
        if !more {
            self.stands = false;
            // Without buffers, or where none stand, who waits receives by itself.
            if result <= 0 && ![libc::ENOBUFS, libc::ECANCELED, libc::EINVAL].contains(&-result) {
                self.ended = Some(result);
            }
            return false;
        }
        let unheard = self.held.len() >= HELD_MAX && self.waiting.is_none();
        (unheard || self.short == 0) && self.recall() == Ask::Recall
    }

    /// Who waits.
    pub(super) fn waiting(&self) -> Option<Token> {
        self.waiting
    }

    /// A receive does not wait any more.
    pub(super) fn forget(&mut self, token: Token) {
        self.waiting = self.waiting.filter(|waiting| *waiting != token);
    }

    /// True if the kernel has an entry that stands.
    pub(super) fn stands(&self) -> bool {
        self.stands
    }

    /// Gives who waits what there is: bytes, appended to `into`, or how the entry ended.
    pub(super) fn take(
        &mut self,
        buffers: &mut ReceiveBuffers,
        into: &mut Vec<u8>,
        bytes_max: usize,
    ) -> Option<i32> {
        let mut count = 0;
        while count < bytes_max
            && let Some(filled) = self.held.front_mut()
        {
            let some = (filled.len - filled.taken).min(bytes_max - count);
            into.extend_from_slice(&buffers.received(filled.id, filled.len)[filled.taken..][..some]);
            count += some;
            filled.taken += some;
            if filled.taken == filled.len {
                buffers.give_back(filled.id);
                self.held.pop_front();
            }
        }
        if count > 0 { Some(count as i32) } else { self.ended.take() }
    }

    /// True if the socket is closed.
    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    /// The socket is closed: what was brought is for nobody.
    pub(super) fn clear(&mut self, buffers: &mut ReceiveBuffers) {
        self.closed = true;
        for filled in self.held.drain(..) {
            buffers.give_back(filled.id);
        }
    }
}

#[cfg(test)]
#[path = "standing_tests.rs"]
mod tests;
