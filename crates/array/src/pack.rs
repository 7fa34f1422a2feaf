//! Packing: values that stand as copies come to share parities.
//!
//! Role: takes keys that wait, of different primaries, computes the parities of their values, and puts stubs
//! in the place of copies. Place on the path: behind the acknowledgement, when enough keys wait or nobody
//! writes.
//! Source: KVMD (FAST'20), section 5.4.
//!
//! Invariants:
//! * a set's records are durable on all its members before the first stub takes the place of a copy, so that
//!   no instant has less than the copies, or the set: stubs and copies of one version may stand side by side;
//! * all keys of a set are held meanwhile, together, and the journal names them;
//! * nothing is packed while a member is out, or comes in;
//! * the primaries of its values and the members of its parities are different devices.
//!
//! Never: what may expire. Members let that go by themselves, and a set must not lose a shard by it.

use crate::array::{Array, Place};
use crate::forgotten::Forgotten;
use crate::gather::Piece;
use crate::header::Header;
use crate::journal::Slot;
use crate::leave::Membership;
use crate::loose::LooseSets;
use crate::manner::Manner;
use crate::member::gives_nothing;
use crate::placement;
use crate::room::RoomByPacking;
use crate::roster::MemberState;
use crate::round::Rounds;
use crate::set::{Packed, Set, Stub, set_key};
use crate::write::is_full;
use bytes::Bytes;
use plimsoll_kv::{ContainerId, Error, Expiry, Form, Op, Request, Result, Room, Version};
use plimsoll_reactor::Work;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// Keys that wait to be packed at most: others are looked for when those have been (`forgotten`).
pub(crate) const WAITING_MAX: usize = 16_384;
/// When nobody has written for so long, sets are made of less than they could have, and are regrouped.
const QUIET_NS: u64 = 50_000_000;
/// How long packing rests after something hindered it, at first and at most.
pub(crate) const HINDERED_NS: u64 = 1_000_000_000;
const HINDERED_NS_MAX: u64 = 64 * HINDERED_NS;
/// So many that nobody needs go together, whoever writes.
const DEAD_MIN: usize = 64;
/// Longer keys are not packed: batches that name several have to fit a frame.
pub(crate) const KEY_BYTES_MAX: usize = 512;
/// Values of a set that is worth its parities.
const VALUES_MIN: usize = 2;

/// Lengths up to this one are alike: names take more than parities there.
const ALIKE_BYTES_MIN: u64 = 1023;

/// Values that may share parities: what they are to be made into, and about how long they are. Parities are
/// as long as the longest of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Group {
    pub(crate) container: ContainerId,
    pub(crate) form: Form,
    /// The longest of one is four times as long as the shortest at most, but for the shortest of all.
    class: u32,
}

impl Group {
    pub(crate) fn of(container: ContainerId, form: Form, value_bytes: u64) -> Group {
        Group { container, form, class: value_bytes.max(ALIKE_BYTES_MIN).ilog2() / 2 }
    }
}

/// Keys of a group and a primary that wait to be packed.
type Waiting = BTreeMap<(Group, usize), BTreeSet<Vec<u8>>>;

/// What waits to be packed, and what has to be regrouped.
#[derive(Default)]
pub(crate) struct Packer {
    waiting: RefCell<Waiting>,
    /// Sets that have to be judged.
    pub(crate) loose: LooseSets,
    /// Stores that wait to be packed as they come.
    pub(crate) rounds: Rounds,
    pub(crate) room: RoomByPacking,
    runs: Cell<bool>,
    pub(crate) forgotten: Forgotten,
    /// When something was written last.
    written_ns: Cell<u64>,
}

/// A value that is about to be packed.
pub(crate) struct Joining {
    pub(crate) place: Place,
    pub(crate) header: Header,
    pub(crate) bytes: Bytes,
}

impl Packer {
    /// Forgets what waits.
    pub(crate) fn forget(&self, container: ContainerId) {
        self.waiting.borrow_mut().retain(|(group, _), _| group.container != container);
        self.loose.forget(container);
    }

    fn wait_again(&self, group: Group, key: &[u8], members: usize) {
        let primary = placement::primary(key, members);
        self.waiting.borrow_mut().entry((group, primary)).or_default().insert(key.to_vec());
    }

    /// Keys that wait.
    pub(crate) fn count(&self) -> usize {
        self.waiting.borrow().values().map(BTreeSet::len).sum()
    }

    /// Whether packing is under way, or what is to be packed is looked for.
    pub(crate) fn is_at_work(&self) -> bool {
        self.runs.get() || self.forgotten.is_looked_for()
    }

