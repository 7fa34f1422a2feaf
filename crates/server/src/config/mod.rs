//! The configuration: a TOML file, and flags that win over it.
//!
//! Role: one place where every setting has its name, its default and its check. Place on the path:
//! before the start.
//!
//! Invariants: a key that is not known is an error that says which and where; a setting that this
//! build cannot honour is refused in words, never ignored; what is printed is what is in force.

mod array;
mod listen;
mod password;
pub(crate) mod place;
pub(crate) mod rewrite;
mod shares;
mod size;
#[cfg(test)]
mod tests;
mod throttle;

pub use array::{ArrayConfig, ArrayLayer, DEVICES_MAX, MechanismName, Protection, SizeConfig, SizeLayer};
pub use listen::{Listen, Network};
pub use password::Password;
pub use shares::Shares;
pub use size::{Size, parse_cores};
pub use throttle::Throttle;

use crate::parameters::{PARAMETERS, Parameter, Values};
use plimsoll_flash::OnFull;
use plimsoll_kv::Durability;
use plimsoll_reactor::DriverChoice;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// The name of the device file in the data directory.
pub const DEVICE_FILE: &str = "device.plimsoll";

/// Why a configuration is refused: wrong usage.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(pub String);

/// What may stand in the file, and what the flags say: the same names.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Layer {
    /// See [`Config::data`].
    pub data: Option<PathBuf>,
    /// See [`Config::devices`].
    pub device: Option<Vec<PathBuf>>,
    /// See [`Config::array`].
    pub array: Option<ArrayLayer>,
    /// See [`Config::size`].
    pub size: Option<Size>,
    /// See [`Config::cores`].
    pub cores: Option<String>,
    /// See [`Config::driver`].
    pub driver: Option<DriverName>,
    /// See [`Network::resp`].
    pub resp: Option<Listen>,
    /// See [`Network::tls_resp`].
    pub tls_resp: Option<Listen>,
    /// See [`Network::tls_cert`].
    pub tls_cert: Option<PathBuf>,
    /// See [`Network::tls_key`].
    pub tls_key: Option<PathBuf>,
    /// See [`Network::tls_client_ca`].
    pub tls_client_ca: Option<PathBuf>,
    /// See [`Config::admin`].
    pub admin: Option<SocketAddr>,
    /// See [`Config::durability`].
    pub durability: Option<DurabilityName>,
    /// See [`Config::on_full`].
    pub on_full: Option<OnFullName>,
    /// See [`Config::gate`].
    pub gate: Option<GateName>,
    /// See [`Config::throttle`].
    pub throttle: Option<Throttle>,
    /// See [`Config::clients_max`].
    pub clients_max: Option<u64>,
    /// See [`Config::password`].
    #[serde(skip_serializing)]
    pub password: Option<Password>,
    /// See [`Config::unprotected`].
    pub unprotected: Option<bool>,
    /// See [`Parameter::LatencyMonitorThreshold`].
    pub latency_monitor_threshold: Option<i64>,
    /// See [`Parameter::SlowlogLogSlowerThan`].
    pub slowlog_log_slower_than: Option<i64>,
    /// See [`Parameter::SlowlogMaxLen`].
    pub slowlog_max_len: Option<i64>,
    /// See [`Parameter::Timeout`].
    pub timeout: Option<i64>,
    /// See [`Parameter::TryagainAfter`].
    pub tryagain_after: Option<i64>,
    /// See [`Config::enable_debug_command`].
    pub enable_debug_command: Option<DebugCommand>,
    /// Where NVMe/TCP is served: not yet.
    pub nvme: Option<String>,
    /// See [`Config::cache`].
    pub cache: Option<Size>,
    /// See [`Config::known_keys`].
    pub known_keys: Option<Size>,
    /// See [`Config::memory`].
    pub memory: Option<Size>,
}

/// What speaks to the kernel, by its name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum DriverName {
    /// io_uring; where it is forbidden the portable one, with a warning.
    #[default]
    Auto,
    /// io_uring or nothing.
    Uring,
    /// epoll and threads: works everywhere, takes more processor time.
    Portable,
}

/// A durability level by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum DurabilityName {
    /// On stable media before the reply.
    Sync,
    /// As sync, at most a millisecond later.
    Group,
    /// Replied at once; at most the last second is lost at a crash.
    Async,
}

/// What a full device does, by its name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum OnFullName {
    /// Stores are refused; nothing is lost.
    #[default]
    Error,
    /// Keys that were not read for long are deleted to make room.
    Evict,
}

/// How reads pass the gate of the device, by its name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum GateName {
    /// As many at a time as the device serves without queueing.
    #[default]
    Window,
    /// First in, first out: as many at a time as the core has.
    Fifo,
}

/// Who may use DEBUG.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DebugCommand {
    /// Nobody.
    #[default]
    No,
    /// Clients on this machine.
    Local,
    /// Everybody.
    Yes,
}

