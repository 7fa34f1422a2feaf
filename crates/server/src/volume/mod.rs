//! The volume: all partitions of a server behind one device.
//!
//! Role: sends each request to the core that owns the key's partition and brings the completion
//! back. Place on the path: between the session and the partition; the only place where a request
//! changes cores, at most once and back.
//!
//! Invariants:
//! * partition p belongs to core p modulo the number of cores;
//! * requests of one core for one key reach their partition in the order in which they were first
//!   polled: permits are given first come, first served, a ring keeps its order, and the owner
//!   starts a task for each request in the order of arrival;
//! * a core has a bounded number of requests under way, here and at every other core, so that no
//!   ring of the mesh is ever full.
//!
//! Never: it looks into values or knows what a session is.

mod everywhere;
mod message;
#[cfg(test)]
mod tests;
mod transaction;

pub use message::{Message, Question};

use crate::limits::{LOCAL_IN_FLIGHT_MAX, REMOTE_IN_FLIGHT_MAX, STEPS_IN_FLIGHT_MAX, TRANSACTIONS_MAX};
use futures_util::future::{Either, join_all, select};
use message::Waiting;
use plimsoll_kv::{
    Completion, ContainerId, Device, Durability, Error, LocalFuture, Op, Request, Result, Retrieved, Slot,
};
use plimsoll_reactor::sync::{Permit, Permits};
use plimsoll_reactor::{CoreId, Mailbox, Port, Reactor, Work};
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::pin::pin;
use std::rc::{Rc, Weak};

/// What is the same for all partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// How many there are.
    pub partitions: u16,
    /// Bytes of the longest value that one store takes.
    pub value_bytes_max: usize,
    /// Bytes of every part of an upload but the last.
    pub part_bytes: usize,
}

impl Geometry {
    /// The core that owns a partition.
    #[must_use]
    pub fn owner(&self, partition: u16, cores: usize) -> CoreId {
        assert!(partition < self.partitions);
        CoreId((usize::from(partition) % cores) as u16)
    }

    /// The partition of a key.
    #[must_use]
    pub fn partition(&self, key: &[u8]) -> u16 {
        if self.partitions == 1 { 0 } else { Slot::of(key).partition(self.partitions) }
    }

    /// The partitions that a core owns.
    pub fn owned(&self, core: CoreId, cores: usize) -> impl Iterator<Item = u16> + use<> {
        let geometry = *self;
        (0..self.partitions).filter(move |partition| geometry.owner(*partition, cores) == core)
    }
}

/// Whose permits a request uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lane {
    /// Those of all requests, which may wait for a transaction's keys.
    Requests,
    /// Those of transactions that hold what they want: nothing in this lane waits for anybody's keys.
    Steps,
}

/// Answers a question of another core.
pub type Answerer = Rc<dyn Fn(Question) -> Vec<u8>>;

/// One core's view of all partitions.
pub struct Volume {
    reactor: Reactor,
    geometry: Geometry,
    /// Those that this core owns, as soon as they are open.
    local: OnceCell<BTreeMap<u16, Rc<dyn Device>>>,
    /// What may be under way at each core.
    permits: Vec<Rc<Permits>>,
    /// Steps of transactions that may be under way at each core.
    steps: Vec<Rc<Permits>>,
    /// Transactions that may be under way.
    transactions: Rc<Permits>,
    waiting: RefCell<Waiting>,
    mailbox: Rc<Mailbox<Message>>,
    answerer: RefCell<Option<Answerer>>,
    /// See [`Volume::device_ns`].
    device_ns: Cell<u64>,
    patience: OnceCell<Patience>,
}

/// How long a request waits before it is begun, in nanoseconds; 0: as long as it takes.
pub type Patience = Box<dyn Fn() -> u64>;

