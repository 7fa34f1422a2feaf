//! Writing: store, delete, expiry, batch, release and revert.
//!
//! Place on the path: key order, look for the previous record, one append, acknowledgement.
//!
//! Invariants:
//! * conditions are judged and the record appended while the key is held, and the previous record
//!   is looked at again after every await;
//! * a batch stands in one frame;
//! * a store that fails has changed nothing, unless its error says that the device failed.

use crate::format::record::{Manifest, record_bytes};
use crate::format::transition::{
    FLAG_EXPIRING, FLAG_PREVIOUS_EXPIRING, FLAG_RETAIN, FLAG_WHOLE, note_bytes_max,
};
use crate::format::{RecordHeader, RecordKind, Transition, TransitionKind};
use crate::key_locks::KeyGuard;
use crate::log::Log;
use crate::metrics::add;
use crate::partition::{Extent, Found, Lookup, Partition, Place};
use crate::state::UploadState;
use plimsoll_kv::limits::BATCH_OPS_MAX;
use plimsoll_kv::{
    Condition, ContainerId, Durability, Error, Expiry, Item, Lifetime, Op, Output, Result, Value, Version,
};
use std::rc::Rc;

/// Records up to this size are rewritten when their expiry changes; longer ones get a note.
const REWRITE_BYTES_MAX: u64 = 2048;
/// Transitions that one store makes at most: its own, and three of what it replaces and commits.
const STORE_TRANSITIONS: usize = 4;

/// A store whose conditions have been judged.
struct Judged<'a> {
    place: Place,
    key: &'a [u8],
    kind: RecordKind,
    value: &'a [u8],
    expiry_ms: u64,
    lifetime: Lifetime,
    retain: bool,
    /// The record that this one replaces, expired or not.
    replaced: Option<Found>,
    /// The upload that becomes the value.
    commits: Option<u64>,
    /// The upload that the replaced record held.
    dooms: Option<u64>,
}

fn judge(condition: Condition, existing: Option<&Found>) -> Result<()> {
    match (condition, existing) {
        (Condition::None, _) | (Condition::MustExist, Some(_)) | (Condition::MustNotExist, None) => Ok(()),
        (Condition::MustExist | Condition::IfVersion(_), None) => Err(Error::NotFound),
        (Condition::MustNotExist, Some(_)) => Err(Error::Exists),
        (Condition::IfVersion(version), Some(found)) if found.header.version == version => Ok(()),
        (Condition::IfVersion(_), Some(_)) => Err(Error::VersionMismatch),
    }
}

impl Partition {
    /// Holds a key in order; the place is that of the container's generation while it is held.
    async fn hold(&self, container: ContainerId, key: &[u8]) -> (Place, KeyGuard) {
        loop {
            let place = self.place(container, key);
            let guard = self.locks.lock(place.slot.0, place.fingerprint).await;
            if self.place(container, key) == place {
                return (place, guard);
            }
        }
    }

    /// The record of a held key, if it is still current; nothing said if it must be looked up again.
    async fn held(&self, place: &Place, key: &[u8], extent: Extent) -> Result<Option<Option<Found>>> {
        match self.find(place, key, extent).await? {
            Lookup::Moved => Ok(None),
            Lookup::Absent => Ok(Some(None)),
            Lookup::Found(found) => Ok(self.is_current(place, &found.entry).then_some(Some(found))),
        }
    }

