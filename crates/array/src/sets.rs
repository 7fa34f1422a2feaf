//! Looking through sets: whether each has all its shards, and all its parities.
//!
//! Role: what scrubbing and rebuilding do with sets, beside keys. Place on the path: none; in the background.
//!
//! Invariants:
//! * all keys of a set are held while it is compared and mended;
//! * a set is looked through once: by the first of its holders that has a right record of it;
//! * a shard is written as a ghost, and never in the place of a value: what a key holds is not judged here.

use crate::array::{Array, Place};
use crate::fill::Told;
use crate::header::Header;
use crate::leave::{Membership, ghost_of, is_no_set, no_set};
use crate::manner::Manner;
use crate::member::gives_nothing;
use crate::open::background;
use crate::pace::Pace;
use crate::placement::{self, ARRAY_CONTAINERS};
use crate::recover::Record;
use crate::regroup::Lives;
use crate::roster::MemberState;
use crate::set::{
    Packed, Set, VERSION_BYTES, decode_version, encode_version, ghost_key, is_ghost, lasting_key, set_key,
};
use crate::walk::{Source, page};
use futures_util::TryStreamExt;
use plimsoll_kv::{Condition, ContainerId, Device, Error, Expiry, Op, Output, Result, Version};
use std::pin::pin;
use std::rc::Rc;

/// Sets that are looked through at a time.
const TOGETHER: usize = 32;

/// What was done to a set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mended {
    /// Records that were missing or wrong.
    pub(crate) records: u64,
    /// Bytes of those that were written.
    pub(crate) bytes: u64,
    /// It could not be read, or not be made whole: what it needs is not known.
    pub(crate) in_doubt: bool,
}

impl Mended {
    fn and(self, other: Mended) -> Mended {
        Mended {
            records: self.records + other.records,
            bytes: self.bytes + other.bytes,
            in_doubt: self.in_doubt || other.in_doubt,
        }
    }
}

impl Array {
    /// Looks through all sets, several at a time, at a rate, until it is told to end; what was mended. For
    /// one member alone only what that has to have.
    pub(crate) async fn mend_sets(
        self: &Rc<Self>,
        (pace, member): (&Pace, Option<usize>),
        goes_on: impl Fn() -> bool,
    ) -> Result<Mended> {
        let mut sum = Mended::default();
        if !self.forms.has_packed() {
            return Ok(sum);
        }
        for container in (0..ARRAY_CONTAINERS).map(ContainerId) {
            let sets = self.each_set(container).map_ok(async |told| {
                let turn = pace.turn(self.reactor.now_ns());
                self.rest_until(turn.at_ns).await;
                if !goes_on() {
                    return Ok(Mended::default());
                }
                let mended = self.mend_set(container, &told, member).await?;
                pace.end(turn, mended.bytes);
                Ok::<Mended, Error>(mended)
            });
            let mut mended = pin!(sets.try_buffer_unordered(TOGETHER));
            while let Some(mended) = mended.try_next().await? {
                sum = sum.and(mended);
                if !goes_on() {
                    return Ok(sum);
                }
            }
        }
        Ok(sum)
    }

    /// Looks through a set. For a member alone only if that lacks something.
    async fn mend_set(
        self: &Rc<Self>,
        container: ContainerId,
        told: &Told,
        member: Option<usize>,
    ) -> Result<Mended> {
        let Some((set, source)) = self.set_told(container, told).await? else {
            return Ok(Mended { in_doubt: self.is_there(container, told).await, ..Mended::default() });
        };
        if let Some(member) = member {
            if let Some(filled) = self.fill_set(container, (&set, &source), member).await? {
                return Ok(filled);
            }
            if !self.lacks_of_set(container, &set, member).await? {
                return Ok(Mended::default());
            }
        }
        let (_guards, places) = self.hold_set(container, &set).await?;
        if self.has_gone(&source, container, set.name).await {
            return Ok(Mended::default());
        }
        // For a member alone nobody asks before that is in doubt.
        let mut lives =
            if member.is_some() { Lives::Yes } else { self.life_of(container, &set, &places).await? };
        if lives == Lives::No {
            return Ok(Mended::default());
        }
        let mut mended = Mended::default();
        let shards = self.mend_shards(container, &set, member, &mut mended).await;
        if let (Err(Error::Unreadable(_)), Some(_)) = (&shards, member) {
            lives = self.life_of(container, &set, &places).await?;
        }
        let shards = match shards {
            // It is what a crash has left, perhaps, of which those that are in know nothing; or too many are
            // out, and who comes back relies on what the others have of it.
            Err(Error::Unreadable(_)) if lives != Lives::Yes || !self.may_change(0) => {
                return Ok(Mended { in_doubt: true, ..mended });
            }
            Err(Error::Unreadable(what)) => {
                // What lives of it stands as copies, and is packed anew.
                tracing::error!(partition = self.partition, what, "a set cannot be mended");
                for (place, value) in places.iter().zip(&set.values) {
                    match self.put_copies(place).await {
                        Ok(()) => self.pack_later(place, (set.form(), value.value_bytes.into())),
                        Err(Error::NotFound | Error::Unreadable(_)) => {}
                        Err(error) => return Err(error),
                    }
                }
                self.regroup_later(container, &set.stub());
                return Ok(Mended { records: 1, in_doubt: true, ..mended });
            }
            shards => shards?,
        };
        self.mend_records(container, (&set, &shards), member, &mut mended).await?;
        self.claim_ghosts(container, &set).await?;
        for (value, place) in set.values.iter().zip(&places) {
            self.mend_stubs(place, (&set, value)).await?;
        }
        Ok(mended)
    }

