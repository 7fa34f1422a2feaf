//! A measurement: connections on every core, a phase that stores the keys, a phase that is measured.
//!
//! Invariants: a lost connection, a refusal or a server that is silent ends it with an error, never with a
//! smaller number; what was stored by one phase is all there before the next one begins.
#![allow(clippy::disallowed_methods, reason = "the load generator measures real time")]

use crate::connection::{Connection, Lane};
use crate::inserted::Inserted;
use crate::keys::{Chooser, Distribution, scatter};
use crate::printable::printable;
use crate::process::Usage;
use crate::report::{Report, TenantReport};
use crate::schedule::Schedule;
use crate::tally::Tally;
use crate::values::Sizes;
use crate::wire::Protocol;
use crate::workload::Workload;
use futures_util::future::{Either, select, try_join_all};
use plimsoll_reactor::{Reactor, StartOptions, Work, start};
use plimsoll_resp::Reply;
use rand_core::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;
use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Commands that a connection sends together while keys are stored before the measurement.
const LOAD_PIPELINE: usize = 16;

/// How long a server may leave everybody who waits without any reply.
const SILENCE_NS_MAX: u64 = 60_000_000_000;
/// Between two looks whether replies come.
const LOOK_NS: u64 = 1_000_000_000;

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The server is not there.
    #[error("{0}")]
    Connect(io::Error),
    /// The load generator cannot run.
    #[error("the load generator cannot start: {0}")]
    Start(io::Error),
    /// A connection broke.
    #[error("a connection was lost: {0}")]
    Lost(io::Error),
    /// The server closed a connection.
    #[error("the server closed a connection")]
    Closed,
    /// The server does not answer.
    #[error("the server has not answered anything for {} s", SILENCE_NS_MAX / 1_000_000_000)]
    Silent,
    /// The server does not answer each command once.
    #[error("the server answers more often than it is asked: a reply is left over, and none can be trusted")]
    Surplus,
    /// There is no number to tell.
    #[error(
        "nothing was measured: {0} has done no operation in the time that counts; give it more with --seconds, \
         or less to wait for with a higher --rate"
    )]
    Nothing(String),
    /// What the server sends is not its protocol.
    #[error("the server does not speak the protocol: {0}")]
    Protocol(String),
    /// The server refused a client.
    #[error("the server refuses {command}: {text}")]
    Refused {
        /// What it was told.
        command: &'static str,
        /// Its words.
        text: String,
    },
    /// The server's process cannot be watched.
    #[error("{0}")]
    Usage(String),
}

/// Clients that do the same.
#[derive(Clone, Debug, PartialEq)]
pub struct Tenant {
    /// What it is called in the report.
    pub name: String,
    /// What it does.
    pub workload: Workload,
    /// How it chooses keys.
    pub distribution: Distribution,
    /// Operations a second of an open loop; absent: a closed loop.
    pub rate: Option<f64>,
    /// Connections, over all cores.
    pub connections: usize,
    /// Commands that a connection sends together.
    pub pipeline: usize,
    /// The database it works in.
    pub database: u32,
    /// Keys that are there.
    pub keys: u64,
    /// Bytes of a key.
    pub key_bytes: usize,
    /// Bytes of values.
    pub sizes: Sizes,
}

/// What is to be measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// The server.
    pub address: SocketAddr,
    /// What it speaks. Memcached has no scans, databases and passwords.
    pub protocol: Protocol,
    /// Its password.
    pub password: Option<Vec<u8>>,
    /// The processors of the load generator.
    pub cpus: Vec<usize>,
    /// Who asks.
    pub tenants: Vec<Tenant>,
    /// Store every key first.
    pub load: bool,
    /// Seconds that are measured.
    pub seconds: f64,
    /// Seconds before, which are not, of what ends with time.
    pub warmup_seconds: f64,
    /// Operations of a tenant at most.
    pub requests: Option<u64>,
    /// What all choices follow from.
    pub seed: u64,
    /// The server's process, if it is on this machine.
    pub server: Option<u32>,
}

impl Options {
    /// True if time ends what a tenant does; what is counted instead, counts from the first operation.
    fn is_timed(&self, tenant: &Tenant) -> bool {
        self.seconds.is_finite() && self.requests.is_none() && !tenant.workload.fills
    }
}