impl From<DriverName> for DriverChoice {
    fn from(name: DriverName) -> DriverChoice {
        match name {
            DriverName::Auto => DriverChoice::Auto,
            DriverName::Uring => DriverChoice::Uring,
            DriverName::Portable => DriverChoice::Portable,
        }
    }
}

impl From<DurabilityName> for Durability {
    fn from(name: DurabilityName) -> Durability {
        match name {
            DurabilityName::Sync => Durability::Sync,
            DurabilityName::Group => Durability::Group,
            DurabilityName::Async => Durability::Async,
        }
    }
}

impl From<OnFullName> for OnFull {
    fn from(name: OnFullName) -> OnFull {
        match name {
            OnFullName::Error => OnFull::Error,
            OnFullName::Evict => OnFull::Evict,
        }
    }
}

/// The configuration in force.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Config {
    /// The directory of the data.
    pub data: PathBuf,
    /// The file or block device that holds it; several are an array.
    #[serde(rename = "device")]
    pub devices: Vec<PathBuf>,
    /// How several devices are one; nothing if there is one.
    pub array: Option<ArrayConfig>,
    /// Bytes of each file that has to be made.
    pub size: Size,
    /// The processors to run on.
    #[serde(serialize_with = "size::serialize_cores")]
    pub cores: Vec<usize>,
    /// How the server speaks to the kernel.
    pub driver: DriverName,
    /// Where RESP is served, plain and over TLS.
    #[serde(flatten)]
    pub network: Network,
    /// Where metrics and the status page are served.
    pub admin: SocketAddr,
    /// Bytes of memory for values that were read, of all cores together; 0: none.
    pub cache: Size,
    /// Bytes of memory for whose records were written lately, of all cores together: replacing one of them
    /// needs no read; 0: none.
    pub known_keys: Size,
    /// What cache and known keys were given.
    #[serde(skip)]
    pub shares: Shares,
    /// Memory of everything; nothing: as much as clients, cache and keys take.
    pub memory: Option<Size>,
    /// What an acknowledged write is worth.
    pub durability: DurabilityName,
    /// What becomes of stores when the device is full.
    pub on_full: OnFullName,
    /// How reads pass the gate of the device.
    pub gate: GateName,
    /// What each device serves at most; nothing: what it can.
    pub throttle: Option<Throttle>,
    /// Connections at most.
    pub clients_max: u64,
    /// Milliseconds from which the latency monitor remembers a command; 0: it is off.
    pub latency_monitor_threshold: i64,
    /// Microseconds from which the slow log remembers a command; negative: it is off.
    pub slowlog_log_slower_than: i64,
    /// Commands that the slow log remembers.
    pub slowlog_max_len: i64,
    /// Seconds after which an idle client is cut; 0: never.
    pub timeout: i64,
    /// Milliseconds after which a command that could not be begun is refused; 0: it waits.
    pub tryagain_after: i64,
    /// Who may use DEBUG.
    pub enable_debug_command: DebugCommand,
    /// What clients have to give before anything else.
    #[serde(skip)]
    pub password: Option<Password>,
    /// Serve without a password even where others can reach it.
    pub unprotected: bool,
    /// Whether the size was asked for, and is not the default.
    #[serde(skip)]
    pub size_asked: bool,
    /// The file that was read.
    #[serde(skip)]
    pub file: Option<PathBuf>,
}

impl Layer {
    /// Reads a configuration file.
    ///
    /// # Errors
    /// It cannot be read, is no TOML, or has keys that are not known.
    pub fn read(path: &Path) -> Result<Layer, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| ConfigError(format!("{}: cannot be read: {error}", path.display())))?;
        toml::from_str(&text).map_err(|error| {
            let at = place::of(&text, error.span());
            ConfigError(format!("{}: {at}{}", path.display(), error.message()))
        })
    }

    /// This layer, and what only the one below says.
    #[must_use]
    pub fn over(self, below: Layer) -> Layer {
        Layer {
            data: self.data.or(below.data),
            device: self.device.or(below.device),
            array: self.array.or(below.array),
            size: self.size.or(below.size),
            cores: self.cores.or(below.cores),
            driver: self.driver.or(below.driver),
            resp: self.resp.or(below.resp),
            tls_resp: self.tls_resp.or(below.tls_resp),
            tls_cert: self.tls_cert.or(below.tls_cert),
            tls_key: self.tls_key.or(below.tls_key),
            tls_client_ca: self.tls_client_ca.or(below.tls_client_ca),
            admin: self.admin.or(below.admin),
            durability: self.durability.or(below.durability),
            on_full: self.on_full.or(below.on_full),
            gate: self.gate.or(below.gate),
            throttle: self.throttle.or(below.throttle),
            clients_max: self.clients_max.or(below.clients_max),
            password: self.password.or(below.password),
            unprotected: self.unprotected.or(below.unprotected),
            latency_monitor_threshold: self.latency_monitor_threshold.or(below.latency_monitor_threshold),
            slowlog_log_slower_than: self.slowlog_log_slower_than.or(below.slowlog_log_slower_than),
            slowlog_max_len: self.slowlog_max_len.or(below.slowlog_max_len),
            timeout: self.timeout.or(below.timeout),
            tryagain_after: self.tryagain_after.or(below.tryagain_after),
            enable_debug_command: self.enable_debug_command.or(below.enable_debug_command),
            nvme: self.nvme.or(below.nvme),
            cache: self.cache.or(below.cache),
            known_keys: self.known_keys.or(below.known_keys),
            memory: self.memory.or(below.memory),
        }
    }
}

