//! Parts: how a value in parts lies on the members, and reading one of its parts.
//!
//! Role: arithmetic between the array's parts and the members'. Of copies a part of one is a part of the
//! other. A part of shards is cut into pieces; pieces of as many parts as there are shards of data fill one
//! part of each member, so that its parts are as long as it wants them.
//!
//! ```text
//! a member's part:  header | piece of part n | piece of part n + 1 | ... | zeros
//! ```
//!
//! Invariants: every piece of a part has one length; the last part may be shorter.

use crate::answers::Answers;
use crate::array::{Array, Place};
use crate::give::Source;
use crate::header::{HEADER_BYTES, Header};
use crate::manner::Manner;
use crate::member::{Verdict, verdict};
use crate::read::{Range, WRONG_OUTPUT, shifted};
use crate::upload::Upload;
use bytes::Bytes;
use plimsoll_kv::{Device, Error, Form, Item, Op, Output, Result, UploadId};
use std::collections::btree_map::Entry;
use std::rc::Rc;

impl Array {
    /// Bytes of the user's value, of so many that stand in parts of copies on a member.
    pub(crate) fn user_bytes(&self, stored_bytes: u64) -> u64 {
        let full = stored_bytes.div_ceil(self.member_part_bytes() as u64).saturating_sub(1);
        let last = stored_bytes.saturating_sub(full * self.member_part_bytes() as u64);
        full * self.part_bytes() as u64 + last.saturating_sub(HEADER_BYTES as u64)
    }

    /// Bytes that a user's value takes in parts on a member.
    pub(crate) fn stored_bytes(&self, form: Form, user_bytes: u64) -> u64 {
        let parts = self.parts_of(user_bytes);
        if parts == 0 {
            return 0;
        }
        let together = form.needed() as u64;
        let (full, pieces) = ((parts - 1) / together, (parts - 1) % together);
        let last = form.piece_bytes(self.part_length(user_bytes, parts - 1));
        full * self.member_part_bytes() as u64
            + HEADER_BYTES as u64
            + pieces * self.full_piece_bytes(form)
            + last
    }

    pub(crate) fn parts_of(&self, user_bytes: u64) -> u64 {
        user_bytes.div_ceil(self.part_bytes() as u64)
    }

    /// Bytes of a part of the array.
    fn part_length(&self, user_bytes: u64, part: u64) -> u64 {
        let longest = self.part_bytes() as u64;
        user_bytes.saturating_sub(part * longest).min(longest)
    }

    pub(crate) fn full_piece_bytes(&self, form: Form) -> u64 {
        form.piece_bytes(self.part_bytes() as u64)
    }

    /// Adds a part to what does not fill a part of a member yet; if it does, what is to be written, by role
    /// and behind the room for its header.
    pub(crate) fn fill(&self, id: UploadId, upload: &Upload, bytes: Vec<u8>) -> Option<Vec<Vec<u8>>> {
        let form = upload.form;
        let pieces = self.forms.pieces(form, &bytes.into());
        let mut halves = self.uploads.halves.borrow_mut();
        match halves.entry(id.0) {
            Entry::Vacant(none) => {
                let behind_header = |piece: Bytes| [&[0; HEADER_BYTES][..], &piece].concat();
                none.insert(pieces.into_iter().map(behind_header).collect());
            }
            Entry::Occupied(mut half) => {
                for (half, piece) in half.get_mut().iter_mut().zip(pieces) {
                    half.extend_from_slice(&piece);
                }
            }
        }
        let written = u64::from(upload.parts) + 1;
        let is_last = written >= self.parts_of(upload.length);
        if !is_last && !written.is_multiple_of(form.needed() as u64) {
            return None;
        }
        let mut pieces = halves.remove(&id.0)?;
        if !is_last {
            pieces.iter_mut().for_each(|piece| piece.resize(self.member_part_bytes(), 0));
        }
        Some(pieces)
    }

    /// Reads a part, or a range of it, from as many members as it takes.
    pub(crate) async fn retrieve_part(
        self: &Rc<Self>,
        id: UploadId,
        key: &[u8],
        part: u32,
        range: Range,
        manner: &Manner,
    ) -> Result<Output> {
        let upload = self.uploads.get(id)?;
        let place = self.place(upload.place.container, key)?;
        if upload.form.is_copies() {
            return self.part_of_copies(&place, (id, &upload), part, range, manner).await.map(Output::Found);
        }
        let bytes = match self.part_in_memory(id, &upload, part) {
            Some(bytes) => bytes,
            None => self.part_of_shards(&place, (id, &upload), part, manner).await?,
        };
        let length = bytes.len() as u64;
        let (first, wanted) = range.unwrap_or((0, u64::MAX));
        let end = first.saturating_add(wanted).min(length);
        let bytes = bytes[first.min(end) as usize..end as usize].to_vec();
        Ok(Output::Found(Item { length, bytes, ..Item::default() }))
    }

