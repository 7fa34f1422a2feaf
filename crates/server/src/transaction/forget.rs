//! Forgetting: what has been applied at all of its participants is remembered by none of them for long.
//!
//! Role: a task of each core, for the transactions that were committed there. It keeps those that are
//! applied for a moment, so that many are forgotten at once. Place on the path: behind the last reply.
//!
//! Invariants: nothing is forgotten anywhere before every participant has durably applied it, so that nobody
//! who asks after a crash is told "unknown" of something that was committed; a participant that fails holds
//! up only the transactions that it took part in.
//!
//! Never: a client waits for it.

use super::is_left_to_the_next_start;
use crate::core::Core;
use crate::limits::FORGET_NS;
use futures_util::future::join_all;
use plimsoll_kv::transaction::Action;
use plimsoll_kv::{Result, TransactionId};
use plimsoll_reactor::sync::WaitList;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// Applied transactions that are not forgotten yet.
#[derive(Default)]
pub(crate) struct Forgetting {
    applied: RefCell<Vec<Applied>>,
    arrived: WaitList,
}

/// A transaction that has been applied at all of its participants.
struct Applied {
    id: TransactionId,
    /// The participants that have not forgotten it.
    known_at: Vec<u16>,
}

impl Forgetting {
    /// A transaction has been applied at all of its participants.
    pub(super) fn push(&self, id: TransactionId, participants: Vec<u16>) {
        self.applied.borrow_mut().push(Applied { id, known_at: participants });
        self.arrived.wake_all();
    }

    /// The core stops.
    pub(crate) fn wake(&self) {
        self.arrived.wake_all();
    }
}

/// Lets partitions forget what has been applied everywhere. Runs as long as the core serves.
pub(crate) async fn forget_applied(core: Rc<Core>) {
    let forgetting = &core.forgetting;
    loop {
        let stops = || (core.is_stopping() || !forgetting.applied.borrow().is_empty()).then_some(());
        forgetting.arrived.wait_for(stops).await;
        if core.is_stopping() {
            return; // The next start does it.
        }
        core.reactor.sleep_ns(FORGET_NS).await;
        let applied = std::mem::take(&mut *forgetting.applied.borrow_mut());
        let left = forget(&core, applied).await;
        forgetting.applied.borrow_mut().extend(left);
    }
}

/// Forgets what is durably applied at all participants; gives back what has to be tried again.
async fn forget(core: &Rc<Core>, applied: Vec<Applied>) -> Vec<Applied> {
    let participants: BTreeSet<u16> = applied.iter().flat_map(|one| one.known_at.iter().copied()).collect();
    let synced = participants
        .into_iter()
        .map(|partition| async move { (partition, core.volume.clone().sync_partition(partition).await) });
    let synced: BTreeMap<u16, Result<()>> = join_all(synced).await.into_iter().collect();
    for (partition, result) in &synced {
        if let Err(error) = result {
            tracing::warn!(partition, %error, "applied transactions are not forgotten yet");
        }
    }
    let mut left = Vec::new();
    for mut one in applied {
        let errors: Vec<_> =
            one.known_at.iter().filter_map(|partition| synced[partition].as_ref().err()).collect();
        if errors.iter().any(|error| is_left_to_the_next_start(error)) {
            continue;
        }
        if errors.is_empty() {
            one.known_at = forget_one(core, &one).await;
        }
        if !one.known_at.is_empty() {
            left.push(one);
        }
    }
    left
}

/// Forgets a transaction that is durably applied; the participants that have to be asked again.
async fn forget_one(core: &Core, one: &Applied) -> Vec<u16> {
    let durability = core.shared.settings.durability;
    let mut known_at = Vec::new();
    for partition in one.known_at.iter().copied() {
        let forgotten = core.volume.clone().step(partition, Some(one.id), Action::Forget, durability).await;
        if let Err(error) = forgotten {
            tracing::warn!(partition, %error, "an applied transaction is not forgotten yet");
            if !is_left_to_the_next_start(&error) {
                known_at.push(partition);
            }
        }
    }
    known_at
}
