//! The server: sessions, commands, the volume of partitions, configuration and administration.
//!
//! Role: between the Redis protocol and the KV devices. Place on the path: a session receives and
//! parses ([`session`]), a command becomes requests ([`command`]), the volume takes each to the core
//! that owns its key ([`volume`]), and the session's writer sends the replies in order.
//!
//! Invariants: everything a session does goes through a reactor, so that it runs in the simulator
//! unchanged ([`serve_core`]); every queue has a limit ([`limits`]).
//!
//! Never: it stores anything itself.
#![forbid(unsafe_code)]

mod answers;
pub mod budget;
mod channels;
pub mod command;
pub mod config;
mod core;
pub mod counters;
mod glob;
pub mod histogram;
mod keyspace;
mod latency;
pub mod limits;
pub mod log;
mod monitors;
pub mod parameters;
mod pause;
pub mod reply;
mod secrets;
pub mod serve;
pub mod session;
pub mod shared;
mod slow_log;
mod stream;
pub mod tls;
mod transaction;
pub mod volume;

pub use crate::core::{Addresses, Core, serve_core};
pub use shared::{Settings, Shared};
pub use volume::{Geometry, Message, Volume};
