//! Rebuilding a member: walking over live keys and making each whole.
//!
//! Role: gives a new or returned device what it should hold, key by key, while clients go on. Place on the
//! path: none; a task in the background, one page of keys at a time.
//!
//! Invariants:
//! * a member begins with nothing of what it held but what it claims (`claims`), or was given before the
//!   server ended (`filled`): what was deleted while it was out does not come back;
//! * from before the first key is copied it takes every write, and it is read only after the last;
//! * a key is held while it is compared and copied;
//! * nothing but live keys is read or written.
//!
//! Source: KVMD (FAST'20), section on rebuilding: neighbours tell which keys a device held. There one key at
//! a time; here several.

use crate::array::{Array, Place};
use crate::claims::Claims;
use crate::filled::Filled;
use crate::manner::Manner;
use crate::member::Joining;
use crate::open::background;
use crate::pace::Pace;
use crate::placement::{self, ARRAY_CONTAINERS, JOURNAL, ROSTER};
use crate::roster::MemberState;
use crate::told::{Proof, Told};
use futures_util::StreamExt;
use futures_util::future::join;
use futures_util::stream;
use plimsoll_kv::transaction::{Action, Status};
use plimsoll_kv::{ContainerId, Device, Error, Expiry, Op, Output, Result, Value};
use plimsoll_reactor::Work;
use std::cell::Cell;
use std::pin::pin;
use std::rc::Rc;

/// Keys that are compared at a time.
pub(crate) const TOGETHER: usize = 32;
/// So often a key is tried that changes while it is copied.
const TRIES_MAX: u32 = 16;
/// A resynchronisation that was hindered goes on after this time, at first and at most.
const RETRY_NS: u64 = 500_000_000;
pub(crate) const RETRY_NS_MAX: u64 = 64_000_000_000;
/// Why a member is not in that has been filled.
const UNTOLD: &str = "while it was filled too few devices were in to tell everything that it should have";
/// What is left to do where too much is lost.
pub(crate) const GIVE_UP: &str = "; what is lost is given up by plimsoll array rebuild --accept-loss";

impl Array {
    /// Begins to resynchronise a member that is out and there. Without effect on others.
    pub fn rebuild(self: &Rc<Self>, member: usize) {
        if self.state(member) == MemberState::In || self.members.borrow()[member].device.is_none() {
            return;
        }
        let array = self.clone();
        self.spawn(Work::Background, async move {
            let (mut wait_ns, mut told) = (RETRY_NS, String::new());
            loop {
                let number = array.members.borrow()[member].resyncs + 1;
                let Err(error) = array.resync(member).await else { return };
                let is_overtaken = || array.members.borrow()[member].resyncs != number;
                if is_overtaken() {
                    return; // Another has taken its place.
                }
                let hint = if matches!(error, Error::Unreadable(_)) { GIVE_UP } else { "" };
                let reason = format!("not resynchronised: {error}{hint}");
                array.note(member, |status| status.reason.clone_from(&reason));
                if std::mem::replace(&mut told, reason) != told {
                    let device = array.name(member);
                    tracing::error!(partition = array.partition, device, %error, "not resynchronised");
                }
                // What hinders may pass, unless the member itself was taken out over it.
                if array.closing.get() || array.state(member) != MemberState::Resyncing {
                    return;
                }
                array.until_others_come(wait_ns).await;
                wait_ns = (2 * wait_ns).min(RETRY_NS_MAX);
                if is_overtaken() {
                    return;
                }
            }
        });
    }

    /// Waits so long, or until somebody has come in or gone out.
    pub(crate) async fn until_others_come(&self, wait_ns: u64) {
        let (until_ns, epoch) = (self.reactor.now_ns() + wait_ns, self.roster.borrow().epoch);
        while self.reactor.now_ns() < until_ns && self.roster.borrow().epoch == epoch && !self.closing.get() {
            self.rest_until(self.reactor.now_ns() + RETRY_NS).await;
        }
    }

