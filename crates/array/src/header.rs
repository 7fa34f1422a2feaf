//! The header: what stands at the start of every value that the array stores.
//!
//! Role: says how the object is protected and which version of it this is, so that whoever holds one copy
//! knows how many there are and which is newer (KVMD's third rule: the mechanism stands at the start of the
//! value). Of a value in parts, each part begins with one.
//!
//! Invariants: integers are little-endian; the checksum covers the header; what follows it is covered by the
//! device below, which proves what it reads. A decoder trusts nothing and never panics.
//!
//! ```text
//!  0  magic 0xd1    u8        8  CRC-32C of the header, with this field 0   u32
//!  1  mechanism     u8       12  epoch of the version                       u32
//!  2  code          u8       16  clock of the version                       u64
//!  3  1: a stub     u8       24  bytes of the user's whole value            u64
//!  4  copies, shards of data, or values that share parities   u8
//!  5  parities                    u8
//!  6  role: which of them this is u8
//!  7  0             u8
//! ```

use crate::code::Code;
use crate::placement::ROLES_MAX;
use bytes::Bytes;
use crc_fast::{CrcAlgorithm, checksum};
use plimsoll_kv::{Form, Payload, Version};

/// Bytes of the header.
pub const HEADER_BYTES: usize = 32;

/// Bytes of it that say what the object was made into.
pub(crate) const FORM_BYTES: usize = 8;

const MAGIC: u8 = 0xd1;
const FLAGS_AT: usize = 3;
const ROLE_AT: usize = 6;
const CRC_AT: std::ops::Range<usize> = 8..12;
/// Whole copies: hashing is one of them.
const COPIES: u8 = 1;
/// Shards.
const SHARDS: u8 = 2;
/// Values that share parities.
const PACKED: u8 = 3;
/// What follows is where the value is to be found, and no value.
const STUB: u8 = 1;

/// The start of a header, which says what the object was made into.
pub(crate) fn encode_form(form: Form) -> [u8; FORM_BYTES] {
    match form {
        Form::Copies(copies) => [MAGIC, COPIES, 0, 0, copies, 0, 0, 0],
        Form::Shards { data, parities } => [MAGIC, SHARDS, Code::ReedSolomon as u8, 0, data, parities, 0, 0],
        Form::Packed { data, parities } => [MAGIC, PACKED, Code::ReedSolomon as u8, 0, data, parities, 0, 0],
    }
}

/// What the start of a header says, if this version knows it.
pub(crate) fn decode_form(bytes: &[u8; FORM_BYTES]) -> Option<Form> {
    let [MAGIC, mechanism, code, 0, data, parities, 0, 0] = *bytes else { return None };
    let form = match (mechanism, code, data, parities) {
        (COPIES, 0, copies @ 1.., 0) => Form::Copies(copies),
        (SHARDS, code, data @ 1.., parities @ 1..) if code == Code::ReedSolomon as u8 => {
            Form::Shards { data, parities }
        }
        (PACKED, code, data @ 1.., parities @ 1..) if code == Code::ReedSolomon as u8 => {
            Form::Packed { data, parities }
        }
        _ => return None,
    };
    let members = usize::from(data) + usize::from(parities);
    (members <= ROLES_MAX as usize).then_some(form)
}

/// What stands at the start of a stored value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// What the object was made into.
    pub(crate) form: Form,
    /// Which of the pieces this is: the one on the primary device is 0.
    pub(crate) role: u8,
    /// The version that the array gave the write.
    pub(crate) version: Version,
    /// Bytes of the user's value.
    pub(crate) value_bytes: u64,
    /// What follows is where the value is to be found, if it is lost.
    pub(crate) is_stub: bool,
}

