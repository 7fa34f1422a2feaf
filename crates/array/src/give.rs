//! Giving: a member gets the piece of a key that it should hold, made from those of others.
//!
//! Role: copies, or computes, one piece. Place on the path: what reconciling, rebuilding and scrubbing do
//! when a member lacks something.
//!
//! Invariants:
//! * the key is held by the caller;
//! * what is given is of one version, with the header of the role that it is given to;
//! * a value in parts is given part by part: no more of it is in memory than one part of each piece.

use crate::array::{Array, Place};
use crate::gather::Piece;
use crate::header::{HEADER_BYTES, Header};
use crate::manner::Manner;
use crate::member::{Verdict, verdict};
use crate::placement;
use crate::read::WRONG_OUTPUT;
use crate::upload::unpin_op;
use futures_util::future::try_join_all;
use plimsoll_kv::{
    Condition, Device, Error, Expiry, Form, Item, Op, Output, Payload, Result, UploadId, Value,
};
use plimsoll_reactor::Work;
use std::rc::Rc;

/// A piece in parts that is being read.
pub(crate) struct Source {
    pub(crate) role: usize,
    pub(crate) device: Rc<dyn Device>,
    pub(crate) upload: UploadId,
}

/// A piece in parts that is pinned at its member until this goes: whoever reads it may be given up half-way.
struct Pin {
    array: Rc<Array>,
    device: Rc<dyn Device>,
    place: Place,
    upload: UploadId,
}

impl Drop for Pin {
    fn drop(&mut self) {
        let (array, device, place, upload) =
            (self.array.clone(), self.device.clone(), self.place.clone(), self.upload);
        self.array.spawn(Work::Kv, async move { array.unpin_piece(&device, &place, upload).await });
    }
}

/// Why a value in parts is not given, and by whom if one that it was read from could not give it.
pub(crate) struct NotGiven {
    error: Error,
    source: Option<usize>,
}

impl From<Error> for NotGiven {
    fn from(error: Error) -> NotGiven {
        NotGiven { error, source: None }
    }
}

impl From<NotGiven> for Error {
    fn from(NotGiven { error, .. }: NotGiven) -> Error {
        error
    }
}

fn expiry_of(item: &Item) -> Expiry {
    item.expiry_ms.map_or(Expiry::Never, Expiry::At)
}

/// Bytes of a value that are given: of a stub, its own.
fn given_bytes(value: &Value, item: &Item) -> u64 {
    match value {
        Value::Bytes(bytes) if Header::decode(bytes.start()).is_ok_and(|header| header.is_stub) => {
            bytes.len() as u64
        }
        _ => item.length,
    }
}

impl Array {
    /// Gives the member in role `to` its piece of a held key, from those of some of `roles`, whatever it has
    /// there; bytes of the value.
    pub(crate) async fn give(
        self: &Rc<Self>,
        place: &Place,
        form: Form,
        to: usize,
        roles: &[usize],
    ) -> Result<u64> {
        let (value, item) = self.piece_for(place, form, to, roles).await?;
        let bytes = given_bytes(&value, &item);
        let store = self.store_op(place, to, value, expiry_of(&item));
        self.sent_to_keep(self.member_of(place, to), store).await?;
        self.given(place, to, (&item, bytes))
    }

    /// The same, to a member that lacks the key, as far as is known: an error if it exists there.
    pub(crate) async fn give_new(
        self: &Rc<Self>,
        place: &Place,
        form: Form,
        to: usize,
        roles: &[usize],
    ) -> Result<u64> {
        let (value, item) = self.piece_for(place, form, to, roles).await?;
        let Some(device) = self.writable(self.member_of(place, to)) else {
            return self.give(place, form, to, roles).await;
        };
        let bytes = given_bytes(&value, &item);
        let mut store = self.store_op(place, to, value, expiry_of(&item));
        if let Op::Store { value: Value::Bytes(_), condition, .. } = &mut store {
            *condition = Condition::MustNotExist;
        }
        match self.in_time(device, Manner::background().request(store).keeping()).await {
            Ok(_) => self.given(place, to, (&item, bytes)),
            Err(Error::Exists) => Err(Error::Exists),
            // What becomes of a member that takes no writes is decided where they are sent.
            Err(_) => self.give(place, form, to, roles).await,
        }
    }

    /// Notes what was given; told is the length of the value, whatever stands for it: a request at least.
    fn given(&self, place: &Place, to: usize, (item, bytes): (&Item, u64)) -> Result<u64> {
        self.note(self.member_of(place, to), |status| status.copied_bytes += bytes);
        Ok(item.length)
    }

