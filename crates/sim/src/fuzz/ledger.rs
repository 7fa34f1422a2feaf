//! The ledger of a disk: which of its bytes a fault has damaged, and what that excuses.
//!
//! Place: a [`Watch`] stands between the engine and the file and sees every write.
//!
//! A device that lies (a write that landed elsewhere, a bit that flipped) can take acknowledged data
//! away, and a store without redundancy can only say so. Two things are excused: an unreadable record
//! where the ledger knows of damage, and the loss of what was acknowledged last, if the frames that
//! held it are damaged and no whole frame written later states that they were durable: then nothing
//! on the device tells that they ever were.
//!
//! Invariants: bytes are damaged from the fault until a write that was begun later covers them.
//!
//! Never: it excuses a wrong value.

use super::paths::{FRAME, LOG_SEGMENT, classify};
use plimsoll_kv::block::{Block, IoFuture, Origin};
use plimsoll_reactor::Buf;
use plimsoll_reactor::sim::World;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// The longest thing that is read as one: no error names an offset further before its damage.
const RECORD_BYTES_MAX: u64 = 48 << 10;

/// An error that was seen before its damage was mended reaches its client within this time.
const TOLD_NS_MAX: u64 = 1_000_000_000;

/// Damaged bytes, and when they were: the number of damages before.
struct Piece {
    number: usize,
    from: u64,
    to: u64,
}

/// A frame of a log that was written.
struct Frame {
    partition: u64,
    number: u64,
    /// What it states to be durable.
    durable: u64,
    from: u64,
    to: u64,
    /// Damages before it was begun.
    damages: usize,
    done_ns: u64,
}

/// Writes by path.
pub type WriteCounts = BTreeMap<&'static str, u64>;

pub(super) struct Ledger {
    world: World,
    path: String,
    /// Where partitions begin, and how long each is.
    data_bytes: (u64, u64),
    absorbed: Cell<usize>,
    pieces: RefCell<Vec<Piece>>,
    /// What was mended, and when.
    mended: RefCell<Vec<(u64, Piece)>>,
    frames: RefCell<Vec<Frame>>,
    pub(super) writes: RefCell<WriteCounts>,
}

impl Ledger {
    pub(super) fn new(world: &World, path: &str, data_bytes: (u64, u64)) -> Rc<Ledger> {
        Rc::new(Ledger {
            world: world.clone(),
            path: path.to_owned(),
            data_bytes,
            absorbed: Cell::new(0),
            pieces: RefCell::default(),
            mended: RefCell::default(),
            frames: RefCell::default(),
            writes: RefCell::default(),
        })
    }

    /// Takes over what the disk has damaged since.
    fn absorb(&self) -> usize {
        let from = self.absorbed.get();
        let fresh: Vec<(u64, u64)> =
            self.world.with_disk(&self.path, |disk| disk.damage().get(from..).unwrap_or_default().to_vec());
        for (number, (offset, length)) in (from..).zip(&fresh) {
            self.pieces.borrow_mut().push(Piece { number, from: *offset, to: offset + length });
        }
        self.absorbed.set(from + fresh.len());
        self.absorbed.get()
    }

    /// True if anything ever was.
    pub(super) fn was_damaged(&self) -> bool {
        self.absorb() > 0
    }

    /// True if damage explains that what begins at this offset cannot be read.
    pub(super) fn explains(&self, offset: u64) -> bool {
        self.absorb();
        let to = offset + RECORD_BYTES_MAX;
        let hits = |piece: &Piece| piece.from < to && piece.to > offset;
        let since_ns = self.world.now_ns().saturating_sub(TOLD_NS_MAX);
        let mended = self.mended.borrow();
        self.pieces.borrow().iter().any(hits)
            || mended.iter().any(|(ns, piece)| *ns >= since_ns && hits(piece))
    }

