//! INFO: sections of `name:value` lines, with the names that clients and exporters read.
//!
//! Invariants: a line is written only if its value is true of this server, at the time of the command (rates
//! are those of the last second); numbers of the process come from its host, which a simulated run has not,
//! so that it gives the same text twice.

use super::config::memory_policy;
use super::connection::REDIS_VERSION;
use super::{Run, SLOTS, pubsub};
use crate::channels::Kind;
use crate::core::Core;
use crate::counters::ERROR_CODES;
use crate::limits::DATABASES;
use crate::parameters::Parameter;
use crate::reply::Reply;
use crate::session::Connection;
use crate::shared::Shared;
use crate::transaction;
use crate::volume::Question;
use plimsoll_kv::{ContainerId, Stats};
use plimsoll_resp::Args;
use std::fmt::Write;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;

/// What the cores were asked before the text is written.
struct Facts {
    channels: usize,
    patterns: usize,
}

type Section = (&'static str, fn(&mut String, &Core, &Facts));

/// Sections of INFO without arguments.
const DEFAULT: [Section; 10] = [
    ("server", server),
    ("clients", clients),
    ("memory", memory),
    ("persistence", persistence),
    ("stats", stats),
    ("replication", replication),
    ("cpu", cpu),
    ("errorstats", errorstats),
    ("cluster", cluster),
    ("plimsoll", plimsoll),
];
/// Sections that only `all`, `everything` or their names show.
const FURTHER: [Section; 3] =
    [("modules", |_, _, _| {}), ("commandstats", commandstats), ("latencystats", latencystats)];

/// Those that tell gauges of the devices, or what the process has.
const MEASURED: [&str; 5] = ["memory", "persistence", "stats", "cpu", "plimsoll"];

pub(super) fn info(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    let asked: Vec<Vec<u8>> = args.iter().skip(1).map(<[u8]>::to_ascii_lowercase).collect();
    let core = connection.core.clone();
    Run::Alone(Box::pin(async move {
        let is = |name: &str| asked.iter().any(|word| word == name.as_bytes());
        let everything = is("all") || is("everything");
        let default = everything || asked.is_empty() || is("default");
        if default || MEASURED.into_iter().any(is) {
            refresh(&core).await;
        }
        let mut facts = Facts { channels: 0, patterns: 0 };
        if default || is("stats") {
            facts.channels = pubsub::distinct_names(&core.volume, Kind::Channel).await.len();
            facts.patterns = pubsub::distinct_names(&core.volume, Kind::Pattern).await.len();
        }
        let mut text = String::new();
        let sections = DEFAULT.iter().map(|section| (default, section));
        for (shown, (name, write)) in sections.chain(FURTHER.iter().map(|section| (everything, section))) {
            if shown || is(name) {
                begin_section(&mut text, name);
                write(&mut text, &core, &facts);
            }
        }
        if default || is("keyspace") {
            begin_section(&mut text, "keyspace");
            if core.is_loading() {
                return Reply::Text(text.into_bytes()); // Nobody knows yet.
            }
            if let Err(error) = keyspace(&mut text, &core).await {
                return Reply::failed(&error);
            }
        }
        Reply::Text(text.into_bytes())
    }))
}

/// Lets all cores publish their gauges, and the process be measured: what is told is not of a second ago.
pub(super) async fn refresh(core: &Core) {
    core.volume.ask_all(Question::PublishGauges).await;
    if let Some(host) = core.shared.host.get() {
        host.measure(&core.shared.process);
    }
}

fn begin_section(text: &mut String, name: &str) {
    if !text.is_empty() {
        text.push_str("\r\n");
    }
    let (first, rest) = name.split_at(if name == "cpu" { 3 } else { 1 });
    line(text, format_args!("# {}{rest}", first.to_ascii_uppercase()));
}

fn line(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    // Writing to a string does not fail.
    let _ = text.write_fmt(arguments);
    text.push_str("\r\n");
}

macro_rules! lines {
    ($text:expr, $($format:literal $(, $value:expr)*;)*) => {
        $(line($text, format_args!($format $(, $value)*));)*
    };
}

fn server(text: &mut String, core: &Core, _: &Facts) {
    let settings = &core.shared.settings;
    let addresses = core.addresses();
    // As Redis has it: the port of TLS if it is the only one.
    let tcp_port = addresses.plain.or(addresses.tls).map_or(0, |address| address.port());
    let uptime_s = core.reactor.wall_ms().saturating_sub(settings.started_ms) / 1000;
    lines!(text,
        "redis_version:{}", REDIS_VERSION;
        "server_name:plimsoll";
        "plimsoll_version:{}", env!("CARGO_PKG_VERSION");
        "redis_mode:standalone";
        "os:{} {}", std::env::consts::OS, std::env::consts::ARCH;
        "arch_bits:{}", usize::BITS;
        "multiplexing_api:{}", core.shared.driver().interface();
        "process_id:{}", settings.process_id;
        "run_id:{}", settings.run_id;
        "tcp_port:{}", tcp_port;
        "server_time_usec:{}", core.reactor.wall_ms() * 1000;
        "uptime_in_seconds:{}", uptime_s;
        "uptime_in_days:{}", uptime_s / 86_400;
        "executable:plimsoll";
        "config_file:{}", settings.config_file.as_deref().unwrap_or("");
    );
    let listeners = [("tcp", addresses.plain), ("tls", addresses.tls)];
    let served = listeners.into_iter().filter_map(|(name, address)| Some((name, address?)));
    for (number, (name, address)) in served.enumerate() {
        lines!(text, "listener{}:name={},bind={},port={}", number, name, address.ip(), address.port(););
    }
}

fn clients(text: &mut String, core: &Core, _: &Facts) {
    lines!(text,
        "connected_clients:{}", core.shared.connections();
        "cluster_connections:0";
        "maxclients:{}", core.shared.parameters.get(Parameter::ClientsMax);
        "blocked_clients:0";
        "tracking_clients:0";
        "clients_in_timeout_table:0";
        "monitor_clients:{}", core.shared.monitors.load(Relaxed);
    );
}

fn human(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "K", "M", "G", "T"];
    let (mut value, mut unit) = (bytes as f64, 0);
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        (value, unit) = (value / 1024.0, unit + 1);
    }
    format!("{value:.2}{}", UNITS[unit])
}

