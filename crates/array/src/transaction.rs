//! Transactions over the members: what is held, prepared and applied here is so on every member that it
//! concerns.
//!
//! Role: the partition's part in a transaction (`plimsoll_kv::transaction`), and the coordinator of its
//! members' parts. Place on the path: beside the operations on single keys.
//!
//! Invariants:
//! * an intent names the members that have it, beside the partitions: after a crash those that are there find
//!   out whether all of them had prepared (`outstanding`);
//! * what one member has applied all will.

use crate::array::{Array, Place};
use crate::manner::Manner;
use crate::outstanding::Known;
use crate::placement;
use crate::read::{Range, WRONG_OUTPUT};
use crate::send::Sent;
use plimsoll_kv::key_locks::{EverythingGuard, KeyGuard, KeyId};
use plimsoll_kv::transaction::{Action, Held, Status};
use plimsoll_kv::{ContainerId, Error, Op, Output, Result, TransactionId, UploadId};
use plimsoll_reactor::sync::WaitList;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// Marks a participant of an intent as a member of the array, and no partition.
pub(crate) const MEMBER_MARK: u16 = 0x8000;

/// Transactions that hold something.
#[derive(Default)]
pub(crate) struct Transactions {
    pub(crate) open: RefCell<BTreeMap<TransactionId, Holding>>,
    /// What was prepared or applied, and may be asked about.
    pub(crate) outstanding: Known,
    /// Found prepared at the start, with the members that they name: those who know how they end will say so.
    pub(crate) unresolved: RefCell<BTreeMap<TransactionId, Vec<usize>>>,
    resolved: WaitList,
}

impl Transactions {
    fn ended(&self, id: TransactionId) {
        self.unresolved.borrow_mut().remove(&id);
        self.wake();
    }

    /// True if none that was found at the start holds its keys any more.
    pub(crate) fn have_all_ended(&self) -> bool {
        self.unresolved.borrow().is_empty()
    }

    /// Waits until all that were found have ended, or `gives_up` says so.
    pub(crate) async fn all_ended(&self, gives_up: impl Fn() -> bool) {
        let done = || self.have_all_ended() || gives_up();
        self.resolved.wait_for(|| done().then_some(())).await;
    }

    /// Lets those who wait look whether they give up.
    pub(crate) fn wake(&self) {
        self.resolved.wake_all();
    }
}

/// What a transaction holds.
pub(crate) struct Holding {
    _keys: Vec<KeyGuard>,
    pub(crate) ids: BTreeSet<KeyId>,
    pub(crate) everything: Option<EverythingGuard>,
    /// The members that hold it, too.
    pub(crate) members: Vec<usize>,
    /// Those of them that have prepared.
    prepared: Vec<usize>,
    /// Uploads that become values when it is applied.
    pub(crate) uploads: Vec<(Place, UploadId)>,
}

pub(crate) const UNKNOWN: Error = Error::Invalid("no such transaction");

impl Array {
    pub(crate) async fn transact(
        self: &Rc<Self>,
        id: Option<TransactionId>,
        action: Action,
        manner: &Manner,
    ) -> Result<Output> {
        let named = id.ok_or(UNKNOWN);
        match action {
            Action::Hold(held) => self.hold_for(id, held, manner).await,
            Action::Retrieve { container, key, range, pin } => {
                self.retrieve_held(named?, &self.place(container, &key)?, range, pin, manner).await
            }
            Action::Commit { writes } if writes.is_empty() => self.release(named?, manner).await,
            // Several devices do not write at one instant.
            Action::Commit { writes } => {
                self.prepare(named?, vec![self.partition], writes, manner).await?;
                Ok(Output::Status(Status::Prepared))
            }
            Action::Prepare { participants, writes } => {
                self.prepare(named?, participants, writes, manner).await.map(|_| Output::Done)
            }
            Action::Apply => self.apply(named?, manner).await,
            Action::Release => self.release(named?, manner).await,
            Action::Forget => self.forget(named?, manner).await,
            Action::Status => Ok(Output::Status(self.status_of(named?).await?)),
            Action::Outstanding => {
                let outstanding = self.outstanding().await?.into_iter();
                Ok(Output::Outstanding(outstanding.map(|(known, _)| known).collect()))
            }
        }
    }

    pub(crate) fn step(
        &self,
        id: Option<TransactionId>,
        action: Action,
        manner: &Manner,
    ) -> plimsoll_kv::Request {
        manner.request(Op::Transaction { partition: self.partition, id, action })
    }

