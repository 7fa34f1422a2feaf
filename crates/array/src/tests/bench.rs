//! What the tests of the array share: members in memory that can fail, and requests in one line.

use super::ssd::Ssd;
use crate::{Array, ArrayOptions, Joining, Mechanism, MemberState, OpenError, Policy};
use plimsoll_kv::fault::{FaultDevice, FaultPolicy};
use plimsoll_kv::memory::{Memory, MemoryOptions};
use plimsoll_kv::{
    Class, Completion, Condition, ContainerId, Device, Durability, Edit, Error, Expiry, Form, Item,
    LocalFuture, Op, Output, Request, Result, Value,
};
use plimsoll_reactor::sim::{ProcessId, World};
use plimsoll_reactor::{Reactor, Work};
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;

/// An hour of virtual time: no test waits longer.
const DEADLINE_NS: u64 = 3_600_000_000_000;

pub(super) const DB: ContainerId = ContainerId(0);

/// Runs a test on a simulated core, to its end.
pub(super) fn run<F: Future<Output = ()> + 'static>(test: impl Fn(Reactor) -> F) {
    let world = World::new(1, |_| "test");
    let done = Rc::new(Cell::new(false));
    world.start_process(ProcessId(0), 1, |reactor| {
        let (future, done) = (test(reactor.clone()), done.clone());
        reactor.spawn(Work::Kv, async move {
            future.await;
            done.set(true);
        });
    });
    assert!(world.run_until(DEADLINE_NS, || done.get()), "the test did not end");
    world.kill(ProcessId(0), false);
}

/// The devices of an array, which stay when it is closed or forgotten.
#[derive(Clone)]
pub(super) struct Bench {
    pub(super) reactor: Reactor,
    pub(super) below: Vec<Rc<Memory>>,
    /// Instead of those in memory: drives, of which the array has adapters.
    pub(super) ssds: Vec<Rc<Ssd>>,
    pub(super) members: Vec<Rc<FaultDevice>>,
    pub(super) ids: Vec<u8>,
    pub(super) options: ArrayOptions,
    /// How objects are protected, by each start after the one before.
    pub(super) policies: Vec<Policy>,
    /// Between the array opened last and the members: what was opened before is cut off, as at a crash.
    lines: Rc<RefCell<Vec<Rc<Line>>>>,
}

impl Bench {
    pub(super) fn new(reactor: &Reactor, members: usize, copies: u32) -> Bench {
        let options = MemoryOptions { value_bytes_max: 1032, part_bytes: 163, ..MemoryOptions::default() };
        Bench::of(reactor, members, copies, options)
    }

    pub(super) fn of(reactor: &Reactor, members: usize, copies: u32, each: MemoryOptions) -> Bench {
        let mechanism = if copies == 1 { Mechanism::Hashing } else { Mechanism::Replication { copies } };
        Bench::with(reactor, members, &[mechanism.into()], each)
    }

    /// Members of which shards are held: so many of data, and of parity.
    pub(super) fn split(reactor: &Reactor, members: usize, data: u32, parities: u32) -> Bench {
        let options = MemoryOptions { value_bytes_max: 1032, part_bytes: 163, ..MemoryOptions::default() };
        Bench::with(reactor, members, &[Mechanism::Splitting { data, parities }.into()], options)
    }

    /// Members that hold values by these policies, each from another start on.
    pub(super) fn by_size(reactor: &Reactor, members: usize, policies: &[Policy]) -> Bench {
        let options = MemoryOptions { value_bytes_max: 1032, part_bytes: 163, ..MemoryOptions::default() };
        Bench::with(reactor, members, policies, options)
    }

    pub(super) fn with(reactor: &Reactor, members: usize, policies: &[Policy], each: MemoryOptions) -> Bench {
        let below: Vec<_> = (0..members).map(|_| Memory::new(reactor, each)).collect();
        let mut bench = Bench {
            reactor: reactor.clone(),
            below,
            ssds: Vec::new(),
            members: Vec::new(),
            ids: (1..=members as u8).collect(),
            options: ArrayOptions {
                policy: policies[0].clone(),
                degraded: false,
                rebuild_bytes_per_s: 0,
                stateless: false,
            },
            policies: policies.to_vec(),
            lines: Rc::default(),
        };
        bench.members = bench.below.iter().map(healthy).collect();
        bench
    }

    /// Members that are KV SSDs.
    pub(super) fn over_ssds(reactor: &Reactor, members: usize, policies: &[Policy]) -> Bench {
        let mut bench = Bench::by_size(reactor, members, policies);
        bench.below.clear();
        bench.ssds = (0..members).map(|_| Ssd::new(reactor)).collect();
        bench.members = bench.ssds.iter().map(healthy).collect();
        bench
    }

    /// The devices as they are given, without those that are missing.
    pub(super) fn given(&self, missing: &[usize]) -> Vec<Joining> {
        let each = self.members.iter().enumerate().map(|(number, member)| Joining {
            name: format!("d{number}"),
            id: [self.ids[number]; 16],
            device: if missing.contains(&number) {
                Err("it is missing".to_owned())
            } else {
                Ok(self.line(member))
            },
        });
        each.collect()
    }

