//! EVAL, EVALSHA and SCRIPT, for the known scripts of clients.
//!
//! There is no interpreter. But clients let go of locks, extend them, and count by scripts that many have in
//! common; these are known by their digest or their text, and done without one.
//!
//! Never: a script that is not known is taken for one that is.

use super::compare::{Change, change_if};
use super::{Run, edit, number};
use crate::reply::Reply;
use crate::session::Connection;
use plimsoll_kv::Condition;
use plimsoll_resp::Args;
use std::rc::Rc;

/// A script that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Script {
    /// Deletes the key if it holds the token.
    Release,
    /// Sets or adds to its time, as the third argument says.
    Extend,
    /// Sets its time.
    Reacquire,
    /// Adds to a number.
    Add,
    /// Adds to a number that is there; else the reply is false.
    AddIfThere,
}

/// SHA-1 of the scripts of redis-py's `Lock` (redis/lock.py, releases 3 to 8).
const DIGESTS: [(&str, Script); 3] = [
    ("c3f8721cbb97f72bc19e972846bd7aaf91901658", Script::Release),
    ("a4e8783852e6b949f9ef3a97212805108459a890", Script::Extend),
    ("1cac51482acf5858da00f6d685d68f886cd6b6b2", Script::Reacquire),
];

/// Scripts without blanks: the one that Redis' documentation gives for letting go of a lock, and those that
/// django-redis counts with (django_redis/client/default.py, release 7).
const TEXTS: [(&str, Script); 3] = [
    (
        "ifredis.call(\"get\",keys[1])==argv[1]thenreturnredis.call(\"del\",keys[1])elsereturn0end",
        Script::Release,
    ),
    (
        "localexists=redis.call(\"exists\",keys[1])if(exists==1)thenreturnredis.call(\"incrby\",keys[1],argv[1])\
         elsereturnfalseend",
        Script::AddIfThere,
    ),
    ("returnredis.call(\"incrby\",keys[1],argv[1])", Script::Add),
];

fn by_digest(digest: &[u8]) -> Option<Script> {
    let known = DIGESTS.iter().find(|(known, _)| known.as_bytes().eq_ignore_ascii_case(digest));
    known.map(|(_, script)| *script)
}

fn by_text(text: &[u8]) -> Option<Script> {
    let visible = text.iter().filter(|byte| !byte.is_ascii_whitespace() && **byte != b';');
    let plain = visible.map(|byte| if *byte == b'\'' { b'"' } else { byte.to_ascii_lowercase() });
    let known = TEXTS.iter().find(|(known, _)| plain.clone().eq(known.bytes()));
    known.map(|(_, script)| *script)
}

pub(super) fn evalsha(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    match by_digest(&args[1]) {
        Some(script) => run(connection, script, args),
        None => Run::Now(Reply::error("NOSCRIPT No matching script. Please use EVAL.")),
    }
}

pub(super) fn eval(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    match by_text(&args[1]) {
        Some(script) => run(connection, script, args),
        None => Run::Now(Reply::error(
            "ERR there are no scripts here, but for known ones that let go of a lock or count; see DELIFEQ",
        )),
    }
}

fn run(connection: &Rc<Connection>, script: Script, args: &Args<'_>) -> Run {
    let words: Vec<&[u8]> = args.iter().skip(3).collect();
    if let (Script::Add | Script::AddIfThere, Some(1), [key, amount, ..]) =
        (script, number::integer(&args[2]), words.as_slice())
    {
        let condition = if script == Script::Add { Condition::None } else { Condition::MustExist };
        return edit::add_if(connection, key, amount, condition);
    }
    let change = match (number::integer(&args[2]), script, words.as_slice()) {
        (Some(1), Script::Release, [_, _, ..]) => Ok(Change::Delete),
        (Some(1), Script::Reacquire, [_, _, ms, ..]) => milliseconds(ms).map(Change::ExpireIn),
        (Some(1), Script::Extend, [_, _, ms, b"0", ..]) => milliseconds(ms).map(Change::ExpireLater),
        (Some(1), Script::Extend, [_, _, ms, ..]) => milliseconds(ms).map(Change::ExpireIn),
        _ => Err(Reply::error("ERR this script takes one key and its token")),
    };
    match change {
        Ok(change) => Run::Alone(change_if(connection, words[0], words[1], true, change)),
        Err(reply) => Run::Now(reply),
    }
}

fn milliseconds(word: &[u8]) -> Result<u64, Reply> {
    let ms = number::integer_or_error(word)?;
    u64::try_from(ms).map_err(|_| Reply::error("ERR the time of a lock must not be negative"))
}

/// SCRIPT EXISTS: which of these digests are known.
pub(super) fn script_exists(_: &Rc<Connection>, args: &Args<'_>) -> Run {
    let known = |digest: &[u8]| Reply::Integer(i64::from(by_digest(digest).is_some()));
    Run::Now(Reply::Array(args.iter().skip(2).map(known).collect()))
}

/// SCRIPT FLUSH: nothing was loaded, and what is known stays known.
pub(super) fn script_flush(_: &Rc<Connection>, args: &Args<'_>) -> Run {
    let is_known = |word: &[u8]| word.eq_ignore_ascii_case(b"async") || word.eq_ignore_ascii_case(b"sync");
    let fits = args.len() == 2 || (args.len() == 3 && is_known(&args[2]));
    Run::Now(if fits { Reply::Ok } else { Reply::error("ERR SCRIPT FLUSH only support SYNC|ASYNC option") })
}
