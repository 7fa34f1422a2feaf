//! `plimsoll serve`: from a configuration to a server, and back to an idle device.
//!
//! Role: runs on the control thread: opens or formats the device, starts a reactor on every core,
//! serves the admin port, stops everything in order. Place on the path: none; requests never come
//! here.
//!
//! Invariants:
//! * no core listens before all partitions are open and the address is this server's alone; no partition
//!   closes before the connections of all cores have ended;
//! * a core is told what to do through its control ring, and tells how far it is through one
//!   channel;
//! * a device that is not ours is never formatted.

mod admin;
mod claim;
mod core_task;
mod host;
mod metrics;
mod process;
#[cfg(test)]
mod tests;

use crate::budget::{Budget, Machine};
use crate::config::{Config, ConfigError, Listen, OnFullName, Size};
use crate::core::Addresses;
use crate::shared::{Settings, Shared};
use crate::tls::Tls;
use crate::volume::Geometry;
use anyhow::{Context, Result, anyhow, bail};
use core_task::{Command, Event, Plan};
use plimsoll_flash::layout::Layout;
use plimsoll_flash::{DeviceError, FormatOptions, Superblock};
use plimsoll_reactor::{
    Control, ControlSender, CoreId, DriverChoice, File, FileOptions, Mesh, Reactor, Running, StartOptions,
    Work,
};
use std::future::Future;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::{Arc, Mutex};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

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

/// 16 random bytes.
#[must_use]
pub fn random_id(reactor: &Reactor) -> [u8; 16] {
    let mut id = [0; 16];
    id[..8].copy_from_slice(&reactor.random_u64().to_le_bytes());
    id[8..].copy_from_slice(&reactor.random_u64().to_le_bytes());
    id
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// How long a start waits for a device that is in use, and between two looks.
const FREE_NS_MAX: u64 = 5_000_000_000;
const FREE_LOOK_NS: u64 = 50_000_000;

/// Opens the device; waits a little if it is in use: the kernel may still be ending the operations
/// of a server that was killed a moment ago.
///
/// # Errors
/// The device cannot be opened, or stays in use.
pub async fn open_when_free(reactor: &Reactor, path: &str, options: &FileOptions) -> Result<File> {
    let until_ns = reactor.now_ns() + FREE_NS_MAX;
    let mut told = false;
    loop {
        match reactor.open_file(path, options) {
            Err(error) if error.kind() == ErrorKind::WouldBlock && reactor.now_ns() < until_ns => {
                if !std::mem::replace(&mut told, true) {
                    tracing::info!(device = path, "in use by another process: waiting for it to end");
                }
                reactor.sleep_ns(FREE_LOOK_NS).await;
            }
            opened => return Ok(opened?),
        }
    }
}

/// Looks whether a file that is about to be made could be formatted, so that none is left behind that
/// cannot. A device that is there is looked at when it is open.
///
/// # Errors
/// It is too small, or what was asked for contradicts itself: wrong usage.
pub fn check_new_file(path: &str, bytes: u64, asked: &FormatAsked) -> Result<()> {
    if Path::new(path).exists() {
        return Ok(());
    }
    match plimsoll_flash::check_format(bytes, &asked.options([0; 16], 0, 0)) {
        Err(DeviceError::Option(what)) => Err(ConfigError(what).into()),
        Err(error) => Err(anyhow!("{path}: {error}; no file was made")),
        Ok(()) => Ok(()),
    }
}

/// Opens the device, formatting it if it holds nothing; what it is, and a name for this run.
async fn prepare(
    reactor: &Reactor,
    config: &Config,
    tls: Option<Arc<Tls>>,
) -> Result<(Superblock, Settings)> {
    let path = config.device.to_str().ok_or_else(|| anyhow!("device: the path is not UTF-8"))?;
    let partitions = u16::try_from(config.cores.len()).expect("cores are few");
    let asked = FormatAsked { partitions, segment_bytes: None, force: false };
    check_new_file(path, config.size.0, &asked)?;
    let options = FileOptions { create_bytes: Some(config.size.0), read_only: false };
    let file = open_when_free(reactor, path, &options).await?;
    if config.size_asked && file.size_bytes() != config.size.0 {
        let actual = Size(file.size_bytes());
        tracing::warn!(asked = %config.size, %actual, "size: the device exists and keeps its size");
    }
    let superblock = match plimsoll_flash::inspect(&file).await {
        Err(DeviceError::Blank) => format(reactor, &file, &asked).await,
        other => other,
    };
    let superblock = superblock.map_err(|error| anyhow!("{path}: {error}"))?;
    let machine = Machine {
        cores: config.cores.len() as u64,
        partitions: superblock.partitions.into(),
        segment_bytes: superblock.segment_bytes.into(),
        clients_max: config.clients_max,
        mark_bytes: match config.on_full {
            OnFullName::Error => 0,
            OnFullName::Evict => plimsoll_flash::mark_bytes(file.size_bytes()),
        },
        known_bytes: config.known_keys.0,
        slow_log_max: config.slowlog_max_len as u64,
        tls: tls.is_some(),
    };
    let settings = Settings {
        durability: config.durability.into(),
        on_full: config.on_full.into(),
        budget: Budget::divide(config.memory, config.cache, &machine).map_err(ConfigError)?,
        parameters: config.parameters(),
        debug_command: config.enable_debug_command,
        password: config.password.clone(),
        tls,
        data_dir: config.data.display().to_string(),
        config_file: config.file.as_ref().map(|file| file.display().to_string()),
        run_id: hexadecimal(&[&random_id(reactor)[..], &random_id(reactor)[..4]].concat()),
        started_ms: reactor.wall_ms(),
        process_id: std::process::id(),
        driver: DriverChoice::from(config.driver).settle(),
    };
    Ok((superblock, settings))
}

/// What the caller of a format decides.
pub struct FormatAsked {
    /// Partitions, fixed for good.
    pub partitions: u16,
    /// Bytes of a segment; chosen by the size of the device if absent.
    pub segment_bytes: Option<u32>,
    /// Write even if the device holds something else.
    pub force: bool,
}

impl FormatAsked {
    fn options(&self, device_id: [u8; 16], hash_secret: u64, created_ms: u64) -> FormatOptions {
        FormatOptions {
            partitions: self.partitions,
            segment_bytes: self.segment_bytes,
            force: self.force,
            written_ahead: false,
            device_id,
            hash_secret,
            created_ms,
        }
    }
}

/// Formats a device with what was asked for and fresh random identity.
///
/// # Errors
/// See [`plimsoll_flash::format`].
pub async fn format(
    reactor: &Reactor,
    file: &File,
    asked: &FormatAsked,
) -> std::result::Result<Superblock, DeviceError> {
    let options = FormatOptions {
        written_ahead: is_block_device(Path::new(file.path())),
        ..asked.options(random_id(reactor), reactor.random_u64(), reactor.wall_ms())
    };
    let superblock = plimsoll_flash::format(file, &options).await?;
    tracing::info!(
        device = file.path(),
        bytes = file.size_bytes(),
        partitions = asked.partitions,
        "formatted"
    );
    Ok(superblock)
}

fn is_block_device(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_block_device())
}

