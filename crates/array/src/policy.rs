//! The policy: by which mechanism a value is protected, by its size or as its client asks.
//!
//! Role: what a user chose, for every store. Place on the path: asked when a value is stored. What it was
//! made into stands in its header, so that a policy may change while what was stored before stays readable.
//! Source: KVMD (FAST'20): one range is its standalone mode, several are its hybrid mode, and what clients
//! may ask for is its custom mode.
//!
//! Invariants: ranges ascend, and the last has no end: every size has one mechanism; what clients may ask for
//! is known when the array is opened, so that no value is made into what its roster does not list.

use crate::mechanism::{Mechanism, MechanismError};
use std::fmt;
use std::sync::Arc;

/// Ranges of a policy at most.
pub const RANGES_MAX: usize = 8;
/// Mechanisms that clients may ask for at most.
pub const CUSTOM_MAX: usize = 8;

/// Values of one range of sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeRange {
    /// The longest; what is longer belongs to the next range.
    pub value_bytes_max: u64,
    /// How they are protected.
    pub mechanism: Mechanism,
}

/// By which mechanism values are protected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    ranges: Arc<[SizeRange]>,
    /// Those of the ranges clients may ask for anyway.
    custom: Arc<[Mechanism]>,
}

/// Why ranges are no policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// None, or too many.
    #[error("{0} ranges of sizes; there are 1 to {RANGES_MAX}")]
    Count(usize),
    /// Not in order.
    #[error("the range up to {0} bytes does not end above the one before it")]
    Order(u64),
    /// Too much to choose from.
    #[error("{0} mechanisms that clients may ask for; there are {CUSTOM_MAX} at most")]
    Custom(usize),
    /// The last one ends.
    #[error("values above {0} bytes have no mechanism: the last range has no end")]
    Ends(u64),
}

impl Policy {
    /// Values of some ranges of sizes, the last without an end.
    ///
    /// # Errors
    /// There are none or too many, they do not ascend, or the last one ends.
    pub fn by_size(ranges: &[SizeRange]) -> Result<Policy, PolicyError> {
        if !(1..=RANGES_MAX).contains(&ranges.len()) {
            return Err(PolicyError::Count(ranges.len()));
        }
        let ends: Vec<u64> = ranges.iter().map(|range| range.value_bytes_max).collect();
        if let Some(pair) = ends.windows(2).find(|pair| pair[0] >= pair[1]) {
            return Err(PolicyError::Order(pair[1]));
        }
        match ends.last() {
            Some(&u64::MAX) => Ok(Policy { ranges: ranges.into(), custom: [].into() }),
            last => Err(PolicyError::Ends(*last.unwrap_or(&0))),
        }
    }

    /// The same, with mechanisms that clients may ask for, value by value.
    ///
    /// # Errors
    /// There are too many.
    pub fn with_custom(self, custom: &[Mechanism]) -> Result<Policy, PolicyError> {
        if custom.len() > CUSTOM_MAX {
            return Err(PolicyError::Custom(custom.len()));
        }
        Ok(Policy { custom: custom.into(), ..self })
    }

    /// Whether all its mechanisms can be on so many devices.
    ///
    /// # Errors
    /// See [`Mechanism::checked`].
    pub fn check(&self, devices: u32) -> Result<(), MechanismError> {
        self.mechanisms().try_for_each(|mechanism| mechanism.checked(devices).map(drop))
    }

    /// How a value of so many bytes is protected.
    #[must_use]
    pub fn mechanism(&self, value_bytes: u64) -> Mechanism {
        let holds = |range: &&SizeRange| value_bytes <= range.value_bytes_max;
        self.ranges.iter().find(holds).expect("the last range has no end").mechanism
    }

    /// The mechanisms of all ranges, and those that clients may ask for.
    pub fn mechanisms(&self) -> impl Iterator<Item = Mechanism> {
        self.ranges.iter().map(|range| range.mechanism).chain(self.custom.iter().copied())
    }
}

/// One mechanism for all sizes.
impl From<Mechanism> for Policy {
    fn from(mechanism: Mechanism) -> Policy {
        Policy { ranges: [SizeRange { value_bytes_max: u64::MAX, mechanism }].into(), custom: [].into() }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, SizeRange { value_bytes_max, mechanism }) in self.ranges.iter().enumerate() {
            match *value_bytes_max {
                u64::MAX if number == 0 => write!(f, "{mechanism}")?,
                u64::MAX => write!(f, "{mechanism} above")?,
                end => write!(f, "{mechanism} to {end} bytes, ")?,
            }
        }
        for (number, mechanism) in self.custom.iter().enumerate() {
            write!(f, "{} {mechanism}", if number == 0 { ", when asked" } else { " or" })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPLICATION: Mechanism = Mechanism::Replication { copies: 3 };
    const SPLITTING: Mechanism = Mechanism::Splitting { data: 4, parities: 2 };

    fn range(value_bytes_max: u64, mechanism: Mechanism) -> SizeRange {
        SizeRange { value_bytes_max, mechanism }
    }

    #[test]
    fn every_size_has_a_mechanism() {
        let policy = Policy::by_size(&[range(16_384, REPLICATION), range(u64::MAX, SPLITTING)]).unwrap();
        let each = [0, 16_384, 16_385, u64::MAX].map(|bytes| policy.mechanism(bytes));
        assert_eq!(each, [REPLICATION, REPLICATION, SPLITTING, SPLITTING]);
        assert_eq!(policy.to_string(), "replication 3 to 16384 bytes, splitting 4+2 above");
        assert_eq!(Policy::from(REPLICATION).to_string(), "replication 3");
        let custom = policy.clone().with_custom(&[Mechanism::Hashing, SPLITTING]).unwrap();
        assert_eq!(custom.mechanism(16_384), REPLICATION);
        assert_eq!(custom.mechanisms().count(), 4);
        let text = "replication 3 to 16384 bytes, splitting 4+2 above, when asked hashing or splitting 4+2";
        assert_eq!(custom.to_string(), text);
        let few = policy.check(5).unwrap_err();
        assert_eq!(few.to_string(), "splitting 4+2 needs 6 devices, there are 5");
    }

    #[test]
    fn what_is_no_policy_is_refused_in_words() {
        let words = |ranges: &[SizeRange]| Policy::by_size(ranges).unwrap_err().to_string();
        assert_eq!(words(&[]), "0 ranges of sizes; there are 1 to 8");
        assert_eq!(words(&[range(u64::MAX, SPLITTING); 9]), "9 ranges of sizes; there are 1 to 8");
        let falls = words(&[range(9, SPLITTING), range(9, REPLICATION), range(u64::MAX, SPLITTING)]);
        assert_eq!(falls, "the range up to 9 bytes does not end above the one before it");
        let many = Policy::from(SPLITTING).with_custom(&[REPLICATION; 9]).unwrap_err();
        assert_eq!(many.to_string(), "9 mechanisms that clients may ask for; there are 8 at most");
        let ends = words(&[range(9, SPLITTING)]);
        assert_eq!(ends, "values above 9 bytes have no mechanism: the last range has no end");
    }
}
