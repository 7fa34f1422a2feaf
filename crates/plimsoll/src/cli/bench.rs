//! `plimsoll bench`: the load generator.
//!
//! Role: reads what is to be measured, prints what came of it; exit code 1 if anything failed, so that a
//! number is never taken from a server that loses values.

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use plimsoll_bench::{Distribution, Operation, Options, Protocol, Sizes, Tenant, Workload};
use plimsoll_server::config::{ConfigError, parse_cores};
use plimsoll_server::serve;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Connections of one tenant at most, on this side.
const CONNECTIONS_MAX: usize = 10_000;
/// Commands that a connection sends together at most.
const PIPELINE_MAX: usize = 10_000;

/// What is to be measured.
#[derive(Args, Debug)]
pub(crate) struct Bench {
    /// The server, any that speaks RESP or memcached's protocol.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:6379", value_parser = address)]
    address: SocketAddr,
    /// resp, or memcached: its text protocol, without scans, databases and passwords.
    #[arg(long, value_name = "NAME", default_value = "resp")]
    protocol: String,
    /// A file whose first line is the server's password.
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,
    /// The processors of the load generator, as 0-3 or 0,2 [default: the last one].
    #[arg(long, value_name = "LIST")]
    cores: Option<String>,
    /// Store every key before the measurement.
    #[arg(long)]
    load: bool,
    /// get, set, ycsb-a to ycsb-f, fillseq, fillrandom, overwrite, readrandom, or shares of read, update,
    /// insert, scan and rmw, as read=95,update=5.
    #[arg(long, value_name = "NAME", default_value = "get")]
    workload: String,
    /// uniform, zipf, zipf:0.8 or latest [default: the workload's].
    #[arg(long, value_name = "NAME")]
    distribution: Option<String>,
    /// Operations a second, of an open loop: latencies begin when they are due [default: a closed loop].
    #[arg(long, value_name = "COUNT")]
    rate: Option<String>,
    /// Connections.
    #[arg(long, value_name = "COUNT", default_value = "50")]
    connections: String,
    /// Commands that a connection sends together.
    #[arg(long, value_name = "COUNT", default_value = "1")]
    pipeline: String,
    /// Keys that are there.
    #[arg(long, value_name = "COUNT", default_value = "100000")]
    keys: String,
    /// Bytes of a key.
    #[arg(long, value_name = "BYTES", default_value = "16")]
    key_bytes: String,
    /// Bytes of a value, or several with weights, as 100:9,16384:1.
    #[arg(long, value_name = "BYTES", default_value = "1024")]
    values: String,
    /// Database.
    #[arg(long, value_name = "NUMBER", default_value = "0")]
    database: String,
    /// Clients beside others, as 'name=batch workload=set rate=1000 connections=4': what is not said is as
    /// the flags say. Once for each; without any, the flags are the one tenant.
    #[arg(long = "tenant", value_name = "SPEC")]
    tenants: Vec<String>,
    /// Seconds that are measured. An open loop sends all that is due in them, however long it takes.
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0)]
    seconds: f64,
    /// Seconds before, which are not.
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    warmup: f64,
    /// Operations of each tenant, instead of a time.
    #[arg(long, value_name = "COUNT")]
    requests: Option<u64>,
    /// What all choices follow from.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    /// The server's process on this machine: tells what it used.
    #[arg(long, value_name = "PID")]
    server_pid: Option<u32>,
    /// Write the result here too.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

fn address(text: &str) -> Result<SocketAddr> {
    let mut found = text.to_socket_addrs().with_context(|| format!("'{text}' is no address"))?;
    found.next().ok_or_else(|| anyhow!("'{text}' has no address"))
}

/// A number within limits.
fn number<T: FromStr + PartialOrd + std::fmt::Display>(
    name: &str,
    text: &str,
    least: T,
    most: T,
) -> Result<T> {
    match text.parse() {
        Ok(number) if number >= least && number <= most => Ok(number),
        _ => bail!(ConfigError(format!("{name} {text}: a number from {least} to {most} is wanted"))),
    }
}

fn first_line(path: &Path) -> Result<Vec<u8>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))?;
    Ok(text.lines().next().unwrap_or_default().as_bytes().to_vec())
}

fn wrong(name: &str) -> impl Fn(String) -> anyhow::Error {
    move |text| ConfigError(format!("{name}: {text}")).into()
}

/// Tenants are told apart by their names, and what one stores another one does not take for wrong.
fn check_apart(tenants: &[Tenant]) -> Result<()> {
    for (at, tenant) in tenants.iter().enumerate() {
        let (name, before) = (&tenant.name, &tenants[..at]);
        if name.is_empty() {
            bail!(ConfigError("tenant: one has no name".to_owned()));
        }
        if before.iter().any(|other| other.name == *name) {
            bail!(ConfigError(format!("tenant: two are called {name}; give each a name of its own")));
        }
        let same_keys =
            |other: &&Tenant| (other.database, other.key_bytes) == (tenant.database, tenant.key_bytes);
        if let Some(other) = before.iter().filter(same_keys).find(|other| other.sizes != tenant.sizes) {
            bail!(ConfigError(format!(
                "tenant: {} and {name} have keys of one database, and values of other sizes: give each a database",
                other.name
            )));
        }
    }
    Ok(())
}

