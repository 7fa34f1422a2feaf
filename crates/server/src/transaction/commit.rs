//! The end of a transaction.
//!
//! With one partition to write at, one request does it, if that is one write there. Otherwise each prepares;
//! when all have, durably, the transaction is committed, they apply what they prepared, and its client is
//! told. When that is durable everywhere they forget it (`forget`). Who counts keys sees nothing of it or all
//! (`phases`): so one of several databases prepares, too.
//!
//! Invariants: either everything is committed or nothing; what is held is given back in either case.

use super::phases::{Phase, Side};
use super::{Key, Transaction, is_left_to_the_next_start};
use crate::limits::STEP_RETRY_NS;
use futures_util::future::join_all;
use plimsoll_kv::transaction::{Action, Status};
use plimsoll_kv::{Form, Op, Output, Result, UploadId, Value};
use std::collections::BTreeMap;

impl Transaction {
    /// Commits what was written, unless an operation failed at a device.
    ///
    /// # Errors
    /// Nothing was written, unless the error says that a device failed or the server stops.
    pub(crate) async fn commit(&self) -> Result<()> {
        let failure = self.failure.borrow().clone();
        let writes = match failure {
            Some(error) => Err(error),
            None => self.writes().await,
        };
        let committed = match writes {
            Ok(writes) => self.commit_writes(writes).await,
            Err(error) => {
                self.release().await;
                Err(error)
            }
        };
        self.give_up_uploads().await;
        if committed.is_ok() {
            for message in self.messages.take() {
                self.core.volume.ask_all(message).await;
            }
        }
        committed
    }

    /// What is to be written at each partition; long values have been written in parts.
    async fn writes(&self) -> Result<BTreeMap<u16, Vec<Op>>> {
        let (cleared, writes) = std::mem::take(&mut *self.overlay.borrow_mut()).into_writes();
        let mut shares: BTreeMap<u16, Vec<Op>> = BTreeMap::new();
        for container in cleared {
            for partition in 0..self.core.volume.geometry().partitions {
                shares.entry(partition).or_default().push(Op::Clear { container });
            }
        }
        for mut write in writes {
            let key = write.key().expect("every write has a key").to_vec();
            if let Op::Store { container, value, form, .. } = &mut write {
                self.shorten((*container, key.clone()), value, *form).await?;
            }
            shares.entry(self.partition_of(&key)).or_default().push(write);
            self.pacer.step().await;
        }
        Ok(shares)
    }

    /// Writes a value in parts, if it is longer than a record.
    async fn shorten(&self, (container, key): Key, value: &mut Value, form: Option<Form>) -> Result<()> {
        let geometry = self.core.volume.geometry();
        let bytes = match value {
            Value::Bytes(bytes) if bytes.len() > geometry.value_bytes_max => {
                std::mem::take(bytes).into_bytes()
            }
            _ => return Ok(()),
        };
        let begin = Op::UploadBegin {
            container,
            key: key.clone(),
            length: bytes.len() as u64,
            shared_bytes: 0,
            form,
        };
        let Output::Upload(upload) = self.perform(begin).await? else {
            unreachable!("the beginning of an upload gives an upload")
        };
        for part in bytes.chunks(geometry.part_bytes) {
            let op = Op::UploadPart { upload, key: key.clone(), bytes: part.to_vec() };
            self.aside(op).await?;
        }
        *value = Value::Upload(upload);
        Ok(())
    }

    async fn commit_writes(&self, writes: BTreeMap<u16, Vec<Op>>) -> Result<()> {
        let uploads_of = |(partition, writes): (&u16, &Vec<Op>)| {
            let partition = *partition;
            writes.iter().filter_map(Op::upload).map(move |upload| (partition, upload)).collect::<Vec<_>>()
        };
        let stored: Vec<(u16, UploadId)> = writes.iter().flat_map(uploads_of).collect();
        let committed = if writes.len() > 1 || is_of_several_databases(&writes) {
            self.commit_at_several(writes).await
        } else {
            self.commit_at_one(writes.into_iter().next()).await
        };
        if committed.is_ok() {
            stored.iter().for_each(|upload| drop(self.uploads.borrow_mut().remove(upload)));
        }
        committed
    }

