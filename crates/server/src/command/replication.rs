//! ROLE, WAIT, WAITAOF, SAVE, BGSAVE, LASTSAVE: what an acknowledged write is worth, in Redis' terms.
//!
//! Invariants: there are no replicas, and nothing is said to be on any; what is said to be saved is on
//! stable media when it is said.

use super::{Run, number};
use crate::reply::Reply;
use crate::session::Connection;
use plimsoll_kv::Op;
use plimsoll_resp::Args;
use std::rc::Rc;

pub(super) fn role(_: &Rc<Connection>, _: &Args<'_>) -> Run {
    Run::Now(Reply::Array(vec![Reply::bulk("master"), Reply::Integer(0), Reply::Array(Vec::new())]))
}

fn check_timeout(word: &[u8]) -> Result<(), Reply> {
    match number::integer(word) {
        None => Err(Reply::error("ERR timeout is not an integer or out of range")),
        Some(timeout) if timeout < 0 => Err(Reply::error("ERR timeout is negative")),
        Some(_) => Ok(()),
    }
}

/// No replica has any write, however long one waits: so nobody waits.
pub(super) fn wait(_: &Rc<Connection>, args: &Args<'_>) -> Run {
    let checked = number::integer_or_error(&args[1]).and_then(|_| check_timeout(&args[2]));
    Run::Now(checked.err().unwrap_or(Reply::Integer(0)))
}

/// After it everything acknowledged to this client is on stable media here, whatever the durability.
pub(super) fn waitaof(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    let local = match number::integer_or_error(&args[1]) {
        Ok(0 | 1) => Ok(()),
        Ok(_) => Err(Reply::error("ERR value is out of range, must be between 0 and 1")),
        Err(reply) => Err(reply),
    };
    let checked =
        local.and_then(|()| number::integer_or_error(&args[2])).and_then(|_| check_timeout(&args[3]));
    if let Err(reply) = checked {
        return Run::Now(reply);
    }
    sync(connection, || Reply::Array(vec![Reply::Integer(1), Reply::Integer(0)]))
}

pub(super) fn save(connection: &Rc<Connection>, _: &Args<'_>) -> Run {
    sync(connection, || Reply::Ok)
}

/// There is nothing to do in the background: when it replies, all is saved.
pub(super) fn bgsave(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    if args.len() > 2 || args.get(1).is_some_and(|word| !word.eq_ignore_ascii_case(b"schedule")) {
        return Run::Now(super::syntax_error());
    }
    sync(connection, || Reply::Simple("Background saving started"))
}

fn sync(connection: &Rc<Connection>, reply: fn() -> Reply) -> Run {
    let core = connection.core.clone();
    Run::Alone(Box::pin(async move {
        match core.execute(Op::Sync, 0).await {
            Ok(_) => reply(),
            Err(error) => Reply::failed(&error),
        }
    }))
}

/// Every acknowledged write is saved: the last one was now.
pub(super) fn lastsave(connection: &Rc<Connection>, _: &Args<'_>) -> Run {
    Run::Now(Reply::Integer((connection.core.reactor.wall_ms() / 1000) as i64))
}
