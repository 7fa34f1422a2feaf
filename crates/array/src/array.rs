//! The array: N members as one device.
//!
//! Role: takes every operation of a KV device and does it on the members that hold the key. Place on the
//! path: one for each partition, on the core that owns it, between the cache and the engines' partitions with
//! the same number on each device.
//!
//! Invariants:
//! * one fenced writer: this core orders the writes of each key (`key_locks`) and gives each a version whose
//!   epoch is durable on the members before it is used;
//! * a read sees no write that is under way: it waits for those that came before, and later ones for it;
//! * a write is acknowledged when it is durable on every member that the roster calls in; members that are
//!   out are called so durably before (`membership`);
//! * keys that may differ between members are made whole before anybody reads or writes them (`reconcile`).
//!
//! Never: it keeps a map of keys. Where a key stands follows from its hash, what it is from its header.

use crate::company::Company;
use crate::forms::Forms;
use crate::header::HEADER_BYTES;
use crate::journal::{Journal, Names};
use crate::kept::Kept;
use crate::manner::Manner;
use crate::member::{Member, MemberStatus};
use crate::pack::Packer;
use crate::picker::{Pick, Picker};
use crate::placement::{self, ARRAY_CONTAINERS, ROLES_MAX};
use crate::policy::Policy;
use crate::readers::Readers;
use crate::roster::{MemberState, Roster};
use crate::scrub::Scrub;
use crate::seldom::SeldomLines;
use crate::transaction::Transactions;
use crate::upload::Uploads;
use plimsoll_kv::key_locks::{KeyGuard, KeyId, KeyLocks, ReadGuard};
use plimsoll_kv::limits::KEY_BYTES_MAX;
use plimsoll_kv::{
    Completion, ContainerId, Device, Error, Expiry, Form, LocalFuture, Op, Output, Request, Result, Slot,
    Version, WallClock,
};
use plimsoll_reactor::sync::WaitList;
use plimsoll_reactor::{Reactor, Work};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// Parts of an array are a multiple of so many bytes.
const PART_ALIGN: usize = 16;

/// How an array is opened.
#[derive(Clone, Debug)]
pub struct ArrayOptions {
    /// How objects are protected that are stored from now on.
    pub policy: Policy,
    /// Open even if so many members are missing that those that are there may be the stale ones.
    pub degraded: bool,
    /// Bytes a second at which a member is rebuilt, or all are scrubbed, at most; 0: as fast as it goes.
    pub rebuild_bytes_per_s: u64,
    /// Members' memory is not asked what they hold: a write reads it instead.
    pub stateless: bool,
}

/// What is known of an array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArrayStatus {
    /// Its members, in the order given.
    pub members: Vec<MemberStatus>,
    /// Keys that may differ between members, and are compared before they are used.
    pub unsettled: u64,
    /// Keys that wait to be packed.
    pub packing_waiting: u64,
    /// Sets that have lost values, and have to be looked through.
    pub sets_loose: u64,
    /// What values of each length get, if mechanisms are chosen, and why.
    pub picks: Vec<Pick>,
    /// Keys that were stored once more, by the mechanism that their length gets now.
    pub keys_moved: u64,
    /// Values of devices that are out that were kept behind their stubs when they were read.
    pub values_kept: u64,
    /// Keys that the present or last scrub has been through.
    pub keys_scrubbed: u64,
    /// Keys that it has to go through, as counted when it began; 0 until they are.
    pub keys_to_scrub: u64,
    /// Keys that it found damaged, or different between members.
    pub scrub_errors: u64,
    /// Whether a scrub is under way.
    pub scrubbing: bool,
}