    pub(crate) async fn store(
        self: &Rc<Self>,
        op: Op,
        lifetime: Lifetime,
        durability: Durability,
    ) -> Result<Output> {
        let Op::Store { container, key, value, condition, expiry, retain, want_previous } = op else {
            unreachable!("dispatched by kind");
        };
        let (manifest, commits) = match &value {
            Value::Bytes(_) => (None, None),
            Value::Upload(upload) => (Some(self.manifest_of_upload(upload.0)?), Some(upload.0)),
        };
        let (kind, bytes): (_, &[u8]) = match (&value, &manifest) {
            (Value::Bytes(bytes), _) => (RecordKind::Value, bytes),
            (_, Some(manifest)) => (RecordKind::Manifest, manifest),
            (_, None) => unreachable!("an upload has a manifest"),
        };
        if bytes.len() > self.layout.record_value_bytes_max() {
            return Err(Error::ValueTooLong);
        }
        let extent = if want_previous { Extent::Whole } else { Extent::Head };
        let size = record_bytes(key.len(), bytes.len());
        if size as usize + note_bytes_max(STORE_TRANSITIONS) > Log::frame_capacity(&self.layout) {
            return Err(Error::ValueTooLong); // A long key and a long value together.
        }
        'held: loop {
            let (place, guard) = self.hold(container, &key).await;
            loop {
                self.admit(size).await?;
                let Some(replaced) = self.held(&place, &key, extent).await? else {
                    if self.place(container, &key) != place {
                        continue 'held;
                    }
                    continue;
                };
                if self.place(container, &key) != place {
                    continue 'held;
                }
                let existing = replaced.as_ref().filter(|found| !found.is_expired(self.now_ms()));
                if let Err(error) = judge(condition, existing) {
                    drop(guard);
                    self.settle_refusal(&place, replaced.as_ref()).await?;
                    return Err(error);
                }
                let previous = self.previous_item(existing, want_previous)?;
                let expiry_ms = match expiry {
                    Expiry::Never => 0,
                    Expiry::At(at_ms) => at_ms.max(1),
                    Expiry::Keep => existing.map_or(0, |found| found.expiry_ms),
                };
                if let Some(upload) = commits {
                    self.check_upload(upload, &place)?;
                }
                let dooms = replaced.as_ref().map_or(Ok(None), |found| self.doomed_upload(found))?;
                let judged = Judged {
                    place,
                    key: &key,
                    kind,
                    value: bytes,
                    expiry_ms,
                    lifetime,
                    retain,
                    replaced,
                    commits,
                    dooms,
                };
                match self.append_store(&judged, durability) {
                    Err(Error::NoSpace) => self.wait_for_space(1).await?,
                    Err(error) => return Err(error),
                    Ok(version) => {
                        let frame = self.log.frame();
                        drop(guard);
                        self.acknowledge(frame, durability).await?;
                        return Ok(Output::Stored { version, previous });
                    }
                }
            }
        }
    }

    fn previous_item(&self, existing: Option<&Found>, want_previous: bool) -> Result<Option<Item>> {
        let Some(found) = existing else { return Ok(None) };
        if !want_previous {
            return self.item(found, Vec::new()).map(Some);
        }
        if found.header.kind == RecordKind::Manifest {
            return Err(Error::Invalid(
                "the previous value stands in parts and cannot be given back at once",
            ));
        }
        let bytes = self.value(found)?.to_vec();
        self.item(found, bytes).map(Some)
    }

    /// Appends a judged store and applies it. Nothing is awaited: what was judged still holds.
    fn append_store(&self, store: &Judged<'_>, urgency: Durability) -> Result<Version> {
        let size = record_bytes(store.key.len(), store.value.len()) as usize;
        self.reserve_for_store(size + note_bytes_max(STORE_TRANSITIONS), STORE_TRANSITIONS)?;
        self.push_store(store, urgency)
    }

    /// Pushes a judged store for which there is room, and applies it.
    fn push_store(&self, store: &Judged<'_>, urgency: Durability) -> Result<Version> {
        let size = record_bytes(store.key.len(), store.value.len());
        let retained =
            store.replaced.as_ref().and_then(|f| self.release_note(&store.place, f.entry.location));
        if retained.is_some() && store.retain {
            return Err(Error::Invalid("a retained version waits to be released or reverted"));
        }
        let mut note: Vec<Transition> = retained.into_iter().collect();
        note.extend(store.commits.map(|upload| Partition::upload_note(TransitionKind::UploadCommit, upload)));
        let dooms = store.dooms.filter(|_| !store.retain);
        note.extend(dooms.map(|upload| Partition::upload_note(TransitionKind::UploadDoom, upload)));
        self.commit_note(&note, urgency);
        let replaced = store.replaced.as_ref();
        let mut flags = if store.expiry_ms == 0 { 0 } else { FLAG_EXPIRING };
        if replaced.is_some_and(|found| found.expiry_ms != 0) {
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
            value_bytes: store.value.len() as u32,
            container: store.place.generation,
            slot: store.place.slot.0,
            version,
            expiry_ms: store.expiry_ms,
            flags,
            previous: replaced.map_or(0, |found| found.entry.location),
            previous_length: replaced.map_or(0, |found| found.entry.length),
        };
        let transition =
            self.log.push_record(&header, store.key, store.place.fingerprint, store.value, urgency);
        self.commit(&transition, urgency);
        if replaced.is_none() {
            self.keys.note(store.place.generation, store.key, false);
        }
        add(&self.counts.stored_bytes, size);
        Ok(version)
    }

    /// The release of the version retained below the record at `location`, if there is one.
    pub(crate) fn release_note(&self, place: &Place, location: u64) -> Option<Transition> {
        let state = self.state.borrow();
        let kept = state.retained.get(&location)?;
        Some(Transition {
            slot: place.slot.0,
            container: place.generation,
            fingerprint: place.fingerprint,
            location,
            previous: kept.location,
            previous_length: kept.length,
            ..Transition::new(TransitionKind::Release)
        })
    }

    pub(crate) async fn delete(
        self: &Rc<Self>,
        container: ContainerId,
        key: &[u8],
        condition: Condition,
        durability: Durability,
    ) -> Result<Output> {
        self.wait_for_keys_patiently().await?;
        'held: loop {
            let (place, guard) = self.hold(container, key).await;
            loop {
                let held = self.held(&place, key, Extent::Head).await?;
                if self.place(container, key) != place {
                    continue 'held;
                }
                let Some(held) = held else { continue };
                let Some(found) = held else {
                    self.wait_for_seen(&place).await?;
                    return Err(Error::NotFound);
                };
                let expired = found.is_expired(self.now_ms());
                if let Err(error) = judge(condition, (!expired).then_some(&found)) {
                    drop(guard);
                    self.settle_refusal(&place, Some(&found)).await?;
                    return Err(error);
                }
                let item = self.item(&found, Vec::new())?;
                let doomed = self.doomed_upload(&found)?;
                match self.append_delete(&place, &found, doomed, durability) {
                    Err(Error::NoSpace) => self.wait_for_space(1).await?,
                    Err(error) => return Err(error),
                    Ok(()) => {
                        let frame = self.log.frame();
                        drop(guard);
                        self.acknowledge(frame, durability).await?;
                        return if expired { Err(Error::NotFound) } else { Ok(Output::Deleted(item)) };
                    }
                }
            }
        }
    }

    /// Before a refusal is told: what was seen expired is deleted durably, and what was seen at all
    /// is durable. The key is not held any more.
    async fn settle_refusal(&self, place: &Place, found: Option<&Found>) -> Result<()> {
        if let Some(found) = found.filter(|found| found.is_expired(self.now_ms())) {
            self.expire(place, found.entry).await?;
        }
        self.wait_for_seen(place).await
    }

    /// Before a refusal is told, what it tells of the key must be durable: its last write, its
    /// delete, or the emptying of its container.
    async fn wait_for_seen(&self, place: &Place) -> Result<()> {
        match self.pending_frame(place) {
            Some(frame) => self.log.wait_durable(frame).await,
            None => Ok(()),
        }
    }

    pub(crate) async fn set_expiry(
        self: &Rc<Self>,
        container: ContainerId,
        key: &[u8],
        expiry: Expiry,
        condition: Condition,
        durability: Durability,
    ) -> Result<Output> {
        'held: loop {
            let (place, guard) = self.hold(container, key).await;
            loop {
                let held = self.held(&place, key, Extent::Whole).await?;
                if self.place(container, key) != place {
                    continue 'held;
                }
                let Some(held) = held else { continue };
                let found = match held {
                    Some(found) if !found.is_expired(self.now_ms()) => found,
                    expired_or_none => {
                        drop(guard);
                        self.settle_refusal(&place, expired_or_none.as_ref()).await?;
                        return Err(Error::NotFound);
                    }
                };
                if let Err(error) = judge(condition, Some(&found)) {
                    self.wait_for_seen(&place).await?;
                    return Err(error);
                }
                let expiry_ms = match expiry {
                    Expiry::Never => 0,
                    Expiry::At(at_ms) => at_ms.max(1),
                    Expiry::Keep => found.expiry_ms,
                };
                let mut item = self.item(&found, Vec::new())?;
                item.expiry_ms = (expiry_ms != 0).then_some(expiry_ms);
                match self.append_expiry(place, key, found, expiry_ms, durability) {
                    Err(Error::NoSpace) => self.wait_for_space(1).await?,
                    Err(error) => return Err(error),
                    Ok(version) => {
                        let frame = self.log.frame();
                        drop(guard);
                        self.acknowledge(frame, durability).await?;
                        item.version = version;
                        return Ok(Output::ExpirySet(item));
                    }
                }
            }
        }
    }

    /// A short record is written anew, so that it needs no entry in memory; a long one gets a note.
    fn append_expiry(
        &self,
        place: Place,
        key: &[u8],
        found: Found,
        expiry_ms: u64,
        urgency: Durability,
    ) -> Result<Version> {
        let short = found.header.record_bytes() <= REWRITE_BYTES_MAX;
        let retained = self.state.borrow().retained.contains_key(&found.entry.location);
        if short && !retained && found.header.kind == RecordKind::Value {
            let value = self.value(&found)?.to_vec();
            let judged = Judged {
                place,
                key,
                kind: found.header.kind,
                value: &value,
                expiry_ms,
                lifetime: Lifetime::Unknown,
                retain: false,
                replaced: Some(found),
                commits: None,
                dooms: None,
            };
            return self.append_store(&judged, urgency);
        }
        self.reserve(note_bytes_max(1), 1)?;
        let mut flags = if expiry_ms == 0 { 0 } else { FLAG_EXPIRING };
        if found.expiry_ms != 0 {
            flags |= FLAG_PREVIOUS_EXPIRING;
        }
        let version = self.next_version();
        let transition = Transition {
            flags,
            slot: place.slot.0,
            container: place.generation,
            fingerprint: place.fingerprint,
            location: found.entry.location,
            length: found.entry.length,
            previous: version.clock,
            previous_length: version.epoch,
            argument: expiry_ms,
            ..Transition::new(TransitionKind::SetExpiry)
        };
        self.commit_note(&[transition], urgency);
        Ok(version)
    }

    pub(crate) async fn clear(&self, container: ContainerId, durability: Durability) -> Result<Output> {
        loop {
            match self.reserve(note_bytes_max(1), 1) {
                Err(Error::NoSpace) => self.wait_for_space(1).await?,
                Err(error) => return Err(error),
                Ok(()) => break,
            }
        }
        let transition = {
            let state = self.state.borrow();
            let generation = state.generation(container);
            let counters = state.counters(container);
            let whole = counters.keys + state.dead.values().sum::<u64>() == state.index.len();
            let pinned = self.pins.borrow().is_empty();
            let others =
                state.uploads.values().any(|u| u.generation != generation && !state.is_dead(u.generation));
            Transition {
                flags: if whole && pinned && !others { FLAG_WHOLE } else { 0 },
                container: generation,
                fingerprint: u64::from(container.0),
                argument: u64::from(state.next_generation),
                ..Transition::new(TransitionKind::Clear)
            }
        };
        self.commit_note(&[transition], durability);
        let frame = self.log.frame();
        self.background.wake_all();
        self.acknowledge(frame, durability).await?;
        Ok(Output::Done)
    }

    /// Stores and deletes in one frame.
    pub(crate) async fn batch(
        self: &Rc<Self>,
        ops: Vec<Op>,
        lifetime: Lifetime,
        durability: Durability,
    ) -> Result<Output> {
        if ops.len() > BATCH_OPS_MAX {
            return Err(Error::Invalid("too many operations in a batch"));
        }
        loop {
            let (guards, held) = self.hold_all(&ops).await?;
            let size: usize = ops.iter().map(batch_bytes).sum();
            if size > Log::frame_capacity(&self.layout) {
                return Err(Error::Invalid("the batch does not fit a frame"));
            }
            if has_stores(&ops) {
                self.admit(size as u64).await?; // Deletes go on when the device is full.
            }
            let Some(founds) = self.find_all(&ops).await? else { continue };
            if !founds.iter().all(|(place, _)| held.contains(&(place.slot.0, place.fingerprint))) {
                continue; // A container was emptied: other places are held than would be written.
            }
            let now_ms = self.now_ms();
            let expired =
                |found: &Option<Found>| found.as_ref().filter(|f| f.is_expired(now_ms)).map(|f| f.entry);
            let seen: Vec<_> = founds.iter().map(|(place, found)| (*place, expired(found))).collect();
            let changes = ops
                .iter()
                .zip(&founds)
                .any(|(op, (_, found))| matches!(op, Op::Store { .. }) || found.is_some());
            match self.append_batch(&ops, founds, size, lifetime, durability) {
                Err(Error::NoSpace) => self.wait_for_space(1).await?,
                Ok(outputs) if changes => {
                    let frame = self.log.frame();
                    drop(guards);
                    self.acknowledge(frame, durability).await?;
                    return Ok(Output::Batch(outputs));
                }
                refused_or_nothing_to_do => {
                    drop(guards);
                    for (place, expired) in seen {
                        if let Some(entry) = expired {
                            self.expire(&place, entry).await?;
                        }
                        self.wait_for_seen(&place).await?;
                    }
                    return refused_or_nothing_to_do.map(Output::Batch);
                }
            }
        }
    }

    /// Holds the keys of a batch, in one order for all batches.
    async fn hold_all(&self, ops: &[Op]) -> Result<(Vec<KeyGuard>, Vec<(u16, u64)>)> {
        let mut ids = Vec::new();
        let mut keys = std::collections::BTreeSet::new();
        for op in ops {
            let (Op::Store { container, key, value: Value::Bytes(_), .. }
            | Op::Delete { container, key, .. }) = op
            else {
                return Err(Error::Invalid("a batch holds stores and deletes"));
            };
            if key.len() >= plimsoll_kv::limits::KEY_BYTES_MAX {
                return Err(Error::KeyTooLong);
            }
            let longest = self.layout.record_value_bytes_max();
            if matches!(op, Op::Store { value: Value::Bytes(value), .. } if value.len() > longest) {
                return Err(Error::ValueTooLong);
            }
            if !keys.insert((*container, key.as_slice())) {
                return Err(Error::Invalid("a key stands in a batch twice"));
            }
            let place = self.place(*container, key);
            ids.push((place.slot.0, place.fingerprint));
        }
        ids.sort_unstable();
        ids.dedup();
        let mut guards = Vec::new();
        for (slot, fingerprint) in &ids {
            guards.push(self.locks.lock(*slot, *fingerprint).await);
        }
        Ok((guards, ids))
    }

    /// Looks up every key of a batch; nothing if one moved meanwhile.
    async fn find_all(&self, ops: &[Op]) -> Result<Option<Vec<(Place, Option<Found>)>>> {
        let mut founds: Vec<(Place, Option<Found>)> = Vec::new();
        for op in ops {
            let (Op::Store { container, key, .. } | Op::Delete { container, key, .. }) = op else {
                unreachable!("checked when the keys were held");
            };
            let place = self.place(*container, key);
            let Some(found) = self.held(&place, key, Extent::Whole).await? else { return Ok(None) };
            founds.push((place, found));
        }
        let current = ops.iter().zip(&founds).all(|(op, (place, found))| {
            let key = op.key().expect("stores and deletes have keys");
            self.place(place.container, key) == *place
                && found.as_ref().is_none_or(|found| self.is_current(place, &found.entry))
        });
        Ok(current.then_some(founds))
    }

    fn append_batch(
        &self,
        ops: &[Op],
        founds: Vec<(Place, Option<Found>)>,
        size: usize,
        lifetime: Lifetime,
        urgency: Durability,
    ) -> Result<Vec<Output>> {
        let now_ms = self.now_ms();
        let mut judged = Vec::new();
        for (op, (place, replaced)) in ops.iter().zip(founds) {
            let existing = replaced.as_ref().filter(|found| !found.is_expired(now_ms));
            let (Op::Store { condition, .. } | Op::Delete { condition, .. }) = op else {
                unreachable!("checked when the keys were held");
            };
            judge(*condition, existing)?;
            let dooms = replaced.as_ref().map_or(Ok(None), |found| self.doomed_upload(found))?;
            judged.push((op, place, replaced, dooms));
        }
        let transitions = STORE_TRANSITIONS * ops.len();
        if has_stores(ops) {
            self.reserve_for_store(size, transitions)?;
        } else {
            self.reserve(size, transitions)?;
        }
        let frame = self.log.frame();
        let mut outputs = Vec::new();
        for (op, place, replaced, dooms) in judged {
            outputs.push(self.append_batched(op, place, replaced, dooms, lifetime, urgency)?);
        }
        assert_eq!(self.log.frame(), frame, "a batch stands in one frame");
        Ok(outputs)
    }

    fn append_batched(
        &self,
        op: &Op,
        place: Place,
        replaced: Option<Found>,
        dooms: Option<u64>,
        lifetime: Lifetime,
        urgency: Durability,
    ) -> Result<Output> {
        let now_ms = self.now_ms();
        let existing = replaced.as_ref().filter(|found| !found.is_expired(now_ms));
        let item = existing.map(|found| self.item(found, Vec::new())).transpose()?;
        match op {
            Op::Store { key, value: Value::Bytes(value), expiry, retain, .. } => {
                let expiry_ms = match expiry {
                    Expiry::Never => 0,
                    Expiry::At(at_ms) => (*at_ms).max(1),
                    Expiry::Keep => existing.map_or(0, |found| found.expiry_ms),
                };
                let judged = Judged {
                    place,
                    key,
                    kind: RecordKind::Value,
                    value,
                    expiry_ms,
                    lifetime,
                    retain: *retain,
                    replaced,
                    commits: None,
                    dooms,
                };
                let version = self.push_store(&judged, urgency)?;
                Ok(Output::Stored { version, previous: item })
            }
            Op::Delete { .. } => {
                if let Some(found) = &replaced {
                    self.push_delete(&place, found, dooms, urgency);
                }
                Ok(item.map_or(Output::Done, Output::Deleted))
            }
            _ => unreachable!("checked when the keys were held"),
        }
    }

    pub(crate) async fn release(
        self: &Rc<Self>,
        container: ContainerId,
        key: &[u8],
        durability: Durability,
    ) -> Result<Output> {
        self.end_retained(container, key, durability, TransitionKind::Release).await
    }

    pub(crate) async fn revert(
        self: &Rc<Self>,
        container: ContainerId,
        key: &[u8],
        durability: Durability,
    ) -> Result<Output> {
        self.end_retained(container, key, durability, TransitionKind::Revert).await
    }

    async fn end_retained(
        self: &Rc<Self>,
        container: ContainerId,
        key: &[u8],
        durability: Durability,
        kind: TransitionKind,
    ) -> Result<Output> {
        'held: loop {
            let (place, guard) = self.hold(container, key).await;
            loop {
                let held = self.held(&place, key, Extent::Head).await?;
                if self.place(container, key) != place {
                    continue 'held;
                }
                let Some(held) = held else { continue };
                let Some(found) = held else {
                    self.wait_for_seen(&place).await?;
                    return Err(Error::NotFound);
                };
                let kept = self.state.borrow().retained.get(&found.entry.location).copied();
                let Some(kept) = kept else {
                    self.wait_for_seen(&place).await?;
                    return Err(Error::Invalid("no version is retained"));
                };
                let current = (found.entry.location, found.entry.length);
                let old = (kept.location, kept.length);
                let (now, gone) =
                    if kind == TransitionKind::Release { (current, old) } else { (old, current) };
                let expiring = |yes: bool, flag: u8| if yes { flag } else { 0 };
                let transition = Transition {
                    flags: expiring(kept.expiring, FLAG_EXPIRING)
                        | expiring(found.expiry_ms != 0, FLAG_PREVIOUS_EXPIRING),
                    slot: place.slot.0,
                    container: place.generation,
                    fingerprint: place.fingerprint,
                    location: now.0,
                    length: now.1,
                    previous: gone.0,
                    previous_length: gone.1,
                    ..Transition::new(kind)
                };
                match self.reserve(note_bytes_max(1), 1) {
                    Err(Error::NoSpace) => self.wait_for_space(1).await?,
                    Err(error) => return Err(error),
                    Ok(()) => {
                        self.commit_note(&[transition], durability);
                        let frame = self.log.frame();
                        drop(guard);
                        self.acknowledge(frame, durability).await?;
                        return Ok(Output::Done);
                    }
                }
            }
        }
    }

    /// The manifest of an upload whose parts are all there.
    fn manifest_of_upload(&self, upload: u64) -> Result<[u8; crate::format::record::MANIFEST_BYTES]> {
        let length = self.upload_length(upload)?;
        Ok(Manifest { length, upload, part_bytes: self.layout.part_bytes() }.encode())
    }

    fn check_upload(&self, upload: u64, place: &Place) -> Result<()> {
        let state = self.state.borrow();
        let found = state.uploads.get(&upload).ok_or(Error::Invalid("no such upload"))?;
        if found.state != UploadState::Open
            || found.generation != place.generation
            || found.slot != place.slot.0
        {
            return Err(Error::Invalid("the upload is gone, or belongs to another key"));
        }
        Ok(())
    }
}

fn has_stores(ops: &[Op]) -> bool {
    ops.iter().any(|op| matches!(op, Op::Store { .. }))
}

/// Bytes of log that an operation of a batch may take.
fn batch_bytes(op: &Op) -> usize {
    let record = match op {
        Op::Store { key, value: Value::Bytes(value), .. } => record_bytes(key.len(), value.len()) as usize,
        Op::Delete { key, .. } => record_bytes(key.len(), 0) as usize,
        _ => 0,
    };
    record + note_bytes_max(STORE_TRANSITIONS)
}
