//! Transactions over the members: what is held, prepared and applied here is so on every member that it
//! concerns.
//!
//! Role: the partition's part in a transaction (`plimsoll_kv::transaction`), and the coordinator of its
//! members' parts. Place on the path: beside the operations on single keys.
//!
//! Invariants:
//! * an intent names the members that have it, beside the partitions: after a crash those that are there find
//!   out whether all of them had prepared (`resolve`);
//! * what one member has applied all will;
//! * what nobody else forgets is forgotten when every member has durably applied it.

use crate::array::{Array, Place};
use crate::manner::Manner;
use crate::placement;
use crate::read::{Range, WRONG_OUTPUT};
use crate::send::Sent;
use plimsoll_kv::key_locks::{EverythingGuard, KeyGuard, KeyId};
use plimsoll_kv::transaction::{Action, Held, Outstanding, Status};
use plimsoll_kv::{ContainerId, Device, Error, Op, Output, Result, TransactionId, UploadId};
use plimsoll_reactor::Work;
use plimsoll_reactor::sync::WaitList;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// Marks a participant of an intent as a member of the array, and no partition.
pub(crate) const MEMBER_MARK: u16 = 0x8000;
/// How long applied transactions wait for others, to be forgotten together.
const FORGET_NS: u64 = 100_000_000;

/// Transactions that hold something.
#[derive(Default)]
pub(crate) struct Transactions {
    pub(crate) open: RefCell<BTreeMap<TransactionId, Holding>>,
    /// Applied, and to be forgotten.
    applied: RefCell<Vec<TransactionId>>,
    forgetting: Cell<bool>,
    /// Found prepared at the start: those who know how they end will say so.
    unresolved: RefCell<BTreeSet<TransactionId>>,
    resolved: WaitList,
    /// Applied and not forgotten, and the members that had prepared them: one that went out meanwhile asks
    /// about them when it comes back.
    known: RefCell<BTreeMap<TransactionId, Vec<usize>>>,
    /// How those ended that members held when they went out: they hear of it when they come back.
    owed: RefCell<BTreeMap<usize, Vec<(TransactionId, Action)>>>,
}

impl Transactions {
    /// One is about to be applied that these members had prepared.
    pub(crate) fn applies(&self, id: TransactionId, members: Vec<usize>) {
        self.known.borrow_mut().insert(id, members);
    }

    /// One was found prepared: what it writes is not there to be copied yet.
    pub(crate) fn found(&self, id: TransactionId) {
        self.unresolved.borrow_mut().insert(id);
    }

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
    members: Vec<usize>,
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
        // Of one that was found at the start, all may have.
        let members = prepared.clone().unwrap_or_else(|| (0..self.count()).collect());
        let each = members.iter().map(|member| (*member, self.step(Some(id), Action::Apply, manner)));
        let sent = self.send(each.collect()).await?;
        match sent.refused {
            None | Some(UNKNOWN) => {}
            Some(error) => return Err(error),
        }
        self.transactions.applies(id, members);
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

    /// Members that hold a transaction and have gone out hear later how it ended: it was applied where it was
    /// prepared, and released elsewhere.
    fn owe(&self, id: TransactionId, prepared: &[usize]) {
        let open = self.transactions.open.borrow();
        let Some(holding) = open.get(&id) else { return };
        let mut owed = self.transactions.owed.borrow_mut();
        for member in holding.members.iter().filter(|member| self.writable(**member).is_none()) {
            let end = if prepared.contains(member) { Action::Apply } else { Action::Release };
            owed.entry(*member).or_default().push((id, end));
        }
    }

    /// Tells a member that comes back, without a start in between, how transactions ended that it holds.
    pub(crate) async fn tell_ends(&self, member: usize, device: &Rc<dyn Device>) -> Result<()> {
        let owed = self.transactions.owed.borrow().get(&member).cloned().unwrap_or_default();
        for (id, end) in owed {
            match device.clone().execute(self.step(Some(id), end, &Manner::background())).await {
                // It has been done there.
                Ok(_) | Err(Error::Invalid(_)) => {}
                Err(error) => return Err(error),
            }
        }
        self.owe_nothing(member);
        Ok(())
    }

