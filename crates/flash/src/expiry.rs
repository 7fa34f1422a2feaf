//! Changing when a key expires.
//!
//! Invariant: a long value is not written again: a note of some bytes overrides what its record says
//! until cleaning writes the record anew. The number of such notes is bounded by the size of the device.

use crate::fetch::{Extent, Found};
use crate::format::note::note_bytes_max;
use crate::format::transition::{FLAG_EXPIRING, FLAG_PREVIOUS_EXPIRING};
use crate::format::{RecordKind, Transition, TransitionKind};
use crate::held::{Replaced, judge};
use crate::partition::{Partition, Place};
use crate::store::{Judged, STORE_TRANSITIONS};
use plimsoll_kv::{Condition, ContainerId, Durability, Error, Expiry, Lifetime, Output, Result, Version};
use std::rc::Rc;

/// Records up to this size are rewritten when their expiry changes; longer ones get a note.
const REWRITE_BYTES_MAX: u64 = 2048;
/// Notes stay in memory and in checkpoints until cleaning has written their records anew. There is one for
/// so many bytes of the device at most; then records up to this size are rewritten too.
const NOTED_BYTES_MIN: u64 = 256 << 10;

impl Partition {
    pub(crate) async fn set_expiry(
        self: &Rc<Self>,
        container: ContainerId,
        key: &[u8],
        expiry: Expiry,
        condition: Condition,
        durability: Durability,
    ) -> Result<Output> {
        self.log.wait_for_room().await?;
        let mut hold = self.hold(container, key).await;
        loop {
            let held;
            (hold, held) = self.find_held(hold, key, Extent::Whole).await?;
            let found = match held.readable()? {
                Some(found) if !found.is_expired(self.now_ms()) => found,
                gone => return self.refuse(hold, key, gone.as_ref(), Error::NotFound).await,
            };
            if let Err(error) = judge(condition, Some(&found)) {
                return self.refuse(hold, key, Some(&found), error).await;
            }
            let expiry_ms = match expiry {
                Expiry::Never => 0,
                Expiry::At(at_ms) => at_ms.max(1),
                Expiry::Keep => found.expiry_ms,
            };
            let mut item = self.item(&found, Vec::new())?;
            item.expiry_ms = (expiry_ms != 0).then_some(expiry_ms);
            match self.append_expiry(hold.place, key, found, expiry_ms, durability) {
                Err(Error::NoSpace) => self.wait_to_store().await?,
                Err(error) => return Err(error),
                Ok(version) => {
                    let frame = self.log.frame();
                    drop(hold);
                    self.acknowledge(frame, durability).await?;
                    item.version = version;
                    return Ok(Output::ExpirySet(item));
                }
            }
        }
    }

    /// Whether a change of its expiry writes a record anew.
    fn is_rewritten(&self, found: &Found) -> bool {
        let state = self.state.borrow();
        if state.kept.below(found.entry.location).is_some() {
            return false; // A rewritten record would be a new version with nothing below it.
        }
        if found.header.kind != RecordKind::Value {
            return false;
        }
        let bytes = found.header.record_bytes();
        let capacity_bytes = u64::from(self.layout.segments) * self.layout.segment_bytes;
        let noted = &state.expiry_overrides;
        let many = noted.len() as u64 >= capacity_bytes / NOTED_BYTES_MIN;
        bytes <= REWRITE_BYTES_MAX
            || (bytes < NOTED_BYTES_MIN && many && !noted.contains_key(&found.entry.location))
    }

    fn append_expiry(
        &self,
        place: Place,
        key: &[u8],
        found: Found,
        expiry_ms: u64,
        urgency: Durability,
    ) -> Result<Version> {
        let record_bytes = if self.is_rewritten(&found) { found.header.record_bytes() as usize } else { 0 };
        self.reserve_for_store(record_bytes + note_bytes_max(STORE_TRANSITIONS), STORE_TRANSITIONS)?;
        self.push_expiry(place, key, found, expiry_ms, urgency)
    }

    /// Pushes a change for which there is room. A short record is written anew, so that it needs no entry
    /// in memory; a long one gets a note.
    pub(crate) fn push_expiry(
        &self,
        place: Place,
        key: &[u8],
        found: Found,
        expiry_ms: u64,
        urgency: Durability,
    ) -> Result<Version> {
        if self.is_rewritten(&found) {
            let value = self.value(&found)?.to_vec();
            let judged = Judged {
                place,
                key,
                kind: found.header.kind,
                value: [&value, &[]],
                expiry_ms,
                lifetime: Lifetime::Unknown,
                retain: false,
                replaced: Some(Replaced::from(&found)),
                commits: None,
                keeps: None,
                dooms: Vec::new(),
            };
            return Ok(self.push_store(&judged, urgency));
        }
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
        if expiry_ms != 0 {
            let units = u64::from(found.entry.length);
            self.state.borrow_mut().segments.note_expiry(found.entry.location, units, expiry_ms);
        }
        Ok(version)
    }
}
