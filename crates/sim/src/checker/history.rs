//! Concurrent histories over keys: who asked what when, and what they were told.
//!
//! Place: written by the recorder (or by hand in tests), read by the checkers.
//!
//! Invariants: a response is never earlier than its invocation; a value id is written at most once per
//! key, and 0 stands for absence; only `Clear` has the scope of all keys. An operation without an
//! outcome may have taken effect at any time after its invocation, also long after, or never.
//!
//! Must never: interpret. What an operation means is in `model.rs`.

use std::collections::BTreeMap;
use std::fmt;

/// A key, interned by a [`History`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyId(pub u32);

/// A written value, by number. Each write of a key has its own; [`ValueId::ABSENT`] is no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ValueId(pub u64);

impl ValueId {
    /// What a read of a missing key gives.
    pub const ABSENT: ValueId = ValueId(0);
}

/// A point of real time: nanoseconds, and an order among events of the same nanosecond.
///
/// Two events whose moments are equal are taken as concurrent, as with closed intervals. The recorder
/// numbers its events, so that in its histories no two are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment {
    /// Monotonic time.
    pub ns: u64,
    /// Order within the nanosecond.
    pub order: u32,
}

impl Moment {
    /// A moment told by its nanoseconds alone.
    pub fn at(ns: u64) -> Moment {
        Moment { ns, order: 0 }
    }
}

/// The wall times that an operation could have met while it ran. Deadlines are wall times, and the wall
/// clock may step while monotonic time does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WallSpan {
    /// Lowest wall time between invocation and response.
    pub min_ms: u64,
    /// Highest wall time between invocation and response.
    pub max_ms: u64,
    /// Highest wall time up to the response, also before the invocation: a background sweep may have
    /// removed an expired key before the clock was stepped back. At least `max_ms`.
    pub high_ms: u64,
}

impl WallSpan {
    /// A span in which the clock was never stepped back.
    pub fn new(min_ms: u64, max_ms: u64) -> WallSpan {
        assert!(min_ms <= max_ms, "a wall span runs forward");
        WallSpan { min_ms, max_ms, high_ms: max_ms }
    }
}

/// When a `Set` applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Condition {
    /// Always.
    Always,
    /// NX: only if the key is absent.
    IfAbsent,
    /// XX: only if the key is present.
    IfPresent,
}

/// What a `Set` does with the key's deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Expiry {
    /// Removes it.
    Discard,
    /// KEEPTTL: leaves it (an absent key has none to leave).
    Keep,
    /// Sets it, in wall milliseconds.
    At(u64),
}

/// What was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Input {
    /// Write a value. Answers `Flag(applied)`, or `Value(old)` when the old value was asked for.
    Set {
        /// The value.
        value: ValueId,
        /// When it applies.
        condition: Condition,
        /// The deadline afterwards.
        expiry: Expiry,
        /// GET: answer with the value before, whether or not the write applied.
        get_old: bool,
    },
    /// Read. Answers `Value`.
    Get,
    /// Remove. Answers `Flag(was present)`, or `Done` where what was removed could not be read: it may have
    /// expired.
    Delete,
    /// Look. Answers `Flag(is present)`.
    Exists,
    /// Set the deadline of a present key. Answers `Flag(is present)`.
    Expire {
        /// Wall milliseconds.
        deadline_ms: u64,
    },
    /// Remove the deadline. Answers `Flag(had one)`.
    Persist,
    /// Ask for the deadline. Answers `Lifetime`.
    Ttl,
    /// FLUSHDB: remove every key. Answers `Done`.
    Clear,
}

impl Input {
    /// A plain, unconditional write without a deadline.
    pub fn set(value: u64) -> Input {
        Input::Set {
            value: ValueId(value),
            condition: Condition::Always,
            expiry: Expiry::Discard,
            get_old: false,
        }
    }

    /// The value that the operation writes, if it writes one.
    pub fn written(&self) -> Option<ValueId> {
        match self {
            Input::Set { value, .. } => Some(*value),
            _ => None,
        }
    }

    /// Whether this never changes a key.
    pub fn is_read(&self) -> bool {
        matches!(self, Input::Get | Input::Exists | Input::Ttl)
    }
}

/// The answer to `Ttl`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lifetime {
    /// No such key.
    Absent,
    /// A key without a deadline.
    Unlimited,
    /// Milliseconds left (PTTL).
    Remaining(u64),
    /// The deadline itself (PEXPIRETIME).
    Until(u64),
}

/// What was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Output {
    /// A yes or no; [`Input`] says to which question.
    Flag(bool),
    /// A value, or `ValueId::ABSENT`.
    Value(ValueId),
    /// A deadline.
    Lifetime(Lifetime),
    /// Nothing to tell.
    Done,
}

/// A response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// When it arrived.
    pub at: Moment,
    /// What it said.
    pub output: Output,
}

/// The keys that an operation is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// One key.
    Key(KeyId),
    /// All keys: `Clear`.
    All,
}

/// One operation of one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Who asked. A client may have several operations under way.
    pub client: u32,
    /// About which keys.
    pub scope: Scope,
    /// What was asked.
    pub input: Input,
    /// When it was sent.
    pub invoked: Moment,
    /// The response. `None`: unknown, after an error past sending, a lost connection or a crash.
    pub outcome: Option<Outcome>,
    /// Wall times met. Of an operation of unknown outcome: from its invocation to the end of the run.
    pub wall: WallSpan,
}

