//! DEL, UNLINK, EXISTS, TYPE; and looking at one key without its value.

use super::Run;
use super::string::count_hit;
use crate::limits::KEYS_AT_ONCE_MAX;
use crate::reply::Reply;
use crate::session::Connection;
use futures_util::future::join_all;
use plimsoll_kv::{Condition, ContainerId, Error, Item, Op, Output};
use plimsoll_resp::Args;
use std::rc::Rc;

pub(super) fn del(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    count(connection, args, false, |container, key| Op::Delete { container, key, condition: Condition::None })
}

pub(super) fn exists(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    count(connection, args, true, |container, key| Op::Exist { container, key })
}

/// How many of the keys an operation finds. Few keys get their places at once; many are worked
/// through in pieces, alone.
fn count(
    connection: &Rc<Connection>,
    args: &Args<'_>,
    only_looks: bool,
    op: fn(ContainerId, Vec<u8>) -> Op,
) -> Run {
    let (keyspace, container) = (connection.keyspace(), connection.database.get());
    let keys: Vec<Vec<u8>> = args.iter().skip(1).map(<[u8]>::to_vec).collect();
    let keyspace = if keys.len() > 1 { keyspace.patient() } else { keyspace };
    let is_short = keys.len() <= KEYS_AT_ONCE_MAX;
    let future = Box::pin(async move {
        let mut found = 0;
        let mut keys = keys.into_iter().peekable();
        while keys.peek().is_some() {
            let piece = keys.by_ref().take(KEYS_AT_ONCE_MAX);
            for result in join_all(piece.map(|key| keyspace.execute(op(container, key)))).await {
                if only_looks {
                    count_hit(keyspace.core(), result.is_ok());
                }
                match result {
                    Ok(_) => found += 1,
                    Err(Error::NotFound) => {}
                    Err(error) => return Reply::failed(&error),
                }
            }
        }
        Reply::Integer(found)
    });
    if is_short { Run::Overlap(future) } else { Run::Alone(future) }
}

pub(super) fn kind(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    look(connection, args, |found| Reply::Simple(if found.is_some() { "string" } else { "none" }))
}

/// A command that only looks at its first key.
pub(super) fn look(connection: &Rc<Connection>, args: &Args<'_>, reply: fn(Option<Item>) -> Reply) -> Run {
    let (keyspace, container) = (connection.keyspace(), connection.database.get());
    let (key, connection) = (args[1].to_vec(), connection.clone());
    Run::Overlap(Box::pin(async move {
        let result = keyspace.execute(Op::Exist { container, key }).await;
        count_hit(&connection.core, result.is_ok());
        match result {
            Ok(Output::Found(item)) => reply(Some(item)),
            Ok(_) => unreachable!("looking at a key gives what was found"),
            Err(Error::NotFound) => reply(None),
            Err(error) => Reply::failed(&error),
        }
    }))
}