    /// Keys of different primaries that are packed together: as many as a set has if there are, else at least
    /// so many.
    fn take(&self, least: impl Fn(Form) -> usize) -> Option<(Group, Vec<Vec<u8>>)> {
        let mut waiting = self.waiting.borrow_mut();
        waiting.retain(|_, keys| !keys.is_empty());
        let mut longest: BTreeMap<Group, Vec<(usize, usize)>> = BTreeMap::new();
        for ((group, primary), keys) in waiting.iter() {
            longest.entry(*group).or_default().push((keys.len(), *primary));
        }
        let (group, mut primaries) =
            longest.into_iter().find(|(group, primaries)| primaries.len() >= least(group.form))?;
        primaries.sort_unstable_by(|a, b| b.cmp(a));
        primaries.truncate(values_max(group.form));
        let next = |(_, primary)| waiting.get_mut(&(group, primary))?.pop_first();
        Some((group, primaries.into_iter().filter_map(next).collect()))
    }
}

/// Values of a set at most.
pub(crate) fn values_max(form: Form) -> usize {
    match form {
        Form::Packed { data, .. } => data.into(),
        Form::Copies(_) | Form::Shards { .. } => 0,
    }
}

fn in_room(op: Op, room: Room) -> Request {
    Request { room, ..Manner::background().request(op) }
}

/// Whether a set takes less room than the copies that go for it.
fn saves(set: &Set) -> bool {
    let lengths = || set.values.iter().map(|value| value.value_bytes as usize);
    let records = set.holders.len() * set.bytes() + set.parities() * lengths().max().unwrap_or(0);
    let stubs = set.parities() * set.values.len() * set.stub().encode().len();
    records + stubs < set.parities() * lengths().sum::<usize>()
}

impl Array {
    /// A held key has a value that may be packed.
    pub(crate) fn pack_later(self: &Rc<Self>, place: &Place, (form, value_bytes): (Form, u64)) {
        self.packer.written_ns.set(self.reactor.now_ns());
        if form.is_packed() && !self.wait_to_be_packed(place, Group::of(place.container, form, value_bytes)) {
            self.packer.forgotten.note();
        }
        self.pack_soon();
    }

    /// False if as many wait as may.
    fn wait_to_be_packed(&self, place: &Place, group: Group) -> bool {
        let count = self.packer.count();
        let mut waiting = self.packer.waiting.borrow_mut();
        let keys = waiting.entry((group, place.primary)).or_default();
        // Those of one primary wait for others, and leave them room.
        let has_room = count < WAITING_MAX && keys.len() < WAITING_MAX / self.count();
        keys.contains(&place.key) || has_room && keys.insert(place.key.clone())
    }

    /// Something was written: what can wait does.
    pub(crate) fn note_packed(&self) {
        self.packer.written_ns.set(self.reactor.now_ns());
    }

    /// A set has lost a value, or lacks one that cannot be computed: it is looked through when nobody writes.
    pub(crate) fn regroup_later(self: &Rc<Self>, container: ContainerId, stub: &Stub) {
        self.packer.written_ns.set(self.reactor.now_ns());
        self.packer.loose.add(container, stub);
        self.pack_soon();
    }

    /// A value of a set has gone: its member keeps it as a ghost.
    pub(crate) fn lost_value(self: &Rc<Self>, place: &Place, version: Version, stub: &Stub) {
        self.packer.loose.add_if_few(place.container, stub, Some((place.primary, version)));
        self.note_packed();
        self.pack_soon();
    }

    /// A key that a scrub found may be packed, though it is not.
    pub(crate) async fn pack_found(self: &Rc<Self>, place: &Place) -> Result<()> {
        if self.forms.has_packed()
            && self.membership(place, &Manner::background()).await? == Membership::Alone
            && let Some(device) = self.readable(place.primary)
            && let Ok(piece) = self.read_piece(&device, place, 0, Some((0, 0)), &Manner::background()).await
            && let Piece { item, header: Some(header), .. } = piece
            && header.form.is_packed()
            && item.upload.is_none()
            && item.expiry_ms.is_none()
            && !self.is_in_doubt(header.version)
        {
            self.pack_later(place, (header.form, header.value_bytes));
        }
        Ok(())
    }

    /// Begins to pack what waits, and to regroup what is loose, unless that is under way.
    pub(crate) fn pack_soon(self: &Rc<Self>) {
        if self.packer.runs.replace(true) {
            return;
        }
        let array = self.clone();
        self.spawn(Work::Background, async move {
            array.pack_waiting().await;
            array.packer.runs.set(false);
            array.packer.room.look();
        });
    }

