//! Batches: stores and deletes that happen all or not at all.
//!
//! Invariants: a batch stands in one frame; every operation is judged before the first is appended.

use crate::format::RecordKind;
use crate::held::judge;
use crate::log::Log;
use crate::partition::{Found, Partition};
use crate::store::{Judged, STORE_TRANSITIONS, expiry_ms};
use crate::targets::{Target, has_stores, log_bytes};
use plimsoll_kv::key_locks::KeyGuard;
use plimsoll_kv::limits::BATCH_OPS_MAX;
use plimsoll_kv::{Durability, Error, Item, Lifetime, Op, Output, Result, Value};
use std::rc::Rc;

/// An operation of a batch, what it acts on, and what clients may know of that.
struct Batched<'a> {
    target: Target<'a>,
    /// Nothing if it has expired.
    item: Option<Item>,
}

impl Batched<'_> {
    /// The record, if it has not expired.
    fn live(&self) -> Option<&Found> {
        self.target.found.as_ref().filter(|_| self.item.is_some())
    }
}

impl Partition {
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
        self.log.wait_for_room().await?;
        loop {
            let (guards, held) = self.hold_all(&ops).await?;
            let (size, stores) = (log_bytes(&ops), has_stores(&ops));
            if size > Log::frame_capacity(&self.layout) {
                return Err(Error::Invalid("the batch does not fit a frame"));
            }
            if stores {
                self.admit(size as u64).await?; // Deletes go on when the device is full.
            }
            let Some(batch) = self.find_all(&ops).await? else { continue };
            if !batch.iter().all(|one| held.contains(&one.target.place.lock_id())) {
                continue; // A container was emptied: other places are held than would be written.
            }
            let is_expired = |one: &Batched<'_>| one.target.found.is_some() && one.item.is_none();
            let seen: Vec<_> = batch.iter().map(|one| (one.target.place, is_expired(one))).collect();
            let deletes_nothing = |one: &Batched<'_>| {
                matches!(one.target.write, Op::Delete { .. }) && one.target.found.is_none()
            };
            let changes = !batch.iter().all(deletes_nothing);
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
                    return refused_or_nothing_to_do.map(Output::Batch);
                }
            }
        }
    }

    /// Holds the keys of a batch.
    async fn hold_all(&self, ops: &[Op]) -> Result<(Vec<KeyGuard>, Vec<(u16, u64)>)> {
        let mut ids = Vec::new();
        let mut keys = std::collections::BTreeSet::new();
        for op in ops {
            let (Op::Store { container, key, value: Value::Bytes(_), .. }
            | Op::Delete { container, key, .. }) = op
            else {
                return Err(Error::Invalid("a batch holds stores and deletes"));
            };
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
        let now_ms = self.now_ms();
        let each = targets.into_iter().map(|target| {
            let live = target.found.as_ref().filter(|found| !found.is_expired(now_ms));
            let item = live.map(|found| self.item(found, Vec::new())).transpose()?;
            Ok(Batched { target, item })
        });
        each.collect::<Result<_>>().map(Some)
    }

    /// Judges every operation, then appends them all. Nothing is awaited: what was judged still holds.
    fn append_batch(
        &self,
        batch: Vec<Batched<'_>>,
        (size, stores): (usize, bool),
        lifetime: Lifetime,
        urgency: Durability,
    ) -> Result<Vec<Output>> {
        for one in &batch {
            let condition = match one.target.write {
                Op::Store { condition, .. } | Op::Delete { condition, .. } => *condition,
                _ => unreachable!("checked when the keys were held"),
            };
            judge(condition, one.live())?;
        }
        self.reserve_for_writes(stores, size, STORE_TRANSITIONS * batch.len())?;
        let frame = self.log.frame();
        let outputs = batch.into_iter().map(|one| self.append_batched(one, lifetime, urgency)).collect();
        assert_eq!(self.log.frame(), frame, "a batch stands in one frame");
        Ok(outputs)
    }

    fn append_batched(&self, one: Batched<'_>, lifetime: Lifetime, urgency: Durability) -> Output {
        match one.target.write {
            Op::Store { key, value: Value::Bytes(value), expiry, retain, want_previous, .. } => {
                let judged = Judged {
                    place: one.target.place,
                    key,
                    kind: RecordKind::Value,
                    value: value.parts(),
                    expiry_ms: expiry_ms(*expiry, one.live()),
                    lifetime,
                    retain: *retain,
                    replaced: one.target.replaced(),
                    commits: None,
                    dooms: one.target.dooms,
                };
                let version = self.push_store(&judged, urgency);
                let previous = one.item.filter(|_| *want_previous).map(|mut item| {
                    item.bytes =
                        one.target.found.as_ref().and_then(|it| self.value_read(it)).unwrap_or_default();
                    item
                });
                Output::Stored { version, previous }
            }
            Op::Delete { .. } => {
                let Target { place, found, dooms, .. } = &one.target;
                if let Some(found) = found {
                    self.push_delete(place, found, dooms, urgency);
                }
                one.item.map_or(Output::Done, |item| Output::Deleted(item.version))
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
