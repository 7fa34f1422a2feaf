//! The rate of a rebuild: what is copied is spread over time.
//!
//! Role: says when the next key may be copied. Place on the path: none; between a rebuild and its keys.
//!
//! Invariants: keys begin one after the other, each when what began before it has had its time: many at once
//! would stand before clients' requests at every device; who is late saves nothing up.

use plimsoll_reactor::Reactor;
use std::cell::Cell;

/// What the first key is taken to have.
const FIRST_BYTES: u64 = 4096;

pub(crate) struct Pace {
    reactor: Reactor,
    /// Bytes a second; 0: no limit.
    rate: u64,
    /// When the next key may begin.
    free_ns: Cell<u64>,
    /// What was copied last: how much the next has is known afterwards.
    expected: Cell<u64>,
}

impl Pace {
    pub(crate) fn new(reactor: &Reactor, rate: u64) -> Pace {
        let (free_ns, expected) = (Cell::new(0), Cell::new(FIRST_BYTES));
        Pace { reactor: reactor.clone(), rate, free_ns, expected }
    }

    fn cost_ns(&self, bytes: u64) -> u64 {
        let cost_ns = u128::from(bytes) * 1_000_000_000 / u128::from(self.rate);
        u64::try_from(cost_ns).unwrap_or(u64::MAX)
    }

    /// Waits for a key's turn; what it is taken to have.
    pub(crate) async fn begin(&self) -> u64 {
        let expected = self.expected.get();
        if self.rate > 0 {
            let at_ns = self.free_ns.get().max(self.reactor.now_ns());
            self.free_ns.set(at_ns.saturating_add(self.cost_ns(expected)));
            self.reactor.sleep_until(at_ns).await;
        }
        expected
    }

    /// Notes what was copied of a key that was taken to have so much. If nothing was, it had to be looked at
    /// all the same, and devices had as much to do.
    pub(crate) fn end(&self, expected: u64, bytes: u64) {
        if self.rate > 0 && bytes > 0 {
            let free_ns = self.free_ns.get().saturating_add(self.cost_ns(bytes));
            self.free_ns.set(free_ns.saturating_sub(self.cost_ns(expected)));
            self.expected.set(bytes);
        }
    }
}
