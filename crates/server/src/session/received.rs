//! The bytes that a connection received.
//!
//! Role: memory to receive into, which long values of commands that have begun may hold on to, so that they
//! are not copied. Place on the path: between the socket and the parser.
//!
//! Invariants:
//! * what is parsed does not move before it is drained;
//! * memory that a value holds is not received into again;
//! * how much values can hold on to is known, and bounded: [`LENT_BYTES_MAX`] beside the buffer itself.

use crate::limits::RECEIVE_BYTES;
use bytes::Bytes;

/// Bytes of buffers that values of one connection hold on to at most, beside the one that is parsed: above
/// it values are copied.
const LENT_BYTES_MAX: usize = 512 << 10;

/// What was received and not drained yet.
#[derive(Default)]
pub(super) struct Received {
    memory: Memory,
    /// Capacity of buffers that were left to values under way.
    lent_bytes: usize,
}

enum Memory {
    Own(Vec<u8>),
    /// Values may hold ranges of it; how much memory it is.
    Shared(Bytes, usize),
}

impl Default for Memory {
    fn default() -> Memory {
        Memory::Own(Vec::new())
    }
}

impl Received {
    /// Takes memory that was received into.
    pub(super) fn put(&mut self, buffer: Vec<u8>) {
        self.memory = Memory::Own(buffer);
    }

    pub(super) fn bytes(&self) -> &[u8] {
        match &self.memory {
            Memory::Own(buffer) => buffer,
            Memory::Shared(buffer, _) => buffer,
        }
    }

    /// The same, for who may hold on to ranges of it, if it is shared.
    pub(super) fn shared(&self) -> Option<&Bytes> {
        match &self.memory {
            Memory::Own(_) => None,
            Memory::Shared(buffer, _) => Some(buffer),
        }
    }

    /// From here on values may hold on to ranges of it, unless they hold enough.
    pub(super) fn share(&mut self) {
        if self.lent_bytes >= LENT_BYTES_MAX {
            return;
        }
        if let Memory::Own(buffer) = &mut self.memory {
            let capacity = buffer.capacity();
            self.memory = Memory::Shared(Bytes::from(std::mem::take(buffer)), capacity);
        }
    }

    /// Nothing is under way that could hold on to anything.
    pub(super) fn settle(&mut self) {
        self.lent_bytes = 0;
    }

    /// Capacity of buffers that values under way may hold on to.
    pub(super) fn lent_bytes(&self) -> usize {
        self.lent_bytes
    }

    /// Gives up the memory, without the first `parsed` bytes. Where a value holds it, other memory with what
    /// is not parsed and so much room, which is told.
    pub(super) fn drain(&mut self, parsed: usize, room: usize) -> (Vec<u8>, bool) {
        match std::mem::take(&mut self.memory) {
            Memory::Shared(buffer, capacity) if !buffer.is_unique() => {
                self.lent_bytes += capacity;
                (with_room(&buffer[parsed..], room), true)
            }
            Memory::Shared(buffer, _) => (drained(buffer.into(), parsed), false),
            Memory::Own(buffer) => (drained(buffer, parsed), false),
        }
    }
}

/// Other memory with these bytes and room for so many more. Growing what they stand in would copy all that
/// it has room for.
pub(super) fn with_room(bytes: &[u8], room: usize) -> Vec<u8> {
    let mut other = Vec::with_capacity((bytes.len() + room).next_multiple_of(RECEIVE_BYTES));
    other.extend_from_slice(bytes);
    other
}

fn drained(mut buffer: Vec<u8>, parsed: usize) -> Vec<u8> {
    buffer.drain(..parsed);
    buffer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_nobody_holds_is_received_into_again() {
        let mut received = Received::default();
        let mut buffer = Vec::with_capacity(64);
        buffer.extend_from_slice(b"parsed, rest");
        let address = buffer.as_ptr();
        received.put(buffer);
        assert!(received.shared().is_none());
        received.share();
        let value = received.shared().expect("it is shared").slice(..6);
        assert_eq!(value, b"parsed".as_slice());
        drop(value);
        let (buffer, is_other) = received.drain(8, 0);
        assert_eq!((&buffer[..], is_other), (b"rest".as_slice(), false));
        assert_eq!((buffer.as_ptr(), buffer.capacity()), (address, 64));
        assert_eq!(received.lent_bytes(), 0);
    }

    #[test]
    fn memory_that_a_value_holds_is_left_to_it_and_counted() {
        let mut received = Received::default();
        let mut values = Vec::new();
        let mut count = 0;
        loop {
            received.put([vec![count; 100 << 10], b"rest".to_vec()].concat());
            received.share();
            let Some(buffer) = received.shared() else { break };
            values.push(buffer.slice(..100 << 10));
            let (buffer, is_other) = received.drain(100 << 10, 128 << 10);
            assert_eq!((&buffer[..], is_other), (b"rest".as_slice(), true));
            assert_eq!(buffer.capacity(), 144 << 10, "room for what comes, and the same each time");
            count += 1;
        }
        assert!((5..8).contains(&count), "{count} buffers were left");
        assert!(received.lent_bytes() >= usize::from(count) * (100 << 10));
        for (number, value) in values.iter().enumerate() {
            assert!(value.iter().all(|byte| usize::from(*byte) == number));
        }
        received.settle();
        received.share();
        assert!(received.shared().is_some());
    }
}
