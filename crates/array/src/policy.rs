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
/// Shards of data, or values of a set, of what is chosen.
const CHOSEN_DATA_MAX: u32 = 4;

/// Values of one range of sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeRange {
    /// The longest; what is longer belongs to the next range.
    pub value_bytes_max: u64,
    /// How they are protected.
    pub mechanism: Mechanism,
}

/// What a mechanism is chosen for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// Least bytes on devices.
    Space,
    /// Least time of devices.
    Throughput,
}

/// Mechanisms to choose from, by what is done with values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// For what.
    pub goal: Goal,
    /// All survive as many failures; copies are the first.
    pub mechanisms: Arc<[Mechanism]>,
}

/// By which mechanism values are protected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    ranges: Arc<[SizeRange]>,
    /// Those of the ranges clients may ask for anyway.
    custom: Arc<[Mechanism]>,
    /// Mechanisms are chosen, and not named: what the ranges say holds nothing then.
    choice: Option<Choice>,
}

/// Why ranges are no policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// None, or too many.
    #[error("{0} ranges of sizes; there are 1 to {RANGES_MAX}")]
    Count(usize),
    /// None but the last may be without an end.
    #[error("range {0} of {1} has no end (`to`), and others come after it")]
    Endless(usize, usize),
    /// Not in order.
    #[error("range {0}, up to {1} bytes, does not end above the one before it")]
    Order(usize, u64),
    /// Too much to choose from.
    #[error("{0} mechanisms that clients may ask for; there are {CUSTOM_MAX} at most")]
    Custom(usize),
    /// Which of two would be meant?
    #[error("{0} is named twice")]
    Twice(Mechanism),
    /// Nothing to survive.
    #[error("a choice of mechanisms survives 1 failure at least; what survives none is hashing")]
    NoFailures,
    /// Too few devices.
    #[error("to survive {0} failures takes {needed} devices, not {1}", needed = .0 + 1)]
    Failures(u32, u32),
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
        if let Some(at) = ends[..ends.len() - 1].iter().position(|end| *end == u64::MAX) {
            return Err(PolicyError::Endless(at + 1, ends.len()));
        }
        if let Some(at) = (1..ends.len()).find(|at| ends[at - 1] >= ends[*at]) {
            return Err(PolicyError::Order(at + 1, ends[at]));
        }
        match ends.last() {
            Some(&u64::MAX) => Ok(Policy { ranges: ranges.into(), custom: [].into(), choice: None }),
            last => Err(PolicyError::Ends(*last.unwrap_or(&0))),
        }
    }

    /// Mechanisms that survive so many failures are chosen by what is done with values.
    ///
    /// # Errors
    /// No failure is to be survived, or more than there are devices for.
    pub fn chosen(goal: Goal, failures: u32, devices: u32) -> Result<Policy, PolicyError> {
        if failures == 0 {
            return Err(PolicyError::NoFailures);
        }
        if failures >= devices {
            return Err(PolicyError::Failures(failures, devices));
        }
        let copies = Mechanism::Replication { copies: failures + 1 };
        let data = CHOSEN_DATA_MAX.min(devices.saturating_sub(failures));
        let sets = (data >= 2).then_some(failures).into_iter().flat_map(|parities| {
            [Mechanism::Splitting { data, parities }, Mechanism::Packing { data, parities }]
        });
        let mechanisms = std::iter::once(copies).chain(sets).collect();
        Ok(Policy { choice: Some(Choice { goal, mechanisms }), ..copies.into() })
    }

    /// What is chosen from, if that is so.
    #[must_use]
    pub fn choice(&self) -> Option<&Choice> {
        self.choice.as_ref()
    }

    /// True if clients may ask for mechanisms.
    #[must_use]
    pub fn has_custom(&self) -> bool {
        !self.custom.is_empty()
    }

    /// The same, with mechanisms that clients may ask for, value by value.
    ///
    /// # Errors
    /// There are too many, or one is named twice.
    pub fn with_custom(self, custom: &[Mechanism]) -> Result<Policy, PolicyError> {
        if custom.len() > CUSTOM_MAX {
            return Err(PolicyError::Custom(custom.len()));
        }
        if let Some((_, twice)) = custom.iter().enumerate().find(|(at, named)| custom[..*at].contains(named))
        {
            return Err(PolicyError::Twice(*twice));
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

    /// How a value of so many bytes is protected, unless that is chosen.
    #[must_use]
    pub fn mechanism(&self, value_bytes: u64) -> Mechanism {
        let holds = |range: &&SizeRange| value_bytes <= range.value_bytes_max;
        self.ranges.iter().find(holds).expect("the last range has no end").mechanism
    }

    /// The mechanisms of all ranges, those that may be chosen, and those that clients may ask for.
    pub fn mechanisms(&self) -> impl Iterator<Item = Mechanism> {
        let chosen = self.choice.iter().flat_map(|choice| choice.mechanisms.iter().copied());
        self.ranges.iter().map(|range| range.mechanism).chain(chosen).chain(self.custom.iter().copied())
    }
}

/// One mechanism for all sizes.
impl From<Mechanism> for Policy {
    fn from(mechanism: Mechanism) -> Policy {
        Policy {
            ranges: [SizeRange { value_bytes_max: u64::MAX, mechanism }].into(),
            custom: [].into(),
            choice: None,
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(Choice { goal, mechanisms }) = &self.choice {
            let names: Vec<String> = mechanisms.iter().map(Mechanism::to_string).collect();
            write!(f, "auto for {goal}: {}", names.join(" or "))?;
            return self.fmt_custom(f);
        }
        for (number, SizeRange { value_bytes_max, mechanism }) in self.ranges.iter().enumerate() {
            match *value_bytes_max {
                u64::MAX if number == 0 => write!(f, "{mechanism}")?,
                u64::MAX => write!(f, "{mechanism} above")?,
                end => write!(f, "{mechanism} to {end} bytes, ")?,
            }
        }
        self.fmt_custom(f)
    }
}

impl Policy {
    fn fmt_custom(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, mechanism) in self.custom.iter().enumerate() {
            write!(f, "{} {mechanism}", if number == 0 { ", when asked" } else { " or" })?;
        }
        Ok(())
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Goal::Space => "space",
            Goal::Throughput => "throughput",
        })
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
    fn what_is_chosen_from_survives_as_many_failures() {
        let names = |failures, devices| Policy::chosen(Goal::Space, failures, devices).unwrap().to_string();
        assert_eq!(names(2, 6), "auto for space: replication 3 or splitting 4+2 or packing 4+2");
        assert_eq!(names(1, 3), "auto for space: replication 2 or splitting 2+1 or packing 2+1");
        assert_eq!(names(1, 2), "auto for space: replication 2");
        let policy = Policy::chosen(Goal::Throughput, 1, 3).unwrap();
        assert_eq!(policy.mechanisms().count(), 4);
        assert!(policy.choice().unwrap().mechanisms.iter().all(|it| it.fatal_losses() == 2));
        assert_eq!(policy.check(3), Ok(()));
        let few = Policy::chosen(Goal::Space, 3, 3).unwrap_err();
        assert_eq!(few.to_string(), "to survive 3 failures takes 4 devices, not 3");
        let none = Policy::chosen(Goal::Space, 0, 3).unwrap_err().to_string();
        assert_eq!(none, "a choice of mechanisms survives 1 failure at least; what survives none is hashing");
    }

    #[test]
    fn what_is_no_policy_is_refused_in_words() {
        let words = |ranges: &[SizeRange]| Policy::by_size(ranges).unwrap_err().to_string();
        assert_eq!(words(&[]), "0 ranges of sizes; there are 1 to 8");
        assert_eq!(words(&[range(u64::MAX, SPLITTING); 9]), "9 ranges of sizes; there are 1 to 8");
        let falls = words(&[range(9, SPLITTING), range(9, REPLICATION), range(u64::MAX, SPLITTING)]);
        assert_eq!(falls, "range 2, up to 9 bytes, does not end above the one before it");
        let endless = words(&[range(9, SPLITTING), range(u64::MAX, REPLICATION), range(u64::MAX, SPLITTING)]);
        assert_eq!(endless, "range 2 of 3 has no end (`to`), and others come after it");
        let many = Policy::from(SPLITTING).with_custom(&[REPLICATION; 9]).unwrap_err();
        assert_eq!(many.to_string(), "9 mechanisms that clients may ask for; there are 8 at most");
        let twice = Policy::from(SPLITTING).with_custom(&[REPLICATION, SPLITTING, REPLICATION]).unwrap_err();
        assert_eq!(twice.to_string(), "replication 3 is named twice");
        let ends = words(&[range(9, SPLITTING)]);
        assert_eq!(ends, "values above 9 bytes have no mechanism: the last range has no end");
    }
}
