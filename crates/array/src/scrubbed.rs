//! Scrubbed: how far a scrub is, so that a start goes on there.
//!
//! Role: a small value beside the roster, on every member that is in, as long as a scrub is under way. Place
//! on the path: written behind each page of keys of a scrub (`scrub`), read when an array is opened.
//!
//! Invariants:
//! * what it says has been compared was, since that scrub began: of several the one counts that began last;
//! * sets are looked through from the first one: a scrub that was past its keys begins with those.
//!
//! Never: it spares an array that is distrusted a comparison. There every scrub begins anew.

use crate::array::Array;
use crate::member::gives_nothing;
use crate::open::background;
use crate::placement::{ARRAY_CONTAINERS, ROSTER};
use crate::scrub::{Scrub, ToldKeys};
use crate::set::{VERSION_BYTES, decode_version, encode_version};
use crate::walk;
use plimsoll_kv::{Condition, ContainerId, Op, Output, Result, Version};
use std::rc::Rc;

/// Bytes before the key.
const HEAD_BYTES: usize = VERSION_BYTES + 28;

/// More than any scrub counts: further ones are added.
const COUNT_MAX: u64 = 1 << 48;

/// How far a scrub is.
///
/// ```text
///  0  when it began    u32, u64         20  container               u32
/// 12  primary          u32              24  keys until there        u64
/// 16  role             u32              32  errors until there      u64
///                                       40  the last key that was compared
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Scrubbed {
    pub(crate) begun: Version,
    /// Behind the last primary of an array all keys have been compared.
    pub(crate) primary: usize,
    pub(crate) role: usize,
    pub(crate) container: ContainerId,
    pub(crate) after: Vec<u8>,
    pub(crate) keys: u64,
    pub(crate) errors: u64,
}

impl Scrubbed {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEAD_BYTES + self.after.len());
        bytes.extend_from_slice(&encode_version(self.begun));
        bytes.extend_from_slice(&(self.primary as u32).to_le_bytes());
        bytes.extend_from_slice(&(self.role as u32).to_le_bytes());
        bytes.extend_from_slice(&self.container.0.to_le_bytes());
        bytes.extend_from_slice(&self.keys.to_le_bytes());
        bytes.extend_from_slice(&self.errors.to_le_bytes());
        bytes.extend_from_slice(&self.after);
        bytes
    }

    /// Nothing if that is none, of an array with so many members and roles.
    fn decode(bytes: &[u8], (members, roles): (usize, usize)) -> Option<Scrubbed> {
        let (head, after) = bytes.split_first_chunk::<HEAD_BYTES>()?;
        let word = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("4 bytes"));
        let count = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("8 bytes"));
        let (primary, role, container) = (word(12) as usize, word(16) as usize, ContainerId(word(20)));
        let begun = decode_version(head)?;
        let (keys, errors, after) = (count(24), count(32), after.to_vec());
        let is_place = primary <= members && role < roles && container.0 < ARRAY_CONTAINERS;
        let is_right = is_place && keys <= COUNT_MAX && errors <= COUNT_MAX;
        is_right.then_some(Scrubbed { begun, primary, role, container, after, keys, errors })
    }

    /// After which key those of a primary are to be compared, in a role and container; nothing if all of
    /// them have been.
    pub(crate) fn rest(from: Option<&Scrubbed>, of: ToldKeys) -> Option<Option<Vec<u8>>> {
        walk::rest(from.map(|it| ((it.primary, it.role, it.container), &it.after[..])), of)
    }
}

impl Array {
    fn scrubbed_key(&self) -> Vec<u8> {
        format!("{}scrubbed", self.tag).into_bytes()
    }

