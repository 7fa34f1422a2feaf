//! Names the write path that a write belongs to, by its first bytes.
//!
//! Place: given to the simulated disk, so that faults are counted by what they hit.
//!
//! Never: it is not a decoder; what it names wrongly is counted wrongly, and nothing else happens.

use plimsoll_reactor::sim::Fault;
use std::ops::Range;

/// Both ends of the device.
pub(super) const SUPERBLOCK: &str = "superblock";
/// The header of a log segment and its first frame.
pub(super) const LOG_SEGMENT: &str = "log segment";
/// A further frame.
pub(super) const FRAME: &str = "frame";

/// The header of a segment of key names in order, and its first blocks.
pub(super) const KEY_SEGMENT: &str = "key segment";

/// Further blocks of such a segment: one write holds all of a segment of the size that worlds have,
/// so there are none.
const KEY_BLOCK: &str = "key block";

/// Every write path that worlds reach, and what cannot happen to it: a write of one sector is never
/// torn; superblocks are written when all before them is durable, so that nothing is reordered.
pub(super) const PATHS: [(&str, &[Fault]); 12] = [
    (SUPERBLOCK, &[Fault::Reordered]),
    ("anchor", &[]),
    (LOG_SEGMENT, &[]),
    (FRAME, &[]),
    ("summary", &[]),
    ("cleaned segment", &[]),
    ("cold segment", &[]),
    ("moved records", &[]),
    ("checkpoint segment", &[Fault::Torn]),
    ("checkpoint chunk", &[]),
    (KEY_SEGMENT, &[]),
    ("written ahead", &[]),
];

/// Those of [`PATHS`] that only cleaning writes.
pub(super) const RARE: Range<usize> = 5..8;

/// Operations that carry no bytes.
pub(super) const NO_BYTES: &str = "-";

/// The write path of a write.
pub(super) fn classify(bytes: &[u8]) -> &'static str {
    if bytes.len() < 16 {
        return NO_BYTES;
    }
    if bytes.starts_with(b"PLIMSOLL") {
        return SUPERBLOCK;
    }
    match (&bytes[..4], bytes[8]) {
        (b"PANC", _) => "anchor",
        (b"PSEG", 1) => LOG_SEGMENT,
        (b"PSEG", 2) => "cleaned segment",
        (b"PSEG", 3) => "cold segment",
        (b"PSEG", 5) => KEY_SEGMENT,
        (b"PSEG", _) => "checkpoint segment",
        (b"PKEY", _) => KEY_BLOCK,
        (b"PFRM", _) => FRAME,
        (b"PCKP", _) => "checkpoint chunk",
        (b"PEND", _) => "summary",
        _ if bytes[..64.min(bytes.len())].iter().all(|byte| *byte == 0) => "written ahead",
        // A record has its kind in its fifth byte; a summary begins with the number of a frame.
        _ if bytes[4] != 0 => "moved records",
        _ => "summary",
    }
}

/// What a fault is called in reports.
pub(super) fn fault_name(fault: Fault) -> &'static str {
    match fault {
        Fault::Lost => "lost",
        Fault::Torn => "torn",
        Fault::Reordered => "reordered",
        Fault::Misdirected => "misdirected",
        Fault::BitFlip => "bit flip",
        Fault::ReadError => "read error",
        Fault::WriteError => "write error",
        Fault::FlushError => "flush error",
        Fault::Slow => "slow",
    }
}
