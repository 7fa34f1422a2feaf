//! The intent: what a transaction that has prepared at a partition is to write there.
//!
//! It stands in the parts of an upload of its own, whose checksums cover it; the note of its `Prepare` is
//! written behind them. It holds the names of the participants, the databases to be emptied with the
//! generations that they have, so that this is done once, and the other writes in their order.
//!
//! Never: it proves anything. What is decoded may be any writes of keys and values within the limits.

use super::{DecodeError, field};
use plimsoll_kv::limits::{CONTAINERS_MAX, KEY_BYTES_MAX};
use plimsoll_kv::{Condition, ContainerId, Expiry, Op, UploadId, Value};

/// The layout of the bytes that follow.
const INTENT_VERSION: u8 = 1;

/// Kinds of writes.
const STORE: u8 = 1;
const STORE_UPLOAD: u8 = 2;
const DELETE: u8 = 3;
const SET_EXPIRY: u8 = 4;

const NAME: &str = "intent";
const SHORT: DecodeError = DecodeError::Short(NAME);

/// What a transaction is to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Intent {
    /// The partitions that prepare.
    pub participants: Vec<u16>,
    /// Containers to be emptied first, each with the generation that it has until then.
    pub clears: Vec<(ContainerId, u32)>,
    /// The other writes: without conditions, expiry times absolute.
    pub writes: Vec<Op>,
}

/// True if an operation can stand in an intent.
#[must_use]
pub fn is_write(op: &Op) -> bool {
    match op {
        Op::Store { value, condition, expiry, retain, want_previous, .. } => {
            let plain = *condition == Condition::None && !retain && !want_previous;
            plain && *expiry != Expiry::Keep && !matches!(value, Value::Edit(_) | Value::Kept(_))
        }
        Op::SetExpiry { condition, expiry, .. } => *condition == Condition::None && *expiry != Expiry::Keep,
        Op::Delete { condition, .. } => *condition == Condition::None,
        _ => false,
    }
}

impl Intent {
    /// Encodes it.
    ///
    /// # Panics
    /// An operation is none that [`is_write`] allows.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![INTENT_VERSION];
        put_count(&mut out, self.participants.len());
        self.participants.iter().for_each(|participant| out.extend_from_slice(&participant.to_le_bytes()));
        put_count(&mut out, self.clears.len());
        for (container, generation) in &self.clears {
            out.extend_from_slice(&container.0.to_le_bytes());
            out.extend_from_slice(&generation.to_le_bytes());
        }
        put_count(&mut out, self.writes.len());
        self.writes.iter().for_each(|write| put_write(&mut out, write));
        out
    }

    /// Decodes one.
    ///
    /// # Errors
    /// Cut short, or not an intent.
    pub fn decode(bytes: &[u8]) -> Result<Intent, DecodeError> {
        let mut reader = Reader(bytes);
        if reader.u8()? != INTENT_VERSION {
            return Err(field(NAME, "version"));
        }
        let mut intent = Intent { participants: Vec::new(), clears: Vec::new(), writes: Vec::new() };
        for _ in 0..reader.u32()? {
            intent.participants.push(reader.u16()?);
        }
        for _ in 0..reader.u32()? {
            let container = reader.container()?;
            intent.clears.push((container, reader.u32()?));
        }
        for _ in 0..reader.u32()? {
            intent.writes.push(reader.write()?);
        }
        if reader.0.is_empty() { Ok(intent) } else { Err(field(NAME, "end")) }
    }
}

fn put_count(out: &mut Vec<u8>, count: usize) {
    out.extend_from_slice(&u32::try_from(count).expect("bounded far below 2^32").to_le_bytes());
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_count(out, bytes.len());
    out.extend_from_slice(bytes);
}

fn put_expiry(out: &mut Vec<u8>, expiry: Expiry) {
    let at_ms = match expiry {
        Expiry::Never => 0,
        Expiry::At(at_ms) => at_ms.max(1),
        Expiry::Keep => unreachable!("times are absolute in an intent"),
    };
    out.extend_from_slice(&at_ms.to_le_bytes());
}

