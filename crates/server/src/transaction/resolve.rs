//! After a start: what became of the transactions that had prepared when the server ended.
//!
//! Each partition with such a transaction asks the other participants. All prepared (or applied): it was
//! committed, and perhaps its client was told; it is applied. One of them knows nothing: it never was, and
//! nobody was told; it is given up. What has been applied is forgotten when nobody will ask any more.
//!
//! Invariants: presumed abort; nothing is forgotten before every participant has durably applied. Until a
//! transaction is resolved its keys are held, and only they wait; and who counts or lists keys, until all
//! that had prepared were looked at once.

use super::phases::Phase;
use crate::core::Core;
use crate::limits::{STEP_RETRY_NS, STEPS_IN_FLIGHT_MAX};
use futures_util::future::join_all;
use plimsoll_kv::transaction::{Action, Outstanding, Status};
use plimsoll_kv::{Durability, Output, Result};
use std::rc::Rc;

/// Transactions of a partition that are looked at together. The rest of the steps is for clients.
const TOGETHER: usize = STEPS_IN_FLIGHT_MAX / 2;

/// Brings the transactions of a partition to their ends.
pub(crate) async fn resolve(core: Rc<Core>, partition: u16) {
    let mut starting = Some(Phase::of_a_start(&core));
    loop {
        match resolve_once(&core, partition, &mut starting).await {
            Ok(true) => return,
            Ok(false) => {}
            Err(error) => tracing::warn!(partition, %error, "asking for a transaction again"),
        }
        // What has to be tried again keeps nobody from counting.
        starting.take();
        // Until the last client has gone, one may wait for what is held.
        if core.has_stopped() {
            return;
        }
        core.reactor.sleep_ns(STEP_RETRY_NS).await;
    }
}

/// True if nothing is left. What was prepared is looked at first, and then the start is no phase any more.
async fn resolve_once(core: &Rc<Core>, partition: u16, starting: &mut Option<Phase>) -> Result<bool> {
    let outstanding = match step(core, partition, None, Action::Outstanding).await? {
        Output::Outstanding(outstanding) => outstanding,
        _ => unreachable!("it was asked for what is outstanding"),
    };
    let one = async |known: &Outstanding| resolve_one(core, partition, known).await;
    in_turn(outstanding, one, || drop(starting.take())).await
}

/// Does something with each transaction; whether all are done with. Clients wait for the keys of those that
/// were prepared, and for nothing of those that were applied: these come last.
async fn in_turn(
    outstanding: Vec<Outstanding>,
    one: impl AsyncFn(&Outstanding) -> Result<bool>,
    held_are_done: impl FnOnce(),
) -> Result<bool> {
    let (held, applied): (Vec<_>, Vec<_>) =
        outstanding.into_iter().partition(|known| known.status == Status::Prepared);
    let of_held = each_of(&held, &one).await;
    held_are_done();
    let of_applied = each_of(&applied, &one).await;
    of_held.and_then(|all| Ok(of_applied? && all))
}

/// Several at a time. One that cannot be resolved yet holds up no other.
async fn each_of(known: &[Outstanding], one: &impl AsyncFn(&Outstanding) -> Result<bool>) -> Result<bool> {
    let mut resolved = Ok(true);
    for some in known.chunks(TOGETHER) {
        for done in join_all(some.iter().map(|known| one(known))).await {
            resolved = resolved.and_then(|all| Ok(done? && all));
        }
    }
    resolved
}

/// Brings a transaction one step further; true if it is forgotten.
async fn resolve_one(core: &Rc<Core>, partition: u16, known: &Outstanding) -> Result<bool> {
    let mut others = Vec::new();
    for other in known.participants.iter().filter(|other| **other != partition) {
        others.push(status_at(core, *other, known).await?);
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
            let is_durable = status_at(core, partition, known).await? == Status::Applied;
            if is_durable {
                step(core, partition, Some(known), Action::Forget).await?;
            }
            Ok(is_durable)
        }
        Status::Applied => Ok(false),
        Status::Unknown => Ok(true),
    }
}

/// How far a transaction is at a partition, durably.
async fn status_at(core: &Core, partition: u16, known: &Outstanding) -> Result<Status> {
    match step(core, partition, Some(known), Action::Status).await? {
        Output::Status(status) => Ok(status),
        _ => unreachable!("it was asked for a status"),
    }
}

async fn step(core: &Core, partition: u16, known: Option<&Outstanding>, action: Action) -> Result<Output> {
    core.volume.clone().step(partition, known.map(|known| known.id), action, Durability::Sync).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use plimsoll_kv::{Error, TransactionId, Version};
    use std::cell::{Cell, RefCell};
    use std::future::poll_fn;
    use std::task::Poll;

    fn known(clock: u64, status: Status) -> Outstanding {
        let id = TransactionId { partition: 0, version: Version { epoch: 1, clock } };
        Outstanding { id, participants: vec![0, 1], status }
    }

    /// A server that had applied many in its last second kept the keys of the newest for as long as it took
    /// to forget those.
    #[test]
    fn those_that_hold_keys_come_first_and_several_at_a_time() {
        let applied = (0..1000).map(|clock| known(clock, Status::Applied));
        let held = (1000..1010).map(|clock| known(clock, Status::Prepared));
        let (order, at_once, most) = (RefCell::new(Vec::new()), Cell::new(0), Cell::new(0));
        let one = async |known: &Outstanding| {
            at_once.set(at_once.get() + 1);
            most.set(most.get().max(at_once.get()));
            let mut waited = false;
            poll_fn(|context| {
                context.waker().wake_by_ref();
                if std::mem::replace(&mut waited, true) { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            at_once.set(at_once.get() - 1);
            order.borrow_mut().push(known.id.version.clock);
            match known.id.version.clock {
                1000 => Err(Error::Overloaded),
                _ => Ok(true),
            }
        };
        let mut done = Box::pin(in_turn(applied.chain(held).collect(), one, || {}));
        let resolved = loop {
            if let Some(resolved) = done.as_mut().now_or_never() {
                break resolved;
            }
        };
        assert_eq!(resolved, Err(Error::Overloaded), "and the others were looked at");
        drop(done);
        let order = order.take();
        assert_eq!((order.len(), most.get()), (1010, TOGETHER));
        assert!(order[..10].iter().all(|clock| *clock >= 1000), "{:?}", &order[..20]);
    }
}
