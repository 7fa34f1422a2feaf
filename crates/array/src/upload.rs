//! Values in parts: the same parts on every member that holds the key.
//!
//! Role: gives an upload one name for what it is called on each member, and puts a header before every part.
//! Place on the path: values longer than one record.
//!
//! Invariants:
//! * a part of the array is a part of each member, less its header: both have the same number;
//! * a member that goes out takes its uploads with it, and no others.

use crate::array::{Array, Place};
use crate::before::Seen;
use crate::header::{HEADER_BYTES, Header};
use crate::manner::Manner;
use crate::placement;
use crate::read::WRONG_OUTPUT;
use crate::send::Sent;
use crate::write::{Change, retaining, stored_version};
use plimsoll_kv::{Device, Error, Expiry, Form, Op, Output, Result, UploadId, Value, Version};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Uploads that are open and values that are pinned.
#[derive(Default)]
pub(crate) struct Uploads {
    known: RefCell<BTreeMap<u64, Upload>>,
    /// Of open uploads: what does not fill a part of a member yet, by role.
    pub(crate) halves: RefCell<BTreeMap<u64, Vec<Vec<u8>>>>,
    /// What members that are out have to be asked to give up, should they come back.
    left: RefCell<Vec<(usize, Op)>>,
    next: Cell<u64>,
}

/// What an upload, or a pinned value, is called on each member.
#[derive(Clone)]
pub(crate) struct Upload {
    pub(crate) place: Place,
    /// What the value is made into.
    pub(crate) form: Form,
    /// Role and name.
    pub(crate) at: Vec<(usize, UploadId)>,
    /// The same, of members that were given it for its readers: uploads that never become values.
    pub(crate) given: Vec<(usize, UploadId)>,
    pub(crate) version: Version,
    pub(crate) length: u64,
    /// Parts that were written.
    pub(crate) parts: u32,
    /// Pins of an upload that was begun, and whether it has neither become a value nor been given up.
    pub(crate) pins: u32,
    pub(crate) open: bool,
}

const UNKNOWN: Error = Error::Invalid("no such upload");

impl Upload {
    /// What it is called wherever it can be read.
    pub(crate) fn names(&self) -> impl Iterator<Item = (usize, UploadId)> {
        self.at.iter().chain(&self.given).copied()
    }
}

impl Uploads {
    pub(crate) fn insert(&self, upload: Upload) -> UploadId {
        let id = self.next.get() + 1;
        self.next.set(id);
        self.known.borrow_mut().insert(id, upload);
        UploadId(id)
    }

    pub(crate) fn get(&self, id: UploadId) -> Result<Upload> {
        self.known.borrow().get(&id.0).cloned().ok_or(UNKNOWN)
    }

    pub(crate) fn change<T>(&self, id: UploadId, change: impl FnOnce(&mut Upload) -> T) -> Result<T> {
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

    /// Values that are pinned, and that a member should have and has not: in which role.
    pub(crate) fn pinned_without(&self, member: usize, count: usize) -> Vec<(UploadId, usize)> {
        let known = self.known.borrow();
        let pinned = known.iter().filter(|(_, upload)| !upload.open && upload.pins > 0);
        let lacked = pinned.filter_map(|(id, upload)| {
            let role = placement::role(upload.place.primary, member, count);
            let lacks = role < upload.form.roles() && upload.names().all(|(other, _)| other != role);
            lacks.then_some((UploadId(*id), role))
        });
        lacked.collect()
    }

    /// A member has been out: what it knows of uploads is not continued when it, or another, comes back. Told
    /// is what it has to be asked to give that up.
    pub(crate) fn forget_member(&self, member: usize, count: usize) -> Vec<Op> {
        let mut left = self.left.borrow_mut();
        for upload in self.known.borrow_mut().values_mut() {
            let Place { key, primary, .. } = &upload.place;
            let is_its =
                |(role, _): &mut (usize, UploadId)| placement::member(*primary, *role, count) == member;
            for (_, of) in upload.at.extract_if(.., is_its) {
                left.extend((0..upload.pins).map(|_| (member, unpin_op(key, of))));
                left.extend(upload.open.then(|| (member, abort_op(key, of))));
            }
            left.extend(upload.given.extract_if(.., is_its).map(|(_, of)| (member, abort_op(key, of))));
        }
        left.extract_if(.., |(of, _)| *of == member).map(|(_, op)| op).collect()
    }

    /// Forgets an upload that is neither open nor pinned.
    pub(crate) fn forget_unused(&self, id: UploadId) {
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
                let (form, place) = (self.form_for(form, length)?, self.place(container, &key)?);
                self.note_store(&place, length, manner.class());
                self.upload_begin(&place, (form, length), manner).await
            }
            Op::UploadPart { upload, key, bytes } => self.upload_part(upload, key, bytes, manner).await,
            Op::UploadShare { upload, key, from, parts } => {
                self.upload_share(upload, &key, from, parts, manner).await
            }
            // A part that a member refused has given it up already.
            Op::UploadAbort { upload, .. } if self.uploads.get(upload).is_err() => Ok(Output::Done),
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
            place: place.clone(),
            form,
            at: begun.collect(),
            given: Vec::new(),
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
        placement::role(place.primary, member, self.count())
    }

