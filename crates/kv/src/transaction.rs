//! Transactions: reads and writes of many keys, over many partitions, that happen as one.
//!
//! Role: what a coordinator asks of each partition that takes part. It holds the keys at one partition
//! after the other, always in the order of their numbers, so that no two wait for each other; reads them;
//! and then either commits at one partition alone, or lets every partition prepare (two-phase commit with
//! presumed abort, of which the second phase is not waited for: the transaction is committed from the
//! instant at which all of its participants have durably prepared).
//!
//! Invariants: what is held is neither read nor written by anybody else; a prepared partition can do what
//! was asked of it, whatever happens; participants name each other, so that after a crash each finds out
//! what became of it by asking the others.

use crate::request::{ContainerId, Op};
use crate::version::Version;

/// Names a transaction: the first partition that it holds something at, and a version that this partition
/// gave it, which it never uses again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransactionId {
    /// The partition that gave the version.
    pub partition: u16,
    /// The version.
    pub version: Version,
}

/// What a transaction holds at a partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// These keys.
    pub keys: Vec<(ContainerId, Vec<u8>)>,
    /// All keys there are or may be: no operation on any key goes on beside it.
    pub everything: bool,
}

impl Held {
    /// These keys.
    #[must_use]
    pub fn keys(keys: Vec<(ContainerId, Vec<u8>)>) -> Held {
        Held { keys, everything: false }
    }

    /// All keys there are or may be.
    #[must_use]
    pub fn everything() -> Held {
        Held { keys: Vec::new(), everything: true }
    }
}

/// What a partition is asked to do for a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Holds keys, as soon as those who hold them have given them back. Gives
    /// [`Output::Held`](crate::Output::Held). The first partition is asked without an identity.
    Hold(Held),
    /// Reads a held key, as [`Op::Retrieve`] does. Without an identity it reads what is committed of any key,
    /// and waits for nobody who holds it: a layer above counts so, while nobody applies.
    Retrieve {
        /// Where.
        container: ContainerId,
        /// Which key.
        key: Vec<u8>,
        /// First byte and number of bytes; all of it if absent.
        range: Option<(u64, u64)>,
        /// If the value stands in parts, keep them until [`Op::Unpin`].
        pin: bool,
    },
    /// Writes held keys, all or none, and gives back what is held: the transaction writes nowhere else. Where
    /// that takes several writes to a device, or to several, it prepares, which commits it, and gives
    /// [`Status::Prepared`]: [`Action::Apply`] does the writes then.
    /// Writes are stores of bytes or uploads, deletes, changes of expiry and clears, without conditions;
    /// clears come first, and a key stands in them once.
    Commit {
        /// What to write.
        writes: Vec<Op>,
    },
    /// Makes sure, durably, that these writes can be done, and waits for [`Action::Apply`].
    Prepare {
        /// The partitions that prepare, this one included.
        participants: Vec<u16>,
        /// What to write.
        writes: Vec<Op>,
    },
    /// Every participant has prepared: does the writes and gives back what is held. It need not be
    /// durable at completion.
    Apply,
    /// Gives back what is held and forgets what was prepared.
    Release,
    /// Every participant has durably applied: nobody will ask any more.
    Forget,
    /// How far the transaction is here.
    Status,
    /// The transactions that had prepared or been applied here when the device was opened, and are not
    /// forgotten. Needs no identity.
    Outstanding,
}

/// How far a transaction is at one of its participants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Nothing is known of it: it never prepared, was given up, or was forgotten because it had been
    /// applied everywhere.
    Unknown,
    /// It has durably prepared.
    Prepared,
    /// It has been durably applied.
    Applied,
}

/// A transaction that is known at a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outstanding {
    /// Which.
    pub id: TransactionId,
    /// The partitions that prepare it.
    pub participants: Vec<u16>,
    /// How far it is.
    pub status: Status,
}