impl Volume {
    /// The volume of this core, whose own partitions come later ([`Volume::give`]).
    pub fn new(reactor: &Reactor, port: Port<Message>, geometry: Geometry) -> Rc<Volume> {
        let (core, cores) = (reactor.core(), reactor.cores());
        let permits_at = |other| {
            let here = other == usize::from(core.0);
            Permits::new(if here { LOCAL_IN_FLIGHT_MAX } else { REMOTE_IN_FLIGHT_MAX })
        };
        Rc::new_cyclic(|weak: &Weak<Volume>| {
            let weak = weak.clone();
            let mailbox = port.open(reactor, move |from, message| {
                if let Some(volume) = weak.upgrade() {
                    volume.receive(from, message);
                }
            });
            Volume {
                reactor: reactor.clone(),
                geometry,
                local: OnceCell::new(),
                permits: (0..cores).map(permits_at).collect(),
                steps: (0..cores).map(|_| Permits::new(STEPS_IN_FLIGHT_MAX)).collect(),
                transactions: Permits::new(TRANSACTIONS_MAX),
                waiting: RefCell::default(),
                mailbox,
                answerer: RefCell::default(),
                device_ns: Cell::new(0),
                patience: OnceCell::new(),
            }
        })
    }

    /// What is the same for all partitions.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// The partitions that this core owns are open. No core may be asked for keys before all have theirs.
    ///
    /// # Panics
    /// The partitions are not those that this core has to own, or it has them already.
    pub fn give(&self, local: BTreeMap<u16, Rc<dyn Device>>) {
        let owned = self.geometry.owned(self.reactor.core(), self.reactor.cores());
        assert!(local.keys().copied().eq(owned), "a core owns its partitions");
        assert!(self.local.set(local).is_ok(), "partitions are given once");
    }

    /// The partitions that this core owns and that are open.
    pub fn local(&self) -> impl Iterator<Item = (u16, &Rc<dyn Device>)> {
        self.local.get().into_iter().flatten().map(|(number, device)| (*number, device))
    }

    /// A partition, if this core owns it.
    fn own(&self, partition: u16) -> Option<&Rc<dyn Device>> {
        self.local.get()?.get(&partition)
    }

    /// Says how long requests wait before they are begun; without it as long as it takes.
    ///
    /// # Panics
    /// It has been said before.
    pub fn set_patience(&self, patience: Patience) {
        assert!(self.patience.set(patience).is_ok(), "how long requests wait is said once");
    }

    /// When a request that comes now has waited for too long; 0: never.
    pub(crate) fn deadline_ns(&self) -> u64 {
        match self.patience.get().map_or(0, |patience_ns| patience_ns()) {
            0 => 0,
            patience_ns => self.reactor.now_ns().saturating_add(patience_ns),
        }
    }

    /// A permit, when there is one; an error if that takes too long.
    async fn permit(&self, permits: &Rc<Permits>, deadline_ns: u64) -> Result<Permit> {
        if let Some(permit) = permits.take_one() {
            return Ok(permit);
        }
        if deadline_ns == 0 {
            return Ok(permits.acquire(1).await);
        }
        let too_late = self.reactor.sleep_until(deadline_ns);
        match select(pin!(permits.acquire(1)), pin!(too_late)).await {
            Either::Left((permit, _)) => Ok(permit),
            Either::Right(_) => Err(Error::Overloaded),
        }
    }

    /// Says who answers the questions that other cores ask.
    pub fn set_answerer(&self, answerer: Answerer) {
        *self.answerer.borrow_mut() = Some(answerer);
    }

