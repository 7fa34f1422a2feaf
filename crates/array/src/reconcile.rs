//! Reconciling: making the copies of one key the same again.
//!
//! Role: what is done with a key that may differ between members: it was named in the journal when the server
//! died, a write of it could be made on some members only, a copy of it could not be read, a scrub looks at
//! it. Place on the path: before an unsettled key is read or written.
//!
//! Invariants:
//! * the newest version of which a member has a copy wins: if it was acknowledged every member that is in has
//!   it; if it was not, old and new are both right, and from here on there is one;
//! * a key that only some members have is given to the others: an unfinished delete may be undone;
//! * the key is held from the first look to the last write.

use crate::array::{Array, Manner, Place};
use crate::header::{HEADER_BYTES, Header};
use crate::member::{Verdict, verdict};
use crate::placement;
use crate::read::WRONG_OUTPUT;
use crate::roster::MemberState;
use crate::write::Sent;
use futures_util::future::join_all;
use plimsoll_kv::{Device, Error, Expiry, Item, Op, Output, Result, UploadId, Value, Version};
use std::rc::Rc;

/// A copy of a key, as a member tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    Absent,
    Unreadable,
    Found {
        /// By the header: the same on all members.
        version: Version,
        expiry_ms: Option<u64>,
    },
}

impl Array {
    /// Makes a held key whole, if it may not be. What no member can read stays as it is: its reader is told
    /// so, and a write takes its place.
    pub(crate) async fn settle(self: &Rc<Self>, place: &Place) -> Result<()> {
        if !self.is_unsettled(place) {
            return Ok(());
        }
        match self.reconcile(place).await {
            Ok(_) => {}
            Err(Error::Unreadable(what)) => {
                tracing::error!(partition = self.partition, what, "a key cannot be made whole");
                return Ok(());
            }
            Err(error) => return Err(error),
        }
        self.unsettled.borrow_mut().remove(&(place.container, place.key.clone()));
        Ok(())
    }

    /// Makes every key whole that is known not to be; how many could not be. For who holds everything, or
    /// nothing.
    pub(crate) async fn settle_all(self: &Rc<Self>) -> Result<usize> {
        let unsettled = self.unsettled.borrow().clone();
        for (container, key) in unsettled {
            let place = self.place(container, &key)?;
            if self.locks.is_everything_kept() {
                self.settle(&place).await?;
            } else {
                drop(self.hold(&place).await?);
            }
        }
        Ok(self.unsettled.borrow().len())
    }

    /// Makes the copies of a held key the same; how many were not.
    pub(crate) async fn reconcile(self: &Rc<Self>, place: &Place) -> Result<u64> {
        let told = self.ask_all(place).await?;
        let newest = told.iter().filter_map(|(role, told)| match told {
            Told::Found { version, expiry_ms } => Some((*version, *expiry_ms, std::cmp::Reverse(*role))),
            Told::Absent | Told::Unreadable => None,
        });
        let Some((version, expiry_ms, std::cmp::Reverse(from))) = newest.max() else {
            return self.reconcile_absent(place, &told).await;
        };
        let right = Told::Found { version, expiry_ms };
        let wrong = told.into_iter().filter(|(_, told)| *told != right);
        let mut mended = 0;
        for (role, told) in wrong.collect::<Vec<_>>() {
            if told == Told::Unreadable {
                self.report_unreadable(place, role);
            }
            let copied = self.copy(place, from, role).await.map(|_| ());
            self.mended(place, role, copied)?;
            mended += 1;
        }
        Ok(mended)
    }

    fn report_unreadable(&self, place: &Place, role: usize) {
        let device = self.name(self.member_of(place, role));
        tracing::warn!(partition = self.partition, device, "a copy that cannot be read is written again");
    }

    /// No member has a copy that can be read. If one of them has none, that is what the others should have.
    async fn reconcile_absent(self: &Rc<Self>, place: &Place, told: &[(usize, Told)]) -> Result<u64> {
        let damaged: Vec<usize> =
            told.iter().filter(|(_, told)| *told == Told::Unreadable).map(|(role, _)| *role).collect();
        if damaged.is_empty() {
            return Ok(0);
        }
        if damaged.len() == told.len() {
            let members = damaged.iter().map(|role| self.name(self.member_of(place, *role)));
            let members: Vec<String> = members.collect();
            return Err(Error::Unreadable(format!("no copy of the key is left ({})", members.join(", "))));
        }
        let mended = damaged.len() as u64;
        for role in damaged {
            self.report_unreadable(place, role);
            let delete = self.delete_op(place, role);
            let deleted = self.sent_one(self.member_of(place, role), delete).await.map(|_| ());
            self.mended(place, role, deleted)?;
        }
        Ok(mended)
    }

