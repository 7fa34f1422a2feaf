//! The state of a partition: index, segments, containers, uploads, kept records, expiry
//! overrides, prepared transactions; and how transitions change it.
//!
//! Role: [`State::apply`] executes a transition, for a request and for replay alike, so that what
//! recovery builds is what the server had. Place on the path: after a record or note has its place
//! in the log, before anyone waits for durability.
//!
//! Checkpoints are exact without stopping the world: each slot's table is written together with
//! the number of the first frame whose transitions it does not hold yet, and replay leaves the
//! tables of a slot alone before that frame. Everything else comes from the instant at which the
//! checkpoint began and is changed by every transition since. So a transition always finds what it
//! names, and asserts it.

use crate::format::transition::{FLAG_EXPIRING, FLAG_PREVIOUS_EXPIRING, FLAG_RETAIN, FLAG_WHOLE};
use crate::format::{SegmentKind, Transition, TransitionKind, UNIT_BYTES};
use crate::index::{Entry, Index};
use crate::kept::{KeptRecord, KeptRecords};
use crate::known::Known;
use crate::planted::{Bug, is_planted};
use crate::recent::Recent;
use crate::segments::SegmentTable;
use crate::uploads::{Upload, UploadState, Uploads};
use plimsoll_kv::limits::CONTAINERS_MAX;
use plimsoll_kv::{ContainerId, Slot, TransactionId, Version};
use std::collections::BTreeMap;

/// Counters of one generation of a container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Keys.
    pub keys: u64,
    /// Keys with an expiry time.
    pub expiring: u64,
    /// Units of their records.
    pub units: u64,
}

/// What a change of the expiry time of a long value put in place of what its record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpiryOverride {
    /// When it expires, in wall-clock milliseconds; 0: never.
    pub expiry_ms: u64,
    /// The version of the change.
    pub version: Version,
}

/// A transaction that has prepared and is not forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prepared {
    /// The upload that holds what it is to write.
    pub intent: u64,
    /// It has been applied.
    pub applied: bool,
}

/// Everything a partition knows without reading its flash.
pub struct State {
    /// Where keys are.
    pub index: Index,
    /// Of which keys some records are; nothing of it is kept over a restart.
    pub(crate) known: Known,
    /// Short records that were written lately; likewise.
    pub(crate) recent: Recent,
    /// What segments are for.
    pub segments: SegmentTable,
    /// Containers that were emptied at least once, and their generation now.
    pub generations: BTreeMap<u32, u32>,
    /// The next generation to be given.
    pub next_generation: u32,
    /// Counters of the generations in use.
    pub counters: BTreeMap<u32, Counters>,
    /// Generations that were emptied while others had keys: entries that still have to be swept.
    pub dead: BTreeMap<u32, u64>,
    /// Values in parts.
    pub uploads: Uploads,
    /// The next upload's number.
    pub next_upload: u64,
    /// Records that are kept below others.
    pub kept: KeptRecords,
    /// Expiry times that differ from what the record says, by location.
    pub expiry_overrides: BTreeMap<u64, ExpiryOverride>,
    /// Transactions that have prepared and are not forgotten.
    pub transactions: BTreeMap<TransactionId, Prepared>,
    /// During replay: for each slot, the first frame that its table does not hold yet.
    pub slot_frames: Option<Vec<u64>>,
}

impl State {
    /// The state of an empty partition.
    #[must_use]
    pub fn new(slots: std::ops::Range<u32>, segments: SegmentTable) -> State {
        State {
            index: Index::new(slots),
            known: Known::of_bytes(0),
            recent: Recent::of_bytes(0),
            segments,
            generations: BTreeMap::new(),
            next_generation: CONTAINERS_MAX,
            counters: BTreeMap::new(),
            dead: BTreeMap::new(),
            uploads: Uploads::default(),
            next_upload: 1,
            kept: KeptRecords::default(),
            expiry_overrides: BTreeMap::new(),
            transactions: BTreeMap::new(),
            slot_frames: None,
        }
    }

    /// True if the table of a slot does not hold the transitions of `frame` yet.
    fn table_follows(&self, slot: Slot, frame: u64) -> bool {
        let first = self.index.slots().start;
        self.slot_frames.as_ref().is_none_or(|frames| frame >= frames[(u32::from(slot.0) - first) as usize])
    }

    /// The generation of a container: its own number until it is first emptied.
    #[must_use]
    pub fn generation(&self, container: ContainerId) -> u32 {
        self.generations.get(&container.0).copied().unwrap_or(container.0)
    }

    /// True if a generation has been emptied.
    #[must_use]
    pub fn is_dead(&self, generation: u32) -> bool {
        if generation < CONTAINERS_MAX {
            self.generations.contains_key(&generation)
        } else {
            !self.generations.values().any(|current| *current == generation)
        }
    }

