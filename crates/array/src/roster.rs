//! The roster: which devices an array consists of, and which of them may be read.
//!
//! Role: a small value that stands on every member, in the array's own container. Place on the path: read
//! when an array is opened, written when a member's state changes.
//!
//! Invariants:
//! * the roster with the highest epoch is in force; a member that it calls out is not read until it has been
//!   rebuilt, whatever its own copy says;
//! * a write that was not made on a member is acknowledged only when a roster that calls it out is durable on
//!   the others;
//! * a roster names an epoch that all members had that it does not call out: one with an older epoch has been
//!   put back as it was at an earlier time, and lacks what came since;
//! * integers are little-endian, a CRC-32C covers everything, and a decoder trusts nothing.
//!
//! ```text
//!  0  magic "PLIMARRY"   8 bytes      34  members        u16
//!  8  CRC-32C, field 0   u32          36  opens          u32
//! 12  format 2           u32          40  settled epoch  u64
//! 16  array id           16 bytes     48  epoch          u64
//! 32  forms              u8           56  members, each of 24 bytes; then forms, each: the 8 bytes of a
//! 33  0                  u8               header that say what it is
//!
//! a member:
//!  0  device id          16 bytes     18  epochs that it may have been behind then   u16
//! 16  state              u8           20  epoch that it went out with                u32
//! 17  1: it gave up what it had       u8  0: it is in, or an earlier version wrote this
//! ```

use crate::forms::FORMS_MAX;
use crate::header::{FORM_BYTES, decode_form, encode_form};
use crc_fast::{CrcAlgorithm, checksum};
use plimsoll_kv::Form;

const MAGIC: [u8; 8] = *b"PLIMARRY";
const FORMAT: u32 = 2;
const HEAD_BYTES: usize = 56;
const MEMBER_BYTES: usize = 24;
const CRC_AT: std::ops::Range<usize> = 8..12;
/// Members at most.
pub const MEMBERS_MAX: usize = 64;

/// How far a member is to be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberState {
    /// It holds everything that it should.
    In,
    /// It lacks writes, or is not there.
    Out,
    /// It takes all writes, and is being given what it lacks. It is not read.
    Resyncing,
}

impl MemberState {
    /// What operators call it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            MemberState::In => "in",
            MemberState::Out => "out",
            MemberState::Resyncing => "resyncing",
        }
    }
}

/// A member as the roster knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) device: [u8; 16],
    pub(crate) state: MemberState,
    /// When it went out; nothing while it is in, or if that is not known.
    pub(crate) left: Option<Left>,
}

/// When a member went out that is not in again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Left {
    /// The epoch that says so first: of two members, who went out later has the higher one.
    pub(crate) epoch: u32,
    /// How far what was durable on it may have been behind that.
    behind: u16,
    /// What it had then counts no more.
    pub(crate) is_given_up: bool,
}

impl Left {
    /// A member went out with this epoch, when that one was durable on all that were in; nothing if the two
    /// are too far apart to be written down.
    pub(crate) fn at(epoch: u64, settled: u64) -> Option<Left> {
        let behind = u16::try_from(epoch.checked_sub(settled)?).ok()?;
        Some(Left { epoch: u32::try_from(epoch).ok()?, behind, is_given_up: false })
    }

    /// The epoch of the oldest roster that the member can have, if it has what it had.
    pub(crate) fn settled(self) -> u64 {
        u64::from(self.epoch.saturating_sub(self.behind.into()))
    }
}

impl Entry {
    /// What the member has counts no more.
    pub(crate) fn give_up(&mut self) {
        if let Some(left) = &mut self.left {
            left.is_given_up = true;
        }
    }

    /// The device takes the place of the member, with nothing.
    pub(crate) fn replace(&mut self, device: [u8; 16]) {
        self.device = device;
        self.give_up();
    }
}

/// Who belongs to an array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Roster {
    pub(crate) array: [u8; 16],
    /// Counts changes.
    pub(crate) epoch: u64,
    /// An epoch that was durable on every member that is not called out; 0 in rosters of earlier versions.
    pub(crate) settled: u64,
    /// Counts times that the array was opened: the epoch of versions.
    pub(crate) opens: u32,
    /// What values have been made into since the array was made.
    pub(crate) forms: Vec<Form>,
    pub(crate) members: Vec<Entry>,
}

