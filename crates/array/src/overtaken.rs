//! Overtaken uploads: a value in parts that is older by its number than what it is about to replace.
//!
//! Role: the parts of a value name its version from the first on, and a shorter write of the same key may
//! come while they are sent. Shards are told apart by that number after a crash, so it must grow with every
//! write of a key: parts that were overtaken are written again, under a new one. Place on the path: storing
//! an upload where stores keep what they replace, under the key's lock. Where all values are copies it is not
//! needed: any whole copy is right.
//!
//! Invariants: what is copied is no value yet; the upload keeps its name, and a member that fails meanwhile
//! is left out of it.

use crate::array::{Array, Place};
use crate::header::{HEADER_BYTES, Header};
use crate::manner::Manner;
use crate::member::{Verdict, verdict};
use crate::placement;
use crate::read::WRONG_OUTPUT;
use crate::told::{Proof, Told};
use crate::upload::{Upload, abort_op};
use futures_util::future::join_all;
use plimsoll_kv::{Error, Op, Output, Result, UploadId, Version};
use std::rc::Rc;

impl Array {
    /// The upload, newer than what its held key holds.
    pub(crate) async fn newest_of_its_key(self: &Rc<Self>, place: &Place, id: UploadId) -> Result<Upload> {
        let upload = self.uploads.get(id)?;
        if !upload.open || upload.place.container != place.container {
            return Err(Error::Invalid("the upload is gone, or belongs to another key"));
        }
        if !self.forms.keeps() || self.version_held(place).await? < Some(upload.version) {
            return Ok(upload);
        }
        if u64::from(upload.parts) < self.parts_of(upload.length) {
            return Err(Error::Invalid("the upload has parts missing"));
        }
        if upload.pins > 0 {
            return Err(Error::Invalid("an upload that is being read is stored by its transaction alone"));
        }
        let version = self.next_version();
        let each = upload.at.iter().map(async |(role, from)| {
            let copied = self.copy_upload(place, (*role, *from), &upload, version).await;
            (*role, copied)
        });
        let (mut copies, mut failure) = (Vec::new(), None);
        for (role, copied) in join_all(each).await {
            match copied {
                Ok(copy) => copies.push((role, copy)),
                // It gets its piece from the others, as one that came in after the upload was begun.
                Err(error) if verdict(&error) == Verdict::Broken => {}
                Err(error) => failure = Some(error),
            }
        }
        let needed = upload.form.needed();
        if failure.is_none() && copies.len() < needed {
            failure = Some(self.nowhere(place, needed));
        }
        let left = match failure {
            None => self.uploads.replace(id, version, copies)?,
            Some(_) => copies,
        };
        let each = left.into_iter().map(|(role, of)| self.give_up(place, role, of));
        join_all(each).await;
        failure.map_or_else(|| self.uploads.get(id), Err)
    }

    /// The version of the first piece of a held key that can be read; nothing if it is absent.
    async fn version_held(self: &Rc<Self>, place: &Place) -> Result<Option<Version>> {
        for role in self.roles_of_newest(place) {
            let Some(device) = self.readable(self.member_of(place, role)) else { continue };
            match self.ask(&device, (place, role), Proof::Start, &Manner::background()).await? {
                Told::Unreadable => {}
                told => return Ok(told.version()),
            }
        }
        Ok(None)
    }

    /// Copies what a member has of an upload, with another version before every part.
    async fn copy_upload(
        self: &Rc<Self>,
        place: &Place,
        (role, from): (usize, UploadId),
        upload: &Upload,
        version: Version,
    ) -> Result<UploadId> {
        let (member, container) = (self.member_of(place, role), placement::container(place.container, role));
        let (key, length) = (place.key.clone(), self.stored_bytes(upload.form, upload.length));
        let begin = Op::UploadBegin { container, key, length, shared_bytes: 0, form: None };
        let Output::Upload(copy) = self.sent_one(member, begin).await? else { return Err(WRONG_OUTPUT) };
        for part in 0..length.div_ceil(self.member_part_bytes() as u64) as u32 {
            if let Err(error) = self.copy_part(place, (member, from, copy), part, version).await {
                self.give_up(place, role, copy).await;
                return Err(error);
            }
        }
        Ok(copy)
    }

    async fn copy_part(
        self: &Rc<Self>,
        place: &Place,
        (member, from, to): (usize, UploadId, UploadId),
        part: u32,
        version: Version,
    ) -> Result<()> {
        let device = self.writable(member).ok_or(Error::NotFound)?;
        let read = Op::RetrievePart { upload: from, key: place.key.clone(), part, range: None };
        let read = device.execute(Manner::background().request(read)).await?;
        let Output::Found(item) = read.output else { return Err(WRONG_OUTPUT) };
        let header = Header::decode(&item.bytes).map_err(|what| Error::Unreadable(what.to_owned()))?;
        let bytes = Header { version, ..header }.before(item.bytes[HEADER_BYTES..].to_vec()).to_vec();
        let write = Op::UploadPart { upload: to, key: place.key.clone(), bytes };
        self.sent_one(member, write).await.map(drop)
    }

    /// What an upload that was given up held comes back at the next start at the latest.
    pub(crate) async fn give_up(self: &Rc<Self>, place: &Place, role: usize, upload: UploadId) {
        let each = vec![(role, abort_op(&place.key, upload))];
        let _ = self.give_back(place, each, &Manner::background()).await;
    }
}
