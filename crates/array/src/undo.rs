//! Undoing: what becomes of a store that some members took and others refused, as they are full.
//!
//! Role: puts back what was there before on those that took it, or gives it to those that refused it. Place
//! on the path: behind a store that was refused, before anybody hears of that.
//!
//! Invariants:
//! * what a client is told was refused is on no member that is in, unless one fails meanwhile;
//! * where there is no room for both, the shorter one is what all have in the end: it has room where the
//!   other one stood; and where what was there before cannot be read, the write stands;
//! * one of both can be read all the while.

use crate::array::{Array, Place};
use crate::manner::Manner;
use crate::roster::MemberState;
use crate::told::{Proof, Told};
use plimsoll_kv::{Error, Result};
use std::rc::Rc;

/// What became of a store that some members refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Undone {
    /// It was taken back.
    TakenBack,
    /// It was taken back, and some who are in could not be given again what they had before.
    TakenBackOnSome,
    /// It stands: all who are in have it.
    Stands,
    /// It stands, and some who are in could not be given it yet.
    StandsOnSome,
}

impl Array {
    /// Takes back what some members took of a write that others refused: what those still have is right. The
    /// write stands if they are out by now, or if what it replaced has no room any more.
    pub(crate) async fn undo(self: &Rc<Self>, place: &Place, taken: &[usize]) -> Result<Undone> {
        let mut taken = taken.to_vec();
        loop {
            let epoch = self.roster.borrow().epoch;
            match self.undo_among(place, &mut taken).await {
                // Somebody went out over it: those that are left do it.
                Err(_) if self.roster.borrow().epoch != epoch => {}
                undone => return undone,
            }
        }
    }

    /// The same, as those members go that it was taken back from.
    async fn undo_among(self: &Rc<Self>, place: &Place, taken: &mut Vec<usize>) -> Result<Undone> {
        let has_taken = |role: &usize| taken.contains(&self.member_of(place, *role));
        let is_in = |role: &usize| self.readable(self.member_of(place, *role)).is_some();
        let (new, old): (Vec<usize>, Vec<usize>) = self.all_roles().into_iter().partition(has_taken);
        if self.forms.keeps() {
            for role in new {
                let member = self.member_of(place, role);
                let done = self.put_back(place, role).await;
                self.unless_out(member, done)?;
                taken.retain(|other| *other != member);
            }
            return Ok(Undone::TakenBack);
        }
        let (from, right) = match self.told_by_any(place, old).await? {
            Some((_, Told::Unreadable)) => match new.into_iter().find(is_in) {
                Some(role) => return self.push_through(place, role).await,
                None => return Err(Error::Unreadable("the version before the write".to_owned())),
            },
            Some(told) => told,
            // Who refused is not relied on: those that took it are the array now.
            None => return Ok(Undone::Stands),
        };
        let mut undone = Undone::TakenBack;
        for role in new {
            let member = self.member_of(place, role);
            if self.state(member) == MemberState::Out {
                continue;
            }
            if undone == Undone::TakenBackOnSome {
                // What was refused would be the newest that is left.
                self.take_away(place, role).await?;
                continue;
            }
            let brought = self.bring(place, role, &right, &[from]).await;
            match self.unless_out(member, brought) {
                Err(Error::NoSpace | Error::NoMemory) if self.is_shorter(place, (role, from)).await? => {
                    return self.push_through(place, role).await;
                }
                // What was there before has expired (seed 6281 of the worlds).
                Err(Error::NotFound) => {
                    self.take_away(place, role).await?;
                    taken.retain(|other| *other != member);
                }
                // Its head could be read (seed 4115).
                Err(Error::Unreadable(_)) => return self.push_through(place, role).await,
                Err(Error::NoSpace | Error::NoMemory) => {
                    self.take_away(place, role).await?;
                    let brought = self.bring(place, role, &right, &[from]).await;
                    match self.unless_out(member, brought) {
                        Err(Error::NoSpace | Error::NoMemory) => undone = Undone::TakenBackOnSome,
                        // What cannot be read where it still is is no reason to take away what can.
                        brought => drop(brought?),
                    }
                }
                brought => {
                    brought?;
                    taken.retain(|other| *other != member);
                }
            }
        }
        Ok(undone)
    }

    /// Takes away what a member has of a key, unless it goes out over it.
    async fn take_away(self: &Rc<Self>, place: &Place, role: usize) -> Result<()> {
        let member = self.member_of(place, role);
        let deleted = self.sent_one(member, self.delete_op(place, role)).await;
        self.unless_out(member, deleted).map(drop)
    }

    /// What stands in the first of these roles that is in and can be read, or in one that cannot; nothing if
    /// none is in.
    async fn told_by_any(self: &Rc<Self>, place: &Place, roles: Vec<usize>) -> Result<Option<(usize, Told)>> {
        let mut told = None;
        for role in roles.into_iter().filter(|role| self.readable(self.member_of(place, *role)).is_some()) {
            told = Some((role, self.told_by(place, role).await?));
            if !matches!(told, Some((_, Told::Unreadable))) {
                break;
            }
        }
        Ok(told)
    }

    async fn told_by(self: &Rc<Self>, place: &Place, role: usize) -> Result<Told> {
        let device = self.readable(self.member_of(place, role)).ok_or(Error::NotFound)?;
        self.ask(&device, (place, role), Proof::Start, &Manner::background()).await
    }

    /// Whether what stands in one role of a key takes less room than what stands in another: nothing takes
    /// none, and it may have expired.
    async fn is_shorter(self: &Rc<Self>, place: &Place, (one, other): (usize, usize)) -> Result<bool> {
        let length = async |role| {
            let device = self.readable(self.member_of(place, role)).ok_or(Error::NotFound)?;
            match self.read_piece(&device, place, role, Some((0, 0)), &Manner::background()).await {
                Ok(piece) => Ok(piece.item.length),
                Err(Error::NotFound) => Ok(0),
                Err(error) => Err(error),
            }
        };
        Ok(length(one).await? < length(other).await?)
    }

    /// Gives what one role has to all that have something else.
    async fn push_through(self: &Rc<Self>, place: &Place, from: usize) -> Result<Undone> {
        let (right, mut undone) = (self.told_by(place, from).await?, Undone::Stands);
        let is_in = |role: &usize| self.readable(self.member_of(place, *role)).is_some();
        for role in self.all_roles().into_iter().filter(|role| *role != from && is_in(role)) {
            if self.told_by(place, role).await?.is_as(&right) {
                continue;
            }
            let brought = match self.bring(place, role, &right, &[from]).await {
                Err(Error::NoSpace | Error::NoMemory) => {
                    self.take_away(place, role).await?;
                    self.bring(place, role, &right, &[from]).await
                }
                brought => brought,
            };
            if let Err(error) = brought {
                tracing::warn!(partition = self.partition, %error, "a write reaches a full device later");
                undone = Undone::StandsOnSome;
            }
        }
        Ok(undone)
    }
}
