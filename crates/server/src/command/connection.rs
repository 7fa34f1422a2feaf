//! PING, ECHO, QUIT, RESET, SELECT, HELLO, AUTH.
//!
//! Invariants: there is one user, `default`; without a password any is right for it, as in Redis; other
//! users are unknown.

use super::{Run, client, number, pubsub};
use crate::limits::DATABASES;
use crate::reply::Reply;
use crate::session::{Connection, Replies};
use plimsoll_kv::ContainerId;
use plimsoll_resp::{Args, Version};
use std::rc::Rc;

/// The version of Redis whose behaviour is followed: clients decide by it what they may send.
pub(super) const REDIS_VERSION: &str = "7.2.4";

pub(super) fn ping(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    let listens = !connection.subscriptions.borrow().is_empty();
    Run::Now(match args.len() {
        1 | 2 if listens && connection.version.get() == Version::Resp2 => pubsub::pong(args),
        1 => Reply::Simple("PONG"),
        2 => Reply::bulk(&args[1]),
        _ => super::wrong_arity("ping", None),
    })
}

pub(super) fn echo(_: &Rc<Connection>, args: &Args<'_>) -> Run {
    Run::Now(Reply::bulk(&args[1]))
}

pub(super) fn quit(_: &Rc<Connection>, _: &Args<'_>) -> Run {
    Run::Close(Reply::Ok)
}

pub(super) fn reset(connection: &Rc<Connection>, _: &Args<'_>) -> Run {
    connection.database.set(ContainerId(0));
    connection.version.set(Version::Resp2);
    connection.no_evict.set(false);
    connection.set_monitor(false);
    connection.replies.set(Replies::On);
    pubsub::forget(connection);
    super::transaction::discard_all(connection);
    connection.authenticated.set(connection.core.shared.settings.password.is_none());
    connection.identity.borrow_mut().name.clear();
    Run::Now(Reply::Simple("RESET"))
}

pub(super) fn select(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    Run::Now(match number::short_integer_or_error(&args[1]) {
        Err(reply) => reply,
        Ok(number) => match u32::try_from(number).ok().filter(|number| *number < DATABASES) {
            None => Reply::error("ERR DB index is out of range"),
            Some(number) => {
                connection.database.set(ContainerId(number));
                Reply::Ok
            }
        },
    })
}

/// Checks name and password; a user without a password takes any.
fn authenticate(connection: &Connection, user: &[u8], password: &[u8]) -> Result<(), Reply> {
    let wanted = connection.core.shared.settings.password.as_ref();
    if user == b"default" && wanted.is_none_or(|wanted| wanted.is(password)) {
        connection.authenticated.set(true);
        return Ok(());
    }
    Err(Reply::error("WRONGPASS invalid username-password pair or user is disabled."))
}

pub(super) fn auth(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    Run::Now(match args.len() {
        2 if connection.core.shared.settings.password.is_none() => Reply::error(
            "ERR AUTH <password> called without any password configured for the default user. \
             Are you sure your configuration is correct?",
        ),
        2 => authenticate(connection, b"default", &args[1]).err().unwrap_or(Reply::Ok),
        3 => authenticate(connection, &args[1], &args[2]).err().unwrap_or(Reply::Ok),
        _ => super::syntax_error(),
    })
}

/// What HELLO asks for.
struct Hello<'a> {
    version: Option<Version>,
    name: Option<&'a [u8]>,
}

fn parse_hello<'a>(connection: &Connection, args: &Args<'a>) -> Result<Hello<'a>, Reply> {
    let mut hello = Hello { version: None, name: None };
    let mut words = args.iter().skip(1);
    if let Some(word) = words.next() {
        hello.version = Some(match number::integer(word) {
            Some(2) => Version::Resp2,
            Some(3) => Version::Resp3,
            Some(_) => return Err(Reply::error("NOPROTO unsupported protocol version")),
            None => return Err(Reply::error("ERR Protocol version is not an integer or out of range")),
        });
    }
    while let Some(word) = words.next() {
        if word.eq_ignore_ascii_case(b"auth")
            && let (Some(user), Some(password)) = (words.next(), words.next())
        {
            authenticate(connection, user, password)?;
        } else if word.eq_ignore_ascii_case(b"setname")
            && let Some(name) = words.next()
        {
            client::check_name(name)?;
            hello.name = Some(name);
        } else {
            return Err(Reply::Error([b"ERR Syntax error in HELLO option '", word, b"'"].concat()));
        }
    }
    Ok(hello)
}

pub(super) fn hello(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    let hello = match parse_hello(connection, args) {
        Ok(hello) => hello,
        Err(reply) => return Run::Now(reply),
    };
    if !connection.authenticated.get() {
        return Run::Now(Reply::error(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> \
             AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol \
             version at the same time",
        ));
    }
    if let Some(name) = hello.name {
        connection.identity.borrow_mut().name = name.to_vec();
    }
    if let Some(version) = hello.version {
        connection.version.set(version);
    }
    let version = if connection.version.get() == Version::Resp3 { 3 } else { 2 };
    let text = |text: &str| Reply::bulk(text);
    Run::Now(Reply::Map(vec![
        (text("server"), text("plimsoll")),
        (text("version"), text(REDIS_VERSION)),
        (text("proto"), Reply::Integer(version)),
        (text("id"), Reply::Integer(connection.id as i64)),
        (text("mode"), text("standalone")),
        (text("role"), text("master")),
        (text("modules"), Reply::Array(Vec::new())),
    ]))
}
