//! Writers of replies, RESP2 and RESP3.
//!
//! Role: append results to the connection's output buffer in the version the client chose with `HELLO`.
//! Place: the last hop of a request. Invariants: a line reply never holds a line break, whatever the text
//! came from; nothing is allocated but the buffer's own growth. Never: count what a header announced (the
//! caller writes that many elements).

#[cfg(test)]
mod tests;

use std::fmt::{self, Write as _};

/// The protocol version of one connection: 2 until it says `HELLO 3`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// RESP2: no maps, sets, pushes, doubles, booleans: they are sent as arrays, bulk strings and integers.
    #[default]
    Resp2,
    /// RESP3.
    Resp3,
}

/// Bytes copied at once: no library copies so few by REP MOVSB.
const COPY_STEP_BYTES: usize = 1 << 10;

/// Appends replies to a buffer. Cheap to make: one for each reply or for many.
#[derive(Debug)]
pub struct ReplyWriter<'a> {
    out: &'a mut Vec<u8>,
    version: Version,
}

impl<'a> ReplyWriter<'a> {
    /// A writer that appends to `out`.
    #[inline]
    pub fn new(out: &'a mut Vec<u8>, version: Version) -> Self {
        Self { out, version }
    }

    /// The version that decides the shapes.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// `+OK`.
    #[inline]
    pub fn ok(&mut self) {
        self.out.extend_from_slice(b"+OK\r\n");
    }

    /// A simple string. A line break in it becomes a space.
    #[inline]
    pub fn simple(&mut self, text: impl AsRef<[u8]>) {
        self.line(b'+', text.as_ref());
    }

    /// An error; `text` starts with its code (`ERR`, `WRONGTYPE`, ...). A line break in it becomes a space,
    /// as in Redis.
    pub fn error(&mut self, text: impl AsRef<[u8]>) {
        self.line(b'-', text.as_ref());
    }

    /// An error from `format_args!`, for texts that quote what the client sent; without an intermediate
    /// string.
    pub fn error_fmt(&mut self, text: fmt::Arguments<'_>) {
        self.out.push(b'-');
        let start = self.out.len();
        // Writing to a vector does not fail; an argument's own Display might: then the text ends there.
        let _ = AppendText(self.out).write_fmt(text);
        blank_line_breaks(&mut self.out[start..]);
        self.out.extend_from_slice(b"\r\n");
    }

    /// An integer.
    #[inline]
    pub fn integer(&mut self, value: i64) {
        self.number_line(b':', value);
    }

    /// A bulk string.
    #[inline]
    pub fn bulk(&mut self, value: &[u8]) {
        // Type byte, 20 digits at most, two line ends: one growth for all.
        self.out.reserve(value.len() + 25);
        self.length_line(b'$', value.len());
        self.bulk_bytes(value);
        self.out.extend_from_slice(b"\r\n");
    }

    /// The header of a bulk string of `len` bytes, which the caller sends after it
    /// ([`ReplyWriter::bulk_bytes`]), then [`ReplyWriter::bulk_end`].
    #[inline]
    pub fn bulk_header(&mut self, len: usize) {
        self.length_line(b'$', len);
    }

    /// Bytes of a bulk string begun with [`ReplyWriter::bulk_header`], one piece after the other.
    #[inline]
    pub fn bulk_bytes(&mut self, bytes: &[u8]) {
        // In steps that the C library copies without REP MOVSB: where a target begins up to 31 bytes further
        // in its page than the source in its own, as a value after its header does, AMD's Zen 4 takes ten
        // times as long for that (glibc's bug 30994).
        self.out.reserve(bytes.len());
        bytes.chunks(COPY_STEP_BYTES).for_each(|step| self.out.extend_from_slice(step));
    }

    /// The end of a bulk string begun with [`ReplyWriter::bulk_header`].
    #[inline]
    pub fn bulk_end(&mut self) {
        self.out.extend_from_slice(b"\r\n");
    }

    /// "No such value" where a value was asked for.
    #[inline]
    pub fn null(&mut self) {
        self.out.extend_from_slice(match self.version {
            Version::Resp2 => b"$-1\r\n",
            Version::Resp3 => b"_\r\n",
        });
    }

    /// "No result" where an array was asked for (an `EXEC` that did not run).
    #[inline]
    pub fn null_array(&mut self) {
        self.out.extend_from_slice(match self.version {
            Version::Resp2 => b"*-1\r\n",
            Version::Resp3 => b"_\r\n",
        });
    }

    /// The header of an array; `len` replies follow.
    #[inline]
    pub fn array_header(&mut self, len: usize) {
        self.length_line(b'*', len);
    }

    /// The header of a map; `len` pairs of replies follow. RESP2: an array of twice as many.
    pub fn map_header(&mut self, len: usize) {
        match self.version {
            Version::Resp2 => self.length_line(b'*', len.saturating_mul(2)),
            Version::Resp3 => self.length_line(b'%', len),
        }
    }

