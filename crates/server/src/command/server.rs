//! DBSIZE, FLUSHDB, FLUSHALL, TIME.
//!
//! Invariant: a database is emptied at all partitions at once, over a crash too.

use super::transaction::atomically;
use super::{Run, syntax_error};
use crate::limits::DATABASES;
use crate::reply::Reply;
use crate::session::Connection;
use plimsoll_kv::transaction::Held;
use plimsoll_kv::{ContainerId, Op};
use plimsoll_resp::Args;
use std::rc::Rc;

pub(super) fn dbsize(connection: &Rc<Connection>, _: &Args<'_>) -> Run {
    let (keyspace, container) = (connection.keyspace(), connection.database.get());
    Run::Alone(Box::pin(async move {
        match keyspace.count(container).await {
            Ok(stats) => Reply::Integer(stats.keys as i64),
            Err(error) => Reply::failed(&error),
        }
    }))
}

pub(super) fn flushdb(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    flush(connection, args, vec![connection.database.get()])
}

pub(super) fn flushall(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    flush(connection, args, (0..DATABASES).map(ContainerId).collect())
}

/// ASYNC and SYNC mean the same here: emptying takes constant time either way.
fn flush(connection: &Rc<Connection>, args: &Args<'_>, databases: Vec<ContainerId>) -> Run {
    let is_known = |word: &[u8]| word.eq_ignore_ascii_case(b"async") || word.eq_ignore_ascii_case(b"sync");
    if args.len() > 2 || args.get(1).is_some_and(|word| !is_known(word)) {
        return Run::Now(syntax_error());
    }
    atomically(connection, Held::everything(), |keyspace| async move {
        for container in databases {
            keyspace.execute(Op::Clear { container }).await?;
        }
        Ok(Reply::Ok)
    })
}

pub(super) fn time(connection: &Rc<Connection>, _: &Args<'_>) -> Run {
    let wall_us = connection.core.reactor.wall_us();
    let (seconds, micros) = (wall_us / 1_000_000, wall_us % 1_000_000);
    Run::Now(Reply::Array(vec![Reply::bulk(seconds.to_string()), Reply::bulk(micros.to_string())]))
}
