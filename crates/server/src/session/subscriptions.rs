//! The channels and patterns that a client listens to.
//!
//! Invariant: how many they are and how many bytes they have is known without a walk over them, so that the
//! next one costs a client with many no more than one with few.

use crate::channels::Kind;
use std::collections::BTreeSet;

/// The channels and patterns that a client listens to.
#[derive(Debug, Default)]
pub(crate) struct Subscriptions {
    channels: BTreeSet<Vec<u8>>,
    patterns: BTreeSet<Vec<u8>>,
    /// Bytes of all names.
    bytes: usize,
}

impl Subscriptions {
    fn of(&self, kind: Kind) -> &BTreeSet<Vec<u8>> {
        match kind {
            Kind::Channel => &self.channels,
            Kind::Pattern => &self.patterns,
        }
    }

    fn of_mut(&mut self, kind: Kind) -> &mut BTreeSet<Vec<u8>> {
        match kind {
            Kind::Channel => &mut self.channels,
            Kind::Pattern => &mut self.patterns,
        }
    }

    /// Adds a name; false if it is there.
    pub(crate) fn insert(&mut self, kind: Kind, name: &[u8]) -> bool {
        let is_new = self.of_mut(kind).insert(name.to_vec());
        self.bytes += if is_new { name.len() } else { 0 };
        is_new
    }

    /// Removes a name; false if it is not there.
    pub(crate) fn remove(&mut self, kind: Kind, name: &[u8]) -> bool {
        let was_there = self.of_mut(kind).remove(name);
        self.bytes -= if was_there { name.len() } else { 0 };
        was_there
    }

    /// The names of a kind, in order.
    pub(crate) fn names(&self, kind: Kind) -> impl Iterator<Item = &Vec<u8>> {
        self.of(kind).iter()
    }

    /// How many of a kind there are.
    pub(crate) fn count(&self, kind: Kind) -> usize {
        self.of(kind).len()
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.channels.len() + self.patterns.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of all names.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_what_a_walk_would_count() {
        let (mut subscriptions, mut state) = (Subscriptions::default(), 1_u64);
        let mut model = BTreeSet::new();
        for _ in 0..100_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let kind = if state >> 63 == 0 { Kind::Channel } else { Kind::Pattern };
            let name = vec![(state >> 32) as u8; (state >> 40) as usize % 8];
            if state >> 62 & 1 == 0 {
                assert_eq!(subscriptions.insert(kind, &name), model.insert((kind, name)));
            } else {
                assert_eq!(subscriptions.remove(kind, &name), model.remove(&(kind, name)));
            }
            let count = |kind| model.iter().filter(|(of, _)| *of == kind).count();
            if state >> 50 & 63 == 0 {
                let bytes: usize = model.iter().map(|(_, name)| name.len()).sum();
                assert_eq!((subscriptions.len(), subscriptions.bytes()), (model.len(), bytes));
                for kind in [Kind::Channel, Kind::Pattern] {
                    assert_eq!(subscriptions.count(kind), count(kind));
                    assert_eq!(subscriptions.names(kind).count(), count(kind));
                }
            }
        }
        assert!(model.len() > 100);
    }
}
