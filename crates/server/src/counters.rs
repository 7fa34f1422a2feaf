//! What a core counts, for INFO and `/metrics`.
//!
//! Role: one block of counters a core. Written by its core alone, with relaxed stores; read by any
//! thread. Place on the path: beside it.
//!
//! Invariants: one writer each, so that a load and a store are enough; a reader sees each counter
//! exact and several of them a moment apart.
//!
//! Never: a lock, or a locked instruction on the data path.

use crate::histogram::Histogram;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Upper bounds of the latency histogram in microseconds; one bucket more has none.
pub const LATENCY_BOUNDS_US: [u64; 15] =
    [10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 25_000, 50_000, 100_000, 500_000, 1_000_000];

/// The first words of errors, as INFO errorstats tells them; the last one counts those that are not here.
pub const ERROR_CODES: [&str; 14] = [
    "ERR",
    "BUSYKEY",
    "EXECABORT",
    "LOADING",
    "MISCONF",
    "NOAUTH",
    "NOPROTO",
    "NOSCRIPT",
    "OOM",
    "READONLY",
    "TRYAGAIN",
    "WRONGPASS",
    "WRONGTYPE",
    "OTHER",
];

/// A counter of one writer.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds; only the owning core may.
    #[inline]
    pub fn add(&self, amount: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(amount), Relaxed);
    }

    /// Sets; only the owning core may.
    #[inline]
    pub fn set(&self, value: u64) {
        self.0.store(value, Relaxed);
    }

    /// Reads.
    #[inline]
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Counters of one command.
#[derive(Debug, Default)]
pub struct CommandCounters {
    /// Times it was run.
    pub calls: Counter,
    /// Times it was run and answered with an error.
    pub failed: Counter,
    /// Times it was refused before it was run.
    pub rejected: Counter,
    /// Nanoseconds from its parsing to its reply, waiting included.
    pub latency_ns: Counter,
    /// Runs by latency: the n-th counts those up to the n-th bound and above the one before.
    pub buckets: [Counter; LATENCY_BOUNDS_US.len() + 1],
    /// The same, finer; made when the command is run for the first time.
    histogram: OnceLock<Histogram>,
}

impl CommandCounters {
    /// Counts a run that took so long.
    pub fn ran(&self, latency_ns: u64, failed: bool) {
        self.calls.add(1);
        self.failed.add(u64::from(failed));
        self.latency_ns.add(latency_ns);
        let bucket = LATENCY_BOUNDS_US.partition_point(|bound_us| bound_us * 1000 < latency_ns);
        self.buckets[bucket].add(1);
        self.histogram.get_or_init(Histogram::default).record(latency_ns);
    }

    /// Its latencies, if it was ever run on this core.
    #[must_use]
    pub fn histogram(&self) -> Option<&Histogram> {
        self.histogram.get()
    }

    fn reset(&self) {
        for counter in [&self.calls, &self.failed, &self.rejected, &self.latency_ns] {
            counter.set(0);
        }
        self.buckets.iter().for_each(|bucket| bucket.set(0));
        if let Some(histogram) = self.histogram.get() {
            histogram.reset();
        }
    }
}

/// Counters of one core.
#[derive(Debug)]
pub struct CoreCounters {
    /// By the command's slot ([`crate::command::SLOTS`]).
    pub commands: Vec<CommandCounters>,
    /// Connections accepted.
    pub accepted: Counter,
    /// Connections refused because there were too many.
    pub refused: Counter,
    /// Connections cut because all together held too much memory.
    pub evicted: Counter,
    /// Clients that did not come through the TLS handshake.
    pub handshakes_failed: Counter,
    /// Connections open now.
    pub open: Counter,
    /// Bytes that they hold.
    pub held_bytes: Counter,
    /// Bytes received.
    pub received_bytes: Counter,
    /// Bytes sent.
    pub sent_bytes: Counter,
    /// Receives that brought bytes.
    pub receives: Counter,
    /// Sends.
    pub sends: Counter,
    /// Reads that found their key.
    pub hits: Counter,
    /// Reads that did not.
    pub misses: Counter,
    /// Replies that were errors.
    pub errors: Counter,
    /// The same by their first word, in the order of [`ERROR_CODES`].
    pub errors_by_code: [Counter; ERROR_CODES.len()],
    /// Connections closed for breaking the protocol.
    pub protocol_errors: Counter,
}

impl CoreCounters {
    /// Counters at zero for so many commands.
    #[must_use]
    pub fn new(commands: usize) -> CoreCounters {
        CoreCounters {
            commands: (0..commands).map(|_| CommandCounters::default()).collect(),
            accepted: Counter::default(),
            refused: Counter::default(),
            evicted: Counter::default(),
            handshakes_failed: Counter::default(),
            open: Counter::default(),
            held_bytes: Counter::default(),
            received_bytes: Counter::default(),
            sent_bytes: Counter::default(),
            receives: Counter::default(),
            sends: Counter::default(),
            hits: Counter::default(),
            misses: Counter::default(),
            errors: Counter::default(),
            errors_by_code: Default::default(),
            protocol_errors: Counter::default(),
        }
    }

    /// Sets everything to zero but what says how things stand now. Only the owning core may.
    pub fn reset(&self) {
        self.commands.iter().for_each(CommandCounters::reset);
        let counters = [&self.accepted, &self.refused, &self.evicted, &self.received_bytes, &self.sent_bytes];
        for counter in
            counters.into_iter().chain([&self.receives, &self.sends, &self.hits, &self.misses, &self.errors])
        {
            counter.set(0);
        }
        self.protocol_errors.set(0);
        self.handshakes_failed.set(0);
        self.errors_by_code.iter().for_each(|counter| counter.set(0));
    }

    /// Counts an error, by its text.
    pub fn failed(&self, text: &[u8]) {
        self.errors.add(1);
        let code = text.split(|byte| *byte == b' ').next().unwrap_or_default();
        let known = ERROR_CODES.iter().position(|known| known.as_bytes() == code);
        self.errors_by_code[known.unwrap_or(ERROR_CODES.len() - 1)].add(1);
    }

    /// Commands run.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.commands.iter().map(|command| command.calls.get()).sum()
    }
}

/// Named numbers that a device tells about itself, published by its owner once a second and when asked.
#[derive(Debug)]
pub struct Gauges {
    /// What they belong to: `partition="3"` or `device="/dev/…"`, as metrics label them.
    pub label: String,
    /// Names and values.
    pub values: Vec<(&'static str, Counter)>,
}

impl Gauges {
    /// Whether they are the same gauges of the same thing.
    #[must_use]
    pub fn is_of_the_same(&self, other: &Gauges) -> bool {
        self.label == other.label
            && self.values.iter().map(|(name, _)| name).eq(other.values.iter().map(|(name, _)| name))
    }

    /// Gauges at zero.
    #[must_use]
    pub fn new(label: String, names: &[&'static str]) -> Gauges {
        Gauges { label, values: names.iter().map(|name| (*name, Counter::default())).collect() }
    }

    /// Publishes new values, in the order of the names. Only the owning core may.
    pub fn publish(&self, values: &[u64]) {
        assert_eq!(values.len(), self.values.len());
        for ((_, gauge), value) in self.values.iter().zip(values) {
            gauge.set(*value);
        }
    }
}
