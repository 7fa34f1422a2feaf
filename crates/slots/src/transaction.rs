//! Transactions: what they hold, what they have prepared, what becomes of it.
//!
//! Role: the steps that a coordinator asks for (`plimsoll_kv::transaction`), as the flash engine has them.
//! Place on the path: beside the operations on single keys.
//!
//! Invariants: what a transaction holds nobody else writes before its end; what it has prepared is durable,
//! holds its keys again after a crash, and keeps its uploads; one store decides that it is applied.
//!
//! Never: it decides what becomes of a transaction over several partitions.

use crate::drive::DriveKey;
use crate::intent::{Intent, IntentHead};
use crate::object::{self, Expires, Kind, Record, Rider};
use crate::parts::Manifest;
use crate::plan::{Mode, What, Write};
use crate::slots::{GENERATIONS, Slots};
use plimsoll_kv::key_locks::{EverythingGuard, KeyGuard, KeyId};
use plimsoll_kv::limits::KEY_BYTES_MAX;
use plimsoll_kv::transaction::{Action, Held, Outstanding, Status};
use plimsoll_kv::{
    Condition, ContainerId, Durability, Error, Expiry, Op, Output, Result, TransactionId, Version,
};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// Transactions that hold something at a time: each stands for a client.
const TRANSACTIONS_MAX: usize = 4096;
const UNKNOWN: Error = Error::Invalid("no such transaction");

/// The transactions of a drive.
#[derive(Default)]
pub(crate) struct Transactions {
    pub(crate) open: BTreeMap<TransactionId, Holding>,
    /// Those that were applied and are not forgotten, with their partitions.
    pub(crate) applied: BTreeMap<TransactionId, Vec<u16>>,
    /// Those that were known when the drive was opened.
    pub(crate) recovered: Vec<TransactionId>,
}

/// What a transaction holds.
pub(crate) struct Holding {
    _keys: Vec<KeyGuard>,
    ids: BTreeSet<KeyId>,
    everything: Option<EverythingGuard>,
    /// When it began to hold: what had not expired then stays for it.
    since_ms: u64,
    prepared: Option<Rc<Prepared>>,
    /// It was to be applied: there is no way back.
    is_decided: bool,
    /// It is being applied.
    is_applying: bool,
}

/// What a transaction has prepared.
pub(crate) struct Prepared {
    key: DriveKey,
    intent: Intent,
    writes: Vec<Write>,
}

fn rider_of(write: &Write) -> Vec<u8> {
    let (kind, value) = match &write.what {
        What::Bytes(bytes) => (Kind::Value, bytes.clone()),
        What::Parts(parts) => (Kind::Manifest, parts.manifest().encode()),
        What::Delete => (Kind::Tombstone, Vec::new()),
        What::SetExpiry => (Kind::SetExpiry, Vec::new()),
        What::Clear => (Kind::Clear, Vec::new()),
        What::Upload(_) | What::Edit(_) => unreachable!("looked at before"),
    };
    let expires = match write.expiry {
        Expiry::Never => Expires::Never,
        Expiry::At(at_ms) => Expires::At(at_ms),
        Expiry::Keep => Expires::AsBefore,
    };
    let record = Record { container: write.container, expires, ..Record::named(kind, write.key.clone()) };
    object::encode_rider(&record, &value)
}

impl Slots {
    pub(crate) async fn hold(
        &self,
        partition: u16,
        id: Option<TransactionId>,
        held: &Held,
    ) -> Result<Output> {
        if held.keys.iter().any(|(_, key)| key.len() > KEY_BYTES_MAX) {
            return Err(Error::KeyTooLong);
        }
        if self.transactions.borrow().open.len() >= TRANSACTIONS_MAX {
            return Err(Error::Overloaded);
        }
        let holding = self.hold_now(held).await;
        let id = id.unwrap_or_else(|| TransactionId { partition, version: self.next_version() });
        let before = self.transactions.borrow_mut().open.insert(id, holding);
        assert!(before.is_none(), "a transaction holds at a partition once");
        Ok(Output::Held(id))
    }

    async fn hold_now(&self, held: &Held) -> Holding {
        let (mut ids, mut keys, mut everything) = (BTreeSet::new(), Vec::new(), None);
        if held.everything {
            everything = Some(self.locks.lock_everything().await);
        } else {
            ids = held.keys.iter().map(|(container, key)| Slots::lock_id(*container, key)).collect();
            keys = self.locks.keep(&ids.iter().copied().collect::<Vec<_>>()).await;
        }
        let since_ms = self.clock.now_ms();
        Holding {
            _keys: keys,
            ids,
            everything,
            since_ms,
            prepared: None,
            is_decided: false,
            is_applying: false,
        }
    }

    /// Looks at what a transaction holds.
    fn holding<T>(&self, id: TransactionId, look: impl FnOnce(&mut Holding) -> T) -> Result<T> {
        self.transactions.borrow_mut().open.get_mut(&id).map(look).ok_or(UNKNOWN)
    }