/// A phase, as all cores see it.
pub struct Plan {
    options: Options,
    /// How each tenant chooses: made before the clock runs, as it takes time for many keys.
    choosers: Vec<Chooser>,
    /// Keys of each tenant that are stored or on their way.
    keys: Vec<Arc<AtomicU64>>,
    /// Of these, what was inserted and acknowledged.
    inserted: Vec<Arc<Inserted>>,
    /// Operations that each tenant may still begin.
    left: Vec<Option<Arc<AtomicU64>>>,
}

impl Plan {
    /// What is measured.
    #[must_use]
    pub fn measured(options: &Options) -> Plan {
        let there = |tenant: &Tenant| if tenant.workload.fills { 0 } else { tenant.keys };
        let keys = options.tenants.iter().map(|tenant| Arc::new(AtomicU64::new(there(tenant)))).collect();
        let inserted = options.tenants.iter().map(|tenant| Arc::new(Inserted::from(there(tenant)))).collect();
        let left = |_| options.requests.map(|requests| Arc::new(AtomicU64::new(requests)));
        let left = options.tenants.iter().map(left).collect();
        let chooser = |tenant: &Tenant| Chooser::new(tenant.distribution, tenant.keys);
        let choosers = options.tenants.iter().map(chooser).collect();
        Plan { options: options.clone(), choosers, keys, inserted, left }
    }

    /// What stores the keys before.
    fn load(options: &Options) -> Plan {
        let mut options =
            Options { warmup_seconds: 0.0, seconds: f64::INFINITY, requests: None, ..options.clone() };
        for tenant in &mut options.tenants {
            tenant.workload = "fillseq".parse().expect("a workload has this name");
            tenant.pipeline = tenant.pipeline.max(LOAD_PIPELINE);
            tenant.distribution = Distribution::Uniform;
            tenant.rate = None;
        }
        Plan::measured(&options)
    }

    fn schedule(&self, tenant: usize, core: usize, cores: usize, now_ns: u64) -> Schedule {
        let Options { seconds, warmup_seconds, tenants, .. } = &self.options;
        let is_timed = self.options.is_timed(&tenants[tenant]);
        let counts_from_ns = if is_timed { now_ns + (warmup_seconds * 1e9) as u64 } else { now_ns };
        // A core without a connection would leave its share of the rate undone.
        let sharing = cores.min(tenants[tenant].connections) as f64;
        let interval_ns = tenants[tenant].rate.map(|rate| sharing * 1e9 / rate);
        Schedule {
            // So that the cores do not all send at the same instant.
            begin_ns: now_ns + interval_ns.map_or(0, |ns| (ns * core as f64 / sharing) as u64),
            counts_from_ns,
            end_ns: is_timed.then(|| counts_from_ns + (seconds * 1e9) as u64),
            interval_ns,
            next: Cell::new(0),
            left: self.left[tenant].clone(),
        }
    }
}

/// Does one core's share of a phase; what came of it, for each tenant.
///
/// # Errors
/// A connection cannot be made, is refused, or is lost.
pub async fn run_core(reactor: &Reactor, plan: &Plan) -> Result<Vec<Tally>, BenchError> {
    let (core, cores) = (usize::from(reactor.core().0), reactor.cores());
    let mut lanes = Vec::new();
    let mut connections = Vec::new();
    for (number, tenant) in plan.options.tenants.iter().enumerate() {
        for connection in (core..tenant.connections).step_by(cores) {
            let seed = scatter(scatter(plan.options.seed ^ number as u64) ^ connection as u64);
            let random = Xoshiro256PlusPlus::seed_from_u64(seed);
            let connected = connect(reactor, &plan.options, tenant.database, random);
            let connected = match select(pin!(connected), pin!(reactor.sleep_ns(SILENCE_NS_MAX))).await {
                Either::Left((connected, _)) => connected?,
                Either::Right(_) => return Err(BenchError::Silent),
            };
            connections.push((number, connected));
        }
    }
    // All have come before the first operation is due.
    let now_ns = reactor.now_ns();
    for (number, tenant) in plan.options.tenants.iter().enumerate() {
        lanes.push(Lane {
            reactor: reactor.clone(),
            tenant: tenant.clone(),
            chooser: plan.choosers[number],
            schedule: plan.schedule(number, core, cores, now_ns),
            keys: plan.keys[number].clone(),
            inserted: plan.inserted[number].clone(),
            tally: RefCell::default(),
            waiting: Cell::new(0),
            replies: Cell::new(0),
        });
    }
    let work = connections.iter_mut().map(|(number, connection)| connection.work(&lanes[*number]));
    match select(pin!(try_join_all(work)), pin!(silence(reactor, &lanes))).await {
        Either::Left((worked, _)) => drop(worked?),
        Either::Right(_) => return Err(BenchError::Silent),
    }
    Ok(lanes.iter().map(|lane| lane.tally.take()).collect())
}

