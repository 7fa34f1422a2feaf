//! What stands before a write: where pieces of its key may be, and what its set goes on needing of it.
//!
//! Role: finds out what a write has to take away. Members' memory tells it, as far as it tells anything; an
//! array that is `stateless` never asks that memory. Then, where values have several forms, a write reads the
//! first copy before, and its header tells. Place on the path: before every store and delete of a held key.
//! Source: KVMD (FAST'20): each store of its hybrid mode, and of packing, reads the primary first.
//!
//! Invariants:
//! * memory is asked here and nowhere else, and what it says saves requests alone: a member that always says
//!   that it does not know costs more, and nothing is wrong;
//! * where nobody can tell, pieces may stand in every role, and a value may be packed.

use crate::array::{Array, Place};
use crate::gather::Piece;
use crate::kept::KeptKey;
use crate::leave::Membership;
use crate::manner::Manner;
use crate::member::{Verdict, verdict};
use crate::placement;
use crate::read::Range;
use crate::set::Stub;
use plimsoll_kv::{ContainerId, Error, Form, Item, Op, Result, Version};
use std::rc::Rc;

/// Roles of a value that was looked at already: none of one that is absent.
pub(crate) type Seen = Option<usize>;

/// The roles of what was seen of a key.
pub(crate) fn roles_seen(found: Option<&(Item, Form)>) -> usize {
    found.map_or(0, |(_, form)| form.roles())
}

/// What a store is about to replace.
pub(crate) struct Before {
    /// Pieces may stand in so many roles, from the first on.
    pub(crate) roles: usize,
    /// What keeps the value for a set.
    pub(crate) ghost: Option<Op>,
    /// What becomes of that set.
    pub(crate) left: Option<Left>,
}

/// A set that loses what a store replaces.
pub(crate) enum Left {
    /// This one loses this version.
    In(Version, Stub),
    /// What the store gives back of what it replaces says which one loses this version, or that none does; of
    /// no version, who looks through the sets finds out.
    Told(Version),
}

impl Before {
    /// Of what is in no set.
    fn alone(roles: usize) -> Before {
        Before { roles, ghost: None, left: None }
    }
}

/// What a delete is about to take away.
pub(crate) struct Leaving {
    /// As with a store.
    pub(crate) roles: usize,
    pub(crate) membership: Membership,
    pub(crate) ghost: Option<Op>,
}

/// What the first piece of a key is.
enum First {
    Absent,
    /// With the roles of its value, and how much of it was read.
    Found(usize, Box<(Piece, Range)>),
    /// It cannot be told.
    Unknown,
}

impl Array {
    /// True if the memory of a member tells that it has no such key.
    pub(crate) fn lacks(&self, member: usize, container: ContainerId, key: &[u8]) -> bool {
        !self.options.stateless && self.readable(member).is_some_and(|device| device.lacks(container, key))
    }

    /// The same of a role of a key.
    pub(crate) fn role_lacks(&self, place: &Place, role: usize) -> bool {
        self.lacks(self.member_of(place, role), placement::container(place.container, role), &place.key)
    }

    /// False if the memory of all who have a role of a key, and may be read, tells that nothing of it stands
    /// there: then a write replaces nothing.
    pub(crate) fn has_any(&self, place: &Place) -> bool {
        let is_read = |role: &usize| self.readable(self.member_of(place, *role)).is_some();
        (0..self.roles).filter(is_read).any(|role| !self.role_lacks(place, role))
    }

    /// Whether a write has to read what a key was made into, to know what it leaves behind.
    fn reads_before(&self) -> bool {
        self.options.stateless && self.forms.are_mixed()
    }

    /// In how many roles pieces may stand of a key of which so many were read to be there: where memory tells
    /// which of all it is, in all.
    fn roles_read(&self, read: usize) -> usize {
        if self.reads_before() { read } else { self.roles }
    }

    /// What stands before a store that makes a held key into something.
    pub(crate) async fn before_store(
        self: &Rc<Self>,
        place: &Place,
        (form, seen): (Form, Seen),
        manner: &Manner,
    ) -> Result<Before> {
        if !self.forms.has_packed() {
            return Ok(Before::alone(self.roles_before(place, seen, manner).await?));
        }
        // Whether it was packed is told by what the store gives back in the other roles, if there are any.
        let is_told = form.roles() > 1;
        if is_told && self.role_lacks(place, 0) {
            return Ok(Before::alone(self.roles));
        }
        if is_told && let Some(before) = self.before_by_stub(place, manner).await? {
            return Ok(before);
        }
        let looks = is_told || self.reads_before();
        let may_be_packed = form.is_packed();
        match if looks { self.first_piece(place, may_be_packed, manner).await? } else { First::Unknown } {
            First::Absent => Ok(Before::alone(self.roles_read(0))),
            First::Found(roles, piece) if is_told => {
                let kept = self.ghost_from(place, *piece, &Membership::Unknown);
                let (version, ghost) = kept.unzip();
                Ok(Before { roles, ghost, left: version.map(Left::Told) })
            }
            First::Found(roles, piece) => {
                let (membership, ghost) = self.ghost_if_packed(place, *piece, manner).await?;
                if let Membership::Of { stub, .. } = &membership {
                    self.regroup_later(place.container, stub);
                }
                let left = ghost.is_some().then_some(Left::Told(Version::default()));
                Ok(Before { roles, ghost, left })
            }
            First::Unknown => {
                let ghost = self.ghost(place, manner).await?;
                let left = ghost.is_some().then_some(Left::Told(Version::default()));
                Ok(Before { roles: self.roles, ghost, left })
            }
        }
    }

