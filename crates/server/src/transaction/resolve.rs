//! After a start: what became of the transactions that had prepared when the server ended.
//!
//! Each partition with such a transaction asks the other participants. All prepared (or applied): it was
//! committed, and perhaps its client was told; it is applied. One of them knows nothing: it never was, and
//! nobody was told; it is given up. What has been applied is forgotten when nobody will ask any more.
//!
//! Invariants: presumed abort; nothing is forgotten before every participant has durably applied. Until a
//! transaction is resolved its keys are held, and only they wait.

use crate::core::Core;
use crate::limits::STEP_RETRY_NS;
use plimsoll_kv::transaction::{Action, Outstanding, Status};
use plimsoll_kv::{Durability, Output, Result};
use std::rc::Rc;

/// Brings the transactions of a partition to their ends.
pub(crate) async fn resolve(core: Rc<Core>, partition: u16) {
    loop {
        match resolve_once(&core, partition).await {
            Ok(true) => return,
            Ok(false) => {}
            Err(error) => tracing::warn!(partition, %error, "asking for a transaction again"),
        }
        if core.is_stopping() {
            return;
        }
        core.reactor.sleep_ns(STEP_RETRY_NS).await;
    }
}

/// True if nothing is left.
async fn resolve_once(core: &Rc<Core>, partition: u16) -> Result<bool> {
    let outstanding = match step(core, partition, None, Action::Outstanding).await? {
        Output::Outstanding(outstanding) => outstanding,
        _ => unreachable!("it was asked for what is outstanding"),
    };
    let mut done = true;
    for known in outstanding {
        done &= resolve_one(core, partition, &known).await?;
    }
    Ok(done)
}

/// Brings a transaction one step further; true if it is forgotten.
async fn resolve_one(core: &Rc<Core>, partition: u16, known: &Outstanding) -> Result<bool> {
    let mut others = Vec::new();
    for other in known.participants.iter().filter(|other| **other != partition) {
        match step(core, *other, Some(known), Action::Status).await? {
            Output::Status(status) => others.push(status),
            _ => unreachable!("it was asked for a status"),
        }
    }
    let id = known.id.version;
    match known.status {
        Status::Prepared if others.contains(&Status::Unknown) => {
            tracing::info!(partition, transaction = %id, "given up: not every participant had prepared");
            step(core, partition, Some(known), Action::Release).await?;
            Ok(true)
        }
        Status::Prepared => {
            tracing::info!(partition, transaction = %id, "applied: every participant had prepared");
            step(core, partition, Some(known), Action::Apply).await?;
            Ok(false)
        }
        // Nobody who has applied it, or forgotten that, will ask.
        Status::Applied if !others.contains(&Status::Prepared) => {
            core.clone().execute(plimsoll_kv::Op::Sync).await?;
            step(core, partition, Some(known), Action::Forget).await?;
            Ok(true)
        }
        Status::Applied => Ok(false),
        Status::Unknown => Ok(true),
    }
}

async fn step(core: &Core, partition: u16, known: Option<&Outstanding>, action: Action) -> Result<Output> {
    core.volume.clone().step(partition, known.map(|known| known.id), action, Durability::Sync).await
}
