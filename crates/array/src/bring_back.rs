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
use crate::join::{OpenError, read_roster};
use crate::member::Joining;
use crate::picker::looked_at;
use crate::roster::MemberState;

impl Array {
    /// Asks the device of a member that is out for nothing more.
    pub fn let_go(&self, member: usize) {
        assert!(self.state(member) == MemberState::Out, "what is used is not let go");
        self.resync_overtaken(member);
        self.members.borrow_mut()[member].device = None;
    }

    /// Gives a member that was let go its device again: [`Array::rebuild`] gives it what it lacks.
    ///
    /// # Errors
    /// The device is not what went, or fails.
    pub async fn bring_back(&self, member: usize, with: Joining) -> Result<(), OpenError> {
        let name = with.name;
        let failed = |error| OpenError::Device { name: name.clone(), error };
        let Ok(device) = with.device else { return Err(OpenError::Nothing) };
        let own = read_roster(&device, &self.tag).await.map_err(failed)?;
        {
            let mut members = self.members.borrow_mut();
            let (kept, roster) = (&mut members[member], self.roster.borrow());
            assert!(kept.status.state == MemberState::Out && kept.device.is_none(), "it was let go");
            if kept.status.id != with.id {
                return Err(OpenError::Stranger(name));
            }
            if own.as_ref().is_some_and(|own| own.array != roster.array) {
                return Err(OpenError::OtherArray(name));
            }
            if own.is_some_and(|own| own.epoch > roster.epoch) {
                return Err(OpenError::Ahead(name));
            }
            kept.device = looked_at(self.picker.as_ref(), &self.reactor, Some(device));
            kept.status.name = name;
            "it has missed writes".clone_into(&mut kept.status.reason);
        }
        Ok(())
    }
}