    /// What stands before a store, as the stub of the key tells it, or that it has none; nothing if the value
    /// itself has to be looked at.
    async fn before_by_stub(self: &Rc<Self>, place: &Place, manner: &Manner) -> Result<Option<Before>> {
        let keeps = self.readable(place.primary).is_some_and(|it| self.ghost_range(&it, manner).is_some());
        if !keeps || self.is_unsettled(place) || self.reads_before() || self.has_doubts() {
            return Ok(None);
        }
        let membership = self.membership(place, manner).await?;
        let ghost = self.ghost_by_stub(place, &membership, manner);
        Ok(match (membership, ghost) {
            (Membership::Alone, _) => Some(Before::alone(self.roles)),
            (Membership::Of { version, stub, .. }, Some(ghost)) => {
                Some(Before { roles: self.roles, ghost: Some(ghost), left: Some(Left::In(version, stub)) })
            }
            _ => None,
        })
    }

    /// What stands before a delete of a held key: in all roles in which it was seen, though the first may
    /// have expired since (seed 1735 of the worlds).
    pub(crate) async fn before_delete(
        self: &Rc<Self>,
        place: &Place,
        seen: Seen,
        manner: &Manner,
    ) -> Result<Leaving> {
        if !self.forms.has_packed() {
            let roles = self.roles_before(place, seen, manner).await?;
            return Ok(Leaving { roles, membership: Membership::Alone, ghost: None });
        }
        let (looks, least) = (self.reads_before(), seen.unwrap_or(0));
        match if looks { self.first_piece(place, true, manner).await? } else { First::Unknown } {
            First::Absent => {
                let roles = self.roles_read(least);
                Ok(Leaving { roles, membership: Membership::Alone, ghost: None })
            }
            First::Found(roles, piece) => {
                let (membership, ghost) = self.ghost_if_packed(place, *piece, manner).await?;
                Ok(Leaving { roles: roles.max(least), membership, ghost })
            }
            First::Unknown => {
                let membership = self.membership(place, manner).await?;
                let ghost = self.ghost_of(place, &membership, (manner, false)).await?;
                Ok(Leaving { roles: self.roles, membership, ghost })
            }
        }
    }

    /// What keeps a value that was read, if it is packed: a key of another form is in no set, and nobody has
    /// to be asked. What keeps it names no version that others could tell.
    async fn ghost_if_packed(
        self: &Rc<Self>,
        place: &Place,
        (piece, read): (Piece, Range),
        manner: &Manner,
    ) -> Result<(Membership, Option<Op>)> {
        if piece.header.is_some_and(|header| !header.form.is_packed()) {
            return Ok((Membership::Alone, None));
        }
        let membership = self.membership(place, manner).await?;
        let ghost = self.ghost_from(place, (piece, read), &membership);
        Ok((membership, ghost.map(|(_, ghost)| ghost)))
    }

    /// In how many roles older pieces may stand when a store has been made that found them in so many, or
    /// found none and replaced something, with what it took away of what was kept.
    pub(crate) fn roles_left(&self, found: usize, kept: Option<&KeptKey>, has_replaced: bool) -> usize {
        let of_kept = kept.map_or(0, KeptKey::roles);
        // Members may judge differently whether it had expired.
        if found == 0 && has_replaced { self.roles } else { found.max(of_kept) }
    }

    /// The first piece of a held key, if that is known to be the newest: whole if it is packed. What is not
    /// to be packed mostly replaces what was not, and of that its head is enough.
    async fn first_piece(
        self: &Rc<Self>,
        place: &Place,
        may_be_packed: bool,
        manner: &Manner,
    ) -> Result<First> {
        let (false, Some(device)) = (self.is_unsettled(place), self.readable(place.primary)) else {
            return Ok(First::Unknown);
        };
        let of_packed = self.ghost_range(&device, manner);
        let mut range = if may_be_packed { of_packed } else { Some((0, 0)) };
        loop {
            match self.read_in_time(self.read_piece(&device, place, 0, range, manner)).await {
                Ok(Piece { header: Some(header), .. }) if range != of_packed && header.form.is_packed() => {
                    range = of_packed;
                }
                Ok(piece) => {
                    let roles = piece.header.map_or(self.roles, |it| self.roles_read(it.form.roles()));
                    return Ok(First::Found(roles, Box::new((piece, range))));
                }
                Err(Error::NotFound) => return Ok(First::Absent),
                Err(error) if verdict(&error) == Verdict::Broken => return Ok(First::Unknown),
                Err(error) => return Err(error),
            }
        }
    }

    /// In how many roles, from the first on, pieces of a held key may stand: where memory tells which of them
    /// it is, or nothing has to be known, in all.
    pub(crate) async fn roles_before(
        self: &Rc<Self>,
        place: &Place,
        seen: Seen,
        manner: &Manner,
    ) -> Result<usize> {
        if !self.reads_before() || self.is_unsettled(place) {
            return Ok(self.roles);
        }
        if let Some(roles) = seen {
            return Ok(roles);
        }
        match self.read_in_time(self.look(place, Some((0, 0)), manner)).await {
            Ok(found) => Ok(roles_seen(found.as_ref())),
            // Whoever does not answer is found out by the write.
            Err(error) if verdict(&error) == Verdict::Broken => Ok(self.roles),
            Err(error) => Err(error),
        }
    }
}
