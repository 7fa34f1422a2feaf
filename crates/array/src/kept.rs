//! Kept versions: what a store of shards replaced stays on the members until the new one is whole.
//!
//! Role: shards of one version are of no use without enough others, so a half-made overwrite must leave the
//! old ones. Members keep them (a store that retains) and give them up here, in the background, when every
//! member has the new ones. Place on the path: behind the acknowledgement.
//!
//! Invariants:
//! * the journal names the key until nothing of it is kept: after a crash what is kept is put back, or given
//!   up;
//! * what is kept is given up by who holds the key, or replaced by the next store; who gives it up waits for
//!   nobody who wants everything, for they may wait for that.

use crate::array::{Array, Manner, Place};
use crate::journal::Slot;
use crate::placement;
use futures_util::future::join_all;
use plimsoll_kv::{ContainerId, Op};
use plimsoll_reactor::Work;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Keys whose kept versions are given up at a time.
const TOGETHER: usize = 16;

/// Keys of which something is kept, and what names them.
#[derive(Default)]
pub(crate) struct Kept {
    keys: RefCell<BTreeMap<(ContainerId, Vec<u8>), Slot>>,
    runs: Cell<bool>,
}

impl Array {
    /// The version before the one just written is kept: it goes in the background.
    pub(crate) fn release_later(self: &Rc<Self>, place: &Place, slot: Slot) {
        // The slot of the version before goes: that was replaced by this store.
        self.kept.keys.borrow_mut().insert((place.container, place.key.clone()), slot);
        if self.kept.runs.replace(true) {
            return;
        }
        let array = self.clone();
        self.spawn(Work::Background, async move {
            loop {
                let some: Vec<_> = array.kept.keys.borrow().keys().take(TOGETHER).cloned().collect();
                if some.is_empty() {
                    break;
                }
                join_all(some.iter().map(|(container, key)| array.release_kept(*container, key))).await;
            }
            array.kept.runs.set(false);
        });
    }

    /// What names a held key as half written: that which does so already, because something of the key is kept,
    /// or else the next that is free. Who holds a key waits for nobody who waits for it. True if it was kept.
    pub(crate) async fn slot_for(&self, place: &Place) -> (Slot, bool) {
        let kept = self.kept.keys.borrow_mut().remove(&(place.container, place.key.clone()));
        match kept {
            Some(slot) => (slot, true),
            None => (self.journal.slot().await, false),
        }
    }

    async fn release_kept(self: &Rc<Self>, container: ContainerId, key: &[u8]) {
        let id = (container, key.to_vec());
        let Ok(place) = self.place(container, key) else { return };
        // Writers that came before somebody who wants everything may wait for this slot.
        let _guard = self.locks.lock_beside(place.id.0, place.id.1).await;
        let Some(_slot) = self.kept.keys.borrow_mut().remove(&id) else { return };
        self.release_at_members(&place).await;
    }

    /// Members give up what they keep of a held key.
    pub(crate) async fn release_at_members(self: &Rc<Self>, place: &Place) {
        let each = (0..self.roles).filter_map(|role| {
            let device = self.writable(self.member_of(place, role))?;
            let (container, key) = (placement::container(place.container, role), place.key.clone());
            let request = Manner::background().request(Op::Release { container, key });
            // Where nothing is kept there is nothing to give up; who fails is found out by the next write.
            Some(async move { device.execute(request).await.is_ok() })
        });
        join_all(each.collect::<Vec<_>>()).await;
    }
}
