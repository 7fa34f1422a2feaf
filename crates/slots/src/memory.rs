//! A KV SSD in memory, which loses power.
//!
//! Role: the drive of tests and of the simulator. Place on the path: where a real drive stands. A [`Medium`]
//! is what stays when power is lost; a [`MemorySsd`] is a connection to it, which ends then.
//!
//! Invariants: of what was not flushed each key keeps, by itself, any state that it had since the last flush;
//! a command takes effect in its first poll, or, if power is lost at it, before or after.
//!
//! Never: in a server.

use crate::drive::{DriveError, DriveFuture, DriveKey, KvSsd, Retrieved, StoreIf};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// A command, for a decision about whether it fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// So many bytes under a key.
    Store(DriveKey, usize),
    /// Of a key.
    Retrieve(DriveKey),
    /// Of a key.
    Delete(DriveKey),
    /// Of a key.
    Exist(DriveKey),
    /// A page of keys.
    List,
    /// A flush.
    Flush,
}

/// Commands that a drive was given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Commands {
    /// Stores.
    pub stores: u64,
    /// Retrieves.
    pub retrieves: u64,
    /// Deletes.
    pub deletes: u64,
    /// Exists and lists.
    pub others: u64,
    /// Flushes.
    pub flushes: u64,
}

/// What stands under a key, if something does.
type Object = Option<Rc<[u8]>>;

type Fault = Box<dyn FnMut(Command) -> Option<DriveError>>;

#[derive(Default)]
struct State {
    objects: BTreeMap<Vec<u8>, Rc<[u8]>>,
    /// What a key held since the last flush, the oldest first; not what it holds now.
    unflushed: BTreeMap<Vec<u8>, Vec<Object>>,
    bytes: u64,
    capacity_bytes: u64,
    value_bytes_max: usize,
    commands: Commands,
    fault: Option<Fault>,
    /// Counts power losses: a connection is of one number.
    power: u64,
    /// Commands until power is lost; the last takes effect before that, if the flag is set.
    until_loss: Option<(u64, bool)>,
}

/// What a drive consists of: stays when power is lost.
#[derive(Clone)]
pub struct Medium(Rc<RefCell<State>>);

impl Medium {
    /// An empty one: values to so many bytes, all of them together to so many.
    #[must_use]
    pub fn new(value_bytes_max: usize, capacity_bytes: u64) -> Medium {
        let state = State { value_bytes_max, capacity_bytes, ..State::default() };
        Medium(Rc::new(RefCell::new(state)))
    }

    /// Connects to it. What was connected before is cut off.
    #[must_use]
    pub fn connect(&self) -> Rc<MemorySsd> {
        let mut state = self.0.borrow_mut();
        (state.until_loss, state.power) = (None, state.power + 1);
        Rc::new(MemorySsd { medium: self.clone(), power: state.power })
    }

    /// Power is lost at the n-th command from now, counted from 1: before it has its effect, or after.
    pub fn lose_power_at(&self, nth: u64, after: bool) {
        self.0.borrow_mut().until_loss = Some((nth, after));
    }

    /// Power is lost. `choose` says which of so many states a key keeps, the oldest first.
    pub fn lose_power(&self, mut choose: impl FnMut(usize) -> usize) {
        self.lose_power_by_key(|_, states| choose(states));
    }

    /// As [`Medium::lose_power`], told of which key.
    pub fn lose_power_by_key(&self, mut choose: impl FnMut(&[u8], usize) -> usize) {
        let mut state = self.0.borrow_mut();
        (state.until_loss, state.power) = (None, state.power + 1);
        for (key, states) in std::mem::take(&mut state.unflushed) {
            let kept = choose(&key, states.len() + 1);
            if let Some(kept) = states.get(kept) {
                state.put(&key, kept.clone());
            }
        }
        state.unflushed.clear();
    }

    /// Power that was to be lost is not.
    pub fn calm(&self) {
        self.0.borrow_mut().until_loss = None;
    }

    /// Another of which everything that is stored here is stored, durably.
    #[must_use]
    pub fn copy(&self) -> Medium {
        let state = self.0.borrow();
        let copy = Medium::new(state.value_bytes_max, state.capacity_bytes);
        copy.0.borrow_mut().objects.clone_from(&state.objects);
        copy.0.borrow_mut().bytes = state.bytes;
        copy
    }

    /// Decides from now on which commands fail; those that do have no effect.
    pub fn set_fault(&self, fault: impl FnMut(Command) -> Option<DriveError> + 'static) {
        self.0.borrow_mut().fault = Some(Box::new(fault));
    }

    /// No command fails from now on.
    pub fn clear_fault(&self) {
        self.0.borrow_mut().fault = None;
    }

    /// Changes stored bytes; false if there is no such key.
    pub fn corrupt(&self, key: &[u8], change: impl FnOnce(&mut Vec<u8>)) -> bool {
        let mut state = self.0.borrow_mut();
        let Some(bytes) = state.objects.get(key) else { return false };
        let mut bytes = bytes.to_vec();
        change(&mut bytes);
        state.put(key, Some(bytes.into()));
        true
    }

    /// Stores bytes behind everybody's back.
    pub fn plant(&self, key: &[u8], bytes: &[u8]) {
        self.0.borrow_mut().put(key, Some(bytes.into()));
    }

