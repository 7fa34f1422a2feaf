//! Segments written ahead of their use, so that writing them later changes no file-system metadata.
//!
//! Role: keeps some free segments prepared. Place on the path: in the background, and at the opening.
//!
//! Invariants: a segment is prepared once, in order, while it is free and given to nobody; who takes more
//! than is prepared waits for the preparation, and is told that there is no space only where there is none.

use crate::format::SegmentKind;
use crate::layout::Layout;
use crate::partition::Partition;
use crate::segments::SegmentTable;
use plimsoll_kv::block::Origin;
use plimsoll_kv::{Block, Error, Result};
use plimsoll_reactor::Buf;
use std::cell::RefCell;
use std::io;
use std::rc::Rc;

/// Segments written ahead of use, beyond those that stores leave to the background.
const PREPARED_AHEAD: u32 = 10;
/// Free segments written ahead before a partition is open.
const PREPARED_AT_OPEN: u32 = 6;
/// Bytes of one write.
const PREPARE_BYTES: usize = 256 << 10;

thread_local! {
    /// What was written ahead last, for all partitions of a core: filling it for each segment costs a store
    /// of a new device a tenth of what copying it does.
    static ZEROS: RefCell<Rc<Buf>> = RefCell::default();
}

/// A segment that was taken.
pub(crate) struct Taken {
    pub(crate) segment: u32,
    pub(crate) sequence: u64,
    /// The frame being built then.
    pub(crate) frame: u64,
}

impl Partition {
    /// Writes the next segment ahead of its use; true if there may be more to write.
    pub(crate) async fn prepare_ahead(&self) -> Result<bool> {
        self.prepare_below(self.store_reserve() + PREPARED_AHEAD).await
    }

    /// Takes a free segment for checkpoints or keys, which leave so many free.
    pub(crate) async fn take_segment(
        &self,
        kind: SegmentKind,
        keep: impl Fn(&SegmentTable) -> u32,
    ) -> Result<Taken> {
        let (sequence, frame) = (self.log.take_sequence(), self.log.frame());
        loop {
            let keep = {
                let segments = &mut self.state.borrow_mut().segments;
                let keep = keep(segments);
                if let Some(segment) = segments.allocate(kind, sequence, frame, keep) {
                    return Ok(Taken { segment, sequence, frame });
                }
                keep
            };
            if !self.prepare_below(keep + 1).await? {
                return Err(Error::NoSpace);
            }
        }
    }

    /// Sees to it that one more segment is prepared if fewer than so many are free; true if one is.
    async fn prepare_below(&self, free_min: u32) -> Result<bool> {
        let (segment, free) = {
            let state = self.state.borrow();
            (state.segments.prepared(), state.segments.free_count())
        };
        if segment >= self.layout.segments || free >= free_min {
            return Ok(false);
        }
        if self.preparing.replace(true) {
            self.space.wait_for(|| (!self.preparing.get()).then_some(())).await;
            return Ok(true);
        }
        let written = write_zeros(&*self.block, Origin::BACKGROUND, &self.layout, segment).await;
        let flushed = match written {
            Ok(()) => self.block.flush(Origin::BACKGROUND).await,
            failed => failed,
        };
        if flushed.is_ok() {
            self.state.borrow_mut().segments.set_prepared(segment + 1);
        }
        self.preparing.set(false);
        self.space.wake_all();
        let failed = |error| Error::ReadOnly(format!("writing segment {segment} ahead: {error}"));
        flushed.map(|()| true).map_err(failed)
    }
}

/// Writes the first free segments ahead, so that the log can begin: it does in segment 0 of a device that
/// `is_new`.
pub(crate) async fn prepare_first(
    block: &dyn Block,
    layout: &Layout,
    segments: &mut SegmentTable,
    is_new: bool,
) -> io::Result<()> {
    // The segment in which the log goes on counts as prepared once it is below the mark.
    segments.set_prepared(segments.prepared().min(layout.segments));
    let mut first = is_new;
    while segments.free_count() < PREPARED_AT_OPEN || first {
        let segment = if first { 0 } else { segments.prepared() };
        if segment >= layout.segments {
            break;
        }
        write_zeros(block, Origin::FOREGROUND, layout, segment).await?;
        first = false;
        segments.set_prepared(segments.prepared().max(segment + 1));
    }
    block.flush(Origin::FOREGROUND).await
}

async fn write_zeros(block: &dyn Block, origin: Origin, layout: &Layout, segment: u32) -> io::Result<()> {
    let zeros = zeros(PREPARE_BYTES.min(layout.segment_bytes as usize));
    let start = layout.segment_offset(segment);
    for offset in (0..layout.segment_bytes).step_by(zeros.len()) {
        block.write(origin, start + offset, zeros.clone(), false).await?;
    }
    Ok(())
}

fn zeros(bytes: usize) -> Rc<Buf> {
    ZEROS.with_borrow_mut(|last| {
        if last.len() != bytes {
            *last = Rc::new(Buf::zeroed(bytes));
        }
        last.clone()
    })
}
