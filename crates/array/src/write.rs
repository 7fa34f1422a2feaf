//! Writing: one request to every member that holds the key, all or none.
//!
//! Place on the path: every store, delete (`delete`) and change of expiry. The key is held, what is there is
//! looked at if it matters, and each member gets one atomic batch: its piece, and the journal's record that
//! names the key.
//!
//! Invariants:
//! * nothing is told before every member that is in has it durably, and those that have not are durably out;
//! * a write that some members took and others refused (a full device) is undone where it was taken before
//!   anybody hears of the refusal, or stands where there is no room for what it replaced (`undo`); a key of
//!   which neither can be done at once stays unsettled, and its slot taken;
//! * the journal names every write that may be half done.

use crate::array::{Array, Place, expiry_of};
use crate::before::{Before, Left, Seen, roles_seen};
use crate::header::Header;
use crate::journal::Slot;
use crate::manner::Manner;
use crate::placement;
use crate::read::{Range, WRONG_OUTPUT};
use crate::round::{Bringing, Outcome};
use crate::send::Sent;
use crate::undo::Undone;
use bytes::Bytes;
use plimsoll_kv::{
    Condition, Device, Edit, Error, Expiry, Form, Item, Op, Output, Request, Result, Value, Version,
};
use std::rc::Rc;

/// What a write does to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// It has another value, made into this; where that is shards, what was there is kept.
    Store(Form),
    /// It is gone.
    Delete,
    /// It expires at another time.
    Expiry,
}

impl Change {
    /// Members that have to take it.
    pub(crate) fn needed(self) -> usize {
        match self {
            Change::Store(form) => form.needed(),
            Change::Delete | Change::Expiry => 1,
        }
    }
}

/// True if a device was too full.
pub(crate) fn is_full(error: &Error) -> bool {
    matches!(error, Error::NoSpace | Error::NoMemory)
}

impl Array {
    /// Stores, or is refused where a device is full.
    pub(crate) async fn store_at_once(self: &Rc<Self>, op: Op, manner: &Manner) -> Result<Output> {
        let Op::Store { container, key, value, condition, expiry, retain, want_previous, form } = op else {
            unreachable!("dispatched by kind");
        };
        if retain {
            return Err(Error::Unsupported("retained versions of an array"));
        }
        if let Value::Kept(_) = value {
            return Err(Error::Unsupported("values of an array under other keys"));
        }
        let place = self.place(container, &key)?;
        let longest = self.value_bytes_max();
        if matches!(&value, Value::Bytes(bytes) if bytes.len() > longest) {
            return Err(Error::ValueTooLong);
        }
        let _guard = self.hold(&place).await?;
        let whole = want_previous || matches!(value, Value::Edit(_));
        let looks = whole || condition != Condition::None || expiry == Expiry::Keep;
        let range = if whole { None } else { Some((0, 0)) };
        let found = if looks { self.look(&place, range, manner).await? } else { None };
        let seen = looks.then(|| roles_seen(found.as_ref()));
        let found = found.map(|(item, _)| item);
        judge(condition, found.as_ref())?;
        if want_previous && found.as_ref().is_some_and(|item| item.upload.is_some()) {
            return Err(Error::Invalid(
                "the previous value stands in parts and cannot be given back at once",
            ));
        }
        let expiry = expiry_of(expiry, found.as_ref().and_then(|item| item.expiry_ms));
        match value {
            Value::Upload(upload) => self.store_upload(&place, (upload, seen), expiry, manner).await,
            Value::Bytes(bytes) => {
                let bytes = bytes.into_bytes();
                let form = self.form_for(form, bytes.len() as u64)?;
                self.note_store(&place, bytes.len() as u64, manner.class());
                let version = self.write_value(&place, (form, &bytes), (expiry, seen), manner).await?;
                let previous = if want_previous { found } else { None };
                Ok(Output::Stored { version, previous })
            }
            Value::Edit(edit) => {
                let bytes = Bytes::from(edited(&edit, found.as_ref(), longest)?);
                let form = self.form_for(form, bytes.len() as u64)?;
                self.note_store(&place, bytes.len() as u64, manner.class());
                let version = self.write_value(&place, (form, &bytes), (expiry, seen), manner).await?;
                Ok(Output::Edited { version, bytes: bytes.into() })
            }
            Value::Kept(_) => unreachable!("refused above"),
        }
    }

