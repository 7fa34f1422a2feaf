//! The gate: every I/O of one SSD passes here, whoever it is for.
//!
//! Role: decides when an I/O goes to the device. Place on the path: below the flash engine, above
//! the file or block device. [`Window`] bounds the reads at the device by their latency, those that somebody
//! waits for and those of the background each for themselves; [`Fifo`] is what it is measured against.
//! Fairness among tenants (Gimbal, SIGCOMM'21) comes later, behind the same [`Policy`].
//!
//! Invariants: a policy is a pure state machine without clock or I/O; nothing outstanding is
//! forgotten: each admitted I/O is completed once; the number outstanding is bounded.
//!
//! Never: it does not look into the bytes.
#![forbid(unsafe_code)]

mod depth;
mod fifo;
mod gated;
mod reads;
mod window;

pub use fifo::Fifo;
pub use gated::{GateStats, Gated};
pub use window::Window;

use plimsoll_kv::block::Origin;

/// What kind of I/O asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A read.
    Read,
    /// A write.
    Write,
    /// A flush.
    Flush,
}

/// An I/O at the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// On whose behalf.
    pub origin: Origin,
    /// What.
    pub kind: Kind,
    /// How many bytes; 0 for a flush.
    pub bytes: u64,
}

/// Names an I/O at the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// Decides the order of I/Os.
pub trait Policy {
    /// An I/O arrives.
    fn arrive(&mut self, ticket: Ticket, ask: Ask);
    /// The next I/O that may go to the device now, if any.
    fn admit(&mut self) -> Option<Ticket>;
    /// An admitted I/O is back; it took `device_ns` at the device, if its end was seen.
    fn complete(&mut self, ask: Ask, device_ns: Option<u64>);
    /// The asker of a ticket that was not admitted is gone.
    fn withdraw(&mut self, ticket: Ticket);
    /// How many small reads that somebody waits for may be at the device now.
    fn reads_max(&self) -> u64;
}
