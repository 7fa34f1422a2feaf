//! CLIENT PAUSE on one core: what clients have to wait for, and until when.
//!
//! Role: asked before a command begins. Place on the path: the reader of a connection.
//!
//! Invariants: a pause ends by itself; one that comes while another lasts makes it neither shorter nor
//! weaker, as in Redis; a command that has begun goes on.

use std::cell::Cell;

/// A pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pause {
    /// Monotonic time of its end on this core.
    pub(crate) until_ns: u64,
    /// Every command waits, and not those that write alone.
    pub(crate) holds_all: bool,
}

/// The pause of a core, if there is one.
#[derive(Debug, Default)]
pub(crate) struct Pausing(Cell<Option<Pause>>);

impl Pausing {
    /// Begins a pause, or adds to the one that lasts.
    pub(crate) fn begin(&self, now_ns: u64, pause: Pause) {
        let before = self.0.get().filter(|before| before.until_ns > now_ns);
        self.0.set(Some(match before {
            None => pause,
            Some(before) => Pause {
                until_ns: before.until_ns.max(pause.until_ns),
                holds_all: before.holds_all || pause.holds_all,
            },
        }));
    }

    /// Ends it.
    pub(crate) fn end(&self) {
        self.0.set(None);
    }

    /// Ends it if its time is over; when it will be, if not.
    pub(crate) fn look(&self, now_ns: u64) -> Option<u64> {
        self.0.set(self.0.get().filter(|pause| pause.until_ns > now_ns));
        self.0.get().map(|pause| pause.until_ns)
    }

    /// Whether all commands wait.
    pub(crate) fn holds_all(&self) -> bool {
        self.0.get().is_some_and(|pause| pause.holds_all)
    }

    /// Whether commands that write wait.
    pub(crate) fn holds_writes(&self) -> bool {
        self.0.get().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_made_longer_and_stronger_and_ends() {
        let pausing = Pausing::default();
        assert!(!pausing.holds_writes());
        pausing.begin(0, Pause { until_ns: 10, holds_all: true });
        pausing.begin(1, Pause { until_ns: 5, holds_all: false });
        assert_eq!((pausing.look(9), pausing.holds_all()), (Some(10), true));
        assert_eq!((pausing.look(10), pausing.holds_writes()), (None, false));
        pausing.begin(10, Pause { until_ns: 20, holds_all: false });
        assert!(pausing.holds_writes() && !pausing.holds_all());
        pausing.end();
        assert!(!pausing.holds_writes());
    }
}
