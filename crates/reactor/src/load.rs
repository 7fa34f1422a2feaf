//! Where a core's time goes: busy nanoseconds by kind of work, and idle ones.
//!
//! Role: the input of the load planner and of `/metrics`. Written by the owning core alone with
//! relaxed stores, readable from any thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The kind of work a task does; the planner may move some kinds and must not move others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Work {
    /// Connections: receiving, parsing, replying. Pinned to the connection's core.
    Network,
    /// Key-value work of single requests. Movable.
    Kv,
    /// The flash engine and the gate. Pinned to the device's core.
    Device,
    /// Cleaning, checkpoints, merges, scrub: bounded slices that yield to everything else.
    Background,
    /// Start, stop, commands of the control thread.
    Control,
}

impl Work {
    /// All kinds, in the order of their discriminants.
    pub const ALL: [Work; 5] = [Work::Network, Work::Kv, Work::Device, Work::Background, Work::Control];

    /// The name in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Work::Network => "network",
            Work::Kv => "kv",
            Work::Device => "device",
            Work::Background => "background",
            Work::Control => "control",
        }
    }
}

/// One core's counters.
#[derive(Debug, Default)]
struct Counters {
    busy_ns: [AtomicU64; 5],
    poll_ns: AtomicU64,
    idle_ns: AtomicU64,
    turns: AtomicU64,
    parks: AtomicU64,
}

/// A handle to one core's counters.
#[derive(Clone, Debug, Default)]
pub struct Load(Arc<Counters>);

/// One reading of a [`Load`]; differences of two readings give utilisation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadSnapshot {
    /// Nanoseconds spent in tasks, by [`Work`].
    pub busy_ns: [u64; 5],
    /// Nanoseconds spent looking for work (submitting, reaping, spinning).
    pub poll_ns: u64,
    /// Nanoseconds asleep.
    pub idle_ns: u64,
    /// Turns of the loop.
    pub turns: u64,
    /// Times the core went to sleep.
    pub parks: u64,
}

fn add(counter: &AtomicU64, amount: u64) {
    // One writer: a load and a store are enough, and cheaper than a locked add.
    counter.store(counter.load(Relaxed).wrapping_add(amount), Relaxed);
}

impl Load {
    pub(crate) fn busy(&self, work: Work, ns: u64) {
        add(&self.0.busy_ns[work as usize], ns);
    }
    pub(crate) fn polled(&self, ns: u64) {
        add(&self.0.poll_ns, ns);
        add(&self.0.turns, 1);
    }
    pub(crate) fn idle(&self, ns: u64) {
        add(&self.0.idle_ns, ns);
        add(&self.0.parks, 1);
    }

    /// Reads the counters; each is exact, together they may be a turn apart.
    #[must_use]
    pub fn snapshot(&self) -> LoadSnapshot {
        let c = &self.0;
        LoadSnapshot {
            busy_ns: std::array::from_fn(|i| c.busy_ns[i].load(Relaxed)),
            poll_ns: c.poll_ns.load(Relaxed),
            idle_ns: c.idle_ns.load(Relaxed),
            turns: c.turns.load(Relaxed),
            parks: c.parks.load(Relaxed),
        }
    }
}
