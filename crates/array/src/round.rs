//! Rounds: stores of several keys that are packed as they come.
//!
//! Role: lets a store wait for others of different primaries, a moment; then each member gets one batch of
//! what all of them bring it: values, stubs, parities, ghosts, and the journal's records. Place on the path:
//! the write of a value that is to be packed.
//! Source: KVMD (FAST'20), section 5.4: its adaptive wait; requests, `docs/rfcs/2026-11-23-packing.md`.
//!
//! Invariants:
//! * each writer holds its key, and a slot of the journal that names it, until the whole round is durable: a
//!   crash leaves none of its keys unnamed;
//! * nobody is told before every member of the set that is in has its batch;
//! * nobody waits for others that are not to be expected, nor while a member is out: such a value stands as
//!   copies first.

use crate::array::{Array, Place};
use crate::header::Header;
use crate::journal::Slot;
use crate::manner::Manner;
use crate::pack::{Group, Joining, KEY_BYTES_MAX, values_max};
use crate::placement;
use crate::read::WRONG_OUTPUT;
use crate::send::Sent;
use crate::set::{Set, set_key};
use crate::write::{is_full, retaining};
use bytes::Bytes;
use futures_util::future::{Either, select};
use plimsoll_kv::{Durability, Error, Expiry, Form, Item, Op, Output, Version};
use plimsoll_reactor::sync::WaitList;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::pin::pin;
use std::rc::Rc;

/// A store waits so long for others at least, and at most, if they are to be expected by then: a quarter of
/// what stores take.
const WAIT_NS_MIN: u64 = 500_000;
const WAIT_NS_MAX: u64 = 100_000_000;
/// Stores further apart than this are as good as none.
const DISTANCE_NS_MAX: u64 = 50_000_000;

/// Rounds that wait for more, and how often stores come.
#[derive(Default)]
pub(crate) struct Rounds {
    open: RefCell<Vec<Rc<Round>>>,
    coming: RefCell<BTreeMap<Group, Coming>>,
    /// Mean time that stores take.
    took_ns: Cell<u64>,
}

/// How often stores of a group come, which could be packed together.
struct Coming {
    came_ns: u64,
    /// Mean time between them.
    distance_ns: u64,
}

struct Round {
    group: Group,
    waiting: RefCell<Vec<Waiting>>,
    has_left: Cell<bool>,
    ended: WaitList,
}

/// What a store brings beside its value.
pub(crate) struct Bringing {
    /// What keeps the value that it replaces for a set.
    pub(crate) ghost: Option<Op>,
    /// What names its key.
    pub(crate) slot: Slot,
    /// What is replaced is to be told.
    pub(crate) tells: bool,
}

/// A store that waits.
struct Waiting {
    joining: Joining,
    bringing: Bringing,
    manner: Manner,
    outcome: Rc<RefCell<Option<Outcome>>>,
}

/// What became of a store that waited.
pub(crate) enum Outcome {
    /// It was packed: the version by which it is known, whether it replaced something, and what stood where
    /// its stub is now, if that was to be told; what names it.
    Packed { version: Version, has_replaced: bool, before: Vec<Item>, slot: Slot },
    /// Too few came, it cannot be packed, or a device was full for the others: it goes alone.
    Alone(Bringing),
    /// It was not stored, or may not have been.
    Failed(Error),
}

/// Where the output of a role's store stands: member, and place in its batch.
type OutputAt = (usize, usize);

impl Rounds {
    /// Notes that a store came.
    fn note(&self, group: Group, now_ns: u64) {
        let mut coming = self.coming.borrow_mut();
        let first = Coming { came_ns: 0, distance_ns: DISTANCE_NS_MAX };
        let coming = coming.entry(group).or_insert(first);
        let gap_ns = (now_ns - coming.came_ns).min(DISTANCE_NS_MAX);
        *coming = Coming { came_ns: now_ns, distance_ns: (7 * coming.distance_ns + gap_ns) / 8 };
    }

    fn distance_ns(&self, group: Group) -> u64 {
        self.coming.borrow().get(&group).map_or(DISTANCE_NS_MAX, |coming| coming.distance_ns)
    }

    /// Notes how long a store took, which did not wait for others.
    pub(crate) fn note_took(&self, took_ns: u64) {
        self.took_ns.set((7 * self.took_ns.get() + took_ns) / 8);
    }

