//! The process behind a server: what it does for operators' commands.
//!
//! Role: ends the server, makes room for descriptors, looks at the machine's memory, writes the
//! configuration file. Place on the path: none.
//!
//! Invariants: a core that asks does not wait for a disk; one thread writes at a time; the control thread
//! alone ends the server.

use crate::config::{Config, ConfigError, Size, rewrite};
use crate::limits::DESCRIPTORS_BESIDE;
use crate::parameters::Spec;
use crate::serve::process;
use crate::shared::{Host, ProcessGauges};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::AcqRel, Ordering::Release};
use std::sync::{Arc, OnceLock};
use tokio::sync::Notify;

/// This process.
#[derive(Debug)]
pub(super) struct Process {
    /// The configuration file, if there is one.
    pub(super) file: Option<PathBuf>,
    /// Told when a client wants the server to stop.
    pub(super) stop: Arc<Notify>,
    /// The file is being written.
    pub(super) rewrites: Arc<AtomicBool>,
}

/// Asks for as many descriptors as the connections need, as far as the system grants them; for how many
/// connections there are enough.
pub(super) fn raise_descriptors(clients_max: u64) -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let needed = clients_max.saturating_add(DESCRIPTORS_BESIDE);
    let limit = getrlimit(Resource::Nofile);
    let there = |count: Option<u64>| count.map_or(clients_max, |c| c.saturating_sub(DESCRIPTORS_BESIDE));
    if limit.current.is_none_or(|current| current >= needed) {
        return clients_max;
    }
    let granted = limit.maximum.map_or(needed, |maximum| maximum.min(needed));
    let wanted = Rlimit { current: Some(granted), maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, wanted) {
        tracing::warn!(%error, needed, "the limit of open files cannot be raised: fewer clients can connect");
        return there(limit.current);
    }
    if granted < needed {
        tracing::warn!(granted, needed, "fewer open files than clients-max needs; raise it with ulimit -n");
    }
    there(Some(granted)).min(clients_max)
}

/// Looks whether this machine has the memory that is to be used.
///
/// # Errors
/// It has not.
pub(super) fn check_memory(config: &Config) -> Result<(), ConfigError> {
    let Some(machine) = process::machine_bytes().map(Size) else { return Ok(()) };
    let asked = [
        ("memory", config.memory.unwrap_or(Size(0))),
        ("cache", config.cache),
        ("known-keys", config.known_keys),
    ];
    match asked.into_iter().find(|(_, size)| *size > machine) {
        Some((name, size)) => Err(ConfigError(format!("{name}: {size}, and this machine has {machine}"))),
        None => Ok(()),
    }
}

impl Host for Process {
    fn stop(&self) {
        self.stop.notify_one();
    }

    fn admit(&self, clients_max: u64) -> u64 {
        raise_descriptors(clients_max)
    }

    fn measure(&self, gauges: &ProcessGauges) {
        process::measure(gauges);
    }

    fn rewrite(&self, changed: Vec<(&'static Spec, i64)>) -> Arc<OnceLock<Result<(), String>>> {
        let answer = Arc::new(OnceLock::new());
        let refuse = |what: &str| {
            answer.set(Err(what.to_owned())).expect("a rewrite ends once");
            answer.clone()
        };
        let Some(file) = self.file.clone() else { return refuse("there is no configuration file") };
        if self.rewrites.swap(true, AcqRel) {
            return refuse("it is being rewritten already");
        }
        let (told, rewrites) = (answer.clone(), self.rewrites.clone());
        let started = std::thread::Builder::new().name("rewrite".to_owned()).spawn(move || {
            let result = rewrite::rewrite(&file, &changed).map_err(|error| error.to_string());
            rewrites.store(false, Release);
            told.set(result).expect("a rewrite ends once");
        });
        if let Err(error) = started {
            self.rewrites.store(false, Release);
            return refuse(&error.to_string());
        }
        answer
    }
}