    /// Counters of a container.
    #[must_use]
    pub fn counters(&self, container: ContainerId) -> Counters {
        self.counters.get(&self.generation(container)).copied().unwrap_or_default()
    }

    /// When the record at a location expires, which says so itself unless that was changed; 0: never.
    #[must_use]
    pub fn expiry_ms(&self, location: u64, recorded_ms: u64) -> u64 {
        self.expiry_overrides.get(&location).map_or(recorded_ms, |kept| kept.expiry_ms)
    }

    /// After a start: see [`SegmentTable::begin_anew`].
    pub(crate) fn begin_anew(&mut self) {
        let indexed = self.index.all_if_long(self.segments.long_units());
        let records = indexed.map(|entry| (entry.location, entry.length)).chain(self.uploads.records());
        self.segments.begin_anew(records.chain(self.kept.records()));
    }

    /// Executes a transition that stands in `frame`.
    pub fn apply(&mut self, t: &Transition, frame: u64) {
        match t.kind {
            TransitionKind::Store => self.store(t, frame),
            TransitionKind::Delete => self.delete(t, frame),
            TransitionKind::Relocate => self.relocate(t, frame),
            TransitionKind::SetExpiry => self.set_expiry(t),
            TransitionKind::Clear => self.clear(t, frame),
            TransitionKind::StorePart | TransitionKind::SharePart => self.hold_part(t),
            TransitionKind::RelocatePart => self.relocate_part(t, frame),
            TransitionKind::UploadBegin => self.upload_begin(t),
            TransitionKind::UploadCommit => self.uploads.commit(t.argument, t.container),
            TransitionKind::UploadDoom => self.uploads.set_state(t.argument, UploadState::Doomed),
            TransitionKind::UploadEnd => self.upload_end(t, frame),
            TransitionKind::Release => self.release(t, frame),
            TransitionKind::Keep => self.keep(t),
            TransitionKind::Revert => self.revert(t, frame),
            TransitionKind::OpenSegment => self.open_segment(t, frame),
            TransitionKind::Sweep => self.sweep(t, frame),
            TransitionKind::UploadPromise => self.uploads.set_state(t.argument, UploadState::Promised),
            TransitionKind::Prepare => self.prepare(t),
            TransitionKind::Applied => self.applied(t),
            TransitionKind::Forget => self.forget(t),
            TransitionKind::Note => unreachable!("references are resolved before they are applied"),
        }
    }

    /// Points a key from one record to the next.
    fn advance(&mut self, t: &Transition, next: Option<Entry>, frame: u64) {
        let slot = Slot(t.slot);
        self.forget_known(t, next);
        self.leave_recent(t);
        if !self.table_follows(slot, frame) {
            return;
        }
        match next {
            None => assert!(self.index.remove(slot, t.fingerprint, t.previous), "no entry to remove: {t:?}"),
            Some(entry) if t.previous == 0 => self.index.insert(slot, entry),
            Some(entry) => assert!(self.index.replace(slot, t.previous, entry), "no entry to replace: {t:?}"),
        }
    }

    /// Nobody looks any more at the record that a key pointed to.
    fn leave_recent(&mut self, t: &Transition) {
        if t.previous != 0 {
            let sequence = self.segments.sequence_at(t.previous);
            self.recent.leave(sequence, t.previous, u64::from(t.previous_length) * UNIT_BYTES);
        }
    }

    /// What was known of a place says nothing of the record that is there from now on.
    fn forget_known(&mut self, t: &Transition, next: Option<Entry>) {
        if is_planted(Bug::StaleKnown) {
            return;
        }
        let slot = Slot(t.slot);
        match next {
            Some(entry) if t.kind == TransitionKind::Relocate => {
                self.known.relocate(slot, t.fingerprint, t.previous, entry.location);
            }
            Some(entry) => self.known.forget(slot, t.fingerprint, &[t.previous, entry.location]),
            None => self.known.forget(slot, t.fingerprint, &[t.previous]),
        }
    }

    fn count(&mut self, generation: u32, change: impl FnOnce(&mut Counters)) {
        change(self.counters.entry(generation).or_default());
    }

    /// Nothing is left of what a record was that stood at a location before: it would be taken for what the
    /// next is.
    fn assert_fresh(&self, location: u64) {
        assert!(!self.expiry_overrides.contains_key(&location), "a stale time of expiry at {location}");
        assert!(self.kept.below(location).is_none(), "a record is kept below nothing at {location}");
        assert!(!self.kept.is_kept(location), "a record that is gone is kept at {location}");
    }

    /// The key of a record points elsewhere: it goes, unless something keeps it.
    fn leave(&mut self, location: u64, length: u32, frame: u64) {
        if self.kept.leave(location) {
            self.give_up(location, length, frame);
        }
    }