    /// Puts a device in the place of another, which is out from then on, and resynchronises it.
    ///
    /// # Errors
    /// The roster cannot be written, or the member is the last one that is in.
    pub async fn replace(self: &Rc<Self>, member: usize, with: Joining) -> Result<()> {
        self.take_out_now(member, "it is being replaced").await?;
        self.resync_overtaken(member);
        {
            let mut members = self.members.borrow_mut();
            let old = &mut members[member];
            old.attach(with.device.ok(), self.picker.as_ref(), &self.reactor);
            old.status.name = with.name;
            old.status.id = with.id;
            old.status.reason = "it takes the place of another".to_owned();
            (old.status.copied_bytes, old.status.repaired, old.status.failed_requests) = (0, 0, 0);
            let mut roster = self.roster.borrow_mut();
            roster.members[member].replace(with.id);
            roster.epoch += 1;
            self.owe_nothing(member);
        }
        self.roster_settled().await?;
        self.rebuild(member);
        Ok(())
    }

    /// A resynchronisation that is under way has nothing to do any more.
    pub(crate) fn resync_overtaken(&self, member: usize) {
        self.members.borrow_mut()[member].resyncs += 1;
        self.transactions.wake();
    }

    /// True while the resynchronisation with this number is to go on.
    pub(crate) fn goes_on(&self, member: usize, number: u64) -> bool {
        let members = self.members.borrow();
        let member = &members[member];
        !self.closing.get() && member.resyncs == number && member.status.state == MemberState::Resyncing
    }

    async fn resync(self: &Rc<Self>, member: usize) -> Result<()> {
        let device = self.members.borrow()[member].device.clone().ok_or(Error::NotFound)?;
        self.resync_overtaken(member);
        let number = self.members.borrow()[member].resyncs;
        let is_overtaken = || self.members.borrow()[member].resyncs != number;
        // What they write would be missed: the member has no intent of theirs, and it is not there to copy.
        self.transactions.all_ended(|| self.closing.get() || is_overtaken()).await;
        if self.closing.get() || is_overtaken() {
            return Ok(());
        }
        // Writes that were sent to it before it went out have ended, too.
        drop(self.locks.lock_everything().await);
        if self.state(member) == MemberState::Out {
            let claims = self.claims_of(member, &device).await?;
            let gives_up = || self.closing.get() || is_overtaken();
            self.until_nothing_is_lost(member, (&device, &claims), gives_up).await?;
            if gives_up() {
                return Ok(());
            }
            self.empty(member, (&device, &claims), is_overtaken).await?;
            self.members.borrow_mut()[member].begin_anew(claims);
        }
        {
            // Every write and every transaction that begins from here on goes to it, too.
            let _everything = self.locks.lock_everything().await;
            if is_overtaken() {
                return Ok(());
            }
            if self.state(member) == MemberState::Out {
                let claims_any = self.members.borrow()[member].claims.has_any();
                let is_sure = !claims_any || self.is_marked(&device).await?;
                self.set_state(member, MemberState::Resyncing, "it is being resynchronised");
                if !is_sure {
                    self.distrust(); // A scrub may have ended that while it was emptied.
                }
            }
            self.roster_settled().await?;
        }
        self.fill_member(member, number).await
    }

    /// Gives a member that takes all writes by now what it lacks; then it is in.
    async fn fill_member(self: &Rc<Self>, member: usize, number: u64) -> Result<()> {
        let (device, claims) = (self.name(member), self.members.borrow()[member].claims.clone());
        tracing::info!(partition = self.partition, device, "resynchronisation begins");
        let filled = self.members.borrow()[member].filled.clone();
        let done = filled.as_ref().map_or(0, |filled| filled.keys);
        self.note(member, |status| (status.keys_done, status.keys_total) = (done, 0));
        let is_untold = !self.is_told(member);
        self.members.borrow_mut()[member].is_untold = is_untold;
        self.give_way_first(member).await?;
        let total = self.keys_of(member).await?;
        self.note(member, |status| status.keys_total = total);
        let pace = Pace::new(self.options.rebuild_bytes_per_s);
        if !claims.has_everything() {
            self.fill_pieces((member, number), &claims, (&pace, filled.as_ref())).await?;
        }
        if self.marked.get() && !self.distrusted.get() {
            self.mark_named().await?;
        }
        self.give_pins(member, number, &pace).await;
        self.give_way(member).await?;
        if !self.goes_on(member, number) {
            return Ok(());
        }
        if self.claims(member) != claims {
            // What it claimed was given up meanwhile, and others have written there since.
            self.take_out_now(member, "others have written what it has").await?;
            self.rebuild(member);
            return Ok(());
        }
        if !self.accepts_loss.get() && self.members.borrow()[member].is_untold {
            return Err(Error::Unreadable(UNTOLD.to_owned()));
        }
        self.compare_claimed(member);
        self.come_in(member).await?;
        self.forget_filled(member).await?;
        self.accepts_loss.set(self.accepts_loss.get() && !self.all_in());
        let copied_bytes = self.members.borrow()[member].status.copied_bytes;
        tracing::info!(
            partition = self.partition,
            device,
            keys = total,
            copied_bytes,
            "resynchronised: it is in"
        );
        Ok(())
    }

