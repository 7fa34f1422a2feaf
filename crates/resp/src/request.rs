//! Requests: what the parser says, and how a client writes one.
//!
//! Role: the vocabulary of the request side ([`Step`], [`Command`], [`Args`], [`LargeArg`]) and [`encode`]
//! for clients. The work is in `parser.rs` (multibulk, states) and `inline.rs` (quoting);
//! `pair.rs` looks ahead. Place: between
//! the connection's input buffer and the command table. Invariants: an argument is a view into the caller's
//! buffer (multibulk) or the parser's scratch (inline), and a copy only for who keeps it.
//! Never: interpret an argument.
//!
//! Where we differ from Redis (7.0), on purpose:
//! * `args_max` is 1,048,576 (Redis 7 takes any `int`);
//! * the bytes after a header's carriage return and after an argument must be what the protocol says; Redis
//!   skips them unseen, and runs what follows a miscounted argument as commands;
//! * a line's limit holds however the line was cut into reads; Redis takes a longer one that came in one
//!   read;
//! * a NUL in an inline command is a byte like others;
//! * a command beyond the query buffer's limit is told so before the connection closes.

mod inline;
mod pair;
mod parser;
#[cfg(test)]
mod tests;

use crate::ProtocolError;
use bytes::Bytes;
pub use pair::{Pair, pair};
pub use parser::Parser;
use std::ops::{Index, Range};

/// What [`Parser::parse`] found at the front of the buffer.
///
/// After every step but an error, drop [`Step::consumed`] bytes from the front of the buffer before the
/// next call.
#[derive(Clone, Copy, Debug)]
pub enum Step<'a> {
    /// The buffer holds no whole command. Read more, keep the bytes that are there, and call again.
    Incomplete {
        /// Bytes to drop: empty commands before the incomplete one, which Redis skips too.
        consumed: usize,
        /// At least so many bytes must arrive before a call can do more: reserve this much. Never zero; at
        /// most one argument that is not large, whatever the client claims to be sending.
        wanted: usize,
    },
    /// One whole command.
    Command(Command<'a>),
    /// A command whose next argument is large: stream it past the buffer, then call
    /// [`Parser::resume_after_large`].
    Large(LargeArg<'a>),
    /// The end of a command that had a large argument, with the arguments after the last large one (often
    /// none).
    Tail(Command<'a>),
    /// The client broke the protocol. Every further call says the same.
    Error(ProtocolError),
}

impl Step<'_> {
    /// Bytes to drop from the front of the buffer.
    #[inline]
    #[must_use]
    pub fn consumed(&self) -> usize {
        match self {
            Self::Incomplete { consumed, .. } => *consumed,
            Self::Command(command) | Self::Tail(command) => command.consumed,
            Self::Large(large) => large.consumed,
            Self::Error(_) => 0,
        }
    }
}

/// A whole command, or the end of one.
#[derive(Clone, Copy, Debug)]
pub struct Command<'a> {
    /// Bytes to drop from the front of the buffer when done with `args`.
    pub consumed: usize,
    /// The arguments, the command's name first. Never empty in [`Step::Command`].
    pub args: Args<'a>,
}

/// A large argument, announced before any of its bytes is needed.
///
/// The caller drops `consumed` bytes, takes the next `len` bytes of the stream (the first of them may be in
/// the buffer already) wherever it likes, calls [`Parser::resume_after_large`], and goes on parsing with
/// whatever follows those `len` bytes, the CRLF included: the parser checks it.
///
/// `args` must be copied before `consumed` bytes are dropped, if they are needed later: the parser gives
/// each argument once.
#[derive(Clone, Copy, Debug)]
pub struct LargeArg<'a> {
    /// Bytes to drop from the front of the buffer: up to the first byte of the large argument.
    pub consumed: usize,
    /// The arguments since the start of the command, or since its previous large argument.
    pub args: Args<'a>,
    /// The large argument's place in the command, 0 being the name.
    pub index: usize,
    /// Its length in bytes, without CRLF.
    pub len: usize,
    /// How many arguments the whole command has.
    pub args_total: usize,
}

/// One argument's place in the bytes it lives in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    start: u32,
    end: u32,
}

