//! Deleting: a key goes from every member that holds it, and leaves what others of its set need.
//!
//! Place on the path: every delete, and changes of expiry that are one. The key is held, what it is in is
//! looked at, and each member gets one batch as it does of a store (`write`).
//!
//! Invariants:
//! * a packed value goes only once its set has what it needs of it: where there is no room for that it stays;
//! * on devices that are too full to name it a delete goes on: what may be half done then is found by
//!   comparing every key.

use crate::array::{Array, Place};
use crate::before::{Leaving, Seen, roles_seen};
use crate::journal::Slot;
use crate::leave::Membership;
use crate::manner::Manner;
use crate::placement;
use crate::send::Sent;
use crate::write::{Change, first_output, is_full, judge};
use plimsoll_kv::{Condition, Deleted, Error, Op, Output, Result};
use std::rc::Rc;

impl Array {
    pub(crate) async fn delete(
        self: &Rc<Self>,
        place: &Place,
        condition: Condition,
        manner: &Manner,
    ) -> Result<Output> {
        let _guard = self.hold_full(place).await?;
        let mut seen = None;
        // Members know by themselves whether it is there; which version, each knows of its own.
        if let Condition::IfVersion(_) = condition {
            let found = self.look(place, Some((0, 0)), manner).await?;
            seen = Some(roles_seen(found.as_ref()));
            let Some((item, _)) = found else { return Err(Error::NotFound) };
            judge(condition, Some(&item))?;
        }
        if let Some(picker) = &self.picker {
            picker.note_delete();
        }
        let slot = self.journal.slot().await;
        let done = self.write_delete(place, (slot, seen), manner).await?;
        let deleted = done.into_iter().map(|(member, output)| (member, first_output(output)));
        self.first_deleted(place, deleted.collect()).ok_or(Error::NotFound)
    }

    /// What the first member gave that read what it deleted. One that could not knows neither its version nor
    /// whether it had expired: it counts where no other has told that there was nothing. One that is not in
    /// may have had what the others know nothing of (seed 11238 of the worlds).
    fn first_deleted(&self, place: &Place, told: Vec<(usize, Output)>) -> Option<Output> {
        let role = |member: usize| placement::role(place.primary, member, self.count());
        let is_in = |(member, _): &(usize, Output)| self.readable(*member).is_some();
        let told: Vec<_> = told.into_iter().filter(is_in).collect();
        let is_sure = |member: usize| role(member) < self.forms.sure_roles();
        let was_absent = told.iter().any(|(member, output)| *output == Output::Done && is_sure(*member));
        let is_unread = |output: &Output| *output == Output::Deleted(Deleted::Unreadable);
        let (unread, others): (Vec<_>, Vec<_>) = told.into_iter().partition(|(_, output)| is_unread(output));
        let read = others.into_iter().filter(|(_, output)| matches!(output, Output::Deleted(_))).collect();
        let first = self.first_of(place, read).ok();
        first.or_else(|| self.first_of(place, unread).ok().filter(|_| !was_absent))
    }

    /// Takes a held key away; what each member says of it.
    pub(crate) async fn write_delete(
        self: &Rc<Self>,
        place: &Place,
        (slot, seen): (Slot, Seen),
        manner: &Manner,
    ) -> Result<Vec<(usize, Output)>> {
        self.keep_nothing(place).await?;
        let Leaving { roles, membership, mut ghost } = self.before_delete(place, seen, manner).await?;
        let has_ghost = ghost.is_some();
        let before = self.take_kept(place);
        // What has fewer pieces than others stands in its first roles alone.
        let sure_roles = self.forms.sure_roles();
        let roles =
            (0..roles.max(sure_roles)).filter(|role| *role < sure_roles || !self.role_lacks(place, *role));
        let requests = roles.map(|role| {
            let (container, key) = (placement::container(place.container, role), place.key.clone());
            // Where it is not there, it need not be named.
            let delete = Op::Delete { container, key, condition: Condition::MustExist };
            let entry = slot.entry(place.container, &place.key);
            let ghost = if role == 0 { ghost.take() } else { None };
            let batch = [delete, entry].into_iter().chain(ghost).collect();
            (self.member_of(place, role), manner.request(Op::Batch(batch)).making_room())
        });
        let requests = requests.collect();
        let written = match self.write(place, (slot, Change::Delete), requests).await {
            Err(error) if is_full(&error) => {
                match self.delete_on_full(place, has_ghost.then_some(&membership), manner).await {
                    Err(error) if is_full(&error) => Err(self.not_deleted(place, error).await),
                    deleted => deleted,
                }
            }
            written => written.map(|(done, _)| done),
        };
        match (&written, membership) {
            (Err(_), _) => self.restore_kept(place, before),
            (Ok(_), Membership::Of { version, stub, .. }) if has_ghost => {
                self.lost_value(place, version, &stub)
            }
            (Ok(_), Membership::Of { stub, .. }) => self.regroup_later(place.container, &stub),
            (Ok(_), _) => {}
        }
        written
    }

    /// Deletes a key on devices that refused to. What the others of its set need of it is kept first: where
    /// there is no room for that it stays, as they would be lost with the next device.
    async fn delete_on_full(
        self: &Rc<Self>,
        place: &Place,
        keeps: Option<&Membership>,
        manner: &Manner,
    ) -> Result<Vec<(usize, Output)>> {
        if let Some(membership) = keeps
            && let Some(ghost) = self.ghost_of(place, membership, (manner, false)).await?
        {
            let sent = self.send(vec![(place.primary, manner.request(ghost).making_room())]).await?;
            sent.refused.map_or(Ok(()), Err)?;
        }
        self.delete_unnamed(place, manner).await
    }

    /// What is told of a delete that was refused: that nothing was done, if those that took it have the held
    /// key again.
    async fn not_deleted(self: &Rc<Self>, place: &Place, error: Error) -> Error {
        let is_suspect = || self.unsettled.borrow().contains(&(place.container, place.key.clone()));
        match self.settle(place).await {
            Ok(()) if !is_suspect() => error,
            _ => {
                self.settle_soon();
                self.not_undone(error)
            }
        }
    }

    /// Deletes a key on devices that are so full that they take no name of it. What a crash leaves half done
    /// is found by comparing every key: the mark that says otherwise goes first.
    async fn delete_unnamed(self: &Rc<Self>, place: &Place, manner: &Manner) -> Result<Vec<(usize, Output)>> {
        self.unmark_named().await?;
        let each = (0..self.roles)
            .map(|role| (self.member_of(place, role), manner.request(self.delete_op(place, role))));
        let sent = self.send(each.collect()).await;
        if !matches!(sent, Ok(Sent { refused: None, .. })) {
            self.suspect(place);
        }
        let Sent { done, refused } = sent?;
        refused.map_or(Ok(()), Err)?;
        if !self.is_enough(place, &done, Change::Delete.needed()) {
            self.suspect(place);
            return Err(self.nowhere(place, Change::Delete.needed()));
        }
        Ok(done)
    }

    pub(crate) fn delete_op(&self, place: &Place, role: usize) -> Op {
        let container = placement::container(place.container, role);
        Op::Delete { container, key: place.key.clone(), condition: Condition::None }
    }
}
