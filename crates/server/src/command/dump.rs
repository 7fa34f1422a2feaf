//! DUMP and RESTORE: a value with its kind and a checksum, as one Redis gives it to another.
//!
//! A payload is a byte for the kind (a string), the string in the encoding of RDB files, the version of that
//! format in two bytes, and a CRC-64 (Jones) of all before it in eight. DUMP writes the version of Redis 5,
//! so that every Redis since takes it; strings have been encoded so for longer. RESTORE takes what any Redis
//! wrote: plain, as an integer, or compressed (LZF).
//!
//! Never: a payload allocates more than it says, or than [`TRANSACTION_BYTES_MAX`].

use super::{Run, number, syntax_error};
use crate::keyspace::Keyspace;
use crate::limits::TRANSACTION_BYTES_MAX;
use crate::reply::{Pinned, Reply};
use crate::session::Connection;
use crc_fast::{CrcAlgorithm, checksum};
use plimsoll_kv::{Condition, Error, Expiry, Op, Output, Value};
use plimsoll_resp::Args;
use std::rc::Rc;

const KIND_STRING: u8 = 0;
const FORMAT_VERSION: u16 = 9;
/// Version and checksum.
const FOOTER_BYTES: usize = 10;
/// Integers are written in so many digits at most.
const INTEGER_DIGITS_MAX: usize = 11;

/// Bytes of a payload beside those of the string: its kind, its length, the version and the checksum.
const PAYLOAD_BYTES_BESIDE: usize = 16;

/// The payload for a string.
fn encode(value: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(value.len() + PAYLOAD_BYTES_BESIDE);
    match integer(value) {
        Some(encoded) => {
            out.push(KIND_STRING);
            out.extend_from_slice(&encoded);
        }
        None => {
            begin_string(&mut out, value.len());
            out.extend_from_slice(value);
        }
    }
    end_payload(&mut out);
    out
}

/// What stands before a string that is no integer.
fn begin_string(out: &mut Vec<u8>, length: usize) {
    out.push(KIND_STRING);
    put_length(out, length);
}

/// What stands behind the string.
fn end_payload(out: &mut Vec<u8>) {
    out.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
    let crc = checksum(CrcAlgorithm::Crc64Redis, out);
    out.extend_from_slice(&crc.to_le_bytes());
}

/// A string that is an integer of 32 bits as Redis writes it, so encoded.
fn integer(value: &[u8]) -> Option<Vec<u8>> {
    if value.len() > INTEGER_DIGITS_MAX {
        return None;
    }
    let number = number::integer(value)?;
    if number.to_string().as_bytes() != value {
        return None;
    }
    let of_16 = || i16::try_from(number).map(|n| [&[0xc1][..], &n.to_le_bytes()].concat());
    let of_32 = || i32::try_from(number).map(|n| [&[0xc2][..], &n.to_le_bytes()].concat());
    let of_8 = i8::try_from(number).map(|n| vec![0xc0, n as u8]);
    of_8.or_else(|_| of_16()).or_else(|_| of_32()).ok()
}

/// Appends a length: six bits, fourteen, or thirty-two.
fn put_length(out: &mut Vec<u8>, length: usize) {
    match length {
        0..0x40 => out.push(length as u8),
        0x40..0x4000 => out.extend_from_slice(&(length as u16 | 0x4000).to_be_bytes()),
        _ => {
            out.push(0x80);
            out.extend_from_slice(&u32::try_from(length).expect("values are bounded").to_be_bytes());
        }
    }
}

/// Why a payload is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    /// Its checksum is wrong.
    Checksum,
    /// It holds something else than a string, or nonsense.
    Format,
}

impl Refusal {
    fn reply(self) -> Reply {
        Reply::error(match self {
            Refusal::Checksum => "ERR DUMP payload version or checksum are wrong",
            Refusal::Format => "ERR Bad data format",
        })
    }
}

