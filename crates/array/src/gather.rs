//! Gathering: as many pieces of a value as it takes, and the value from them.
//!
//! Role: reads the first pieces of a key, and others in the place of those that fail or do not come; puts
//! shards together, computing those that are lost. Place on the path: every read, and every rebuilding of
//! a piece.
//!
//! Invariants:
//! * pieces of different versions are never put together;
//! * a piece without a right header is none;
//! * a key that any member that should hold a piece of it knows to be absent is absent: readers of keys that
//!   may be half written hold them.

use crate::answers::Answers;
use crate::array::{Array, Place};
use crate::header::{HEADER_BYTES, Header};
use crate::manner::Manner;
use crate::member::{Verdict, verdict};
use crate::placement::{self, ROLES_MAX};
use crate::read::{Range, WRONG_OUTPUT, shifted};
use crate::set::{Stub, VERSION_BYTES, take_version};
use plimsoll_kv::{Device, Error, Form, Item, Output, Result};
use std::rc::Rc;

/// A piece of a value as a member gave it.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    pub(crate) role: usize,
    /// With the lengths of the user's value, and the bytes of the piece.
    pub(crate) item: Item,
    /// Of a read from the value's start.
    pub(crate) header: Option<Header>,
    /// What stands there instead of a value that is packed.
    pub(crate) stub: Option<Stub>,
    /// The value stands there: alone, or behind a stub. Then the version is what the member told before.
    pub(crate) has_value: bool,
}

impl Piece {
    fn is_expired(&self, now_ms: u64) -> bool {
        self.item.expiry_ms.is_some_and(|at_ms| at_ms <= now_ms)
    }

    /// The value, whatever stands before it.
    fn whole(self) -> Piece {
        let header = self.header.map(|header| Header { is_stub: false, ..header });
        Piece { header, stub: None, ..self }
    }
}

impl Array {
    /// Reads so many pieces of a key, the first of `roles` that give them, in the order of roles. Where it is
    /// not known yet what the value was made into, roles that some forms lack do not say that it is absent.
    pub(crate) async fn gather(
        self: &Rc<Self>,
        place: &Place,
        range: Range,
        (needed, roles, form): (usize, &[usize], Option<Form>),
        manner: &Manner,
    ) -> Result<Vec<Piece>> {
        let sure_roles = form.map_or_else(|| self.forms.sure_roles(), Form::roles);
        // As of when the read begins, whenever the pieces come.
        let since_ms = self.now_ms();
        let roles = roles.iter().copied();
        let readable = roles.filter_map(|role| Some((role, self.readable(self.member_of(place, role))?)));
        let mut next = readable.collect::<Vec<_>>().into_iter();
        let (mut asked, mut pieces, mut failures) = (Answers::new(), Vec::new(), Vec::new());
        let (mut extra, mut absent, mut stub, mut lost) = (0, false, None, None);
        let unpacks = range != Some((0, 0)) && form.is_none_or(Form::is_packed);
        loop {
            while !absent
                && asked.len() + pieces.len() < needed + extra
                && let Some((role, device)) = next.next()
            {
                asked.ask(async move { (role, self.read_piece(&device, place, role, range, manner).await) });
            }
            let all_asked = next.len() == 0 && !absent && stub.is_none();
            let answer = asked.next_unless_slow(&self.reactor, all_asked).await;
            if answer.is_none() && next.len() > 0 && !absent {
                extra += 1;
                continue;
            }
            let mut unpacked = None;
            match answer.flatten() {
                None if absent => return Err(Error::NotFound),
                None if stub.is_some() => unpacked = stub.take(),
                None => return Err(lost.unwrap_or_else(|| self.unreadable(place, &failures))),
                Some((role, Err(error))) if verdict(&error) == Verdict::Broken => {
                    failures.push((self.member_of(place, role), error));
                }
                // The others that were asked forget what has expired, too.
                Some((role, Err(Error::NotFound))) => absent |= role < sure_roles,
                Some((_, Err(error))) => return Err(error),
                // What a transaction has seen stays until it has ended: the members know.
                Some((_, Ok(piece))) if !manner.is_within() && piece.is_expired(since_ms) => absent = true,
                // Who has the value whole may still answer; else its set gives it.
                Some((_, Ok(piece))) if unpacks && !piece.has_value => match asked.is_empty() {
                    false => stub = Some(piece),
                    true => unpacked = Some(piece),
                },
                Some((_, Ok(piece))) if unpacks => pieces.push(piece.whole()),
                Some((_, Ok(piece))) => pieces.push(piece),
            }
            if let Some(stub) = unpacked {
                match asked.beside(self.recovered(place, stub, manner)).await {
                    Ok(mut piece) => {
                        cut(&mut piece.item.bytes, range);
                        pieces.push(piece);
                    }
                    // Who has the value whole may have been slow, and no more (seed 27).
                    Err(error) if verdict(&error) == Verdict::Broken => lost = Some(error),
                    Err(error) => return Err(error),
                }
            }
            if pieces.len() == needed && !absent {
                break;
            }
        }
        if !failures.is_empty() {
            self.mend_later(place, &failures);
        }
        pieces.sort_by_key(|piece| piece.role);
        Ok(pieces)
    }

