//! Values in parts: the same parts on every member that holds the key.
//!
//! Role: gives an upload one name for what it is called on each member, and puts a header before every part.
//! Place on the path: values longer than one record.
//!
//! Invariants:
//! * a part of the array is a part of each member, less its header: both have the same number;
//! * a pinned value is pinned on every member that is in, so that its reader survives the loss of some;
//! * a member that goes out takes its uploads with it, and no others.

use crate::array::{Array, Manner, Place};
use crate::header::Header;
use crate::member::{Verdict, verdict};
use crate::placement;
use crate::read::WRONG_OUTPUT;
use crate::write::{Change, Sent, retaining, stored_version};
use plimsoll_kv::{
    ContainerId, Device, Error, Expiry, Form, Item, Op, Output, Result, UploadId, Value, Version,
};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Uploads that are open and values that are pinned.
#[derive(Default)]
pub(crate) struct Uploads {
    known: RefCell<BTreeMap<u64, Upload>>,
    /// Of open uploads: what does not fill a part of a member yet, by role.
    pub(crate) halves: RefCell<BTreeMap<u64, Vec<Vec<u8>>>>,
    next: Cell<u64>,
}

/// What an upload, or a pinned value, is called on each member.
#[derive(Clone)]
pub(crate) struct Upload {
    pub(crate) container: ContainerId,
    primary: usize,
    /// What the value is made into.
    pub(crate) form: Form,
    /// Role and name.
    pub(crate) at: Vec<(usize, UploadId)>,
    pub(crate) version: Version,
    pub(crate) length: u64,
    /// Parts that were written.
    pub(crate) parts: u32,
    /// Pins of an upload that was begun, and whether it has neither become a value nor been given up.
    pub(crate) pins: u32,
    pub(crate) open: bool,
}

const UNKNOWN: Error = Error::Invalid("no such upload");

impl Uploads {
    fn insert(&self, upload: Upload) -> UploadId {
        let id = self.next.get() + 1;
        self.next.set(id);
        self.known.borrow_mut().insert(id, upload);
        UploadId(id)
    }

    pub(crate) fn get(&self, id: UploadId) -> Result<Upload> {
        self.known.borrow().get(&id.0).cloned().ok_or(UNKNOWN)
    }

    fn change<T>(&self, id: UploadId, change: impl FnOnce(&mut Upload) -> T) -> Result<T> {
        self.known.borrow_mut().get_mut(&id.0).map(change).ok_or(UNKNOWN)
    }

    /// An upload has another version, and other names on members; those that nothing goes by any more, of
    /// members that went out or came in meanwhile too.
    pub(crate) fn replace(
        &self,
        id: UploadId,
        version: Version,
        mut names: Vec<(usize, UploadId)>,
    ) -> Result<Vec<(usize, UploadId)>> {
        self.change(id, |upload| {
            let mut left = std::mem::take(&mut upload.at);
            let goes_on = |role: usize| left.iter().any(|(other, _)| *other == role);
            upload.version = version;
            upload.at = names.extract_if(.., |(role, _)| goes_on(*role)).collect();
            left.append(&mut names);
            left
        })
    }

    /// A member is out: what it knows of uploads is not continued when it, or another, comes back.
    pub(crate) fn forget_member(&self, member: usize, count: usize) {
        for upload in self.known.borrow_mut().values_mut() {
            let primary = upload.primary;
            upload.at.retain(|(role, _)| placement::member(primary, *role, count) != member);
        }
    }

    /// Forgets an upload that is neither open nor pinned.
    fn forget_unused(&self, id: UploadId) {
        let mut known = self.known.borrow_mut();
        if known.get(&id.0).is_some_and(|upload| !upload.open && upload.pins == 0) {
            known.remove(&id.0);
            self.halves.borrow_mut().remove(&id.0);
        }
    }
}

impl Array {
    pub(crate) async fn upload(self: &Rc<Self>, op: Op, manner: &Manner) -> Result<Output> {
        match op {
            Op::UploadBegin { container, key, length, form, .. } => {
                let form = self.form_for(form, length)?;
                self.upload_begin(&self.place(container, &key)?, (form, length), manner).await
            }
            Op::UploadPart { upload, key, bytes } => self.upload_part(upload, key, bytes, manner).await,
            Op::UploadShare { upload, key, from, parts } => {
                self.upload_share(upload, &key, from, parts, manner).await
            }
            Op::UploadAbort { upload, key } => self.upload_abort(upload, &key, manner).await,
            Op::RetrievePart { upload, key, part, range } => {
                self.retrieve_part(upload, &key, part, range, manner).await
            }
            Op::Pin { upload, key } => self.pin_begun(upload, &key, manner).await,
            Op::Unpin { upload, key } => self.unpin(upload, &key, manner).await,
            _ => unreachable!("dispatched by kind"),
        }
    }