impl Bench {
    /// What a tenant does, of which `said` says what differs from the flags.
    fn tenant(&self, said: &str) -> Result<Tenant> {
        const NAMES: [&str; 10] = [
            "name",
            "workload",
            "distribution",
            "rate",
            "connections",
            "pipeline",
            "keys",
            "key-bytes",
            "values",
            "database",
        ];
        let mut words = Vec::new();
        for word in said.split_whitespace() {
            match word.split_once('=') {
                Some((name, value)) if NAMES.contains(&name) => words.push((name, value)),
                _ => bail!(ConfigError(format!(
                    "tenant: '{word}': write NAME=VALUE, with {}",
                    NAMES.join(", ")
                ))),
            }
        }
        let said = |name: &str| words.iter().rev().find(|(known, _)| *known == name).map(|(_, value)| *value);
        let workload: Workload =
            said("workload").unwrap_or(&self.workload).parse().map_err(wrong("workload"))?;
        let distribution = match said("distribution").or(self.distribution.as_deref()) {
            Some(text) => text.parse::<Distribution>().map_err(wrong("distribution"))?,
            None => workload.distribution,
        };
        let rate = said("rate").or(self.rate.as_deref());
        let count = |name: &str, flag: &str, most: usize| number(name, said(name).unwrap_or(flag), 1, most);
        Ok(Tenant {
            name: said("name").unwrap_or("load").to_owned(),
            workload,
            distribution,
            rate: rate.map(|text| number("rate", text, 0.001, 1e9)).transpose()?,
            connections: count("connections", &self.connections, CONNECTIONS_MAX)?,
            pipeline: count("pipeline", &self.pipeline, PIPELINE_MAX)?,
            keys: number("keys", said("keys").unwrap_or(&self.keys), 1, u64::from(u32::MAX) << 8)?,
            key_bytes: count("key-bytes", &self.key_bytes, 1024)?,
            sizes: said("values").unwrap_or(&self.values).parse::<Sizes>().map_err(wrong("values"))?,
            database: number("database", said("database").unwrap_or(&self.database), 0, u32::MAX)?,
        })
    }

    fn options(&self) -> Result<Options> {
        let said = if self.tenants.is_empty() { vec![String::new()] } else { self.tenants.clone() };
        let cpus = match &self.cores {
            Some(list) => parse_cores(list).map_err(ConfigError)?,
            None => serve::processors()?.pop().into_iter().collect(),
        };
        let password = self.password_file.as_deref().map(first_line).transpose()?;
        if self.requests == Some(0) {
            bail!(ConfigError("requests 0: at least one is wanted".to_owned()));
        }
        for (name, seconds) in [("seconds", self.seconds), ("warmup", self.warmup)] {
            if !(0.0..=1e6).contains(&seconds) {
                bail!(ConfigError(format!("{name} {seconds}: from 0 to a million")));
            }
        }
        let protocol: Protocol = self.protocol.parse().map_err(wrong("protocol"))?;
        let tenants: Vec<Tenant> = said.iter().map(|said| self.tenant(said)).collect::<Result<_>>()?;
        check_apart(&tenants)?;
        let asks_more = |tenant: &Tenant| tenant.database != 0 || tenant.workload.mix.has(Operation::Scan);
        if protocol == Protocol::Memcached && (password.is_some() || tenants.iter().any(asks_more)) {
            bail!(ConfigError("protocol memcached: it has no scans, databases and passwords".to_owned()));
        }
        Ok(Options {
            address: self.address,
            protocol,
            password,
            cpus,
            tenants,
            load: self.load,
            seconds: self.seconds,
            warmup_seconds: self.warmup,
            requests: self.requests,
            seed: self.seed,
            server: self.server_pid,
        })
    }

    /// Writes what is known of the measurement: never is what an earlier one found left for this one's.
    fn write_json(&self, text: &str) -> Result<()> {
        let Some(path) = &self.json else { return Ok(()) };
        std::fs::write(path, text).with_context(|| format!("{} cannot be written", path.display()))
    }

    pub(crate) fn run(self) -> Result<()> {
        let options = self.options()?;
        let unclean = |error: &str| serde_json::json!({ "clean": false, "error": error }).to_string();
        self.write_json(&unclean("the measurement did not end"))?;
        let report = match plimsoll_bench::run(&options) {
            Ok(report) => report,
            Err(error) => {
                self.write_json(&unclean(&format!("{error:#}")))?;
                return Err(error.into());
            }
        };
        print!("{report}");
        self.write_json(&report.json())?;
        if !report.clean {
            bail!("the server failed: see above");
        }
        Ok(())
    }
}