    fn line(&self, member: &Rc<FaultDevice>) -> Rc<dyn Device> {
        let line = Rc::new(Line {
            to: member.clone(),
            state: RefCell::new(Box::new(|_| LineState::Whole)),
            has_memory: !self.options.stateless,
            asked: Cell::default(),
        });
        self.lines.borrow_mut().push(line.clone());
        line
    }

    /// The server dies when it asks some member for something of this kind the `nth` time.
    pub(super) fn dies_at(&self, nth: usize, is_kind: fn(&Op) -> bool) {
        let asked = Rc::new(Cell::new(0));
        for line in self.lines.borrow().iter() {
            let asked = asked.clone();
            line.set(move |op| {
                asked.set(asked.get() + usize::from(is_kind(op)));
                if asked.get() >= nth { LineState::Cut } else { LineState::Whole }
            });
        }
    }

    /// These members hear nothing any more from the `nth` request to any member on: what the others are asked
    /// meanwhile they do.
    pub(super) fn loses_touch_at(&self, nth: usize, members: &[usize]) {
        let asked = Rc::new(Cell::new(0));
        for (member, line) in self.lines.borrow().iter().enumerate() {
            let (asked, is_lost) = (asked.clone(), members.contains(&member));
            line.set(move |_| {
                asked.set(asked.get() + 1);
                if is_lost && asked.get() >= nth { LineState::Lost } else { LineState::Whole }
            });
        }
    }

    /// What is asked of a member does not arrive, if it is such.
    pub(super) fn loses(&self, member: usize, is_lost: impl Fn(&Op) -> bool + 'static) {
        let line = &self.lines.borrow()[member];
        line.set(move |op| if is_lost(op) { LineState::Lost } else { LineState::Whole });
    }

    /// A member that was let go, opened anew: nobody reaches it any more who has it as it was.
    pub(super) fn opened_anew(&self, member: usize) -> Joining {
        let is_its = |line: &&Rc<Line>| Rc::ptr_eq(&line.to, &self.members[member]);
        self.lines.borrow().iter().filter(is_its).for_each(|line| line.set(|_| LineState::Retired));
        self.given(&[]).swap_remove(member)
    }

    pub(super) async fn try_open(&self, missing: &[usize]) -> std::result::Result<Rc<Array>, OpenError> {
        self.lines.take().iter().for_each(|line| line.set(|_| LineState::Cut));
        self.ssds.iter().for_each(|ssd| ssd.lose_power());
        Array::open(&self.reactor, 0, 1, self.given(missing), self.options.clone()).await
    }

    pub(super) async fn open(&self) -> Rc<Array> {
        self.try_open(&[]).await.expect("nothing is missing")
    }

    /// A member with nothing on it.
    pub(super) fn fresh(&mut self, member: usize, id: u8) -> Joining {
        let options = MemoryOptions { value_bytes_max: 1032, part_bytes: 163, ..MemoryOptions::default() };
        if self.ssds.is_empty() {
            self.below[member] = Memory::new(&self.reactor, options);
            self.members[member] = healthy(&self.below[member]);
        } else {
            self.ssds[member] = Ssd::new(&self.reactor);
            self.members[member] = healthy(&self.ssds[member]);
        }
        self.ids[member] = id;
        let device = self.line(&self.members[member]);
        Joining { name: format!("new{member}"), id: [id; 16], device: Ok(device) }
    }

    /// What members were asked for since this was asked last.
    pub(super) fn asked(&self) -> Asked {
        let mut all = Asked::default();
        for Asked { reads, writes, behind } in self.asked_each() {
            all =
                Asked { reads: all.reads + reads, writes: all.writes + writes, behind: all.behind + behind };
        }
        all
    }

    /// The same of each.
    pub(super) fn asked_each(&self) -> Vec<Asked> {
        self.lines.borrow().iter().map(|line| line.asked.take()).collect()
    }

    /// A member that refuses with this error what its policy says, from the next opening on.
    pub(super) fn fails(&mut self, member: usize, error: &Error) -> Rc<FaultDevice> {
        let below = self.below[member].clone();
        self.members[member] = FaultDevice::new(below, FaultPolicy::Never, error.clone());
        self.members[member].clone()
    }

    /// Waits until a member is in this state.
    pub(super) async fn until(&self, array: &Rc<Array>, member: usize, state: MemberState) {
        while array.status().members[member].state != state {
            self.reactor.sleep_ns(1_000_000).await;
        }
    }

    /// Waits until every member is in.
    pub(super) async fn whole(&self, array: &Rc<Array>) {
        while array.status().members.iter().any(|member| member.state != MemberState::In) {
            self.reactor.sleep_ns(1_000_000).await;
        }
    }
}

/// Requests to members.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Asked {
    /// Before an operation is answered.
    pub(super) reads: u64,
    pub(super) writes: u64,
    /// In the background.
    pub(super) behind: u64,
}

