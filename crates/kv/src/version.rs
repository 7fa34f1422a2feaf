//! Versions: what orders the writes of a key.

use std::fmt;

/// The version of a write: the owner's epoch, then a hybrid logical clock (Kulkarni et al., 2014).
///
/// The epoch grows at every start of the owner and is durable before it is used, so that a version
/// is never used twice even if the wall clock steps back. The clock holds wall milliseconds in its
/// upper 48 bits and a counter below.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// Starts of the owner.
    pub epoch: u32,
    /// The hybrid logical clock.
    pub clock: u64,
}

impl Version {
    /// The version before any write.
    pub const ZERO: Version = Version { epoch: 0, clock: 0 };

    /// The next version of an owner at wall time `wall_ms`.
    #[must_use]
    pub fn next(self, wall_ms: u64) -> Version {
        let clock = (self.clock + 1).max(wall_ms << 16);
        Version { epoch: self.epoch, clock }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.epoch, self.clock)
    }
}