    /// A record goes.
    fn give_up(&mut self, location: u64, length: u32, frame: u64) {
        self.expiry_overrides.remove(&location);
        self.segments.remove_live(location, length, frame);
    }

    fn store(&mut self, t: &Transition, frame: u64) {
        self.assert_fresh(t.location);
        let entry = Entry { fingerprint: t.fingerprint, location: t.location, length: t.length };
        self.advance(t, Some(entry), frame);
        self.segments.add_live(t.location, t.length);
        let (expiring, was_expiring) = (t.flags & FLAG_EXPIRING != 0, t.flags & FLAG_PREVIOUS_EXPIRING != 0);
        let retain = t.flags & FLAG_RETAIN != 0 && t.previous != 0;
        self.count(t.container, |c| {
            c.keys += u64::from(t.previous == 0);
            c.expiring = c.expiring + u64::from(expiring) - u64::from(was_expiring);
            c.units = c.units + u64::from(t.length) - u64::from(t.previous_length);
        });
        if retain {
            self.kept.keep(t.location, kept(t), false);
        } else if t.previous != 0 {
            self.leave(t.previous, t.previous_length, frame);
        }
    }

    /// What another key points to is kept below a record that was just stored.
    fn keep(&mut self, t: &Transition) {
        self.kept.keep(t.location, kept(t), true);
    }

    fn delete(&mut self, t: &Transition, frame: u64) {
        self.advance(t, None, frame);
        self.leave(t.previous, t.previous_length, frame);
        self.count(t.container, |c| {
            c.keys -= 1;
            c.expiring -= u64::from(t.flags & FLAG_PREVIOUS_EXPIRING != 0);
            c.units -= u64::from(t.previous_length);
        });
    }

    fn relocate(&mut self, t: &Transition, frame: u64) {
        assert_eq!(t.length, t.previous_length, "a move keeps the length");
        self.assert_fresh(t.location);
        self.segments.add_live(t.location, t.length);
        self.segments.remove_live(t.previous, t.length, frame);
        if let Some(kept) = self.expiry_overrides.remove(&t.previous)
            && kept.version.clock != t.argument
        {
            self.expiry_overrides.insert(t.location, kept);
        }
        if !self.kept.relocate(t.previous, t.location) {
            return;
        }
        let entry = Entry { fingerprint: t.fingerprint, location: t.location, length: t.length };
        self.advance(t, Some(entry), frame);
    }

    fn set_expiry(&mut self, t: &Transition) {
        if !is_planted(Bug::StaleKnown) {
            self.known.forget(Slot(t.slot), t.fingerprint, &[t.location]);
        }
        let version = Version { epoch: t.previous_length, clock: t.previous };
        self.expiry_overrides.insert(t.location, ExpiryOverride { expiry_ms: t.argument, version });
        self.count(t.container, |c| {
            c.expiring = c.expiring + u64::from(t.flags & FLAG_EXPIRING != 0)
                - u64::from(t.flags & FLAG_PREVIOUS_EXPIRING != 0);
        });
    }

    fn clear(&mut self, t: &Transition, frame: u64) {
        self.generations.insert(t.fingerprint as u32, t.argument as u32);
        self.next_generation = self.next_generation.max(t.argument as u32 + 1);
        let gone = self.counters.remove(&t.container).unwrap_or_default();
        self.uploads.doom_values(t.container);
        if t.flags & FLAG_WHOLE != 0 {
            self.clear_tables(frame);
            self.segments.remove_all_live(frame);
            self.uploads.keep_promised();
            for (location, length) in self.uploads.records() {
                self.segments.add_live(location, length);
            }
            self.kept.clear();
            self.expiry_overrides.clear();
            self.dead.clear();
        } else if gone.keys > 0 {
            self.dead.insert(t.container, gone.keys);
        }
    }

    fn clear_tables(&mut self, frame: u64) {
        if self.slot_frames.is_none() {
            return self.index.clear();
        }
        for slot in self.index.slots().map(|slot| Slot(slot as u16)) {
            if self.table_follows(slot, frame) {
                self.index.clear_slot(slot);
            }
        }
    }

    fn sweep(&mut self, t: &Transition, frame: u64) {
        self.advance(t, None, frame);
        self.leave(t.previous, t.previous_length, frame);
        self.release_below(t.previous, frame);
        let left = self.dead.get_mut(&t.container).expect("a swept generation is dead");
        *left -= 1;
        if *left == 0 {
            self.dead.remove(&t.container);
        }
    }

    fn hold_part(&mut self, t: &Transition) {
        if self.uploads.hold(t.argument, t.fingerprint as u32, t.location, t.length) {
            self.segments.add_live(t.location, t.length);
        }
    }

    fn relocate_part(&mut self, t: &Transition, frame: u64) {
        self.segments.add_live(t.location, t.length);
        self.segments.remove_live(t.previous, t.length, frame);
        self.uploads.relocate(t.previous, t.location);
    }

