//! Devices that fail on purpose, around a KV device or a block device.
//!
//! Role: what tests and benchmarks put into the stack to see that errors are told, counted and
//! survived. Place on the path: anywhere between two devices.
//!
//! Invariants: a failed operation never reaches the device below; the same policy, seed and
//! operations fail the same operations.
//!
//! Never: in a stack that nobody asked for faults in.

#[cfg(test)]
mod tests;

use crate::block::{Block, IoFuture, Origin};
use crate::completion::Completion;
use crate::device::{Device, LocalFuture};
use crate::error::{Error, Result};
use crate::request::Request;
use plimsoll_reactor::Buf;
use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;

/// Which operations fail. `T` is what a decision can look at.
pub enum FaultPolicy<T: ?Sized> {
    /// None.
    Never,
    /// The n-th operation alone, counted from 1.
    Nth(u64),
    /// Every operation from the n-th on, counted from 1.
    From(u64),
    /// So many in a million, drawn from the generator given.
    Probability {
        /// Parts per million.
        ppm: u32,
        /// Draws 64 random bits.
        random: Box<dyn FnMut() -> u64>,
    },
    /// Those of which this says so.
    When(Box<dyn FnMut(&T) -> bool>),
}

impl<T: ?Sized> FaultPolicy<T> {
    fn fails(&mut self, number: u64, operation: &T) -> bool {
        match self {
            FaultPolicy::Never => false,
            FaultPolicy::Nth(nth) => number == *nth,
            FaultPolicy::From(nth) => number >= *nth,
            FaultPolicy::Probability { ppm, random } => {
                u64::from(*ppm) > ((u128::from(random()) * 1_000_000) >> 64) as u64
            }
            FaultPolicy::When(decide) => decide(operation),
        }
    }
}

/// Operations seen and operations failed.
#[derive(Default)]
struct Counts {
    seen: Cell<u64>,
    failed: Cell<u64>,
}

impl Counts {
    fn decide<T: ?Sized>(&self, policy: &RefCell<FaultPolicy<T>>, operation: &T) -> bool {
        self.seen.set(self.seen.get() + 1);
        let fails = policy.borrow_mut().fails(self.seen.get(), operation);
        self.failed.set(self.failed.get() + u64::from(fails));
        fails
    }
}

/// A KV device some of whose requests fail with a given error.
pub struct FaultDevice {
    below: Rc<dyn Device>,
    policy: RefCell<FaultPolicy<Request>>,
    error: Error,
    counts: Counts,
}

impl FaultDevice {
    /// Wraps a device.
    #[must_use]
    pub fn new(below: Rc<dyn Device>, policy: FaultPolicy<Request>, error: Error) -> Rc<FaultDevice> {
        Rc::new(FaultDevice { below, policy: RefCell::new(policy), error, counts: Counts::default() })
    }

    /// Changes which requests fail from now on.
    pub fn set_policy(&self, policy: FaultPolicy<Request>) {
        *self.policy.borrow_mut() = policy;
    }

    /// Requests failed so far.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.counts.failed.get()
    }
}

impl Device for FaultDevice {
    fn execute(self: Rc<Self>, request: Request) -> LocalFuture<Result<Completion>> {
        Box::pin(async move {
            if self.counts.decide(&self.policy, &request) {
                return Err(self.error.clone());
            }
            self.below.clone().execute(request).await
        })
    }

    crate::as_below!();
}

/// An operation on a block device, for a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockOp {
    /// A read of so many bytes at an offset.
    Read {
        /// Where.
        offset: u64,
        /// How many.
        bytes: usize,
    },
    /// A write of so many bytes at an offset.
    Write {
        /// Where.
        offset: u64,
        /// How many.
        bytes: usize,
        /// Whether it flushes itself.
        durable: bool,
    },
    /// A flush.
    Flush,
}

/// A block device some of whose operations fail with an operating system's error.
pub struct FaultBlock {
    below: Rc<dyn Block>,
    shared: Rc<FaultShared>,
}

struct FaultShared {
    policy: RefCell<FaultPolicy<BlockOp>>,
    error: io::ErrorKind,
    counts: Counts,
}

impl FaultBlock {
    /// Wraps a block device.
    #[must_use]
    pub fn new(below: Rc<dyn Block>, policy: FaultPolicy<BlockOp>, error: io::ErrorKind) -> Rc<FaultBlock> {
        let shared = FaultShared { policy: RefCell::new(policy), error, counts: Counts::default() };
        Rc::new(FaultBlock { below, shared: Rc::new(shared) })
    }

    /// Changes which operations fail from now on.
    pub fn set_policy(&self, policy: FaultPolicy<BlockOp>) {
        *self.shared.policy.borrow_mut() = policy;
    }

    /// Operations failed so far.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.shared.counts.failed.get()
    }

    fn pass<T: 'static>(&self, operation: BlockOp, below: IoFuture<T>) -> IoFuture<T> {
        let shared = self.shared.clone();
        Box::pin(async move {
            if shared.counts.decide(&shared.policy, &operation) {
                return Err(shared.error.into());
            }
            below.await
        })
    }
}

impl Block for FaultBlock {
    fn size_bytes(&self) -> u64 {
        self.below.size_bytes()
    }
    fn block_bytes(&self) -> u32 {
        self.below.block_bytes()
    }
    fn read(&self, origin: Origin, offset: u64, len: usize) -> IoFuture<Buf> {
        self.pass(BlockOp::Read { offset, bytes: len }, self.below.read(origin, offset, len))
    }
    fn write(&self, origin: Origin, offset: u64, buf: Rc<Buf>, durable: bool) -> IoFuture<()> {
        let operation = BlockOp::Write { offset, bytes: buf.len(), durable };
        self.pass(operation, self.below.write(origin, offset, buf, durable))
    }
    fn flush(&self, origin: Origin) -> IoFuture<()> {
        self.pass(BlockOp::Flush, self.below.flush(origin))
    }
}
