//! The reply decoder's state machine.
//!
//! Role: see `reply_decode.rs`. Invariants: `open` holds the aggregates begun and not yet full, outermost
//! first; each has at least one element due. Never: hold bytes of the buffer.

use super::{Decoded, Reply, ReplyError, ReplyLimits};
use crate::header::{self, Line};

/// What an aggregate becomes when it is full.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Array,
    Map,
    Set,
    Push,
    /// Dropped: the reply it is about follows.
    Attribute,
}

/// An aggregate begun.
#[derive(Debug)]
struct Open {
    kind: Kind,
    left: usize,
    elements: Vec<Reply>,
}

/// One element taken from the front of the buffer.
enum Taken {
    Value { read: usize, value: Reply },
    Header { read: usize, kind: Kind, len: usize },
    Wanted(usize),
}

/// An incremental decoder of one server's replies.
#[derive(Debug)]
pub struct ReplyDecoder {
    limits: ReplyLimits,
    open: Vec<Open>,
    /// Bytes at the front of the buffer known to hold no line end.
    searched: usize,
    /// Of the current reply: bytes already taken, and elements announced.
    taken_bytes: usize,
    elements: usize,
    failed: Option<ReplyError>,
}

impl ReplyDecoder {
    /// A decoder at the start of a connection.
    #[must_use]
    pub fn new(limits: ReplyLimits) -> Self {
        Self { limits, open: Vec::new(), searched: 0, taken_bytes: 0, elements: 0, failed: None }
    }

    /// Look for the next reply at the front of `buffer`, which must start with the bytes of the previous
    /// call that were not consumed, followed by those that arrived since.
    ///
    /// # Errors
    /// When the server broke the protocol or a limit; every further call says the same.
    pub fn decode(&mut self, buffer: &[u8]) -> Result<Decoded, ReplyError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let decoded = self.decode_elements(buffer);
        if let Err(error) = decoded {
            self.failed = Some(error);
            self.open = Vec::new();
        }
        decoded
    }

    fn decode_elements(&mut self, buffer: &[u8]) -> Result<Decoded, ReplyError> {
        let mut consumed = 0;
        loop {
            let (read, value) = match self.take(&buffer[consumed..])? {
                Taken::Wanted(wanted) => return Ok(Decoded::Incomplete { consumed, wanted }),
                Taken::Value { read, value } => (read, Some(value)),
                Taken::Header { read, kind, len } => (read, self.begin(kind, len)?),
            };
            consumed += read;
            self.searched = 0;
            self.taken_bytes += read;
            if self.taken_bytes > self.limits.reply_bytes_max {
                return Err(ReplyError::TooBig);
            }
            if let Some(reply) = value.and_then(|value| self.complete(value)) {
                self.taken_bytes = 0;
                self.elements = 0;
                return Ok(Decoded::Reply { consumed, reply });
            }
        }
    }

    /// Begin an aggregate; an empty one is whole at once.
    fn begin(&mut self, kind: Kind, len: usize) -> Result<Option<Reply>, ReplyError> {
        self.elements = self.elements.saturating_add(len);
        if self.elements > self.limits.elements_max {
            return Err(ReplyError::TooManyElements);
        }
        if len == 0 {
            return Ok(close(kind, Vec::new()));
        }
        if self.open.len() == self.limits.depth_max {
            return Err(ReplyError::TooDeep);
        }
        self.open.push(Open { kind, left: len, elements: Vec::new() });
        Ok(None)
    }

    /// Put a whole value where it belongs; returns the reply when that completes it.
    fn complete(&mut self, mut value: Reply) -> Option<Reply> {
        while let Some(open) = self.open.last_mut() {
            assert!(open.left > 0);
            open.elements.push(value);
            open.left -= 1;
            if open.left > 0 {
                return None;
            }
            let full = self.open.pop()?;
            value = close(full.kind, full.elements)?;
        }
        Some(value)
    }

    /// Take one value, or the header of an aggregate.
    fn take(&mut self, bytes: &[u8]) -> Result<Taken, ReplyError> {
        let Some(&kind) = bytes.first() else { return Ok(Taken::Wanted(3)) };
        if !b"+-:$*_%~>,#=(!|".contains(&kind) {
            return Err(ReplyError::UnknownType(kind));
        }
        let line_end = match header::find(b'\r', bytes, self.searched, self.limits.line_bytes_max) {
            Line::TooLong => return Err(ReplyError::LineTooLong),
            Line::Missing { searched } => {
                self.searched = searched;
                return Ok(Taken::Wanted(2));
            }
            Line::Ends(end) => end,
        };
        match bytes.get(line_end + 1) {
            Some(b'\n') => {}
            Some(_) => return Err(ReplyError::Malformed),
            None => {
                self.searched = line_end;
                return Ok(Taken::Wanted(1));
            }
        }
        let (line, read) = (&bytes[1..line_end], line_end + 2);
        let aggregate = |kind, factor: usize| {
            let len = length(line)?;
            Ok(Taken::Header { read, kind, len: len.checked_mul(factor).ok_or(ReplyError::Malformed)? })
        };
        match kind {
            b'$' | b'*' if line == b"-1" => Ok(Taken::Value { read, value: Reply::Null }),
            b'*' => aggregate(Kind::Array, 1),
            b'~' => aggregate(Kind::Set, 1),
            b'>' => aggregate(Kind::Push, 1),
            b'%' => aggregate(Kind::Map, 2),
            b'|' => aggregate(Kind::Attribute, 2),
            b'$' | b'=' | b'!' => self.take_bulk(kind, length(line)?, bytes, line_end),
            _ => Ok(Taken::Value { read, value: line_value(kind, line)? }),
        }
    }

    /// Take a value with a length: its header ends at `line_end`.
    fn take_bulk(
        &mut self,
        kind: u8,
        len: usize,
        bytes: &[u8],
        line_end: usize,
    ) -> Result<Taken, ReplyError> {
        let start = line_end + 2;
        let end = start.checked_add(len).ok_or(ReplyError::TooBig)?;
        // Said from the header: the buffer must not grow for a value that will be refused.
        if end.saturating_add(2).saturating_add(self.taken_bytes) > self.limits.reply_bytes_max {
            return Err(ReplyError::TooBig);
        }
        match bytes.get(end..end + 2) {
            Some(b"\r\n") => {}
            Some(_) => return Err(ReplyError::ExpectedBulkEnd),
            None => {
                // The header line is found again at once.
                self.searched = line_end;
                return Ok(Taken::Wanted(end + 2 - bytes.len()));
            }
        }
        let content = &bytes[start..end];
        let value = match (kind, content) {
            (b'=', [a, b, c, b':', text @ ..]) => {
                Reply::Verbatim { format: [*a, *b, *c], text: text.to_vec() }
            }
            (b'=', _) => return Err(ReplyError::Malformed),
            (b'!', _) => Reply::Error(content.to_vec()),
            _ => Reply::Bulk(content.to_vec()),
        };
        Ok(Taken::Value { read: end + 2, value })
    }
}