    /// The piece that belongs in role `to`, made from those of some of `roles`, and what they say of it.
    async fn piece_for(
        self: &Rc<Self>,
        place: &Place,
        form: Form,
        to: usize,
        roles: &[usize],
    ) -> Result<(Value, Item)> {
        let manner = Manner::background();
        if form.is_packed()
            && to > 0
            && let Some((stub, item)) = self.stub_for(place, to, roles).await?
        {
            return Ok((stub.into(), item));
        }
        let mut roles = roles.to_vec();
        loop {
            let mut pieces = self.gather(place, None, (form.needed(), &roles, Some(form)), &manner).await?;
            let item = pieces[0].item.clone();
            if item.upload.is_some() {
                let of =
                    |piece: &Piece| Some((piece.role, self.readable(self.member_of(place, piece.role))?));
                // One may have gone out since it answered: then others are asked.
                let Some(from) = pieces.iter().map(of).collect() else { continue };
                match self.give_parts(place, form, from, to).await {
                    Ok(upload) => return Ok((Value::Upload(upload), item)),
                    // It answered a look, and cannot give a part: others are asked in its place (seed 4719).
                    Err(NotGiven { error, source: Some(role) })
                        if verdict(&error) == Verdict::Broken && roles.len() > form.needed() =>
                    {
                        self.note(self.member_of(place, role), |status| status.failed_requests += 1);
                        roles.retain(|other| *other != role);
                        continue;
                    }
                    Err(not_given) => return Err(not_given.into()),
                }
            }
            let header = self.one_version(&pieces)?;
            let bytes = match form {
                Form::Copies(_) | Form::Packed { .. } => pieces.remove(0).item.bytes,
                Form::Shards { .. } => {
                    let pieces = pieces.into_iter().map(|piece| (piece.role, piece.item.bytes));
                    self.shard(form, pieces.collect(), to)?
                }
            };
            return Ok((Header { role: to as u8, ..header }.before(bytes).into(), item));
        }
    }

