//! What a measurement says: for people, and as JSON.
//!
//! Shapes: latencies in microseconds; rates in operations a second, over the time in which operations that
//! count were under way.

use crate::process::Usage;
use crate::run::{Options, Tenant};
use crate::tally::Tally;
use crate::workload::Operation;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;

/// One operation of one tenant.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Which, or `all`.
    pub operation: String,
    /// How many were done.
    pub count: u64,
    /// Of these a second.
    pub per_second: f64,
    /// Microseconds.
    pub mean_us: f64,
    /// Microseconds below which so many per cent lie: 50, 90, 99, 99.9, 99.99.
    pub percentiles_us: BTreeMap<String, f64>,
    /// The longest, in microseconds.
    pub max_us: f64,
}

/// What one tenant was told.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TenantReport {
    /// Its name.
    pub name: String,
    /// What it did.
    pub workload: String,
    /// `closed`, or `open`: then latencies begin when an operation is due.
    pub loop_kind: String,
    /// Operations a second that were asked for, in an open loop.
    pub rate: Option<f64>,
    /// Whether the server did as many: else the operations that it was late with were done after their time.
    pub is_rate_reached: Option<bool>,
    /// Connections.
    pub connections: usize,
    /// Commands sent together.
    pub pipeline: usize,
    /// Seconds from the first operation that counts to the end of the last.
    pub seconds: f64,
    /// Its operations, and all together.
    pub rows: Vec<Row>,
    /// Values that were not what was stored.
    pub wrong: u64,
    /// The first of them.
    pub first_wrong: Option<String>,
    /// Keys that were there before, and are not.
    pub absent: u64,
    /// Keys whose insert was acknowledged, and that are not there.
    pub lost: u64,
    /// Keys that were asked for while they were being inserted.
    pub not_yet: u64,
    /// Errors by their first word, and the first text of each.
    pub errors: BTreeMap<String, (u64, String)>,
    /// True if none of these is there; keys that were just being inserted may be.
    pub clean: bool,
}

/// What the server used while operations were measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ServerReport {
    /// Microseconds of processor time for each operation.
    pub cpu_us_per_operation: f64,
    /// Bytes that devices read for each operation.
    pub read_bytes_per_operation: f64,
    /// Bytes that devices wrote for each operation.
    pub written_bytes_per_operation: f64,
    /// Bytes of memory at the end.
    pub resident_bytes: u64,
    /// The most since it was started.
    pub resident_bytes_max: u64,
}

/// What a measurement says.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The server.
    pub address: String,
    /// What all choices follow from.
    pub seed: u64,
    /// Keys stored before, and the seconds that took.
    pub loaded: Option<(u64, f64)>,
    /// Each tenant.
    pub tenants: Vec<TenantReport>,
    /// The server's process, if it was watched.
    pub server: Option<ServerReport>,
    /// True if no value was wrong, no key absent, and nothing refused, in the load before too.
    pub clean: bool,
    /// What went wrong in the load before.
    pub load_failure: Option<String>,
}

/// An open loop that took so many times as long as its operations, and so many seconds, has not reached its
/// rate.
const LATE_MAX: f64 = 1.02;
const LATE_S_MAX: f64 = 0.25;

/// Operations of all kinds.
fn done_of(rows: &[Row]) -> u64 {
    rows.last().map_or(0, |row| row.count)
}

/// The percentiles that are told.
const PERCENTILES: [&str; 5] = ["50", "90", "99", "99.9", "99.99"];

fn row(operation: &str, latencies: &hdrhistogram::Histogram<u64>, seconds: f64) -> Row {
    let us = |ns: u64| ns as f64 / 1000.0;
    let percentile = |name: &&str| {
        let percentile = name.parse().expect("percentiles are numbers");
        ((*name).to_owned(), us(latencies.value_at_percentile(percentile)))
    };
    Row {
        operation: operation.to_owned(),
        count: latencies.len(),
        per_second: if seconds > 0.0 { latencies.len() as f64 / seconds } else { 0.0 },
        mean_us: latencies.mean() / 1000.0,
        percentiles_us: PERCENTILES.iter().map(percentile).collect(),
        max_us: us(latencies.max()),
    }
}

impl TenantReport {
    pub(crate) fn new(tenant: &Tenant, tally: &Tally) -> TenantReport {
        let seconds = tally.span_ns.map_or(0.0, |(first_ns, last_ns)| (last_ns - first_ns) as f64 / 1e9);
        let done = tally.latencies.iter().filter(|(_, latencies)| !latencies.is_empty());
        let mut rows: Vec<Row> =
            done.map(|(operation, latencies)| row(operation.name(), latencies, seconds)).collect();
        if rows.len() != 1 {
            let mut all = tally.latencies[&Operation::Read].clone();
            let others = tally.latencies.iter().filter(|(operation, _)| **operation != Operation::Read);
            others.for_each(|(_, latencies)| all.add(latencies).expect("all histograms are alike"));
            rows.push(row("all", &all, seconds));
        }
        TenantReport {
            name: tenant.name.clone(),
            workload: tenant.workload.name.clone(),
            loop_kind: if tenant.rate.is_some() { "open" } else { "closed" }.to_owned(),
            rate: tenant.rate,
            is_rate_reached: tenant
                .rate
                .map(|rate| seconds <= LATE_MAX * done_of(&rows) as f64 / rate + LATE_S_MAX),
            connections: tenant.connections,
            pipeline: tenant.pipeline,
            seconds,
            rows,
            wrong: tally.wrong,
            first_wrong: tally.first_wrong.clone(),
            absent: tally.absent,
            lost: tally.lost,
            not_yet: tally.not_yet,
            errors: tally.errors.clone(),
            clean: tally.is_clean(),
        }
    }

