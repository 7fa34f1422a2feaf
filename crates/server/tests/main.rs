//! Servers in the simulator, and what clients see of them.

mod common;

mod client_memory;
mod clients;
mod commands;
mod counting;
mod custom;
mod edits;
mod loading;
mod long_commands;
mod long_replies;
mod operators;
mod posted;
mod pubsub;
mod refusals;
mod security;
mod sessions;
mod slow_readers;
mod tls;
mod transaction_faults;
mod transaction_keys;
mod transactions;
mod watching;
