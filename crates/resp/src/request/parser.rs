//! The incremental request parser.
//!
//! Role: cut the client's byte stream into commands. Place: the first thing that sees a client's bytes; one
//! parser per connection, on the connection's core.
//!
//! Invariants:
//! * positions are relative to the first byte of the current command (or, after a large argument, of its
//!   remainder), which is at the front of the buffer on every call but the one that finds it;
//! * no byte before `position`, nor the `searched` bytes after it, is read again: O(n) over all calls;
//! * `spans` grows by one per argument that has arrived whole: a claimed count allocates nothing;
//! * a bulk is refused from its header when the command would not fit `query_buffer_bytes_max`.
//!
//! Never: hold bytes of the buffer between calls, or decide differently because the bytes came in other
//! pieces.

use super::{Args, Command, LargeArg, Span, Step, inline};
use crate::header::{self, Line};
use crate::{Limits, ProtocolError};

/// Capacities kept from one command to the next. What a rare big command grew beyond is given back.
const SPANS_RETAINED_MAX: usize = 1024;
const SCRATCH_RETAINED_BYTES_MAX: usize = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Between commands, or in the first line of one.
    Start,
    /// In the arguments of a multibulk command.
    Arguments,
    /// The caller takes a large argument from the stream.
    Streaming,
    /// The CRLF after a large argument is due.
    LargeEnd,
    /// The client broke the protocol.
    Failed(ProtocolError),
}

/// What the first line of a command says.
enum Opened {
    /// An empty command of so many bytes.
    Empty(usize),
    /// An inline command of so many bytes.
    Inline(usize),
    /// A multibulk command; its arguments follow.
    Multibulk,
    /// Something is missing or wrong.
    Stopped(Stop),
}

/// Why parsing stops before a whole command.
enum Stop {
    Wanted(usize),
    Large { len: usize },
    Error(ProtocolError),
}

/// An incremental parser of one client's requests. See [`Step`] for what it says and what to do about it.
///
/// ```
/// use plimsoll_resp::{Limits, Parser, Step};
/// let mut parser = Parser::new(Limits::DEFAULT);
/// let mut buffer = b"*2\r\n$3\r\nGET\r\n$3\r\nke".to_vec();
/// let Step::Incomplete { consumed: 0, wanted: 3 } = parser.parse(&buffer) else { panic!() };
/// buffer.extend_from_slice(b"y\r\nPING\r\n");
/// let Step::Command(get) = parser.parse(&buffer) else { panic!() };
/// assert_eq!((&get.args[0], &get.args[1]), (&b"GET"[..], &b"key"[..]));
/// buffer.drain(..get.consumed);
/// let Step::Command(ping) = parser.parse(&buffer) else { panic!() };
/// assert_eq!(ping.args.iter().collect::<Vec<_>>(), [b"PING"]);
/// ```
#[derive(Debug)]
pub struct Parser {
    limits: Limits,
    authenticated: bool,
    state: State,
    /// The arguments found since the start of the command, or since its last large argument.
    spans: Vec<Span>,
    /// The words of an inline command, unquoted.
    scratch: Vec<u8>,
    /// The next byte to interpret.
    position: usize,
    /// Bytes after `position` known to hold no line end.
    pub(super) searched: usize,
    /// The length of the bulk at `position`, once its header is read.
    bulk_bytes: Option<usize>,
    args_total: usize,
    args_left: usize,
    /// Whether the command had a large argument.
    split: bool,
    /// Bytes of the command, large arguments excluded, that left the buffer with its large arguments.
    held_bytes: usize,
}