/// The string of a payload.
fn decode(payload: &[u8]) -> Result<Vec<u8>, Refusal> {
    let (body, crc) = payload.split_last_chunk::<8>().ok_or(Refusal::Checksum)?;
    let body_bytes = payload.len().checked_sub(FOOTER_BYTES).ok_or(Refusal::Checksum)?;
    if checksum(CrcAlgorithm::Crc64Redis, body) != u64::from_le_bytes(*crc) {
        return Err(Refusal::Checksum);
    }
    let mut reader = Reader(&body[..body_bytes]);
    if reader.byte()? != KIND_STRING {
        return Err(Refusal::Format);
    }
    let value = reader.string()?;
    if reader.0.is_empty() { Ok(value) } else { Err(Refusal::Format) }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], Refusal> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(Refusal::Format)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Refusal> {
        Ok(self.take(N)?.try_into().expect("as many as were taken"))
    }

    fn byte(&mut self) -> Result<u8, Refusal> {
        self.array().map(|[byte]| byte)
    }

    /// A length whose first byte is known.
    fn length(&mut self, first: u8) -> Result<usize, Refusal> {
        let length = match first >> 6 {
            0 => u64::from(first),
            1 => u64::from(first & 0x3f) << 8 | u64::from(self.byte()?),
            _ if first == 0x80 => u64::from(u32::from_be_bytes(self.array()?)),
            _ if first == 0x81 => u64::from_be_bytes(self.array()?),
            _ => return Err(Refusal::Format),
        };
        usize::try_from(length).ok().filter(|length| *length <= TRANSACTION_BYTES_MAX).ok_or(Refusal::Format)
    }

    fn string(&mut self) -> Result<Vec<u8>, Refusal> {
        Ok(match self.byte()? {
            0xc0 => i8::from_le_bytes(self.array()?).to_string().into_bytes(),
            0xc1 => i16::from_le_bytes(self.array()?).to_string().into_bytes(),
            0xc2 => i32::from_le_bytes(self.array()?).to_string().into_bytes(),
            0xc3 => {
                let first = self.byte()?;
                let compressed = self.length(first)?;
                let first = self.byte()?;
                let length = self.length(first)?;
                decompress(self.take(compressed)?, length).ok_or(Refusal::Format)?
            }
            first => {
                let length = self.length(first)?;
                self.take(length)?.to_vec()
            }
        })
    }
}

/// What LZF made of so many bytes; nothing if it is not of as many.
fn decompress(mut input: &[u8], length: usize) -> Option<Vec<u8>> {
    // Not all at once: the payload may lie about its length.
    let mut out = Vec::with_capacity(length.min(input.len() * 4));
    while let Some((control, rest)) = input.split_first() {
        input = rest;
        let high = usize::from(control >> 5);
        if high == 0 {
            let (literal, rest) = input.split_at_checked(usize::from(*control) + 1)?;
            out.extend_from_slice(literal);
            input = rest;
        } else {
            let mut count = high + 2;
            if high == 7 {
                let (more, rest) = input.split_first()?;
                count += usize::from(*more);
                input = rest;
            }
            let (low, rest) = input.split_first()?;
            input = rest;
            let back = (usize::from(control & 0x1f) << 8 | usize::from(*low)) + 1;
            let from = out.len().checked_sub(back)?;
            for at in from..from + count {
                out.push(out[at]);
            }
        }
        if out.len() > length {
            return None;
        }
    }
    (out.len() == length).then_some(out)
}

pub(super) fn dump(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    let (connection, keyspace) = (connection.clone(), connection.keyspace());
    let (container, key) = (connection.database.get(), args[1].to_vec());
    Run::Alone(Box::pin(async move {
        let read = Op::retrieve_whole(container, &key);
        let found = keyspace.execute(read).await;
        super::string::count_hit(keyspace.core(), found.is_ok());
        let item = match found {
            Ok(Output::Found(item)) => item,
            Ok(_) => unreachable!("a retrieve gives what it found"),
            Err(Error::NotFound) => return Reply::Null,
            Err(error) => return Reply::failed(&error),
        };
        match super::string::value_reply(keyspace.core(), key, item) {
            Reply::Parts(pinned) => dump_parts(&connection, &keyspace, &pinned).await,
            Reply::Bulk(value) => Reply::Bulk(encode(&value)),
            _ => unreachable!("a value is whole or in parts"),
        }
    }))
}

