//! How commands are written and replies are read: RESP, or memcached's text protocol.
//!
//! Place on the path: between a connection and its bytes. Invariants: what memcached replies becomes the
//! reply that Redis would give, so that it is judged and proved in the same way; what is neither is an error.

use plimsoll_resp::{Decoded, Reply, ReplyDecoder, ReplyLimits, request};
use std::str::FromStr;

/// What the server speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// Redis'.
    #[default]
    Resp,
    /// Memcached's, in text: `get` and `set`.
    Memcached,
}

impl FromStr for Protocol {
    type Err = String;

    fn from_str(text: &str) -> Result<Protocol, String> {
        match text {
            "resp" => Ok(Protocol::Resp),
            "memcached" => Ok(Protocol::Memcached),
            text => Err(format!("'{text}': servers speak resp or memcached")),
        }
    }
}

/// Of one connection.
pub(crate) enum Wire {
    Resp(ReplyDecoder),
    Memcached,
}

impl Wire {
    pub(crate) fn new(protocol: Protocol) -> Wire {
        match protocol {
            Protocol::Resp => Wire::Resp(ReplyDecoder::new(ReplyLimits::DEFAULT)),
            Protocol::Memcached => Wire::Memcached,
        }
    }

    /// A command that changes nothing, and is always answered in the same way.
    pub(crate) fn greeting(&self) -> &'static str {
        match self {
            Wire::Resp(_) => "PING",
            Wire::Memcached => "version",
        }
    }

    /// Writes a command of words without spaces.
    pub(crate) fn command(&self, words: &[&[u8]], out: &mut Vec<u8>) {
        match self {
            Wire::Resp(_) => request::encode(words, out),
            Wire::Memcached => {
                out.extend_from_slice(&words.join(&b' '));
                out.extend_from_slice(b"\r\n");
            }
        }
    }

    pub(crate) fn get(&self, name: &[u8], out: &mut Vec<u8>) {
        let word: &[u8] = if matches!(self, Wire::Resp(_)) { b"GET" } else { b"get" };
        self.command(&[word, name], out);
    }

    pub(crate) fn set(&self, name: &[u8], value: &[u8], out: &mut Vec<u8>) {
        match self {
            Wire::Resp(_) => request::encode(&[b"SET", name, value], out),
            Wire::Memcached => {
                let bytes = value.len().to_string();
                self.command(&[b"set", name, b"0", b"0", bytes.as_bytes()], out);
                out.extend_from_slice(value);
                out.extend_from_slice(b"\r\n");
            }
        }
    }

    /// Bytes that are done with, and a reply if there is a whole one.
    pub(crate) fn decode(&mut self, bytes: &[u8]) -> Result<(usize, Option<Reply>), String> {
        match self {
            Wire::Resp(decoder) => match decoder.decode(bytes) {
                Ok(Decoded::Reply { consumed, reply }) => Ok((consumed, Some(reply))),
                Ok(Decoded::Incomplete { consumed, .. }) => Ok((consumed, None)),
                Err(error) => Err(error.to_string()),
            },
            Wire::Memcached => {
                let whole = memcached_reply(bytes)?;
                Ok(whole.map_or((0, None), |(consumed, reply)| (consumed, Some(reply))))
            }
        }
    }
}

/// The longest first line of a reply: a key has 250 bytes at most.
const LINE_BYTES_MAX: usize = 2048;

/// The first reply of memcached and its bytes, if it is whole.
fn memcached_reply(bytes: &[u8]) -> Result<Option<(usize, Reply)>, String> {
    let head = &bytes[..bytes.len().min(LINE_BYTES_MAX)];
    let Some(end) = head.windows(2).position(|pair| pair == b"\r\n") else {
        let is_long = bytes.len() > LINE_BYTES_MAX;
        return if is_long { Err("a line without an end".to_owned()) } else { Ok(None) };
    };
    let (line, next) = (&bytes[..end], end + 2);
    let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let reply = match words[0] {
        b"VALUE" => return value(&words, &bytes[next..]).map(|whole| whole.map(|(n, r)| (next + n, r))),
        b"END" => Reply::Null,
        b"STORED" => Reply::Simple(b"OK".to_vec()),
        b"VERSION" => Reply::Simple(line.to_vec()),
        b"ERROR" | b"CLIENT_ERROR" | b"SERVER_ERROR" | b"NOT_STORED" => Reply::Error(line.to_vec()),
        _ => return Err(format!("a line that is none: {}", line.escape_ascii())),
    };
    Ok(Some((next, reply)))
}

/// The value that its line announces, and the bytes from there to the end of the reply.
fn value(line: &[&[u8]], bytes: &[u8]) -> Result<Option<(usize, Reply)>, String> {
    const CLOSE: &[u8] = b"\r\nEND\r\n";
    let length = line.get(3).and_then(|word| std::str::from_utf8(word).ok()?.parse::<usize>().ok());
    let length = length.ok_or("a VALUE without its length")?;
    let whole = length.checked_add(CLOSE.len()).ok_or("a VALUE of impossible length")?;
    if bytes.len() < whole {
        return Ok(None);
    }
    if &bytes[length..whole] != CLOSE {
        return Err("a VALUE that is not followed by END".to_owned());
    }
    Ok(Some((whole, Reply::Bulk(bytes[..length].to_vec()))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memcached_commands_are_written() {
        let (wire, mut out) = (Wire::new(Protocol::Memcached), Vec::new());
        wire.command(&[b"version"], &mut out);
        wire.get(b"k", &mut out);
        wire.set(b"k", b"a b", &mut out);
        assert_eq!(out, b"version\r\nget k\r\nset k 0 0 3\r\na b\r\n");
    }

    #[test]
    fn memcached_replies_are_those_of_redis_however_they_are_cut() {
        let mut wire = Wire::new(Protocol::Memcached);
        let text =
            b"VERSION 1.6\r\nSTORED\r\nVALUE k 0 4\r\n\r\nEN\r\nEND\r\nEND\r\nSERVER_ERROR out of memory\r\n";
        let expected = [
            Reply::Simple(b"VERSION 1.6".to_vec()),
            Reply::Simple(b"OK".to_vec()),
            Reply::Bulk(b"\r\nEN".to_vec()),
            Reply::Null,
            Reply::Error(b"SERVER_ERROR out of memory".to_vec()),
        ];
        let (mut from, mut found) = (0, Vec::new());
        for to in 0..=text.len() {
            while let (consumed, Some(reply)) = wire.decode(&text[from..to]).unwrap() {
                found.push(reply);
                from += consumed;
            }
        }
        assert_eq!((found.as_slice(), from), (expected.as_slice(), text.len()));
    }

    #[test]
    fn what_is_no_reply_of_memcached_is_an_error() {
        let mut wire = Wire::new(Protocol::Memcached);
        let long = [b'x'; LINE_BYTES_MAX + 1];
        for wrong in [
            b"+OK\r\n".as_slice(),
            b"VALUE k 0\r\n",
            b"VALUE k 0 x\r\n",
            b"VALUE k 0 1\r\nabEND\r\nEND\r\n",
            b"VALUE k 0 18446744073709551615\r\n",
            &long,
        ] {
            assert!(wire.decode(wrong).is_err(), "{}", wrong.escape_ascii());
        }
        assert!("http".parse::<Protocol>().is_err());
    }
}
