//! The table of a slot as bytes of a checkpoint.
//!
//! Role: entries in the order of their fingerprints, each in few bits: the step from the fingerprint
//! before (Golomb-Rice: steps of random fingerprints fall off geometrically), the location in as many bits
//! as the partition has, the length as far as it is above the shortest of the table. About 8 bytes an
//! entry instead of 12.
//!
//! Invariant: a table takes at most [`table_bytes_max`], whatever its entries are: what is kept free for a
//! checkpoint is reckoned with it. Never: decoding trusts or allocates more than the bytes it is given.

use super::{Entry, FINGERPRINT_BITS, LENGTH_BITS, LOCATION_BITS};
use crate::format::bits::{BitReader, BitWriter, bits_of};
use crate::format::chain::{put_varint, take_varint};

/// Bytes before the entries at most: their number, the bits of a length, the shortest length.
const HEAD_BYTES_MAX: u64 = 5 + 1 + 3;
const _: () = assert!(LENGTH_BITS <= 21, "a length in LEB128 takes at most 3 bytes");

/// The upper bits of the steps between the fingerprints of a table add up to less than 2 to this.
fn quotient_bits(entries: u32) -> u32 {
    bits_of(u64::from(entries - 1))
}

/// Lower bits of a step that are written as they are; the upper ones are written in unary.
fn remainder_bits(entries: u32) -> u32 {
    FINGERPRINT_BITS - quotient_bits(entries)
}

/// Bytes that the table of a slot takes at most, with lengths of so many bits.
pub(crate) fn table_bytes_max(entries: u32, location_bits: u32, length_bits: u32) -> u64 {
    if entries == 0 {
        return 1;
    }
    let each = remainder_bits(entries) + 1 + location_bits + length_bits;
    HEAD_BYTES_MAX + (u64::from(entries) * u64::from(each) + (1 << quotient_bits(entries))).div_ceil(8)
}

/// Appends a table: `entries` come in the order of fingerprints.
pub(super) fn encode(entries: impl Iterator<Item = Entry> + Clone, location_bits: u32, out: &mut Vec<u8>) {
    let lengths = entries.clone().map(|entry| entry.length);
    let (count, shortest, longest) = lengths
        .fold((0, u32::MAX, 0), |(count, low, high), length| (count + 1, low.min(length), high.max(length)));
    let start = out.len();
    put_varint(out, u64::from(count));
    if count == 0 {
        return;
    }
    let length_bits = bits_of(u64::from(longest - shortest));
    out.push(length_bits as u8);
    put_varint(out, u64::from(shortest));
    let remainder_bits = remainder_bits(count);
    let mut writer = BitWriter::new(out);
    let mut before = 0;
    for entry in entries {
        let step = entry.fingerprint - before;
        before = entry.fingerprint;
        writer.put_unary(step >> remainder_bits);
        writer.put(step & ((1 << remainder_bits) - 1), remainder_bits);
        writer.put(entry.location, location_bits);
        writer.put(u64::from(entry.length - shortest), length_bits);
    }
    writer.finish();
    let most = table_bytes_max(count, location_bits, bits_of(u64::from(longest)));
    assert!((out.len() - start) as u64 <= most, "a table takes no more than is reckoned with");
}

/// Takes a table off the front of `bytes`, into `entries`; nothing if it makes no sense.
pub(super) fn decode(bytes: &mut &[u8], location_bits: u32, entries: &mut Vec<Entry>) -> Option<()> {
    assert!((1..=LOCATION_BITS).contains(&location_bits));
    entries.clear();
    let count = u32::try_from(take_varint(bytes)?).ok()?;
    if count == 0 {
        return Some(());
    }
    let (length_bits, rest) = bytes.split_first()?;
    *bytes = rest;
    let length_bits = u32::from(*length_bits);
    let shortest = take_varint(bytes)?;
    if length_bits > LENGTH_BITS || shortest >> LENGTH_BITS != 0 {
        return None;
    }
    let (quotient_bits, remainder_bits) = (quotient_bits(count), remainder_bits(count));
    let mut reader = BitReader::new(bytes);
    let each = u64::from(1 + remainder_bits + location_bits + length_bits);
    if u64::from(count) * each > reader.left() {
        return None;
    }
    entries.reserve(count as usize);
    let mut fingerprint = 0;
    for _ in 0..count {
        let quotient = reader.take_unary()?;
        if quotient >> quotient_bits != 0 {
            return None;
        }
        fingerprint += quotient << remainder_bits | reader.take(remainder_bits)?;
        let location = reader.take(location_bits)?;
        let length = shortest + reader.take(length_bits)?;
        if fingerprint >> FINGERPRINT_BITS != 0 || location == 0 || length >> LENGTH_BITS != 0 {
            return None;
        }
        entries.push(Entry { fingerprint, location, length: length as u32 });
    }
    *bytes = reader.rest();
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entries(spread: u32) -> impl Strategy<Value = Vec<Entry>> {
        let entry =
            (any::<u64>(), 1..1_u64 << 30, 1..1_u32 << LENGTH_BITS).prop_map(move |(f, location, length)| {
                Entry { fingerprint: f >> (64 - spread), location, length }
            });
        prop::collection::vec(entry, 0..300).prop_map(|mut entries| {
            entries.sort_by_key(|entry| entry.fingerprint);
            entries
        })
    }

    proptest! {
        #[test]
        fn what_was_encoded_is_decoded(
            entries in (1_u32..=40).prop_flat_map(entries),
            cut in any::<prop::sample::Index>(),
        ) {
            let mut bytes = Vec::new();
            encode(entries.iter().copied(), 30, &mut bytes);
            bytes.push(0xaa);
            let (mut rest, mut decoded) = (&bytes[..], Vec::new());
            prop_assert!(decode(&mut rest, 30, &mut decoded).is_some());
            prop_assert_eq!(&decoded, &entries);
            prop_assert_eq!(rest, &[0xaa]);
            let mut short = &bytes[..cut.index(bytes.len() - 1)];
            prop_assert!(decode(&mut short, 30, &mut decoded).is_none(), "cut short");
        }

        #[test]
        fn any_bytes_are_refused_or_in_order(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
            bits in 1..=LOCATION_BITS,
        ) {
            let (mut rest, mut decoded) = (&bytes[..], Vec::new());
            if decode(&mut rest, bits, &mut decoded).is_some() {
                prop_assert!(decoded.is_sorted_by_key(|entry| entry.fingerprint));
                prop_assert!(decoded.iter().all(|entry| entry.fingerprint >> 40 == 0 && entry.location != 0));
                prop_assert!(decoded.capacity() <= 16 * bytes.len().max(1), "no more than the bytes can hold");
            }
        }
    }

    #[test]
    fn the_worst_tables_stay_within_the_bound() {
        // All steps in the last entry, in the first, and spread: `encode` asserts the bound.
        for count in [1_u64, 2, 3, 4, 5, 31, 32, 33, 1000] {
            let last = (1 << FINGERPRINT_BITS) - 1;
            let spread = |at: u64| last / count * at + last % count;
            for fingerprint in
                [&(|at: u64| if at == count { last } else { 0 }) as &dyn Fn(u64) -> u64, &|_| last, &spread]
            {
                let entry = |at: u64| Entry {
                    fingerprint: fingerprint(at),
                    location: at,
                    length: if at == 1 { 1 << 17 } else { 0 },
                };
                encode((1..=count).map(entry), LOCATION_BITS, &mut Vec::new());
            }
        }
    }
}
