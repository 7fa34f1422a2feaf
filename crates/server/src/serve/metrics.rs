//! `/metrics`: the counters in the Prometheus text format.
//!
//! Invariants: each name is declared once, before its samples; counters only grow but after
//! CONFIG RESETSTAT, which a reader takes for a restart.

use super::array::{MemberView, View};
use super::gauges::escaped;
use crate::command::SLOTS;
use crate::counters::{CommandCounters, CoreCounters, LATENCY_BOUNDS_US};
use crate::shared::Shared;
use plimsoll_array::MemberState;
use plimsoll_reactor::Work;
use std::fmt::{Display, Write};
use std::sync::atomic::Ordering::Relaxed;

/// Gauges that count, and so are told as counters.
const COUNTING: [&str; 28] = [
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
    "no_space",
    "key_reads",
    "key_written_bytes",
    "key_rebuilds",
    "reads",
    "read_bytes",
    "writes",
    "written_bytes",
    "flushes",
    "gate_waits",
    "gate_device_ns",
    "cache_hits",
    "cache_misses",
    "cache_evictions",
];

/// One text under way.
struct Text(String);

impl Text {
    fn declare(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string does not fail.
        let _ = writeln!(self.0, "# HELP plimsoll_{name} {help}\n# TYPE plimsoll_{name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &str, value: impl Display) {
        let _ = match labels {
            "" => writeln!(self.0, "plimsoll_{name} {value}"),
            labels => writeln!(self.0, "plimsoll_{name}{{{labels}}} {value}"),
        };
    }

    fn single(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.declare(name, kind, help);
        self.sample(name, "", value);
    }

    /// A gauge without a sample as long as it is not known.
    fn perhaps(&mut self, name: &str, help: &str, value: Option<impl Display>) {
        self.declare(name, "gauge", help);
        value.iter().for_each(|value| self.sample(name, "", value));
    }
}

/// The sum of a gauge over all that have it.
pub(super) fn gauge_sum(shared: &Shared, name: &str) -> u64 {
    let gauges = shared.gauges();
    let values = gauges.iter().flat_map(|gauges| &gauges.values);
    values.filter(|(sought, _)| *sought == name).map(|(_, value)| value.get()).sum()
}

/// The labels of those whose gauge is above zero.
pub(super) fn labels_above_zero(shared: &Shared, name: &str) -> Vec<String> {
    let gauges = shared.gauges();
    let above =
        gauges.iter().filter(|gauges| gauges.values.iter().any(|(n, value)| *n == name && value.get() > 0));
    above.map(|gauges| gauges.label.clone()).collect()
}

/// The whole text.
pub(super) fn render(shared: &Shared, view: Option<&View>) -> String {
    let mut text = Text(String::new());
    text.declare("info", "gauge", "The version that runs, and its driver.");
    let driver = shared.driver().name();
    let what = format!("version=\"{}\",driver=\"{driver}\"", env!("CARGO_PKG_VERSION"));
    text.sample("info", &what, 1);
    let process = &shared.process;
    let resident = process.resident_bytes.load(Relaxed);
    text.single("resident_memory_bytes", "gauge", "Memory of the process.", resident);
    text.single("connections", "gauge", "Connections open now.", shared.connections());
    let help = "Lines of the log that nobody took in time.";
    text.single("log_lines_lost_total", "counter", help, crate::log::lines_lost());
    let name = "tls_certificate_expires_seconds";
    text.declare(name, "gauge", "When the server's certificate ends, in seconds since 1970.");
    if let Some(tls) = &shared.settings.tls {
        text.sample(name, "", tls.expires_s());
    }
    cores(&mut text, shared);
    loads(&mut text, shared);
    gauges(&mut text, shared);
    commands(&mut text, shared);
    view.iter().for_each(|view| array(&mut text, view));
    text.0
}

/// What is known of the members of an array. What is not known of one is left out.
fn members(text: &mut Text, view: &View) {
    type Read = fn(&MemberView) -> Option<u64>;
    let members: [(&str, &str, &str, Read); 7] = [
        ("array_member_in", "gauge", "1: the device holds everything that it should.", |member| {
            Some(u64::from(member.state == MemberState::In))
        }),
        ("array_member_resyncing", "gauge", "1: the device is being rebuilt.", |member| {
            Some(u64::from(member.state == MemberState::Resyncing))
        }),
        ("array_member_progress", "gauge", "Percent of the device that are rebuilt.", |member| {
            let whole = f64::from(u8::from(member.state == MemberState::In));
            Some(percent(member.progress.unwrap_or(whole)))
        }),
        (
            "array_member_seconds_left",
            "gauge",
            "Seconds until the device is rebuilt, while it is and that can be told.",
            |member| member.seconds_left,
        ),
        (
            "array_member_copied_bytes_total",
            "counter",
            "Bytes copied to the device to rebuild it.",
            |member| Some(member.copied_bytes),
        ),
        (
            "array_member_repaired_total",
            "counter",
            "Records rewritten on the device from others.",
            |member| Some(member.repaired),
        ),
        ("array_member_failed_requests_total", "counter", "Requests that failed at the device.", |member| {
            Some(member.failed_requests)
        }),
    ];
    for (name, kind, help, read) in members {
        text.declare(name, kind, help);
        for member in &view.members {
            let labels = format!("device=\"{}\"", escaped(&member.device));
            read(member).iter().for_each(|value| text.sample(name, &labels, value));
        }
    }
}

fn percent(part: f64) -> u64 {
    (part * 100.0) as u64
}

/// What is known of an array and its members.
fn array(text: &mut Text, view: &View) {
    members(text, view);
    let help = "Keys that may differ between devices, and are compared before they are used.";
    text.single("array_unsettled_keys", "gauge", help, view.unsettled);
    text.single(
        "array_moved_keys_total",
        "counter",
        "Keys that were stored anew because their length gets another mechanism.",
        view.keys_moved,
    );
    text.single(
        "array_kept_values_total",
        "counter",
        "Packed values of devices that are out that were kept where they were read from the rest of their sets.",
        view.values_kept,
    );
    text.single("array_packing_waiting_keys", "gauge", "Keys that wait to be packed.", view.packing_waiting);
    let help = "Sets of packed values that have lost some, and have to be looked through.";
    text.single("array_loose_sets", "gauge", help, view.sets_loose);
    let scrub = &view.scrub;
    text.single("array_scrub_running", "gauge", "1: a scrub is under way.", u64::from(scrub.running));
    text.perhaps(
        "array_scrub_progress",
        "Percent of its keys that a scrub under way has been through.",
        scrub.progress.map(percent),
    );
    text.perhaps(
        "array_scrub_seconds_left",
        "Seconds until it has been through all keys, while that can be told.",
        scrub.seconds_left,
    );
    text.single("array_scrub_keys", "gauge", "Keys that this or the last scrub went through.", scrub.keys);
    text.single(
        "array_scrub_errors",
        "gauge",
        "Keys that it found damaged, different or unreadable.",
        scrub.errors,
    );
}

fn cores(text: &mut Text, shared: &Shared) {
    type Read = fn(&CoreCounters) -> u64;
    let counters: [(&str, &str, Read); 10] = [
        ("connections_accepted_total", "Connections accepted.", |c| c.accepted.get()),
        ("connections_refused_total", "Connections refused: too many.", |c| c.refused.get()),
        ("connections_evicted_total", "Connections cut: clients held too much memory.", |c| c.evicted.get()),
        ("tls_handshakes_failed_total", "Clients that did not come through the TLS handshake.", |c| {
            c.handshakes_failed.get()
        }),
        ("received_bytes_total", "Bytes received from clients.", |c| c.received_bytes.get()),
        ("sent_bytes_total", "Bytes sent to clients.", |c| c.sent_bytes.get()),
        ("key_hits_total", "Reads that found their key.", |c| c.hits.get()),
        ("key_misses_total", "Reads that did not find their key.", |c| c.misses.get()),
        ("error_replies_total", "Replies that were errors.", |c| c.errors.get()),
        ("protocol_errors_total", "Connections closed for breaking the protocol.", |c| {
            c.protocol_errors.get()
        }),
    ];
    for (name, help, read) in counters {
        text.declare(name, "counter", help);
        for (core, counters) in shared.cores.iter().enumerate() {
            text.sample(name, &format!("core=\"{core}\""), read(counters));
        }
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

fn loads(text: &mut Text, shared: &Shared) {
    let loads: Vec<_> =
        shared.loads.get().into_iter().flatten().map(plimsoll_reactor::Load::snapshot).collect();
    text.declare("core_busy_seconds_total", "counter", "Time spent in tasks, by kind of work.");
    for (core, load) in loads.iter().enumerate() {
        for (work, busy_ns) in Work::ALL.iter().zip(load.busy_ns) {
            let labels = format!("core=\"{core}\",work=\"{}\"", work.name());
            text.sample("core_busy_seconds_total", &labels, seconds(busy_ns));
        }
    }
    let others = [
        ("core_poll_seconds_total", "Time spent looking for work.", 0),
        ("core_idle_seconds_total", "Time asleep.", 1),
    ];
    for (name, help, which) in others {
        text.declare(name, "counter", help);
        for (core, load) in loads.iter().enumerate() {
            let ns = if which == 0 { load.poll_ns } else { load.idle_ns };
            text.sample(name, &format!("core=\"{core}\""), seconds(ns));
        }
    }
}

fn gauges(text: &mut Text, shared: &Shared) {
    let all = shared.gauges();
    let mut declared: Vec<String> = Vec::new();
    for first in &all {
        for (name, _) in &first.values {
            let family = if first.label.starts_with("partition") { "partition" } else { "device" };
            let (suffix, kind) = if COUNTING.contains(name) { ("_total", "counter") } else { ("", "gauge") };
            let full = format!("{family}_{name}{suffix}");
            if declared.contains(&full) {
                continue;
            }
            text.declare(&full, kind, &format!("{} of a {family}.", name.replace('_', " ")));
            for gauges in &all {
                for (_, value) in gauges.values.iter().filter(|(other, _)| other == name) {
                    text.sample(&full, &gauges.label, value.get());
                }
            }
            declared.push(full);
        }
    }
}

fn commands(text: &mut Text, shared: &Shared) {
    let sum = |index: usize, read: &dyn Fn(&CommandCounters) -> u64| {
        shared.sum(|counters| read(&counters.commands[index]))
    };
    let used: Vec<(usize, String)> = SLOTS
        .iter()
        .enumerate()
        .filter(|(index, _)| sum(*index, &|c| c.calls.get() + c.rejected.get()) > 0)
        .map(|(index, slot)| (index, format!("command=\"{}\"", slot.name)))
        .collect();
    type Read = fn(&CommandCounters) -> u64;
    let counters: [(&str, &str, Read); 3] = [
        ("commands_total", "Commands run.", |c| c.calls.get()),
        ("commands_failed_total", "Commands answered with an error.", |c| c.failed.get()),
        ("commands_rejected_total", "Commands refused before they ran.", |c| c.rejected.get()),
    ];
    for (name, help, read) in counters {
        text.declare(name, "counter", help);
        for (index, label) in &used {
            text.sample(name, label, sum(*index, &read));
        }
    }
    let name = "command_seconds";
    text.declare(name, "histogram", "From a command's parsing to its reply, waiting included.");
    for (index, label) in &used {
        let mut below = 0;
        for (bucket, bound_us) in LATENCY_BOUNDS_US.iter().enumerate() {
            below += sum(*index, &|c| c.buckets[bucket].get());
            let labels = format!("{label},le=\"{}\"", *bound_us as f64 / 1e6);
            text.sample("command_seconds_bucket", &labels, below);
        }
        let calls = below + sum(*index, &|c| c.buckets[LATENCY_BOUNDS_US.len()].get());
        text.sample("command_seconds_bucket", &format!("{label},le=\"+Inf\""), calls);
        text.sample("command_seconds_sum", label, seconds(sum(*index, &|c| c.latency_ns.get())));
        text.sample("command_seconds_count", label, calls);
    }
}

#[cfg(test)]
mod tests {
    use super::super::array::ScrubView;
    use super::*;

    fn member(device: &str, seconds_left: Option<u64>) -> MemberView {
        let progress = seconds_left.map(|_| 0.25);
        let state = if seconds_left.is_some() { MemberState::Resyncing } else { MemberState::In };
        MemberView {
            index: 0,
            device: device.to_owned(),
            id: None,
            state,
            reason: String::new(),
            keys_done: 10,
            keys_total: 40,
            progress,
            seconds_left,
            copied_bytes: 0,
            repaired: 0,
            failed_requests: 0,
        }
    }

    fn rendered(scrub: ScrubView) -> String {
        let mut text = Text(String::new());
        let view = View {
            mechanism: String::new(),
            partitions: 1,
            members: vec![member("a", None), member("b", Some(75))],
            unsettled: 0,
            packing_waiting: 0,
            sets_loose: 0,
            picks: Vec::new(),
            keys_moved: 0,
            values_kept: 0,
            scrub,
        };
        array(&mut text, &view);
        text.0
    }

    #[test]
    fn what_is_not_known_of_a_member_is_left_out() {
        let text = rendered(ScrubView::default());
        assert!(text.contains("\nplimsoll_array_member_seconds_left{device=\"b\"} 75\n"), "{text}");
        assert!(!text.contains("plimsoll_array_member_seconds_left{device=\"a\"}"), "{text}");
        assert!(text.contains("\nplimsoll_array_member_progress{device=\"a\"} 100\n"), "{text}");
        assert!(text.contains("\nplimsoll_array_member_progress{device=\"b\"} 25\n"), "{text}");
    }

    #[test]
    fn how_far_a_scrub_is_stands_there_while_it_runs() {
        let text = rendered(ScrubView::default());
        assert!(!text.contains("\nplimsoll_array_scrub_progress "), "{text}");
        assert!(!text.contains("\nplimsoll_array_scrub_seconds_left "), "{text}");
        let (progress, seconds_left) = (Some(0.5), Some(9));
        let text = rendered(ScrubView { running: true, progress, seconds_left, ..ScrubView::default() });
        assert!(text.contains("\nplimsoll_array_scrub_progress 50\n"), "{text}");
        assert!(text.contains("\nplimsoll_array_scrub_seconds_left 9\n"), "{text}");
    }
}
