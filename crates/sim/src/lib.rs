//! The simulator crate: for now its checkers, which judge what clients saw.
//!
//! Place: beside the data path, never on it. Worlds (reactors, devices, networks in virtual time)
//! will record what their clients asked and were told; [`checker`] says whether a store that keeps
//! its promises could have answered so.
//!
//! Invariants: the same input gives the same verdict and the same words, byte for byte: no clock, no
//! randomness but a passed-in generator, no map with a random hasher.
//!
//! Must never: read the code of the store to decide what is right.
#![forbid(unsafe_code)]

pub mod checker;
