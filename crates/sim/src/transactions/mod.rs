//! Worlds of transactions: clients move several keys at once while the server dies and comes back.
//!
//! Place: `plimsoll sim fuzz --transactions`. A seed is a world: a device of several partitions, or an array
//! of such devices, served on several cores (`shape`, `devices`); lives that end by crash, power loss or a
//! clean stop at any instant (`world`); clients on connections with MULTI, EXEC, WATCH, MSET, MSETNX, RENAME,
//! COPY and FLUSHDB (`client`), and counts beside them (`count`), in some worlds on a full device that
//! refuses stores or evicts (`fill`, `evictions`); and a judge (`graph`) that says whether one order of all
//! transactions explains what they saw (`history`).
//!
//! Invariants: one seed gives one run; what a client was told before a crash holds after it.
//!
//! Never: product code knows that it is simulated.

mod client;
mod command;
mod count;
mod devices;
mod evictions;
mod fill;
mod graph;
mod grown;
mod history;
mod shape;
mod talk;
mod world;

pub use command::{Totals, command, run, tell_trace};
pub use world::{Report, run_seed};
