//! A client inside the server's process: it calls the device, and dies with it.
//!
//! Place: above the volume, where a session stands. What only calls can do is tested here: versions,
//! batches, ranges, uploads part by part, futures that are dropped half-way.
//!
//! Invariants: one command at a time; what is sent is in the journal before it is sent.

mod long;
mod look;

use super::journal::{Asked, Journal, ScanSeen, Trouble, VersionSeen};
use super::shape::Shape;
use super::workload::{Command, Key, Workload};
use crate::checker::{self, Input, ValueId};
use futures_util::future::{Either, select};
use plimsoll_kv::{
    Condition, ContainerId, Deleted, Device, Durability, Error, Expiry, Form, Op, Output, Request, Retrieved,
    Value, Version,
};
use plimsoll_reactor::Reactor;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::pin::pin;
use std::rc::Rc;

/// A client by call.
pub(super) struct Caller {
    pub(super) journal: Rc<Journal>,
    pub(super) device: Rc<dyn Device>,
    pub(super) reactor: Reactor,
    pub(super) shape: Shape,
    pub(super) client: u32,
    pub(super) workload: RefCell<Workload>,
}

/// What a delete tells of what could not be read: that may have expired.
pub(super) const UNREAD: checker::Output = checker::Output::Done;

/// What a call gave; nothing if the caller went away.
type Called = Option<Result<Output, Error>>;

fn condition(condition: checker::Condition) -> Condition {
    match condition {
        checker::Condition::Always => Condition::None,
        checker::Condition::IfAbsent => Condition::MustNotExist,
        checker::Condition::IfPresent => Condition::MustExist,
    }
}

fn expiry(expiry: checker::Expiry) -> Expiry {
    match expiry {
        checker::Expiry::Discard => Expiry::Never,
        checker::Expiry::Keep => Expiry::Keep,
        checker::Expiry::At(at_ms) => Expiry::At(at_ms),
    }
}

fn container(key: &Key) -> ContainerId {
    ContainerId(key.name.0)
}

impl Caller {
    pub(super) async fn call(&self, durability: Durability, op: Op) -> Result<Output, Error> {
        let completion = self.device.clone().execute(Request::new(durability, op)).await;
        completion.map(|completion| completion.output)
    }

    /// Calls, and perhaps goes away before the answer.
    async fn call_or_leave(&self, durability: Durability, op: Op) -> Called {
        let leaves = {
            let mut workload = self.workload.borrow_mut();
            let leaves = workload.random.chance_ppm(self.shape.cut_ppm);
            leaves.then(|| workload.random.below(1_000_000))
        };
        let Some(after_ns) = leaves else { return Some(self.call(durability, op).await) };
        let (called, timer) = (pin!(self.call(durability, op)), pin!(self.reactor.sleep_ns(after_ns)));
        match select(called, timer).await {
            Either::Left((result, _)) => Some(result),
            Either::Right(_) => None,
        }
    }

    fn begin(&self, key: &Key, input: Input) -> Asked {
        self.journal.begin(self.client, &key.name, input)
    }

    fn see(&self, key: &Key, asked: &Asked, ended: u64, version: Version, value: Option<ValueId>) {
        let (begun, wrote, from) = (asked.begun, false, None);
        let seen = VersionSeen { begun, ended, ended_ns: 0, version, wrote, value, from, looked: 0 };
        self.journal.see_version(&key.name, seen);
    }

    fn made(&self, key: &Key, asked: &Asked, ended: u64, version: Version, value: ValueId) {
        let (begun, wrote, from) = (asked.begun, true, None);
        let value = Some(value);
        let seen = VersionSeen { begun, ended, ended_ns: 0, version, wrote, value, from, looked: 0 };
        self.journal.see_version(&key.name, seen);
    }

    /// Ends an operation that did not give what it was to give.
    fn failed(&self, asked: &Asked, error: Option<&Error>, may_be_full: bool) {
        match error {
            None => self.journal.lose(asked, "the caller went away"),
            Some(error) => self.journal.fail(asked, &Trouble::of(error), may_be_full),
        }
    }

