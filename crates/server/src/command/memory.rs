//! MEMORY STATS, DOCTOR and PURGE: what is known of the memory of the process.
//!
//! Invariant: a number is told only if it was measured.

use super::Run;
use super::info::{gauge, refresh};
use crate::core::Core;
use crate::reply::Reply;
use crate::session::Connection;
use plimsoll_resp::Args;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;

/// A reply that is made once everything was measured.
fn measured(connection: &Connection, tell: fn(&Core) -> Reply) -> Run {
    let core = connection.core.clone();
    Run::Alone(Box::pin(async move {
        refresh(&core).await;
        tell(&core)
    }))
}

pub(super) fn stats(connection: &Rc<Connection>, _: &Args<'_>) -> Run {
    measured(connection, numbers)
}

fn numbers(core: &Core) -> Reply {
    let shared = &core.shared;
    let (total, peak) =
        (shared.process.resident_bytes.load(Relaxed), shared.process.resident_peak_bytes.load(Relaxed));
    let clients = shared.sum(|core| core.held_bytes.get());
    let pairs = [
        ("peak.allocated", peak),
        ("total.allocated", total),
        ("clients.normal", clients),
        ("index.bytes", gauge(shared, "index_bytes")),
        ("key.tables.bytes", gauge(shared, "key_table_bytes")),
        ("keys.count", gauge(shared, "objects")),
    ];
    let integer = |number: u64| Reply::Integer(number as i64);
    Reply::Map(pairs.map(|(name, number)| (Reply::bulk(name), integer(number))).into())
}

pub(super) fn doctor(connection: &Rc<Connection>, _: &Args<'_>) -> Run {
    measured(connection, advice)
}

fn advice(core: &Core) -> Reply {
    let shared = &core.shared;
    let (resident, machine) =
        (shared.process.resident_bytes.load(Relaxed), shared.process.machine_bytes.load(Relaxed));
    let clients = shared.sum(|core| core.held_bytes.get());
    let mut text = String::new();
    if machine > 0 && resident > machine / 4 * 3 {
        text.push_str(
            "* The process holds more than three quarters of the machine's memory. Most of it is the index, \
             about 20 bytes a key: fewer keys or a larger machine help.\n",
        );
    }
    if clients > (shared.settings.budget.client_bytes_max / 2) as u64 {
        text.push_str(
            "* Clients hold much: commands being received and under way, replies that wait. Look for those \
             with a large tot-mem in CLIENT LIST.\n",
        );
    }
    if text.is_empty() {
        text.push_str("No memory problem was found.\n");
    }
    Reply::Text(text.into_bytes())
}

/// The allocator gives pages back by itself; there is nothing to wait for.
pub(super) fn purge(_: &Rc<Connection>, _: &Args<'_>) -> Run {
    Run::Now(Reply::Ok)
}
