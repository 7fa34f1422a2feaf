//! Storing a value.
//!
//! Place on the path: key order, look for the previous record, one append, acknowledgement.
//!
//! Invariant: a store that fails has changed nothing, unless its error says that the device failed.

use crate::fetch::{Extent, Found};
use crate::format::note::note_bytes_max;
use crate::format::record::{Manifest, record_bytes};
use crate::format::transition::{FLAG_EXPIRING, FLAG_PREVIOUS_EXPIRING, FLAG_RETAIN};
use crate::format::{RecordHeader, RecordKind, Transition, TransitionKind};
use crate::held::{Held, Hold, Replaced, judge};
use crate::known::KnownRecord;
use crate::log::Log;
use crate::metrics::add;
use crate::partition::{Partition, Place};
use crate::recent::RECENT_BYTES_MAX;
use crate::space::Beyond;
use crate::uploads::UploadState;
use plimsoll_kv::{
    Condition, Durability, Edit, Error, Expiry, Item, Lifetime, Op, Output, Payload, Result, Value, Version,
};
use std::rc::Rc;

/// Transitions that one store makes at most: its own, and four of what it replaces and commits. What cannot
/// be read takes one, but nothing goes with it.
pub(crate) const STORE_TRANSITIONS: usize = 5;

/// A store whose conditions have been judged.
pub(crate) struct Judged<'a> {
    pub(crate) place: Place,
    pub(crate) key: &'a [u8],
    pub(crate) kind: RecordKind,
    /// The value, in two pieces: either may be empty.
    pub(crate) value: [&'a [u8]; 2],
    pub(crate) expiry_ms: u64,
    pub(crate) lifetime: Lifetime,
    pub(crate) retain: bool,
    /// The record that this one replaces, expired or not.
    pub(crate) replaced: Option<Replaced>,
    /// The upload that becomes the value.
    pub(crate) commits: Option<u64>,
    /// The record that is kept below this one, of which everything is said but where this one is.
    pub(crate) keeps: Option<Transition>,
    /// The uploads that go with the replaced record.
    pub(crate) dooms: Vec<u64>,
}

impl Judged<'_> {
    fn value_bytes(&self) -> usize {
        self.value.iter().map(|piece| piece.len()).sum()
    }
}

/// What a store is to write.
struct Given {
    kind: RecordKind,
    /// The value; of an edit, what came of it when it was tried last.
    bytes: Payload,
    /// The upload that becomes the value.
    commits: Option<u64>,
    edit: Option<Edit>,
}

/// Room that is made for an edit before its result is known, record and all.
const EDIT_RECORD_BYTES: u64 = 4096;

/// What a store asks of the record that is there.
struct Asked<'a> {
    key: &'a [u8],
    condition: Condition,
    expiry: Expiry,
    retain: bool,
    want_previous: bool,
}

/// What is there, and what follows from it.
struct Looked {
    replaced: Option<Replaced>,
    previous: Option<Item>,
    expiry_ms: u64,
    dooms: Vec<u64>,
}

impl Partition {
    pub(crate) async fn store(
        self: &Rc<Self>,
        op: Op,
        (lifetime, beyond, deadline_ns): (Lifetime, Beyond, u64),
        durability: Durability,
    ) -> Result<Output> {
        let Op::Store { container, key, value, condition, expiry, retain, want_previous, .. } = op else {
            unreachable!("dispatched by kind");
        };
        let asked = Asked { key: &key, condition, expiry, retain, want_previous };
        // What a layer above keeps its books with is small, and it cannot make room without them.
        let is_books = container.is_books();
        let mut given = self.given(value)?;
        let mut admitted = self.record_size(&key, &given)?;
        let mut hold = self.hold(container, &key).await;
        loop {
            if is_books {
                self.admit_small().await?;
            } else {
                self.in_time(deadline_ns, self.admit(admitted, beyond)).await?;
            }
            let known = if asked.only_whose(&given) { self.known_at(&hold.place, &key) } else { None };
            let looked;
            (hold, looked) = match known {
                Some(replaced) => (hold, Some(Looked::known(replaced, expiry))),
                None => self.look(hold, &asked, &mut given).await?,
            };
            let size = self.record_size(&key, &given)?;
            if size > admitted {
                admitted = size;
                continue;
            }
            let Some(looked) = looked else { continue };
            if let Some(upload) = given.commits {
                self.check_upload(upload, &hold.place)?;
            }
            let judged = Judged {
                place: hold.place,
                key: &key,
                kind: given.kind,
                value: given.bytes.parts(),
                expiry_ms: looked.expiry_ms,
                lifetime,
                retain,
                replaced: looked.replaced,
                commits: given.commits,
                keeps: None,
                dooms: looked.dooms,
            };
            match self.append_store(&judged, !is_books, durability) {
                Err(Error::NoSpace) => self.in_time(deadline_ns, self.wait_to_write(!is_books)).await?,
                Err(error) => return Err(error),
                Ok(version) => {
                    let frame = self.log.frame();
                    drop(hold);
                    add(&self.counts.known_overwrites, u64::from(known.is_some()));
                    // The value may hold on to what was received with it: it goes before anything is awaited.
                    let output = given.output(version, looked.previous);
                    self.acknowledge(frame, durability).await?;
                    return Ok(output);
                }
            }
        }
    }

