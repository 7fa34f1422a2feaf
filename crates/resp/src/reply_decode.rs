//! The client's side: an incremental reply decoder.
//!
//! Role: bytes from a server to an owned [`Reply`]. Place: outside the server: load generator, simulated
//! clients, tests. Invariants: depth, elements and bytes of one reply are bounded; elements are taken from
//! the buffer as they complete, so that no byte is decoded twice; a claimed length allocates nothing before
//! the bytes are there. Decoding does not recurse. Never: panic on what a server sends. Streamed RESP3
//! types (`$?`) are refused; attributes are read and dropped.

mod decoder;
#[cfg(test)]
mod tests;

use crate::ReplyWriter;
pub use decoder::ReplyDecoder;
use std::fmt;

/// A whole reply.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// `+`
    Simple(Vec<u8>),
    /// `-`, or `!` (RESP3's error with a length).
    Error(Vec<u8>),
    /// `:`
    Integer(i64),
    /// `$`
    Bulk(Vec<u8>),
    /// `$-1`, `*-1` or `_`
    Null,
    /// `*`
    Array(Vec<Reply>),
    /// `%`, in the server's order.
    Map(Vec<(Reply, Reply)>),
    /// `~`, in the server's order.
    Set(Vec<Reply>),
    /// `>`: not the answer to a command.
    Push(Vec<Reply>),
    /// `,`
    Double(f64),
    /// `#`
    Boolean(bool),
    /// `=`
    Verbatim {
        /// Three bytes that say what the text is: `txt`, `mkd`.
        format: [u8; 3],
        /// The text.
        text: Vec<u8>,
    },
    /// `(`: decimal digits with an optional sign.
    BigNumber(Vec<u8>),
}

impl Reply {
    /// Write this reply as a server would. A line break in an error becomes a space.
    pub fn write(&self, writer: &mut ReplyWriter<'_>) {
        match self {
            Self::Simple(text) => writer.simple(text),
            Self::Error(text) => writer.error(text),
            Self::Integer(value) => writer.integer(*value),
            Self::Bulk(value) => writer.bulk(value),
            Self::Null => writer.null(),
            Self::Double(value) => writer.double(*value),
            Self::Boolean(value) => writer.boolean(*value),
            Self::Verbatim { format, text } => writer.verbatim(*format, text),
            Self::BigNumber(digits) => writer.big_number(digits),
            Self::Map(pairs) => {
                writer.map_header(pairs.len());
                for (key, value) in pairs {
                    key.write(writer);
                    value.write(writer);
                }
            }
            Self::Array(elements) | Self::Set(elements) | Self::Push(elements) => {
                match self {
                    Self::Set(_) => writer.set_header(elements.len()),
                    Self::Push(_) => writer.push_header(elements.len()),
                    _ => writer.array_header(elements.len()),
                }
                for element in elements {
                    element.write(writer);
                }
            }
        }
    }
}

/// What [`ReplyDecoder::decode`] found.
#[derive(Clone, Debug, PartialEq)]
pub enum Decoded {
    /// No whole reply yet. Drop `consumed` bytes, read at least `wanted` more, call again.
    Incomplete {
        /// Bytes to drop: elements already taken over.
        consumed: usize,
        /// At least so many bytes must arrive before a call can do more. Never zero.
        wanted: usize,
    },
    /// A reply. Drop `consumed` bytes.
    Reply {
        /// Bytes to drop.
        consumed: usize,
        /// The reply.
        reply: Reply,
    },
}

/// Bounds on one reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyLimits {
    /// Aggregates inside one another.
    pub depth_max: usize,
    /// Elements in all aggregates of one reply together (a map entry counts as two).
    pub elements_max: usize,
    /// Bytes of one reply, headers included.
    pub reply_bytes_max: usize,
    /// Length of a line: a simple string, an error, a number.
    pub line_bytes_max: usize,
}

impl ReplyLimits {
    /// As much as a Redis server may send: 512 MiB values, with room for their headers.
    pub const DEFAULT: Self = Self {
        depth_max: 16,
        elements_max: 16 * 1024 * 1024,
        reply_bytes_max: 1024 * 1024 * 1024,
        line_bytes_max: 64 * 1024,
    };
}

impl Default for ReplyLimits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// What a server can do wrong. The stream cannot be decoded further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyError {
    /// No type starts with this byte.
    UnknownType(u8),
    /// A length, number, boolean, double or format that is none.
    Malformed,
    /// A bulk that does not end with CRLF.
    ExpectedBulkEnd,
    /// Above `depth_max`.
    TooDeep,
    /// Above `elements_max`.
    TooManyElements,
    /// Above `reply_bytes_max`.
    TooBig,
    /// Above `line_bytes_max`.
    LineTooLong,
}

impl fmt::Display for ReplyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownType(byte) => write!(f, "no reply type starts with '{}'", byte.escape_ascii()),
            Self::Malformed => f.write_str("malformed reply"),
            Self::ExpectedBulkEnd => f.write_str("a bulk reply does not end with CRLF"),
            Self::TooDeep => f.write_str("reply nested too deep"),
            Self::TooManyElements => f.write_str("reply with too many elements"),
            Self::TooBig => f.write_str("reply too big"),
            Self::LineTooLong => f.write_str("reply line too long"),
        }
    }
}

impl std::error::Error for ReplyError {}
