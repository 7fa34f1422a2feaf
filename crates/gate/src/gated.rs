//! A block device behind a gate.
//!
//! Role: asks the policy for each I/O, and begins those that it lets go. Place on the path: below the flash
//! engine, above the file or block device.
//!
//! An I/O that waited is begun by whoever makes room for it, not by its own task when that has its turn: a
//! drive that has come to an end of what it had would rest for as long as the tasks need that stand before.
//!
//! Invariants: an I/O is begun once it was admitted and not before, in the order of the policy; none is begun
//! while the tasks of its core are dropped.

use crate::{Ask, Kind, Policy, Ticket};
use plimsoll_kv::Block;
use plimsoll_kv::block::{IoFuture, Origin};
use plimsoll_reactor::{Buf, Reactor};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// What passed a gate since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GateStats {
    /// I/Os that passed.
    pub passed: u64,
    /// I/Os that had to wait first.
    pub waited: u64,
    /// Nanoseconds that I/Os spent at the device, and in the driver, which may hold reads for some turns.
    pub device_ns: u64,
    /// How many small reads that somebody waits for may be at the device now.
    pub reads_max: u64,
}

struct Gate {
    reactor: Reactor,
    policy: RefCell<Box<dyn Policy>>,
    next_ticket: Cell<u64>,
    /// I/Os that wait.
    waiting: RefCell<BTreeMap<Ticket, Waiting>>,
    stats: Cell<GateStats>,
}

/// A block device of which every I/O asks a gate first.
#[derive(Clone)]
pub struct Gated {
    block: Rc<dyn Block>,
    gate: Rc<Gate>,
}

impl Gated {
    /// Puts a gate with a policy before a device.
    #[must_use]
    pub fn new(reactor: &Reactor, block: Rc<dyn Block>, policy: Box<dyn Policy>) -> Gated {
        let gate = Gate {
            reactor: reactor.clone(),
            policy: RefCell::new(policy),
            next_ticket: Cell::new(0),
            waiting: RefCell::default(),
            stats: Cell::default(),
        };
        Gated { block, gate: Rc::new(gate) }
    }

    /// What passed so far.
    #[must_use]
    pub fn stats(&self) -> GateStats {
        GateStats { reads_max: self.gate.policy.borrow().reads_max(), ..self.gate.stats.get() }
    }
}

/// An I/O that waits, and the task to be woken when it has ended.
struct Waiting {
    io: Rc<dyn Begin>,
    waker: Waker,
}

/// What whoever makes room begins.
trait Begin {
    /// Begins an I/O that was admitted.
    fn begin(&self, now_ns: u64, waker: &Waker);
    /// When that was, if it was.
    fn admitted_ns(&self) -> Option<u64>;
}

/// An I/O that had to wait.
struct Held<T> {
    io: RefCell<IoFuture<T>>,
    /// What came of it, if that was known when it began.
    result: Cell<Option<io::Result<T>>>,
    admitted_ns: Cell<Option<u64>>,
}

impl<T> Begin for Held<T> {
    fn begin(&self, now_ns: u64, waker: &Waker) {
        self.admitted_ns.set(Some(now_ns));
        let polled = self.io.borrow_mut().as_mut().poll(&mut Context::from_waker(waker));
        if let Poll::Ready(result) = polled {
            self.result.set(Some(result));
            waker.wake_by_ref();
        }
    }

    fn admitted_ns(&self) -> Option<u64> {
        self.admitted_ns.get()
    }
}

impl<T> Held<T> {
    fn new(io: IoFuture<T>) -> Rc<Held<T>> {
        Rc::new(Held { io: RefCell::new(io), result: Cell::new(None), admitted_ns: Cell::new(None) })
    }

    fn poll(&self, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        match self.result.take() {
            Some(result) => Poll::Ready(result),
            None => self.io.borrow_mut().as_mut().poll(cx),
        }
    }
}

/// An I/O at the gate: waiting, or admitted and not yet complete.
struct Passage {
    gate: Rc<Gate>,
    ticket: Ticket,
    ask: Ask,
    /// When it was admitted, if that was at once.
    admitted_ns: Option<u64>,
    /// If it had to wait.
    held: Option<Rc<dyn Begin>>,
    /// Its end was seen, and it was good: what it took says something of the device.
    ended: bool,
}

