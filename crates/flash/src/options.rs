//! What is decided when a partition is opened.

use crate::index::FINGERPRINT_BITS;

/// How a partition is opened.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Bits of a fingerprint that are used. Fewer only in tests, to make keys collide.
    pub fingerprint_bits: u32,
    /// Write a checkpoint after this many transitions, if three quarters of the keys are fewer.
    pub checkpoint_transitions_min: u64,
    /// What becomes of stores when the device is full, or holds as many objects as it may.
    pub on_full: OnFull,
    /// Objects that the memory of the index is for.
    pub objects_max: u64,
    /// Bytes of memory for keys that are known, overwriting and deleting of which reads nothing; a quarter of
    /// them for short records that were written lately.
    pub known_bytes: usize,
    /// Whether this is a member of an array, which says what a key is: what has expired here goes only as
    /// cleaning comes by, and a part of a long value is durable when it is acknowledged.
    pub is_member: bool,
}

/// What a full device does with a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFull {
    /// It refuses it.
    #[default]
    Error,
    /// It deletes what has not been used for long, to make room for it.
    Evict,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            fingerprint_bits: FINGERPRINT_BITS,
            checkpoint_transitions_min: 256 << 10,
            on_full: OnFull::Error,
            objects_max: u64::MAX,
            known_bytes: 0,
            is_member: false,
        }
    }
}
