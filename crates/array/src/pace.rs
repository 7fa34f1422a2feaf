//! The rate of a rebuild: what is copied is spread over time.
//!
//! Role: says when the next key, or pinned value, may be copied. Place on the path: none; between a rebuild
//! and what it copies.
//!
//! Invariants: turns come one after the other, each when what has the one before has had its time: many at
//! once would stand before clients' requests at every device; who is late saves nothing up. What has a turn
//! before it is known how long it is comes to no more than a second's worth, by what was copied last: one key
//! at first.
//!
//! Never: it waits. Whoever does ends with the array.

use crate::rebuild::TOGETHER;
use std::cell::Cell;

/// What the first key is taken to have.
const FIRST_BYTES: u64 = 4096;

pub(crate) struct Pace {
    /// Bytes a second; 0: no limit.
    rate: u64,
    /// When the next turn may be.
    free_ns: Cell<u64>,
    /// What was copied last: how much the next has is known afterwards.
    expected: Cell<u64>,
    /// How many may be copied together.
    together: Cell<u64>,
}

/// When a key may be copied, and what it is taken to have.
pub(crate) struct Turn {
    pub(crate) at_ns: u64,
    bytes: u64,
}

impl Pace {
    pub(crate) fn new(rate: u64) -> Pace {
        let (expected, together) = (Cell::new(FIRST_BYTES), Cell::new(1));
        Pace { rate, free_ns: Cell::new(0), expected, together }
    }

    /// Takes the keys off that are to be copied next, before any other is begun: all, if there is no limit.
    pub(crate) fn next_of<'a, T>(&self, rest: &mut &'a [T]) -> &'a [T] {
        let together = if self.rate == 0 { rest.len() } else { self.together.get() as usize };
        let (next, others) = rest.split_at(together.min(rest.len()));
        *rest = others;
        next
    }

    fn cost_ns(&self, bytes: u64) -> u64 {
        let cost_ns = u128::from(bytes) * 1_000_000_000 / u128::from(self.rate);
        u64::try_from(cost_ns).unwrap_or(u64::MAX)
    }

    /// The next turn, of who asks now.
    pub(crate) fn turn(&self, now_ns: u64) -> Turn {
        let bytes = self.expected.get();
        if self.rate == 0 {
            return Turn { at_ns: now_ns, bytes };
        }
        let at_ns = self.free_ns.get().max(now_ns);
        self.free_ns.set(at_ns.saturating_add(self.cost_ns(bytes)));
        Turn { at_ns, bytes }
    }

    /// Notes what was copied in a turn. If nothing was, it had to be looked at all the same, and devices had
    /// as much to do.
    pub(crate) fn end(&self, turn: Turn, bytes: u64) {
        if self.rate > 0 && bytes > 0 {
            let free_ns = self.free_ns.get().saturating_add(self.cost_ns(bytes));
            self.free_ns.set(free_ns.saturating_sub(self.cost_ns(turn.bytes)));
            self.expected.set(bytes);
            self.together.set((self.rate / bytes).clamp(1, TOGETHER as u64));
        }
    }
}