    pub(crate) async fn retrieve_held(
        &self,
        id: TransactionId,
        container: ContainerId,
        key: &[u8],
        range: Option<(u64, u64)>,
        pin: bool,
    ) -> Result<Output> {
        let since_ms = self.holding(id, |holding| {
            let holds = holding.everything.is_some() || holding.ids.contains(&Slots::lock_id(container, key));
            holds.then_some(holding.since_ms)
        })?;
        let since_ms = since_ms.ok_or(Error::Invalid("a key that the transaction does not hold"))?;
        self.retrieve_kept((container, key), range, pin, since_ms).await
    }

    pub(crate) async fn transact(
        self: &Rc<Self>,
        id: Option<TransactionId>,
        action: Action,
    ) -> Result<Output> {
        if action == Action::Outstanding {
            return Ok(Output::Outstanding(self.outstanding()));
        }
        let id = id.ok_or(UNKNOWN)?;
        match action {
            Action::Commit { writes } => {
                let writes = self.transaction_writes(id, writes)?;
                let since_ms = self.holding(id, |holding| holding.since_ms)?;
                let guards = self.lock_generations(&writes).await;
                self.write(writes, Mode::Transaction { since_ms }, Durability::Sync).await?;
                drop(guards);
                self.transactions.borrow_mut().open.remove(&id);
                Ok(Output::Done)
            }
            Action::Prepare { participants, writes } => self.prepare_writes(id, participants, writes).await,
            Action::Apply => self.apply_prepared(id).await,
            Action::Release => self.release_held(id).await,
            Action::Forget => self.forget_applied(id).await,
            Action::Status => self.status(id).await,
            Action::Hold(_) | Action::Retrieve { .. } | Action::Outstanding => unreachable!("done before"),
        }
    }

    /// The adapter's own keys among those that are written are held beside everything.
    async fn lock_generations(&self, writes: &[Write]) -> crate::slots::Guards {
        let own = writes.iter().filter(|write| write.container == GENERATIONS).cloned().collect::<Vec<_>>();
        self.lock_writes(&own).await
    }

    /// The writes of a transaction, if it holds what they write.
    fn transaction_writes(&self, id: TransactionId, ops: Vec<Op>) -> Result<Vec<Write>> {
        let writes: Vec<Write> = ops.into_iter().map(Write::from_op).collect::<Result<_>>()?;
        self.holding(id, |holding| {
            for write in &writes {
                let lock = Slots::lock_id(write.container, &write.key);
                if holding.everything.is_none() && write.container == GENERATIONS {
                    return Err(Error::Invalid("a database is emptied by who holds everything"));
                }
                if holding.everything.is_none() && !holding.ids.contains(&lock) {
                    return Err(Error::Invalid("a key that the transaction does not hold"));
                }
                if matches!(write.what, What::Edit(_)) {
                    return Err(Error::Invalid("an edit in a transaction"));
                }
            }
            Ok(writes)
        })?
    }

    async fn prepare_writes(
        self: &Rc<Self>,
        id: TransactionId,
        participants: Vec<u16>,
        ops: Vec<Op>,
    ) -> Result<Output> {
        self.check_writable()?;
        let mut writes = self.transaction_writes(id, ops)?;
        if self.holding(id, |holding| holding.prepared.is_some())? {
            return Err(Error::Invalid("a transaction prepares once"));
        }
        let longest = self.superblock.borrow().value_bytes_max as usize;
        let mut uploads = Vec::new();
        for write in &mut writes {
            match &write.what {
                What::Bytes(bytes) if bytes.len() > longest => return Err(Error::ValueTooLong),
                What::Upload(upload) => {
                    uploads.push(*upload);
                    write.what = What::Parts(self.upload_whole(*upload, &write.key)?);
                }
                _ => {}
            }
            write.condition = Condition::None;
            let generation = self.state.borrow().generation(write.container);
            self.check_whole(write.container, generation, &write.key)?;
        }
        for write in &writes {
            if let What::Parts(parts) = &write.what {
                self.flushed(parts.flush()).await?;
            }
        }
        let body: Vec<u8> = writes.iter().flat_map(rider_of).collect();
        let head = IntentHead::Transaction(id, participants);
        let key = self.intent_key(&head);
        let intent = self.store_intent(key, Kind::Prepared, head, &body).await?;
        self.flushed(self.flushes.next()).await?;
        for upload in uploads {
            self.state.borrow_mut().uploads.pending.remove(&upload);
        }
        self.holding(id, |holding| holding.prepared = Some(Rc::new(Prepared { key, intent, writes })))?;
        Ok(Output::Done)
    }

