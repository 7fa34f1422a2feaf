//! Deleting: a key, a key that has expired, a whole container.
//!
//! Place on the path: as a store's; what is appended is a tombstone, or one note for a container.
//!
//! Invariants: a delete is durable before it is told, and nothing comes back; deletes go on when the
//! device is full; what was seen expired is deleted durably before anyone hears that it is absent; what is
//! known is deleted without a read only if it cannot have expired.

use crate::fetch::{Extent, Lookup, ReadFrom};
use crate::format::note::note_bytes_max;
use crate::format::record::record_bytes;
use crate::format::transition::FLAG_WHOLE;
use crate::format::{RecordHeader, RecordKind, Transition, TransitionKind};
use crate::held::{Held, Hold, Replaced, judge, takes_unread};
use crate::metrics::add;
use crate::partition::{Partition, Place};
use crate::planted::{Bug, is_planted};
use crate::targets::Target;
use crate::uploads::UploadState;
use plimsoll_kv::{Condition, ContainerId, Deleted, Durability, Error, Output, Result};
use std::rc::Rc;

/// What a delete takes away.
struct Going {
    old: Replaced,
    /// The uploads that go with it.
    dooms: Vec<u64>,
    told: Result<Deleted>,
}

impl Partition {
    pub(crate) async fn delete(
        self: &Rc<Self>,
        container: ContainerId,
        key: &[u8],
        condition: Condition,
        durability: Durability,
    ) -> Result<Output> {
        self.wait_for_keys_patiently().await?;
        self.log.wait_for_room().await?;
        let mut hold = self.hold(container, key).await;
        loop {
            let known = takes_unread(condition).then(|| self.known_to_delete(&hold.place, key)).flatten();
            let going;
            (hold, going) = match known {
                Some(old) => (hold, Some(Going { old, dooms: Vec::new(), told: Ok(Deleted::Unseen) })),
                None => self.look_to_delete(hold, key, condition).await?,
            };
            let Some(Going { old, dooms, told }) = going else { continue };
            match self.append_delete(&hold.place, key, &old, &dooms, durability) {
                Err(Error::NoSpace) => self.wait_to_delete().await?,
                Err(error) => return Err(error),
                Ok(()) => {
                    let frame = self.log.frame();
                    drop(hold);
                    add(&self.counts.known_deletes, u64::from(known.is_some()));
                    self.acknowledge(frame, durability).await?;
                    return told.map(Output::Deleted);
                }
            }
        }
    }

    /// Reads what is there and judges by it. Nothing if something moved meanwhile: look again.
    async fn look_to_delete(
        &self,
        hold: Hold,
        key: &[u8],
        condition: Condition,
    ) -> Result<(Hold, Option<Going>)> {
        let (hold, held) = self.find_held(hold, key, Extent::Head).await?;
        let found = match held {
            Held::Absent => return self.refuse(hold, key, None, Error::NotFound).await,
            Held::Damaged(_, error) if !takes_unread(condition) => return Err(error),
            Held::Damaged(old, _) => {
                return Ok((hold, Some(Going { old, dooms: Vec::new(), told: Ok(Deleted::Unreadable) })));
            }
            Held::Found(found) => found,
        };
        let expired = found.is_expired(self.now_ms());
        if let Err(error) = judge(condition, (!expired).then_some(&found)) {
            return self.refuse(hold, key, Some(&found), error).await;
        }
        let version = self.item(&found, Vec::new())?.version;
        let told = if expired { Err(Error::NotFound) } else { Ok(Deleted::Version(version)) };
        let dooms = self.uploads_of(&hold.place, Some(&found), false).await?;
        let going = dooms.map(|dooms| Going { old: Replaced::from(&found), dooms, told });
        Ok((hold, going))
    }

    /// Deletes a key durably if it has expired; false if it has not, or is not there (any more): then
    /// what was seen says nothing about the key now.
    pub(crate) async fn expire(&self, place: &Place, key: &[u8]) -> Result<bool> {
        if is_planted(Bug::ExpiryForgotten) {
            return Ok(true);
        }
        self.wait_for_keys_patiently().await?;
        let guard = self.lock(place).await;
        let frame = self.append_expired(place, key).await?;
        drop(guard);
        match frame {
            Some(frame) => self.log.wait_durable(frame).await.map(|()| true),
            None => Ok(false),
        }
    }

    /// As [`Partition::expire`], for who holds the key; it waits itself until that is durable.
    pub(crate) async fn expire_held(&self, place: &Place, key: &[u8]) -> Result<()> {
        self.wait_for_keys_patiently().await?;
        self.append_expired(place, key).await.map(|_| ())
    }

