//! DELEX and DELIFEQ, and what SET IFEQ shares with them: changing a key if it holds what is given.
//!
//! Invariants: what was compared is what is changed: the change asks for the version that was read. A value
//! in parts is compared under a pin, one part in memory at a time.

use super::string::value_reply;
use super::{Run, syntax_error};
use crate::keyspace::Keyspace;
use crate::reply::Reply;
use crate::session::Connection;
use crate::transaction::Key;
use plimsoll_kv::{Condition, Error, Expiry, LocalFuture, Op, Output, Result, Version};
use plimsoll_resp::Args;
use std::rc::Rc;

/// What becomes of a key that holds what is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Delete,
    /// It expires so many milliseconds after now; before now, it is deleted.
    ExpireIn(i64),
    /// The same, if it expires.
    ExpireAnew(i64),
    /// It expires so many milliseconds later than it would, if it does; or earlier.
    ExpireLater(i64),
}

impl Change {
    fn op(
        self,
        (container, key): &Key,
        (version, expiry_ms): (Version, Option<u64>),
        now_ms: u64,
    ) -> Option<Op> {
        let (container, key, condition) = (*container, key.clone(), Condition::IfVersion(version));
        let at_ms = match self {
            Change::Delete => 0,
            Change::ExpireIn(ms) => now_ms.saturating_add_signed(ms),
            Change::ExpireAnew(ms) => expiry_ms.map(|_| now_ms.saturating_add_signed(ms))?,
            Change::ExpireLater(ms) => expiry_ms?.saturating_add_signed(ms),
        };
        if at_ms <= now_ms {
            return Some(Op::Delete { container, key, condition });
        }
        let expiry = Expiry::At(at_ms.min(i64::MAX as u64));
        Some(Op::SetExpiry { container, key, expiry, condition })
    }
}

/// What a value has to be, or must not be.
pub(super) struct Comparison {
    pub(super) value: Vec<u8>,
    pub(super) equal: bool,
}

impl Comparison {
    /// Whether a value that was read is so; it is whole, or pinned and in parts.
    pub(super) async fn holds(&self, keyspace: &Keyspace, found: &Reply) -> Result<bool> {
        Ok(is(keyspace, found, &self.value).await? == self.equal)
    }
}

/// Whether a value is what is given.
async fn is(keyspace: &Keyspace, found: &Reply, value: &[u8]) -> Result<bool> {
    let pinned = match found {
        Reply::Bulk(bytes) => return Ok(bytes == value),
        Reply::Parts(pinned) => pinned,
        _ => unreachable!("a value is whole or in parts"),
    };
    if pinned.length != value.len() as u64 {
        return Ok(false);
    }
    for (part, bytes) in value.chunks(keyspace.core().volume.geometry().part_bytes).enumerate() {
        if keyspace.part(pinned, part as u32).await? != bytes {
            return Ok(false);
        }
    }
    Ok(true)
}

/// DELEX of Redis 8.4: without a condition it is DEL of one key.
pub(super) fn delex(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    let is = |name: &[u8]| args.get(2).is_some_and(|word| word.eq_ignore_ascii_case(name));
    match (args.len(), args.get(3)) {
        (2, _) => super::keys::del(connection, args),
        (4, Some(value)) if is(b"ifeq") || is(b"ifne") => {
            Run::Alone(change_if(connection, &args[1], value, is(b"ifeq")))
        }
        _ => Run::Now(syntax_error()),
    }
}

/// DELIFEQ of Valkey.
pub(super) fn delifeq(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    Run::Alone(change_if(connection, &args[1], &args[2], true))
}

/// What became of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Done,
    /// The key holds something else, or, of a time that is to be added to, has none.
    Different,
    Absent,
}

/// Changes a key if its value is, or is not, what is given; 1 if it did.
fn change_if(connection: &Rc<Connection>, key: &[u8], value: &[u8], equal: bool) -> LocalFuture<Reply> {
    let (keyspace, place) = (connection.keyspace(), (connection.database.get(), key.to_vec()));
    let comparison = Comparison { value: value.to_vec(), equal };
    Box::pin(async move {
        match change(&keyspace, &place, &comparison, Change::Delete).await {
            Ok(outcome) => Reply::Integer(i64::from(outcome == Outcome::Done)),
            Err(error) => Reply::failed(&error),
        }
    })
}

/// A value that was read under a pin, with its version and time of expiry.
type Found = (Reply, (Version, Option<u64>));

async fn find(keyspace: &Keyspace, (container, key): &Key) -> Result<Option<Found>> {
    let read = Op::retrieve_whole(*container, key);
    match keyspace.execute(read).await {
        Ok(Output::Found(item)) => {
            let stamps = (item.version, item.expiry_ms);
            Ok(Some((value_reply(keyspace.core(), key.clone(), item), stamps)))
        }
        Ok(_) => unreachable!("a retrieve gives what it found"),
        Err(Error::NotFound) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether a key's value is as it has to be; nothing if there is none.
pub(super) async fn holds(keyspace: &Keyspace, place: &Key, value: &Comparison) -> Result<Option<bool>> {
    match find(keyspace, place).await? {
        Some((found, _)) => value.holds(keyspace, &found).await.map(Some),
        None => Ok(None),
    }
}

/// Changes a key if its value is as it has to be.
pub(super) async fn change(
    keyspace: &Keyspace,
    place: &Key,
    comparison: &Comparison,
    change: Change,
) -> Result<Outcome> {
    loop {
        let Some((found, stamps)) = find(keyspace, place).await? else { return Ok(Outcome::Absent) };
        if !comparison.holds(keyspace, &found).await? {
            return Ok(Outcome::Different);
        }
        let Some(op) = change.op(place, stamps, keyspace.core().reactor.wall_ms()) else {
            return Ok(Outcome::Different);
        };
        match keyspace.execute(op).await {
            Ok(_) => return Ok(Outcome::Done),
            // Somebody came between: look again.
            Err(Error::VersionMismatch | Error::NotFound) => {}
            Err(error) => return Err(error),
        }
    }
}
