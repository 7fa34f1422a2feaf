//! When operations begin, and which of them count.
//!
//! Invariants: in an open loop operation n is due n intervals after the beginning, however late the ones
//! before it are; what is due or begins before the warm-up has ended does not count.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What one core does for one tenant, and when. Times are nanoseconds of the core's clock.
pub(crate) struct Schedule {
    pub(crate) begin_ns: u64,
    pub(crate) counts_from_ns: u64,
    pub(crate) end_ns: Option<u64>,
    /// Nanoseconds between two operations of this core; absent in a closed loop.
    pub(crate) interval_ns: Option<f64>,
    /// Which is the next, counted from 0.
    pub(crate) next: Cell<u64>,
    /// Operations that all cores together may still begin; absent if only time ends it.
    pub(crate) left: Option<Arc<AtomicU64>>,
}

/// Operations that are to be sent together.
pub(crate) struct Due {
    /// How many.
    pub(crate) count: usize,
    /// When they are due; absent in a closed loop: now.
    pub(crate) at_ns: Option<u64>,
}

impl Schedule {
    /// Takes the next operations, at most so many; nothing if it is over.
    pub(crate) fn take(&self, count: usize, now_ns: u64) -> Option<Due> {
        let at_ns = self.interval_ns.map(|interval_ns| {
            let number = self.next.replace(self.next.get() + count as u64);
            self.begin_ns + (number as f64 * interval_ns) as u64
        });
        if self.end_ns.is_some_and(|end_ns| at_ns.unwrap_or(now_ns) >= end_ns) {
            return None;
        }
        let mut count = count as u64;
        if let Some(left) = &self.left {
            let take = |left: u64| Some(left.saturating_sub(count));
            let before =
                left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).expect("never refused");
            count = count.min(before);
        }
        (count > 0).then_some(Due { count: count as usize, at_ns })
    }

    /// True if an operation that began then counts.
    pub(crate) fn counts(&self, begun_ns: u64) -> bool {
        begun_ns >= self.counts_from_ns
    }
}
