//! The array as the control thread has it: what its cores tell of it, and what they are told.
//!
//! Role: looks once a second whether each device's path still leads to the file that was opened, keeps what
//! the cores report, logs what changes, and does what operators ask. Place on the path: none.
//!
//! Invariants:
//! * one change at a time: whoever comes meanwhile is refused in words;
//! * cores are told through their control rings alone, which are bounded: one that takes no more is an error;
//! * a member is out if it is out in any partition.
//!
//! Never: it decides whether a member may be read. That is the array's, on the core that owns it.

pub(super) mod api;
mod picks;
mod progress;
mod rebuild;
mod replace;
mod view;

#[cfg(test)]
pub(super) use view::ScrubView;
pub(super) use view::{MemberView, View};

use super::core_task::{Command, Order, REPLACE_NS_MAX, Report};
use super::devices::{Devices, Identity, identity};
use crate::config::Config;
use anyhow::{Result, anyhow};
use plimsoll_array::{ArrayOptions, ArrayStatus, MemberState};
use plimsoll_flash::Superblock;
use plimsoll_reactor::{ControlSender, CoreId, StartOptions};
use progress::Progress;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

/// How often devices are looked at.
const LOOK: Duration = Duration::from_secs(1);
/// How long the cores have to follow an order.
const ANSWER_MAX: Duration = Duration::from_nanos(REPLACE_NS_MAX + 5_000_000_000);
/// Why a member goes whose path leads nowhere, or elsewhere.
const GONE: &str = "the file is gone";

/// The way to the cores: their control rings. Shared by the few who tell them something, on one thread.
#[derive(Clone)]
pub(super) struct Commands(Arc<Mutex<ControlSender<Command>>>);

impl Commands {
    pub(super) fn new(control: ControlSender<Command>) -> Commands {
        Commands(Arc::new(Mutex::new(control)))
    }

    fn control(&self) -> MutexGuard<'_, ControlSender<Command>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn tell(&self, core: usize, command: Command) -> Result<()> {
        let sent = self.control().send(CoreId(core as u16), command);
        sent.map_err(|_| anyhow!("core {core} does not take commands: is it stuck?"))
    }

    fn cores(&self) -> usize {
        self.control().cores()
    }
}

/// A member as the control thread knows it.
struct Known {
    path: String,
    /// What it was made with; nothing if it is missing.
    superblock: Option<Superblock>,
    /// Where its path led when it was opened.
    identity: Option<Identity>,
    /// Its path leads to it no more.
    is_gone: bool,
    /// The state that was logged last.
    told: MemberState,
    progress: Progress,
}

