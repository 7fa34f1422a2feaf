//! Writing checkpoints: the tables and the snapshot, so that recovery replays only what came after.
//!
//! Place on the path: in the background, a chunk at a time, while requests go on.
//!
//! A checkpoint is written in pieces. When some tables are on flash, an anchor puts them in the place of
//! the older tables of the same slots: with the old snapshot and the old beginning of replay, for tables
//! say which frames they hold. So the old pieces go one after the other, and only a little more than one
//! piece must be free. The last anchor names the new snapshot, in the piece with the last tables.
//!
//! Invariants:
//! * the snapshot is taken at the edge of a frame, and each group of tables too: see `state`;
//! * an anchor is written when all chunks that it names, and all the log that its tables point to, are
//!   durable; only then what it does not name any more is given up, and the log with the last one alone.

mod room;
mod writer;

pub(crate) use room::Room;

use crate::format::anchor::{ANCHOR_BYTES, Anchor, Piece};
use crate::metrics::add;
use crate::partition::Partition;
use crate::planted::{Bug, is_planted};
use crate::snapshot;
use plimsoll_kv::block::Origin;
use plimsoll_kv::{Error, Result, Slot};
use plimsoll_reactor::Buf;
use std::rc::Rc;
use writer::PieceWriter;

/// Begins a section of a piece's stream: its kind, then its length in 8 bytes.
pub(crate) const SECTION_SNAPSHOT: u8 = b'S';
/// A section of tables: the first frame they do not hold, the first slot, the number of slots, the bits
/// of a location, then the tables.
pub(crate) const SECTION_TABLES: u8 = b'T';
/// A section that names the runs of keys: those that the snapshot's frame has, or newer ones.
pub(crate) const SECTION_KEYS: u8 = b'K';

impl Partition {
    /// Writes a checkpoint; with `clean` the log is closed after it.
    pub(crate) async fn checkpoint(&self, clean: bool) -> Result<()> {
        // Until the keys are complete, the log that they are found in stays with the old anchor.
        let with_keys = self.keys_to_be_named().await?;
        // The segment in which replay will begin must have its header on flash.
        self.log.seal(&self.state).await?;
        let mut writer = PieceWriter::new(self);
        let written = self.write_checkpoint(&mut writer, clean, with_keys).await;
        self.keys.end_checkpoint();
        if written.is_err() {
            let mut state = self.state.borrow_mut();
            for segment in writer.fresh {
                state.segments.release(segment);
            }
        }
        written
    }

    async fn write_checkpoint(
        &self,
        writer: &mut PieceWriter<'_>,
        clean: bool,
        with_keys: bool,
    ) -> Result<()> {
        self.log.close_building();
        let frame_number = self.log.frame();
        let (log_segment, log_number) = self.log.position();
        let transitions_before = self.transitions_since.get();
        let mut snapshot = Vec::new();
        snapshot::encode(&self.state.borrow(), &mut snapshot);
        let frozen = with_keys.then(|| self.keys.freeze_for_checkpoint());
        self.write_tables(writer).await?;
        let runs = self.named_runs(frozen).await?;
        writer.section(SECTION_SNAPSHOT, &snapshot).await?;
        if let Some(runs) = &runs {
            let mut names = Vec::new();
            crate::keys::encode_names(runs, &mut names);
            writer.section(SECTION_KEYS, &names).await?;
        }
        let end_slot = self.state.borrow().index.slots().end;
        let checkpoint_id = writer.end_piece(end_slot).await?;
        let anchor = Anchor {
            generation: self.anchor.borrow().generation + 1,
            epoch: self.log.epoch(),
            clean,
            log_segment,
            log_number,
            frame_number,
            checkpoint_id,
            pieces: writer.written.clone(),
        };
        if !anchor.fits() {
            return Err(Error::NoSpace);
        }
        if let Err(error) = self.write_anchor_of(writer, &anchor).await {
            self.keys.adopt_perhaps(runs.as_deref());
            return Err(error);
        }
        self.transitions_since.set(self.transitions_since.get() - transitions_before);
        self.keys.adopt(runs.as_deref());
        self.adopt(anchor);
        add(&self.counts.checkpoints, 1);
        Ok(())
    }

    /// Writes the tables. All but the last ones take the place of the old ones on the way.
    async fn write_tables(&self, writer: &mut PieceWriter<'_>) -> Result<()> {
        let before = self.anchor.borrow().clone();
        let piece_bytes = self.piece_bytes();
        let slots = self.state.borrow().index.slots();
        let (mut slot, mut payload) = (slots.start, Vec::new());
        while slot < slots.end {
            slot = self.encode_tables(slot, slots.end, &mut payload);
            writer.section(SECTION_TABLES, &payload).await?;
            if slot < slots.end && writer.bytes() >= piece_bytes {
                writer.end_piece(slot).await?;
                self.replace_tables(writer, &before, slot).await?;
            }
        }
        Ok(())
    }

