//! Reading: what is given beside writes, and what a reader is told when too little is left.
//!
//! Place on the path: every retrieve. A value of one record is gathered (`gather`): from its first copy, or
//! from its shards; if something cannot be read, or does not come, from the next, and what was damaged is
//! written again in the background.
//!
//! Invariants:
//! * what is given was on every member that is in, or will be: a read waits for the writes that came before
//!   it, and those that come later wait for the read;
//! * an expired key is absent by the array's own clock, which no member's runs behind.

use crate::array::{Array, Place};
use crate::gather::{cut, other_versions};
use crate::header::{HEADER_BYTES, Header};
use crate::manner::Manner;
use crate::roster::MemberState;
use futures_util::future::{Either, select};
use plimsoll_kv::transaction::Action;
use plimsoll_kv::{Class, Completion, Device, Error, Form, Item, Op, Output, Request, Result};
use plimsoll_reactor::Work;
use std::pin::pin;
use std::rc::Rc;

/// A member that has not answered a write for so long is taken out, if others have what it holds.
pub(crate) const STALL_NS: u64 = 10_000_000_000;
/// So often that is forgiven if no other has answered since, either: all stand still, with what they share.
const SILENCES_MAX: u32 = 5;

/// Which bytes of a value are asked for.
pub(crate) type Range = Option<(u64, u64)>;

impl Array {
    pub(crate) async fn retrieve(
        self: &Rc<Self>,
        place: &Place,
        range: Range,
        pin: bool,
        manner: &Manner,
    ) -> Result<Output> {
        // A write that comes later waits for this, so that who asks first finds what was there first.
        if let Some(reading) = self.read_quiet(place) {
            let found = self.read(place, range, manner).await;
            // Too few shards, or too little of a set: looked at once more with the key held.
            let is_lost = self.forms.keeps() && matches!(found, Err(Error::Unreadable(_)));
            if !self.is_unsettled(place) && !is_lost {
                return self.answered(place, found?, (range, pin), manner).await;
            }
            drop(reading);
        }
        let _guard = self.hold_full(place).await?;
        let read = self.read(place, range, manner).await;
        if let Err(Error::Unreadable(_)) = read {
            self.suspect(place);
        }
        self.answered(place, read?, (range, pin), manner).await
    }

    /// What is given of a key that nobody writes meanwhile.
    async fn answered(
        self: &Rc<Self>,
        place: &Place,
        (item, form): (Item, Form),
        (range, pin): (Range, bool),
        manner: &Manner,
    ) -> Result<Output> {
        if pin && item.upload.is_some() {
            return self.pin_everywhere(place, (item, form), manner).await.map(Output::Found);
        }
        Ok(self.noted(item, range, manner))
    }

    /// What is given, and counted if somebody waits for it.
    fn noted(&self, item: Item, range: Range, manner: &Manner) -> Output {
        let is_read = range != Some((0, 0)) && manner.class() == Class::Foreground;
        if let Some(picker) = self.picker.as_ref().filter(|_| is_read) {
            picker.note_retrieve(item.length);
        }
        Output::Found(item)
    }

    pub(crate) async fn exist(self: &Rc<Self>, place: &Place, manner: &Manner) -> Result<Output> {
        self.retrieve(place, Some((0, 0)), false, manner).await
    }

    /// Reads a key: what it holds, and what that was made into. One piece tells what is asked for no bytes.
    pub(crate) async fn read(
        self: &Rc<Self>,
        place: &Place,
        range: Range,
        manner: &Manner,
    ) -> Result<(Item, Form)> {
        loop {
            let epoch = self.roster.borrow().epoch;
            match self.read_once(place, range, manner).await {
                // Who has come in meanwhile may have what those had that have gone out (seed 14223).
                Err(Error::Unreadable(_)) if self.roster.borrow().epoch != epoch => {}
                read => return read,
            }
        }
    }

    /// Reads a key from those that are in when this begins.
    async fn read_once(
        self: &Rc<Self>,
        place: &Place,
        range: Range,
        manner: &Manner,
    ) -> Result<(Item, Form)> {
        if !self.is_unsettled(place) {
            return self.read_from(place, range, (&self.reading_order(place), None), manner).await;
        }
        // Who comes back may have more of it, or less: what it is then must not be known otherwise before.
        if !self.may_change(place.primary) {
            let why = self.too_few(place, 1);
            return Err(Error::Unreadable(format!("it may have been changed when devices went away: {why}")));
        }
        let (roles, told) = self.newest_roles(place, manner).await?;
        self.read_from(place, range, (&roles, told), manner).await
    }

