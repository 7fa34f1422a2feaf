//! Turns of long commands, while clients hold much.
//!
//! Role: holds senders back before any client is cut. Place on the path: before a receive that makes an
//! unfinished command longer.
//!
//! Invariants:
//! * while clients hold less than half of what they may, nobody waits;
//! * above it long commands come in one at a time, and where only the longest command would still fit
//!   ([`crate::budget::Budget::command_bytes_max`]), all but short ones: that room is for whose turn it is;
//! * who sends nothing for [`TURN_STALL_NS_MAX`] keeps others waiting no longer, nor does anything else that
//!   holds memory; where no command comes to its end, nobody waits for longer than [`TURN_WAIT_NS_MAX`], and
//!   nobody for longer than [`LINE_WAIT_NS_MAX`]: then the next goes on, and if that is too much one is cut.

use super::Core;
use super::line::Line;
use crate::limits::{
    BUFFER_BYTES_KEPT, GROWING_BYTES_MAX, LINE_WAIT_NS_MAX, TURN_STALL_NS_MAX, TURN_STALL_NS_MIN,
    TURN_WAIT_NS_MAX,
};
use futures_util::future::select;
use plimsoll_reactor::sync::Bell;
use std::cell::Cell;
use std::pin::pin;
use std::rc::Rc;

/// Who waits for a turn, and who has it.
#[derive(Default)]
pub(super) struct Turns {
    line: Line,
    holder: Cell<Option<u64>>,
    /// When the last turn began or ended, or who has it was about to receive something.
    moved_ns: Cell<u64>,
    /// When a command was whole whose turn it was.
    completed_ns: Cell<u64>,
}

impl Turns {
    /// Who has the turn may send nothing for so long: so that all in the line have theirs before they have
    /// waited for too long.
    fn stall_ns_max(&self) -> u64 {
        let waiting = self.line.len().max(1) as u64;
        (TURN_WAIT_NS_MAX / waiting).clamp(TURN_STALL_NS_MIN, TURN_STALL_NS_MAX)
    }
}

/// A connection's turn, or its place in the line. Dropping it gives it up.
pub(crate) struct Turn {
    core: Rc<Core>,
    number: u64,
    bell: Rc<Bell>,
    begun_ns: u64,
    /// When it was last about to receive something.
    went_ns: Cell<u64>,
    /// It has waited for long enough, and goes on beside whose turn it is.
    is_late: Cell<bool>,
}

impl Core {
    /// A place at the end of the line, for a command that waits since then if it waited before.
    pub(crate) fn line_up(self: &Rc<Self>, since_ns: Option<u64>) -> Turn {
        let turns = &self.turns;
        if turns.line.len() == 0 && turns.holder.get().is_none() {
            turns.moved_ns.set(self.reactor.now_ns());
        }
        let (number, bell) = turns.line.join();
        let begun_ns = since_ns.unwrap_or_else(|| self.reactor.now_ns());
        let (went_ns, is_late) = (Cell::new(begun_ns), Cell::new(false));
        Turn { core: self.clone(), number, bell, begun_ns, went_ns, is_late }
    }

    /// True if the longest command fits beside what clients hold, and so many bytes more.
    pub(super) fn fits_beside(&self, more_bytes: usize) -> bool {
        let budget = &self.shared.settings.budget;
        self.staying_bytes() + more_bytes + budget.command_bytes_max() <= budget.client_bytes_max
    }

    /// True if an unfinished command does not become so long before its turn.
    pub(crate) fn holds_back(&self, command_bytes: usize) -> bool {
        let is_long = || command_bytes >= GROWING_BYTES_MAX;
        command_bytes >= BUFFER_BYTES_KEPT && !self.holds_little() && (is_long() || !self.fits_beside(0))
    }

    /// True if the first in the line may go on.
    fn lets_first_go(&self) -> bool {
        self.holds_little() || (self.turns.holder.get().is_none() && self.fits_beside(0))
    }

    /// Clients hold less than before.
    pub(super) fn look_at_turns(&self) {
        if self.lets_first_go() {
            self.turns.line.wake_first();
        }
    }
}

impl Turn {
    /// Waits until it is its turn, or it may go on beside others.
    pub(crate) async fn comes(&self) {
        let (core, turns) = (&self.core, &self.core.turns);
        loop {
            let (is_first, now_ns) = (turns.line.is_first(self.number), core.reactor.now_ns());
            let late_ns = self.begun_ns.max(turns.completed_ns.get()) + TURN_WAIT_NS_MAX;
            let late_ns = late_ns.min(self.begun_ns + LINE_WAIT_NS_MAX);
            self.went_ns.set(now_ns);
            let stalled_ns = turns.moved_ns.get() + turns.stall_ns_max();
            if is_first && core.holds_little() {
                return turns.line.leave(self.number);
            }
            if is_first && (core.lets_first_go() || now_ns >= stalled_ns) {
                turns.holder.set(Some(self.number));
                turns.moved_ns.set(now_ns);
                return turns.line.leave(self.number);
            }
            if now_ns >= late_ns {
                self.is_late.set(true);
                return turns.line.leave(self.number);
            }
            let until_ns = if is_first { stalled_ns.min(late_ns) } else { late_ns };
            select(pin!(self.bell.heard()), pin!(core.reactor.sleep_until(until_ns))).await;
        }
    }

    /// Since when its command waits, or waited.
    pub(crate) fn begun_ns(&self) -> u64 {
        self.begun_ns
    }

    /// Its command is whole.
    pub(crate) fn complete(self) {
        if self.is_its() {
            self.core.turns.completed_ns.set(self.core.reactor.now_ns());
        }
    }

    fn is_its(&self) -> bool {
        self.core.turns.holder.get() == Some(self.number)
    }

    /// Goes on, if it still may.
    pub(crate) fn goes_on(&self) -> bool {
        let now_ns = self.core.reactor.now_ns();
        self.went_ns.set(now_ns);
        if self.is_its() {
            self.core.turns.moved_ns.set(now_ns);
        }
        self.is_its() || self.is_late.get()
    }

    /// Whether it goes on, where it may.
    pub(crate) fn is_used(&self) -> Option<bool> {
        let stalled_ns = self.went_ns.get() + TURN_STALL_NS_MAX;
        (self.is_its() || self.is_late.get()).then(|| self.core.reactor.now_ns() < stalled_ns)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let turns = &self.core.turns;
        turns.line.leave(self.number);
        if self.is_its() {
            turns.holder.set(None);
            turns.moved_ns.set(self.core.reactor.now_ns());
            self.core.look_at_turns();
        }
    }
}
