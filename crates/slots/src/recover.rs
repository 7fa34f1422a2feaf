//! Recovery: from what stands on the drive to what memory knows.
//!
//! Place on the path: while a drive is opened.
//!
//! Invariants:
//! * of all records of a key, in its slots and on other objects, the newest counts; what it retains is in the
//!   other slot, or nowhere;
//! * riders below the horizon count for nothing;
//! * what cannot be read is an error of its key, and nothing else is told of that key; where it might be of
//!   any key, the drive is not opened.
//!
//! Never: it deletes anything itself. What is of no use it tells the keeper.

use crate::drive::{DriveError, DriveKey};
use crate::hosts::KeyOf;
use crate::index::{At, Body, Container, Entry, Live};
use crate::intent::{Intent, IntentHead, decode_intent};
use crate::names::Of;
use crate::object::{self, Damage, Head, Kind, Record, Rider};
use crate::open::{OpenError, hex};
use crate::parts::{Manifest, Part, Parts};
use crate::slots::{GENERATIONS, Slots};
use crate::superblock::SUPERBLOCK_KEYS;
use futures_util::stream::{self, StreamExt};
use plimsoll_kv::limits::CONTAINERS_MAX;
use plimsoll_kv::{ContainerId, Error, Result, TransactionId, UploadId, Version};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// Bytes of an object that are read to find its head.
const HEAD_READ_BYTES: usize = 4 << 10;
/// Objects read at a time.
const READS_MAX: usize = 32;
/// Keys of a page of the drive's list.
const LIST_MAX: usize = 1024;

/// An object, as far as recovery needs it.
enum Read {
    /// Its head, and its value where that is needed.
    Whole(Head, Vec<u8>),
    /// Its head cannot be read; these are its riders.
    Damaged(Vec<Rider>),
    /// It went meanwhile.
    Gone,
}

/// A record of a key.
struct Candidate {
    record: Record,
    value: Vec<u8>,
    length: u64,
    at: At,
}

/// What was found of a key.
#[derive(Default)]
struct Candidates {
    all: Vec<Candidate>,
    occupied: [bool; 2],
}

/// What was found on a drive.
#[derive(Default)]
struct Found {
    keys: BTreeMap<KeyOf, Candidates>,
    chunks: BTreeSet<DriveKey>,
    prepared: Vec<(TransactionId, DriveKey, Intent, Vec<Rider>)>,
}

/// True if a value is needed to know what an object is.
fn needs_value(record: &Record) -> bool {
    let is_short = matches!(record.kind, Kind::Manifest | Kind::Committed | Kind::Prepared | Kind::Applied);
    is_short || record.container == GENERATIONS
}

impl Slots {
    pub(crate) async fn recover(self: &Rc<Self>) -> std::result::Result<(), OpenError> {
        let mut found = Found::default();
        let mut from = Vec::new();
        loop {
            let listed = self.drive.list(from.clone(), LIST_MAX).await;
            let mut page = listed.map_err(|error| OpenError::Failed(format!("a list: {error}")))?;
            // A page begins with the last key of the one before.
            page.retain(|key| *key != from);
            let Some(last) = page.last().cloned() else { break };
            let mut keys = Vec::with_capacity(page.len());
            for key in page {
                let whole = <[u8; 16]>::try_from(key.as_slice());
                keys.push(DriveKey(whole.map_err(|_| OpenError::Foreign(hex(&key)))?));
            }
            keys.retain(|key| !SUPERBLOCK_KEYS.contains(key));
            let reads = stream::iter(keys).map(|key| async move { (key, self.read_object(key).await) });
            let mut reads = reads.buffered(READS_MAX);
            while let Some((key, read)) = reads.next().await {
                self.sort(&mut found, key, read?).await?;
            }
            from = last;
        }
        self.resolve(found).await
    }

