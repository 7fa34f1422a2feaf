//! What transactions hold, and when it changes.
//!
//! Place on the path: the steps of transactions on their way to the partition.
//!
//! From the instant at which a transaction asks for keys until it has ended at this partition they count as
//! being changed: a transaction that is committed elsewhere and not applied here yet must not be seen half.
//! What it writes is forgotten when it begins to be written, so that one that only reads costs the cache
//! nothing.
//!
//! Invariants:
//! * a step that writes for a transaction that was not seen to begin (it prepared before a crash) changes
//!   everything;
//! * a transaction whose step failed holds what it held until it is released; if it never is, because the
//!   partition takes no more writes, its keys are never given from memory again.

use crate::changes::Changing;
use crate::device::Cache;
use crate::planted::{Bug, is_planted};
use plimsoll_kv::transaction::{Action, Held, Status};
use plimsoll_kv::{Completion, ContainerId, Op, Output, Request, Result, TransactionId};
use std::rc::Rc;

/// What a transaction holds.
pub(crate) struct Holding {
    /// Lives as long as the keys are held.
    _changing: Changing,
    held: Held,
}

impl Cache {
    /// A step of a transaction.
    pub(crate) async fn transact(self: Rc<Self>, request: Request) -> Result<Completion> {
        let Op::Transaction { id, action, .. } = &request.op else {
            unreachable!("no step of a transaction")
        };
        match (action, *id) {
            (Action::Hold(held), _) => {
                let held = held.clone();
                self.hold(held, request).await
            }
            (Action::Commit { writes }, Some(id)) => {
                let holding = self.held.borrow_mut().remove(&id);
                if holding.is_some() {
                    writes.iter().for_each(|write| self.forget_written(write));
                }
                self.end(id, holding, request).await
            }
            (Action::Apply, Some(id)) => {
                let holding = self.held.borrow_mut().remove(&id);
                let held = holding.as_ref().map(|holding| &holding.held);
                let late = held.filter(|_| is_planted(Bug::HitWhileHeld)).cloned();
                held.filter(|_| late.is_none()).into_iter().for_each(|held| self.forget_held(held));
                let result = self.end(id, holding, request).await;
                late.iter().for_each(|held| self.forget_held(held));
                result
            }
            (Action::Release, Some(id)) => {
                let holding = self.held.borrow_mut().remove(&id);
                self.end(id, holding, request).await
            }
            // These read, or write down what is not done yet. A step that names no transaction is refused.
            (Action::Retrieve { .. } | Action::Prepare { .. } | Action::Forget, _)
            | (Action::Status | Action::Outstanding, _)
            | (Action::Commit { .. } | Action::Apply | Action::Release, None) => {
                self.below.clone().execute(request).await
            }
        }
    }

    async fn hold(&self, held: Held, request: Request) -> Result<Completion> {
        let changing = if held.everything {
            self.changes.begin_everything()
        } else {
            let hashes = held.keys.iter().map(|(container, key)| self.hash(*container, key));
            self.changes.begin_many(hashes)
        };
        let result = self.below.clone().execute(request).await;
        if let Ok(Completion { output: Output::Held(id), .. }) = &result {
            self.held.borrow_mut().insert(*id, Holding { _changing: changing, held });
        }
        result
    }

    /// A step that ends a transaction here, unless it only prepares. What it held is free afterwards, also if
    /// this is given up half-way: a later step of it is one of a transaction that was not seen to begin.
    async fn end(&self, id: TransactionId, holding: Option<Holding>, request: Request) -> Result<Completion> {
        let unknown = holding.is_none().then(|| self.begin_unknown_change());
        let result = self.below.clone().execute(request).await;
        let has_ended =
            !matches!(result, Err(_) | Ok(Completion { output: Output::Status(Status::Prepared), .. }));
        if let (false, Some(holding)) = (has_ended, holding) {
            self.held.borrow_mut().insert(id, holding);
        }
        drop(unknown);
        result
    }

    fn forget_written(&self, write: &Op) {
        match (write, write.place()) {
            (_, Some((container, key))) => self.forget(container, key),
            (Op::Clear { container }, _) => self.forget_container(*container),
            _ => self.forget_everything(),
        }
    }

    fn forget_held(&self, held: &Held) {
        if held.everything {
            return self.forget_everything();
        }
        held.keys.iter().for_each(|(container, key): &(ContainerId, Vec<u8>)| self.forget(*container, key));
    }
}