    /// Takes a message from another core.
    fn receive(self: &Rc<Self>, from: CoreId, message: Message) {
        match message {
            Message::Request { id, partition, request } => {
                let device = self.own(partition).expect("requests go to the owner, which is open").clone();
                let (mailbox, reactor) = (self.mailbox.clone(), self.reactor.clone());
                self.reactor.spawn_now(Work::Device, async move {
                    let start_ns = reactor.now_ns();
                    let result = device.execute(request).await;
                    let device_ns = reactor.now_ns().saturating_sub(start_ns);
                    mailbox.send(from, Message::Completion { id, result, device_ns }).await;
                });
            }
            Message::Completion { id, result, device_ns } => {
                self.waiting.borrow_mut().complete(id, (result, device_ns));
            }
            Message::Question { id, question } => {
                let answerer = self.answerer.borrow().clone();
                let bytes = answerer.map(|answer| answer(question)).unwrap_or_default();
                let mailbox = self.mailbox.clone();
                self.reactor.spawn(Work::Control, async move {
                    mailbox.send(from, Message::Answer { id, bytes }).await;
                });
            }
            Message::Answer { id, bytes } => self.waiting.borrow_mut().answer(id, bytes),
        }
    }

    /// Executes a request at the owner of a partition.
    async fn execute_at(self: Rc<Self>, partition: u16, request: Request, lane: Lane) -> Result<Completion> {
        let owner = self.geometry.owner(partition, self.reactor.cores());
        let permits = if lane == Lane::Requests { &self.permits } else { &self.steps };
        let permit = self.permit(&permits[usize::from(owner.0)], request.deadline_ns).await?;
        if let Some(device) = self.own(partition) {
            let start_ns = self.reactor.now_ns();
            let result = device.clone().execute(request).await;
            drop(permit);
            return self.reckon(result, self.reactor.now_ns().saturating_sub(start_ns));
        }
        self.send(owner, partition, request, Some(permit)).await
    }

    /// Retrieves the whole value of a key, pinned if it stands in parts; an error if it cannot be begun
    /// before `deadline_ns`, unless that is 0.
    pub(crate) async fn retrieve_by(
        self: Rc<Self>,
        container: ContainerId,
        key: Rc<[u8]>,
        deadline_ns: u64,
    ) -> Result<Retrieved> {
        let Some(device) = self.own(self.geometry.partition(&key)).cloned() else {
            let request = Request::new(Durability::Sync, Op::retrieve_whole(container, &key));
            let elsewhere = self.execute(Request { deadline_ns, ..request });
            return elsewhere.await.map(|completion| completion.output.into_retrieved());
        };
        let permits = &self.permits[usize::from(self.reactor.core().0)];
        let permit = match permits.take_one() {
            Some(permit) => permit,
            // Apart: it is rare, and takes more room than all the rest.
            None => Box::pin(self.permit(permits, deadline_ns)).await?,
        };
        let start_ns = self.reactor.now_ns();
        let result = device.retrieve_whole(container, key).await;
        drop(permit);
        self.spent(self.reactor.now_ns().saturating_sub(start_ns));
        result
    }

    /// Sends a request to another core, and waits for what becomes of it.
    async fn send(
        &self,
        owner: CoreId,
        partition: u16,
        request: Request,
        permit: Option<Permit>,
    ) -> Result<Completion> {
        assert_ne!(owner, self.reactor.core(), "nobody asks for keys before partitions are open");
        let (id, receiver) = self.waiting.borrow_mut().request(permit);
        self.mailbox.send(owner, Message::Request { id, partition, request }).await;
        let (result, device_ns) = receiver.await.unwrap_or((Err(Error::ShuttingDown), 0));
        self.reckon(result, device_ns)
    }

    /// A request has come back after so long at its partition.
    fn reckon(&self, result: Result<Completion>, device_ns: u64) -> Result<Completion> {
        self.spent(device_ns);
        result.map(|completion| Completion { device_ns, ..completion })
    }

    fn spent(&self, device_ns: u64) {
        self.device_ns.set(self.device_ns.get() + device_ns);
    }

    /// Time at partitions of all requests that have come back: what it grows by within one poll of a task is
    /// that of the task's own. Queues before the partition and the way between cores are not in it; the wait
    /// for the key, the log and the drive is.
    pub(crate) fn device_ns(&self) -> u64 {
        self.device_ns.get()
    }

