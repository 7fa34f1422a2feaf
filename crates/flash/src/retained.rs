//! Retained versions: what a store replaced, kept until it is released or put back.
//!
//! Invariant: at most one version is kept below a key's current one, and what is kept now takes the place of
//! what was kept before; whatever goes, current or kept,
//! takes the upload with it that it held.

use crate::format::note::note_bytes_max;
use crate::format::transition::{FLAG_EXPIRING, FLAG_PREVIOUS_EXPIRING};
use crate::format::{RecordKind, Transition, TransitionKind};
use crate::index::Entry;
use crate::partition::{Extent, Found, Partition, Place};
use crate::state::Retained;
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
            let found;
            (hold, found) = self.find_held(hold, key, Extent::Head).await?;
            let Some(found) = found else { return self.refuse(hold, key, None, Error::NotFound).await };
            let kept = self.state.borrow().retained.get(&found.entry.location).copied();
            let Some(kept) = kept else {
                let error = Error::Invalid("no version is retained");
                return self.refuse(hold, key, Some(&found), error).await;
            };
            let doomed = if kind == TransitionKind::Revert {
                self.own_upload(&found)?
            } else {
                let Some(doomed) = self.kept_upload(&found.entry).await? else { continue };
                doomed
            };
            if !self.is_current(&hold.place, &found.entry) {
                continue;
            }
            match self.reserve_for_delete(note_bytes_max(2), 2) {
                Err(Error::NoSpace) => self.wait_to_delete().await?,
                Err(error) => return Err(error),
                Ok(()) => {
                    let mut note = vec![end_of_retained(kind, &hold.place, &found, &kept)];
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
        let Some(found) = found else { return Ok(Some(Vec::new())) };
        let own = if retain { None } else { self.own_upload(found)? };
        let Some(kept) = self.kept_upload(&found.entry).await? else { return Ok(None) };
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

    /// The upload of the version kept below an entry, if there is one; nothing if it moved meanwhile.
    async fn kept_upload(&self, entry: &Entry) -> Result<Option<Option<u64>>> {
        let kept = || self.state.borrow().retained.get(&entry.location).copied();
        let Some(before) = kept() else { return Ok(Some(None)) };
        let of = Entry { fingerprint: before.fingerprint, location: before.location, length: before.length };
        let read = self.read_record(of, Extent::Whole).await;
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
}

/// The transition that ends the keeping of a version: one of the two records is current from then on,
/// the other is gone.
fn end_of_retained(kind: TransitionKind, place: &Place, found: &Found, kept: &Retained) -> Transition {
    let current = (found.entry.location, found.entry.length);
    let old = (kept.location, kept.length);
    let (now, gone) = if kind == TransitionKind::Release { (current, old) } else { (old, current) };
    let expiring = |yes: bool, flag: u8| if yes { flag } else { 0 };
    Transition {
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
    }
}
