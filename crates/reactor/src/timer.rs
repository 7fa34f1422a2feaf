//! Timers of one reactor, in order of deadline, first set first on ties.

use std::collections::BTreeMap;
use std::task::Waker;

#[derive(Default)]
pub(crate) struct Timers {
    waiting: BTreeMap<(u64, u64), Waker>,
    next_id: u64,
}

impl Timers {
    /// Sets a timer; the answer identifies it for [`Timers::reset`] and [`Timers::clear`].
    pub(crate) fn set(&mut self, deadline_ns: u64, waker: Waker) -> (u64, u64) {
        let key = (deadline_ns, self.next_id);
        self.next_id += 1;
        assert!(self.waiting.insert(key, waker).is_none());
        key
    }

    /// Replaces the waker of a timer that has not fired.
    pub(crate) fn reset(&mut self, key: (u64, u64), waker: &Waker) {
        if let Some(kept) = self.waiting.get_mut(&key) {
            kept.clone_from(waker);
        }
    }

    pub(crate) fn clear(&mut self, key: (u64, u64)) {
        self.waiting.remove(&key);
    }

    pub(crate) fn next_deadline_ns(&self) -> Option<u64> {
        self.waiting.first_key_value().map(|((deadline_ns, _), _)| *deadline_ns)
    }

    /// Takes the oldest timer that is due.
    pub(crate) fn pop_due(&mut self, now_ns: u64) -> Option<Waker> {
        let entry = self.waiting.first_entry()?;
        (entry.key().0 <= now_ns).then(|| entry.remove())
    }

    pub(crate) fn clear_all(&mut self) {
        self.waiting.clear();
    }
}
