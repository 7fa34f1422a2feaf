//! Numbers in as many bits as they need, the lowest bit first.
//!
//! Place on the path: the tables of a checkpoint.
//!
//! Never: it reads past the bytes it was given, or panics over what they hold.

/// Bits of one number at most.
pub const BITS_MAX: u32 = 56;

/// Bits of a number.
#[must_use]
pub fn bits_of(number: u64) -> u32 {
    u64::BITS - number.leading_zeros()
}

/// Appends numbers bit by bit.
pub struct BitWriter<'a> {
    out: &'a mut Vec<u8>,
    pending: u64,
    /// Bits of `pending`: fewer than 8 between calls.
    bits: u32,
}

impl BitWriter<'_> {
    /// Begins at the next byte.
    pub fn new(out: &mut Vec<u8>) -> BitWriter<'_> {
        BitWriter { out, pending: 0, bits: 0 }
    }

    /// Appends the lowest `bits` bits of a number that has no others.
    pub fn put(&mut self, value: u64, bits: u32) {
        assert!(bits <= BITS_MAX && value >> bits == 0);
        self.pending |= value << self.bits;
        self.bits += bits;
        let whole = self.bits / 8;
        self.out.extend_from_slice(&self.pending.to_le_bytes()[..whole as usize]);
        self.pending = if whole == 8 { 0 } else { self.pending >> (whole * 8) };
        self.bits %= 8;
    }

    /// Appends so many ones, then a zero.
    pub fn put_unary(&mut self, mut ones: u64) {
        while ones >= 32 {
            self.put(u64::from(u32::MAX), 32);
            ones -= 32;
        }
        self.put((1 << ones) - 1, ones as u32 + 1);
    }

    /// Fills the last byte with zeros.
    pub fn finish(mut self) {
        if self.bits > 0 {
            self.put(0, 8 - self.bits);
        }
    }
}

/// Takes numbers off bytes, bit by bit.
pub struct BitReader<'a> {
    bytes: &'a [u8],
    /// Bits taken.
    at: u64,
}

impl<'a> BitReader<'a> {
    /// Begins at the first byte.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> BitReader<'a> {
        BitReader { bytes, at: 0 }
    }

    /// Bits that are left.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.bytes.len() as u64 * 8 - self.at
    }

    /// The next bits, [`BITS_MAX`] and more; zeros behind the end.
    fn window(&self) -> u64 {
        let rest = self.bytes.get((self.at / 8) as usize..).unwrap_or_default();
        let word = match rest.first_chunk() {
            Some(word) => u64::from_le_bytes(*word),
            None => rest.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)),
        };
        word >> (self.at % 8)
    }

    /// Takes a number of so many bits; nothing if there are fewer.
    pub fn take(&mut self, bits: u32) -> Option<u64> {
        assert!(bits <= BITS_MAX);
        let value = self.window() & ((1 << bits) - 1);
        if u64::from(bits) > self.left() {
            return None;
        }
        self.at += u64::from(bits);
        Some(value)
    }

    /// Takes ones up to a zero, and the zero; how many ones. Nothing if there is no zero.
    pub fn take_unary(&mut self) -> Option<u64> {
        let mut ones = 0;
        loop {
            let run = self.window().trailing_ones().min(BITS_MAX);
            if u64::from(run) >= self.left() {
                return None;
            }
            self.at += u64::from(run);
            ones += u64::from(run);
            if run < BITS_MAX {
                self.at += 1;
                return Some(ones);
            }
        }
    }

    /// The bytes after the last one of which something was taken.
    #[must_use]
    pub fn rest(self) -> &'a [u8] {
        &self.bytes[self.at.div_ceil(8) as usize..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_was_put_is_taken(
            numbers in prop::collection::vec((any::<u64>(), 0..=BITS_MAX, 0_u64..200), 0..60),
        ) {
            let mut bytes = vec![9];
            let mut writer = BitWriter::new(&mut bytes);
            for (value, bits, ones) in &numbers {
                writer.put(value & ((1 << bits) - 1), *bits);
                writer.put_unary(*ones);
            }
            writer.finish();
            bytes.push(7);
            let mut reader = BitReader::new(&bytes[1..]);
            for (value, bits, ones) in &numbers {
                prop_assert_eq!(reader.take(*bits), Some(value & ((1 << bits) - 1)));
                prop_assert_eq!(reader.take_unary(), Some(*ones));
            }
            prop_assert_eq!(reader.rest(), &[7]);
        }

        #[test]
        fn nothing_is_taken_past_the_end(
            bytes in prop::collection::vec(any::<u8>(), 0..30),
            bits in 1..=BITS_MAX,
        ) {
            let mut reader = BitReader::new(&bytes);
            let mut taken = 0;
            while reader.take(bits).is_some() {
                taken += u64::from(bits);
                let Some(ones) = reader.take_unary() else { break };
                taken += ones + 1;
            }
            prop_assert!(taken <= bytes.len() as u64 * 8);
        }
    }
}
