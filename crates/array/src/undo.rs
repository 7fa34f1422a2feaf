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
use crate::write::is_full;
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

/// Members of which a store is taken back.
struct Undoing {
    /// They have it.
    taken: Vec<usize>,
    /// They had it, and have nothing yet.
    emptied: Vec<usize>,
}

impl Undoing {
    /// A member has what was there before, or what all are to have.
    fn is_done(&mut self, member: usize) {
        self.taken.retain(|other| *other != member);
        self.emptied.retain(|other| *other != member);
    }

    fn is_emptied(&mut self, member: usize) {
        self.is_done(member);
        self.emptied.push(member);
    }

    fn has_it(&mut self, member: usize) {
        self.is_done(member);
        self.taken.push(member);
    }
}

fn unreadable() -> Error {
    Error::Unreadable("the version before the write".to_owned())
}

impl Array {
    /// Takes back what some members took of a write that others refused: what those still have is right. The
    /// write stands if they are out by now, or if what it replaced has no room any more.
    pub(crate) async fn undo(self: &Rc<Self>, place: &Place, taken: &[usize]) -> Result<Undone> {
        let mut undoing = Undoing { taken: taken.to_vec(), emptied: Vec::new() };
        loop {
            let epoch = self.roster.borrow().epoch;
            let undone = match self.forms.keeps() {
                true => self.revert(place, &mut undoing).await,
                false => self.undo_among(place, &mut undoing).await,
            };
            match undone {
                // Somebody went out over it: those that are left do it.
                Err(_) if self.roster.borrow().epoch != epoch => {}
                undone => return undone,
            }
        }
    }

    /// Puts back what members kept.
    async fn revert(self: &Rc<Self>, place: &Place, undoing: &mut Undoing) -> Result<Undone> {
        for role in self.all_roles() {
            let member = self.member_of(place, role);
            if undoing.taken.contains(&member) {
                let done = self.put_back(place, role).await;
                self.unless_out(member, done)?;
                undoing.is_done(member);
            }
        }
        Ok(Undone::TakenBack)
    }

    /// Gives those that have the write, or nothing any more, what another still has.
    async fn undo_among(self: &Rc<Self>, place: &Place, undoing: &mut Undoing) -> Result<Undone> {
        let is_changed = |role: &usize| {
            let member = self.member_of(place, *role);
            undoing.taken.contains(&member) || undoing.emptied.contains(&member)
        };
        let (changed, old): (Vec<usize>, Vec<usize>) = self.all_roles().into_iter().partition(is_changed);
        let (from, right) = match self.told_by_any(place, old).await? {
            Some((_, Told::Unreadable)) => return self.push_any(place, undoing).await,
            Some(told) => told,
            // Who refused is not relied on: those that took it are the array now.
            None if undoing.emptied.is_empty() => return Ok(Undone::Stands),
            None => return self.push_any(place, undoing).await,
        };
        let mut undone = Undone::TakenBack;
        for role in changed {
            let member = self.member_of(place, role);
            if self.state(member) == MemberState::Out {
                continue;
            }
            let has_it = undoing.taken.contains(&member);
            if undone == Undone::TakenBackOnSome && has_it {
                // What was refused would be the newest that is left.
                self.take_away(place, role).await?;
                undoing.is_emptied(member);
                continue;
            }
            let mut brought = self.bring(place, role, &right, &[from]).await;
            if has_it && brought.as_ref().err().is_some_and(is_full) {
                if self.is_shorter(place, (role, from)).await? {
                    return self.push_through(place, role, undoing).await;
                }
                self.take_away(place, role).await?;
                undoing.is_emptied(member);
                brought = self.bring(place, role, &right, &[from]).await;
            }
            match self.unless_out(member, brought) {
                Err(error) if is_full(&error) => undone = Undone::TakenBackOnSome,
                // What was there before has expired (seed 6281 of the worlds).
                Err(Error::NotFound) => {
                    self.take_away(place, role).await?;
                    undoing.is_done(member);
                }
                // Its head could be read (seed 4115).
                Err(Error::Unreadable(_)) => return self.push_any(place, undoing).await,
                brought => {
                    brought?;
                    undoing.is_done(member);
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

    /// Gives what was written to all, from one that has it and can be read: what was there before cannot.
    async fn push_any(self: &Rc<Self>, place: &Place, undoing: &mut Undoing) -> Result<Undone> {
        let has_it = |role: &usize| undoing.taken.contains(&self.member_of(place, *role));
        let new: Vec<usize> = self.all_roles().into_iter().filter(has_it).collect();
        match self.told_by_any(place, new).await? {
            None | Some((_, Told::Unreadable)) => Err(unreadable()),
            Some((role, _)) => self.push_through(place, role, undoing).await,
        }
    }

    /// Gives what one role has of what was written to all that have something else.
    async fn push_through(
        self: &Rc<Self>,
        place: &Place,
        from: usize,
        undoing: &mut Undoing,
    ) -> Result<Undone> {
        let (right, mut undone) = (self.told_by(place, from).await?, Undone::Stands);
        if right == Told::Unreadable {
            return Err(unreadable());
        }
        let is_in = |role: &usize| self.readable(self.member_of(place, *role)).is_some();
        for role in self.all_roles().into_iter().filter(|role| *role != from && is_in(role)) {
            let member = self.member_of(place, role);
            let told = self.told_by(place, role).await;
            match self.unless_out(member, told)? {
                Some(told) if !told.is_as(&right) => {}
                _ => continue,
            }
            let mut brought = self.bring(place, role, &right, &[from]).await;
            if brought.as_ref().err().is_some_and(is_full) {
                self.take_away(place, role).await?;
                undoing.is_emptied(member);
                brought = self.bring(place, role, &right, &[from]).await;
            }
            match self.unless_out(member, brought) {
                Err(error) if is_full(&error) => {
                    tracing::warn!(partition = self.partition, %error, "a write reaches a full device later");
                    undone = Undone::StandsOnSome;
                }
                brought => {
                    brought?;
                    undoing.has_it(member);
                }
            }
        }
        // What only it had is lost with it, if some could not be given it.
        match is_in(&from) {
            true => Ok(undone),
            false => Err(unreadable()),
        }
    }
}