    /// Appends the delete of a key that is held, if it has expired; its frame.
    async fn append_expired(&self, place: &Place, key: &[u8]) -> Result<Option<u64>> {
        while self.state.borrow().generation(place.container) == place.generation {
            let found = match self.find(place, key, Extent::Head, ReadFrom::Anywhere).await? {
                Lookup::Found(found) if found.is_expired(self.now_ms()) => found,
                Lookup::Moved => continue,
                Lookup::Found(_) | Lookup::Absent => return Ok(None),
            };
            let Some(dooms) = self.uploads_of(place, Some(&found), false).await? else { continue };
            let old = Replaced::from(&found);
            match self.append_delete(place, key, &old, &dooms, Durability::Sync) {
                Err(Error::NoSpace) => self.wait_to_delete().await?,
                Err(error) => return Err(error),
                Ok(()) => {
                    add(&self.counts.expired, 1);
                    return Ok(Some(self.log.frame()));
                }
            }
        }
        Ok(None)
    }

    /// Appends the delete of a key's record, which is current.
    fn append_delete(
        &self,
        place: &Place,
        key: &[u8],
        old: &Replaced,
        dooms: &[u64],
        urgency: Durability,
    ) -> Result<()> {
        self.reserve_for_delete(record_bytes(key.len(), 0) as usize + note_bytes_max(4), 4)?;
        self.push_delete(place, key, old, dooms, urgency);
        Ok(())
    }

    /// A record that could not be read is gone: what it kept of its segment may be had again.
    pub(crate) fn gone_unread(&self, old: &Replaced) {
        self.state.borrow_mut().segments.look_again(old.entry.location);
        self.hope();
    }

    /// Pushes a delete for which there is room, and applies it.
    fn push_delete(&self, place: &Place, key: &[u8], old: &Replaced, dooms: &[u64], urgency: Durability) {
        self.commit_note(self.release_note(place, old.entry.location).as_slice(), urgency);
        self.push_tombstone(&old.removal(place), key, urgency);
        let dooms: Vec<Transition> = dooms.iter().map(|upload| Partition::doom_note(*upload)).collect();
        self.commit_note(&dooms, urgency);
        if old.is_damaged {
            self.gone_unread(old);
        }
    }

    /// Pushes the delete of what is there for a write, if anything is.
    pub(crate) fn push_delete_of(&self, target: &Target<'_>, key: &[u8], urgency: Durability) {
        if let Some(old) = target.replaced() {
            self.push_delete(&target.place, key, &old, &target.dooms, urgency);
        }
    }

    /// Pushes the tombstone that stands for a delete, and applies it. The key is in it, so that a
    /// restart knows what to take out of the keys in order.
    pub(crate) fn push_tombstone(&self, delete: &Transition, key: &[u8], urgency: Durability) {
        let header = RecordHeader {
            kind: RecordKind::Tombstone,
            lifetime: 0,
            key_bytes: key.len() as u32,
            value_bytes: 0,
            container: delete.container,
            slot: delete.slot,
            version: self.next_version(),
            expiry_ms: 0,
            flags: delete.flags,
            previous: delete.previous,
            previous_length: delete.previous_length,
        };
        let transition = self.log.push_record(&header, key, delete.fingerprint, [&[], &[]], urgency);
        self.commit(&transition, urgency);
        self.keys.note(delete.container, key, true);
    }

    /// Empties a container, after those who hold any key have ended.
    pub(crate) async fn clear(&self, container: ContainerId, durability: Durability) -> Result<Output> {
        self.log.wait_for_room().await?;
        let everything = self.locks.lock_everything().await;
        loop {
            match self.reserve_for_delete(note_bytes_max(1), 1) {
                Err(Error::NoSpace) => self.wait_to_delete().await?,
                Err(error) => return Err(error),
                Ok(()) => break,
            }
        }
        self.push_clear(container, durability);
        let frame = self.log.frame();
        drop(everything);
        self.acknowledge(frame, durability).await?;
        Ok(Output::Done)
    }

    /// Pushes the note that a container is empty, for which there is room, and applies it.
    pub(crate) fn push_clear(&self, container: ContainerId, urgency: Durability) {
        let transition = {
            let state = self.state.borrow();
            let generation = state.generation(container);
            let counters = state.counters(container);
            let whole = counters.keys + state.dead.values().sum::<u64>() == state.index.len();
            let pinned = self.pins.borrow().is_empty();
            let others = state.uploads.values().any(|upload| match upload.state {
                UploadState::Open => true,
                UploadState::Promised => false, // They stay.
                UploadState::Live | UploadState::Doomed => {
                    upload.generation != generation && !state.is_dead(upload.generation)
                }
            });
            Transition {
                flags: if whole && pinned && !others { FLAG_WHOLE } else { 0 },
                container: generation,
                fingerprint: u64::from(container.0),
                argument: u64::from(state.next_generation),
                ..Transition::new(TransitionKind::Clear)
            }
        };
        self.commit_note(&[transition], urgency);
        self.background.ring();
    }
}
