//! What a life sees of its arrays: who is in, and whether somebody went out whom nothing had struck.
//!
//! Place: a task beside each array, on its core; the era and the clients' scans look at what it saw.
//!
//! Invariants: a member counts as in only if a write that began after that was acknowledged, for then the
//! roster that says so is durable.
//!
//! Never: it changes anything, but for the orders of an administrator.

use super::Life;
use plimsoll_array::{Array, MemberState};
use plimsoll_kv::{Device, Durability, Op, Request};
use plimsoll_reactor::{Reactor, Work};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// So often it looks.
const LOOK_NS: u64 = 1_000_000;
/// What cleaning, checkpoints and the order of keys take of a device with the smallest segments: two
/// checkpoints of two segments, seven to open, clean and merge with, six of slack, five runs of keys.
const TAKEN_SEGMENTS: u64 = 22;
/// The first mends, the last finds nothing.
const SCRUBS: u64 = 2;
/// A member that nothing hinders is in again after this time.
const REBUILD_NS_MAX: u64 = 60_000_000_000;
/// After so long an administrator looks at what is out.
const ORDER_NS: u64 = 15_000_000_000;

/// What is known of the scrubs of a life.
#[derive(Default)]
pub(super) struct Scrubs {
    /// So many of each array are wanted.
    wanted: Cell<u64>,
    /// So many were done, by partition.
    done: RefCell<BTreeMap<u16, u64>>,
    /// The last has found nothing.
    left_nothing: Cell<bool>,
}

fn states(array: &Array) -> Vec<MemberState> {
    array.status().members.iter().map(|member| member.state).collect()
}

impl Life {
    /// Looks after an array for as long as the life lasts.
    pub(super) fn watch_array(self: &Rc<Self>, reactor: &Reactor, number: u16, array: &Rc<Array>) {
        self.arrays.borrow_mut().insert(number, array.clone());
        let (life, reactor, array) = (Rc::downgrade(self), reactor.clone(), array.clone());
        let core = reactor.clone();
        core.spawn(Work::Control, async move {
            let (mut seen, mut scrubs) = (Vec::new(), 0);
            loop {
                let now = states(&array);
                let Some(life) = life.upgrade() else { return };
                if !array.status().scrubbing {
                    life.scrubs.done.borrow_mut().insert(number, scrubs);
                    if scrubs < life.scrubs.wanted.get() {
                        scrubs += 1;
                        array.scrub();
                    }
                }
                life.bring_back_asked(&reactor, (number, &array)).await;
                if now != seen {
                    life.see_members(number, &now);
                    let sync = Request::new(Durability::Sync, Op::Sync);
                    let synced = array.clone().execute(sync).await.is_ok();
                    // What changed meanwhile is looked at again.
                    if synced && now == states(&array) {
                        life.confirm_members(number, &now);
                        seen = now;
                    }
                }
                drop(life);
                reactor.sleep_ns(LOOK_NS).await;
            }
        });
    }

    /// The members of all arrays, as they are now.
    pub(in crate::fuzz) fn members(&self) -> Vec<Vec<MemberState>> {
        self.arrays.borrow().values().map(|array| states(array)).collect()
    }

    /// Whoever is not in does not count as in any more; whoever is whole has to be in.
    fn see_members(&self, number: u16, now: &[MemberState]) {
        self.journal.note(|| format!("the members of partition {number}: {now:?}"));
        for (member, state) in now.iter().enumerate() {
            let disk = &self.disks[member];
            if *state == MemberState::In {
                continue;
            }
            self.members_in.borrow_mut().remove(&(number, member));
            if disk.is_whole.get() && !disk.may_fail.get() {
                let text = format!("partition {number}: {} is {state:?}, and nothing befell it", disk.path);
                self.journal.violate("members", text);
            }
        }
    }

    fn confirm_members(&self, number: u16, now: &[MemberState]) {
        let is_in = (0..now.len()).filter(|member| now[*member] == MemberState::In);
        self.members_in.borrow_mut().extend(is_in.map(|member| (number, member)));
    }

    /// True if a member is in at the arrays of all partitions.
    pub(in crate::fuzz) fn is_in(&self, member: usize) -> bool {
        let is_in = self.members_in.borrow();
        let arrays = self.arrays.borrow();
        let is_now = |array: &Array| array.status().members[member].state == MemberState::In;
        arrays.len() == usize::from(self.shape.partitions)
            && arrays.iter().all(|(number, array)| is_in.contains(&(*number, member)) && is_now(array))
    }

