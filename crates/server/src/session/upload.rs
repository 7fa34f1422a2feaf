//! A value in parts, on its way to its device.
//!
//! Place on the path: between who receives a long value, or changes parts of one, and the key's device.
//!
//! Invariant: an upload that is not stored, for whatever reason, is given up.

use crate::keyspace::Keyspace;
use plimsoll_kv::{ContainerId, Form, Op, Output, Result, UploadId};
use plimsoll_reactor::Work;

/// A value in parts that is not stored yet. Dropping it gives it up.
pub(crate) struct Upload {
    keyspace: Keyspace,
    container: ContainerId,
    pub(crate) id: UploadId,
    pub(crate) key: Vec<u8>,
    pub(crate) length: u64,
    open: bool,
}

impl Upload {
    /// Begins a value in parts, of so many bytes, to be made into something if that is wished for.
    pub(crate) async fn begin(
        keyspace: &Keyspace,
        container: ContainerId,
        key: &[u8],
        length: u64,
        form: Option<Form>,
    ) -> Result<Upload> {
        let op = Op::UploadBegin { container, key: key.to_vec(), length, shared_bytes: 0, form };
        Upload::begun(keyspace, (container, key, length), op).await
    }

    /// Begins a value in parts, of so many bytes, of which a pinned value of the key brings some.
    pub(crate) async fn begin_shared(
        keyspace: &Keyspace,
        container: ContainerId,
        key: &[u8],
        length: u64,
        shared_bytes: u64,
    ) -> Result<Upload> {
        let op = Op::UploadBegin { container, key: key.to_vec(), length, shared_bytes, form: None };
        Upload::begun(keyspace, (container, key, length), op).await
    }

    async fn begun(
        keyspace: &Keyspace,
        (container, key, length): (ContainerId, &[u8], u64),
        begin: Op,
    ) -> Result<Upload> {
        let Output::Upload(id) = keyspace.execute(begin).await? else {
            unreachable!("the beginning of an upload gives an upload")
        };
        Ok(Upload { keyspace: keyspace.clone(), container, id, key: key.to_vec(), length, open: true })
    }

    /// The same value made into something else: what its client wished for came after it. Its parts are
    /// written once more.
    pub(crate) async fn made_into(self, form: Form) -> Result<Upload> {
        let other = Upload::begin(&self.keyspace, self.container, &self.key, self.length, Some(form)).await?;
        let part_bytes = self.keyspace.core().volume.geometry().part_bytes as u64;
        other.share(self.id, self.length.div_ceil(part_bytes) as u32).await?;
        Ok(other)
    }

    /// Writes the next part.
    pub(crate) async fn write(&self, bytes: Vec<u8>) -> Result<()> {
        let op = Op::UploadPart { upload: self.id, key: self.key.clone(), bytes };
        self.keyspace.execute(op).await.map(drop)
    }

    /// The next parts are those of a pinned value.
    pub(crate) async fn share(&self, from: UploadId, parts: u32) -> Result<()> {
        let op = Op::UploadShare { upload: self.id, key: self.key.clone(), from, parts };
        self.keyspace.execute(op).await.map(drop)
    }

    /// The upload is stored: it is the key's now.
    pub(crate) fn stored(mut self) {
        self.open = false;
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        if self.open {
            let op = Op::UploadAbort { upload: self.id, key: std::mem::take(&mut self.key) };
            let abort = self.keyspace.execute(op);
            self.keyspace.core().reactor.spawn(Work::Kv, async move {
                if let Err(error) = abort.await {
                    tracing::warn!(%error, "an upload could not be given up");
                }
            });
        }
    }
}
