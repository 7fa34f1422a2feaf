//! Commands: the table, and how one begins.
//!
//! Role: turns the arguments of a command into requests to the volume and their completions into a
//! reply. Place on the path: between the parser and the volume. One file for each family.
//!
//! Invariants: what is told about a command (COMMAND, errors of arity) and what runs it come from
//! one table; texts of errors are Redis', because clients act upon them; a handler never waits: it
//! says how the session is to run it ([`Run`]).
//!
//! Never: a command that is in the table and does nothing.

mod absent;
mod acl;
mod client;
mod compare;
mod config;
mod connection;
mod custom;
mod debug;
mod docs;
mod dump;
mod edit;
mod exec;
mod expire;
mod info;
mod introspect;
mod keys;
mod kill;
mod known_scripts;
mod latency;
mod lua;
mod many;
mod memory;
mod monitor;
mod number;
mod object;
mod pause;
mod places;
mod pubsub;
mod range;
mod rename;
mod replace;
mod replication;
mod rewrite;
mod scan;
mod script;
mod server;
mod set;
mod shutdown;
mod slots;
mod slowlog;
mod sparkline;
mod string;
mod subcommands;
mod table;
mod transaction;

use crate::reply::Reply;
use crate::session::Connection;
use plimsoll_kv::LocalFuture;
use plimsoll_resp::Args;
use std::rc::Rc;

pub use known_scripts::Remembered as RememberedScripts;
pub(crate) use pubsub::forget as forget_subscriptions;
pub(crate) use set::set_uploaded;
pub use slots::{SLOTS, Slot};
pub use table::TABLE;
pub(crate) use transaction::{Multi, Watched, spoil};

/// How a session runs a command.
pub enum Run {
    /// The reply is known.
    Now(Reply),
    /// It gets its place at the devices in the first poll: the next command may begin meanwhile.
    Overlap(LocalFuture<Reply>),
    /// It needs several steps: commands before it end first, and those after it wait.
    Alone(LocalFuture<Reply>),
    /// An array of the replies to the same command for each key, which is at least one.
    Each {
        /// The keys.
        keys: Vec<Vec<u8>>,
        /// What to do with each; gets its place in the first poll.
        one: fn(&Rc<Connection>, Vec<u8>) -> LocalFuture<Reply>,
    },
    /// As `Alone`, with several replies, which leave together: at least one. The first is what the command is
    /// charged for; errors among the others were counted where they came from.
    Many(LocalFuture<Vec<Reply>>),
    /// The connection ends after this reply.
    Close(Reply),
    /// The connection ends at once.
    Abort,
}

/// Begins a command.
pub type Handler = fn(&Rc<Connection>, &Args<'_>) -> Run;

/// A command.
pub struct Spec {
    /// Its name in lower case.
    pub name: &'static str,
    /// How many arguments, the name included; negative: at least so many.
    pub arity: i32,
    /// What COMMAND says of it.
    pub flags: &'static [&'static str],
    /// Its access categories.
    pub categories: &'static [&'static str],
    /// First key, last key (negative: from the end), step; zeros if it has none.
    pub keys: (i32, i32, i32),
    /// Begins it.
    pub handler: Handler,
    /// Its subcommands, if it has any.
    pub subcommands: &'static [Subcommand],
}

/// A subcommand.
pub struct Subcommand {
    /// Its name in lower case.
    pub name: &'static str,
    /// How many arguments, both names included; negative: at least so many.
    pub arity: i32,
    /// Whether its one key is the argument behind its name; it has none otherwise.
    pub has_key: bool,
    /// One line for HELP.
    pub help: &'static str,
    /// Begins it.
    pub handler: Handler,
}

/// Where the commands stand that begin with each letter.
static BY_LETTER: [(usize, usize); 26] = {
    let (mut places, mut index) = ([(0, 0); 26], 0);
    while index < TABLE.len() {
        let place = &mut places[(TABLE[index].name.as_bytes()[0] - b'a') as usize];
        if place.1 == 0 {
            place.0 = index;
        }
        index += 1;
        place.1 = index;
    }
    places
};

/// A command's place in the table.
#[must_use]
pub fn find(name: &[u8]) -> Option<usize> {
    let letter = name.first()?.to_ascii_lowercase().checked_sub(b'a')?;
    let (from, end) = *BY_LETTER.get(usize::from(letter))?;
    let is_it = |spec: &Spec| spec.name.as_bytes().eq_ignore_ascii_case(name);
    TABLE[from..end].iter().position(is_it).map(|at| from + at)
}

/// A subcommand's place among those of its command.
fn find_sub(spec: &Spec, name: &[u8]) -> Option<usize> {
    spec.subcommands.iter().position(|sub| sub.name.as_bytes().eq_ignore_ascii_case(name))
}

