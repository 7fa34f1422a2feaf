//! The flash engine.
#![forbid(unsafe_code)]
pub mod format;
pub mod index;
