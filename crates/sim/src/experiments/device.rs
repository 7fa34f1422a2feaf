//! Devices of experiments, and the modelled KV device: whatever it is asked costs the same, and its bytes,
//! one request after the other.
//!
//! Role: what experiments ask of any kind of devices; and the devices of the paper, on which a request for a
//! key is one request however the device keeps it (others: `drive`). Place: below an array, above the memory
//! device that holds what is stored.
//!
//! Invariants: a request takes effect when it is made and is answered when its time has come; the counters
//! are of requests that were done.

use super::load::Counted;
use plimsoll_kv::memory::{Memory, MemoryOptions};
use plimsoll_kv::{Completion, Device, LocalFuture, Output, Request, Result};
use plimsoll_reactor::Reactor;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

/// A kind of devices, all alike: what they cost, and how one is made.
pub(super) trait Kind: Copy + std::fmt::Display + 'static {
    /// A device of this kind.
    type Member: Member + 'static;

    /// Makes an empty one; each of a world has a number of its own.
    async fn open(self, reactor: &Reactor, number: usize) -> Rc<Self::Member>;

    /// How long one is busy with so many requests of so many bytes together.
    fn cost_ns(&self, requests: f64, bytes: f64) -> f64;
}

/// A device of which it is counted what it was asked for.
pub(super) trait Member: Counted {
    /// What an array has for it.
    fn device(self: Rc<Self>) -> Rc<dyn Device>;
}

/// What requests cost.
#[derive(Clone, Copy, Debug)]
pub(super) struct Model {
    pub(super) request_ns: u64,
    pub(super) bytes_per_us: u64,
}

impl Kind for Model {
    type Member = Modelled;

    async fn open(self, reactor: &Reactor, _: usize) -> Rc<Modelled> {
        Modelled::new(reactor, self)
    }

    fn cost_ns(&self, requests: f64, bytes: f64) -> f64 {
        requests * self.request_ns as f64 + bytes * 1000.0 / self.bytes_per_us as f64
    }
}

impl std::fmt::Display for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Model { request_ns, bytes_per_us } = self;
        write!(f, "a request costs {} us and its bytes at {bytes_per_us} MB/s", request_ns / 1000)
    }
}

/// Requests one after the other, and how many were done: not those that wait, of which there are more at one
/// time of a load than at another.
pub(super) struct Queue {
    reactor: Reactor,
    model: Model,
    /// When the last request that was made will have been done.
    free_ns: Cell<u64>,
    /// The same of those that have not been counted yet, and their bytes.
    made: RefCell<VecDeque<(u64, u64)>>,
    requests: Cell<u64>,
    bytes: Cell<u64>,
}

impl Queue {
    pub(super) fn new(reactor: &Reactor, model: Model) -> Queue {
        let (free_ns, requests, bytes) = (Cell::new(0), Cell::new(0), Cell::new(0));
        Queue { reactor: reactor.clone(), model, free_ns, made: RefCell::default(), requests, bytes }
    }

    pub(super) fn free_ns(&self) -> u64 {
        self.free_ns.get()
    }

    /// Counts what has been done by now.
    fn count(&self) {
        let (mut made, now_ns) = (self.made.borrow_mut(), self.reactor.now_ns());
        while let Some((_, bytes)) = made.pop_front_if(|(done_ns, _)| *done_ns <= now_ns) {
            self.requests.set(self.requests.get() + 1);
            self.bytes.set(self.bytes.get() + bytes);
        }
    }

    /// Makes a request of so many bytes, and waits for its end.
    pub(super) async fn serve(&self, bytes: u64) {
        let cost_ns = self.model.cost_ns(1.0, bytes as f64) as u64;
        let done_ns = self.free_ns.get().max(self.reactor.now_ns()) + cost_ns;
        self.free_ns.set(done_ns);
        self.count();
        self.made.borrow_mut().push_back((done_ns, bytes));
        self.reactor.sleep_until(done_ns).await;
    }
}

pub(super) struct Modelled {
    below: Rc<Memory>,
    queue: Queue,
}

impl Modelled {
    /// An empty one.
    pub(super) fn new(reactor: &Reactor, model: Model) -> Rc<Modelled> {
        let below = Memory::new(reactor, MemoryOptions::default());
        Rc::new(Modelled { below, queue: Queue::new(reactor, model) })
    }
}

impl Counted for Queue {
    fn requests(&self) -> u64 {
        self.count();
        self.requests.get()
    }

    fn bytes(&self) -> u64 {
        self.count();
        self.bytes.get()
    }
}

impl Counted for Modelled {
    fn requests(&self) -> u64 {
        self.queue.requests()
    }

    fn bytes(&self) -> u64 {
        self.queue.bytes()
    }
}

impl Member for Modelled {
    fn device(self: Rc<Self>) -> Rc<dyn Device> {
        self
    }
}

impl Device for Modelled {
    fn execute(self: Rc<Self>, request: Request) -> LocalFuture<Result<Completion>> {
        Box::pin(async move {
            let sent = request.op.value_bytes();
            let done = self.below.clone().execute(request).await;
            let given = done.as_ref().map_or(0, |done| given_bytes(&done.output));
            self.queue.serve(sent + given).await;
            done
        })
    }

    plimsoll_kv::as_below!();
}

fn given_bytes(output: &Output) -> u64 {
    match output {
        Output::Found(item) => item.bytes.len() as u64,
        Output::Listed(page) => page.keys.iter().map(|key| key.len() as u64).sum(),
        _ => 0,
    }
}