    /// Puts the tables written so far, of the slots below `end_slot`, in the place of those that the
    /// anchor from before this checkpoint names.
    async fn replace_tables(
        &self,
        writer: &mut PieceWriter<'_>,
        before: &Anchor,
        end_slot: u32,
    ) -> Result<()> {
        assert!(!before.clean && before.epoch == self.log.epoch(), "the anchor of this life");
        let stays = |piece: &&Piece| piece.id == before.checkpoint_id || piece.end_slot > end_slot;
        let old = before.pieces.iter().filter(stays);
        let anchor = Anchor {
            generation: self.anchor.borrow().generation + 1,
            pieces: old.chain(&writer.written).cloned().collect(),
            ..before.clone()
        };
        // Without room in the anchor the old tables stay until more of them can go.
        if anchor.fits() {
            self.write_anchor_of(writer, &anchor).await?;
            self.adopt(anchor);
        }
        Ok(())
    }

    /// Writes an anchor that names what was written, after all that it stands on is durable.
    async fn write_anchor_of(&self, writer: &mut PieceWriter<'_>, anchor: &Anchor) -> Result<()> {
        if !is_planted(Bug::CheckpointBeforeData) {
            let flushed = self.block.flush(Origin::BACKGROUND).await;
            flushed.map_err(|error| Error::ReadOnly(format!("flushing a checkpoint: {error}")))?;
            self.log.flush().await?;
        }
        // From here on recovery may find this anchor: if its writing fails, nobody may touch what
        // it names.
        writer.fresh.clear();
        if let Err(error) = write_anchor(&*self.block, &self.layout, anchor, 0).await {
            self.log.fail(&format!("writing an anchor of partition {}: {error}", self.layout.partition));
            return Err(self.log.failure().expect("just failed"));
        }
        Ok(())
    }

    /// Encodes tables from `slot` on, as of the edge of a frame; the first slot left.
    fn encode_tables(&self, slot: u32, end: u32, payload: &mut Vec<u8>) -> u32 {
        self.log.close_building();
        payload.clear();
        payload.extend_from_slice(&self.log.frame().to_le_bytes());
        payload.extend_from_slice(&slot.to_le_bytes());
        payload.extend_from_slice(&0_u32.to_le_bytes());
        let state = self.state.borrow();
        let location_bits = state.segments.location_bits();
        payload.push(location_bits as u8);
        let mut next = slot;
        let section_bytes = room::section_bytes(&self.layout) as usize;
        while next < end && payload.len() < section_bytes {
            state.index.encode_slot(Slot(next as u16), location_bits, payload);
            next += 1;
        }
        payload[12..16].copy_from_slice(&(next - slot).to_le_bytes());
        next
    }

    /// Makes a written anchor the one in force: what only the old one held is given up.
    fn adopt(&self, anchor: Anchor) {
        let named = anchor.segments();
        let old = self.anchor.replace(anchor);
        let mut state = self.state.borrow_mut();
        let mut given_up = false;
        for segment in old.segments().difference(&named) {
            state.segments.release(*segment);
            given_up = true;
        }
        for segment in &named {
            state.segments.close(*segment);
        }
        drop(state);
        if given_up {
            self.space.wake_all();
        }
        self.reclaim();
    }

    /// Gives back what nothing needs any more.
    pub(crate) fn reclaim(&self) {
        let (durable, replay_from) = self.reclaims_to();
        let released = self.release_keys();
        if self.state.borrow_mut().segments.reclaim(durable, replay_from) + released > 0 {
            self.space.wake_all();
            self.keys.space_freed();
        }
    }

    /// Segments that [`Partition::reclaim`] would give back if all that was logged were durable.
    pub(crate) fn coming_segments(&self) -> u32 {
        let (durable, replay_from) = self.reclaims_to();
        self.state.borrow().segments.coming(durable, replay_from)
    }

    /// The frame and the log segment up to which what died may come free.
    fn reclaims_to(&self) -> (u64, u64) {
        let durable = if is_planted(Bug::EarlyReclaim) { u64::MAX } else { self.log.durable() };
        let early = is_planted(Bug::EarlyTombstoneDrop);
        (durable, if early { self.log.position().1 } else { self.anchor.borrow().log_number })
    }
}

/// Writes both copies of an anchor, one after the other and `first` first, so that one is whole at
/// any instant: if only one can be read, the other is written first.
pub(crate) async fn write_anchor(
    block: &dyn plimsoll_kv::Block,
    layout: &crate::layout::Layout,
    anchor: &Anchor,
    first: u64,
) -> std::io::Result<()> {
    let mut buf = Buf::zeroed(ANCHOR_BYTES);
    buf.copy_from_slice(&anchor.encode(layout.identity));
    let buf = Rc::new(buf);
    for copy in [first, 1 - first] {
        let offset = layout.anchor_offset + copy * ANCHOR_BYTES as u64;
        block.write(Origin::BACKGROUND, offset, buf.clone(), true).await?;
    }
    Ok(())
}
