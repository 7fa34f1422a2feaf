//! A block device behind a gate.

use crate::{Ask, Kind, Policy, Ticket};
use plimsoll_kv::Block;
use plimsoll_kv::block::{IoFuture, Origin};
use plimsoll_reactor::{Buf, Reactor};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

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
    /// Askers that wait, and how each is woken.
    waiting: RefCell<BTreeMap<Ticket, Waker>>,
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

/// An I/O at the gate: waiting, or admitted and not yet complete.
struct Passage {
    gate: Rc<Gate>,
    ticket: Ticket,
    ask: Ask,
    admitted_ns: Option<u64>,
    /// Its end was seen, and it was good: what it took says something of the device.
    ended: bool,
}

impl Gate {
    /// Lets go what the policy admits now; true if the one that just arrived is among it.
    fn admit(&self, arrived: Option<Ticket>) -> bool {
        let mut at_once = false;
        loop {
            let Some(ticket) = self.policy.borrow_mut().admit() else { return at_once };
            if arrived == Some(ticket) {
                at_once = true;
                continue;
            }
            let waiting = self.waiting.borrow_mut().remove(&ticket);
            waiting.expect("the policy admits those that wait").wake();
        }
    }

    async fn pass(self: Rc<Self>, ask: Ask) -> Passage {
        let ticket = Ticket(self.next_ticket.replace(self.next_ticket.get() + 1));
        self.policy.borrow_mut().arrive(ticket, ask);
        let mut passage = Passage { gate: self.clone(), ticket, ask, admitted_ns: None, ended: false };
        let waits = !self.admit(Some(ticket));
        if waits {
            let mut begins = true;
            poll_fn(|cx| {
                let mut waiting = self.waiting.borrow_mut();
                if !std::mem::take(&mut begins) && !waiting.contains_key(&ticket) {
                    return Poll::Ready(());
                }
                waiting.insert(ticket, cx.waker().clone());
                Poll::Pending
            })
            .await;
        }
        passage.admitted_ns = Some(self.reactor.now_ns());
        let mut stats = self.stats.get();
        (stats.passed, stats.waited) = (stats.passed + 1, stats.waited + u64::from(waits));
        self.stats.set(stats);
        passage
    }
}

impl Passage {
    /// The I/O came back.
    fn end<T, E>(mut self, result: &Result<T, E>) {
        self.ended = result.is_ok();
    }
}

impl Drop for Passage {
    fn drop(&mut self) {
        let waits = self.gate.waiting.borrow_mut().remove(&self.ticket).is_some();
        if waits {
            self.gate.policy.borrow_mut().withdraw(self.ticket);
        } else {
            let now_ns = self.gate.reactor.now_ns();
            let device_ns = self.admitted_ns.map_or(0, |admitted_ns| now_ns.saturating_sub(admitted_ns));
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
        let (gate, block) = (self.gate.clone(), self.block.clone());
        Box::pin(async move {
            let passage = gate.pass(Ask { origin, kind: Kind::Read, bytes: len as u64 }).await;
            let result = block.read(origin, offset, len).await;
            passage.end(&result);
            result
        })
    }

    fn write(&self, origin: Origin, offset: u64, buf: Rc<Buf>, durable: bool) -> IoFuture<()> {
        let (gate, block) = (self.gate.clone(), self.block.clone());
        Box::pin(async move {
            let passage = gate.pass(Ask { origin, kind: Kind::Write, bytes: buf.len() as u64 }).await;
            let result = block.write(origin, offset, buf, durable).await;
            passage.end(&result);
            result
        })
    }

    fn flush(&self, origin: Origin) -> IoFuture<()> {
        let (gate, block) = (self.gate.clone(), self.block.clone());
        Box::pin(async move {
            let passage = gate.pass(Ask { origin, kind: Kind::Flush, bytes: 0 }).await;
            let result = block.flush(origin).await;
            passage.end(&result);
            result
        })
    }
}