/// What stands between an array and a member.
struct Line {
    to: Rc<FaultDevice>,
    state: RefCell<Judge>,
    /// It may be asked what it has in memory.
    has_memory: bool,
    asked: Cell<Asked>,
}

type Judge = Box<dyn FnMut(&Op) -> LineState>;

enum LineState {
    Whole,
    /// Requests are refused.
    Cut,
    /// Requests do not arrive, and nobody says so.
    Lost,
    /// The device is open to somebody else.
    Retired,
}

impl Line {
    fn set(&self, state: impl FnMut(&Op) -> LineState + 'static) {
        *self.state.borrow_mut() = Box::new(state);
    }
}

impl Device for Line {
    fn execute(self: Rc<Self>, request: Request) -> LocalFuture<Result<Completion>> {
        let mut asked = self.asked.get();
        match &request {
            Request { class: Class::Background, .. } => asked.behind += 1,
            Request { op: Op::Retrieve { .. }, .. } => asked.reads += 1,
            _ => asked.writes += 1,
        }
        self.asked.set(asked);
        match (self.state.borrow_mut())(&request.op) {
            LineState::Whole => self.to.clone().execute(request),
            LineState::Cut => Box::pin(std::future::ready(Err(Error::ShuttingDown))),
            LineState::Lost => Box::pin(std::future::pending()),
            LineState::Retired => {
                Box::pin(std::future::ready(Err(Error::ReadOnly("it is opened anew".to_owned()))))
            }
        }
    }

    fn lacks(&self, container: ContainerId, key: &[u8]) -> bool {
        assert!(self.has_memory, "an array that is stateless asked what memory has");
        self.to.lacks(container, key)
    }

    fn keeps(&self) -> bool {
        self.to.keeps()
    }

    fn gathers(&self) -> bool {
        self.to.gathers()
    }

    fn has_room_to_spare(&self) -> bool {
        self.to.has_room_to_spare()
    }

    fn value_bytes_max(&self) -> usize {
        self.to.value_bytes_max()
    }

    fn part_bytes(&self) -> usize {
        self.to.part_bytes()
    }
}

fn healthy<D: Device + 'static>(below: &Rc<D>) -> Rc<FaultDevice> {
    FaultDevice::new(below.clone(), FaultPolicy::Never, Error::ReadOnly("broken for a test".to_owned()))
}

pub(super) async fn execute<D: Device + ?Sized>(device: &Rc<D>, op: Op) -> Result<Output> {
    let request = Request::new(Durability::Sync, op);
    device.clone().execute(request).await.map(|completion| completion.output)
}

pub(super) fn store_op(key: &str, value: Value) -> Op {
    store_in(DB, key, value)
}

pub(super) fn store_in(container: ContainerId, key: &str, value: Value) -> Op {
    wish_in(container, key, value, None)
}

/// A store of what is to be made into something.
pub(super) fn wish_op(key: &str, value: Value, form: Option<Form>) -> Op {
    wish_in(DB, key, value, form)
}

fn wish_in(container: ContainerId, key: &str, value: Value, form: Option<Form>) -> Op {
    Op::Store {
        container,
        key: key.as_bytes().to_vec(),
        value,
        condition: Condition::None,
        expiry: Expiry::Never,
        retain: false,
        want_previous: false,
        form,
    }
}

pub(super) async fn set<D: Device + ?Sized>(device: &Rc<D>, key: &str, value: &[u8]) -> Result<Output> {
    execute(device, store_op(key, Value::from(value.to_vec()))).await
}

pub(super) async fn edit<D: Device + ?Sized>(device: &Rc<D>, key: &str, edit: Edit) -> Result<Output> {
    execute(device, store_op(key, Value::Edit(edit))).await
}

pub(super) fn retrieve_op(container: ContainerId, key: &str) -> Op {
    Op::Retrieve { container, key: key.as_bytes().to_vec(), range: None, pin: false }
}

pub(super) async fn get<D: Device + ?Sized>(device: &Rc<D>, key: &str) -> Result<Item> {
    match execute(device, retrieve_op(DB, key)).await? {
        Output::Found(item) => Ok(item),
        other => panic!("a retrieve gave {other:?}"),
    }
}

pub(super) async fn bytes<D: Device + ?Sized>(device: &Rc<D>, key: &str) -> Option<Vec<u8>> {
    match get(device, key).await {
        Ok(item) => Some(item.bytes),
        Err(Error::NotFound) => None,
        Err(error) => panic!("{key}: {error}"),
    }
}

pub(super) async fn del<D: Device + ?Sized>(device: &Rc<D>, key: &str) -> Result<Output> {
    let (key, condition) = (key.as_bytes().to_vec(), Condition::None);
    execute(device, Op::Delete { container: DB, key, condition }).await
}

pub(super) async fn keys<D: Device + ?Sized>(device: &Rc<D>) -> u64 {
    match execute(device, Op::Stats { container: DB }).await {
        Ok(Output::Stats(stats)) => stats.keys,
        other => panic!("statistics gave {other:?}"),
    }
}
