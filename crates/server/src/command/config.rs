//! CONFIG: what clients and tools ask of Redis' parameters, answered from what is in force.
//!
//! Invariants: a parameter is shown only if its value is true of this server; those that can be changed
//! are changed all or not at all, and none is silently accepted.

use super::{Run, number, syntax_error};
use crate::config::DebugCommand;
use crate::core::Core;
use crate::glob;
use crate::limits::DATABASES;
use crate::parameters::{PARAMETERS, Parameter, Spec};
use crate::reply::Reply;
use crate::session::Connection;
use crate::shared::Settings;
use crate::tls::TlsFiles;
use crate::volume::Question;
use plimsoll_flash::OnFull;
use plimsoll_kv::Durability;
use plimsoll_resp::Args;
use std::net::SocketAddr;
use std::rc::Rc;

/// How often the end of a rewriting is looked for.
const REWRITE_LOOK_NS: u64 = 1_000_000;

/// The parameters that are fixed at the start. A password is not one of them: it is told to nobody.
fn fixed_parameters(core: &Core) -> Vec<(&'static str, String)> {
    let (settings, addresses) = (&core.shared.settings, core.addresses());
    let fixed = |text: &str| text.to_owned();
    let port = |address: Option<SocketAddr>| address.map_or(0, |address| address.port()).to_string();
    let mut hosts: Vec<String> = [addresses.plain, addresses.tls]
        .into_iter()
        .flatten()
        .map(|address| address.ip().to_string())
        .collect();
    hosts.dedup();
    let mut parameters = vec![
        // Every acknowledged write is in the log of the device: the one sense in which Redis has it.
        ("appendonly", fixed("yes")),
        ("appendfsync", fixed(if settings.durability == Durability::Async { "everysec" } else { "always" })),
        ("bind", hosts.join(" ")),
        ("cluster-enabled", fixed("no")),
        ("databases", DATABASES.to_string()),
        ("dir", settings.data_dir.clone()),
        (
            "enable-debug-command",
            fixed(match settings.debug_command {
                DebugCommand::No => "no",
                DebugCommand::Local => "local",
                DebugCommand::Yes => "yes",
            }),
        ),
        ("latency-tracking", fixed("yes")),
        ("latency-tracking-info-percentiles", fixed("50 99 99.9")),
        ("maxmemory", settings.budget.memory_bytes.to_string()),
        ("maxmemory-clients", (settings.budget.client_bytes_max * core.shared.cores.len()).to_string()),
        ("maxmemory-policy", fixed(memory_policy(settings.on_full))),
        ("port", port(addresses.plain)),
        ("proto-max-bulk-len", plimsoll_kv::limits::VALUE_BYTES_MAX.to_string()),
        ("client-query-buffer-limit", settings.budget.command_bytes_max().to_string()),
        ("replica-read-only", fixed("yes")),
        ("save", String::new()),
        ("tcp-keepalive", fixed("300")),
        ("tls-port", port(addresses.tls)),
    ];
    parameters.extend(settings.tls.iter().flat_map(|tls| tls_parameters(&tls.files)));
    parameters
}

/// The nearest word that Redis has for what becomes of stores when the device is full.
pub(super) fn memory_policy(on_full: OnFull) -> &'static str {
    match on_full {
        OnFull::Error => "noeviction",
        OnFull::Evict => "allkeys-lru",
    }
}

