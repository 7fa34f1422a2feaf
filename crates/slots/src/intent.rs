//! Intents: writes that stand together, in an object of their own.
//!
//! Role: what no slot can carry is written so: long batches, and what transactions prepare. Place on the
//! path: under commits and transactions.
//!
//! ```text
//! value    0 u8 | number u64 | body                                               of a batch
//!          1 u8 | partition u16 | version | number u16 | participants u16 ... | body     of a transaction
//! body     0 u8 | riders              or    1 u8 | number u64 | chunks u32 | bytes u64
//! ```
//!
//! Invariants: the chunks of a long body are durable before the object that names them, and go after it has
//! gone, durably; one store makes a prepared intent a committed one.
//!
//! Never: it decides what becomes of a transaction.

use crate::drive::{DriveKey, StoreIf};
use crate::names::Of;
use crate::object::{Head, Kind, Reader, Record, encode, put_version};
use crate::slots::Slots;
use plimsoll_kv::{Error, Result, TransactionId};

/// Bytes of an object of ours around a value, if its key is a short name.
const NAMED_OVERHEAD_BYTES: usize = 256;
/// No riders.
pub(crate) const NONE: &[[u8; 0]] = &[];

/// Whose writes they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum IntentHead {
    /// A batch's, which has a number.
    Batch(u64),
    /// A transaction's, of these partitions.
    Transaction(TransactionId, Vec<u16>),
}

/// What is known of an intent beside its writes.
pub(crate) struct Intent {
    pub(crate) head: IntentHead,
    pub(crate) chunks: Vec<DriveKey>,
}

/// Where the writes are.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum IntentBody<'a> {
    Inline(&'a [u8]),
    Chunked { number: u64, chunks: u32, bytes: u64 },
}

impl IntentHead {
    pub(crate) fn encode(&self) -> Vec<u8> {
        match self {
            IntentHead::Batch(number) => [&[0][..], &number.to_le_bytes()].concat(),
            IntentHead::Transaction(id, participants) => {
                let mut out = vec![1];
                out.extend_from_slice(&id.partition.to_le_bytes());
                put_version(&mut out, id.version);
                let count = u16::try_from(participants.len()).expect("partitions are numbered so");
                out.extend_from_slice(&count.to_le_bytes());
                participants.iter().for_each(|of| out.extend_from_slice(&of.to_le_bytes()));
                out
            }
        }
    }

    /// The head, and what follows it.
    pub(crate) fn decode(bytes: &[u8]) -> Option<(IntentHead, &[u8])> {
        let mut reader = Reader(bytes);
        let head = match reader.u8()? {
            0 => IntentHead::Batch(reader.u64()?),
            1 => {
                let id = TransactionId { partition: reader.u16()?, version: reader.version()? };
                let count = reader.u16()?;
                let each = (0..count).map(|_| reader.u16());
                IntentHead::Transaction(id, each.collect::<Option<_>>()?)
            }
            _ => return None,
        };
        Some((head, reader.0))
    }

    /// What its object is named after.
    pub(crate) fn name(&self) -> Vec<u8> {
        match self {
            IntentHead::Batch(number) => number.to_le_bytes().to_vec(),
            IntentHead::Transaction(id, _) => {
                let mut name = id.partition.to_le_bytes().to_vec();
                put_version(&mut name, id.version);
                name
            }
        }
    }
}

/// What the value of an intent says.
pub(crate) fn decode_intent(value: &[u8]) -> Option<(IntentHead, IntentBody<'_>)> {
    let (head, rest) = IntentHead::decode(value)?;
    let mut reader = Reader(rest);
    let body = match reader.u8()? {
        0 => IntentBody::Inline(reader.0),
        1 => {
            let (number, chunks, bytes) = (reader.u64()?, reader.u32()?, reader.u64()?);
            reader.0.is_empty().then_some(IntentBody::Chunked { number, chunks, bytes })?
        }
        _ => return None,
    };
    Some((head, body))
}

impl Slots {
    /// An intent of a batch, and where it stands.
    pub(crate) fn new_intent(&self) -> (DriveKey, IntentHead) {
        let head = IntentHead::Batch(self.next_upload().0);
        (self.intent_key(&head), head)
    }

    pub(crate) fn intent_key(&self, head: &IntentHead) -> DriveKey {
        self.named(Of::Intent, &Record::named(Kind::Committed, head.name()))
    }