    fn wait_ns(&self) -> u64 {
        (self.took_ns.get() / 4).clamp(WAIT_NS_MIN, WAIT_NS_MAX)
    }

    /// A round that a store may join; a new one if others are to be expected.
    fn round_for(&self, place: &Place, group: Group) -> Option<Rc<Round>> {
        let fits = |round: &&Rc<Round>| {
            let waiting = round.waiting.borrow();
            round.group == group && waiting.iter().all(|other| other.joining.place.primary != place.primary)
        };
        let mut open = self.open.borrow_mut();
        if let Some(round) = open.iter().find(fits) {
            return Some(round.clone());
        }
        let expected_ns = self.distance_ns(group) * (values_max(group.form) as u64 - 1);
        if expected_ns > self.wait_ns() {
            return None;
        }
        let round = Rc::new(Round {
            group,
            waiting: RefCell::default(),
            has_left: Cell::new(false),
            ended: WaitList::default(),
        });
        open.push(round.clone());
        Some(round)
    }

    /// A round leaves; false if it has left.
    fn leaves(&self, round: &Rc<Round>) -> bool {
        self.open.borrow_mut().retain(|other| !Rc::ptr_eq(other, round));
        !round.has_left.replace(true)
    }
}

impl Array {
    /// Stores the value of a held key together with others, if they come; what names the key is handed over.
    pub(crate) async fn store_in_round(
        self: &Rc<Self>,
        place: &Place,
        (form, value): (Form, &Bytes),
        bringing: Bringing,
        manner: &Manner,
    ) -> Outcome {
        let now_ns = self.reactor.now_ns();
        let group = Group::of(place.container, form, value.len() as u64);
        self.packer.rounds.note(group, now_ns);
        let may_be_packed = values_max(form) > 1 && self.all_in() && place.key.len() <= KEY_BYTES_MAX;
        let round = if may_be_packed { self.packer.rounds.round_for(place, group) } else { None };
        let Some(round) = round else { return Outcome::Alone(bringing) };
        let (version, value_bytes) = (self.next_version(), value.len() as u64);
        let header = Header { form, role: 0, version, value_bytes, is_stub: false };
        let joining = Joining { place: place.clone(), header, bytes: value.clone() };
        let outcome = Rc::new(RefCell::new(None));
        let waiting = Waiting { joining, bringing, manner: manner.clone(), outcome: outcome.clone() };
        round.waiting.borrow_mut().push(waiting);
        if round.waiting.borrow().len() == values_max(form) && self.packer.rounds.leaves(&round) {
            self.depart(&round).await;
        }
        let ended = pin!(round.ended.wait_for(|| outcome.borrow_mut().take()));
        match select(ended, pin!(self.reactor.sleep_until(now_ns + self.packer.rounds.wait_ns()))).await {
            Either::Left((outcome, _)) => outcome,
            Either::Right((_, ended)) => {
                if self.packer.rounds.leaves(&round) {
                    self.depart(&round).await;
                }
                ended.await
            }
        }
    }

    /// Does what a round has come to, and tells those who wait.
    async fn depart(self: &Rc<Self>, round: &Rc<Round>) {
        let waiting = round.waiting.take();
        let outcomes: Vec<_> = waiting.iter().map(|waiting| waiting.outcome.clone()).collect();
        for (outcome, became) in
            outcomes.into_iter().zip(self.store_together(round.group.form, waiting).await)
        {
            *outcome.borrow_mut() = Some(became);
        }
        round.ended.wake_all();
    }