/// The array of a server.
pub(super) struct ArrayControl {
    options: ArrayOptions,
    /// What new members are formatted with.
    common: Superblock,
    /// Where they are formatted.
    reactor: StartOptions,
    commands: Commands,
    members: Mutex<Vec<Known>>,
    reports: Mutex<BTreeMap<u16, ArrayStatus>>,
    /// How fast a scrub goes.
    scrubbing: Mutex<Progress>,
    /// Held by whoever changes what the array consists of.
    change: tokio::sync::Mutex<()>,
    started: Instant,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ArrayControl {
    /// The array of these devices; nothing if there is one.
    pub(super) fn new(config: &Config, devices: &Devices, commands: Commands) -> Option<Arc<ArrayControl>> {
        let options = options(config, devices.common().partitions)?;
        let known = devices.0.iter().map(|found| Known {
            path: found.path.clone(),
            superblock: found.superblock.clone(),
            identity: found.identity,
            is_gone: false,
            told: MemberState::In,
            progress: Progress::default(),
        });
        Some(Arc::new(ArrayControl {
            options,
            common: devices.common().clone(),
            reactor: StartOptions { cpus: vec![config.cores[0]], driver: config.driver.into() },
            commands,
            members: Mutex::new(known.collect()),
            reports: Mutex::default(),
            scrubbing: Mutex::default(),
            change: tokio::sync::Mutex::default(),
            started: Instant::now(),
        }))
    }

    /// Takes what a core says of its arrays.
    pub(super) fn take(&self, report: Report) {
        locked(&self.reports).extend(report);
    }

    /// How the array is.
    pub(super) fn view(&self) -> View {
        let (reports, members) = (locked(&self.reports), locked(&self.members));
        let seen = (members.as_slice(), &*locked(&self.scrubbing));
        view::view(&self.options, self.common.partitions, &reports, seen)
    }

    /// Gives an order to all cores and waits until they have followed it.
    async fn order(&self, order: &Order) -> Result<()> {
        let mut answers = Vec::new();
        for core in 0..self.commands.cores() {
            let (sender, answer) = oneshot::channel();
            self.commands.tell(core, Command::Array(order.clone(), sender))?;
            answers.push(answer);
        }
        let until = Instant::now() + ANSWER_MAX;
        let mut failures = Vec::new();
        for (core, answer) in answers.into_iter().enumerate() {
            match timeout(until.saturating_duration_since(Instant::now()), answer).await {
                Ok(Ok((done, report))) => {
                    self.take(report);
                    failures.extend(done.err());
                }
                Ok(Err(_)) => failures.push(format!("core {core} has ended")),
                Err(_) => failures.push(format!("core {core} does not answer")),
            }
        }
        if failures.is_empty() { Ok(()) } else { Err(anyhow!("{}", failures.join("; "))) }
    }

    /// Watches devices and states for ever.
    pub(super) async fn watch(self: Arc<Self>) {
        let mut ticks = tokio::time::interval(LOOK);
        loop {
            ticks.tick().await;
            self.look_for_gone().await;
            self.note_states();
        }
    }

    /// Tells the cores of devices whose path leads to them no more, for as long as any partition uses one:
    /// the last one that is in goes when another is.
    async fn look_for_gone(&self) {
        // Whoever replaces a device changes what is looked for: next time, then.
        let Ok(_change) = self.change.try_lock() else { return };
        let sought: Vec<(usize, String, Identity)> = {
            let members = locked(&self.members);
            let known = members.iter().enumerate();
            known.filter_map(|(member, known)| Some((member, known.path.clone(), known.identity?))).collect()
        };
        // A path may lie on a file system that does not answer.
        let looked = tokio::task::spawn_blocking(move || {
            let is_gone = |(member, path, opened): (usize, String, Identity)| {
                let is_gone = identity(&path) != Some(opened);
                (member, path, is_gone)
            };
            sought.into_iter().map(is_gone).collect::<Vec<_>>()
        });
        for (member, path, is_gone) in looked.await.unwrap_or_default() {
            let was_gone = std::mem::replace(&mut locked(&self.members)[member].is_gone, is_gone);
            if !is_gone || !self.is_used(member) {
                continue;
            }
            if !was_gone {
                tracing::warn!(device = path, "the file is gone: it is taken out of the array");
            }
            if let Err(error) = self.order(&Order::TakeOut(member, GONE.to_owned())).await {
                tracing::warn!(device = path, %error, "not all cores know; they are told again");
            }
        }
    }

    /// Whether a member is in, or being filled, anywhere.
    fn is_used(&self, member: usize) -> bool {
        let is_used = |status: &ArrayStatus| status.members[member].state != MemberState::Out;
        locked(&self.reports).values().any(is_used)
    }

    /// Logs what has changed, and reckons how fast members are rebuilt, and keys scrubbed.
    fn note_states(&self) {
        let now_s = self.started.elapsed().as_secs_f64();
        let view = self.view();
        locked(&self.scrubbing).note(now_s, view.scrub.running.then_some(view.scrub.keys));
        for (known, member) in locked(&self.members).iter_mut().zip(&view.members) {
            let resyncs = member.state == MemberState::Resyncing;
            known.progress.note(now_s, resyncs.then_some(member.keys_done));
            if std::mem::replace(&mut known.told, member.state) == member.state {
                continue;
            }
            let (device, reason) = (&member.device, &member.reason);
            match member.state {
                MemberState::In => tracing::info!(device, "a device of the array is in"),
                MemberState::Out => tracing::warn!(device, reason, "a device of the array is out"),
                MemberState::Resyncing => tracing::info!(device, "a device of the array is being rebuilt"),
            }
        }
    }
}

/// How so many partitions of the devices of a configuration are one; nothing if there is one device. What
/// was given for a device is divided between its partitions: they are rebuilt side by side.
pub(super) fn options(config: &Config, partitions: u16) -> Option<ArrayOptions> {
    config.array.as_ref().map(|array| ArrayOptions {
        policy: array.policy(),
        degraded: array.degraded,
        rebuild_bytes_per_s: array.rebuild_rate.map_or(0, |rate| (rate.0 / u64::from(partitions)).max(1)),
        stateless: array.stateless,
    })
}
