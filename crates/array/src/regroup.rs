//! Regrouping: sets that have lost values give up what nobody needs, and their living values are packed anew.
//!
//! Role: looks through sets that are known to be loose. Place on the path: none; when nobody writes.
//!
//! Invariants:
//! * all keys of a set are held while it is judged, and it is taken to live if that is not known; one of
//!   which every value is known to have gone needs no judging;
//! * a set goes when no key has a stub of it any more: first its ghosts, and then its records, so that what a
//!   crash leaves is found by whoever looks through the sets;
//! * no two sets name one version: what lives of a set stands as copies before it goes;
//! * a ghost that names another set stays, and so does one that names none, unless it is known to be of this.

use crate::array::{Array, Place};
use crate::leave::Membership;
use crate::loose::Loose;
use crate::manner::Manner;
use crate::placement;
use crate::set::{Packed, Set, Stub, VERSION_BYTES, decode_version, ghost_key, set_key};
use crate::write::is_full;
use plimsoll_kv::key_locks::KeyGuard;
use plimsoll_kv::{Condition, ContainerId, Error, Op, Output, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// Deletes of one request.
const TOGETHER: usize = 256;
/// Where so many sets in a row find no room for their living values as copies, the devices are full.
const WITHOUT_ROOM_MAX: u32 = 32;

/// Whether a key is in a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Lives {
    /// It has no stub of it.
    No,
    /// That cannot be found out.
    Perhaps,
    /// It has.
    Yes,
}

impl Array {
    /// Looks through all sets that are loose: those without a living value go, all together, and the others
    /// are taken apart. Or those alone of which it is known that they have none.
    pub(crate) async fn regroup(self: &Rc<Self>, only_dead: bool) -> Result<()> {
        let judged = self.judge_loose(only_dead).await;
        self.packer.loose.end_judging();
        judged
    }

    async fn judge_loose(self: &Rc<Self>, only_dead: bool) -> Result<()> {
        let (mut ghosts, mut records) = (self.packer.loose.unneeded.take(), Vec::new());
        let (mut failure, mut without_room) = (None, 0);
        for (container, mut loose) in self.packer.loose.take(only_dead, self.all_in()) {
            let has_failed = failure.as_ref().is_some_and(|error| !is_full(error));
            if has_failed || without_room == WITHOUT_ROOM_MAX || self.closing.get() {
                self.packer.loose.put(container, loose);
                continue;
            }
            if loose.is_dead() {
                ghosts.extend(loose.gone.iter().map(|(member, version)| {
                    (*member, self.delete_of_set(container, ghost_key(&self.tag, *version)))
                }));
                records.extend(loose.stub.holders.iter().map(|holder| {
                    ((*holder).into(), self.delete_of_set(container, set_key(&self.tag, loose.stub.set)))
                }));
                continue;
            }
            match self.judge_set(container, &loose).await {
                Ok(true) => without_room = 0,
                Ok(false) => {
                    loose.waits = true;
                    self.packer.loose.put(container, loose);
                }
                Err(error) => {
                    // Another may find the room that one does not, and gives some back.
                    without_room += u32::from(is_full(&error));
                    failure = Some(error);
                    self.packer.loose.put(container, loose);
                }
            }
        }
        // What is left of them is found by who looks through the sets: so the records go last.
        self.delete_together(ghosts).await?;
        self.delete_together(records).await?;
        failure.map_or(Ok(()), Err)
    }

    fn delete_of_set(&self, container: ContainerId, key: Vec<u8>) -> Op {
        Op::Delete { container: placement::sets(container), key, condition: Condition::None }
    }

    /// Deletes on members: many at a time, where they are.
    async fn delete_together(self: &Rc<Self>, deletes: Vec<(usize, Op)>) -> Result<()> {
        let mut below: BTreeMap<usize, Vec<Op>> = BTreeMap::new();
        for (member, delete) in deletes {
            let lacks = |(container, key): (ContainerId, &[u8])| self.lacks(member, container, key);
            if !delete.place().is_some_and(lacks) {
                below.entry(member).or_default().push(delete);
            }
        }
        let manner = Manner::background();
        for (member, mut ops) in below {
            while !ops.is_empty() {
                let some: Vec<Op> = ops.split_off(ops.len().saturating_sub(TOGETHER));
                let sent = self.send(vec![(member, manner.request(Op::Batch(some)))]).await?;
                sent.refused.map_or(Ok(()), Err)?;
            }
        }
        Ok(())
    }

    /// Takes a set apart: what lives of it stands as copies again, and waits to be packed; then it goes.
    /// False if it lives while a member is out: that one may have stubs of it when it comes back.
    async fn judge_set(self: &Rc<Self>, container: ContainerId, loose: &Loose) -> Result<bool> {
        let Some(set) = self.find_set(container, &loose.stub).await? else { return Ok(true) };
        let (_guards, places) = self.hold_set(container, &set).await?;
        let mut living = Vec::new();
        for (place, value) in places.into_iter().zip(&set.values) {
            if self.lives_in(&place, (&set, value)).await? != Lives::No {
                living.push((place, (set.form(), u64::from(value.value_bytes))));
            }
        }
        let may_go = || living.is_empty() || self.all_in();
        if !may_go() {
            return Ok(false);
        }
        let places: Vec<&Place> = living.iter().map(|(place, _)| place).collect();
        if !self.put_copies_of_all(&places, set.name).await? {
            return Err(Error::Unreadable("a device does not say what it has of a set".to_owned()));
        }
        // One that went out over it got no copy.
        if !may_go() {
            return Ok(false);
        }
        for (place, value) in &living {
            self.pack_later(place, *value);
        }
        self.delete_ghosts(container, &set).await?;
        let gone = loose.gone.iter().map(|(member, version)| {
            (*member, self.delete_of_set(container, ghost_key(&self.tag, *version)))
        });
        self.delete_together(gone.collect()).await?;
        self.delete_set(container, &set).await;
        Ok(true)
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

    /// Whether a held key is in a set that names a version of it.
    pub(crate) async fn lives_in(
        self: &Rc<Self>,
        place: &Place,
        (set, value): (&Set, &Packed),
    ) -> Result<Lives> {
        if self.is_unsettled(place) {
            return Ok(Lives::Perhaps);
        }
        if let Some(device) = self.readable(place.primary) {
            match self.read_piece(&device, place, 0, Some((0, 0)), &Manner::background()).await {
                Ok(piece) if piece.header.is_some_and(|header| header.version != value.version) => {
                    return Ok(Lives::No);
                }
                Err(Error::NotFound) => return Ok(Lives::No),
                Ok(_) | Err(Error::Unreadable(_) | Error::ReadOnly(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(match self.membership(place, &Manner::background()).await? {
            Membership::Of { stub, .. } if stub.set == set.name => Lives::Yes,
            Membership::Alone | Membership::Of { .. } => Lives::No,
            Membership::Unknown => Lives::Perhaps,
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
        let Some(device) = self.writable(self.primary_of_value(set, at)) else { return Ok(false) };
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
