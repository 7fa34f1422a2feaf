//! Sets: values of several members that share parities.
//!
//! Role: the records of a set, and the names under which they stand: parities, each behind a description of
//! the set; the description once more, alone; stubs, which say of a key which set it is in; and ghosts, which
//! are what a set goes on needing of a value that is gone. Place on the path: below packing, and reading what
//! is packed without the member that has it.
//! Source: KVMD (FAST'20), section 5.4; how it was changed and why, `docs/rfcs/2026-11-23-packing.md`.
//!
//! Invariants: integers are little-endian; the description is covered by its checksum, what follows it by the
//! device below. A value is known by its version, which no two writes share. A decoder trusts nothing and
//! never panics.
//!
//! ```text
//! record of a set                            for each value
//!  0  magic 0xd2            u8                0  version: epoch        u32
//!  1  values at most        u8                4  version: clock        u64
//!  2  parities              u8               12  bytes of the value    u32
//!  3  which parity follows  u8               16  bytes of its key      u16
//!  4  CRC-32C of the description, this 0 u32 18  its key
//!  8  bytes of the description u32
//! 12  name: epoch           u32              stub, behind its header
//! 16  name: clock           u64               0  name of the set       u32, u64
//! 24  values                u8               12  values of the set      u8
//! 25  members that hold it, one more than parities
//!     the values, and then the parity        13  members that hold it, one more than parities
//!                                                perhaps the version that its member told before, and
//!                                                its value: what was recovered of it
//!                                            ghost: name of the set, then the value behind its header
//! ```

use crc_fast::{CrcAlgorithm, checksum};
use plimsoll_kv::Version;

const MAGIC: u8 = 0xd2;
const CRC_AT: std::ops::Range<usize> = 4..8;
const FIXED_BYTES: usize = 25;
const VALUE_FIXED_BYTES: usize = 18;
/// Bytes of a version as it is stored.
pub(crate) const VERSION_BYTES: usize = 12;

/// Where a packed value is to be found, if it is lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stub {
    /// The name of its set.
    pub(crate) set: Version,
    /// Values of the set.
    pub(crate) values: u8,
    /// The members that hold records of the set: parities, and behind them the description alone.
    pub(crate) holders: Vec<u8>,
}

/// A value of a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Packed {
    pub(crate) key: Vec<u8>,
    pub(crate) version: Version,
    pub(crate) value_bytes: u32,
}

/// What a set consists of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Set {
    /// Its name, which no other set and no value of its partition has.
    pub(crate) name: Version,
    /// Values at most.
    pub(crate) data: u8,
    /// As in its stubs.
    pub(crate) holders: Vec<u8>,
    pub(crate) values: Vec<Packed>,
}

/// The bytes that a version is stored as.
pub(crate) fn encode_version(version: Version) -> [u8; VERSION_BYTES] {
    let mut bytes = [0; VERSION_BYTES];
    bytes[..4].copy_from_slice(&version.epoch.to_le_bytes());
    bytes[4..].copy_from_slice(&version.clock.to_le_bytes());
    bytes
}

pub(crate) fn decode_version(bytes: &[u8]) -> Option<Version> {
    let (epoch, rest) = bytes.split_first_chunk::<4>()?;
    let (clock, _) = rest.split_first_chunk::<8>()?;
    Some(Version { epoch: u32::from_le_bytes(*epoch), clock: u64::from_le_bytes(*clock) })
}

/// Takes a version off the front of what follows a stub.
pub(crate) fn take_version(bytes: &mut Vec<u8>) -> Option<Version> {
    let version = decode_version(bytes)?;
    bytes.drain(..VERSION_BYTES);
    Some(version)
}

/// What keys of records of sets begin with.
pub(crate) fn set_prefix(tag: &str) -> Vec<u8> {
    [tag.as_bytes(), b"s"].concat()
}

/// The key under which a record of a set stands.
pub(crate) fn set_key(tag: &str, name: Version) -> Vec<u8> {
    [set_prefix(tag), encode_version(name).to_vec()].concat()
}

