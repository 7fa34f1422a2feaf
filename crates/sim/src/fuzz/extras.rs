//! Two clients with keys of their own, whose states are known exactly: one changes pairs of keys in
//! batches, which must never come apart; one retains, releases and reverts versions, and gives other keys
//! what is there, while it is replaced or deleted.
//!
//! Place: beside the other callers, in a container of their own.
//!
//! Invariants: one operation at a time; what a crash cut off may have happened or not, as a whole.

use super::caller::Caller;
use super::journal::Trouble;
use super::life::Life;
use plimsoll_kv::{Condition, ContainerId, Durability, Error, Expiry, Kept, Op, Output, Value};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

/// Apart from the containers of the history.
const CONTAINER: ContainerId = ContainerId(9);
const PAIRS: u64 = 3;
const KEPT: u64 = 3;

/// What a key holds: the number of its store.
type Held = Option<u64>;
/// The current version, the one retained below it, and what the other key was given.
type Versions = (Held, Held, Held);
const NONE: Versions = (None, None, None);

/// The states that something may be in; nothing: any.
type Allowed<S> = Option<BTreeSet<S>>;

pub(super) struct Extras {
    next: Cell<u64>,
    /// How many of these keys were evicted.
    evicted: Cell<u64>,
    pairs: RefCell<Vec<Allowed<Held>>>,
    kept: RefCell<Vec<Allowed<Versions>>>,
}

/// What can be done to versions.
#[derive(Clone, Copy, Debug)]
enum Change {
    Store {
        number: u64,
        retain: bool,
    },
    Release,
    Revert,
    Delete,
    /// The other key is given what is there, in one batch with a store or a delete.
    Keep {
        number: Option<u64>,
        retain: bool,
    },
    /// The other key is deleted.
    Drop,
}

/// Why it cannot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refused {
    Absent,
    Senseless,
}

fn apply((now, below, given): Versions, change: Change) -> Result<Versions, Refused> {
    match change {
        // What is kept now takes the place of what was kept before.
        Change::Store { number, retain } => Ok((Some(number), now.filter(|_| retain), given)),
        Change::Drop if given.is_none() => Err(Refused::Absent),
        Change::Drop => Ok((now, below, None)),
        Change::Keep { number, retain } => {
            Ok((number, now.filter(|_| retain && number.is_some()), now.or(given)))
        }
        _ if now.is_none() => Err(Refused::Absent),
        Change::Delete => Ok((None, None, given)),
        _ if below.is_none() => Err(Refused::Senseless),
        Change::Release => Ok((now, None, given)),
        Change::Revert => Ok((below, None, given)),
    }
}

fn pair_key(pair: u64, half: &str) -> Vec<u8> {
    format!("{{pair{pair}}}{half}").into_bytes()
}
fn kept_key(index: u64) -> Vec<u8> {
    format!("kept{index}").into_bytes()
}

fn given_key(index: u64) -> Vec<u8> {
    format!("{{kept{index}}}given").into_bytes()
}

/// Gives a key what another one holds.
fn keep(index: u64) -> Op {
    let kept = Kept { head: Vec::new(), bytes: None, container: CONTAINER, key: kept_key(index) };
    Op::store(CONTAINER, given_key(index), kept)
}

fn bytes_of(number: u64, length: usize) -> Vec<u8> {
    number.to_le_bytes().into_iter().cycle().take(length.max(8)).collect()
}

fn number_of(bytes: &[u8]) -> Option<u64> {
    let number = u64::from_le_bytes(bytes.get(..8)?.try_into().ok()?);
    (bytes_of(number, bytes.len()) == bytes).then_some(number)
}

fn store(key: Vec<u8>, number: u64, length: usize, retain: bool) -> Op {
    Op::Store {
        container: CONTAINER,
        key,
        value: Value::from(bytes_of(number, length)),
        condition: Condition::None,
        expiry: Expiry::Never,
        retain,
        want_previous: false,
        form: None,
    }
}

fn delete(key: Vec<u8>) -> Op {
    Op::Delete { container: CONTAINER, key, condition: Condition::None }
}

impl Extras {
    pub(super) fn new() -> Extras {
        Extras {
            next: Cell::new(1),
            evicted: Cell::new(0),
            pairs: RefCell::new(vec![Some(BTreeSet::from([None])); PAIRS as usize]),
            kept: RefCell::new(vec![Some(BTreeSet::from([NONE])); KEPT as usize]),
        }
    }

    /// Damage took acknowledged data away: anything may be there now.
    pub(super) fn forget(&self) {
        self.pairs.borrow_mut().fill(None);
        self.kept.borrow_mut().fill(None);
    }