    /// Does one command.
    pub(super) async fn perform(&self, key: &Key, command: Command) {
        match command {
            Command::Set { length, condition, expiry, get_old } => {
                let long = length > self.device.value_bytes_max();
                if long && !get_old {
                    return self.set_long(key, length, condition, expiry).await;
                }
                let length = length.min(self.device.value_bytes_max());
                self.set(key, length, condition, expiry, get_old).await;
            }
            Command::Get => drop(self.get(key).await),
            Command::Range(first, blocks) => self.range(key, first, blocks).await,
            Command::Delete => self.delete(key).await,
            Command::Exists => self.exists(key).await,
            Command::Expire(deadline_ms) => self.expire(key, deadline_ms).await,
            Command::Persist => self.persist(key).await,
            Command::Ttl => self.ttl(key).await,
            Command::Clear => self.clear(key).await,
            Command::Scan => self.scan(key.name.0).await,
            Command::Count => self.count(key.name.0).await,
            // An array has none: its keys stand on several members.
            Command::Batch(_) if self.shape.is_array() => drop(self.get(key).await),
            Command::Batch(batch) => self.batch(batch).await,
            Command::Swap(length) => self.swap(key, length).await,
            Command::Abandon(length) => self.abandon(key, length).await,
            Command::Change(length) => self.change(key, length).await,
        }
    }

    fn new_value(&self, key: &Key, length: usize) -> (ValueId, Vec<u8>) {
        self.journal.values.borrow_mut().write(&key.name, length)
    }

    async fn set(
        &self,
        key: &Key,
        length: usize,
        when: checker::Condition,
        until: checker::Expiry,
        get_old: bool,
    ) {
        let (value, bytes) = self.new_value(key, length);
        let input = Input::Set { value, condition: when, expiry: until, get_old };
        let asked = self.begin(key, input);
        let op = store(key, Value::from(bytes), condition(when), expiry(until), get_old);
        let op = wishing(op, self.shape.wish(value));
        let called = self.call_or_leave(self.shape.durability(key.number), op).await;
        self.stored(key, &asked, value, called, get_old);
    }

    fn stored(&self, key: &Key, asked: &Asked, value: ValueId, called: Called, get_old: bool) {
        let (version, previous) = match called {
            Some(Ok(Output::Stored { version, previous })) => (version, previous),
            Some(Err(Error::Exists | Error::NotFound)) => {
                self.journal.answer(asked, checker::Output::Flag(false));
                return;
            }
            // The old value stands in parts: it is refused before anything is done.
            Some(Err(Error::Invalid(_))) if get_old => return self.journal.withdraw(asked, "a long value"),
            Some(Err(error)) => return self.failed(asked, Some(&error), true),
            None => return self.failed(asked, None, true),
            Some(Ok(other)) => return self.journal.violate("answers", format!("a store gave {other:?}")),
        };
        // Of an array, one member may have told the old version and another the new one.
        let older = previous.as_ref().is_none_or(|item| item.version < version) || self.shape.is_array();
        if !older {
            let text = format!("{:?}: {version} replaced {previous:?}", String::from_utf8_lossy(&key.name.1));
            self.journal.violate("versions", text);
        }
        let output = if get_old {
            let old = previous.map(|item| self.journal.values.borrow().read(&key.name, &item.bytes, 0, true));
            match old.transpose() {
                Ok(old) => checker::Output::Value(old.unwrap_or(ValueId::ABSENT)),
                Err(text) => return self.journal.violate("values", text),
            }
        } else {
            checker::Output::Flag(true)
        };
        let ended = self.journal.answer(asked, output);
        self.made(key, asked, ended, version, value);
    }

