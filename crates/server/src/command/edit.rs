//! INCR and its family, APPEND, SETRANGE: changes that depend on what the key holds.
//!
//! Invariants: the device makes the change while nobody else writes the key; a value that is longer than a
//! record is written anew, part by part, in bounded memory ([`super::rewrite`]). Numbers overlap like other
//! stores; what may become such a rewriting runs alone.

use super::{Run, number, rewrite};
use crate::reply::Reply;
use crate::session::Connection;
use plimsoll_kv::limits::VALUE_BYTES_MAX;
use plimsoll_kv::{Condition, ContainerId, Edit, EditError, Error, Expiry, Op, Output, Value, edit};
use plimsoll_resp::Args;
use std::rc::Rc;

pub(super) fn incr(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    add(connection, &args[1], 1)
}

pub(super) fn decr(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    add(connection, &args[1], -1)
}

pub(super) fn incrby(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    match number::integer_or_error(&args[2]) {
        Ok(amount) => add(connection, &args[1], amount),
        Err(reply) => Run::Now(reply),
    }
}

pub(super) fn decrby(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    match number::integer_or_error(&args[2]).map(i64::checked_neg) {
        Ok(Some(amount)) => add(connection, &args[1], amount),
        Ok(None) => Run::Now(Reply::error("ERR decrement would overflow")),
        Err(reply) => Run::Now(reply),
    }
}

fn add(connection: &Rc<Connection>, key: &[u8], amount: i64) -> Run {
    number_edit(connection, key, Edit::Add(amount), EditError::NotAnInteger, |bytes| {
        Reply::Integer(edit::integer(&bytes).expect("the sum of integers is one"))
    })
}

/// INCRBY under a condition; nil if it does not hold.
pub(super) fn add_if(connection: &Rc<Connection>, key: &[u8], amount: &[u8], condition: Condition) -> Run {
    let amount = match number::integer_or_error(amount) {
        Ok(amount) => amount,
        Err(reply) => return Run::Now(reply),
    };
    let (keyspace, container) = (connection.keyspace(), connection.database.get());
    let mut op = edit_op(container, key.to_vec(), Edit::Add(amount));
    if let Op::Store { condition: asked, .. } = &mut op {
        *asked = condition;
    }
    Run::Overlap(Box::pin(async move {
        match keyspace.execute(op).await {
            Ok(Output::Edited { bytes, .. }) => {
                Reply::Integer(edit::integer(&bytes).expect("the sum of integers is one"))
            }
            Ok(_) => unreachable!("an edit gives what came of it"),
            Err(Error::NotFound) => Reply::Null,
            Err(Error::ValueTooLong) => Reply::failed(&Error::Edit(EditError::NotAnInteger)),
            Err(error) => Reply::failed(&error),
        }
    }))
}

pub(super) fn incrbyfloat(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    match edit::float(&args[2]) {
        Some(amount) => {
            number_edit(connection, &args[1], Edit::AddFloat(amount), EditError::NotAFloat, Reply::Bulk)
        }
        None => Run::Now(Reply::failed(&Error::Edit(EditError::NotAFloat))),
    }
}

fn number_edit(
    connection: &Rc<Connection>,
    key: &[u8],
    edit: Edit,
    of_long: EditError,
    reply: fn(Vec<u8>) -> Reply,
) -> Run {
    let (keyspace, op) = (connection.keyspace(), edit_op(connection.database.get(), key.to_vec(), edit));
    Run::Overlap(Box::pin(async move {
        match keyspace.execute(op).await {
            Ok(Output::Edited { bytes, .. }) => reply(bytes),
            Ok(_) => unreachable!("an edit gives what came of it"),
            // A value so long is no number.
            Err(Error::ValueTooLong) => Reply::failed(&Error::Edit(of_long)),
            Err(error) => Reply::failed(&error),
        }
    }))
}

fn edit_op(container: ContainerId, key: Vec<u8>, edit: Edit) -> Op {
    Op::Store {
        container,
        key,
        value: Value::Edit(edit),
        condition: Condition::None,
        expiry: Expiry::Keep,
        retain: false,
        want_previous: false,
        form: None,
    }
}

pub(super) fn append(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    bytes_edit(connection, &args[1], Edit::Append(args[2].to_vec()))
}

pub(super) fn setrange(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    let offset = match number::integer_or_error(&args[2]) {
        Ok(offset) => offset,
        Err(reply) => return Run::Now(reply),
    };
    let Ok(offset) = u64::try_from(offset) else {
        return Run::Now(Reply::error("ERR offset is out of range"));
    };
    if args[3].is_empty() {
        return super::string::strlen(connection, args);
    }
    if offset.saturating_add(args[3].len() as u64) > VALUE_BYTES_MAX {
        return Run::Now(Reply::error(rewrite::TOO_LONG));
    }
    bytes_edit(connection, &args[1], Edit::WriteAt { offset, bytes: args[3].to_vec() })
}

fn bytes_edit(connection: &Rc<Connection>, key: &[u8], edit: Edit) -> Run {
    let (connection, key) = (connection.clone(), key.to_vec());
    Run::Alone(Box::pin(async move {
        let op = edit_op(connection.database.get(), key.clone(), edit.clone());
        match connection.keyspace().execute(op).await {
            Ok(Output::Edited { bytes, .. }) => Reply::Integer(bytes.len() as i64),
            Ok(_) => unreachable!("an edit gives what came of it"),
            Err(Error::ValueTooLong) => rewrite::rewrite(&connection, key, &edit).await,
            Err(error) => Reply::failed(&error),
        }
    }))
}