    /// Operations that were done.
    #[must_use]
    pub fn done(&self) -> u64 {
        done_of(&self.rows)
    }
}

impl Report {
    pub(crate) fn new(
        options: &Options,
        loaded: Option<(f64, Vec<Tally>)>,
        tenants: Vec<TenantReport>,
        usage: Option<(Usage, Usage)>,
    ) -> Report {
        let load_failure = loaded.as_ref().and_then(|(_, tallies)| {
            let text = |tally: &Tally| match tally.errors.values().next() {
                Some((_, text)) => Some(text.clone()),
                None => tally.first_wrong.clone(),
            };
            tallies.iter().find_map(text)
        });
        let clean = load_failure.is_none() && tenants.iter().all(|tenant| tenant.clean);
        let done = tenants.iter().map(TenantReport::done).sum::<u64>().max(1) as f64;
        let server = usage.map(|(before, after)| ServerReport {
            cpu_us_per_operation: (after.cpu_s - before.cpu_s) * 1e6 / done,
            read_bytes_per_operation: (after.read_bytes - before.read_bytes) as f64 / done,
            written_bytes_per_operation: (after.written_bytes - before.written_bytes) as f64 / done,
            resident_bytes: after.resident_bytes,
            resident_bytes_max: after.resident_bytes_max,
        });
        let keys = options.tenants.iter().map(|tenant| tenant.keys).sum();
        Report {
            address: options.address.to_string(),
            seed: options.seed,
            loaded: loaded.map(|(seconds, _)| (keys, seconds)),
            tenants,
            server,
            clean,
            load_failure,
        }
    }

    /// As JSON.
    #[must_use]
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).expect("a report is plain data")
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((keys, seconds)) = self.loaded.filter(|_| self.load_failure.is_none()) {
            writeln!(f, "stored {keys} keys in {seconds:.1} s, {:.0} a second", keys as f64 / seconds)?;
        }
        if let Some(failure) = &self.load_failure {
            writeln!(f, "NOT ALL WERE STORED: {failure}")?;
        }
        self.tenants.iter().try_for_each(|tenant| write!(f, "{tenant}"))?;
        if let Some(server) = &self.server {
            let mib = |bytes: u64| bytes >> 20;
            writeln!(
                f,
                "server: {:.2} us of processor, {:.0} bytes read, {:.0} written an operation; {} MiB resident, {} at most",
                server.cpu_us_per_operation,
                server.read_bytes_per_operation,
                server.written_bytes_per_operation,
                mib(server.resident_bytes),
                mib(server.resident_bytes_max),
            )?;
        }
        Ok(())
    }
}

impl fmt::Display for TenantReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = match self.rate {
            Some(rate) => format!("open loop at {rate} a second"),
            None => "closed loop".to_owned(),
        };
        writeln!(
            f,
            "{}: {}, {} connections, pipeline {}, {how}, {:.1} s; latencies in us",
            self.name, self.workload, self.connections, self.pipeline, self.seconds
        )?;
        writeln!(
            f,
            "  {:<8} {:>10} {:>10} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}",
            "", "count", "/s", "mean", "p50", "p90", "p99", "p99.9", "p99.99", "max"
        )?;
        for row in &self.rows {
            write!(
                f,
                "  {:<8} {:>10} {:>10.0} {:>9.1}",
                row.operation, row.count, row.per_second, row.mean_us
            )?;
            for percentile in PERCENTILES {
                write!(f, " {:>9.1}", row.percentiles_us[percentile])?;
            }
            writeln!(f, " {:>9.1}", row.max_us)?;
        }
        if self.is_rate_reached == Some(false) {
            writeln!(f, "  THE RATE WAS NOT REACHED: what was late was done after its time")?;
        }
        if self.wrong > 0 {
            let first = self.first_wrong.as_deref().unwrap_or_default();
            writeln!(f, "  WRONG VALUES: {}, the first: {first}", self.wrong)?;
        }
        if self.absent > 0 {
            writeln!(f, "  ABSENT KEYS: {} (were all stored before? --load stores them)", self.absent)?;
        }
        if self.lost > 0 {
            writeln!(
                f,
                "  LOST KEYS: {} (their inserts were acknowledged, and they are not there)",
                self.lost
            )?;
        }
        if self.not_yet > 0 {
            writeln!(f, "  asked for while they were being inserted, and not there yet: {}", self.not_yet)?;
        }
        for (code, (count, text)) in &self.errors {
            writeln!(f, "  ERRORS {code}: {count}, the first: {text}")?;
        }
        Ok(())
    }
}
