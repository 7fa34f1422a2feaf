//! Leaving a set: what it goes on needing of a value that goes.
//!
//! Role: a packed value is part of the parities of others. Before it is overwritten or deleted, or may
//! expire, its member stores it once more beside the set: a ghost. Nobody regroups for that, and nobody waits
//! but for one look. Place on the path: before every change of a key, where values are packed.
//!
//! Invariants:
//! * a value that a set names stands on its member, under its key or as a ghost, as long as another value of
//!   the set lives;
//! * whoever cannot find out whether a value is packed takes it to be;
//! * a ghost that nobody needs is found when its set is looked through, and goes.

use crate::array::{Array, Manner, Place};
use crate::gather::Piece;
use crate::placement;
use crate::set::{Stub, encode_version, ghost_key};
use plimsoll_kv::{Condition, ContainerId, Error, Expiry, Op, Result, Value, Version};
use std::rc::Rc;

/// Whether a key is packed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Membership {
    /// It is not.
    Alone,
    /// At this version, in this set.
    Of(Version, Stub),
    /// No member that would know can be asked.
    Unknown,
}

/// The set that a ghost names if it is not known.
const NO_SET: Version = Version { epoch: 0, clock: 0 };

impl Array {
    /// What the first member of a held key has to store beside the change that takes away what it has now.
    pub(crate) async fn ghost(self: &Rc<Self>, place: &Place, manner: &Manner) -> Result<Option<Op>> {
        if !self.forms.has_packed() {
            return Ok(None);
        }
        let membership = self.membership(place, manner).await?;
        if let Membership::Of(_, stub) = &membership {
            self.regroup_later(place.container, stub);
        }
        match membership {
            Membership::Alone => Ok(None),
            membership => self.ghost_of(place, &membership, manner).await,
        }
    }

    async fn ghost_of(
        self: &Rc<Self>,
        place: &Place,
        membership: &Membership,
        manner: &Manner,
    ) -> Result<Option<Op>> {
        let Some(device) = self.writable(place.primary) else { return Ok(None) };
        let piece = match self.read_piece(&device, place, 0, None, manner).await {
            Ok(piece) => piece,
            // What is lost the set gives, when it is looked through.
            Err(Error::NotFound | Error::Unreadable(_)) => return Ok(None),
            // So does it where its member is lost: what is sent to it next finds that out.
            Err(Error::ReadOnly(_)) => return Ok(None),
            Err(error) => return Err(error),
        };
        let Piece { item, header: Some(header), .. } = piece else { return Ok(None) };
        if item.upload.is_some() || !header.form.is_packed() {
            return Ok(None);
        }
        let set = match membership {
            Membership::Of(version, stub) if *version == header.version => stub.set,
            _ => NO_SET,
        };
        let value = [&encode_version(set)[..], &header.before(&item.bytes)].concat();
        if value.len() > self.record_bytes_max() {
            return Ok(None); // So long a value is in no set.
        }
        let key = ghost_key(&self.tag, header.version);
        Ok(Some(plain_store(placement::sets(place.container), key, value)))
    }

    /// The same, done: what its member has of a held key may go from here on.
    pub(crate) async fn leave_set(self: &Rc<Self>, place: &Place, manner: &Manner) -> Result<()> {
        let ghost = self.ghost(place, manner).await?;
        self.keep_ghost(place, ghost).await
    }

    /// The same, where it is not known any more whether the key was packed.
    pub(crate) async fn leave_any_set(self: &Rc<Self>, place: &Place) -> Result<()> {
        if !self.forms.has_packed() {
            return Ok(());
        }
        let ghost = self.ghost_of(place, &Membership::Unknown, &Manner::background()).await?;
        self.keep_ghost(place, ghost).await
    }

    async fn keep_ghost(self: &Rc<Self>, place: &Place, ghost: Option<Op>) -> Result<()> {
        let Some(ghost) = ghost else { return Ok(()) };
        match self.sent_one(place.primary, ghost).await {
            // It is out by now, and what it had is lost.
            Err(_) if self.writable(place.primary).is_none() => Ok(()),
            kept => kept.map(drop),
        }
    }

    /// Whether a held key is packed, as the members that hold no value of it say. If it is whole on all, the
    /// first that can be read knows.
    pub(crate) async fn membership(self: &Rc<Self>, place: &Place, manner: &Manner) -> Result<Membership> {
        let packed = self.forms.each().filter(|form| form.is_packed());
        let roles = packed.map(|form| form.roles()).max().unwrap_or(0);
        let (mut told, is_whole) = (Membership::Unknown, !self.is_unsettled(place));
        for role in 1..roles {
            let Some(device) = self.readable(self.member_of(place, role)) else { continue };
            match self.read_piece(&device, place, role, Some((0, 0)), manner).await {
                Ok(Piece { stub: Some(stub), header: Some(header), .. }) => {
                    return Ok(Membership::Of(header.version, stub));
                }
                Ok(_) | Err(Error::NotFound) if is_whole => return Ok(Membership::Alone),
                Ok(_) | Err(Error::NotFound) => told = Membership::Alone,
                Err(Error::Unreadable(_) | Error::ReadOnly(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(told)
    }
}

/// A store of the array's own.
pub(crate) fn plain_store(container: ContainerId, key: Vec<u8>, value: Vec<u8>) -> Op {
    Op::Store {
        container,
        key,
        value: Value::Bytes(value),
        condition: Condition::None,
        expiry: Expiry::Never,
        retain: false,
        want_previous: false,
        form: None,
    }
}