impl Roster {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let variable_bytes = self.members.len() * MEMBER_BYTES + self.forms.len() * FORM_BYTES;
        let mut bytes = Vec::with_capacity(HEAD_BYTES + variable_bytes);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&FORMAT.to_le_bytes());
        bytes.extend_from_slice(&self.array);
        bytes.extend_from_slice(&[self.forms.len() as u8, 0]);
        bytes.extend_from_slice(&(self.members.len() as u16).to_le_bytes());
        bytes.extend_from_slice(&self.opens.to_le_bytes());
        bytes.extend_from_slice(&self.settled.to_le_bytes());
        bytes.extend_from_slice(&self.epoch.to_le_bytes());
        for member in &self.members {
            bytes.extend_from_slice(&member.device);
            bytes.push(member.state as u8);
            let left = member.left.unwrap_or(Left { epoch: 0, behind: 0, is_given_up: false });
            bytes.push(u8::from(left.is_given_up));
            bytes.extend_from_slice(&left.behind.to_le_bytes());
            bytes.extend_from_slice(&left.epoch.to_le_bytes());
        }
        self.forms.iter().for_each(|form| bytes.extend_from_slice(&encode_form(*form)));
        let crc = checksum(CrcAlgorithm::Crc32Iscsi, &bytes) as u32;
        bytes[CRC_AT].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// The roster in these bytes, or what is wrong with them.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Roster, &'static str> {
        if bytes.len() < HEAD_BYTES || bytes[..8] != MAGIC {
            return Err("is no roster");
        }
        let mut bare = bytes.to_vec();
        bare[CRC_AT].fill(0);
        if bytes[CRC_AT] != (checksum(CrcAlgorithm::Crc32Iscsi, &bare) as u32).to_le_bytes() {
            return Err("has a wrong checksum");
        }
        if bytes[12..16] != FORMAT.to_le_bytes() {
            return Err("is of a format that this version does not know");
        }
        let count = usize::from(u16::from_le_bytes([bytes[34], bytes[35]]));
        let (forms, members_end) = (usize::from(bytes[32]), HEAD_BYTES + count * MEMBER_BYTES);
        let is_whole = bytes.len() == members_end + forms * FORM_BYTES;
        if !is_whole || !(1..=MEMBERS_MAX).contains(&count) || !(1..=FORMS_MAX).contains(&forms) {
            return Err("contradicts itself");
        }
        let members = bytes[HEAD_BYTES..members_end].chunks(MEMBER_BYTES).map(entry);
        let members = members.collect::<Option<Vec<Entry>>>();
        let forms = bytes[members_end..].as_chunks().0.iter().map(decode_form);
        let forms = forms.collect::<Option<Vec<Form>>>().filter(|forms| {
            forms.iter().enumerate().all(|(at, form)| form.roles() <= count && !forms[..at].contains(form))
        });
        Ok(Roster {
            array: bytes[16..32].try_into().expect("16 bytes"),
            settled: u64::from_le_bytes(bytes[40..48].try_into().expect("8 bytes")),
            epoch: u64::from_le_bytes(bytes[48..56].try_into().expect("8 bytes")),
            opens: u32::from_le_bytes(bytes[36..40].try_into().expect("4 bytes")),
            forms: forms.ok_or("names a form that this version does not know")?,
            members: members.ok_or("names a state that this version does not know")?,
        })
    }
}

fn entry(bytes: &[u8]) -> Option<Entry> {
    let state = match bytes[16] {
        0 => MemberState::In,
        1 => MemberState::Out,
        2 => MemberState::Resyncing,
        _ => return None,
    };
    let left = Left {
        epoch: u32::from_le_bytes(bytes[20..24].try_into().expect("4 bytes")),
        behind: u16::from_le_bytes([bytes[18], bytes[19]]),
        is_given_up: bytes[17] != 0,
    };
    let left = Some(left).filter(|left| left.epoch > 0 && state != MemberState::In);
    Some(Entry { device: bytes[..16].try_into().expect("16 bytes"), state, left })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample() -> Roster {
        let entry = |number: u8, state| Entry { device: [number; 16], state, left: None };
        Roster {
            array: [9; 16],
            epoch: 5,
            settled: 4,
            opens: 2,
            forms: vec![Form::Copies(2)],
            members: vec![
                entry(1, MemberState::In),
                Entry { left: Left::at(4, 3), ..entry(2, MemberState::Out) },
                entry(3, MemberState::Resyncing),
            ],
        }
    }

    #[test]
    fn what_is_decoded_is_what_was_encoded() {
        assert_eq!(Roster::decode(&sample().encode()), Ok(sample()));
        assert_eq!(sample().encode().len(), 136);
        let entry = Entry { device: [4; 16], state: MemberState::In, left: None };
        let forms = vec![Form::Shards { data: 4, parities: 2 }, Form::Copies(3)];
        let split = Roster { forms, members: vec![entry; 6], ..sample() };
        assert_eq!(Roster::decode(&split.encode()), Ok(split));
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_noticed() {
        let whole = sample().encode();
        for bit in 0..whole.len() * 8 {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Roster::decode(&bytes).is_err(), "bit {bit}");
        }
        (0..whole.len()).for_each(|length| assert!(Roster::decode(&whole[..length]).is_err()));
    }

    proptest! {
        #[test]
        fn nothing_that_is_decoded_panics(bytes: Vec<u8>) {
            let _ = Roster::decode(&bytes);
            let mut framed = sample().encode();
            let length = bytes.len().min(framed.len() - 16);
            framed[12..12 + length].copy_from_slice(&bytes[..length]);
            framed[CRC_AT].fill(0);
            let crc = checksum(CrcAlgorithm::Crc32Iscsi, &framed) as u32;
            framed[CRC_AT].copy_from_slice(&crc.to_le_bytes());
            let _ = Roster::decode(&framed);
        }
    }
}