/// The payload of a value in parts, when there is room for it.
async fn dump_parts(connection: &Rc<Connection>, keyspace: &Keyspace, pinned: &Pinned) -> Reply {
    let bytes_max = TRANSACTION_BYTES_MAX.min(connection.reply_bytes_max());
    let bytes = pinned.length as usize + PAYLOAD_BYTES_BESIDE;
    if bytes > bytes_max {
        return Reply::error(format!("ERR DUMP gives payloads of {bytes_max} bytes at most"));
    }
    if keyspace.is_transaction() && bytes > connection.exec_room_bytes.get() {
        return Reply::Unmade(bytes);
    }
    // EXEC has counted it already.
    let room_bytes = if keyspace.is_transaction() { 0 } else { bytes };
    let _reservation = match connection.reserve_reply(room_bytes).await {
        Ok(reservation) => reservation,
        Err(error) => return Reply::failed(&error),
    };
    let mut out = Vec::with_capacity(bytes);
    begin_string(&mut out, pinned.length as usize);
    for part in 0..pinned.length.div_ceil(connection.core.volume.geometry().part_bytes as u64) as u32 {
        match keyspace.part(pinned, part).await {
            Ok(bytes) => out.extend_from_slice(&bytes),
            Err(error) => return Reply::failed(&error),
        }
    }
    end_payload(&mut out);
    Reply::Bulk(out)
}

/// What the options of a RESTORE ask for.
struct Options {
    replaces: bool,
    /// When it expires, absent if never; or why that cannot be: told after the key was looked for.
    at_ms: Result<Option<u64>, Reply>,
}

fn parse(wall_ms: u64, args: &Args<'_>) -> Result<Options, Reply> {
    let (mut replaces, mut is_absolute) = (false, false);
    let (mut has_idle_time, mut has_frequency) = (false, false);
    let mut words = args.iter().skip(4);
    while let Some(word) = words.next() {
        let is = |name: &[u8]| word.eq_ignore_ascii_case(name);
        let mut amount = |name: &str, most: i64| match words.next().map(number::integer_or_error) {
            None => Err(syntax_error()),
            Some(Ok(amount)) if (0..=most).contains(&amount) => Ok(()),
            Some(Ok(_)) => Err(Reply::error(format!("ERR Invalid {name}"))),
            Some(Err(reply)) => Err(reply),
        };
        if is(b"replace") {
            replaces = true;
        } else if is(b"absttl") {
            is_absolute = true;
        } else if is(b"idletime") && !has_frequency {
            amount("IDLETIME value, must be >= 0", i64::MAX)?; // Neither is kept here.
            has_idle_time = true;
        } else if is(b"freq") && !has_idle_time {
            amount("FREQ value, must be >= 0 and <= 255", 255)?;
            has_frequency = true;
        } else {
            return Err(syntax_error());
        }
    }
    let base_ms = if is_absolute { 0 } else { wall_ms };
    Ok(Options { replaces, at_ms: expiry_ms(&args[2], base_ms) })
}

/// When a time to live ends that begins at `base_ms`; absent for zero.
fn expiry_ms(ttl: &[u8], base_ms: u64) -> Result<Option<u64>, Reply> {
    let ttl_ms = u64::try_from(number::integer_or_error(ttl)?)
        .map_err(|_| Reply::error("ERR Invalid TTL value, must be >= 0"))?;
    Ok((ttl_ms > 0).then_some(ttl_ms.saturating_add(base_ms)))
}