impl Header {
    pub(crate) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..FORM_BYTES].copy_from_slice(&encode_form(self.form));
        bytes[FLAGS_AT] = if self.is_stub { STUB } else { 0 };
        bytes[ROLE_AT] = self.role;
        bytes[12..16].copy_from_slice(&self.version.epoch.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.version.clock.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.value_bytes.to_le_bytes());
        let crc = checksum(CrcAlgorithm::Crc32Iscsi, &bytes) as u32;
        bytes[CRC_AT].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// The header at the start of a value, or what is wrong with it.
    pub(crate) fn decode(value: &[u8]) -> Result<Header, &'static str> {
        let Some(found) = value.first_chunk::<HEADER_BYTES>() else {
            // A rebuild puts nothing in the place of what is lost.
            return Err(match value.is_empty() {
                true => "no other device could give it when this one was filled",
                false => "no room for its header",
            });
        };
        if found[0] != MAGIC {
            return Err("no header of an array");
        }
        let mut bare = *found;
        bare[CRC_AT].fill(0);
        let crc = checksum(CrcAlgorithm::Crc32Iscsi, &bare) as u32;
        if found[CRC_AT] != crc.to_le_bytes() {
            return Err("a header with a wrong checksum");
        }
        let u32_at = |at: usize| u32::from_le_bytes(found[at..at + 4].try_into().expect("four bytes"));
        let u64_at = |at: usize| u64::from_le_bytes(found[at..at + 8].try_into().expect("eight bytes"));
        let mut of_all = *found.first_chunk().expect("longer");
        (of_all[FLAGS_AT], of_all[ROLE_AT]) = (0, 0);
        let form = decode_form(&of_all).ok_or("a mechanism that this version does not know")?;
        let (flags, role) = (found[FLAGS_AT], found[ROLE_AT]);
        if usize::from(role) >= form.roles() {
            return Err("a role that its mechanism does not have");
        }
        let is_stub = flags == STUB;
        if flags != 0 && !(is_stub && form.is_packed() && role > 0) {
            return Err("flags that its mechanism does not have");
        }
        let version = Version { epoch: u32_at(12), clock: u64_at(16) };
        Ok(Header { form, role, version, value_bytes: u64_at(24), is_stub })
    }

    /// A value with this header before it.
    pub(crate) fn before(&self, value: impl Into<Bytes>) -> Payload {
        Payload::behind(&self.encode(), value.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SAMPLE: Header = Header {
        form: Form::Copies(3),
        role: 1,
        version: Version { epoch: 7, clock: 0x0102_0304 },
        value_bytes: 1000,
        is_stub: false,
    };
    const SHARD: Header = Header { form: Form::Shards { data: 4, parities: 2 }, role: 5, ..SAMPLE };

    #[test]
    fn the_format_stays_as_it_is() {
        let hexadecimal: String = SAMPLE.encode().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(&hexadecimal[..16], "d101000003000100");
        assert_eq!(&hexadecimal[24..], "070000000403020100000000e803000000000000");
        assert_eq!(Header::decode(&SAMPLE.encode()), Ok(SAMPLE));
        assert_eq!(SHARD.encode()[..8], [0xd1, 2, 1, 0, 4, 2, 5, 0]);
        assert_eq!(Header::decode(&SHARD.encode()), Ok(SHARD));
        let stub = Header { form: Form::Packed { data: 4, parities: 2 }, role: 2, is_stub: true, ..SAMPLE };
        assert_eq!(stub.encode()[..8], [0xd1, 3, 1, 1, 4, 2, 2, 0]);
        assert_eq!(Header::decode(&stub.encode()), Ok(stub));
        for wrong in [Header { role: 0, ..stub }, Header { is_stub: true, ..SHARD }] {
            assert!(Header::decode(&wrong.encode()).is_err(), "{wrong:?}");
        }
        assert_eq!((SHARD.form.piece_bytes(1001), SAMPLE.form.piece_bytes(1001)), (251, 1001));
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        for bit in 0..HEADER_BYTES * 8 {
            let mut bytes = SAMPLE.encode();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Header::decode(&bytes).is_err(), "bit {bit}");
        }
    }

    proptest! {
        #[test]
        fn what_is_decoded_is_encoded(bytes: Vec<u8>, copies in 1_u8..=32, value_bytes: u64, clock: u64) {
            let _ = Header::decode(&bytes);
            let form = Form::Copies(copies);
            let version = Version { epoch: 1, clock };
            let header = Header { form, role: copies - 1, version, value_bytes, is_stub: false };
            let whole = header.before(bytes.clone());
            prop_assert_eq!(Header::decode(whole.start()), Ok(header));
            prop_assert_eq!(&whole.to_vec()[HEADER_BYTES..], &bytes[..]);
        }
    }
}
