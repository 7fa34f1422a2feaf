//! SCAN: pages of keys, with Redis' guarantee as the devices give it; KEYS and RANDOMKEY.
//!
//! Invariants: a page is gathered in pieces and ends early when its keys are long, so that no COUNT
//! makes a reply that memory has to fear.

use super::{Run, number, syntax_error};
use crate::glob;
use crate::limits::{KEYS_AT_ONCE_MAX, REPLY_BYTES_MAX, SCAN_COUNT_MAX};
use crate::reply::Reply;
use crate::session::Connection;
use plimsoll_kv::limits::LIST_KEYS_MAX;
use plimsoll_kv::{Op, Output};
use plimsoll_resp::Args;
use std::rc::Rc;

/// Bytes of a reply to KEYS, and what a key takes beside its own.
const KEYS_REPLY_BYTES_MAX: usize = 64 << 20;
const KEY_REPLY_BYTES: usize = 32;
/// A cursor has a slot of 14 bits above 40 bits of a fingerprint.
const RANDOM_CURSOR_MASK: u64 = (1 << 54) - 1;
/// Keys of a page unless COUNT says otherwise.
const COUNT_DEFAULT: usize = 10;

struct Page {
    cursor: u64,
    pattern: Option<Vec<u8>>,
    limit: usize,
    /// Whether strings, which is all there is, are asked for.
    strings: bool,
}

fn parse(args: &Args<'_>) -> Result<Page, Reply> {
    let invalid = || Reply::error("ERR invalid cursor");
    let digits = std::str::from_utf8(&args[1]).map_err(|_| invalid())?;
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(invalid());
    }
    let cursor = if digits.is_empty() { 0 } else { digits.parse().map_err(|_| invalid())? };
    let mut page = Page { cursor, pattern: None, limit: COUNT_DEFAULT, strings: true };
    let mut words = args.iter().skip(2);
    while let Some(word) = words.next() {
        let value = words.next().ok_or_else(syntax_error)?;
        if word.eq_ignore_ascii_case(b"match") {
            page.pattern = (value != b"*").then(|| value.to_vec());
        } else if word.eq_ignore_ascii_case(b"count") {
            let count = number::integer_or_error(value)?;
            let count = usize::try_from(count).ok().filter(|count| *count > 0).ok_or_else(syntax_error)?;
            page.limit = count.min(SCAN_COUNT_MAX);
        } else if word.eq_ignore_ascii_case(b"type") {
            page.strings = value.eq_ignore_ascii_case(b"string");
        } else {
            return Err(syntax_error());
        }
    }
    Ok(page)
}

pub(super) fn scan(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    let page = match parse(args) {
        Ok(page) => page,
        Err(reply) => return Run::Now(reply),
    };
    let (keyspace, container) = (connection.keyspace(), connection.database.get());
    Run::Alone(Box::pin(async move {
        let (mut cursor, mut left, mut bytes) = (page.cursor, page.limit, 0);
        let mut keys = Vec::new();
        loop {
            let op = Op::Scan { container, cursor, limit: left.min(KEYS_AT_ONCE_MAX) };
            let found = match keyspace.execute(op).await {
                Ok(Output::Scanned(found)) => found,
                Ok(_) => unreachable!("a scan gives a page"),
                Err(error) => return Reply::failed(&error),
            };
            left = left.saturating_sub(found.keys.len().max(1));
            bytes += found.keys.iter().map(Vec::len).sum::<usize>();
            cursor = found.cursor;
            keys.extend(found.keys.into_iter().filter(|key| page.wants(key)).map(Reply::Bulk));
            if cursor == 0 || left == 0 || bytes >= REPLY_BYTES_MAX {
                break;
            }
        }
        Reply::Array(vec![Reply::Bulk(cursor.to_string().into_bytes()), Reply::Array(keys)])
    }))
}

/// KEYS: the keys that match, found by the prefix that the pattern begins with.
pub(super) fn keys(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    let (connection, pattern) = (connection.clone(), args[1].to_vec());
    Run::Alone(Box::pin(async move { keys_reply(&connection, &pattern).await.unwrap_or_else(|reply| reply) }))
}

async fn keys_reply(connection: &Rc<Connection>, pattern: &[u8]) -> Result<Reply, Reply> {
    let (keyspace, container) = (connection.keyspace(), connection.database.get());
    let failed = |error| Reply::failed(&error);
    let bytes_max = KEYS_REPLY_BYTES_MAX.min(connection.reply_bytes_max());
    // EXEC counts its replies itself.
    let in_exec = keyspace.is_transaction();
    let mut reservation =
        connection.reserve_reply(if in_exec { 0 } else { REPLY_BYTES_MAX }).await.map_err(failed)?;
    let (prefix, mut keys, mut bytes, mut after) = (glob::literal_prefix(pattern), Vec::new(), 0, None);
    loop {
        let op = Op::List { container, prefix: prefix.clone(), after, limit: LIST_KEYS_MAX };
        let page = match keyspace.execute(op).await.map_err(failed)? {
            Output::Listed(page) => page,
            _ => unreachable!("a listing gives a page"),
        };
        after = page.keys.last().cloned();
        for key in page.keys.into_iter().filter(|key| glob::matches(pattern, key, false)) {
            bytes += key.len() + KEY_REPLY_BYTES;
            keys.push(Reply::Bulk(key));
        }
        if bytes > bytes_max {
            return Err(Reply::error("ERR too many keys for one reply: use SCAN"));
        }
        if in_exec && bytes > connection.exec_room_bytes.get() {
            keys.clear();
        } else if !in_exec && bytes > reservation.room_bytes() {
            // Who waits for room holds none, or several would wait for each other: it begins anew.
            drop((reservation, std::mem::take(&mut keys)));
            reservation = connection.reserve_reply(bytes_max).await.map_err(failed)?;
            (bytes, after) = (0, None);
            continue;
        } else if !in_exec {
            reservation.grow_to(bytes);
        }
        if !page.more {
            let has_room = !in_exec || bytes <= connection.exec_room_bytes.get();
            return Ok(if has_room { Reply::Array(keys) } else { Reply::Unmade(bytes) });
        }
    }
}

/// RANDOMKEY: the first key from a random place on, or from the beginning.
pub(super) fn randomkey(connection: &Rc<Connection>, _: &Args<'_>) -> Run {
    let (keyspace, container) = (connection.keyspace(), connection.database.get());
    Run::Alone(Box::pin(async move {
        let start = keyspace.core().reactor.random_u64() & RANDOM_CURSOR_MASK;
        for from in [start, 0] {
            let mut cursor = from;
            loop {
                match keyspace.execute(Op::Scan { container, cursor, limit: 1 }).await {
                    Ok(Output::Scanned(page)) => {
                        if let Some(key) = page.keys.into_iter().next() {
                            return Reply::Bulk(key);
                        }
                        cursor = page.cursor;
                    }
                    Ok(_) => unreachable!("a scan gives a page"),
                    Err(error) => return Reply::failed(&error),
                }
                if cursor == 0 {
                    break;
                }
            }
        }
        Reply::Null
    }))
}

impl Page {
    fn wants(&self, key: &[u8]) -> bool {
        self.strings && self.pattern.as_ref().is_none_or(|pattern| glob::matches(pattern, key, false))
    }
}
