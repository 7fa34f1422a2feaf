//! Where a command's keys are: the volume, or a transaction that is under way.
//!
//! Role: what commands send their operations to, so that inside EXEC they do what they do elsewhere. Place
//! on the path: between a command and the volume.

use crate::core::Core;
use crate::reply::{Pinned, Reply};
use crate::session::Upload;
use crate::transaction::{self, Transaction};
use crate::volume::Question;
use futures_util::future::Either;
use plimsoll_kv::{ContainerId, LocalFuture, Op, Output, Payload, Result, Retrieved, Stats, Value};
use std::rc::Rc;

/// Where operations go.
#[derive(Clone)]
pub(crate) struct Keyspace {
    core: Rc<Core>,
    transaction: Option<Rc<Transaction>>,
    /// See [`Keyspace::patient`].
    is_patient: bool,
}

/// Whether an operation is the first of what a client asks for, so that nothing was done when it is refused.
/// Others go on with what has begun, or give it back.
fn is_first(op: &Op) -> bool {
    match op {
        Op::Store { value, .. } => !matches!(value, Value::Upload(_)),
        Op::Retrieve { .. }
        | Op::Exist { .. }
        | Op::Describe { .. }
        | Op::Delete { .. }
        | Op::SetExpiry { .. }
        | Op::UploadBegin { .. } => true,
        _ => false,
    }
}

/// Whether an operation lists keys of a whole database.
fn is_listing(op: &Op) -> bool {
    matches!(op, Op::List { .. } | Op::Scan { .. })
}

impl Keyspace {
    pub(crate) fn new(core: &Rc<Core>, transaction: Option<Rc<Transaction>>) -> Keyspace {
        Keyspace { core: core.clone(), transaction, is_patient: false }
    }

    /// The same for a command of several keys that is no transaction: one of them refused, others would be
    /// done, so all are waited for.
    pub(crate) fn patient(self) -> Keyspace {
        Keyspace { is_patient: true, ..self }
    }

    pub(crate) fn core(&self) -> &Rc<Core> {
        &self.core
    }

    /// True inside of a transaction.
    pub(crate) fn is_transaction(&self) -> bool {
        self.transaction.is_some()
    }

    /// Executes an operation. A value longer than a record is stored in parts; the store is then not in
    /// the first poll: who has several operations waits for it.
    pub(crate) fn execute(&self, op: Op) -> impl Future<Output = Result<Output>> + use<> {
        // What is rare and long has memory of its own: the futures of all commands, which are moved to where
        // they are polled, would be four times as long.
        let apart: LocalFuture<Result<Output>> = match &self.transaction {
            Some(transaction) => Box::pin(transaction.clone().execute(op)),
            None if self.is_long(&op) => Box::pin(self.clone().store_long(op)),
            None if is_listing(&op) && !self.core.has_started.get() => {
                Box::pin(self.clone().list_when_started(op))
            }
            None => {
                let may_be_late = self.is_patient || !is_first(&op);
                let deadline_ns = if may_be_late { 0 } else { self.core.volume.deadline_ns() };
                return Either::Left(self.core.clone().execute(op, deadline_ns));
            }
        };
        Either::Right(apart)
    }

    /// Retrieves the whole value of a key, pinned if it stands in parts.
    pub(crate) fn retrieve_whole(
        &self,
        container: ContainerId,
        key: Rc<[u8]>,
    ) -> impl Future<Output = Result<Retrieved>> + use<> {
        if let Some(transaction) = &self.transaction {
            let executed = transaction.clone().execute(Op::retrieve_whole(container, &key));
            let apart: LocalFuture<Result<Retrieved>> =
                Box::pin(async move { executed.await.map(Output::into_retrieved) });
            return Either::Right(apart);
        }
        let deadline_ns = if self.is_patient { 0 } else { self.core.volume.deadline_ns() };
        Either::Left(self.core.volume.clone().retrieve_by(container, key, deadline_ns))
    }

    async fn list_when_started(self, op: Op) -> Result<Output> {
        transaction::started(&self.core).await;
        self.core.execute(op, 0).await
    }