    /// The server deleted a key to make room: of a pair one half may be there now, of a key with a version
    /// below it nothing may be deleted.
    pub(super) fn evicted(&self, life: &Life, key: &[u8]) {
        self.evicted.set(self.evicted.get() + 1);
        for pair in (0..PAIRS).filter(|pair| ["a", "b"].iter().any(|half| pair_key(*pair, half) == key)) {
            self.pairs.borrow_mut()[pair as usize] = None;
        }
        for index in (0..KEPT).filter(|index| kept_key(*index) == key || given_key(*index) == key) {
            let before = self.kept.borrow_mut()[index as usize].take();
            let stays = |(_, below, _): &Versions| below.is_some() || given_key(index) == key;
            if before.as_ref().is_some_and(|states| states.iter().all(stays)) {
                let text = format!("kept{index} was evicted; it was one of {before:?}");
                life.journal.violate("retained versions", text);
            }
        }
    }

    fn number(&self) -> u64 {
        self.next.replace(self.next.get() + 1)
    }

    /// One of the two clients, until it has to stop.
    pub(super) async fn work(&self, life: &Life, caller: &Caller, which: u32) {
        while life.goes_on() {
            let (index, what, length) = {
                let random = &mut caller.workload.borrow_mut().random;
                (random.below(PAIRS.min(KEPT)), random.below(10), random.below(900) as usize)
            };
            match (which, what) {
                (0, 0..3) => self.check_pair(life, caller, index).await,
                (0, _) => self.change_pair(life, caller, index, what < 8, length).await,
                (_, 0..3) => self.check_kept(life, caller, index).await,
                (_, what) => self.change_kept(life, caller, index, what, length).await,
            }
            caller.reactor.sleep_ns(200_000).await;
        }
    }

    async fn call(&self, life: &Life, caller: &Caller, op: Op, full: bool) -> Option<Result<Output, Error>> {
        let asked = life.journal.watch(|| {
            let text = format!("extra {op:?}");
            text.chars().take(160).collect()
        });
        let called = caller.call(Durability::Sync, op).await;
        match &called {
            Ok(_) | Err(Error::NotFound | Error::Invalid(_)) => life.journal.withdraw(&asked, "done"),
            Err(Error::NoSpace) => life.journal.fail(&asked, &Trouble::NoSpace, full),
            Err(error) => {
                life.journal.fail(&asked, &Trouble::of(error), full);
                return None;
            }
        }
        Some(called)
    }

    async fn change_pair(&self, life: &Life, caller: &Caller, pair: u64, stores: bool, length: usize) {
        let new = stores.then(|| self.number());
        let evicted = self.evicted.get();
        let before = self.pairs.borrow()[pair as usize].clone();
        if let Some(allowed) = &mut self.pairs.borrow_mut()[pair as usize] {
            allowed.insert(new);
        }
        let halves = ["a", "b"].map(|half| pair_key(pair, half));
        let ops = halves.map(|key| match new {
            Some(number) => store(key, number, length, false),
            None => delete(key),
        });
        let called = self.call(life, caller, Op::Batch(ops.to_vec()), stores).await;
        let now = match called {
            Some(Ok(_)) => Some(BTreeSet::from([new])),
            Some(Err(_)) => before,
            None => return,
        };
        if self.evicted.get() == evicted {
            self.pairs.borrow_mut()[pair as usize] = now;
        }
    }

    /// What a key holds; nothing if it cannot be read.
    async fn read(&self, life: &Life, caller: &Caller, key: Vec<u8>) -> Option<Held> {
        let op = Op::Retrieve { container: CONTAINER, key: key.clone(), range: None, pin: false };
        match self.call(life, caller, op, false).await? {
            Ok(Output::Found(item)) => {
                let number = number_of(&item.bytes);
                if number.is_none() {
                    let name = String::from_utf8_lossy(&key).into_owned();
                    life.journal.violate("values", format!("{name} holds what nobody wrote"));
                }
                number.map(Some)
            }
            _ => Some(None),
        }
    }

    async fn check_pair(&self, life: &Life, caller: &Caller, pair: u64) {
        let evicted = self.evicted.get();
        let Some(a) = self.read(life, caller, pair_key(pair, "a")).await else { return };
        let Some(b) = self.read(life, caller, pair_key(pair, "b")).await else { return };
        if self.evicted.get() > evicted {
            return;
        }
        let mut pairs = self.pairs.borrow_mut();
        let allowed = &mut pairs[pair as usize];
        let known = allowed.as_ref().is_none_or(|allowed| allowed.contains(&a));
        if a != b && allowed.is_none() {
            return; // Half of a lost batch may be unreadable damage; nothing is known yet.
        }
        if a != b || !known {
            let text = format!("pair {pair} holds {a:?} and {b:?}; allowed for both: {allowed:?}");
            life.journal.violate("batches", text);
        }
        *allowed = Some(BTreeSet::from([a]));
    }

