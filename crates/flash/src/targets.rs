//! Several writes that are done as one: what each acts on, and room for all of them.
//!
//! Place on the path: batches and transactions look at their targets, make room in one frame of the log,
//! and append.
//!
//! Invariants: between the last look at a target and the place in the log of what replaces it nothing is
//! awaited; writes that only take away go on when the device is full.

use crate::fetch::{Extent, Found, Lookup, ReadFrom};
use crate::format::RecordKind;
use crate::format::note::note_bytes_max;
use crate::format::record::{self, KEEPER_BYTES, MANIFEST_BYTES};
use crate::held::{Replaced, takes_unread};
use crate::metrics::add;
use crate::partition::{Partition, Place};
use crate::store::STORE_TRANSITIONS;
use plimsoll_kv::{Condition, Error, Expiry, Op, Result, Value};
use std::rc::Rc;

/// A write and what it acts on.
pub(crate) struct Target<'a> {
    pub(crate) write: &'a Op,
    pub(crate) place: Place,
    /// The record that is there, expired or not, if it had to be looked at.
    pub(crate) found: Option<Found>,
    /// What is replaced, if that was known without a look, or cannot be read.
    pub(crate) known: Option<Replaced>,
    /// The uploads that go with it.
    pub(crate) dooms: Vec<u64>,
}

impl Target<'_> {
    /// The record that goes.
    pub(crate) fn replaced(&self) -> Option<Replaced> {
        self.known.or(self.found.as_ref().map(Replaced::from))
    }

    /// Whether what is replaced may be retained, if it is to be.
    pub(crate) fn judge_retain(&self) -> Result<()> {
        match (self.write, &self.found) {
            (Op::Store { retain: true, .. }, Some(found)) => found.judge_retain(),
            _ => Ok(()),
        }
    }

    /// Bytes of log that it takes at most.
    pub(crate) fn log_bytes(&self) -> usize {
        let rewritten = match (self.write, &self.found) {
            (Op::SetExpiry { .. }, Some(found)) => found.header.record_bytes() as usize,
            _ => 0,
        };
        log_bytes(std::slice::from_ref(self.write)) + rewritten
    }
}

/// Bytes of log that writes take, but for records that are written anew because they expire at another time.
pub(crate) fn log_bytes(writes: &[Op]) -> usize {
    record_bytes(writes) as usize + writes.len() * note_bytes_max(STORE_TRANSITIONS)
}

/// The same for their records alone.
pub(crate) fn record_bytes(writes: &[Op]) -> u64 {
    let each = writes.iter().map(|write| match write {
        Op::Store { key, value: Value::Bytes(value), .. } => record::record_bytes(key.len(), value.len()),
        Op::Store { key, value: Value::Kept(kept), .. } => {
            record::record_bytes(key.len(), kept.head.len() + KEEPER_BYTES)
        }
        Op::Store { key, .. } => record::record_bytes(key.len(), MANIFEST_BYTES),
        Op::Delete { key, .. } => record::record_bytes(key.len(), 0),
        _ => 0,
    });
    each.sum()
}

/// True if something is stored, for which there has to be space.
pub(crate) fn has_stores(writes: &[Op]) -> bool {
    writes.iter().any(|write| match write {
        Op::Store { container, .. } => !container.is_books(),
        write => matches!(write, Op::SetExpiry { .. }),
    })
}

/// True if a store asks nothing of the record that is there but whose it is.
fn asks_nothing(write: &Op) -> bool {
    let Op::Store { value: Value::Bytes(_), condition, expiry, want_previous, .. } = write else {
        return false;
    };
    *condition == Condition::None && *expiry != Expiry::Keep && !want_previous
}

/// True if a write may take the place of what cannot be read. What a batch gives back of what it replaces it
/// gives as far as that was read.
fn takes_place_of_unread(write: &Op) -> bool {
    match write {
        Op::Store { value: Value::Bytes(_) | Value::Upload(_), condition, expiry, .. } => {
            *condition == Condition::None && *expiry != Expiry::Keep
        }
        Op::Delete { condition, .. } => takes_unread(*condition),
        _ => false,
    }
}

impl Partition {
    /// What a write acts on; nothing if it moved meanwhile.
    pub(crate) async fn find_target<'a>(self: &Rc<Self>, write: &'a Op) -> Result<Option<Target<'a>>> {
        let (container, key) = write.place().expect("looked at when its key was held");
        let is_expiry = matches!(write, Op::SetExpiry { .. });
        let place = self.place(container, key);
        if let Some(known) = self.known_target(write, &place, key) {
            return Ok(Some(Target { write, place, found: None, known: Some(known), dooms: Vec::new() }));
        }
        let extent = if is_expiry { Extent::Whole } else { Extent::Head };
        let found = match self.find(&place, key, extent, ReadFrom::Anywhere).await {
            Ok(Lookup::Found(found)) => Some(found),
            Ok(Lookup::Absent) => None,
            Ok(Lookup::Moved) => return Ok(None),
            Err(error @ Error::Unreadable(_)) if takes_place_of_unread(write) => {
                let known = Some(self.damaged_at(&place, key).ok_or(error)?);
                return Ok(Some(Target { write, place, found: None, known, dooms: Vec::new() }));
            }
            Err(error) => return Err(error),
        };
        if let Some(found) =
            found.as_ref().filter(|found| is_expiry && found.header.kind == RecordKind::Value)
        {
            self.value(found)?; // It may be written anew: a damaged one is found before anything is done.
        }
        let retain = matches!(write, Op::Store { retain: true, .. });
        let Some(dooms) = self.uploads_of(&place, found.as_ref(), retain).await? else { return Ok(None) };
        Ok(Some(Target { write, place, found, known: None, dooms }))
    }

    /// What a write acts on, if it asks nothing of that but whose it is, which is known.
    fn known_target(&self, write: &Op, place: &Place, key: &[u8]) -> Option<Replaced> {
        let (known, counter) = match write {
            write if asks_nothing(write) => (self.known_at(place, key), &self.counts.known_overwrites),
            Op::Delete { condition, .. } if takes_unread(*condition) => {
                (self.known_to_delete(place, key), &self.counts.known_deletes)
            }
            _ => return None,
        };
        add(counter, u64::from(known.is_some()));
        known
    }

    /// What each write acts on; nothing if one moved meanwhile.
    pub(crate) async fn find_targets<'a>(
        self: &Rc<Self>,
        writes: &'a [Op],
    ) -> Result<Option<Vec<Target<'a>>>> {
        let mut targets = Vec::with_capacity(writes.len());
        for write in writes {
            let Some(target) = self.find_target(write).await? else { return Ok(None) };
            targets.push(target);
        }
        Ok(targets.iter().all(|target| self.is_right(target)).then_some(targets))
    }

    /// True if what was found is still what is there.
    pub(crate) fn is_right(&self, target: &Target<'_>) -> bool {
        let place = target.write.place().map(|(container, key)| self.place(container, key));
        place == Some(target.place)
            && target.replaced().is_none_or(|old| self.is_current(&target.place, &old.entry))
    }

    /// Makes room in the log for writes, of which some store something or none does.
    pub(crate) fn reserve_for_writes(&self, store: bool, bytes: usize, transitions: usize) -> Result<()> {
        if store {
            self.reserve_for_store(bytes, transitions)
        } else {
            self.reserve_for_delete(bytes, transitions)
        }
    }

    /// Waits after [`Partition::reserve_for_writes`] found no room.
    pub(crate) async fn wait_to_write(&self, store: bool) -> Result<()> {
        if store { self.wait_to_store().await } else { self.wait_to_delete().await }
    }
}