    /// A copy was written again, or its member went out over it.
    fn mended(&self, place: &Place, role: usize, result: Result<()>) -> Result<()> {
        let member = self.member_of(place, role);
        match result {
            Err(_) if self.writable(member).is_none() => {}
            result => {
                result?;
                self.note(member, |status| status.repaired += 1);
            }
        }
        Ok(())
    }

    /// What each member that is in has of a key, by role.
    async fn ask_all(self: &Rc<Self>, place: &Place) -> Result<Vec<(usize, Told)>> {
        let each = (0..self.copies).filter_map(|role| {
            let device = self.readable(self.member_of(place, role))?;
            Some(async move { (role, self.ask(&device, place, role, true).await) })
        });
        let told = join_all(each.collect::<Vec<_>>()).await;
        told.into_iter().map(|(role, told)| Ok((role, told?))).collect()
    }

    /// What a member has of a key; proved whole, or by its start alone.
    pub(crate) async fn ask(
        &self,
        device: &Rc<dyn Device>,
        place: &Place,
        role: usize,
        whole: bool,
    ) -> Result<Told> {
        let manner = Manner::background();
        let range = if whole { None } else { Some((0, 0)) };
        match self.read_copy(device, place, role, range, &manner).await {
            Err(Error::NotFound) => Ok(Told::Absent),
            Err(error) if verdict(&error) == Verdict::Broken => Ok(Told::Unreadable),
            Err(error) => Err(error),
            Ok((item, Some(header))) => {
                Ok(Told::Found { version: header.version, expiry_ms: item.expiry_ms })
            }
            Ok((item, None)) => {
                let expiry_ms = item.expiry_ms;
                let version = self.version_in_parts(device, place, role).await?;
                Ok(version.map_or(Told::Unreadable, |version| Told::Found { version, expiry_ms }))
            }
        }
    }

