//! Names the write path that a write belongs to, by its first bytes.
//!
//! Place: given to the simulated disk, so that faults are counted by what they hit.
//!
//! Never: it is not a decoder; what it names wrongly is counted wrongly, and nothing else happens.

use plimsoll_reactor::sim::Fault;

/// Both ends of the device.
pub(super) const SUPERBLOCK: &str = "superblock";
/// The header of a log segment and its first frame.
pub(super) const LOG_SEGMENT: &str = "log segment";
/// A further frame.
pub(super) const FRAME: &str = "frame";

/// The header of a segment of key names in order, and its first blocks.
pub(super) const KEY_SEGMENT: &str = "key segment";

/// Every write path of the engine, and whether one write of it can be longer than a sector.
pub(super) const PATHS: [(&str, bool); 13] = [
    (SUPERBLOCK, true),
    ("anchor", true),
    (LOG_SEGMENT, true),
    (FRAME, true),
    ("summary", true),
    ("cleaned segment", true),
    ("cold segment", true),
    ("moved records", true),
    ("checkpoint segment", false),
    ("checkpoint chunk", true),
    (KEY_SEGMENT, true),
    ("key block", true),
    ("written ahead", true),
];

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
        (b"PKEY", _) => "key block",
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
