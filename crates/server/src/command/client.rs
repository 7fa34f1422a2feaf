//! CLIENT and its subcommands.

use super::{Run, number, syntax_error};
use crate::limits::CLIENT_NAME_BYTES_MAX;
use crate::reply::Reply;
use crate::session::Connection;
use crate::volume::Question;
use plimsoll_resp::Args;
use std::rc::Rc;

/// Refuses what would break the lines of CLIENT LIST.
fn is_printable(word: &[u8]) -> bool {
    word.iter().all(|byte| (b'!'..=b'~').contains(byte))
}

fn check_length(name: &[u8]) -> Result<(), Reply> {
    if name.len() <= CLIENT_NAME_BYTES_MAX {
        return Ok(());
    }
    Err(Reply::error(format!("ERR Client names have at most {CLIENT_NAME_BYTES_MAX} bytes")))
}

pub(super) fn check_name(name: &[u8]) -> Result<(), Reply> {
    check_length(name)?;
    if is_printable(name) {
        return Ok(());
    }
    Err(Reply::error("ERR Client names cannot contain spaces, newlines or special characters."))
}

pub(super) fn id(connection: &Rc<Connection>, _: &Args<'_>) -> Run {
    Run::Now(Reply::Integer(connection.id as i64))
}

pub(super) fn getname(connection: &Rc<Connection>, _: &Args<'_>) -> Run {
    let identity = connection.identity.borrow();
    Run::Now(if identity.name.is_empty() { Reply::Null } else { Reply::bulk(&identity.name) })
}

pub(super) fn setname(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    Run::Now(match check_name(&args[2]) {
        Err(reply) => reply,
        Ok(()) => {
            connection.identity.borrow_mut().name = args[2].to_vec();
            Reply::Ok
        }
    })
}

pub(super) fn setinfo(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    let mut identity = connection.identity.borrow_mut();
    let (option, value) = (&args[2], &args[3]);
    let (name, field) = if option.eq_ignore_ascii_case(b"lib-name") {
        ("lib-name", &mut identity.library)
    } else if option.eq_ignore_ascii_case(b"lib-ver") {
        ("lib-ver", &mut identity.library_version)
    } else {
        return Run::Now(Reply::Error([b"ERR Unrecognized option '", option, b"'"].concat()));
    };
    if !is_printable(value) {
        let text = format!("ERR {name} cannot contain spaces, newlines or special characters.");
        return Run::Now(Reply::error(text));
    }
    if let Err(reply) = check_length(value) {
        return Run::Now(reply);
    }
    *field = value.to_vec();
    Run::Now(Reply::Ok)
}

fn switch(word: &[u8]) -> Option<bool> {
    if word.eq_ignore_ascii_case(b"on") {
        return Some(true);
    }
    word.eq_ignore_ascii_case(b"off").then_some(false)
}

pub(super) fn no_evict(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    Run::Now(match switch(&args[2]) {
        None => syntax_error(),
        Some(on) => {
            connection.no_evict.set(on);
            Reply::Ok
        }
    })
}

/// Nothing here remembers when a key was touched, so that there is nothing to switch.
pub(super) fn no_touch(_: &Rc<Connection>, args: &Args<'_>) -> Run {
    Run::Now(switch(&args[2]).map_or_else(syntax_error, |_| Reply::Ok))
}

pub(super) fn info(connection: &Rc<Connection>, _: &Args<'_>) -> Run {
    Run::Now(Reply::Text(connection.describe(connection.core.reactor.now_ns())))
}

/// Which connections CLIENT LIST is to show.
enum Shown {
    All,
    None,
    /// Those that listen to channels, or those that do not.
    Listening(bool),
    Ids(Vec<i64>),
}

fn parse_list(args: &Args<'_>) -> Result<Shown, Reply> {
    let Some(option) = args.get(2) else { return Ok(Shown::All) };
    match args.get(3) {
        Some(kind) if option.eq_ignore_ascii_case(b"type") && args.len() == 4 => {
            let is = |name: &[u8]| kind.eq_ignore_ascii_case(name);
            if is(b"normal") || is(b"pubsub") {
                Ok(Shown::Listening(is(b"pubsub")))
            } else if is(b"master") || is(b"replica") || is(b"slave") {
                Ok(Shown::None)
            } else {
                Err(Reply::Error([b"ERR Unknown client type '", kind, b"'"].concat()))
            }
        }
        Some(_) if option.eq_ignore_ascii_case(b"id") => {
            let ids: Option<Vec<i64>> = args.iter().skip(3).map(number::integer).collect();
            ids.map(Shown::Ids).ok_or_else(|| Reply::error("ERR Invalid client ID"))
        }
        _ => Err(syntax_error()),
    }
}

pub(super) fn list(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    let shown = match parse_list(args) {
        Ok(shown) => shown,
        Err(reply) => return Run::Now(reply),
    };
    let volume = connection.core.volume.clone();
    Run::Alone(Box::pin(async move {
        let lines = volume.ask_all(Question::Clients).await.concat();
        let mut text = Vec::new();
        for line in lines.split_inclusive(|byte| *byte == b'\n') {
            let id = line.strip_prefix(b"id=").and_then(|rest| rest.split(|byte| *byte == b' ').next());
            let is_shown = match &shown {
                Shown::All => true,
                Shown::None => false,
                Shown::Listening(listening) => {
                    let silent = b" sub=0 psub=0 ";
                    line.windows(silent.len()).any(|bytes| bytes == silent) != *listening
                }
                Shown::Ids(ids) => id.and_then(number::integer).is_some_and(|id| ids.contains(&id)),
            };
            if is_shown {
                text.extend_from_slice(line);
            }
        }
        Reply::Text(text)
    }))
}