    async fn part_of_copies(
        self: &Rc<Self>,
        place: &Place,
        (id, upload): (UploadId, &Upload),
        part: u32,
        range: Range,
        manner: &Manner,
    ) -> Result<Item> {
        let (mut failure, mut tried, mut asked) = (out(), Vec::new(), Answers::new());
        loop {
            let next = self.next_source(place, id, &mut tried);
            let all_asked = next.is_none();
            if let Some(source) = next {
                asked.ask(async move {
                    let read = read_part(&source, place, part, shifted(range), manner).await;
                    (self.member_of(place, source.role), read)
                });
            }
            // Who is slow may still answer, and another is asked, too.
            let Some(answer) = asked.next_unless_slow(&self.reactor, all_asked).await else { continue };
            let Some((member, read)) = answer else { return Err(failure) };
            match read {
                Ok(mut item) => {
                    // Behind a part that is not the last one stand zeros.
                    item.length = self.part_length(upload.length, part.into());
                    if range.is_none_or(|(first, _)| first == 0) {
                        if Header::decode(&item.bytes).is_err() {
                            failure = Error::Unreadable("a part without a right header".to_owned());
                            continue;
                        }
                        item.bytes.drain(..HEADER_BYTES);
                    }
                    let first = range.map_or(0, |(first, _)| first);
                    item.bytes.truncate(item.length.saturating_sub(first) as usize);
                    return Ok(item);
                }
                Err(error) if verdict(&error) == Verdict::Broken => {
                    self.note(member, |status| status.failed_requests += 1);
                    failure = error;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Where an upload can be read next, and was not tried: as of now, since members come in while others are
    /// read.
    fn next_source(&self, place: &Place, id: UploadId, tried: &mut Vec<usize>) -> Option<Source> {
        let next = |upload: &mut Upload| {
            upload.names().filter(|(role, _)| !tried.contains(role)).find_map(|(role, upload)| {
                Some(Source { role, device: self.readable(self.member_of(place, role))?, upload })
            })
        };
        let source = self.uploads.change(id, next).ok()??;
        tried.push(source.role);
        Some(source)
    }

    /// A part of an open upload that members have not been given yet.
    fn part_in_memory(&self, id: UploadId, upload: &Upload, part: u32) -> Option<Vec<u8>> {
        let halves = self.uploads.halves.borrow();
        let half = halves.get(&id.0)?;
        let together = upload.form.needed() as u32;
        if part >= upload.parts || part / together != (upload.parts - 1) / together {
            return None;
        }
        let (first, bytes) = self.piece_range(upload, part);
        let first = HEADER_BYTES + first;
        let pieces = half.iter().take(upload.form.needed()).map(|half| half.get(first..first + bytes));
        let mut whole = pieces.collect::<Option<Vec<&[u8]>>>()?.concat();
        whole.truncate(self.part_length(upload.length, part.into()) as usize);
        Some(whole)
    }

    /// Where a piece of a part begins, behind the header, and its bytes.
    fn piece_range(&self, upload: &Upload, part: u32) -> (usize, usize) {
        let before = u64::from(part) % upload.form.needed() as u64;
        let bytes = upload.form.piece_bytes(self.part_length(upload.length, part.into()));
        ((before * self.full_piece_bytes(upload.form)) as usize, bytes as usize)
    }

    async fn part_of_shards(
        self: &Rc<Self>,
        place: &Place,
        (id, upload): (UploadId, &Upload),
        part: u32,
        manner: &Manner,
    ) -> Result<Vec<u8>> {
        let data = upload.form.needed();
        let (first, bytes) = self.piece_range(upload, part);
        let range = Some(((HEADER_BYTES + first) as u64, bytes as u64));
        let of_member = part / data as u32;
        let mut shards: Vec<Option<Vec<u8>>> = vec![None; upload.form.roles()];
        let (mut failure, mut tried, mut asked) = (out(), Vec::new(), Answers::new());
        let (mut given, mut extra) = (0, 0);
        while given < data {
            let mut all_asked = false;
            while given + asked.len() < data + extra && !all_asked {
                let Some(source) = self.next_source(place, id, &mut tried) else {
                    all_asked = true;
                    break;
                };
                asked.ask(async move {
                    let item = read_part(&source, place, of_member, range, manner).await?;
                    if item.bytes.len() != bytes {
                        return Err(Error::Unreadable("a piece of another length".to_owned()));
                    }
                    Ok((source.role, item.bytes))
                });
            }
            // Who is slow may still answer, and another is asked, too.
            let Some(answer) = asked.next_unless_slow(&self.reactor, all_asked).await else {
                extra += 1;
                continue;
            };
            match answer {
                None => return Err(failure),
                Some(Ok((role, bytes))) => {
                    shards[role] = Some(bytes);
                    given += 1;
                }
                Some(Err(error)) if verdict(&error) == Verdict::Broken => failure = error,
                Some(Err(error)) => return Err(error),
            }
        }
        let mut whole = self.forms.data_of(upload.form, shards)?;
        whole.truncate(self.part_length(upload.length, part.into()) as usize);
        Ok(whole)
    }
}

/// What a reader is told if too few of those that hold the value answer.
pub(crate) fn out() -> Error {
    Error::Unreadable("too many of the devices that hold the value are out".to_owned())
}

async fn read_part(source: &Source, place: &Place, part: u32, range: Range, manner: &Manner) -> Result<Item> {
    let op = Op::RetrievePart { upload: source.upload, key: place.key.clone(), part, range };
    match source.device.clone().execute(manner.request(op)).await?.output {
        Output::Found(item) => Ok(item),
        _ => Err(WRONG_OUTPUT),
    }
}
