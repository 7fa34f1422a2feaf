//! What a core publishes of its devices: names, values, and when.
//!
//! Role: gauges for INFO and `/metrics`. Place on the path: beside it.
//!
//! Invariants: published once a second, and when a core asks; what belongs to a device that was replaced
//! goes with it.

use crate::counters::Gauges;
use crate::shared::Shared;
use plimsoll_cache::CacheMetrics;
use plimsoll_flash::PartitionMetrics;
use plimsoll_gate::GateStats;
use plimsoll_reactor::{FileStats, Reactor, Work};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

/// How often gauges are published.
const PUBLISH_NS: u64 = 1_000_000_000;

pub(super) const PARTITION_GAUGES: [&str; 32] = [
    "objects",
    "objects_max",
    "index_bytes",
    "live_bytes",
    "damaged_bytes",
    "capacity_bytes",
    "free_segments",
    "segments",
    "frames",
    "record_reads",
    "unreadable",
    "known_overwrites",
    "known_deletes",
    "recent_reads",
    "checkpoints",
    "checkpoint_bytes",
    "cleaned_segments",
    "cleaned_bytes",
    "stored_bytes",
    "expired",
    "evicted",
    "evicted_bytes",
    "mark_bytes",
    "live_bytes_max",
    "no_space",
    "read_only",
    "key_runs",
    "key_run_bytes",
    "key_table_bytes",
    "key_reads",
    "key_written_bytes",
    "key_rebuilds",
];
pub(super) const CACHE_GAUGES: [&str; 6] =
    ["cache_hits", "cache_misses", "cache_entries", "cache_bytes", "cache_capacity_bytes", "cache_evictions"];
pub(super) const DEVICE_GAUGES: [&str; 9] = [
    "reads",
    "read_bytes",
    "writes",
    "written_bytes",
    "flushes",
    "gate_waits",
    "gate_device_ns",
    "gate_reads_max",
    "silence_seconds",
];

pub(super) fn partition_values(m: &PartitionMetrics) -> [u64; PARTITION_GAUGES.len()] {
    [
        m.objects,
        m.objects_max,
        m.index_bytes,
        m.live_bytes,
        m.damaged_bytes,
        m.capacity_bytes,
        m.free_segments,
        m.segments,
        m.frames,
        m.record_reads,
        m.unreadable,
        m.known_overwrites,
        m.known_deletes,
        m.recent_reads,
        m.checkpoints,
        m.checkpoint_bytes,
        m.cleaned_segments,
        m.cleaned_bytes,
        m.stored_bytes,
        m.expired,
        m.evicted,
        m.evicted_bytes,
        m.mark_bytes,
        m.live_bytes_max,
        m.no_space,
        m.read_only,
        m.key_runs,
        m.key_run_bytes,
        m.key_table_bytes,
        m.key_reads,
        m.key_written_bytes,
        m.key_rebuilds,
    ]
}

pub(super) fn cache_values(m: &CacheMetrics) -> [u64; CACHE_GAUGES.len()] {
    [m.hits, m.misses, m.entries, m.bytes, m.capacity_bytes, m.evictions]
}

pub(super) fn device_values(s: &FileStats, gate: &GateStats, silence_s: u64) -> [u64; DEVICE_GAUGES.len()] {
    [
        s.reads,
        s.read_bytes,
        s.writes,
        s.written_bytes,
        s.flushes,
        gate.waited,
        gate.device_ns,
        gate.reads_max,
        silence_s,
    ]
}

/// Publishes the gauges of a device; false if it is gone.
type Publisher = Rc<dyn Fn() -> bool>;

/// All that a core publishes.
pub(super) struct Publishers {
    reactor: Reactor,
    shared: Arc<Shared>,
    all: RefCell<Vec<Publisher>>,
}

impl Publishers {
    pub(super) fn new(reactor: &Reactor, shared: &Arc<Shared>) -> Rc<Publishers> {
        Rc::new(Publishers { reactor: reactor.clone(), shared: shared.clone(), all: RefCell::default() })
    }

    /// Publishes values now, every second for those who look from outside, and when a core asks; until there
    /// are none.
    pub(super) fn publish(
        &self,
        label: String,
        names: &[&'static str],
        read: impl Fn() -> Option<Vec<u64>> + 'static,
    ) {
        let gauges = self.shared.add_gauges(Gauges::new(label, names));
        let shared = self.shared.clone();
        let publish: Publisher = Rc::new(move || {
            let values = read();
            match &values {
                Some(values) => gauges.publish(values),
                None => shared.remove_gauges(&gauges),
            }
            values.is_some()
        });
        self.all.borrow_mut().push(publish.clone());
        let reactor = self.reactor.clone();
        self.reactor.spawn(Work::Control, async move {
            while publish() {
                reactor.sleep_ns(PUBLISH_NS).await;
            }
        });
    }

    /// Publishes everything now.
    pub(super) fn publish_now(&self) {
        self.all.borrow_mut().retain(|publish| publish());
    }
}

/// A label as metrics write it: of a number, and of the device if there are several.
pub(super) fn label(what: &str, number: u16, device: Option<&str>) -> String {
    let device = device.map(|path| format!(",device=\"{}\"", escaped(path)));
    format!("{what}=\"{number}\"{}", device.unwrap_or_default())
}

/// A path as the value of a label: Prometheus' text format gives three characters a meaning.
pub(super) fn escaped(path: &str) -> String {
    path.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_name_the_device_if_there_are_several() {
        assert_eq!(label("partition", 3, None), "partition=\"3\"");
        assert_eq!(label("core", 0, Some("/dev/a")), "core=\"0\",device=\"/dev/a\"");
        assert_eq!(escaped("a\"b\\c\nd"), "a\\\"b\\\\c\\nd");
    }
}