impl Span {
    #[inline]
    fn new(start: usize, end: usize) -> Self {
        // The limits keep both far below (see Limits::is_consistent).
        assert!(start <= end && end <= u32::MAX as usize);
        Self { start: start as u32, end: end as u32 }
    }

    #[inline]
    fn range(self) -> Range<usize> {
        self.start as usize..self.end as usize
    }
}

/// Arguments of a command, without a copy.
#[derive(Clone, Copy)]
pub struct Args<'a> {
    bytes: &'a [u8],
    spans: &'a [Span],
    /// Whether `bytes` are the caller's buffer: those of an inline command are unquoted elsewhere.
    is_buffer: bool,
    /// What `bytes` are a range of, if who asks may hold on to it.
    shared: Option<&'a Bytes>,
}

/// A shorter argument is copied by [`Args::keep`]: it is not worth holding on to a buffer.
pub const SHARED_BYTES_MIN: usize = 8 << 10;

impl<'a> Args<'a> {
    /// How many arguments.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Whether there is none.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// An argument.
    #[inline]
    #[must_use]
    pub fn get(&self, index: usize) -> Option<&'a [u8]> {
        self.spans.get(index).map(|span| &self.bytes[span.range()])
    }

    /// All arguments in order.
    #[inline]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &'a [u8]> + DoubleEndedIterator + Clone + use<'a> {
        let bytes = self.bytes;
        self.spans.iter().map(move |span| &bytes[span.range()])
    }

    /// The same arguments, of which long ones may hold on to the buffer that they were parsed in.
    #[inline]
    #[must_use]
    pub fn within(self, buffer: &'a Bytes) -> Args<'a> {
        Args { shared: self.is_buffer.then_some(buffer), ..self }
    }

    /// An argument for longer than its buffer lasts: a range of that, if it is long and may hold on to it,
    /// else a copy.
    ///
    /// # Panics
    /// Where `index` is not below [`Args::len`], or the buffer given to [`Args::within`] is another one.
    #[must_use]
    pub fn keep(&self, index: usize) -> Bytes {
        let arg = &self[index];
        match self.shared {
            Some(buffer) if arg.len() >= SHARED_BYTES_MIN => buffer.slice_ref(arg),
            _ => Bytes::copy_from_slice(arg),
        }
    }
}

/// Arguments of a command that is kept for later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedArgs {
    bytes: Vec<u8>,
    spans: Vec<Span>,
}

impl OwnedArgs {
    /// Copies arguments.
    #[must_use]
    pub fn new<'a>(args: impl IntoIterator<Item = &'a [u8]>) -> OwnedArgs {
        let (mut bytes, mut spans) = (Vec::new(), Vec::new());
        for arg in args {
            spans.push(Span::new(bytes.len(), bytes.len() + arg.len()));
            bytes.extend_from_slice(arg);
        }
        // They may be millions, and of a word each.
        bytes.shrink_to_fit();
        spans.shrink_to_fit();
        OwnedArgs { bytes, spans }
    }

    /// The memory that they took.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// The arguments.
    #[must_use]
    pub fn args(&self) -> Args<'_> {
        Args { bytes: &self.bytes, spans: &self.spans, is_buffer: false, shared: None }
    }
}

impl Index<usize> for Args<'_> {
    type Output = [u8];

    /// # Panics
    /// Where `index` is not below [`Args::len`].
    #[inline]
    fn index(&self, index: usize) -> &[u8] {
        &self.bytes[self.spans[index].range()]
    }
}

impl std::fmt::Debug for Args<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter().map(|arg| arg.escape_ascii().to_string())).finish()
    }
}

/// Append a command as a client sends it.
pub fn encode<A: AsRef<[u8]>>(args: &[A], out: &mut Vec<u8>) {
    let mut digits = itoa::Buffer::new();
    out.push(b'*');
    out.extend_from_slice(digits.format(args.len()).as_bytes());
    for arg in args {
        let arg = arg.as_ref();
        out.extend_from_slice(b"\r\n$");
        out.extend_from_slice(digits.format(arg.len()).as_bytes());
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(arg);
    }
    out.extend_from_slice(b"\r\n");
}