    async fn change_kept(&self, life: &Life, caller: &Caller, index: u64, what: u64, length: usize) {
        let key = kept_key(index);
        let change = self.change(what, length);
        let op = match change {
            Change::Store { number, retain } => store(key, number, length, retain),
            Change::Release => Op::Release { container: CONTAINER, key },
            Change::Revert => Op::Revert { container: CONTAINER, key },
            Change::Delete => delete(key),
            Change::Keep { number: Some(number), retain } => {
                Op::Batch(vec![store(key, number, length, retain), keep(index)])
            }
            Change::Keep { number: None, .. } => Op::Batch(vec![keep(index), delete(key)]),
            Change::Drop => delete(given_key(index)),
        };
        let evicted = self.evicted.get();
        let before = self.kept.borrow()[index as usize].clone();
        if let Some(allowed) = &mut self.kept.borrow_mut()[index as usize] {
            allowed.extend(before.iter().flatten().filter_map(|state| apply(*state, change).ok()));
        }
        let full = !matches!(change, Change::Delete | Change::Drop);
        let told = match self.call(life, caller, op, full).await {
            None => return,
            _ if self.evicted.get() > evicted => return,
            Some(Err(Error::NoSpace)) => {
                self.kept.borrow_mut()[index as usize] = before;
                return;
            }
            Some(Ok(_)) => None,
            Some(Err(Error::NotFound)) => Some(Refused::Absent),
            Some(Err(_)) => Some(Refused::Senseless),
        };
        let Some(before) = before else {
            if matches!(change, Change::Delete)
                && let Some(given) = self.read(life, caller, given_key(index)).await
            {
                self.kept.borrow_mut()[index as usize] = Some(BTreeSet::from([(None, None, given)]));
            }
            return;
        };
        let may_be_unread = life.journal.may_be_unread();
        let after = before.iter().filter_map(|state| match (apply(*state, change), told) {
            (Ok(next), None) => Some(next),
            // What could not be read when it was replaced was not retained.
            (Ok(_), Some(Refused::Senseless)) if may_be_unread => Some((state.0, None, state.2)),
            (Err(refused), Some(told)) if refused == told => Some(*state),
            _ => None,
        });
        let after: BTreeSet<Versions> = after.collect();
        if after.is_empty() {
            let text = format!("{change:?} of kept{index} gave {told:?}; it was one of {before:?}");
            life.journal.violate("retained versions", text);
        }
        self.kept.borrow_mut()[index as usize] = Some(after);
    }

    fn change(&self, what: u64, length: usize) -> Change {
        let (keeps, number) = (length % 2 == 1, || self.number());
        match what {
            4 | 6 if keeps => Change::Keep { number: Some(number()), retain: what == 6 },
            3 | 4 => Change::Store { number: number(), retain: false },
            5 | 6 => Change::Store { number: number(), retain: true },
            7 => Change::Release,
            8 => Change::Revert,
            _ if keeps => Change::Keep { number: None, retain: false },
            _ if length % 4 == 2 => Change::Drop,
            _ => Change::Delete,
        }
    }

    async fn check_kept(&self, life: &Life, caller: &Caller, index: u64) {
        let evicted = self.evicted.get();
        let Some(seen) = self.read(life, caller, kept_key(index)).await else { return };
        let Some(given) = self.read(life, caller, given_key(index)).await else { return };
        if self.evicted.get() > evicted {
            return;
        }
        let mut kept = self.kept.borrow_mut();
        let Some(allowed) = &mut kept[index as usize] else { return };
        let before = allowed.clone();
        allowed.retain(|(now, _, other)| (*now, *other) == (seen, given));
        if allowed.is_empty() {
            let text =
                format!("kept{index} holds {seen:?}, the other key {given:?}; it was one of {before:?}");
            life.journal.violate("retained versions", text);
        }
    }

    /// Checks all pairs and retained versions.
    pub(super) async fn check_all(&self, life: &Life, caller: &Caller) {
        if !life.shape.extras {
            return;
        }
        for index in 0..PAIRS {
            self.check_pair(life, caller, index).await;
        }
        for index in 0..KEPT {
            self.check_kept(life, caller, index).await;
        }
    }

    /// Deletes everything.
    pub(super) async fn empty(&self, life: &Life, caller: &Caller) {
        if !life.shape.extras {
            return;
        }
        for index in 0..PAIRS {
            self.change_pair(life, caller, index, false, 0).await;
        }
        for index in 0..KEPT {
            self.change_kept(life, caller, index, 9, 0).await;
            self.change_kept(life, caller, index, 9, 2).await;
        }
    }
}