    /// The stub that belongs in role `to`, if one of these roles has one.
    async fn stub_for(
        self: &Rc<Self>,
        place: &Place,
        to: usize,
        roles: &[usize],
    ) -> Result<Option<(Payload, Item)>> {
        for role in roles.iter().filter(|role| **role > 0) {
            let Some(device) = self.readable(self.member_of(place, *role)) else { continue };
            match self.read_piece(&device, place, *role, Some((0, 0)), &Manner::background()).await {
                Ok(Piece { item, header: Some(header), stub: Some(stub), .. }) => {
                    let stub = Header { role: to as u8, ..header }.before(stub.encode());
                    return Ok(Some((stub, item)));
                }
                Ok(_) | Err(Error::NotFound) => {}
                Err(error) if verdict(&error) == Verdict::Broken => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// The shard in a role, from as many others as it takes.
    fn shard(&self, form: Form, pieces: Vec<(usize, Vec<u8>)>, wanted: usize) -> Result<Vec<u8>> {
        let mut shards = vec![None; form.roles()];
        pieces.into_iter().for_each(|(role, bytes)| shards[role] = Some(bytes));
        if let Some(there) = shards[wanted].take() {
            return Ok(there);
        }
        self.forms.recovered(form, &shards, &[wanted])?.pop().ok_or(WRONG_OUTPUT)
    }

    /// Pins the piece in a role, which stands in parts.
    pub(crate) async fn pin_piece(
        &self,
        device: &Rc<dyn Device>,
        place: &Place,
        role: usize,
        manner: &Manner,
    ) -> Result<(Item, UploadId)> {
        let container = placement::container(place.container, role);
        let request = manner.retrieve(container, &place.key, Some((0, 0)), true);
        let Output::Found(item) = device.clone().execute(request).await?.output else {
            return Err(WRONG_OUTPUT);
        };
        let upload = item.upload.ok_or_else(|| Error::Unreadable("a piece of another length".to_owned()))?;
        Ok((item, upload))
    }

    pub(crate) async fn unpin_piece(&self, device: &Rc<dyn Device>, place: &Place, upload: UploadId) {
        let op = unpin_op(&place.key, upload);
        // A pin that the member has forgotten holds nothing.
        let _ = device.clone().execute(Manner::background().request(op)).await;
    }

    /// The header of a value in parts, which stands before each of them; nothing if it is in parts no more.
    pub(crate) async fn header_in_parts(
        self: &Rc<Self>,
        device: &Rc<dyn Device>,
        place: &Place,
        role: usize,
        manner: &Manner,
    ) -> Result<Option<Header>> {
        let container = placement::container(place.container, role);
        let request = manner.retrieve(container, &place.key, Some((0, 0)), true);
        let Output::Found(item) = device.clone().execute(request).await?.output else {
            return Err(WRONG_OUTPUT);
        };
        let Some(upload) = item.upload else { return Ok(None) };
        let _pin = Pin { array: self.clone(), device: device.clone(), place: place.clone(), upload };
        let (key, range) = (place.key.clone(), Some((0, HEADER_BYTES as u64)));
        let op = Op::RetrievePart { upload, key, part: 0, range };
        let Output::Found(item) = device.clone().execute(manner.request(op)).await?.output else {
            return Err(WRONG_OUTPUT);
        };
        Header::decode(&item.bytes).map(Some).map_err(|what| Error::Unreadable(what.to_owned()))
    }

    /// Gives a value in parts, from the members in these roles; the upload at the target that holds it.
    async fn give_parts(
        self: &Rc<Self>,
        place: &Place,
        form: Form,
        from: Vec<(usize, Rc<dyn Device>)>,
        to: usize,
    ) -> std::result::Result<UploadId, NotGiven> {
        let (mut sources, mut length) = (Vec::new(), 0);
        let mut pinned = Ok(());
        for (role, device) in from {
            match self.pin_piece(&device, place, role, &Manner::background()).await {
                Ok((item, upload)) => {
                    length = item.length;
                    sources.push(Source { role, device, upload });
                }
                Err(error) => pinned = Err(NotGiven { error, source: Some(role) }),
            }
        }
        let given = match pinned {
            Ok(()) => self.give_pinned(place, form, (&sources, length), to).await,
            Err(not_given) => Err(not_given),
        };
        for source in sources {
            self.unpin_piece(&source.device, place, source.upload).await;
        }
        given
    }

    /// Gives the member in role `to` its piece of what is pinned at others, of so many bytes; the upload
    /// that holds it.
    pub(crate) async fn give_pinned(
        self: &Rc<Self>,
        place: &Place,
        form: Form,
        (sources, length): (&[Source], u64),
        to: usize,
    ) -> std::result::Result<UploadId, NotGiven> {
        assert!(!sources.is_empty(), "a value is made from something");
        let (target, key) = (self.member_of(place, to), place.key.clone());
        let container = placement::container(place.container, to);
        let begin = Op::UploadBegin { container, key: key.clone(), length, shared_bytes: 0, form: None };
        let Output::Upload(upload) = self.sent_to_keep(target, begin).await? else {
            return Err(WRONG_OUTPUT.into());
        };
        for part in 0..length.div_ceil(self.member_part_bytes() as u64) as u32 {
            let given = match self.part_of(place, form, (sources, part), to).await {
                Ok(bytes) => {
                    let op = Op::UploadPart { upload, key: key.clone(), bytes };
                    self.sent_to_keep(target, op).await.map(drop).map_err(NotGiven::from)
                }
                Err(not_given) => Err(not_given),
            };
            if let Err(not_given) = given {
                self.give_up(place, to, upload).await;
                return Err(not_given);
            }
        }
        Ok(upload)
    }

    /// A part of the piece in role `to`, header and all.
    async fn part_of(
        &self,
        place: &Place,
        form: Form,
        (sources, part): (&[Source], u32),
        to: usize,
    ) -> std::result::Result<Vec<u8>, NotGiven> {
        let each = sources.iter().map(async |source| {
            let by_source = |error| NotGiven { error, source: Some(source.role) };
            self.read_source(place, source, part).await.map_err(by_source)
        });
        let (headers, pieces): (Vec<Header>, Vec<(usize, Vec<u8>)>) =
            try_join_all(each).await?.into_iter().unzip();
        let first = *headers.first().ok_or(WRONG_OUTPUT)?;
        if first.form != form || headers.iter().any(|other| other.version != first.version) {
            return Err(Error::Unreadable("parts of different versions".to_owned()).into());
        }
        let bytes = match form {
            Form::Copies(_) | Form::Packed { .. } => {
                pieces.into_iter().next().map(|(_, bytes)| bytes).ok_or(WRONG_OUTPUT)?
            }
            Form::Shards { .. } => self.shard(form, pieces, to)?,
        };
        Ok(Header { role: to as u8, ..first }.before(bytes).to_vec())
    }

    /// A part of what a member has, behind its header.
    async fn read_source(
        &self,
        place: &Place,
        source: &Source,
        part: u32,
    ) -> Result<(Header, (usize, Vec<u8>))> {
        let (upload, key) = (source.upload, place.key.clone());
        let op = Op::RetrievePart { upload, key, part, range: None };
        let read = source.device.clone().execute(Manner::background().request(op)).await?;
        let Output::Found(Item { mut bytes, .. }) = read.output else { return Err(WRONG_OUTPUT) };
        let header = Header::decode(&bytes).map_err(|what| Error::Unreadable(what.to_owned()))?;
        bytes.drain(..HEADER_BYTES);
        Ok((header, (source.role, bytes)))
    }
}