/// Ends when nobody has been answered for too long, though somebody waits.
async fn silence(reactor: &Reactor, lanes: &[Lane]) {
    let (mut heard, mut since_ns) = (0, reactor.now_ns());
    while reactor.now_ns() < since_ns + SILENCE_NS_MAX {
        reactor.sleep_ns(LOOK_NS).await;
        let replies = lanes.iter().map(|lane| lane.replies.get()).sum();
        if std::mem::replace(&mut heard, replies) != replies
            || lanes.iter().all(|lane| lane.waiting.get() == 0)
        {
            since_ns = reactor.now_ns();
        }
    }
}

async fn connect(
    reactor: &Reactor,
    options: &Options,
    database: u32,
    random: Xoshiro256PlusPlus,
) -> Result<Connection, BenchError> {
    let socket = reactor.connect(options.address).map_err(BenchError::Connect)?;
    let mut connection = Connection::new(socket, options.protocol, random);
    let database = database.to_string();
    let mut greetings: Vec<(&'static str, Vec<&[u8]>)> = Vec::new();
    if let Some(password) = &options.password {
        greetings.push(("AUTH", vec![b"AUTH", password]));
    }
    if database != "0" {
        greetings.push(("SELECT", vec![b"SELECT", database.as_bytes()]));
    }
    let refused = |command, reply| match reply {
        Reply::Error(text) => Err(BenchError::Refused { command, text: printable(&text) }),
        _ => Ok(()),
    };
    for (command, words) in greetings {
        refused(command, connection.ask(&words).await?)?;
    }
    refused("a greeting", connection.greet().await?)?;
    Ok(connection)
}

/// Runs a phase on all cores; what came of it, for each tenant.
fn phase(plan: Plan, watch: impl FnOnce() -> Result<(), BenchError>) -> Result<Vec<Tally>, BenchError> {
    let tenants = plan.options.tenants.len();
    let cpus = plan.options.cpus.clone();
    let (plan, told) = (Arc::new(plan), Arc::new(Mutex::new(Vec::new())));
    let telling = told.clone();
    let running = start(&StartOptions::on(cpus), move |reactor| {
        let (inner, plan, telling) = (reactor.clone(), plan.clone(), telling.clone());
        reactor.spawn(Work::Control, async move {
            let tallies = run_core(&inner, &plan).await;
            telling.lock().expect("nobody panics with it").push(tallies);
            inner.stop();
        });
    });
    let running = running.map_err(BenchError::Start)?;
    let watched = watch();
    running.join();
    watched?;
    let mut all = vec![Tally::default(); tenants];
    for tallies in told.lock().expect("nobody panics with it").drain(..) {
        all.iter_mut().zip(tallies?).for_each(|(all, tally)| all.add(&tally));
    }
    Ok(all)
}

/// Measures.
///
/// # Errors
/// The server is not there, refuses, or leaves; the load generator cannot run; or nothing was done.
pub fn run(options: &Options) -> Result<Report, BenchError> {
    let usage = || options.server.map(Usage::of).transpose().map_err(BenchError::Usage);
    usage()?;
    let mut loaded = None;
    if options.load {
        let begun = Instant::now();
        let tallies = phase(Plan::load(options), || Ok(()))?;
        loaded = Some((begun.elapsed().as_secs_f64(), tallies));
    }
    let mut before = None;
    let tallies = phase(Plan::measured(options), || {
        if options.tenants.iter().all(|tenant| options.is_timed(tenant)) {
            std::thread::sleep(Duration::from_secs_f64(options.warmup_seconds));
        }
        before = usage()?;
        Ok(())
    })?;
    let after = usage()?;
    let tenants =
        options.tenants.iter().zip(tallies).map(|(tenant, tally)| TenantReport::new(tenant, &tally));
    let report = Report::new(options, loaded, tenants.collect(), before.zip(after));
    // Where something failed, the report says what.
    match report.tenants.iter().find(|tenant| report.clean && tenant.done() == 0) {
        Some(idle) => Err(BenchError::Nothing(idle.name.clone())),
        None => Ok(report),
    }
}
