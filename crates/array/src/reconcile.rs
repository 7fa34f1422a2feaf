//! Reconciling: making the pieces of one key those of one version again.
//!
//! Role: what is done with a key that may differ between members: it was named in the journal when the server
//! died, a write of it could be made on some members only, a copy of it could not be read, a scrub looks at
//! it. Place on the path: before an unsettled key is read or written.
//!
//! Invariants:
//! * the newest version of which there are enough pieces wins: if it was acknowledged every member that is in
//!   has one; if it was not, old and new are both right, and from here on there is one;
//! * a version of which there are too few pieces is put back only where others contradict it: where all that
//!   can be read agree, pieces are lost, and that is an error;
//! * a copy that only some members have is given to the others: an unfinished delete may be undone;
//! * the key is held from the first look to the last write.

use crate::array::{Array, Place};
use crate::manner::Manner;
use crate::member::gives_nothing;
use crate::placement;
use crate::recover::SetState;
use crate::roster::MemberState;
use crate::send::Sent;
use crate::told::{Proof, Told};
use plimsoll_kv::{Condition, Error, Expiry, Form, Op, Output, Request, Result};
use std::rc::Rc;

/// What the set of a key gives of which there are stubs, and no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BySet {
    /// The value.
    Given,
    /// Nothing: it was not finished.
    Unfinished,
    /// Nothing: too much of it is lost.
    Lost,
}

/// Rounds until a key is whole: one to put back what is half written, one to complete what was there before;
/// more only if members go out meanwhile.
const ROUNDS_MAX: usize = 8;
/// The clocks of members differ by less.
pub(crate) const SOON_MS: u64 = 100;

impl Array {
    /// Makes a held key whole, if it may not be. What no member can read stays as it is: its reader is told
    /// so, and a write takes its place. So does, until some are back, what may not be changed: they have not
    /// been told what became of it, and have to find it named.
    pub(crate) async fn settle(self: &Rc<Self>, place: &Place) -> Result<()> {
        if !self.is_unsettled(place) || !self.may_change(place.primary) {
            return Ok(());
        }
        let mut reconciled = self.reconcile(place, Proof::Record).await;
        // It expired while it was copied, or the member that had it went out.
        while let Err(Error::NotFound) = reconciled {
            reconciled = self.reconcile(place, Proof::Record).await;
        }
        if reconciled.is_ok() && self.forms.has_packed() && self.is_half_written(place) {
            let left = self.leave_unfinished_set(place).await;
            reconciled = match left {
                Ok(()) => self.put_same_stubs(place).await.and(reconciled),
                Err(error) => Err(error),
            };
        }
        match reconciled {
            Ok(_) if self.forms.are_mixed() => {
                if let Some(form) =
                    self.right(&self.ask_all(place, Proof::Record, &Manner::background()).await?).form()
                {
                    self.clear_kept(place, (form, self.roles)).await?;
                }
                drop(self.take_kept(place));
            }
            Ok(_) if self.forms.keeps() => self.release_at_members(place).await,
            Ok(_) => {}
            Err(Error::Unreadable(what)) => {
                if let Some(untold) = self.seldom.not_whole.due(self.reactor.now_ns()) {
                    tracing::error!(partition = self.partition, what, untold, "a key cannot be made whole");
                }
                // What others keep for it helps no more.
                self.cut_short.borrow_mut().remove(&(place.container, place.key.clone()));
                return Ok(());
            }
            Err(error) => return Err(error),
        }
        if !self.may_change(place.primary) {
            return Ok(());
        }
        let key = (place.container, place.key.clone());
        self.half_written.borrow_mut().remove(&key);
        self.cut_short.borrow_mut().remove(&key);
        self.unsettled.borrow_mut().remove(&key);
        Ok(())
    }

