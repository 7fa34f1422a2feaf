//! Claims: what a member that is not in has, and nobody can have changed since it went out.
//!
//! Role: a key is written while enough of the members that it belongs on are in. Whoever goes out and leaves
//! too few has the newest of it from then on, and claims it: it is not emptied of that when it comes back,
//! and nobody has to give it any. So what stood on devices that went away together, with a cable or a
//! controller, stands there again when they are back. Place on the path: none; asked before a member is
//! resynchronised, and before a container is emptied.
//!
//! Source: none in KVMD (FAST'20), which ends where more members fail than a code survives.
//!
//! Invariants:
//! * a member claims the keys of a primary only if since it went out never enough of the others were in to
//!   write one of them: each of those that were is in now, or went out after it;
//! * where values are packed that goes for all keys, or none, and for the sets beside them;
//! * it claims nothing that it was told to give up, and nothing if it was formatted, or put back to a time
//!   before it went out.
//!
//! Never: it makes a member readable. It comes in as every other does, behind the keys that it lacks.

use crate::array::Array;
use crate::enough::lost;
use crate::forms::Forms;
use crate::join::read_roster;
use crate::manner::Manner;
use crate::member::{Member, gives_nothing};
use crate::placement::{self, ARRAY_CONTAINERS};
use crate::rebuild::{GIVE_UP, RETRY_NS_MAX, TOGETHER};
use crate::roster::{Entry, MemberState, Roster};
use crate::told::{Proof, Told};
use crate::walk::{Source, page};
use futures_util::{StreamExt, stream};
use plimsoll_kv::{ContainerId, Device, Error, Form, Result};
use std::pin::pin;
use std::rc::Rc;

/// What a member claims of what it has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Claims {
    /// What it has in a role.
    roles: Vec<bool>,
    /// Everything, with the records of sets.
    everything: bool,
}

impl Claims {
    /// By the roster, where values have these forms.
    fn of(entries: &[Entry], member: usize, forms: &Forms) -> Claims {
        let (count, roles) = (entries.len(), forms.roles());
        let (needed, _) = forms.needed_for_changes(count);
        let left = entries[member].left.filter(|left| !left.is_given_up);
        let Some(left) = left else { return Claims::default() };
        let may_have_written = |other: usize| {
            let entry = &entries[other];
            let went_later = || entry.left.is_none_or(|other| other.epoch > left.epoch);
            other != member && (entry.state == MemberState::In || went_later())
        };
        if forms.has_packed() {
            let others = (0..count).filter(|other| may_have_written(*other)).count();
            return Claims { roles: Vec::new(), everything: others < needed };
        }
        let is_claimed = |its: usize| {
            let primary = placement::primary_of(member, its, count);
            let holders = (0..roles).map(|role| placement::member(primary, role, count));
            holders.filter(|holder| may_have_written(*holder)).count() < needed
        };
        let claims = Claims { roles: (0..roles).map(is_claimed).collect(), everything: false };
        if claims.has_any() { claims } else { Claims::default() }
    }

    /// What it has in a role; behind the last of an array, the records of sets.
    pub(crate) fn has(&self, role: usize) -> bool {
        self.everything || self.roles.get(role) == Some(&true)
    }

    pub(crate) fn has_any(&self) -> bool {
        self.everything || self.roles.contains(&true)
    }

    pub(crate) fn has_everything(&self) -> bool {
        self.everything
    }
}

/// What a member has that comes back.
#[derive(PartialEq, Eq)]
enum Age {
    /// What it had when it went out.
    AsItLeft,
    /// What it had before.
    Older,
    /// Nothing that counts.
    GivenUp,
}

/// A member that is out and claims something where values have these forms. They may not become others
/// meanwhile: what was needed for a change since it went out would not be known any more.
pub(crate) fn claimant(roster: &Roster, forms: &[Form]) -> Option<usize> {
    let (entries, forms) = (&roster.members, Forms::new(forms));
    let is_out = |member: &usize| entries[*member].state != MemberState::In;
    (0..entries.len()).filter(is_out).find(|member| Claims::of(entries, *member, &forms).has_any())
}

impl Array {
    /// What a member claims, by the roster alone.
    pub(crate) fn claims(&self, member: usize) -> Claims {
        if self.state(member) == MemberState::In {
            return Claims::default();
        }
        Claims::of(&self.roster.borrow().members, member, &self.forms)
    }

    /// What a member claims that comes back.
    pub(crate) async fn claims_of(&self, member: usize, device: &Rc<dyn Device>) -> Result<Claims> {
        let claims = self.claims(member);
        if !claims.has_any() || self.age(member, device).await? == Age::AsItLeft {
            return Ok(claims);
        }
        Ok(Claims::default())
    }

    /// What a member has, beside what it had when it went out.
    async fn age(&self, member: usize, device: &Rc<dyn Device>) -> Result<Age> {
        let left = self.roster.borrow().members[member].left;
        let Some(left) = left.filter(|left| !left.is_given_up) else { return Ok(Age::GivenUp) };
        match read_roster(device, &self.tag).await {
            Ok(Some(own)) if own.epoch >= left.settled() => Ok(Age::AsItLeft),
            Ok(Some(_)) => Ok(Age::Older),
            Ok(None) | Err(Error::Unreadable(_)) => Ok(Age::GivenUp),
            Err(error) => Err(error),
        }
    }