    async fn hold_for(
        self: &Rc<Self>,
        id: Option<TransactionId>,
        held: Held,
        manner: &Manner,
    ) -> Result<Output> {
        let places: Vec<Place> =
            held.keys.iter().map(|(container, key)| self.place(*container, key)).collect::<Result<_>>()?;
        let id =
            id.unwrap_or_else(|| TransactionId { partition: self.partition, version: self.next_version() });
        let ids: BTreeSet<KeyId> = places.iter().map(|place| place.id).collect();
        let (mut keys, mut everything) = (Vec::new(), None);
        if held.everything {
            everything = Some(self.locks.lock_everything().await);
            self.settle_all(true).await?;
            if self.forms.are_mixed() {
                self.finish_all_kept().await;
            }
        } else {
            keys = self.locks.keep(&ids.iter().copied().collect::<Vec<_>>()).await;
            for place in &places {
                match self.settle(place).await {
                    // What it deletes may make the room.
                    Ok(()) | Err(Error::NoSpace | Error::NoMemory) => {}
                    Err(error) => return Err(error),
                }
                // What goes in the background goes by what the key was made into before.
                if self.forms.are_mixed() {
                    self.finish_kept(place).await;
                }
                match self.leave_set(place, manner).await {
                    // What it deletes may make the room; so may others.
                    Ok(()) | Err(Error::NoSpace | Error::NoMemory) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        let below = self.held_below(&places, held.everything);
        let members = below.keys().copied().filter(|member| self.writable(*member).is_some()).collect();
        let holding =
            Holding { _keys: keys, ids, everything, members, prepared: Vec::new(), uploads: Vec::new() };
        let before = self.transactions.open.borrow_mut().insert(id, holding);
        assert!(before.is_none(), "a transaction holds at a partition once");
        let each = below.into_iter();
        let each = each.map(|(member, held)| (member, self.step(Some(id), Action::Hold(held), manner)));
        let sent = self.send(each.collect()).await;
        match sent.and_then(|sent| sent.refused.map_or(Ok(()), Err)) {
            Ok(()) => Ok(Output::Held(id)),
            Err(error) => {
                // Whoever holds it already gives it back.
                let _ = self.release(id, manner).await;
                Err(error)
            }
        }
    }

    /// What each member is asked to hold.
    fn held_below(&self, places: &[Place], everything: bool) -> BTreeMap<usize, Held> {
        if everything {
            return (0..self.count()).map(|member| (member, Held::everything())).collect();
        }
        let mut below: BTreeMap<usize, Held> = BTreeMap::new();
        for place in places {
            for role in 0..self.roles {
                let held = below.entry(self.member_of(place, role)).or_default();
                held.keys.push((placement::container(place.container, role), place.key.clone()));
            }
        }
        below
    }

    /// True for what a transaction asks that holds everything.
    pub(crate) fn holds_everything(&self, manner: &Manner) -> bool {
        let open = self.transactions.open.borrow();
        let holding = manner.transaction().and_then(|id| open.get(&id));
        holding.is_some_and(|holding| holding.everything.is_some())
    }

    pub(crate) fn check_held(&self, id: TransactionId, place: &Place) -> Result<()> {
        let open = self.transactions.open.borrow();
        let holding = open.get(&id).ok_or(UNKNOWN)?;
        if holding.everything.is_some() || holding.ids.contains(&place.id) {
            return Ok(());
        }
        Err(Error::Invalid("a key that the transaction does not hold"))
    }

    async fn retrieve_held(
        self: &Rc<Self>,
        id: TransactionId,
        place: &Place,
        range: Range,
        pin: bool,
        manner: &Manner,
    ) -> Result<Output> {
        self.check_held(id, place)?;
        let manner = manner.within(self.partition, id);
        let (item, form) = self.read(place, range, &manner).await?;
        if pin && item.upload.is_some() {
            return self.pin_everywhere(place, (item, form), &manner).await.map(Output::Found);
        }
        Ok(Output::Found(item))
    }

    async fn prepare(
        self: &Rc<Self>,
        id: TransactionId,
        participants: Vec<u16>,
        writes: Vec<Op>,
        manner: &Manner,
    ) -> Result<()> {
        if writes.iter().any(|write| matches!(write, Op::Clear { .. })) {
            self.check_claims()?;
        }
        let (mut below, places) = self.writes_below(id, writes)?;
        self.add_ghosts(id, &places, &mut below, manner).await?;
        let all_enough = || match places.iter().find(|(place, needed)| !self.has_enough(place, *needed)) {
            Some((place, needed)) => Err(self.nowhere(place, *needed)),
            None => Ok(()),
        };
        all_enough()?;
        let marks = below.keys().map(|member| MEMBER_MARK | *member as u16);
        let participants: Vec<u16> = participants.into_iter().chain(marks).collect();
        let each = below.into_iter().map(|(member, writes)| {
            let action = Action::Prepare { participants: participants.clone(), writes };
            (member, self.step(Some(id), action, manner))
        });
        let Sent { done, refused } = self.send(each.collect()).await?;
        if let Some(error) = refused {
            return Err(error);
        }
        // Members may have gone out over it.
        all_enough()?;
        if done.is_empty() {
            return Err(Error::ReadOnly("every device of the keys is out".to_owned()));
        }
        if let Some(holding) = self.transactions.open.borrow_mut().get_mut(&id) {
            holding.prepared = done.into_iter().map(|(member, _)| member).collect();
        }
        Ok(())
    }

    /// Empties a container.
    pub(crate) async fn clear(self: &Rc<Self>, container: ContainerId, manner: &Manner) -> Result<Output> {
        let Output::Held(id) = self.hold_for(None, Held::everything(), manner).await? else {
            return Err(WRONG_OUTPUT);
        };
        if let Err(error) =
            self.prepare(id, vec![self.partition], vec![Op::Clear { container }], manner).await
        {
            let _ = self.release(id, manner).await;
            return Err(error);
        }
        self.apply(id, manner).await?;
        self.forget_soon(id);
        Ok(Output::Done)
    }

    async fn apply(self: &Rc<Self>, id: TransactionId, manner: &Manner) -> Result<Output> {
        let prepared = self.transactions.open.borrow().get(&id).map(|holding| holding.prepared.clone());
        // Of one that was found at the start, those that it names have, or all may.
        let members = prepared.clone().or_else(|| self.transactions.unresolved.borrow().get(&id).cloned());
        let members = members.unwrap_or_else(|| (0..self.count()).collect());
        let each = members.iter().map(|member| (*member, self.step(Some(id), Action::Apply, manner)));
        let sent = self.send(each.collect()).await?;
        match sent.refused {
            None | Some(UNKNOWN) => {}
            Some(error) => return Err(error),
        }
        self.transactions.outstanding.applied(id, members);
        self.release_unwritten(id, manner).await;
        self.owe(id, &prepared.unwrap_or_default());
        let uploads = {
            let mut open = self.transactions.open.borrow_mut();
            open.get_mut(&id).map(|holding| std::mem::take(&mut holding.uploads)).unwrap_or_default()
        };
        for (place, upload) in uploads {
            let (form, at) = self.upload_at(upload)?;
            self.upload_stored(upload);
            self.complete_joined_at(&place, form, |role| at.iter().any(|(has, _)| *has == role)).await?;
        }
        drop(self.end(id));
        self.transactions.ended(id);
        Ok(Output::Done)
    }

    /// The members that hold a transaction; of one that was found at the start, all may.
    fn members_of(&self, id: TransactionId) -> Vec<usize> {
        let open = self.transactions.open.borrow();
        open.get(&id).map_or_else(|| (0..self.count()).collect(), |holding| holding.members.clone())
    }

    fn end(&self, id: TransactionId) -> Option<Holding> {
        self.transactions.open.borrow_mut().remove(&id)
    }

    /// Members that held something and had nothing to write give it back.
    async fn release_unwritten(self: &Rc<Self>, id: TransactionId, manner: &Manner) {
        for member in self.members_of(id) {
            if let Some(device) = self.writable(member) {
                // Those that have applied know of nothing to release.
                let _ = device.execute(self.step(Some(id), Action::Release, manner)).await;
            }
        }
    }

    async fn release(self: &Rc<Self>, id: TransactionId, manner: &Manner) -> Result<Output> {
        let members = self.members_of(id);
        let each = members.into_iter().map(|member| (member, self.step(Some(id), Action::Release, manner)));
        let sent = self.send(each.collect()).await?;
        self.owe(id, &[]);
        let was_open = self.end(id).is_some();
        self.transactions.ended(id);
        match sent.refused {
            Some(UNKNOWN) | None if was_open || !sent.done.is_empty() => Ok(Output::Done),
            None => Err(UNKNOWN),
            Some(error) => Err(error),
        }
    }
}