/// Whether a command is shown to those who watch all commands when it begins, as in Redis: what administers
/// the server never is, and EXEC follows what it ran.
pub(crate) fn is_shown_when_begun(slot: usize) -> bool {
    let spec = SLOTS[slot].spec();
    spec.name != "exec" && !spec.flags.contains(&"admin")
}

/// Whether a command is never in the slow log, as in Redis: what it runs is there by itself.
pub(crate) fn skips_slow_log(slot: usize) -> bool {
    SLOTS[slot].spec().flags.contains(&"skip_slowlog")
}

/// The slot of a command.
pub(crate) fn slot_of(command: usize) -> usize {
    slots::slot_of(command, None)
}

/// Commands beside those that write which a pause of writes holds, as in Redis.
const HELD_WITH_WRITES: [&str; 3] = ["publish", "eval", "evalsha"];

/// Whether a pause of writes holds a command.
pub(crate) fn may_write(name: &[u8]) -> bool {
    let spec = find(name).map(|index| &TABLE[index]);
    spec.is_some_and(|spec| spec.flags.contains(&"write") || HELD_WITH_WRITES.contains(&spec.name))
}

/// Whether a command has as many words as it takes: one that has not is refused, whatever it would do.
pub(crate) fn is_complete(args: &Args<'_>) -> bool {
    find(&args[0]).is_some_and(|index| has_arity(TABLE[index].arity, args.len()))
}

fn has_arity(arity: i32, args: usize) -> bool {
    let count = i32::try_from(args).unwrap_or(i32::MAX);
    if arity >= 0 { count == arity } else { count >= -arity }
}

/// Begins a command; the slot that is charged for it, if it is run.
pub(crate) fn begin(connection: &Rc<Connection>, args: &Args<'_>) -> (Option<usize>, Run) {
    let name = &args[0];
    let Some(index) = find(name) else {
        if name.eq_ignore_ascii_case(b"POST") || name.eq_ignore_ascii_case(b"Host:") {
            // A browser that was made to talk to us: nothing it sends may be taken for a command.
            let core = &connection.core;
            if let Some(untold) = core.seldom.http.due(core.reactor.now_ns()) {
                let words = "an HTTP request came on the RESP port: connection closed";
                tracing::warn!(client = connection.id, untold, "{words}");
            }
            return (None, Run::Abort);
        }
        transaction::spoil(connection);
        let views: Vec<&[u8]> = args.iter().take(ARGS_QUOTED_MAX).collect();
        return (None, Run::Now(unknown(&views)));
    };
    let (slot, start) = match check(connection, index, args) {
        Ok(start) => start,
        Err((slot, reply)) => {
            slot.inspect(|slot| connection.rejects(*slot));
            transaction::spoil(connection);
            let is_exec = TABLE[index].name == "exec";
            return (None, Run::Now(if is_exec { transaction::abort(connection, reply) } else { reply }));
        }
    };
    match transaction::queue(connection, index, args) {
        None => {
            connection.runs(slot);
            (Some(slot), start(connection, args))
        }
        Some(Ok(queued)) => {
            connection.runs(slot);
            (None, Run::Now(queued))
        }
        Some(Err(refused)) => {
            connection.rejects(slot);
            (None, Run::Now(refused))
        }
    }
}

/// Why a command is refused, and the slot that counts it; none for what is no command, as in Redis.
type Refusal = (Option<usize>, Reply);

/// Looks whether a command makes sense, and whether a client may send it: its slot, and how it is run.
fn check(connection: &Connection, index: usize, args: &Args<'_>) -> Result<(usize, Handler), Refusal> {
    let (spec, own) = (&TABLE[index], slots::slot_of(index, None));
    if !has_arity(spec.arity, args.len()) {
        return Err((Some(own), wrong_arity(spec.name, None)));
    }
    let resolved = resolve(index, args);
    let slot = match &resolved {
        // As to Redis, DEBUG is one command to who may not send it: it does not tell what there is of it.
        _ if spec.name == "debug" => own,
        Ok((slot, _)) => *slot,
        Err(_) => return resolved,
    };
    if !connection.authenticated.get() && !spec.flags.contains(&"no_auth") {
        return Err((Some(slot), Reply::error("NOAUTH Authentication required.")));
    }
    pubsub::check_listening(connection, spec.name, &SLOTS[slot].name)
        .and_then(|()| monitor::check(connection, spec))
        .and_then(|()| debug::check(connection, spec))
        .and_then(|()| check_loading(connection, spec, &SLOTS[slot].name))
        .map_err(|reply| (Some(slot), reply))?;
    resolved
}