    async fn pack_waiting(self: &Rc<Self>) {
        let (mut rest_ns, mut hindered_until_ns) = (HINDERED_NS, 0);
        self.packer.room.note_hindered(false);
        while !self.closing.get() {
            self.packer.room.look();
            if self.packer.count() > 0 {
                let _ = self.say_unpacked(true).await;
            }
            let now_ns = self.reactor.now_ns();
            let quiet_ns = self.packer.written_ns.get() + QUIET_NS;
            let is_quiet = quiet_ns <= now_ns;
            if self.packer.loose.dead_count() >= DEAD_MIN && self.regroup(true).await.is_ok() {
                continue;
            }
            if now_ns < hindered_until_ns {
                // What nobody needs any more goes meanwhile.
                self.rest_until(hindered_until_ns.min(now_ns + HINDERED_NS)).await;
                continue;
            }
            let is_loose = self.packer.loose.is_full();
            let least = |form| if is_quiet { VALUES_MIN.min(values_max(form)) } else { values_max(form) };
            // While everything is held every key is busy, and would not be packed later.
            let may_pack = self.all_in() && !self.has_doubts() && !self.locks.is_everything_wanted();
            // After a failure what it left is looked through before anything is packed again: a set that was
            // not quite taken apart names versions that another would name, too.
            let is_hindered = rest_ns > HINDERED_NS && self.packer.loose.has_any(self.all_in());
            let packs = may_pack && !is_loose && !is_hindered;
            let taken = if packs { self.packer.take(least) } else { None };
            let hindered = match taken {
                Some((group, keys)) => {
                    let packed = self.pack(group.container, group.form, &keys).await;
                    if packed.is_err() {
                        keys.iter().for_each(|key| self.packer.wait_again(group, key, self.count()));
                    }
                    packed
                }
                None if (is_loose || is_quiet || is_hindered) && self.packer.loose.has_any(self.all_in()) => {
                    self.regroup(false).await
                }
                None if is_quiet && may_pack => {
                    if self.packer.loose.take_forgot() {
                        self.scrub();
                    }
                    // Meanwhile others may have begun to wait.
                    if !matches!(self.say_unpacked(self.packer.count() > 0).await, Ok(false)) {
                        continue;
                    }
                    self.look_for_forgotten();
                    return;
                }
                None if is_quiet => {
                    self.rest_until(now_ns + HINDERED_NS).await;
                    continue;
                }
                None => {
                    self.rest_until(quiet_ns).await;
                    continue;
                }
            };
            match hindered {
                // What is looked through after a failure does not mean that packing goes on.
                Ok(()) if is_hindered => {}
                Ok(()) => {
                    rest_ns = HINDERED_NS;
                    self.packer.room.note_hindered(false);
                }
                Err(error) => {
                    self.packer.room.note_hindered(true);
                    tracing::warn!(partition = self.partition, %error, "values are packed later");
                    hindered_until_ns = self.reactor.now_ns() + rest_ns;
                    rest_ns = (2 * rest_ns).min(HINDERED_NS_MAX);
                }
            }
        }
    }

    pub(crate) fn all_in(&self) -> bool {
        (0..self.count()).all(|member| self.state(member) == MemberState::In)
    }

    /// Packs what of these keys can be packed.
    async fn pack(self: &Rc<Self>, container: ContainerId, form: Form, keys: &[Vec<u8>]) -> Result<()> {
        let mut places: Vec<Place> =
            keys.iter().map(|key| self.place(container, key)).collect::<Result<Vec<_>>>()?;
        // Nobody waits for the others because one is busy: that stays as it is until it is written again.
        places.retain(|place| self.locks.is_free(place.id.0, place.id.1));
        let ids: BTreeSet<_> = places.iter().map(|place| place.id).collect();
        let _guards = self.locks.lock_all(&ids.into_iter().collect::<Vec<_>>()).await;
        let mut joining = Vec::new();
        for place in places {
            joining.extend(self.joining(place, form).await?);
        }
        let Some(set) = self.set_of(form, &joining) else { return Ok(()) };
        // Of short values it takes room, which full devices have to have for stores.
        let room = if saves(&set) { Room::ToKeep } else { Room::OfStores };
        match self.store_set(container, (&set, &joining), room).await {
            // They hold up no others, which give room back.
            Err(error) if room == Room::OfStores && is_full(&error) => {
                self.packer.forgotten.note();
                return Ok(());
            }
            stored => stored?,
        }
        let stored = self.store_stubs((&set, &joining), room).await;
        match stored {
            Ok(()) => self.packer.room.note_set(),
            Err(_) => self.regroup_later(container, &set.stub()),
        }
        stored
    }