/// Many devices as one.
pub struct Array {
    pub(crate) reactor: Reactor,
    pub(crate) partition: u16,
    pub(crate) tag: String,
    pub(crate) options: ArrayOptions,
    /// What values have been made into.
    pub(crate) forms: Forms,
    /// Members that may hold a piece of a key.
    pub(crate) roles: usize,
    pub(crate) clock: Rc<WallClock>,
    pub(crate) members: RefCell<Vec<Member>>,
    /// Who answers reads, as long as nobody goes or comes.
    pub(crate) readers: RefCell<Readers>,
    /// Who tells of what is packed where its member is out.
    pub(crate) tellers: RefCell<Readers>,
    pub(crate) roster: RefCell<Roster>,
    /// The epoch of the newest roster that is durable on every member that it calls in.
    pub(crate) roster_durable: Cell<u64>,
    pub(crate) roster_writing: Cell<bool>,
    pub(crate) roster_written: WaitList,
    pub(crate) locks: Rc<KeyLocks>,
    pub(crate) version: Cell<Version>,
    /// The newest version when the first of those went out that are not in.
    pub(crate) parted_at: Cell<Version>,
    pub(crate) journal: Rc<Journal>,
    /// Keys that may differ between members.
    pub(crate) unsettled: RefCell<BTreeSet<(ContainerId, Vec<u8>)>>,
    /// Of them, those of which a write was cut short, perhaps; with what has named them since the start.
    pub(crate) half_written: RefCell<BTreeMap<(ContainerId, Vec<u8>), Names>>,
    /// Of them, those whose sets were being made or taken apart, perhaps.
    pub(crate) cut_short: RefCell<BTreeSet<(ContainerId, Vec<u8>)>>,
    /// The newest name of a set that was cut short: it names no newer version.
    pub(crate) cut_short_at: Cell<Version>,
    /// Keys that may differ are being made whole.
    pub(crate) settles: Cell<bool>,
    /// Shards that each member is asked for, to compute others.
    pub(crate) recovering: RefCell<BTreeMap<usize, u32>>,
    /// When a member answered last what has to be answered in time.
    pub(crate) answered_ns: Cell<u64>,
    pub(crate) seldom: SeldomLines,
    /// Any key may differ between members: each is compared whenever it is used.
    pub(crate) distrusted: Cell<bool>,
    /// How often that began: a scrub ends no distrust that began after it.
    pub(crate) distrusts: Cell<u64>,
    /// What no member can tell or give any more is given up where one is resynchronised.
    pub(crate) accepts_loss: Cell<bool>,
    /// The mark that every half-written key is named stands on the members.
    pub(crate) marked: Cell<bool>,
    /// Keys whose version before the last is still kept on members.
    pub(crate) kept: Kept,
    /// Values that are to be packed, and sets that are to be regrouped.
    pub(crate) packer: Packer,
    /// Deletes that go to a member together.
    pub(crate) company: Company,
    /// Picks mechanisms, if the policy chooses.
    pub(crate) picker: Option<Picker>,
    pub(crate) keys_moved: Cell<u64>,
    /// Keys of which values are being put behind stubs, bytes of those, and how many were.
    pub(crate) keeping: RefCell<BTreeSet<KeyId>>,
    pub(crate) keeping_bytes: Cell<usize>,
    pub(crate) kept_behind: Cell<u64>,
    /// Values since the last one that might have been, if members had time.
    pub(crate) not_kept: Cell<u64>,
    pub(crate) uploads: Uploads,
    pub(crate) transactions: Transactions,
    pub(crate) scrub: Cell<Scrub>,
    pub(crate) closing: Cell<bool>,
    /// Tasks of the array itself that are under way.
    pub(crate) tasks: Cell<u32>,
    pub(crate) tasks_ended: WaitList,
    value_bytes_max: usize,
    part_bytes: usize,
    member_part_bytes: usize,
}

/// Where a key stands.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) container: ContainerId,
    pub(crate) key: Vec<u8>,
    pub(crate) primary: usize,
    pub(crate) id: KeyId,
}

