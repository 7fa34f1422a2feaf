//! When the records of a segment expire, on the whole: enough to see which segments to look at first.
//!
//! Role: reckoned as records are put there, and anew when a segment is read; looked at by who takes back what
//! has expired. Place on the path: inside the state.
//!
//! Invariants: not exact: records that died are still reckoned. What came before a start is not known until
//! the segment is read, and that is known.

/// A segment is worth reading if this part of what is live in it has expired.
const DUE_PART: u64 = 4;
/// Or if its first record expired so long ago, and this part of the time in which, on the average, the others
/// will, or so long at most: what is left behind is found.
const PATIENCE_MS: u64 = 60_000;
const PATIENCE_PART: u64 = 8;
const PATIENCE_MS_MAX: u64 = 3_600_000;

/// What is reckoned of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expiring {
    /// Units that expire.
    units: u64,
    /// The sum of the times, each as often as its record has units.
    weighted_ms: u128,
    /// When the first of them expires.
    first_ms: u64,
    /// Nothing was put there before this was reckoned.
    is_known: bool,
}

impl Expiring {
    /// Of a segment in which nothing expires.
    pub const NOTHING: Expiring = Expiring { units: 0, weighted_ms: 0, first_ms: u64::MAX, is_known: true };
    /// Of a segment that was filled before a start.
    pub const UNKNOWN: Expiring = Expiring { is_known: false, ..Expiring::NOTHING };

    /// A record expires at a time.
    pub fn add(&mut self, units: u64, expiry_ms: u64) {
        self.units += units;
        self.weighted_ms += u128::from(units) * u128::from(expiry_ms);
        self.first_ms = self.first_ms.min(expiry_ms);
    }

    /// True if all that was put there is reckoned.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.is_known
    }

    /// Units that are worth taking back from a segment with so many live ones; 0: it can wait. If room is
    /// wanted, whatever has expired is.
    #[must_use]
    pub fn due_units(&self, now_ms: u64, live_units: u64, is_wanted: bool) -> u64 {
        if self.units == 0 || self.first_ms > now_ms {
            return 0;
        }
        if is_wanted {
            return self.units;
        }
        let mean_ms = u64::try_from(self.weighted_ms / u128::from(self.units)).unwrap_or(u64::MAX);
        let others_ms = mean_ms.saturating_sub(self.first_ms) / PATIENCE_PART;
        let patience_ms = others_ms.clamp(PATIENCE_MS, PATIENCE_MS_MAX);
        let many = mean_ms <= now_ms && self.units * DUE_PART >= live_units;
        if many || now_ms - self.first_ms >= patience_ms { self.units } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_is_due_when_the_average_of_its_records_has_expired() {
        let mut expiring = Expiring::NOTHING;
        assert_eq!(expiring.due_units(u64::MAX, 0, false), 0);
        expiring.add(10, 1000);
        expiring.add(30, 3000);
        assert_eq!(expiring.due_units(2499, 40, false), 0);
        assert_eq!(expiring.due_units(2500, 40, false), 40);
        assert_eq!(expiring.due_units(2500, 161, false), 0, "too little of it expires");
    }

    #[test]
    fn what_expires_long_before_the_others_is_not_left_behind() {
        let mut expiring = Expiring::NOTHING;
        expiring.add(1, 1000);
        expiring.add(1000, 800_001_000);
        assert_eq!(expiring.due_units(3_600_999, 2000, false), 0);
        assert_eq!(expiring.due_units(3_601_000, 2000, false), 1001);
        assert_eq!(expiring.due_units(999, 2000, true), 0);
        assert_eq!(expiring.due_units(1000, 2000, true), 1001, "room is wanted");
        let mut alone = Expiring::UNKNOWN;
        alone.add(1, 1000);
        assert_eq!((alone.due_units(60_999, 2000, false), alone.due_units(61_000, 2000, false)), (0, 1));
        assert!(!alone.is_known() && Expiring::NOTHING.is_known());
    }
}
