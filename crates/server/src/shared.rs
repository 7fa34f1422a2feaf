//! What all cores and the control thread share: settings, parameters, and counters.
//!
//! Role: made once at start, handed to every core. Invariants: each counter block has one writing
//! core; the few numbers that several cores write (connections, client ids) are touched when a
//! connection opens or closes, never by a request.
//!
//! Never: anything that a request has to wait for, but for the turns of transactions over several partitions
//! and of counts.

use crate::budget::Budget;
use crate::command;
use crate::config::{DebugCommand, Password};
use crate::counters::{CoreCounters, Gauges};
use crate::parameters::{Parameter, Parameters, Spec, Values};
use crate::tls::Tls;
use crate::transaction::Phases;
use crate::volume::Geometry;
use plimsoll_array::Policy;
use plimsoll_flash::OnFull;
use plimsoll_kv::Durability;
use plimsoll_reactor::{CoreId, DriverKind, Load};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock};

/// What a session needs to know of the configuration.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What an acknowledged write is worth.
    pub durability: Durability,
    /// What becomes of stores when the device is full.
    pub on_full: OnFull,
    /// The paths of the devices.
    pub devices: Vec<String>,
    /// How several of them protect what they hold; nothing of one.
    pub policy: Option<Policy>,
    /// What may be held in memory.
    pub budget: Budget,
    /// The values of the parameters at the start.
    pub parameters: Values,
    /// What clients have to give before anything else.
    pub password: Option<Password>,
    /// The certificates, if TLS is served.
    pub tls: Option<Arc<Tls>>,
    /// Who may use DEBUG.
    pub debug_command: DebugCommand,
    /// The directory of the data, for CONFIG GET dir.
    pub data_dir: String,
    /// The configuration file, if there is one.
    pub config_file: Option<String>,
    /// 40 hexadecimal digits that name this run.
    pub run_id: String,
    /// Wall time of the start in milliseconds.
    pub started_ms: u64,
    /// The process' id.
    pub process_id: u32,
    /// What was to speak to the kernel: see [`Shared::driver`].
    pub driver: DriverKind,
}

/// What the process does for operators' commands; a simulated server has none.
pub trait Host: std::fmt::Debug + Send + Sync {
    /// Stops the whole server in order, soon.
    fn stop(&self);

    /// Makes room for the descriptors of so many connections; how many there is room for.
    fn admit(&self, clients_max: u64) -> u64;

    /// Measures the process' memory and processor time.
    fn measure(&self, process: &ProcessGauges);

