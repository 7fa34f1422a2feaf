//! Commands as a RESP client sends them, and what their replies say.
//!
//! Place: between a client's pipeline (`connection`) and the journal: [`Pipeline`] encodes commands and
//! remembers what each reply is to say; [`Expected::judge`] writes down what it said.
//!
//! Invariants: what is encoded is in the journal as begun; each reply ends what it answers.
//!
//! Never: it knows sockets.

use super::caller::UNREAD;
use super::journal::{Asked, Journal, Trouble};
use super::shape::Shape;
use super::workload::{Command, Key};
use crate::checker::{self, Condition, Expiry, Input, Lifetime, ValueId};
use plimsoll_reactor::sim::Random;
use plimsoll_resp::{Reply, request};
use std::rc::Rc;

/// What a reply answers.
pub(super) enum Expected {
    /// A command that sets up the connection, and cannot fail.
    Setup(Asked),
    /// Done or not: `+OK` or nil, 1 or 0. A full device may refuse it if told so.
    Flag(Asked, bool),
    /// A value or nil. A full device may refuse it if told so.
    Value(Key, Asked, bool),
    /// Several values or nils.
    Values(Vec<(Key, Asked)>),
    /// How many of several keys there were; whether it changed them.
    Found(Vec<Asked>, bool),
    /// The deadline of a key.
    Deadline(Asked),
    /// What is left of a key's lifetime.
    Left(Asked),
    /// The number of keys.
    Count(Asked),
    /// FLUSHDB.
    Cleared(Asked),
}

/// Commands sent together.
pub(super) struct Pipeline {
    journal: Rc<Journal>,
    shape: Shape,
    client: u32,
    /// The database that is selected after what was encoded.
    database: u32,
    pub(super) bytes: Vec<u8>,
    pub(super) expected: Vec<Expected>,
}

impl Pipeline {
    /// An empty one, for a connection on which a database is selected.
    pub(super) fn new(journal: &Rc<Journal>, shape: Shape, (client, database): (u32, u32)) -> Pipeline {
        let (bytes, expected) = (Vec::new(), Vec::new());
        Pipeline { journal: journal.clone(), shape, client, database, bytes, expected }
    }

    /// The database that is selected when all of it was executed.
    pub(super) fn database(&self) -> u32 {
        self.database
    }

    fn begin(&self, key: &Key, input: Input) -> Asked {
        self.journal.begin(self.client, &key.name, input)
    }

    fn add(&mut self, args: &[&[u8]], expected: Expected) {
        request::encode(args, &mut self.bytes);
        self.expected.push(expected);
    }

    /// Adds a command that sets up the connection.
    pub(super) fn set_up(&mut self, words: &[&str]) {
        let asked = self.journal.watch(|| format!("client {} sends {words:?}", self.client));
        let args: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        self.add(&args, Expected::Setup(asked));
    }

    /// Selects a database, if another one is.
    pub(super) fn select(&mut self, database: u32) {
        if self.database != database {
            self.set_up(&["SELECT", &database.to_string()]);
            self.database = database;
        }
    }

    /// Adds a command. What only calls can do becomes something near to it.
    pub(super) fn push(&mut self, key: &Key, command: Command, random: &mut Random) {
        self.select(key.name.0);
        let name = key.name.1.as_slice();
        match command {
            Command::Set { length, condition, expiry, get_old } => {
                self.set(key, length, (condition, expiry, get_old), random);
            }
            Command::Change(length) => {
                self.set(key, length, (Condition::Always, Expiry::Discard, false), random)
            }
            Command::Swap(length) => self.set(key, length, (Condition::Always, Expiry::Keep, true), random),
            Command::Delete => self.found(&["DEL", "UNLINK"], vec![key.clone()], Input::Delete, random),
            Command::Exists => self.found(&["EXISTS"], vec![key.clone()], Input::Exists, random),
            Command::Expire(deadline_ms) => self.expire(key, deadline_ms, random),
            Command::Persist => {
                let asked = self.begin(key, Input::Persist);
                self.add(&[b"PERSIST", name], Expected::Flag(asked, true));
            }
            Command::Ttl => self.ttl(key, random),
            Command::Clear => {
                let asked = self.begin(key, Input::Clear);
                self.add(&[b"FLUSHDB"], Expected::Cleared(asked));
            }
            Command::Count => {
                let (client, db) = (self.client, self.database);
                let asked = self.journal.watch(|| format!("client {client} counts db {db}"));
                self.add(&[b"DBSIZE"], Expected::Count(asked));
            }
            Command::Batch(batch) => {
                let keys: Vec<Key> = batch.into_iter().map(|(key, _)| key).collect();
                match random.below(4) {
                    0 => self.found(&["DEL", "UNLINK"], keys, Input::Delete, random),
                    1 => self.found(&["EXISTS"], keys, Input::Exists, random),
                    _ => self.mget(keys),
                }
            }
            Command::Get | Command::Range(..) | Command::Scan | Command::Abandon(_) => {
                let asked = self.begin(key, Input::Get);
                self.add(&[b"GET", name], Expected::Value(key.clone(), asked, false));
            }
        }
    }

