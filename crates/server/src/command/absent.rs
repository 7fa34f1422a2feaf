//! Commands about what there is none of: modules, functions, a cluster. What they say of it is true.
//!
//! Invariant: what would make one is refused in the words of a Redis that has none.

use super::{Run, syntax_error};
use crate::reply::Reply;
use crate::session::Connection;
use plimsoll_resp::Args;
use std::rc::Rc;

/// CLUSTER and the commands of its clients.
pub(super) fn no_cluster(_: &Rc<Connection>, _: &Args<'_>) -> Run {
    Run::Now(Reply::error("ERR This instance has cluster support disabled"))
}

/// MODULE LIST.
pub(super) fn no_modules(_: &Rc<Connection>, _: &Args<'_>) -> Run {
    Run::Now(Reply::Array(Vec::new()))
}

pub(super) fn function_flush(_: &Rc<Connection>, args: &Args<'_>) -> Run {
    let is_known = |word: &[u8]| word.eq_ignore_ascii_case(b"async") || word.eq_ignore_ascii_case(b"sync");
    Run::Now(match args.get(2) {
        None => Reply::Ok,
        Some(_) if args.len() > 3 => Reply::Error(
            [
                b"ERR unknown subcommand or wrong number of arguments for '",
                &args[1],
                b"'. Try FUNCTION HELP.",
            ]
            .concat(),
        ),
        Some(word) if is_known(word) => Reply::Ok,
        Some(_) => Reply::error("ERR FUNCTION FLUSH only supports SYNC|ASYNC option"),
    })
}

pub(super) fn function_list(_: &Rc<Connection>, args: &Args<'_>) -> Run {
    let mut words = args.iter().skip(2);
    while let Some(word) = words.next() {
        if word.eq_ignore_ascii_case(b"libraryname") {
            if words.next().is_none() {
                return Run::Now(Reply::error("ERR library name argument was not given"));
            }
        } else if !word.eq_ignore_ascii_case(b"withcode") {
            return Run::Now(Reply::Error([b"ERR Unknown argument ", word].concat()));
        }
    }
    Run::Now(Reply::Array(Vec::new()))
}

/// No script runs, and there is no engine that could.
pub(super) fn function_stats(_: &Rc<Connection>, _: &Args<'_>) -> Run {
    Run::Now(Reply::Map(vec![
        (Reply::bulk("running_script"), Reply::Null),
        (Reply::bulk("engines"), Reply::Map(Vec::new())),
    ]))
}

/// LOLWUT: the version, as tools read it.
pub(super) fn lolwut(_: &Rc<Connection>, args: &Args<'_>) -> Run {
    if args.get(1).is_some_and(|word| word.eq_ignore_ascii_case(b"version"))
        && args.get(2).is_some_and(|word| super::number::integer(word).is_none())
    {
        return Run::Now(syntax_error());
    }
    let hull = "      |\\\n      | \\\n ~~~~ | _\\__ ~~~~ she floats\n  \\_____(-)____/\n\n";
    let version = env!("CARGO_PKG_VERSION");
    Run::Now(Reply::Text(format!("{hull}Plimsoll ver. {version}\n").into_bytes()))
}