impl Array {
    pub(crate) fn assemble(
        reactor: &Reactor,
        (partition, partitions): (u16, u16),
        mut members: Vec<Member>,
        roster: Roster,
        options: ArrayOptions,
    ) -> Rc<Array> {
        let tag = placement::tag(partition, partitions);
        let forms = Forms::new(&roster.forms);
        let devices = || members.iter().filter_map(|member| member.device.as_ref());
        let least = |of: fn(&dyn Device) -> usize| devices().map(|device| of(&**device)).min();
        let value_bytes_max = least(|device| device.value_bytes_max()).expect("a member is there");
        let part_bytes = least(|device| device.part_bytes()).expect("a member is there");
        let (longest, part) = geometry(value_bytes_max, part_bytes);
        let picker = options.policy.choice().map(|choice| Picker::new(choice, longest as u64));
        for member in &mut members {
            let device = member.device.take();
            member.attach(device, picker.as_ref(), reactor);
        }
        let is_in: Vec<bool> = members.iter().map(|it| it.status.state == MemberState::In).collect();
        let begun = Version { epoch: roster.opens, clock: 0 };
        Rc::new(Array {
            reactor: reactor.clone(),
            partition,
            readers: RefCell::new(Readers::of_values(&forms, &is_in)),
            tellers: RefCell::new(Readers::of_stubs(&forms, &is_in)),
            journal: Journal::new(&tag),
            tag,
            options,
            roles: forms.roles(),
            forms,
            clock: Rc::new(WallClock::new(reactor)),
            version: Cell::new(begun),
            parted_at: Cell::new(begun),
            members: RefCell::new(members),
            roster_durable: Cell::new(0),
            roster: RefCell::new(roster),
            roster_writing: Cell::new(false),
            roster_written: WaitList::default(),
            locks: Rc::default(),
            unsettled: RefCell::default(),
            half_written: RefCell::default(),
            cut_short: RefCell::default(),
            cut_short_at: Cell::new(begun),
            settles: Cell::new(false),
            recovering: RefCell::default(),
            answered_ns: Cell::new(0),
            seldom: SeldomLines::default(),
            distrusted: Cell::new(false),
            distrusts: Cell::new(0),
            accepts_loss: Cell::new(false),
            marked: Cell::new(false),
            kept: Kept::default(),
            packer: Packer::default(),
            company: Company::default(),
            picker,
            keys_moved: Cell::new(0),
            keeping: RefCell::new(BTreeSet::new()),
            keeping_bytes: Cell::new(0),
            kept_behind: Cell::new(0),
            not_kept: Cell::new(0),
            uploads: Uploads::default(),
            transactions: Transactions::default(),
            scrub: Cell::default(),
            closing: Cell::new(false),
            tasks: Cell::new(0),
            tasks_ended: WaitList::default(),
            value_bytes_max: longest,
            part_bytes: part,
            member_part_bytes: part_bytes,
        })
    }

    /// What is known of it.
    #[must_use]
    pub fn status(&self) -> ArrayStatus {
        let scrub = self.scrub.get();
        let status = |(number, member): (usize, &Member)| MemberStatus {
            state: if member.comes_in { MemberState::Resyncing } else { member.status.state },
            is_there: member.device.is_some(),
            holds_last: self.holds_last(number),
            ..member.status.clone()
        };
        ArrayStatus {
            members: self.members.borrow().iter().enumerate().map(status).collect(),
            unsettled: self.unsettled.borrow().len() as u64,
            packing_waiting: self.packer.count() as u64,
            sets_loose: self.packer.loose.count() as u64,
            picks: self.picker.as_ref().map_or_else(Vec::new, Picker::picks),
            keys_moved: self.keys_moved.get(),
            values_kept: self.kept_behind.get(),
            keys_scrubbed: scrub.keys,
            keys_to_scrub: scrub.keys_total,
            scrub_errors: scrub.errors,
            scrubbing: scrub.runs,
        }
    }

    /// The clock by which keys expire here: for layers above that remember what they read.
    #[must_use]
    pub fn clock(&self) -> Rc<WallClock> {
        self.clock.clone()
    }

    /// Bytes of a part of a value in parts, as members have it.
    pub(crate) fn member_part_bytes(&self) -> usize {
        self.member_part_bytes
    }

    /// Bytes of the longest record of a member.
    pub(crate) fn record_bytes_max(&self) -> usize {
        self.value_bytes_max + HEADER_BYTES
    }

    /// Bytes of the longest value of one store.
    pub(crate) fn longest(&self) -> usize {
        self.value_bytes_max
    }

