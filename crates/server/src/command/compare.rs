//! DELEX and DELIFEQ, and what SET IFEQ shares with them: changing a key if it holds what is given.
//!
//! Invariants: what was compared is what is changed: the change asks for the version that was read. A value
//! in parts is compared under a pin, one part in memory at a time.

use super::string::value_reply;
use super::{Run, syntax_error};
use crate::keyspace::Keyspace;
use crate::reply::Reply;
use crate::session::Connection;
use plimsoll_kv::{Condition, Error, Expiry, LocalFuture, Op, Output, Result, Version};
use plimsoll_resp::Args;
use std::rc::Rc;

/// What becomes of a key that holds what is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Delete,
    /// It expires so many milliseconds after now.
    ExpireIn(u64),
    /// It expires so many milliseconds later than it would, if it does.
    ExpireLater(u64),
}

impl Change {
    fn op(
        self,
        container: plimsoll_kv::ContainerId,
        key: Vec<u8>,
        (version, expiry_ms): (Version, Option<u64>),
        now_ms: u64,
    ) -> Option<Op> {
        let condition = Condition::IfVersion(version);
        let at_ms = match self {
            Change::Delete => return Some(Op::Delete { container, key, condition }),
            Change::ExpireIn(ms) => now_ms.saturating_add(ms),
            Change::ExpireLater(ms) => expiry_ms?.saturating_add(ms),
        };
        Some(Op::SetExpiry { container, key, expiry: Expiry::At(at_ms), condition })
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
            Run::Alone(change_if(connection, &args[1], value, is(b"ifeq"), Change::Delete))
        }
        _ => Run::Now(syntax_error()),
    }
}

/// DELIFEQ of Valkey.
pub(super) fn delifeq(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    Run::Alone(change_if(connection, &args[1], &args[2], true, Change::Delete))
}

/// Changes a key if its value is, or is not, what is given; 1 if it did.
pub(super) fn change_if(
    connection: &Rc<Connection>,
    key: &[u8],
    value: &[u8],
    equal: bool,
    change: Change,
) -> LocalFuture<Reply> {
    let (keyspace, container) = (connection.keyspace(), connection.database.get());
    let (key, comparison) = (key.to_vec(), Comparison { value: value.to_vec(), equal });
    Box::pin(async move {
        loop {
            let read = Op::Retrieve { container, key: key.clone(), range: None, pin: true };
            let item = match keyspace.execute(read).await {
                Ok(Output::Found(item)) => item,
                Ok(_) => unreachable!("a retrieve gives what it found"),
                Err(Error::NotFound) => return Reply::Integer(0),
                Err(error) => return Reply::failed(&error),
            };
            let stamps = (item.version, item.expiry_ms);
            let found = value_reply(keyspace.core(), key.clone(), item);
            match comparison.holds(&keyspace, &found).await {
                Ok(true) => {}
                Ok(false) => return Reply::Integer(0),
                Err(error) => return Reply::failed(&error),
            }
            let Some(op) = change.op(container, key.clone(), stamps, keyspace.core().reactor.wall_ms())
            else {
                return Reply::Integer(0);
            };
            match keyspace.execute(op).await {
                Ok(_) => return Reply::Integer(1),
                // Somebody came between: look again.
                Err(Error::VersionMismatch | Error::NotFound) => {}
                Err(error) => return Reply::failed(&error),
            }
        }
    })
}
