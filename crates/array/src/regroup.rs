//! Regrouping: sets that have lost values give up what nobody needs, and their living values are packed anew.
//!
//! Role: looks through sets that are known to be loose. Place on the path: none; when nobody writes.
//!
//! Invariants:
//! * all keys of a set are held while it is judged;
//! * a set goes when no key has a stub of it any more: first its ghosts, and then its records, so that what a
//!   crash leaves is found by whoever looks through the sets;
//! * a ghost that names no set, or another, stays: that may need it.

use crate::array::{Array, Manner, Place};
use crate::leave::Membership;
use crate::placement;
use crate::set::{Packed, Set, Stub, VERSION_BYTES, decode_version, ghost_key, set_key};
use plimsoll_kv::key_locks::KeyGuard;
use plimsoll_kv::{Condition, ContainerId, Error, Form, Op, Output, Result};
use std::collections::BTreeSet;
use std::rc::Rc;

impl Array {
    /// Looks through all sets that are loose: those without a living value go, and the values of the others
    /// wait to be packed.
    pub(crate) async fn regroup(self: &Rc<Self>) -> Result<()> {
        while !self.closing.get()
            && self.all_in()
            && let Some((container, stub)) = self.packer.next_loose()
        {
            let living = match self.judge_set(container, &stub).await {
                Ok(living) => living,
                Err(error) => {
                    self.packer.loosen(container, &stub);
                    return Err(error);
                }
            };
            self.packer.judged(container, stub.set, !living.is_empty());
            for (place, form) in living {
                self.pack_again(&place, form);
            }
        }
        Ok(())
    }

    /// Deletes a set that nobody needs; the keys that do, else.
    async fn judge_set(self: &Rc<Self>, container: ContainerId, stub: &Stub) -> Result<Vec<(Place, Form)>> {
        let Some(set) = self.find_set(container, stub).await? else { return Ok(Vec::new()) };
        let (_guards, places) = self.hold_set(container, &set).await?;
        let mut living = Vec::new();
        for place in places {
            if self.lives_in(&place, &set).await? {
                living.push((place, set.form()));
            }
        }
        if living.is_empty() {
            self.delete_ghosts(container, &set).await?;
            self.delete_set(container, &set).await;
        }
        Ok(living)
    }

    /// A set, as the first of its holders that has it tells it; nothing if none has.
    pub(crate) async fn find_set(
        self: &Rc<Self>,
        container: ContainerId,
        stub: &Stub,
    ) -> Result<Option<Set>> {
        let mut failure = None;
        for holder in &stub.holders {
            let Some(device) = self.readable((*holder).into()) else { continue };
            match self.record(&device, container, stub.set, &Manner::background()).await {
                Ok(record) => return Ok(Some(record.set)),
                Err(Error::NotFound) => {}
                Err(error) => failure = Some(error),
            }
        }
        failure.map_or(Ok(None), Err)
    }

    /// Holds all keys of a set.
    pub(crate) async fn hold_set(
        self: &Rc<Self>,
        container: ContainerId,
        set: &Set,
    ) -> Result<(Vec<KeyGuard>, Vec<Place>)> {
        let places = set.values.iter().map(|value| self.place(container, &value.key));
        let places: Vec<Place> = places.collect::<Result<_>>()?;
        let ids: BTreeSet<_> = places.iter().map(|place| place.id).collect();
        Ok((self.locks.lock_all(&ids.into_iter().collect::<Vec<_>>()).await, places))
    }

    /// Whether a held key is in a set; it is if that cannot be found out.
    pub(crate) async fn lives_in(self: &Rc<Self>, place: &Place, set: &Set) -> Result<bool> {
        if self.is_unsettled(place) {
            return Ok(true);
        }
        Ok(match self.membership(place, &Manner::background()).await? {
            Membership::Alone => false,
            Membership::Of(_, stub) => stub.set == set.name,
            Membership::Unknown => true,
        })
    }

    /// What a set kept of values that are gone goes.
    async fn delete_ghosts(self: &Rc<Self>, container: ContainerId, set: &Set) -> Result<()> {
        for (at, value) in set.values.iter().enumerate() {
            if self.is_ghost_of(container, set, (at, value)).await? {
                let (container, key) = (placement::sets(container), ghost_key(&self.tag, value.version));
                let delete = Op::Delete { container, key, condition: Condition::None };
                self.sent_one(self.primary_of_value(set, at), delete).await?;
            }
        }
        Ok(())
    }

    /// Whether there is a ghost of a value that this set keeps, and no other.
    async fn is_ghost_of(
        self: &Rc<Self>,
        container: ContainerId,
        set: &Set,
        (at, value): (usize, &Packed),
    ) -> Result<bool> {
        let Some(device) = self.readable(self.primary_of_value(set, at)) else { return Ok(false) };
        let (container, key) = (placement::sets(container), ghost_key(&self.tag, value.version));
        let op = Op::Retrieve { container, key, range: Some((0, VERSION_BYTES as u64)), pin: false };
        match device.execute(Manner::background().request(op)).await.map(|done| done.output) {
            Ok(Output::Found(item)) => Ok(decode_version(&item.bytes).is_none_or(|of| of == set.name)),
            Ok(_) | Err(Error::NotFound) => Ok(false),
            Err(Error::Unreadable(_)) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// The records of a set that nobody is in go.
    pub(crate) async fn delete_set(self: &Rc<Self>, container: ContainerId, set: &Set) {
        let (container, key) = (placement::sets(container), set_key(&self.tag, set.name));
        for holder in &set.holders {
            let (key, condition) = (key.clone(), Condition::None);
            // What is left is found by who looks through the sets.
            let _ = self.sent_one((*holder).into(), Op::Delete { container, key, condition }).await;
        }
    }
}
