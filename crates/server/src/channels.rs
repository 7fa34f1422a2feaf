//! Channels: who listens to what on one core.
//!
//! Role: the registry behind SUBSCRIBE and PUBLISH; messages live in memory alone and reach those who
//! listen when they are published. Place on the path: beside the volume.
//!
//! Invariants: a listener stands in the registry as often as it has subscriptions; a channel or pattern
//! without listeners is not kept.
//!
//! Never: it sends; it says who is to get a message and as what.

use crate::glob;
use std::collections::{BTreeMap, BTreeSet};

/// Listeners, by their connection's number.
type Listeners = BTreeMap<Vec<u8>, BTreeSet<u64>>;

/// Who listens.
#[derive(Debug, Default)]
pub(crate) struct Channels {
    exact: Listeners,
    patterns: Listeners,
}

/// Whether a subscription names a channel or a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A channel.
    Channel,
    /// A pattern of channels.
    Pattern,
}

impl Channels {
    fn of(&mut self, kind: Kind) -> &mut Listeners {
        match kind {
            Kind::Channel => &mut self.exact,
            Kind::Pattern => &mut self.patterns,
        }
    }

    pub(crate) fn add(&mut self, kind: Kind, name: &[u8], listener: u64) {
        self.of(kind).entry(name.to_vec()).or_default().insert(listener);
    }

    pub(crate) fn remove(&mut self, kind: Kind, name: &[u8], listener: u64) {
        let listeners = self.of(kind);
        let left = listeners.get_mut(name).is_some_and(|some| {
            some.remove(&listener);
            !some.is_empty()
        });
        if !left {
            listeners.remove(name);
        }
    }

    /// Who gets a message: each with the pattern it listens by, or none.
    pub(crate) fn listeners(&self, channel: &[u8]) -> Vec<(u64, Option<Vec<u8>>)> {
        let exact = self.exact.get(channel).into_iter().flatten().map(|listener| (*listener, None));
        let matching = self.patterns.iter().filter(|(pattern, _)| glob::matches(pattern, channel, false));
        let by_pattern = matching
            .flat_map(|(pattern, listeners)| listeners.iter().map(|each| (*each, Some(pattern.clone()))));
        exact.chain(by_pattern).collect()
    }

    /// The channels or patterns that somebody listens to.
    pub(crate) fn names(&self, kind: Kind) -> impl Iterator<Item = &[u8]> {
        let listeners = match kind {
            Kind::Channel => &self.exact,
            Kind::Pattern => &self.patterns,
        };
        listeners.keys().map(Vec::as_slice)
    }

    /// How many listen to a channel by name.
    pub(crate) fn count(&self, channel: &[u8]) -> usize {
        self.exact.get(channel).map_or(0, BTreeSet::len)
    }
}

#[cfg(test)]
mod tests {
    use super::{Channels, Kind};

    #[test]
    fn listeners_get_a_message_for_each_of_their_subscriptions() {
        let mut channels = Channels::default();
        channels.add(Kind::Channel, b"news", 1);
        channels.add(Kind::Channel, b"news", 2);
        channels.add(Kind::Pattern, b"n*", 1);
        channels.add(Kind::Pattern, b"x*", 3);
        let expected = vec![(1, None), (2, None), (1, Some(b"n*".to_vec()))];
        assert_eq!(channels.listeners(b"news"), expected);
        assert_eq!(channels.count(b"news"), 2);
        channels.remove(Kind::Channel, b"news", 1);
        channels.remove(Kind::Channel, b"news", 1);
        channels.remove(Kind::Channel, b"news", 2);
        channels.remove(Kind::Pattern, b"absent", 2);
        assert_eq!((channels.names(Kind::Channel).count(), channels.names(Kind::Pattern).count()), (0, 2));
        assert_eq!(channels.listeners(b"other"), vec![]);
    }
}
