//! Room by packing: a store that full devices refuse waits while packing gives some back.
//!
//! Role: what is stored faster than it is packed stands as copies, and fills devices that have room for it
//! packed. Place on the path: around every store, where values are packed.
//!
//! Invariants:
//! * nobody waits who holds a key, or everything: packing holds keys itself. So that requests for a key take
//!   effect in their order, who waits is refused when another comes for it;
//! * nobody waits longer than sets are packed, a second for the next one and ten in all: where packing is
//!   hindered, or has nothing left, the refusal stands;
//! * few wait, as they hold up others of their connections, and fewer try again at a time, as what is refused
//!   costs devices more than what is stored.

use crate::array::Array;
use crate::manner::Manner;
use crate::write::is_full;
use futures_util::future::{Either, select};
use plimsoll_kv::{ContainerId, Op, Output, Result, Value};
use plimsoll_reactor::sync::{Permit, Permits, WaitList};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::pin::pin;
use std::rc::Rc;

/// Stores that wait at most.
const WAITING_MAX: usize = 64;
/// So many of them at a time try again; the others wait for one of those.
const TOGETHER: usize = 16;
/// A store is tried again when so many sets have been packed, or some after this time.
const SETS: u64 = 32;
const SETS_NS: u64 = 1_000_000_000;
/// Nobody waits longer: what is packed may give room elsewhere.
const WAIT_NS_MAX: u64 = 10_000_000_000;

/// What stores wait for that full devices refused.
pub(crate) struct RoomByPacking {
    tries: Rc<Permits>,
    /// The number of the store that waits for each key.
    waiting: RefCell<BTreeMap<(ContainerId, Vec<u8>), u64>>,
    /// Stores that wait, and those that will be refused as others have come for their keys.
    count: Cell<usize>,
    next: Cell<u64>,
    /// Sets that were packed.
    sets: Cell<u64>,
    /// Something hindered packing.
    is_hindered: Cell<bool>,
    goes_on: WaitList,
}

impl Default for RoomByPacking {
    fn default() -> RoomByPacking {
        RoomByPacking {
            tries: Permits::new(TOGETHER),
            waiting: RefCell::default(),
            count: Cell::new(0),
            next: Cell::new(0),
            sets: Cell::new(0),
            is_hindered: Cell::new(false),
            goes_on: WaitList::default(),
        }
    }
}

/// A store that waits for a key, until this goes.
struct Waiting<'a> {
    room: &'a RoomByPacking,
    key: (ContainerId, Vec<u8>),
    number: u64,
}

impl Waiting<'_> {
    /// True if nobody has come for the key since.
    fn is_in_order(&self) -> bool {
        self.room.waiting.borrow().get(&self.key) == Some(&self.number)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.room.count.set(self.room.count.get() - 1);
        if self.is_in_order() {
            self.room.waiting.borrow_mut().remove(&self.key);
        }
    }
}

impl RoomByPacking {
    /// Sets that were packed since the array was opened.
    pub(crate) fn sets(&self) -> u64 {
        self.sets.get()
    }

    /// Packing has made a set.
    pub(crate) fn note_set(&self) {
        self.sets.set(self.sets.get() + 1);
        self.look();
    }

    /// Packing is hindered, or goes on.
    pub(crate) fn note_hindered(&self, is_hindered: bool) {
        self.is_hindered.set(is_hindered);
        self.look();
    }

    /// Packing is where it may have ended.
    pub(crate) fn look(&self) {
        self.goes_on.wake_all();
    }

    /// Somebody comes for a key, or for all: who waits for it has come before, and is not to write after.
    pub(crate) fn meet(&self, op: &Op) {
        let mut waiting = self.waiting.borrow_mut();
        if waiting.is_empty() {
            return;
        }
        match op {
            Op::Store { container, key, .. }
            | Op::Retrieve { container, key, .. }
            | Op::Exist { container, key }
            | Op::Describe { container, key }
            | Op::Delete { container, key, .. }
            | Op::SetExpiry { container, key, .. } => {
                waiting.remove(&(*container, key.clone()));
            }
            Op::Sync => {}
            _ => waiting.clear(),
        }
        drop(waiting);
        self.look();
    }