    async fn apply_prepared(self: &Rc<Self>, id: TransactionId) -> Result<Output> {
        let (prepared, since_ms, is_applying) = self.holding(id, |holding| {
            holding.is_decided = holding.prepared.is_some();
            let is_applying = std::mem::replace(&mut holding.is_applying, holding.is_decided);
            (holding.prepared.clone(), holding.since_ms, is_applying)
        })?;
        let prepared = prepared.ok_or(UNKNOWN)?;
        if is_applying {
            return Err(Error::Overloaded);
        }
        let guards = self.lock_generations(&prepared.writes).await;
        let at = Some((prepared.key, prepared.intent.head.clone()));
        let mode = Mode::Transaction { since_ms };
        let applied = self.write_as(prepared.writes.clone(), mode, Durability::Sync, at).await;
        drop(guards);
        self.holding(id, |holding| holding.is_applying = false)?;
        applied?;
        // What it was prepared in is not there any more.
        prepared.intent.chunks.iter().for_each(|key| self.doomed.add(*key));
        let IntentHead::Transaction(_, participants) = &prepared.intent.head else {
            unreachable!("a transaction's intent")
        };
        let mut transactions = self.transactions.borrow_mut();
        transactions.applied.insert(id, participants.clone());
        transactions.open.remove(&id);
        drop(transactions);
        self.kick();
        Ok(Output::Done)
    }

    async fn release_held(self: &Rc<Self>, id: TransactionId) -> Result<Output> {
        let (prepared, is_decided) =
            self.holding(id, |holding| (holding.prepared.clone(), holding.is_decided))?;
        if is_decided {
            return Err(Error::ShuttingDown); // It stays held until it has been applied.
        }
        let mut given_up = Ok(());
        if let Some(prepared) = &prepared {
            given_up = self.delete_object(prepared.key).await;
            if given_up.is_ok() {
                prepared.intent.chunks.iter().for_each(|key| self.doomed.add(*key));
            }
        }
        self.transactions.borrow_mut().open.remove(&id);
        drop(prepared);
        self.kick();
        given_up.map(|()| Output::Done)
    }

    async fn forget_applied(self: &Rc<Self>, id: TransactionId) -> Result<Output> {
        if self.holding(id, |holding| holding.prepared.is_some()) == Ok(true) {
            return Err(Error::Invalid("a transaction that is not applied"));
        }
        let Some(participants) = self.transactions.borrow_mut().applied.remove(&id) else {
            return Ok(Output::Done);
        };
        let key = self.intent_key(&IntentHead::Transaction(id, participants));
        // While its writes stand there alone, it stays until they have places of their own.
        if !self.keeper.forget(key) {
            self.doomed.add(key);
        }
        self.kick();
        Ok(Output::Done)
    }

    async fn status(&self, id: TransactionId) -> Result<Output> {
        self.flushed(self.flushes.next()).await?;
        let transactions = self.transactions.borrow();
        let has_prepared = transactions.open.get(&id).is_some_and(|holding| holding.prepared.is_some());
        Ok(Output::Status(match transactions.applied.contains_key(&id) {
            true => Status::Applied,
            false if has_prepared => Status::Prepared,
            false => Status::Unknown,
        }))
    }

    fn outstanding(&self) -> Vec<Outstanding> {
        let transactions = self.transactions.borrow();
        let known = |id: &TransactionId| {
            if let Some(participants) = transactions.applied.get(id) {
                let participants = participants.clone();
                return Some(Outstanding { id: *id, participants, status: Status::Applied });
            }
            let prepared = transactions.open.get(id)?.prepared.as_ref()?;
            let IntentHead::Transaction(_, participants) = &prepared.intent.head else { return None };
            Some(Outstanding { id: *id, participants: participants.clone(), status: Status::Prepared })
        };
        transactions.recovered.iter().filter_map(known).collect()
    }

    /// Holds the keys of a transaction that had prepared when the drive was closed.
    pub(crate) async fn hold_again(
        &self,
        id: TransactionId,
        key: DriveKey,
        intent: Intent,
        riders: Vec<Rider>,
    ) -> Result<()> {
        let writes: Vec<Write> =
            riders.into_iter().map(|rider| self.write_of(rider)).collect::<Result<_>>()?;
        let everything = writes.iter().any(|write| write.container == GENERATIONS);
        let keys = writes.iter().map(|write| (write.container, write.key.clone())).collect();
        let mut holding = self.hold_now(&Held { keys, everything }).await;
        holding.prepared = Some(Rc::new(Prepared { key, intent, writes }));
        self.transactions.borrow_mut().open.insert(id, holding);
        Ok(())
    }

    /// A write that a transaction has prepared.
    fn write_of(&self, rider: Rider) -> Result<Write> {
        let Rider { record, value } = rider;
        let what = match record.kind {
            Kind::Value => What::Bytes(value),
            Kind::Manifest => {
                let manifest = Manifest::decode(&value);
                let manifest = manifest.ok_or(Error::Unreadable("a prepared manifest".to_owned()))?;
                What::Parts(self.parts_of(&manifest)?)
            }
            Kind::Tombstone => What::Delete,
            Kind::SetExpiry => What::SetExpiry,
            Kind::Clear => What::Clear,
            _ => return Err(Error::Unreadable("a prepared write of no known kind".to_owned())),
        };
        let expiry = match record.expires {
            Expires::Never => Expiry::Never,
            Expires::At(at_ms) => Expiry::At(at_ms),
            Expires::AsBefore => Expiry::Keep,
        };
        assert_eq!(record.sequence, Version::ZERO, "what is prepared has no place in the order yet");
        Ok(Write {
            container: record.container,
            key: record.key,
            what,
            condition: Condition::None,
            expiry,
            retain: false,
            want_previous: false,
        })
    }
}
