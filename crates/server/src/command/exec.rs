//! EXEC: runs the commands that were queued after MULTI, as one.
//!
//! Invariants: what they do is held from before the first of them until after the last, so it is as if nobody
//! else were there; a key that WATCH looks after has the version that it had then, or nothing is done; an
//! error of a command does not undo the others, as in Redis, but if a device fails nothing is done, and EXEC
//! says so. Each command is counted, timed and kept in the slow log by itself, as in Redis.

use super::transaction::{Multi, OF_A_DATABASE, Watched, version_of, watched_no_more};
use super::{Run, Spec, TABLE, places};
use crate::keyspace::Keyspace;
use crate::limits::TRANSACTION_REPLY_BYTES_MAX;
use crate::reply::Reply;
use crate::session::{Connection, capture, timed};
use crate::transaction::{Key, Transaction};
use plimsoll_kv::transaction::Held;
use plimsoll_kv::{Error, Result};
use plimsoll_resp::{Args, OwnedArgs};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;

pub(super) fn exec(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    let word = args[0].to_vec();
    let (multi, watched) = match queued(connection) {
        Ok(queued) => queued,
        Err(refusal) => {
            connection.show_now(std::iter::once(word.as_slice()));
            return Run::Now(refusal);
        }
    };
    let connection = connection.clone();
    Run::Many(Box::pin(async move {
        let before = connection.database.get();
        let queued_bytes = multi.bytes;
        connection.hold_more(queued_bytes);
        let executed = execute(&connection, multi, watched).await;
        connection.hold_less(queued_bytes);
        let replies = match executed {
            Ok(Some(replies)) => {
                let header = Reply::ArrayHeader(replies.len());
                std::iter::once(header).chain(replies.into_iter().flatten()).collect()
            }
            Ok(None) => vec![Reply::NullArray],
            Err(reply) => {
                connection.database.set(before); // A SELECT among them was not done either.
                vec![reply]
            }
        };
        connection.show_now(std::iter::once(word.as_slice()));
        replies
    }))
}

/// Takes what was queued and watched; an error if that is not to be executed.
fn queued(connection: &Connection) -> std::result::Result<(Multi, Watched), Reply> {
    let multi = connection.multi.borrow_mut().take();
    let multi = multi.ok_or_else(|| Reply::error("ERR EXEC without MULTI"))?;
    let watched = watched_no_more(connection);
    if multi.broken {
        return Err(Reply::error("EXECABORT Transaction discarded because of previous errors."));
    }
    Ok((multi, watched))
}

/// What queued commands have to hold.
fn held(connection: &Connection, multi: &Multi, watched: &Watched) -> Held {
    let mut keys: BTreeSet<Key> = watched.keys().cloned().collect();
    let mut database = connection.database.get();
    for (index, args) in &multi.queued {
        let spec = &TABLE[*index];
        if OF_A_DATABASE.contains(&spec.name) {
            return Held::everything();
        }
        keys.extend(places::keys_of(spec, &args.args(), database));
        database = places::database_after(spec, &args.args(), database);
    }
    Held::keys(keys.into_iter().collect())
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
    let begun = Transaction::begin(&connection.core, held(connection, &multi, &watched)).await;
    let transaction = begun.map_err(failed)?;
    let keyspace = Keyspace::new(&connection.core, Some(transaction.clone()));
    match are_unchanged(&keyspace, &watched).await {
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
async fn are_unchanged(keyspace: &Keyspace, watched: &Watched) -> Result<bool> {
    for (key, version) in watched {
        if version_of(keyspace, key).await? != *version {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Executes a queued command to its end, and charges it as one that stands alone.
async fn execute_one(connection: &Rc<Connection>, index: usize, args: &OwnedArgs) -> Replies {
    let args = args.args();
    let (slot, start) = match super::check(connection, index, &args) {
        Ok(start) => start,
        Err((slot, reply)) => {
            slot.inspect(|slot| connection.rejects(*slot));
            connection.charge(None, &reply, 0);
            return vec![reply];
        }
    };
    connection.show(slot, args.iter());
    // Its bytes are held as what was queued.
    let account = connection.account(slot, 0, capture(connection, &args));
    let device_time = Cell::new(0);
    let run = start(connection, &args);
    let replies = timed(connection, Box::pin(finish(connection.clone(), run)), &device_time).await;
    let (last, others) = replies.split_last().expect("there is a reply");
    others.iter().for_each(|reply| connection.charge(None, reply, 0));
    connection.charge(Some(account), last, device_time.get());
    replies
}

/// Brings a command to its end.
async fn finish(connection: Rc<Connection>, run: Run) -> Replies {
    match run {
        Run::Now(reply) | Run::Close(reply) => vec![reply],
        Run::Overlap(future) | Run::Alone(future) => vec![future.await],
        Run::Each { keys, one } => {
            let mut replies = vec![Reply::ArrayHeader(keys.len())];
            let mut bytes = 0;
            for key in keys {
                let element = one(&connection, key).await;
                bytes += element.held_bytes();
                replies.push(element);
                if bytes > TRANSACTION_REPLY_BYTES_MAX {
                    break; // The whole transaction is refused for it.
                }
            }
            replies
        }
        Run::Many(_) | Run::Abort => unreachable!("neither EXEC nor what is no command is queued"),
    }
}
