//! CONFIG: what clients and tools ask of Redis' parameters, answered from what is in force.
//!
//! Invariants: a parameter is shown only if its value is true of this server; none can be set while
//! it runs, and none is silently accepted.

use super::Run;
use crate::core::Core;
use crate::glob;
use crate::limits::{CLIENT_BYTES_MAX, DATABASES, QUERY_BUFFER_BYTES_MAX};
use crate::reply::Reply;
use crate::session::Connection;
use crate::volume::Question;
use plimsoll_kv::Durability;
use plimsoll_resp::Args;
use std::rc::Rc;

/// The parameters. A password is not one of them: it is told to nobody.
fn parameters(core: &Core) -> Vec<(&'static str, String)> {
    let (settings, address) = (&core.shared.settings, core.address());
    let fixed = |text: &str| text.to_owned();
    vec![
        // Every acknowledged write is in the log of the device: the one sense in which Redis has it.
        ("appendonly", fixed("yes")),
        ("appendfsync", fixed(if settings.durability == Durability::Async { "everysec" } else { "always" })),
        ("bind", address.ip().to_string()),
        ("cluster-enabled", fixed("no")),
        ("databases", DATABASES.to_string()),
        ("dir", settings.data_dir.clone()),
        ("maxclients", settings.clients_max.to_string()),
        ("maxmemory", fixed("0")),
        ("maxmemory-clients", (CLIENT_BYTES_MAX * core.shared.cores.len()).to_string()),
        ("maxmemory-policy", fixed("noeviction")),
        ("port", address.port().to_string()),
        ("proto-max-bulk-len", plimsoll_kv::limits::VALUE_BYTES_MAX.to_string()),
        ("client-query-buffer-limit", QUERY_BUFFER_BYTES_MAX.to_string()),
        ("replica-read-only", fixed("yes")),
        ("save", String::new()),
        ("tcp-keepalive", fixed("300")),
        ("timeout", fixed("0")),
    ]
}

pub(super) fn get(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    let is_asked = |name: &str| args.iter().skip(2).any(|p| glob::matches(p, name.as_bytes(), true));
    let found = parameters(&connection.core).into_iter().filter(|(name, _)| is_asked(name));
    Run::Now(Reply::Map(found.map(|(name, value)| (Reply::bulk(name), Reply::bulk(value))).collect()))
}

pub(super) fn set(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    if !args.len().is_multiple_of(2) {
        return Run::Now(super::wrong_arity("config", Some("set")));
    }
    let known = parameters(&connection.core);
    for name in args.iter().skip(2).step_by(2) {
        if !known.iter().any(|(known, _)| known.as_bytes().eq_ignore_ascii_case(name)) {
            let text: [&[u8]; 3] =
                [b"ERR Unknown option or number of arguments for CONFIG SET - '", name, b"'"];
            return Run::Now(Reply::Error(text.concat()));
        }
    }
    let text: [&[u8]; 3] = [
        b"ERR CONFIG SET failed (possibly related to argument '",
        &args[2],
        b"') - can't set immutable config",
    ];
    Run::Now(Reply::Error(text.concat()))
}

pub(super) fn resetstat(connection: &Rc<Connection>, _: &Args<'_>) -> Run {
    let volume = connection.core.volume.clone();
    Run::Alone(Box::pin(async move {
        volume.ask_all(Question::ResetCounters).await;
        Reply::Ok
    }))
}

pub(super) fn rewrite(connection: &Rc<Connection>, _: &Args<'_>) -> Run {
    Run::Now(Reply::error(match connection.core.shared.settings.config_file {
        None => "ERR The server is running without a config file",
        Some(_) => "ERR Rewriting config file: nothing can be changed while the server runs",
    }))
}
