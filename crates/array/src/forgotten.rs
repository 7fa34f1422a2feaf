//! Forgotten: what is to be packed, and does not wait for that.
//!
//! Role: no more keys are known to wait than memory is given for, and none when the server starts; they are
//! found by walking over all. Place on the path: behind packing, when all that waited is packed, when an
//! array is opened whose members say that some waited, and at the end of a scrub.
//!
//! Invariants:
//! * what was forgotten is looked for again until all devices have told it, and each time that something was
//!   packed since;
//! * keys that find no company are found again by each walk: so there is one in a minute at most.
//!
//! Never: it packs.

use crate::array::Array;
use crate::member::gives_nothing;
use crate::open::background;
use crate::pack::{HINDERED_NS, WAITING_MAX};
use crate::placement::{ARRAY_CONTAINERS, ROSTER};
use plimsoll_kv::{Condition, ContainerId, Op, Result};
use plimsoll_reactor::Work;
use std::cell::Cell;
use std::rc::Rc;

/// How long a walk waits at a time while as many wait as may, and at most while none of them is packed.
const FULL_NS: u64 = 10_000_000;
const STILL_NS_MAX: u64 = 1_000_000_000;
/// From the end of a walk to the next one.
const BETWEEN_NS: u64 = 60_000_000_000;

/// Whether there is something, and what is done about it.
#[derive(Default)]
pub(crate) struct Forgotten {
    is_any: Cell<bool>,
    /// Somebody is about to walk, or does.
    is_due: Cell<bool>,
    walks: Cell<bool>,
    /// Sets that had been packed when the last walk began.
    sets: Cell<Option<u64>>,
    next_ns: Cell<u64>,
    /// Members say that keys wait.
    is_said: Cell<bool>,
}

impl Forgotten {
    /// A key is to be packed for which there is no room among those that wait.
    pub(crate) fn note(&self) {
        self.is_any.set(true);
    }

    /// Not all have told what they have, whatever is packed meanwhile.
    fn ask_again(&self) {
        self.is_any.set(true);
        self.sets.set(None);
    }

    pub(crate) fn is_looked_for(&self) -> bool {
        self.walks.get()
    }
}

impl Array {
    fn unpacked_key(&self) -> Vec<u8> {
        format!("{}unpacked", self.tag).into_bytes()
    }

    /// When the server ended keys waited, if a member says so; what fails there shows itself elsewhere.
    pub(crate) async fn recall_unpacked(self: &Rc<Self>) -> Result<()> {
        for device in (0..self.count()).filter_map(|member| self.readable(member)) {
            match background(&device, Op::Exist { container: ROSTER, key: self.unpacked_key() }).await {
                Ok(_) => {
                    self.packer.forgotten.is_said.set(true);
                    self.packer.forgotten.note();
                    self.pack_soon();
                    return Ok(());
                }
                Err(error) if gives_nothing(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Has members say whether keys wait, for whoever opens the array next; false if they say so already.
    /// Where that cannot be written the next start knows of none, and a scrub finds them.
    pub(crate) async fn say_unpacked(self: &Rc<Self>, are_any: bool) -> Result<bool> {
        let forgotten = &self.packer.forgotten;
        let is_any = are_any || forgotten.is_any.get() || forgotten.is_due.get();
        if forgotten.is_said.replace(is_any) == is_any {
            return Ok(false);
        }
        let (container, key) = (ROSTER, self.unpacked_key());
        let op = match is_any {
            true => Op::store(container, key, Vec::new()),
            false => Op::Delete { container, key, condition: Condition::None },
        };
        self.kept_by_all(&op).await.map(|()| true)
    }

    /// Looks for what was forgotten, if there is anything and it may have company by now.
    pub(crate) fn look_for_forgotten(self: &Rc<Self>) {
        let (forgotten, sets) = (&self.packer.forgotten, Some(self.packer.room.sets()));
        if !forgotten.is_any.get() || forgotten.sets.get() == sets || forgotten.is_due.replace(true) {
            return;
        }
        let array = self.clone();
        self.spawn(Work::Background, async move {
            let forgotten = &array.packer.forgotten;
            array.rest_until(forgotten.next_ns.get()).await;
            forgotten.is_any.set(false);
            forgotten.sets.set(Some(array.packer.room.sets()));
            forgotten.walks.set(true);
            let wait_ns = match array.pack_all().await {
                Ok(()) if array.all_in() => BETWEEN_NS,
                Ok(()) => {
                    forgotten.ask_again();
                    HINDERED_NS
                }
                Err(error) => {
                    tracing::warn!(partition = array.partition, %error, "values are packed later");
                    forgotten.ask_again();
                    BETWEEN_NS
                }
            };
            forgotten.walks.set(false);
            forgotten.next_ns.set(array.reactor.now_ns() + wait_ns);
            forgotten.is_due.set(false);
            array.packer.room.look();
            if (forgotten.is_any.get() || forgotten.is_said.get()) && !array.closing.get() {
                array.pack_soon();
            }
        });
    }

    /// Finds what is not packed and may be: from all primaries in turns, as values of different ones are
    /// packed together.
    pub(crate) async fn pack_all(self: &Rc<Self>) -> Result<()> {
        for container in (0..ARRAY_CONTAINERS).map(ContainerId).filter(|_| self.forms.has_packed()) {
            let mut primaries: Vec<(usize, Option<Vec<u8>>)> =
                (0..self.count()).map(|primary| (primary, None)).collect();
            while !primaries.is_empty() && !self.closing.get() && self.all_in() {
                let mut rest = Vec::new();
                for (primary, mut after) in primaries {
                    let Some(keys) = self.next_keys(primary, container, &mut after).await? else { continue };
                    for key in keys {
                        self.pack_found(&self.place(container, &key)?).await?;
                    }
                    rest.push((primary, after));
                }
                primaries = rest;
                self.wait_for_packing().await;
            }
        }
        Ok(())
    }

    /// Waits while as many keys wait to be packed as may, and some of them are.
    async fn wait_for_packing(&self) {
        let (mut sets, mut until_ns) = (self.packer.room.sets(), self.reactor.now_ns() + STILL_NS_MAX);
        while self.packer.count() > WAITING_MAX / 2 && self.packing_goes_on() {
            self.rest_until(self.reactor.now_ns() + FULL_NS).await;
            if self.packer.room.sets() > sets {
                (sets, until_ns) = (self.packer.room.sets(), self.reactor.now_ns() + STILL_NS_MAX);
            } else if self.reactor.now_ns() >= until_ns {
                return;
            }
        }
    }
}