    /// Reads a key; its value and deadline, unless the read failed.
    pub(super) async fn get(&self, key: &Key) -> Option<checker::Held> {
        let asked = self.begin(key, Input::Get);
        let read = match self.retrieve(key, asked.begun.is_multiple_of(2)).await {
            Ok(Retrieved { item, .. }) if item.upload.is_some() => self.read_parts(key, item).await,
            read => read,
        };
        let (bytes, item) = match read {
            Ok(Retrieved { item, value }) => (value, item),
            Err(Error::NotFound) => {
                self.journal.answer(&asked, checker::Output::Value(ValueId::ABSENT));
                return Some(None);
            }
            Err(error) => {
                self.failed(&asked, Some(&error), false);
                return None;
            }
        };
        if bytes.len() as u64 != item.length {
            let text = format!("a value of {} bytes was read as {}", item.length, bytes.len());
            self.journal.violate("values", text);
        }
        let read = self.journal.values.borrow().read(&key.name, &bytes, 0, true);
        match read {
            Ok(value) => {
                let ended = self.journal.answer(&asked, checker::Output::Value(value));
                self.see(key, &asked, ended, item.version, Some(value));
                Some(Some((value, item.expiry_ms)))
            }
            Err(text) => {
                let name = String::from_utf8_lossy(&key.name.1);
                self.journal.violate("values", format!("{name:?}: {text}"));
                None
            }
        }
    }

    /// By the short way, or by a request.
    async fn retrieve(&self, key: &Key, directly: bool) -> Result<Retrieved, Error> {
        let (container, name) = (container(key), &key.name.1);
        if directly {
            return self.device.clone().retrieve_whole(container, name.as_slice().into()).await;
        }
        match self.call(Durability::Sync, Op::retrieve_whole(container, name)).await? {
            Output::Found(item) => Ok(item.into()),
            other => {
                self.journal.violate("answers", format!("a retrieve gave {other:?}"));
                Err(Error::Unsupported("a retrieve gave something else"))
            }
        }
    }

    async fn range(&self, key: &Key, first: u64, blocks: u64) {
        let asked = self.begin(key, Input::Get);
        let range = Some((first * 16, blocks * 16));
        let op = Op::Retrieve { container: container(key), key: key.name.1.clone(), range, pin: false };
        let item = match self.call(Durability::Sync, op).await {
            Ok(Output::Found(item)) => item,
            Err(Error::NotFound) => {
                self.journal.answer(&asked, checker::Output::Value(ValueId::ABSENT));
                return;
            }
            Err(error) => return self.failed(&asked, Some(&error), false),
            Ok(other) => return self.journal.violate("answers", format!("a retrieve gave {other:?}")),
        };
        let expected = item.length.saturating_sub(first * 16).min(blocks * 16);
        if item.upload.is_some() || item.bytes.len() < 16 {
            // Too little to tell which value it is.
            if item.upload.is_none() && item.bytes.len() as u64 != expected {
                self.journal.violate("values", format!("a range has {} bytes", item.bytes.len()));
            }
            return self.journal.withdraw(&asked, "too short a range");
        }
        let read = self.journal.values.borrow().read(&key.name, &item.bytes, first, false);
        match read {
            Ok(value) if item.bytes.len() as u64 == expected => {
                let ended = self.journal.answer(&asked, checker::Output::Value(value));
                self.see(key, &asked, ended, item.version, Some(value));
            }
            Ok(_) => self.journal.violate("values", format!("a range has {} bytes", item.bytes.len())),
            Err(text) => self.journal.violate("values", format!("a range: {text}")),
        }
    }

    async fn delete(&self, key: &Key) {
        let asked = self.begin(key, Input::Delete);
        let op =
            Op::Delete { container: container(key), key: key.name.1.clone(), condition: Condition::None };
        match self.call_or_leave(self.shape.durability(key.number), op).await {
            Some(Ok(Output::Deleted(Deleted::Version(version)))) => {
                let ended = self.journal.answer(&asked, checker::Output::Flag(true));
                self.see(key, &asked, ended, version, None);
            }
            Some(Ok(Output::Deleted(Deleted::Unseen))) => {
                self.journal.answer(&asked, checker::Output::Flag(true));
            }
            Some(Ok(Output::Deleted(Deleted::Unreadable))) => drop(self.journal.answer(&asked, UNREAD)),
            Some(Err(Error::NotFound)) => {
                self.journal.answer(&asked, checker::Output::Flag(false));
            }
            Some(Ok(other)) => self.journal.violate("answers", format!("a delete gave {other:?}")),
            Some(Err(error)) => self.failed(&asked, Some(&error), false),
            None => self.failed(&asked, None, false),
        }
    }

