//! Retained versions: what a store replaced, kept until it is released or put back.
//!
//! Invariant: at most one version is kept below a key's current one, and what is kept now takes the place of
//! what was kept before; whatever goes, current or kept,
//! takes the upload with it that it held.

use crate::fetch::{Extent, Found, ReadFrom};
use crate::format::note::note_bytes_max;
use crate::format::record::{MANIFEST_BYTES, record_bytes};
use crate::format::transition::{FLAG_EXPIRING, FLAG_PREVIOUS_EXPIRING};
use crate::format::{RecordKind, Transition, TransitionKind, UNIT_BYTES};
use crate::held::Replaced;
use crate::index::Entry;
use crate::kept::KeptRecord;
use crate::partition::{Partition, Place};
use futures_util::future::join_all;
use plimsoll_kv::{ContainerId, Durability, Error, Output, Result};
use std::rc::Rc;

impl Partition {
    pub(crate) async fn release(
        self: &Rc<Self>,
        container: ContainerId,
        key: &[u8],
        durability: Durability,
    ) -> Result<Output> {
        self.end_retained(container, key, durability, TransitionKind::Release).await
    }

    /// Releases of several keys, each by itself; together they are written sooner.
    pub(crate) async fn release_all(
        self: &Rc<Self>,
        keys: &[(ContainerId, &[u8])],
        durability: Durability,
    ) -> Result<Output> {
        let each =
            keys.iter().map(async |(container, key)| match self.release(*container, key, durability).await {
                Err(Error::NotFound | Error::Invalid(_)) => Ok(Output::Done),
                released => released,
            });
        join_all(each).await.into_iter().collect::<Result<_>>().map(Output::Batch)
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
        self.log.wait_for_room().await?;
        let mut hold = self.hold(container, key).await;
        loop {
            let is_release = kind == TransitionKind::Release;
            let known = if is_release { self.known_above(&hold.place, key) } else { None };
            let mut found = None;
            if known.is_none() {
                let held;
                (hold, held) = self.find_held(hold, key, Extent::Head).await?;
                found = held.readable()?;
            }
            let Some(current) = known.or(found.as_ref().map(Replaced::from)) else {
                return self.refuse(hold, key, None, Error::NotFound).await;
            };
            let kept = self.state.borrow().kept.below(current.entry.location).copied();
            let is_version = found.as_ref().is_none_or(|found| found.header.kind != RecordKind::Keeper);
            let Some(kept) = kept.filter(|_| is_version) else {
                let error = Error::Invalid("no version is retained");
                return self.refuse(hold, key, found.as_ref(), error).await;
            };
            let doomed = match &found {
                Some(found) if !is_release => self.own_upload(found)?,
                _ => {
                    let Some(doomed) = self.kept_upload(&current.entry, key.len()).await? else { continue };
                    doomed
                }
            };
            if !self.is_current(&hold.place, &current.entry) {
                continue;
            }
            match self.reserve_for_delete(note_bytes_max(2), 2) {
                Err(Error::NoSpace) => self.wait_to_delete().await?,
                Err(error) => return Err(error),
                Ok(()) => {
                    let mut note = vec![end_of_retained(kind, &hold.place, &current, &kept)];
                    note.extend(doomed.map(Partition::doom_note));
                    self.commit_note(&note, durability);
                    let frame = self.log.frame();
                    drop(hold);
                    self.acknowledge(frame, durability).await?;
                    return Ok(Output::Done);
                }
            }
        }
    }

    /// The uploads that go when the record of a held key does: that of the version kept below it, and its own
    /// unless it is kept now. Nothing if something moved while that was read: look again.
    pub(crate) async fn uploads_of(
        &self,
        place: &Place,
        found: Option<&Found>,
        retain: bool,
    ) -> Result<Option<Vec<u64>>> {
        // What is kept under another key holds bytes of its own.
        let Some(found) = found.filter(|found| found.header.kind != RecordKind::Keeper) else {
            return Ok(Some(Vec::new()));
        };
        let own = if retain { None } else { self.own_upload(found)? };
        let key_bytes = found.header.key_bytes as usize;
        let Some(kept) = self.kept_upload(&found.entry, key_bytes).await? else { return Ok(None) };
        let uploads = own.into_iter().chain(kept).collect();
        Ok(self.is_current(place, &found.entry).then_some(uploads))
    }

    /// The upload that a record's value stands in.
    pub(crate) fn own_upload(&self, found: &Found) -> Result<Option<u64>> {
        if found.header.kind != RecordKind::Manifest {
            return Ok(None);
        }
        Ok(Some(self.manifest(found)?.upload))
    }

    /// The upload of the version kept below an entry, if there is one; nothing if it moved meanwhile. A
    /// record of another length than a manifest of such a key has none: then it is not read.
    async fn kept_upload(&self, entry: &Entry, key_bytes: usize) -> Result<Option<Option<u64>>> {
        let kept = || self.state.borrow().kept.below(entry.location).copied();
        let is_long_as_manifest = |kept: &KeptRecord| {
            u64::from(kept.length) * UNIT_BYTES == record_bytes(key_bytes, MANIFEST_BYTES)
        };
        let Some(before) = kept().filter(is_long_as_manifest) else { return Ok(Some(None)) };
        let of = Entry { fingerprint: before.fingerprint, location: before.location, length: before.length };
        let read = self.read_record(of, Extent::Whole, ReadFrom::Flash).await;
        if kept() != Some(before) {
            return Ok(None);
        }
        self.own_upload(&read?).map(Some)
    }

    /// The end of an upload as a value: its parts go when its last reader has.
    pub(crate) fn doom_note(upload: u64) -> Transition {
        Partition::upload_note(TransitionKind::UploadDoom, upload)
    }

    /// The release of the version retained below the record at `location`, if there is one.
    pub(crate) fn release_note(&self, place: &Place, location: u64) -> Option<Transition> {
        let state = self.state.borrow();
        let kept = state.kept.below(location)?;
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
}

/// The transition that ends the keeping of a version: one of the two records is current from then on,
/// the other is gone.
fn end_of_retained(kind: TransitionKind, place: &Place, above: &Replaced, kept: &KeptRecord) -> Transition {
    let current = (above.entry.location, above.entry.length);
    let old = (kept.location, kept.length);
    let (now, gone) = if kind == TransitionKind::Release { (current, old) } else { (old, current) };
    let expiring = |yes: bool, flag: u8| if yes { flag } else { 0 };
    Transition {
        flags: expiring(kept.expiring, FLAG_EXPIRING) | expiring(above.is_expiring, FLAG_PREVIOUS_EXPIRING),
        slot: place.slot.0,
        container: place.generation,
        fingerprint: place.fingerprint,
        location: now.0,
        length: now.1,
        previous: gone.0,
        previous_length: gone.1,
        ..Transition::new(kind)
    }
}
