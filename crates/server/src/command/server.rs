//! DBSIZE, FLUSHDB, FLUSHALL, TIME.

use super::{Run, syntax_error};
use crate::core::Core;
use crate::limits::DATABASES;
use crate::reply::Reply;
use crate::session::Connection;
use futures_util::future::join_all;
use plimsoll_kv::{ContainerId, Op, Output};
use plimsoll_resp::Args;
use std::rc::Rc;

pub(super) fn dbsize(connection: &Rc<Connection>, _: &Args<'_>) -> Run {
    let (core, container) = (connection.core.clone(), connection.database.get());
    Run::Alone(Box::pin(async move {
        match core.execute(Op::Stats { container }).await {
            Ok(Output::Stats(stats)) => Reply::Integer(stats.keys as i64),
            Ok(_) => unreachable!("counting gives counters"),
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
    let core = connection.core.clone();
    Run::Alone(Box::pin(async move {
        match clear(&core, databases).await {
            Ok(()) => Reply::Ok,
            Err(error) => Reply::failed(&error),
        }
    }))
}

async fn clear(core: &Rc<Core>, databases: Vec<ContainerId>) -> plimsoll_kv::Result<()> {
    let each = databases.into_iter().map(|container| core.clone().execute(Op::Clear { container }));
    join_all(each).await.into_iter().try_for_each(|result| result.map(|_| ()))
}

pub(super) fn time(connection: &Rc<Connection>, _: &Args<'_>) -> Run {
    let wall_ms = connection.core.reactor.wall_ms();
    let (seconds, micros) = (wall_ms / 1000, wall_ms % 1000 * 1000);
    Run::Now(Reply::Array(vec![Reply::bulk(seconds.to_string()), Reply::bulk(micros.to_string())]))
}