    fn upload_begin(&mut self, t: &Transition) {
        self.next_upload = self.next_upload.max(t.argument + 1);
        let upload = Upload {
            state: UploadState::Open,
            slot: t.slot,
            generation: t.container,
            length: t.previous,
            parts: BTreeMap::new(),
        };
        self.uploads.begin(t.argument, upload);
    }

    fn upload_end(&mut self, t: &Transition, frame: u64) {
        for (location, length) in self.uploads.end(t.argument) {
            self.segments.remove_live(location, length, frame);
        }
    }

    fn prepare(&mut self, t: &Transition) {
        self.uploads.set_state(t.argument, UploadState::Promised);
        let prepared = Prepared { intent: t.argument, applied: false };
        self.transactions.insert(transaction_of(t), prepared);
    }

    fn applied(&mut self, t: &Transition) {
        let prepared = self.transactions.get_mut(&transaction_of(t));
        prepared.expect("only what has prepared is applied").applied = true;
    }

    fn forget(&mut self, t: &Transition) {
        let forgotten = self.transactions.remove(&transaction_of(t));
        let intent = forgotten.expect("only what has prepared is forgotten").intent;
        self.uploads.set_state(intent, UploadState::Doomed);
    }

    fn release(&mut self, t: &Transition, frame: u64) {
        self.release_below(t.location, frame);
    }

    /// What is kept below a record is not any more.
    fn release_below(&mut self, above: u64, frame: u64) {
        if let Some((kept, true)) = self.kept.release(above) {
            self.give_up(kept.location, kept.length, frame);
        }
    }

    fn revert(&mut self, t: &Transition, frame: u64) {
        self.kept.revert(t.previous).expect("a version to revert to is retained");
        let entry = Entry { fingerprint: t.fingerprint, location: t.location, length: t.length };
        self.advance(t, Some(entry), frame);
        self.leave(t.previous, t.previous_length, frame);
        self.count(t.container, |c| {
            c.expiring = c.expiring + u64::from(t.flags & FLAG_EXPIRING != 0)
                - u64::from(t.flags & FLAG_PREVIOUS_EXPIRING != 0);
            c.units = c.units + u64::from(t.length) - u64::from(t.previous_length);
        });
    }

    fn open_segment(&mut self, t: &Transition, frame: u64) {
        let kind = SegmentKind::from_byte(t.flags).expect("only known kinds are noted");
        let segment = t.location as u32;
        if self.segments.get(segment).sequence != t.argument {
            self.segments.open(segment, kind, t.argument, frame);
        }
    }

    /// Times of expiry of records to which neither the index points nor anything keeps them, for checkers.
    #[must_use]
    pub fn stale_overrides(&self) -> usize {
        let indexed = self.index.slots().flat_map(|slot| self.index.from(Slot(slot as u16), 0));
        let indexed = indexed.map(|entry| entry.location);
        let live: std::collections::BTreeSet<u64> =
            indexed.chain(self.kept.records().map(|(location, _)| location)).collect();
        self.expiry_overrides.keys().filter(|location| !live.contains(location)).count()
    }

    /// Whether live units are what index, uploads and what is kept have, and slack what follows; for
    /// checkers.
    ///
    /// # Errors
    /// What does not agree.
    pub fn check_units(&self) -> Result<(), String> {
        let slots = self.index.slots();
        let indexed: u64 = slots
            .flat_map(|slot| self.index.from(Slot(slot as u16), 0))
            .map(|entry| u64::from(entry.length))
            .sum();
        let parts: u64 = self.uploads.records().map(|(_, length)| u64::from(length)).sum();
        let kept: u64 = self.kept.records().map(|(_, length)| u64::from(length)).sum();
        let (counted, kept) = (indexed + parts + kept, self.segments.live_units());
        if counted != kept {
            return Err(format!("live units: {kept} kept, {counted} counted"));
        }
        let (counted, kept) = (self.segments.recount_slack_units(), self.segments.slack_units());
        if counted != kept {
            return Err(format!("slack units: {kept} kept, {counted} counted"));
        }
        if !self.segments.lists_all_emptied() {
            return Err("segments that are free or empty are not those that are listed".to_owned());
        }
        Ok(())
    }
}

/// The record that a transition says is kept.
fn kept(t: &Transition) -> KeptRecord {
    KeptRecord {
        location: t.previous,
        length: t.previous_length,
        expiring: t.flags & FLAG_PREVIOUS_EXPIRING != 0,
        slot: t.slot,
        fingerprint: t.fingerprint,
        generation: t.container,
    }
}

/// The transaction that a transition names.
fn transaction_of(t: &Transition) -> TransactionId {
    let version = Version { epoch: t.container, clock: t.previous };
    TransactionId { partition: t.slot, version }
}
