//! The read cache: short values of a partition in memory.
//!
//! Role: a KV device over a KV device. Place on the path: above each partition, on the core that owns it,
//! so that every change of a key comes by here; a read of a value that is here goes no further.
//!
//! Invariants:
//! * a value is given only if no change of its key has begun since the read that brought it here began;
//! * what is here was read from below, and so is durable;
//! * keys, values and all bookkeeping take no more than the bytes that were given.
//!
//! Never: it delays, refuses or reorders a request, or takes part in a write.
#![forbid(unsafe_code)]

mod changes;
mod device;
mod planted;
mod table;
mod transactions;

pub use device::{Cache, CacheMetrics};
pub use planted::*;

#[cfg(test)]
mod tests;
