//! COMMAND and its subcommands: the table as clients read it.

use super::{Run, Spec, Subcommand, TABLE, docs, find, find_sub, has_arity, places, syntax_error};
use crate::glob;
use crate::limits::COMMAND_NAMES_MAX;
use crate::reply::Reply;
use crate::session::Connection;
use plimsoll_resp::{Args, OwnedArgs};
use std::collections::BTreeSet;
use std::rc::Rc;

fn texts(texts: &[&'static str]) -> Reply {
    Reply::Set(texts.iter().copied().map(Reply::Simple).collect())
}

fn describe_sub(spec: &Spec, sub: &Subcommand) -> Reply {
    let (first, last, step) = if sub.has_key { (2, 2, 1) } else { (0, 0, 0) };
    Reply::Array(vec![
        Reply::bulk(format!("{}|{}", spec.name, sub.name)),
        Reply::Integer(i64::from(sub.arity)),
        texts(spec.flags),
        Reply::Integer(first),
        Reply::Integer(last),
        Reply::Integer(step),
        texts(spec.categories),
        Reply::Array(Vec::new()),
        Reply::Array(Vec::new()),
        Reply::Array(Vec::new()),
    ])
}

/// The same of `COMMAND`, or of `COMMAND|SUBCOMMAND`.
fn describe_named(name: &[u8]) -> Reply {
    let mut words = name.splitn(2, |byte| *byte == b'|');
    let Some(spec) = words.next().and_then(find).map(|index| &TABLE[index]) else { return Reply::Null };
    let Some(word) = words.next() else { return describe(spec) };
    find_sub(spec, word).map_or(Reply::Null, |sub| describe_sub(spec, &spec.subcommands[sub]))
}

fn describe(spec: &Spec) -> Reply {
    let (first, last, step) = spec.keys;
    let subcommands = spec.subcommands.iter().map(|sub| describe_sub(spec, sub));
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

/// What is known of each of these commands, or of all.
pub(super) fn docs(_: &Rc<Connection>, args: &Args<'_>) -> Run {
    // Each once, however often it is named.
    let indices: BTreeSet<usize> = if args.len() == 2 {
        (0..TABLE.len()).collect()
    } else {
        args.iter().skip(2).filter_map(find).collect()
    };
    let describe = |index: usize| {
        let name = TABLE[index].name;
        let doc = docs::of(name)?;
        let pairs = [
            ("summary", doc.summary),
            ("since", doc.since),
            ("group", doc.group),
            ("complexity", doc.complexity),
        ];
        let pairs = pairs.map(|(field, text)| (Reply::bulk(field), Reply::bulk(text)));
        Some((Reply::bulk(name), Reply::Map(pairs.into())))
    };
    Run::Now(Reply::Map(indices.into_iter().filter_map(describe).collect()))
}

pub(super) fn info(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    if args.len() == 2 {
        return all(connection, args);
    }
    if args.len() > COMMAND_NAMES_MAX + 2 {
        return Run::Now(Reply::error(format!("ERR at most {COMMAND_NAMES_MAX} names can be asked for")));
    }
    Run::Now(Reply::Array(args.iter().skip(2).map(describe_named).collect()))
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

/// The places of the keys of a whole command, after two further words; and the command.
fn key_places(args: &Args<'_>) -> Result<(&'static Spec, Vec<usize>), Reply> {
    let Some(spec) = find(&args[2]).map(|index| &TABLE[index]) else {
        return Err(Reply::error("ERR Invalid command specified"));
    };
    let command = OwnedArgs::new(args.iter().skip(2));
    let command = command.args();
    let sub = command.get(1).and_then(|word| find_sub(spec, word)).map(|sub| &spec.subcommands[sub]);
    let has_keys = sub.map_or(spec.keys.0 > 0 || spec.flags.contains(&"movablekeys"), |sub| sub.has_key);
    if !has_keys {
        return Err(Reply::error("ERR The command has no key arguments"));
    }
    if !has_arity(sub.map_or(spec.arity, |sub| sub.arity), command.len()) {
        return Err(Reply::error("ERR Invalid number of arguments specified for command"));
    }
    match places::key_arguments(spec, &command) {
        Some((places, step)) => Ok((spec, places.step_by(step).map(|place| 2 + place).collect())),
        None if spec.flags.contains(&"no_mandatory_keys") => Ok((spec, Vec::new())),
        None => Err(Reply::error("ERR Invalid arguments specified for command")),
    }
}

pub(super) fn getkeys(_: &Rc<Connection>, args: &Args<'_>) -> Run {
    Run::Now(match key_places(args) {
        Ok((_, places)) => Reply::Array(places.into_iter().map(|place| Reply::bulk(&args[place])).collect()),
        Err(reply) => reply,
    })
}

pub(super) fn getkeysandflags(_: &Rc<Connection>, args: &Args<'_>) -> Run {
    let (spec, places) = match key_places(args) {
        Ok(found) => found,
        Err(reply) => return Run::Now(reply),
    };
    let flags = || docs::key_flags(spec.name).iter().copied().map(Reply::Simple).collect();
    let each = |place| Reply::Array(vec![Reply::bulk(&args[place]), Reply::Set(flags())]);
    Run::Now(Reply::Array(places.into_iter().map(each).collect()))
}
