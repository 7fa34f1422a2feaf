//! A member: one of the devices that an array consists of.
//!
//! Invariant: a member is read only while it is in; it is written while it is in or being resynchronised.

use crate::claims::Claims;
use crate::fence::{Fence, Fenced};
use crate::filled::Filled;
use crate::picker::{Picker, looked_at};
use crate::roster::MemberState;
use plimsoll_kv::{ContainerId, Device, Error};
use plimsoll_reactor::Reactor;
use std::rc::Rc;

/// A device as it is given to an array.
pub struct Joining {
    /// What people call it: its path.
    pub name: String,
    /// What its superblock calls it.
    pub id: [u8; 16],
    /// The device, or why it is missing.
    pub device: Result<Rc<dyn Device>, String>,
}

/// What is known of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberStatus {
    /// What people call it.
    pub name: String,
    /// What its superblock calls it.
    pub id: [u8; 16],
    /// How far it is to be trusted.
    pub state: MemberState,
    /// Why it is not in; empty if it is.
    pub reason: String,
    /// Keys that a resynchronisation has been through.
    pub keys_done: u64,
    /// Keys that it has to go through.
    pub keys_total: u64,
    /// Bytes of values that were copied to it.
    pub copied_bytes: u64,
    /// Records that were rewritten on it, because they could not be read or were not the right ones.
    pub repaired: u64,
    /// Requests that failed at it.
    pub failed_requests: u64,
    /// It was opened, whatever it holds.
    pub is_there: bool,
    /// Objects would be lost with it: too few of the others that hold pieces of them are in.
    pub holds_last: bool,
}

/// A member as the array has it.
pub(crate) struct Member {
    pub(crate) device: Option<Rc<dyn Device>>,
    pub(crate) fence: Rc<Fence>,
    pub(crate) status: MemberStatus,
    /// While it was filled so few were in that nobody may have told what it should have.
    pub(crate) is_untold: bool,
    /// Counts resynchronisations: one that finds another number has been overtaken.
    pub(crate) resyncs: u64,
    /// What it claimed when it was emptied last.
    pub(crate) claims: Claims,
    /// Keys that its journal named then, or any when the server ended: they are compared when it is in.
    pub(crate) named: Vec<(ContainerId, Vec<u8>)>,
    /// It was being filled when the server ended, and has all that was written until then: it may go on, and
    /// has to give way first.
    pub(crate) goes_on: bool,
    /// It is in, and a roster that says so is not durable yet.
    pub(crate) comes_in: bool,
    /// How far it has been filled.
    pub(crate) filled: Option<Filled>,
}

impl Member {
    pub(crate) fn new(joining: Joining, state: MemberState, reason: &str) -> Member {
        let status = MemberStatus {
            name: joining.name,
            id: joining.id,
            state,
            reason: reason.to_owned(),
            keys_done: 0,
            keys_total: 0,
            copied_bytes: 0,
            repaired: 0,
            failed_requests: 0,
            is_there: joining.device.is_ok(),
            holds_last: false,
        };
        Member {
            device: joining.device.ok(),
            fence: Rc::default(),
            status,
            is_untold: false,
            resyncs: 0,
            claims: Claims::default(),
            named: Vec::new(),
            goes_on: false,
            comes_in: false,
            filled: None,
        }
    }

    /// Has a device from here on, behind its fence, and looked at by the picker, if there is one.
    pub(crate) fn attach(
        &mut self,
        device: Option<Rc<dyn Device>>,
        picker: Option<&Picker>,
        reactor: &Reactor,
    ) {
        let fenced = |device| -> Rc<dyn Device> { Fenced::new(device, &self.fence) };
        self.device = device.map(|device| fenced(looked_at(picker, reactor, device)));
    }

    /// It has been emptied, but for what it claims.
    pub(crate) fn begin_anew(&mut self, claims: Claims) {
        if !claims.has_any() {
            self.named.clear();
        }
        (self.claims, self.filled, self.goes_on) = (claims, None, false);
    }

    /// The device, if it may be read.
    pub(crate) fn readable(&self) -> Option<Rc<dyn Device>> {
        (self.status.state == MemberState::In).then(|| self.device.clone()).flatten()
    }

    /// The device, if it takes writes.
    pub(crate) fn writable(&self) -> Option<Rc<dyn Device>> {
        (self.status.state != MemberState::Out).then(|| self.device.clone()).flatten()
    }
}

/// What an error of a member says about the member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It refused the request, and would refuse it whoever it was: nothing is wrong with it.
    Refused,
    /// It cannot do what it has to: it is taken out.
    Broken,
}

/// What a failed write says about the member. One that could not read what it was to replace cannot be
/// written there any more either.
pub(crate) fn verdict(error: &Error) -> Verdict {
    match error {
        Error::ReadOnly(_) | Error::Unreadable(_) => Verdict::Broken,
        _ => Verdict::Refused,
    }
}

/// Whether a member that gave this answer has not got what it was asked for, or cannot give it. That it fails
/// is found out by what is sent to it next: nobody else fails for it.
pub(crate) fn gives_nothing(error: &Error) -> bool {
    *error == Error::NotFound || verdict(error) == Verdict::Broken
}