    /// A held key as it is to be packed; nothing if it may not be, or is already.
    async fn joining(self: &Rc<Self>, place: Place, form: Form) -> Result<Option<Joining>> {
        if self.is_unsettled(&place) || !self.all_in() || place.key.len() > KEY_BYTES_MAX {
            return Ok(None);
        }
        self.finish_kept(&place).await;
        let (manner, device) = (Manner::background(), self.readable(place.primary));
        let Some(device) = device else { return Ok(None) };
        if self.membership(&place, &manner).await? != Membership::Alone {
            return Ok(None);
        }
        let piece = match self.read_piece(&device, &place, 0, None, &manner).await {
            Err(error) if gives_nothing(&error) => return Ok(None),
            piece => piece?,
        };
        let Piece { item, header: Some(header), .. } = piece else { return Ok(None) };
        if header.form != form || item.upload.is_some() || item.expiry_ms.is_some() {
            return Ok(None);
        }
        // No two sets name one version, and one may name this.
        if self.is_in_doubt(header.version) {
            return Ok(None);
        }
        Ok(Some(Joining { place, header, bytes: item.bytes.into() }))
    }

    /// The set that values make; nothing if it is not worth it, or its records would be too long.
    pub(crate) fn set_of(&self, form: Form, values: &[Joining]) -> Option<Set> {
        let Form::Packed { data, parities } = form else { return None };
        if values.len() < VALUES_MIN.min(data.into()) || values.is_empty() {
            return None;
        }
        let name = self.next_version();
        let primaries: Vec<usize> = values.iter().map(|value| value.place.primary).collect();
        // The others take turns.
        let count = self.count();
        let others = (0..count).map(|number| (number + name.clock as usize) % count);
        let others = others.filter(|member| !primaries.contains(member)).take(parities.into());
        let holders: Vec<u8> = others.chain([primaries[0]]).map(|member| member as u8).collect();
        let packed = values.iter().map(|Joining { place, header, bytes, .. }| Packed {
            key: place.key.clone(),
            version: header.version,
            value_bytes: bytes.len() as u32,
        });
        let set = Set { name, data, holders, values: packed.collect() };
        let longest = values.iter().map(|value| value.bytes.len()).max()?;
        let fits = set.bytes() + longest <= self.record_bytes_max();
        (fits && set.parities() == usize::from(parities)).then_some(set)
    }

    /// Stores a set's records, durably, or none.
    async fn store_set(
        self: &Rc<Self>,
        container: ContainerId,
        (set, values): (&Set, &[Joining]),
        room: Room,
    ) -> Result<()> {
        let data: Vec<&[u8]> = values.iter().map(|value| &value.bytes[..]).collect();
        let stores = self.records(set, &data).into_iter().enumerate().map(|(number, record)| {
            let store = Op::store(placement::sets(container), set_key(&self.tag, set.name), record);
            (set.holders[number].into(), in_room(store, room))
        });
        let sent = self.send(stores.collect()).await?;
        let lacks = sent.done.len() < set.holders.len();
        let Some(error) = sent.refused.or(lacks.then_some(Error::Overloaded)) else { return Ok(()) };
        self.delete_set(container, set).await;
        Err(error)
    }

    /// The records of a set, by the numbers of its holders.
    pub(crate) fn records(&self, set: &Set, data: &[&[u8]]) -> Vec<Vec<u8>> {
        let mut data = data.to_vec();
        data.resize(set.data.into(), &[]);
        let coder = self.forms.coder(set.form()).expect("it is the form of values that are stored");
        let parities = coder.encode(&data).expect("as many shards as the set has");
        let parities = parities.iter().map(Vec::as_slice).chain([&[][..]]);
        parities.enumerate().map(|(number, parity)| set.record(number, parity)).collect()
    }

    /// Puts stubs in the place of copies: on each member all that belong there, at once.
    async fn store_stubs(self: &Rc<Self>, (set, values): (&Set, &[Joining]), room: Room) -> Result<()> {
        let mut slots: Vec<Slot> = Vec::new();
        let mut below: BTreeMap<usize, Vec<Op>> = BTreeMap::new();
        for Joining { place, header, .. } in values {
            let slot = self.journal.slot().await;
            for role in 1..header.form.roles() {
                let header = Header { role: role as u8, is_stub: true, ..*header };
                let stub = header.before(set.stub().encode()).into();
                let ops = below.entry(self.member_of(place, role)).or_default();
                ops.push(self.store_op(place, role, stub, Expiry::Never));
                ops.push(slot.entry(place.container, &place.key));
            }
            slots.push(slot);
        }
        let batches = below.into_iter().map(|(member, ops)| (member, in_room(Op::Batch(ops), room)));
        let sent = self.send(batches.collect()).await;
        let Some(error) = sent.map_or_else(Some, |sent| sent.refused) else { return Ok(()) };
        self.leave_cut_short(values.iter().map(|value| &value.place).zip(slots), set.name).await;
        Err(error)
    }
}
