//! Transactions at a partition: what they hold, what they have prepared, what becomes of it.
//!
//! Place on the path: beside the operations on single keys; a coordinator above asks for one step after
//! the other (`plimsoll_kv::transaction`). A transaction that writes here alone is one frame of the log
//! (`write`), if it fits one. Any other prepares: its writes stand in the log as an intent, and it is applied
//! when all participants have theirs. After a crash `recover` holds its keys again until it
//! is known what became of it.
//!
//! Invariants:
//! * what a transaction reads is durable before it is told, and nobody else writes it before the end;
//! * what is prepared can be done: its space is promised to it, and it goes on when the device is full;
//! * what is held is given back when the writes have their places in the log, so that what comes later
//!   comes later in the log too.
//!
//! Never: it decides what becomes of a transaction over several partitions.

mod hold;
mod recover;
mod room;
mod write;

use crate::fetch::{Extent, Lookup, ReadFrom};
use crate::format::intent::is_write;
use crate::format::note::note_bytes_max;
use crate::format::record::{part_key, record_bytes};
use crate::format::{Intent, Transition, TransitionKind, UNIT_BYTES};
use crate::partition::Partition;
use crate::planted::{Bug, is_planted};
use crate::targets;
use plimsoll_kv::key_locks::{EverythingGuard, KeyGuard, KeyId};
use plimsoll_kv::transaction::{Action, Status};
use plimsoll_kv::{ContainerId, Durability, Error, Lifetime, Op, Output, Result, TransactionId, Value};
use plimsoll_reactor::Pacer;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// Transactions that hold something at a time: each stands for a client.
const TRANSACTIONS_MAX: usize = 4096;
/// How long a write that was promised and cannot be done yet waits until it is tried again.
const RETRY_DELAY_NS: u64 = 10_000_000;

/// What the transactions of a partition hold.
#[derive(Default)]
pub(crate) struct Transactions {
    open: RefCell<BTreeMap<TransactionId, Holding>>,
    /// Units that the writes of prepared transactions will take.
    promised_units: Cell<u64>,
    /// Those that were known when the partition was opened.
    recovered: RefCell<Vec<TransactionId>>,
    /// Keys of committed transactions that a partition which takes no more writes cannot apply: what they
    /// hold is not what others see.
    stale: RefCell<BTreeSet<KeyId>>,
    /// All keys are.
    all_stale: Cell<bool>,
    room: room::RoomWaiters,
}

/// What a transaction holds.
struct Holding {
    keys: Vec<KeyGuard>,
    ids: BTreeSet<KeyId>,
    everything: Option<EverythingGuard>,
    prepared: Option<Promise>,
    /// Units that were empty when it began to hold everything, for what it stores.
    room_units: u64,
    /// When it began to hold: what had not expired then stays, for it, until it ends.
    since_ms: u64,
}

/// What a transaction has prepared.
struct Promise {
    intent: Rc<Intent>,
    units: u64,
    /// The upload that it is written to.
    upload: Option<u64>,
    /// Its note has its place in the log.
    noted: bool,
    /// It is being applied: there is no way back.
    decided: bool,
}

impl Promise {
    /// The uploads that become values.
    fn uploads(&self) -> Vec<u64> {
        self.intent.writes.iter().filter_map(Op::upload).map(|upload| upload.0).collect()
    }
}

impl Transactions {
    /// Units that will be live when what was prepared is applied.
    pub(crate) fn promised_units(&self) -> u64 {
        self.promised_units.get()
    }

    fn end(&self, id: TransactionId) -> Option<Holding> {
        let ended = self.open.borrow_mut().remove(&id);
        let promise = ended.as_ref().and_then(|holding| holding.prepared.as_ref());
        let units = promise.map_or(0, |promise| promise.units);
        self.promised_units.set(self.promised_units.get() - units);
        ended
    }

    fn promise(&self, id: TransactionId, intent: Intent, upload: Option<u64>) {
        let units = targets::record_bytes(&intent.writes) / UNIT_BYTES;
        self.promised_units.set(self.promised_units.get() + units);
        let noted = upload.is_some();
        let promise = Promise { intent: Rc::new(intent), units, upload, noted, decided: false };
        let mut open = self.open.borrow_mut();
        let holding = open.get_mut(&id).expect("looked at before");
        assert!(holding.prepared.replace(promise).is_none(), "a transaction prepares once");
    }

    /// What a transaction holds is given back without having been written: nobody may look at it.
    fn end_stale(&self, id: TransactionId) {
        if let Some(holding) = self.end(id) {
            self.all_stale.set(self.all_stale.get() || holding.everything.is_some());
            self.stale.borrow_mut().extend(&holding.ids);
        }
    }