    async fn upload_begin(
        self: &Rc<Self>,
        place: &Place,
        (form, length): (Form, u64),
        manner: &Manner,
    ) -> Result<Output> {
        let stored = self.stored_bytes(form, length);
        let each = (0..form.roles()).map(|role| {
            let container = placement::container(place.container, role);
            let op = Op::UploadBegin {
                container,
                key: place.key.clone(),
                length: stored,
                shared_bytes: 0,
                form: None,
            };
            (self.member_of(place, role), manner.request(op))
        });
        let sent = self.send(each.collect()).await?;
        let begun = sent.done.into_iter().filter_map(|(member, output)| match output {
            Output::Upload(upload) => Some((self.role_of(place, member), upload)),
            _ => None,
        });
        let upload = Upload {
            container: place.container,
            primary: place.primary,
            form,
            at: begun.collect(),
            version: self.next_version(),
            length,
            parts: 0,
            pins: 0,
            open: true,
        };
        let is_nowhere = upload.at.len() < form.needed();
        let id = self.uploads.insert(upload);
        let failure = sent.refused.or(is_nowhere.then(|| self.nowhere(place, form.needed())));
        let Some(error) = failure else { return Ok(Output::Upload(id)) };
        self.upload_abort(id, &place.key, manner).await?;
        Err(error)
    }

    /// The role in which a member holds a key.
    fn role_of(&self, place: &Place, member: usize) -> usize {
        (member + self.count() - place.primary) % self.count()
    }

    /// The same request to every member that has an upload.
    async fn send_to_upload(
        self: &Rc<Self>,
        place: &Place,
        upload: &Upload,
        manner: &Manner,
        op: impl Fn(usize, UploadId) -> Op,
    ) -> Result<Sent> {
        let each =
            upload.at.iter().map(|(role, of)| (self.member_of(place, *role), manner.request(op(*role, *of))));
        self.send(each.collect()).await
    }

    async fn upload_part(
        self: &Rc<Self>,
        id: UploadId,
        key: Vec<u8>,
        bytes: Vec<u8>,
        manner: &Manner,
    ) -> Result<Output> {
        let upload = self.uploads.get(id)?;
        if bytes.len() > self.part_bytes() {
            return Err(Error::Invalid("a part of an upload is too long"));
        }
        let place = self.place(upload.container, &key)?;
        self.uploads.change(id, |upload| upload.parts += 1)?;
        let Some(pieces) = self.fill(id, &upload, &bytes) else { return Ok(Output::Done) };
        let sent = self.send_to_upload(&place, &upload, manner, |role, of| {
            let (version, value_bytes) = (upload.version, upload.length);
            let header = Header { form: upload.form, role: role as u8, version, value_bytes };
            Op::UploadPart { upload: of, key: key.clone(), bytes: header.before(&pieces[role]) }
        });
        let sent = sent.await?;
        if let Some(error) = sent.refused {
            // Some members have the part and others have not: it cannot go on.
            self.upload_abort(id, &key, manner).await?;
            return Err(error);
        }
        if sent.done.len() < upload.form.needed() {
            return Err(self.nowhere(&place, upload.form.needed()));
        }
        Ok(Output::Done)
    }

    /// Copies parts of a pinned value: their headers name the version that they belong to.
    async fn upload_share(
        self: &Rc<Self>,
        id: UploadId,
        key: &[u8],
        from: UploadId,
        parts: u32,
        manner: &Manner,
    ) -> Result<Output> {
        let first = self.uploads.get(id)?.parts;
        for part in first..first.saturating_add(parts) {
            let Output::Found(item) = self.retrieve_part(from, key, part, None, manner).await? else {
                return Err(WRONG_OUTPUT);
            };
            self.upload_part(id, key.to_vec(), item.bytes, manner).await?;
        }
        Ok(Output::Done)
    }

    async fn upload_abort(self: &Rc<Self>, id: UploadId, key: &[u8], manner: &Manner) -> Result<Output> {
        let upload = self.uploads.get(id)?;
        let place = self.place(upload.container, key)?;
        let op = |_, of| Op::UploadAbort { upload: of, key: key.to_vec() };
        let sent = self.send_to_upload(&place, &upload, manner, op).await?;
        self.uploads.change(id, |upload| upload.open = false)?;
        self.uploads.forget_unused(id);
        sent.refused.map_or(Ok(Output::Done), Err)
    }

