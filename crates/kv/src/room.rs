//! What of a full device's room a request may take.
//!
//! Role: a full device refuses stores, and goes on with what keeps or frees. Place on the path: part of every
//! request; read by the engine alone, as it lets stores in.
//!
//! Never: a client's choice.

/// The room that a request may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// What stores may.
    OfStores,
    /// Beyond that, as it keeps what has been acknowledged.
    ToKeep,
    /// Beyond that, too, as more goes for it than comes.
    ToMakeRoom,
}
