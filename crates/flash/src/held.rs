//! Holding keys: what every write begins with.
//!
//! Place on the path: key order and the look for the record that is there, before anything is
//! appended.
//!
//! Invariants:
//! * conditions are judged and the record appended while the key is held, and the record that is
//!   there is looked at again after every await;
//! * what a refusal tells of a key is durable before it is told.

use crate::key_locks::KeyGuard;
use crate::partition::{Extent, Found, Lookup, Partition, Place};
use plimsoll_kv::{Condition, ContainerId, Error, Result};

/// Judges a condition by the live record of a key.
pub(crate) fn judge(condition: Condition, existing: Option<&Found>) -> Result<()> {
    match (condition, existing) {
        (Condition::None, _) | (Condition::MustExist, Some(_)) | (Condition::MustNotExist, None) => Ok(()),
        (Condition::MustExist | Condition::IfVersion(_), None) => Err(Error::NotFound),
        (Condition::MustNotExist, Some(_)) => Err(Error::Exists),
        (Condition::IfVersion(version), Some(found)) if found.header.version == version => Ok(()),
        (Condition::IfVersion(_), Some(_)) => Err(Error::VersionMismatch),
    }
}

impl Partition {
    /// Holds a key in order; the place is that of the container's generation while it is held.
    pub(crate) async fn hold(&self, container: ContainerId, key: &[u8]) -> (Place, KeyGuard) {
        loop {
            let place = self.place(container, key);
            let guard = self.locks.lock(place.slot.0, place.fingerprint).await;
            if self.place(container, key) == place {
                return (place, guard);
            }
        }
    }

    /// The record of a held key, if it is still current; nothing said if it must be looked up again.
    pub(crate) async fn held(
        &self,
        place: &Place,
        key: &[u8],
        extent: Extent,
    ) -> Result<Option<Option<Found>>> {
        match self.find(place, key, extent).await? {
            Lookup::Moved => Ok(None),
            Lookup::Absent => Ok(Some(None)),
            Lookup::Found(found) => Ok(self.is_current(place, &found.entry).then_some(Some(found))),
        }
    }

    /// Before a refusal is told: what was seen expired is deleted durably, and what was seen at all
    /// is durable. The key is not held any more.
    pub(crate) async fn settle_refusal(
        &self,
        place: &Place,
        key: &[u8],
        found: Option<&Found>,
    ) -> Result<()> {
        if found.is_some_and(|found| found.is_expired(self.now_ms())) {
            self.expire(place, key).await?;
        }
        self.wait_for_seen(place).await
    }

    /// Before a refusal is told, what it tells of the key must be durable: its last write, its
    /// delete, or the emptying of its container.
    pub(crate) async fn wait_for_seen(&self, place: &Place) -> Result<()> {
        match self.pending_frame(place) {
            Some(frame) => self.log.wait_durable(frame).await,
            None => Ok(()),
        }
    }
}
