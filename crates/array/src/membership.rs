//! Membership: taking members out, and saying so durably.
//!
//! Role: what becomes of an array when a member fails, goes away or comes back. Place on the path: behind a
//! write that a member did not take.
//!
//! Invariants:
//! * rosters are written one after the other, each to every member that it does not call out;
//! * the last member that is in is never taken out: what it holds can still be read;
//! * whoever left a member out waits here until the roster that says so is durable.

use crate::array::Array;
use crate::enough::loses;
use crate::manner::Manner;
use crate::member::{Verdict, verdict};
use crate::placement::ROSTER;
use crate::readers::Readers;
use crate::roster::{Left, MemberState};
use futures_util::future::join_all;
use plimsoll_kv::{Condition, Error, Expiry, Op, Result};
use plimsoll_reactor::Work;
use std::rc::Rc;

/// How long a roster that a full device refuses waits until it is tried again.
const RETRY_NS: u64 = 10_000_000;

const ALONE: &str = "no other member is left";

impl Array {
    /// Takes a member out: it failed, or its file is gone. Without effect on one that is out.
    pub fn take_out(self: &Rc<Self>, member: usize, reason: &str) {
        let (array, reason) = (self.clone(), reason.to_owned());
        self.reactor.spawn(Work::Device, async move {
            // Who writes meanwhile hears of what goes wrong.
            let _ = array.take_out_now(member, &reason).await;
        });
    }

    pub(crate) async fn take_out_now(self: &Rc<Self>, member: usize, reason: &str) -> Result<()> {
        if self.mark_out(member, reason)? {
            self.resync_overtaken(member);
        }
        self.roster_settled().await
    }

    /// Marks a member as out, in memory; false if it was.
    fn mark_out(&self, member: usize, reason: &str) -> Result<bool> {
        let state = self.state(member);
        if state == MemberState::Out {
            return Ok(false);
        }
        let others = self
            .members
            .borrow()
            .iter()
            .enumerate()
            .any(|(number, other)| number != member && other.status.state == MemberState::In);
        if state == MemberState::In && !others {
            return Err(Error::ReadOnly(format!("{}: {reason}; {ALONE}", self.name(member))));
        }
        self.set_state(member, MemberState::Out, reason);
        let (partition, device) = (self.partition, self.name(member));
        if (0..self.count()).all(|primary| self.may_change(primary)) {
            tracing::error!(
                partition,
                device,
                reason,
                "a device of the array is out; writes go on without it"
            );
        } else {
            tracing::error!(
                partition,
                device,
                reason,
                "a device of the array is out, one too many for some writes"
            );
        }
        Ok(true)
    }

    /// True if objects would be lost with a member: one that is in, or that has what it had when it went out.
    pub(crate) fn holds_last(&self, member: usize) -> bool {
        let others_in: Vec<bool> =
            (0..self.count()).map(|it| it != member && self.state(it) == MemberState::In).collect();
        let with_it: Vec<bool> = (0..self.count()).map(|it| it == member || others_in[it]).collect();
        let left = self.roster.borrow().members[member].left;
        let may_have_it = || left.is_some_and(|left| !left.is_given_up);
        (self.state(member) == MemberState::In || may_have_it())
            && (self.claims(member).has_any() || loses(self.forms.each(), &with_it, &others_in))
    }

    pub(crate) fn name(&self, member: usize) -> String {
        self.members.borrow()[member].status.name.clone()
    }

    /// Changes a member's state in memory: the roster has to be settled before anybody relies on it.
    pub(crate) fn set_state(&self, member: usize, state: MemberState, reason: &str) {
        if self.all_in() {
            self.parted_at.set(self.version.get());
        }
        self.note(member, |status| {
            status.state = state;
            reason.clone_into(&mut status.reason);
        });
        let is_in: Vec<bool> = (0..self.count()).map(|it| self.state(it) == MemberState::In).collect();
        for member in (0..self.count()).filter(|it| !self.is_told(*it)) {
            self.members.borrow_mut()[member].is_untold = true;
        }
        *self.readers.borrow_mut() = Readers::of_values(&self.forms, &is_in);
        *self.tellers.borrow_mut() = Readers::of_stubs(&self.forms, &is_in);
        let mut roster = self.roster.borrow_mut();
        roster.epoch += 1;
        let settled = self.roster_durable.get().max(roster.settled);
        let (epoch, entry) = (roster.epoch, &mut roster.members[member]);
        match (entry.state, state) {
            (_, MemberState::In) => entry.left = None,
            (MemberState::In, _) => entry.left = Left::at(epoch, settled),
            _ => {}
        }
        entry.state = state;
        if state == MemberState::Out {
            self.members.borrow()[member].fence.close();
        }
    }