/// The set of which a key names a record, if it does.
pub(crate) fn set_named(tag: &str, key: &[u8]) -> Option<Version> {
    let name = key.strip_prefix(&set_prefix(tag)[..])?;
    if name.len() == VERSION_BYTES { decode_version(name) } else { None }
}

/// The key under which what a set goes on needing stands, of the value with this version.
pub(crate) fn ghost_key(tag: &str, version: Version) -> Vec<u8> {
    [tag.as_bytes(), b"g", &encode_version(version)].concat()
}

/// The key of a ghost that stays until all sets were looked through, whatever becomes of the value meanwhile.
pub(crate) fn lasting_key(tag: &str, version: Version) -> Vec<u8> {
    [tag.as_bytes(), b"h", &encode_version(version)].concat()
}

/// Whether a key is one of those.
pub(crate) fn is_ghost(tag: &str, key: &[u8]) -> bool {
    let kind = key.strip_prefix(tag.as_bytes()).and_then(<[u8]>::first);
    matches!(kind, Some(b'g' | b'h'))
}

impl Stub {
    /// Bytes of one that names so many parities.
    pub(crate) fn bytes(parities: usize) -> usize {
        VERSION_BYTES + 1 + parities + 1
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        [&encode_version(self.set)[..], &[self.values], &self.holders].concat()
    }

    /// The stub that names so many parities at the start of what follows a header: the value may stand
    /// behind it.
    pub(crate) fn first(bytes: &[u8], parities: usize) -> Option<Stub> {
        let own = bytes.get(..Stub::bytes(parities))?;
        let (values, holders) = own[VERSION_BYTES..].split_first()?;
        Some(Stub { set: decode_version(own)?, values: *values, holders: holders.to_vec() })
    }

    /// The same, taken off.
    pub(crate) fn take(bytes: &mut Vec<u8>, parities: usize) -> Option<Stub> {
        let stub = Stub::first(bytes, parities)?;
        bytes.drain(..Stub::bytes(parities));
        Some(stub)
    }
}

impl Set {
    pub(crate) fn parities(&self) -> usize {
        self.holders.len() - 1
    }

    pub(crate) fn stub(&self) -> Stub {
        Stub { set: self.name, values: self.values.len() as u8, holders: self.holders.clone() }
    }

    /// Bytes of its description.
    pub(crate) fn bytes(&self) -> usize {
        let each = self.values.iter().map(|value| VALUE_FIXED_BYTES + value.key.len());
        FIXED_BYTES + self.holders.len() + each.sum::<usize>()
    }

    /// The record of its holder with this number, of which a parity is part, or not.
    pub(crate) fn record(&self, number: usize, parity: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.bytes() + parity.len());
        bytes.extend_from_slice(&[MAGIC, self.data, self.parities() as u8, number as u8]);
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&(self.bytes() as u32).to_le_bytes());
        bytes.extend_from_slice(&encode_version(self.name));
        bytes.push(self.values.len() as u8);
        bytes.extend_from_slice(&self.holders);
        for value in &self.values {
            bytes.extend_from_slice(&encode_version(value.version));
            bytes.extend_from_slice(&value.value_bytes.to_le_bytes());
            bytes.extend_from_slice(&(value.key.len() as u16).to_le_bytes());
            bytes.extend_from_slice(&value.key);
        }
        let crc = checksum(CrcAlgorithm::Crc32Iscsi, &bytes) as u32;
        bytes[CRC_AT].copy_from_slice(&crc.to_le_bytes());
        bytes.extend_from_slice(parity);
        bytes
    }

    /// A record: the set, the number of its holder, and the parity; or what is wrong with it.
    pub(crate) fn decode(record: &[u8]) -> Result<(Set, usize, &[u8]), &'static str> {
        const SHORT: &str = "a set's record that is too short";
        let u32_at = |at: usize| record.get(at..)?.first_chunk().copied().map(u32::from_le_bytes);
        let [MAGIC, data, parities, number, ..] = *record else { return Err("no record of a set") };
        let bytes = u32_at(8).ok_or(SHORT)? as usize;
        let (described, parity) = record.split_at_checked(bytes).ok_or(SHORT)?;
        let mut bare = described.to_vec();
        bare.get_mut(CRC_AT).ok_or(SHORT)?.fill(0);
        let crc = checksum(CrcAlgorithm::Crc32Iscsi, &bare) as u32;
        if u32_at(CRC_AT.start) != Some(crc) {
            return Err("a set's record with a wrong checksum");
        }
        let name = described.get(12..).and_then(decode_version).ok_or(SHORT)?;
        let count = usize::from(*described.get(FIXED_BYTES - 1).ok_or(SHORT)?);
        let holders = usize::from(parities) + 1;
        let rest = described.get(FIXED_BYTES..).ok_or(SHORT)?;
        let (holders, mut rest) = rest.split_at_checked(holders).ok_or(SHORT)?;
        let mut values = Vec::new();
        for _ in 0..count {
            let (value, behind) = decode_value(rest).ok_or(SHORT)?;
            values.push(value);
            rest = behind;
        }
        let fits = (1..=usize::from(data)).contains(&count) && usize::from(number) <= usize::from(parities);
        if !fits || parities == 0 || !rest.is_empty() {
            return Err("a set's record with wrong numbers");
        }
        let set = Set { name, data, holders: holders.to_vec(), values };
        Ok((set, number.into(), parity))
    }
}

