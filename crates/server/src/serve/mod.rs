//! `plimsoll serve`: from a configuration to a server, and back to an idle device.
//!
//! Role: runs on the control thread: has the devices found or formatted, starts a reactor on every core, has
//! partitions opened, serves the admin port, stops everything in order. Place on the path: none; requests
//! never come here.
//!
//! Invariants:
//! * no core listens before the address is this server's alone, and none reads or writes a key before all
//!   partitions are open; no partition closes before the connections of all cores have ended;
//! * a core is told what to do through its control ring, and tells how far it is through one
//!   channel;
//! * a device that is not ours is never formatted.

mod admin;
mod array;
mod claim;
mod core_task;
mod devices;
mod gauges;
mod host;
mod metrics;
mod process;
mod store;
#[cfg(test)]
mod tests;

use crate::budget::{Budget, Machine};
use crate::config::{Config, ConfigError, Listen, OnFullName};
use crate::core::Addresses;
use crate::shared::{Settings, Shared};
use crate::tls::Tls;
use crate::volume::Geometry;
use admin::Admin;
use anyhow::{Context, Result, anyhow, bail};
use array::{ArrayControl, Commands};
use core_task::{Command, Event, Plan};
use devices::Devices;
use plimsoll_flash::layout::Layout;
use plimsoll_reactor::{Control, DriverChoice, Mesh, Reactor, Running, StartOptions, Work};
use std::future::Future;
use std::path::Path;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use store::Setup;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

pub use devices::{FormatAsked, check_new_file, format, open_when_free, random_id};