    /// Reads a key from some roles, of which it may be known what it was made into.
    async fn read_from(
        self: &Rc<Self>,
        place: &Place,
        range: Range,
        (roles, told): (&[usize], Option<Form>),
        manner: &Manner,
    ) -> Result<(Item, Form)> {
        let is_look = range == Some((0, 0));
        let Some(form) = self.forms.sole() else {
            return self.read_any(place, range, (roles, told), manner).await;
        };
        if is_look || form.is_copies() {
            let mut pieces = self.gather(place, range, (1, roles, Some(form)), manner).await?;
            let mut item = pieces.pop().ok_or(WRONG_OUTPUT)?.item;
            if is_look {
                item.bytes.clear();
            }
            return Ok((item, form));
        }
        let pieces = self.gather(place, None, (form.needed(), roles, Some(form)), manner).await?;
        Ok((self.together(form, pieces, range)?, form))
    }

    /// Reads a key of which its first piece says what it was made into, and then the others that it takes.
    /// Where these roles told what that is, any of them that has none of it now says that it has gone.
    async fn read_any(
        self: &Rc<Self>,
        place: &Place,
        range: Range,
        (roles, told): (&[usize], Option<Form>),
        manner: &Manner,
    ) -> Result<(Item, Form)> {
        let from_start = range.map(|(first, length)| (0, first.saturating_add(length)));
        let mut gone = None;
        loop {
            let mut pieces = self.gather(place, from_start, (1, roles, told), manner).await?;
            let first = pieces[0].header.ok_or(WRONG_OUTPUT)?;
            let form = first.form;
            if range == Some((0, 0)) || form.is_copies() {
                let mut item = pieces.remove(0).item;
                cut(&mut item.bytes, range);
                return Ok((item, form));
            }
            // A look tells the same one: that of who answers.
            let version = pieces[0].item.version;
            if range.is_some() {
                pieces.clear();
            }
            let has = |role: &usize| pieces.iter().any(|piece| piece.role == *role);
            let others = roles.iter().copied().filter(|role| *role < form.roles() && !has(role));
            let (others, lacking) = (others.collect::<Vec<usize>>(), form.needed() - pieces.len());
            if lacking > 0 {
                match self.gather(place, None, (lacking, &others, Some(form)), manner).await {
                    Ok(others) => pieces.extend(others),
                    // It has gone, or has been made into something else, since its first piece was read.
                    Err(Error::NotFound) if gone.replace(first.version) != Some(first.version) => continue,
                    // Its first piece has not.
                    Err(Error::NotFound) => return Err(other_versions()),
                    Err(error) => return Err(error),
                }
            }
            // Another version may have come since, in the same places and made into something else.
            if self.one_version(&pieces)? != (Header { role: pieces[0].role as u8, ..first }) {
                return Err(other_versions());
            }
            pieces.sort_by_key(|piece| piece.role);
            let item = self.together(form, pieces, range)?;
            return Ok((Item { version, ..item }, form));
        }
    }

    /// The roles of a key, that of who answers for it first.
    fn reading_order(&self, place: &Place) -> Vec<usize> {
        let first = self.reader(place);
        let mut others: Vec<usize> = self.roles_of_newest(place).filter(|role| *role != first).collect();
        if self.forms.has_packed() {
            let teller = self.teller(place);
            others.sort_by_key(|role| *role != teller);
        }
        std::iter::once(first).chain(others).collect()
    }

    /// The role that answers for a key, as long as it can be read there.
    pub(crate) fn reader(&self, place: &Place) -> usize {
        self.readers.borrow().role(place.primary, place.id.1)
    }

    /// The role that tells whether a key is packed, and where, if its first one cannot; only where some are.
    pub(crate) fn teller(&self, place: &Place) -> usize {
        self.tellers.borrow().role(place.primary, place.id.1)
    }

    pub(crate) fn all_roles(&self) -> Vec<usize> {
        (0..self.roles).collect()
    }

