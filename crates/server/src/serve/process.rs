//! Numbers of the process, from /proc, for INFO and metrics.
//!
//! Invariants: read once a second by the control thread, and by a core only for a command that tells them,
//! from memory, in some tens of microseconds; what cannot be read stays as it was.

use crate::shared::{ProcessGauges, Shared};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A field of /proc/self/status or /proc/meminfo, in bytes.
fn kibibytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let number: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(number * 1024)
}

/// User and system time of /proc/self/stat in milliseconds.
pub(super) fn processor_ms(stat: &str, ticks_per_s: u64) -> Option<(u64, u64)> {
    // The name of the program stands in parentheses and may hold anything.
    let after_name = &stat[stat.rfind(')')? + 1..];
    let mut fields = after_name.split_whitespace().skip(11);
    let mut next_ms = || Some(fields.next()?.parse::<u64>().ok()? * 1000 / ticks_per_s);
    Some((next_ms()?, next_ms()?))
}

fn set(gauge: &AtomicU64, value: Option<u64>) {
    if let Some(value) = value {
        gauge.store(value, Relaxed);
    }
}

/// Bytes of memory of the machine, if it tells.
pub(super) fn machine_bytes() -> Option<u64> {
    kibibytes(&std::fs::read_to_string("/proc/meminfo").ok()?, "MemTotal:")
}

/// Measures once.
pub(super) fn measure(process: &ProcessGauges) {
    if let Ok(status) = std::fs::read_to_string("/proc/self/status") {
        set(&process.resident_bytes, kibibytes(&status, "VmRSS:"));
        set(&process.resident_peak_bytes, kibibytes(&status, "VmHWM:"));
    }
    set(&process.machine_bytes, machine_bytes());
    if let Ok(stat) = std::fs::read_to_string("/proc/self/stat")
        && let Some((user_ms, system_ms)) = processor_ms(&stat, rustix::param::clock_ticks_per_second())
    {
        process.user_ms.store(user_ms, Relaxed);
        process.system_ms.store(system_ms, Relaxed);
    }
}

/// Measures every second, for ever.
pub(super) async fn watch(shared: std::sync::Arc<Shared>) {
    let mut seconds = tokio::time::interval(std::time::Duration::from_secs(1));
    let mut before = [0; 3];
    loop {
        seconds.tick().await;
        let process = &shared.process;
        measure(process);
        let now = [
            shared.sum(|counters| counters.calls()),
            shared.sum(|counters| counters.received_bytes.get()),
            shared.sum(|counters| counters.sent_bytes.get()),
        ];
        let gauges = [&process.ops_per_s, &process.input_bytes_per_s, &process.output_bytes_per_s];
        for ((gauge, now), before) in gauges.into_iter().zip(now).zip(before) {
            // CONFIG RESETSTAT puts counters back.
            gauge.store(now.saturating_sub(before), Relaxed);
        }
        before = now;
    }
}
