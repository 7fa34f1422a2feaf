//! What a device that makes room by itself asks and tells the layer above it.
//!
//! Role: the one way in which something goes up between two layers. Place on the path: none; called by the
//! background of a device that evicts.
//!
//! Invariants: both are called between two turns, and neither waits; what is told as evicted is gone for
//! every read that begins afterwards, durably before anyone hears so.

use crate::request::ContainerId;

/// The layer above a device that evicts: whoever keeps values of its keys.
pub trait Above {
    /// Whether a key was read from what is kept above since this was last asked. Such reads do not reach
    /// the device: without this it would take the hottest keys for cold ones.
    fn was_read(&self, container: ContainerId, key: &[u8]) -> bool;

    /// A key was evicted: nothing that is kept of it may be given any more.
    fn evicted(&self, container: ContainerId, key: &[u8]);
}
