//! Numbers in arguments, as Redis reads them.

use crate::reply::Reply;

pub(super) use plimsoll_kv::edit::integer;

/// As [`integer`], or the error for a client.
pub(super) fn integer_or_error(bytes: &[u8]) -> Result<i64, Reply> {
    integer(bytes).ok_or_else(|| Reply::error("ERR value is not an integer or out of range"))
}

/// The same of 32 bits, as numbers of databases are.
pub(super) fn short_integer_or_error(bytes: &[u8]) -> Result<i32, Reply> {
    let out_of_range = "ERR value is out of range, value must between -2147483648 and 2147483647";
    i32::try_from(integer_or_error(bytes)?).map_err(|_| Reply::error(out_of_range))
}
