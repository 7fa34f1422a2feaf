//! Holding keys: what every write begins with.
//!
//! Place on the path: key order and the look for the record that is there, before anything is
//! appended.
//!
//! Invariants:
//! * conditions are judged and the record appended while the key is held, and the record that is
//!   there is looked at again after every await;
//! * what a refusal tells of a key is durable before it is told.

use crate::fetch::{Extent, Found, Lookup};
use crate::index::Entry;
use crate::partition::{Partition, Place};
use crate::planted::{Bug, is_planted};
use plimsoll_kv::key_locks::KeyGuard;
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

/// A key that is held: nobody else writes it, and who comes later waits in line.
pub(crate) struct Hold {
    /// Where the key belongs while its container is not emptied.
    pub(crate) place: Place,
    _guard: KeyGuard,
}

/// The record that a write replaces, expired or not.
#[derive(Clone, Copy)]
pub(crate) struct Replaced {
    pub(crate) entry: Entry,
    /// It has an expiry time.
    pub(crate) is_expiring: bool,
}

impl From<&Found> for Replaced {
    fn from(found: &Found) -> Replaced {
        Replaced { entry: found.entry, is_expiring: found.expiry_ms != 0 }
    }
}

impl Partition {
    /// Waits for a place. The books of a layer above are kept whoever holds everything.
    pub(crate) async fn lock(&self, place: &Place) -> KeyGuard {
        if place.container.is_books() {
            return self.locks.lock_beside(place.slot.0, place.fingerprint).await;
        }
        self.locks.lock(place.slot.0, place.fingerprint).await
    }

    /// Holds a key in order; the place is that of the container's generation while it is held.
    pub(crate) async fn hold(&self, container: ContainerId, key: &[u8]) -> Hold {
        loop {
            let place = self.place(container, key);
            let guard = self.lock(&place).await;
            if self.place(container, key) == place {
                return Hold { place, _guard: guard };
            }
        }
    }

    /// The record of a held key. If its container was emptied meanwhile, the key is held anew, at its
    /// new place.
    pub(crate) async fn find_held(
        &self,
        mut hold: Hold,
        key: &[u8],
        extent: Extent,
    ) -> Result<(Hold, Option<Found>)> {
        let container = hold.place.container;
        loop {
            let found = self.find(&hold.place, key, extent).await?;
            if self.place(container, key) != hold.place {
                drop(hold);
                hold = self.hold(container, key).await;
                continue;
            }
            match found {
                Lookup::Found(found) if self.is_current(&hold.place, &found.entry) => {
                    return Ok((hold, Some(found)));
                }
                Lookup::Absent => return Ok((hold, None)),
                Lookup::Found(_) | Lookup::Moved => {}
            }
        }
    }

    /// The record of a held key, if that is known without a read, and nothing goes with it: no upload, no
    /// retained version.
    pub(crate) fn known_at(&self, place: &Place, key: &[u8]) -> Option<Replaced> {
        self.known_whose(place, key).filter(|found| !self.keeps_below(found))
    }

    /// The same where a version is retained below it.
    pub(crate) fn known_above(&self, place: &Place, key: &[u8]) -> Option<Replaced> {
        self.known_whose(place, key).filter(|found| self.keeps_below(found))
    }

    fn keeps_below(&self, found: &Replaced) -> bool {
        self.state.borrow().kept.below(found.entry.location).is_some()
    }

    fn known_whose(&self, place: &Place, key: &[u8]) -> Option<Replaced> {
        if self.place(place.container, key) != *place || self.transactions.is_stale(place.lock_id()) {
            return None;
        }
        let state = self.state.borrow();
        state.index.find(place.slot, place.fingerprint).find_map(|entry| {
            let known = state.known.find(place.slot, place.fingerprint, entry.location)?;
            let is_same = known.identity == state.known.identity(place.generation, key);
            (is_same || is_planted(Bug::FingerprintIsKey))
                .then_some(Replaced { entry, is_expiring: known.is_expiring })
        })
    }

    /// Refuses to write a held key. What the refusal tells of it is durable first: its last write, its
    /// delete, or the emptying of its container; and what was seen expired is deleted.
    pub(crate) async fn refuse<T>(
        &self,
        hold: Hold,
        key: &[u8],
        found: Option<&Found>,
        error: Error,
    ) -> Result<T> {
        let place = hold.place;
        drop(hold);
        self.settle_refusal(&place, key, found.is_some_and(|found| found.is_expired(self.now_ms()))).await?;
        Err(error)
    }

    /// Makes durable what a refusal tells of a key that nobody holds any more.
    pub(crate) async fn settle_refusal(&self, place: &Place, key: &[u8], expired: bool) -> Result<()> {
        if expired {
            self.expire(place, key).await?;
        }
        match self.pending_frame(place) {
            Some(frame) => self.log.wait_durable(frame).await,
            None => Ok(()),
        }
    }
}