    pub(crate) fn chunk_key(&self, number: u64, chunk: u32) -> DriveKey {
        let name = [&number.to_le_bytes()[..], &chunk.to_le_bytes()].concat();
        self.named(Of::Chunk, &Record::named(Kind::Chunk, name))
    }

    async fn store_named(&self, key: DriveKey, kind: Kind, name: Vec<u8>, value: &[u8]) -> Result<()> {
        let object = encode(&Record::named(kind, name), value, NONE);
        let stored = self.drive.store(key, object, StoreIf::Always).await;
        stored.map_err(|error| self.failed(&format!("a store of {key}"), error))
    }

    /// Stores an intent; its last store is not flushed.
    pub(crate) async fn store_intent(
        &self,
        key: DriveKey,
        kind: Kind,
        head: IntentHead,
        body: &[u8],
    ) -> Result<Intent> {
        let most = self.drive.value_bytes_max() - NAMED_OVERHEAD_BYTES;
        let mut value = head.encode();
        let mut chunks = Vec::new();
        if value.len() + 1 + body.len() <= most {
            value.push(0);
            value.extend_from_slice(body);
        } else {
            let number = self.next_upload().0;
            for (chunk, bytes) in (0_u32..).zip(body.chunks(most)) {
                let chunk_key = self.chunk_key(number, chunk);
                chunks.push(chunk_key);
                let name = [&number.to_le_bytes()[..], &chunk.to_le_bytes()].concat();
                if let Err(error) = self.store_named(chunk_key, Kind::Chunk, name, bytes).await {
                    chunks.into_iter().for_each(|key| self.doomed.add(key));
                    return Err(error);
                }
            }
            self.flushed(self.flushes.next()).await?;
            value.push(1);
            value.extend_from_slice(&number.to_le_bytes());
            value.extend_from_slice(&(chunks.len() as u32).to_le_bytes());
            value.extend_from_slice(&(body.len() as u64).to_le_bytes());
        }
        if let Err(error) = self.store_named(key, kind, head.name(), &value).await {
            // Chunks of what may have been committed after all stay until the drive is opened again.
            if error == Error::NoSpace {
                chunks.into_iter().for_each(|key| self.doomed.add(key));
            }
            return Err(error);
        }
        Ok(Intent { head, chunks })
    }

    /// Says that a transaction was applied, and nothing more of it.
    pub(crate) async fn store_applied(&self, key: DriveKey, head: &IntentHead) -> Result<()> {
        let mut value = head.encode();
        value.push(0);
        self.store_named(key, Kind::Applied, head.name(), &value).await?;
        self.flushed(self.flushes.next()).await
    }

    /// The writes of an intent, from wherever they stand.
    pub(crate) async fn read_body(
        &self,
        key: DriveKey,
        body: IntentBody<'_>,
    ) -> Result<(Vec<u8>, Vec<DriveKey>)> {
        let (number, chunks, bytes) = match body {
            IntentBody::Inline(bytes) => return Ok((bytes.to_vec(), Vec::new())),
            IntentBody::Chunked { number, chunks, bytes } => (number, chunks, bytes),
        };
        let (mut whole, mut keys) = (Vec::new(), Vec::new());
        for chunk in 0..chunks {
            let chunk_key = self.chunk_key(number, chunk);
            keys.push(chunk_key);
            let damage = |what: &dyn std::fmt::Display| {
                Error::Unreadable(format!("chunk {chunk_key} of intent {key}: {what}"))
            };
            let retrieved = self.drive.retrieve(chunk_key, 0, self.drive.value_bytes_max()).await;
            let object = retrieved.map_err(|error| damage(&error))?.bytes;
            let head = Head::decode(&object).map_err(|error| damage(&error))?;
            let name = [&number.to_le_bytes()[..], &chunk.to_le_bytes()].concat();
            if (head.record.kind, head.record.key.as_slice()) != (Kind::Chunk, name.as_slice()) {
                return Err(damage(&"it is another object"));
            }
            whole.extend_from_slice(head.value(&object).map_err(|error| damage(&error))?);
        }
        if whole.len() as u64 != bytes {
            return Err(Error::Unreadable(format!("intent {key}: its chunks have {} bytes", whole.len())));
        }
        Ok((whole, keys))
    }
}
