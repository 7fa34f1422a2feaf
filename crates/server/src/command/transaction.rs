//! MULTI, DISCARD, WATCH, UNWATCH; and what other commands need to do several things as one.
//!
//! Role: queues commands for EXEC (`exec`). Invariants: a mistake while commands are queued discards them
//! all, as in Redis; what is queued and what is watched has a limit.

use super::{Run, TABLE};
use crate::keyspace::Keyspace;
use crate::limits::{STANDING_NAMES_BYTES_MAX, TRANSACTION_BYTES_MAX};
use crate::reply::Reply;
use crate::session::Connection;
use crate::transaction::{Key, Transaction};
use plimsoll_kv::transaction::Held;
use plimsoll_kv::{Error, Op, Output, Result, Version};
use plimsoll_resp::{Args, OwnedArgs};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::rc::Rc;

/// The commands between MULTI and EXEC.
#[derive(Default)]
pub(crate) struct Multi {
    /// Each with its place in the table.
    pub(crate) queued: Vec<(usize, OwnedArgs)>,
    /// Bytes of them.
    pub(crate) bytes: usize,
    /// One could not be queued: EXEC will refuse.
    pub(super) broken: bool,
}

impl Multi {
    /// Whether a pause of writes holds its EXEC.
    pub(crate) fn may_write(&self) -> bool {
        self.queued.iter().any(|(index, _)| super::may_write(TABLE[*index].name.as_bytes()))
    }
}

/// Bytes that a queued command takes beside its arguments: its entry, and two allocations.
const QUEUED_COMMAND_BYTES: usize = size_of::<(usize, OwnedArgs)>() + 2 * 32;

/// The keys that WATCH looks after, and the versions that they had.
pub(crate) type Watched = BTreeMap<Key, Option<Version>>;

/// Commands that are executed at once after MULTI.
const NOT_QUEUED: [&str; 6] = ["discard", "exec", "multi", "quit", "reset", "watch"];

/// Commands that look at a whole database, or empty it: with them a transaction holds everything, so that
/// what they look at waits for nobody.
pub(super) const OF_A_DATABASE: [&str; 6] = ["dbsize", "flushall", "flushdb", "keys", "randomkey", "scan"];

/// Commands that have no place in a transaction: their replies are no elements of its array, they end what is
/// under way, or they tell of what is on devices, where nothing of it is yet.
const NOT_INSIDE: [&str; 8] =
    ["kv.meta", "monitor", "psubscribe", "punsubscribe", "save", "shutdown", "subscribe", "unsubscribe"];

/// Does several things as one. Inside of EXEC everything is held already.
pub(super) fn atomically<F: Future<Output = Result<Reply>> + 'static>(
    connection: &Rc<Connection>,
    held: Held,
    body: impl FnOnce(Keyspace) -> F + 'static,
) -> Run {
    let keyspace = connection.keyspace();
    Run::Alone(Box::pin(async move {
        if keyspace.is_transaction() {
            return body(keyspace).await.unwrap_or_else(|error| Reply::failed(&error));
        }
        done(keyspace, held, body).await.unwrap_or_else(|error| Reply::failed(&error))
    }))
}

/// Does something as one, alone with what it holds.
pub(super) async fn done<F: Future<Output = Result<Reply>>>(
    keyspace: Keyspace,
    held: Held,
    body: impl FnOnce(Keyspace) -> F,
) -> Result<Reply> {
    let transaction = Transaction::begin(keyspace.core(), held).await?;
    match body(Keyspace::new(keyspace.core(), Some(transaction.clone()))).await {
        Ok(reply) => transaction.commit().await.map(|()| reply),
        Err(error) => {
            transaction.abandon().await;
            Err(error)
        }
    }
}