/// Operations of many clients on many keys.
#[derive(Clone, Debug, Default)]
pub struct History {
    operations: Vec<Operation>,
    names: Vec<Vec<u8>>,
    ids: BTreeMap<Vec<u8>, KeyId>,
}

impl History {
    /// A history of nothing.
    pub fn new() -> History {
        History::default()
    }

    /// The id of a key, given on first use.
    pub fn intern(&mut self, name: &[u8]) -> KeyId {
        if let Some(id) = self.ids.get(name) {
            return *id;
        }
        let id = KeyId(u32::try_from(self.names.len()).expect("fewer than 2^32 keys"));
        self.names.push(name.to_vec());
        self.ids.insert(name.to_vec(), id);
        id
    }

    /// A key's bytes.
    pub fn name(&self, key: KeyId) -> &[u8] {
        &self.names[key.0 as usize]
    }

    /// All keys, in the order of their ids.
    pub fn keys(&self) -> impl Iterator<Item = (KeyId, &[u8])> {
        (0u32..).map(KeyId).zip(self.names.iter().map(Vec::as_slice))
    }

    /// Adds an operation.
    pub fn push(&mut self, operation: Operation) {
        let clears = matches!(operation.input, Input::Clear);
        assert_eq!(clears, operation.scope == Scope::All, "Clear alone has all keys");
        if let Scope::Key(key) = operation.scope {
            assert!((key.0 as usize) < self.names.len(), "the key was interned here");
        }
        if let Some(outcome) = operation.outcome {
            assert!(operation.invoked <= outcome.at, "a response follows its invocation");
        }
        assert_ne!(operation.input.written(), Some(ValueId::ABSENT), "0 is no value");
        assert!(operation.wall.min_ms <= operation.wall.max_ms, "a wall span runs forward");
        assert!(operation.wall.max_ms <= operation.wall.high_ms, "high covers the span");
        self.operations.push(operation);
    }

    /// All operations, in the order they were added.
    pub fn operations(&self) -> &[Operation] {
        &self.operations
    }

    /// All operations, to mutate in tests of a checker.
    pub fn operations_mut(&mut self) -> &mut [Operation] {
        &mut self.operations
    }

    /// Removes operations by their places.
    pub(super) fn remove(&mut self, places: &mut [usize]) {
        places.sort_unstable();
        let mut place = 0;
        self.operations.retain(|_| {
            place += 1;
            places.binary_search(&(place - 1)).is_err()
        });
    }

    /// One history per key, each in the order of invocation. `Clear` stands in each: that every key is
    /// cleared at the same point is not checked.
    pub fn by_key(&self) -> Vec<KeyHistory> {
        let mut split: Vec<KeyHistory> = self
            .keys()
            .map(|(key, name)| KeyHistory { key, name: name.to_vec(), operations: Vec::new() })
            .collect();
        for operation in &self.operations {
            match operation.scope {
                Scope::Key(key) => split[key.0 as usize].operations.push(*operation),
                Scope::All => {
                    for history in &mut split {
                        history.operations.push(*operation);
                    }
                }
            }
        }
        for history in &mut split {
            history.operations.sort_by_key(|operation| operation.invoked);
        }
        split
    }
}

/// The operations that concern one key.
#[derive(Clone, Debug)]
pub struct KeyHistory {
    /// The key.
    pub key: KeyId,
    /// Its bytes.
    pub name: Vec<u8>,
    /// In the order of invocation.
    pub operations: Vec<Operation>,
}

impl KeyHistory {
    /// What was known at a moment: later operations are not there yet, later outcomes are unknown.
    pub fn until(&self, end: Moment) -> KeyHistory {
        let mut cut = self.clone();
        cut.operations.retain(|operation| operation.invoked <= end);
        for operation in &mut cut.operations {
            operation.outcome = operation.outcome.filter(|outcome| outcome.at <= end);
        }
        cut
    }
}

impl fmt::Display for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Input::Set { value, condition, expiry, get_old } => {
                write!(f, "SET v{}", value.0)?;
                match condition {
                    Condition::Always => {}
                    Condition::IfAbsent => write!(f, " NX")?,
                    Condition::IfPresent => write!(f, " XX")?,
                }
                match expiry {
                    Expiry::Discard => {}
                    Expiry::Keep => write!(f, " KEEPTTL")?,
                    Expiry::At(deadline_ms) => write!(f, " PXAT {deadline_ms}")?,
                }
                if *get_old { write!(f, " GET") } else { Ok(()) }
            }
            Input::Get => write!(f, "GET"),
            Input::Delete => write!(f, "DEL"),
            Input::Exists => write!(f, "EXISTS"),
            Input::Expire { deadline_ms } => write!(f, "PEXPIREAT {deadline_ms}"),
            Input::Persist => write!(f, "PERSIST"),
            Input::Ttl => write!(f, "PTTL"),
            Input::Clear => write!(f, "FLUSHDB"),
        }
    }
}

impl fmt::Display for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Output::Flag(flag) => write!(f, "{}", if *flag { "yes" } else { "no" }),
            Output::Value(ValueId::ABSENT) => write!(f, "absent"),
            Output::Value(value) => write!(f, "v{}", value.0),
            Output::Lifetime(Lifetime::Absent) => write!(f, "absent"),
            Output::Lifetime(Lifetime::Unlimited) => write!(f, "no deadline"),
            Output::Lifetime(Lifetime::Remaining(ms)) => write!(f, "{ms} ms left"),
            Output::Lifetime(Lifetime::Until(ms)) => write!(f, "deadline {ms}"),
            Output::Done => write!(f, "done"),
        }
    }
}

#[cfg(test)]
mod tests;
