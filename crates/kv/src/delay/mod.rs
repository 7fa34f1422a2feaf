//! Devices that take longer, around a KV device or a block device.
//!
//! Role: a slow device made of a fast one, for tests and benchmarks. Place on the path: anywhere
//! between two devices.
//!
//! Invariants: an operation is delayed by a fixed time and a time for each byte it carries, after
//! it was done below; requests reach the device below in the order in which they came.
//!
//! Never: it reorders, drops or fails anything.

#[cfg(test)]
mod tests;

use crate::block::{Block, IoFuture, Origin};
use crate::completion::Completion;
use crate::device::{Device, LocalFuture};
use crate::error::Result;
use crate::request::Request;
use plimsoll_reactor::{Buf, Reactor};
use std::rc::Rc;

/// How long an operation takes longer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delay {
    /// Nanoseconds for every operation.
    pub fixed_ns: u64,
    /// Picoseconds for every byte.
    pub byte_ps: u64,
}

impl Delay {
    fn ns(self, bytes: u64) -> u64 {
        self.fixed_ns.saturating_add(self.byte_ps.saturating_mul(bytes) / 1000)
    }
}

/// A KV device whose completions come later.
pub struct DelayDevice {
    reactor: Reactor,
    below: Rc<dyn Device>,
    delay: Delay,
}

impl DelayDevice {
    /// Wraps a device.
    #[must_use]
    pub fn new(reactor: &Reactor, below: Rc<dyn Device>, delay: Delay) -> Rc<DelayDevice> {
        Rc::new(DelayDevice { reactor: reactor.clone(), below, delay })
    }
}

impl Device for DelayDevice {
    fn execute(self: Rc<Self>, request: Request) -> LocalFuture<Result<Completion>> {
        Box::pin(async move {
            let down_bytes = request.op.value_bytes();
            let result = self.below.clone().execute(request).await;
            let up_bytes = result.as_ref().map_or(0, |completion| completion.output.value_bytes());
            self.reactor.sleep_ns(self.delay.ns(down_bytes + up_bytes)).await;
            result
        })
    }

    crate::as_below!();
}

/// A block device whose operations end later.
pub struct DelayBlock {
    reactor: Reactor,
    below: Rc<dyn Block>,
    delay: Delay,
}

impl DelayBlock {
    /// Wraps a block device.
    #[must_use]
    pub fn new(reactor: &Reactor, below: Rc<dyn Block>, delay: Delay) -> Rc<DelayBlock> {
        Rc::new(DelayBlock { reactor: reactor.clone(), below, delay })
    }

    fn pass<T: 'static>(&self, bytes: usize, below: IoFuture<T>) -> IoFuture<T> {
        let (reactor, ns) = (self.reactor.clone(), self.delay.ns(bytes as u64));
        Box::pin(async move {
            let result = below.await;
            reactor.sleep_ns(ns).await;
            result
        })
    }
}

impl Block for DelayBlock {
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
