//! The simulator: worlds in virtual time, and the checkers that judge what their clients saw.
//!
//! Place: beside the data path, never on it. Worlds ([`fuzz`]: the server on simulated cores, disks
//! and connections; [`transactions`]: the same with clients that move several keys at once) record what
//! their clients asked and were told; [`checker`] says whether a store that keeps its promises could have
//! answered so.
//!
//! Invariants: the same input gives the same verdict and the same words, byte for byte: no clock, no
//! randomness but a passed-in generator, no map with a random hasher.
//!
//! Must never: read the code of the store to decide what is right.
#![forbid(unsafe_code)]

pub mod checker;
pub mod experiments;
pub mod fuzz;
mod panics;
mod seeds;
pub mod transactions;

pub use seeds::Say;
