//! A histogram of latencies of one writer: fixed buckets, a sixteenth of their value wide at most.
//!
//! Role: what LATENCY HISTOGRAM and the percentiles of INFO are made from. Place on the path: beside it.
//!
//! Invariants: recording takes a shift and an add; buckets end exactly where powers of two of 1024 ns
//! do, so that cumulative counts of those are exact; one writer, any number of readers.

use crate::counters::Counter;

/// Nanoseconds of the finest bucket.
const UNIT_NS: u64 = 64;
/// Buckets of each power of two, as a power of two.
const SPLIT_BITS: u32 = 4;
const SPLIT: usize = 1 << SPLIT_BITS;
/// Latencies of more units are counted as this: about 18 minutes.
const UNITS_MAX: u64 = (1 << 34) - 1;
const BUCKETS: usize = (34 - SPLIT_BITS as usize + 1) * SPLIT;
/// The first bound that is told, in nanoseconds; each further one is twice the one before.
const FIRST_BOUND_NS: u64 = 1024;

/// A histogram.
#[derive(Debug)]
pub struct Histogram(Box<[Counter]>);

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram((0..BUCKETS).map(|_| Counter::default()).collect())
    }
}

/// The bucket of a latency.
fn bucket(latency_ns: u64) -> usize {
    // A latency belongs to the bucket that ends at it, as bounds are inclusive.
    let units = (latency_ns.saturating_sub(1) / UNIT_NS).min(UNITS_MAX);
    if units < SPLIT as u64 {
        return units as usize;
    }
    let shift = units.ilog2() - SPLIT_BITS;
    (shift as usize + 1) * SPLIT + ((units >> shift) as usize - SPLIT)
}

/// The greatest latency of a bucket.
fn bound_ns(bucket: usize) -> u64 {
    if bucket < SPLIT {
        return (bucket as u64 + 1) * UNIT_NS;
    }
    let (shift, within) = (bucket / SPLIT - 1, bucket % SPLIT);
    ((SPLIT + within + 1) as u64 * UNIT_NS) << shift
}

impl Histogram {
    /// Counts one latency; only the owner may.
    pub fn record(&self, latency_ns: u64) {
        self.0[bucket(latency_ns)].add(1);
    }

    /// Forgets everything; only the owner may.
    pub fn reset(&self) {
        self.0.iter().for_each(|counter| counter.set(0));
    }
}

/// The sum of histograms of several cores.
#[derive(Clone, Debug)]
pub struct Distribution {
    counts: Vec<u64>,
    total: u64,
}

impl Distribution {
    /// Of all that these have counted.
    pub fn new<'a>(histograms: impl Iterator<Item = &'a Histogram>) -> Distribution {
        let mut counts = vec![0; BUCKETS];
        for histogram in histograms {
            for (sum, counter) in counts.iter_mut().zip(&histogram.0) {
                *sum += counter.get();
            }
        }
        let total = counts.iter().sum();
        Distribution { counts, total }
    }

    /// Latencies counted.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The latency that so many thousandths of all do not exceed, about: at most a sixteenth too high.
    #[must_use]
    pub fn percentile_ns(&self, thousandths: u64) -> u64 {
        let wanted = (self.total * thousandths).div_ceil(1000).max(1);
        let mut below = 0;
        let found = self.counts.iter().position(|count| {
            below += count;
            below >= wanted
        });
        found.map_or(0, bound_ns)
    }

    /// Powers of two of about a microsecond, each with how many latencies do not exceed it; those at
    /// which nothing is added are left out.
    #[must_use]
    pub fn cumulative_us(&self) -> Vec<(u64, u64)> {
        let mut pairs = Vec::new();
        let (mut below, mut told, mut power_ns) = (0, 0, FIRST_BOUND_NS);
        for (index, count) in self.counts.iter().enumerate() {
            below += count;
            if bound_ns(index) == power_ns {
                if below > told {
                    pairs.push((power_ns / 1000, below));
                    told = below;
                }
                power_ns *= 2;
            }
        }
        pairs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_latency_lies_in_the_narrow_bucket_that_ends_at_or_above_it() {
        for power in 0..40 {
            for latency_ns in [(1 << power) - 1, 1 << power, (1 << power) + 1, 3 << power] {
                let index = bucket(latency_ns);
                let bound = bound_ns(index);
                if latency_ns <= (UNITS_MAX + 1) * UNIT_NS {
                    assert!(bound >= latency_ns, "{latency_ns}: {bound}");
                    assert!(bound - latency_ns <= UNIT_NS.max(latency_ns / 16), "{latency_ns}: {bound}");
                    assert!(index == 0 || bound_ns(index - 1) < latency_ns.max(1));
                }
            }
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn counts_are_cumulative_at_powers_of_two() {
        let (a, b) = (Histogram::default(), Histogram::default());
        for latency_ns in [1, 1024, 1025, 2048, 3_000_000] {
            a.record(latency_ns);
        }
        b.record(4096);
        let all = Distribution::new([&a, &b].into_iter());
        assert_eq!(all.total(), 6);
        assert_eq!(all.cumulative_us(), [(1, 2), (2, 4), (4, 5), (4194, 6)]);
        assert_eq!(all.percentile_ns(500), 1088);
        assert!((3_000_000..3_200_000).contains(&all.percentile_ns(999)));
        a.reset();
        assert_eq!(Distribution::new([&a].into_iter()).percentile_ns(500), 0);
        assert!(Distribution::new([&a].into_iter()).cumulative_us().is_empty());
    }
}
