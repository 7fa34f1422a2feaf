//! A block device that writes down what was asked of it, so that a test can ask afterwards what a
//! power loss at any instant would have left behind.
//!
//! Role: records every write (where, what, durable or not), every flush, and in which order they
//! began and ended; [`Images`] builds the images. Place on the path: just above the file.
//!
//! Invariants: an event stands in the log before its effect is told to anyone above; a flush covers
//! the writes that had ended when it began, as `fdatasync` does, and no others.
//!
//! Never: in a server; the log grows with every write.

mod images;
#[cfg(test)]
mod tests;

pub use images::Images;

use crate::block::{Block, IoFuture, Origin};
use plimsoll_reactor::Buf;
use std::cell::RefCell;
use std::rc::Rc;

/// What happened at a block device. Numbers name operations: the first is 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A write was given to the device.
    WriteBegan {
        /// Its number.
        write: u64,
        /// Where.
        offset: u64,
        /// What.
        bytes: Vec<u8>,
        /// Whether it is on stable media at its end.
        durable: bool,
    },
    /// The device said that a write succeeded, or failed.
    WriteEnded {
        /// Its number.
        write: u64,
        /// Whether it succeeded.
        succeeded: bool,
    },
    /// A flush was given to the device.
    FlushBegan {
        /// Its number.
        flush: u64,
    },
    /// The device said that a flush succeeded, or failed.
    FlushEnded {
        /// Its number.
        flush: u64,
        /// Whether it succeeded.
        succeeded: bool,
    },
}

#[derive(Default)]
struct Log {
    events: Vec<Event>,
    operations: u64,
}

/// A block device that records.
pub struct RecordingBlock {
    below: Rc<dyn Block>,
    log: Rc<RefCell<Log>>,
}

impl RecordingBlock {
    /// Wraps a device, whose writes are recorded from now on.
    #[must_use]
    pub fn new(below: Rc<dyn Block>) -> Rc<RecordingBlock> {
        Rc::new(RecordingBlock { below, log: Rc::default() })
    }

    /// Events so far: an instant between two of them.
    #[must_use]
    pub fn position(&self) -> usize {
        self.log.borrow().events.len()
    }

    /// Takes the events; recording goes on with an empty log.
    #[must_use]
    pub fn take(&self) -> Vec<Event> {
        std::mem::take(&mut self.log.borrow_mut().events)
    }
}

impl Log {
    fn begin(&mut self, event: impl FnOnce(u64) -> Event) -> u64 {
        let number = self.operations;
        self.operations += 1;
        self.events.push(event(number));
        number
    }
}

impl Block for RecordingBlock {
    fn size_bytes(&self) -> u64 {
        self.below.size_bytes()
    }

    fn block_bytes(&self) -> u32 {
        self.below.block_bytes()
    }

    fn read(&self, origin: Origin, offset: u64, len: usize) -> IoFuture<Buf> {
        self.below.read(origin, offset, len)
    }

    fn write(&self, origin: Origin, offset: u64, buf: Rc<Buf>, durable: bool) -> IoFuture<()> {
        let (below, log) = (self.below.clone(), self.log.clone());
        Box::pin(async move {
            let bytes = buf.to_vec();
            let begin = |write| Event::WriteBegan { write, offset, bytes, durable };
            let write = log.borrow_mut().begin(begin);
            let result = below.write(origin, offset, buf, durable).await;
            let succeeded = result.is_ok();
            log.borrow_mut().events.push(Event::WriteEnded { write, succeeded });
            result
        })
    }

    fn flush(&self, origin: Origin) -> IoFuture<()> {
        let (below, log) = (self.below.clone(), self.log.clone());
        Box::pin(async move {
            let flush = log.borrow_mut().begin(|flush| Event::FlushBegan { flush });
            let result = below.flush(origin).await;
            log.borrow_mut().events.push(Event::FlushEnded { flush, succeeded: result.is_ok() });
            result
        })
    }
}