    /// Tells all cores something: inside of a transaction when it is committed.
    pub(crate) async fn tell(&self, message: Question) {
        match &self.transaction {
            Some(transaction) => transaction.tells(message),
            None => drop(self.core.volume.ask_all(message).await),
        }
    }

    /// What a database holds.
    pub(crate) async fn count(&self, container: ContainerId) -> Result<Stats> {
        if self.transaction.is_none() {
            return Ok(transaction::count(&self.core, std::iter::once(container)).await?[0]);
        }
        match self.execute(Op::Stats { container }).await? {
            Output::Stats(stats) => Ok(stats),
            _ => unreachable!("counting gives counters"),
        }
    }

    /// A part of a pinned value.
    pub(crate) async fn part(&self, pinned: &Pinned, part: u32) -> Result<Vec<u8>> {
        let (upload, key) = (pinned.upload, pinned.key.clone());
        match self.execute(Op::RetrievePart { upload, key, part, range: None }).await? {
            Output::Found(item) => Ok(item.bytes),
            _ => unreachable!("a part is found"),
        }
    }

    /// Reads all of a value that was retrieved, and may stand in parts, without keeping it: what cannot be
    /// given is not taken away.
    ///
    /// # Errors
    /// A part of it cannot be read.
    pub(crate) async fn prove(&self, value: &Reply) -> Result<()> {
        let Reply::Parts(pinned) = value else { return Ok(()) };
        let parts = pinned.length.div_ceil(self.core.volume.geometry().part_bytes as u64);
        for part in 0..parts {
            self.part(pinned, part as u32).await?;
        }
        Ok(())
    }

    /// True if a value is longer than a record.
    pub(crate) fn is_long_value(&self, bytes: usize) -> bool {
        bytes > self.core.volume.geometry().value_bytes_max
    }

    fn is_long(&self, op: &Op) -> bool {
        matches!(op, Op::Store { value: Value::Bytes(bytes), .. } if self.is_long_value(bytes.len()))
    }

    /// Writes a value in parts and stores it.
    async fn store_long(self, mut op: Op) -> Result<Output> {
        let Op::Store { container, key, value, form, .. } = &mut op else { unreachable!("looked at before") };
        let Value::Bytes(bytes) = std::mem::replace(value, Value::Bytes(Payload::default())) else {
            unreachable!("looked at before")
        };
        let bytes = bytes.into_bytes();
        let upload = Upload::begin(&self, *container, key, bytes.len() as u64, *form).await?;
        for part in bytes.chunks(self.core.volume.geometry().part_bytes) {
            upload.write(part.to_vec()).await?;
        }
        *value = Value::Upload(upload.id);
        let stored = self.core.clone().execute(op, 0).await?;
        upload.stored();
        Ok(stored)
    }
}

#[cfg(test)]
mod tests {
    use super::is_first;
    use plimsoll_kv::{Condition, ContainerId, Expiry, Op, UploadId, Value};

    /// What gives back space, or goes on with what has begun, is never refused.
    #[test]
    fn what_has_begun_is_not_refused() {
        let (upload, key, container) = (UploadId(1), b"k".to_vec(), ContainerId(0));
        let store = |value| Op::Store {
            container,
            key: key.clone(),
            value,
            condition: Condition::None,
            expiry: Expiry::Never,
            retain: false,
            want_previous: false,
            form: None,
        };
        assert!(is_first(&store(Value::from(b"v".to_vec()))));
        assert!(is_first(&Op::Delete { container, key: key.clone(), condition: Condition::None }));
        for op in [
            store(Value::Upload(upload)),
            Op::UploadPart { upload, key: key.clone(), bytes: Vec::new() },
            Op::UploadAbort { upload, key: key.clone() },
            Op::RetrievePart { upload, key: key.clone(), part: 1, range: None },
            Op::Unpin { upload, key: key.clone() },
        ] {
            assert!(!is_first(&op), "{op:?}");
        }
    }
}