fn put_write(out: &mut Vec<u8>, write: &Op) {
    assert!(is_write(write), "no write of a transaction: {write:?}");
    let mut head = |kind: u8, container: &ContainerId, key: &[u8]| {
        out.push(kind);
        out.extend_from_slice(&container.0.to_le_bytes());
        put_bytes(out, key);
    };
    match write {
        Op::Store { container, key, value: Value::Bytes(value), expiry, .. } => {
            head(STORE, container, key);
            put_expiry(out, *expiry);
            put_count(out, value.len());
            value.parts().into_iter().for_each(|piece| out.extend_from_slice(piece));
        }
        Op::Store { container, key, value: Value::Upload(upload), expiry, .. } => {
            head(STORE_UPLOAD, container, key);
            put_expiry(out, *expiry);
            out.extend_from_slice(&upload.0.to_le_bytes());
        }
        Op::Delete { container, key, .. } => head(DELETE, container, key),
        Op::SetExpiry { container, key, expiry, .. } => {
            head(SET_EXPIRY, container, key);
            put_expiry(out, *expiry);
        }
        _ => unreachable!("looked at above"),
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(SHORT)?;
        self.0 = rest;
        Ok(*taken)
    }

    fn u8(&mut self) -> Result<u8, DecodeError> {
        self.take::<1>().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Result<u16, DecodeError> {
        self.take().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, DecodeError> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, DecodeError> {
        self.take().map(u64::from_le_bytes)
    }

    fn bytes(&mut self) -> Result<&'a [u8], DecodeError> {
        let count = self.u32()? as usize;
        let (taken, rest) = self.0.split_at_checked(count).ok_or(SHORT)?;
        self.0 = rest;
        Ok(taken)
    }

    fn container(&mut self) -> Result<ContainerId, DecodeError> {
        let container = ContainerId(self.u32()?);
        if container.0 < CONTAINERS_MAX { Ok(container) } else { Err(field(NAME, "container")) }
    }

    fn expiry(&mut self) -> Result<Expiry, DecodeError> {
        Ok(match self.u64()? {
            0 => Expiry::Never,
            at_ms => Expiry::At(at_ms),
        })
    }

    fn write(&mut self) -> Result<Op, DecodeError> {
        let kind = self.u8()?;
        let container = self.container()?;
        let key = self.bytes()?;
        if key.len() > KEY_BYTES_MAX {
            return Err(field(NAME, "key length"));
        }
        let (key, condition) = (key.to_vec(), Condition::None);
        Ok(match kind {
            STORE | STORE_UPLOAD => {
                let expiry = self.expiry()?;
                let value = if kind == STORE {
                    Value::from(self.bytes()?.to_vec())
                } else {
                    Value::Upload(UploadId(self.u64()?))
                };
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
            }
            DELETE => Op::Delete { container, key, condition },
            SET_EXPIRY => Op::SetExpiry { container, key, expiry: self.expiry()?, condition },
            _ => return Err(field(NAME, "kind")),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(key: &str, value: Value, expiry: Expiry) -> Op {
        let (container, key) = (ContainerId(3), key.as_bytes().to_vec());
        let condition = Condition::None;
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
    }

    fn every_write() -> Intent {
        let (container, condition) = (ContainerId(1), Condition::None);
        let writes = vec![
            store("a", Value::from(b"value".to_vec()), Expiry::Never),
            store("b", Value::Upload(UploadId(7)), Expiry::At(1 << 40)),
            Op::Delete { container, key: b"c".to_vec(), condition },
            Op::SetExpiry { container, key: b"d".to_vec(), expiry: Expiry::At(5), condition },
            Op::SetExpiry { container, key: b"e".to_vec(), expiry: Expiry::Never, condition },
        ];
        Intent { participants: vec![0, 2, 63], clears: vec![(container, 4097)], writes }
    }

    #[test]
    fn what_was_encoded_is_decoded() {
        let intent = every_write();
        assert_eq!(Intent::decode(&intent.encode()), Ok(intent));
    }

    #[test]
    fn what_is_cut_short_or_too_long_is_refused() {
        let bytes = every_write().encode();
        for end in 0..bytes.len() {
            assert!(Intent::decode(&bytes[..end]).is_err(), "{end} bytes");
        }
        assert!(Intent::decode(&[bytes.as_slice(), &[0]].concat()).is_err());
    }

    #[test]
    fn what_depends_on_what_is_there_is_no_write_of_an_intent() {
        assert!(!is_write(&store("k", Value::from(Vec::new()), Expiry::Keep)));
        let edit = plimsoll_kv::Edit::Add(1);
        assert!(!is_write(&store("k", Value::Edit(edit), Expiry::Never)));
        assert!(!is_write(&Op::Sync));
    }
}