    async fn store_together(self: &Rc<Self>, form: Form, waiting: Vec<Waiting>) -> Vec<Outcome> {
        // Fewer cost as many requests as copies of each do.
        let is_worth_it = 2 * waiting.len() > values_max(form) && self.all_in();
        let manners = waiting.iter().map(|waiting| &waiting.manner);
        let manner = manners.max_by_key(|manner| manner.durability() == Durability::Sync).cloned();
        let (mut values, mut others) = (Vec::new(), Vec::new());
        for Waiting { joining, bringing, .. } in waiting {
            values.push(joining);
            others.push(bringing);
        }
        let set = if is_worth_it { self.set_of(form, &values) } else { None };
        let (Some(set), Some(manner)) = (set, manner) else {
            return others.into_iter().map(Outcome::Alone).collect();
        };
        let (below, at) = self.batches(&set, &values, &others);
        let asked = below.len();
        let batches = below.into_iter().map(|(member, ops)| (member, manner.request(Op::Batch(ops))));
        let begun_ns = self.reactor.now_ns();
        let sent = self.send(batches.collect()).await;
        self.packer.rounds.note_took(self.reactor.now_ns() - begun_ns);
        match sent {
            Ok(Sent { done, refused: None })
                if asked - done.len() <= set.parities() && self.may_change(values[0].place.primary) =>
            {
                at.iter().zip(others).map(|(at, other)| packed(&done, at, other.slot)).collect()
            }
            Ok(Sent { done, refused: Some(error) }) => {
                let taken: Vec<usize> = done.iter().map(|(member, _)| *member).collect();
                let mut outcomes = Vec::new();
                for (Joining { place, header, .. }, other) in values.iter().zip(others) {
                    // Others took what is not of this key.
                    let own = (0..header.form.roles()).map(|role| self.member_of(place, role));
                    let own: Vec<usize> = own.filter(|member| taken.contains(member)).collect();
                    outcomes.push(match self.undo(place, &own).await {
                        // Who is full is none of those, perhaps, that hold this one.
                        Ok(_) if is_full(&error) => Outcome::Alone(other),
                        Ok(_) => Outcome::Failed(error.clone()),
                        Err(left) => {
                            self.leave_cut_short([(place, other.slot)], set.name).await;
                            Outcome::Failed(self.not_undone(left))
                        }
                    });
                }
                self.delete_set(values[0].place.container, &set).await;
                outcomes
            }
            failed => {
                let slots = others.into_iter().map(|other| other.slot);
                self.leave_cut_short(values.iter().map(|value| &value.place).zip(slots), set.name).await;
                let error = |value: &Joining| match &failed {
                    Err(error) => error.clone(),
                    Ok(_) => self.nowhere(&value.place, set.data.into()),
                };
                values.iter().map(|value| Outcome::Failed(error(value))).collect()
            }
        }
    }

    /// What each member is asked for, at once; and where the outputs stand of what each value's roles take.
    fn batches(
        &self,
        set: &Set,
        values: &[Joining],
        others: &[Bringing],
    ) -> (BTreeMap<usize, Vec<Op>>, Vec<Vec<OutputAt>>) {
        let mut below: BTreeMap<usize, Vec<Op>> = BTreeMap::new();
        let mut at = Vec::new();
        for (Joining { place, header, bytes, .. }, Bringing { ghost, slot, tells }) in
            values.iter().zip(others)
        {
            let mut each = Vec::new();
            for role in 0..header.form.roles() {
                let of_role = Header { role: role as u8, is_stub: role > 0, ..*header };
                let value = if role > 0 { set.stub().encode().into() } else { bytes.clone() };
                let store = self.store_op(place, role, of_role.before(value).into(), Expiry::Never);
                let ops = below.entry(self.member_of(place, role)).or_default();
                each.push((self.member_of(place, role), ops.len()));
                ops.push(retaining(store, *tells));
                ops.push(slot.entry(place.container, &place.key));
                if role == 0 {
                    ops.extend(ghost.clone());
                }
            }
            at.push(each);
        }
        let data: Vec<&[u8]> = values.iter().map(|value| &value.bytes[..]).collect();
        let container = placement::sets(values[0].place.container);
        for (holder, record) in set.holders.iter().zip(self.records(set, &data)) {
            let store = Op::store(container, set_key(&self.tag, set.name), record);
            below.entry((*holder).into()).or_default().push(store);
        }
        (below, at)
    }
}

/// What the first member that took a value, or its stub, says of it.
fn told<'a>(done: &'a [(usize, Output)], at: &[OutputAt]) -> Option<&'a Output> {
    at.iter().find_map(|(member, number)| match done.iter().find(|(of, _)| of == member) {
        Some((_, Output::Batch(outputs))) => outputs.get(*number),
        _ => None,
    })
}

fn packed(done: &[(usize, Output)], at: &[OutputAt], slot: Slot) -> Outcome {
    let before = at[1..].iter().filter_map(|at| match told(done, std::slice::from_ref(at)) {
        Some(Output::Stored { previous, .. }) => previous.clone(),
        _ => None,
    });
    let before = before.collect();
    match told(done, at) {
        Some(Output::Stored { version, previous }) => {
            Outcome::Packed { version: *version, has_replaced: previous.is_some(), before, slot }
        }
        _ => Outcome::Failed(WRONG_OUTPUT),
    }
}
