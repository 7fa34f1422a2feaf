//! Steps of transactions on their way to a partition.
//!
//! Invariants: a transaction begins when it has one of the places of its core, so that the number of those
//! that wait to hold something is bounded; other steps wait for nobody's keys, and have permits that no
//! request can use up that does. So a transaction that holds what it wants always comes to its end.

use super::{Lane, Volume};
use plimsoll_kv::transaction::Action;
use plimsoll_kv::{Durability, Op, Output, Request, Result, TransactionId};
use plimsoll_reactor::sync::Permit;
use std::rc::Rc;

impl Volume {
    /// A place among the transactions of this core, when there is one.
    ///
    /// # Errors
    /// That took too long.
    pub async fn transaction(&self) -> Result<Permit> {
        self.permit(&self.transactions, self.deadline_ns()).await
    }

    /// Does what a transaction needs beside its steps: parts of values, counts and pages of keys. It waits
    /// for nobody's keys.
    ///
    /// # Errors
    /// Those of the partition.
    pub async fn execute_for_transaction(self: Rc<Self>, request: Request) -> Result<Output> {
        let completion = match self.partition_of(&request.op)? {
            Some(partition) => self.execute_at(partition, request, Lane::Steps).await?,
            None => self.execute_everywhere(request, Lane::Steps).await?,
        };
        Ok(completion.output)
    }

    /// Makes durable what a partition has acknowledged so far.
    ///
    /// # Errors
    /// Those of the partition.
    pub async fn sync_partition(self: Rc<Self>, partition: u16) -> Result<()> {
        let request = Request::new(Durability::Sync, Op::Sync);
        self.execute_at(partition, request, Lane::Steps).await.map(|_| ())
    }

    /// Does a step of a transaction at a partition. Only who has a place holds anything.
    ///
    /// # Errors
    /// Those of the partition.
    pub async fn step(
        self: Rc<Self>,
        partition: u16,
        id: Option<TransactionId>,
        action: Action,
        durability: Durability,
    ) -> Result<Output> {
        let holds = matches!(action, Action::Hold(_));
        let request = Request::new(durability, Op::Transaction { partition, id, action });
        if let Some(device) = self.own(partition) {
            let start_ns = self.reactor.now_ns();
            let result = device.clone().execute(request).await;
            let device_ns = self.reactor.now_ns().saturating_sub(start_ns);
            return self.reckon(result, device_ns).map(|completion| completion.output);
        }
        let owner = self.geometry.owner(partition, self.reactor.cores());
        let permit = match holds {
            true => None,
            false => Some(self.steps[usize::from(owner.0)].acquire(1).await),
        };
        self.send(owner, partition, request, permit).await.map(|completion| completion.output)
    }
}