/// Refuses what needs keys as long as partitions are being opened. WATCH is the one command that Redis runs
/// then although it has keys: here it would have to read them. Of subcommands of what is refused Redis runs
/// those that help, and those of PUBSUB.
fn check_loading(connection: &Connection, spec: &Spec, slot: &str) -> Result<(), Reply> {
    let needs_none = || spec.flags.contains(&"loading") && spec.keys.0 == 0;
    if !connection.core.is_loading() || needs_none() || slot.starts_with("pubsub|") || slot.ends_with("|help")
    {
        return Ok(());
    }
    Err(Reply::error("LOADING Redis is loading the dataset in memory"))
}

/// What a command and its subcommand, if it has any, are in the table.
fn resolve(index: usize, args: &Args<'_>) -> Result<(usize, Handler), Refusal> {
    let (spec, own) = (&TABLE[index], slots::slot_of(index, None));
    let Some(name) = args.get(1).filter(|_| !spec.subcommands.is_empty()) else {
        return Ok((own, spec.handler));
    };
    let Some(number) = find_sub(spec, name) else {
        return Err((None, unknown_subcommand(spec, name)));
    };
    let (sub, slot) = (&spec.subcommands[number], slots::slot_of(index, Some(number)));
    if has_arity(sub.arity, args.len()) {
        Ok((slot, sub.handler))
    } else {
        Err((Some(slot), wrong_arity(spec.name, Some(sub.name))))
    }
}

/// Bytes of a client's words that an error quotes.
const QUOTED_BYTES_MAX: usize = 128;
/// Arguments that can fit an error, at three bytes each.
const ARGS_QUOTED_MAX: usize = 2 + QUOTED_BYTES_MAX / 3;

/// The error for a command that is not in the table.
pub(crate) fn unknown(args: &[&[u8]]) -> Reply {
    let mut quoted = Vec::new();
    for arg in args.iter().skip(1) {
        if quoted.len() >= QUOTED_BYTES_MAX {
            break;
        }
        let room = QUOTED_BYTES_MAX - quoted.len();
        quoted.push(b'\'');
        quoted.extend_from_slice(&arg[..arg.len().min(room)]);
        quoted.extend_from_slice(b"' ");
    }
    let name = args.first().copied().unwrap_or_default();
    let name = &name[..name.len().min(QUOTED_BYTES_MAX)];
    Reply::Error([b"ERR unknown command '", name, b"', with args beginning with: ", &quoted].concat())
}

fn unknown_subcommand(spec: &Spec, name: &[u8]) -> Reply {
    let name = &name[..name.len().min(QUOTED_BYTES_MAX)];
    let command = spec.name.to_ascii_uppercase();
    Reply::Error([b"ERR unknown subcommand '", name, b"'. Try ", command.as_bytes(), b" HELP."].concat())
}

fn wrong_arity(name: &str, subcommand: Option<&str>) -> Reply {
    let (bar, subcommand) = subcommand.map_or(("", ""), |subcommand| ("|", subcommand));
    Reply::error(format!("ERR wrong number of arguments for '{name}{bar}{subcommand}' command"))
}

/// The error of a subcommand that takes optional words and got too many.
fn wrong_use(args: &Args<'_>) -> Reply {
    let (name, command) = (&args[1], args[0].to_ascii_uppercase());
    let text: [&[u8]; 5] =
        [b"ERR unknown subcommand or wrong number of arguments for '", name, b"'. Try ", &command, b" HELP."];
    Reply::Error(text.concat())
}

fn syntax_error() -> Reply {
    Reply::error("ERR syntax error")
}

/// HELP: what the other subcommands of a command are.
fn help(_: &Rc<Connection>, args: &Args<'_>) -> Run {
    let spec = &TABLE[find(&args[0]).expect("its subcommand was found")];
    let command = spec.name.to_ascii_uppercase();
    let head = format!("{command} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:");
    let (help, others): (Vec<&Subcommand>, Vec<_>) =
        spec.subcommands.iter().partition(|sub| sub.name == "help");
    let lines = others.into_iter().chain(help).flat_map(|sub| {
        [sub.name.to_ascii_uppercase().into_bytes(), format!("    {}", sub.help).into_bytes()]
    });
    Run::Now(Reply::Array(std::iter::once(head.into_bytes()).chain(lines).map(Reply::Line).collect()))
}

/// For commands that have nothing but subcommands: the table has sent every call elsewhere.
fn only_subcommands(_: &Rc<Connection>, _: &Args<'_>) -> Run {
    unreachable!("a command with subcommands and an arity of at least two")
}

/// Whether a long argument at this place is a value to be uploaded.
pub(crate) fn takes_upload(connection: &Connection, name: &[u8], index: usize) -> bool {
    let waits_for_exec = connection.multi.borrow().is_some();
    let stores = ["set", custom::STORE].iter().any(|store| name.eq_ignore_ascii_case(store.as_bytes()));
    let may_store = connection.authenticated.get() && !connection.core.is_loading();
    may_store && !waits_for_exec && stores && index == 2
}
