//! What the drivers on a real kernel share.
//!
//! Role: opening files and sockets, naming them, whole transfers out of short ones, clocks and random
//! numbers. Place on the path: beside the drivers; each says how it waits, none how these are done.
//!
//! Never: it starts no operation and waits for none.

pub(super) mod open;
pub(super) mod sockets;
pub(super) mod system;
pub(super) mod table;
pub(super) mod transfer;
