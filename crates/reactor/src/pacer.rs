//! Long loops that nothing interrupts.
//!
//! Role: a loop over what a client sent, which may be half a million keys, lets the other tasks of its core
//! work in between. Place on the path: in loops that await nothing else.
//!
//! Invariant: how many steps are done at a time does not depend on a clock, so the simulator comes by every
//! pause that a server makes.

use crate::reactor::Reactor;
use std::cell::Cell;

/// Steps at a time: some tens of microseconds.
const STEPS: u32 = 64;

/// Counts the steps of a loop.
pub struct Pacer {
    reactor: Reactor,
    left: Cell<u32>,
}

impl Pacer {
    /// For a loop on this core.
    #[must_use]
    pub fn new(reactor: &Reactor) -> Pacer {
        Pacer { reactor: reactor.clone(), left: Cell::new(STEPS) }
    }

    /// One step has been done.
    pub async fn step(&self) {
        self.left.set(self.left.get() - 1);
        if self.left.get() == 0 {
            self.left.set(STEPS);
            self.reactor.yield_now().await;
        }
    }
}
