//! Where a command's keys are: the volume, or a transaction that is under way.
//!
//! Role: what commands send their operations to, so that inside EXEC they do what they do elsewhere. Place
//! on the path: between a command and the volume.

use crate::core::Core;
use crate::transaction::Transaction;
use futures_util::future::Either;
use plimsoll_kv::{Op, Output, Result};
use std::rc::Rc;

/// Where operations go.
#[derive(Clone)]
pub(crate) struct Keyspace {
    core: Rc<Core>,
    transaction: Option<Rc<Transaction>>,
}

impl Keyspace {
    pub(crate) fn new(core: &Rc<Core>, transaction: Option<Rc<Transaction>>) -> Keyspace {
        Keyspace { core: core.clone(), transaction }
    }

    pub(crate) fn core(&self) -> &Rc<Core> {
        &self.core
    }

    /// True inside of a transaction.
    pub(crate) fn is_transaction(&self) -> bool {
        self.transaction.is_some()
    }

    /// Executes an operation.
    pub(crate) fn execute(&self, op: Op) -> impl Future<Output = Result<Output>> + use<> {
        match &self.transaction {
            None => Either::Left(self.core.clone().execute(op)),
            Some(transaction) => Either::Right(transaction.clone().execute(op)),
        }
    }
}