    /// Waits while a member that comes back would be emptied of what nobody else has: it does not claim it,
    /// as it missed writes, or is older than what went out. It is there as long as nobody gives it up.
    pub(crate) async fn until_nothing_is_lost(
        self: &Rc<Self>,
        member: usize,
        (device, claims): (&Rc<dyn Device>, &Claims),
        gives_up: impl Fn() -> bool,
    ) -> Result<()> {
        let mut is_told = false;
        while !gives_up() && !self.accepts_loss.get() {
            let why = match self.age(member, device).await? {
                Age::AsItLeft if self.would_lose(member, (device, claims)).await? => ALONE,
                Age::Older if self.claims(member).has_any() => OLDER,
                _ => return Ok(()),
            };
            if !std::mem::replace(&mut is_told, true) {
                let device = self.name(member);
                tracing::error!(partition = self.partition, device, why, "not resynchronised");
                self.note(member, |status| status.reason = format!("{why}{GIVE_UP}"));
            }
            self.until_others_come(RETRY_NS_MAX).await;
        }
        Ok(())
    }

    /// Whether a member has values that those that are in cannot give, and does not claim them; they could be
    /// read if everybody came back who may.
    async fn would_lose(
        self: &Rc<Self>,
        member: usize,
        (device, claims): (&Rc<dyn Device>, &Claims),
    ) -> Result<bool> {
        let are_in: Vec<bool> = (0..self.count()).map(|it| self.state(it) == MemberState::In).collect();
        let has_some = |it: usize| self.roster.borrow().members[it].left.is_some_and(|it| !it.is_given_up);
        let with_all: Vec<bool> = (0..self.count()).map(|it| are_in[it] || has_some(it)).collect();
        let role = |primary| placement::role(primary, member, are_in.len());
        let lost = lost(self.forms.each(), &with_all, &are_in);
        let lost: Vec<(Form, usize)> = lost.filter(|(_, primary)| !claims.has(role(*primary))).collect();
        // Which sets a packed value needs is not looked into.
        if lost.iter().any(|(form, _)| form.is_packed()) {
            return Ok(true);
        }
        for role in 0..self.roles {
            let primary = placement::primary_of(member, role, are_in.len());
            let forms: Vec<Form> =
                lost.iter().filter(|(_, of)| *of == primary).map(|(form, _)| *form).collect();
            if !forms.is_empty() && self.has_any_of(&forms, (member, role), device).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether what a member has in a role is made into one of these forms, anything of it.
    async fn has_any_of(
        self: &Rc<Self>,
        forms: &[Form],
        (member, role): (usize, usize),
        device: &Rc<dyn Device>,
    ) -> Result<bool> {
        for container in (0..ARRAY_CONTAINERS).map(ContainerId) {
            let below = placement::container(container, role);
            let source = Source { device: device.clone(), container: below, member };
            let mut after = None;
            while let Some(keys) = page(&source, &mut after).await? {
                let each = keys.iter().map(async |key| self.form_at((container, key), role, device).await);
                let mut found = pin!(stream::iter(each).buffer_unordered(TOGETHER));
                while let Some(form) = found.next().await {
                    if form?.is_some_and(|form| forms.contains(&form)) {
                        return Ok(true);
                    }
                }
            }
        }
        Ok(false)
    }

    /// What a member has of a key in a role is made into this; nothing if it cannot be read.
    async fn form_at(
        self: &Rc<Self>,
        (container, key): (ContainerId, &[u8]),
        role: usize,
        device: &Rc<dyn Device>,
    ) -> Result<Option<Form>> {
        let place = self.place(container, key)?;
        // A transaction that it had prepared when it went out may hold the key until it is told the end.
        let manner = Manner::background().aside(self.partition);
        match self.read_piece(device, &place, role, Some((0, 0)), &manner).await {
            Ok(piece) => Ok(piece.header.map(|header| header.form).or(self.forms.sole())),
            Err(error) if gives_nothing(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// From here on, until all members are in, a resynchronisation ends though keys cannot be told any more,
    /// or read: what stood on members that are out alone is given up.
    pub fn accept_loss(&self) {
        self.accepts_loss.set(!self.all_in());
    }

    /// Whether what nobody can tell or read of the keys of a primary is given up: not while somebody comes
    /// back who claims them.
    pub(crate) fn gives_up(&self, primary: usize) -> bool {
        let comes_back = |(at, member): (usize, &Member)| {
            let role = placement::role(primary, at, self.count());
            member.status.state == MemberState::Resyncing && member.claims.has(role)
        };
        self.accepts_loss.get() && !self.members.borrow().iter().enumerate().any(comes_back)
    }

    /// Refuses to delete everything while a member that is not in claims something: it would come back.
    pub(crate) fn check_claims(&self) -> Result<()> {
        let claimant = (0..self.count()).find(|member| self.claims(*member).has_any());
        let words = "is not in, and has what no other device has: bring it back, or give that up \
                     (plimsoll array replace --accept-loss)";
        claimant.map_or(Ok(()), |member| Err(Error::ReadOnly(format!("{} {words}", self.name(member)))))
    }

    /// Whether a member that is out may come back with what it claims.
    pub(crate) fn may_claim(&self, member: usize) -> bool {
        self.state(member) == MemberState::Out && self.claims(member).has_any()
    }

    /// A member claims nothing from here on: it is emptied. Durable with the next roster.
    pub(crate) fn give_up_claims(&self, member: usize) {
        let mut roster = self.roster.borrow_mut();
        roster.epoch += 1;
        roster.members[member].give_up();
    }

    /// Brings what a member that comes back has half done to the end that others have brought it to, and
    /// notes the keys of which a write was under way.
    pub(crate) async fn finish_claimed(
        self: &Rc<Self>,
        member: usize,
        device: &Rc<dyn Device>,
    ) -> Result<()> {
        self.end_prepared(member, device).await?;
        // The next start takes away what has rotted of its entries: here their slots may be in use.
        let named: Vec<_> = self.named_by(member, device).await?.keys().collect();
        let names_any = !named.is_empty();
        self.members.borrow_mut()[member].named = named;
        if names_any {
            // Its journal names others as soon as it takes writes: who is started until then compares all.
            self.unmark_named().await?;
        }
        if !self.is_marked(device).await? {
            self.distrust();
        }
        Ok(())
    }

    /// The keys that the journal of a member named when it came back are compared from here on: it is in.
    pub(crate) fn compare_claimed(self: &Rc<Self>, member: usize) {
        let named = std::mem::take(&mut self.members.borrow_mut()[member].named);
        if !named.is_empty() {
            named.into_iter().for_each(|key| self.may_be_cut_short(key));
            self.settle_and_mark();
        }
        if self.distrusted.get() {
            // One that is under way may be past its keys.
            self.distrust();
            self.scrub();
        }
    }

    /// True while a member is being resynchronised that claims something: it is compared once it is in.
    pub(crate) fn claimant_comes_in(&self) -> bool {
        let comes_in =
            |member: &Member| member.status.state == MemberState::Resyncing && member.claims.has_any();
        self.members.borrow().iter().any(comes_in)
    }

    /// A write that was under way when a member went out, and that those that are in know nothing of, was
    /// not acknowledged: what they have may have been read since, and the member gets that.
    pub(crate) async fn give_way(self: &Rc<Self>, member: usize) -> Result<()> {
        let named = self.members.borrow()[member].named.clone();
        for key in named {
            self.try_give_way(member, key).await?;
        }
        Ok(())
    }

    /// A member gets what the others have of a key. False if they are not sure of it, or cannot give it.
    pub(crate) async fn try_give_way(
        self: &Rc<Self>,
        member: usize,
        (container, key): (ContainerId, Vec<u8>),
    ) -> Result<bool> {
        let place = self.place(container, &key)?;
        let role = placement::role(place.primary, member, self.count());
        let _guard = self.hold_full(&place).await?;
        if role >= self.roles {
            return Ok(true);
        }
        // Of what others are not sure of either the newest wins.
        if self.unsettled.borrow().contains(&(container, key)) {
            return Ok(false);
        }
        let told = self.ask_all(&place, Proof::Start, &Manner::background()).await?;
        // Nor does it have a piece of what has fewer than the write had that the others have not (seed 8316).
        let has_none = self.is_gone(&told) || self.is_told_without(&told, role);
        let right = self.right(&told).in_role(role);
        let Some(device) = self.writable(member) else { return Ok(true) };
        let own = self.ask(&device, (&place, role), Proof::Start, &Manner::background()).await?;
        let relies_alone = own.is_stub() && have_left_set(&told);
        if !has_none && own.is_as(&right) && !relies_alone {
            return Ok(true);
        }
        if role == 0 {
            self.leave_any_set(&place).await?;
        }
        let others: Vec<usize> = told.iter().map(|(other, _)| *other).collect();
        let given = match right.form() {
            _ if has_none => self.sent_one(member, self.delete_op(&place, role)).await.map(drop),
            Some(form) if relies_alone => self.give(&place, form, role, &others).await.map(drop),
            _ => self.try_resync_key(&place, role).await.map(drop),
        };
        match given {
            Err(error) if !gives_nothing(&error) => Err(error),
            given => Ok(given.is_ok()),
        }
    }
}

/// Whether those who would have stubs of a key have copies: its set may go. Who cannot say may have one.
fn have_left_set(told: &[(usize, Told)]) -> bool {
    let mut beside = told.iter().filter(|(role, _)| *role > 0).map(|(_, told)| told);
    beside.clone().any(|told| told.version().is_some())
        && beside.all(|told| !told.is_stub() && *told != Told::Unreadable)
}

/// Why a member stays out that has come back.
const ALONE: &str =
    "it has missed writes, and no other device has what it has besides: bring back what went after it";
const OLDER: &str = "it is older than what went out, and no other device has what that had: bring that back";
