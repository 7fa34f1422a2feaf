//! Batches: stores and deletes that happen all or not at all.
//!
//! Invariants: a batch stands in one frame; every operation is judged before the first is appended.

use crate::format::RecordKind;
use crate::format::note::note_bytes_max;
use crate::format::record::record_bytes;
use crate::held::judge;
use crate::key_locks::KeyGuard;
use crate::log::Log;
use crate::partition::{Extent, Found, Lookup, Partition, Place};
use crate::store::{Judged, STORE_TRANSITIONS};
use plimsoll_kv::limits::BATCH_OPS_MAX;
use plimsoll_kv::{Durability, Error, Expiry, Item, Lifetime, Op, Output, Result, Value};
use std::rc::Rc;

/// What an operation of a batch acts on.
struct Target {
    place: Place,
    /// The record that is there, expired or not.
    found: Option<Found>,
    /// What clients may know of it: nothing if it has expired.
    item: Option<Item>,
    /// The uploads that go with it.
    dooms: Vec<u64>,
}

impl Target {
    /// The record, if it has not expired.
    fn live(&self) -> Option<&Found> {
        self.found.as_ref().filter(|_| self.item.is_some())
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
            let size: usize = ops.iter().map(batch_bytes).sum();
            if size > Log::frame_capacity(&self.layout) {
                return Err(Error::Invalid("the batch does not fit a frame"));
            }
            if has_stores(&ops) {
                self.admit(size as u64).await?; // Deletes go on when the device is full.
            }
            let Some(targets) = self.find_all(&ops).await? else { continue };
            if !targets.iter().all(|target| held.contains(&target.place.lock_id())) {
                continue; // A container was emptied: other places are held than would be written.
            }
            let seen: Vec<_> = targets
                .iter()
                .map(|target| (target.place, target.found.is_some() && target.item.is_none()))
                .collect();
            let deletes_nothing =
                |(op, target): (&Op, &Target)| matches!(op, Op::Delete { .. }) && target.found.is_none();
            let changes = !ops.iter().zip(&targets).all(deletes_nothing);
            match self.append_batch(&ops, targets, size, lifetime, durability) {
                Err(Error::NoSpace) if has_stores(&ops) => self.wait_to_store().await?,
                Err(Error::NoSpace) => self.wait_to_delete().await?,
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
    async fn find_all(&self, ops: &[Op]) -> Result<Option<Vec<Target>>> {
        let mut targets = Vec::new();
        for op in ops {
            let (Op::Store { container, key, .. } | Op::Delete { container, key, .. }) = op else {
                unreachable!("checked when the keys were held");
            };
            let place = self.place(*container, key);
            let found = match self.find(&place, key, Extent::Whole).await? {
                Lookup::Found(found) => Some(found),
                Lookup::Absent => None,
                Lookup::Moved => return Ok(None),
            };
            let Some(dooms) = self.uploads_of(&place, found.as_ref()).await? else { return Ok(None) };
            let live = found.as_ref().filter(|found| !found.is_expired(self.now_ms()));
            let item = live.map(|found| self.item(found, Vec::new())).transpose()?;
            targets.push(Target { place, found, item, dooms });
        }
        let current = ops.iter().zip(&targets).all(|(op, target)| {
            let key = op.key().expect("stores and deletes have keys");
            self.place(target.place.container, key) == target.place
                && target.found.as_ref().is_none_or(|found| self.is_current(&target.place, &found.entry))
        });
        Ok(current.then_some(targets))
    }

    /// Judges every operation, then appends them all. Nothing is awaited: what was judged still holds.
    fn append_batch(
        &self,
        ops: &[Op],
        targets: Vec<Target>,
        size: usize,
        lifetime: Lifetime,
        urgency: Durability,
    ) -> Result<Vec<Output>> {
        for (op, target) in ops.iter().zip(&targets) {
            let (condition, retain) = match op {
                Op::Store { condition, retain, .. } => (*condition, *retain),
                Op::Delete { condition, .. } => (*condition, false),
                _ => unreachable!("checked when the keys were held"),
            };
            judge(condition, target.live())?;
            self.may_retain(retain, target.found.as_ref())?;
        }
        let transitions = STORE_TRANSITIONS * ops.len();
        if has_stores(ops) {
            self.reserve_for_store(size, transitions)?;
        } else {
            self.reserve_for_delete(size, transitions)?;
        }
        let frame = self.log.frame();
        let each = ops.iter().zip(targets);
        let outputs = each.map(|(op, target)| self.append_batched(op, target, lifetime, urgency)).collect();
        assert_eq!(self.log.frame(), frame, "a batch stands in one frame");
        Ok(outputs)
    }

    fn append_batched(&self, op: &Op, target: Target, lifetime: Lifetime, urgency: Durability) -> Output {
        match op {
            Op::Store { key, value: Value::Bytes(value), expiry, retain, .. } => {
                let expiry_ms = match expiry {
                    Expiry::Never => 0,
                    Expiry::At(at_ms) => (*at_ms).max(1),
                    Expiry::Keep => target.live().map_or(0, |found| found.expiry_ms),
                };
                let judged = Judged {
                    place: target.place,
                    key,
                    kind: RecordKind::Value,
                    value,
                    expiry_ms,
                    lifetime,
                    retain: *retain,
                    replaced: target.found,
                    commits: None,
                    dooms: target.dooms,
                };
                let version = self.push_store(&judged, urgency);
                Output::Stored { version, previous: target.item }
            }
            Op::Delete { .. } => {
                if let Some(found) = &target.found {
                    self.push_delete(&target.place, found, &target.dooms, urgency);
                }
                target.item.map_or(Output::Done, Output::Deleted)
            }
            _ => unreachable!("checked when the keys were held"),
        }
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
