//! Replies as values: what a command gives, before it is written in a connection's protocol.
//!
//! Role: lets commands run in any order and end in any order while their replies leave in order.
//! Place on the path: between a command and what sends it.
//!
//! Invariants: a value in parts stays pinned until its reply has been sent or dropped; a reply that waits for
//! others, or for its client, holds no memory but what it is counted with.
//!
//! Never: it knows sockets.

use bytes::Bytes;
use plimsoll_kv::{Error, UploadId};
use plimsoll_resp::ReplyWriter;

/// A value too long for memory, pinned at its device. Dropping it gives up the pin.
pub struct Pinned {
    /// Which upload holds it.
    pub upload: UploadId,
    /// The key it is the value of.
    pub key: Vec<u8>,
    /// The first byte to be sent.
    pub first: u64,
    /// How many are to be sent; at least one.
    pub length: u64,
    /// Gives up the pin, with the key.
    pub release: Box<dyn FnMut(Vec<u8>)>,
}

impl Drop for Pinned {
    fn drop(&mut self) {
        (self.release)(std::mem::take(&mut self.key));
    }
}

/// A reply.
pub enum Reply {
    /// `+OK`.
    Ok,
    /// A simple string.
    Simple(&'static str),
    /// A simple string that is made.
    Line(Vec<u8>),
    /// An error, its code first.
    Error(Vec<u8>),
    /// An integer.
    Integer(i64),
    /// A bulk string.
    Bulk(Vec<u8>),
    /// A bulk string that may stand in the block that a drive wrote: it leaves at once, or is
    /// [kept](Reply::kept).
    Value(Bytes),
    /// No such value.
    Null,
    /// An EXEC that did nothing.
    NullArray,
    /// An array.
    Array(Vec<Reply>),
    /// The header of an array whose elements are the replies that follow.
    ArrayHeader(usize),
    /// Pairs; an array of twice as many in RESP2.
    Map(Vec<(Reply, Reply)>),
    /// A message that is no reply to a command; an array in RESP2.
    Push(Vec<Reply>),
    /// Several replies, one after the other.
    Several(Vec<Reply>),
    /// A set; an array in RESP2.
    Set(Vec<Reply>),
    /// Text for people; a bulk string in RESP2.
    Text(Vec<u8>),
    /// A value in parts, sent part by part.
    Parts(Box<Pinned>),
    /// One of so many bytes that EXEC has no room for yet: it is never sent.
    Unmade(usize),
}

impl Reply {
    /// An error from a text.
    #[must_use]
    pub fn error(text: impl AsRef<[u8]>) -> Reply {
        Reply::Error(text.as_ref().to_vec())
    }

    /// A bulk string from a text.
    #[must_use]
    pub fn bulk(text: impl AsRef<[u8]>) -> Reply {
        Reply::Bulk(text.as_ref().to_vec())
    }

    /// The error of a device.
    #[must_use]
    pub fn failed(error: &Error) -> Reply {
        Reply::Error(error.redis().into_bytes())
    }

    /// The same, holding what it says and no more: for one that may have to wait.
    #[must_use]
    pub fn kept(self) -> Reply {
        match self {
            Reply::Value(bytes) => Reply::Bulk(bytes.to_vec()),
            other => other,
        }
    }

    /// True if it is an error.
    #[must_use]
    pub fn is_error(&self) -> bool {
        matches!(self, Reply::Error(_))
    }

    /// About how many bytes it holds.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        const SMALL: usize = 32;
        const PINNED: usize = 256;
        SMALL
            + match self {
                Reply::Error(bytes) | Reply::Bulk(bytes) | Reply::Text(bytes) | Reply::Line(bytes) => {
                    bytes.capacity()
                }
                Reply::Value(bytes) => bytes.len(),
                Reply::Array(items) | Reply::Set(items) | Reply::Push(items) | Reply::Several(items) => {
                    items.iter().map(Reply::held_bytes).sum()
                }
                Reply::Parts(pinned) => PINNED + pinned.key.capacity(),
                Reply::Unmade(bytes) => *bytes,
                Reply::Map(pairs) => pairs.iter().map(|(k, v)| k.held_bytes() + v.held_bytes()).sum(),
                _ => 0,
            }
    }

    /// Writes it.
    ///
    /// # Panics
    /// It is a value in parts: those are sent by the connection's writer.
    pub fn write(&self, writer: &mut ReplyWriter<'_>) {
        match self {
            Reply::Ok => writer.ok(),
            Reply::Simple(text) => writer.simple(text),
            Reply::Line(text) => writer.simple(text),
            Reply::Error(text) => writer.error(text),
            Reply::Integer(value) => writer.integer(*value),
            Reply::Bulk(bytes) => writer.bulk(bytes),
            Reply::Value(bytes) => writer.bulk(bytes),
            Reply::Null => writer.null(),
            Reply::NullArray => writer.null_array(),
            Reply::ArrayHeader(len) => writer.array_header(*len),
            Reply::Text(text) => writer.verbatim(*b"txt", text),
            Reply::Array(items) => {
                writer.array_header(items.len());
                items.iter().for_each(|item| item.write(writer));
            }
            Reply::Push(items) => {
                writer.push_header(items.len());
                items.iter().for_each(|item| item.write(writer));
            }
            Reply::Several(replies) => replies.iter().for_each(|reply| reply.write(writer)),
            Reply::Set(items) => {
                writer.set_header(items.len());
                items.iter().for_each(|item| item.write(writer));
            }
            Reply::Map(pairs) => {
                writer.map_header(pairs.len());
                for (key, value) in pairs {
                    key.write(writer);
                    value.write(writer);
                }
            }
            Reply::Parts(_) => unreachable!("the connection's writer sends values in parts"),
            Reply::Unmade(_) => unreachable!("EXEC makes it, or is refused"),
        }
    }
}