impl Gate {
    /// Begins what the policy admits now; true if the one that just arrived is among it, which its own task
    /// begins.
    fn admit(&self, arrived: Option<Ticket>) -> bool {
        let mut at_once = false;
        while !self.reactor.is_closing() {
            let Some(ticket) = self.policy.borrow_mut().admit() else { break };
            let has_waited = arrived != Some(ticket);
            let mut stats = self.stats.get();
            (stats.passed, stats.waited) = (stats.passed + 1, stats.waited + u64::from(has_waited));
            self.stats.set(stats);
            if !has_waited {
                at_once = true;
                continue;
            }
            let waiting = self.waiting.borrow_mut().remove(&ticket);
            let waiting = waiting.expect("the policy admits those that wait");
            waiting.io.begin(self.reactor.now_ns(), &waiting.waker);
        }
        at_once
    }

    /// Takes an I/O to the device and back.
    async fn pass<T: 'static>(self: Rc<Self>, ask: Ask, io: IoFuture<T>) -> io::Result<T> {
        let ticket = Ticket(self.next_ticket.replace(self.next_ticket.get() + 1));
        self.policy.borrow_mut().arrive(ticket, ask);
        let mut passage =
            Passage { gate: self.clone(), ticket, ask, admitted_ns: None, held: None, ended: false };
        let waits = !self.admit(Some(ticket));
        let result = if waits {
            let held = Held::new(io);
            passage.held = Some(held.clone());
            self.wait(ticket, held).await
        } else {
            passage.admitted_ns = Some(self.reactor.now_ns());
            io.await
        };
        passage.ended = result.is_ok();
        result
    }

    /// Waits until an I/O was admitted and has ended.
    async fn wait<T: 'static>(&self, ticket: Ticket, held: Rc<Held<T>>) -> io::Result<T> {
        let mut begins = true;
        poll_fn(|cx| {
            if std::mem::take(&mut begins) {
                let waiting = Waiting { io: held.clone(), waker: cx.waker().clone() };
                self.waiting.borrow_mut().insert(ticket, waiting);
                return Poll::Pending;
            }
            if let Some(waiting) = self.waiting.borrow_mut().get_mut(&ticket) {
                waiting.waker.clone_from(cx.waker());
                return Poll::Pending;
            }
            held.poll(cx)
        })
        .await
    }
}

impl Drop for Passage {
    fn drop(&mut self) {
        let waits = self.gate.waiting.borrow_mut().remove(&self.ticket);
        let held = self.held.take();
        let admitted_ns = self.admitted_ns.or_else(|| held.as_ref()?.admitted_ns());
        // What is given up is called back before another takes its place.
        drop(held);
        if waits.is_some() {
            self.gate.policy.borrow_mut().withdraw(self.ticket);
        } else {
            let now_ns = self.gate.reactor.now_ns();
            let device_ns = admitted_ns.map_or(0, |admitted_ns| now_ns.saturating_sub(admitted_ns));
            let mut stats = self.gate.stats.get();
            stats.device_ns += device_ns;
            self.gate.stats.set(stats);
            self.gate.policy.borrow_mut().complete(self.ask, self.ended.then_some(device_ns));
        }
        self.gate.admit(None);
    }
}

impl Block for Gated {
    fn size_bytes(&self) -> u64 {
        self.block.size_bytes()
    }

    fn block_bytes(&self) -> u32 {
        self.block.block_bytes()
    }

    fn read(&self, origin: Origin, offset: u64, len: usize) -> IoFuture<Buf> {
        let ask = Ask { origin, kind: Kind::Read, bytes: len as u64 };
        Box::pin(self.gate.clone().pass(ask, self.block.read(origin, offset, len)))
    }

    fn write(&self, origin: Origin, offset: u64, buf: Rc<Buf>, durable: bool) -> IoFuture<()> {
        let ask = Ask { origin, kind: Kind::Write, bytes: buf.len() as u64 };
        Box::pin(self.gate.clone().pass(ask, self.block.write(origin, offset, buf, durable)))
    }

    fn flush(&self, origin: Origin) -> IoFuture<()> {
        let ask = Ask { origin, kind: Kind::Flush, bytes: 0 };
        Box::pin(self.gate.clone().pass(ask, self.block.flush(origin)))
    }
}
