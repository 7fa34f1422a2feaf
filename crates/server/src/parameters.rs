//! Parameters that operators change while the server runs: their names, bounds and values.
//!
//! Role: one table for the configuration file, CONFIG GET, CONFIG SET and CONFIG REWRITE. Place on the
//! path: beside it; a command reads some of them with a relaxed load.
//!
//! Invariants: a value is always within its bounds; what CONFIG SET has changed is known, so that CONFIG
//! REWRITE writes that and nothing else.

use crate::limits::SLOWLOG_ENTRIES_MAX;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::Relaxed};

/// A parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parameter {
    /// Connections at most.
    ClientsMax,
    /// Milliseconds from which the latency monitor remembers a command; 0: it is off.
    LatencyMonitorThreshold,
    /// Microseconds from which the slow log remembers a command; negative: it is off.
    SlowlogLogSlowerThan,
    /// Commands that the slow log remembers.
    SlowlogMaxLen,
    /// Seconds after which an idle client is cut; 0: never.
    Timeout,
    /// Milliseconds after which a command that could not be begun is refused; 0: it waits.
    TryagainAfter,
}

/// What is fixed about a parameter.
#[derive(Debug)]
pub struct Spec {
    /// Which it is.
    pub parameter: Parameter,
    /// Its name for CONFIG.
    pub name: &'static str,
    /// Its key in the configuration file.
    pub key: &'static str,
    /// Its value unless another is given.
    pub default: i64,
    /// The least value.
    pub min: i64,
    /// The greatest value.
    pub max: i64,
}

/// All parameters, in the order of [`Parameter`].
pub static PARAMETERS: [Spec; 6] = [
    Spec {
        parameter: Parameter::ClientsMax,
        name: "maxclients",
        key: "clients-max",
        default: 10_000,
        min: 1,
        max: u32::MAX as i64,
    },
    Spec {
        parameter: Parameter::LatencyMonitorThreshold,
        name: "latency-monitor-threshold",
        key: "latency-monitor-threshold",
        default: 0,
        min: 0,
        max: i64::MAX,
    },
    Spec {
        parameter: Parameter::SlowlogLogSlowerThan,
        name: "slowlog-log-slower-than",
        key: "slowlog-log-slower-than",
        default: 10_000,
        min: -1,
        max: i64::MAX,
    },
    Spec {
        parameter: Parameter::SlowlogMaxLen,
        name: "slowlog-max-len",
        key: "slowlog-max-len",
        default: 128,
        min: 0,
        max: SLOWLOG_ENTRIES_MAX as i64,
    },
    Spec {
        parameter: Parameter::Timeout,
        name: "timeout",
        key: "timeout",
        default: 0,
        min: 0,
        max: i32::MAX as i64,
    },
    Spec {
        parameter: Parameter::TryagainAfter,
        name: "tryagain-after",
        key: "tryagain-after",
        default: 10_000,
        min: 0,
        max: i32::MAX as i64,
    },
];

impl Spec {
    /// Checks a value.
    ///
    /// # Errors
    /// Says, in Redis' words, what its bounds are.
    pub fn check(&self, value: i64) -> Result<i64, String> {
        if (self.min..=self.max).contains(&value) {
            return Ok(value);
        }
        Err(format!("argument must be between {} and {} inclusive", self.min, self.max))
    }
}

/// A value for each parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Values([i64; PARAMETERS.len()]);

impl Default for Values {
    fn default() -> Values {
        Values(std::array::from_fn(|index| PARAMETERS[index].default))
    }
}

impl Values {
    /// These values with another one for a parameter.
    #[must_use]
    pub fn with(mut self, parameter: Parameter, value: i64) -> Values {
        self.0[parameter as usize] = value;
        self
    }

    /// The value of a parameter.
    #[must_use]
    pub fn get(&self, parameter: Parameter) -> i64 {
        self.0[parameter as usize]
    }
}

/// The values in force; every thread reads them, and a core that serves a CONFIG SET changes them.
#[derive(Debug)]
pub struct Parameters {
    values: [AtomicI64; PARAMETERS.len()],
    changed: [AtomicBool; PARAMETERS.len()],
}

impl Parameters {
    /// The values of the start.
    #[must_use]
    pub fn new(values: Values) -> Parameters {
        Parameters { values: values.0.map(AtomicI64::new), changed: Default::default() }
    }

    /// The value in force.
    #[inline]
    #[must_use]
    pub fn get(&self, parameter: Parameter) -> i64 {
        self.values[parameter as usize].load(Relaxed)
    }

    /// Sets a value that has been checked.
    pub fn set(&self, parameter: Parameter, value: i64) {
        self.values[parameter as usize].store(value, Relaxed);
        self.changed[parameter as usize].store(true, Relaxed);
    }

    /// The parameters that were set since the start, with their values.
    #[must_use]
    pub fn changed(&self) -> Vec<(&'static Spec, i64)> {
        let is_changed = |spec: &&Spec| self.changed[spec.parameter as usize].load(Relaxed);
        PARAMETERS.iter().filter(is_changed).map(|spec| (spec, self.get(spec.parameter))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_order_and_defaults_are_within_their_bounds() {
        for (index, spec) in PARAMETERS.iter().enumerate() {
            assert_eq!(spec.parameter as usize, index);
            assert_eq!(spec.check(spec.default), Ok(spec.default));
        }
    }

    #[test]
    fn what_was_set_is_known() {
        let parameters = Parameters::new(Values::default().with(Parameter::Timeout, 7));
        assert_eq!(parameters.get(Parameter::Timeout), 7);
        assert!(parameters.changed().is_empty());
        parameters.set(Parameter::SlowlogMaxLen, 5);
        let changed: Vec<_> = parameters.changed().iter().map(|(spec, value)| (spec.name, *value)).collect();
        assert_eq!(changed, [("slowlog-max-len", 5)]);
    }
}