    /// Everything that is stored.
    #[must_use]
    pub fn objects(&self) -> BTreeMap<Vec<u8>, Rc<[u8]>> {
        self.0.borrow().objects.clone()
    }

    /// Bytes of everything that is stored.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.0.borrow().bytes
    }

    /// Commands since this was asked last.
    pub fn commands(&self) -> Commands {
        std::mem::take(&mut self.0.borrow_mut().commands)
    }
}

impl State {
    fn put(&mut self, key: &[u8], value: Option<Rc<[u8]>>) {
        let added = value.as_ref().map_or(0, |value| value.len());
        let before = match value {
            Some(value) => self.objects.insert(key.to_vec(), value),
            None => self.objects.remove(key),
        };
        self.bytes = self.bytes + added as u64 - before.map_or(0, |before| before.len()) as u64;
    }

    fn change(&mut self, key: &[u8], value: Option<Rc<[u8]>>) {
        let before = self.objects.get(key).cloned();
        self.unflushed.entry(key.to_vec()).or_default().push(before);
        self.put(key, value);
    }

    fn count(&mut self, command: Command) {
        let commands = &mut self.commands;
        let counter = match command {
            Command::Store(..) => &mut commands.stores,
            Command::Retrieve(_) => &mut commands.retrieves,
            Command::Delete(_) => &mut commands.deletes,
            Command::Exist(_) | Command::List => &mut commands.others,
            Command::Flush => &mut commands.flushes,
        };
        *counter += 1;
    }

    /// Whether a command has an effect, and whether its asker hears of it.
    fn admit(&mut self, power: u64, command: Command) -> (bool, Result<(), DriveError>) {
        let lost = || DriveError::Unrecovered("power was lost".to_owned());
        if power != self.power {
            return (false, Err(lost()));
        }
        if let Some((left, after)) = &mut self.until_loss {
            *left = left.saturating_sub(1);
            let after = *after;
            if *left == 0 {
                self.power += 1;
                return (after, Err(lost()));
            }
        }
        self.count(command);
        match self.fault.as_mut().and_then(|fault| fault(command)) {
            Some(error) => (false, Err(error)),
            None => (true, Ok(())),
        }
    }

    fn store(&mut self, key: DriveKey, value: Vec<u8>, when: StoreIf) -> Result<(), DriveError> {
        let before = self.objects.get(&key.0[..]).map(|value| value.len() as u64);
        if value.len() > self.value_bytes_max {
            return Err(DriveError::InvalidValueSize(value.len()));
        }
        if when == StoreIf::Absent && before.is_some() {
            return Err(DriveError::KeyExists);
        }
        if self.bytes - before.unwrap_or(0) + value.len() as u64 > self.capacity_bytes {
            return Err(DriveError::CapacityExceeded);
        }
        self.change(&key.0, Some(value.into()));
        Ok(())
    }
}

/// A connection to a drive in memory.
pub struct MemorySsd {
    medium: Medium,
    power: u64,
}

impl MemorySsd {
    fn run<T: 'static>(
        &self,
        command: Command,
        effect: impl FnOnce(&mut State) -> Result<T, DriveError> + 'static,
    ) -> DriveFuture<T> {
        let (medium, power) = (self.medium.clone(), self.power);
        Box::pin(async move {
            let mut state = medium.0.borrow_mut();
            let (happens, heard) = state.admit(power, command);
            let result = happens.then(|| effect(&mut state));
            heard?;
            result.expect("what does not happen is an error")
        })
    }
}

impl KvSsd for MemorySsd {
    fn store(&self, key: DriveKey, value: Vec<u8>, when: StoreIf) -> DriveFuture<()> {
        self.run(Command::Store(key, value.len()), move |state| state.store(key, value, when))
    }

    fn retrieve(&self, key: DriveKey, offset: usize, length: usize) -> DriveFuture<Retrieved> {
        self.run(Command::Retrieve(key), move |state| {
            let value = state.objects.get(&key.0[..]).ok_or(DriveError::KeyNotFound)?;
            let first = offset.min(value.len());
            let end = first.saturating_add(length).min(value.len());
            Ok(Retrieved { bytes: value[first..end].to_vec(), length: value.len() })
        })
    }

    fn delete(&self, key: DriveKey) -> DriveFuture<()> {
        self.run(Command::Delete(key), move |state| {
            if state.objects.contains_key(&key.0[..]) {
                state.change(&key.0, None);
            }
            Ok(())
        })
    }

    fn exist(&self, key: DriveKey) -> DriveFuture<bool> {
        self.run(Command::Exist(key), move |state| Ok(state.objects.contains_key(&key.0[..])))
    }

    fn list(&self, from: Vec<u8>, limit: usize) -> DriveFuture<Vec<Vec<u8>>> {
        self.run(Command::List, move |state| {
            Ok(state.objects.range(from..).take(limit).map(|(key, _)| key.clone()).collect())
        })
    }

    fn flush(&self) -> DriveFuture<()> {
        self.run(Command::Flush, |state| {
            state.unflushed.clear();
            Ok(())
        })
    }

    fn value_bytes_max(&self) -> usize {
        self.medium.0.borrow().value_bytes_max
    }
}