    /// Makes every key whole that is known not to be; how many could not be. One that cannot holds up no
    /// other. Who holds everything says so.
    pub(crate) async fn settle_all(self: &Rc<Self>, holds_everything: bool) -> Result<usize> {
        let mut failure = None;
        let unsettled = self.unsettled.borrow().clone();
        for (container, key) in unsettled {
            let place = self.place(container, &key)?;
            let settled = match holds_everything {
                true => self.settle(&place).await,
                false => self.hold(&place).await.map(drop),
            };
            match settled {
                Ok(()) | Err(Error::NoSpace | Error::NoMemory) => {}
                Err(error) => failure = Some(error),
            }
        }
        failure.map_or_else(|| Ok(self.unsettled.borrow().len()), Err)
    }

    /// Makes the pieces of a held key those of one version; how many were not.
    pub(crate) async fn reconcile(self: &Rc<Self>, place: &Place, proof: Proof) -> Result<u64> {
        let (mut put_back, mut proof) = (0, proof);
        for _ in 0..ROUNDS_MAX {
            let told = self.ask_all(place, proof, &Manner::background()).await?;
            let asked: Vec<usize> = told.iter().map(|(role, _)| *role).collect();
            let newest = told.iter().map(|(_, told)| told).max_by_key(|told| told.version());
            let newest = newest.cloned().unwrap_or(Told::Absent);
            let Some(form) = newest.form() else {
                let mended = self.reconcile_absent(place, &told).await?;
                if mended + put_back > 0 {
                    self.bring_along(place, &Told::Absent, (&asked, &[])).await?;
                }
                return Ok(mended);
            };
            let has = |told: &Told| told.version() == newest.version();
            let roles = told.iter().filter(|(_, told)| has(told)).map(|(role, _)| *role);
            let roles: Vec<usize> = roles.collect();
            let is_whole = told.iter().any(|(_, told)| has(told) && !told.is_stub());
            let is_enough = roles.len() >= form.needed();
            let by_set = if is_whole { BySet::Given } else { self.by_set(place, roles[0]).await? };
            if is_enough && by_set == BySet::Given {
                let first = told.iter().find(|(role, _)| *role == roles[0]);
                let right = first.map_or(Told::Absent, |(_, told)| told.clone());
                let mended = match self.complete(place, &right, &roles, told).await {
                    // Of a value in parts no more than its start was read: what has rotted of it is no piece,
                    // and if that leaves too few it was not acknowledged, or is lost (seed 9466).
                    Err(Error::Unreadable(_)) if proof != Proof::All => {
                        proof = Proof::All;
                        continue;
                    }
                    mended => mended?,
                };
                if mended + put_back > 0 {
                    self.bring_along(place, &right, (&asked, &roles)).await?;
                }
                return Ok(mended);
            }
            let contradicts = |(role, told): &&(usize, Told)| {
                *role < form.roles() && !has(told) && *told != Told::Unreadable
            };
            if told.iter().filter(contradicts).count() == 0 && by_set != BySet::Unfinished {
                let words = "of the shards are left, and as many are needed";
                let (left, needed) = (roles.len(), form.needed());
                return Err(Error::Unreadable(format!("{left} {words}: {needed}")));
            }
            // Where members judge differently whether it has expired, what it replaced must not come back.
            if let Some(at_ms) = newest.expiry_ms().filter(|at_ms| *at_ms <= self.now_ms() + SOON_MS) {
                let left_ms = (at_ms + 1).saturating_sub(self.now_ms()).max(1);
                self.reactor.sleep_ns(left_ms * 1_000_000).await;
                continue;
            }
            if !self.may_change(place.primary) {
                return Err(Error::Unreadable(self.too_few(place, form.needed())));
            }
            // A store that some members have not got, or a delete that some have: it was not acknowledged.
            for role in roles {
                let done = self.put_back(place, role).await;
                self.unless_out(self.member_of(place, role), done)?;
                put_back += 1;
            }
        }
        Err(Error::Overloaded)
    }

