//! Bodies of the fuzz targets of the decoders of what a drive holds.
//!
//! Role: say in code what must hold for any bytes at all: no decoder panics or allocates out of proportion,
//! and what one accepts, it gives back byte for byte. Place: tests and `fuzz/`; nothing in the adapter calls
//! this.
//! Never: it draws no randomness.

use crate::intent::{IntentHead, decode_intent};
use crate::object::{self, Head};
use crate::parts::Manifest;
use crate::superblock::Superblock;

/// Any bytes as an object.
pub fn object(data: &[u8]) {
    if let Ok(head) = Head::decode(data) {
        let riders: Vec<Vec<u8>> =
            head.riders.iter().map(|rider| object::encode_rider(&rider.record, &rider.value)).collect();
        if let Ok(value) = head.value(data)
            && object::decode_tail(data).as_ref() == Ok(&head.riders)
        {
            assert_eq!(object::encode(&head.record, value, &riders), data);
        }
    }
    let _ = object::decode_tail(data);
    let _ = object::decode_riders(data);
}

/// Any bytes as what stands in objects: a superblock, a manifest, an intent.
pub fn value(data: &[u8]) {
    if let Some(superblock) = Superblock::decode(data) {
        assert_eq!(superblock.encode(), data);
    }
    if let Some(manifest) = Manifest::decode(data) {
        assert_eq!(manifest.encode(), data);
    }
    if let Some((head, rest)) = IntentHead::decode(data) {
        let mut bytes = head.encode();
        bytes.extend_from_slice(rest);
        assert_eq!(bytes, data);
    }
    let _ = decode_intent(data);
}
