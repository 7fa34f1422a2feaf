//! How many worlds a test of random ones looks at.

use std::ops::Range;

/// Seeds of a test; `PLIMSOLL_SEEDS` multiplies them.
pub(crate) fn seeds(first: u64, count: u64) -> Range<u64> {
    let factor = std::env::var("PLIMSOLL_SEEDS").ok().and_then(|factor| factor.parse().ok()).unwrap_or(1);
    first..first + count * factor
}
