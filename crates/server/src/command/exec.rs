//! EXEC: runs the commands that were queued after MULTI, as one.
//!
//! Invariants: what they do is held from before the first of them until after the last, so it is as if nobody
//! else were there; a key that WATCH looks after has the version that it had then, or nothing is done; an
//! error of a command does not undo the others, as in Redis, but if a device fails nothing is done, and EXEC
//! says so. Each command is counted, timed and kept in the slow log by itself, as in Redis. Replies that have
//! no room yet are counted and not kept: then nothing is done, and all is run once more when there is room.

use super::transaction::{Multi, OF_A_DATABASE, Watched, version_of, watched_no_more};
use super::{Run, Spec, TABLE, places};
use crate::core::Reservation;
use crate::keyspace::Keyspace;
use crate::limits::REPLY_BYTES_MAX;
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
        let executed = execute(&connection, &multi, &watched).await;
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

/// Replies of commands of no key are made when all is committed: so many bytes are kept for them where
/// those of the others are long. What is longer has been done, and its reply is an error.
const ASIDE_BYTES: usize = 64 << 10;
const ASIDE_TOO_LONG: &str = "ERR the reply of this command is too long for a transaction: it was done";

/// What came of running what was queued.
enum Ran {
    /// It is done.
    Done(Vec<Replies>),
    /// Nothing is: a watched key has changed.
    Changed,
    /// Nothing is: its replies have so many bytes.
    HasNoRoom(usize),
}

/// Executes queued commands; nothing if a watched key has changed.
async fn execute(
    connection: &Rc<Connection>,
    multi: &Multi,
    watched: &Watched,
) -> std::result::Result<Option<Vec<Replies>>, Reply> {
    let (failed, database) = (|error: Error| Reply::failed(&error), connection.database.get());
    let bytes_max = connection.reply_bytes_max();
    let (mut wanted_bytes, mut told) = (REPLY_BYTES_MAX.min(bytes_max), 0);
    loop {
        let mut reservation = connection.reserve_reply(wanted_bytes).await.map_err(failed)?;
        connection.database.set(database);
        match run(connection, (multi, watched), &mut reservation, &mut told).await.map_err(failed)? {
            Ran::Done(replies) => return Ok(Some(replies)),
            Ran::Changed => return Ok(None),
            Ran::HasNoRoom(bytes) if bytes > bytes_max => {
                return Err(Reply::error(format!(
                    "ERR the replies of this transaction have more than {bytes_max} bytes: nothing was done"
                )));
            }
            // Values may grow again meanwhile; then there is room for whatever may be.
            Ran::HasNoRoom(bytes) if reservation.room_bytes() <= REPLY_BYTES_MAX => {
                wanted_bytes = bytes_max.min(bytes + bytes / 8 + ASIDE_BYTES);
            }
            Ran::HasNoRoom(_) => wanted_bytes = bytes_max,
        }
    }
}

/// Runs queued commands, of which the first `told` were run before and have been told of.
async fn run(
    connection: &Rc<Connection>,
    (multi, watched): (&Multi, &Watched),
    reservation: &mut Reservation,
    told: &mut usize,
) -> Result<Ran> {
    let transaction = Transaction::begin(&connection.core, held(connection, multi, watched)).await?;
    let keyspace = Keyspace::new(&connection.core, Some(transaction.clone()));
    match are_unchanged(&keyspace, watched).await {
        Ok(true) => {}
        Ok(false) => {
            transaction.abandon().await;
            return Ok(Ran::Changed);
        }
        Err(error) => {
            transaction.abandon().await;
            return Err(error);
        }
    }
    connection.transaction.replace(Some(transaction.clone()));
    let (mut replies, aside, mut bytes) = run_inside(connection, multi, reservation, told).await;
    connection.transaction.take();
    let room_bytes = reservation.room_bytes();
    let wanted_bytes = bytes + if aside.is_empty() { 0 } else { ASIDE_BYTES };
    if bytes > room_bytes || wanted_bytes > room_bytes && room_bytes < connection.reply_bytes_max() {
        transaction.abandon().await;
        return Ok(Ran::HasNoRoom(bytes));
    }
    transaction.commit().await?;
    for place in aside {
        let (index, args) = &multi.queued[place];
        let (reply, reply_bytes) = execute_one(connection, *index, args, false).await;
        let has_room = bytes + reply_bytes <= room_bytes;
        replies[place] = if has_room { reply } else { vec![Reply::error(ASIDE_TOO_LONG)] };
        bytes += if has_room { reply_bytes } else { 0 };
        reservation.grow_to(bytes);
    }
    Ok(Ran::Done(replies))
}

