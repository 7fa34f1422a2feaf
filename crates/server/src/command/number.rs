//! Numbers in arguments, as Redis reads them.

use crate::reply::Reply;

pub(super) use plimsoll_kv::edit::integer;

/// As [`integer`], or the error for a client.
pub(super) fn integer_or_error(bytes: &[u8]) -> Result<i64, Reply> {
    integer(bytes).ok_or_else(|| Reply::error("ERR value is not an integer or out of range"))
}
