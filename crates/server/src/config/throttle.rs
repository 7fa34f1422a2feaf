//! `[throttle]`: a ceiling for each device, to make a small drive of a large one.
//!
//! Role: for benchmarks and tests, in which the drives and not the processors have to be the limit. Place:
//! read at the start. Invariant: what cores get adds up to no more than the device's.

use super::{ConfigError, Size};
use plimsoll_kv::throttle::Rates;
use serde::{Deserialize, Serialize};

/// How much may pass at once after a pause. Short: a drive keeps nothing for later.
const BURST_NS: u64 = 1_000_000;

/// What each device serves at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Throttle {
    /// Reads and writes a second; nothing: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests: Option<u64>,
    /// Bytes a second; nothing: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<Size>,
}

impl Throttle {
    /// Refuses what would stand still.
    pub(super) fn check(self) -> Result<Throttle, ConfigError> {
        if self.requests == Some(0) || self.bytes == Some(Size(0)) {
            return Err(ConfigError(
                "throttle: 0 a second would never end; leave it out for no limit".to_owned(),
            ));
        }
        Ok(self)
    }

    /// What one of so many cores gets of each device.
    pub(crate) fn of_core(self, cores: usize) -> Rates {
        let share = |rate: Option<u64>| rate.map_or(0, |rate| (rate / cores as u64).max(1));
        Rates {
            ops_per_s: share(self.requests),
            bytes_per_s: share(self.bytes.map(|size| size.0)),
            burst_ns: BURST_NS,
        }
    }
}