    fn set(
        &mut self,
        key: &Key,
        length: usize,
        (condition, expiry, get_old): (Condition, Expiry, bool),
        random: &mut Random,
    ) {
        let (value, bytes) = self.journal.values.borrow_mut().write(&key.name, length);
        let (expiry, words) = expiry_words(expiry, random);
        let asked = self.begin(key, Input::Set { value, condition, expiry, get_old });
        let wish = self.shape.wish(value).map(|form| format!("MECHANISM {form}"));
        let mut options: Vec<&str> = words.iter().map(String::as_str).collect();
        options.extend(wish.iter().flat_map(|wish| wish.split(' ')));
        match condition {
            Condition::Always => {}
            Condition::IfAbsent => options.push("NX"),
            Condition::IfPresent => options.push("xx"),
        }
        if get_old {
            options.push("GET");
        }
        let name = if wish.is_some() { "KV.STORE" } else { "SET" };
        let mut args = vec![name.as_bytes(), &key.name.1, &bytes];
        args.extend(options.iter().map(|word| word.as_bytes()));
        let expected =
            if get_old { Expected::Value(key.clone(), asked, true) } else { Expected::Flag(asked, true) };
        self.add(&args, expected);
    }

    fn found(&mut self, names: &[&str], keys: Vec<Key>, input: Input, random: &mut Random) {
        let command = names[random.below(names.len() as u64) as usize];
        let asked = keys.iter().map(|key| self.begin(key, input)).collect();
        let mut args = vec![command.as_bytes()];
        args.extend(keys.iter().map(|key| key.name.1.as_slice()));
        self.add(&args, Expected::Found(asked, input == Input::Delete));
    }

    fn mget(&mut self, keys: Vec<Key>) {
        let mut args = vec![b"MGET".as_slice()];
        args.extend(keys.iter().map(|key| key.name.1.as_slice()));
        let asked = keys.iter().map(|key| (key.clone(), self.begin(key, Input::Get))).collect();
        self.add(&args, Expected::Values(asked));
    }

    fn expire(&mut self, key: &Key, deadline_ms: u64, random: &mut Random) {
        let (command, amount) = match random.below(4) {
            0 => ("EXPIREAT", deadline_ms.div_ceil(1000)),
            _ => ("PEXPIREAT", deadline_ms),
        };
        let deadline_ms = if command == "EXPIREAT" { amount * 1000 } else { amount };
        let asked = self.begin(key, Input::Expire { deadline_ms });
        let amount = amount.to_string();
        self.add(&[command.as_bytes(), &key.name.1, amount.as_bytes()], Expected::Flag(asked, true));
    }

    fn ttl(&mut self, key: &Key, random: &mut Random) {
        let asked = self.begin(key, Input::Ttl);
        match random.below(4) {
            0 => self.add(&[b"TTL", &key.name.1], Expected::Left(asked)),
            1 => self.add(&[b"PTTL", &key.name.1], Expected::Left(asked)),
            _ => self.add(&[b"PEXPIRETIME", &key.name.1], Expected::Deadline(asked)),
        }
    }
}

/// The expiry as it can be said, and the words that say it.
fn expiry_words(expiry: Expiry, random: &mut Random) -> (Expiry, Vec<String>) {
    match expiry {
        Expiry::Discard => (expiry, Vec::new()),
        Expiry::Keep => (expiry, vec!["KEEPTTL".to_owned()]),
        Expiry::At(at_ms) if random.chance_ppm(300_000) => {
            let seconds = at_ms.div_ceil(1000);
            (Expiry::At(seconds * 1000), vec!["exat".to_owned(), seconds.to_string()])
        }
        Expiry::At(at_ms) => (expiry, vec!["PXAT".to_owned(), at_ms.to_string()]),
    }
}

/// What the text of an error says.
pub(super) fn trouble(text: &[u8]) -> Trouble {
    let text = String::from_utf8_lossy(text).into_owned();
    match text.split_once(' ') {
        Some(("OOM", _)) => Trouble::NoSpace,
        Some(("MISCONF", _)) => Trouble::ReadOnly(text),
        Some((_, what)) if what.starts_with("stored data cannot be read") => Trouble::Unreadable(text),
        _ => Trouble::Other(text),
    }
}