    async fn expire(&self, key: &Key, deadline_ms: u64) {
        let asked = self.begin(key, Input::Expire { deadline_ms });
        let op = Op::SetExpiry {
            container: container(key),
            key: key.name.1.clone(),
            expiry: Expiry::At(deadline_ms),
            condition: Condition::None,
        };
        match self.call_or_leave(self.shape.durability(key.number), op).await {
            Some(Ok(_)) => drop(self.journal.answer(&asked, checker::Output::Flag(true))),
            Some(Err(Error::NotFound)) => drop(self.journal.answer(&asked, checker::Output::Flag(false))),
            Some(Err(error)) => self.failed(&asked, Some(&error), true),
            None => self.failed(&asked, None, true),
        }
    }

    /// As a session does it: look, then change what was seen, by its version.
    async fn persist(&self, key: &Key) {
        let asked = self.begin(key, Input::Persist);
        for _ in 0..8 {
            let item = match self.look(key).await {
                Ok(Some(item)) if item.expiry_ms.is_some() => item,
                Ok(_) => {
                    self.journal.answer(&asked, checker::Output::Flag(false));
                    return;
                }
                Err(error) => return self.failed(&asked, Some(&error), false),
            };
            let op = Op::SetExpiry {
                container: container(key),
                key: key.name.1.clone(),
                expiry: Expiry::Never,
                condition: Condition::IfVersion(item.version),
            };
            match self.call(self.shape.durability(key.number), op).await {
                Ok(_) => {
                    self.journal.answer(&asked, checker::Output::Flag(true));
                    return;
                }
                Err(Error::VersionMismatch | Error::NotFound) => {}
                Err(error) => return self.failed(&asked, Some(&error), true),
            }
        }
        self.journal.withdraw(&asked, "too much company");
    }

    pub(super) async fn clear(&self, key: &Key) {
        let asked = self.begin(key, Input::Clear);
        match self.call(Durability::Sync, Op::Clear { container: container(key) }).await {
            Ok(_) => drop(self.journal.answer(&asked, checker::Output::Done)),
            Err(error) => self.failed(&asked, Some(&error), false),
        }
    }

    /// Scans a container from end to end.
    pub(super) async fn scan(&self, container: u32) {
        let asked = self.journal.watch(|| format!("client {} scans db {container}", self.client));
        let (begun, unreadable) = (self.journal.mark(container), self.journal.unreadable());
        let (mut keys, mut cursor) = (BTreeSet::new(), 0);
        let limit = self.workload.borrow_mut().random.range(1, 60) as usize;
        for page in 0.. {
            let op = Op::Scan { container: ContainerId(container), cursor, limit };
            match self.call(Durability::Sync, op).await {
                Ok(Output::Scanned(page)) => {
                    keys.extend(page.keys);
                    cursor = page.cursor;
                }
                Ok(other) => return self.journal.violate("answers", format!("a scan gave {other:?}")),
                Err(error) => return self.failed(&asked, Some(&error), false),
            }
            if cursor == 0 {
                break;
            }
            if page > 100_000 {
                return self.journal.violate("scans", "a scan does not end".to_owned());
            }
        }
        let ended = self.journal.mark(container);
        self.journal.answer(&asked, checker::Output::Done);
        let high_wall_ms = self.journal.high_wall_ms();
        let unreadable = self.journal.unreadable().saturating_sub(unreadable);
        let seen = ScanSeen { container, begun, ended, high_wall_ms, keys, unreadable };
        self.journal.scans.borrow_mut().push(seen);
    }

    async fn count(&self, container: u32) {
        let asked = self.journal.watch(|| format!("client {} counts db {container}", self.client));
        match self.call(Durability::Sync, Op::Stats { container: ContainerId(container) }).await {
            Ok(Output::Stats(stats))
                if stats.keys <= self.shape.keys && stats.expiring_keys <= stats.keys =>
            {
                self.journal.answer(&asked, checker::Output::Done);
            }
            Ok(other) => self.journal.violate("accounts", format!("a count gave {other:?}")),
            Err(error) => self.failed(&asked, Some(&error), false),
        }
    }