fn decode_value(bytes: &[u8]) -> Option<(Packed, &[u8])> {
    let (fixed, behind) = bytes.split_at_checked(VALUE_FIXED_BYTES)?;
    let value_bytes = u32::from_le_bytes(*fixed[VERSION_BYTES..].first_chunk()?);
    let key_bytes = u16::from_le_bytes(*fixed[VERSION_BYTES + 4..].first_chunk()?);
    let (key, behind) = behind.split_at_checked(key_bytes.into())?;
    Some((Packed { key: key.to_vec(), version: decode_version(fixed)?, value_bytes }, behind))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn version() -> impl Strategy<Value = Version> {
        (any::<u32>(), any::<u64>()).prop_map(|(epoch, clock)| Version { epoch, clock })
    }

    fn set() -> impl Strategy<Value = Set> {
        let value = (proptest::collection::vec(any::<u8>(), 0..20), version(), any::<u32>());
        let value = value.prop_map(|(key, version, value_bytes)| Packed { key, version, value_bytes });
        let holders = proptest::collection::vec(any::<u8>(), 2..5);
        (version(), 4..8_u8, holders, proptest::collection::vec(value, 1..=4))
            .prop_map(|(name, data, holders, values)| Set { name, data, holders, values })
    }

    #[test]
    fn the_format_stays_as_it_is() {
        let version = Version { epoch: 7, clock: 0x0102 };
        let value = Packed { key: b"k".to_vec(), version, value_bytes: 3 };
        let set = Set { name: version, data: 4, holders: vec![1, 2, 3], values: vec![value] };
        let record = set.record(1, b"pp");
        let hexadecimal: String = record.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(&hexadecimal[..8], "d2040201");
        assert_eq!(
            &hexadecimal[16..],
            "2f000000070000000201000000000000010102030700000002010000000000000300000001006b7070"
        );
        assert_eq!(set.stub().encode(), [7, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0, 1, 1, 2, 3]);
        assert_eq!(set_named("{0}", &set_key("{0}", version)), Some(version));
        assert_eq!(set_named("{0}", &ghost_key("{0}", version)), None);
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(set in set(), parity: Vec<u8>) {
            let record = set.record(1, &parity);
            prop_assert_eq!(Set::decode(&record), Ok((set.clone(), 1, &parity[..])));
            prop_assert_eq!(record.len(), set.bytes() + parity.len());
            let stub = set.stub();
            prop_assert_eq!(Stub::first(&stub.encode(), set.parities()), Some(stub));
            for cut in 0..set.bytes() {
                prop_assert!(Set::decode(&record[..cut]).is_err());
            }
            for at in 0..set.bytes() {
                let mut wrong = record.clone();
                wrong[at] ^= 1;
                prop_assert!(Set::decode(&wrong).is_err(), "byte {}", at);
            }
        }

        #[test]
        fn any_bytes_are_decoded_or_refused(bytes: Vec<u8>) {
            let _ = (Set::decode(&bytes), Stub::first(&bytes, 2), decode_version(&bytes));
        }
    }
}
