//! GETRANGE and SUBSTR.
//!
//! Invariant: the bytes and the length that the range is reckoned from are of one version.

use super::{Run, number, string};
use crate::keyspace::Keyspace;
use crate::reply::Reply;
use crate::session::Connection;
use plimsoll_kv::{ContainerId, Error, Item, Op, Output, Result};
use plimsoll_resp::Args;
use std::rc::Rc;

pub(super) fn getrange(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    let numbers = number::integer_or_error(&args[2]).and_then(|start| {
        let end = number::integer_or_error(&args[3])?;
        Ok((start, end))
    });
    let (start, end) = match numbers {
        Ok(numbers) => numbers,
        Err(reply) => return Run::Now(reply),
    };
    let (connection, key) = (connection.clone(), args[1].to_vec());
    let future = read(connection, key, start, end);
    // Counted from the end, the length is looked up first.
    if start < 0 || end < 0 { Run::Alone(Box::pin(future)) } else { Run::Overlap(Box::pin(future)) }
}

async fn read(connection: Rc<Connection>, key: Vec<u8>, start: i64, end: i64) -> Reply {
    let container = connection.database.get();
    let found = if start < 0 || end < 0 {
        from_the_end(&connection.keyspace(), container, &key, start, end).await
    } else {
        let count = end.saturating_sub(start).saturating_add(1).max(0) as u64;
        retrieve(&connection.keyspace(), container, &key, (start as u64, count)).await
    };
    string::count_hit(&connection.core, found.is_ok());
    match found {
        Ok(item) => {
            let (first, count) = bounds(start, end, item.length);
            string::range_reply(&connection.core, key, item, first, count)
        }
        Err(Error::NotFound) => Reply::Bulk(Vec::new()),
        Err(error) => Reply::failed(&error),
    }
}

/// First byte and number of bytes of a range of a value, as Redis reckons them.
fn bounds(start: i64, end: i64, length: u64) -> (u64, u64) {
    let from_front = |at: i64| {
        let front = if at < 0 { i128::from(length) + i128::from(at) } else { i128::from(at) };
        front.max(0)
    };
    let (first, last) = (from_front(start), from_front(end).min(i128::from(length) - 1));
    if (start < 0 && end < 0 && start > end) || first > last {
        return (0, 0);
    }
    (first as u64, (last - first + 1) as u64)
}

async fn from_the_end(
    keyspace: &Keyspace,
    container: ContainerId,
    key: &[u8],
    start: i64,
    end: i64,
) -> Result<Item> {
    let look = Op::Exist { container, key: key.to_vec() };
    let Output::Found(mut seen) = keyspace.execute(look).await? else {
        unreachable!("looking at a key gives what was found")
    };
    loop {
        let found = retrieve(keyspace, container, key, bounds(start, end, seen.length)).await?;
        if found.length == seen.length {
            return Ok(found);
        }
        if let Some(upload) = found.upload {
            // It is not what is replied: its pin is given up.
            keyspace.execute(Op::Unpin { upload, key: key.to_vec() }).await?;
        }
        seen = found;
    }
}

async fn retrieve(
    keyspace: &Keyspace,
    container: ContainerId,
    key: &[u8],
    range: (u64, u64),
) -> Result<Item> {
    let op = Op::Retrieve { container, key: key.to_vec(), range: Some(range), pin: true };
    match keyspace.execute(op).await? {
        Output::Found(item) => Ok(item),
        _ => unreachable!("a retrieve gives what it found"),
    }
}

#[cfg(test)]
mod tests {
    use super::bounds;

    #[test]
    fn ranges_are_those_of_redis() {
        for ((start, end, length), expected) in [
            ((0, 3, 15), (0, 4)),
            ((-3, -1, 15), (12, 3)),
            ((0, -1, 15), (0, 15)),
            ((10, 100, 15), (10, 5)),
            ((-100, 2, 15), (0, 3)),
            ((5, 2, 15), (0, 0)),
            ((-1, -3, 15), (0, 0)),
            ((20, 30, 15), (0, 0)),
            ((0, -1, 0), (0, 0)),
            ((0, 0, 0), (0, 0)),
            ((-100, -90, 15), (0, 1)),
            ((i64::MIN, i64::MAX, 15), (0, 15)),
        ] {
            assert_eq!(bounds(start, end, length), expected, "{start} {end} of {length}");
        }
    }
}
