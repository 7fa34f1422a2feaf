//! Outstanding transactions: prepared or applied, and not forgotten by all that may ask about them.
//!
//! Role: finds how far they are on the members, at a start and when others ask; forgets what has been
//! applied; tells members that come back how those ended that they hold. Place on the path: behind
//! `transaction`.
//!
//! Invariants:
//! * what was applied is forgotten when every member that had prepared it has durably applied it, or has to
//!   be filled anew: not while one is out that may come back with what it has (`claims`);
//! * the members that a transaction names are known from when it was found or applied until it is forgotten:
//!   who asks about one asks those, and looks through no others.

use crate::array::Array;
use crate::manner::Manner;
use crate::read::WRONG_OUTPUT;
use crate::transaction::MEMBER_MARK;
use plimsoll_kv::transaction::{Action, Outstanding, Status};
use plimsoll_kv::{Device, Error, Output, Result, TransactionId};
use plimsoll_reactor::Work;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// How long applied transactions wait for others, to be forgotten together.
const FORGET_NS: u64 = 100_000_000;

/// What is known of transactions that somebody may ask about.
#[derive(Default)]
pub(crate) struct Known {
    /// Applied and not forgotten, and the members that had prepared them.
    applied: RefCell<BTreeMap<TransactionId, Vec<usize>>>,
    /// Of them, those that are forgotten soon.
    to_forget: RefCell<Vec<TransactionId>>,
    forgets: Cell<bool>,
    /// How those ended that members held when they went out: they hear of it when they come back.
    owed: RefCell<BTreeMap<usize, Vec<(TransactionId, Action)>>>,
}

impl Known {
    /// One has been applied that these members had prepared.
    pub(crate) fn applied(&self, id: TransactionId, members: Vec<usize>) {
        self.applied.borrow_mut().insert(id, members);
    }

    /// The members that had prepared one that has been applied.
    fn members_of(&self, id: TransactionId) -> Option<Vec<usize>> {
        self.applied.borrow().get(&id).cloned()
    }
}

