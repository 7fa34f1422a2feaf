//! The bytes of a value on their way down.
//!
//! Role: carries a value from the connection that received it to the device that writes it, without a copy on
//! the way: the body may be a range of memory that others hold as well (what was received, or the value of
//! which this is a shard), and what a layer puts before a value stands in a head of its own. Place on the
//! path: in every store.
//!
//! Invariant: what it holds is the head and then the body; two are the same if those bytes are, however they
//! are divided.
//!
//! Never: a short value that is kept for long should hold on to a long piece of memory; who makes one of a
//! range decides.

use bytes::Bytes;

/// The bytes of a value: a head, mostly none, and a body.
#[derive(Clone, Default)]
pub struct Payload {
    head: Box<[u8]>,
    body: Bytes,
}

impl Payload {
    /// A body with something before it.
    #[must_use]
    pub fn behind(head: &[u8], body: Bytes) -> Payload {
        Payload { head: head.into(), body }
    }

    /// Bytes of head and body.
    #[must_use]
    pub fn len(&self) -> usize {
        self.head.len() + self.body.len()
    }

    /// True if there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Head and body, one after the other: either may be empty.
    #[must_use]
    pub fn parts(&self) -> [&[u8]; 2] {
        [&self.head, &self.body]
    }

    /// The first bytes: the head, or if there is none, the body.
    #[must_use]
    pub fn start(&self) -> &[u8] {
        if self.head.is_empty() { &self.body } else { &self.head }
    }

    /// All bytes in one piece: the body itself, if there is no head.
    #[must_use]
    pub fn into_bytes(self) -> Bytes {
        if self.head.is_empty() { self.body } else { self.to_vec().into() }
    }

    /// A copy of all bytes.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        self.parts().concat()
    }
}

impl From<Bytes> for Payload {
    fn from(body: Bytes) -> Payload {
        Payload { head: Box::default(), body }
    }
}

impl From<Vec<u8>> for Payload {
    fn from(bytes: Vec<u8>) -> Payload {
        Bytes::from(bytes).into()
    }
}

impl From<&[u8]> for Payload {
    fn from(bytes: &[u8]) -> Payload {
        Bytes::copy_from_slice(bytes).into()
    }
}

impl PartialEq for Payload {
    fn eq(&self, other: &Payload) -> bool {
        let bytes = |payload: &Payload| payload.head.len();
        if bytes(self) == bytes(other) {
            return self.parts() == other.parts();
        }
        self.len() == other.len()
            && self.parts().into_iter().flatten().eq(other.parts().into_iter().flatten())
    }
}

impl Eq for Payload {}

impl std::fmt::Debug for Payload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        Bytes::from(self.to_vec()).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_bytes_are_the_same_however_they_are_divided() {
        let whole = Payload::from(b"head and body".to_vec());
        for at in 0..=whole.len() {
            let (head, body) = b"head and body".split_at(at);
            let divided = Payload::behind(head, Bytes::from_static(body));
            assert_eq!(divided, whole);
            assert_eq!(divided.len(), 13);
            assert_eq!(divided.to_vec(), b"head and body");
            assert_eq!(divided.start(), if at == 0 { b"head and body".as_slice() } else { head });
            assert_eq!(divided.into_bytes(), b"head and body".as_slice());
            let other = Payload::behind(b"h", Bytes::from_static(b"ead and bodY"));
            assert_ne!(Payload::behind(head, Bytes::from_static(body)), other);
        }
        assert_ne!(whole, Payload::from(b"head and bod".as_slice()));
        assert!(Payload::default().is_empty());
    }

    #[test]
    fn a_body_is_shared_and_not_copied() {
        let value = Bytes::from(vec![7; 4096]);
        let shard = Payload::behind(b"header", value.slice(1024..2048));
        assert_eq!(shard.parts()[1].as_ptr(), value[1024..].as_ptr());
        let same = shard.clone();
        assert_eq!(same.parts()[1].as_ptr(), value[1024..].as_ptr());
        let whole = Payload::from(value.clone()).into_bytes();
        assert_eq!(whole.as_ptr(), value.as_ptr());
    }
}