    /// A request to a member, which has to answer in time if others have what it holds.
    pub(crate) async fn in_time(&self, device: Rc<dyn Device>, request: Request) -> Result<Completion> {
        if self.roles == 1 {
            return device.execute(request).await;
        }
        let waits_for_keys = waits_for_keys(&request.op);
        let (began_ns, mut silences) = (self.reactor.now_ns(), 0);
        let mut answered = device.execute(request);
        loop {
            let late_ns = self.reactor.now_ns() + STALL_NS;
            match select(&mut answered, pin!(self.reactor.sleep_until(late_ns))).await {
                Either::Left((result, _)) => {
                    self.answered_ns.set(self.reactor.now_ns());
                    return result;
                }
                // It may wait for what was found at the start, and not for the member.
                Either::Right(_) if waits_for_keys && !self.transactions.have_all_ended() => {}
                // This core has not run meanwhile, and may not have seen the answer.
                Either::Right(_) if self.reactor.now_ns() > late_ns + STALL_NS / 10 => {}
                // No other has answered, either: what they share stands still.
                Either::Right(_) if self.answered_ns.get() < began_ns && silences < SILENCES_MAX => {
                    silences += 1;
                }
                Either::Right(_) => {
                    let seconds = STALL_NS / 1_000_000_000;
                    return Err(Error::ReadOnly(format!("it has not answered for {seconds} seconds")));
                }
            }
        }
    }

    /// What is read of one member while a key is held. Nobody goes out over a read, but whoever holds the key
    /// goes on without one that does not answer: else nobody would ever hold it again.
    pub(crate) async fn read_in_time<T>(&self, read: impl Future<Output = Result<T>>) -> Result<T> {
        let mut read = pin!(read);
        loop {
            match select(read.as_mut(), pin!(self.reactor.sleep_ns(STALL_NS))).await {
                Either::Left((read, _)) => return read,
                // It may wait for what was found at the start.
                Either::Right(_) if !self.transactions.have_all_ended() => {}
                Either::Right(_) => return Err(Error::ReadOnly("a read is not answered".to_owned())),
            }
        }
    }

    /// What a reader is told of a key of which too little can be read: what is lost of it, and why.
    pub(crate) fn unreadable(&self, place: &Place, failures: &[(usize, Error)]) -> Error {
        let (lost, piece) =
            if self.forms.has_shards() { ("not enough", "piece") } else { ("no copy", "copy") };
        let each = (0..self.roles).filter_map(|role| {
            let (member, number) = (self.member_of(place, role), role + 1);
            let why = match failures.iter().find(|(failed, _)| *failed == member) {
                Some((_, error)) => error.to_string(),
                None if self.state(member) == MemberState::Resyncing => "being resynchronised".to_owned(),
                None if self.state(member) == MemberState::In => return None,
                None => "out".to_owned(),
            };
            Some(format!("{piece} {number} on {}: {why}", self.name(member)))
        });
        let each: Vec<String> = each.collect();
        Error::Unreadable(format!("{lost} of the key is left ({})", each.join("; ")))
    }

    /// Writes again, in the background, what could not be read.
    pub(crate) fn mend_later(self: &Rc<Self>, place: &Place, failures: &[(usize, Error)]) {
        for (member, error) in failures {
            self.note(*member, |status| status.failed_requests += 1);
            if let Some(untold) = self.seldom.read_elsewhere.due(self.reactor.now_ns()) {
                let device = self.name(*member);
                tracing::warn!(partition = self.partition, device, %error, untold, "read from another device");
            }
        }
        self.suspect(place);
        let (array, place) = (self.clone(), place.clone());
        self.spawn(Work::Background, async move {
            // What could not be mended stays unsettled, and is tried again when it is used.
            let _ = array.hold(&place).await;
        });
    }
}

pub(crate) const WRONG_OUTPUT: Error = Error::Unsupported("a member gave the output of another operation");

/// Whether a member does this after those who hold its keys. What ends a transaction waits for nobody.
fn waits_for_keys(op: &Op) -> bool {
    match op {
        Op::Transaction { action, .. } => matches!(action, Action::Hold(_)),
        op => op.key().is_some() || matches!(op, Op::Batch(_) | Op::Clear { .. }),
    }
}

/// The range of a stored value or part, of one of the user's; what begins at 0 brings the header along.
pub(crate) fn shifted(range: Range) -> Range {
    let header = HEADER_BYTES as u64;
    range.map(|(first, length)| match first {
        0 => (0, length.saturating_add(header)),
        first => (first.saturating_add(header), length),
    })
}
