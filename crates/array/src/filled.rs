//! Filled: how far a member has been given what it lacks, so that a start goes on there.
//!
//! Role: a small value beside the roster, on the member that is being filled alone. Place on the path:
//! written behind each page of keys of a rebuild (`rebuild`), read when an array is opened.
//!
//! Invariants:
//! * what was copied is durable before the value that says so;
//! * a member goes on with what it has only if it took every write until the server ended: its own roster
//!   says that it was being filled, and nobody has opened the array without it since;
//! * every key that the journal of any member names gives way on it to what the others have, as it is made
//!   whole among those that are in;
//! * what sets need of it nobody names: it is asked for each set again whether it has that (`sets`);
//! * where it is not known which keys may differ, it begins anew, with nothing. So it does where it claims
//!   something (`claims`).
//!
//! Never: it makes a member readable.

use crate::array::Array;
use crate::member::{Member, gives_nothing};
use crate::open::{Journaled, background};
use crate::placement::{ARRAY_CONTAINERS, ROSTER};
use crate::roster::MemberState;
use crate::walk;
use plimsoll_kv::{Condition, ContainerId, Device, Error, Expiry, Op, Output, Result};
use std::rc::Rc;

/// Bytes before the key.
const HEAD_BYTES: usize = 24;

/// How far a member is.
///
/// ```text
///  0  epoch that it went out with   u32     12  keys until there   u64
///  4  role                          u32     20  0                  u32
///  8  container                     u32     24  the last key that was compared
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Filled {
    /// When the member went out that is being filled: what was written at another time says nothing.
    pub(crate) left: u32,
    pub(crate) role: usize,
    pub(crate) container: ContainerId,
    pub(crate) after: Vec<u8>,
    pub(crate) keys: u64,
}

impl Filled {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEAD_BYTES + self.after.len());
        bytes.extend_from_slice(&self.left.to_le_bytes());
        bytes.extend_from_slice(&(self.role as u32).to_le_bytes());
        bytes.extend_from_slice(&self.container.0.to_le_bytes());
        bytes.extend_from_slice(&self.keys.to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&self.after);
        bytes
    }

    /// Nothing if that is none, of an array with so many roles.
    fn decode(bytes: &[u8], roles: usize) -> Option<Filled> {
        let (head, after) = bytes.split_first_chunk::<HEAD_BYTES>()?;
        let number = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("4 bytes"));
        let (role, container) = (number(4) as usize, ContainerId(number(8)));
        let keys = u64::from_le_bytes(head[12..20].try_into().expect("8 bytes"));
        let is_right = role < roles && container.0 < ARRAY_CONTAINERS && number(20) == 0;
        is_right.then(|| Filled { left: number(0), role, container, after: after.to_vec(), keys })
    }

    /// After which key the keys of a role and container are to be compared; nothing if all of them have been.
    pub(crate) fn rest(filled: Option<&Filled>, of: (usize, ContainerId)) -> Option<Option<Vec<u8>>> {
        walk::rest(filled.map(|it| ((it.role, it.container), &it.after[..])), of)
    }
}

impl Array {
    fn filled_key(&self) -> Vec<u8> {
        format!("{}filled", self.tag).into_bytes()
    }

    /// Members that were being filled when the server ended go on where they were; before any request.
    /// What they name joins the others.
    pub(crate) async fn go_on_filling(
        self: &Rc<Self>,
        were_all_applied: bool,
        all: &mut Journaled,
    ) -> Result<()> {
        for member in 0..self.count() {
            let device = match &self.members.borrow()[member] {
                Member { device: Some(device), goes_on: true, .. } => device.clone(),
                _ => continue,
            };
            let may_go_on = were_all_applied && !self.claims(member).has_any();
            // Those that are in say by their marks whether all are named, on whichever member.
            if !may_go_on || self.distrusted.get() {
                continue;
            }
            let (named, filled) = match self.left_half_done(member, &device, all).await {
                Ok(left) => left,
                // Nobody else waits for it.
                Err(error) if gives_nothing(&error) => {
                    let device = self.name(member);
                    tracing::warn!(partition = self.partition, device, %error, "it is filled from its beginning");
                    continue;
                }
                Err(error) => return Err(error),
            };
            if self.distrusted.get() {
                continue; // An entry that has rotted may have named any.
            }
            {
                let mut members = self.members.borrow_mut();
                members[member].status.keys_done = filled.as_ref().map_or(0, |filled| filled.keys);
                (members[member].named, members[member].filled) = (named, filled);
            }
            self.set_state(member, MemberState::Resyncing, "it is being resynchronised");
            self.roster_settled().await?;
            tracing::info!(partition = self.partition, device = self.name(member), "it goes on being filled");
        }
        Ok(())
    }