/// The value of a parameter, its default if none is given.
fn checked(parameter: Parameter, given: Option<i64>) -> Result<i64, ConfigError> {
    let spec = &PARAMETERS[parameter as usize];
    let value = spec.check(given.unwrap_or(spec.default));
    value.map_err(|what| ConfigError(format!("{}: {what}", spec.key)))
}

impl Config {
    /// The configuration of a server on a machine with these processors.
    ///
    /// # Errors
    /// A setting contradicts itself, or asks for what this build does not do.
    pub fn new(layer: Layer, file: Option<PathBuf>, processors: &[usize]) -> Result<Config, ConfigError> {
        if layer.nvme.is_some() {
            return Err(ConfigError(
                "nvme: this version does not serve NVMe/TCP yet; leave it out".to_owned(),
            ));
        }
        let network = Network::new(&layer)?;
        let shares = Shares::new(layer.cache, layer.known_keys)?;
        let data = layer.data.unwrap_or_else(|| PathBuf::from("plimsoll-data"));
        let given = layer.device.unwrap_or_default();
        let devices = if given.is_empty() { vec![data.join(DEVICE_FILE)] } else { given };
        let devices = array::checked_devices(devices)?;
        let on_full = layer.on_full.unwrap_or_default();
        let array = ArrayConfig::new(layer.array, devices.len(), on_full)?;
        let cores = match layer.cores {
            Some(list) => parse_cores(&list).map_err(|what| ConfigError(format!("cores: {what}")))?,
            None => processors.iter().copied().take(plimsoll_reactor::limits::CORES_MAX).collect(),
        };
        if let Some(core) = cores.iter().find(|core| !processors.contains(core)) {
            let words = "the processors that this process may run on are";
            return Err(ConfigError(format!("cores: not on processor {core}; {words} {processors:?}")));
        }
        let clients_max = layer.clients_max.map(|count| i64::try_from(count).unwrap_or(i64::MAX));
        let unprotected = layer.unprotected.unwrap_or(false);
        network.check_protected(layer.password.is_some() || unprotected)?;
        let admin = layer.admin.unwrap_or(SocketAddr::from(([127, 0, 0, 1], 8379)));
        network.check_apart(admin)?;
        Ok(Config {
            data,
            devices,
            array,
            size: layer.size.unwrap_or(Size(4 << 30)),
            size_asked: layer.size.is_some(),
            cores,
            driver: layer.driver.unwrap_or_default(),
            network,
            admin,
            cache: shares.cache(layer.memory),
            known_keys: shares.known_keys(layer.memory),
            shares,
            memory: layer.memory,
            durability: layer.durability.unwrap_or(DurabilityName::Sync),
            on_full,
            gate: layer.gate.unwrap_or_default(),
            throttle: layer.throttle.map(Throttle::check).transpose()?,
            clients_max: checked(Parameter::ClientsMax, clients_max)? as u64,
            latency_monitor_threshold: checked(
                Parameter::LatencyMonitorThreshold,
                layer.latency_monitor_threshold,
            )?,
            slowlog_log_slower_than: checked(Parameter::SlowlogLogSlowerThan, layer.slowlog_log_slower_than)?,
            slowlog_max_len: checked(Parameter::SlowlogMaxLen, layer.slowlog_max_len)?,
            timeout: checked(Parameter::Timeout, layer.timeout)?,
            tryagain_after: checked(Parameter::TryagainAfter, layer.tryagain_after)?,
            enable_debug_command: layer.enable_debug_command.unwrap_or_default(),
            password: layer.password,
            unprotected,
            file,
        })
    }

    /// The values of the parameters that can be changed later.
    #[must_use]
    pub fn parameters(&self) -> Values {
        Values::default()
            .with(Parameter::ClientsMax, self.clients_max as i64)
            .with(Parameter::LatencyMonitorThreshold, self.latency_monitor_threshold)
            .with(Parameter::SlowlogLogSlowerThan, self.slowlog_log_slower_than)
            .with(Parameter::SlowlogMaxLen, self.slowlog_max_len)
            .with(Parameter::Timeout, self.timeout)
            .with(Parameter::TryagainAfter, self.tryagain_after)
    }

    /// As TOML, every setting in force.
    #[must_use]
    pub fn print(&self) -> String {
        let value = toml::Table::try_from(self).expect("the configuration is plain data");
        value.to_string()
    }
}
