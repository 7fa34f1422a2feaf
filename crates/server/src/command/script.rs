//! EVAL, EVALSHA and SCRIPT, for the known scripts of clients.
//!
//! There is no interpreter. But clients let go of locks, extend them, and count by scripts that many have in
//! common; these are known by their digest or their text ([`super::known_scripts`]), and done without one.
//!
//! Invariant: a script of several keys is a transaction over them.

use super::compare::{Change, Comparison, Outcome, change, holds};
use super::known_scripts::{Answers, BOOLEANS, INTEGERS, Script, by_text};
use super::transaction::atomically;
use super::{Run, edit, number, set};
use crate::keyspace::Keyspace;
use crate::reply::Reply;
use crate::session::Connection;
use crate::transaction::Key;
use crate::volume::Question;
use plimsoll_kv::transaction::Held;
use plimsoll_kv::{Condition, Error, Expiry, Op, Result};
use plimsoll_resp::Args;
use std::rc::Rc;

const UNKNOWN: &str =
    "ERR there are no scripts here, but for known ones of locks, or that count; see DELIFEQ";

/// Characters of a digest.
const DIGEST_CHARS: usize = 40;

pub(super) fn evalsha(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    let unknown = || Run::Now(Reply::error("NOSCRIPT No matching script. Please use EVAL."));
    if args[1].len() != DIGEST_CHARS {
        return unknown();
    }
    let count = match key_count(args) {
        Ok(count) => count,
        Err(wrong) => return Run::Now(wrong),
    };
    let script = connection.core.shared.scripts.by_digest(&args[1]);
    script.map_or_else(unknown, |script| run(connection, script, (count, args)))
}

pub(super) fn eval(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    let count = match key_count(args) {
        Ok(count) => count,
        Err(wrong) => return Run::Now(wrong),
    };
    match by_text(&args[1]) {
        Some(script) => {
            // As in Redis: who has sent it once may name it by its digest.
            connection.core.shared.scripts.remember(&args[1], script);
            run(connection, script, (count, args))
        }
        None => Run::Now(Reply::error(UNKNOWN)),
    }
}

/// How many of the arguments are keys: Redis looks at that before it looks at the script.
fn key_count(args: &Args<'_>) -> std::result::Result<usize, Reply> {
    let count = number::integer_or_error(&args[2])?;
    match usize::try_from(count) {
        Ok(count) if count <= args.len() - 3 => Ok(count),
        Ok(_) => Err(Reply::error("ERR Number of keys can't be greater than number of args")),
        Err(_) => Err(Reply::error("ERR Number of keys can't be negative")),
    }
}

/// SCRIPT LOAD: the digest of a script that is known, to be named by it.
pub(super) fn script_load(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    let remembered =
        by_text(&args[2]).map(|script| connection.core.shared.scripts.remember(&args[2], script));
    Run::Now(match remembered {
        Some(Some(digest)) => Reply::bulk(digest),
        Some(None) => Reply::error("ERR too many ways to write known scripts were loaded: use EVAL"),
        None => Reply::error(UNKNOWN),
    })
}

/// SCRIPT EXISTS: which of these digests are known.
pub(super) fn script_exists(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    let scripts = &connection.core.shared.scripts;
    let known = |digest: &[u8]| Reply::Integer(i64::from(scripts.by_digest(digest).is_some()));
    Run::Now(Reply::Array(args.iter().skip(2).map(known).collect()))
}

/// SCRIPT FLUSH: what is known stays known.
pub(super) fn script_flush(_: &Rc<Connection>, args: &Args<'_>) -> Run {
    let is_known = |word: &[u8]| word.eq_ignore_ascii_case(b"async") || word.eq_ignore_ascii_case(b"sync");
    let fits = args.len() == 2 || (args.len() == 3 && is_known(&args[2]));
    Run::Now(if fits { Reply::Ok } else { Reply::error("ERR SCRIPT FLUSH only support SYNC|ASYNC option") })
}

