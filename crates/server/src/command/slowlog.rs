//! SLOWLOG: the commands that took long, over all cores.
//!
//! Invariant: an entry has the six fields of Redis, for clients read no further; the time at the device
//! is a seventh for those who ask for it.

use super::{Run, number};
use crate::reply::Reply;
use crate::session::Connection;
use crate::slow_log::{self, Entry};
use crate::volume::Question;
use plimsoll_resp::Args;
use std::rc::Rc;

/// Entries that SLOWLOG GET gives unless it is told how many.
const COUNT_DEFAULT: usize = 10;

fn describe(entry: &Entry, with_device: bool) -> Reply {
    let words = entry.words().into_iter().map(Reply::Bulk);
    let mut fields = vec![
        Reply::Integer(entry.id as i64),
        Reply::Integer(entry.time_s as i64),
        Reply::Integer(entry.duration_us as i64),
        Reply::Array(words.collect()),
        Reply::bulk(&entry.peer),
        Reply::bulk(&entry.name),
    ];
    if with_device {
        fields.push(Reply::Integer(entry.device_us as i64));
    }
    Reply::Array(fields)
}

/// How many entries are asked for, and whether with the time at the device.
fn parse(args: &Args<'_>) -> Result<(usize, bool), Reply> {
    let wrong = || {
        let name: &[u8] = &args[1];
        let text: [&[u8]; 3] =
            [b"ERR unknown subcommand or wrong number of arguments for '", name, b"'. Try SLOWLOG HELP."];
        Reply::Error(text.concat())
    };
    let with_device = match (args.len(), args.get(3)) {
        (2 | 3, _) => false,
        (4, Some(word)) if word.eq_ignore_ascii_case(b"withdevice") => true,
        _ => return Err(wrong()),
    };
    let Some(word) = args.get(2) else { return Ok((COUNT_DEFAULT, with_device)) };
    match number::integer(word) {
        Some(-1) => Ok((usize::MAX, with_device)),
        Some(count) if count >= 0 => Ok((count as usize, with_device)),
        _ => Err(Reply::error("ERR count should be greater than or equal to -1")),
    }
}

pub(super) fn get(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    let (count, with_device) = match parse(args) {
        Ok(asked) => asked,
        Err(reply) => return Run::Now(reply),
    };
    let core = connection.core.clone();
    Run::Alone(Box::pin(async move {
        let count = count.min(slow_log::length_max(&core.shared));
        let entries = slow_log::merge(&core.volume.ask_all(Question::SlowLog(count)).await, count);
        Reply::Array(entries.iter().map(|entry| describe(entry, with_device)).collect())
    }))
}

pub(super) fn len(connection: &Rc<Connection>, _: &Args<'_>) -> Run {
    let core = connection.core.clone();
    Run::Alone(Box::pin(async move {
        let sum = super::pubsub::sum(&core.volume.ask_all(Question::SlowLogLength).await);
        Reply::Integer(sum.min(slow_log::length_max(&core.shared) as i64))
    }))
}

pub(super) fn reset(connection: &Rc<Connection>, _: &Args<'_>) -> Run {
    let volume = connection.core.volume.clone();
    Run::Alone(Box::pin(async move {
        volume.ask_all(Question::ResetSlowLog).await;
        Reply::Ok
    }))
}