    /// Another device has taken the place of a member.
    pub(crate) fn owe_nothing(&self, member: usize) {
        self.transactions.owed.borrow_mut().remove(&member);
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

    async fn forget(self: &Rc<Self>, id: TransactionId, manner: &Manner) -> Result<Output> {
        let may_ask = |members: &Vec<usize>| members.iter().any(|member| self.may_claim(*member));
        if self.transactions.known.borrow().get(&id).is_some_and(may_ask) {
            return Ok(Output::Done); // It is when the array is opened next.
        }
        let each = (0..self.count()).map(|member| (member, self.step(Some(id), Action::Forget, manner)));
        let sent = self.send(each.collect()).await?;
        sent.refused.map_or(Ok(()), Err)?;
        self.transactions.known.borrow_mut().remove(&id);
        Ok(Output::Done)
    }

    /// Forgets what has been applied, a little later, together with others.
    pub(crate) fn forget_soon(self: &Rc<Self>, id: TransactionId) {
        self.transactions.applied.borrow_mut().push(id);
        if self.transactions.forgetting.replace(true) {
            return;
        }
        let array = self.clone();
        self.reactor.spawn(Work::Background, async move {
            array.reactor.sleep_ns(FORGET_NS).await;
            array.transactions.forgetting.set(false);
            let applied = array.transactions.applied.take();
            let manner = Manner::background();
            // What cannot be forgotten now is when the array is opened next.
            if array.closing.get() || array.sync(&manner).await.is_err() {
                return;
            }
            for id in applied {
                if array.forget(id, &manner).await.is_err() {
                    return;
                }
            }
        });
    }

    /// How far a transaction is on the members that it names.
    pub(crate) async fn status_of(self: &Rc<Self>, id: TransactionId) -> Result<Status> {
        let known = self.outstanding().await?.into_iter().find(|(known, _)| known.id == id);
        if let Some((known, _)) = known {
            return Ok(known.status);
        }
        let mut furthest = Status::Unknown;
        for member in 0..self.count() {
            match self.status_at(member, id).await? {
                Some(Status::Applied) => return Ok(Status::Applied),
                Some(Status::Prepared) => furthest = Status::Prepared,
                Some(Status::Unknown) | None => {}
            }
        }
        Ok(furthest)
    }

    /// How far a transaction is on a member, if that may be asked.
    async fn status_at(self: &Rc<Self>, member: usize, id: TransactionId) -> Result<Option<Status>> {
        let Some(device) = self.readable(member) else { return Ok(None) };
        let request = self.step(Some(id), Action::Status, &Manner::background());
        match device.execute(request).await?.output {
            Output::Status(status) => Ok(Some(status)),
            _ => Err(WRONG_OUTPUT),
        }
    }

    /// The transactions that the members had prepared or applied when they were opened, as this partition's:
    /// with the members that they name.
    pub(crate) async fn outstanding(self: &Rc<Self>) -> Result<Vec<(Outstanding, Vec<usize>)>> {
        let mut all: BTreeMap<TransactionId, Vec<u16>> = BTreeMap::new();
        for member in 0..self.count() {
            let Some(device) = self.readable(member) else { continue };
            let request = self.step(None, Action::Outstanding, &Manner::background());
            let Output::Outstanding(known) = device.execute(request).await?.output else {
                return Err(WRONG_OUTPUT);
            };
            all.extend(known.into_iter().map(|known| (known.id, known.participants)));
        }
        let mut merged = Vec::new();
        for (id, participants) in all {
            let (members, participants): (Vec<u16>, Vec<u16>) =
                participants.into_iter().partition(|participant| participant & MEMBER_MARK != 0);
            let members: Vec<usize> =
                members.into_iter().map(|mark| usize::from(mark & !MEMBER_MARK)).collect();
            let mut status = Status::Prepared;
            for member in members.iter().filter(|member| **member < self.count()) {
                match self.status_at(*member, id).await? {
                    Some(Status::Applied) => status = Status::Applied,
                    Some(Status::Unknown) if status == Status::Prepared => status = Status::Unknown,
                    _ => {}
                }
            }
            merged.push((Outstanding { id, participants, status }, members));
        }
        Ok(merged)
    }
}
