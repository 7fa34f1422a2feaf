//! Lines of the log that clients cause, as often as they like: one a second of each kind.
//!
//! Place on the path: beside whatever is refused, cut or mended.

use crate::limits::SELDOM_NS;
use std::cell::Cell;

/// A kind of line.
#[derive(Default)]
pub struct Seldom {
    /// When one was written last, and how many were not since.
    told: Cell<(u64, u64)>,
}

impl Seldom {
    /// How many were left out since the last one, if this one is to be written.
    #[must_use]
    pub fn due(&self, now_ns: u64) -> Option<u64> {
        let (told_ns, untold) = self.told.get();
        let is_due = told_ns == 0 || now_ns.saturating_sub(told_ns) >= SELDOM_NS;
        self.told.set(if is_due { (now_ns.max(1), 0) } else { (told_ns, untold + 1) });
        is_due.then_some(untold)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_second_counts_those_that_were_left_out() {
        let seldom = Seldom::default();
        assert_eq!(seldom.due(0), Some(0));
        assert!((0..100).all(|number| seldom.due(number).is_none()));
        assert_eq!(seldom.due(SELDOM_NS + 1), Some(100));
        assert_eq!(seldom.due(SELDOM_NS + 2), None);
        assert_eq!(seldom.due(3 * SELDOM_NS), Some(1));
    }
}