    /// A scrub that the end of the server cut short goes on, unless every key is compared anyway.
    pub(crate) async fn go_on_scrubbing(self: &Rc<Self>) -> Result<()> {
        let mut newest = None;
        for member in 0..self.count() {
            let Some(device) = self.readable(member) else { continue };
            let op = Op::Retrieve { container: ROSTER, key: self.scrubbed_key(), range: None, pin: false };
            let own = match background(&device, op).await {
                Ok(Output::Found(item)) => Scrubbed::decode(&item.bytes, (self.count(), self.roles)),
                Ok(_) => None,
                // Another tells it; what fails shows itself where it is needed.
                Err(error) if gives_nothing(&error) => None,
                Err(error) => return Err(error),
            };
            newest = newest.max(own);
        }
        let Some(from) = newest else { return Ok(()) };
        tracing::info!(partition = self.partition, keys = from.keys, "the scrub goes on where it was");
        self.scrub_from(Some(from));
        Ok(())
    }

    /// Says how far a scrub is. Where that cannot be written a start goes on from an earlier place.
    pub(crate) async fn note_scrubbed(
        self: &Rc<Self>,
        begun: Version,
        (primary, role, container): ToldKeys,
        after: Vec<u8>,
    ) {
        if self.distrusted.get() {
            return; // A start compares every key.
        }
        let Scrub { keys, errors, .. } = self.scrub.get();
        let scrubbed = Scrubbed { begun, primary, role, container, after, keys, errors };
        let _ = self.kept_by_all(&Op::store(ROSTER, self.scrubbed_key(), scrubbed.encode())).await;
    }

    /// A scrub has ended. Where that cannot be written a start goes through what came behind its last note.
    pub(crate) async fn forget_scrubbed(self: &Rc<Self>) {
        let _ = self.kept_by_all(&self.scrubbed_delete()).await;
    }

    /// What has a member say nothing of a scrub any more.
    pub(crate) fn scrubbed_delete(&self) -> Op {
        Op::Delete { container: ROSTER, key: self.scrubbed_key(), condition: Condition::None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample() -> Scrubbed {
        let begun = Version { epoch: 3, clock: 9 };
        let (after, container) = (b"a key".to_vec(), ContainerId(4));
        Scrubbed { begun, primary: 2, role: 1, container, after, keys: 512, errors: 1 }
    }

    #[test]
    fn what_is_decoded_is_what_was_encoded_and_nothing_else_is() {
        let bytes = sample().encode();
        assert_eq!(Scrubbed::decode(&bytes, (3, 2)), Some(sample()));
        assert_eq!(Scrubbed::decode(&bytes, (2, 2)), Some(sample()), "behind the last primary");
        assert_eq!(Scrubbed::decode(&bytes, (1, 2)), None, "there is no such primary");
        assert_eq!(Scrubbed::decode(&bytes, (3, 1)), None, "there is no such role");
        assert_eq!(Scrubbed::decode(&bytes[..HEAD_BYTES - 1], (3, 2)), None);
        let beyond = Scrubbed { container: ContainerId(ARRAY_CONTAINERS), ..sample() };
        assert_eq!(Scrubbed::decode(&beyond.encode(), (3, 2)), None);
    }

    #[test]
    fn what_is_left_begins_behind_the_last_key() {
        let rest = |primary, role, container| {
            Scrubbed::rest(Some(&sample()), (primary, role, ContainerId(container)))
        };
        assert_eq!((rest(1, 9, 9), rest(2, 0, 9), rest(2, 1, 3)), (None, None, None));
        assert_eq!(rest(2, 1, 4), Some(Some(b"a key".to_vec())));
        assert_eq!((rest(2, 1, 5), rest(2, 2, 0), rest(3, 0, 0)), (Some(None), Some(None), Some(None)));
        assert_eq!(Scrubbed::rest(None, (0, 0, ContainerId(0))), Some(None));
    }

    #[test]
    fn of_several_the_one_counts_that_began_last() {
        let before = Scrubbed { begun: Version { epoch: 3, clock: 8 }, primary: 3, ..sample() };
        assert_eq!(Some(before).max(Some(sample())), Some(sample()));
    }

    proptest! {
        #[test]
        fn nothing_that_is_decoded_panics(bytes: Vec<u8>, members in 1_usize..65, roles in 1_usize..40) {
            let _ = Scrubbed::decode(&bytes, (members, roles));
        }
    }
}
