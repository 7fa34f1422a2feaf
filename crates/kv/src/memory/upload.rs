//! Values in parts of the memory device: uploads on their way and pins of stored ones.
//!
//! Invariants: every part but the last has the device's part size; a pinned value's parts stay
//! until the last pin is given up, whatever happens to its key.

use super::{MemoryOptions, State};
use crate::completion::Output;
use crate::error::{Error, Result};
use crate::limits::VALUE_BYTES_MAX;
use crate::request::UploadId;
use std::rc::Rc;

/// The parts of a stored value.
pub(super) struct Parts {
    parts: Vec<Vec<u8>>,
    length: u64,
}

impl Parts {
    pub(super) fn length(&self) -> u64 {
        self.length
    }

    /// As much of a range as there is.
    pub(super) fn range(&self, first: u64, count: u64) -> Vec<u8> {
        let all = self.parts.iter().flatten();
        all.skip(first as usize).take(count as usize).copied().collect()
    }
}

/// An upload that is not stored yet.
pub(super) struct Pending {
    key: Vec<u8>,
    length: u64,
    received: u64,
    parts: Vec<Vec<u8>>,
}

impl State {
    pub(super) fn upload_begin(
        &mut self,
        key: Vec<u8>,
        length: u64,
        shared_bytes: u64,
        options: &MemoryOptions,
    ) -> Result<Output> {
        if length > VALUE_BYTES_MAX {
            return Err(Error::ValueTooLong);
        }
        if self.used_bytes.saturating_add(length.saturating_sub(shared_bytes)) > options.capacity_bytes {
            return Err(Error::NoSpace);
        }
        let upload = UploadId(self.next_upload);
        self.next_upload += 1;
        self.uploads.insert(upload, Pending { key, length, received: 0, parts: Vec::new() });
        Ok(Output::Upload(upload))
    }

    pub(super) fn upload_part(
        &mut self,
        upload: UploadId,
        key: &[u8],
        bytes: Vec<u8>,
        options: &MemoryOptions,
    ) -> Result<Output> {
        let pending = self.pending(upload, key)?;
        let due = (pending.length - pending.received).min(options.part_bytes as u64);
        if bytes.len() as u64 != due || due == 0 {
            return Err(Error::Invalid("length of a part"));
        }
        if self.used_bytes + due > options.capacity_bytes {
            return Err(Error::NoSpace);
        }
        self.used_bytes += due;
        let pending = self.pending(upload, key)?;
        pending.received += due;
        pending.parts.push(bytes);
        Ok(Output::Done)
    }

    /// The next parts are those of a pinned value. Memory copies them: it is no model of space.
    pub(super) fn upload_share(
        &mut self,
        upload: UploadId,
        key: &[u8],
        from: UploadId,
        count: u32,
        options: &MemoryOptions,
    ) -> Result<Output> {
        for _ in 0..count {
            let next = self.pending(upload, key)?.parts.len();
            let (pinned, _) = self.pins.get(&from).ok_or(Error::Invalid("no such pin"))?;
            let bytes = pinned.parts.get(next).ok_or(Error::Invalid("no such part"))?.clone();
            self.upload_part(upload, key, bytes, options)?;
        }
        Ok(Output::Done)
    }

    fn pending(&mut self, upload: UploadId, key: &[u8]) -> Result<&mut Pending> {
        let pending = self.uploads.get_mut(&upload).ok_or(Error::Invalid("no such upload"))?;
        if pending.key == key { Ok(pending) } else { Err(Error::Invalid("an upload for another key")) }
    }

    /// Looks whether an upload is whole, and takes it.
    pub(super) fn upload_take(&mut self, upload: UploadId, key: &[u8]) -> Result<Rc<Parts>> {
        let pending = self.pending(upload, key)?;
        if pending.received != pending.length {
            return Err(Error::Invalid("a store of an upload with parts missing"));
        }
        let pending = self.uploads.remove(&upload).expect("just looked at");
        self.used_bytes -= pending.received;
        Ok(Rc::new(Parts { parts: pending.parts, length: pending.length }))
    }

    /// Puts an upload back whose store did not happen.
    pub(super) fn upload_put_back(&mut self, upload: UploadId, key: &[u8], parts: Rc<Parts>) {
        let Ok(parts) = Rc::try_unwrap(parts) else { unreachable!("nobody shares a value not stored") };
        self.used_bytes += parts.length;
        let pending =
            Pending { key: key.to_vec(), length: parts.length, received: parts.length, parts: parts.parts };
        self.uploads.insert(upload, pending);
    }

    pub(super) fn upload_abort(&mut self, upload: UploadId, key: &[u8]) -> Result<Output> {
        self.pending(upload, key)?;
        let pending = self.uploads.remove(&upload).expect("just looked at");
        self.used_bytes -= pending.received;
        Ok(Output::Done)
    }

    pub(super) fn pin(&mut self, upload: UploadId, parts: &Rc<Parts>) {
        self.pins.entry(upload).or_insert_with(|| (parts.clone(), 0)).1 += 1;
    }

    /// Pins what an upload has so far. Memory copies it.
    pub(super) fn pin_begun(&mut self, upload: UploadId, key: &[u8]) -> Result<Output> {
        let pending = self.pending(upload, key)?;
        let parts = Rc::new(Parts { parts: pending.parts.clone(), length: pending.length });
        self.pin(upload, &parts);
        Ok(Output::Done)
    }

    pub(super) fn unpin(&mut self, upload: UploadId) -> Result<Output> {
        let (_, count) = self.pins.get_mut(&upload).ok_or(Error::Invalid("no such pin"))?;
        *count -= 1;
        if *count == 0 {
            self.pins.remove(&upload);
        }
        Ok(Output::Done)
    }

    pub(super) fn retrieve_part(
        &self,
        upload: UploadId,
        part: u32,
        range: Option<(u64, u64)>,
    ) -> Result<Output> {
        let pinned = self.pins.get(&upload).map(|(parts, _)| (&parts.parts, parts.length));
        let begun = self.uploads.get(&upload).map(|pending| (&pending.parts, pending.length));
        let (parts, length) = pinned.or(begun).ok_or(Error::Invalid("no such pin"))?;
        let part = parts.get(part as usize).ok_or(Error::Invalid("no such part"))?;
        let (first, count) = range.unwrap_or((0, u64::MAX));
        let bytes = part.iter().skip(first as usize).take(count as usize).copied().collect();
        Ok(Output::Found(crate::completion::Item { length, bytes, ..Default::default() }))
    }
}