impl Expected {
    /// All that it answers.
    fn asked(&self) -> Vec<&Asked> {
        match self {
            Expected::Values(all) => all.iter().map(|(_, asked)| asked).collect(),
            Expected::Found(all, _) => all.iter().collect(),
            Expected::Setup(asked)
            | Expected::Flag(asked, _)
            | Expected::Value(_, asked, _)
            | Expected::Deadline(asked)
            | Expected::Left(asked)
            | Expected::Count(asked)
            | Expected::Cleared(asked) => vec![asked],
        }
    }

    /// No reply will come.
    pub(super) fn lose(&self, journal: &Journal) {
        self.asked().into_iter().for_each(|asked| journal.lose(asked, "the connection is gone"));
    }

    /// Writes down what a reply says.
    pub(super) fn judge(&self, journal: &Journal, shape: &Shape, reply: Reply) {
        if let Reply::Error(text) = &reply {
            return self.fail(journal, text);
        }
        let answered = match (self, &reply) {
            (Expected::Setup(asked), _) => {
                journal.withdraw(asked, "done");
                true
            }
            (Expected::Flag(asked, _), _) => flag(&reply).is_some_and(|flag| {
                journal.answer(asked, checker::Output::Flag(flag));
                true
            }),
            (Expected::Value(key, asked, _), _) => value(journal, key, asked, &reply),
            (Expected::Values(all), Reply::Array(replies)) if replies.len() == all.len() => {
                all.iter().zip(replies).all(|((key, asked), reply)| match reply {
                    Reply::Error(text) => {
                        journal.fail(asked, &trouble(text), false);
                        true
                    }
                    reply => value(journal, key, asked, reply),
                })
            }
            (Expected::Found(all, changes), Reply::Integer(count)) => found(journal, all, *changes, *count),
            (Expected::Deadline(asked), Reply::Integer(at_ms)) => {
                let until = |at_ms: &i64| Lifetime::Until(at_ms.unsigned_abs());
                lifetime(journal, asked, *at_ms, Some(until(at_ms)))
            }
            (Expected::Left(asked), Reply::Integer(left)) => lifetime(journal, asked, *left, None),
            (Expected::Count(asked), Reply::Integer(count)) => {
                journal.withdraw(asked, "counted");
                (0..=shape.keys as i64).contains(count)
            }
            (Expected::Cleared(asked), Reply::Simple(_)) => {
                journal.answer(asked, checker::Output::Done);
                true
            }
            _ => false,
        };
        if !answered {
            let asked: Vec<u64> = self.asked().iter().map(|asked| asked.number).collect();
            let text: String = format!("{reply:?} to {asked:?}").chars().take(300).collect();
            journal.violate("answers", text);
        }
    }

    fn fail(&self, journal: &Journal, text: &[u8]) {
        let may_be_full = matches!(self, Expected::Flag(_, true) | Expected::Value(_, _, true));
        for asked in self.asked() {
            journal.fail(asked, &trouble(text), may_be_full);
        }
    }
}

fn flag(reply: &Reply) -> Option<bool> {
    match reply {
        Reply::Simple(text) if text == b"OK" => Some(true),
        Reply::Integer(1) => Some(true),
        Reply::Integer(0) | Reply::Null => Some(false),
        _ => None,
    }
}

fn value(journal: &Journal, key: &Key, asked: &Asked, reply: &Reply) -> bool {
    let read = match reply {
        Reply::Null => Ok(ValueId::ABSENT),
        Reply::Bulk(bytes) => journal.values.borrow().read(&key.name, bytes, 0, true),
        _ => return false,
    };
    match read {
        Ok(value) => drop(journal.answer(asked, checker::Output::Value(value))),
        Err(text) => {
            let name = String::from_utf8_lossy(&key.name.1);
            journal.violate("values", format!("{name:?}: {text}"));
        }
    }
    true
}

/// How many of several keys there were: tells of each only if it was all or none.
fn found(journal: &Journal, all: &[Asked], changes: bool, count: i64) -> bool {
    let is_all = count == all.len() as i64;
    for asked in all {
        if is_all && changes && journal.may_be_unread() {
            journal.answer(asked, UNREAD);
        } else if is_all || count == 0 {
            journal.answer(asked, checker::Output::Flag(is_all));
        } else if changes {
            journal.lose(asked, "some of several");
        } else {
            journal.withdraw(asked, "some of several");
        }
    }
    (0..=all.len() as i64).contains(&count)
}

/// -2 and -1 as Redis has them; else what it says, if that says it exactly.
fn lifetime(journal: &Journal, asked: &Asked, told: i64, exactly: Option<Lifetime>) -> bool {
    let lifetime = match told {
        -2 => Some(Lifetime::Absent),
        -1 => Some(Lifetime::Unlimited),
        _ => exactly,
    };
    match lifetime {
        Some(lifetime) => drop(journal.answer(asked, checker::Output::Lifetime(lifetime))),
        None => journal.withdraw(asked, "a time that runs"),
    }
    told >= -2
}