pub(super) fn restore(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    let wall_ms = connection.core.reactor.wall_ms();
    let parsed = parse(wall_ms, args);
    let (keyspace, container, key) = (connection.keyspace(), connection.database.get(), args[1].to_vec());
    let options = match parsed {
        Ok(options) => options,
        Err(reply) => return Run::Now(reply),
    };
    let payload = args[3].to_vec();
    Run::Alone(Box::pin(async move {
        if !options.replaces {
            match keyspace.execute(Op::Exist { container, key: key.clone() }).await {
                Ok(_) => return Reply::error("BUSYKEY Target key name already exists."),
                Err(Error::NotFound) => {}
                Err(error) => return Reply::failed(&error),
            }
        }
        let at_ms = match options.at_ms {
            Ok(at_ms) => at_ms,
            Err(reply) => return reply,
        };
        let value = match decode(&payload) {
            Ok(value) => Value::from(value),
            Err(refusal) => return refusal.reply(),
        };
        let is_past = at_ms.is_some_and(|at_ms| at_ms <= wall_ms);
        let op = if is_past {
            Op::Delete { container, key, condition: Condition::None }
        } else {
            let condition = if options.replaces { Condition::None } else { Condition::MustNotExist };
            let expiry = at_ms.map_or(Expiry::Never, Expiry::At);
            Op::Store {
                container,
                key,
                value,
                condition,
                expiry,
                retain: false,
                want_previous: false,
                form: None,
            }
        };
        match keyspace.execute(op).await {
            Ok(_) => Reply::Ok,
            Err(Error::NotFound) if is_past => Reply::Ok,
            Err(Error::Exists) => Reply::error("BUSYKEY Target key name already exists."),
            Err(error) => Reply::failed(&error),
        }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_redis_wrote_is_read() {
        // DUMP of redis-server 7.0: "hello", "10", "-1000", "100000", and "a" a hundred times.
        let of_redis: [(&[u8], &[u8]); 5] = [
            (b"\x00\x05\x68\x65\x6c\x6c\x6f\x0a\x00\x63\x72\xdf\x76\x65\x34\x20\x0a", b"hello"),
            (b"\x00\xc0\x0a\x0a\x00\x6e\x9f\x57\x45\x0e\xae\x63\xbb", b"10"),
            (b"\x00\xc1\x18\xfc\x0a\x00\x46\x02\x35\x5e\x70\x22\x5a\x90", b"-1000"),
            (b"\x00\xc2\xa0\x86\x01\x00\x0a\x00\xf1\x24\x03\x50\x6f\x2f\xa6\x74", b"100000"),
            (b"\x00\xc3\x09\x40\x64\x01\x61\x61\xe0\x57\x00\x01\x61\x61\x0a\x00\xe8\xa3\xb5\x07\xb0\x6d\xf2\x71", &[b'a'; 100]),
        ];
        for (payload, value) in of_redis {
            assert_eq!(decode(payload).as_deref(), Ok(value));
        }
    }

    proptest! {
        #[test]
        fn what_was_dumped_is_restored(value in prop::collection::vec(any::<u8>(), 0..20_000)) {
            prop_assert_eq!(decode(&encode(&value)), Ok(value));
        }

        #[test]
        fn integers_are_restored(value in any::<i64>()) {
            let text = value.to_string().into_bytes();
            prop_assert_eq!(decode(&encode(&text)), Ok(text));
        }

        #[test]
        fn any_bytes_with_a_right_checksum_are_read_or_refused(
            mut payload in prop::collection::vec(any::<u8>(), 2..300),
            compressed in any::<bool>(),
        ) {
            payload[0] = KIND_STRING;
            if compressed {
                payload[1] = 0xc3;
            }
            let crc = checksum(CrcAlgorithm::Crc64Redis, &payload);
            payload.extend_from_slice(&crc.to_le_bytes());
            let _ = decode(&payload);
            let _ = decode(&payload[1..]);
        }
    }
}
