//! Batches: stores and deletes that happen all or not at all.
//!
//! Invariants: a batch stands in one frame; every operation is judged before the first is appended; what is
//! to be kept of a key is what it held before the batch.

use crate::fetch::{Extent, Found, Lookup, ReadFrom};
use crate::format::record::record_bytes;
use crate::format::transition::FLAG_PREVIOUS_EXPIRING;
use crate::format::{RecordKind, Transition, TransitionKind, UNIT_BYTES};
use crate::held::{Replaced, judge};
use crate::log::Log;
use crate::partition::{Partition, Place};
use crate::space::Beyond;
use crate::store::{Judged, STORE_TRANSITIONS, expiry_ms};
use crate::targets::{Target, has_stores, log_bytes};
use plimsoll_kv::key_locks::KeyGuard;
use plimsoll_kv::limits::{BATCH_OPS_MAX, KEPT_HEAD_BYTES_MAX, RECORD_VALUE_BYTES_MAX};
use plimsoll_kv::{Deleted, Durability, Error, Item, Kept, Lifetime, Op, Output, Result, Value};
use std::collections::BTreeSet;
use std::rc::Rc;

/// An operation of a batch, what it acts on, and what clients may know of that.
struct Batched<'a> {
    target: Target<'a>,
    /// Nothing if it has expired.
    item: Option<Item>,
    /// What another key holds that is kept below this one.
    source: Option<Source>,
}

/// The record of a key whose value another key is given.
#[derive(Clone, Copy)]
struct Source {
    place: Place,
    replaced: Replaced,
    kind: RecordKind,
    value_bytes: u32,
}

impl Batched<'_> {
    /// The record, if it has not expired.
    fn live(&self) -> Option<&Found> {
        self.target.found.as_ref().filter(|_| self.item.is_some())
    }

    /// Whether all keys that it is about are held.
    fn is_held(&self, held: &[(u16, u64)]) -> bool {
        let source = self.source.map(|source| source.place);
        [Some(self.target.place), source].iter().flatten().all(|place| held.contains(&place.lock_id()))
    }

    /// True if it deletes what is not there.
    fn deletes_nothing(&self) -> bool {
        matches!(self.target.write, Op::Delete { .. }) && self.target.replaced().is_none()
    }

    /// True if it is to keep what another key holds, and that one is not there.
    fn keeps_nothing(&self) -> bool {
        self.target.write.kept().is_some() && self.source.is_none()
    }
}

impl Source {
    /// What is kept holds bytes of its own.
    fn judge(self, kept: &Kept) -> Result<()> {
        match self.kind {
            RecordKind::Value if kept.bytes.is_some_and(|bytes| bytes != u64::from(self.value_bytes)) => {
                Err(Error::Invalid("what is to be kept has another length"))
            }
            RecordKind::Value => Ok(()),
            RecordKind::Keeper => Err(Error::Invalid("what is to be kept is kept under another key itself")),
            _ => Err(Error::ValueTooLong),
        }
    }

    /// That it is kept, but not yet below what.
    fn keep(self) -> Transition {
        Transition {
            flags: if self.replaced.is_expiring { FLAG_PREVIOUS_EXPIRING } else { 0 },
            slot: self.place.slot.0,
            container: self.place.generation,
            fingerprint: self.place.fingerprint,
            previous: self.replaced.entry.location,
            previous_length: self.replaced.entry.length,
            ..Transition::new(TransitionKind::Keep)
        }
    }
}

impl Partition {
    /// Stores and deletes in one frame.
    pub(crate) async fn batch(
        self: &Rc<Self>,
        ops: Vec<Op>,
        (lifetime, beyond): (Lifetime, Beyond),
        durability: Durability,
    ) -> Result<Output> {
        if ops.len() > BATCH_OPS_MAX {
            return Err(Error::Invalid("too many operations in a batch"));
        }
        self.log.wait_for_room().await?;
        loop {
            let (guards, held) = self.hold_all(&ops).await?;
            let (size, stores) = (log_bytes(&ops), has_stores(&ops));
            if size > Log::frame_capacity(&self.layout) {
                return Err(Error::Invalid("the batch does not fit a frame"));
            }
            if stores {
                self.admit(size as u64, beyond).await?; // Deletes go on when the device is full.
            }
            let stores = stores && !beyond.deletes();
            let Some(batch) = self.find_all(&ops).await? else { continue };
            if !batch.iter().all(|one| one.is_held(&held)) {
                continue; // A container was emptied: other places are held than would be written.
            }
            let is_expired = |one: &Batched<'_>| one.target.found.is_some() && one.item.is_none();
            let seen: Vec<_> = batch.iter().map(|one| (one.target.place, is_expired(one))).collect();
            let changes = !batch.iter().all(|one| one.deletes_nothing() || one.keeps_nothing());
            match self.append_batch(batch, (size, stores), lifetime, durability) {
                Err(Error::NoSpace) => self.wait_to_write(stores).await?,
                Ok(outputs) if changes => {
                    let frame = self.log.frame();
                    drop(guards);
                    self.acknowledge(frame, durability).await?;
                    return Ok(Output::Batch(outputs));
                }
                refused_or_nothing_to_do => {
                    drop(guards);
                    for (op, (place, expired)) in ops.iter().zip(seen) {
                        self.settle_refusal(&place, op.key().unwrap_or_default(), expired).await?;
                    }
                    for kept in ops.iter().filter_map(Op::kept) {
                        let place = self.place(kept.container, &kept.key);
                        self.settle_refusal(&place, &kept.key, true).await?;
                    }
                    return refused_or_nothing_to_do.map(Output::Batch);
                }
            }
        }
    }

