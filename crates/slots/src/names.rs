//! Names: under which key of the drive an object stands.
//!
//! Role: a keyed hash of 128 bits of what an object is. Place on the path: before every command.
//!
//! Why keyed: clients choose keys, and two keys with one name cannot both be stored. With a secret that the
//! drive alone keeps, nobody can look for such keys. SipHash-2-4 is made for that (Aumasson and Bernstein,
//! 2012) and stands in the standard library; two of 64 bits with keys of their own make 128. xxh3 with a
//! secret is quicker and was never meant to withstand anybody.
//!
//! Invariants: names of different kinds of objects come from different inputs; the two slots of a key differ
//! in the last bit alone.
//!
//! Never: proof of which key an object is of. The key stands in the object.

use crate::drive::DriveKey;
use plimsoll_kv::ContainerId;
use std::hash::Hasher;
#[expect(deprecated, reason = "the one SipHash-2-4 of the standard library whose key can be given")]
use std::hash::SipHasher;

/// The secret of a drive.
pub(crate) type Secret = [u64; 4];

/// What an object is named after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Of {
    /// A key of a container.
    Key = 1,
    /// A part of an upload.
    Part = 2,
    /// A piece of the writes of a transaction or batch.
    Chunk = 3,
    /// A transaction, or a batch that no slot could take.
    Intent = 4,
}

/// Gives names.
#[derive(Clone)]
pub(crate) struct Names {
    secret: Secret,
    /// Bits of a name that are used, from the last: fewer in tests, so that keys share names.
    bits: u32,
}

impl Names {
    pub(crate) fn new(secret: Secret) -> Names {
        Names { secret, bits: 128 }
    }

    /// Names that many keys share.
    #[cfg(test)]
    pub(crate) fn weak(secret: Secret, bits: u32) -> Names {
        Names { secret, bits }
    }

    /// The name of an object.
    pub(crate) fn name(&self, of: Of, container: ContainerId, generation: u32, key: &[u8]) -> DriveKey {
        let half = |key_0, key_1| {
            #[expect(deprecated, reason = "as above")]
            let mut hasher = SipHasher::new_with_keys(key_0, key_1);
            let mut head = [of as u8, 0, 0, 0, 0, 0, 0, 0, 0];
            head[1..5].copy_from_slice(&container.0.to_le_bytes());
            head[5..].copy_from_slice(&generation.to_le_bytes());
            hasher.write(&head);
            hasher.write(key);
            hasher.finish()
        };
        let [a, b, c, d] = self.secret;
        let whole = u128::from(half(a, b)) << 64 | u128::from(half(c, d));
        let used = if self.bits == 128 { whole } else { whole & ((1 << self.bits) - 1) };
        DriveKey(used.to_be_bytes())
    }

    /// The name of a slot of a key.
    pub(crate) fn slot(&self, container: ContainerId, generation: u32, key: &[u8], slot: u8) -> DriveKey {
        assert!(slot < 2, "a key has two slots");
        let mut name = self.name(Of::Key, container, generation, key);
        name.0[15] = name.0[15] & 0xfe | slot;
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(deprecated, reason = "as above")]
    fn the_hash_is_siphash_2_4() {
        // The first and the 16th vector of the reference implementation: bytes 0, 1, ... under key 0, 1, ...
        // 15.
        let keyed = || SipHasher::new_with_keys(0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908);
        assert_eq!(keyed().finish(), 0x726f_db47_dd0e_0e31);
        let mut hasher = keyed();
        hasher.write(&(0..15).collect::<Vec<u8>>());
        assert_eq!(hasher.finish(), 0xa129_ca61_49be_45e5);
    }

    #[test]
    fn names_differ_by_everything_that_they_are_made_of_and_stay_what_they_are() {
        let names = Names::new([1, 2, 3, 4]);
        let key =
            |of, container, generation, key: &[u8]| names.name(of, ContainerId(container), generation, key);
        let all = [
            key(Of::Key, 0, 0, b"k"),
            key(Of::Part, 0, 0, b"k"),
            key(Of::Key, 1, 0, b"k"),
            key(Of::Key, 0, 1, b"k"),
            key(Of::Key, 0, 0, b"l"),
            Names::new([1, 2, 3, 5]).name(Of::Key, ContainerId(0), 0, b"k"),
        ];
        let each: std::collections::BTreeSet<_> = all.iter().collect();
        assert_eq!(each.len(), all.len());
        let slot = |slot| names.slot(ContainerId(0), 0, b"k", slot);
        assert_eq!(slot(0).0[..15], slot(1).0[..15]);
        assert_eq!((slot(0).0[15] & 1, slot(1).0[15] & 1), (0, 1));
    }
}