    /// The same request to every member that has an upload.
    pub(crate) async fn send_to_upload(
        self: &Rc<Self>,
        place: &Place,
        upload: &Upload,
        manner: &Manner,
        mut op: impl FnMut(usize, UploadId) -> Op,
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
        let place = self.place(upload.place.container, &key)?;
        self.uploads.change(id, |upload| upload.parts += 1)?;
        let Some(mut pieces) = self.fill(id, &upload, bytes) else { return Ok(Output::Done) };
        let sent = self.send_to_upload(&place, &upload, manner, |role, of| {
            let (version, value_bytes) = (upload.version, upload.length);
            let header = Header { form: upload.form, role: role as u8, version, value_bytes, is_stub: false };
            let mut bytes = std::mem::take(&mut pieces[role]);
            bytes[..HEADER_BYTES].copy_from_slice(&header.encode());
            Op::UploadPart { upload: of, key: key.clone(), bytes }
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
        let place = self.place(upload.place.container, key)?;
        let each = upload.at.iter().map(|(role, of)| (*role, abort_op(key, *of)));
        let sent = self.give_back(&place, each.collect(), manner).await?;
        self.uploads.change(id, |upload| upload.open = false)?;
        self.uploads.forget_unused(id);
        sent.refused.map_or(Ok(Output::Done), Err)
    }

    /// Makes an upload the value of a held key.
    pub(crate) async fn store_upload(
        self: &Rc<Self>,
        place: &Place,
        (id, seen): (UploadId, Seen),
        expiry: Expiry,
        manner: &Manner,
    ) -> Result<Output> {
        let upload = self.newest_of_its_key(place, id).await?;
        if expiry != Expiry::Never {
            self.keep_nothing(place).await?;
        }
        let roles = self.roles_before(place, seen, manner).await?;
        self.leave_set(place, manner).await?;
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
            let roles = self.roles_left(roles, before.as_ref(), false);
            self.release_before(place, (upload.form, expiry), roles, slot).await;
        }
        drop(before);
        self.upload_stored(id);
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
                let given = match self.give(place, form, role, &having).await {
                    // It has expired by now: what stands there is older, and must not outlive it (seed 1647).
                    Err(Error::NotFound) => self
                        .sent_one(self.member_of(place, role), self.delete_op(place, role))
                        .await
                        .map(drop),
                    given => given.map(drop),
                };
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

    /// An upload has become a value.
    pub(crate) fn upload_stored(&self, id: UploadId) {
        let closed = self.uploads.change(id, |upload| {
            upload.open = false;
            upload.clone()
        });
        // Unknown after a restart.
        let Ok(upload) = closed else { return };
        let each = upload.at.iter().map(|(role, of)| (*role, abort_op(&upload.place.key, *of)));
        self.leave(&upload.place, &mut each.collect());
        self.uploads.forget_unused(id);
    }

    /// Takes out of what members are asked to give up, by role, what is for those that are out: they are
    /// asked when they come back.
    fn leave(&self, place: &Place, each: &mut Vec<(usize, Op)>) {
        let is_out = |(role, _): &mut (usize, Op)| self.writable(self.member_of(place, *role)).is_none();
        let left = each.extract_if(.., is_out).map(|(role, op)| (self.member_of(place, role), op));
        self.uploads.left.borrow_mut().extend(left);
    }

    /// Asks members to give up uploads or pins, by role.
    pub(crate) async fn give_back(
        self: &Rc<Self>,
        place: &Place,
        mut each: Vec<(usize, Op)>,
        manner: &Manner,
    ) -> Result<Sent> {
        self.leave(place, &mut each);
        let each = each.into_iter().map(|(role, op)| (self.member_of(place, role), manner.request(op)));
        self.send(each.collect()).await
    }
}

pub(crate) fn abort_op(key: &[u8], upload: UploadId) -> Op {
    Op::UploadAbort { upload, key: key.to_vec() }
}

pub(crate) fn unpin_op(key: &[u8], upload: UploadId) -> Op {
    Op::Unpin { upload, key: key.to_vec() }
}
