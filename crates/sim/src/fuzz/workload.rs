//! What clients ask: keys, commands, and how often each.
//!
//! Place: every client, by call or by connection, draws its next command here.
//!
//! Invariants: the commands follow from the seed, the life and the client; all of them fit the model
//! of the checkers.

use super::shape::Shape;
use super::values::KeyName;
use crate::checker::{Condition, Expiry};
use plimsoll_reactor::sim::Random;
use std::rc::Rc;

/// A key of the world.
#[derive(Clone, Debug)]
pub(super) struct Key {
    pub(super) name: KeyName,
    pub(super) number: u64,
}

/// One command.
#[derive(Clone, Debug)]
pub(super) enum Command {
    Set {
        length: usize,
        condition: Condition,
        expiry: Expiry,
        get_old: bool,
    },
    Get,
    /// Reads so many blocks from a block on.
    Range(u64, u64),
    Delete,
    Exists,
    Expire(u64),
    Persist,
    Ttl,
    Clear,
    Scan,
    Count,
    /// Stores (with a length) and deletes of several keys of one partition.
    Batch(Vec<(Key, Option<usize>)>),
    /// Stores if the version is still the one that was just seen.
    Swap(usize),
    /// Begins a long value and gives it up.
    Abandon(usize),
    /// Changes some parts of a long value and gives it this length; makes one if there is none.
    Change(usize),
}

/// The keys of a world, by container.
pub(super) fn keys_of(shape: &Shape) -> Vec<Key> {
    let mut keys = Vec::new();
    for container in 0..shape.containers {
        for number in 0..shape.keys {
            let mut name = match shape.tags {
                0 => format!("key:{number}"),
                tags => format!("{{tag{}}}{number}", number % tags),
            };
            // A few have heads longer than what is read at first.
            if number % 23 == 7 {
                name.push_str(&"/long".repeat(110));
            }
            keys.push(Key { name: (container, name.into_bytes()), number });
        }
    }
    keys
}

/// Draws commands.
pub(super) struct Workload {
    pub(super) random: Random,
    shape: Shape,
    keys: Rc<Vec<Key>>,
}

impl Workload {
    pub(super) fn new(shape: Shape, keys: Rc<Vec<Key>>, name: &str) -> Workload {
        Workload { random: Random::stream(shape.seed, name), shape, keys }
    }

    fn key(&mut self) -> Key {
        let count = self.keys.len() as u64;
        let hot = self.shape.is_skewed && self.random.chance_ppm(500_000);
        let index = self.random.below(if hot { count.min(4) } else { count });
        self.keys[index as usize].clone()
    }

    fn length(&mut self) -> usize {
        let shape = &self.shape;
        let max = shape.value_bytes_max;
        let length = match self.random.below(1000) {
            n if n < shape.long_per_mille => return self.long_length(),
            n if n < 40 => self.random.below(16),
            n if n < 60 => self.random.range(max / 2, (shape.segment_bytes / 4 - 2000).max(max)),
            _ => self.random.below(max),
        };
        length as usize
    }

    fn long_length(&mut self) -> usize {
        self.random.range(self.shape.segment_bytes / 4 + 1, self.shape.segment_bytes) as usize
    }

    fn short_length(&mut self) -> usize {
        self.random.below(self.shape.value_bytes_max.min(2000)) as usize
    }

    fn deadline_ms(&mut self, now_ms: u64) -> u64 {
        match self.random.below(10) {
            0 => now_ms.saturating_sub(self.random.below(1000)),
            1..5 => now_ms + self.random.below(20),
            5..8 => now_ms + self.random.range(20, 600),
            _ => now_ms + self.random.range(600, 100_000_000),
        }
    }

    fn expiry(&mut self, now_ms: u64) -> Expiry {
        match self.random.below(10) {
            0 => Expiry::Keep,
            1 => Expiry::At(self.deadline_ms(now_ms)),
            _ => Expiry::Discard,
        }
    }

    /// The next command and the key it is about.
    pub(super) fn next(&mut self, now_ms: u64) -> (Key, Command) {
        let key = self.key();
        let command = match self.random.below(100 + self.shape.stores_more) {
            0..24 | 100.. => {
                let (length, expiry) = (self.length(), self.expiry(now_ms));
                Command::Set { length, condition: Condition::Always, expiry, get_old: false }
            }
            24..50 => Command::Get,
            50..54 => {
                let blocks = self.shape.value_bytes_max / 16 + 1;
                Command::Range(self.random.below(blocks), self.random.range(1, blocks + 1))
            }
            54..62 => Command::Delete,
            62..66 => Command::Exists,
            66..72 => Command::Expire(self.deadline_ms(now_ms)),
            72..75 => Command::Persist,
            75..79 => Command::Ttl,
            79..85 => {
                let condition = [Condition::IfAbsent, Condition::IfPresent][self.random.below(2) as usize];
                let (length, expiry) = (self.length(), self.expiry(now_ms));
                Command::Set { length, condition, expiry, get_old: false }
            }
            85..88 => {
                let (length, expiry) = (self.short_length(), self.expiry(now_ms));
                Command::Set { length, condition: Condition::Always, expiry, get_old: true }
            }
            88..91 => Command::Swap(self.short_length()),
            91..94 => Command::Batch(self.batch(&key)),
            94 | 95 => Command::Scan,
            96 => Command::Count,
            97 if self.shape.long_per_mille > 0 => Command::Abandon(self.length()),
            98 if self.shape.clears && self.random.chance_ppm(300_000) => Command::Clear,
            99 if self.shape.long_per_mille > 0 => Command::Change(self.long_length()),
            _ => Command::Get,
        };
        (key, command)
    }

    /// A few different keys of the partition and container of the first.
    fn batch(&mut self, first: &Key) -> Vec<(Key, Option<usize>)> {
        let partition = |key: &Key| plimsoll_kv::Slot::of(&key.name.1).partition(self.shape.partitions);
        let mut keys = vec![first.clone()];
        for key in (0..6).map(|_| self.random.below(self.keys.len() as u64)).collect::<Vec<_>>() {
            let key = &self.keys[key as usize];
            let fits = key.name.0 == first.name.0 && partition(key) == partition(first);
            if fits && keys.iter().all(|other| other.name != key.name) {
                keys.push(key.clone());
            }
        }
        let mut batch = Vec::new();
        for key in keys {
            let length = self.short_length();
            batch.push((key, (!self.random.chance_ppm(250_000)).then_some(length)));
        }
        batch
    }
}
