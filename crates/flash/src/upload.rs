//! Values in parts: begun, written part by part, then stored at once under their key.
//!
//! Invariants: parts are invisible until the manifest is stored; an upload that is given up, or
//! open at a crash, leaves nothing; parts of a replaced value stay while someone reads them. A value
//! that differs from a pinned one in some parts shares the records of the others with it.

use crate::format::note::note_bytes_max;
use crate::format::record::{part_key, record_bytes};
use crate::format::{RecordHeader, RecordKind, Transition, TransitionKind};
use crate::metrics::add;
use crate::partition::Partition;
use crate::space::Beyond;
use crate::uploads::UploadState;
use plimsoll_kv::limits::VALUE_BYTES_MAX;
use plimsoll_kv::{ContainerId, Durability, Error, Output, Result, UploadId};
use std::rc::Rc;

/// Uploads open at a time: each stands for a client that is sending.
const UPLOADS_OPEN_MAX: usize = 1024;
/// Parts that one note shares.
const SHARES_PER_NOTE: u32 = 256;

impl Partition {
    /// A transition of an upload as a whole.
    pub(crate) fn upload_note(kind: TransitionKind, upload: u64) -> Transition {
        Transition { argument: upload, ..Transition::new(kind) }
    }

    pub(crate) async fn upload_begin(
        &self,
        container: ContainerId,
        key: &[u8],
        (length, shared_bytes): (u64, u64),
        beyond: Beyond,
    ) -> Result<Output> {
        if length > VALUE_BYTES_MAX {
            return Err(Error::ValueTooLong);
        }
        loop {
            self.admit(length.saturating_sub(shared_bytes), beyond).await?;
            match self.reserve_for_store(note_bytes_max(1), 1) {
                Err(Error::NoSpace) => self.wait_to_store().await?,
                Err(error) => return Err(error),
                Ok(()) => break,
            }
        }
        let place = self.place(container, key);
        let (upload, open) = {
            let state = self.state.borrow();
            (state.next_upload, state.uploads.open_count())
        };
        if open >= UPLOADS_OPEN_MAX {
            return Err(Error::Overloaded);
        }
        let transition = Transition {
            slot: place.slot.0,
            container: place.generation,
            previous: length,
            argument: upload,
            ..Transition::new(TransitionKind::UploadBegin)
        };
        self.commit_note(&[transition], Durability::Async);
        Ok(Output::Upload(UploadId(upload)))
    }

    /// How urgent a part is. The last one waits for the store of its value, which is about to come, and is
    /// written with it; a member's is to be durable when it is acknowledged.
    fn urgency(&self, upload: u64, part: u32) -> Durability {
        let length = self.state.borrow().uploads[&upload].length;
        let is_last = self.bytes_of_part(length, part + 1) == 0;
        if is_last && !self.options.is_member { Durability::Async } else { Durability::Sync }
    }

    /// Bytes that the next part of an open upload must have, its number and its generation.
    fn next_part(&self, upload: u64) -> Result<(u32, u64, u32)> {
        let state = self.state.borrow();
        let found = state.uploads.get(&upload).filter(|found| found.state == UploadState::Open);
        let found = found.ok_or(Error::Invalid("no such upload is open"))?;
        let part = found.parts.len() as u32;
        Ok((part, self.bytes_of_part(found.length, part), found.generation))
    }

    /// Bytes of a part of a value of so many; 0: it has no such part.
    pub(crate) fn bytes_of_part(&self, length: u64, part: u32) -> u64 {
        let part_bytes = u64::from(self.layout.part_bytes());
        length.saturating_sub(u64::from(part) * part_bytes).min(part_bytes)
    }

    pub(crate) async fn upload_share(&self, upload: UploadId, from: UploadId, parts: u32) -> Result<Output> {
        let mut left = parts;
        while left > 0 {
            let count = left.min(SHARES_PER_NOTE);
            match self.reserve_for_store(note_bytes_max(count as usize), count as usize) {
                Err(Error::NoSpace) => self.wait_to_store().await?,
                Err(error) => return Err(error),
                Ok(()) => {
                    let shares = self.shares(upload.0, from.0, count)?;
                    self.commit_note(&shares, Durability::Async);
                    left -= count;
                }
            }
        }
        Ok(Output::Done)
    }