    /// Whether a member that told of a set has a record of it, be it one that cannot be read.
    async fn is_there(&self, container: ContainerId, (name, members): &Told) -> bool {
        for device in members.iter().filter_map(|member| self.readable(*member)) {
            if !self.has_gone(&device, container, *name).await {
                return true;
            }
        }
        false
    }

    /// Whether any key is in a set; what has lost one is looked through when nobody writes.
    async fn life_of(self: &Rc<Self>, container: ContainerId, set: &Set, places: &[Place]) -> Result<Lives> {
        let mut each = Vec::new();
        for (place, value) in places.iter().zip(&set.values) {
            each.push(self.lives_in(place, (set, value)).await?);
        }
        if each.contains(&Lives::No) {
            self.note_packed();
            self.packer.loose.add_if_few(container, &set.stub(), None);
            self.pack_soon();
        }
        Ok(each.into_iter().max().unwrap_or(Lives::No))
    }

    /// Whether a member lacks anything that it should have of a set, as far as one look tells.
    async fn lacks_of_set(self: &Rc<Self>, container: ContainerId, set: &Set, member: usize) -> Result<bool> {
        if set.parities() == 1 || self.are_out_beside(member) {
            return Ok(true); // With one parity nobody else may know whose stubs it lacks.
        }
        let Some(device) = self.writable(member) else { return Ok(false) };
        if set.holders.contains(&(member as u8)) && !self.has_record(&device, container, set).await? {
            return Ok(true);
        }
        let its = (0..set.values.len()).find(|at| self.primary_of_value(set, *at) == member);
        let Some(value) = its.map(|at| &set.values[at]) else { return Ok(false) };
        // What may expire there it has to keep beside that.
        let shard = self.shard_at(&device, container, value, &Manner::background()).await;
        Ok(!shard.is_ok_and(|(_, may_expire)| !may_expire))
    }

