//! Room by packing: a store that full devices refuse waits while packing gives some back.
//!
//! Role: what is stored faster than it is packed stands as copies, and fills devices that have room for it
//! packed. Place on the path: around every store, where values are packed.
//!
//! Invariants:
//! * nobody waits who holds a key, or everything: packing holds keys itself;
//! * nobody waits longer than packing goes on: where it is hindered, or has nothing left, the refusal stands;
//! * few try again at a time, as what is refused costs devices more than what is stored.

use crate::array::Array;
use crate::manner::Manner;
use crate::write::is_full;
use plimsoll_kv::{Op, Output, Result, Value};
use plimsoll_reactor::sync::{Permits, WaitList};
use std::cell::Cell;
use std::rc::Rc;

/// So many stores at a time try again; the others wait for one of them.
const TOGETHER: usize = 16;
/// A store is tried again when so many sets have been packed.
const SETS: u64 = 32;

/// What stores wait for that full devices refused.
pub(crate) struct Room {
    tries: Rc<Permits>,
    /// Sets that were packed.
    sets: Cell<u64>,
    /// Something hindered packing.
    is_hindered: Cell<bool>,
    goes_on: WaitList,
}

impl Default for Room {
    fn default() -> Room {
        let (sets, is_hindered) = (Cell::new(0), Cell::new(false));
        Room { tries: Permits::new(TOGETHER), sets, is_hindered, goes_on: WaitList::default() }
    }
}

impl Room {
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
}

impl Array {
    /// Stores; where devices are full of what is to be packed, when some of it has been.
    pub(crate) async fn store(self: &Rc<Self>, op: Op, manner: &Manner) -> Result<Output> {
        // Who is within a transaction holds what is to be packed.
        let waits = self.forms.has_packed() && !manner.is_within() && !is_upload(&op);
        if !waits {
            return self.store_at_once(op, manner).await;
        }
        let mut turn = None;
        loop {
            let refused = match self.store_at_once(op.clone(), manner).await {
                Err(error) if is_full(&error) && self.packing_goes_on() => error,
                stored => return stored,
            };
            if turn.is_none() {
                turn = Some(self.packer.room.tries.acquire(1).await);
            } else if !self.is_packed_meanwhile().await {
                return Err(refused);
            }
        }
    }

    /// Whether packing may give room back.
    pub(crate) fn packing_goes_on(&self) -> bool {
        self.packer.is_at_work()
            && !self.packer.room.is_hindered.get()
            && self.all_in()
            && !self.closing.get()
    }

    /// Waits until some sets have been packed; false if none were.
    async fn is_packed_meanwhile(&self) -> bool {
        let room = &self.packer.room;
        let before = room.sets.get();
        let judge = || {
            let packed = room.sets.get() - before;
            (packed >= SETS || !self.packing_goes_on()).then_some(packed > 0)
        };
        room.goes_on.wait_for(judge).await
    }
}

/// What stands in parts is not packed, and given up when it is refused.
fn is_upload(op: &Op) -> bool {
    matches!(op, Op::Store { value: Value::Upload(_), .. })
}
