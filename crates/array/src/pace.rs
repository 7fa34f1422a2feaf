//! The rate of a rebuild: what is copied is spread over time.
//!
//! Role: says when the next key, or pinned value, may be copied. Place on the path: none; between a rebuild
//! and what it copies.
//!
//! Invariants: turns come one after the other, each when what has the one before has had its time: many at
//! once would stand before clients' requests at every device; who is late saves nothing up.
//!
//! Never: it waits. Whoever does ends with the array.

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
}

/// When a key may be copied, and what it is taken to have.
pub(crate) struct Turn {
    pub(crate) at_ns: u64,
    bytes: u64,
}

impl Pace {
    pub(crate) fn new(rate: u64) -> Pace {
        Pace { rate, free_ns: Cell::new(0), expected: Cell::new(FIRST_BYTES) }
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
        }
    }
}