    /// Reads the head of an object, and its value if it is needed.
    async fn read_object(&self, key: DriveKey) -> std::result::Result<Read, OpenError> {
        let retrieve = |length| async move {
            match self.drive.retrieve(key, 0, length).await {
                Ok(retrieved) => Ok(Some(retrieved)),
                Err(DriveError::KeyNotFound) => Ok(None),
                Err(error) => Err(OpenError::Damaged(format!("object {key} cannot be read: {error}"))),
            }
        };
        let Some(mut read) = retrieve(HEAD_READ_BYTES).await? else { return Ok(Read::Gone) };
        let mut head = Head::decode(&read.bytes);
        let needed = match &head {
            Err(Damage::Short(needed)) => *needed,
            Ok(head) if needs_value(&head.record) => read.length,
            Ok(_) => 0,
            Err(_) => read.length,
        };
        if needed > read.bytes.len() && read.length > read.bytes.len() {
            // Those that are too long for anything cost no more than the drive's longest value.
            let Some(again) = retrieve(read.length).await? else { return Ok(Read::Gone) };
            read = again;
            head = Head::decode(&read.bytes);
        }
        match head {
            Ok(head) if needs_value(&head.record) => match head.value(&read.bytes) {
                Ok(value) => {
                    let value = value.to_vec();
                    Ok(Read::Whole(head, value))
                }
                Err(damage) if head.record.kind == Kind::Manifest => {
                    tracing::warn!(%key, %damage, "the list of a value's parts is damaged");
                    Ok(Read::Damaged(head.riders))
                }
                Err(damage) => Err(OpenError::Damaged(format!("object {key}: {damage}"))),
            },
            Ok(head) => Ok(Read::Whole(head, Vec::new())),
            Err(damage) => match object::decode_tail(&read.bytes) {
                Ok(riders) => {
                    tracing::warn!(%key, %damage, "the head of an object is damaged");
                    Ok(Read::Damaged(riders))
                }
                Err(Damage::Format(format)) => Err(OpenError::Format(key, format)),
                Err(_) => Err(match damage {
                    Damage::Format(format) => OpenError::Format(key, format),
                    Damage::Foreign => OpenError::Foreign(key.to_string()),
                    damage => OpenError::Damaged(format!("object {key}: {damage}")),
                }),
            },
        }
    }

    /// Puts an object where it belongs.
    async fn sort(&self, found: &mut Found, key: DriveKey, read: Read) -> std::result::Result<(), OpenError> {
        let (head, value) = match read {
            Read::Gone => return Ok(()),
            Read::Damaged(riders) => {
                self.state.borrow_mut().damaged.insert(key);
                self.sort_riders(found, key, riders);
                return Ok(());
            }
            Read::Whole(head, value) => (head, value),
        };
        let record = head.record;
        let slot = key.0[15] & 1;
        let place = match record.kind {
            Kind::Value | Kind::Manifest | Kind::Tombstone | Kind::Husk => {
                self.names.slot(record.container, record.generation, &record.key, slot)
            }
            Kind::Part => self.named(Of::Part, &record),
            Kind::Chunk => self.named(Of::Chunk, &record),
            Kind::Committed | Kind::Prepared | Kind::Applied => self.named(Of::Intent, &record),
            Kind::SetExpiry | Kind::Clear => {
                return Err(OpenError::Damaged(format!("object {key} is of a kind that no object is of")));
            }
        };
        if place != key {
            return Err(OpenError::Damaged(format!("object {key} belongs under {place}")));
        }
        match record.kind {
            Kind::Part => {
                let mut reader = object::Reader(&record.key);
                let (Some(upload), Some(number)) = (reader.u64(), reader.u32()) else {
                    return Err(OpenError::Damaged(format!("object {key} is a part of nothing")));
                };
                let part = Part::new(upload, number, key, 0, &self.doomed);
                self.found_parts.borrow_mut().insert((upload, number), part);
            }
            Kind::Chunk => {
                found.chunks.insert(key);
            }
            Kind::Committed | Kind::Prepared | Kind::Applied => {
                self.sort_intent(found, key, record.kind, &value).await?;
            }
            _ => {
                let of: KeyOf = (record.container, record.generation, record.key.as_slice().into());
                let candidates = found.keys.entry(of).or_default();
                candidates.occupied[usize::from(slot)] = true;
                if record.kind != Kind::Husk {
                    let (at, length) = (At::Slot(slot), head.value_bytes as u64);
                    candidates.all.push(Candidate { record, value, length, at });
                }
                self.sort_riders(found, key, head.riders);
            }
        }
        Ok(())
    }

