//! What came of operations: latencies, and what failed.
//!
//! Invariant: an operation is counted once, as done with its latency or as failed.

use crate::printable::printable;
use crate::workload::Operation;
use hdrhistogram::Histogram;
use std::collections::BTreeMap;

/// Digits of a latency that are kept.
const DIGITS: u8 = 3;
/// Longer latencies count as this: an hour.
const LATENCY_NS_MAX: u64 = 3_600_000_000_000;

/// What came of the operations of one tenant, on one core or on all.
#[derive(Clone, Debug)]
pub struct Tally {
    /// Nanoseconds, for each operation.
    pub latencies: BTreeMap<Operation, Histogram<u64>>,
    /// Values that were not what was stored.
    pub wrong: u64,
    /// Keys that were stored before the measurement and are not there.
    pub absent: u64,
    /// Keys whose insert was acknowledged, and that are not there.
    pub lost: u64,
    /// Keys that were inserted just now and not there yet.
    pub not_yet: u64,
    /// Errors by their first word, each with the first text.
    pub errors: BTreeMap<String, (u64, String)>,
    /// What was wrong first, in words.
    pub first_wrong: Option<String>,
    /// When the first operation that counts began and the last one ended, in nanoseconds of the
    /// clock that all cores have.
    pub span_ns: Option<(u64, u64)>,
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_NS_MAX, DIGITS).expect("the bounds are right")
}

impl Default for Tally {
    fn default() -> Tally {
        let latencies = Operation::ALL.into_iter().map(|operation| (operation, histogram())).collect();
        Tally {
            latencies,
            wrong: 0,
            absent: 0,
            lost: 0,
            not_yet: 0,
            errors: BTreeMap::new(),
            first_wrong: None,
            span_ns: None,
        }
    }
}

impl Tally {
    pub(crate) fn done(&mut self, operation: Operation, begun_ns: u64, ended_ns: u64) {
        let latencies = self.latencies.get_mut(&operation).expect("every operation has one");
        latencies.saturating_record(ended_ns.saturating_sub(begun_ns).max(1));
        self.cover(begun_ns, ended_ns);
    }

    fn cover(&mut self, begun_ns: u64, ended_ns: u64) {
        let (first, last) = self.span_ns.unwrap_or((begun_ns, ended_ns));
        self.span_ns = Some((first.min(begun_ns), last.max(ended_ns)));
    }

    pub(crate) fn is_wrong(&mut self, what: String) {
        self.wrong += 1;
        self.first_wrong.get_or_insert(what);
    }

    pub(crate) fn failed(&mut self, text: &[u8]) {
        let text = printable(text);
        let code = text.split(' ').next().unwrap_or_default().to_owned();
        self.errors.entry(code).or_insert((0, text)).0 += 1;
    }

    /// Adds what came of others.
    pub fn add(&mut self, other: &Tally) {
        for (operation, latencies) in &other.latencies {
            let own = self.latencies.get_mut(operation).expect("every operation has one");
            own.add(latencies).expect("all histograms are alike");
        }
        self.wrong += other.wrong;
        self.absent += other.absent;
        self.lost += other.lost;
        self.not_yet += other.not_yet;
        for (code, (count, text)) in &other.errors {
            self.errors.entry(code.clone()).or_insert((0, text.clone())).0 += count;
        }
        if let Some(what) = &other.first_wrong {
            self.first_wrong.get_or_insert(what.clone());
        }
        if let Some((begun_ns, ended_ns)) = other.span_ns {
            self.cover(begun_ns, ended_ns);
        }
    }

    /// True if nothing failed.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.wrong == 0 && self.absent == 0 && self.lost == 0 && self.errors.is_empty()
    }
}
