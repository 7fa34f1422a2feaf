//! DELEX and DELIFEQ: deleting a key if its value is, or is not, what is given: locks without scripts.
//!
//! Invariant: what was compared is what is deleted: the delete asks for the version that was read.

use super::{Run, syntax_error};
use crate::reply::Reply;
use crate::session::Connection;
use plimsoll_kv::{Condition, Error, LocalFuture, Op, Output};
use plimsoll_resp::Args;
use std::rc::Rc;

/// DELEX of Redis 8.4: without a condition it is DEL of one key.
pub(super) fn delex(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    let is = |name: &[u8]| args.get(2).is_some_and(|word| word.eq_ignore_ascii_case(name));
    match (args.len(), args.get(3)) {
        (2, _) => super::keys::del(connection, args),
        (4, Some(value)) if is(b"ifeq") => Run::Alone(delete_if(connection, &args[1], value, true)),
        (4, Some(value)) if is(b"ifne") => Run::Alone(delete_if(connection, &args[1], value, false)),
        _ => Run::Now(syntax_error()),
    }
}

/// DELIFEQ of Valkey.
pub(super) fn delifeq(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    Run::Alone(delete_if(connection, &args[1], &args[2], true))
}

fn delete_if(connection: &Rc<Connection>, key: &[u8], value: &[u8], equal: bool) -> LocalFuture<Reply> {
    let (core, container) = (connection.core.clone(), connection.database.get());
    let (key, value) = (key.to_vec(), value.to_vec());
    Box::pin(async move {
        loop {
            let read = Op::Retrieve { container, key: key.clone(), range: None, pin: false };
            let item = match core.clone().execute(read).await {
                Ok(Output::Found(item)) => item,
                Ok(_) => unreachable!("a retrieve gives what it found"),
                Err(Error::NotFound) => return Reply::Integer(0),
                Err(error) => return Reply::failed(&error),
            };
            // A value in parts is longer than any that is given here.
            if (item.upload.is_none() && item.bytes == value) != equal {
                return Reply::Integer(0);
            }
            let condition = Condition::IfVersion(item.version);
            match core.clone().execute(Op::Delete { container, key: key.clone(), condition }).await {
                Ok(_) => return Reply::Integer(1),
                // Somebody came between: look again.
                Err(Error::VersionMismatch | Error::NotFound) => {}
                Err(error) => return Reply::failed(&error),
            }
        }
    })
}
