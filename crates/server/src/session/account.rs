//! What is reckoned for a command: its time, its memory, its words for the slow log.
//!
//! Invariants: a command is charged once, when its last reply has come, also if EXEC runs it; device time is
//! that of its own operations, and EXEC's that of all that it runs.

use super::Connection;
use crate::latency::{Event, Sample};
use crate::parameters::Parameter;
use crate::reply::Reply;
use crate::slow_log::Entry;
use plimsoll_kv::LocalFuture;
use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;

/// Who is charged for a reply.
pub(crate) struct Account {
    /// The command's slot.
    pub(super) command: usize,
    /// When it was parsed.
    pub(super) start_ns: u64,
    /// Bytes of the command.
    pub(super) request_bytes: usize,
    /// Its words, as the slow log keeps them.
    pub(super) words: Vec<u8>,
}

/// Nanoseconds that the operations of all keys of a command were with their partitions, so far.
pub(super) type DeviceTime = Rc<Cell<u64>>;

/// Polls a command to its end, and adds up the device time of the operations that come back in its polls.
pub(crate) async fn timed<T>(connection: &Connection, mut future: LocalFuture<T>, time_ns: &Cell<u64>) -> T {
    poll_fn(|context| {
        let before_ns = connection.core.volume.device_ns();
        let polled = future.as_mut().poll(context);
        time_ns.set(time_ns.get() + connection.core.volume.device_ns() - before_ns);
        polled
    })
    .await
}

impl Connection {
    /// A command of this slot begins.
    pub(crate) fn runs(&self, slot: usize) {
        self.last_command.set(Some(slot));
    }

    /// A command of this slot is refused before it is run.
    pub(crate) fn rejects(&self, slot: usize) {
        self.core.shared.core(self.core.reactor.core()).commands[slot].rejected.add(1);
    }

    /// Who is charged for a command.
    pub(crate) fn account(&self, command: usize, request_bytes: usize, words: Vec<u8>) -> Account {
        let start_ns = self.core.reactor.now_ns();
        self.last_ns.set(start_ns);
        Account { command, start_ns, request_bytes: request_bytes + words.capacity(), words }
    }

    /// A reply has come; with an account it is the last one of its command.
    pub(crate) fn charge(&self, account: Option<Account>, reply: &Reply, device_ns: u64) {
        let counters = self.core.shared.core(self.core.reactor.core());
        if let Reply::Error(text) = reply {
            counters.failed(text);
        }
        let Some(account) = account else { return };
        let latency_ns = self.core.reactor.now_ns().saturating_sub(account.start_ns);
        counters.commands[account.command].ran(latency_ns, reply.is_error());
        let core = &self.core;
        let entry = || {
            (!crate::command::skips_slow_log(account.command)).then(|| Entry {
                time_s: core.reactor.wall_ms().saturating_sub(latency_ns / 1_000_000) / 1000,
                // Operations that were under way together are each counted.
                device_us: device_ns.min(latency_ns) / 1000,
                peer: self.peer.clone().into_bytes(),
                name: self.identity.borrow().name.clone(),
                ..Entry::default()
            })
        };
        core.slow_log.consider(&core.shared, latency_ns / 1000, account.words, entry);
        let (latency_ms, threshold_ms) =
            (latency_ns / 1_000_000, core.shared.parameters.get(Parameter::LatencyMonitorThreshold));
        if threshold_ms > 0 && latency_ms >= threshold_ms as u64 {
            let is_fast = crate::command::SLOTS[account.command].spec().flags.contains(&"fast");
            let event = if is_fast { Event::FastCommand } else { Event::Command };
            let time_s = core.reactor.wall_ms() / 1000;
            core.latency.borrow_mut().add(event, Sample { time_s, latency_ms });
        }
    }
}
