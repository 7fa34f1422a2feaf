//! A member that failed answers again, and is opened anew while its array is served.
//!
//! Place: an era says when one answers again, and the administrator who waits for members that are out; the
//! task that watches an array does it, on its core.
//!
//! Invariants: as `plimsoll serve` does it: nothing more goes to what was open before its disk is opened
//! anew.

use super::{Life, Phase, Refusal};
use futures_util::future::select;
use plimsoll_array::{Array, Joining, MemberState};
use plimsoll_reactor::Reactor;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::pin::pin;
use std::rc::Rc;

/// How long what was open may take to end.
const CLOSE_NS_MAX: u64 = 5_000_000_000;
/// Between two looks whether a disk has answered everything.
const LOOK_NS: u64 = 1_000;

/// What is known of members that come back in a life.
#[derive(Default)]
pub(super) struct Backs {
    /// Those that are to, by partition and disk.
    asked: RefCell<BTreeSet<(u16, usize)>>,
    /// So many are on their way.
    under_way: Cell<usize>,
    /// So many have come back since somebody asked.
    reopened: Cell<u64>,
    /// Records that could not be read in partitions that were opened anew since.
    unreadable: Cell<u64>,
}

impl Life {
    /// Has a member brought back wherever it is out.
    pub(in crate::fuzz) fn bring_back(&self, member: usize) {
        let arrays = self.arrays.borrow();
        self.backs.asked.borrow_mut().extend(arrays.keys().map(|number| (*number, member)));
    }

    /// Brings back the members of an array that are to be and are out.
    pub(super) async fn bring_back_asked(&self, reactor: &Reactor, (number, array): (u16, &Rc<Array>)) {
        for member in 0..self.disks.len() {
            let is_asked = self.backs.asked.borrow_mut().remove(&(number, member));
            let is_out = array.status().members[member].state == MemberState::Out;
            if !is_asked || !is_out || self.phase.get() >= Phase::Closing {
                continue;
            }
            self.backs.under_way.set(self.backs.under_way.get() + 1);
            array.let_go(member);
            self.end(reactor, (number, member)).await;
            match self.open_anew(reactor, (number, member), array).await {
                Ok(true) => {
                    self.journal.note(|| format!("disk {member} is opened anew for partition {number}"));
                    self.backs.reopened.set(self.backs.reopened.get() + 1);
                    array.rebuild(member);
                }
                Ok(false) => self.journal.note(|| format!("disk {member} cannot be opened anew")),
                Err(_) if self.disks[member].may_fail.get() => {}
                Err(refusal) => {
                    let text = format!("partition {number} of disk {member}: {refusal:?}");
                    self.journal.violate("opening anew", text);
                }
            }
            self.backs.under_way.set(self.backs.under_way.get() - 1);
        }
    }

    /// How many have come back since this was asked last.
    pub(in crate::fuzz) fn take_reopened(&self) -> u64 {
        self.backs.reopened.take()
    }

    /// Waits until nobody is on the way back: a server does one after the other.
    pub(super) async fn until_none_comes_back(&self, reactor: &Reactor) {
        while self.backs.under_way.get() > 0 {
            reactor.sleep_ns(LOOK_NS).await;
        }
    }

    /// Keys so far that a scan may have missed: records that could not be read.
    pub(in crate::fuzz) fn unreadable(&self) -> u64 {
        let partitions = self.partitions.borrow();
        let now: u64 = partitions.values().map(|partition| partition.metrics().unreadable).sum();
        self.backs.unreadable.get() + now
    }

    async fn end(&self, reactor: &Reactor, of: (u16, usize)) {
        let partition = self.partitions.borrow_mut().remove(&of);
        if let Some(partition) = partition {
            // What it cannot write any more it comes back without.
            let _ = select(pin!(partition.close()), pin!(reactor.sleep_ns(CLOSE_NS_MAX))).await;
            self.backs.unreadable.set(self.backs.unreadable.get() + partition.metrics().unreadable);
        }
        let file = self.files.borrow_mut().remove(&of);
        if let Some(file) = file {
            file.retire();
            while file.in_flight() > 0 {
                reactor.sleep_ns(LOOK_NS).await;
            }
        }
    }

    /// False if the disk is not there, or fails.
    async fn open_anew(
        &self,
        reactor: &Reactor,
        (number, member): (u16, usize),
        array: &Array,
    ) -> Result<bool, Refusal> {
        let Some(superblock) = self.look_at_disk(reactor, member).await? else { return Ok(false) };
        let opened = self.open_partition(reactor, &superblock, (number, member)).await?;
        let Some(partition) = opened else { return Ok(false) };
        let name = self.disks[member].path.clone();
        let joining = Joining { name, id: superblock.device_id, device: Ok(partition) };
        let brought = array.bring_back(member, joining).await;
        brought.map(|()| true).map_err(|error| Refusal::Wrong(error.to_string()))
    }
}