/// The processors that this process may run on.
///
/// # Errors
/// The system does not tell.
pub fn processors() -> std::io::Result<Vec<usize>> {
    let set = rustix::thread::sched_getaffinity(None)?;
    Ok((0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect())
}

/// Runs a future on a reactor of its own to its end; the options name one processor.
///
/// # Errors
/// The reactor cannot be started, or the future fails.
pub fn run_on_reactor<T, F>(
    options: &StartOptions,
    start: impl FnOnce(Reactor) -> F + Send + 'static,
) -> Result<T>
where
    T: Send + 'static,
    F: Future<Output = Result<T>> + 'static,
{
    let (sender, receiver) = std::sync::mpsc::channel();
    let job = Mutex::new(Some((start, sender)));
    let running = start_reactors(options, move |reactor| {
        let taken = job.lock().expect("nobody panics while holding it").take();
        let (start, sender) = taken.expect("one core takes the one job");
        let (future, reactor) = (start(reactor.clone()), reactor.clone());
        reactor.clone().spawn(Work::Control, async move {
            // The receiver waits below until this has happened.
            let _ = sender.send(future.await);
            reactor.stop();
        });
    })?;
    running.join();
    receiver.recv().map_err(|_| anyhow!("the reactor ended without a result"))?
}

fn start_reactors(
    options: &StartOptions,
    main: impl Fn(&Reactor) + Send + Sync + 'static,
) -> Result<Running> {
    let refused = match options.driver {
        DriverChoice::Uring => {
            "cannot start: --driver uring was asked for; auto takes what the machine allows"
        }
        DriverChoice::Auto | DriverChoice::Portable => "cannot start",
    };
    plimsoll_reactor::start(options, main).context(refused)
}

/// Where a device stands.
fn directory_of(device: &Path) -> String {
    let device = std::path::absolute(device).unwrap_or_else(|_| device.to_owned());
    device.parent().unwrap_or(&device).display().to_string()
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What takes memory whatever the devices turn out to be: if any is there each has a partition, and where all
/// are to be made as many as there are cores.
fn least_machine(config: &Config, tls: bool) -> Machine {
    let (cores, devices) = (config.cores.len() as u64, config.devices.len() as u64);
    let is_any_there = config.devices.iter().any(|path| path.exists());
    Machine {
        cores,
        partitions: if is_any_there { devices } else { devices * cores },
        segment_bytes: plimsoll_flash::SEGMENT_BYTES_MIN,
        clients_max: config.clients_max,
        mark_bytes: 0,
        slow_log_max: config.slowlog_max_len as u64,
        tls,
    }
}

/// What the sessions of this run need to know.
///
/// # Errors
/// The memory that was given is too little.
fn settings(
    reactor: &Reactor,
    config: &Config,
    devices: &Devices,
    tls: Option<Arc<Tls>>,
) -> Result<Settings> {
    let superblock = devices.common();
    let machine = Machine {
        partitions: devices.flash_partitions(),
        segment_bytes: superblock.segment_bytes.into(),
        mark_bytes: match config.on_full {
            OnFullName::Error => 0,
            OnFullName::Evict => plimsoll_flash::mark_bytes(superblock.device_bytes),
        },
        ..least_machine(config, tls.is_some())
    };
    Ok(Settings {
        durability: config.durability.into(),
        on_full: config.on_full.into(),
        devices: devices.0.iter().map(|found| found.path.clone()).collect(),
        policy: config.array.as_ref().map(|array| array.policy()),
        budget: Budget::divide(config.memory, &config.shares, &machine).map_err(ConfigError)?,
        parameters: config.parameters(),
        debug_command: config.enable_debug_command,
        password: config.password.clone(),
        tls,
        data_dir: directory_of(&config.devices[0]),
        config_file: config.file.as_ref().map(|file| file.display().to_string()),
        run_id: hexadecimal(&[&random_id(reactor)[..], &random_id(reactor)[..4]].concat()),
        started_ms: reactor.wall_ms(),
        process_id: std::process::id(),
        driver: DriverChoice::from(config.driver).settle(),
    })
}

/// Serves until SIGTERM, SIGINT or SHUTDOWN.
///
/// # Errors
/// The server cannot be started, or did not stop cleanly.
pub fn serve(config: Config) -> Result<()> {
    let paths: Vec<_> = config.devices.iter().map(|path| path.display().to_string()).collect();
    tracing::info!(version = env!("CARGO_PKG_VERSION"), device = paths.join(", "), "plimsoll starts");
    host::check_memory(&config)?;
    let tls = config.network.tls_files().map(Tls::load).transpose()?.map(Arc::new);
    tls.as_deref().inspect(|tls| warn_of_end(tls));
    // Before a device is made: with the devices that there are it is divided once more.
    Budget::divide(config.memory, &config.shares, &least_machine(&config, tls.is_some()))
        .map_err(ConfigError)?;
    host::raise_descriptors(config.clients_max);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // Held while it serves; and taken first: a start that finds one taken has not touched a device.
    let _claims = runtime.block_on(claim::claim(config.network.addresses(), config.admin))?;
    let job = config.clone();
    let options = StartOptions { cpus: vec![config.cores[0]], driver: config.driver.into() };
    let (devices, settings) = run_on_reactor(&options, move |reactor| async move {
        let devices = devices::prepare(&reactor, &job).await?;
        let settings = settings(&reactor, &job, &devices, tls)?;
        Ok((devices, settings))
    })?;
    let result = runtime.block_on(run(config, devices, settings));
    // A look at a device that does not answer holds nobody up.
    runtime.shutdown_background();
    result
}

/// The server as the control thread has it.
struct Server {
    shared: Arc<Shared>,
    commands: Commands,
    /// Nothing if there is one device.
    array: Option<Arc<ArrayControl>>,
    events: UnboundedReceiver<Event>,
    /// Told when a client asks for the end.
    stop_asked: Arc<Notify>,
    cores: usize,
}

async fn run(config: Config, devices: Devices, settings: Settings) -> Result<()> {
    // From here on a signal is a wish to stop in order.
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    // Never the end: who sends it means the certificates.
    let mut hangup = signal(SignalKind::hangup())?;
    let (mut server, running) = start(&config, &devices, settings)?;
    let (stop_asked, shared) = (server.stop_asked.clone(), server.shared.clone());
    let result = {
        let mut served = pin!(server.serve(&config, &devices));
        loop {
            tokio::select! {
                biased;
                _ = terminate.recv() => tracing::info!("SIGTERM: stopping"),
                _ = interrupt.recv() => tracing::info!("SIGINT: stopping"),
                () = stop_asked.notified() => tracing::info!("SHUTDOWN: stopping"),
                error = &mut served => break Err(error),
                _ = hangup.recv() => {
                    reload(shared.settings.tls.as_deref());
                    continue;
                }
            }
            break Ok(());
        }
    };
    let stopped = server.stop().await;
    running.join();
    result.and(stopped)?;
    tracing::info!("stopped: everything acknowledged is on the device");
    Ok(())
}

/// A certificate that has expired is served: those who look at it have to be told, not all clients do.
fn warn_of_end(tls: &Tls) {
    if tls.has_expired() {
        let file = tls.files.certificate.display();
        tracing::warn!(%file, "the certificate has expired: clients will refuse it");
    }
}

/// Reads the certificates again.
fn reload(tls: Option<&Tls>) {
    match tls.map(Tls::reload) {
        None => tracing::info!("SIGHUP: TLS is not served, there is nothing to read again"),
        Some(Ok(())) => {
            tracing::info!("SIGHUP: the certificates were read again; new connections use them");
            tls.inspect(|tls| warn_of_end(tls));
        }
        Some(Err(error)) => tracing::error!(%error, "SIGHUP: the certificates in use stay"),
    }
}

/// What is the same for all partitions. An array puts a header before each value and each part.
fn geometry(config: &Config, devices: &Devices) -> Geometry {
    let superblock = devices.common();
    let layout = Layout::new(superblock, 0);
    let (value_bytes_max, part_bytes) = (layout.record_value_bytes_max(), layout.part_bytes() as usize);
    let (value_bytes_max, part_bytes) = match &config.array {
        Some(_) => plimsoll_array::geometry(value_bytes_max, part_bytes),
        None => (value_bytes_max, part_bytes),
    };
    Geometry { partitions: superblock.partitions, value_bytes_max, part_bytes }
}

/// What each core opens: shares of the memory for each partition.
fn setup(config: &Config, devices: &Devices, shared: &Shared) -> Setup {
    let superblock = devices.common();
    Setup {
        devices: devices.0.clone(),
        array: array::options(config, superblock.partitions),
        hash_secret: superblock.hash_secret,
        cache_bytes: (config.cache.0 / u64::from(superblock.partitions)) as usize,
        on_full: config.on_full.into(),
        gate: config.gate,
        rates: config.throttle.map(|throttle| throttle.of_core(config.cores.len())),
        known_bytes: (config.known_keys.0 / devices.flash_partitions()) as usize,
        objects_max: shared.settings.budget.objects_max,
    }
}

fn start(config: &Config, devices: &Devices, settings: Settings) -> Result<(Server, Running)> {
    let (cores, geometry) = (config.cores.len(), geometry(config, devices));
    let shared = Arc::new(Shared::new(settings, geometry, cores));
    let stop_asked = Arc::new(Notify::new());
    let process =
        host::Process { file: config.file.clone(), stop: stop_asked.clone(), rewrites: Arc::default() };
    let hosted = shared.host.set(Box::new(process));
    assert!(hosted.is_ok(), "set once");
    let (control, control_ports) = Control::ports(cores);
    let (sender, events) = unbounded_channel();
    let ports = Mesh::ports(cores).into_iter().zip(control_ports).map(Some).collect();
    let commands = Commands::new(control);
    let setup = setup(config, devices, &shared);
    let plan = Plan { setup, shared: shared.clone(), events: sender, ports: Mutex::new(ports) };
    let options = StartOptions { cpus: config.cores.clone(), driver: config.driver.into() };
    let running = start_reactors(&options, move |reactor| core_task::start(reactor, &plan))?;
    let loads = shared.loads.set(running.loads().to_vec());
    assert!(loads.is_ok(), "set once");
    shared.driver.get_or_init(|| options.driver.settle());
    let array = ArrayControl::new(config, devices, commands.clone());
    Ok((Server { shared, commands, array, events, stop_asked, cores }, running))
}

impl Server {
    fn tell_all(&self, command: impl Fn() -> Command) -> Result<()> {
        (0..self.cores).try_for_each(|core| self.commands.tell(core, command()))
    }

    /// The next event. How the array is may be told at any time, and is no answer to anything.
    async fn event(&mut self) -> Result<Event> {
        loop {
            match self.events.recv().await.ok_or_else(|| anyhow!("every core has ended"))? {
                Event::Array(report) => {
                    if let Some(array) = &self.array {
                        array.take(report);
                    }
                }
                event => return Ok(event),
            }
        }
    }

    /// Serves until something fails: what that is.
    async fn serve(&mut self, config: &Config, devices: &Devices) -> anyhow::Error {
        match self.begin(config, devices).await {
            // While it serves, the admin port answers.
            Ok(_admin) => anyhow!("{}", self.failed().await),
            Err(error) => error,
        }
    }

    /// Listens, opens the partitions, and lets clients reach them last of all: nothing is acknowledged by a
    /// server that will not start.
    async fn begin(&mut self, config: &Config, devices: &Devices) -> Result<Admin> {
        let served = self.listen(config.network.addresses()).await?;
        tracing::info!(resp = %Listen(served.plain), tls_resp = %Listen(served.tls), "opening partitions");
        let records = self.open().await?;
        let budget = self.shared.settings.budget;
        budget.check(records, devices.flash_partitions()).map_err(|words| anyhow!(words))?;
        let reach = (config.admin, config.unprotected);
        let admin = admin::listen(reach, self.shared.clone(), self.array.clone()).await?;
        self.serve_keys().await?;
        tracing::info!(
            resp = %Listen(served.plain), tls_resp = %Listen(served.tls),
            admin = %admin.address, partitions = self.shared.geometry.partitions, devices = devices.0.len(),
            cores = ?config.cores, driver = self.shared.driver().name(),
            records, durability = ?config.durability, "ready"
        );
        Ok(admin)
    }

    /// Has all cores open their partitions; how many records these hold.
    async fn open(&mut self) -> Result<u64> {
        self.tell_all(|| Command::Open)?;
        let mut records = 0;
        for _ in 0..self.cores {
            match self.event().await? {
                Event::Opened(count) => records += count,
                Event::Failed(what) => bail!("{what}"),
                other => bail!("a core reports {other:?} while it opens"),
            }
        }
        Ok(records)
    }

    /// Lets all cores listen; the first decides the ports if none was given.
    async fn listen(&mut self, mut addresses: Addresses) -> Result<Addresses> {
        for core in 0..self.cores {
            self.commands.tell(core, Command::Listen(addresses))?;
            match self.event().await? {
                Event::Listening(served) => addresses = served,
                Event::Failed(what) => bail!("{what}"),
                other => bail!("a core reports {other:?} while it begins to listen"),
            }
        }
        Ok(addresses)
    }

    /// Lets clients of all cores reach the partitions.
    async fn serve_keys(&mut self) -> Result<()> {
        self.tell_all(|| Command::Serve)?;
        for _ in 0..self.cores {
            match self.event().await? {
                Event::Serving => {}
                Event::Failed(what) => bail!("{what}"),
                other => bail!("a core reports {other:?} while it begins to serve"),
            }
        }
        Ok(())
    }

    /// Waits until a core reports what it cannot go on after.
    async fn failed(&mut self) -> String {
        match self.event().await {
            Ok(Event::Failed(what)) => what,
            Ok(other) => format!("a core reports {other:?} while it serves"),
            Err(error) => error.to_string(),
        }
    }

    /// Stops all cores in order, whatever they have come to.
    async fn stop(&mut self) -> Result<()> {
        self.tell_all(|| Command::Drain)?;
        // What failed on another core meanwhile, or before, keeps none of them open.
        let drained = self.wait_for_all(|event| matches!(event, Event::Drained)).await;
        self.tell_all(|| Command::Close)?;
        let closed = self.wait_for_all(|event| matches!(event, Event::Closed)).await;
        drained.and(closed)
    }

    async fn wait_for_all(&mut self, is_end: impl Fn(&Event) -> bool) -> Result<()> {
        let (mut left, mut failure) = (self.cores, None);
        while left > 0 {
            let event = self.event().await?;
            left -= usize::from(is_end(&event));
            if let Event::Failed(what) = event {
                failure = Some(what);
            }
        }
        failure.map_or(Ok(()), |what| Err(anyhow!("{what}")))
    }
}