    async fn commit_at_one(&self, share: Option<(u16, Vec<Op>)>) -> Result<()> {
        let mut committed = Ok(());
        if let Some((partition, writes)) = share {
            match self.step(partition, Action::Commit { writes }).await {
                Ok(Output::Status(Status::Prepared)) => {
                    self.apply(vec![partition]).await;
                    return Ok(());
                }
                Ok(_) => self.partitions.borrow_mut().retain(|held| *held != partition),
                Err(error) => committed = Err(error),
            }
        }
        self.release().await;
        committed
    }

    async fn commit_at_several(&self, writes: BTreeMap<u16, Vec<Op>>) -> Result<()> {
        let participants: Vec<u16> = writes.keys().copied().collect();
        let prepared = writes.into_iter().map(|(partition, writes)| {
            self.step(partition, Action::Prepare { participants: participants.clone(), writes })
        });
        let prepared: Result<Vec<Output>> = join_all(prepared).await.into_iter().collect();
        if let Err(error) = prepared {
            self.release().await;
            return Err(error);
        }
        // From here on it is committed. Its client is told when it is applied too, which need not be durable:
        // what looks at a whole database waits for nobody's keys, and must see it.
        self.apply(participants).await;
        Ok(())
    }

    /// Lets the participants apply what they prepared, and the others give back what they hold.
    async fn apply(&self, participants: Vec<u16>) {
        let action = |partition: u16| match participants.contains(&partition) {
            true => Action::Apply,
            false => Action::Release,
        };
        let applying = Phase::enter(&self.core, Side::Applying).await;
        let held = std::mem::take(&mut *self.partitions.borrow_mut());
        let tried = join_all(held.iter().map(|partition| self.step(*partition, action(*partition)))).await;
        // What has to be tried again keeps nobody from counting.
        drop(applying);
        let each = held.into_iter().zip(tried);
        let each = each.map(|(partition, tried)| self.finish(partition, action(partition), tried));
        let applied = join_all(each).await.into_iter().all(|applied| applied);
        self.permit.borrow_mut().take();
        if applied && let Some(id) = self.id.get() {
            self.core.forgetting.push(id, participants);
        }
    }

    /// Does the last step at a partition, which was tried; false if that is left to the next start.
    async fn finish(&self, partition: u16, action: Action, mut tried: Result<Output>) -> bool {
        while let Err(error) = tried {
            if is_left_to_the_next_start(&error) {
                // What it prepared is durable: the next start applies it.
                tracing::warn!(partition, %error, "a committed transaction is not applied here yet");
                return false;
            }
            tracing::error!(partition, %error, "a committed transaction is applied again");
            self.core.reactor.sleep_ns(STEP_RETRY_NS).await;
            tried = self.step(partition, action.clone()).await;
        }
        true
    }

    /// Gives back everything that is held; what was prepared is given up.
    pub(crate) async fn release(&self) {
        let held = std::mem::take(&mut *self.partitions.borrow_mut());
        let each = held.into_iter().map(|partition| async move {
            if let Err(error) = self.step(partition, Action::Release).await {
                tracing::warn!(partition, %error, "a transaction ends with an error");
            }
        });
        join_all(each).await;
        self.permit.borrow_mut().take();
    }

    /// Ends without having written anything.
    pub(crate) async fn abandon(&self) {
        self.release().await;
        self.give_up_uploads().await;
    }

    /// Gives up the values in parts that became nobody's.
    async fn give_up_uploads(&self) {
        let left = std::mem::take(&mut *self.uploads.borrow_mut());
        for ((_, upload), (key, _)) in left {
            self.give_up(upload, key).await;
        }
    }

    /// Gives up a value in parts; who reads it reads on.
    pub(super) async fn give_up(&self, upload: UploadId, key: Vec<u8>) {
        if let Err(error) = self.aside(Op::UploadAbort { upload, key }).await {
            tracing::debug!(%error, "an upload was given up already");
        }
    }
}

/// True if more than one database is written.
fn is_of_several_databases(writes: &BTreeMap<u16, Vec<Op>>) -> bool {
    let mut databases = writes.values().flatten().map(|write| match write {
        Op::Clear { container } => *container,
        write => write.place().expect("every other write has a key").0,
    });
    let first = databases.next();
    databases.any(|database| Some(database) != first)
}
