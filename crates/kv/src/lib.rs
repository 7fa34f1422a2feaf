//! The KV device: the one interface between layers, and what passes through it.
//!
//! Role: names keys, versions, requests, completions, errors and limits; declares the traits
//! [`Device`] (key-value pairs) and [`Block`] (the blocks below the flash engine). Everything
//! from the protocol's session down to the engine is a stack of these. The [`memory`] device and
//! the devices that wrap any other ([`fault`], [`delay`], [`throttle`], [`record`]) live here too.
//!
//! Invariants: a request carries tenant, class, deadline, durability and lifetime; a completion
//! carries version, device time and credit; every error maps to one NVMe KV status and one Redis
//! error ([`Error`]).
//!
//! Never: no I/O of its own.
#![forbid(unsafe_code)]

pub mod block;
mod clock;
mod completion;
pub mod delay;
mod device;
pub mod edit;
mod error;
mod eviction;
pub mod fault;
mod form;
pub mod key_locks;
pub mod limits;
pub mod memory;
mod payload;
pub mod planted;
pub mod record;
mod request;
mod room;
mod slot;
pub mod throttle;
pub mod transaction;
mod version;

pub use block::Block;
pub use clock::WallClock;
pub use completion::{
    Completion, Deleted, Description, Holds, Item, ListPage, NO_PIECES, Output, PackedIn, Piece, PieceRead,
    Retrieved, ScanPage, Stats,
};
pub use device::{Device, LocalFuture};
pub use edit::{Edit, EditError};
pub use error::{Error, Result};
pub use eviction::Above;
pub use form::Form;
pub use payload::Payload;
pub use request::{
    Class, Condition, ContainerId, Durability, Expiry, Kept, Lifetime, Op, Request, Tenant, UploadId, Value,
};
pub use room::Room;
pub use slot::{SLOTS, Slot};
pub use transaction::TransactionId;
pub use version::Version;

#[cfg(any(test, feature = "semantics"))]
pub mod semantics;
#[cfg(any(test, feature = "semantics"))]
mod testing;
