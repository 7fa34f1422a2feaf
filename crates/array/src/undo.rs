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
    /// They had it, and have what was there before.
    restored: Vec<usize>,
}

impl Undoing {
    fn forget(&mut self, member: usize) {
        for each in [&mut self.taken, &mut self.emptied, &mut self.restored] {
            each.retain(|other| *other != member);
        }
    }

    fn is_restored(&mut self, member: usize) {
        self.forget(member);
        self.restored.push(member);
    }

    fn is_emptied(&mut self, member: usize) {
        self.forget(member);
        self.emptied.push(member);
    }

    fn has_it(&mut self, member: usize) {
        self.forget(member);
        self.taken.push(member);
    }
}

fn unreadable() -> Error {
    Error::Unreadable("the version before the write".to_owned())
}

/// What can be read first, and all roles that have the same.
fn told_alike(told: &[(usize, Told)]) -> Option<(Told, Vec<usize>)> {
    let (_, right) = told.iter().find(|(_, told)| *told != Told::Unreadable)?;
    let alike = told.iter().filter(|(_, told)| told.is_as(right)).map(|(role, _)| *role);
    Some((right.clone(), alike.collect()))
}

impl Array {
    /// Takes back what some members took of a write that others refused: what those still have is right. The
    /// write stands if they are out by now, or if what it replaced has no room any more.
    pub(crate) async fn undo(self: &Rc<Self>, place: &Place, taken: &[usize]) -> Result<Undone> {
        let mut undoing = Undoing { taken: taken.to_vec(), emptied: Vec::new(), restored: Vec::new() };
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
                undoing.is_restored(member);
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
        let told = self.told_by_each(place, old).await?;
        let is_in = !told.is_empty();
        let Some((right, sources)) = told_alike(&told) else {
            // Who refused is not relied on: those that took it are the array now. But one that is being
            // filled may have been given what nobody else has any more (seed 12041 of the worlds).
            let stands = !is_in && undoing.emptied.is_empty() && undoing.restored.is_empty();
            return if stands { Ok(Undone::Stands) } else { self.push_any(place, undoing).await };
        };
        let mut undone = Undone::TakenBack;
        for role in changed {
            let is_right = (&right, &sources[..]);
            match self.restore(place, role, is_right, (undone, undoing)).await? {
                Undone::TakenBack => {}
                Undone::TakenBackOnSome => undone = Undone::TakenBackOnSome,
                stands => return Ok(stands),
            }
        }
        Ok(undone)
    }

    /// Gives a member what was there before; where that cannot be had all get the write.
    async fn restore(
        self: &Rc<Self>,
        place: &Place,
        role: usize,
        (right, sources): (&Told, &[usize]),
        (undone, undoing): (Undone, &mut Undoing),
    ) -> Result<Undone> {
        let member = self.member_of(place, role);
        if self.state(member) == MemberState::Out {
            return Ok(undone);
        }
        let mut has_it = undoing.taken.contains(&member);
        if undone == Undone::TakenBackOnSome && has_it {
            // What was refused would be the newest that is left.
            self.take_away(place, role, undoing).await?;
            has_it = false;
        }
        let mut brought = self.bring(place, role, right, sources).await;
        if has_it && brought.as_ref().err().is_some_and(is_full) {
            if self.is_shorter(place, (role, sources[0])).await? {
                return self.push_through(place, role, undoing).await;
            }
            self.take_away(place, role, undoing).await?;
            brought = self.bring(place, role, right, sources).await;
        }
        match self.unless_out(member, brought) {
            Err(error) if is_full(&error) => return Ok(Undone::TakenBackOnSome),
            // What was there before has expired (seed 6281 of the worlds).
            Err(Error::NotFound) => self.take_away(place, role, undoing).await?,
            // Its head could be read (seed 4115).
            Err(Error::Unreadable(_)) => return self.push_any(place, undoing).await,
            brought => drop(brought?),
        }
        undoing.is_restored(member);
        Ok(Undone::TakenBack)
    }

    /// Takes away what a member has of a key, unless it goes out over it.
    async fn take_away(self: &Rc<Self>, place: &Place, role: usize, undoing: &mut Undoing) -> Result<()> {
        let member = self.member_of(place, role);
        let deleted = self.sent_one(member, self.delete_op(place, role)).await;
        self.unless_out(member, deleted)?;
        undoing.is_emptied(member);
        Ok(())
    }

    /// What stands in each of these roles that is in.
    async fn told_by_each(self: &Rc<Self>, place: &Place, roles: Vec<usize>) -> Result<Vec<(usize, Told)>> {
        let mut told = Vec::new();
        for role in roles {
            let member = self.member_of(place, role);
            if self.readable(member).is_some() {
                let its = self.told_by(place, role).await;
                told.extend(self.unless_out(member, its)?.map(|its| (role, its)));
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
        match told_alike(&self.told_by_each(place, new).await?) {
            Some((_, roles)) => self.push_through(place, roles[0], undoing).await,
            None => Err(unreadable()),
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
        for role in self.all_roles().into_iter().filter(|role| *role != from) {
            let member = self.member_of(place, role);
            // Those that are being filled, too.
            let Some(device) = self.writable(member) else { continue };
            let told = self.ask(&device, (place, role), Proof::Start, &Manner::background()).await;
            match self.unless_out(member, told)? {
                Some(told) if !told.is_as(&right) => {}
                _ => continue,
            }
            let mut brought = self.bring(place, role, &right, &[from]).await;
            if brought.as_ref().err().is_some_and(is_full) {
                self.take_away(place, role, undoing).await?;
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
        match self.readable(self.member_of(place, from)).is_some() {
            true => Ok(undone),
            false => Err(unreadable()),
        }
    }
}
