//! RENAME, RENAMENX, COPY.
//!
//! Invariants: the value that is read is the one that is written, with its expiry time; both keys are held
//! meanwhile. Of a long value one part is in memory at a time.

use super::string::{count_hit, value_reply};
use super::transaction::atomically;
use super::{Run, number, places, syntax_error};
use crate::keyspace::Keyspace;
use crate::reply::{Pinned, Reply};
use crate::session::{Connection, Upload};
use crate::transaction::Key;
use plimsoll_kv::transaction::Held;
use plimsoll_kv::{Condition, ContainerId, Error, Expiry, Op, Output, Result, Value};
use plimsoll_resp::Args;
use std::rc::Rc;

/// What a copy does.
#[derive(Clone, Copy)]
struct Plan {
    /// The key that is there goes.
    replaces: bool,
    /// The key that is copied goes.
    moves: bool,
}

/// What came of it.
enum Copied {
    Done,
    /// There is nothing to copy.
    Absent,
    /// There is a key already.
    Refused,
}

pub(super) fn rename(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    let (from, to) = keys(connection.database.get(), args);
    run(connection, from, to, Plan { replaces: true, moves: true }, |copied| match copied {
        Copied::Done | Copied::Refused => Reply::Ok,
        Copied::Absent => Reply::error("ERR no such key"),
    })
}

pub(super) fn renamenx(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    let (from, to) = keys(connection.database.get(), args);
    run(connection, from, to, Plan { replaces: false, moves: true }, |copied| match copied {
        Copied::Done => Reply::Integer(1),
        Copied::Refused => Reply::Integer(0),
        Copied::Absent => Reply::error("ERR no such key"),
    })
}

pub(super) fn copy(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    let mut plan = Plan { replaces: false, moves: false };
    let (from, mut to) = keys(connection.database.get(), args);
    let mut words = args.iter().skip(3);
    while let Some(word) = words.next() {
        if word.eq_ignore_ascii_case(b"replace") {
            plan.replaces = true;
            continue;
        }
        let number = words.next().filter(|_| word.eq_ignore_ascii_case(b"db"));
        let Some(number) = number else { return Run::Now(syntax_error()) };
        match (number::short_integer_or_error(number), places::database_named(number)) {
            (Err(reply), _) => return Run::Now(reply),
            (Ok(_), None) => return Run::Now(Reply::error("ERR DB index is out of range")),
            (Ok(_), Some(database)) => to.0 = database,
        }
    }
    if from == to {
        return Run::Now(Reply::error("ERR source and destination objects are the same"));
    }
    run(connection, from, to, plan, |copied| match copied {
        Copied::Done => Reply::Integer(1),
        Copied::Absent | Copied::Refused => Reply::Integer(0),
    })
}

/// The database that a COPY names, if it names one.
pub(super) fn database_of_copy(args: &Args<'_>) -> Option<ContainerId> {
    let place = (3..args.len()).rfind(|place| args[*place].eq_ignore_ascii_case(b"db"))?;
    places::database_named(args.get(place + 1)?)
}

fn keys(database: ContainerId, args: &Args<'_>) -> (Key, Key) {
    ((database, args[1].to_vec()), (database, args[2].to_vec()))
}

fn run(connection: &Rc<Connection>, from: Key, to: Key, plan: Plan, reply: fn(Copied) -> Reply) -> Run {
    let held = Held::keys(vec![from.clone(), to.clone()]);
    atomically(connection, held, move |keyspace| async move {
        Ok(reply(copied(&keyspace, from, to, plan).await?))
    })
}

async fn copied(keyspace: &Keyspace, from: Key, to: Key, plan: Plan) -> Result<Copied> {
    let read = Op::retrieve_whole(from.0, &from.1);
    let found = keyspace.execute(read).await;
    if !plan.moves {
        count_hit(keyspace.core(), found.is_ok());
    }
    let item = match found {
        Ok(Output::Found(item)) => item,
        Ok(_) => unreachable!("a retrieve gives what it found"),
        Err(Error::NotFound) => return Ok(Copied::Absent),
        Err(error) => return Err(error),
    };
    let expiry = item.expiry_ms.map_or(Expiry::Never, Expiry::At);
    // A long value stays pinned while it is copied.
    let value = value_reply(keyspace.core(), from.1.clone(), item);
    if from == to {
        return Ok(Copied::Refused);
    }
    if !plan.replaces {
        match keyspace.execute(Op::Exist { container: to.0, key: to.1.clone() }).await {
            Ok(_) => return Ok(Copied::Refused),
            Err(Error::NotFound) => {}
            Err(error) => return Err(error),
        }
    }
    let (value, upload) = match value {
        Reply::Bulk(bytes) => (bytes.into(), None),
        Reply::Parts(pinned) => {
            let upload = copy_parts(keyspace, &pinned, &to).await?;
            (Value::Upload(upload.id), Some(upload))
        }
        _ => unreachable!("a value is whole or in parts"),
    };
    let condition = Condition::None;
    let (container, key) = to;
    let store = Op::Store {
        container,
        key,
        value,
        condition,
        expiry,
        retain: false,
        want_previous: false,
        form: None,
    };
    keyspace.execute(store).await?;
    if let Some(upload) = upload {
        upload.stored();
    }
    if plan.moves {
        keyspace.execute(Op::Delete { container: from.0, key: from.1, condition }).await?;
    }
    Ok(Copied::Done)
}

/// Writes the parts of a value anew, for another key.
async fn copy_parts(keyspace: &Keyspace, from: &Pinned, to: &Key) -> Result<Upload> {
    let upload = Upload::begin(keyspace, to.0, &to.1, from.length, None).await?;
    let part_bytes = keyspace.core().volume.geometry().part_bytes as u64;
    for part in 0..from.length.div_ceil(part_bytes) {
        upload.write(keyspace.part(from, part as u32).await?).await?;
    }
    Ok(upload)
}