    /// What a held key holds, and what that was made into; nothing if it is absent.
    pub(crate) async fn look(
        self: &Rc<Self>,
        place: &Place,
        range: Range,
        manner: &Manner,
    ) -> Result<Option<(Item, Form)>> {
        match self.read(place, range, manner).await {
            Ok(found) => Ok(Some(found)),
            Err(Error::NotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes the whole value of a held key, made into something; the version by which it is known then.
    async fn write_value(
        self: &Rc<Self>,
        place: &Place,
        (form, value): (Form, &Bytes),
        (expiry, seen): (Expiry, Seen),
        manner: &Manner,
    ) -> Result<Version> {
        if expiry != Expiry::Never {
            self.keep_nothing(place).await?;
        }
        let Before { roles, mut ghost, left } = self.before_store(place, (form, seen), manner).await?;
        let mut slot = self.journal.slot().await;
        let before = self.take_kept(place);
        let roles_before = |has_replaced| self.roles_left(roles, before.as_ref(), has_replaced);
        let keeps = self.forms.keeps();
        // What is replaced is told only where it may be a stub, or no memory tells that there is anything:
        // members would have to read it.
        let tells = matches!(left, Some(Left::Told(_))) || self.options.stateless;
        let replaces = keeps && !tells && self.has_any(place);
        if form.is_packed() && expiry == Expiry::Never {
            match self.store_in_round(place, (form, value), Bringing { ghost, slot, tells }, manner).await {
                Outcome::Packed { version, has_replaced, before: stood, slot } => {
                    self.note_packed();
                    self.left(place, left, stood.iter());
                    let has_replaced = has_replaced || replaces;
                    if has_replaced || before.is_some() {
                        self.release_before(place, (form, expiry), roles_before(has_replaced), slot).await;
                    }
                    return Ok(version);
                }
                Outcome::Alone(its) => (ghost, slot) = (its.ghost, its.slot),
                Outcome::Failed(error) => {
                    self.restore_kept(place, before);
                    return Err(error);
                }
            }
        }
        let stores = self.stores(place, (form, value), expiry).into_iter().map(|(role, store)| {
            let store = if keeps { retaining(store, tells) } else { store };
            let entry = slot.entry(place.container, &place.key);
            let ghost = if role == 0 { ghost.take() } else { None };
            let batch = [store, entry].into_iter().chain(ghost).collect();
            (self.member_of(place, role), manner.request(Op::Batch(batch)))
        });
        let stores = stores.collect();
        let is_in = |member: &usize| self.readable(*member).is_some();
        let were_in: Vec<usize> = (0..self.count()).filter(is_in).collect();
        let begun_ns = self.reactor.now_ns();
        let written = self.write(place, (slot, Change::Store(form)), stores).await;
        self.packer.rounds.note_took(self.reactor.now_ns() - begun_ns);
        let (done, slot) = match written {
            Ok(written) => written,
            Err(error) => {
                self.restore_kept(place, before);
                return Err(error);
            }
        };
        let role = |member| placement::role(place.primary, member, self.count());
        // What came in meanwhile may have had a copy because nobody had told it of the set yet.
        let others = done.iter().filter(|(member, _)| role(*member) > 0 && were_in.contains(member));
        self.left(place, left, others.filter_map(|(_, output)| previous_of(output)));
        let has_replaced = match tells {
            true => done.iter().any(|(_, output)| previous_of(output).is_some()),
            false => replaces,
        };
        if keeps && (before.is_some() || has_replaced) {
            self.release_before(place, (form, expiry), roles_before(has_replaced), slot).await;
        }
        if form.is_packed() && expiry == Expiry::Never {
            self.pack_later(place, (form, value.len() as u64));
        }
        drop(before);
        stored_version(self.first_of(place, done)?)
    }

    /// What the member in each role is to store of a value that is made into something.
    pub(crate) fn stores(
        &self,
        place: &Place,
        (form, value): (Form, &Bytes),
        expiry: Expiry,
    ) -> Vec<(usize, Op)> {
        let (version, value_bytes) = (self.next_version(), value.len() as u64);
        let pieces = self.forms.pieces(form, value).into_iter().enumerate();
        let stores = pieces.map(|(role, piece)| {
            let header = Header { form, role: role as u8, version, value_bytes, is_stub: false };
            (role, self.store_op(place, role, header.before(piece).into(), expiry))
        });
        stores.collect()
    }

    /// What the first member that may be read gave: later reads are answered by it.
    pub(crate) fn first_of(&self, place: &Place, done: Vec<(usize, Output)>) -> Result<Output> {
        let first = self.reader(place);
        let rank = |member: usize| {
            let role = placement::role(place.primary, member, self.count());
            (self.readable(member).is_none(), role != first, role)
        };
        done.into_iter().min_by_key(|(member, _)| rank(*member)).map(|(_, output)| output).ok_or(WRONG_OUTPUT)
    }

    pub(crate) fn store_op(&self, place: &Place, role: usize, value: Value, expiry: Expiry) -> Op {
        Op::Store {
            container: placement::container(place.container, role),
            key: place.key.clone(),
            value,
            condition: Condition::None,
            expiry,
            retain: false,
            want_previous: false,
            form: None,
        }
    }

    /// Does a change of a held key on every member, or on none; `slot` names the key meanwhile.
    pub(crate) async fn write(
        self: &Rc<Self>,
        place: &Place,
        (slot, change): (Slot, Change),
        requests: Vec<(usize, Request)>,
    ) -> Result<(Vec<(usize, Output)>, Slot)> {
        let needed = change.needed();
        if !self.has_enough(place, needed) {
            return Err(self.nowhere(place, needed));
        }
        let sent = match change {
            Change::Delete if self.forms.has_packed() => self.send_in_company(requests).await,
            _ => self.send(requests).await,
        };
        match sent {
            Ok(Sent { done, refused: None }) if self.is_enough(place, &done, needed) => Ok((done, slot)),
            Ok(Sent { done, refused: None }) => {
                if !done.is_empty() {
                    self.leave_unsettled(place, slot).await;
                }
                Err(self.nowhere(place, needed))
            }
            // Nobody took it.
            Ok(Sent { done, refused: Some(error) }) if done.is_empty() => Err(error),
            // Full members go on to take deletes without a slot, if at all: what names this one goes here.
            Ok(Sent { refused: Some(error), .. }) if change == Change::Delete && is_full(&error) => {
                self.suspect(place);
                self.unmark_named().await?;
                drop(slot);
                Err(error)
            }
            // What a change of expiry, or a delete, replaced is kept nowhere: the next look makes it whole.
            Ok(Sent { refused: Some(error), .. }) if !matches!(change, Change::Store(_)) => {
                self.leave_unsettled(place, slot).await;
                Err(self.not_undone(error))
            }
            Ok(Sent { done, refused: Some(error) }) => {
                let taken: Vec<usize> = done.iter().map(|(member, _)| *member).collect();
                match self.undo(place, &taken).await {
                    Ok(Undone::TakenBack) => {}
                    Ok(Undone::TakenBackOnSome) => {
                        self.leave_unsettled(place, slot).await;
                        self.settle_soon();
                    }
                    Ok(Undone::Stands | Undone::StandsOnSome) if !self.is_enough(place, &done, needed) => {
                        self.leave_unsettled(place, slot).await;
                        return Err(self.nowhere(place, needed));
                    }
                    Ok(Undone::Stands) => return Ok((done, slot)),
                    Ok(Undone::StandsOnSome) => {
                        self.leave_unsettled(place, slot).await;
                        self.settle_soon();
                        return Ok((done, self.journal.slot().await));
                    }
                    Err(left) => {
                        self.leave_unsettled(place, slot).await;
                        self.settle_soon();
                        return Err(self.not_undone(left));
                    }
                }
                Err(error)
            }
            Err(error) => {
                self.leave_unsettled(place, slot).await;
                Err(error)
            }
        }
    }

    /// What is told of a write that some members refused and others still have: not that nothing was done.
    pub(crate) fn not_undone(&self, left: Error) -> Error {
        tracing::error!(partition = self.partition, %left, "a write is undone later");
        match left.changed_nothing() {
            true => Error::ReadOnly(format!("some devices took it that cannot take it back yet: {left}")),
            false => left,
        }
    }

    /// True if so many of those that took a change of a key are in, and it could still be made.
    pub(crate) fn is_enough(&self, place: &Place, done: &[(usize, Output)], needed: usize) -> bool {
        done.iter().filter(|(member, _)| self.readable(*member).is_some()).count() >= needed
            && self.may_change(place.primary)
    }

    /// A key stays named in the journal until it has been made whole, and is compared before it is used.
    pub(crate) async fn leave_unsettled(self: &Rc<Self>, place: &Place, slot: Slot) {
        let key = (place.container, place.key.clone());
        let is_named = slot.keep(self.half_written.borrow_mut().entry(key).or_default());
        self.suspect(place);
        if !is_named && let Err(error) = self.unmark_named().await {
            tracing::error!(partition = self.partition, %error, "a key that is not whole is not named");
        }
    }

    /// Names a held key in the journal, durably, for a change that is no batch.
    pub(crate) async fn name_half_written(self: &Rc<Self>, place: &Place, manner: &Manner) -> Result<Slot> {
        let slot = self.journal.slot().await;
        let each = (0..self.roles).map(|role| {
            let entry = slot.entry(place.container, &place.key);
            (self.member_of(place, role), manner.request(entry))
        });
        let sent = self.send(each.collect()).await?;
        sent.refused.map_or(Ok(slot), Err)
    }
}

/// The same store, which keeps what it replaces, and gives that, too, if it is wanted.
pub(crate) fn retaining(store: Op, want_previous: bool) -> Op {
    match store {
        Op::Store { container, key, value, condition, expiry, form, .. } => {
            Op::Store { container, key, value, condition, expiry, retain: true, want_previous, form }
        }
        other => other,
    }
}

/// What a batch replaced in its first record.
fn previous_of(output: &Output) -> Option<&Item> {
    let Output::Batch(outputs) = output else { return None };
    match outputs.first() {
        Some(Output::Stored { previous, .. }) => previous.as_ref(),
        _ => None,
    }
}

/// Judges a condition by what a key holds.
pub(crate) fn judge(condition: Condition, existing: Option<&Item>) -> Result<()> {
    match (condition, existing) {
        (Condition::None, _) | (Condition::MustExist, Some(_)) | (Condition::MustNotExist, None) => Ok(()),
        (Condition::MustExist | Condition::IfVersion(_), None) => Err(Error::NotFound),
        (Condition::MustNotExist, Some(_)) => Err(Error::Exists),
        (Condition::IfVersion(version), Some(item)) if item.version == version => Ok(()),
        (Condition::IfVersion(_), Some(_)) => Err(Error::VersionMismatch),
    }
}

/// The value that an edit makes.
fn edited(edit: &Edit, found: Option<&Item>, longest: usize) -> Result<Vec<u8>> {
    if found.is_some_and(|item| item.upload.is_some()) {
        return Err(Error::ValueTooLong);
    }
    let old = found.map(|item| item.bytes.as_slice());
    if edit.bytes_max(old.map_or(0, |old| old.len() as u64)) > longest as u64 {
        return Err(Error::ValueTooLong);
    }
    Ok(edit.apply(old)?)
}

/// The version that a batch, or a store, gave its first record.
pub(crate) fn stored_version(output: Output) -> Result<Version> {
    match first_output(output) {
        Output::Stored { version, .. } => Ok(version),
        _ => Err(WRONG_OUTPUT),
    }
}

/// What a batch, or an operation alone, gave for its first record.
pub(crate) fn first_output(output: Output) -> Output {
    match output {
        Output::Batch(outputs) => outputs.into_iter().next().unwrap_or(Output::Done),
        output => output,
    }
}
