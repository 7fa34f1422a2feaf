//! What requests to a KV device give.

use crate::error::{Error, Result};
use crate::form::Form;
use crate::request::UploadId;
use crate::transaction::{Outstanding, Status, TransactionId};
use crate::version::Version;
use bytes::Bytes;

/// What a key holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Item {
    /// Its version.
    pub version: Version,
    /// Bytes of the whole value.
    pub length: u64,
    /// When it expires, in wall-clock milliseconds.
    pub expiry_ms: Option<u64>,
    /// The bytes asked for; empty if none were.
    pub bytes: Vec<u8>,
    /// Bytes on flash behind this key, headers and padding included.
    pub stored_bytes: u64,
    /// If the value stands in parts: the upload that holds them.
    pub upload: Option<UploadId>,
}

/// The whole value of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retrieved {
    /// What is known of the key; its own bytes are left empty.
    pub item: Item,
    /// The value; empty if it stands in parts. It may stand in the block that a drive wrote, with much beside
    /// it: whoever keeps it for long copies it.
    pub value: Bytes,
}

impl From<Item> for Retrieved {
    fn from(mut item: Item) -> Retrieved {
        let value = std::mem::take(&mut item.bytes).into();
        Retrieved { item, value }
    }
}

impl From<Retrieved> for Item {
    fn from(Retrieved { item, value }: Retrieved) -> Item {
        Item { bytes: value.into(), ..item }
    }
}

/// What a value was made into, and where its pieces stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// The version that the pieces name: it was given to one write alone.
    pub version: Version,
    /// Bytes of the whole value.
    pub length: u64,
    /// What it was made into.
    pub form: Form,
    /// The code by which parities are computed; nothing if there are none.
    pub code: Option<&'static str>,
    /// By role.
    pub pieces: Vec<Piece>,
    /// What it shares parities with, if it does; nothing if no piece that could be read says so.
    pub set: Option<PackedIn>,
}

/// The set that a value is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackedIn {
    /// Its name, which no other set of its partition has.
    pub name: Version,
    /// The names of the devices that its parities belong on.
    pub parities: Vec<String>,
}

/// What a piece of a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    /// One of several whole copies.
    Copy,
    /// A shard of the value.
    Data,
    /// A shard computed from the others.
    Parity,
    /// The value, whole, where no other device has it.
    Value,
    /// Where to find the value if its device is lost.
    Stub,
}

impl Holds {
    /// What an operator calls it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Holds::Copy => "copy",
            Holds::Data => "data",
            Holds::Parity => "parity",
            Holds::Value => "value",
            Holds::Stub => "stub",
        }
    }
}

/// A piece of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// What it is; of one that cannot be read, what it should be.
    pub holds: Holds,
    /// The name of the device that it belongs on.
    pub device: String,
    /// What an operator calls the state of that device.
    pub state: &'static str,
    /// What it holds of the value, or why that cannot be read.
    pub read: Result<PieceRead>,
}

/// What was read of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PieceRead {
    /// Bytes, headers left out.
    pub bytes: u64,
    /// CRC-32C of them.
    pub checksum: u32,
}

/// A page of keys in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListPage {
    /// The keys.
    pub keys: Vec<Vec<u8>>,
    /// True if there are more after the last one.
    pub more: bool,
}

impl ListPage {
    /// The first `limit` keys of several pages in order, of which each goes on from the same key.
    #[must_use]
    pub fn merge(pages: Vec<ListPage>, limit: usize) -> ListPage {
        let more_below = pages.iter().any(|page| page.more);
        // A page may end early; of what follows its last key, nothing is known yet.
        let unfinished = pages.iter().filter(|page| page.more);
        let known = unfinished.filter_map(|page| page.keys.last()).min().cloned();
        let mut keys: Vec<Vec<u8>> = pages.into_iter().flat_map(|page| page.keys).collect();
        keys.retain(|key| known.as_ref().is_none_or(|known| key <= known));
        keys.sort_unstable();
        keys.dedup();
        let more = more_below || keys.len() > limit;
        keys.truncate(limit);
        ListPage { keys, more }
    }
}

/// A page of a scan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScanPage {
    /// The keys.
    pub keys: Vec<Vec<u8>>,
    /// Where the next page begins; 0 at the end.
    pub cursor: u64,
    /// Some of the page's keys could not be read, and are left out: who has copies of them may tell them.
    pub lacks_some: bool,
}

/// Exact counters of a container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Keys, those that have expired and were not yet reclaimed included, as in Redis.
    pub keys: u64,
    /// Keys with an expiry time.
    pub expiring_keys: u64,
    /// Bytes of the records behind them.
    pub bytes: u64,
}

/// What a device says that keeps a value at one place, whole.
pub const NO_PIECES: Error = Error::Unsupported("pieces of a value: it stands at one place");

/// What is known of a key that was deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deleted {
    /// It was there, with this version.
    Version(Version),
    /// It was there; nobody looked with which version.
    Unseen,
    /// It could not be read, and may have expired.
    Unreadable,
}

/// What an operation gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// `Store`: the new version, and what it replaced.
    Stored {
        /// The version of this store.
        version: Version,
        /// What the key held, if that was asked for.
        previous: Option<Item>,
    },
    /// `Store` of an edit.
    Edited {
        /// The version of this store.
        version: Version,
        /// The new value.
        bytes: Vec<u8>,
    },
    /// `Retrieve` and `Exist`.
    Found(Item),
    /// `Describe`.
    Described(Description),
    /// `Delete`.
    Deleted(Deleted),
    /// `SetExpiry`: what the key holds now.
    ExpirySet(Item),
    /// `List`.
    Listed(ListPage),
    /// `Scan`.
    Scanned(ScanPage),
    /// `Stats`.
    Stats(Stats),
    /// `UploadBegin`.
    Upload(UploadId),
    /// `Batch`: one output for each operation.
    Batch(Vec<Output>),
    /// `Transaction`: what is asked for is held, and this names it.
    Held(TransactionId),
    /// `Transaction`: how far one is.
    Status(Status),
    /// `Transaction`: those that are known.
    Outstanding(Vec<Outstanding>),
    /// Nothing but success.
    Done,
}

impl Output {
    /// What a retrieve of a whole value gave.
    ///
    /// # Panics
    /// It is the output of something else.
    #[must_use]
    pub fn into_retrieved(self) -> Retrieved {
        match self {
            Output::Found(item) => item.into(),
            other => unreachable!("a retrieve gives what it found, not {other:?}"),
        }
    }

    /// Bytes of values that this carries up.
    #[must_use]
    pub fn value_bytes(&self) -> u64 {
        match self {
            Output::Found(item) => item.bytes.len() as u64,
            Output::Stored { previous: Some(item), .. } => item.bytes.len() as u64,
            Output::Batch(outputs) => outputs.iter().map(Output::value_bytes).sum(),
            _ => 0,
        }
    }
}

/// A request that succeeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// What it gives.
    pub output: Output,
    /// Nanoseconds spent at the device.
    pub device_ns: u64,
    /// Operations the tenant may have outstanding; 0: no limit is known.
    pub credit: u32,
}

impl Completion {
    /// A completion that took no device time.
    #[must_use]
    pub fn new(output: Output) -> Completion {
        Completion { output, device_ns: 0, credit: 0 }
    }
}