fn memory(text: &mut String, core: &Core, _: &Facts) {
    let process = &core.shared.process;
    let memory = core.shared.settings.budget.memory_bytes;
    let (used, peak) = (process.resident_bytes.load(Relaxed), process.resident_peak_bytes.load(Relaxed));
    let machine = process.machine_bytes.load(Relaxed);
    lines!(text,
        "used_memory:{}", used;
        "used_memory_human:{}", human(used);
        "used_memory_rss:{}", used;
        "used_memory_rss_human:{}", human(used);
        "used_memory_peak:{}", peak;
        "used_memory_peak_human:{}", human(peak);
        "used_memory_peak_perc:{:.2}%", used as f64 * 100.0 / peak.max(1) as f64;
        "total_system_memory:{}", machine;
        "total_system_memory_human:{}", human(machine);
        "maxmemory:{}", memory;
        "maxmemory_human:{}", human(memory);
        "maxmemory_policy:{}", memory_policy(core.shared.settings.on_full);
        "number_of_cached_scripts:{}", core.shared.scripts.count();
        "number_of_functions:0";
        "number_of_libraries:0";
        "mem_replication_backlog:0";
        "mem_clients_slaves:0";
        "mem_clients_normal:{}", core.shared.sum(|c| c.held_bytes.get());
        "mem_cluster_links:0";
        "mem_allocator:mimalloc";
        "active_defrag_running:0";
    );
}

fn persistence(text: &mut String, core: &Core, _: &Facts) {
    let failed = gauge(&core.shared, "read_only") > 0;
    lines!(text,
        "loading:{}", u8::from(core.is_loading());
        "async_loading:0";
        "rdb_changes_since_last_save:0";
        "rdb_bgsave_in_progress:0";
        "rdb_last_save_time:{}", core.reactor.wall_ms() / 1000;
        "rdb_last_bgsave_status:ok";
        "aof_enabled:1";
        "aof_rewrite_in_progress:0";
        "aof_rewrite_scheduled:0";
        "aof_last_write_status:{}", if failed { "err" } else { "ok" };
    );
}

fn stats(text: &mut String, core: &Core, facts: &Facts) {
    let shared = &core.shared;
    let wrong = ERROR_CODES.iter().position(|code| *code == "WRONGPASS");
    let wrong_passwords = wrong.map_or(0, |code| shared.sum(|c| c.errors_by_code[code].get()));
    lines!(text,
        "total_connections_received:{}", shared.sum(|c| c.accepted.get());
        "total_commands_processed:{}", shared.sum(|c| c.calls());
        "instantaneous_ops_per_sec:{}", shared.process.ops_per_s.load(Relaxed);
        "total_net_input_bytes:{}", shared.sum(|c| c.received_bytes.get());
        "total_net_output_bytes:{}", shared.sum(|c| c.sent_bytes.get());
        "instantaneous_input_kbps:{:.2}", shared.process.input_bytes_per_s.load(Relaxed) as f64 / 1024.0;
        "instantaneous_output_kbps:{:.2}", shared.process.output_bytes_per_s.load(Relaxed) as f64 / 1024.0;
        "rejected_connections:{}", shared.sum(|c| c.refused.get());
        "sync_full:0";
        "sync_partial_ok:0";
        "sync_partial_err:0";
        "expired_keys:{}", gauge(shared, "expired");
        "evicted_keys:{}", gauge(shared, "evicted");
        "evicted_clients:{}", shared.sum(|c| c.evicted.get());
        "keyspace_hits:{}", shared.sum(|c| c.hits.get());
        "keyspace_misses:{}", shared.sum(|c| c.misses.get());
        "pubsub_channels:{}", facts.channels;
        "pubsub_patterns:{}", facts.patterns;
        "latest_fork_usec:0";
        "total_forks:0";
        "tracking_total_keys:0";
        "tracking_total_items:0";
        "tracking_total_prefixes:0";
        "total_error_replies:{}", shared.sum(|c| c.errors.get());
        "total_reads_processed:{}", shared.sum(|c| c.receives.get());
        "total_writes_processed:{}", shared.sum(|c| c.sends.get());
        "acl_access_denied_auth:{}", wrong_passwords;
        "acl_access_denied_cmd:0";
        "acl_access_denied_key:0";
        "acl_access_denied_channel:0";
    );
}