    /// True if a key may not be looked at until the partition is opened again.
    pub(crate) fn is_stale(&self, id: KeyId) -> bool {
        self.all_stale.get() || self.stale.borrow().contains(&id)
    }

    /// Since when a key has been held, if a transaction holds it.
    pub(crate) fn holds_since_ms(&self, id: KeyId) -> Option<u64> {
        let open = self.open.borrow();
        let holds = |holding: &&Holding| holding.everything.is_some() || holding.ids.contains(&id);
        open.values().find(holds).map(|holding| holding.since_ms)
    }

    /// Looks at what a transaction has prepared.
    fn with_promise<T>(&self, id: TransactionId, look: impl FnOnce(&mut Promise) -> T) -> Option<T> {
        self.open.borrow_mut().get_mut(&id)?.prepared.as_mut().map(look)
    }
}

const UNKNOWN: Error = Error::Invalid("no such transaction");

impl Partition {
    pub(crate) async fn transact(
        self: &Rc<Self>,
        id: Option<TransactionId>,
        action: Action,
        lifetime: Lifetime,
        durability: Durability,
    ) -> Result<Output> {
        let named = id.ok_or(UNKNOWN);
        match action {
            Action::Hold(held) => self.hold_for(id, &held).await,
            Action::Outstanding => self.outstanding().await,
            Action::Retrieve { container, key, range, pin } => {
                self.retrieve_held(id, container, &key, range, pin).await
            }
            Action::Commit { writes } => self.commit_alone(named?, writes, lifetime, durability).await,
            Action::Prepare { participants, writes } => {
                self.prepare_writes(named?, participants, writes).await
            }
            Action::Apply => self.apply_prepared(named?).await,
            Action::Release => self.release_held(named?).await,
            Action::Forget => self.forget_applied(named?).await,
            Action::Status => Ok(Output::Status(self.status(named?).await?)),
        }
    }

    /// Looks whether a transaction holds a key, and since when.
    fn check_held(&self, id: TransactionId, container: ContainerId, key: &[u8]) -> Result<u64> {
        let open = self.transactions.open.borrow();
        let holding = open.get(&id).ok_or(UNKNOWN)?;
        if holding.everything.is_some() || holding.ids.contains(&self.place(container, key).lock_id()) {
            return Ok(holding.since_ms);
        }
        Err(Error::Invalid("a key that the transaction does not hold"))
    }

    /// Reads a key that a transaction holds; or, for nobody's, whoever holds it.
    async fn retrieve_held(
        self: &Rc<Self>,
        id: Option<TransactionId>,
        container: ContainerId,
        key: &[u8],
        range: Option<(u64, u64)>,
        pin: bool,
    ) -> Result<Output> {
        let since_ms = match id {
            Some(id) => self.check_held(id, container, key)?,
            None => self.now_ms(),
        };
        let extent = Extent::of_range(key, range);
        loop {
            let place = self.place(container, key);
            let found = match self.find(&place, key, extent, ReadFrom::Anywhere).await? {
                Lookup::Moved => continue,
                Lookup::Absent => Err(Error::NotFound),
                Lookup::Found(found) if found.is_expired(since_ms) => {
                    if id.is_some() {
                        self.expire_held(&place, key).await?;
                    }
                    Err(Error::NotFound)
                }
                Lookup::Found(found) => {
                    self.state.borrow().segments.marks.set(found.entry.location);
                    Ok(found)
                }
            };
            self.settle(&place).await?;
            if let Some(output) = self.output_of(&found?, range, pin).await? {
                return Ok(output);
            }
        }
    }

    /// Looks whether a transaction can do these writes; what it empties first, and what it does then.
    async fn check_writes(&self, id: TransactionId, writes: Vec<Op>) -> Result<(Vec<ContainerId>, Vec<Op>)> {
        let (mut clears, mut others, mut seen) = (Vec::new(), Vec::new(), BTreeSet::new());
        let pacer = Pacer::new(&self.reactor);
        for write in writes {
            pacer.step().await;
            if let (Op::Clear { container }, true) = (&write, others.is_empty()) {
                clears.push(*container);
                continue;
            }
            let Some((container, key)) = is_write(&write).then(|| write.place()).flatten() else {
                return Err(Error::Invalid("no write of a transaction"));
            };
            if !seen.insert((container, key.to_vec())) {
                return Err(Error::Invalid("a key stands in a transaction twice"));
            }
            self.check_held(id, container, key)?;
            match &write {
                Op::Store { value: Value::Bytes(value), .. }
                    if value.len() > self.layout.record_value_bytes_max() =>
                {
                    return Err(Error::ValueTooLong);
                }
                Op::Store { value: Value::Upload(upload), .. } => {
                    self.check_upload(upload.0, &self.place(container, key))?;
                    self.upload_length(upload.0)?;
                }
                _ => {}
            }
            others.push(write);
        }
        let alone = self.transactions.open.borrow().get(&id).is_some_and(|held| held.everything.is_some());
        if !clears.is_empty() && !alone {
            return Err(Error::Invalid("a database is emptied by who holds everything"));
        }
        Ok((clears, others))
    }