/// Takes a command after MULTI, or refuses it: nothing if it is to be executed at once.
pub(super) fn queue(
    connection: &Connection,
    index: usize,
    args: &Args<'_>,
) -> Option<std::result::Result<Reply, Reply>> {
    let mut multi = connection.multi.borrow_mut();
    let multi = multi.as_mut().filter(|_| !NOT_QUEUED.contains(&TABLE[index].name))?;
    if NOT_INSIDE.contains(&TABLE[index].name) {
        multi.broken = true;
        return Some(Err(Reply::error("ERR Command not allowed inside a transaction")));
    }
    let arguments = args.iter().map(|arg| arg.len() + size_of::<usize>()).sum::<usize>();
    let bytes = multi.bytes + QUEUED_COMMAND_BYTES + arguments;
    let bytes_max = TRANSACTION_BYTES_MAX.min(connection.core.shared.settings.budget.command_bytes_max());
    if bytes > bytes_max {
        multi.broken = true;
        return Some(Err(Reply::error("ERR the commands of a transaction have too many bytes")));
    }
    if !multi.broken {
        multi.bytes = bytes;
        multi.queued.push((index, OwnedArgs::new(args.iter())));
    }
    Some(Ok(Reply::Simple("QUEUED")))
}

/// A command was refused: if it would have been queued, EXEC will refuse too.
pub(crate) fn spoil(connection: &Connection) {
    if let Some(multi) = connection.multi.borrow_mut().as_mut() {
        multi.broken = true;
    }
}

/// Forgets what was queued and what is watched.
pub(super) fn discard_all(connection: &Connection) {
    connection.multi.borrow_mut().take();
    watched_no_more(connection);
}

/// What was watched until now.
pub(super) fn watched_no_more(connection: &Connection) -> Watched {
    let watched = std::mem::take(&mut *connection.watched.borrow_mut());
    connection.stands_no_more(watched.len(), connection.watched_bytes.take());
    watched
}

/// An EXEC that was refused: nothing is done, and why.
pub(super) fn abort(connection: &Connection, why: Reply) -> Reply {
    discard_all(connection);
    let Reply::Error(text) = why else { return why };
    let why = text.strip_prefix(b"ERR ").unwrap_or(&text);
    Reply::Error([b"EXECABORT Transaction discarded because of: ", why].concat())
}

pub(super) fn multi(connection: &Rc<Connection>, _: &Args<'_>) -> Run {
    let mut multi = connection.multi.borrow_mut();
    if multi.is_some() {
        return Run::Now(Reply::error("ERR MULTI calls can not be nested"));
    }
    *multi = Some(Multi::default());
    Run::Now(Reply::Ok)
}

pub(super) fn discard(connection: &Rc<Connection>, _: &Args<'_>) -> Run {
    if connection.multi.borrow().is_none() {
        return Run::Now(Reply::error("ERR DISCARD without MULTI"));
    }
    discard_all(connection);
    Run::Now(Reply::Ok)
}

pub(super) fn watch(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    if connection.multi.borrow().is_some() {
        return Run::Now(Reply::error("ERR WATCH inside MULTI is not allowed"));
    }
    let given: usize = args.iter().skip(1).map(<[u8]>::len).sum();
    if given + connection.watched_bytes.get() > STANDING_NAMES_BYTES_MAX {
        let words = "ERR the keys that one client watches may have";
        return Run::Now(Reply::error(format!("{words} {STANDING_NAMES_BYTES_MAX} bytes at most")));
    }
    let container = connection.database.get();
    let keys: Vec<Key> = args.iter().skip(1).map(|key| (container, key.to_vec())).collect();
    let (connection, keyspace) = (connection.clone(), connection.keyspace());
    Run::Alone(Box::pin(async move {
        for key in keys {
            let version = match version_of(&keyspace, &key).await {
                Ok(version) => version,
                Err(error) => return Reply::failed(&error),
            };
            // What was seen first counts.
            let bytes = key.1.len();
            if let Entry::Vacant(entry) = connection.watched.borrow_mut().entry(key) {
                entry.insert(version);
                connection.watched_bytes.set(connection.watched_bytes.get() + bytes);
                connection.stands(1, bytes);
            }
        }
        Reply::Ok
    }))
}

/// The version of a key, if it is there.
pub(super) async fn version_of(keyspace: &Keyspace, (container, key): &Key) -> Result<Option<Version>> {
    match keyspace.execute(Op::Exist { container: *container, key: key.clone() }).await {
        Ok(Output::Found(item)) => Ok(Some(item.version)),
        Ok(_) => unreachable!("looking at a key gives what was found"),
        Err(Error::NotFound) => Ok(None),
        Err(error) => Err(error),
    }
}

pub(super) fn unwatch(connection: &Rc<Connection>, _: &Args<'_>) -> Run {
    watched_no_more(connection);
    Run::Now(Reply::Ok)
}
