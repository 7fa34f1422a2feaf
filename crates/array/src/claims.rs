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
//! * it claims nothing that it was told to give up, and nothing if it was formatted, or put back to a time
//!   before it went out;
//! * where values are packed nobody claims anything: what a member has of sets others may have changed.
//!
//! Never: it makes a member readable. It comes in as every other does, behind the keys that it lacks.

use crate::array::Array;
use crate::enough::lost;
use crate::join::read_roster;
use crate::manner::Manner;
use crate::placement;
use crate::read::WRONG_OUTPUT;
use crate::roster::{Entry, MemberState};
use plimsoll_kv::transaction::{Action, Status};
use plimsoll_kv::{Device, Error, Output, Result};
use std::rc::Rc;

/// In which roles a member has what it claims.
pub(crate) type Claims = Vec<bool>;

/// How often who waits looks whether others have come in.
const LOOK_NS: u64 = 500_000_000;

/// The roles, of so many, in which a member claims the keys that it has, where so many members write a key.
fn claims(entries: &[Entry], member: usize, roles: usize, needed: usize) -> Claims {
    let count = entries.len();
    let left = entries[member].left.filter(|left| !left.is_given_up);
    let Some(left) = left else { return vec![false; roles] };
    let may_have_written = |role: usize, primary: usize| {
        let other = placement::member(primary, role, count);
        let entry = &entries[other];
        let went_later = || entry.left.is_none_or(|other| other.epoch > left.epoch);
        other != member && (entry.state == MemberState::In || went_later())
    };
    let is_claimed = |its: usize| {
        let primary = placement::primary_of(member, its, count);
        (0..roles).filter(|role| may_have_written(*role, primary)).count() < needed
    };
    (0..roles).map(is_claimed).collect()
}

impl Array {
    /// In which roles a member claims what it has, by the roster alone.
    pub(crate) fn claims(&self, member: usize) -> Claims {
        if self.forms.has_packed() || self.state(member) == MemberState::In {
            return vec![false; self.roles];
        }
        claims(&self.roster.borrow().members, member, self.roles, self.forms.needed_least())
    }

    /// In which roles a member that comes back claims what it has.
    pub(crate) async fn claims_of(&self, member: usize, device: &Rc<dyn Device>) -> Result<Claims> {
        let claims = self.claims(member);
        if !claims.contains(&true) || self.has_what_it_had(member, device).await? {
            return Ok(claims);
        }
        Ok(vec![false; self.roles])
    }

    /// Whether a member has what it had when it went out.
    async fn has_what_it_had(&self, member: usize, device: &Rc<dyn Device>) -> Result<bool> {
        let left = self.roster.borrow().members[member].left;
        let Some(left) = left.filter(|left| !left.is_given_up) else { return Ok(false) };
        match read_roster(device, &self.tag).await {
            Ok(own) => Ok(own.is_some_and(|own| own.epoch >= left.settled())),
            Err(Error::Unreadable(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Waits while a member that comes back has values that nobody else has, and does not claim them: it
    /// missed writes, and would be emptied of them. They are there as long as nobody gives them up.
    pub(crate) async fn until_nothing_is_lost(
        &self,
        member: usize,
        (device, claims): (&Rc<dyn Device>, &Claims),
        gives_up: impl Fn() -> bool,
    ) -> Result<()> {
        let mut is_told = false;
        while !gives_up() && self.would_lose(member, claims) && self.has_what_it_had(member, device).await? {
            if !std::mem::replace(&mut is_told, true) {
                let device = self.name(member);
                tracing::error!(partition = self.partition, device, "not resynchronised: {ALONE}");
                self.note(member, |status| ALONE.clone_into(&mut status.reason));
            }
            self.rest_until(self.reactor.now_ns() + LOOK_NS).await;
        }
        Ok(())
    }

    /// Whether more could be read with what a member has and does not claim.
    fn would_lose(&self, member: usize, claims: &Claims) -> bool {
        let are_in: Vec<bool> = (0..self.count()).map(|it| self.state(it) == MemberState::In).collect();
        let with_it: Vec<bool> = (0..self.count()).map(|it| it == member || are_in[it]).collect();
        let is_claimed = |primary| claims.get(placement::role(primary, member, are_in.len())) == Some(&true);
        !self.accepts_loss.get()
            && lost(self.forms.each(), &with_it, &are_in).any(|(_, primary)| !is_claimed(primary))
    }

    /// Refuses to delete everything while a member that is not in claims something: it would come back.
    pub(crate) fn check_claims(&self) -> Result<()> {
        let claimant = (0..self.count()).find(|member| self.claims(*member).contains(&true));
        let words = "is not in, and has what no other device has: bring it back, or replace it";
        claimant.map_or(Ok(()), |member| Err(Error::ReadOnly(format!("{} {words}", self.name(member)))))
    }

    /// Whether a member that is out may come back with what it claims.
    pub(crate) fn may_claim(&self, member: usize) -> bool {
        self.state(member) == MemberState::Out && self.claims(member).contains(&true)
    }

    /// A member claims nothing from here on: it is emptied. Durable with the next roster.
    pub(crate) fn give_up_claims(&self, member: usize) {
        let mut roster = self.roster.borrow_mut();
        roster.epoch += 1;
        roster.members[member].give_up();
    }

    /// Brings what a member that comes back has half done to the end that others have brought it to: of
    /// transactions that were prepared on it, those that others have applied. The keys of which a write was
    /// under way are noted.
    pub(crate) async fn finish_claimed(
        self: &Rc<Self>,
        member: usize,
        device: &Rc<dyn Device>,
    ) -> Result<()> {
        let manner = Manner::background();
        let known = device.clone().execute(self.step(None, Action::Outstanding, &manner)).await?;
        let Output::Outstanding(known) = known.output else { return Err(WRONG_OUTPUT) };
        for id in known.into_iter().map(|known| known.id) {
            let end = match self.status_of(id).await? {
                Status::Applied => Action::Apply,
                Status::Prepared | Status::Unknown => Action::Release,
            };
            match device.clone().execute(self.step(Some(id), end, &manner)).await {
                // It has been done there.
                Ok(_) | Err(Error::Invalid(_)) => {}
                Err(error) => return Err(error),
            }
        }
        let named = self.named_by(member, device).await?;
        if !named.is_empty() {
            // Its journal names other keys as soon as it takes writes: who is started until then compares all.
            self.unmark_named().await?;
        }
        self.members.borrow_mut()[member].named = named;
        if !self.is_marked(device).await? {
            self.distrusted.set(true);
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
            self.scrub();
        }
    }
}

/// Why a member stays out that has come back.
const ALONE: &str = "it has missed writes, and what it has besides no other device has: what is lost with it is given up by \
                     plimsoll array rebuild --accept-loss";
