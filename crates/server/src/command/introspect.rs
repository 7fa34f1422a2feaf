//! COMMAND and its subcommands: the table as clients read it.

use super::{Run, Spec, TABLE, find, has_arity, places, syntax_error};
use crate::glob;
use crate::reply::Reply;
use crate::session::Connection;
use plimsoll_resp::{Args, OwnedArgs};
use std::rc::Rc;

fn describe(spec: &Spec) -> Reply {
    let texts = |texts: &[&'static str]| Reply::Set(texts.iter().copied().map(Reply::Simple).collect());
    let (first, last, step) = spec.keys;
    let subcommands = spec.subcommands.iter().map(|sub| {
        Reply::Array(vec![
            Reply::bulk(format!("{}|{}", spec.name, sub.name)),
            Reply::Integer(i64::from(sub.arity)),
            texts(spec.flags),
            Reply::Integer(0),
            Reply::Integer(0),
            Reply::Integer(0),
            texts(spec.categories),
            Reply::Array(Vec::new()),
            Reply::Array(Vec::new()),
            Reply::Array(Vec::new()),
        ])
    });
    Reply::Array(vec![
        Reply::bulk(spec.name),
        Reply::Integer(i64::from(spec.arity)),
        texts(spec.flags),
        Reply::Integer(i64::from(first)),
        Reply::Integer(i64::from(last)),
        Reply::Integer(i64::from(step)),
        texts(spec.categories),
        Reply::Array(Vec::new()),
        Reply::Array(Vec::new()),
        Reply::Array(subcommands.collect()),
    ])
}

pub(super) fn all(_: &Rc<Connection>, _: &Args<'_>) -> Run {
    Run::Now(Reply::Array(TABLE.iter().map(describe).collect()))
}

pub(super) fn count(_: &Rc<Connection>, _: &Args<'_>) -> Run {
    Run::Now(Reply::Integer(TABLE.len() as i64))
}

pub(super) fn docs(_: &Rc<Connection>, _: &Args<'_>) -> Run {
    Run::Now(Reply::Map(Vec::new()))
}

pub(super) fn info(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    if args.len() == 2 {
        return all(connection, args);
    }
    let of = |name: &[u8]| find(name).map_or(Reply::Null, |index| describe(&TABLE[index]));
    Run::Now(Reply::Array(args.iter().skip(2).map(of).collect()))
}

pub(super) fn list(_: &Rc<Connection>, args: &Args<'_>) -> Run {
    let names = |wanted: &dyn Fn(&Spec) -> bool| {
        let specs = TABLE.iter().filter(|spec| wanted(spec));
        Run::Now(Reply::Array(specs.map(|spec| Reply::bulk(spec.name)).collect()))
    };
    let (Some(filter), Some(kind), Some(value)) = (args.get(2), args.get(3), args.get(4)) else {
        return if args.len() == 2 { names(&|_| true) } else { Run::Now(syntax_error()) };
    };
    if args.len() != 5 || !filter.eq_ignore_ascii_case(b"filterby") {
        return Run::Now(syntax_error());
    }
    if kind.eq_ignore_ascii_case(b"pattern") {
        names(&|spec| glob::matches(value, spec.name.as_bytes(), true))
    } else if kind.eq_ignore_ascii_case(b"aclcat") {
        let is = |category: &&str| category.as_bytes()[1..].eq_ignore_ascii_case(value);
        names(&|spec| spec.categories.iter().any(is))
    } else if kind.eq_ignore_ascii_case(b"module") {
        names(&|_| false)
    } else {
        Run::Now(syntax_error())
    }
}

pub(super) fn getkeys(_: &Rc<Connection>, args: &Args<'_>) -> Run {
    let Some(spec) = find(&args[2]).map(|index| &TABLE[index]) else {
        return Run::Now(Reply::error("ERR Invalid command specified"));
    };
    let command = OwnedArgs::new(args.iter().skip(2));
    let command = command.args();
    if spec.keys.0 == 0 && !spec.flags.contains(&"movablekeys") {
        return Run::Now(Reply::error("ERR The command has no key arguments"));
    }
    if !has_arity(spec.arity, command.len()) {
        return Run::Now(Reply::error("ERR Invalid number of arguments specified for command"));
    }
    let Some((places, step)) = places::key_arguments(spec, &command) else {
        return Run::Now(Reply::error("ERR Invalid arguments specified for command"));
    };
    Run::Now(Reply::Array(places.step_by(step).map(|place| Reply::bulk(&command[place])).collect()))
}
