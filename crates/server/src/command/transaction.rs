//! MULTI, EXEC, DISCARD, WATCH, UNWATCH; and what other commands need to do several things as one.
//!
//! Invariants: what EXEC does is held from before its first command until after its last, so it is as if
//! nobody else were there; a key that WATCH looks after has the version that it had then, or nothing is
//! done; a mistake while commands are queued discards them all, as in Redis. An error of a command that is
//! executed does not undo the others, as in Redis; but if a device fails, nothing is done, and EXEC says so.

use super::{Run, Spec, TABLE, places};
use crate::keyspace::Keyspace;
use crate::limits::{TRANSACTION_BYTES_MAX, TRANSACTION_REPLY_BYTES_MAX};
use crate::reply::Reply;
use crate::session::Connection;
use crate::transaction::{Key, Transaction};
use plimsoll_kv::{Error, Op, Output, Result, Version};
use plimsoll_resp::{Args, OwnedArgs};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// The commands between MULTI and EXEC.
#[derive(Default)]
pub(crate) struct Multi {
    /// Each with its place in the table.
    pub(crate) queued: Vec<(usize, OwnedArgs)>,
    /// Bytes of them.
    pub(crate) bytes: usize,
    /// One could not be queued: EXEC will refuse.
    broken: bool,
}

/// The keys that WATCH looks after, and the versions that they had.
pub(crate) type Watched = BTreeMap<Key, Option<Version>>;

/// Bytes of the keys that one client watches.
const WATCHED_BYTES_MAX: usize = 1 << 20;

/// Commands that are executed at once after MULTI.
const NOT_QUEUED: [&str; 6] = ["discard", "exec", "multi", "quit", "reset", "watch"];

/// Commands that look at a whole database, or empty it: with them a transaction holds everything, so that
/// what they look at waits for nobody.
const OF_A_DATABASE: [&str; 6] = ["dbsize", "flushall", "flushdb", "keys", "randomkey", "scan"];

/// Commands that have no place in a transaction: their replies are no elements of its array, or they end
/// what is under way.
const NOT_INSIDE: [&str; 7] =
    ["monitor", "psubscribe", "punsubscribe", "save", "shutdown", "subscribe", "unsubscribe"];

/// What several things that are done as one need to hold.
pub(super) enum Held {
    Keys(Vec<Key>),
    Everything,
}

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

async fn done<F: Future<Output = Result<Reply>>>(
    keyspace: Keyspace,
    held: Held,
    body: impl FnOnce(Keyspace) -> F,
) -> Result<Reply> {
    let (keys, everything) = match held {
        Held::Keys(keys) => (keys, false),
        Held::Everything => (Vec::new(), true),
    };
    let transaction = Transaction::begin(keyspace.core(), keys, everything).await?;
    match body(Keyspace::new(keyspace.core(), Some(transaction.clone()))).await {
        Ok(reply) => transaction.commit().await.map(|()| reply),
        Err(error) => {
            transaction.abandon().await;
            Err(error)
        }
    }
}

/// Takes a command after MULTI: nothing if it is to be executed at once.
pub(super) fn queue(connection: &Connection, index: usize, args: &Args<'_>) -> Option<Reply> {
    let mut multi = connection.multi.borrow_mut();
    let multi = multi.as_mut().filter(|_| !NOT_QUEUED.contains(&TABLE[index].name))?;
    if NOT_INSIDE.contains(&TABLE[index].name) {
        multi.broken = true;
        return Some(Reply::error("ERR Command not allowed inside a transaction"));
    }
    let bytes = multi.bytes + args.iter().map(|arg| arg.len() + size_of::<usize>()).sum::<usize>();
    if bytes > TRANSACTION_BYTES_MAX {
        multi.broken = true;
        return Some(Reply::error("ERR the commands of a transaction have too many bytes"));
    }
    if !multi.broken {
        multi.bytes = bytes;
        multi.queued.push((index, OwnedArgs::new(args.iter())));
    }
    Some(Reply::Simple("QUEUED"))
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
    connection.watched.borrow_mut().clear();
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
    let held: usize = connection.watched.borrow().keys().map(|key| key.1.len()).sum();
    if given + held > WATCHED_BYTES_MAX {
        let words = "ERR the keys that one client watches may have";
        return Run::Now(Reply::error(format!("{words} {WATCHED_BYTES_MAX} bytes at most")));
    }
    let container = connection.database.get();
    let keys: Vec<Key> = args.iter().skip(1).map(|key| (container, key.to_vec())).collect();
    let connection = connection.clone();
    Run::Alone(Box::pin(async move {
        for key in keys {
            let op = Op::Exist { container: key.0, key: key.1.clone() };
            let version = match connection.core.clone().execute(op).await {
                Ok(Output::Found(item)) => Some(item.version),
                Ok(_) => unreachable!("looking at a key gives what was found"),
                Err(Error::NotFound) => None,
                Err(error) => return Reply::failed(&error),
            };
            // What was seen first counts.
            connection.watched.borrow_mut().entry(key).or_insert(version);
        }
        Reply::Ok
    }))
}

pub(super) fn unwatch(connection: &Rc<Connection>, _: &Args<'_>) -> Run {
    connection.watched.borrow_mut().clear();
    Run::Now(Reply::Ok)
}