    /// True if what a disk holds of a partition is what it should hold.
    pub(in crate::fuzz) fn holds_its_share(&self, (number, member): (u16, usize)) -> bool {
        let arrays = self.arrays.borrow();
        arrays.get(&number).is_none_or(|array| array.status().members[member].state == MemberState::In)
    }

    /// True if half of what is left of each partition is free.
    pub(super) fn has_room(&self) -> bool {
        self.partitions.borrow().values().all(|partition| {
            let metrics = partition.metrics();
            let room_bytes = metrics.segments.saturating_sub(TAKEN_SEGMENTS) * self.shape.segment_bytes;
            metrics.live_bytes * 2 < room_bytes
        })
    }

    /// Has all arrays scrubbed: what rotted is mended by the first time, and the second finds nothing. Unless
    /// the first found no room for it (seed 592).
    pub(super) async fn scrub(&self, reactor: &Reactor) {
        let end_ns = reactor.now_ns() + REBUILD_NS_MAX;
        // One that is being filled, as on full devices nobody waits for it, is scrubbed when it is in (seed
        // 958).
        let all_in = (0..self.disks.len()).all(|member| self.is_in(member));
        let mut are_mended = false;
        for number in 1..=SCRUBS {
            are_mended = self.arrays.borrow().values().all(|array| array.status().unsettled == 0);
            self.scrubs.wanted.set(number);
            // One that an array has begun by itself is none of them (seed 21208).
            let lacks = |array: &u16| self.scrubs.done.borrow().get(array).is_none_or(|done| *done < number);
            while self.arrays.borrow().keys().any(lacks) {
                if reactor.now_ns() >= end_ns || self.journal.is_violated() {
                    return self.journal.violate("scrub", "it does not end".to_owned());
                }
                reactor.sleep_ns(LOOK_NS).await;
            }
        }
        let errors = self.arrays.borrow().values().map(|array| array.status().scrub_errors).sum::<u64>();
        if errors > 0 && all_in && are_mended && !self.disks.iter().any(|disk| disk.may_fail.get()) {
            self.journal.violate("scrub", format!("it left {errors} pieces that are not right"));
        }
        self.scrubs.left_nothing.set(errors == 0);
    }

    /// True if nothing that had rotted is left on members that are in.
    pub(in crate::fuzz) fn is_scrubbed(&self) -> bool {
        self.scrubs.left_nothing.get()
    }

    /// True if a member may fail that an array cannot do without: if it has, nobody can take its place.
    fn needed_may_fail(&self) -> bool {
        let arrays = self.arrays.borrow();
        let is_last_failing = |array: &Rc<Array>| {
            let states = states(array).into_iter().enumerate();
            let is_in: Vec<usize> =
                states.filter(|(_, state)| *state == MemberState::In).map(|(member, _)| member).collect();
            is_in.len() <= self.shape.data as usize
                && is_in.iter().any(|member| self.disks[*member].may_fail.get())
        };
        arrays.values().any(is_last_failing)
    }

    /// Waits until every member that nothing hinders is in again.
    pub(super) async fn wait_for_rebuild(&self, reactor: &Reactor) {
        let end_ns = reactor.now_ns() + REBUILD_NS_MAX;
        let is_hindered = |member: &usize| {
            let disk = &self.disks[*member];
            disk.may_fail.get() || disk.is_missing.get() || !self.has_room() || self.needed_may_fail()
        };
        let lacks = || (0..self.disks.len()).find(|member| !is_hindered(member) && !self.is_in(*member));
        let mut order_ns = reactor.now_ns() + ORDER_NS;
        while let Some(member) = lacks() {
            if reactor.now_ns() >= order_ns {
                // What an administrator does who sees that it is out: if it failed by itself while it was
                // rebuilt, over a record that had rotted, nobody begins again unasked (seed 9856).
                self.bring_back(member);
                order_ns += ORDER_NS;
            }
            if reactor.now_ns() >= end_ns || self.journal.is_violated() {
                let arrays = self.arrays.borrow();
                let status = arrays.values().map(|array| array.status().members[member].clone());
                let status: Vec<_> = status.map(|it| (it.state, it.reason)).collect();
                let text = format!("{} is not in again: {status:?}", self.disks[member].path);
                self.journal.violate("rebuild", text);
                return;
            }
            reactor.sleep_ns(LOOK_NS).await;
        }
    }
}