/// A length after `$`, `*` and the like.
fn length(line: &[u8]) -> Result<usize, ReplyError> {
    header::number(line).and_then(|len| usize::try_from(len).ok()).ok_or(ReplyError::Malformed)
}

/// A value that is one line.
fn line_value(kind: u8, line: &[u8]) -> Result<Reply, ReplyError> {
    let value = match (kind, line) {
        // The terminator is a carriage return: a line feed alone must not hide in a line.
        (b'+' | b'-', _) if line.contains(&b'\n') => None,
        (b'+', _) => Some(Reply::Simple(line.to_vec())),
        (b'-', _) => Some(Reply::Error(line.to_vec())),
        (b':', _) => header::number(line.strip_prefix(b"+").unwrap_or(line)).map(Reply::Integer),
        (b'_', b"") => Some(Reply::Null),
        (b'#', b"t") => Some(Reply::Boolean(true)),
        (b'#', b"f") => Some(Reply::Boolean(false)),
        (b',', _) => double(line).map(Reply::Double),
        (b'(', _) => {
            let digits = line.strip_prefix(b"-").or(line.strip_prefix(b"+")).unwrap_or(line);
            let valid = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
            valid.then(|| Reply::BigNumber(line.to_vec()))
        }
        _ => None,
    };
    value.ok_or(ReplyError::Malformed)
}

fn double(line: &[u8]) -> Option<f64> {
    match line {
        b"inf" | b"+inf" => Some(f64::INFINITY),
        b"-inf" => Some(f64::NEG_INFINITY),
        b"nan" | b"-nan" => Some(f64::NAN),
        // Only digits, sign, point and exponent: not the words that Rust would read too.
        _ if line.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E')) => {
            std::str::from_utf8(line).ok()?.parse().ok()
        }
        _ => None,
    }
}

/// Make a full aggregate a value; an attribute is dropped.
fn close(kind: Kind, elements: Vec<Reply>) -> Option<Reply> {
    match kind {
        Kind::Array => Some(Reply::Array(elements)),
        Kind::Set => Some(Reply::Set(elements)),
        Kind::Push => Some(Reply::Push(elements)),
        Kind::Attribute => None,
        Kind::Map => {
            let mut pairs = Vec::with_capacity(elements.len() / 2);
            let mut elements = elements.into_iter();
            while let (Some(key), Some(value)) = (elements.next(), elements.next()) {
                pairs.push((key, value));
            }
            Some(Reply::Map(pairs))
        }
    }
}