    /// Gives a member the pieces of keys, and the records of sets, that it does not claim.
    async fn fill_pieces(
        self: &Rc<Self>,
        (member, number): (usize, u64),
        claims: &Claims,
        (pace, filled): (&Pace, Option<&Filled>),
    ) -> Result<()> {
        let lacks = |role: &usize| !claims.has(*role);
        self.resync_roles((member, number), (0..1).filter(lacks), (pace, filled)).await?;
        // What sets have needs their values, and nothing else, as long as all others are in.
        let is_plain = || !self.forms.has_packed() || self.may_fill(member);
        let begins_plain = is_plain();
        let rest = self.resync_roles((member, number), (1..self.roles).filter(lacks), (pace, filled));
        if begins_plain {
            let sets = self.mend_sets((pace, Some(member)), || self.goes_on(member, number));
            // Neither is left half done.
            let (rest, sets) = join(rest, sets).await;
            rest.and(sets)?;
        } else {
            rest.await?;
        }
        if !begins_plain || !is_plain() {
            self.mend_sets((pace, Some(member)), || self.goes_on(member, number)).await?;
        }
        Ok(())
    }

    /// Takes everything away that a member that was out holds and does not claim, transactions, uploads and
    /// pins included.
    async fn empty(
        self: &Rc<Self>,
        member: usize,
        (device, claims): (&Rc<dyn Device>, &Claims),
        is_overtaken: impl Fn() -> bool,
    ) -> Result<()> {
        for op in self.uploads.forget_member(member, self.count()) {
            // Another that has taken its place knows of none.
            let _ = background(device, op).await;
        }
        self.tell_ends(member, device).await?;
        let claims_any = claims.has_any();
        if claims_any {
            self.finish_claimed(member, device).await?;
        } else {
            self.give_up_claims(member);
        }
        let step = |id, action| Op::Transaction { partition: self.partition, id, action };
        if let Output::Outstanding(known) = background(device, step(None, Action::Outstanding)).await? {
            for known in known {
                let end = if known.status == Status::Applied { Action::Forget } else { Action::Release };
                background(device, step(Some(known.id), end)).await?;
            }
        }
        let of = |container| placement::containers_of(ContainerId(container), self.roles).enumerate();
        let pieces = (0..ARRAY_CONTAINERS).flat_map(of).filter(|(role, _)| !claims.has(*role));
        // Who claims something goes on being known, and its journal goes on naming that.
        let books = [ROSTER, JOURNAL].into_iter().filter(|_| !claims_any);
        for container in pieces.map(|(_, container)| container).chain(books) {
            let Output::Stats(stats) = background(device, Op::Stats { container }).await? else { continue };
            if is_overtaken() {
                return Ok(());
            }
            if stats.keys > 0 {
                background(device, Op::Clear { container }).await?;
            }
        }
        Ok(())
    }

    /// Keys that a member should hold, in all roles.
    async fn keys_of(self: &Rc<Self>, member: usize) -> Result<u64> {
        let mut keys = 0;
        for role in 0..self.roles {
            let primary = self.primary_of(member, role);
            for container in (0..ARRAY_CONTAINERS).map(ContainerId) {
                keys += self.keys_at(primary, container).await?;
            }
        }
        Ok(keys)
    }

