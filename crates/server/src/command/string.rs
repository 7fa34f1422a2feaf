//! GET, MGET, STRLEN.

use super::Run;
use crate::core::Core;
use crate::keyspace::Keyspace;
use crate::reply::{Pinned, Reply};
use crate::session::Connection;
use plimsoll_kv::{Error, Item, LocalFuture, Op, Retrieved};
use plimsoll_reactor::Work;
use plimsoll_resp::Args;
use std::rc::Rc;

pub(super) fn get(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    match recall(connection, &args[1]) {
        Some(reply) => Run::Now(reply),
        None => Run::Overlap(get_from(connection, connection.keyspace(), args[1].into())),
    }
}

/// The reply for a value that memory has.
fn recall(connection: &Connection, key: &[u8]) -> Option<Reply> {
    if connection.in_transaction() {
        return None;
    }
    let mut reply = None;
    let give = &mut |bytes: &[u8]| reply = Some(Reply::bulk(bytes));
    let found = connection.core.volume.recall(connection.database.get(), key, give);
    if found {
        count_hit(&connection.core, true);
    }
    reply
}

pub(super) fn mget(_: &Rc<Connection>, args: &Args<'_>) -> Run {
    Run::Each { keys: args.iter().skip(1).map(<[u8]>::to_vec).collect(), one: get_one }
}

/// One of several keys.
pub(super) fn get_one(connection: &Rc<Connection>, key: Vec<u8>) -> LocalFuture<Reply> {
    get_from(connection, connection.keyspace().patient(), key.into())
}

fn get_from(connection: &Rc<Connection>, keyspace: Keyspace, key: Rc<[u8]>) -> LocalFuture<Reply> {
    let (core, container) = (connection.core.clone(), connection.database.get());
    Box::pin(async move {
        let result = keyspace.retrieve_whole(container, key.clone()).await;
        count_hit(&core, result.is_ok());
        match result {
            Ok(Retrieved { item, value }) if item.upload.is_none() => Reply::Value(value),
            Ok(Retrieved { item, .. }) => value_reply(&core, key.to_vec(), item),
            Err(Error::NotFound) => Reply::Null,
            Err(error) => Reply::failed(&error),
        }
    })
}

/// The reply for a value that was retrieved with a pin.
pub(super) fn value_reply(core: &Rc<Core>, key: Vec<u8>, item: Item) -> Reply {
    let length = item.length;
    range_reply(core, key, item, 0, length)
}

/// The reply for a range of a value that was retrieved with a pin; a value that is not in parts has been
/// cut to it already.
pub(super) fn range_reply(core: &Rc<Core>, key: Vec<u8>, item: Item, first: u64, length: u64) -> Reply {
    let Some(upload) = item.upload else { return Reply::Bulk(item.bytes) };
    let core = core.clone();
    let release = Box::new(move |key| {
        let op = Op::Unpin { upload, key };
        let unpin = core.clone();
        core.reactor.spawn(Work::Kv, async move {
            if let Err(error) = unpin.execute(op, 0).await {
                tracing::warn!(%error, "a pin could not be given up");
            }
        });
    });
    let pinned = Pinned { upload, key, first, length, release };
    if length == 0 { Reply::Bulk(Vec::new()) } else { Reply::Parts(Box::new(pinned)) }
}

/// A command has looked for a key, of those that Redis counts.
pub(super) fn count_hit(core: &Core, hit: bool) {
    let counters = core.shared.core(core.reactor.core());
    if hit { counters.hits.add(1) } else { counters.misses.add(1) }
}

pub(super) fn strlen(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    super::keys::look(connection, args, |found| match found {
        Some(item) => Reply::Integer(item.length as i64),
        None => Reply::Integer(0),
    })
}
