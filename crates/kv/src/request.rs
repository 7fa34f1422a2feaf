//! Requests to a KV device; what they give is in `completion`.

use crate::edit::Edit;
use crate::form::Form;
use crate::payload::Payload;
use crate::room::Room;
use crate::transaction::{Action, TransactionId};
use crate::version::Version;

/// Who asks: the unit of fairness at the gate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tenant(pub u16);

/// A set of keys with its own counters, emptied at once: a Redis database or an NVMe namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContainerId(pub u32);

impl ContainerId {
    /// True if it holds the books of a layer above: see [`crate::limits::BOOKS_CONTAINER_MIN`].
    #[must_use]
    pub fn is_books(self) -> bool {
        self.0 >= crate::limits::BOOKS_CONTAINER_MIN
    }
}

/// Whether somebody waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// A client waits.
    #[default]
    Foreground,
    /// Cleaning, rebuild, scrub: yields to the foreground.
    Background,
}

/// What an acknowledged write is worth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// On stable media before the reply.
    #[default]
    Sync,
    /// As `Sync`, but the commit may wait up to 1 ms for company.
    Group,
    /// Replied at once; at most the last second is lost at a crash.
    Async,
}

/// How long the data is expected to live: the engine keeps like with like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lifetime {
    /// Nothing known.
    #[default]
    Unknown,
    /// Soon overwritten, deleted or expired.
    Short,
    /// Written once.
    Long,
}

/// What must hold for a write to happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Condition {
    /// Nothing.
    #[default]
    None,
    /// The key exists.
    MustExist,
    /// The key does not exist.
    MustNotExist,
    /// The key exists with this version.
    IfVersion(Version),
}

/// What a store does to the expiry time of its key. Times are wall-clock milliseconds since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Expiry {
    /// The key does not expire.
    #[default]
    Never,
    /// The key expires then.
    At(u64),
    /// As before, if the key existed.
    Keep,
}

/// A value that is being written in parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UploadId(pub u64);

/// The value of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// The bytes themselves, at most [`crate::Device::value_bytes_max`].
    Bytes(Payload),
    /// The parts written under this upload.
    Upload(UploadId),
    /// What the key holds, changed. A value in parts, or one that would have to be, is refused with
    /// [`crate::Error::ValueTooLong`].
    Edit(Edit),
    /// What another key holds, behind a few bytes; of devices that keep values where they are
    /// ([`crate::Device::keeps`]) alone.
    Kept(Kept),
}

/// The value of another key, which stays where it is, whatever becomes of that key: the same batch may
/// replace or delete it; what it held before the batch is meant. Nothing is copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// What stands before it: at most [`crate::limits::KEPT_HEAD_BYTES_MAX`] bytes.
    pub head: Vec<u8>,
    /// Bytes of the value, if they are known: that may spare the device a look.
    pub bytes: Option<u64>,
    /// Where the other key is.
    pub container: ContainerId,
    /// Which it is. If it is absent nothing is stored; if it is there, it is in one piece and holds bytes
    /// of its own.
    pub key: Vec<u8>,
}

impl From<Payload> for Value {
    fn from(bytes: Payload) -> Value {
        Value::Bytes(bytes)
    }
}

impl From<Vec<u8>> for Value {
    fn from(bytes: Vec<u8>) -> Value {
        Value::Bytes(bytes.into())
    }
}

impl From<&[u8]> for Value {
    fn from(bytes: &[u8]) -> Value {
        Value::Bytes(bytes.into())
    }
}

impl From<Kept> for Value {
    fn from(kept: Kept) -> Value {
        Value::Kept(kept)
    }
}