    /// Keys of which this connection's next commands ask for values. Those of other cores are left alone.
    /// True if another round brings more, see [`Device::announce`].
    pub(crate) fn announce(&self, container: ContainerId, keys: &[&[u8]], round: u32) -> bool {
        if let [key] = keys {
            let device = self.own(self.geometry.partition(key));
            return device.is_some_and(|device| device.announce(container, keys, round));
        }
        let mut leads_on = false;
        for (partition, device) in self.local() {
            if self.geometry.partitions == 1 {
                return device.announce(container, keys, round);
            }
            let is_its = |key: &&&[u8]| self.geometry.partition(key) == partition;
            let own: Vec<&[u8]> = keys.iter().filter(is_its).copied().collect();
            leads_on |= !own.is_empty() && device.announce(container, &own, round);
        }
        // One of several that is alone in its partition: what leads to the others has come meanwhile.
        leads_on && round == 0 && self.announce(container, keys, round + 1)
    }

    /// Gives the whole value of a key, if memory of this core has it and a retrieve that began now might give
    /// it. What has come before is no further than its partition: it was sent there when it began, and where
    /// somebody waits for a permit nobody overtakes.
    pub(crate) fn recall(&self, container: ContainerId, key: &[u8], give: &mut dyn FnMut(&[u8])) -> bool {
        if !self.permits[usize::from(self.reactor.core().0)].has_one() {
            return false;
        }
        self.own(self.geometry.partition(key)).is_some_and(|device| device.recall(container, key, give))
    }

    /// Asks every core, this one too; the answers in the order of the cores.
    pub async fn ask_all(self: &Rc<Self>, question: Question) -> Vec<Vec<u8>> {
        let here = usize::from(self.reactor.core().0);
        let mut receivers = Vec::with_capacity(self.permits.len());
        for (core, permits) in self.permits.iter().enumerate().filter(|(core, _)| *core != here) {
            let permit = permits.acquire(1).await;
            let (id, receiver) = self.waiting.borrow_mut().question(permit);
            let question = question.clone();
            self.mailbox.send(CoreId(core as u16), Message::Question { id, question }).await;
            receivers.push(receiver);
        }
        let answerer = self.answerer.borrow().clone();
        let own = answerer.map(|answer| answer(question)).unwrap_or_default();
        let others = join_all(receivers).await.into_iter().map(Option::unwrap_or_default);
        let mut answers: Vec<Vec<u8>> = others.collect();
        answers.insert(here, own);
        answers
    }

    /// The partition that serves a request, if one alone does.
    fn partition_of(&self, op: &Op) -> Result<Option<u16>> {
        let of_key = |key: &[u8]| self.geometry.partition(key);
        if let Op::Transaction { partition, .. } = op {
            return Ok(Some(*partition));
        }
        let Op::Batch(ops) = op else { return Ok(op.key().map(of_key)) };
        let mut partition = None;
        for op in ops {
            let key = op.key().ok_or(Error::Invalid("an operation without a key in a batch"))?;
            if *partition.get_or_insert(of_key(key)) != of_key(key) {
                return Err(Error::Invalid("a batch over several partitions"));
            }
        }
        // A batch of nothing is any partition's.
        Ok(partition.or(Some(0)))
    }
}

impl Device for Volume {
    fn execute(self: Rc<Self>, request: Request) -> LocalFuture<Result<Completion>> {
        match self.partition_of(&request.op) {
            Ok(Some(partition)) => Box::pin(self.execute_at(partition, request, Lane::Requests)),
            Ok(None) => Box::pin(self.execute_everywhere(request, Lane::Requests)),
            Err(error) => Box::pin(std::future::ready(Err(error))),
        }
    }

    fn retrieve_whole(
        self: Rc<Self>,
        container: ContainerId,
        key: Rc<[u8]>,
    ) -> LocalFuture<Result<Retrieved>> {
        Box::pin(self.retrieve_by(container, key, 0))
    }

    fn value_bytes_max(&self) -> usize {
        self.geometry.value_bytes_max
    }

    fn part_bytes(&self) -> usize {
        self.geometry.part_bytes
    }
}