    /// Reads the piece in a role.
    pub(crate) async fn read_piece(
        self: &Rc<Self>,
        device: &Rc<dyn Device>,
        place: &Place,
        role: usize,
        range: Range,
        manner: &Manner,
    ) -> Result<Piece> {
        let container = placement::container(place.container, role);
        let asked = self.asked(role, range);
        let mut item = loop {
            let request = manner.retrieve(container, &place.key, shifted(asked), false);
            let Output::Found(mut item) = device.clone().execute(request).await?.output else {
                return Err(WRONG_OUTPUT);
            };
            if item.upload.is_none() {
                break item;
            }
            if let Some(Form::Copies(_)) = self.forms.sole() {
                item.length = self.user_bytes(item.length);
                return Ok(Piece { role, item, header: None, stub: None, has_value: true });
            }
            // A value of one record may have taken its place by now.
            if let Some(header) = self.header_in_parts(device, place, role, manner).await? {
                item.length = header.value_bytes;
                return Ok(Piece { role, item, header: Some(header), stub: None, has_value: true });
            }
        };
        if asked.is_some_and(|(first, _)| first > 0) {
            item.length = item.length.saturating_sub(HEADER_BYTES as u64);
            return Ok(Piece { role, item, header: None, stub: None, has_value: true });
        }
        let header = take_header(&mut item, role)?;
        let mut piece_bytes = item.length.saturating_sub(HEADER_BYTES as u64);
        item.length = header.value_bytes;
        let mut stub = None;
        if header.is_stub {
            let parities = header.form.roles() - 1;
            stub = Stub::take(&mut item.bytes, parities).filter(|stub| self.are_members(&stub.holders));
            piece_bytes = piece_bytes.saturating_sub(Stub::bytes(parities) as u64);
        }
        let has_value = !header.is_stub || piece_bytes > 0;
        if header.is_stub && has_value {
            piece_bytes = piece_bytes.saturating_sub(VERSION_BYTES as u64);
            item.version = take_version(&mut item.bytes).ok_or_else(another_value)?;
        }
        let is_whole = match header.is_stub {
            true => stub.is_some() && (!has_value || piece_bytes == header.value_bytes),
            false => header.form.piece_bytes(header.value_bytes) == piece_bytes,
        };
        if !self.forms.has(header.form) || !is_whole {
            return Err(another_value());
        }
        if asked != range {
            cut(&mut item.bytes, range);
        }
        Ok(Piece { role, item, header: Some(header), stub, has_value })
    }

    /// What is read of the piece in a role to get a range of it: a stub before it, if there is one.
    fn asked(&self, role: usize, range: Range) -> Range {
        if role == 0 || !self.forms.has_packed() {
            return range;
        }
        let stub_bytes = (Stub::bytes(ROLES_MAX as usize) + VERSION_BYTES) as u64;
        range.map(|(first, length)| (0, first.saturating_add(length).saturating_add(stub_bytes)))
    }

    /// The value that shards give, or a range of it.
    pub(crate) fn together(&self, form: Form, pieces: Vec<Piece>, range: Range) -> Result<Item> {
        let first = self.one_version(&pieces)?;
        let mut item = pieces[0].item.clone();
        item.stored_bytes *= form.roles() as u64;
        if item.upload.is_some() {
            return Ok(item);
        }
        let mut shards: Vec<Option<Vec<u8>>> = vec![None; form.roles()];
        pieces.into_iter().for_each(|piece| shards[piece.role] = Some(piece.item.bytes));
        item.bytes = self.forms.data_of(form, shards)?;
        item.bytes.truncate(first.value_bytes as usize);
        cut(&mut item.bytes, range);
        Ok(item)
    }

    /// The header of pieces of one version; an error if they are of several.
    pub(crate) fn one_version(&self, pieces: &[Piece]) -> Result<Header> {
        let mut headers = pieces.iter().filter_map(|piece| piece.header);
        let first = headers.next().ok_or(WRONG_OUTPUT)?;
        let is_other = |other: Header| (Header { role: first.role, ..other }) != first;
        if headers.any(is_other) {
            return Err(other_versions());
        }
        Ok(first)
    }
}

fn another_value() -> Error {
    Error::Unreadable("a header of another value".to_owned())
}

/// What came was not of one version.
pub(crate) fn other_versions() -> Error {
    Error::Unreadable("shards of different versions".to_owned())
}

/// Leaves a range of a value.
pub(crate) fn cut(value: &mut Vec<u8>, range: Range) {
    let Some((first, length)) = range else { return };
    let end = first.saturating_add(length).min(value.len() as u64) as usize;
    value.truncate(end);
    value.drain(..end.min(first as usize));
}

/// Takes the header off a piece that was read from its start.
fn take_header(item: &mut Item, role: usize) -> Result<Header> {
    let header = Header::decode(&item.bytes).map_err(|what| Error::Unreadable(what.to_owned()))?;
    if usize::from(header.role) != role {
        return Err(Error::Unreadable("a header of another piece".to_owned()));
    }
    item.bytes.drain(..HEADER_BYTES);
    Ok(header)
}