impl Parser {
    /// A parser at the start of a connection, of a client that counts as authenticated.
    ///
    /// # Panics
    /// If the limits are not consistent ([`Limits::is_consistent`]).
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        assert!(limits.is_consistent(), "inconsistent limits: {limits:?}");
        Self {
            limits,
            authenticated: true,
            state: State::Start,
            spans: Vec::new(),
            scratch: Vec::new(),
            position: 0,
            searched: 0,
            bulk_bytes: None,
            args_total: 0,
            args_left: 0,
            split: false,
            held_bytes: 0,
        }
    }

    /// Whether the client has authenticated: until then the two `unauthenticated_` limits hold too.
    pub fn set_authenticated(&mut self, authenticated: bool) {
        self.authenticated = authenticated;
    }

    /// Whether no byte of a command is pending: a connection may be closed here without cutting a command.
    #[must_use]
    pub fn is_between_commands(&self) -> bool {
        self.state == State::Start && self.searched == 0
    }

    /// Heap bytes the parser holds: of the order of what arrived, and little between commands.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.spans.capacity() * size_of::<Span>() + self.scratch.capacity()
    }

    /// Look for the next command at the front of `buffer`.
    ///
    /// `buffer` must start with the bytes of the previous call that were not consumed, followed by those
    /// that arrived since.
    ///
    /// # Panics
    /// If the caller breaks that rule by a shorter buffer, or calls between [`Step::Large`] and
    /// [`Parser::resume_after_large`].
    #[inline]
    pub fn parse<'a>(&'a mut self, buffer: &'a [u8]) -> Step<'a> {
        let mut start = 0;
        match self.state {
            State::Start => match self.open(buffer, &mut start) {
                Opened::Multibulk => {}
                Opened::Inline(consumed) => {
                    let args =
                        Args { bytes: &self.scratch, spans: &self.spans, is_buffer: false, shared: None };
                    return Step::Command(Command { consumed: start + consumed, args });
                }
                Opened::Stopped(stop) => return self.stop(buffer, start, stop),
                Opened::Empty(_) => unreachable!("open skips empty commands"),
            },
            State::Arguments => {}
            State::LargeEnd => {
                if let Err(stop) = self.large_end(buffer) {
                    return self.stop(buffer, 0, stop);
                }
            }
            State::Streaming => panic!("parse called before resume_after_large"),
            State::Failed(error) => return Step::Error(error),
        }
        let bytes = &buffer[start..];
        if let Err(stop) = self.arguments(bytes) {
            return self.stop(buffer, start, stop);
        }
        self.state = State::Start;
        let args = Args { bytes, spans: &self.spans, is_buffer: true, shared: None };
        let command = Command { consumed: start + self.position, args };
        if self.split { Step::Tail(command) } else { Step::Command(command) }
    }

    /// The caller has taken the large argument's bytes from the stream (its CRLF not): go on with what
    /// follows.
    ///
    /// # Panics
    /// If the last step was not [`Step::Large`].
    pub fn resume_after_large(&mut self) {
        assert_eq!(self.state, State::Streaming, "resume_after_large called without a large argument");
        self.state = State::LargeEnd;
        self.spans.clear();
        self.position = 0;
    }

    /// Turn a stop into the step the caller sees.
    fn stop<'a>(&'a mut self, buffer: &'a [u8], start: usize, stop: Stop) -> Step<'a> {
        match stop {
            Stop::Wanted(wanted) => {
                assert!(wanted > 0);
                Step::Incomplete { consumed: start, wanted }
            }
            Stop::Error(error) => {
                self.state = State::Failed(error);
                Step::Error(error)
            }
            Stop::Large { len } => {
                let index = self.args_total - self.args_left;
                self.args_left -= 1;
                self.held_bytes += self.position;
                self.split = true;
                self.state = State::Streaming;
                let args =
                    Args { bytes: &buffer[start..], spans: &self.spans, is_buffer: true, shared: None };
                Step::Large(LargeArg {
                    consumed: start + self.position,
                    args,
                    index,
                    len,
                    args_total: self.args_total,
                })
            }
        }
    }

    /// Read first lines until one opens a command; `start` moves past empty ones.
    #[inline]
    fn open(&mut self, buffer: &[u8], start: &mut usize) -> Opened {
        self.spans.clear();
        if self.spans.capacity() > SPANS_RETAINED_MAX || self.scratch.capacity() > SCRATCH_RETAINED_BYTES_MAX
        {
            self.release();
        }
        loop {
            let bytes = &buffer[*start..];
            let opened = match bytes.first() {
                Some(b'*') => self.open_multibulk(bytes),
                Some(_) => self.open_inline(bytes),
                None => Opened::Stopped(Stop::Wanted(1)),
            };
            match opened {
                Opened::Empty(len) => *start += len,
                other => return other,
            }
        }
    }

    /// Give back what an unusually big command grew.
    #[cold]
    fn release(&mut self) {
        self.spans.shrink_to(SPANS_RETAINED_MAX);
        self.scratch.clear();
        self.scratch.shrink_to(SCRATCH_RETAINED_BYTES_MAX);
    }

    #[inline]
    fn open_multibulk(&mut self, bytes: &[u8]) -> Opened {
        let (count, next) = match header::short_length(&bytes[1..]) {
            Some((count, len)) => (count, 1 + len),
            None => match self.multibulk_line(bytes) {
                Ok(line) => line,
                Err(stop) => return Opened::Stopped(stop),
            },
        };
        self.searched = 0;
        if count == 0 {
            return Opened::Empty(next);
        }
        if count > self.limits.args_max {
            return Opened::Stopped(Stop::Error(ProtocolError::InvalidMultibulkLength));
        }
        if !self.authenticated && count > self.limits.unauthenticated_args_max {
            return Opened::Stopped(Stop::Error(ProtocolError::UnauthenticatedMultibulkLength));
        }
        self.state = State::Arguments;
        self.position = next;
        self.bulk_bytes = None;
        self.args_total = count;
        self.args_left = count;
        self.split = false;
        self.held_bytes = 0;
        Opened::Multibulk
    }

    /// The general way to read a `*` line: incomplete, negative (which counts as empty), long or wrong ones.
    #[cold]
    fn multibulk_line(&mut self, bytes: &[u8]) -> Result<(usize, usize), Stop> {
        let end = match header::find(b'\r', bytes, self.searched, self.limits.header_bytes_max) {
            Line::Ends(end) => end,
            Line::Missing { searched } => {
                self.searched = searched;
                return Err(Stop::Wanted(2));
            }
            Line::TooLong => return Err(Stop::Error(ProtocolError::TooBigMbulkCount)),
        };
        let invalid = Stop::Error(ProtocolError::InvalidMultibulkLength);
        match bytes.get(end + 1) {
            None => {
                self.searched = end;
                return Err(Stop::Wanted(1));
            }
            Some(b'\n') => {}
            Some(_) => return Err(invalid),
        }
        let count = header::number(&bytes[1..end]).ok_or(invalid)?.max(0);
        Ok((usize::try_from(count).unwrap_or(usize::MAX), end + 2))
    }

    fn open_inline(&mut self, bytes: &[u8]) -> Opened {
        let end = match header::find(b'\n', bytes, self.searched, self.limits.inline_bytes_max) {
            Line::Ends(end) => end,
            Line::Missing { searched } => {
                self.searched = searched;
                return Opened::Stopped(Stop::Wanted(1));
            }
            Line::TooLong => return Opened::Stopped(Stop::Error(ProtocolError::TooBigInlineRequest)),
        };
        self.searched = 0;
        let line = &bytes[..end];
        self.scratch.clear();
        match inline::split(line.strip_suffix(b"\r").unwrap_or(line), &mut self.scratch, &mut self.spans) {
            Err(error) => Opened::Stopped(Stop::Error(error)),
            Ok(()) if self.spans.is_empty() => Opened::Empty(end + 1),
            Ok(()) => Opened::Inline(end + 1),
        }
    }

    /// Read arguments until the command is whole. The hot loop.
    #[inline]
    fn arguments(&mut self, bytes: &[u8]) -> Result<(), Stop> {
        assert!(self.position <= bytes.len(), "the buffer shrank between two calls");
        while self.args_left > 0 {
            let len = match self.bulk_bytes.take() {
                Some(len) => len,
                None => self.bulk_header(bytes)?,
            };
            let end = self.position + len;
            match bytes.get(end..end + 2) {
                Some(b"\r\n") => {}
                Some(_) => return Err(Stop::Error(ProtocolError::ExpectedBulkEnd)),
                None => {
                    self.bulk_bytes = Some(len);
                    return Err(Stop::Wanted(end + 2 - bytes.len()));
                }
            }
            self.spans.push(Span::new(self.position, end));
            self.position = end + 2;
            self.args_left -= 1;
        }
        Ok(())
    }

    /// Read a `$` line; leaves `position` at the argument's first byte. An argument to stream is a stop.
    #[inline]
    fn bulk_header(&mut self, bytes: &[u8]) -> Result<usize, Stop> {
        let line = &bytes[self.position..];
        let short = match line.first() {
            Some(b'$') => header::short_length(&line[1..]).map(|(len, read)| (len, 1 + read)),
            _ => None,
        };
        let (len, read) = match short {
            Some(short) => short,
            None => self.bulk_line(line)?,
        };
        self.searched = 0;
        self.position += read;
        let budget_bytes = self.limits.query_buffer_bytes_max.saturating_sub(self.held_bytes);
        if self.position > budget_bytes {
            return Err(Stop::Error(ProtocolError::QueryBufferFull));
        }
        if len > self.limits.bulk_bytes_max {
            return Err(Stop::Error(ProtocolError::InvalidBulkLength));
        }
        if !self.authenticated && len > self.limits.unauthenticated_bulk_bytes_max {
            return Err(Stop::Error(ProtocolError::UnauthenticatedBulkLength));
        }
        if len >= self.limits.large_bulk_bytes_min {
            return Err(Stop::Large { len });
        }
        if self.position + len + 2 > budget_bytes {
            return Err(Stop::Error(ProtocolError::QueryBufferFull));
        }
        Ok(len)
    }

    /// The general way to read a `$` line: incomplete, long or wrong ones.
    #[cold]
    fn bulk_line(&mut self, line: &[u8]) -> Result<(usize, usize), Stop> {
        // Bounded by what the command may still hold too: the buffer must not grow past it while a line
        // does not end.
        let left_bytes =
            self.limits.query_buffer_bytes_max.saturating_sub(self.held_bytes).saturating_sub(self.position);
        let header_bytes_max = self.limits.header_bytes_max;
        let end = match header::find(b'\r', line, self.searched, header_bytes_max.min(left_bytes)) {
            Line::Ends(end) => end,
            Line::Missing { searched } => {
                self.searched = searched;
                return Err(Stop::Wanted(2));
            }
            Line::TooLong if left_bytes < header_bytes_max => {
                return Err(Stop::Error(ProtocolError::QueryBufferFull));
            }
            Line::TooLong => return Err(Stop::Error(ProtocolError::TooBigBulkCount)),
        };
        match line.get(end + 1) {
            None => {
                self.searched = end;
                return Err(Stop::Wanted(1));
            }
            Some(_) if line[0] != b'$' => {
                return Err(Stop::Error(ProtocolError::ExpectedDollar { got: line[0] }));
            }
            Some(b'\n') => {}
            Some(_) => return Err(Stop::Error(ProtocolError::InvalidBulkLength)),
        }
        let len = header::number(&line[1..end]).and_then(|len| usize::try_from(len).ok());
        Ok((len.ok_or(Stop::Error(ProtocolError::InvalidBulkLength))?, end + 2))
    }

    /// Read the CRLF after a large argument.
    fn large_end(&mut self, bytes: &[u8]) -> Result<(), Stop> {
        match bytes {
            [b'\r', b'\n', ..] => {
                self.state = State::Arguments;
                self.position = 2;
                Ok(())
            }
            [] => Err(Stop::Wanted(2)),
            [_] => Err(Stop::Wanted(1)),
            _ => Err(Stop::Error(ProtocolError::ExpectedBulkEnd)),
        }
    }
}