    /// The keys that any member names, this one too, and how far it was filled; its transactions have ended
    /// then.
    async fn left_half_done(
        self: &Rc<Self>,
        member: usize,
        device: &Rc<dyn Device>,
        all: &mut Journaled,
    ) -> Result<(Vec<(ContainerId, Vec<u8>)>, Option<Filled>)> {
        self.end_prepared(member, device).await?;
        all.add(self.named_by(member, device).await?);
        let keys = all.entries.values().flatten().map(|(_, key)| key.clone());
        let mut named: Vec<_> = keys.collect();
        named.extend(self.unsettled.borrow().iter().cloned());
        named.sort_unstable();
        named.dedup();
        Ok((named, self.read_filled(member, device).await?))
    }

    async fn read_filled(&self, member: usize, device: &Rc<dyn Device>) -> Result<Option<Filled>> {
        let op = Op::Retrieve { container: ROSTER, key: self.filled_key(), range: None, pin: false };
        let found = match background(device, op).await {
            Ok(Output::Found(item)) => Filled::decode(&item.bytes, self.roles),
            // It compares all keys.
            Ok(_) | Err(Error::NotFound | Error::Unreadable(_)) => None,
            Err(error) => return Err(error),
        };
        Ok(found.filter(|filled| Some(filled.left) == self.left_at(member)))
    }

    /// When a member went out that is not in.
    fn left_at(&self, member: usize) -> Option<u32> {
        self.roster.borrow().members[member].left.map(|left| left.epoch)
    }

    /// Says that a member has been given all keys of a role and container until there, and of those before.
    pub(crate) async fn note_filled(
        self: &Rc<Self>,
        member: usize,
        (role, container): (usize, ContainerId),
        after: Option<&[u8]>,
    ) -> Result<()> {
        let (keys, goes_by_claims, is_untold) = {
            let members = self.members.borrow();
            let member = &members[member];
            (member.status.keys_done, member.claims.has_any(), member.is_untold)
        };
        let (Some(left), Some(after)) = (self.left_at(member), after) else { return Ok(()) };
        if goes_by_claims || is_untold {
            return Ok(());
        }
        let filled = Filled { left, role, container, after: after.to_vec(), keys };
        let store = Op::Store {
            container: ROSTER,
            key: self.filled_key(),
            value: filled.encode().into(),
            condition: Condition::None,
            expiry: Expiry::Never,
            retain: false,
            want_previous: false,
            form: None,
        };
        self.members.borrow_mut()[member].filled = Some(filled);
        match self.sent_to_keep(member, store).await {
            // One that is full may have no room for it: a start compares more keys.
            Err(Error::NoSpace | Error::NoMemory) => Ok(()),
            noted => self.unless_out(member, noted).map(drop),
        }
    }

    /// Keys that were named when the server ended are compared first: until they are, the slots that name
    /// them are left as they are.
    pub(crate) async fn give_way_first(self: &Rc<Self>, member: usize) -> Result<()> {
        if !self.members.borrow()[member].goes_on {
            return Ok(());
        }
        let (named, mut left) = (self.members.borrow()[member].named.clone(), Vec::new());
        for key in named {
            if !self.try_give_way(member, key.clone()).await? {
                left.push(key);
            }
        }
        let mut members = self.members.borrow_mut();
        (members[member].named, members[member].goes_on) = (left, false);
        drop(members);
        self.settle_and_mark();
        Ok(())
    }

    /// Says nothing of that any more: the member is in. What it says of a scrub may be of one that has ended
    /// since it went.
    pub(crate) async fn forget_filled(self: &Rc<Self>, member: usize) -> Result<()> {
        let (key, condition) = (self.filled_key(), Condition::None);
        let _ = self.sent_one(member, self.scrubbed_delete()).await;
        let deleted = self.sent_one(member, Op::Delete { container: ROSTER, key, condition }).await;
        self.unless_out(member, deleted).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample() -> Filled {
        Filled { left: 7, role: 1, container: ContainerId(3), after: b"a key".to_vec(), keys: 256 }
    }

    #[test]
    fn what_is_decoded_is_what_was_encoded_and_nothing_else_is() {
        let bytes = sample().encode();
        assert_eq!(Filled::decode(&bytes, 2), Some(sample()));
        assert_eq!(Filled::decode(&bytes, 1), None, "there is no such role");
        assert_eq!(Filled::decode(&bytes[..HEAD_BYTES - 1], 2), None);
        let beyond = Filled { container: ContainerId(ARRAY_CONTAINERS), ..sample() };
        assert_eq!(Filled::decode(&beyond.encode(), 2), None);
    }

    #[test]
    fn what_is_left_begins_behind_the_last_key() {
        let rest = |role, container| Filled::rest(Some(&sample()), (role, ContainerId(container)));
        assert_eq!((rest(0, 9), rest(1, 2)), (None, None));
        assert_eq!(rest(1, 3), Some(Some(b"a key".to_vec())));
        assert_eq!((rest(1, 4), rest(2, 0)), (Some(None), Some(None)));
        assert_eq!(Filled::rest(None, (0, ContainerId(0))), Some(None));
    }

    proptest! {
        #[test]
        fn nothing_that_is_decoded_panics(bytes: Vec<u8>, roles in 0_usize..40) {
            let _ = Filled::decode(&bytes, roles);
        }
    }
}
