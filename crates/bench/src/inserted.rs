//! Which inserts were acknowledged: keys that every later read has to find.
//!
//! Role: told of each acknowledgement by the connection that it came to, asked by all before they read. Place
//! on the path: beside the connections, shared by the cores.
//!
//! Invariants: a number counts as acknowledged from its acknowledgement on, and never before. Numbers that
//! follow one another are one range, so that memory grows with the gaps and not with the keys; gaps are
//! inserts that are under way, or were refused.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// The acknowledged inserts of one tenant, of all its connections.
pub(crate) struct Inserted {
    /// Keys below were there before anything was inserted.
    first: u64,
    /// All from `first` to below this are acknowledged: most that are asked for, told without the lock.
    whole: AtomicU64,
    ranges: Mutex<Ranges>,
}

impl Inserted {
    /// Nothing is acknowledged yet; inserts begin with this number.
    pub(crate) fn from(first: u64) -> Inserted {
        Inserted { first, whole: AtomicU64::new(first), ranges: Mutex::default() }
    }

    /// Notes that a number was acknowledged, if it is that of an insert.
    pub(crate) fn acknowledge(&self, number: u64) {
        if number < self.whole.load(Ordering::Acquire) {
            return;
        }
        let mut ranges = self.ranges.lock().unwrap_or_else(PoisonError::into_inner);
        ranges.add(number);
        if let Some(end) = ranges.end_of(self.first) {
            self.whole.store(end, Ordering::Release);
        }
    }

    /// True if the insert of this number was acknowledged.
    fn has(&self, number: u64) -> bool {
        if number < self.whole.load(Ordering::Acquire) {
            return number >= self.first;
        }
        self.ranges.lock().unwrap_or_else(PoisonError::into_inner).end_of(number).is_some()
    }

    /// Which of so many numbers from the first on were acknowledged: a bit for each, the lowest the first's.
    pub(crate) fn among(&self, first: u64, count: u64) -> u128 {
        (0..count.min(u128::BITS.into())).fold(0, |bits, at| bits | u128::from(self.has(first + at)) << at)
    }
}

/// Numbers, as the ranges that they make: first, and end.
#[derive(Default)]
struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    /// The end of the range in which a number stands.
    fn end_of(&self, number: u64) -> Option<u64> {
        let (_, end) = self.0.range(..=number).next_back()?;
        (number < *end).then_some(*end)
    }

    fn add(&mut self, number: u64) {
        if self.end_of(number).is_some() {
            return;
        }
        let end = self.0.remove(&(number + 1)).unwrap_or(number + 1);
        match self.0.range_mut(..number).next_back() {
            Some((_, before)) if *before == number => *before = end,
            _ => drop(self.0.insert(number, end)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::below;
    use rand_core::SeedableRng;
    use rand_xoshiro::Xoshiro256PlusPlus;
    use std::collections::BTreeSet;

    #[test]
    fn what_was_acknowledged_is_known_in_whatever_order_it_came() {
        const FIRST: u64 = 100;
        let mut random = Xoshiro256PlusPlus::seed_from_u64(3);
        for _ in 0..50 {
            let (inserted, mut model) = (Inserted::from(FIRST), BTreeSet::new());
            for _ in 0..60 {
                let number = FIRST + below(&mut random, 64);
                inserted.acknowledge(number);
                model.insert(number);
                for number in 0..FIRST + 70 {
                    assert_eq!(inserted.has(number), model.contains(&number), "{number} of {model:?}");
                }
                let bits = (0..70).filter(|at| model.contains(&(FIRST + at))).map(|at| 1_u128 << at).sum();
                assert_eq!(inserted.among(FIRST, 70), bits);
            }
        }
    }

    #[test]
    fn acknowledgements_that_follow_one_another_take_no_memory() {
        let inserted = Inserted::from(7);
        let ranges = |inserted: &Inserted| inserted.ranges.lock().unwrap().0.len();
        // Two connections, of which one is late, and an insert that was refused.
        (7..50_000).filter(|number| number % 2 == 0).for_each(|number| inserted.acknowledge(number));
        (7..50_000).filter(|number| number % 2 == 1).for_each(|number| inserted.acknowledge(number));
        assert_eq!((ranges(&inserted), inserted.has(49_999), inserted.has(50_000)), (1, true, false));
        (50_001..60_000).for_each(|number| inserted.acknowledge(number));
        assert_eq!((ranges(&inserted), inserted.has(50_000), inserted.has(59_999)), (2, false, true));
    }
}
