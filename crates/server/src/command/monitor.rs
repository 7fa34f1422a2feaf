//! MONITOR: every command over all cores, as it begins.
//!
//! Invariants: commands of operators are not shown, nor are passwords; what a client that watches may
//! ask is as in Redis: nothing of keys.

use super::{Run, Spec};
use crate::reply::Reply;
use crate::session::Connection;
use plimsoll_resp::Args;
use std::rc::Rc;

pub(super) fn monitor(connection: &Rc<Connection>, _: &Args<'_>) -> Run {
    connection.set_monitor(true);
    Run::Now(Reply::Ok)
}

/// Refuses commands on keys to a client that watches.
pub(super) fn check(connection: &Connection, spec: &Spec) -> Result<(), Reply> {
    if !connection.is_monitor() {
        return Ok(());
    }
    let of_keys = ["readonly", "write"].iter().any(|flag| spec.flags.contains(flag));
    if of_keys || super::may_write(spec.name.as_bytes()) {
        return Err(Reply::error("ERR Replica can't interact with the keyspace"));
    }
    Ok(())
}
