//! Posted sends: a socket's short sends that nobody waits for.
//!
//! Role: a reply that is ready leaves where it was made, without a task that begins its send and another turn
//! that ends it. Place on the path: beside [`crate::Socket::send`], above [`crate::ops`].
//!
//! Invariants:
//! * a socket has one posted send at a time, and none beside a send that is waited for: its user sees to it
//!   ([`crate::Socket::may_post`], [`crate::Socket::posted`]);
//! * all of a posted send leaves, in as many pieces as its driver makes of it, or its socket is shut down and
//!   nothing more is posted; of one whose socket was closed what had begun;
//! * what it was sent from is the next one's memory if it is small, and is given back if not.
//!
//! Never: it touches a driver: its end may be told from within one.

use crate::limits::SEND_BUFFER_BYTES_KEPT;
use crate::sync::WaitList;
use std::cell::Cell;

/// What a socket has posted.
#[derive(Default)]
pub(crate) struct Post {
    /// Bytes with the driver.
    bytes: Cell<usize>,
    has_failed: Cell<bool>,
    /// Its socket is closed.
    is_closed: Cell<bool>,
    /// Bytes of those that have left.
    sent_bytes: Cell<u64>,
    memory: Cell<Vec<u8>>,
    /// Who waits for the end of the one under way.
    ended: WaitList,
}

impl Post {
    /// Bytes that are under way.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.get()
    }

    /// Bytes that have left.
    pub(crate) fn sent_bytes(&self) -> u64 {
        self.sent_bytes.get()
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed.get()
    }

    /// Its socket is closed: nothing more starts on it.
    pub(crate) fn close(&self) {
        self.is_closed.set(true);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.get()
    }

    /// So many bytes are with the driver from now on.
    pub(crate) fn begins(&self, bytes: usize) {
        assert!(
            bytes > 0 && self.bytes.replace(bytes) == 0 && !self.has_failed(),
            "one posted send at a time"
        );
    }

    /// It has ended: all of it left, or nothing more will.
    pub(crate) fn ends(&self, is_sent: bool, memory: Vec<u8>) {
        let bytes = self.bytes.replace(0);
        if is_sent {
            assert_eq!(bytes, memory.len());
            self.sent_bytes.set(self.sent_bytes.get() + bytes as u64);
        } else {
            self.has_failed.set(true);
        }
        self.keep(memory);
        self.ended.wake_all();
    }

    /// Waits for the end of what is under way.
    pub(crate) async fn ended(&self) {
        self.ended.wait_for(|| (self.bytes() == 0).then_some(())).await;
    }

    /// Memory to send from, empty.
    pub(crate) fn memory(&self) -> Vec<u8> {
        self.memory.take()
    }

    /// Keeps memory for the next send, if it is small.
    pub(crate) fn keep(&self, mut memory: Vec<u8>) {
        if memory.capacity() <= SEND_BUFFER_BYTES_KEPT {
            memory.clear();
            self.memory.set(memory);
        }
    }
}