    /// Begins to wait; nothing if too many do.
    fn wait(&self, container: ContainerId, key: &[u8]) -> Option<Waiting<'_>> {
        if self.count.get() >= WAITING_MAX {
            return None;
        }
        let (key, number) = ((container, key.to_vec()), self.next.get());
        self.count.set(self.count.get() + 1);
        self.next.set(number + 1);
        self.waiting.borrow_mut().insert(key.clone(), number);
        Some(Waiting { room: self, key, number })
    }
}

impl Array {
    /// Stores; where devices are full of what is to be packed, when some of it has been.
    pub(crate) async fn store(self: &Rc<Self>, op: Op, manner: &Manner) -> Result<Output> {
        // Who is within a transaction holds what is to be packed; what stands in parts is given up when it is
        // refused.
        if !self.forms.has_packed() || manner.is_within() || is_upload(&op) {
            return self.store_at_once(op, manner).await;
        }
        let again = op.clone();
        let stored = self.store_at_once(op, manner).await;
        if !is_refused(&stored) || !self.packing_goes_on() {
            return stored;
        }
        Box::pin(self.store_when_packed(again, stored, manner)).await
    }

    /// Stores what was refused when some sets have been packed; the refusal, if that does not come.
    async fn store_when_packed(
        self: &Rc<Self>,
        op: Op,
        refused: Result<Output>,
        manner: &Manner,
    ) -> Result<Output> {
        let Op::Store { container, key, .. } = &op else { unreachable!("stores alone are tried again") };
        let (id, until_ns) = (self.place(*container, key)?.id, self.reactor.now_ns() + WAIT_NS_MAX);
        // Who holds the key, or waits for it or for everything, has come since.
        if !self.locks.is_free(id.0, id.1) {
            return refused;
        }
        let Some(waiting) = self.packer.room.wait(*container, key) else { return refused };
        let Some(_turn) = self.turn_to_try(&waiting).await else { return refused };
        loop {
            let stored = self.store_at_once(op.clone(), manner).await;
            let is_in_order = self.locks.is_free(id.0, id.1) && waiting.is_in_order();
            let goes_on = self.packing_goes_on() && self.reactor.now_ns() < until_ns;
            let tries_again = is_refused(&stored) && is_in_order && goes_on;
            if !tries_again || !self.is_packed_meanwhile(&waiting).await {
                return stored;
            }
        }
    }

    /// Waits for the turn of a store to try again; nothing if another has come for its key, or packing ends.
    async fn turn_to_try(&self, waiting: &Waiting<'_>) -> Option<Permit> {
        let room = &self.packer.room;
        let ends = || (!waiting.is_in_order() || !self.packing_goes_on()).then_some(());
        match select(pin!(room.tries.acquire(1)), pin!(room.goes_on.wait_for(ends))).await {
            Either::Left((turn, _)) => waiting.is_in_order().then_some(turn),
            Either::Right(_) => None,
        }
    }

    /// Whether packing may give room back.
    pub(crate) fn packing_goes_on(&self) -> bool {
        let may_go_on = self.all_in() && !self.has_doubts() && !self.closing.get();
        may_go_on && self.packer.is_at_work() && !self.packer.room.is_hindered.get()
    }

    /// Waits until some sets have been packed; false if none were, or another has come for the key.
    async fn is_packed_meanwhile(&self, waiting: &Waiting<'_>) -> bool {
        let room = &self.packer.room;
        let before = room.sets.get();
        let is_any = || room.sets.get() > before && waiting.is_in_order();
        let judge = || {
            let ends = !self.packing_goes_on() || !waiting.is_in_order();
            (ends || room.sets.get() >= before + SETS).then(is_any)
        };
        let (packed, end) = (pin!(room.goes_on.wait_for(judge)), pin!(self.reactor.sleep_ns(SETS_NS)));
        match select(packed, end).await {
            Either::Left((packed, _)) => packed,
            Either::Right(_) => is_any(),
        }
    }
}

fn is_refused(stored: &Result<Output>) -> bool {
    stored.as_ref().err().is_some_and(is_full)
}

fn is_upload(op: &Op) -> bool {
    matches!(op, Op::Store { value: Value::Upload(_), .. })
}
