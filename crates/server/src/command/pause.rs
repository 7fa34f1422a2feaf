//! CLIENT PAUSE, UNPAUSE, REPLY, UNBLOCK, and the little there is of TRACKING.
//!
//! Invariants: when PAUSE is answered every core pauses; what is said of tracking is true: no client is
//! told of changed keys, and none is told that it will be.

use super::{Run, number, syntax_error, wrong_use};
use crate::reply::Reply;
use crate::session::{Connection, Replies};
use crate::volume::Question;
use plimsoll_resp::Args;
use std::rc::Rc;

fn ask_all(connection: &Rc<Connection>, question: Question) -> Run {
    let volume = connection.core.volume.clone();
    Run::Alone(Box::pin(async move {
        volume.ask_all(question).await;
        Reply::Ok
    }))
}

pub(super) fn pause(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    let holds_all = match args.get(3) {
        _ if args.len() > 4 => return Run::Now(wrong_use(args)),
        None => true,
        Some(mode) if mode.eq_ignore_ascii_case(b"all") => true,
        Some(mode) if mode.eq_ignore_ascii_case(b"write") => false,
        Some(_) => return Run::Now(Reply::error("ERR CLIENT PAUSE mode must be WRITE or ALL")),
    };
    match number::integer(&args[2]).map(u64::try_from) {
        None => Run::Now(Reply::error("ERR timeout is not an integer or out of range")),
        Some(Err(_)) => Run::Now(Reply::error("ERR timeout is negative")),
        Some(Ok(for_ms)) => ask_all(connection, Question::Pause { for_ms, holds_all }),
    }
}

pub(super) fn unpause(connection: &Rc<Connection>, _: &Args<'_>) -> Run {
    ask_all(connection, Question::Unpause)
}

pub(super) fn reply(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    let mode = &args[2];
    if mode.eq_ignore_ascii_case(b"on") {
        connection.replies.set(Replies::On);
    } else if mode.eq_ignore_ascii_case(b"off") {
        connection.replies.set(Replies::Off);
    } else if !mode.eq_ignore_ascii_case(b"skip") {
        return Run::Now(syntax_error());
    } else if connection.replies.get() != Replies::Off {
        connection.replies.set(Replies::SkipNext(2));
    }
    Run::Now(Reply::Ok)
}

/// No command here waits for another client, so that nobody can be let go.
pub(super) fn unblock(_: &Rc<Connection>, args: &Args<'_>) -> Run {
    let is_known = |word: &[u8]| word.eq_ignore_ascii_case(b"timeout") || word.eq_ignore_ascii_case(b"error");
    match args.get(3) {
        _ if args.len() > 4 => return Run::Now(wrong_use(args)),
        Some(word) if !is_known(word) => {
            return Run::Now(Reply::error("ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR"));
        }
        _ => {}
    }
    Run::Now(number::integer_or_error(&args[2]).map_or_else(|reply| reply, |_| Reply::Integer(0)))
}

pub(super) fn tracking(_: &Rc<Connection>, args: &Args<'_>) -> Run {
    let word = &args[2];
    let is_option = |word: &[u8]| {
        let options: [&[u8]; 4] = [b"bcast", b"optin", b"optout", b"noloop"];
        options.iter().any(|option| word.eq_ignore_ascii_case(option))
    };
    let mut further = args.iter().skip(3);
    while let Some(option) = further.next() {
        let takes_value = option.eq_ignore_ascii_case(b"redirect") || option.eq_ignore_ascii_case(b"prefix");
        if !(is_option(option) || takes_value && further.next().is_some()) {
            return Run::Now(syntax_error());
        }
    }
    Run::Now(if word.eq_ignore_ascii_case(b"off") {
        Reply::Ok
    } else if word.eq_ignore_ascii_case(b"on") {
        Reply::error("ERR CLIENT TRACKING is not supported: this server does not tell of changed keys")
    } else {
        syntax_error()
    })
}

pub(super) fn caching(_: &Rc<Connection>, _: &Args<'_>) -> Run {
    Run::Now(Reply::error(
        "ERR CLIENT CACHING can be called only when the client is in tracking mode with OPTIN or OPTOUT mode \
         enabled",
    ))
}

pub(super) fn getredir(_: &Rc<Connection>, _: &Args<'_>) -> Run {
    Run::Now(Reply::Integer(-1))
}

pub(super) fn trackinginfo(_: &Rc<Connection>, _: &Args<'_>) -> Run {
    Run::Now(Reply::Map(vec![
        (Reply::bulk("flags"), Reply::Set(vec![Reply::bulk("off")])),
        (Reply::bulk("redirect"), Reply::Integer(-1)),
        (Reply::bulk("prefixes"), Reply::Array(Vec::new())),
    ]))
}