impl Array {
    /// Brings transactions that concern this partition alone to their ends, and gives up those that not every
    /// member had prepared. What other partitions take part in is left to them. True if one member at least
    /// had applied each: so all had prepared it that it names, those included that are not asked.
    pub(crate) async fn resolve(self: &Rc<Self>) -> Result<bool> {
        let outstanding = self.outstanding().await?;
        let were_all_applied = outstanding.iter().all(|(known, _)| known.status == Status::Applied);
        for (known, members) in outstanding {
            let alone = known.participants == [self.partition];
            let action = match known.status {
                Status::Unknown => Action::Release,
                Status::Prepared if alone => Action::Apply,
                // Some of the members may have been cut short.
                Status::Applied => Action::Apply,
                Status::Prepared => {
                    self.transactions.unresolved.borrow_mut().insert(known.id, members);
                    continue;
                }
            };
            tracing::debug!(partition = self.partition, transaction = %known.id.version, ?action, "resolved");
            for member in &members {
                let Some(device) = self.writable(*member) else { continue };
                self.end_at(&device, known.id, action.clone()).await?;
            }
            if action == Action::Apply {
                self.transactions.outstanding.applied(known.id, members);
                if alone {
                    self.forget_soon(known.id);
                }
            }
        }
        Ok(were_all_applied)
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
            let members = members.into_iter().map(|mark| usize::from(mark & !MEMBER_MARK));
            let members: Vec<usize> = members.filter(|member| *member < self.count()).collect();
            let status = self.status_among(&members, id).await?;
            merged.push((Outstanding { id, participants, status }, members));
        }
        Ok(merged)
    }

    /// How far a transaction is on the members that it names.
    pub(crate) async fn status_of(self: &Rc<Self>, id: TransactionId) -> Result<Status> {
        let found = self.transactions.unresolved.borrow().get(&id).cloned();
        if let Some(members) = found.or_else(|| self.transactions.outstanding.members_of(id)) {
            return self.status_among(&members, id).await;
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

    /// How far a transaction is on the members that it names, of which all have to have prepared it.
    async fn status_among(self: &Rc<Self>, members: &[usize], id: TransactionId) -> Result<Status> {
        let mut status = Status::Prepared;
        for member in members {
            match self.status_at(*member, id).await? {
                Some(Status::Applied) => status = Status::Applied,
                Some(Status::Unknown) if status == Status::Prepared => status = Status::Unknown,
                _ => {}
            }
        }
        Ok(status)
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

    pub(crate) async fn forget(self: &Rc<Self>, id: TransactionId, manner: &Manner) -> Result<Output> {
        let members = self.transactions.outstanding.members_of(id).unwrap_or_default();
        if members.into_iter().any(|member| self.may_claim(member)) {
            return Ok(Output::Done); // It is when the array is opened next.
        }
        let each = (0..self.count()).map(|member| (member, self.step(Some(id), Action::Forget, manner)));
        let sent = self.send(each.collect()).await?;
        sent.refused.map_or(Ok(()), Err)?;
        self.transactions.outstanding.applied.borrow_mut().remove(&id);
        Ok(Output::Done)
    }

    /// Forgets what has been applied, a little later, together with others.
    pub(crate) fn forget_soon(self: &Rc<Self>, id: TransactionId) {
        self.transactions.outstanding.to_forget.borrow_mut().push(id);
        if self.transactions.outstanding.forgets.replace(true) {
            return;
        }
        let array = self.clone();
        self.reactor.spawn(Work::Background, async move {
            array.reactor.sleep_ns(FORGET_NS).await;
            array.transactions.outstanding.forgets.set(false);
            let applied = array.transactions.outstanding.to_forget.take();
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

    /// Members that hold a transaction and have gone out hear later how it ended: it was applied where it was
    /// prepared, and released elsewhere.
    pub(crate) fn owe(&self, id: TransactionId, prepared: &[usize]) {
        let open = self.transactions.open.borrow();
        let Some(holding) = open.get(&id) else { return };
        let mut owed = self.transactions.outstanding.owed.borrow_mut();
        for member in holding.members.iter().filter(|member| self.writable(**member).is_none()) {
            let end = if prepared.contains(member) { Action::Apply } else { Action::Release };
            owed.entry(*member).or_default().push((id, end));
        }
    }

    /// Tells a member that comes back, without a start in between, how transactions ended that it holds.
    pub(crate) async fn tell_ends(&self, member: usize, device: &Rc<dyn Device>) -> Result<()> {
        let owed = self.transactions.outstanding.owed.borrow().get(&member).cloned().unwrap_or_default();
        for (id, end) in owed {
            self.end_at(device, id, end).await?;
        }
        self.owe_nothing(member);
        Ok(())
    }

    /// Another device has taken the place of a member.
    pub(crate) fn owe_nothing(&self, member: usize) {
        self.transactions.outstanding.owed.borrow_mut().remove(&member);
    }

    /// Ends transactions that were prepared on a member, before a start, that comes back with what it has: as
    /// others have ended them.
    pub(crate) async fn end_prepared(self: &Rc<Self>, member: usize, device: &Rc<dyn Device>) -> Result<()> {
        let known =
            device.clone().execute(self.step(None, Action::Outstanding, &Manner::background())).await?;
        let Output::Outstanding(known) = known.output else { return Err(WRONG_OUTPUT) };
        for Outstanding { id, participants, .. } in known {
            let is_other = |it: &u16| it & MEMBER_MARK != 0 && *it != MEMBER_MARK | member as u16;
            let end = match self.status_of(id).await? {
                Status::Applied => Action::Apply,
                // Nobody else here was to have it: it went out between preparing and applying it.
                _ if !participants.iter().any(is_other) => Action::Apply,
                Status::Prepared | Status::Unknown => Action::Release,
            };
            self.end_at(device, id, end).await?;
        }
        Ok(())
    }

    /// Ends a transaction on a member.
    async fn end_at(&self, device: &Rc<dyn Device>, id: TransactionId, end: Action) -> Result<()> {
        match device.clone().execute(self.step(Some(id), end, &Manner::background())).await {
            // It has been done there.
            Ok(_) | Err(Error::Invalid(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }
}
