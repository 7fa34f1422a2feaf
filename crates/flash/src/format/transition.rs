//! The transition: one change of the index. Notes in frames and the summary of a log segment are lists
//! of them (`chain` codes them); a record in a frame stands for one.

/// What changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum TransitionKind {
    /// A record was stored at `location` in place of the one at `previous`, if any.
    Store = 1,
    /// The record at `previous` was deleted; its key stands in the tombstone at `location`.
    Delete = 2,
    /// The record at `previous` was moved to `location` by the cleaner, which wrote the change of
    /// its expiry time with the clock `argument` into it (0: none).
    Relocate = 3,
    /// The record at `location` expires at `argument` (0: never), whatever it says itself; the
    /// version of this change has the clock `previous` and the epoch `previous_length`. `flags` tell
    /// whether it expires now and whether it did.
    SetExpiry = 4,
    /// Container `fingerprint` was emptied: generation `container` is gone, `argument` is the new one.
    Clear = 5,
    /// Part `fingerprint` of upload `argument` was stored at `location`.
    StorePart = 6,
    /// Part `fingerprint` of upload `argument` was moved from `previous` to `location`.
    RelocatePart = 7,
    /// Upload `argument` began, for a value of `previous` bytes.
    UploadBegin = 8,
    /// Upload `argument` became the value of its key.
    UploadCommit = 9,
    /// Upload `argument` is nobody's value any more; readers may still be at it.
    UploadDoom = 10,
    /// Upload `argument` and its parts are gone.
    UploadEnd = 11,
    /// The retained record at `previous`, below the one at `location`, was given up.
    Release = 12,
    /// The retained record at `location` took the place of the one at `previous`.
    Revert = 13,
    /// Segment `location` was opened as kind `flags`, with sequence `argument`.
    OpenSegment = 14,
    /// The record at `previous`, of an emptied container, was forgotten.
    Sweep = 15,
    /// In summaries only: the transitions of the note at `location`, of `length` units, stand here.
    Note = 16,
    /// Upload `argument` is kept until its transaction ends.
    UploadPromise = 17,
    /// A transaction prepared: what it is to write stands in upload `argument`. Its name is the partition
    /// `slot`, the epoch `container` and the clock `previous`.
    Prepare = 18,
    /// The transaction of that name was applied.
    Applied = 19,
    /// The transaction of that name is forgotten, applied or given up.
    Forget = 20,
    /// Part `fingerprint` of upload `argument` is the record at `location`, which is a part of another
    /// upload too.
    SharePart = 21,
    /// The record at `previous`, to which its key (`slot`, `container`, `fingerprint`) points, is kept
    /// below the one at `location`, of another key.
    Keep = 22,
}

impl TransitionKind {
    /// The kind that a byte names.
    #[must_use]
    pub fn from_byte(byte: u8) -> Option<TransitionKind> {
        KINDS.get(usize::from(byte).wrapping_sub(1)).copied()
    }
}

const KINDS: [TransitionKind; 22] = [
    TransitionKind::Store,
    TransitionKind::Delete,
    TransitionKind::Relocate,
    TransitionKind::SetExpiry,
    TransitionKind::Clear,
    TransitionKind::StorePart,
    TransitionKind::RelocatePart,
    TransitionKind::UploadBegin,
    TransitionKind::UploadCommit,
    TransitionKind::UploadDoom,
    TransitionKind::UploadEnd,
    TransitionKind::Release,
    TransitionKind::Revert,
    TransitionKind::OpenSegment,
    TransitionKind::Sweep,
    TransitionKind::Note,
    TransitionKind::UploadPromise,
    TransitionKind::Prepare,
    TransitionKind::Applied,
    TransitionKind::Forget,
    TransitionKind::SharePart,
    TransitionKind::Keep,
];

/// The stored record has an expiry time.
pub const FLAG_EXPIRING: u8 = 1;
/// The replaced or deleted record had an expiry time.
pub const FLAG_PREVIOUS_EXPIRING: u8 = 2;
/// The replaced record stays until it is released.
pub const FLAG_RETAIN: u8 = 4;
/// The container held every key of the partition: the index was dropped as a whole.
pub const FLAG_WHOLE: u8 = 8;

/// One change of the index. Locations and lengths count in units of [`UNIT_BYTES`]; location 0 is
/// none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transition {
    /// What changed.
    pub kind: TransitionKind,
    /// `FLAG_*`, or a segment kind.
    pub flags: u8,
    /// The slot of the key.
    pub slot: u16,
    /// The container's generation.
    pub container: u32,
    /// The key's fingerprint.
    pub fingerprint: u64,
    /// Where the record is now.
    pub location: u64,
    /// Where it was.
    pub previous: u64,
    /// Depends on the kind.
    pub argument: u64,
    /// Units of the record at `location`.
    pub length: u32,
    /// Units of the record at `previous`.
    pub previous_length: u32,
}

impl Transition {
    /// A transition of `kind` with nothing else set.
    #[must_use]
    pub fn new(kind: TransitionKind) -> Transition {
        Transition {
            kind,
            flags: 0,
            slot: 0,
            container: 0,
            fingerprint: 0,
            location: 0,
            previous: 0,
            argument: 0,
            length: 0,
            previous_length: 0,
        }
    }
}
