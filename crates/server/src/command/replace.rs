//! GETDEL, GETEX, GETSET, SETNX, SETEX, PSETEX: reading a value and changing its key in one.
//!
//! Invariants:
//! * the value is read under a pin and the change asks for its version, again until nobody came between: so
//!   what is returned is exactly what was deleted or kept, however long it is;
//! * a value of which a part cannot be read is not deleted: its reply leaves after the delete.

use super::set::{self, Options};
use super::{Run, string, syntax_error};
use crate::reply::Reply;
use crate::session::Connection;
use crate::transaction::Key;
use plimsoll_kv::{Condition, Error, Expiry, LocalFuture, Op, Output};
use plimsoll_resp::{Args, CommandName};
use std::rc::Rc;

pub(super) fn getset(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    set::store(connection, &args[1], args.keep(2), Options { get: true, ..Options::PLAIN })
}

/// SET NX with the reply of an older time.
pub(super) fn setnx(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    let options = Options { condition: Condition::MustNotExist, ..Options::PLAIN };
    let told = |stored: LocalFuture<Reply>| -> LocalFuture<Reply> {
        Box::pin(async move {
            match stored.await {
                Reply::Ok => Reply::Integer(1),
                Reply::Null => Reply::Integer(0),
                refused => refused,
            }
        })
    };
    match set::store(connection, &args[1], args.keep(2), options) {
        Run::Overlap(stored) => Run::Overlap(told(stored)),
        Run::Alone(stored) => Run::Alone(told(stored)),
        _ => unreachable!("a store waits for its device"),
    }
}

pub(super) fn setex(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    set_until(connection, args, ("setex", 1000))
}

pub(super) fn psetex(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    set_until(connection, args, ("psetex", 1))
}

fn set_until(connection: &Rc<Connection>, args: &Args<'_>, (name, unit_ms): (&'static str, u64)) -> Run {
    let wall_ms = connection.core.reactor.wall_ms();
    match set::expiry_ms(name, &args[2], unit_ms, wall_ms) {
        Ok(at_ms) => set::store(
            connection,
            &args[1],
            args.keep(3),
            Options { expiry: Expiry::At(at_ms), ..Options::PLAIN },
        ),
        Err(reply) => Run::Now(reply),
    }
}

pub(super) fn getdel(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    let delete = |(container, key), condition, _| Some(Op::Delete { container, key, condition });
    Run::Alone(read_and(connection, &args[1], delete))
}

pub(super) fn getex(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    let expiry = match parse_getex(connection.core.reactor.wall_ms(), args) {
        Ok(None) => return string::get(connection, args),
        Ok(Some(Ok(expiry))) => expiry,
        Ok(Some(Err(refusal))) => return Run::Alone(refuse_unless_absent(connection, &args[1], refusal)),
        Err(reply) => return Run::Now(reply),
    };
    let past = matches!(expiry, Expiry::At(at_ms) if at_ms <= connection.core.reactor.wall_ms());
    Run::Alone(read_and(connection, &args[1], move |(container, key), condition, expiry_ms| {
        if past {
            return Some(Op::Delete { container, key, condition });
        }
        // What does not expire is not changed by PERSIST, nor for those who watch it.
        let changes = expiry != Expiry::Never || expiry_ms.is_some();
        changes.then_some(Op::SetExpiry { container, key, expiry, condition })
    }))
}

/// What the option of a GETEX asks for, if it has one; it may stand there several times, and the last one
/// counts. A time that is none is refused only if the key is there, as in Redis.
fn parse_getex(wall_ms: u64, args: &Args<'_>) -> Result<Option<Result<Expiry, Reply>>, Reply> {
    let (mut words, mut asked) = (args.iter().skip(2), None::<(CommandName, &[u8])>);
    while let Some(word) = words.next() {
        let name = CommandName::fold(word).ok_or_else(syntax_error)?;
        let amount = match name.as_bytes() {
            b"PERSIST" => b"".as_slice(),
            b"EX" | b"PX" | b"EXAT" | b"PXAT" => words.next().ok_or_else(syntax_error)?,
            _ => return Err(syntax_error()),
        };
        if asked.is_some_and(|(other, _)| other.as_bytes() != name.as_bytes()) {
            return Err(syntax_error());
        }
        asked = Some((name, amount));
    }
    let Some((name, amount)) = asked else { return Ok(None) };
    let (unit_ms, base_ms) = match name.as_bytes() {
        b"PERSIST" => return Ok(Some(Ok(Expiry::Never))),
        b"EX" => (1000, wall_ms),
        b"PX" => (1, wall_ms),
        b"EXAT" => (1000, 0),
        _ => (1, 0),
    };
    Ok(Some(set::expiry_ms("getex", amount, unit_ms, base_ms).map(Expiry::At)))
}

/// Refuses a command, or says that its key is absent.
fn refuse_unless_absent(connection: &Rc<Connection>, key: &[u8], refusal: Reply) -> LocalFuture<Reply> {
    let (connection, container, key) = (connection.clone(), connection.database.get(), key.to_vec());
    Box::pin(async move {
        match connection.keyspace().execute(Op::Exist { container, key }).await {
            Ok(_) => refusal,
            Err(Error::NotFound) => Reply::Null,
            Err(error) => Reply::failed(&error),
        }
    })
}

/// Replies with a key's value and does something to the key that held it.
fn read_and(
    connection: &Rc<Connection>,
    key: &[u8],
    op: impl Fn(Key, Condition, Option<u64>) -> Option<Op> + 'static,
) -> LocalFuture<Reply> {
    let (connection, key) = (connection.clone(), key.to_vec());
    Box::pin(async move {
        let (keyspace, container) = (connection.keyspace(), connection.database.get());
        loop {
            let read = Op::retrieve_whole(container, &key);
            let found = keyspace.execute(read).await;
            string::count_hit(&connection.core, found.is_ok());
            let (value, (version, expiry_ms)) = match found {
                Ok(Output::Found(item)) => {
                    let stamps = (item.version, item.expiry_ms);
                    (string::value_reply(&connection.core, key.clone(), item), stamps)
                }
                Ok(_) => unreachable!("a retrieve gives what it found"),
                Err(Error::NotFound) => return Reply::Null,
                Err(error) => return Reply::failed(&error),
            };
            let Some(op) = op((container, key.clone()), Condition::IfVersion(version), expiry_ms) else {
                return value;
            };
            if matches!(op, Op::Delete { .. })
                && let Err(error) = keyspace.prove(&value).await
            {
                return Reply::failed(&error);
            }
            match keyspace.execute(op).await {
                Ok(_) => return value,
                // Somebody came between: look again.
                Err(Error::VersionMismatch | Error::NotFound) => {}
                Err(error) => return Reply::failed(&error),
            }
        }
    })
}