    /// Whether the value of which there are stubs, as in this role, stands behind that, or the rest of its
    /// set gives it.
    async fn by_set(self: &Rc<Self>, place: &Place, role: usize) -> Result<BySet> {
        let manner = Manner::background();
        let Some(device) = self.readable(self.member_of(place, role)) else { return Ok(BySet::Lost) };
        let recovered = async {
            let piece = self.read_piece(&device, place, role, Some((0, 0)), &manner).await?;
            if piece.has_value {
                return Ok(BySet::Given);
            }
            let stub = piece.stub.clone();
            let lost = match self.recovered(place, piece, &manner).await {
                Ok(_) => return Ok(BySet::Given),
                Err(error) => error,
            };
            if let Some(stub) = stub
                && self.is_half_written(place)
                && self.state_of_set(place.container, &stub, &manner).await? == SetState::Partial
            {
                return Ok(BySet::Unfinished);
            }
            Err(lost)
        };
        match recovered.await {
            Err(error) if gives_nothing(&error) => Ok(BySet::Lost),
            told => told,
        }
    }

    /// Whether a write of a key may have been cut short.
    fn is_half_written(&self, place: &Place) -> bool {
        self.distrusted.get()
            || self.half_written.borrow().contains_key(&(place.container, place.key.clone()))
    }

    /// Who has the newest version that can be read of a held key that could not be made whole, and what that
    /// was made into; all, if none has any.
    pub(crate) async fn newest_roles(
        self: &Rc<Self>,
        place: &Place,
        manner: &Manner,
    ) -> Result<(Vec<usize>, Option<Form>)> {
        let told = self.ask_all(place, Proof::Record, manner).await?;
        let roles = self.newest_whole(&told);
        let form = told.iter().find(|(role, _)| roles.contains(role)).and_then(|(_, told)| told.form());
        Ok(if roles.is_empty() { (self.all_roles(), None) } else { (roles, form) })
    }

    /// Who has the newest version of which there are enough pieces.
    fn newest_whole(&self, told: &[(usize, Told)]) -> Vec<usize> {
        let mut versions: Vec<&Told> = told.iter().map(|(_, told)| told).collect();
        versions.sort_unstable_by_key(|told| told.version());
        let whole = versions.iter().rev().find_map(|newest| {
            let of_it = told.iter().filter(|(_, told)| told.version() == newest.version());
            let roles: Vec<usize> = of_it.map(|(role, _)| *role).collect();
            (roles.len() >= newest.form()?.needed()).then_some(roles)
        });
        whole.unwrap_or_default()
    }

    /// True if a member that has a piece of every key has none of this one: what others cannot read of it is
    /// what a delete, or the end of its life, has left.
    pub(crate) fn is_gone(&self, told: &[(usize, Told)]) -> bool {
        told.iter().any(|(role, told)| *told == Told::Absent && *role < self.forms.sure_roles())
    }

    /// True if what a reader is told of a key has no piece in a role.
    pub(crate) fn is_told_without(&self, told: &[(usize, Told)], role: usize) -> bool {
        !self.newest_whole(told).is_empty() && self.right(told).in_role(role) == Told::Absent
    }

    /// Whether there is a key whose pieces these are: also where too few are left to read it.
    pub(crate) fn exists(&self, told: &[(usize, Told)]) -> bool {
        let lacks_pieces = || !self.is_gone(told) && told.iter().any(|(_, told)| *told != Told::Absent);
        self.right(told) != Told::Absent || lacks_pieces()
    }

    /// What a reader of a key is told of whose pieces these are.
    pub(crate) fn right(&self, told: &[(usize, Told)]) -> Told {
        let (whole, is_gone) = (self.newest_whole(told), self.is_gone(told));
        let has_it = |(role, told): &&(usize, Told)| match whole.first() {
            Some(newest) => role == newest,
            None => *told == Told::Unreadable && !is_gone,
        };
        told.iter().find(has_it).map_or(Told::Absent, |(_, told)| told.clone())
    }