pub(super) fn exec(connection: &Rc<Connection>, _: &Args<'_>) -> Run {
    let Some(multi) = connection.multi.borrow_mut().take() else {
        return Run::Now(Reply::error("ERR EXEC without MULTI"));
    };
    let watched = std::mem::take(&mut *connection.watched.borrow_mut());
    if multi.broken {
        let words = "EXECABORT Transaction discarded because of previous errors.";
        return Run::Now(Reply::error(words));
    }
    let connection = connection.clone();
    Run::Many(Box::pin(async move {
        let before = connection.database.get();
        let queued_bytes = multi.bytes;
        connection.hold_more(queued_bytes);
        let executed = execute(&connection, multi, watched).await;
        connection.hold_less(queued_bytes);
        match executed {
            Ok(Some(replies)) => {
                let header = Reply::ArrayHeader(replies.len());
                std::iter::once(header).chain(replies.into_iter().flatten()).collect()
            }
            Ok(None) => vec![Reply::NullArray],
            Err(reply) => {
                connection.database.set(before); // A SELECT among them was not done either.
                vec![reply]
            }
        }
    }))
}

/// What queued commands have to hold.
fn held(connection: &Connection, multi: &Multi, watched: &Watched) -> (BTreeSet<Key>, bool) {
    let mut keys: BTreeSet<Key> = watched.keys().cloned().collect();
    let (mut everything, mut database) = (false, connection.database.get());
    for (index, args) in &multi.queued {
        let spec = &TABLE[*index];
        everything |= OF_A_DATABASE.contains(&spec.name);
        keys.extend(places::keys_of(spec, &args.args(), database));
        database = places::database_after(spec, &args.args(), database);
    }
    (keys, everything)
}

/// True for a command that has to do with no key: PUBLISH, INFO, CLIENT.
fn is_of_no_key(spec: &Spec, args: &Args<'_>) -> bool {
    let is_of_keys = OF_A_DATABASE.contains(&spec.name) || places::key_arguments(spec, args).is_some();
    !is_of_keys && spec.name != "select"
}

/// The reply of one command; of an array its header, then its elements.
type Replies = Vec<Reply>;

/// Executes queued commands; nothing if a watched key has changed.
async fn execute(
    connection: &Rc<Connection>,
    multi: Multi,
    watched: Watched,
) -> std::result::Result<Option<Vec<Replies>>, Reply> {
    let failed = |error: Error| Reply::failed(&error);
    let (keys, everything) = held(connection, &multi, &watched);
    let begun = Transaction::begin(&connection.core, keys.into_iter().collect(), everything).await;
    let transaction = begun.map_err(failed)?;
    match are_unchanged(&transaction, &watched).await {
        Ok(true) => {}
        Ok(false) => {
            transaction.abandon().await;
            return Ok(None);
        }
        Err(error) => {
            transaction.abandon().await;
            return Err(failed(error));
        }
    }
    let mut replies = Vec::with_capacity(multi.queued.len());
    let (mut aside, mut bytes) = (Vec::new(), 0);
    connection.transaction.replace(Some(transaction.clone()));
    for (index, args) in multi.queued {
        if is_of_no_key(&TABLE[index], &args.args()) {
            // It is done when all is committed and given back: nobody hears of what is not, and what it
            // waits for may wait for what is held.
            aside.push((replies.len(), index, args));
            replies.push(Vec::new());
            continue;
        }
        let reply = execute_one(connection, index, &args).await;
        bytes += reply.iter().map(Reply::held_bytes).sum::<usize>();
        replies.push(reply);
        if bytes > TRANSACTION_REPLY_BYTES_MAX {
            break;
        }
    }
    connection.transaction.take();
    if bytes > TRANSACTION_REPLY_BYTES_MAX {
        transaction.abandon().await;
        return Err(Reply::error(
            "ERR the replies of this transaction have too many bytes: nothing was done",
        ));
    }
    transaction.commit().await.map_err(failed)?;
    for (place, index, args) in aside {
        replies[place] = execute_one(connection, index, &args).await;
    }
    Ok(Some(replies))
}

/// True if all watched keys have the versions that they had.
async fn are_unchanged(transaction: &Rc<Transaction>, watched: &Watched) -> Result<bool> {
    for ((container, key), version) in watched {
        let op = Op::Exist { container: *container, key: key.clone() };
        let now = match transaction.clone().execute(op).await {
            Ok(Output::Found(item)) => Some(item.version),
            Ok(_) => unreachable!("looking at a key gives what was found"),
            Err(Error::NotFound) => None,
            Err(error) => return Err(error),
        };
        if now != *version {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Executes a queued command to its end.
async fn execute_one(connection: &Rc<Connection>, index: usize, args: &OwnedArgs) -> Replies {
    let start_ns = connection.core.reactor.now_ns();
    let (slot, start) = match super::check(connection, index, &args.args()) {
        Ok(start) => start,
        Err((_, reply)) => return vec![reply],
    };
    connection.show(slot, args.args().iter());
    let replies = match start.run(connection, &args.args()) {
        Run::Now(reply) | Run::Close(reply) => vec![reply],
        Run::Overlap(future) | Run::Alone(future) => vec![future.await],
        Run::Each { keys, one } => {
            let mut replies = vec![Reply::ArrayHeader(keys.len())];
            let mut bytes = 0;
            for key in keys {
                let element = one(connection, key).await;
                bytes += element.held_bytes();
                replies.push(element);
                if bytes > TRANSACTION_REPLY_BYTES_MAX {
                    break; // The whole transaction is refused for it.
                }
            }
            replies
        }
        Run::Many(_) | Run::Abort => unreachable!("neither EXEC nor what is no command is queued"),
    };
    let core = &connection.core;
    let latency_ns = core.reactor.now_ns().saturating_sub(start_ns);
    let counters = core.shared.core(core.reactor.core());
    counters.commands[slot].ran(latency_ns, replies[0].is_error());
    replies
}
