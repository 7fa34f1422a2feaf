//! Cleaning: live records of sparse segments move together, so that whole segments come free.
//!
//! Place on the path: in the background; `ranking` says what is cleaned next. Records that were moved
//! once and records that were moved more often go to segments of their own, so that what lives long
//! does not travel with what does not.
//!
//! Invariants:
//! * a moved record is durable before the index points to it, and the old place is given back only
//!   after the note of the move is durable;
//! * only what is still current is moved, looked at when the note is appended;
//! * a damaged record is not moved and not forgotten: its segment stays, and reads keep failing.

mod gathered;
mod heads;
mod ranking;
mod victim;

use gathered::Gathered;
pub(crate) use heads::Heads;
pub(crate) use ranking::Ranking;
use victim::Victim;

use crate::format::note::note_bytes_max;
use crate::format::record::{self, record_bytes, verify_value};
use crate::format::transition::FLAG_PREVIOUS_EXPIRING;
use crate::format::{RecordHeader, RecordKind, SegmentKind, Transition, TransitionKind, UNIT_BYTES};
use crate::metrics::add;
use crate::partition::Partition;
use crate::planted::{Bug, is_planted};
use crate::segments::SegmentState;
use crate::walk::{read_segment, record_locations};
use futures_util::future::join_all;
use plimsoll_kv::block::Origin;
use plimsoll_kv::{Durability, Error, Result, Slot};

/// Bytes of records moved together, of which only the last block is padded.
const MOVE_BYTES: usize = 1 << 20;
/// After so many bytes of records were looked at, others have their turn: some tens of microseconds.
const TURN_BYTES: usize = 64 << 10;
/// What a record that is dead counts for.
const DEAD_TURN_BYTES: usize = 512;
/// Notes of this many moves at a time.
const MOVES_PER_NOTE: usize = 256;

/// Where the search for records of emptied containers stands.
#[derive(Default)]
pub(crate) struct Sweep {
    /// The segment to look at next.
    next: u32,
    /// Segments looked at since the last find.
    fruitless: u32,
    /// So many records were left when the open segments were closed to be looked at too.
    left_at_closing: u64,
    /// So many are left that no segment shows: they are damaged, and nothing can be done.
    hopeless: u64,
}

/// A record on its way from one place to another, or out.
pub(crate) struct Move {
    pub(crate) header: RecordHeader,
    pub(crate) slot: Slot,
    pub(crate) fingerprint: u64,
    pub(crate) from: u64,
    to: u64,
    pub(crate) length: u32,
    /// The clock of the change of expiry that was written into the moved record; 0: none.
    override_clock: u64,
    /// For parts: upload and number.
    part: Option<(u64, u32)>,
}

impl Move {
    /// What takes the record from its key, where it was found.
    pub(crate) fn removal(&self, kind: TransitionKind) -> Transition {
        Transition {
            slot: self.slot.0,
            container: self.header.container,
            fingerprint: self.fingerprint,
            previous: self.from,
            previous_length: self.length,
            ..Transition::new(kind)
        }
    }
}

/// What is to be done with a record found in a victim.
enum Fate {
    Dead,
    Move,
    Forget(Transition),
}

impl Partition {
    /// Moves or forgets everything live in some segments. What is moved of all of them is written together.
    pub(crate) async fn clean(&self, victims: &[u32], heads: &mut Heads) -> Result<()> {
        // Each is held until the end: what was gathered from it is compared with what stands there then.
        let victims = join_all(victims.iter().map(|segment| self.read_victim(*segment))).await;
        let (mut gathered, mut cleaned) = (Gathered::default(), Vec::new());
        for victim in &victims {
            let (moves, damaged) = self.live_in(victim).await?;
            if self.keeps(victim, &moves, &damaged) {
                continue;
            }
            self.gather(victim, moves, &mut gathered, heads).await?;
            cleaned.push(victim);
        }
        for kind in [SegmentKind::Cleaned, SegmentKind::Cold] {
            self.move_records(gathered.take(kind), kind, heads).await?;
        }
        cleaned.into_iter().for_each(|victim| self.finish_victim(victim));
        Ok(())
    }