    /// Gives what is right, which `roles` have enough of, to all others, and takes away what is not.
    async fn complete(
        self: &Rc<Self>,
        place: &Place,
        right: &Told,
        roles: &[usize],
        told: Vec<(usize, Told)>,
    ) -> Result<u64> {
        let mut mended = 0;
        let is_packed = told.iter().any(|(role, told)| roles.contains(role) && told.is_stub());
        let lacks = |(role, told): &(usize, Told)| !told.is_as(&right.in_role(*role));
        if right.form().is_some_and(|form| form.is_packed()) && !is_packed && told.iter().any(lacks) {
            // Nobody who is in will say any more that it is.
            for role in self.stubs_of_filled(place).await? {
                let brought = self.bring(place, role, &right.in_role(role), roles).await;
                self.unless_out(self.member_of(place, role), brought)?;
            }
        }
        for (role, told) in told {
            let is_damaged = told == Told::Unreadable;
            let is_older = role == 0 && !is_damaged && !roles.contains(&role);
            let is_gone = role > 0 && told == Told::Absent && right.in_role(role) != Told::Absent;
            if is_older || (is_damaged || is_gone) && !is_packed {
                // What stands there may be a value of a set, or have said that the key is in one.
                self.leave_any_set(place).await?;
            }
            let result = match right.in_role(role) {
                right if told.is_as(&right) => continue,
                right if roles.contains(&role) => self.set_expiry_at(place, role, right.expiry_ms()).await,
                right => self.bring(place, role, &right, roles).await,
            };
            if is_damaged {
                self.report_unreadable(place, role);
            }
            self.mended(place, role, result)?;
            mended += 1;
        }
        Ok(mended)
    }

    /// Members that are being resynchronised were past a key, perhaps, when it was made whole. They get what
    /// is right, from these roles; so do those that have come in since the others were asked for it.
    pub(crate) async fn bring_along(
        self: &Rc<Self>,
        place: &Place,
        right: &Told,
        (asked, from): (&[usize], &[usize]),
    ) -> Result<()> {
        for role in self.all_roles() {
            let (member, right) = (self.member_of(place, role), right.in_role(role));
            let Some(device) = self.writable(member) else { continue };
            if asked.contains(&role) && self.state(member) == MemberState::In
                || self.ask(&device, (place, role), Proof::Start, &Manner::background()).await?.is_as(&right)
            {
                continue;
            }
            let brought = self.bring(place, role, &right, from).await;
            self.unless_out(member, brought)?;
        }
        Ok(())
    }

    /// Brings what is right of a held key to members that were not in when it was changed and lack it.
    pub(crate) async fn bring_to(self: &Rc<Self>, place: &Place, members: &[usize]) -> Result<()> {
        let told = self.ask_all(place, Proof::Start, &Manner::background()).await?;
        let right = self.right(&told);
        let has = |(_, told): &&(usize, Told)| told.version() == right.version();
        let roles: Vec<usize> = told.iter().filter(has).map(|(role, _)| *role).collect();
        for role in self.all_roles() {
            let (member, right) = (self.member_of(place, role), right.in_role(role));
            if members.contains(&member) && right != Told::Absent {
                let brought = self.bring(place, role, &right, &roles).await;
                self.unless_out(member, brought)?;
            }
        }
        Ok(())
    }

    /// Brings a role what is right there, from these others.
    pub(crate) async fn bring(
        self: &Rc<Self>,
        place: &Place,
        role: usize,
        right: &Told,
        from: &[usize],
    ) -> Result<()> {
        match right.form() {
            Some(form) => self.give(place, form, role, from).await.map(drop),
            None => self.sent_one(self.member_of(place, role), self.delete_op(place, role)).await.map(drop),
        }
    }

    async fn set_expiry_at(
        self: &Rc<Self>,
        place: &Place,
        role: usize,
        expiry_ms: Option<u64>,
    ) -> Result<()> {
        let (container, key) = (placement::container(place.container, role), place.key.clone());
        let expiry = expiry_ms.map_or(Expiry::Never, Expiry::At);
        let op = Op::SetExpiry { container, key, expiry, condition: Condition::None };
        match self.sent_one(self.member_of(place, role), op).await? {
            // It expired there meanwhile, at the time that it was not to have.
            Output::Done => Err(Error::NotFound),
            _ => Ok(()),
        }
    }

