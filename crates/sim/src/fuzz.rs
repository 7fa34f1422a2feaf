//! Fault worlds: the server's own code in virtual time, with clients, crashes and failing devices.
//!
//! Place: `plimsoll sim fuzz`. A seed is a world (`shape`), which is one era after the other (`era`)
//! of lives of the server (`life`) on a simulated disk. Clients (`caller`, `connection`) write what
//! they ask and are told into a journal (`journal`); judges (`judge`, `audit`, `ledger`) say which
//! rule it breaks, if any.
//!
//! Invariants: one seed gives one run and one report, byte for byte; a violation is never excused by
//! anything but a fault that was injected and explains it.
//!
//! Never: product code knows that it is simulated.

pub mod arrays;
mod audit;
mod caller;
mod command;
mod connection;
mod disks;
mod era;
mod evictions;
mod extras;
mod journal;
mod judge;
mod ledger;
mod life;
mod members;
mod paths;
mod protocol;
mod shape;
mod values;
mod workload;
mod world;

pub use command::{Totals, command, run, tell_trace};
pub use era::EraReport;
pub use journal::{Tally, Violation};
pub use ledger::WriteCounts;
pub use members::MemberCounts;
pub use shape::{CLASSES, FaultClass};
pub(crate) use shape::{cache_bytes, known_bytes};
pub use world::{SeedReport, run_seed};
