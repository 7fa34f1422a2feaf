//! Bringing back: a member that is out gets its device again, opened anew while the array is served.
//!
//! Role: for a drive, or a file, that was away and is there again. Place on the path: none; an operator asks
//! for it.
//!
//! Invariants:
//! * nothing more goes to a member that was let go, so that its device may be opened by somebody else;
//! * what comes back is compared with the roster as at a start (`join`), and comes in as every member does
//!   that has missed writes (`rebuild`).
//!
//! Never: it makes a member readable.

use crate::array::Array;
use crate::join::{MISSED, OpenError, read_roster};
use crate::member::Joining;
use crate::roster::MemberState;
use plimsoll_kv::Device;
use std::rc::Rc;

impl Array {
    /// Asks the device of a member that is out for nothing more.
    pub fn let_go(&self, member: usize) {
        assert!(self.state(member) == MemberState::Out, "what is used is not let go");
        self.resync_overtaken(member);
        self.members.borrow_mut()[member].device = None;
    }

    /// Gives a member that was let go its device again: [`Array::rebuild`] gives it what it lacks. One that
    /// cannot be opened stays away, for that reason.
    ///
    /// # Errors
    /// The device is not what went, or fails.
    pub async fn bring_back(&self, member: usize, with: Joining) -> Result<(), OpenError> {
        let (name, id) = (with.name, with.id);
        let compared = match &with.device {
            Err(why) => {
                self.note(member, |status| status.reason.clone_from(why));
                return Ok(());
            }
            Ok(device) => self.compare(member, (&name, id), device).await,
        };
        if let Err(error) = compared {
            self.note(member, |status| status.reason = error.to_string());
            return Err(error);
        }
        let mut members = self.members.borrow_mut();
        let member = &mut members[member];
        assert!(member.status.state == MemberState::Out && member.device.is_none(), "it was let go");
        member.attach(with.device.ok(), self.picker.as_ref(), &self.reactor);
        member.status.name = name;
        MISSED.clone_into(&mut member.status.reason);
        Ok(())
    }

    /// Compares a device that comes back with the member that went.
    async fn compare(
        &self,
        member: usize,
        (name, id): (&str, [u8; 16]),
        device: &Rc<dyn Device>,
    ) -> Result<(), OpenError> {
        let failed = |error| OpenError::Device { name: name.to_owned(), error };
        let own = read_roster(device, &self.tag).await.map_err(failed)?;
        let roster = self.roster.borrow();
        match own {
            _ if roster.members[member].device != id => Err(OpenError::Stranger(name.to_owned())),
            Some(own) if own.array != roster.array => Err(OpenError::OtherArray(name.to_owned())),
            Some(own) if own.epoch > roster.epoch => Err(OpenError::Ahead(name.to_owned())),
            _ => Ok(()),
        }
    }
}