    /// What a value of so many bytes is made into, unless its client wishes something else that there is.
    pub(crate) fn form_for(&self, wish: Option<Form>, value_bytes: u64) -> Result<Form> {
        match wish {
            None => Ok(match &self.picker {
                Some(picker) => picker.mechanism(value_bytes).form(),
                None => self.options.policy.mechanism(value_bytes).form(),
            }),
            Some(form) if self.forms.has(form) => Ok(form),
            Some(_) => Err(Error::Invalid("a mechanism that the array does not have")),
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.members.borrow().len()
    }

    /// The member in a role of a key.
    pub(crate) fn member_of(&self, place: &Place, role: usize) -> usize {
        placement::member(place.primary, role, self.count())
    }

    pub(crate) fn readable(&self, member: usize) -> Option<Rc<dyn Device>> {
        self.members.borrow()[member].readable()
    }

    pub(crate) fn writable(&self, member: usize) -> Option<Rc<dyn Device>> {
        self.members.borrow()[member].writable()
    }

    pub(crate) fn state(&self, member: usize) -> MemberState {
        self.members.borrow()[member].status.state
    }

    /// Changes what is known of a member.
    pub(crate) fn note(&self, member: usize, change: impl FnOnce(&mut MemberStatus)) {
        change(&mut self.members.borrow_mut()[member].status);
    }

    pub(crate) fn next_version(&self) -> Version {
        let version = self.version.get().next(self.clock.now_ms());
        assert!(version > self.version.get(), "versions grow");
        self.version.set(version);
        version
    }

    pub(crate) fn place(&self, container: ContainerId, key: &[u8]) -> Result<Place> {
        if container.0 >= ARRAY_CONTAINERS {
            return Err(Error::Invalid("a container beyond those that an array has"));
        }
        if key.len() > KEY_BYTES_MAX {
            return Err(Error::KeyTooLong);
        }
        let id = (Slot::of(key).0, xxhash_rust::xxh3::xxh3_64_with_seed(key, container.0.into()));
        let primary = placement::primary(key, self.count());
        Ok(Place { container, key: key.to_vec(), primary, id })
    }

    /// From here on any key may differ between members.
    pub(crate) fn distrust(&self) {
        self.distrusted.set(true);
        self.distrusts.set(self.distrusts.get() + 1);
    }

    /// Reads a key, if nobody writes it and its copies are known to be the same: who writes it later waits.
    pub(crate) fn read_quiet(&self, place: &Place) -> Option<ReadGuard> {
        if self.is_unsettled(place) { None } else { self.locks.read(place.id.0, place.id.1) }
    }

    pub(crate) fn is_unsettled(&self, place: &Place) -> bool {
        let unsettled = self.unsettled.borrow();
        self.distrusted.get()
            || !unsettled.is_empty() && unsettled.contains(&(place.container, place.key.clone()))
    }

    /// Holds a key, whole.
    pub(crate) async fn hold(self: &Rc<Self>, place: &Place) -> Result<KeyGuard> {
        let guard = self.locks.lock(place.id.0, place.id.1).await;
        self.settle(place).await?;
        Ok(guard)
    }

    /// Holds a key, whole unless there is no room to make it so: reads and deletes go on on full devices.
    pub(crate) async fn hold_full(self: &Rc<Self>, place: &Place) -> Result<KeyGuard> {
        let guard = self.locks.lock(place.id.0, place.id.1).await;
        match self.settle(place).await {
            Ok(()) | Err(Error::NoSpace | Error::NoMemory) => Ok(guard),
            Err(error) => Err(error),
        }
    }

    /// Unix time by the array's own clock, which no member's runs behind.
    pub(crate) fn now_ms(&self) -> u64 {
        self.clock.now_ms()
    }

    /// Does a request to its end, though whoever asked may go away: half of it may stand on some members, and
    /// the journal's slot and the key are held until all of it does. Tasks begin in the order of requests.
    async fn see_through(self: &Rc<Self>, request: Request) -> Result<Output> {
        let done = Rc::new((RefCell::new(None), WaitList::default()));
        let (array, told) = (self.clone(), done.clone());
        self.spawn(Work::Kv, async move {
            let result = array.dispatch(request).await;
            *told.0.borrow_mut() = Some(result);
            told.1.wake_all();
        });
        done.1.wait_for(|| done.0.borrow_mut().take()).await
    }

    async fn dispatch(self: &Rc<Self>, request: Request) -> Result<Output> {
        let manner = Manner::of(&request);
        self.packer.room.meet(&request.op);
        match request.op {
            op @ Op::Store { .. } => self.store(op, &manner).await,
            Op::Retrieve { container, key, range, pin } => {
                self.retrieve(&self.place(container, &key)?, range, pin, &manner).await
            }
            Op::Exist { container, key } => self.exist(&self.place(container, &key)?, &manner).await,
            Op::Describe { container, key } => self.describe(&self.place(container, &key)?, &manner).await,
            Op::Delete { container, key, condition } => {
                self.delete(&self.place(container, &key)?, condition, &manner).await
            }
            Op::SetExpiry { container, key, expiry, condition } => {
                self.set_expiry(&self.place(container, &key)?, expiry, condition, &manner).await
            }
            Op::List { container, prefix, after, limit } => {
                self.list(container, &prefix, after.as_deref(), limit, &manner).await
            }
            Op::Scan { container, cursor, limit } => self.scan(container, cursor, limit, &manner).await,
            Op::Stats { container } => self.stats(container, &manner).await,
            Op::Sync => self.sync(&manner).await,
            Op::Clear { container } => self.clear(container, &manner).await,
            Op::Transaction { id, action, .. } => self.transact(id, action, &manner).await,
            op @ (Op::UploadBegin { .. }
            | Op::UploadPart { .. }
            | Op::UploadShare { .. }
            | Op::UploadAbort { .. }
            | Op::RetrievePart { .. }
            | Op::Pin { .. }
            | Op::Unpin { .. }) => self.upload(op, &manner).await,
            Op::Batch(_) => {
                Err(Error::Unsupported("a batch over the members of an array: use a transaction"))
            }
            Op::Release { .. } | Op::Revert { .. } => {
                Err(Error::Unsupported("retained versions of an array"))
            }
        }
    }
}

impl Device for Array {
    fn execute(self: Rc<Self>, request: Request) -> LocalFuture<Result<Completion>> {
        if only_looks(&request.op) {
            return Box::pin(async move { self.dispatch(request).await.map(Completion::new) });
        }
        Box::pin(async move { self.see_through(request).await.map(Completion::new) })
    }