    /// A member has all that it should. Who asks is told so when that is durable: until then the end of the
    /// server would leave it to be filled.
    pub(crate) async fn come_in(self: &Rc<Self>, member: usize) -> Result<()> {
        self.members.borrow_mut()[member].comes_in = true;
        self.set_state(member, MemberState::In, "");
        let settled = self.roster_settled().await;
        self.members.borrow_mut()[member].comes_in = false;
        settled
    }

    /// Waits until the roster as it is now is durable on every member that it does not call out.
    pub(crate) async fn roster_settled(self: &Rc<Self>) -> Result<()> {
        let wanted = self.roster.borrow().epoch;
        while self.roster_durable.get() < wanted {
            if self.roster_writing.get() {
                let settled = || !self.roster_writing.get() || self.roster_durable.get() >= wanted;
                self.roster_written.wait_for(|| settled().then_some(())).await;
                continue;
            }
            let _writing = RosterWriting::begin(self);
            self.write_roster().await?;
        }
        Ok(())
    }

    async fn write_roster(self: &Rc<Self>) -> Result<()> {
        loop {
            let (epoch, bytes) = {
                let mut roster = self.roster.borrow_mut();
                roster.settled = roster.settled.max(self.roster_durable.get());
                (roster.epoch, roster.encode())
            };
            let writable: Vec<_> =
                (0..self.count()).filter_map(|member| Some((member, self.writable(member)?))).collect();
            let stores = writable.into_iter().map(|(member, device)| {
                let request = Manner::background().request(self.roster_store(bytes.clone()));
                async move { (member, self.in_time(device, request).await) }
            });
            let (mut broken, mut refused) = (false, None);
            for (member, result) in join_all(stores).await {
                match result {
                    Ok(_) => {}
                    Err(error) if verdict(&error) == Verdict::Broken => {
                        broken |= self.mark_out(member, &error.to_string())?;
                    }
                    Err(error @ Error::ShuttingDown) => return Err(error),
                    Err(error) => refused = Some(error),
                }
            }
            match refused {
                None if !broken => {
                    self.roster_durable.set(epoch);
                    return Ok(());
                }
                None => {}
                Some(error) => {
                    tracing::warn!(partition = self.partition, %error, "the roster is written again");
                    self.reactor.sleep_ns(RETRY_NS).await;
                }
            }
        }
    }

    pub(crate) fn roster_store(&self, bytes: Vec<u8>) -> Op {
        roster_store(&self.tag, bytes)
    }
}

/// The roster is being written. Whoever writes it may be given up, as a read is that another answer
/// overtakes: then the next of those who wait writes it.
struct RosterWriting<'a>(&'a Array);

impl RosterWriting<'_> {
    fn begin(array: &Array) -> RosterWriting<'_> {
        let was_written = array.roster_writing.replace(true);
        assert!(!was_written, "one at a time writes the roster");
        RosterWriting(array)
    }
}

impl Drop for RosterWriting<'_> {
    fn drop(&mut self) {
        self.0.roster_writing.set(false);
        self.0.roster_written.wake_all();
    }
}

/// Writes a roster.
pub(crate) fn roster_store(tag: &str, bytes: Vec<u8>) -> Op {
    Op::Store {
        container: ROSTER,
        key: roster_key(tag),
        value: bytes.into(),
        condition: Condition::None,
        expiry: Expiry::Never,
        retain: false,
        want_previous: false,
        form: None,
    }
}

/// Where the roster stands.
pub(crate) fn roster_key(tag: &str) -> Vec<u8> {
    format!("{tag}roster").into_bytes()
}