    /// Whether a holder of a set has a record of it: what that says never changes.
    pub(crate) async fn has_record(
        &self,
        device: &Rc<dyn Device>,
        container: ContainerId,
        set: &Set,
    ) -> Result<bool> {
        let (of, key) = (placement::sets(container), set_key(&self.tag, set.name));
        if !self.options.stateless && device.lacks(of, &key) {
            return Ok(false);
        }
        match self.described(device, container, set.name).await {
            Ok(found) => Ok(found == *set),
            Err(error) if gives_nothing(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The shards of data of a set; those that their members lack are computed, and given to them.
    async fn mend_shards(
        self: &Rc<Self>,
        container: ContainerId,
        set: &Set,
        alone: Option<usize>,
        mended: &mut Mended,
    ) -> Result<Vec<Option<Vec<u8>>>> {
        let manner = Manner::background();
        let (mut shards, mut lost) = (Vec::new(), Vec::new());
        for (at, value) in set.values.iter().enumerate() {
            let shard = match self.writable(self.primary_of_value(set, at)) {
                Some(device) => self.shard_at(&device, container, value, &manner).await,
                None => Err(Error::NotFound),
            };
            match shard {
                Ok((bytes, may_expire)) => {
                    if may_expire {
                        self.keep_expiring(container, set, (at, &bytes)).await?;
                    }
                    shards.push(Some(bytes));
                }
                Err(error) if gives_nothing(&error) => {
                    lost.push(at);
                    shards.push(None);
                }
                Err(error) => return Err(error),
            }
        }
        shards.resize(set.data.into(), Some(Vec::new()));
        for number in 0..set.parities() {
            let record = match self.readable(set.holders[number].into()) {
                Some(device) if !lost.is_empty() => {
                    self.record(&device, container, set.name, &manner).await.ok()
                }
                _ => None,
            };
            shards.push(record.filter(|Record { set: of, .. }| of == set).map(|record| record.parity));
        }
        for at in lost {
            let found = self.computed(set, &shards, at)?;
            let member = self.primary_of_value(set, at);
            // Who is coming in gets its values first, and what it lacks then.
            if self.state(member) == MemberState::In || alone == Some(member) {
                let ghost = self.ghost_op(container, set, (&set.values[at], &found));
                self.mend_at(member, (ghost, found.len(), "a value"), mended).await?;
            }
            shards[at] = Some(found);
        }
        Ok(shards)
    }

    /// A member that was given a value that expires keeps it for its set, too.
    async fn keep_expiring(
        self: &Rc<Self>,
        container: ContainerId,
        set: &Set,
        (at, bytes): (usize, &[u8]),
    ) -> Result<()> {
        let (member, version) = (self.primary_of_value(set, at), set.values[at].version);
        let Some(device) = self.writable(member) else { return Ok(()) };
        let key = ghost_key(&self.tag, version);
        if self.ghost_name(&device, placement::sets(container), &key).await?.is_none() {
            let ghost = self.ghost_op(container, set, (&set.values[at], bytes));
            let kept = self.sent_to_keep(member, ghost).await;
            self.unless_out(member, kept)?;
        }
        Ok(())
    }

    /// What a member has to keep of a value of a set that it lacks.
    fn ghost_op(&self, container: ContainerId, set: &Set, (value, bytes): (&Packed, &[u8])) -> Op {
        let (version, value_bytes) = (value.version, bytes.len() as u64);
        let header = Header { form: set.form(), role: 0, version, value_bytes, is_stub: false };
        let ghost = ghost_of(set.name, &header, bytes.to_vec().into());
        Op::store(placement::sets(container), ghost_key(&self.tag, version), ghost)
    }

    /// Ghosts of values of a set that name none are for this one.
    async fn claim_ghosts(self: &Rc<Self>, container: ContainerId, set: &Set) -> Result<()> {
        for (at, value) in set.values.iter().enumerate() {
            let member = self.primary_of_value(set, at);
            let Some(device) = self.writable(member) else { continue };
            let (container, claimed) = (placement::sets(container), ghost_key(&self.tag, value.version));
            for key in [claimed.clone(), lasting_key(&self.tag, value.version)] {
                if self.ghost_name(&device, container, &key).await?.is_none_or(|name| !is_no_set(name)) {
                    continue;
                }
                let op = Op::Retrieve { container, key: key.clone(), range: None, pin: false };
                let Ok(Output::Found(item)) = background(&device, op).await else { continue };
                let mut ghost = item.bytes;
                ghost[..VERSION_BYTES].copy_from_slice(&encode_version(set.name));
                let kept = self.sent_to_keep(member, Op::store(container, claimed.clone(), ghost)).await;
                if self.unless_out(member, kept)?.is_none() {
                    break;
                }
                if key != claimed {
                    let delete = Op::Delete { container, key, condition: Condition::None };
                    self.sent_one(member, delete).await?;
                }
            }
        }
        Ok(())
    }

    /// The set that a ghost names; nothing if there is none that can be read.
    pub(crate) async fn ghost_name(
        &self,
        device: &Rc<dyn Device>,
        container: ContainerId,
        key: &[u8],
    ) -> Result<Option<Version>> {
        let range = Some((0, VERSION_BYTES as u64));
        let op = Op::Retrieve { container, key: key.to_vec(), range, pin: false };
        match background(device, op).await {
            Ok(Output::Found(item)) => Ok(decode_version(&item.bytes)),
            Ok(_) => Ok(None),
            Err(error) if gives_nothing(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Ghosts that were made before, name no set, and were claimed by none when all were looked through, go.
    pub(crate) async fn sweep_ghosts(self: &Rc<Self>, before: Version) -> Result<()> {
        for container in (0..ARRAY_CONTAINERS).map(ContainerId) {
            for member in 0..self.count() {
                let Some(device) = self.readable(member) else { continue };
                let container = placement::sets(container);
                let source = Source { device: device.clone(), container, member };
                let mut after = None;
                loop {
                    let keys = match page(&source, &mut after).await {
                        Ok(Some(keys)) => keys,
                        // What cannot be told stays.
                        Ok(None) | Err(Error::Unreadable(_)) => break,
                        Err(error) => return Err(error),
                    };
                    for key in keys.into_iter().filter(|key| is_ghost(&self.tag, key)) {
                        let name = self.ghost_name(&device, container, &key).await?;
                        if name.is_some_and(|name| is_no_set(name) && name < no_set(before)) {
                            let delete = Op::Delete { container, key, condition: Condition::None };
                            self.sent_one(member, delete).await?;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Gives every holder, or one alone, the record that it should have.
    async fn mend_records(
        self: &Rc<Self>,
        container: ContainerId,
        (set, shards): (&Set, &[Option<Vec<u8>>]),
        alone: Option<usize>,
        mended: &mut Mended,
    ) -> Result<()> {
        let data = shards.iter().take(set.data.into()).flatten().map(Vec::as_slice);
        let records = self.records(set, &data.collect::<Vec<_>>());
        for (number, expected) in records.into_iter().enumerate() {
            let member = usize::from(set.holders[number]);
            if alone.is_some_and(|alone| alone != member) {
                continue;
            }
            let Some(device) = self.writable(member) else { continue };
            let (of, key) = (placement::sets(container), set_key(&self.tag, set.name));
            let op = Op::Retrieve { container: of, key: key.clone(), range: None, pin: false };
            match background(&device, op).await {
                Ok(Output::Found(item)) if item.bytes == expected => continue,
                Ok(_) => {}
                Err(error) if gives_nothing(&error) => {}
                Err(error) => return Err(error),
            }
            let bytes = expected.len();
            self.mend_at(member, (Op::store(of, key, expected), bytes, "a parity"), mended).await?;
        }
        Ok(())
    }

    /// A member that got a copy where the others have stubs, as nobody could tell, has one, too.
    async fn mend_stubs(self: &Rc<Self>, place: &Place, (set, value): (&Set, &Packed)) -> Result<()> {
        let manner = Manner::background();
        if self.is_unsettled(place) {
            match self.settle(place).await {
                Ok(()) => {}
                Err(Error::NoSpace | Error::NoMemory) => return Ok(()),
                Err(error) => return Err(error),
            }
            // Of an array that is distrusted every key always is (seed 20115).
            if !self.distrusted.get() && self.is_unsettled(place) {
                return Ok(());
            }
        }
        match self.membership(place, &manner).await? {
            // It is in none, though this one names it: it stands as copies, and the set may be what a crash
            // left half made, of which others that are in have nothing (seed 1944).
            Membership::Alone => return Ok(()),
            Membership::Of { stub, .. } if stub.set != set.name => return Ok(()),
            // Whoever knew is out: a set that another key is not in gives this one nothing (seed 237).
            Membership::Unknown if !self.are_others_in(place, &set.stub()).await? => {
                self.regroup_later(place.container, &set.stub());
                return Ok(());
            }
            Membership::Of { .. } | Membership::Unknown => {}
        }
        for role in 1..set.form().roles() {
            let member = self.member_of(place, role);
            let Some(device) = self.writable(member) else { continue };
            let piece = match self.read_piece(&device, place, role, Some((0, 0)), &manner).await {
                Err(error) if gives_nothing(&error) => continue,
                piece => piece?,
            };
            let Some(header) = piece.header.filter(|header| header.version == value.version) else {
                continue;
            };
            if piece.stub.is_some() {
                if piece.has_value && self.state(place.primary) == MemberState::In {
                    self.keep_no_more(place, &piece).await?;
                }
                continue;
            }
            let item = piece.item;
            if item.upload.is_some() {
                continue;
            }
            if !self.has_records(place.container, set).await? {
                return Ok(());
            }
            let header = Header { is_stub: true, ..header };
            let stub = header.before(set.stub().encode()).into();
            let expiry = item.expiry_ms.map_or(Expiry::Never, Expiry::At);
            // A copy is no less than a stub: nothing was wrong.
            let stored = self.sent_to_keep(member, self.store_op(place, role, stub, expiry)).await;
            self.unless_out(member, stored)?;
        }
        Ok(())
    }

    /// Whether every holder of a set that is in has a record of it.
    async fn has_records(&self, container: ContainerId, set: &Set) -> Result<bool> {
        for holder in &set.holders {
            let Some(device) = self.readable((*holder).into()) else { continue };
            if !self.has_record(&device, container, set).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn mend_at(
        self: &Rc<Self>,
        member: usize,
        (store, bytes, what): (Op, usize, &str),
        mended: &mut Mended,
    ) -> Result<()> {
        let was_in = self.state(member) == MemberState::In;
        let stored = self.sent_to_keep(member, store).await;
        if self.unless_out(member, stored)?.is_none() {
            return Ok(());
        }
        mended.bytes += bytes as u64;
        if was_in {
            let device = self.name(member);
            tracing::warn!(partition = self.partition, device, what, "a record of a set is written again");
            mended.records += 1;
            self.note(member, |status| status.repaired += 1);
        } else {
            self.note(member, |status| status.copied_bytes += bytes as u64);
        }
        Ok(())
    }
}
