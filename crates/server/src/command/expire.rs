//! EXPIRE and its kin, TTL and its kin, PERSIST.
//!
//! Invariants: without a flag one operation does it. With NX, XX, GT or LT, and for PERSIST, the
//! key is looked at first and the change asks for the version seen, again until nobody came
//! between. A time in the past deletes the key, as in Redis.

use super::{Run, number};
use crate::reply::Reply;
use crate::session::Connection;
use plimsoll_kv::{Condition, ContainerId, Error, Expiry, Item, Op, Output};
use plimsoll_resp::Args;
use std::rc::Rc;

/// When an expiry is to happen only under a condition.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Flags {
    nx: bool,
    xx: bool,
    gt: bool,
    lt: bool,
}

impl Flags {
    fn parse(args: &Args<'_>) -> Result<Flags, Reply> {
        let mut flags = Flags::default();
        for word in args.iter().skip(3) {
            match word {
                word if word.eq_ignore_ascii_case(b"nx") => flags.nx = true,
                word if word.eq_ignore_ascii_case(b"xx") => flags.xx = true,
                word if word.eq_ignore_ascii_case(b"gt") => flags.gt = true,
                word if word.eq_ignore_ascii_case(b"lt") => flags.lt = true,
                word => return Err(Reply::Error([b"ERR Unsupported option ", word].concat())),
            }
        }
        if flags.nx && (flags.xx || flags.gt || flags.lt) {
            let text = "ERR NX and XX, GT or LT options at the same time are not compatible";
            return Err(Reply::error(text));
        }
        if flags.gt && flags.lt {
            return Err(Reply::error("ERR GT and LT options at the same time are not compatible"));
        }
        Ok(flags)
    }

    fn allow(self, before_ms: Option<u64>, at_ms: i64) -> bool {
        let before_ms = before_ms.map(|ms| i64::try_from(ms).unwrap_or(i64::MAX));
        !(self.nx && before_ms.is_some()
            || self.xx && before_ms.is_none()
            || self.gt && before_ms.is_none_or(|before_ms| at_ms <= before_ms)
            || self.lt && before_ms.is_some_and(|before_ms| at_ms >= before_ms))
    }
}

pub(super) fn expire(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    change(connection, args, ("expire", 1000, true))
}

pub(super) fn pexpire(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    change(connection, args, ("pexpire", 1, true))
}

pub(super) fn expireat(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    change(connection, args, ("expireat", 1000, false))
}

pub(super) fn pexpireat(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    change(connection, args, ("pexpireat", 1, false))
}