    /// Writes these parameters into the configuration file; what became of it is told later.
    fn rewrite(&self, changed: Vec<(&'static Spec, i64)>) -> Arc<OnceLock<Result<(), String>>>;
}

/// What the control thread measures once a second, and commands that tell it, of memory and processor time,
/// when they are asked; zero where there is none.
#[derive(Debug, Default)]
pub struct ProcessGauges {
    /// Bytes of memory in use by the process.
    pub resident_bytes: AtomicU64,
    /// The most there ever were.
    pub resident_peak_bytes: AtomicU64,
    /// Bytes of memory of the machine.
    pub machine_bytes: AtomicU64,
    /// Processor time in the kernel, in milliseconds.
    pub system_ms: AtomicU64,
    /// Processor time outside it, in milliseconds.
    pub user_ms: AtomicU64,
    /// Commands in the last second.
    pub ops_per_s: AtomicU64,
    /// Bytes received in the last second.
    pub input_bytes_per_s: AtomicU64,
    /// Bytes sent in the last second.
    pub output_bytes_per_s: AtomicU64,
}

/// Shared by all cores and the control thread.
#[derive(Debug)]
pub struct Shared {
    /// The configuration.
    pub settings: Settings,
    /// What is the same for all partitions.
    pub geometry: Geometry,
    /// One for each core.
    pub cores: Vec<CoreCounters>,
    /// Filled when the reactors run.
    pub loads: OnceLock<Vec<Load>>,
    /// Filled when the reactors run: io_uring may have had room for one of them, and not for all.
    pub driver: OnceLock<DriverKind>,
    /// Measured by the control thread.
    pub process: ProcessGauges,
    /// What devices and partitions tell; locked to add one and to list them.
    gauges: Mutex<Vec<Arc<Gauges>>>,
    /// The parameters in force.
    pub parameters: Parameters,
    /// Set once, when the server runs in a process of its own.
    pub host: OnceLock<Box<dyn Host>>,
    /// Clients that watch all commands.
    pub monitors: AtomicU64,
    /// Scripts that clients have sent, by their digests.
    pub scripts: command::RememberedScripts,
    /// Who applies transactions, and who counts.
    pub(crate) phases: Phases,
    connections: AtomicU64,
    next_client: AtomicU64,
    next_slow: AtomicU64,
}

impl Shared {
    /// For a server of so many cores.
    #[must_use]
    pub fn new(settings: Settings, geometry: Geometry, cores: usize) -> Shared {
        Shared {
            parameters: Parameters::new(settings.parameters),
            host: OnceLock::new(),
            monitors: AtomicU64::new(0),
            scripts: command::RememberedScripts::default(),
            phases: Phases::new(geometry.partitions),
            settings,
            geometry,
            cores: (0..cores).map(|_| CoreCounters::new(command::SLOTS.len())).collect(),
            loads: OnceLock::new(),
            driver: OnceLock::new(),
            process: ProcessGauges::default(),
            gauges: Mutex::new(Vec::new()),
            connections: AtomicU64::new(0),
            next_client: AtomicU64::new(1),
            next_slow: AtomicU64::new(0),
        }
    }

    /// What speaks to the kernel.
    #[must_use]
    pub fn driver(&self) -> DriverKind {
        self.driver.get().copied().unwrap_or(self.settings.driver)
    }

    /// The counters of a core.
    #[must_use]
    pub fn core(&self, core: CoreId) -> &CoreCounters {
        &self.cores[usize::from(core.0)]
    }

    /// Counts a new connection, unless there are too many.
    #[must_use]
    pub fn admit(&self) -> bool {
        let clients_max = self.parameters.get(Parameter::ClientsMax) as u64;
        let admitted = self.connections.fetch_add(1, Relaxed) < clients_max;
        if !admitted {
            self.connections.fetch_sub(1, Relaxed);
        }
        admitted
    }

    /// A connection admitted before is gone.
    pub fn dismiss(&self) {
        self.connections.fetch_sub(1, Relaxed);
    }

    /// Connections open now.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.connections.load(Relaxed)
    }

    /// A number for a new client.
    #[must_use]
    pub fn next_client(&self) -> u64 {
        self.next_client.fetch_add(1, Relaxed)
    }

    /// A number for an entry of the slow log.
    #[must_use]
    pub fn next_slow(&self) -> u64 {
        self.next_slow.fetch_add(1, Relaxed)
    }

    /// Adds gauges, to be published by the calling core: at the start, and when a device is replaced.
    pub fn add_gauges(&self, gauges: Gauges) -> Arc<Gauges> {
        let gauges = Arc::new(gauges);
        let mut all = self.gauges.lock().expect("nobody panics while holding it");
        // What it belongs to is open anew: what was is told no more.
        all.retain(|other| !other.is_of_the_same(&gauges));
        all.push(gauges.clone());
        all.sort_by(|a, b| a.label.cmp(&b.label));
        gauges
    }

    /// Removes gauges: what they belonged to is gone.
    pub fn remove_gauges(&self, gauges: &Arc<Gauges>) {
        let mut all = self.gauges.lock().expect("nobody panics while holding it");
        all.retain(|other| !Arc::ptr_eq(other, gauges));
    }

    /// All gauges, in the order of their labels.
    #[must_use]
    pub fn gauges(&self) -> Vec<Arc<Gauges>> {
        self.gauges.lock().expect("nobody panics while holding it").clone()
    }

    /// Sums a counter over the cores.
    pub fn sum(&self, counter: impl Fn(&CoreCounters) -> u64) -> u64 {
        self.cores.iter().map(counter).sum()
    }
}
