//! OBJECT and MEMORY: what tools ask about one key.

use super::string::count_hit;
use super::{Run, number};
use crate::reply::Reply;
use crate::session::Connection;
use plimsoll_kv::{Error, Item, Op, Output, edit};
use plimsoll_resp::Args;
use std::rc::Rc;

/// Values up to this length are embedded in Redis.
const EMBEDDED_BYTES_MAX: u64 = 44;
/// Bytes of memory that the index holds for a key, about; see `docs/benchmarks.md`.
const INDEX_BYTES: u64 = 16;

/// OBJECT ENCODING: the name that Redis gives to a string of this kind.
pub(super) fn encoding(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    look(connection, &args[2], Counts::Yes, |found| {
        found.map_or(Reply::Null, |item| Reply::bulk(encoding_of(&item)))
    })
}

/// The name that Redis gives to a string of this kind; the first bytes of its value have been read.
pub(super) fn encoding_of(item: &Item) -> &'static str {
    match item.length {
        0..=20 if edit::integer(&item.bytes).is_some() => "int",
        0..=EMBEDDED_BYTES_MAX => "embstr",
        _ => "raw",
    }
}

/// OBJECT REFCOUNT: a key has its value to itself.
pub(super) fn refcount(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    look(connection, &args[2], Counts::Yes, |found| found.map_or(Reply::Null, |_| Reply::Integer(1)))
}

/// OBJECT FREQ: refused in the words of a server that does not evict by use.
pub(super) fn freq(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    look(connection, &args[2], Counts::Yes, |found| match found {
        None => Reply::Null,
        Some(_) => Reply::error(
            "ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note that \
             when switching between policies at runtime LRU and LFU data will take some time to adjust.",
        ),
    })
}

/// OBJECT IDLETIME: refused, as there is none. (The words by which Redis refuses it name a policy that is
/// none of ours.)
pub(super) fn idletime(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    look(connection, &args[2], Counts::Yes, |found| match found {
        None => Reply::Null,
        Some(_) => Reply::error(
            "ERR idle time not tracked: of reads no more is kept than what evicting by segments needs",
        ),
    })
}

/// MEMORY USAGE: bytes that a key takes, on flash and in memory.
pub(super) fn usage(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    if let Err(reply) = check_samples(args) {
        return Run::Now(reply);
    }
    look(connection, &args[2], Counts::No, |found| {
        found.map_or(Reply::Null, |item| Reply::Integer((item.stored_bytes + INDEX_BYTES) as i64))
    })
}

/// A string has nothing to be sampled, but what is wrong with a number of samples is told.
fn check_samples(args: &Args<'_>) -> Result<(), Reply> {
    let mut words = args.iter().skip(3);
    while let Some(word) = words.next() {
        let samples = words.next().filter(|_| word.eq_ignore_ascii_case(b"samples"));
        if number::integer_or_error(samples.ok_or_else(super::syntax_error)?)? < 0 {
            return Err(super::syntax_error());
        }
    }
    Ok(())
}

/// Whether a look at a key is a hit or a miss, as Redis counts them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Counts {
    Yes,
    No,
}

/// A command that looks at a key and the beginning of its value.
pub(super) fn look(
    connection: &Rc<Connection>,
    key: &[u8],
    counts: Counts,
    reply: fn(Option<Item>) -> Reply,
) -> Run {
    let (keyspace, container) = (connection.keyspace(), connection.database.get());
    let op = Op::Retrieve { container, key: key.to_vec(), range: Some((0, 20)), pin: false };
    Run::Overlap(Box::pin(async move {
        let found = keyspace.execute(op).await;
        if counts == Counts::Yes {
            count_hit(keyspace.core(), found.is_ok());
        }
        match found {
            Ok(Output::Found(item)) => reply(Some(item)),
            Ok(_) => unreachable!("a retrieve gives what it found"),
            Err(Error::NotFound) => reply(None),
            Err(error) => Reply::failed(&error),
        }
    }))
}
