//! The writes of a transaction: looked at, appended, applied.
//!
//! Invariants: between the last look at a record and the place in the log of what replaces it nothing is
//! awaited; clears come before the writes to their containers, which are then of the new generation; what
//! is done twice, because a crash came between, leaves what it left the first time.

use super::RETRY_DELAY_NS;
use crate::format::RecordKind;
use crate::format::note::note_bytes_max;
use crate::format::record::{MANIFEST_BYTES, Manifest};
use crate::log::Log;
use crate::partition::Partition;
use crate::store::{Judged, STORE_TRANSITIONS, expiry_ms};
use crate::targets::{Target, has_stores, log_bytes};
use plimsoll_kv::{ContainerId, Durability, Error, Lifetime, Op, Result, TransactionId, Value};
use plimsoll_reactor::Pacer;
use std::rc::Rc;

/// A write that was promised is tried so often if the record that it replaces cannot be read.
const ATTEMPTS_MAX: u32 = 5;

impl Partition {
    /// Looks whether what the writes replace can be read.
    pub(super) async fn look_at_targets(self: &Rc<Self>, writes: &[Op]) -> Result<()> {
        let pacer = Pacer::new(&self.reactor);
        for write in writes {
            while self.find_target(write).await?.is_none() {}
            pacer.step().await;
        }
        Ok(())
    }

    /// Does all writes in one frame of the log; the frame, or nothing if they do not fit one.
    pub(super) async fn write_in_one_frame(
        self: &Rc<Self>,
        id: TransactionId,
        clears: &[ContainerId],
        writes: &[Op],
        lifetime: Lifetime,
        urgency: Durability,
    ) -> Result<Option<u64>> {
        let is_store = has_stores(writes);
        let capacity = Log::frame_capacity(&self.layout);
        let of_clears = clears.len() * note_bytes_max(STORE_TRANSITIONS);
        let least = log_bytes(writes) + of_clears;
        if least > capacity {
            return Ok(None);
        }
        self.log.wait_for_room().await?;
        loop {
            if is_store {
                self.admit_writes(id, least as u64).await?;
            }
            let Some(targets) = self.find_targets(writes).await? else { continue };
            let bytes = targets.iter().map(Target::log_bytes).sum::<usize>() + of_clears;
            if bytes > capacity {
                return Ok(None);
            }
            let transitions = STORE_TRANSITIONS * targets.len() + clears.len();
            match self.reserve_for_writes(is_store, bytes, transitions) {
                Err(Error::NoSpace) => self.wait_to_write(is_store).await?,
                Err(error) => return Err(error),
                Ok(()) => {
                    let frame = self.log.frame();
                    clears.iter().for_each(|container| self.push_clear(*container, urgency));
                    for mut target in targets {
                        if clears.contains(&target.place.container) {
                            target = self.emptied(target);
                        }
                        self.push_write(target, lifetime, urgency)?;
                    }
                    assert_eq!(self.log.frame(), frame, "a transaction of one partition stands in one frame");
                    return Ok(Some(frame));
                }
            }
        }
    }

    /// A write to a container that was emptied since it was looked at.
    fn emptied<'a>(&self, target: Target<'a>) -> Target<'a> {
        let key = target.write.key().expect("every write has a key");
        let place = self.place(target.place.container, key);
        Target { write: target.write, place, found: None, known: None, dooms: Vec::new() }
    }

    /// Does everything that was prepared, one after the other; what was done before a crash came between
    /// is not done again, or leaves what it left the first time.
    pub(super) async fn apply_writes(
        self: &Rc<Self>,
        clears: &[(ContainerId, u32)],
        writes: &[Op],
    ) -> Result<()> {
        for (container, generation) in clears {
            self.reserve_promised(note_bytes_max(1), 1).await?;
            if self.state.borrow().generation(*container) == *generation {
                self.push_clear(*container, Durability::Async);
            }
        }
        let pacer = Pacer::new(&self.reactor);
        for write in writes {
            pacer.step().await;
            let mut attempts = 0;
            while let Err(error) = self.apply_write(write).await {
                match error {
                    Error::NoSpace => self.wait_patiently().await?,
                    Error::Unreadable(_) if attempts < ATTEMPTS_MAX => {
                        attempts += 1;
                        self.reactor.sleep_ns(RETRY_DELAY_NS).await;
                    }
                    Error::Unreadable(what) => {
                        // Whose record that is cannot be proved: the key keeps its error.
                        tracing::error!(
                            partition = self.layout.partition,
                            what,
                            "a write of a transaction is lost: what it replaces is damaged, and stays so"
                        );
                        break;
                    }
                    error => return Err(error),
                }
            }
        }
        Ok(())
    }

    async fn apply_write(self: &Rc<Self>, write: &Op) -> Result<()> {
        self.wait_for_keys_patiently().await?;
        self.log.wait_for_room().await?;
        loop {
            let Some(target) = self.find_target(write).await? else { continue };
            if !self.is_right(&target) {
                continue;
            }
            if let (Op::Store { value: Value::Upload(upload), .. }, Some(found)) = (write, &target.found)
                && self.own_upload(found)? == Some(upload.0)
            {
                return Ok(()); // Done before a crash: the upload is the key's value already.
            }
            self.reserve_small(target.log_bytes(), STORE_TRANSITIONS)?;
            return self.push_write(target, Lifetime::Unknown, Durability::Async);
        }
    }

    /// Appends a write for which there is room.
    fn push_write(&self, target: Target<'_>, lifetime: Lifetime, urgency: Durability) -> Result<()> {
        let replaced = target.replaced();
        if let Op::Delete { key, .. } = target.write {
            self.push_delete_of(&target, key, urgency);
            return Ok(());
        }
        let Target { write, place, found, dooms, .. } = target;
        match write {
            Op::Store { key, value, expiry, .. } => {
                let manifest;
                let (kind, bytes, commits) = match value {
                    Value::Bytes(bytes) => (RecordKind::Value, bytes.parts(), None),
                    Value::Upload(upload) => {
                        manifest = self.manifest_of_promised(upload.0)?;
                        (RecordKind::Manifest, [manifest.as_slice(), &[]], Some(upload.0))
                    }
                    Value::Edit(_) | Value::Kept(_) => unreachable!("no write of a transaction"),
                };
                self.push_store(
                    &Judged {
                        place,
                        key,
                        kind,
                        value: bytes,
                        expiry_ms: expiry_ms(*expiry, None),
                        lifetime,
                        retain: false,
                        replaced,
                        commits,
                        keeps: None,
                        dooms,
                    },
                    urgency,
                );
            }
            Op::SetExpiry { key, expiry, .. } => {
                if let Some(found) = found {
                    self.push_expiry(place, key, found, expiry_ms(*expiry, None), urgency)?;
                }
            }
            _ => unreachable!("checked before"),
        }
        Ok(())
    }

    /// The manifest of an upload that a transaction stores.
    fn manifest_of_promised(&self, upload: u64) -> Result<[u8; MANIFEST_BYTES]> {
        let state = self.state.borrow();
        let length = state.uploads.get(&upload).ok_or(Error::Invalid("no such upload"))?.length;
        Ok(Manifest { length, upload, part_bytes: self.layout.part_bytes() }.encode())
    }
}
