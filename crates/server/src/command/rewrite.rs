//! APPEND and SETRANGE of values that are longer than a record, or become so: the parts that they touch
//! are written anew, the others are shared with the value before.
//!
//! Invariants: what is read is one pinned version, and the new value is stored only if the key still has
//! it; else all is done once more with the key held, so that it comes to an end. One part is in memory at
//! a time. An upload that is not stored is given up.

use super::string::value_reply;
use super::transaction;
use crate::keyspace::Keyspace;
use crate::reply::{Pinned, Reply};
use crate::session::{Connection, Upload};
use crate::transaction::Key;
use plimsoll_kv::limits::VALUE_BYTES_MAX;
use plimsoll_kv::transaction::Held;
use plimsoll_kv::{Condition, Edit, Error, Expiry, Op, Output, Result, Value, Version};
use std::ops::Range;
use std::rc::Rc;

/// Redis' words for a value that would be too long.
pub(super) const TOO_LONG: &str = "ERR string exceeds maximum allowed size (proto-max-bulk-len)";

/// The value before the change.
enum Old {
    Absent,
    Whole(Vec<u8>),
    Parts(Box<Pinned>),
}

/// Bytes that are written at an offset.
struct Patch<'a> {
    offset: u64,
    bytes: &'a [u8],
}

/// Makes a change of bytes by writing what it touches anew; the reply is the value's new length.
pub(super) async fn rewrite(connection: &Rc<Connection>, key: Vec<u8>, edit: &Edit) -> Reply {
    let (keyspace, place) = (connection.keyspace(), (connection.database.get(), key));
    let mut changed = change(&keyspace, &place, edit).await;
    let is_late = matches!(changed, Err(Error::VersionMismatch | Error::Exists | Error::NotFound));
    if is_late && !keyspace.is_transaction() {
        // Somebody came between. Once more with the key held: who writes much would never be in time.
        let (held, edit) = (Held::keys(vec![place.clone()]), edit.clone());
        let again = |keyspace: Keyspace| async move { change(&keyspace, &place, &edit).await };
        changed = transaction::done(keyspace, held, again).await;
    }
    changed.unwrap_or_else(|error| Reply::failed(&error))
}

async fn change(keyspace: &Keyspace, place: &Key, edit: &Edit) -> Result<Reply> {
    let (old, version) = read(keyspace, place).await?;
    let old_bytes = old.bytes();
    let patch = match edit {
        Edit::Append(bytes) => Patch { offset: old_bytes, bytes },
        Edit::WriteAt { offset, bytes } => Patch { offset: *offset, bytes },
        Edit::Add(_) | Edit::AddFloat(_) => unreachable!("numbers are short"),
    };
    let length = old_bytes.max(patch.offset + patch.bytes.len() as u64);
    if length > VALUE_BYTES_MAX {
        return Ok(Reply::error(TOO_LONG));
    }
    write(keyspace, place, (&old, version), &patch, length).await?;
    Ok(Reply::Integer(length as i64))
}

async fn read(keyspace: &Keyspace, (container, key): &Key) -> Result<(Old, Option<Version>)> {
    let op = Op::retrieve_whole(*container, key);
    match keyspace.execute(op).await {
        Ok(Output::Found(item)) => {
            let version = Some(item.version);
            Ok(match value_reply(keyspace.core(), key.clone(), item) {
                Reply::Parts(pinned) => (Old::Parts(pinned), version),
                Reply::Bulk(bytes) => (Old::Whole(bytes), version),
                _ => unreachable!("a value is whole or in parts"),
            })
        }
        Ok(_) => unreachable!("a retrieve gives what it found"),
        Err(Error::NotFound) => Ok((Old::Absent, None)),
        Err(error) => Err(error),
    }
}

async fn write(
    keyspace: &Keyspace,
    (container, key): &Key,
    (old, version): (&Old, Option<Version>),
    patch: &Patch<'_>,
    length: u64,
) -> Result<()> {
    let part_bytes = keyspace.core().volume.geometry().part_bytes as u64;
    let parts = length.div_ceil(part_bytes);
    let range = |part: u64| part * part_bytes..length.min((part + 1) * part_bytes);
    let is_shared = |part: &u64| old.shares(range(*part), part_bytes) && !patch.touches(range(*part));
    let shared = (0..parts).filter(is_shared).map(|part| range(part).end - range(part).start);
    let upload = Upload::begin_shared(keyspace, *container, key, length, shared.sum()).await?;
    let mut part = 0;
    while part < parts {
        let alike = (part..parts).take_while(is_shared).count() as u64;
        if let (1.., Old::Parts(pinned)) = (alike, old) {
            upload.share(pinned.upload, alike as u32).await?;
            part += alike;
            continue;
        }
        let Range { start, end } = range(part);
        let mut bytes = vec![0; (end - start) as usize];
        old.copy(keyspace, part as u32, start, &mut bytes).await?;
        patch.copy(start, &mut bytes);
        upload.write(bytes).await?;
        part += 1;
    }
    let store = Op::Store {
        container: *container,
        key: key.clone(),
        value: Value::Upload(upload.id),
        condition: version.map_or(Condition::MustNotExist, Condition::IfVersion),
        expiry: Expiry::Keep,
        retain: false,
        want_previous: false,
        form: None,
    };
    keyspace.execute(store).await?;
    upload.stored();
    Ok(())
}

impl Old {
    fn bytes(&self) -> u64 {
        match self {
            Old::Absent => 0,
            Old::Whole(bytes) => bytes.len() as u64,
            Old::Parts(pinned) => pinned.length,
        }
    }

    /// True if a part that covers this range is a part of the old value too, and as long there.
    fn shares(&self, range: Range<u64>, part_bytes: u64) -> bool {
        let Old::Parts(pinned) = self else { return false };
        range.end == pinned.length.min(range.start + part_bytes)
    }

    /// Copies what a part of the old value holds to the same part of the new one.
    async fn copy(&self, keyspace: &Keyspace, part: u32, first: u64, to: &mut [u8]) -> Result<()> {
        match self {
            Old::Absent => {}
            Old::Whole(bytes) => {
                let bytes = bytes.get(first as usize..).unwrap_or_default();
                let count = bytes.len().min(to.len());
                to[..count].copy_from_slice(&bytes[..count]);
            }
            Old::Parts(pinned) if first >= pinned.length => {}
            Old::Parts(pinned) => {
                let bytes = keyspace.part(pinned, part).await?;
                to[..bytes.len()].copy_from_slice(&bytes);
            }
        }
        Ok(())
    }
}

impl Patch<'_> {
    /// True if any byte of the range is written.
    fn touches(&self, range: Range<u64>) -> bool {
        self.offset < range.end && self.offset + self.bytes.len() as u64 > range.start
    }

    /// Copies what falls into the bytes from `first` on.
    fn copy(&self, first: u64, to: &mut [u8]) {
        let (end, patch_end) = (first + to.len() as u64, self.offset + self.bytes.len() as u64);
        let (from, until) = (first.max(self.offset), end.min(patch_end));
        if from < until {
            let bytes = &self.bytes[(from - self.offset) as usize..(until - self.offset) as usize];
            to[(from - first) as usize..(until - first) as usize].copy_from_slice(bytes);
        }
    }
}