    /// A write that was begun after so many damages is done: it mends what it covers.
    fn wrote(&self, damages: usize, from: u64, buf: &[u8]) {
        self.absorb();
        let to = from + buf.len() as u64;
        let mut pieces = self.pieces.borrow_mut();
        for piece in std::mem::take(&mut *pieces) {
            if piece.number >= damages || piece.to <= from || piece.from >= to {
                pieces.push(piece);
                continue;
            }
            let number = piece.number;
            let now_ns = self.world.now_ns();
            self.mended.borrow_mut().push((now_ns, Piece { number, from: piece.from, to: piece.to }));
            let before = Piece { number, from: piece.from, to: piece.to.min(from) };
            let after = Piece { number, from: piece.from.max(to), to: piece.to };
            pieces.extend([before, after].into_iter().filter(|piece| piece.from < piece.to));
        }
        drop(pieces);
        self.remember_frame(damages, from, buf);
    }

    fn remember_frame(&self, damages: usize, from: u64, buf: &[u8]) {
        let path = classify(buf);
        let head = if path == LOG_SEGMENT { buf.get(512..).unwrap_or_default() } else { buf };
        let is_frame = path == FRAME || (path == LOG_SEGMENT && head.starts_with(b"PFRM"));
        if !is_frame || head.len() < 32 {
            return;
        }
        let word = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("eight bytes"));
        self.frames.borrow_mut().push(Frame {
            partition: from.saturating_sub(self.data_bytes.0) / self.data_bytes.1,
            number: word(16),
            durable: word(24),
            from,
            to: from + buf.len() as u64,
            damages,
            done_ns: self.world.now_ns(),
        });
    }

    /// Writes of a path that were begun.
    pub(super) fn count(&self, path: &str) -> u64 {
        self.writes.borrow().get(path).copied().unwrap_or_default()
    }

    /// The damage that is there now, for a trace.
    pub(super) fn describe(&self) -> String {
        self.absorb();
        let pieces = self.pieces.borrow();
        let ranges = pieces.iter().map(|piece| format!("{}..{}", piece.from, piece.to));
        ranges.collect::<Vec<_>>().join(" ")
    }

    /// From when on acknowledged writes may be lost, if damage excuses that.
    pub(super) fn excused_since(&self) -> Option<u64> {
        self.excused_with(None)
    }

    /// True if damage of this byte, too, would excuse no loss of acknowledged writes.
    pub(super) fn is_proved(&self, at: u64) -> bool {
        self.excused_with(Some(Piece { number: usize::MAX, from: at, to: at + 1 })).is_none()
    }

    fn excused_with(&self, more: Option<Piece>) -> Option<u64> {
        self.absorb();
        let (pieces, frames) = (self.pieces.borrow(), self.frames.borrow());
        let is_damaged = |frame: &Frame| {
            let hits = |p: &Piece| p.number >= frame.damages && p.from < frame.to && p.to > frame.from;
            pieces.iter().chain(&more).any(hits)
        };
        let lost = frames.iter().filter(|frame| {
            is_damaged(frame)
                && !frames.iter().any(|proof| {
                    let later = proof.done_ns >= frame.done_ns && proof.durable >= frame.number;
                    proof.partition == frame.partition && later && !is_damaged(proof)
                })
        });
        lost.map(|frame| frame.done_ns).min()
    }

    /// The partitions are open: what they recovered is proved by the new log.
    pub(super) fn opened(&self) {
        self.frames.borrow_mut().clear();
    }
}

/// A block device that tells the ledger what is written.
pub(super) struct Watch {
    pub(super) inner: Rc<dyn Block>,
    pub(super) ledger: Rc<Ledger>,
}

impl Block for Watch {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }
    fn block_bytes(&self) -> u32 {
        self.inner.block_bytes()
    }
    fn read(&self, origin: Origin, offset: u64, len: usize) -> IoFuture<Buf> {
        self.inner.read(origin, offset, len)
    }
    fn write(&self, origin: Origin, offset: u64, buf: Rc<Buf>, durable: bool) -> IoFuture<()> {
        let (ledger, damages) = (self.ledger.clone(), self.ledger.absorb());
        *ledger.writes.borrow_mut().entry(classify(&buf)).or_default() += 1;
        let write = self.inner.write(origin, offset, buf.clone(), durable);
        Box::pin(async move {
            let written = write.await;
            if written.is_ok() {
                ledger.wrote(damages, offset, &buf);
            }
            written
        })
    }
    fn flush(&self, origin: Origin) -> IoFuture<()> {
        self.inner.flush(origin)
    }
}