    async fn batch(&self, batch: Vec<(Key, Option<usize>)>) {
        let (mut ops, mut all) = (Vec::new(), Vec::new());
        for (key, length) in batch {
            let written = length.map(|length| self.new_value(&key, length));
            let input = written.as_ref().map_or(Input::Delete, |(value, _)| Input::set(value.0));
            let asked = self.begin(&key, input);
            let value = written.as_ref().map(|(value, _)| *value);
            ops.push(match written {
                Some((_, bytes)) => store(&key, Value::from(bytes), Condition::None, Expiry::Never, false),
                None => Op::Delete {
                    container: container(&key),
                    key: key.name.1.clone(),
                    condition: Condition::None,
                },
            });
            all.push((key, asked, value));
        }
        let called = self.call_or_leave(Durability::Sync, Op::Batch(ops)).await;
        let outputs = match called {
            Some(Ok(Output::Batch(outputs))) if outputs.len() == all.len() => outputs,
            other => {
                let error = other.and_then(Result::err);
                // A batch of deletes alone may not be refused; one with a store may.
                let may_be_full = all.iter().any(|(_, _, value)| value.is_some());
                return all.iter().for_each(|(_, asked, _)| self.failed(asked, error.as_ref(), may_be_full));
            }
        };
        for ((key, asked, value), output) in all.iter().zip(outputs) {
            let told = match output {
                Output::Deleted(Deleted::Unreadable) => UNREAD,
                Output::Stored { .. } | Output::Deleted(_) => checker::Output::Flag(true),
                _ => checker::Output::Flag(false),
            };
            let ended = self.journal.answer(asked, told);
            if let (Output::Stored { version, .. }, Some(value)) = (output, value) {
                self.made(key, asked, ended, version, *value);
            }
        }
    }

    /// Looks for the version, then stores if it is still the same.
    async fn swap(&self, key: &Key, length: usize) {
        let seen = match self.look(key).await {
            Ok(Some(item)) => (item.version, self.journal.events()),
            _ => return,
        };
        let (value, bytes) = self.new_value(key, length);
        let asked = self.begin(key, Input::set(value.0));
        let op = store(key, Value::from(bytes), Condition::IfVersion(seen.0), Expiry::Never, false);
        let op = wishing(op, self.shape.wish(value));
        let called = self.call_or_leave(self.shape.durability(key.number), op).await;
        self.swapped(key, &asked, (seen, value), called);
    }

    /// Ends a store that was to replace what was seen.
    fn swapped(
        &self,
        key: &Key,
        asked: &Asked,
        ((seen, looked), value): ((Version, u64), ValueId),
        called: Called,
    ) {
        match called {
            Some(Ok(Output::Stored { version, .. })) => {
                let ended = self.journal.answer(asked, checker::Output::Flag(true));
                let (begun, wrote, from) = (asked.begun, true, Some(seen));
                let value = Some(value);
                let made = VersionSeen { begun, ended, ended_ns: 0, version, wrote, value, from, looked };
                self.journal.see_version(&key.name, made);
            }
            Some(Err(Error::VersionMismatch | Error::NotFound)) => self.journal.withdraw(asked, "changed"),
            Some(Err(error)) => self.failed(asked, Some(&error), true),
            Some(Ok(other)) => self.journal.violate("answers", format!("a store gave {other:?}")),
            None => self.failed(asked, None, true),
        }
    }
}

fn store(key: &Key, value: Value, condition: Condition, expiry: Expiry, want_previous: bool) -> Op {
    Op::Store {
        container: container(key),
        key: key.name.1.clone(),
        value,
        condition,
        expiry,
        retain: false,
        want_previous,
        form: None,
    }
}

/// The same store, of what is to be made into something.
fn wishing(mut store: Op, wish: Option<Form>) -> Op {
    if let Op::Store { form, .. } = &mut store {
        *form = wish;
    }
    store
}
