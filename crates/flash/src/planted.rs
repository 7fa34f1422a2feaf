//! Planted bugs: each breaks one rule of the engine, to prove that the simulator's checkers see.
//!
//! Which one is planted says the switch of all layers (`plimsoll_kv::planted`).

use plimsoll_kv::planted::Planted;
pub(crate) use plimsoll_kv::planted::is_planted;

/// A rule that can be broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Bug {
    /// Log frames are written without making them durable.
    SkippedFlush = 1,
    /// Log segments are given back before a checkpoint holds their deletes.
    EarlyTombstoneDrop,
    /// After a crash the log goes on in the segment of its last frames, and rewrites them.
    RewrittenTail,
    /// An anchor is written before the data that its checkpoint points to is durable.
    CheckpointBeforeData,
    /// A store is acknowledged when its frame is written to memory.
    EarlyAcknowledge,
    /// The epoch does not grow at a start.
    EpochUsedTwice,
    /// A segment is given back while its last transitions are not durable.
    EarlyReclaim,
    /// A frame counts as durable although an earlier one is still being written.
    OutOfOrderDurable,
    /// Keys are not compared after a read: a fingerprint is taken for the key.
    FingerprintIsKey,
    /// A read does not wait for a write of its key that is not durable yet.
    DirtyRead,
    /// A key seen expired is not deleted durably.
    ExpiryForgotten,
    /// The checksum of a value is not looked at.
    UnverifiedValue,
    /// Cleaning moves a record without looking whether it is still the current one.
    BlindRelocation,
    /// The uploads that a crash left open are not given up.
    LeakedUpload,
    /// Of those who wait for one frame, the last is not woken when it is durable.
    LostWakeup,
    /// A change in the same millisecond as the one before it gets the same version.
    VersionUsedTwice,
    /// A participant of a transaction counts as prepared before that is durable.
    EarlyPrepare,
    /// After a crash, a transaction that prepared is given up without asking the other participants.
    HastyAbort,
    /// A transaction gives back its keys when it has prepared, before it is applied.
    EarlyRelease,
    /// Keys that are evicted are forgotten without a tombstone.
    EvictionUnlogged,
    /// What is kept above of a key that is evicted stays.
    EvictionUntold,
    /// What was known of a place stays known when another record comes there, or its expiry changes.
    StaleKnown,
}

impl Bug {
    /// All of them.
    pub const ALL: [Bug; 22] = [
        Bug::SkippedFlush,
        Bug::EarlyTombstoneDrop,
        Bug::RewrittenTail,
        Bug::CheckpointBeforeData,
        Bug::EarlyAcknowledge,
        Bug::EpochUsedTwice,
        Bug::EarlyReclaim,
        Bug::OutOfOrderDurable,
        Bug::FingerprintIsKey,
        Bug::DirtyRead,
        Bug::ExpiryForgotten,
        Bug::UnverifiedValue,
        Bug::BlindRelocation,
        Bug::LeakedUpload,
        Bug::LostWakeup,
        Bug::VersionUsedTwice,
        Bug::EarlyPrepare,
        Bug::HastyAbort,
        Bug::EarlyRelease,
        Bug::EvictionUnlogged,
        Bug::EvictionUntold,
        Bug::StaleKnown,
    ];
}

impl From<Bug> for Planted {
    fn from(bug: Bug) -> Planted {
        Planted { layer: "flash", bug: bug as u8 }
    }
}