/// One operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Writes a key.
    Store {
        /// Where.
        container: ContainerId,
        /// Which key.
        key: Vec<u8>,
        /// What.
        value: Value,
        /// If.
        condition: Condition,
        /// Until when.
        expiry: Expiry,
        /// Keep the version that this store replaces until `Release` or `Revert`.
        /// What cannot be read is not kept.
        retain: bool,
        /// Give the replaced value back in the completion. In a batch its bytes come along if they were read
        /// anyway: those of short values are.
        want_previous: bool,
        /// What an array is to make of the value; nothing: as its policy says. Of an upload it was said when
        /// that began. A device that keeps a value at one place ignores it.
        form: Option<Form>,
    },
    /// Reads a key, or a range of its value: as much of it as there is. A value in parts is not
    /// read whole: its completion names the upload, whose parts `RetrievePart` reads.
    Retrieve {
        /// Where.
        container: ContainerId,
        /// Which key.
        key: Vec<u8>,
        /// First byte and number of bytes; all of it if absent.
        range: Option<(u64, u64)>,
        /// If the value stands in parts, keep them until `Unpin`, whatever happens to the key.
        pin: bool,
    },
    /// Reads a part of a pinned value, or of an upload that was begun; or a range of the part: as much
    /// of it as there is.
    RetrievePart {
        /// Of which upload.
        upload: UploadId,
        /// The key it is the value of.
        key: Vec<u8>,
        /// Which part, from 0.
        part: u32,
        /// First byte of the part and number of bytes; all of it if absent.
        range: Option<(u64, u64)>,
    },
    /// Keeps the parts of an upload that was begun until `Unpin`, whatever becomes of it.
    Pin {
        /// Which upload.
        upload: UploadId,
        /// The key it was begun for.
        key: Vec<u8>,
    },
    /// Gives up a pin.
    Unpin {
        /// Of which upload.
        upload: UploadId,
        /// The key it is the value of.
        key: Vec<u8>,
    },
    /// Removes a key for good.
    Delete {
        /// Where.
        container: ContainerId,
        /// Which key.
        key: Vec<u8>,
        /// If.
        condition: Condition,
    },
    /// Looks whether a key exists, with its version, length and expiry.
    Exist {
        /// Where.
        container: ContainerId,
        /// Which key.
        key: Vec<u8>,
    },
    /// Reads every piece of a key's value, to tell where they stand and whether they are sound. Arrays alone
    /// have pieces.
    Describe {
        /// Where.
        container: ContainerId,
        /// Which key.
        key: Vec<u8>,
    },
    /// Changes when an existing key expires, without rewriting a long value.
    SetExpiry {
        /// Where.
        container: ContainerId,
        /// Which key.
        key: Vec<u8>,
        /// Until when.
        expiry: Expiry,
        /// If.
        condition: Condition,
    },
    /// A page of keys in lexicographic order.
    List {
        /// Where.
        container: ContainerId,
        /// Only keys that begin so.
        prefix: Vec<u8>,
        /// Only keys after this one: the last of the page before.
        after: Option<Vec<u8>>,
        /// At most so many.
        limit: usize,
    },
    /// A page of keys in the index's own order, with Redis' guarantee: a key that exists from the
    /// first to the last page is given at least once.
    Scan {
        /// Where.
        container: ContainerId,
        /// 0 to begin, then what the page before gave.
        cursor: u64,
        /// About so many.
        limit: usize,
    },
    /// Empties a container, in constant time.
    Clear {
        /// Which.
        container: ContainerId,
    },
    /// Stores and deletes that happen all or not at all. Their keys share one partition. Or releases alone,
    /// each by itself: where nothing is retained they do nothing.
    Batch(Vec<Op>),
    /// Gives up the version retained below the current one.
    Release {
        /// Where.
        container: ContainerId,
        /// Which key.
        key: Vec<u8>,
    },
    /// Puts the retained version back in place of the current one.
    Revert {
        /// Where.
        container: ContainerId,
        /// Which key.
        key: Vec<u8>,
    },
    /// Begins a value in parts for this key. Parts are invisible until stored.
    UploadBegin {
        /// Where.
        container: ContainerId,
        /// Which key.
        key: Vec<u8>,
        /// Bytes in all.
        length: u64,
        /// Bytes of these that `UploadShare` will bring: no space is asked for them.
        shared_bytes: u64,
        /// As of `Store`.
        form: Option<Form>,
    },
    /// The next part: [`crate::Device::part_bytes`] bytes, the last one what remains.
    UploadPart {
        /// Of which upload.
        upload: UploadId,
        /// The key it was begun for.
        key: Vec<u8>,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// The next parts: those with the same numbers of a pinned value of the same key. Nothing is copied.
    UploadShare {
        /// Of which upload.
        upload: UploadId,
        /// The key it was begun for.
        key: Vec<u8>,
        /// The pinned value. The shared parts are as long in both.
        from: UploadId,
        /// How many.
        parts: u32,
    },
    /// Gives up an upload and its space.
    UploadAbort {
        /// Which.
        upload: UploadId,
        /// The key it was begun for.
        key: Vec<u8>,
    },
    /// Counters of a container.
    Stats {
        /// Which.
        container: ContainerId,
    },
    /// Everything acknowledged so far, asynchronous stores too, is on stable media at completion.
    Sync,
    /// A step of a transaction at one of its partitions.
    Transaction {
        /// At which.
        partition: u16,
        /// Of which transaction; absent where there is none yet, or all are meant.
        id: Option<TransactionId>,
        /// What to do.
        action: Action,
    },
}

