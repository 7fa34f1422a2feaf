//! What cores send each other, and who waits for what comes back.
//!
//! Invariants: a number names one waiting request until its completion has come; the permit of a
//! request, if it has one of its own, is held that long, also when nobody waits for the completion any more.

use crate::channels::Kind;
use crate::session::Filter;
use plimsoll_kv::{Completion, Request, Result};
use plimsoll_reactor::sync::{Permit, Receiver, Sender, oneshot};
use std::sync::Arc;

/// A message between two cores.
pub enum Message {
    /// Execute this at a partition you own.
    Request {
        /// Names it for the completion.
        id: u32,
        /// At which partition.
        partition: u16,
        /// What.
        request: Request,
    },
    /// What became of a request of yours.
    Completion {
        /// Which.
        id: u32,
        /// What became of it.
        result: Result<Completion>,
        /// How long it was with the partition.
        device_ns: u64,
    },
    /// Tell me about yourself.
    Question {
        /// Names it for the answer.
        id: u32,
        /// What.
        question: Question,
    },
    /// The answer to a question of yours.
    Answer {
        /// Which.
        id: u32,
        /// The answer, in the form the question implies.
        bytes: Vec<u8>,
    },
}

/// What one core can ask another: for operators' commands, and for messages to those who listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// A line for each connection, as CLIENT LIST has it.
    Clients,
    /// Set the counters of commands to zero.
    ResetCounters,
    /// Publish the gauges of your devices, as they are now.
    PublishGauges,
    /// Give this message to those who listen; how many there are, in eight bytes.
    Publish {
        /// Where it is published.
        channel: Arc<[u8]>,
        /// What.
        message: Arc<[u8]>,
    },
    /// End these connections, but not that of the asker; how many they were, in eight bytes.
    Kill(Arc<Filter>),
    /// The channels or patterns that somebody listens to: each after its length in four bytes.
    Channels(Kind),
    /// How many listen to a channel by name, in eight bytes.
    Listeners(Arc<[u8]>),
    /// The latest entries of the slow log, at most so many.
    SlowLog(usize),
    /// How many entries the slow log has, in eight bytes.
    SlowLogLength,
    /// Forget the slow log.
    ResetSlowLog,
    /// What the latency monitor remembers.
    Latency,
    /// Forget the events of these bits; a bit for each that there was, in eight bytes.
    ResetLatency(u64),
    /// Begin no command, or none that writes, for so long.
    Pause {
        /// Milliseconds.
        for_ms: u64,
        /// Whether all commands are meant.
        holds_all: bool,
    },
    /// End a pause.
    Unpause,
    /// Give these lines to the monitors.
    Monitored(Arc<[u8]>),
    /// Cut the monitors: lines were lost.
    CutMonitors,
}

enum Entry {
    Free,
    Request(Sender<(Result<Completion>, u64)>, Option<Permit>),
    Question(Sender<Vec<u8>>, Permit),
}

/// Requests at other cores.
#[derive(Default)]
pub(super) struct Waiting {
    entries: Vec<Entry>,
    free: Vec<u32>,
}

impl Waiting {
    fn insert(&mut self, entry: Entry) -> u32 {
        match self.free.pop() {
            Some(id) => {
                self.entries[id as usize] = entry;
                id
            }
            None => {
                self.entries.push(entry);
                self.entries.len() as u32 - 1
            }
        }
    }

    fn take(&mut self, id: u32) -> Entry {
        self.free.push(id);
        std::mem::replace(&mut self.entries[id as usize], Entry::Free)
    }

    pub(super) fn request(&mut self, permit: Option<Permit>) -> (u32, Receiver<(Result<Completion>, u64)>) {
        let (sender, receiver) = oneshot();
        (self.insert(Entry::Request(sender, permit)), receiver)
    }

    pub(super) fn question(&mut self, permit: Permit) -> (u32, Receiver<Vec<u8>>) {
        let (sender, receiver) = oneshot();
        (self.insert(Entry::Question(sender, permit)), receiver)
    }

    pub(super) fn complete(&mut self, id: u32, result: (Result<Completion>, u64)) {
        let Entry::Request(sender, permit) = self.take(id) else { panic!("a completion nobody waits for") };
        sender.send(result);
        drop(permit);
    }

    pub(super) fn answer(&mut self, id: u32, bytes: Vec<u8>) {
        let Entry::Question(sender, permit) = self.take(id) else { panic!("an answer nobody waits for") };
        sender.send(bytes);
        drop(permit);
    }
}
