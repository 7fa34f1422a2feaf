//! DEBUG SLEEP and OBJECT, for tests of clients, if the configuration allows them.
//!
//! Invariant: a connection that sleeps holds up nobody but itself.

use super::{Run, Spec};
use crate::config::DebugCommand;
use crate::limits::DEBUG_SLEEP_NS_MAX;
use crate::reply::Reply;
use crate::session::Connection;
use futures_util::future::select;
use plimsoll_resp::Args;
use std::pin::pin;
use std::rc::Rc;

/// Refuses DEBUG unless it is allowed.
pub(super) fn check(connection: &Connection, spec: &Spec) -> Result<(), Reply> {
    let is_allowed = spec.name != "debug"
        || match connection.core.shared.settings.debug_command {
            DebugCommand::No => false,
            DebugCommand::Local => connection.is_local(),
            DebugCommand::Yes => true,
        };
    if is_allowed {
        return Ok(());
    }
    Err(Reply::error(
        "ERR DEBUG command not allowed. If the enable-debug-command option is set to \"local\", you can run it \
         from a local connection, otherwise you need to set this option in the configuration file, and then \
         restart the server.",
    ))
}

pub(super) fn sleep(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    let seconds: f64 = std::str::from_utf8(&args[2]).ok().and_then(|text| text.parse().ok()).unwrap_or(0.0);
    // What is no number, negative or endless becomes a bound.
    let sleep_ns = ((seconds * 1e9) as u64).min(DEBUG_SLEEP_NS_MAX);
    let connection = connection.clone();
    Run::Alone(Box::pin(async move {
        let slept = connection.core.reactor.sleep_ns(sleep_ns);
        select(pin!(slept), pin!(connection.wait_for_end())).await;
        Reply::Ok
    }))
}

pub(super) fn object(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    super::object::look(connection, &args[2], super::object::Counts::No, |found| match found {
        None => Reply::error("ERR no such key"),
        Some(item) => {
            let encoding = super::object::encoding_of(&item);
            let length = item.stored_bytes;
            // Clients take it apart at its blanks and colons: an address and an age are expected.
            let words = format!(
                "Value at:0x0 refcount:1 encoding:{encoding} serializedlength:{length} lru:0 lru_seconds_idle:0"
            );
            Reply::Line(words.into_bytes())
        }
    })
}