    /// The header of a set; `len` replies follow. RESP2: an array.
    pub fn set_header(&mut self, len: usize) {
        self.length_line(self.versioned(b'*', b'~'), len);
    }

    /// The header of a push message (pub/sub, invalidation); `len` replies follow. RESP2: an array.
    pub fn push_header(&mut self, len: usize) {
        self.length_line(self.versioned(b'*', b'>'), len);
    }

    /// A floating-point number: the shortest digits that give it back. RESP2: a bulk string.
    pub fn double(&mut self, value: f64) {
        let mut text = ShortText::default();
        text.double(value);
        match self.version {
            Version::Resp2 => self.bulk(text.as_bytes()),
            Version::Resp3 => self.line(b',', text.as_bytes()),
        }
    }

    /// A truth value. RESP2: the integer 1 or 0.
    pub fn boolean(&mut self, value: bool) {
        self.out.extend_from_slice(match (self.version, value) {
            (Version::Resp2, true) => b":1\r\n",
            (Version::Resp2, false) => b":0\r\n",
            (Version::Resp3, true) => b"#t\r\n",
            (Version::Resp3, false) => b"#f\r\n",
        });
    }

    /// Text with a three-byte format (`txt`, `mkd`). RESP2: a bulk string without the format.
    pub fn verbatim(&mut self, format: [u8; 3], text: &[u8]) {
        if self.version == Version::Resp2 {
            return self.bulk(text);
        }
        self.length_line(b'=', text.len().saturating_add(4));
        self.out.extend_from_slice(&format);
        self.out.push(b':');
        self.out.extend_from_slice(text);
        self.out.extend_from_slice(b"\r\n");
    }

    /// An integer beyond 64 bits, as decimal digits. RESP2: a bulk string.
    pub fn big_number(&mut self, digits: impl AsRef<[u8]>) {
        match self.version {
            Version::Resp2 => self.bulk(digits.as_ref()),
            Version::Resp3 => self.line(b'(', digits.as_ref()),
        }
    }

    fn versioned(&self, resp2: u8, resp3: u8) -> u8 {
        match self.version {
            Version::Resp2 => resp2,
            Version::Resp3 => resp3,
        }
    }

    #[inline]
    fn line(&mut self, kind: u8, text: &[u8]) {
        self.out.push(kind);
        let start = self.out.len();
        self.out.extend_from_slice(text);
        blank_line_breaks(&mut self.out[start..]);
        self.out.extend_from_slice(b"\r\n");
    }

    #[inline]
    fn length_line(&mut self, kind: u8, len: usize) {
        self.number_line(kind, len);
    }

    #[inline]
    fn number_line(&mut self, kind: u8, value: impl itoa::Integer) {
        self.out.push(kind);
        self.out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
        self.out.extend_from_slice(b"\r\n");
    }
}

/// A line reply must stay one line, or what a client sent could forge a reply.
#[inline]
fn blank_line_breaks(text: &mut [u8]) {
    for byte in text {
        if matches!(*byte, b'\r' | b'\n') {
            *byte = b' ';
        }
    }
}

/// `fmt::Write` onto a byte vector.
struct AppendText<'a>(&'a mut Vec<u8>);

impl fmt::Write for AppendText<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

/// A number's text, on the stack.
#[derive(Default)]
struct ShortText {
    bytes: [u8; 32],
    len: usize,
}

impl ShortText {
    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Redis' shapes: `3`, `0.1`, `1e+300`, `inf`, `-inf`, `nan`. At most 17 digits, sign, point and
    /// exponent: 24 bytes.
    fn double(&mut self, value: f64) {
        let magnitude = value.abs();
        let plain = magnitude == 0.0 || (1e-5..1e17).contains(&magnitude);
        let written = if value.is_nan() {
            self.write_str("nan")
        } else if value.is_infinite() {
            self.write_str(if value > 0.0 { "inf" } else { "-inf" })
        } else if plain {
            write!(self, "{value}")
        } else if magnitude > 1.0 {
            self.positive_exponent(value)
        } else {
            write!(self, "{value:e}")
        };
        assert!(written.is_ok(), "a double's text is longer than {} bytes", self.bytes.len());
    }

    /// `1e300` with C's plus sign: `1e+300`.
    fn positive_exponent(&mut self, value: f64) -> fmt::Result {
        let mut text = Self::default();
        write!(text, "{value:e}")?;
        for &byte in text.as_bytes() {
            self.write_char(char::from(byte))?;
            if byte == b'e' {
                self.write_char('+')?;
            }
        }
        Ok(())
    }
}

impl fmt::Write for ShortText {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = self.bytes.get_mut(self.len..self.len + text.len()).ok_or(fmt::Error)?;
        room.copy_from_slice(text.as_bytes());
        self.len += text.len();
        Ok(())
    }
}
