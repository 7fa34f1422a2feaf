//! The flash engine: a log-structured KV device on a file or block device.
//!
//! Role: keeps keys and values on flash and their places in memory. Place on the path: stage 3,
//! above the gate and the block device; `docs/on-flash-format.md` draws what it writes.
//!
//! A reader's order: `format` (bytes), `layout` (where), `index`, `known`, `segments`, `state`, `uploads`,
//! `kept` (what is known), `prepare`, `log` (how it becomes durable), `partition`, `fetch`, `direct`,
//! `read`, `part`, `held`, `store`, `delete`, `expiry`, `batch`, `retained`, `upload`, `scan`, `keys` (what
//! requests do), `checkpoint`, `recover`, `load`, `walk`, `bulk` (what a restart does), `space`,
//! `background`, `clean`, `marks`, `evict` (what keeps it going), `device` (formatting).
//!
//! Invariants: `docs/architecture.md` names the seven of the whole; the engine keeps 2 (acknowledged
//! means durable), 3 (versions), 4 (nothing unverified leaves) and 5 (everything is bounded).
#![forbid(unsafe_code)]

mod background;
mod batch;
mod bulk;
mod checkpoint;
mod clean;
mod delete;
mod device;
mod direct;
mod evict;
pub mod expiring;
mod expiry;
mod fetch;
pub mod format;
pub mod fuzz;
mod held;
pub mod index;
pub mod kept;
mod keys;
mod known;
pub mod layout;
mod load;
pub mod log;
mod looks;
mod marks;
mod metrics;
mod open;
mod options;
mod part;
mod partition;
pub mod planted;
mod prepare;
mod read;
mod reap;
mod recent;
mod recover;
mod retained;
mod scan;
pub mod segments;
mod snapshot;
mod space;
pub mod state;
mod store;
mod targets;
mod transaction;
mod upload;
pub mod uploads;
mod verify;
pub mod walk;

pub use device::{DeviceError, FormatOptions, SEGMENT_BYTES_MIN, check_format, format, inspect};
pub use format::Superblock;
pub use marks::mark_bytes;
pub use metrics::PartitionMetrics;
pub use options::{OnFull, Options};
pub use partition::Partition;
pub use recover::OpenError;
pub use verify::{VerifyError, VerifyReport, verify};
