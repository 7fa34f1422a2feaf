//! DELEX and DELIFEQ: changing a key if it holds what is given.
//!
//! Invariant: what was compared is what is changed: the change asks for the version that was read.

use super::{Run, syntax_error};
use crate::reply::Reply;
use crate::session::Connection;
use plimsoll_kv::{Condition, Error, Expiry, Item, LocalFuture, Op, Output};
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
    fn op(self, container: plimsoll_kv::ContainerId, key: Vec<u8>, item: &Item, now_ms: u64) -> Option<Op> {
        let condition = Condition::IfVersion(item.version);
        let at_ms = match self {
            Change::Delete => return Some(Op::Delete { container, key, condition }),
            Change::ExpireIn(ms) => now_ms.saturating_add(ms),
            Change::ExpireLater(ms) => item.expiry_ms?.saturating_add(ms),
        };
        Some(Op::SetExpiry { container, key, expiry: Expiry::At(at_ms), condition })
    }
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
    let (key, value) = (key.to_vec(), value.to_vec());
    Box::pin(async move {
        loop {
            let read = Op::Retrieve { container, key: key.clone(), range: None, pin: false };
            let item = match keyspace.execute(read).await {
                Ok(Output::Found(item)) => item,
                Ok(_) => unreachable!("a retrieve gives what it found"),
                Err(Error::NotFound) => return Reply::Integer(0),
                Err(error) => return Reply::failed(&error),
            };
            // A value in parts is longer than any that is given here.
            if (item.upload.is_none() && item.bytes == value) != equal {
                return Reply::Integer(0);
            }
            let Some(op) = change.op(container, key.clone(), &item, keyspace.core().reactor.wall_ms()) else {
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
