//! What the tests of the cache work with: a cache over a device that waits where it is told to.

use crate::Cache;
use plimsoll_kv::memory::{Memory, MemoryOptions};
use plimsoll_kv::transaction::{Action, Held};
use plimsoll_kv::{
    Completion, Condition, ContainerId, Device, Durability, Error, Expiry, Item, LocalFuture, Op, Output,
    Request, Result, TransactionId, Value,
};
use plimsoll_reactor::sim::{ProcessId, World};
use plimsoll_reactor::sync::WaitList;
use plimsoll_reactor::{Reactor, Work};
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;

pub(super) const DB: ContainerId = ContainerId(0);
pub(super) const OTHER: ContainerId = ContainerId(1);
pub(super) const BUDGET_BYTES: usize = 256 << 10;

/// A device that holds up completions until it is told to let go of them.
pub(super) struct Gate {
    pub(super) below: Rc<Memory>,
    pub(super) closed: Cell<bool>,
    pub(super) opened: WaitList,
    /// Requests that came by.
    pub(super) seen: RefCell<Vec<Op>>,
    /// Keys that were announced.
    pub(super) announced: RefCell<Vec<Vec<u8>>>,
    /// The next request fails with this, after it was done.
    pub(super) fails: RefCell<Option<Error>>,
}

impl Gate {
    pub(super) fn open(&self) {
        self.closed.set(false);
        self.opened.wake_all();
    }

    pub(super) fn take_seen(&self) -> usize {
        self.seen.take().len()
    }
}

impl Device for Gate {
    fn execute(self: Rc<Self>, request: Request) -> LocalFuture<Result<Completion>> {
        Box::pin(async move {
            self.seen.borrow_mut().push(request.op.clone());
            let result = self.below.clone().execute(request).await;
            self.opened.wait_for(|| (!self.closed.get()).then_some(())).await;
            let failure = self.fails.take();
            failure.map_or(result, Err)
        })
    }
    fn announce(&self, _: ContainerId, keys: &[&[u8]], _: u32) -> bool {
        self.announced.borrow_mut().extend(keys.iter().map(|key| key.to_vec()));
        false
    }
    fn value_bytes_max(&self) -> usize {
        self.below.value_bytes_max()
    }
    fn part_bytes(&self) -> usize {
        self.below.part_bytes()
    }
}

/// What a test works with.
#[derive(Clone)]
pub(super) struct Bench {
    pub(super) reactor: Reactor,
    pub(super) world: World,
    pub(super) gate: Rc<Gate>,
    pub(super) cache: Rc<Cache>,
}

pub(super) fn run<F: Future<Output = ()> + 'static>(test: impl Fn(Bench) -> F) {
    let world = World::new(1, |_| "test");
    let done = Rc::new(Cell::new(false));
    world.start_process(ProcessId(0), 1, |reactor| {
        let below = Memory::new(reactor, MemoryOptions::default());
        let clock = below.clock();
        let gate = Rc::new(Gate {
            below,
            closed: Cell::new(false),
            opened: WaitList::default(),
            seen: RefCell::default(),
            announced: RefCell::default(),
            fails: RefCell::default(),
        });
        let cache = Cache::new(gate.clone(), clock, 7, BUDGET_BYTES);
        let bench = Bench { reactor: reactor.clone(), world: world.clone(), gate, cache };
        let (future, done) = (test(bench), done.clone());
        reactor.spawn(Work::Kv, async move {
            future.await;
            done.set(true);
        });
    });
    assert!(world.run_until(60_000_000_000, || done.get()), "the test did not end");
    world.kill(ProcessId(0), false);
}

pub(super) fn store(container: ContainerId, key: &[u8], value: &[u8], expiry: Expiry) -> Op {
    Op::Store {
        container,
        key: key.to_vec(),
        value: Value::from(value.to_vec()),
        condition: Condition::None,
        expiry,
        retain: false,
        want_previous: false,
        form: None,
    }
}

pub(super) fn set(value: &[u8]) -> Op {
    store(DB, b"k", value, Expiry::Never)
}

pub(super) fn delete() -> Op {
    Op::Delete { container: DB, key: b"k".to_vec(), condition: Condition::None }
}

pub(super) fn get(key: &[u8]) -> Op {
    Op::Retrieve { container: DB, key: key.to_vec(), range: None, pin: true }
}

impl Bench {
    pub(super) async fn run(&self, op: Op) -> Result<Output> {
        let completion = self.cache.clone().execute(Request::new(Durability::Sync, op)).await;
        completion.map(|completion| completion.output)
    }

    pub(super) async fn read(&self, op: Op) -> Option<Item> {
        match self.run(op).await {
            Ok(Output::Found(item)) => Some(item),
            Err(Error::NotFound) => None,
            other => panic!("a read gave {other:?}"),
        }
    }

    /// What memory gives at once.
    pub(super) fn recalled(&self) -> Option<Vec<u8>> {
        let mut given = None;
        let gave = self.cache.recall(DB, b"k", &mut |bytes| given = Some(bytes.to_vec()));
        assert_eq!(gave, given.is_some());
        given
    }

    /// The value, which is also what memory gives at once, if it gives anything.
    pub(super) async fn value(&self) -> Option<Vec<u8>> {
        let recalled = self.recalled();
        let value = self.read(get(b"k")).await.map(|item| item.bytes);
        assert!(recalled.is_none() || recalled == value, "{recalled:?} was given in place of {value:?}");
        value
    }

    /// The value, and whether it came from memory.
    pub(super) async fn value_and_hit(&self) -> (Option<Vec<u8>>, bool) {
        self.gate.take_seen();
        let is_recalled = self.recalled().is_some();
        let value = self.value().await;
        let is_hit = self.gate.take_seen() == 0;
        assert_eq!(is_recalled, is_hit, "what is given to a read is given at once, and nothing else");
        (value, is_hit)
    }

    /// Stores a value and has it in the cache.
    pub(super) async fn warm(&self, value: &[u8]) {
        self.run(set(value)).await.unwrap();
        assert_eq!(self.value().await.as_deref(), Some(value));
        assert_eq!(self.value_and_hit().await, (Some(value.to_vec()), true));
    }

    pub(super) async fn step(&self, id: Option<TransactionId>, action: Action) -> Result<Output> {
        self.run(Op::Transaction { partition: 0, id, action }).await
    }

    pub(super) async fn hold(&self, held: Held) -> TransactionId {
        match self.step(None, Action::Hold(held)).await {
            Ok(Output::Held(id)) => id,
            other => panic!("a hold gave {other:?}"),
        }
    }
}

pub(super) fn some(value: &[u8]) -> Option<Vec<u8>> {
    Some(value.to_vec())
}

pub(super) fn key_held() -> Held {
    Held::keys(vec![(DB, b"k".to_vec())])
}
