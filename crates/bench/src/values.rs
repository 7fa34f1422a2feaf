//! Values: made from the number of their key and a version, and checked against that.
//!
//! Invariants: the bytes are a generator's, a new one for each key and version, so that they cannot be
//! compressed and none is mistaken for another; the length depends on the key alone.

use crate::keys::scatter;
use rand_core::{RngCore, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use std::str::FromStr;

/// A value that is shorter has no version: all of a key are alike.
const VERSION_BYTES: usize = 8;
const VERSIONED_BYTES_MIN: usize = 2 * VERSION_BYTES;
/// Redis' limit.
const VALUE_BYTES_MAX: usize = 512 << 20;
/// So that the lengths and the bytes of a key have nothing to do with each other.
const LENGTH_SALT: u64 = 0x6c65_6e67_7468;

/// Lengths of values, each with its share of the keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Bytes, and the sum of the weights up to here.
    classes: Vec<(usize, u64)>,
}

impl FromStr for Sizes {
    type Err = String;

    /// Reads `1024`, or lengths with weights: `100:9,16384:1`.
    fn from_str(text: &str) -> Result<Sizes, String> {
        let mut classes = Vec::new();
        let mut total = 0_u64;
        for class in text.split(',') {
            let (bytes, weight) = class.split_once(':').unwrap_or((class, "1"));
            let wrong = || format!("'{class}': write 1024, or lengths with weights, as 100:9,16384:1");
            let bytes: usize = bytes.parse().map_err(|_| wrong())?;
            let weight: u32 = weight.parse().map_err(|_| wrong())?;
            if bytes > VALUE_BYTES_MAX || weight == 0 {
                return Err(format!("'{class}': at most {VALUE_BYTES_MAX} bytes, and a weight above 0"));
            }
            total += u64::from(weight);
            classes.push((bytes, total));
        }
        Ok(Sizes { classes })
    }
}

impl Sizes {
    /// The length of the value of a key.
    pub(crate) fn of(&self, key: u64) -> usize {
        let total = self.classes.last().expect("there is a length").1;
        let place = scatter(key ^ LENGTH_SALT) % total;
        let class = self.classes.iter().find(|(_, end)| place < *end);
        class.expect("a place lies below the total").0
    }
}

/// Makes the value of a key, of a version.
pub(crate) fn make(key: u64, version: u64, bytes: usize, into: &mut Vec<u8>) {
    into.clear();
    into.resize(bytes, 0);
    let version = if bytes < VERSIONED_BYTES_MIN { 0 } else { version };
    let mut random = Xoshiro256PlusPlus::seed_from_u64(scatter(key) ^ version);
    if bytes < VERSIONED_BYTES_MIN {
        return random.fill_bytes(into);
    }
    let (head, rest) = into.split_at_mut(VERSION_BYTES);
    head.copy_from_slice(&version.to_le_bytes());
    random.fill_bytes(rest);
}

/// What is wrong with a value that was read, if something is; `scratch` holds what it should be.
pub(crate) fn fault(key: u64, bytes: usize, value: &[u8], scratch: &mut Vec<u8>) -> Option<String> {
    if value.len() != bytes {
        return Some(format!("{} bytes instead of {bytes}", value.len()));
    }
    let version = value.first_chunk().map_or(0, |head| u64::from_le_bytes(*head));
    make(key, version, bytes, scratch);
    let differs = value.iter().zip(scratch.iter()).position(|(is, should)| is != should)?;
    Some(format!("byte {differs} of {bytes} is wrong"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_told_from_every_other() {
        let (mut value, mut scratch) = (Vec::new(), Vec::new());
        for bytes in [1, 15, 16, 100, 4096] {
            make(7, 99, bytes, &mut value);
            assert_eq!(fault(7, bytes, &value, &mut scratch), None);
            assert!(fault(7, bytes + 1, &value, &mut scratch).is_some());
            if bytes > 1 {
                assert!(fault(8, bytes, &value, &mut scratch).is_some(), "another key's");
            }
            for at in [0, bytes / 2, bytes - 1] {
                value[at] ^= 1;
                assert!(fault(7, bytes, &value, &mut scratch).is_some(), "a bit of byte {at} of {bytes}");
                value[at] ^= 1;
            }
        }
        assert_eq!(fault(7, 0, &[], &mut scratch), None);
    }

    #[test]
    fn lengths_have_their_shares() {
        let sizes: Sizes = "100:9,16384:1".parse().unwrap();
        let long = (0..10_000).filter(|key| sizes.of(*key) == 16384).count();
        assert!((900..1100).contains(&long), "{long} of 10000");
        for wrong in ["", "x", "10:0", "10:", "10,,20", "-1", "999999999999"] {
            assert!(wrong.parse::<Sizes>().is_err(), "{wrong}");
        }
    }
}
