//! Numbers in arguments, as Redis reads them.

use crate::reply::Reply;

/// A decimal integer of 64 bits: no plus, no blanks, no leading zeros, no `-0`.
pub(super) fn integer(bytes: &[u8]) -> Option<i64> {
    let digits = bytes.strip_prefix(b"-").unwrap_or(bytes);
    match digits {
        b"0" if digits.len() == bytes.len() => return Some(0),
        [b'1'..=b'9', rest @ ..] if rest.len() < 19 && rest.iter().all(u8::is_ascii_digit) => {}
        _ => return None,
    }
    std::str::from_utf8(bytes).ok()?.parse().ok()
}

/// As [`integer`], or the error for a client.
pub(super) fn integer_or_error(bytes: &[u8]) -> Result<i64, Reply> {
    integer(bytes).ok_or_else(|| Reply::error("ERR value is not an integer or out of range"))
}
