//! Header lines: a type byte, a decimal number, CRLF.
//!
//! Role: find and read the lines that carry lengths. Place: under both the request parser and the reply
//! decoder. Invariants: a line is searched once (the caller keeps how far); a number is read with Redis'
//! `string2ll` rules (no plus sign, no leading zero, no minus zero, no space). Never: look past the window
//! the caller allows.

/// Where a line ends, when it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Line {
    /// The terminator is at this offset.
    Ends(usize),
    /// Not yet in the buffer; so many bytes have been searched.
    Missing { searched: usize },
    /// The window is full and holds no terminator.
    TooLong,
}

/// Most digits [`short_length`] reads; what is longer goes the general way. 8 digits cannot overflow a u32.
const SHORT_DIGITS_MAX: usize = 8;

/// The hot path: at most eight digits and CRLF, at the front of `bytes`. Returns the value and the bytes
/// read, CRLF included. `None` says "not this simple": the general way decides whether it is incomplete,
/// negative or wrong.
#[inline]
pub(crate) fn short_length(bytes: &[u8]) -> Option<(usize, usize)> {
    let mut value: u32 = 0;
    for (index, &byte) in bytes.iter().take(SHORT_DIGITS_MAX + 1).enumerate() {
        let digit = byte.wrapping_sub(b'0');
        if digit <= 9 {
            // Nine digits at most come here, and 999,999,999 fits; wrapping only spares the check.
            value = value.wrapping_mul(10).wrapping_add(u32::from(digit));
            continue;
        }
        let crlf = byte == b'\r' && bytes.get(index + 1) == Some(&b'\n');
        let canonical = index == 1 || (index > 1 && bytes[0] != b'0');
        return (crlf && canonical).then_some((value as usize, index + 2));
    }
    None
}

/// Search `terminator` in `bytes`, of which `searched` are known not to hold it. It must be at an offset of
/// at most `offset_max`.
pub(crate) fn find(terminator: u8, bytes: &[u8], searched: usize, offset_max: usize) -> Line {
    assert!(searched <= bytes.len(), "the buffer shrank between two calls");
    let window = &bytes[..bytes.len().min(offset_max.saturating_add(1))];
    let searched = searched.min(window.len());
    match memchr::memchr(terminator, &window[searched..]) {
        Some(at) => Line::Ends(searched + at),
        None if bytes.len() > offset_max => Line::TooLong,
        None => Line::Missing { searched: window.len() },
    }
}

/// A decimal number, by Redis' strict rules.
pub(crate) fn number(digits: &[u8]) -> Option<i64> {
    let magnitude = digits.strip_prefix(b"-").unwrap_or(digits);
    match magnitude {
        [b'0'] if magnitude.len() == digits.len() => return Some(0),
        [b'1'..=b'9', ..] => {}
        _ => return None,
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}