    fn sort_riders(&self, found: &mut Found, host: DriveKey, riders: Vec<Rider>) {
        let horizon = self.superblock.borrow().horizon;
        for Rider { record, value } in riders {
            if record.sequence < horizon {
                continue;
            }
            let of: KeyOf = (record.container, record.generation, record.key.as_slice().into());
            if record.kind != Kind::Tombstone {
                self.state.borrow_mut().hosts.ride(of.clone(), record.sequence);
            }
            let (length, at) = (value.len() as u64, At::Rider(host));
            found.keys.entry(of).or_default().all.push(Candidate { record, value, length, at });
        }
    }

    async fn sort_intent(
        &self,
        found: &mut Found,
        key: DriveKey,
        kind: Kind,
        value: &[u8],
    ) -> std::result::Result<(), OpenError> {
        let damaged = |what: &dyn std::fmt::Display| OpenError::Damaged(format!("intent {key}: {what}"));
        let (head, body) = decode_intent(value).ok_or_else(|| damaged(&"it says nothing"))?;
        let (bytes, chunks) = self.read_body(key, body).await?;
        let riders = object::decode_riders(&bytes).map_err(|damage| damaged(&damage))?;
        if let IntentHead::Transaction(id, participants) = &head {
            let mut transactions = self.transactions.borrow_mut();
            transactions.recovered.push(*id);
            if kind != Kind::Prepared {
                transactions.applied.insert(*id, participants.clone());
            }
        }
        match (kind, &head) {
            (Kind::Committed, _) => {
                self.sort_riders(found, key, riders);
                self.keeper.committed(key, Intent { head, chunks });
            }
            (Kind::Prepared, IntentHead::Transaction(id, _)) => {
                found.prepared.push((*id, key, Intent { head, chunks }, riders));
            }
            (Kind::Prepared, IntentHead::Batch(_)) => return Err(damaged(&"a batch prepares nothing")),
            _ => {}
        }
        Ok(())
    }

    /// The parts that a manifest names, if all of them are there.
    pub(crate) fn parts_of(&self, manifest: &Manifest) -> Result<Rc<Parts>> {
        let missing = || Error::Unreadable(format!("a part of upload {} is missing", manifest.upload));
        let part_bytes = self.superblock.borrow().part_bytes as usize;
        let named = manifest.parts(part_bytes).ok_or_else(missing)?;
        let there = self.found_parts.borrow();
        let parts = named.iter().map(|part| there.get(part).cloned()).collect::<Option<Vec<_>>>();
        let parts = parts.ok_or_else(missing)?;
        Ok(Rc::new(Parts { upload: UploadId(manifest.upload), parts, length: manifest.length }))
    }

    async fn resolve(self: &Rc<Self>, found: Found) -> std::result::Result<(), OpenError> {
        let Found { keys, mut chunks, prepared } = found;
        let (generations, others): (BTreeMap<_, _>, BTreeMap<_, _>) =
            keys.into_iter().partition(|(of, _)| of.0 == GENERATIONS);
        self.check_generations()?;
        for (of, candidates) in generations {
            let newest = candidates.all.iter().max_by_key(|one| one.record.sequence);
            let number = |bytes: &[u8]| bytes.try_into().map(u32::from_le_bytes);
            let said = newest.map(|newest| (number(&of.2), number(&newest.value)));
            let Some((Ok(container), Ok(generation))) = said else {
                return Err(OpenError::Damaged("a container's generation says nothing".to_owned()));
            };
            self.resolve_key(of, candidates);
            let mut state = self.state.borrow_mut();
            state.containers.insert(ContainerId(container), Container::new(generation));
        }
        for (of, candidates) in others {
            let generation = self.state.borrow().generation(of.0);
            if of.1 > generation {
                let (container, newer) = (of.0.0, of.1);
                return Err(OpenError::Damaged(format!(
                    "container {container} has objects of generation {newer}, and is of {generation}"
                )));
            }
            if of.1 == generation {
                self.resolve_key(of, candidates);
            } else {
                let occupied = (0..2).filter(|slot| candidates.occupied[usize::from(*slot)]);
                occupied.for_each(|slot| self.doomed.add(self.place(&of, slot)));
            }
        }
        for (id, key, intent, riders) in prepared {
            chunks.retain(|chunk| !intent.chunks.contains(chunk));
            self.hold_again(id, key, intent, riders).await?;
        }
        self.keeper.keep_chunks(&mut chunks);
        chunks.into_iter().for_each(|chunk| self.doomed.add(chunk));
        // Those that nobody has taken go.
        drop(self.found_parts.take());
        Ok(())
    }