/// The command's name, milliseconds of its unit, and whether it counts from now.
type Unit = (&'static str, i64, bool);

fn at_ms(amount: &[u8], wall_ms: i64, (name, unit_ms, relative): Unit) -> Result<i64, Reply> {
    let amount = number::integer_or_error(amount)?;
    let ms = amount.checked_mul(unit_ms);
    let at_ms = if relative { ms.and_then(|ms| ms.checked_add(wall_ms)) } else { ms };
    at_ms.ok_or_else(|| Reply::error(format!("ERR invalid expire time in '{name}' command")))
}

fn change(connection: &Rc<Connection>, args: &Args<'_>, unit: Unit) -> Run {
    let wall_ms = i64::try_from(connection.core.reactor.wall_ms()).unwrap_or(i64::MAX);
    let parsed = Flags::parse(args).and_then(|flags| Ok((flags, at_ms(&args[2], wall_ms, unit)?)));
    let (flags, at_ms) = match parsed {
        Ok(parsed) => parsed,
        Err(reply) => return Run::Now(reply),
    };
    let change = Change {
        container: connection.database.get(),
        key: args[1].to_vec(),
        expiry: u64::try_from(at_ms).ok().filter(|_| at_ms > wall_ms).map(Expiry::At),
    };
    if flags != Flags::default() {
        return Run::Alone(change.when(connection, move |item| flags.allow(item.expiry_ms, at_ms)));
    }
    let keyspace = connection.keyspace();
    Run::Overlap(Box::pin(async move {
        match keyspace.execute(change.op(Condition::None)).await {
            Ok(_) => Reply::Integer(1),
            Err(Error::NotFound) => Reply::Integer(0),
            Err(error) => Reply::failed(&error),
        }
    }))
}

pub(super) fn persist(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    let container = connection.database.get();
    let change = Change { container, key: args[1].to_vec(), expiry: Some(Expiry::Never) };
    Run::Alone(change.when(connection, |item| item.expiry_ms.is_some()))
}

/// A change of one key's expiry; without one, its deletion.
struct Change {
    container: ContainerId,
    key: Vec<u8>,
    expiry: Option<Expiry>,
}

impl Change {
    fn op(&self, condition: Condition) -> Op {
        let (container, key) = (self.container, self.key.clone());
        match self.expiry {
            Some(expiry) => Op::SetExpiry { container, key, expiry, condition },
            None => Op::Delete { container, key, condition },
        }
    }

    /// Does it if the key is as `allow` wants it.
    fn when(
        self,
        connection: &Rc<Connection>,
        allow: impl Fn(&Item) -> bool + 'static,
    ) -> plimsoll_kv::LocalFuture<Reply> {
        let keyspace = connection.keyspace();
        Box::pin(async move {
            loop {
                let look = Op::Exist { container: self.container, key: self.key.clone() };
                let item = match keyspace.execute(look).await {
                    Ok(Output::Found(item)) => item,
                    Ok(_) => unreachable!("looking at a key gives what was found"),
                    Err(Error::NotFound) => return Reply::Integer(0),
                    Err(error) => return Reply::failed(&error),
                };
                if !allow(&item) {
                    return Reply::Integer(0);
                }
                match keyspace.execute(self.op(Condition::IfVersion(item.version))).await {
                    Ok(_) => return Reply::Integer(1),
                    // Somebody came between: look again.
                    Err(Error::VersionMismatch | Error::NotFound) => {}
                    Err(error) => return Reply::failed(&error),
                }
            }
        })
    }
}

pub(super) fn ttl(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    remaining(connection, args, |left_ms| left_ms.saturating_add(500) / 1000)
}

pub(super) fn pttl(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    remaining(connection, args, |left_ms| left_ms)
}

fn remaining(connection: &Rc<Connection>, args: &Args<'_>, round: fn(i64) -> i64) -> Run {
    let (keyspace, container) = (connection.keyspace(), connection.database.get());
    let (key, connection) = (args[1].to_vec(), connection.clone());
    Run::Overlap(Box::pin(async move {
        let result = keyspace.execute(Op::Exist { container, key }).await;
        super::string::count_hit(&connection.core, result.is_ok());
        match result {
            Ok(Output::Found(Item { expiry_ms: Some(at_ms), .. })) => {
                let left_ms = at_ms.saturating_sub(keyspace.core().reactor.wall_ms());
                Reply::Integer(round(i64::try_from(left_ms).unwrap_or(i64::MAX - 500)))
            }
            Ok(_) => Reply::Integer(-1),
            Err(Error::NotFound) => Reply::Integer(-2),
            Err(error) => Reply::failed(&error),
        }
    }))
}

pub(super) fn expiretime(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    super::keys::look(connection, args, |found| expiry(found, |at_ms| at_ms.saturating_add(500) / 1000))
}

pub(super) fn pexpiretime(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    super::keys::look(connection, args, |found| expiry(found, |at_ms| at_ms))
}

fn expiry(found: Option<Item>, round: fn(u64) -> u64) -> Reply {
    Reply::Integer(match found.map(|item| item.expiry_ms) {
        None => -2,
        Some(None) => -1,
        Some(Some(at_ms)) => i64::try_from(round(at_ms)).unwrap_or(i64::MAX),
    })
}