    async fn keys_at(self: &Rc<Self>, primary: usize, container: ContainerId) -> Result<u64> {
        let Some(source) = self.sources((primary, self.roles), container).next() else { return Ok(0) };
        match background(&source.device, Op::Stats { container: source.container }).await? {
            Output::Stats(stats) => Ok(stats.keys),
            _ => Ok(0),
        }
    }

    /// Gives a member what it should hold of keys in some roles, one after the other.
    async fn resync_roles(
        self: &Rc<Self>,
        of: (usize, u64),
        roles: impl Iterator<Item = usize>,
        (pace, filled): (&Pace, Option<&Filled>),
    ) -> Result<()> {
        for role in roles {
            for container in (0..ARRAY_CONTAINERS).map(ContainerId) {
                let Some(after) = Filled::rest(filled, (role, container)) else { continue };
                self.resync_container(of, (role, container), after, pace).await?;
            }
        }
        Ok(())
    }

    async fn resync_container(
        self: &Rc<Self>,
        (member, number): (usize, u64),
        (role, container): (usize, ContainerId),
        mut after: Option<Vec<u8>>,
        pace: &Pace,
    ) -> Result<()> {
        let primary = self.primary_of(member, role);
        if self.roles == 1 {
            return Ok(()); // Its keys were nowhere else: they are lost.
        }
        let is_untold = || self.sources((primary, self.roles), container).next().is_none();
        while self.goes_on(member, number) {
            let keys = match self.next_keys(primary, container, &mut after).await {
                Ok(Some(keys)) => keys,
                Ok(None) => return Ok(()),
                Err(Error::Unreadable(what)) if self.gives_up(primary) && is_untold() => {
                    let device = self.name(member);
                    tracing::error!(partition = self.partition, device, what, "given up, as was asked for");
                    return Ok(());
                }
                Err(error) => return Err(error),
            };
            let failed = Cell::new(false);
            let each = async |key: &Vec<u8>| {
                let turn = pace.turn(self.reactor.now_ns());
                self.rest_until(turn.at_ns).await;
                if failed.get() || !self.goes_on(member, number) {
                    return Ok(());
                }
                let bytes = self.resync_key(container, key, role).await.inspect_err(|_| failed.set(true))?;
                pace.end(turn, bytes);
                Ok::<(), Error>(())
            };
            let (mut rest, mut all) = (&keys[..], Ok(()));
            while !rest.is_empty() {
                let some = pace.next_of(&mut rest).iter().map(&each);
                let mut some = pin!(stream::iter(some).buffer_unordered(TOGETHER));
                // Those under way come to their end: they have pinned values, and begun others.
                while let Some(copied) = some.next().await {
                    self.note(member, |status| status.keys_done += u64::from(copied.is_ok()));
                    all = all.and(copied);
                }
            }
            all?;
            if self.goes_on(member, number) {
                self.note_filled(member, (role, container), after.as_deref()).await?;
            }
            self.reactor.yield_now().await;
        }
        Ok(())
    }

    /// Gives the member in a role a key, if it has not got it as it is; the bytes copied.
    async fn resync_key(self: &Rc<Self>, container: ContainerId, key: &[u8], role: usize) -> Result<u64> {
        let place = self.place(container, key)?;
        let _guard = self.locks.lock(place.id.0, place.id.1).await;
        let mut copied = self.settle_and_give(&place, role).await;
        let mut tries = 1;
        // It expired while it was copied, or the member that had it went out, or it is not whole on others.
        while let Err(Error::NotFound) = copied {
            if tries == TRIES_MAX {
                return Err(Error::Overloaded);
            }
            tries += 1;
            self.suspect(&place);
            copied = self.settle_and_give(&place, role).await;
        }
        let are_enough =
            || self.others_in(&place, role) >= self.forms.needed_most() && self.may_change(place.primary);
        let gives_up = || self.gives_up(place.primary);
        if matches!(copied, Err(Error::Unreadable(_))) && are_enough() && !gives_up() {
            // One of them may have failed, and be back later with what it has: a write finds that out.
            self.roster.borrow_mut().epoch += 1;
            self.roster_settled().await?;
            copied = self.try_resync_key(&place, role).await;
        }
        match copied {
            Err(Error::Unreadable(what)) if gives_up() || are_enough() => {
                self.store_lost(&place, role, &what).await
            }
            copied => copied,
        }
    }