    async fn commit_alone(
        self: &Rc<Self>,
        id: TransactionId,
        writes: Vec<Op>,
        lifetime: Lifetime,
        durability: Durability,
    ) -> Result<Output> {
        let (clears, writes) = self.check_writes(id, writes).await?;
        if let Some(frame) = self.write_in_one_frame(id, &clears, &writes, lifetime, durability).await? {
            drop(self.transactions.end(id));
            self.acknowledge(frame, durability).await?;
            return Ok(Output::Done);
        }
        // Too much for one frame: what is durable before it begins is done to its end after a crash.
        self.prepare_intent(id, vec![self.layout.partition], clears, writes).await?;
        Ok(Output::Status(Status::Prepared))
    }

    async fn prepare_writes(
        self: &Rc<Self>,
        id: TransactionId,
        participants: Vec<u16>,
        writes: Vec<Op>,
    ) -> Result<Output> {
        let (clears, writes) = self.check_writes(id, writes).await?;
        self.prepare_intent(id, participants, clears, writes).await
    }

    async fn prepare_intent(
        self: &Rc<Self>,
        id: TransactionId,
        participants: Vec<u16>,
        clears: Vec<ContainerId>,
        writes: Vec<Op>,
    ) -> Result<Output> {
        if !participants.contains(&self.layout.partition) {
            return Err(Error::Invalid("a participant that is not named"));
        }
        if self.transactions.with_promise(id, |_| ()).is_some() {
            return Err(Error::Invalid("a transaction prepares once"));
        }
        let generation = |container| self.state.borrow().generation(container);
        let clears = clears.into_iter().map(|container| (container, generation(container))).collect();
        let intent = Intent { participants, clears, writes };
        let bytes = intent.encode();
        if targets::has_stores(&intent.writes) {
            self.admit_writes(id, targets::record_bytes(&intent.writes) + bytes.len() as u64).await?;
        } else {
            self.log.wait_for_room().await?;
        }
        self.look_at_targets(&intent.writes).await?;
        self.transactions.promise(id, intent, None);
        let frame = self.write_intent(id, &bytes).await?;
        if is_planted(Bug::EarlyRelease) {
            let held =
                self.transactions.open.borrow_mut().get_mut(&id).map(|held| std::mem::take(&mut held.keys));
            drop(held);
        }
        if !is_planted(Bug::EarlyPrepare) {
            self.log.wait_durable(frame).await?;
        }
        Ok(Output::Done)
    }

    /// Writes an intent in parts, then the note that the transaction has prepared; the frame of that.
    async fn write_intent(self: &Rc<Self>, id: TransactionId, bytes: &[u8]) -> Result<u64> {
        let part_bytes = self.layout.part_bytes() as usize;
        let slot = plimsoll_kv::Slot::range_of(self.layout.partition, self.layout.partitions).start as u16;
        let upload = {
            let mut state = self.state.borrow_mut();
            state.next_upload += 1;
            state.next_upload - 1
        };
        let begin = Transition {
            slot,
            previous: bytes.len() as u64,
            argument: upload,
            ..Transition::new(TransitionKind::UploadBegin)
        };
        self.reserve_promised(note_bytes_max(1), 1).await?;
        self.commit_note(&[begin], Durability::Group);
        self.transactions.with_promise(id, |promise| promise.upload = Some(upload));
        for (number, part) in bytes.chunks(part_bytes).enumerate() {
            let size = record_bytes(part_key(0, 0).len(), part.len()) as usize;
            self.log.wait_for_room().await?;
            self.reserve_promised(size + note_bytes_max(1), 1).await?;
            self.append_part((upload, number as u32), 0, slot, part, Durability::Sync);
            self.reactor.yield_now().await;
        }
        let uploads = self.transactions.with_promise(id, |promise| promise.uploads());
        let uploads = uploads.expect("promised before");
        self.reserve_promised(note_bytes_max(1 + uploads.len()), 1 + uploads.len()).await?;
        let kept = uploads.into_iter().map(|of| Partition::upload_note(TransitionKind::UploadPromise, of));
        let prepare = Transition { argument: upload, ..named(TransitionKind::Prepare, id) };
        self.commit_note(&kept.chain([prepare]).collect::<Vec<_>>(), Durability::Group);
        self.transactions.with_promise(id, |promise| promise.noted = true);
        Ok(self.log.frame())
    }