    /// The version of a value in parts, which stands before each of them.
    async fn version_in_parts(
        &self,
        device: &Rc<dyn Device>,
        place: &Place,
        role: usize,
    ) -> Result<Option<Version>> {
        let (_, upload) = self.pin_copy(device, place, role).await?;
        let op = Op::RetrievePart {
            upload,
            key: place.key.clone(),
            part: 0,
            range: Some((0, HEADER_BYTES as u64)),
        };
        let read = device.clone().execute(Manner::background().request(op)).await;
        self.unpin_copy(device, place, upload).await;
        match read.map(|completion| completion.output) {
            Ok(Output::Found(item)) => Ok(Header::decode(&item.bytes).ok().map(|header| header.version)),
            Ok(_) => Err(WRONG_OUTPUT),
            Err(error) if verdict(&error) == Verdict::Broken => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Pins the copy in a role, which stands in parts; its length as stored, and the upload.
    pub(crate) async fn pin_copy(
        &self,
        device: &Rc<dyn Device>,
        place: &Place,
        role: usize,
    ) -> Result<(Item, UploadId)> {
        let (container, key) = (placement::container(place.container, role), place.key.clone());
        let op = Op::Retrieve { container, key, range: Some((0, 0)), pin: true };
        let completion = device.clone().execute(Manner::background().request(op)).await?;
        let Output::Found(item) = completion.output else { return Err(WRONG_OUTPUT) };
        let upload = item.upload.ok_or_else(|| Error::Unreadable("a copy of another length".to_owned()))?;
        Ok((item, upload))
    }

    pub(crate) async fn unpin_copy(&self, device: &Rc<dyn Device>, place: &Place, upload: UploadId) {
        let op = Op::Unpin { upload, key: place.key.clone() };
        // A pin that the member has forgotten holds nothing.
        let _ = device.clone().execute(Manner::background().request(op)).await;
    }

    /// Copies a held key from the member in one role to that in another; the bytes of its value.
    pub(crate) async fn copy(self: &Rc<Self>, place: &Place, from: usize, to: usize) -> Result<u64> {
        let source = self.readable(self.member_of(place, from)).ok_or(Error::NotFound)?;
        let manner = Manner::background();
        let (item, header) = self.read_copy(&source, place, from, None, &manner).await?;
        let expiry = item.expiry_ms.map_or(Expiry::Never, Expiry::At);
        let value = match header {
            Some(header) => Value::Bytes(Header { role: to as u8, ..header }.before(&item.bytes)),
            None => Value::Upload(self.copy_parts(&source, place, from, to).await?),
        };
        let target = self.member_of(place, to);
        let store = self.store_op(place, to, value, expiry);
        self.sent_one(target, store).await?;
        self.note(target, |status| status.copied_bytes += item.length);
        Ok(item.length)
    }

    /// Copies the parts of a value; the upload at the target that holds them.
    async fn copy_parts(
        self: &Rc<Self>,
        source: &Rc<dyn Device>,
        place: &Place,
        from: usize,
        to: usize,
    ) -> Result<UploadId> {
        let (item, pinned) = self.pin_copy(source, place, from).await?;
        let copied = self.copy_pinned(source, place, (item.length, pinned), to).await;
        self.unpin_copy(source, place, pinned).await;
        copied
    }

    async fn copy_pinned(
        self: &Rc<Self>,
        source: &Rc<dyn Device>,
        place: &Place,
        (length, pinned): (u64, UploadId),
        to: usize,
    ) -> Result<UploadId> {
        let (target, key) = (self.member_of(place, to), place.key.clone());
        let container = placement::container(place.container, to);
        let begin = Op::UploadBegin { container, key: key.clone(), length, shared_bytes: 0 };
        let Output::Upload(upload) = self.sent_one(target, begin).await? else { return Err(WRONG_OUTPUT) };
        let parts = length.div_ceil((self.part_bytes() + HEADER_BYTES) as u64) as u32;
        for part in 0..parts {
            let op = Op::RetrievePart { upload: pinned, key: key.clone(), part, range: None };
            let read = source.clone().execute(Manner::background().request(op)).await;
            let copied = match read.map(|completion| completion.output) {
                Ok(Output::Found(Item { mut bytes, .. })) => match Header::decode(&bytes) {
                    Ok(header) => {
                        let header = Header { role: to as u8, ..header };
                        bytes[..HEADER_BYTES].copy_from_slice(&header.encode());
                        let op = Op::UploadPart { upload, key: key.clone(), bytes };
                        self.sent_one(target, op).await.map(|_| ())
                    }
                    Err(what) => Err(Error::Unreadable(what.to_owned())),
                },
                Ok(_) => Err(WRONG_OUTPUT),
                Err(error) => Err(error),
            };
            if let Err(error) = copied {
                // What an upload that was given up held comes back at the next start at the latest.
                let _ = self.sent_one(target, Op::UploadAbort { upload, key }).await;
                return Err(error);
            }
        }
        Ok(upload)
    }

    /// Sends one request to one member.
    async fn sent_one(self: &Rc<Self>, member: usize, op: Op) -> Result<Output> {
        let sent = self.send(vec![(member, Manner::background().request(op))]).await?;
        let Sent { mut done, refused } = sent;
        match (done.pop(), refused) {
            (Some((_, output)), _) => Ok(output),
            (None, Some(error)) => Err(error),
            (None, None) => Err(Error::ReadOnly(format!("{} is out", self.name(member)))),
        }
    }

    /// Takes back what some members took of a write that others refused: what those still have is right.
    pub(crate) async fn undo(self: &Rc<Self>, place: &Place, taken: &[usize]) -> Result<()> {
        let roles: Vec<usize> = (0..self.copies).collect();
        let has_taken = |role: &usize| taken.contains(&self.member_of(place, *role));
        let (new, old): (Vec<usize>, Vec<usize>) = roles.into_iter().partition(has_taken);
        let mut old = old.into_iter().filter(|role| self.readable(self.member_of(place, *role)).is_some());
        let Some(from) = old.next() else {
            return Ok(()); // Who refused is not relied on: those that took it are the array now.
        };
        let deletes = new.iter().map(|role| {
            let delete = self.delete_op(place, *role);
            (self.member_of(place, *role), Manner::background().request(delete))
        });
        let sent = self.send(deletes.collect()).await?;
        if let Some(error) = sent.refused {
            return Err(error);
        }
        let source = self.readable(self.member_of(place, from)).ok_or(Error::NotFound)?;
        match self.ask(&source, place, from, false).await? {
            Told::Absent => Ok(()),
            Told::Unreadable => Err(Error::Unreadable("the version before the write".to_owned())),
            Told::Found { .. } => {
                for role in new {
                    if self.state(self.member_of(place, role)) != MemberState::Out {
                        self.copy(place, from, role).await?;
                    }
                }
                Ok(())
            }
        }
    }

    /// A key is compared over the members before it is used.
    pub(crate) fn suspect(&self, place: &Place) {
        self.unsettled.borrow_mut().insert((place.container, place.key.clone()));
    }
}