    /// Reads what is there and judges by it. Nothing if something moved meanwhile: look again.
    async fn look(
        self: &Rc<Self>,
        hold: Hold,
        asked: &Asked<'_>,
        given: &mut Given,
    ) -> Result<(Hold, Option<Looked>)> {
        let whole = asked.want_previous || given.edit.is_some();
        let extent = if whole { Extent::Whole } else { Extent::Head };
        let (hold, held) = self.find_held(hold, asked.key, extent).await?;
        let found = match held {
            Held::Damaged(damaged, _) if asked.only_whose(given) => {
                return Ok((hold, Some(Looked::known(damaged, asked.expiry))));
            }
            held => held.readable()?,
        };
        let existing = found.as_ref().filter(|found| !found.is_expired(self.now_ms()));
        let retained = found.as_ref().filter(|_| asked.retain).map_or(Ok(()), Found::judge_retain);
        let judged = judge(asked.condition, existing).and(retained).and_then(|()| self.edit(given, existing));
        if let Err(error) = judged {
            return self.refuse(hold, asked.key, found.as_ref(), error).await;
        }
        let previous = if asked.want_previous { self.previous_item(existing)? } else { None };
        let Some(dooms) = self.uploads_of(&hold.place, found.as_ref(), asked.retain).await? else {
            return Ok((hold, None));
        };
        let replaced = found.as_ref().map(Replaced::from);
        let expiry_ms = expiry_ms(asked.expiry, existing);
        Ok((hold, Some(Looked { replaced, previous, expiry_ms, dooms })))
    }

    fn given(&self, value: Value) -> Result<Given> {
        let plain = Given { kind: RecordKind::Value, bytes: Payload::default(), commits: None, edit: None };
        Ok(match value {
            Value::Bytes(bytes) => Given { bytes, ..plain },
            Value::Edit(edit) => Given { edit: Some(edit), ..plain },
            Value::Kept(_) => unreachable!("stored as a batch"),
            Value::Upload(upload) => Given {
                kind: RecordKind::Manifest,
                bytes: self.manifest_of_upload(upload.0)?.as_slice().into(),
                commits: Some(upload.0),
                edit: None,
            },
        })
    }

    /// Bytes of the record, if it fits a segment.
    fn record_size(&self, key: &[u8], given: &Given) -> Result<u64> {
        if given.bytes.len() > self.layout.record_value_bytes_max() {
            return Err(Error::ValueTooLong);
        }
        let size = record_bytes(key.len(), given.bytes.len());
        if size as usize + note_bytes_max(STORE_TRANSITIONS) > Log::frame_capacity(&self.layout) {
            return Err(Error::ValueTooLong); // A long key and a long value together.
        }
        Ok(if given.edit.is_some() { size.max(EDIT_RECORD_BYTES) } else { size })
    }

    /// Makes the new value, if it depends on the old one.
    fn edit(&self, given: &mut Given, existing: Option<&Found>) -> Result<()> {
        let Some(edit) = &given.edit else { return Ok(()) };
        let old = match existing {
            Some(found) if found.header.kind != RecordKind::Value => return Err(Error::ValueTooLong),
            Some(found) => Some(self.value(found)?),
            None => None,
        };
        let longest = self.layout.record_value_bytes_max() as u64;
        if edit.bytes_max(old.map_or(0, |old| old.len() as u64)) > longest {
            return Err(Error::ValueTooLong);
        }
        given.bytes = edit.apply(old)?.into();
        Ok(())
    }

    fn previous_item(&self, existing: Option<&Found>) -> Result<Option<Item>> {
        let Some(found) = existing else { return Ok(None) };
        if found.header.kind != RecordKind::Value {
            return Err(Error::Invalid(
                "the previous value is in no one record and cannot be given back at once",
            ));
        }
        let bytes = self.value(found)?.to_vec();
        self.item(found, bytes).map(Some)
    }

    /// Appends a judged store and applies it. Nothing is awaited: what was judged still holds.
    fn append_store(&self, store: &Judged<'_>, large: bool, urgency: Durability) -> Result<Version> {
        let size = record_bytes(store.key.len(), store.value_bytes()) as usize;
        self.reserve_for_writes(large, size + note_bytes_max(STORE_TRANSITIONS), STORE_TRANSITIONS)?;
        Ok(self.push_store(store, urgency))
    }

