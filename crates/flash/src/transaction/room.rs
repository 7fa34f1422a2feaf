//! Room for a transaction that holds everything.
//!
//! While everything is held nothing can be evicted: such a transaction sees no key go that it did not
//! delete. So a device that makes room makes it before. Place on the path: holding everything, before it is
//! granted.
//!
//! Invariants:
//! * who is granted everything finds the room that eviction keeps ahead of need, if there is anything to
//!   evict;
//! * while somebody waits for that room stores leave it alone, and all who wait share it;
//! * who holds everything may use what the others wait for.
//!
//! Never: it refuses to hold: a transaction that only reads needs no room. What is held again at a start is
//! not asked for here: nothing is evicted then.

use super::Holding;
use crate::format::UNIT_BYTES;
use crate::partition::Partition;
use crate::space::Beyond;
use plimsoll_kv::transaction::Held;
use plimsoll_kv::{Result, TransactionId};
use std::cell::Cell;

/// Transactions that wait for room before they hold everything.
#[derive(Default)]
pub(crate) struct RoomWaiters(Cell<u32>);

/// One of them; dropping it ends its wait.
struct Waiting<'a>(&'a RoomWaiters);

impl RoomWaiters {
    fn wait(&self) -> Waiting<'_> {
        self.0.set(self.0.get() + 1);
        Waiting(self)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.0.set(self.0.0.get() - 1);
    }
}

impl Partition {
    /// True if stores have to leave the room that is kept ahead of need to a transaction.
    pub(crate) fn room_is_awaited(&self) -> bool {
        self.transactions.room.0.get() > 0 && !self.locks.is_everything_kept()
    }

    /// Holds what a transaction asks for; everything only when there is room.
    pub(super) async fn hold_with_room(&self, held: &Held) -> Holding {
        let mut holding = self.hold_now(held).await;
        if !held.everything || !self.evicts() {
            return holding;
        }
        if self.has_room_ahead() {
            holding.room_units = self.ahead_units();
            return holding;
        }
        drop(holding);
        let _waiting = self.transactions.room.wait();
        loop {
            let made = self.wait_while(|partition| !partition.has_room_ahead()).await;
            // Another one holds everything: there will be something to evict.
            let may_hope = self.locks.is_everything_kept();
            let mut holding = self.hold_now(held).await;
            if self.has_room_ahead() {
                holding.room_units = self.ahead_units();
                return holding;
            }
            if made.is_err() && !may_hope {
                return holding;
            }
        }
    }

    /// Lets writes in. What was empty when everything was held is theirs, though a merge of keys needs more
    /// of the device by now (seed 111): nothing could be evicted for it.
    pub(super) async fn admit_writes(&self, id: TransactionId, bytes: u64) -> Result<()> {
        let room_units = self.transactions.open.borrow().get(&id).map_or(0, |holding| holding.room_units);
        if bytes / UNIT_BYTES > room_units {
            return self.admit(bytes, Beyond::NOTHING).await;
        }
        self.admit_small().await?;
        self.wait_to_store().await
    }
}
