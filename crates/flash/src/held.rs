//! Holding keys: what every write begins with.
//!
//! Place on the path: key order and the look for the record that is there, before anything is
//! appended.
//!
//! Invariants:
//! * conditions are judged and the record appended while the key is held, and the record that is
//!   there is looked at again after every await;
//! * what a refusal tells of a key is durable before it is told;
//! * a record that cannot be read goes only to a write that needs nothing of it, and only where the index
//!   alone tells whose it is and that nothing goes with it.

use crate::fetch::{Extent, Found, Lookup, ReadFrom};
use crate::format::record::{MANIFEST_BYTES, record_bytes};
use crate::format::transition::FLAG_PREVIOUS_EXPIRING;
use crate::format::{Transition, TransitionKind, UNIT_BYTES};
use crate::index::{Entry, FINGERPRINT_BITS};
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

/// Whether a delete asks no more of what is there than whose it is: then it takes away what is known, and
/// what cannot be read, which may have expired.
pub(crate) fn takes_unread(condition: Condition) -> bool {
    matches!(condition, Condition::None | Condition::MustExist)
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
    /// It has an expiry time, as far as is known.
    pub(crate) is_expiring: bool,
    /// It cannot be read: what is stored in its place is a new key's record, and it is deleted before.
    pub(crate) is_damaged: bool,
}

impl From<&Found> for Replaced {
    fn from(found: &Found) -> Replaced {
        Replaced { entry: found.entry, is_expiring: found.expiry_ms != 0, is_damaged: false }
    }
}

impl Replaced {
    /// The transition that takes it away. Its tombstone is nowhere, unless one is pushed.
    pub(crate) fn removal(&self, place: &Place) -> Transition {
        Transition {
            slot: place.slot.0,
            container: place.generation,
            fingerprint: place.fingerprint,
            previous: self.entry.location,
            previous_length: self.entry.length,
            flags: if self.is_expiring { FLAG_PREVIOUS_EXPIRING } else { 0 },
            ..Transition::new(TransitionKind::Delete)
        }
    }
}

/// What is at a held key.
pub(crate) enum Held {
    Found(Found),
    Absent,
    /// A record that cannot be read, and why; whoever needs nothing of it may take it away.
    Damaged(Replaced, Error),
}

impl Held {
    /// For whoever has to read it.
    pub(crate) fn readable(self) -> Result<Option<Found>> {
        match self {
            Held::Found(found) => Ok(Some(found)),
            Held::Absent => Ok(None),
            Held::Damaged(_, error) => Err(error),
        }
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
    pub(crate) async fn find_held(&self, mut hold: Hold, key: &[u8], extent: Extent) -> Result<(Hold, Held)> {
        let container = hold.place.container;
        loop {
            let found = self.find(&hold.place, key, extent, ReadFrom::Anywhere).await;
            if self.place(container, key) != hold.place {
                drop(hold);
                hold = self.hold(container, key).await;
                continue;
            }
            match found {
                Ok(Lookup::Found(found)) if self.is_current(&hold.place, &found.entry) => {
                    return Ok((hold, Held::Found(found)));
                }
                Ok(Lookup::Absent) => return Ok((hold, Held::Absent)),
                Ok(Lookup::Found(_) | Lookup::Moved) => {}
                Err(error @ Error::Unreadable(_)) => match self.damaged_at(&hold.place, key) {
                    Some(damaged) => return Ok((hold, Held::Damaged(damaged, error))),
                    None => return Err(error),
                },
                Err(error) => return Err(error),
            }
        }
    }

    /// The record of a key of which a look, just now, said that it cannot be read. Its slot and its whole
    /// fingerprint are the key's, 54 bits of a hash: it is taken to be the key's. Nothing where several
    /// records may be meant, and where something goes with it that it alone names: what is kept below it,
    /// or a value in parts.
    pub(crate) fn damaged_at(&self, place: &Place, key: &[u8]) -> Option<Replaced> {
        if self.layout.fingerprint_bits < FINGERPRINT_BITS {
            return None;
        }
        let state = self.state.borrow();
        let mut entries = state.index.find(place.slot, place.fingerprint);
        let entry = entries.next().filter(|_| entries.next().is_none())?;
        let is_alone = state.kept.below(entry.location).is_none() && !state.kept.is_kept(entry.location);
        let as_manifest = record_bytes(key.len(), MANIFEST_BYTES) == u64::from(entry.length) * UNIT_BYTES;
        let may_be_in_parts = as_manifest && state.uploads.has_value(place.slot, place.generation);
        (is_alone && !may_be_in_parts).then_some(Replaced { entry, is_expiring: false, is_damaged: true })
    }

    /// The record of a held key, if that is known without a read, and nothing goes with it: no upload, no
    /// retained version.
    pub(crate) fn known_at(&self, place: &Place, key: &[u8]) -> Option<Replaced> {
        self.known_value(place, key).filter(|found| !self.keeps_below(found))
    }

    /// The same where a version is retained below it.
    pub(crate) fn known_above(&self, place: &Place, key: &[u8]) -> Option<Replaced> {
        self.known_value(place, key).filter(|found| self.keeps_below(found))
    }

    /// The same for whoever deletes it: it has no time to expire, and at most gives up what another key held.
    pub(crate) fn known_to_delete(&self, place: &Place, key: &[u8]) -> Option<Replaced> {
        let (found, is_keeper) = self.known_whose(place, key)?;
        (!found.is_expiring && (is_keeper || !self.keeps_below(&found))).then_some(found)
    }

    fn known_value(&self, place: &Place, key: &[u8]) -> Option<Replaced> {
        self.known_whose(place, key).filter(|(_, is_keeper)| !is_keeper).map(|(found, _)| found)
    }

    fn keeps_below(&self, found: &Replaced) -> bool {
        self.state.borrow().kept.below(found.entry.location).is_some()
    }

    /// The record, and whether it keeps what another key held.
    fn known_whose(&self, place: &Place, key: &[u8]) -> Option<(Replaced, bool)> {
        if self.place(place.container, key) != *place || self.transactions.is_stale(place.lock_id()) {
            return None;
        }
        let state = self.state.borrow();
        state.index.find(place.slot, place.fingerprint).find_map(|entry| {
            let known = state.known.find(place.slot, place.fingerprint, entry.location)?;
            let is_same = known.identity == state.known.identity(place.generation, key);
            let found = Replaced { entry, is_expiring: known.is_expiring, is_damaged: false };
            (is_same || is_planted(Bug::FingerprintIsKey)).then_some((found, known.is_keeper))
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
