//! Values in parts, uploaded and read by calls: what a session does, with what only a caller can do.
//!
//! Invariant: an upload that is not stored is given up, and a pin that was taken too.

use super::{Caller, condition, container, expiry, store};
use crate::checker::{self, Input};
use crate::fuzz::workload::Key;
use plimsoll_kv::{Durability, Error, Item, Op, Output, UploadId, Value};

impl Caller {
    /// Uploads a value part by part.
    async fn upload(&self, key: &Key, bytes: &[u8], parts: usize) -> Result<UploadId, Error> {
        let (container, name) = (container(key), key.name.1.clone());
        let begin = Op::UploadBegin { container, key: name.clone(), length: bytes.len() as u64 };
        let Output::Upload(upload) = self.call(Durability::Sync, begin).await? else {
            return Err(Error::Unsupported("an upload was begun and has no number"));
        };
        for part in bytes.chunks(self.device.part_bytes()).take(parts) {
            let op = Op::UploadPart { upload, key: name.clone(), bytes: part.to_vec() };
            if let Err(error) = self.call(Durability::Sync, op).await {
                let abort = Op::UploadAbort { upload, key: name };
                drop(self.call(Durability::Sync, abort).await);
                return Err(error);
            }
        }
        Ok(upload)
    }

    /// Sets a key to a value in parts.
    pub(super) async fn set_long(
        &self,
        key: &Key,
        length: usize,
        when: checker::Condition,
        until: checker::Expiry,
    ) {
        let (value, bytes) = self.new_value(key, length);
        let input = Input::Set { value, condition: when, expiry: until, get_old: false };
        let asked = self.begin(key, input);
        let upload = match self.upload(key, &bytes, usize::MAX).await {
            Ok(upload) => upload,
            Err(error) => return self.failed(&asked, Some(&error), true),
        };
        let op = store(key, Value::Upload(upload), condition(when), expiry(until), false);
        let called = self.call(self.shape.durability(key.number), op).await;
        if called.is_err() {
            let abort = Op::UploadAbort { upload, key: key.name.1.clone() };
            drop(self.call(Durability::Sync, abort).await);
        }
        self.stored(key, &asked, value, Some(called), false);
    }

    /// Uploads a part or two of a value and gives it up.
    pub(super) async fn abandon(&self, key: &Key, length: usize) {
        let asked = self.journal.watch(|| format!("client {} abandons an upload", self.client));
        let bytes = vec![7; length.max(1)];
        match self.upload(key, &bytes, 2).await {
            Ok(upload) => {
                let op = Op::UploadAbort { upload, key: key.name.1.clone() };
                match self.call(Durability::Sync, op).await {
                    Ok(_) => self.journal.withdraw(&asked, "done"),
                    Err(error) => self.failed(&asked, Some(&error), false),
                }
            }
            Err(error) => self.failed(&asked, Some(&error), true),
        }
    }

    /// Reads a pinned value part by part.
    pub(super) async fn read_parts(&self, key: &Key, item: &Item) -> Result<(Vec<u8>, Item), Error> {
        let upload = item.upload.expect("asked for a value in parts");
        let part_bytes = self.device.part_bytes() as u64;
        let (mut bytes, mut failed) = (Vec::new(), None);
        for part in 0..item.length.div_ceil(part_bytes) as u32 {
            let op = Op::RetrievePart { upload, key: key.name.1.clone(), part };
            match self.call(Durability::Sync, op).await {
                Ok(Output::Found(piece)) => bytes.extend_from_slice(&piece.bytes),
                Err(Error::NotFound) => {
                    let text = format!("part {part} of a pinned value of {} bytes is gone", item.length);
                    failed = Some(Error::Unreadable(text));
                    break;
                }
                Err(error) => {
                    failed = Some(error);
                    break;
                }
                Ok(_) => failed = Some(Error::Unsupported("a part gave something else")),
            }
        }
        self.call(Durability::Sync, Op::Unpin { upload, key: key.name.1.clone() }).await?;
        failed.map_or(Ok((bytes, item.clone())), Err)
    }
}
