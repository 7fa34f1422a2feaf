//! MSET and MSETNX: many keys stored as one.

use super::Run;
use super::transaction::atomically;
use crate::keyspace::Keyspace;
use crate::reply::Reply;
use crate::session::Connection;
use crate::transaction::Key;
use plimsoll_kv::transaction::Held;
use plimsoll_kv::{Condition, Error, Expiry, Op, Result};
use plimsoll_resp::Args;
use std::rc::Rc;

/// Keys and values.
type Pairs = Vec<(Key, Vec<u8>)>;

fn pairs(connection: &Connection, args: &Args<'_>, name: &str) -> std::result::Result<Pairs, Reply> {
    if args.len().is_multiple_of(2) {
        return Err(super::wrong_arity(name, None));
    }
    let database = connection.database.get();
    let pair = |place: usize| ((database, args[place].to_vec()), args[place + 1].to_vec());
    Ok((1..args.len()).step_by(2).map(pair).collect())
}

pub(super) fn mset(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    match pairs(connection, args, "mset") {
        Ok(pairs) => atomically(connection, held(&pairs), |keyspace| async move {
            store(&keyspace, pairs).await?;
            Ok(Reply::Ok)
        }),
        Err(reply) => Run::Now(reply),
    }
}

pub(super) fn msetnx(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    match pairs(connection, args, "msetnx") {
        Ok(pairs) => atomically(connection, held(&pairs), |keyspace| async move {
            for ((container, key), _) in &pairs {
                match keyspace.execute(Op::Exist { container: *container, key: key.clone() }).await {
                    Ok(_) => return Ok(Reply::Integer(0)),
                    Err(Error::NotFound) => {}
                    Err(error) => return Err(error),
                }
            }
            store(&keyspace, pairs).await?;
            Ok(Reply::Integer(1))
        }),
        Err(reply) => Run::Now(reply),
    }
}

fn held(pairs: &Pairs) -> Held {
    Held::keys(pairs.iter().map(|(key, _)| key.clone()).collect())
}

/// Stores pairs in their order: the last of a key stays.
async fn store(keyspace: &Keyspace, pairs: Pairs) -> Result<()> {
    for ((container, key), value) in pairs {
        let op = Op::Store {
            container,
            key,
            value: value.into(),
            condition: Condition::None,
            expiry: Expiry::Never,
            retain: false,
            want_previous: false,
            form: None,
        };
        keyspace.execute(op).await?;
    }
    Ok(())
}