/// Runs those that have to do with keys: the replies, as far as there is room, those of the others empty; the
/// places of these, and the bytes of all replies, or more than any may have.
async fn run_inside(
    connection: &Rc<Connection>,
    multi: &Multi,
    reservation: &mut Reservation,
    told: &mut usize,
) -> (Vec<Replies>, Vec<usize>, usize) {
    let (bytes_max, room_bytes) = (connection.reply_bytes_max(), reservation.room_bytes());
    let mut replies = Vec::with_capacity(multi.queued.len());
    let (mut aside, mut bytes) = (Vec::new(), 0);
    for (place, (index, args)) in multi.queued.iter().enumerate() {
        if is_of_no_key(&TABLE[*index], &args.args()) {
            // It is done when all is committed and given back: nobody hears of what is not, and what it
            // waits for may wait for what is held.
            aside.push(place);
            replies.push(Vec::new());
            continue;
        }
        connection.exec_room_bytes.set(room_bytes.saturating_sub(bytes));
        let (reply, reply_bytes) = execute_one(connection, *index, args, place < *told).await;
        *told = (*told).max(place + 1);
        bytes += reply_bytes;
        if bytes > bytes_max {
            break;
        }
        if bytes <= room_bytes {
            reservation.grow_to(bytes);
            replies.push(reply);
        } else {
            replies.clear();
        }
    }
    (replies, aside, bytes)
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

/// Executes a queued command to its end, and charges it as one that stands alone, unless it was before; its
/// replies, and the bytes that they have or would have.
async fn execute_one(
    connection: &Rc<Connection>,
    index: usize,
    args: &OwnedArgs,
    is_told: bool,
) -> (Replies, usize) {
    let args = args.args();
    let (slot, start) = match super::check(connection, index, &args) {
        Ok(start) => start,
        Err((slot, reply)) => {
            if !is_told {
                slot.inspect(|slot| connection.rejects(*slot));
                connection.charge(None, &reply, 0);
            }
            let bytes = reply.held_bytes();
            return (vec![reply], bytes);
        }
    };
    if is_told {
        return finish(connection.clone(), start(connection, &args)).await;
    }
    connection.show(slot, args.iter());
    // Its bytes are held as what was queued.
    let account = connection.account(slot, 0, capture(connection, &args));
    let device_time = Cell::new(0);
    let run = start(connection, &args);
    let finished = timed(connection, Box::pin(finish(connection.clone(), run)), &device_time).await;
    let (last, others) = finished.0.split_last().expect("there is a reply");
    others.iter().for_each(|reply| connection.charge(None, reply, 0));
    connection.charge(Some(account), last, device_time.get());
    finished
}

/// Brings a command to its end. Elements of an array for which there is no room are counted, and not kept.
async fn finish(connection: Rc<Connection>, run: Run) -> (Replies, usize) {
    let replies = match run {
        Run::Now(reply) | Run::Close(reply) => vec![reply],
        Run::Overlap(future) | Run::Alone(future) => vec![future.await],
        Run::Each { keys, one } => {
            let room_bytes = connection.exec_room_bytes.get();
            let bytes_max = connection.reply_bytes_max();
            let header = Reply::ArrayHeader(keys.len());
            let (mut bytes, mut replies) = (header.held_bytes(), vec![header]);
            for key in keys {
                let element = one(&connection, key).await;
                bytes += element.held_bytes();
                if bytes <= room_bytes {
                    replies.push(element);
                } else {
                    replies.truncate(1);
                }
                if bytes > bytes_max {
                    break; // The whole transaction is refused for it.
                }
            }
            return (replies, bytes);
        }
        Run::Many(_) | Run::Abort => unreachable!("neither EXEC nor what is no command is queued"),
    };
    let bytes = replies.iter().map(Reply::held_bytes).sum();
    (replies, bytes)
}
