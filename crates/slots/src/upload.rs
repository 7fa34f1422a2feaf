//! Uploads: values that come in parts.
//!
//! Invariants: each part is an object of its own, stored when it comes; it is durable before anything that
//! names it is; what is not stored when the drive is opened again is gone.

use crate::drive::StoreIf;
use crate::intent::NONE;
use crate::names::Of;
use crate::object::{Kind, Record, encode};
use crate::parts::{Part, Parts, Pending};
use crate::slots::Slots;
use plimsoll_kv::limits::VALUE_BYTES_MAX;
use plimsoll_kv::{Error, Output, Result, UploadId};
use std::rc::Rc;

const NO_UPLOAD: Error = Error::Invalid("no such upload");
const NO_PIN: Error = Error::Invalid("no such pin");

impl Slots {
    pub(crate) fn upload_begin(&self, key: Vec<u8>, length: u64) -> Result<Output> {
        if length > VALUE_BYTES_MAX {
            return Err(Error::ValueTooLong);
        }
        let upload = self.next_upload();
        let pending = Pending { key, length, received: 0, parts: Vec::new() };
        self.state.borrow_mut().uploads.pending.insert(upload, pending);
        Ok(Output::Upload(upload))
    }

    fn pending<T>(
        &self,
        upload: UploadId,
        key: &[u8],
        look: impl FnOnce(&mut Pending) -> Result<T>,
    ) -> Result<T> {
        let mut state = self.state.borrow_mut();
        let pending = state.uploads.pending.get_mut(&upload).ok_or(NO_UPLOAD)?;
        if pending.key == key { look(pending) } else { Err(Error::Invalid("an upload for another key")) }
    }

    pub(crate) async fn upload_part(
        self: &Rc<Self>,
        upload: UploadId,
        key: &[u8],
        bytes: Vec<u8>,
    ) -> Result<Output> {
        self.check_writable()?;
        let part_bytes = u64::from(self.superblock.borrow().part_bytes);
        let number = self.pending(upload, key, |pending| {
            let due = (pending.length - pending.received).min(part_bytes);
            if bytes.len() as u64 != due || due == 0 {
                return Err(Error::Invalid("length of a part"));
            }
            Ok(pending.parts.len() as u32)
        })?;
        let record = Record::named(Kind::Part, Part::name(upload.0, number));
        let place = self.named(Of::Part, &record);
        let object = encode(&record, &bytes, NONE);
        // A part whose store failed may be sent again.
        let stored = self.drive.store(place, object, StoreIf::Always).await;
        stored.map_err(|error| self.failed(&format!("a store of {place}"), error))?;
        let part = Part::new(upload.0, number, place, self.flushes.next(), &self.doomed);
        let added = self.pending(upload, key, |pending| {
            if pending.parts.len() as u32 != number {
                return Err(Error::Invalid("two parts at the same time"));
            }
            pending.received += bytes.len() as u64;
            pending.parts.push(part);
            Ok(Output::Done)
        });
        self.kick();
        added
    }

    /// The next parts are those of a pinned value.
    pub(crate) fn upload_share(
        &self,
        upload: UploadId,
        key: &[u8],
        from: UploadId,
        count: u32,
    ) -> Result<Output> {
        let part_bytes = u64::from(self.superblock.borrow().part_bytes);
        let pinned = {
            let state = self.state.borrow();
            state.uploads.pins.get(&from).map(|(parts, _)| parts.clone()).ok_or(NO_PIN)?
        };
        self.pending(upload, key, |pending| {
            for _ in 0..count {
                let number = pending.parts.len();
                let part = pinned.parts.get(number).ok_or(Error::Invalid("no such part"))?;
                let bytes_of =
                    |length: u64| length.saturating_sub(number as u64 * part_bytes).min(part_bytes);
                let due = bytes_of(pending.length);
                if due == 0 || due != bytes_of(pinned.length) {
                    return Err(Error::Invalid("length of a part"));
                }
                pending.received += due;
                pending.parts.push(part.clone());
            }
            Ok(Output::Done)
        })
    }

    /// The parts of an upload, if they are all there.
    pub(crate) fn upload_whole(&self, upload: UploadId, key: &[u8]) -> Result<Rc<Parts>> {
        self.pending(upload, key, |pending| {
            if pending.received != pending.length {
                return Err(Error::Invalid("a store of an upload with parts missing"));
            }
            Ok(Rc::new(Parts { upload, parts: pending.parts.clone(), length: pending.length }))
        })
    }

    pub(crate) fn upload_abort(self: &Rc<Self>, upload: UploadId, key: &[u8]) -> Result<Output> {
        self.pending(upload, key, |_| Ok(()))?;
        self.state.borrow_mut().uploads.pending.remove(&upload);
        self.kick();
        Ok(Output::Done)
    }

    /// Pins what an upload has so far.
    pub(crate) fn pin_begun(&self, upload: UploadId, key: &[u8]) -> Result<Output> {
        let parts = self.pending(upload, key, |pending| {
            Ok(Rc::new(Parts { upload, parts: pending.parts.clone(), length: pending.length }))
        })?;
        self.state.borrow_mut().uploads.pin(&parts);
        Ok(Output::Done)
    }

    pub(crate) fn unpin(&self, upload: UploadId) -> Result<Output> {
        let mut state = self.state.borrow_mut();
        let (_, count) = state.uploads.pins.get_mut(&upload).ok_or(NO_PIN)?;
        *count -= 1;
        if *count == 0 {
            state.uploads.pins.remove(&upload);
        }
        Ok(Output::Done)
    }
}