    /// What makes the next parts of an open upload those of another.
    fn shares(&self, upload: u64, from: u64, count: u32) -> Result<Vec<Transition>> {
        let (first, _, _) = self.next_part(upload)?;
        let state = self.state.borrow();
        let length = state.uploads[&upload].length;
        let other = state.uploads.get(&from).ok_or(Error::NotFound)?;
        let share = |part: u32| {
            let bytes = self.bytes_of_part(length, part);
            if bytes == 0 || bytes != self.bytes_of_part(other.length, part) {
                return Err(Error::Invalid("a shared part of another length"));
            }
            let (location, units) = *other.parts.get(&part).ok_or(Error::NotFound)?;
            Ok(Transition {
                fingerprint: u64::from(part),
                location,
                length: units,
                argument: upload,
                ..Transition::new(TransitionKind::SharePart)
            })
        };
        (first..first.saturating_add(count)).map(share).collect()
    }

    pub(crate) async fn upload_part(
        self: &Rc<Self>,
        upload: UploadId,
        (key, bytes): (&[u8], &[u8]),
        beyond: Beyond,
    ) -> Result<Output> {
        let part_key_bytes = part_key(0, 0).len();
        let size = record_bytes(part_key_bytes, bytes.len());
        let slot = plimsoll_kv::Slot::of(key).0;
        loop {
            self.admit(size, beyond).await?;
            let (part, expected, generation) = self.next_part(upload.0)?;
            if bytes.len() as u64 != expected || expected == 0 {
                return Err(Error::Invalid("a part of another length than the upload's next"));
            }
            match self.reserve_for_store(size as usize + note_bytes_max(1), 1) {
                Err(Error::NoSpace) => self.wait_to_store().await?,
                Err(error) => return Err(error),
                Ok(()) => {
                    let urgency = self.urgency(upload.0, part);
                    let frame = self.append_part((upload.0, part), generation, slot, bytes, urgency);
                    // Waiting for the frame before keeps memory bounded: two frames have parts of a client.
                    // No value is acknowledged that is not durable: its manifest comes later in the same log.
                    let ahead = u64::from(!self.options.is_member);
                    self.log.wait_durable(frame - ahead).await?;
                    return Ok(Output::Done);
                }
            }
        }
    }

    pub(crate) fn append_part(
        &self,
        (upload, part): (u64, u32),
        generation: u32,
        slot: u16,
        bytes: &[u8],
        urgency: Durability,
    ) -> u64 {
        let key = part_key(upload, part);
        let header = RecordHeader {
            kind: RecordKind::Part,
            lifetime: 0,
            key_bytes: key.len() as u32,
            value_bytes: bytes.len() as u32,
            container: generation,
            slot,
            version: self.next_version(),
            expiry_ms: 0,
            flags: 0,
            previous: 0,
            previous_length: 0,
        };
        let transition = self.log.push_record(&header, &key, 0, [bytes, &[]], urgency);
        self.commit(&transition, urgency);
        add(&self.counts.stored_bytes, header.record_bytes());
        self.log.frame()
    }

    /// The length of an open upload of which every part is there.
    pub(crate) fn upload_length(&self, upload: u64) -> Result<u64> {
        let (_, left, _) = self.next_part(upload)?;
        if left > 0 {
            return Err(Error::Invalid("the upload has parts missing"));
        }
        let state = self.state.borrow();
        Ok(state.uploads[&upload].length)
    }

    pub(crate) fn upload_abort(&self, upload: UploadId) -> Result<Output> {
        let open = {
            let state = self.state.borrow();
            state.uploads.get(&upload.0).is_some_and(|found| found.state == UploadState::Open)
        };
        if !open {
            return Err(Error::Invalid("no such upload is open"));
        }
        // Not logged: an upload that is not committed is given up by recovery anyway. The
        // background task ends it and gives its space back.
        self.doom(upload.0);
        Ok(Output::Done)
    }

    pub(crate) fn doom(&self, upload: u64) {
        self.state.borrow_mut().uploads.set_state(upload, UploadState::Doomed);
        self.background.ring();
    }

    /// Ends the doomed uploads that nobody reads or may come to read; true if there was one.
    pub(crate) async fn end_uploads(&self) -> Result<bool> {
        let ended: Vec<u64> = {
            let (state, pins) = (self.state.borrow(), self.pins.borrow());
            let ends = |id: &u64| !pins.contains_key(id) && self.looks.lets_end(*id);
            state.uploads.doomed().iter().copied().filter(ends).take(64).collect()
        };
        for upload in &ended {
            if let Err(Error::NoSpace) = self.reserve(note_bytes_max(1), 1) {
                return Ok(false);
            }
            self.commit_note(
                &[Partition::upload_note(TransitionKind::UploadEnd, *upload)],
                Durability::Async,
            );
        }
        Ok(!ended.is_empty())
    }
}