impl Op {
    /// Stores a value for good, whatever the key holds.
    pub fn store(container: ContainerId, key: impl Into<Vec<u8>>, value: impl Into<Value>) -> Op {
        Op::Store {
            container,
            key: key.into(),
            value: value.into(),
            condition: Condition::None,
            expiry: Expiry::Never,
            retain: false,
            want_previous: false,
            form: None,
        }
    }

    /// Retrieves the whole value of a key, pinned if it stands in parts.
    #[must_use]
    pub fn retrieve_whole(container: ContainerId, key: &[u8]) -> Op {
        Op::Retrieve { container, key: key.to_vec(), range: None, pin: true }
    }

    /// The key that this writes, and where it is, if it writes one.
    #[must_use]
    pub fn place(&self) -> Option<(ContainerId, &[u8])> {
        match self {
            Op::Store { container, key, .. }
            | Op::Delete { container, key, .. }
            | Op::SetExpiry { container, key, .. } => Some((*container, key)),
            _ => None,
        }
    }

    /// The keys of releases, of a batch of nothing else.
    #[must_use]
    pub fn releases(batch: &[Op]) -> Option<Vec<(ContainerId, &[u8])>> {
        let release = |op| match op {
            &Op::Release { container, ref key } => Some((container, key.as_slice())),
            _ => None,
        };
        if batch.is_empty() { None } else { batch.iter().map(release).collect() }
    }

    /// Bytes of values that this carries down.
    #[must_use]
    pub fn value_bytes(&self) -> u64 {
        match self {
            Op::Store { value: Value::Bytes(bytes), .. } => bytes.len() as u64,
            Op::Store { value: Value::Kept(kept), .. } => kept.head.len() as u64,
            Op::UploadPart { bytes, .. } => bytes.len() as u64,
            Op::Batch(ops) => ops.iter().map(Op::value_bytes).sum(),
            _ => 0,
        }
    }

    /// What another key holds that this stores, if it does.
    #[must_use]
    pub fn kept(&self) -> Option<&Kept> {
        match self {
            Op::Store { value: Value::Kept(kept), .. } => Some(kept),
            _ => None,
        }
    }

    /// The upload that this stores, if it stores one.
    #[must_use]
    pub fn upload(&self) -> Option<UploadId> {
        match self {
            Op::Store { value: Value::Upload(upload), .. } => Some(*upload),
            _ => None,
        }
    }

    /// The key that decides which partition serves this, if one does.
    #[must_use]
    pub fn key(&self) -> Option<&[u8]> {
        match self {
            Op::Store { key, .. }
            | Op::Retrieve { key, .. }
            | Op::Delete { key, .. }
            | Op::RetrievePart { key, .. }
            | Op::Pin { key, .. }
            | Op::Unpin { key, .. }
            | Op::Exist { key, .. }
            | Op::Describe { key, .. }
            | Op::SetExpiry { key, .. }
            | Op::Release { key, .. }
            | Op::Revert { key, .. }
            | Op::UploadBegin { key, .. }
            | Op::UploadPart { key, .. }
            | Op::UploadShare { key, .. }
            | Op::UploadAbort { key, .. } => Some(key),
            Op::Batch(ops) => ops.first().and_then(Op::key),
            Op::Transaction { action: Action::Retrieve { key, .. }, .. } => Some(key),
            Op::List { .. }
            | Op::Scan { .. }
            | Op::Clear { .. }
            | Op::Stats { .. }
            | Op::Sync
            | Op::Transaction { .. } => None,
        }
    }
}

/// An operation with everything its way down asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Who asks.
    pub tenant: Tenant,
    /// Whether somebody waits.
    pub class: Class,
    /// Monotonic nanoseconds after which it is not begun any more, but refused as overloaded; 0: none.
    pub deadline_ns: u64,
    /// What the acknowledgement is worth.
    pub durability: Durability,
    /// How long the data will live.
    pub lifetime: Lifetime,
    /// What of the room that a full device keeps from stores it may take.
    pub room: Room,
    /// What to do.
    pub op: Op,
}

impl Request {
    /// A foreground request of the default tenant.
    #[must_use]
    pub fn new(durability: Durability, op: Op) -> Request {
        Request {
            tenant: Tenant::default(),
            class: Class::Foreground,
            deadline_ns: 0,
            durability,
            lifetime: Lifetime::Unknown,
            room: Room::OfStores,
            op,
        }
    }

    /// The same, which makes room.
    #[must_use]
    pub fn making_room(self) -> Request {
        Request { room: Room::ToMakeRoom, ..self }
    }

    /// The same, of what was acknowledged.
    #[must_use]
    pub fn keeping(self) -> Request {
        Request { room: Room::ToKeep, ..self }
    }
}
