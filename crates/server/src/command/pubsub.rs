//! SUBSCRIBE, PSUBSCRIBE, their opposites, PUBLISH, PUBSUB.
//!
//! Invariants: a subscription is in force when its reply is queued; a message has been handed to every
//! listener, on whatever core, when PUBLISH is answered; messages of one publisher keep their order.

use super::Run;
use crate::channels::Kind;
use crate::glob;
use crate::limits::STANDING_NAMES_BYTES_MAX;
use crate::reply::Reply;
use crate::session::Connection;
use crate::volume::{Question, Volume};
use plimsoll_resp::Args;
use std::collections::BTreeSet;
use std::rc::Rc;

pub(super) fn subscribe(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    add(connection, args, Kind::Channel, "subscribe")
}

pub(super) fn psubscribe(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    add(connection, args, Kind::Pattern, "psubscribe")
}

fn add(connection: &Rc<Connection>, args: &Args<'_>, kind: Kind, word: &'static str) -> Run {
    let given: usize = args.iter().skip(1).map(<[u8]>::len).sum();
    let held = connection.subscriptions.borrow().bytes();
    if given.saturating_add(held) > STANDING_NAMES_BYTES_MAX {
        let words = "ERR the names of one client's subscriptions may have";
        return Run::Now(Reply::error(format!("{words} {STANDING_NAMES_BYTES_MAX} bytes at most")));
    }
    let replies = args.iter().skip(1).map(|name| {
        connection.core.channels.borrow_mut().add(kind, name, connection.id);
        if connection.subscriptions.borrow_mut().insert(kind, name) {
            connection.stands(1, name.len());
        }
        confirmation(connection, word, Reply::bulk(name))
    });
    Run::Now(Reply::Several(replies.collect()))
}

pub(super) fn unsubscribe(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    remove(connection, args, Kind::Channel, "unsubscribe")
}

pub(super) fn punsubscribe(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    remove(connection, args, Kind::Pattern, "punsubscribe")
}

fn remove(connection: &Rc<Connection>, args: &Args<'_>, kind: Kind, word: &'static str) -> Run {
    let names: Vec<Vec<u8>> = if args.len() > 1 {
        args.iter().skip(1).map(<[u8]>::to_vec).collect()
    } else {
        let held = connection.subscriptions.borrow();
        held.names(kind).cloned().collect()
    };
    if names.is_empty() {
        return Run::Now(Reply::Several(vec![confirmation(connection, word, Reply::Null)]));
    }
    let replies = names.into_iter().map(|name| {
        connection.core.channels.borrow_mut().remove(kind, &name, connection.id);
        if connection.subscriptions.borrow_mut().remove(kind, &name) {
            connection.stands_no_more(1, name.len());
        }
        confirmation(connection, word, Reply::Bulk(name))
    });
    Run::Now(Reply::Several(replies.collect()))
}

fn confirmation(connection: &Connection, word: &'static str, name: Reply) -> Reply {
    let count = connection.subscriptions.borrow().len();
    Reply::Push(vec![Reply::bulk(word), name, Reply::Integer(count as i64)])
}

pub(super) fn publish(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    let volume = connection.core.volume.clone();
    let question = Question::Publish { channel: args[1].into(), message: args[2].into() };
    Run::Alone(Box::pin(async move { Reply::Integer(sum(&volume.ask_all(question).await)) }))
}

/// The sum of numbers that the cores answered, in eight bytes each.
pub(super) fn sum(answers: &[Vec<u8>]) -> i64 {
    answers.iter().filter_map(|bytes| Some(i64::from_le_bytes(bytes.as_slice().try_into().ok()?))).sum()
}

/// PUBSUB CHANNELS: the channels that somebody listens to by name.
pub(super) fn channels(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    let (volume, pattern) = (connection.core.volume.clone(), args.get(2).map(<[u8]>::to_vec));
    if args.len() > 3 {
        return Run::Now(super::wrong_use(args));
    }
    Run::Alone(Box::pin(async move {
        let names = distinct_names(&volume, Kind::Channel).await;
        let is_asked = |name: &Vec<u8>| pattern.as_ref().is_none_or(|p| glob::matches(p, name, false));
        Reply::Array(names.into_iter().filter(is_asked).map(Reply::Bulk).collect())
    }))
}

/// The channels or patterns that somebody listens to, on whatever core.
pub(super) async fn distinct_names(volume: &Rc<Volume>, kind: Kind) -> BTreeSet<Vec<u8>> {
    distinct(&volume.ask_all(Question::Channels(kind)).await)
}

/// The names in lists of several cores: each after its length in four bytes.
fn distinct(answers: &[Vec<u8>]) -> BTreeSet<Vec<u8>> {
    let mut names = BTreeSet::new();
    for answer in answers {
        let mut rest = answer.as_slice();
        while let Some((length, after)) = rest.split_first_chunk() {
            let (name, after) = after.split_at(u32::from_le_bytes(*length) as usize);
            names.insert(name.to_vec());
            rest = after;
        }
    }
    names
}

/// PUBSUB NUMPAT: the patterns that somebody listens by.
pub(super) fn numpat(connection: &Rc<Connection>, _: &Args<'_>) -> Run {
    let volume = connection.core.volume.clone();
    Run::Alone(Box::pin(async move {
        let names = distinct_names(&volume, Kind::Pattern).await;
        Reply::Integer(names.len() as i64)
    }))
}

/// PUBSUB NUMSUB: how many listen to each of these channels by name.
pub(super) fn numsub(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    let volume = connection.core.volume.clone();
    let names: Vec<Vec<u8>> = args.iter().skip(2).map(<[u8]>::to_vec).collect();
    Run::Alone(Box::pin(async move {
        let mut counts = Vec::new();
        for name in names {
            let answers = volume.ask_all(Question::Listeners(name.as_slice().into())).await;
            counts.push((Reply::Bulk(name), Reply::Integer(sum(&answers))));
        }
        Reply::Array(counts.into_iter().flat_map(|(name, count)| [name, count]).collect())
    }))
}

/// Commands of a RESP2 client that listens: what it receives could not be told from other replies.
const WHILE_LISTENING: [&str; 7] =
    ["ping", "psubscribe", "punsubscribe", "quit", "reset", "subscribe", "unsubscribe"];

/// Refuses a command that a listening client must not send; `full_name` tells its subcommand too.
pub(super) fn check_listening(connection: &Connection, name: &str, full_name: &str) -> Result<(), Reply> {
    let listens = !connection.subscriptions.borrow().is_empty();
    let is_resp2 = connection.version.get() == plimsoll_resp::Version::Resp2;
    if !listens || !is_resp2 || WHILE_LISTENING.contains(&name) {
        return Ok(());
    }
    Err(Reply::error(format!(
        "ERR Can't execute '{full_name}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in \
         this context"
    )))
}

/// PING of a RESP2 client that listens.
pub(super) fn pong(args: &Args<'_>) -> Reply {
    Reply::Array(vec![Reply::bulk("pong"), Reply::bulk(args.get(1).unwrap_or_default())])
}

/// Ends all subscriptions of a connection.
pub(crate) fn forget(connection: &Connection) {
    let forgotten = std::mem::take(&mut *connection.subscriptions.borrow_mut());
    for kind in [Kind::Channel, Kind::Pattern] {
        for name in forgotten.names(kind) {
            connection.core.channels.borrow_mut().remove(kind, name, connection.id);
        }
    }
    connection.stands_no_more(forgotten.len(), forgotten.bytes());
}