/// What Redis says of its TLS.
fn tls_parameters(files: &TlsFiles) -> [(&'static str, String); 4] {
    let authorities = files.client_authorities.as_deref();
    [
        ("tls-cert-file", files.certificate.display().to_string()),
        ("tls-key-file", files.key.display().to_string()),
        ("tls-ca-cert-file", authorities.map(|path| path.display().to_string()).unwrap_or_default()),
        ("tls-auth-clients", if authorities.is_some() { "yes" } else { "no" }.to_owned()),
    ]
}

pub(super) fn get(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    let core = &connection.core;
    let is_asked = |name: &str| args.iter().skip(2).any(|p| glob::matches(p, name.as_bytes(), true));
    let changeable =
        PARAMETERS.iter().map(|spec| (spec.name, core.shared.parameters.get(spec.parameter).to_string()));
    let mut found: Vec<(&str, String)> = fixed_parameters(core).into_iter().chain(changeable).collect();
    found.retain(|(name, _)| is_asked(name));
    Run::Now(Reply::Map(
        found.into_iter().map(|(name, value)| (Reply::bulk(name), Reply::bulk(value))).collect(),
    ))
}

fn failed(name: &[u8], what: impl AsRef<[u8]>) -> Reply {
    let text: [&[u8]; 4] =
        [b"ERR CONFIG SET failed (possibly related to argument '", name, b"') - ", what.as_ref()];
    Reply::Error(text.concat())
}

/// The parameters that a CONFIG SET names, with their new values.
fn parse_set(core: &Core, args: &Args<'_>) -> Result<Vec<(&'static Spec, i64)>, Reply> {
    let is_named = |known: &str, name: &[u8]| known.as_bytes().eq_ignore_ascii_case(name);
    let mut pairs: Vec<(&Spec, &[u8], &[u8])> = Vec::new();
    let words: Vec<&[u8]> = args.iter().skip(2).collect();
    for pair in words.chunks_exact(2) {
        let (name, value) = (pair[0], pair[1]);
        let Some(spec) = PARAMETERS.iter().find(|spec| is_named(spec.name, name)) else {
            if fixed_parameters(core).iter().any(|(known, _)| is_named(known, name)) {
                return Err(failed(name, "can't set immutable config"));
            }
            let text: [&[u8]; 3] =
                [b"ERR Unknown option or number of arguments for CONFIG SET - '", name, b"'"];
            return Err(Reply::Error(text.concat()));
        };
        if pairs.iter().any(|(other, ..)| other.parameter == spec.parameter) {
            return Err(failed(name, "duplicate parameter"));
        }
        pairs.push((spec, name, value));
    }
    let values = pairs.into_iter().map(|(spec, name, value)| {
        let value = number::integer(value)
            .ok_or_else(|| failed(name, "argument couldn't be parsed into an integer"))?;
        let checked = spec.check(value).and_then(|value| has_memory(core, spec, value));
        checked.map(|value| (spec, value)).map_err(|what| failed(name, what))
    });
    values.collect()
}

/// What takes memory may not grow above what `--memory` was divided for.
fn has_memory(core: &Core, spec: &Spec, value: i64) -> Result<i64, String> {
    let Settings { budget, parameters, .. } = &core.shared.settings;
    let at_start = parameters.get(spec.parameter);
    let takes_memory = matches!(spec.parameter, Parameter::ClientsMax | Parameter::SlowlogMaxLen);
    if budget.memory_bytes > 0 && takes_memory && value > at_start {
        return Err(format!("the memory was divided at the start, for {at_start} at most"));
    }
    Ok(value)
}

pub(super) fn set(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    if !args.len().is_multiple_of(2) {
        return Run::Now(syntax_error());
    }
    let core = &connection.core;
    let pairs = match parse_set(core, args) {
        Ok(pairs) => pairs,
        Err(reply) => return Run::Now(reply),
    };
    // The one that may fail comes before any is set.
    let clients = pairs.iter().find(|(spec, _)| spec.parameter == Parameter::ClientsMax);
    if let (Some((spec, value)), Some(host)) = (clients, core.shared.host.get()) {
        let granted = host.admit(*value as u64);
        if granted < *value as u64 {
            let words =
                "The operating system is not able to handle the specified number of clients, try with";
            return Run::Now(failed(spec.name.as_bytes(), format!("{words} {granted}")));
        }
    }
    for (spec, value) in pairs {
        core.shared.parameters.set(spec.parameter, value);
    }
    Run::Now(Reply::Ok)
}

pub(super) fn resetstat(connection: &Rc<Connection>, _: &Args<'_>) -> Run {
    let volume = connection.core.volume.clone();
    Run::Alone(Box::pin(async move {
        volume.ask_all(Question::ResetCounters).await;
        Reply::Ok
    }))
}

pub(super) fn rewrite(connection: &Rc<Connection>, _: &Args<'_>) -> Run {
    let core = connection.core.clone();
    let (Some(_), Some(host)) = (&core.shared.settings.config_file, core.shared.host.get()) else {
        return Run::Now(Reply::error("ERR The server is running without a config file"));
    };
    let answer = host.rewrite(core.shared.parameters.changed());
    Run::Alone(Box::pin(async move {
        loop {
            match answer.get() {
                None => core.reactor.sleep_ns(REWRITE_LOOK_NS).await,
                Some(Ok(())) => return Reply::Ok,
                // An error is one line.
                Some(Err(what)) => {
                    return Reply::error(format!("ERR Rewriting config file: {}", what.replace('\n', " ")));
                }
            }
        }
    }))
}