    /// Forgets what is to be forgotten of a segment; what is live in it, and where something cannot be read.
    async fn live_in<'a>(&self, victim: &'a Victim) -> Result<(Vec<(Move, &'a [u8])>, Vec<u64>)> {
        let (mut moves, mut damaged, mut turn_bytes) = (Vec::new(), Vec::new(), 0);
        for location in &victim.records {
            let bytes = victim.from(*location);
            let Ok(header) = record::verify_head(bytes, victim.sequence, *location) else {
                damaged.push(*location);
                continue;
            };
            let length = header.record_bytes() as usize;
            let moved = self.describe(bytes, header, *location);
            turn_bytes += DEAD_TURN_BYTES;
            let mut fate = self.fate(&moved);
            if !matches!(fate, Fate::Dead) {
                turn_bytes += length;
                if verify_value(bytes, &header).is_err() {
                    damaged.push(*location);
                    continue;
                }
                if matches!(fate, Fate::Forget(_)) {
                    fate = self.forget(&moved, record::key(bytes, &header)).await?;
                }
            }
            if matches!(fate, Fate::Move) {
                moves.push((moved, &bytes[..length]));
            }
            if turn_bytes >= TURN_BYTES {
                turn_bytes = 0;
                self.reactor.yield_now().await;
            }
        }
        Ok((moves, damaged))
    }

    /// Whether something that is live in a victim could not be read. Then it is kept as it is: moving the
    /// rest would take space and give none back.
    fn keeps(&self, victim: &Victim, moves: &[(Move, &[u8])], damaged: &[u64]) -> bool {
        let still_live = moves.iter().filter(|(moved, _)| !matches!(self.fate(moved), Fate::Dead));
        let readable_units: u64 = still_live.map(|(moved, _)| u64::from(moved.length)).sum();
        let segments = &mut self.state.borrow_mut().segments;
        let segment = segments.of(victim.first);
        let info = segments.get(segment);
        assert_eq!(info.sequence, victim.sequence, "what was read of a victim is what stands there");
        assert!(info.live_units >= readable_units, "what is live is counted");
        let unread_units = info.live_units - readable_units;
        if unread_units > 0 {
            tracing::error!(
                partition = self.layout.partition,
                segment,
                bytes = unread_units * UNIT_BYTES,
                "live records in this segment are damaged; it is kept, and reads of them fail"
            );
            segments.mark_damaged(segment, unread_units, damaged);
        }
        unread_units > 0
    }

    /// Gathers what is live in a victim; moves what fills a write.
    async fn gather<'a>(
        &self,
        victim: &Victim,
        moves: Vec<(Move, &'a [u8])>,
        gathered: &mut Gathered<'a>,
        heads: &mut Heads,
    ) -> Result<()> {
        let kind = if victim.kind == SegmentKind::Log { SegmentKind::Cleaned } else { SegmentKind::Cold };
        let most = MOVE_BYTES.min(self.layout.segment_bytes as usize);
        for (moved, bytes) in moves {
            if gathered.add(kind, moved, bytes) >= most {
                self.move_records(gathered.take(kind), kind, heads).await?;
            }
        }
        Ok(())
    }

    /// After a victim was cleaned.
    fn finish_victim(&self, victim: &Victim) {
        let state = self.state.borrow();
        let info = state.segments.get(state.segments.of(victim.first));
        assert_eq!(info.sequence, victim.sequence, "what was read of a victim is what stands there");
        assert_eq!(info.live_units, 0, "everything live in a victim was moved");
        add(&self.counts.cleaned_segments, 1);
    }

    /// What is known of a record from its head.
    pub(crate) fn describe(&self, bytes: &[u8], header: RecordHeader, from: u64) -> Move {
        let key = record::key(bytes, &header);
        let part = header.part(key);
        Move {
            slot: Slot(header.slot),
            fingerprint: self.layout.fingerprint(header.container, key),
            from,
            to: 0,
            length: (header.record_bytes() / UNIT_BYTES) as u32,
            override_clock: 0,
            part,
            header,
        }
    }

    /// What is to be done with a record now.
    fn fate(&self, moved: &Move) -> Fate {
        let state = self.state.borrow();
        if moved.part.is_some() {
            return if state.uploads.is_held(moved.from, moved.length) { Fate::Move } else { Fate::Dead };
        }
        let indexed = state.index.contains(moved.slot, moved.fingerprint, moved.from);
        let kept = state.kept.is_kept(moved.from);
        if is_planted(Bug::BlindRelocation)
            && state.index.find(moved.slot, moved.fingerprint).next().is_some()
        {
            return Fate::Move;
        }
        if !indexed || kept {
            return if kept { Fate::Move } else { Fate::Dead };
        }
        if state.is_dead(moved.header.container) {
            return Fate::Forget(moved.removal(TransitionKind::Sweep));
        }
        let expiry_ms = state.expiry_ms(moved.from, moved.header.expiry_ms);
        let plain = moved.header.kind == RecordKind::Value && state.kept.below(moved.from).is_none();
        // What a transaction has seen stays until it has ended.
        let seen = self.locks.is_kept(moved.slot.0, moved.fingerprint);
        if plain && !seen && expiry_ms != 0 && expiry_ms <= self.now_ms() && self.keys.has_room() {
            let flags = FLAG_PREVIOUS_EXPIRING;
            return Fate::Forget(Transition { flags, ..moved.removal(TransitionKind::Delete) });
        }
        Fate::Move
    }

    /// Writes records to a head and then notes their moves.
    async fn move_records(
        &self,
        mut records: Vec<(Move, &[u8])>,
        kind: SegmentKind,
        heads: &mut Heads,
    ) -> Result<()> {
        while !records.is_empty() {
            let mut head = self.take_head(kind, heads).await?;
            let (moves, bytes, offset) = self.fill(&mut head, &mut records);
            let device_offset = self.layout.segment_offset(head.segment) + offset;
            let segment = head.segment;
            heads.put(kind, head);
            if moves.is_empty() {
                heads.take(kind);
                self.state.borrow_mut().segments.close(segment);
                continue;
            }
            add(&self.counts.cleaned_bytes, bytes.len() as u64);
            if let Err(error) = self.write_moved(device_offset, &bytes).await {
                // Nothing points to what was to be written; the head is not used again.
                heads.take(kind);
                self.state.borrow_mut().segments.close_early(segment);
                return Err(Error::ReadOnly(format!("moving records: {error}")));
            }
            self.note_moves(&moves).await?;
        }
        Ok(())
    }

    /// Notes the moves that are still right, and points the index to the new places.
    async fn note_moves(&self, moves: &[Move]) -> Result<()> {
        for moves in moves.chunks(MOVES_PER_NOTE) {
            self.reserve_patiently(moves.len(), 0).await?;
            let mut transitions = Vec::new();
            for moved in moves {
                match self.fate(moved) {
                    Fate::Dead => {} // Overwritten or deleted while it was written.
                    Fate::Forget(sweep) if sweep.kind == TransitionKind::Sweep => transitions.push(sweep),
                    // What has expired meanwhile is forgotten from its new place: the old one comes free.
                    Fate::Move | Fate::Forget(_) => {
                        transitions.push(relocation(moved));
                        self.keep_use(moved);
                    }
                }
            }
            self.commit_note(&transitions, Durability::Async);
        }
        Ok(())
    }

    /// What eviction and reaping know of a record goes along with it.
    fn keep_use(&self, moved: &Move) {
        let state = &mut *self.state.borrow_mut();
        let expiry_ms = state.expiry_ms(moved.from, moved.header.expiry_ms);
        if self.evicts() && state.segments.marks.is_set(moved.from) {
            state.segments.marks.set(moved.to);
        }
        if expiry_ms != 0 {
            state.segments.note_expiry(moved.to, u64::from(moved.length), expiry_ms);
        }
    }

    /// Forgets a record, if that is still right when there is room to note it; else what is to be
    /// done with it.
    async fn forget(&self, moved: &Move, key: &[u8]) -> Result<Fate> {
        self.reserve_patiently(1, record_bytes(key.len(), 0) as usize).await?;
        let fate = self.fate(moved);
        let Fate::Forget(transition) = fate else { return Ok(fate) };
        if transition.kind == TransitionKind::Delete {
            // Not asynchronously: who sees the key gone waits until it is durably so, or a clock that is
            // set back and a crash bring it back (seed 217).
            self.push_tombstone(&transition, key, Durability::Group);
            add(&self.counts.expired, 1);
        } else {
            self.commit_note(&[transition], Durability::Async);
        }
        Ok(Fate::Dead)
    }

    /// Makes room for a note and a record of so many bytes. The background is last in the queue for
    /// segments and first to need them: if there is none it looks whether one came free meanwhile.
    async fn reserve_patiently(&self, transitions: usize, record_bytes: usize) -> Result<()> {
        let bytes = note_bytes_max(transitions) + record_bytes;
        self.log.wait_for_room().await?;
        if let Err(Error::NoSpace) = self.reserve(bytes, transitions) {
            self.log.flush().await?;
            self.reclaim();
            return self.reserve(bytes, transitions);
        }
        Ok(())
    }

    /// Forgets the records of emptied containers, segment by segment; true if it did something.
    pub(crate) async fn sweep(&self, heads: &mut Heads, sweep: &mut Sweep) -> Result<bool> {
        let left = self.dead_entries();
        if left == 0 {
            *sweep = Sweep::default();
            return Ok(false);
        }
        if left == sweep.hopeless {
            return Ok(false);
        }
        let segments = self.layout.segments;
        let next = (0..segments).map(|step| (sweep.next + step) % segments).find(|segment| {
            let state = self.state.borrow();
            let info = state.segments.get(*segment);
            info.state == SegmentState::Closed && info.live_units > 0 && info.kind != SegmentKind::Checkpoint
        });
        let Some(segment) = next.filter(|_| sweep.fruitless < segments) else {
            sweep.fruitless = 0;
            if sweep.left_at_closing == left {
                // Without an end to it, heads and log would be closed for ever (seed 40).
                sweep.hopeless = left;
                let partition = self.layout.partition;
                tracing::error!(
                    partition,
                    left,
                    "records of emptied databases are damaged; their space is lost"
                );
                return Ok(false);
            }
            sweep.left_at_closing = left;
            return self.close_open_segments(heads);
        };
        sweep.next = (segment + 1) % segments;
        self.sweep_segment(segment).await?;
        sweep.fruitless = if self.dead_entries() < left { 0 } else { sweep.fruitless + 1 };
        Ok(true)
    }

    /// Entries of emptied containers that are still in the index.
    fn dead_entries(&self) -> u64 {
        self.state.borrow().dead.values().sum()
    }

    /// Ends the segments that are being filled, if they hold anything live, so that they can be
    /// swept too; true if there was one.
    fn close_open_segments(&self, heads: &mut Heads) -> Result<bool> {
        let mut closed = self.close_heads(heads);
        let open = self.log.position().0;
        let segments = &mut self.state.borrow_mut().segments;
        if segments.get(open).live_units > 0 {
            self.log.roll(segments)?;
            closed = true;
        }
        Ok(closed)
    }

    /// Ends the segments that cleaning fills; true if there was one.
    pub(crate) fn close_heads(&self, heads: &mut Heads) -> bool {
        let mut closed = false;
        for kind in [SegmentKind::Cleaned, SegmentKind::Cold] {
            if let Some(head) = heads.take(kind) {
                self.state.borrow_mut().segments.close_early(head.segment);
                closed = true;
            }
        }
        closed
    }

    async fn sweep_segment(&self, segment: u32) -> Result<()> {
        let info = self.state.borrow().segments.get(segment).clone();
        let read = read_segment(&*self.block, &self.layout, segment, Origin::BACKGROUND).await;
        let bytes =
            read.map_err(|error| self.unreadable(self.layout.location(segment, 0), &error.to_string()))?;
        for location in record_locations(&*self.block, &self.layout, segment, &info, &bytes).await {
            let at = ((location - u64::from(segment) * self.layout.segment_units()) * UNIT_BYTES) as usize;
            let Ok(header) = record::verify_head(&bytes[at..], info.sequence, location) else { continue };
            if !self.state.borrow().is_dead(header.container) {
                continue;
            }
            self.reserve_patiently(1, 0).await?;
            let moved = self.describe(&bytes[at..at + header.head_bytes()], header, location);
            // What is kept below a record of another container is forgotten too: it stays below that.
            let indexed = self.state.borrow().index.contains(moved.slot, moved.fingerprint, moved.from);
            if moved.part.is_none() && indexed {
                self.commit_note(&[moved.removal(TransitionKind::Sweep)], Durability::Async);
            }
            self.reactor.yield_now().await;
        }
        Ok(())
    }
}

fn relocation(moved: &Move) -> Transition {
    let transition = Transition {
        slot: moved.slot.0,
        container: moved.header.container,
        fingerprint: moved.fingerprint,
        location: moved.to,
        previous: moved.from,
        length: moved.length,
        previous_length: moved.length,
        argument: moved.override_clock,
        ..Transition::new(TransitionKind::Relocate)
    };
    match moved.part {
        None => transition,
        Some((upload, part)) => Transition {
            fingerprint: u64::from(part),
            argument: upload,
            kind: TransitionKind::RelocatePart,
            ..transition
        },
    }
}
