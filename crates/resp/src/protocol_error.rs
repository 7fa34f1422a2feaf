//! What a client can do wrong, with Redis' texts.
//!
//! Role: the one error type of the request side. Place: returned by [`crate::Parser::parse`]; the
//! connection writes the reply and closes. Invariants: texts are Redis' byte for byte where Redis has one
//! (clients match on them). Never: raised by anything but the client's bytes.

use std::fmt;

/// The client broke the protocol. The connection cannot be resynchronised: reply
/// ([`ProtocolError::write_reply`]), close.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolError {
    /// The number after `*` is not a number, or above `args_max`.
    InvalidMultibulkLength,
    /// The number after `$` is not a number, negative, or above `bulk_bytes_max`.
    InvalidBulkLength,
    /// More than `inline_bytes_max` bytes and no line feed.
    TooBigInlineRequest,
    /// More than `header_bytes_max` bytes after `*` and no carriage return.
    TooBigMbulkCount,
    /// More than `header_bytes_max` bytes where a `$` line was due and no carriage return.
    TooBigBulkCount,
    /// Another byte where `$` was due.
    ExpectedDollar {
        /// The byte that came instead.
        got: u8,
    },
    /// An inline command with a quote left open, or one closed in the middle of a word.
    UnbalancedQuotes,
    /// More than `unauthenticated_args_max` arguments from a client not yet authenticated.
    UnauthenticatedMultibulkLength,
    /// An argument above `unauthenticated_bulk_bytes_max` from a client not yet authenticated.
    UnauthenticatedBulkLength,
    /// The bytes after an argument are not CRLF. (Redis skips two bytes unseen; we refuse, because a client
    /// that miscounts would have the rest of its data run as commands.)
    ExpectedBulkEnd,
    /// The command is above `query_buffer_bytes_max`. (Redis closes without a text.)
    QueryBufferFull,
}

impl ProtocolError {
    /// Append the RESP error reply, `-ERR Protocol error: ...\r\n`.
    pub fn write_reply(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"-ERR Protocol error: ");
        match *self {
            Self::ExpectedDollar { got } => {
                out.extend_from_slice(b"expected '$', got '");
                // As Redis: a line break inside an error reply becomes a space.
                out.push(if matches!(got, b'\r' | b'\n') { b' ' } else { got });
                out.push(b'\'');
            }
            _ => out.extend_from_slice(self.reason().as_bytes()),
        }
        out.extend_from_slice(b"\r\n");
    }

    fn reason(self) -> &'static str {
        match self {
            Self::InvalidMultibulkLength => "invalid multibulk length",
            Self::InvalidBulkLength => "invalid bulk length",
            Self::TooBigInlineRequest => "too big inline request",
            Self::TooBigMbulkCount => "too big mbulk count string",
            Self::TooBigBulkCount => "too big bulk count string",
            Self::ExpectedDollar { .. } => "expected '$'",
            Self::UnbalancedQuotes => "unbalanced quotes in request",
            Self::UnauthenticatedMultibulkLength => "unauthenticated multibulk length",
            Self::UnauthenticatedBulkLength => "unauthenticated bulk length",
            Self::ExpectedBulkEnd => "expected CRLF after bulk data",
            Self::QueryBufferFull => "too big query buffer",
        }
    }
}

impl fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Protocol error: {}", self.reason())?;
        match self {
            Self::ExpectedDollar { got } => write!(f, ", got '{}'", got.escape_ascii()),
            _ => Ok(()),
        }
    }
}

impl std::error::Error for ProtocolError {}
