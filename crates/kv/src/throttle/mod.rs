//! Devices with a ceiling of operations and bytes a second, around a KV device or a block device.
//!
//! Role: a small device made of a big one, for tests, benchmarks and quotas. Place on the path:
//! anywhere between two devices.
//!
//! Invariants: over any time t, at most `burst + rate x t` operations and bytes pass (one operation
//! more for what a completion turns out to carry); operations pass in the order in which they came.
//!
//! Never: it fails anything; who comes too early waits.

#[cfg(test)]
mod tests;

use crate::block::{Block, IoFuture, Origin};
use crate::completion::Completion;
use crate::device::{Device, LocalFuture};
use crate::error::Result;
use crate::request::Request;
use plimsoll_reactor::sync::Permits;
use plimsoll_reactor::{Buf, Reactor};
use std::cell::Cell;
use std::rc::Rc;

/// The ceiling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rates {
    /// Operations a second; 0: no limit.
    pub ops_per_s: u64,
    /// Bytes a second; 0: no limit.
    pub bytes_per_s: u64,
    /// How much may pass at once after a pause, in nanoseconds of the rates.
    pub burst_ns: u64,
}

/// A token bucket for each rate, as the time at which the next operation may pass.
struct Buckets {
    reactor: Reactor,
    rates: Rates,
    ops_free_ns: Cell<u64>,
    bytes_free_ns: Cell<u64>,
    /// First come, first served: who waits for tokens holds up those who follow.
    turn: Rc<Permits>,
}

fn cost_ns(amount: u64, per_s: u64) -> u64 {
    match per_s {
        0 => 0,
        _ => (u128::from(amount) * 1_000_000_000 / u128::from(per_s)) as u64,
    }
}

impl Buckets {
    fn new(reactor: &Reactor, rates: Rates) -> Rc<Buckets> {
        let zero = || Cell::new(0);
        let (ops_free_ns, bytes_free_ns) = (zero(), zero());
        Rc::new(Buckets {
            reactor: reactor.clone(),
            rates,
            ops_free_ns,
            bytes_free_ns,
            turn: Permits::new(1),
        })
    }

    /// Takes tokens; the time at which what took them may go on.
    fn take(&self, ops: u64, bytes: u64) -> u64 {
        let now_ns = self.reactor.now_ns();
        let oldest_ns = now_ns.saturating_sub(self.rates.burst_ns);
        let take = |free_ns: &Cell<u64>, cost_ns: u64| {
            let start_ns = free_ns.get().max(oldest_ns);
            free_ns.set(start_ns.saturating_add(cost_ns));
            start_ns
        };
        let ops_ns = take(&self.ops_free_ns, cost_ns(ops, self.rates.ops_per_s));
        let bytes_ns = take(&self.bytes_free_ns, cost_ns(bytes, self.rates.bytes_per_s));
        ops_ns.max(bytes_ns)
    }

    async fn pass(&self, bytes: u64) {
        let _turn = self.turn.acquire(1).await;
        let at_ns = self.take(1, bytes);
        if at_ns > self.reactor.now_ns() {
            self.reactor.sleep_until(at_ns).await;
        }
    }
}

/// A KV device with a ceiling.
pub struct ThrottleDevice {
    below: Rc<dyn Device>,
    buckets: Rc<Buckets>,
}

impl ThrottleDevice {
    /// Wraps a device.
    #[must_use]
    pub fn new(reactor: &Reactor, below: Rc<dyn Device>, rates: Rates) -> Rc<ThrottleDevice> {
        Rc::new(ThrottleDevice { below, buckets: Buckets::new(reactor, rates) })
    }
}

impl Device for ThrottleDevice {
    fn execute(self: Rc<Self>, request: Request) -> LocalFuture<Result<Completion>> {
        Box::pin(async move {
            self.buckets.pass(request.op.value_bytes()).await;
            let result = self.below.clone().execute(request).await;
            if let Ok(completion) = &result {
                // What a read carries is known afterwards: those who follow wait for it.
                self.buckets.take(0, completion.output.value_bytes());
            }
            result
        })
    }

    crate::as_below!();
}

/// A block device with a ceiling.
pub struct ThrottleBlock {
    below: Rc<dyn Block>,
    buckets: Rc<Buckets>,
}

impl ThrottleBlock {
    /// Wraps a block device.
    #[must_use]
    pub fn new(reactor: &Reactor, below: Rc<dyn Block>, rates: Rates) -> Rc<ThrottleBlock> {
        Rc::new(ThrottleBlock { below, buckets: Buckets::new(reactor, rates) })
    }

    fn pass<T: 'static>(&self, bytes: usize, below: IoFuture<T>) -> IoFuture<T> {
        let buckets = self.buckets.clone();
        Box::pin(async move {
            buckets.pass(bytes as u64).await;
            below.await
        })
    }
}

impl Block for ThrottleBlock {
    fn size_bytes(&self) -> u64 {
        self.below.size_bytes()
    }
    fn block_bytes(&self) -> u32 {
        self.below.block_bytes()
    }
    fn read(&self, origin: Origin, offset: u64, len: usize) -> IoFuture<Buf> {
        self.pass(len, self.below.read(origin, offset, len))
    }
    fn write(&self, origin: Origin, offset: u64, buf: Rc<Buf>, durable: bool) -> IoFuture<()> {
        self.pass(buf.len(), self.below.write(origin, offset, buf, durable))
    }
    fn flush(&self, origin: Origin) -> IoFuture<()> {
        self.pass(0, self.below.flush(origin))
    }
}