    fn announce(&self, container: ContainerId, keys: &[&[u8]], round: u32) -> bool {
        if container.0 >= ARRAY_CONTAINERS {
            return false;
        }
        let (members, mut leads_on) = (self.members.borrow(), false);
        for (number, member) in members.iter().enumerate() {
            let is_its = |key: &&&[u8]| placement::primary(key, members.len()) == number;
            let own: Vec<&[u8]> = keys.iter().filter(is_its).copied().collect();
            if let (Some(device), false) = (member.readable(), own.is_empty()) {
                leads_on |= device.announce(placement::container(container, 0), &own, round);
            }
        }
        leads_on
    }

    fn value_bytes_max(&self) -> usize {
        self.value_bytes_max
    }

    fn part_bytes(&self) -> usize {
        self.part_bytes
    }
}

/// Bytes of the longest value of one store, and of a part, of an array over members with these. As many parts
/// as a value has shards of data fill a part of a member: each piece of each may be a byte longer than its
/// share.
#[must_use]
pub fn geometry(value_bytes_max: usize, part_bytes: usize) -> (usize, usize) {
    let shares = part_bytes - HEADER_BYTES - (ROLES_MAX as usize - 1);
    (value_bytes_max - HEADER_BYTES, shares / PART_ALIGN * PART_ALIGN)
}

/// True if nothing is half done when a request is given up, and no key has its turn: what reads a key is
/// begun in a task, as what writes it is, or it would come first.
fn only_looks(op: &Op) -> bool {
    matches!(op, Op::List { .. } | Op::Scan { .. } | Op::Stats { .. } | Op::Sync | Op::RetrievePart { .. })
}

/// What a store makes of the time at which its key expires.
pub(crate) fn expiry_of(asked: Expiry, existing: Option<u64>) -> Expiry {
    match (asked, existing) {
        (Expiry::Keep, Some(at_ms)) => Expiry::At(at_ms),
        (Expiry::Keep, None) => Expiry::Never,
        (asked, _) => asked,
    }
}