    /// Pushes a judged store for which there is room, and applies it.
    pub(crate) fn push_store(&self, store: &Judged<'_>, urgency: Durability) -> Version {
        let size = record_bytes(store.key.len(), store.value_bytes());
        let retained = store.replaced.and_then(|old| self.release_note(&store.place, old.entry.location));
        let mut note: Vec<Transition> = retained.into_iter().collect();
        note.extend(store.commits.map(|upload| Transition {
            container: store.place.generation,
            ..Partition::upload_note(TransitionKind::UploadCommit, upload)
        }));
        note.extend(store.dooms.iter().map(|upload| Partition::doom_note(*upload)));
        // The keys in order may lack the key of what cannot be read: it is stored as a new one.
        let (damaged, replaced) = match store.replaced {
            Some(old) if old.is_damaged => (Some(old), None),
            replaced => (None, replaced),
        };
        note.extend(damaged.map(|old| old.removal(&store.place)));
        self.commit_note(&note, urgency);
        damaged.iter().for_each(|old| self.gone_unread(old));
        let mut flags = if store.expiry_ms == 0 { 0 } else { FLAG_EXPIRING };
        if replaced.is_some_and(|old| old.is_expiring) {
            flags |= FLAG_PREVIOUS_EXPIRING;
        }
        if store.retain && replaced.is_some() {
            flags |= FLAG_RETAIN;
        }
        let version = self.next_version();
        let header = RecordHeader {
            kind: store.kind,
            lifetime: store.lifetime as u8,
            key_bytes: store.key.len() as u32,
            value_bytes: store.value_bytes() as u32,
            container: store.place.generation,
            slot: store.place.slot.0,
            version,
            expiry_ms: store.expiry_ms,
            flags,
            previous: replaced.map_or(0, |old| old.entry.location),
            previous_length: replaced.map_or(0, |old| old.entry.length),
        };
        let transition =
            self.log.push_record(&header, store.key, store.place.fingerprint, store.value, urgency);
        self.commit(&transition, urgency);
        if let Some(keep) = store.keeps {
            self.commit_note(&[Transition { location: transition.location, ..keep }], urgency);
        }
        if store.expiry_ms != 0 {
            let parts_units = store.commits.map_or(0, |upload| self.parts_units(upload));
            let units = u64::from(transition.length) + parts_units;
            self.state.borrow_mut().segments.note_expiry(transition.location, units, store.expiry_ms);
        }
        if store.kind != RecordKind::Manifest {
            self.note_known(store, transition.location);
        }
        if store.kind == RecordKind::Value && !store.place.container.is_books() {
            self.note_recent(transition.location, size);
        }
        if replaced.is_none() {
            self.keys.note(store.place.generation, store.key, false);
        }
        add(&self.counts.stored_bytes, size);
        version
    }

    /// Keeps a short record that was just written in memory.
    fn note_recent(&self, location: u64, bytes: u64) {
        if bytes <= RECENT_BYTES_MAX as u64 {
            let state = &mut *self.state.borrow_mut();
            let sequence = state.segments.sequence_at(location);
            let note = |record: &[u8]| state.recent.note(sequence, location, record);
            self.log.with_pending(location, bytes, note).expect("it was just pushed");
        }
    }

    /// Remembers whose record was just written.
    fn note_known(&self, store: &Judged<'_>, location: u64) {
        let Place { generation, slot, fingerprint, .. } = store.place;
        let known = &mut self.state.borrow_mut().known;
        if !known.is_kept() {
            return;
        }
        let identity = known.identity(generation, store.key);
        let is_keeper = store.kind == RecordKind::Keeper;
        let record = KnownRecord { identity, is_expiring: store.expiry_ms != 0, is_keeper };
        known.note(slot, fingerprint, location, record);
    }

    /// The manifest of an upload whose parts are all there.
    fn manifest_of_upload(&self, upload: u64) -> Result<[u8; crate::format::record::MANIFEST_BYTES]> {
        let length = self.upload_length(upload)?;
        Ok(Manifest { length, upload, part_bytes: self.layout.part_bytes() }.encode())
    }

    pub(crate) fn check_upload(&self, upload: u64, place: &Place) -> Result<()> {
        let state = self.state.borrow();
        let found = state.uploads.get(&upload).ok_or(Error::Invalid("no such upload"))?;
        // The container may have been emptied since the upload was begun.
        let same_container = found.generation == place.generation || state.is_dead(found.generation);
        if found.state != UploadState::Open || !same_container || found.slot != place.slot.0 {
            return Err(Error::Invalid("the upload is gone, or belongs to another key"));
        }
        Ok(())
    }
}

impl Asked<'_> {
    /// True if nothing is asked of the record that is there but whose it is.
    fn only_whose(&self, given: &Given) -> bool {
        let nothing = self.condition == Condition::None && self.expiry != Expiry::Keep;
        nothing && !self.want_previous && given.edit.is_none()
    }
}

impl Looked {
    fn known(replaced: Replaced, expiry: Expiry) -> Looked {
        Looked {
            replaced: Some(replaced),
            previous: None,
            expiry_ms: expiry_ms(expiry, None),
            dooms: Vec::new(),
        }
    }
}

impl Given {
    fn output(self, version: Version, previous: Option<Item>) -> Output {
        match self.edit {
            Some(_) => Output::Edited { version, bytes: self.bytes.into_bytes().into() },
            None => Output::Stored { version, previous },
        }
    }
}

/// When a stored key expires; 0: never.
pub(crate) fn expiry_ms(expiry: Expiry, existing: Option<&Found>) -> u64 {
    match expiry {
        Expiry::Never => 0,
        Expiry::At(at_ms) => at_ms.max(1),
        Expiry::Keep => existing.map_or(0, |found| found.expiry_ms),
    }
}
