//! The order in which operations reach the kernel.
//!
//! Role: what the drive is asked for goes first, what is held is let go, what is called back was begun. Place
//! on the path: between the driver's operations and its ring, beside what is held ([`super::held`],
//! [`super::sends`]).
//!
//! Invariants: nothing is held while the core rests; an entry that calls another back goes after it.

use super::{CANCEL_DATA, Uring};
use crate::ops::{Op, Token};
use io_uring::opcode;

impl Uring {
    /// Pushes the next entry of an operation, or holds it.
    pub(super) fn submit(&mut self, token: Token, op: &mut Op) {
        let flight = self.flights[token.slot()];
        let entry = self.entry(flight, op).user_data(token.0);
        self.in_flight += 1;
        match op {
            Op::Read { .. } => return self.held.hold(entry),
            Op::Send { bytes, from, .. } => return self.sends.hold(entry, bytes.len() - *from),
            Op::Write { .. } | Op::Flush { .. } => self.unsent += 1,
            Op::Accept { .. } | Op::Receive { .. } => {}
        }
        // SAFETY: the entry names memory owned by the operation in its slot, which stays there
        // until `Ops::complete`, called only once this entry's completion was taken; nobody else
        // reaches that memory meanwhile. `start` saw to it that the descriptor stays open as long.
        unsafe { self.ring.push(entry) };
    }

    /// Pushes the reads that go out now: all of them before the core rests. The drive hears of what it is
    /// asked for before many sends.
    pub(super) fn let_go(&mut self, rests: bool) {
        let due = if rests { self.held.all() } else { self.held.due(self.patience.at_disk(), self.is_idle) };
        let asked = std::mem::take(&mut self.unsent) + due.len();
        // SAFETY: as in `submit`, which held them.
        unsafe { self.ring.push_all(due) };
        if asked > 0 && self.sends.go_apart() {
            self.ring.submit();
        }
    }

    /// Gives a drive that has nothing to do what it was asked for in this turn.
    pub(crate) fn feed_drive(&mut self) {
        let asked = self.held.count() + self.unsent;
        if asked == 0 || self.patience.at_disk() > asked {
            return;
        }
        self.unsent = 0;
        // SAFETY: as in `submit`, which held them.
        unsafe { self.ring.push_all(self.held.all()) };
        self.ring.submit();
    }

    /// Pushes the sends that go out in this turn.
    pub(super) fn push_sends(&mut self, drive_reads: bool) {
        // SAFETY: as in `submit`, which held them.
        unsafe { self.ring.push_all(self.sends.due(drive_reads)) };
    }

    /// Pushes all sends, as before the core rests.
    pub(super) fn push_all_sends(&mut self) {
        // SAFETY: as in `submit`, which held them.
        unsafe { self.ring.push_all(self.sends.all()) };
    }

    pub(super) fn push_cancel(&mut self, data: u64) {
        // Nothing is called back before it was begun.
        if self.sends.holds(data) {
            self.push_all_sends();
        }
        let entry = opcode::AsyncCancel::new(data).build().user_data(CANCEL_DATA);
        // SAFETY: the entry names neither memory nor a descriptor.
        unsafe { self.ring.push(entry) };
    }
}
