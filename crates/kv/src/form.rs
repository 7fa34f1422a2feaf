//! Forms: what a value is made into by a device that keeps it in several places.
//!
//! Role: the wish that a store carries, and what a description tells. Place on the path: said by whoever
//! stores, heard by an array, and ignored by every device that keeps a value at one place.
//!
//! Invariant: a form says nothing of whether a device has it; that is the device's to judge.

use std::fmt;

/// What a value is made into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Form {
    /// So many whole copies.
    Copies(u8),
    /// Shards of data and of parity.
    Shards {
        /// Shards that the value is cut into.
        data: u8,
        /// Shards computed from them.
        parities: u8,
    },
    /// One whole copy, which shares parities with values of other devices; until it does, as many copies as
    /// survive as much.
    Packed {
        /// Values that share parities at most.
        data: u8,
        /// Parities that they share.
        parities: u8,
    },
}

impl Form {
    /// Pieces in all: one on each of so many devices.
    #[must_use]
    pub fn roles(self) -> usize {
        match self {
            Form::Copies(copies) => copies.into(),
            Form::Shards { data, parities } => usize::from(data) + usize::from(parities),
            Form::Packed { parities, .. } => 1 + usize::from(parities),
        }
    }

    /// Pieces that give the whole.
    #[must_use]
    pub fn needed(self) -> usize {
        match self {
            Form::Copies(_) | Form::Packed { .. } => 1,
            Form::Shards { data, .. } => data.into(),
        }
    }

    /// True if no piece is a part of the value. One shard of data may be enough, and parities are something
    /// else.
    #[must_use]
    pub fn is_copies(self) -> bool {
        matches!(self, Form::Copies(_) | Form::Packed { .. })
    }

    /// True if values may share parities with others.
    #[must_use]
    pub fn is_packed(self) -> bool {
        matches!(self, Form::Packed { .. })
    }

    /// Bytes of each piece of a value of so many.
    #[must_use]
    pub fn piece_bytes(self, value_bytes: u64) -> u64 {
        value_bytes.div_ceil(self.needed() as u64)
    }
}

/// As the mechanism that makes it is called.
impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Form::Copies(1) => write!(f, "hashing"),
            Form::Copies(copies) => write!(f, "replication {copies}"),
            Form::Shards { data, parities } => write!(f, "splitting {data}+{parities}"),
            Form::Packed { data, parities } => write!(f, "packing {data}+{parities}"),
        }
    }
}