/// Serves until SIGTERM, SIGINT or SHUTDOWN.
///
/// # Errors
/// The server cannot be started, or did not stop cleanly.
pub fn serve(config: Config) -> Result<()> {
    tracing::info!(version = env!("CARGO_PKG_VERSION"), device = %config.device.display(), "plimsoll starts");
    let tls = config.network.tls_files().map(Tls::load).transpose()?.map(Arc::new);
    tls.as_deref().inspect(|tls| warn_of_end(tls));
    if let Some(directory) = config.device.parent().filter(|directory| !directory.as_os_str().is_empty()) {
        std::fs::create_dir_all(directory)
            .with_context(|| format!("{}: cannot be made", directory.display()))?;
    }
    host::raise_descriptors(config.clients_max);
    let job = config.clone();
    let options = StartOptions { cpus: vec![config.cores[0]], driver: config.driver.into() };
    let (superblock, settings) =
        run_on_reactor(&options, move |reactor| async move { prepare(&reactor, &job, tls).await })?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(run(config, superblock, settings))
}

/// The server as the control thread has it.
struct Server {
    shared: Arc<Shared>,
    control: ControlSender<Command>,
    events: UnboundedReceiver<Event>,
    /// Told when a client asks for the end.
    stop_asked: Arc<Notify>,
    cores: usize,
}