    async fn apply_prepared(self: &Rc<Self>, id: TransactionId) -> Result<Output> {
        let decide = |promise: &mut Promise| {
            promise.decided = promise.noted;
            promise.noted.then(|| promise.intent.clone())
        };
        let intent = self.transactions.with_promise(id, decide).flatten().ok_or(UNKNOWN)?;
        match self.apply_writes(&intent.clears, &intent.writes).await {
            Ok(()) => {}
            // Nobody can write any more, and reads of other keys go on: the next start does what is left.
            Err(error @ Error::ReadOnly(_)) => {
                self.transactions.end_stale(id);
                return Err(error);
            }
            Err(error) => return Err(error),
        }
        self.reserve_promised(note_bytes_max(1), 1).await?;
        self.commit_note(&[named(TransitionKind::Applied, id)], Durability::Async);
        drop(self.transactions.end(id));
        Ok(Output::Done)
    }

    async fn release_held(&self, id: TransactionId) -> Result<Output> {
        if !self.transactions.open.borrow().contains_key(&id) {
            return Err(UNKNOWN);
        }
        if self.transactions.with_promise(id, |promise| promise.decided) == Some(true) {
            return Err(Error::ShuttingDown); // It stays held until it has been applied.
        }
        let given_up = self.give_up(id).await;
        drop(self.transactions.end(id));
        given_up.map(|()| Output::Done)
    }

    /// Takes back what was prepared: durably, before anybody else writes here.
    async fn give_up(&self, id: TransactionId) -> Result<()> {
        let state = |promise: &mut Promise| (promise.noted, promise.upload, promise.uploads());
        match self.transactions.with_promise(id, state) {
            None | Some((false, None, _)) => Ok(()),
            Some((false, Some(upload), _)) => {
                self.doom(upload);
                Ok(())
            }
            Some((true, _, uploads)) => {
                self.reserve_promised(note_bytes_max(1 + uploads.len()), 1 + uploads.len()).await?;
                let dooms = uploads.into_iter().map(Partition::doom_note);
                let note: Vec<Transition> = dooms.chain([named(TransitionKind::Forget, id)]).collect();
                self.commit_note(&note, Durability::Group);
                let frame = self.log.frame();
                self.log.wait_durable(frame).await
            }
        }
    }

    async fn forget_applied(&self, id: TransactionId) -> Result<Output> {
        let known = self.state.borrow().transactions.get(&id).copied();
        match known {
            None => Ok(Output::Done),
            Some(known) if !known.applied => Err(Error::Invalid("a transaction that is not applied")),
            Some(_) => {
                self.reserve_promised(note_bytes_max(1), 1).await?;
                if self.state.borrow().transactions.contains_key(&id) {
                    self.commit_note(&[named(TransitionKind::Forget, id)], Durability::Async);
                }
                Ok(Output::Done)
            }
        }
    }

    /// How far a transaction is here, durably.
    async fn status(&self, id: TransactionId) -> Result<Status> {
        let known = self.state.borrow().transactions.get(&id).copied();
        // What stands in frames that are not durable may not be told yet. If it never will be, it has
        // prepared, as it will have at the next start; or it is unknown, and given up by whoever asks.
        let durable = self.log.flush().await.is_ok();
        Ok(match known {
            None => Status::Unknown,
            Some(prepared) if prepared.applied && durable => Status::Applied,
            Some(_) if is_planted(Bug::HastyAbort) => Status::Unknown,
            Some(_) => Status::Prepared,
        })
    }

    /// Makes room for something small that was promised, however full the device is.
    async fn reserve_promised(&self, bytes: usize, transitions: usize) -> Result<()> {
        loop {
            match self.reserve_small(bytes, transitions) {
                Err(Error::NoSpace) => self.wait_patiently().await?,
                reserved => return reserved,
            }
        }
    }

    /// Waits until there may be space for what was promised.
    async fn wait_patiently(&self) -> Result<()> {
        match self.wait_for_small().await {
            Err(Error::NoSpace) if self.closing.get() => Err(Error::ShuttingDown),
            Err(Error::NoSpace) => {
                self.reactor.sleep_ns(RETRY_DELAY_NS).await;
                Ok(())
            }
            waited => waited,
        }
    }
}

/// A transition of a transaction as a whole.
fn named(kind: TransitionKind, id: TransactionId) -> Transition {
    Transition {
        slot: id.partition,
        container: id.version.epoch,
        previous: id.version.clock,
        ..Transition::new(kind)
    }
}