    /// Makes an upload the value of a held key.
    pub(crate) async fn store_upload(
        self: &Rc<Self>,
        place: &Place,
        id: UploadId,
        expiry: Expiry,
        manner: &Manner,
    ) -> Result<Output> {
        let upload = self.newest_of_its_key(place, id).await?;
        if expiry != Expiry::Never {
            self.keep_nothing(place).await?;
        }
        let slot = self.name_half_written(place, manner).await?;
        let before = self.take_kept(place);
        let keeps = self.forms.keeps();
        let each = upload.at.iter().map(|(role, of)| {
            let store = self.store_op(place, *role, Value::Upload(*of), expiry);
            let store = if keeps { retaining(store, false) } else { store };
            (self.member_of(place, *role), manner.request(store))
        });
        let written = self.write(place, (slot, Change::Store(upload.form)), each.collect()).await;
        let (done, slot) = match written {
            Ok(written) => written,
            Err(error) => {
                self.restore_kept(place, before);
                return Err(error);
            }
        };
        if keeps {
            self.release_before(place, (upload.form, expiry), slot).await;
        }
        drop(before);
        self.uploads.change(id, |upload| upload.open = false)?;
        self.uploads.forget_unused(id);
        self.complete_joined(place, &upload).await?;
        let version = stored_version(self.first_of(place, done)?)?;
        Ok(Output::Stored { version, previous: None })
    }

    /// A member that came in, or began to be resynchronised, after an upload was begun is given what it
    /// became.
    pub(crate) async fn complete_joined_at(
        self: &Rc<Self>,
        place: &Place,
        form: Form,
        has: impl Fn(usize) -> bool,
    ) -> Result<()> {
        let (having, lacking): (Vec<usize>, Vec<usize>) = (0..form.roles()).partition(|role| has(*role));
        for role in lacking {
            if self.writable(self.member_of(place, role)).is_some() {
                let given = self.give(place, form, role, &having).await.map(|_| ());
                self.mended(place, role, given)?;
            }
        }
        Ok(())
    }

    async fn complete_joined(self: &Rc<Self>, place: &Place, upload: &Upload) -> Result<()> {
        let has = |role| upload.at.iter().any(|(has, _)| *has == role);
        self.complete_joined_at(place, upload.form, has).await
    }

    /// What a store of an upload in a transaction asks of each member.
    pub(crate) fn upload_at(&self, id: UploadId) -> Result<(Form, Vec<(usize, UploadId)>)> {
        let upload = self.uploads.get(id)?;
        Ok((upload.form, upload.at))
    }

    /// An upload has become a value in a transaction.
    pub(crate) fn upload_stored(&self, id: UploadId) {
        // Unknown after a restart.
        let _ = self.uploads.change(id, |upload| upload.open = false);
        self.uploads.forget_unused(id);
    }

    /// Pins a held value in parts on every member that may be read.
    pub(crate) async fn pin_everywhere(
        self: &Rc<Self>,
        place: &Place,
        (item, form): (Item, Form),
        manner: &Manner,
    ) -> Result<Item> {
        let mut at = Vec::new();
        for role in 0..form.roles() {
            let Some(device) = self.readable(self.member_of(place, role)) else { continue };
            match self.pin_piece(&device, place, role, manner).await {
                Ok((_, upload)) => at.push((role, upload)),
                Err(Error::NotFound) => {}
                Err(error) if verdict(&error) == Verdict::Broken => {}
                Err(error) => return Err(error),
            }
        }
        if at.len() < form.needed() {
            return Err(Error::NotFound);
        }
        Ok(self.pinned(place, (item, form), at))
    }

    /// A value that is pinned in some roles, under one name.
    fn pinned(&self, place: &Place, (item, form): (Item, Form), at: Vec<(usize, UploadId)>) -> Item {
        let upload = Upload {
            container: place.container,
            primary: place.primary,
            form,
            at,
            version: Version::ZERO,
            length: item.length,
            parts: 0,
            pins: 1,
            open: false,
        };
        Item { upload: Some(self.uploads.insert(upload)), ..item }
    }

    async fn pin_begun(self: &Rc<Self>, id: UploadId, key: &[u8], manner: &Manner) -> Result<Output> {
        let upload = self.uploads.get(id)?;
        let place = self.place(upload.container, key)?;
        let op = |_, of| Op::Pin { upload: of, key: key.to_vec() };
        let sent = self.send_to_upload(&place, &upload, manner, op).await?;
        if let Some(error) = sent.refused {
            return Err(error);
        }
        self.uploads.change(id, |upload| upload.pins += 1)?;
        Ok(Output::Done)
    }

    async fn unpin(self: &Rc<Self>, id: UploadId, key: &[u8], manner: &Manner) -> Result<Output> {
        let upload = self.uploads.get(id)?;
        let place = self.place(upload.container, key)?;
        let op = |_, of| Op::Unpin { upload: of, key: key.to_vec() };
        let sent = self.send_to_upload(&place, &upload, manner, op).await?;
        self.uploads.change(id, |upload| upload.pins = upload.pins.saturating_sub(1))?;
        self.uploads.forget_unused(id);
        sent.refused.map_or(Ok(Output::Done), Err)
    }
}