    /// Refuses a batch that keeps what cannot be kept so.
    fn check_keepers(&self, ops: &[Op]) -> Result<()> {
        let keepers = ops.iter().filter(|op| op.kept().is_some()).filter_map(Op::place);
        let keepers: BTreeSet<_> = keepers.collect();
        for op in ops {
            let Some(kept) = op.kept() else { continue };
            if !self.layout.keeps {
                return Err(Error::Unsupported("values under other keys, on a device of an older format"));
            }
            if kept.head.len() > KEPT_HEAD_BYTES_MAX {
                return Err(Error::Invalid("a long head of a value that is kept"));
            }
            if matches!(op, Op::Store { retain: true, .. }) {
                return Err(Error::Invalid("what is kept under another key retains nothing"));
            }
            if keepers.contains(&(kept.container, kept.key.as_slice())) {
                return Err(Error::Invalid("a key of a batch keeps what another one keeps"));
            }
        }
        Ok(())
    }

    /// Holds the keys of a batch.
    async fn hold_all(&self, ops: &[Op]) -> Result<(Vec<KeyGuard>, Vec<(u16, u64)>)> {
        self.check_keepers(ops)?;
        let mut ids = Vec::new();
        let mut keys = BTreeSet::new();
        for op in ops {
            let (Op::Store { container, key, value: Value::Bytes(_) | Value::Kept(_), .. }
            | Op::Delete { container, key, .. }) = op
            else {
                return Err(Error::Invalid("a batch holds stores and deletes"));
            };
            ids.extend(op.kept().map(|kept| self.place(kept.container, &kept.key).lock_id()));
            if key.len() > plimsoll_kv::limits::KEY_BYTES_MAX {
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
            ids.push(place.lock_id());
        }
        ids.sort_unstable();
        ids.dedup();
        // All at one instant: else who wants everything could come between, and both would wait for ever.
        let guards = self.locks.lock_all(&ids).await;
        Ok((guards, ids))
    }

    /// Looks up every key of a batch; nothing if one moved meanwhile.
    async fn find_all<'a>(self: &Rc<Self>, ops: &'a [Op]) -> Result<Option<Vec<Batched<'a>>>> {
        let Some(targets) = self.find_targets(ops).await? else { return Ok(None) };
        let Some(sources) = self.find_sources(&targets).await? else { return Ok(None) };
        let now_ms = self.now_ms();
        let each = targets.into_iter().zip(sources).map(|(target, source)| {
            let live = target.found.as_ref().filter(|found| !found.is_expired(now_ms));
            let item = live.map(|found| self.item(found, Vec::new())).transpose()?;
            Ok(Batched { target, item, source })
        });
        each.collect::<Result<_>>().map(Some)
    }

    /// Looks up what is to be kept below the records of a batch; nothing if something moved meanwhile.
    async fn find_sources(self: &Rc<Self>, targets: &[Target<'_>]) -> Result<Option<Vec<Option<Source>>>> {
        let mut sources = Vec::with_capacity(targets.len());
        for target in targets {
            let source = match target.write.kept() {
                None => None,
                Some(kept) => match self.find_source(kept, targets).await? {
                    Lookup::Found(source) => Some(source),
                    Lookup::Absent => None,
                    Lookup::Moved => return Ok(None),
                },
            };
            sources.push(source);
        }
        let are_right = targets.iter().all(|target| self.is_right(target))
            && sources.iter().flatten().all(|source| self.is_current(&source.place, &source.replaced.entry));
        Ok(are_right.then_some(sources))
    }

    /// The record of a key that is to be kept: known, or looked at with what the batch acts on, or now.
    async fn find_source(self: &Rc<Self>, kept: &Kept, targets: &[Target<'_>]) -> Result<Lookup<Source>> {
        let place = self.place(kept.container, &kept.key);
        let source = |found: &Found| match found.is_expired(self.now_ms()) {
            true => Lookup::Absent,
            false => Lookup::Found(Source {
                place,
                replaced: Replaced::from(found),
                kind: found.header.kind,
                value_bytes: found.header.value_bytes,
            }),
        };
        let its = |other: &&Target<'_>| other.write.place() == Some((kept.container, kept.key.as_slice()));
        if let Some(found) = targets.iter().find(its).and_then(|other| other.found.as_ref()) {
            return Ok(source(found));
        }
        if let Some(source) = self.known_source(place, kept) {
            return Ok(Lookup::Found(source));
        }
        Ok(match self.find(&place, &kept.key, Extent::Head, ReadFrom::Anywhere).await? {
            Lookup::Found(found) => source(&found),
            Lookup::Absent => Lookup::Absent,
            Lookup::Moved => Lookup::Moved,
        })
    }

    /// The same without a look: only of records that hold bytes of their own it is known whose they are.
    fn known_source(&self, place: Place, kept: &Kept) -> Option<Source> {
        let replaced = self.known_at(&place, &kept.key).filter(|known| !known.is_expiring)?;
        let bytes = kept.bytes.filter(|bytes| *bytes <= RECORD_VALUE_BYTES_MAX as u64)?;
        let is_as_long =
            record_bytes(kept.key.len(), bytes as usize) == u64::from(replaced.entry.length) * UNIT_BYTES;
        let source = Source { place, replaced, kind: RecordKind::Value, value_bytes: bytes as u32 };
        is_as_long.then_some(source)
    }

    /// Judges every operation, then appends them all. Nothing is awaited: what was judged still holds.
    fn append_batch(
        &self,
        mut batch: Vec<Batched<'_>>,
        (size, stores): (usize, bool),
        lifetime: Lifetime,
        urgency: Durability,
    ) -> Result<Vec<Output>> {
        for one in &batch {
            let condition = match one.target.write {
                Op::Store { condition, .. } | Op::Delete { condition, .. } => *condition,
                _ => unreachable!("checked when the keys were held"),
            };
            // What was not read was not asked for: no condition is in doubt.
            if one.target.known.is_none() {
                judge(condition, one.live())?;
            }
            one.target.judge_retain()?;
            one.source.zip(one.target.write.kept()).map_or(Ok(()), |(source, kept)| source.judge(kept))?;
        }
        self.reserve_for_writes(stores, size, STORE_TRANSITIONS * batch.len())?;
        let frame = self.log.frame();
        let mut outputs = vec![Output::Done; batch.len()];
        // What is kept of a key is what it held before: it is kept first, and then replaced.
        for keeps in [true, false] {
            let some = batch.iter_mut().zip(&mut outputs).filter(|(one, _)| one.source.is_some() == keeps);
            for (one, output) in some {
                *output = self.append_batched(one, lifetime, urgency);
            }
        }
        assert_eq!(self.log.frame(), frame, "a batch stands in one frame");
        Ok(outputs)
    }

    fn append_batched(&self, one: &mut Batched<'_>, lifetime: Lifetime, urgency: Durability) -> Output {
        match one.target.write {
            _ if one.keeps_nothing() => Output::Done,
            Op::Store { key, value, expiry, retain, want_previous, .. } => {
                let kept_bytes = one.source.map_or(0, |source| source.value_bytes).to_le_bytes();
                let (kind, value) = match value {
                    Value::Bytes(value) => (RecordKind::Value, value.parts()),
                    Value::Kept(kept) => (RecordKind::Keeper, [&kept.head[..], &kept_bytes]),
                    Value::Upload(_) | Value::Edit(_) => unreachable!("checked when the keys were held"),
                };
                let judged = Judged {
                    place: one.target.place,
                    key,
                    kind,
                    value,
                    expiry_ms: expiry_ms(*expiry, one.live()),
                    lifetime,
                    retain: *retain,
                    replaced: one.target.replaced(),
                    commits: None,
                    keeps: one.source.map(Source::keep),
                    dooms: std::mem::take(&mut one.target.dooms),
                };
                let version = self.push_store(&judged, urgency);
                let previous = one.item.take().filter(|_| *want_previous).map(|mut item| {
                    item.bytes =
                        one.target.found.as_ref().and_then(|it| self.value_read(it)).unwrap_or_default();
                    item
                });
                Output::Stored { version, previous }
            }
            Op::Delete { key, .. } => {
                self.push_delete_of(&one.target, key, urgency);
                match (&one.target.known, &one.item) {
                    (Some(known), _) if known.is_damaged => Output::Deleted(Deleted::Unreadable),
                    (Some(_), _) => Output::Deleted(Deleted::Unseen),
                    (None, Some(item)) => Output::Deleted(Deleted::Version(item.version)),
                    (None, None) => Output::Done,
                }
            }
            _ => unreachable!("checked when the keys were held"),
        }
    }

    /// A value in one record, if all of it was read along with its head.
    fn value_read(&self, found: &Found) -> Option<Vec<u8>> {
        let is_read = found.bytes.len() as u64 >= found.header.record_bytes();
        let is_value = found.header.kind == RecordKind::Value;
        (is_read && is_value).then(|| self.value(found).ok().map(<[u8]>::to_vec)).flatten()
    }
}
