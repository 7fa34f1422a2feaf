//! Pins: values in parts that stay for their readers, whatever becomes of the key.
//!
//! Role: pins a value on the members that hold it, and gives what is pinned to a member that comes in: a
//! reader goes on as long as enough members are in, whoever they are. Place on the path: reads of long
//! values, and the end of a resynchronisation.
//!
//! Invariants:
//! * a pinned value can be read, in the one version that was pinned, at every member that is in: either it
//!   was pinned there, or it was given from pins of others before the member came in;
//! * who pins a key holds it, and so does who gives the key to a member that is resynchronised: what is
//!   pinned later than that is pinned there, too;
//! * what a member holds for readers goes with the last pin; where the member is out by then, when it comes
//!   back.
//!
//! Never: it gives an upload that is pinned and not stored yet.

use crate::array::{Array, Place};
use crate::give::Source;
use crate::manner::Manner;
use crate::member::{Verdict, verdict};
use crate::pace::Pace;
use crate::parts::out;
use crate::upload::{Upload, abort_op, unpin_op};
use plimsoll_kv::{Error, Form, Item, Op, Output, Result, UploadId, Version};
use std::rc::Rc;

impl Array {
    /// Pins a held value in parts on every member that has it.
    pub(crate) async fn pin_everywhere(
        self: &Rc<Self>,
        place: &Place,
        (item, form): (Item, Form),
        manner: &Manner,
    ) -> Result<Item> {
        let (mut at, mut failure, mut is_gone) = (Vec::new(), None, false);
        for role in 0..form.roles() {
            let member = self.member_of(place, role);
            let Some(device) = self.writable(member) else { continue };
            match self.read_in_time(self.pin_piece(&device, place, role, manner)).await {
                Ok((_, upload)) => at.push((role, upload)),
                // One that has just come in may lack it; one that goes out says nothing.
                Err(Error::NotFound) => is_gone |= self.readable(member).is_some(),
                Err(error) if verdict(&error) == Verdict::Broken => {}
                // It is not read from yet.
                Err(_) if self.readable(member).is_none() => {}
                Err(error) => failure = Some(error),
            }
        }
        let is_readable =
            |(role, _): &&(usize, UploadId)| self.readable(self.member_of(place, *role)).is_some();
        let too_few = at.iter().filter(is_readable).count() < form.needed();
        let lost = || match is_gone {
            true => Error::NotFound,
            false => Error::Unreadable(self.too_few(place, form.needed())),
        };
        let Some(error) = failure.or_else(|| too_few.then(lost)) else {
            return Ok(self.pinned(place, (item, form), at));
        };
        let each = at.iter().map(|(role, of)| (*role, unpin_op(&place.key, *of)));
        let _ = self.give_back(place, each.collect(), manner).await;
        Err(error)
    }

    /// A value that is pinned in some roles, under one name.
    fn pinned(&self, place: &Place, (item, form): (Item, Form), at: Vec<(usize, UploadId)>) -> Item {
        let upload = Upload {
            place: place.clone(),
            form,
            at,
            given: Vec::new(),
            version: Version::ZERO,
            length: item.length,
            parts: 0,
            pins: 1,
            open: false,
        };
        Item { upload: Some(self.uploads.insert(upload)), ..item }
    }

    /// Pins an upload that was begun.
    pub(crate) async fn pin_begun(
        self: &Rc<Self>,
        id: UploadId,
        key: &[u8],
        manner: &Manner,
    ) -> Result<Output> {
        let upload = self.uploads.get(id)?;
        let place = self.place(upload.place.container, key)?;
        let op = |_, of| Op::Pin { upload: of, key: key.to_vec() };
        let sent = self.send_to_upload(&place, &upload, manner, op).await?;
        if let Some(error) = sent.refused {
            return Err(error);
        }
        self.uploads.change(id, |upload| upload.pins += 1)?;
        Ok(Output::Done)
    }

    pub(crate) async fn unpin(self: &Rc<Self>, id: UploadId, key: &[u8], manner: &Manner) -> Result<Output> {
        // Whoever gives it to a member has done so, or finds that it is gone.
        let upload = self.uploads.change(id, |upload| {
            upload.pins = upload.pins.saturating_sub(1);
            upload.clone()
        })?;
        self.uploads.forget_unused(id);
        let place = self.place(upload.place.container, key)?;
        let mut each: Vec<_> = upload.at.iter().map(|(role, of)| (*role, unpin_op(key, *of))).collect();
        if upload.pins == 0 {
            each.extend(upload.given.iter().map(|(role, of)| (*role, abort_op(key, *of))));
        }
        let sent = self.give_back(&place, each, manner).await?;
        sent.refused.map_or(Ok(Output::Done), Err)
    }

    /// Gives a member that is about to come in what was pinned before it got the key: it may have got a newer
    /// version. What is pinned from here on is pinned there, too.
    pub(crate) async fn give_pins(self: &Rc<Self>, member: usize, number: u64, pace: &Pace) {
        for (id, role) in self.uploads.pinned_without(member, self.count()) {
            let turn = pace.turn(self.reactor.now_ns());
            self.rest_until(turn.at_ns).await;
            match self.give_pin(id, (member, role), number).await {
                Ok(bytes) => pace.end(turn, bytes),
                Err(_) if !self.goes_on(member, number) => return,
                // Its reader has it from others, as long as they are in.
                Err(error) if self.uploads.get(id).is_ok() => {
                    let device = self.name(member);
                    tracing::warn!(partition = self.partition, device, %error, "a pinned value is not given");
                }
                Err(_) => {}
            }
        }
    }

    async fn give_pin(
        self: &Rc<Self>,
        id: UploadId,
        (member, role): (usize, usize),
        number: u64,
    ) -> Result<u64> {
        let upload = self.uploads.get(id)?;
        let (place, form) = (&upload.place, upload.form);
        let sources = upload.names().filter_map(|(role, upload)| {
            Some(Source { role, device: self.readable(self.member_of(place, role))?, upload })
        });
        let sources: Vec<Source> = sources.take(form.needed()).collect();
        if sources.len() < form.needed() {
            return Err(out());
        }
        let length = self.stored_bytes(form, upload.length);
        let given = self.give_pinned(place, form, (&sources, length), role).await?;
        let is_read = self.goes_on(member, number)
            && self.uploads.change(id, |upload| upload.given.push((role, given))).is_ok();
        if !is_read {
            self.give_up(place, role, given).await;
        }
        Ok(upload.length)
    }
}