    /// Makes a held key whole, and gives it to the member in a role. Where another has no room for it to be
    /// made so, this one gets what is right all the same.
    async fn settle_and_give(self: &Rc<Self>, place: &Place, role: usize) -> Result<u64> {
        match self.settle(place).await {
            Ok(()) => self.try_resync_key(place, role).await,
            Err(Error::NoSpace | Error::NoMemory) => self.give_newest(place, role).await,
            Err(error) => Err(error),
        }
    }

    /// Gives the member in a role what is right of a held key, whatever others have.
    async fn give_newest(self: &Rc<Self>, place: &Place, role: usize) -> Result<u64> {
        let told = self.ask_all(place, Proof::Record, &Manner::background()).await?;
        let right = self.right(&told);
        let has = |(other, told): &&(usize, Told)| *other != role && told.version() == right.version();
        let others: Vec<usize> = told.iter().filter(has).map(|(other, _)| *other).collect();
        match right.in_role(role).form() {
            Some(form) => self.give(place, form, role, &others).await,
            None => Ok(0),
        }
    }

    fn others_in(&self, place: &Place, role: usize) -> usize {
        let others = self.all_roles().into_iter().filter(|other| *other != role);
        others.filter(|other| self.readable(self.member_of(place, *other)).is_some()).count()
    }

    /// What no member can read cannot be copied. The member gets a record that nobody can read either: its
    /// reader is told so by whoever is asked, and not that the key is absent.
    async fn store_lost(self: &Rc<Self>, place: &Place, role: usize, what: &str) -> Result<u64> {
        let device = self.name(self.member_of(place, role));
        tracing::error!(partition = self.partition, device, what, "a key cannot be rebuilt: it is lost");
        let lost = self.store_op(place, role, Value::from(Vec::new()), Expiry::Never);
        self.sent_to_keep(self.member_of(place, role), lost).await?;
        self.suspect(place);
        Ok(0)
    }

    pub(crate) async fn try_resync_key(self: &Rc<Self>, place: &Place, role: usize) -> Result<u64> {
        let Some(target) = self.writable(self.member_of(place, role)) else { return Ok(0) };
        let others: Vec<usize> = self.roles_of_newest(place).filter(|other| *other != role).collect();
        if others.is_empty() {
            // What stands in one role no other can give.
            return Ok(0);
        }
        // Mostly it lacks the key, and the key can be read.
        let mut exists = false;
        if let Some(form) = self.forms.sole() {
            match self.give_new(place, form, role, &others).await {
                Err(Error::Exists) => exists = true,
                Err(Error::NotFound | Error::Unreadable(_)) => {}
                given => return given,
            }
        }
        let source =
            others.iter().find_map(|from| Some((*from, self.readable(self.member_of(place, *from))?)));
        let Some((from, source)) = source else {
            return Err(Error::Unreadable("the devices that hold its keys are out".to_owned()));
        };
        let mut right = self.ask(&source, (place, from), Proof::Start, &Manner::background()).await?;
        if right == Told::Unreadable {
            // Others have it, and it is written again where it is damaged, if there is room.
            match self.reconcile(place, Proof::Record).await {
                Ok(_) | Err(Error::NoSpace | Error::NoMemory) => {}
                Err(error) => return Err(error),
            }
            right = self.right(&self.ask_all(place, Proof::Record, &Manner::background()).await?);
        }
        let right = right.in_role(role);
        match right.form() {
            Some(form) => {
                if !exists {
                    match self.give_new(place, form, role, &others).await {
                        Err(Error::Exists) => {}
                        given => return given,
                    }
                }
                if self.ask(&target, (place, role), Proof::Start, &Manner::background()).await?.is_as(&right)
                {
                    return Ok(0);
                }
                self.give(place, form, role, &others).await
            }
            None if right == Told::Unreadable => {
                Err(Error::Unreadable("no device has a version of which there is enough".to_owned()))
            }
            // It was deleted since the page was read, or has fewer pieces.
            None => Ok(0),
        }
    }
}
