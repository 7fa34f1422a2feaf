//! ACL: the one user that there is.
//!
//! Invariants: what is said of the user is true; a password is shown to nobody, not as a digest either.

use super::{Run, TABLE, number};
use crate::reply::Reply;
use crate::session::Connection;
use plimsoll_resp::Args;
use std::rc::Rc;

/// The categories of Redis, in its order.
const CATEGORIES: [&str; 21] = [
    "keyspace",
    "read",
    "write",
    "set",
    "sortedset",
    "list",
    "hash",
    "string",
    "bitmap",
    "hyperloglog",
    "geo",
    "stream",
    "pubsub",
    "admin",
    "fast",
    "slow",
    "blocking",
    "dangerous",
    "connection",
    "transaction",
    "scripting",
];

const USER: &str = "default";

fn has_password(connection: &Connection) -> bool {
    connection.core.shared.settings.password.is_some()
}

fn texts<'a>(texts: impl IntoIterator<Item = &'a str>) -> Vec<Reply> {
    texts.into_iter().map(Reply::bulk).collect()
}

pub(super) fn whoami(_: &Rc<Connection>, _: &Args<'_>) -> Run {
    Run::Now(Reply::bulk(USER))
}

pub(super) fn users(_: &Rc<Connection>, _: &Args<'_>) -> Run {
    Run::Now(Reply::Array(texts([USER])))
}

pub(super) fn list(connection: &Rc<Connection>, _: &Args<'_>) -> Run {
    let password = if has_password(connection) { "#(redacted)" } else { "nopass" };
    Run::Now(Reply::Array(vec![Reply::bulk(format!("user {USER} on {password} ~* &* +@all"))]))
}

pub(super) fn cat(_: &Rc<Connection>, args: &Args<'_>) -> Run {
    let Some(category) = args.get(2) else { return Run::Now(Reply::Array(texts(CATEGORIES))) };
    if args.len() > 3 {
        return Run::Now(wrong_count(args));
    }
    let Some(known) = CATEGORIES.iter().find(|known| known.as_bytes().eq_ignore_ascii_case(category)) else {
        return Run::Now(Reply::Error([b"ERR Unknown category '", category, b"'"].concat()));
    };
    let is_in = |categories: &[&str]| categories.iter().any(|other| &other[1..] == *known);
    Run::Now(Reply::Array(texts(TABLE.iter().filter(|spec| is_in(spec.categories)).map(|spec| spec.name))))
}

pub(super) fn getuser(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    if &args[2] != USER.as_bytes() {
        return Run::Now(Reply::Null);
    }
    let (flags, passwords) = if has_password(connection) {
        (vec!["on"], texts(["(redacted)"]))
    } else {
        (vec!["on", "nopass"], Vec::new())
    };
    Run::Now(Reply::Map(vec![
        (Reply::bulk("flags"), Reply::Set(texts(flags))),
        (Reply::bulk("passwords"), Reply::Array(passwords)),
        (Reply::bulk("commands"), Reply::bulk("+@all")),
        (Reply::bulk("keys"), Reply::bulk("~*")),
        (Reply::bulk("channels"), Reply::bulk("&*")),
        (Reply::bulk("selectors"), Reply::Array(Vec::new())),
    ]))
}

pub(super) fn setuser(_: &Rc<Connection>, _: &Args<'_>) -> Run {
    Run::Now(Reply::error(
        "ERR ACL SETUSER is not supported: there is one user, 'default'; its password is set at the start",
    ))
}

/// Users that are not there are not counted; the one that is cannot go.
pub(super) fn deluser(_: &Rc<Connection>, args: &Args<'_>) -> Run {
    let is_default = args.iter().skip(2).any(|name| name == USER.as_bytes());
    Run::Now(if is_default {
        Reply::error("ERR The 'default' user cannot be removed")
    } else {
        Reply::Integer(0)
    })
}

/// Nothing is denied to the one user but before it has given its password, and that is not kept.
pub(super) fn log(_: &Rc<Connection>, args: &Args<'_>) -> Run {
    let Some(word) = args.get(2) else { return Run::Now(Reply::Array(Vec::new())) };
    Run::Now(if args.len() > 3 {
        wrong_count(args)
    } else if word.eq_ignore_ascii_case(b"reset") {
        Reply::Ok
    } else {
        number::integer_or_error(word).map_or_else(|reply| reply, |_| Reply::Array(Vec::new()))
    })
}

pub(super) fn no_file(_: &Rc<Connection>, _: &Args<'_>) -> Run {
    Run::Now(Reply::error(
        "ERR This Redis instance is not configured to use an ACL file. You may want to specify users via the \
         ACL SETUSER command and then issue a CONFIG REWRITE (assuming you have a Redis configuration file \
         set) in order to store users in the Redis configuration.",
    ))
}

fn wrong_count(args: &Args<'_>) -> Reply {
    let name: &[u8] = &args[1];
    let text: [&[u8]; 3] =
        [b"ERR unknown subcommand or wrong number of arguments for '", name, b"'. Try ACL HELP."];
    Reply::Error(text.concat())
}