pub(super) fn gauge(shared: &Shared, name: &str) -> u64 {
    let gauges = shared.gauges();
    let values = gauges.iter().flat_map(|gauges| &gauges.values);
    values.filter(|(sought, _)| *sought == name).map(|(_, value)| value.get()).sum()
}

fn replication(text: &mut String, _: &Core, _: &Facts) {
    lines!(text,
        "role:master";
        "connected_slaves:0";
        "master_failover_state:no-failover";
        "master_repl_offset:0";
        "repl_backlog_active:0";
    );
}

fn cpu(text: &mut String, core: &Core, _: &Facts) {
    let process = &core.shared.process;
    lines!(text,
        "used_cpu_sys:{:.3}", process.system_ms.load(Relaxed) as f64 / 1000.0;
        "used_cpu_user:{:.3}", process.user_ms.load(Relaxed) as f64 / 1000.0;
        "used_cpu_sys_children:0.000";
        "used_cpu_user_children:0.000";
    );
}

fn cluster(text: &mut String, _: &Core, _: &Facts) {
    lines!(text, "cluster_enabled:0";);
}

fn plimsoll(text: &mut String, core: &Core, _: &Facts) {
    let (shared, geometry) = (&core.shared, core.shared.geometry);
    lines!(text,
        "cores:{}", shared.cores.len();
        "partitions:{}", geometry.partitions;
        "durability:{}", format!("{:?}", shared.settings.durability).to_ascii_lowercase();
        "value_bytes_in_one_record_max:{}", geometry.value_bytes_max;
    );
    for gauges in shared.gauges() {
        // A field ends at its first colon, and a path may have one.
        let label = gauges.label.replace('"', "").replace(['=', ',', ':'], "_");
        for (name, value) in &gauges.values {
            lines!(text, "{}_{}:{}", label, name, value.get(););
        }
    }
}

fn commandstats(text: &mut String, core: &Core, _: &Facts) {
    for (index, slot) in SLOTS.iter().enumerate() {
        let sum = |counter: fn(&crate::counters::CommandCounters) -> u64| {
            core.shared.sum(|counters| counter(&counters.commands[index]))
        };
        let (calls, rejected) = (sum(|c| c.calls.get()), sum(|c| c.rejected.get()));
        if calls == 0 && rejected == 0 {
            continue;
        }
        let usec = sum(|c| c.latency_ns.get()) / 1000;
        let usec_per_call = usec as f64 / calls.max(1) as f64;
        lines!(text,
            "cmdstat_{}:calls={},usec={},usec_per_call={:.2},rejected_calls={},failed_calls={}",
            slot.name, calls, usec, usec_per_call, rejected, sum(|c| c.failed.get());
        );
    }
}

fn errorstats(text: &mut String, core: &Core, _: &Facts) {
    for (index, code) in ERROR_CODES.iter().enumerate() {
        let count = core.shared.sum(|counters| counters.errors_by_code[index].get());
        if count > 0 {
            lines!(text, "errorstat_{}:count={}", code, count;);
        }
    }
}

fn latencystats(text: &mut String, core: &Core, _: &Facts) {
    for (index, slot) in SLOTS.iter().enumerate() {
        if core.shared.sum(|counters| counters.commands[index].calls.get()) == 0 {
            continue;
        }
        let distribution = super::latency::distribution(&core.shared, index);
        let us = |thousandths| distribution.percentile_ns(thousandths) as f64 / 1000.0;
        lines!(text,
            "latency_percentiles_usec_{}:p50={:.3},p99={:.3},p99.9={:.3}",
            slot.name, us(500), us(990), us(999);
        );
    }
}

async fn keyspace(text: &mut String, core: &Rc<Core>) -> plimsoll_kv::Result<()> {
    let counted = transaction::count(core, (0..DATABASES).map(ContainerId)).await?;
    for (database, Stats { keys, expiring_keys, .. }) in counted.into_iter().enumerate() {
        if keys > 0 {
            lines!(text, "db{}:keys={},expires={},avg_ttl=0", database, keys, expiring_keys;);
        }
    }
    Ok(())
}