async fn run(config: Config, superblock: Superblock, settings: Settings) -> Result<()> {
    // From here on a signal is a wish to stop in order.
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    // Never the end: who sends it means the certificates.
    let mut hangup = signal(SignalKind::hangup())?;
    let (mut server, running) = start(&config, &superblock, settings)?;
    let stop_asked = server.stop_asked.clone();
    let served = async {
        let keys = server.opened().await?;
        let budget = server.shared.settings.budget;
        budget.check(keys, superblock.partitions.into()).map_err(|words| anyhow!(words))?;
        // Last of all clients are let in: nothing is acknowledged by a server that will not start.
        let _claims = claim::claim(config.network.addresses()).await?;
        let admin = admin::listen(config.admin, server.shared.clone()).await?;
        let served = server.listen(config.network.addresses()).await?;
        tracing::info!(
            resp = %Listen(served.plain), tls_resp = %Listen(served.tls),
            admin = %admin.address, partitions = superblock.partitions,
            cores = ?config.cores, driver = server.shared.settings.driver.name(),
            keys, durability = ?config.durability, "ready"
        );
        loop {
            tokio::select! {
                biased;
                _ = terminate.recv() => tracing::info!("SIGTERM: stopping"),
                _ = interrupt.recv() => tracing::info!("SIGINT: stopping"),
                () = stop_asked.notified() => tracing::info!("SHUTDOWN: stopping"),
                failed = server.failed() => bail!("{failed}"),
                _ = hangup.recv() => {
                    reload(server.shared.settings.tls.as_deref());
                    continue;
                }
            }
            return Ok(());
        }
    };
    let result = served.await;
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

fn start(config: &Config, superblock: &Superblock, settings: Settings) -> Result<(Server, Running)> {
    let cores = config.cores.len();
    let layout = Layout::new(superblock, 0);
    let geometry = Geometry {
        partitions: superblock.partitions,
        value_bytes_max: layout.record_value_bytes_max(),
        part_bytes: layout.part_bytes() as usize,
    };
    let shared = Arc::new(Shared::new(settings, geometry, cores));
    let stop_asked = Arc::new(Notify::new());
    let process =
        host::Process { file: config.file.clone(), stop: stop_asked.clone(), rewrites: Arc::default() };
    let hosted = shared.host.set(Box::new(process));
    assert!(hosted.is_ok(), "set once");
    let (control, control_ports) = Control::ports(cores);
    let (sender, events) = unbounded_channel();
    let ports = Mesh::ports(cores).into_iter().zip(control_ports).map(Some).collect();
    let plan = Plan {
        device: config.device.clone(),
        superblock: superblock.clone(),
        cache_bytes: (config.cache.0 / u64::from(superblock.partitions)) as usize,
        on_full: config.on_full.into(),
        gate: config.gate,
        known_bytes: (config.known_keys.0 / u64::from(superblock.partitions)) as usize,
        objects_max: shared.settings.budget.objects_max,
        shared: shared.clone(),
        events: sender,
        ports: Mutex::new(ports),
    };
    let options = StartOptions { cpus: config.cores.clone(), driver: config.driver.into() };
    let running = start_reactors(&options, move |reactor| core_task::start(reactor, &plan))?;
    let loads = shared.loads.set(running.loads().to_vec());
    assert!(loads.is_ok(), "set once");
    Ok((Server { shared, control, events, stop_asked, cores }, running))
}

impl Server {
    fn tell(&mut self, core: usize, command: Command) -> Result<()> {
        let sent = self.control.send(CoreId(core as u16), command);
        sent.map_err(|_| anyhow!("core {core} does not take commands: is it stuck?"))
    }

    fn tell_all(&mut self, command: Command) -> Result<()> {
        (0..self.cores).try_for_each(|core| self.tell(core, command))
    }

    async fn event(&mut self) -> Result<Event> {
        self.events.recv().await.ok_or_else(|| anyhow!("every core has ended"))
    }

    /// Waits until all partitions are open; how many keys they hold.
    async fn opened(&mut self) -> Result<u64> {
        let mut keys = 0;
        for _ in 0..self.cores {
            match self.event().await? {
                Event::Opened(count) => keys += count,
                Event::Failed(what) => bail!("{what}"),
                other => bail!("a core reports {other:?} while it opens"),
            }
        }
        Ok(keys)
    }

    /// Lets all cores listen; the first decides the ports if none was given.
    async fn listen(&mut self, mut addresses: Addresses) -> Result<Addresses> {
        for core in 0..self.cores {
            self.tell(core, Command::Serve(addresses))?;
            match self.event().await? {
                Event::Serving(served) => addresses = served,
                Event::Failed(what) => bail!("{what}"),
                other => bail!("a core reports {other:?} while it begins to listen"),
            }
        }
        Ok(addresses)
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
        self.tell_all(Command::Drain)?;
        self.wait_for_all(|event| matches!(event, Event::Drained)).await?;
        self.tell_all(Command::Close)?;
        self.wait_for_all(|event| matches!(event, Event::Closed)).await
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