    /// Where no generation of a container can be read, all that it ever held would be back.
    fn check_generations(&self) -> std::result::Result<(), OpenError> {
        let state = self.state.borrow();
        if state.damaged.is_empty() {
            return Ok(());
        }
        for container in 0..CONTAINERS_MAX {
            for slot in 0..2 {
                let place = self.names.slot(GENERATIONS, 0, &container.to_le_bytes(), slot);
                if state.damaged.contains(&place) {
                    return Err(OpenError::Damaged(format!(
                        "object {place}, which says how often container {container} was emptied, is damaged"
                    )));
                }
            }
        }
        Ok(())
    }

    /// What a key holds, by all that was found of it.
    fn resolve_key(&self, of: KeyOf, candidates: Candidates) {
        let Candidates { all, occupied } = candidates;
        // Of a rider and the slot that it was moved to, the slot.
        let newest = all.iter().max_by_key(|one| (one.record.sequence, matches!(one.at, At::Slot(_))));
        let kept = newest.and_then(|newest| {
            let is_kept = |one: &&Candidate| {
                let is_below = one.record.sequence == newest.record.below;
                is_below && matches!(one.at, At::Slot(_)) && one.record.kind != Kind::Tombstone
            };
            all.iter().find(is_kept).filter(|_| newest.record.below != Version::ZERO)
        });
        // What is not whole is left as it is, and its key is told as damaged.
        let Ok(current) = newest.map(|one| self.live_of(&of, one)).transpose() else { return };
        let Ok(kept) = kept.map(|one| self.live_of(&of, one)).transpose() else { return };
        let (kept, occupied) = (kept.map(Box::new), self.with_damaged(&of, occupied));
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        if let (Some(newest), Some(Live { at: At::Rider(host), .. })) = (newest, &current) {
            let encoded = object::encode_rider(&newest.record, &newest.value).into();
            state.hosts.add(*host, of.clone(), encoded);
            self.keeper.give_home_if_committed(*host, of.0, &of.2);
        }
        let entry = Entry { retained: kept, current, occupied };
        let is_gone = entry.current.as_ref().is_none_or(Live::is_gone);
        let is_tidy = !is_gone && entry.stale_slots().next().is_none();
        let container = state.containers.entry(of.0).or_default();
        container.update(&of.2, |empty| *empty = entry);
        if !is_tidy {
            self.keeper.tidy(of.0, &of.2);
        }
    }

    /// The slots in which something stands, be it readable or not.
    fn with_damaged(&self, of: &KeyOf, mut occupied: [bool; 2]) -> [bool; 2] {
        let state = self.state.borrow();
        for slot in (0..2).filter(|_| !state.damaged.is_empty()) {
            occupied[usize::from(slot)] |= state.damaged.contains(&self.place(of, slot));
        }
        occupied
    }

    /// A record as memory has it.
    ///
    /// # Errors
    /// Its parts are not there: its key is told as damaged.
    fn live_of(&self, of: &KeyOf, one: &Candidate) -> std::result::Result<Live, ()> {
        let (body, length) = match one.record.kind {
            Kind::Value => (Body::Whole, one.length),
            Kind::Manifest => {
                let manifest = Manifest::decode(&one.value);
                match manifest.as_ref().map(|manifest| self.parts_of(manifest)) {
                    Some(Ok(parts)) => {
                        let length = parts.length;
                        (Body::Parts(parts), length)
                    }
                    _ => {
                        let slot = if let At::Slot(slot) = one.at { slot } else { 0 };
                        let place = self.place(of, slot);
                        tracing::warn!(%place, "parts of a value are missing");
                        self.state.borrow_mut().damaged.insert(place);
                        return Err(());
                    }
                }
            }
            _ => (Body::Gone, 0),
        };
        Ok(Live {
            sequence: one.record.sequence,
            version: one.record.version,
            expiry_ms: one.record.expiry_ms(),
            length,
            body,
            at: one.at,
            flush: 0,
        })
    }
}
