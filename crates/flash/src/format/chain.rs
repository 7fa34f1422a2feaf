//! Lists of transitions: each is coded by what differs from the one before.
//!
//! Role: what cleaning moves and what overwriting appends follows what was moved and appended before,
//! so most numbers of a transition follow from the one before it. A move takes about 11 bytes, a store 15.
//!
//! Never: it does not prove anything; the checksum is that of the list. What is decoded may be any numbers.

use super::transition::{Transition, TransitionKind};
use super::{DecodeError, field};

/// Bytes of a transition in a list at most.
pub const TRANSITION_BYTES_MAX: usize = 2 + 1 + 7 + 3 * 5 + 3 * 10;

const NAME: &str = "transition";

/// Flags follow; else there are none.
const FLAGS: u8 = 1;
/// Slot and fingerprint follow; else they are 0.
const KEY: u8 = 2;
/// A container follows; else it is the same.
const CONTAINER: u8 = 4;
/// The location's difference to the end of the record before follows; else it begins there.
const LOCATION: u8 = 8;
/// The difference of `previous` to the end of what was there last follows; else there is no `previous`.
const PREVIOUS: u8 = 16;
/// A length follows; else it is the same.
const LENGTH: u8 = 32;
/// A length of `previous` follows; else it is `length`, or 0 if there is no `previous`.
const PREVIOUS_LENGTH: u8 = 64;
/// An argument follows; else it is 0.
const ARGUMENT: u8 = 128;

/// What the next transition of a list differs from.
#[derive(Clone, Debug, Default)]
pub struct Chain {
    container: u32,
    length: u32,
    /// The end of the last record.
    end: u64,
    /// The end of what was last at `previous`.
    previous_end: u64,
}

impl Chain {
    /// Appends the next transition.
    pub fn encode(&mut self, t: &Transition, out: &mut Vec<u8>) {
        assert!(t.fingerprint >> 40 == 0, "fingerprints have 40 bits");
        let start = out.len();
        out.extend_from_slice(&[t.kind as u8, 0]);
        let mut shape = 0;
        let mut follows = |bit: u8, yes: bool| {
            shape |= if yes { bit } else { 0 };
            yes
        };
        if follows(FLAGS, t.flags != 0) {
            out.push(t.flags);
        }
        if follows(KEY, t.slot != 0 || t.fingerprint != 0) {
            out.extend_from_slice(&t.slot.to_le_bytes());
            out.extend_from_slice(&t.fingerprint.to_le_bytes()[..5]);
        }
        if follows(CONTAINER, t.container != self.container) {
            put_varint(out, u64::from(t.container));
        }
        if follows(LOCATION, t.location != self.end) {
            put_difference(out, self.end, t.location);
        }
        if follows(PREVIOUS, t.previous != 0) {
            put_difference(out, self.previous_end, t.previous);
        }
        if follows(LENGTH, t.length != self.length) {
            put_varint(out, u64::from(t.length));
        }
        if follows(PREVIOUS_LENGTH, t.previous_length != usual_previous_length(t)) {
            put_varint(out, u64::from(t.previous_length));
        }
        if follows(ARGUMENT, t.argument != 0) {
            put_varint(out, t.argument);
        }
        out[start + 1] = shape;
        assert!(out.len() - start <= TRANSITION_BYTES_MAX);
        self.advance(t);
    }

    /// Decodes the transition that `bytes` begins with and moves past it.
    ///
    /// # Errors
    /// Cut short, or an unknown kind.
    pub fn decode(&mut self, bytes: &mut &[u8]) -> Result<Transition, DecodeError> {
        const SHORT: DecodeError = DecodeError::Short(NAME);
        let ([kind, shape], mut rest) = bytes.split_first_chunk().ok_or(SHORT)?;
        let kind = TransitionKind::from_byte(*kind).ok_or(field(NAME, "kind"))?;
        let follows = |bit: u8| shape & bit != 0;
        let narrow = |wide: u64| u32::try_from(wide).map_err(|_| field(NAME, "number"));
        let mut t = Transition {
            container: self.container,
            location: self.end,
            length: self.length,
            ..Transition::new(kind)
        };
        if follows(FLAGS) {
            let (flags, after) = rest.split_first().ok_or(SHORT)?;
            (t.flags, rest) = (*flags, after);
        }
        if follows(KEY) {
            let ([s0, s1, f0, f1, f2, f3, f4], after) = rest.split_first_chunk().ok_or(SHORT)?;
            t.slot = u16::from_le_bytes([*s0, *s1]);
            t.fingerprint = u64::from_le_bytes([*f0, *f1, *f2, *f3, *f4, 0, 0, 0]);
            rest = after;
        }
        let mut number = || take_varint(&mut rest).ok_or(SHORT);
        if follows(CONTAINER) {
            t.container = narrow(number()?)?;
        }
        if follows(LOCATION) {
            t.location = with_difference(self.end, number()?);
        }
        if follows(PREVIOUS) {
            t.previous = with_difference(self.previous_end, number()?);
        }
        if follows(LENGTH) {
            t.length = narrow(number()?)?;
        }
        t.previous_length =
            if follows(PREVIOUS_LENGTH) { narrow(number()?)? } else { usual_previous_length(&t) };
        if follows(ARGUMENT) {
            t.argument = number()?;
        }
        *bytes = rest;
        self.advance(&t);
        Ok(t)
    }

    fn advance(&mut self, t: &Transition) {
        (self.container, self.length) = (t.container, t.length);
        self.end = t.location.wrapping_add(u64::from(t.length));
        if t.previous != 0 {
            self.previous_end = t.previous.wrapping_add(u64::from(t.previous_length));
        }
    }
}

/// The length at `previous` that need not be said.
fn usual_previous_length(t: &Transition) -> u32 {
    if t.previous == 0 { 0 } else { t.length }
}

/// Appends how far it is from one number to another, with the sign in the lowest bit.
fn put_difference(out: &mut Vec<u8>, from: u64, to: u64) {
    let difference = to.wrapping_sub(from) as i64;
    put_varint(out, (difference << 1 ^ difference >> 63) as u64);
}

fn with_difference(from: u64, coded: u64) -> u64 {
    from.wrapping_add((coded >> 1) ^ (coded & 1).wrapping_neg())
}

/// Appends a number in LEB128.
pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Takes a number in LEB128; nothing if it is cut short or does not fit 64 bits.
pub(crate) fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        let part = u64::from(byte & 0x7f);
        if shift == 63 && part > 1 {
            return None;
        }
        value |= part << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
#[path = "chain_tests.rs"]
mod tests;
