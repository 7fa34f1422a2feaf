//! The load generator: asks a server that speaks RESP, or memcached's text protocol, for keys, and tells how
//! long that took.
//!
//! Role: what `plimsoll bench` runs, against Plimsoll and against others alike. Place: a client; one reactor
//! for each of its processors, many connections on each.
//!
//! Invariants: every value that is read is compared with the one that can have been stored, byte for byte;
//! in an open loop a latency begins when its operation is due, whether or not somebody could send it then
//! (no coordinated omission); what failed is told and never counted as done; an insert that was acknowledged
//! is found by every read that is sent after that.
#![forbid(unsafe_code)]

mod connection;
mod inserted;
mod keys;
mod printable;
mod process;
mod report;
mod run;
mod schedule;
mod tally;
mod values;
mod wire;
mod workload;

pub use keys::Distribution;
pub use process::Usage;
pub use report::{Report, Row, TenantReport};
pub use run::{BenchError, Options, Tenant, run};
pub use values::Sizes;
pub use wire::Protocol;
pub use workload::{Mix, Operation, Workload};

#[doc(hidden)]
pub use run::{Plan, run_core};
#[doc(hidden)]
pub use tally::Tally;