    /// Puts back what a member kept below its piece; takes the piece away if nothing was.
    pub(crate) async fn put_back(self: &Rc<Self>, place: &Place, role: usize) -> Result<()> {
        let (container, key) = (placement::container(place.container, role), place.key.clone());
        let member = self.member_of(place, role);
        match self.sent_one(member, Op::Revert { container, key }).await {
            Err(Error::Invalid(_)) => self.sent_one(member, self.delete_op(place, role)).await.map(|_| ()),
            reverted => reverted.map(|_| ()),
        }
    }

    fn report_unreadable(&self, place: &Place, role: usize) {
        let device = self.name(self.member_of(place, role));
        tracing::warn!(partition = self.partition, device, "a copy that cannot be read is written again");
    }

    /// No member has a copy that can be read. If one of them has none, that is what the others should have.
    async fn reconcile_absent(self: &Rc<Self>, place: &Place, told: &[(usize, Told)]) -> Result<u64> {
        let damaged: Vec<usize> =
            told.iter().filter(|(_, told)| *told == Told::Unreadable).map(|(role, _)| *role).collect();
        if damaged.is_empty() {
            return Ok(0);
        }
        if !self.is_gone(told) {
            let failed = damaged.iter().map(|role| {
                (self.member_of(place, *role), Error::Unreadable("it cannot be read".to_owned()))
            });
            return Err(self.unreadable(place, &failed.collect::<Vec<_>>()));
        }
        let mended = damaged.len() as u64;
        for role in damaged {
            self.report_unreadable(place, role);
            let delete = self.delete_op(place, role);
            let deleted = self.sent_one(self.member_of(place, role), delete).await.map(|_| ());
            self.mended(place, role, deleted)?;
        }
        Ok(mended)
    }

    /// A copy was written again, or its member went out over it.
    pub(crate) fn mended(&self, place: &Place, role: usize, result: Result<()>) -> Result<()> {
        let member = self.member_of(place, role);
        if self.unless_out(member, result)?.is_some() {
            self.note(member, |status| status.repaired += 1);
        }
        Ok(())
    }

    /// What a member made of a request; nothing if it is out by now: what it has counts no more.
    pub(crate) fn unless_out<T>(&self, member: usize, result: Result<T>) -> Result<Option<T>> {
        match result {
            Err(_) if self.writable(member).is_none() => Ok(None),
            result => result.map(Some),
        }
    }

    /// Sends one request to one member.
    pub(crate) async fn sent_one(self: &Rc<Self>, member: usize, op: Op) -> Result<Output> {
        self.sent_request(member, Manner::background().request(op)).await
    }

    /// The same of what has been acknowledged, and is kept by it.
    pub(crate) async fn sent_to_keep(self: &Rc<Self>, member: usize, op: Op) -> Result<Output> {
        self.sent_request(member, Manner::background().request(op).keeping()).await
    }

    /// The same of what makes room.
    pub(crate) async fn sent_to_make_room(self: &Rc<Self>, member: usize, op: Op) -> Result<Output> {
        self.sent_request(member, Manner::background().request(op).making_room()).await
    }

    async fn sent_request(self: &Rc<Self>, member: usize, request: Request) -> Result<Output> {
        let sent = self.send(vec![(member, request)]).await?;
        let Sent { mut done, refused } = sent;
        match (done.pop(), refused) {
            (Some((_, output)), _) => Ok(output),
            (None, Some(error)) => Err(error),
            (None, None) => Err(Error::ReadOnly(format!("{} is out", self.name(member)))),
        }
    }

    /// A key is compared over the members before it is used.
    pub(crate) fn suspect(&self, place: &Place) {
        self.unsettled.borrow_mut().insert((place.container, place.key.clone()));
    }
}
