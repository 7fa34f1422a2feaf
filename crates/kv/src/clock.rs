//! Wall time that never runs backwards.
//!
//! Role: what says whether a key has expired. Place on the path: shared by a device that deletes expired
//! keys and by a layer above it that remembers some of them: what one has seen expired is expired for the
//! other too, whatever becomes of the machine's clock.
//!
//! Invariant: a time that was given is never followed by an earlier one.

use plimsoll_reactor::Reactor;
use std::cell::Cell;

/// The clock of a partition and of what stands above it.
pub struct WallClock {
    reactor: Reactor,
    latest_ms: Cell<u64>,
}

impl WallClock {
    /// A clock of this core.
    #[must_use]
    pub fn new(reactor: &Reactor) -> WallClock {
        WallClock { reactor: reactor.clone(), latest_ms: Cell::new(0) }
    }

    /// Milliseconds since 1970: the latest that were ever seen.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        let now_ms = self.latest_ms.get().max(self.reactor.wall_ms());
        self.latest_ms.set(now_ms);
        now_ms
    }
}