fn run(connection: &Rc<Connection>, script: Script, (count, args): (usize, &Args<'_>)) -> Run {
    let words: Vec<&[u8]> = args.iter().skip(3).collect();
    let (keys, words) = words.split_at(count);
    match (keys, words) {
        ([key], [amount, ..]) if script == Script::Add => {
            edit::add_if(connection, key, amount, Condition::None)
        }
        ([key], [amount, ..]) if script == Script::AddIfThere => {
            edit::add_if(connection, key, amount, Condition::MustExist)
        }
        ([_, ..], [_, ..]) if of_all(script) => all(connection, script, keys, words),
        ([key], [token, words @ ..]) => match step(connection, script, words) {
            Ok(step) => one(connection, (key, token), step),
            Err(run) => run,
        },
        _ => refused(),
    }
}

fn refused() -> Run {
    Run::Now(Reply::error("ERR this script takes one key and its token"))
}

/// What a script does to one key that holds the token.
struct Step {
    /// Or why it refuses to, which is said only where the key holds the token.
    change: std::result::Result<Change, Reply>,
    answers: Answers,
    /// When a key that is free is taken, and until when, if that is a time.
    takes_until_ms: Option<std::result::Result<u64, Reply>>,
    /// Who is told that it is done.
    channel: Option<Vec<u8>>,
}

fn step(connection: &Connection, script: Script, words: &[&[u8]]) -> std::result::Result<Step, Run> {
    let plain = |change, answers| Step { change, answers, takes_until_ms: None, channel: None };
    let delete = |answers| plain(Ok(Change::Delete), answers);
    let time = |word: &[u8]| milliseconds(connection, word, (1, "pexpire"));
    let seconds = |word: &[u8]| milliseconds(connection, word, (1000, "expire"));
    match (script, words) {
        (Script::Release(answers), _) => Ok(delete(answers)),
        (Script::ReleaseAndTell, [channel, ..]) => {
            Ok(Step { channel: Some(channel.to_vec()), ..delete(BOOLEANS) })
        }
        (Script::Renew(answers), [ms, ..]) => Ok(plain(time(ms).map(Change::ExpireIn), answers)),
        (Script::RenewSeconds(answers), [s, ..]) => Ok(plain(seconds(s).map(Change::ExpireIn), answers)),
        (Script::Extend, [ms, b"0", ..]) => Ok(plain(time(ms).map(Change::ExpireLater), INTEGERS)),
        (Script::Extend, [ms, ..]) => Ok(plain(time(ms).map(Change::ExpireAnew), INTEGERS)),
        (Script::Obtain(answers), [ms, ..]) => {
            let change = time(ms).map(Change::ExpireIn);
            Ok(Step { takes_until_ms: Some(expires_at(connection, ms)), ..plain(change, answers) })
        }
        _ => Err(refused()),
    }
}

/// A time that EXPIRE or PEXPIRE takes, in units of so many ms: one that is over before it begins takes the
/// key away.
fn milliseconds(
    connection: &Connection,
    word: &[u8],
    (unit_ms, command): (i64, &str),
) -> std::result::Result<i64, Reply> {
    let now_ms = i64::try_from(connection.core.reactor.wall_ms()).unwrap_or(i64::MAX);
    let is_one = |ms: &i64| ms.checked_add(now_ms).is_some();
    let ms = number::integer_or_error(word)?.checked_mul(unit_ms).filter(is_one);
    ms.ok_or_else(|| Reply::error(format!("ERR invalid expire time in '{command}' command")))
}

fn expires_at(connection: &Connection, ms: &[u8]) -> std::result::Result<u64, Reply> {
    set::expiry_ms("set", ms, 1, connection.core.reactor.wall_ms())
}

/// Changes one key if it holds the token.
fn one(connection: &Rc<Connection>, (key, token): (&[u8], &[u8]), step: Step) -> Run {
    let (keyspace, place) = (connection.keyspace(), (connection.database.get(), key.to_vec()));
    let comparison = Comparison { value: token.to_vec(), equal: true };
    Run::Alone(Box::pin(async move {
        let done = done_to_one(&keyspace, place, comparison, step).await;
        done.unwrap_or_else(|error| Reply::failed(&error))
    }))
}

async fn done_to_one(keyspace: &Keyspace, place: Key, token: Comparison, step: Step) -> Result<Reply> {
    let answer = loop {
        let outcome = match &step.change {
            Ok(wanted) => change(keyspace, &place, &token, *wanted).await?,
            Err(_) => match holds(keyspace, &place, &token).await? {
                Some(true) => Outcome::Done,
                Some(false) => Outcome::Different,
                None => Outcome::Absent,
            },
        };
        match outcome {
            Outcome::Done => match step.change {
                Ok(_) => break step.answers.done,
                Err(refusal) => return Ok(refusal),
            },
            Outcome::Different => break step.answers.different,
            Outcome::Absent => {}
        }
        let at_ms = match step.takes_until_ms {
            None => break step.answers.absent,
            Some(Err(refusal)) => return Ok(refusal),
            Some(Ok(at_ms)) => at_ms,
        };
        match keyspace.execute(store(place.clone(), &token.value, at_ms, Condition::MustNotExist)).await {
            Ok(_) => break step.answers.done,
            // Somebody came between: look again.
            Err(Error::Exists) => {}
            Err(error) => return Err(error),
        }
    };
    if let (Some(_), Some(channel)) = (answer, step.channel) {
        let (channel, message) = (channel.as_slice().into(), place.1.as_slice().into());
        keyspace.tell(Question::Publish { channel, message }).await;
    }
    Ok(answer.map_or(Reply::Null, Reply::Integer))
}

fn store((container, key): Key, token: &[u8], at_ms: u64, condition: Condition) -> Op {
    Op::Store {
        container,
        key,
        value: token.to_vec().into(),
        condition,
        expiry: Expiry::At(at_ms),
        retain: false,
        want_previous: false,
        form: None,
    }
}

/// Whether a script is for any number of keys.
fn of_all(script: Script) -> bool {
    matches!(script, Script::TakeAll | Script::ExtendAll | Script::ReleaseAll)
}

/// Does something to several keys as one.
fn all(connection: &Rc<Connection>, script: Script, keys: &[&[u8]], words: &[&[u8]]) -> Run {
    let database = connection.database.get();
    let places: Vec<Key> = keys.iter().map(|key| (database, key.to_vec())).collect();
    let token = Comparison { value: words[0].to_vec(), equal: true };
    let at_ms = match (script, words) {
        (Script::ReleaseAll, _) => 0,
        (_, [_, ms, ..]) => match expires_at(connection, ms) {
            Ok(at_ms) => at_ms,
            Err(reply) => return Run::Now(reply),
        },
        _ => return refused(),
    };
    atomically(connection, Held::keys(places.clone()), move |keyspace| async move {
        if script == Script::ReleaseAll {
            return release_all(&keyspace, places, &token).await;
        }
        for place in &places {
            let found = holds(&keyspace, place, &token).await?;
            let wanted = if script == Script::TakeAll { None } else { Some(true) };
            if found != wanted {
                return Ok(Reply::Integer(0));
            }
        }
        let count = places.len();
        for place in places {
            keyspace.execute(store(place, &token.value, at_ms, Condition::None)).await?;
        }
        Ok(Reply::Integer(count as i64))
    })
}

async fn release_all(keyspace: &Keyspace, places: Vec<Key>, token: &Comparison) -> Result<Reply> {
    let mut count = 0;
    for place in places {
        count += i64::from(change(keyspace, &place, token, Change::Delete).await? == Outcome::Done);
    }
    Ok(Reply::Integer(count))
}
