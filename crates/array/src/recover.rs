//! Recovering: a packed value from the rest of its set.
//!
//! Role: finds a set by a stub, reads what is left of it and computes what is not. Place on the path: reads
//! and repairs of what is packed, where the member that has it whole cannot be read.
//!
//! Invariants:
//! * a shard is the value of a key in its first role if it has the version that the set names, and else the
//!   ghost of that version: a value that was overwritten is never taken for what was there before;
//! * what is computed has the length that the set names, and is given back under that version alone.

use crate::array::{Array, Place};
use crate::gather::Piece;
use crate::header::{HEADER_BYTES, Header};
use crate::manner::Manner;
use crate::member::{Verdict, verdict};
use crate::placement;
use crate::read::WRONG_OUTPUT;
use crate::set::{Packed, Set, Stub, VERSION_BYTES, ghost_key, lasting_key, set_key};
use futures_util::future::{Either, join_all, select};
use plimsoll_kv::{ContainerId, Device, Error, Form, Item, Op, Output, Request, Result, Version};
use std::pin::pin;
use std::rc::Rc;

/// A transaction waits so long for values of a set that others may hold.
const HELD_NS_MAX: u64 = 1_000_000_000;

/// What members that are in have of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SetState {
    /// All that they should have.
    Whole,
    /// One of them lacks what it should have, and none has what it cannot read: the set was not finished.
    Partial,
    /// One of them cannot read it: what others lack may be lost, too.
    Damaged,
}

/// A set's record as one of its holders has it.
pub(crate) struct Record {
    pub(crate) set: Set,
    pub(crate) number: usize,
    pub(crate) parity: Vec<u8>,
}

fn unreadable(what: &str) -> Error {
    Error::Unreadable(what.to_owned())
}

impl Set {
    pub(crate) fn form(&self) -> Form {
        Form::Packed { data: self.data, parities: self.parities() as u8 }
    }

    /// Bytes of its shards of data: of those that it lacks, none.
    pub(crate) fn lengths(&self) -> Vec<usize> {
        let mut lengths: Vec<usize> = self.values.iter().map(|value| value.value_bytes as usize).collect();
        lengths.resize(self.data.into(), 0);
        lengths
    }
}

/// A shard that a member is asked for, to compute another.
struct Asked<'a>(&'a Array, usize);

impl<'a> Asked<'a> {
    fn new(array: &'a Array, member: usize) -> Asked<'a> {
        *array.recovering.borrow_mut().entry(member).or_default() += 1;
        Asked(array, member)
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        *self.0.recovering.borrow_mut().entry(self.1).or_default() -= 1;
    }
}

impl Array {
    /// The piece that a stub stands for, from the rest of its set.
    pub(crate) async fn recovered(
        self: &Rc<Self>,
        place: &Place,
        stub: Piece,
        manner: &Manner,
    ) -> Result<Piece> {
        if !manner.is_within() {
            return self.recover(place, stub, manner).await;
        }
        // Others of the set may be held by a transaction that waits for this one.
        let end = pin!(self.reactor.sleep_ns(HELD_NS_MAX));
        match select(pin!(self.recover(place, stub, manner)), end).await {
            Either::Left((recovered, _)) => recovered,
            Either::Right(_) => Err(Error::Overloaded),
        }
    }

    async fn recover(self: &Rc<Self>, place: &Place, stub: Piece, manner: &Manner) -> Result<Piece> {
        let (header, named) = (stub.header.ok_or(WRONG_OUTPUT)?, stub.stub.ok_or(WRONG_OUTPUT)?);
        let mut failure = unreadable("no device that holds its set is in");
        // Any parity does: they take turns.
        let mut holders = named.holders.clone();
        let parities = holders.len() - 1;
        holders[..parities].rotate_left(place.id.1 as usize / 64 % parities);
        // Who has told where it is has done its part of the work.
        let told_by = self.member_of(place, stub.role);
        holders[..parities].sort_by_key(|holder| usize::from(*holder) == told_by);
        for holder in &holders {
            let Some(device) = self.readable(usize::from(*holder)) else { continue };
            let record = match self.record(&device, place.container, named.set, manner).await {
                Ok(record) => record,
                // The key is there all the same.
                Err(Error::NotFound) => {
                    failure = unreadable("its set is not where it should be");
                    continue;
                }
                Err(error) => {
                    failure = error;
                    continue;
                }
            };
            let is_it = |value: &Packed| value.version == header.version && value.key == place.key;
            let at = record.set.values.iter().position(is_it);
            let at = at.ok_or_else(|| unreadable("its set does not name it"))?;
            let bytes = self.lost_shard(place.container, record, (at, told_by), manner).await?;
            self.keep_behind(place, (&stub.item, header), (&named, &bytes), manner);
            let (header, item) = (Some(Header { is_stub: false, ..header }), Item { bytes, ..stub.item });
            return Ok(Piece { role: stub.role, item, header, stub: None, has_value: true });
        }
        Err(failure)
    }

    /// What members that are in have of the set that a stub names.
    pub(crate) async fn state_of_set(
        self: &Rc<Self>,
        container: ContainerId,
        stub: &Stub,
        manner: &Manner,
    ) -> Result<SetState> {
        let (mut found, mut is_partial, mut is_damaged) = (None, false, false);
        for holder in &stub.holders {
            let Some(device) = self.readable((*holder).into()) else { continue };
            match self.record(&device, container, stub.set, manner).await {
                Ok(record) => found = Some(record.set),
                Err(Error::NotFound) => is_partial = true,
                Err(error) if verdict(&error) == Verdict::Broken => is_damaged = true,
                Err(error) => return Err(error),
            }
        }
        let values = found.iter().flat_map(|set| set.values.iter().enumerate().map(move |it| (set, it)));
        for (set, (at, value)) in values {
            let Some(device) = self.readable(self.primary_of_value(set, at)) else { continue };
            match self.shard_at(&device, container, value, manner).await {
                Ok(_) => {}
                Err(Error::NotFound) => is_partial = true,
                Err(error) if verdict(&error) == Verdict::Broken => is_damaged = true,
                Err(error) => return Err(error),
            }
        }
        Ok(match (is_damaged, is_partial, found.is_some()) {
            (false, true, _) => SetState::Partial,
            (false, false, true) => SetState::Whole,
            (true, ..) | (false, false, false) => SetState::Damaged,
        })
    }

    /// The record of a set as a member has it.
    pub(crate) async fn record(
        &self,
        device: &Rc<dyn Device>,
        container: ContainerId,
        name: Version,
        manner: &Manner,
    ) -> Result<Record> {
        let (container, key) = (placement::sets(container), set_key(&self.tag, name));
        let request = self.past_holds(manner, container, &key);
        let item = match device.clone().execute(request).await?.output {
            Output::Found(item) => item,
            _ => return Err(WRONG_OUTPUT),
        };
        let (set, number, parity) = Set::decode(&item.bytes).map_err(unreadable)?;
        let is_known = self.forms.has(set.form()) && self.are_members(&set.holders);
        if set.name != name || !is_known {
            return Err(unreadable("a record of another set"));
        }
        Ok(Record { set, number, parity: parity.to_vec() })
    }

    /// Whether numbers that were stored are those of members.
    pub(crate) fn are_members(&self, numbers: &[u8]) -> bool {
        numbers.iter().all(|number| usize::from(*number) < self.count())
    }

    /// A shard of data that cannot be read, computed from as many others as it takes; one member is asked
    /// last.
    async fn lost_shard(
        self: &Rc<Self>,
        container: ContainerId,
        record: Record,
        (lost, last): (usize, usize),
        manner: &Manner,
    ) -> Result<Vec<u8>> {
        let Record { set, number, parity } = record;
        let (data, values) = (usize::from(set.data), set.values.len());
        let mut shards: Vec<Option<Vec<u8>>> = vec![None; data + set.parities()];
        shards[values..data].fill(Some(Vec::new()));
        if number < set.parities() {
            shards[data + number] = Some(parity);
        }
        let mut others: Vec<usize> =
            (0..shards.len()).filter(|at| *at != lost && shards[*at].is_none()).collect();
        // Who has least to do goes first, and of those alike who has told where the set is goes last.
        others.sort_by_cached_key(|at| {
            let member = self.member_of_shard(&set, *at);
            (self.recovering.borrow().get(&member).copied().unwrap_or(0), member == last)
        });
        let mut others = others.into_iter();
        while shards.iter().flatten().count() < data && others.len() > 0 {
            let lacking = data - shards.iter().flatten().count();
            let each = others.by_ref().take(lacking);
            let each = each.map(async |at| (at, self.shard_of_set(container, &set, at, manner).await));
            join_all(each).await.into_iter().for_each(|(at, shard)| shards[at] = shard);
        }
        let computed = self.computed(&set, &shards, lost);
        let computed = computed.map_err(|error| self.set_lacks(&set, &shards).unwrap_or(error));
        if let (Err(_), Some(untold)) = (&computed, self.seldom.no_value.due(self.reactor.now_ns())) {
            let missing: Vec<usize> = (0..shards.len()).filter(|at| shards[*at].is_none()).collect();
            tracing::error!(
                partition = self.partition,
                ?missing,
                ?set,
                untold,
                "a set does not give a value"
            );
        }
        computed
    }

    /// What a reader is told of a set of which too little is left: what it lacks, and how much of that would
    /// do. Nothing if that is not why.
    fn set_lacks(&self, set: &Set, shards: &[Option<Vec<u8>>]) -> Option<Error> {
        let lost = (0..shards.len()).filter(|at| shards[*at].is_none());
        let each: Vec<String> = lost
            .map(|at| {
                let what = if at < set.data.into() { "value" } else { "parity" };
                format!("the {what} on {}", self.name(self.member_of_shard(set, at)))
            })
            .collect();
        let needed = each.len().checked_sub(set.parities()).filter(|needed| *needed > 0)?;
        let lacks = each.join(", ");
        Some(Error::Unreadable(format!("its set lacks {lacks}; {needed} of these would do")))
    }

    /// The member that has a shard of a set: of data, or behind those of parity.
    fn member_of_shard(&self, set: &Set, at: usize) -> usize {
        match at.checked_sub(set.data.into()) {
            Some(number) => set.holders[number].into(),
            None => self.primary_of_value(set, at),
        }
    }

    /// A shard of a set, if its member can be read.
    async fn shard_of_set(
        self: &Rc<Self>,
        container: ContainerId,
        set: &Set,
        at: usize,
        manner: &Manner,
    ) -> Option<Vec<u8>> {
        let member = self.member_of_shard(set, at);
        let device = self.readable(member)?;
        let _asked = Asked::new(self, member);
        if at < set.data.into() {
            return self
                .shard_at(&device, container, &set.values[at], manner)
                .await
                .ok()
                .map(|(bytes, _)| bytes);
        }
        let record = self.record(&device, container, set.name, manner).await.ok()?;
        (record.set == *set).then_some(record.parity)
    }

    /// A shard of data from others.
    pub(crate) fn computed(&self, set: &Set, shards: &[Option<Vec<u8>>], lost: usize) -> Result<Vec<u8>> {
        let coder = self.forms.coder(set.form()).ok_or_else(|| unreadable("a set of no known form"))?;
        let shards: Vec<Option<&[u8]>> = shards.iter().map(Option::as_deref).collect();
        let found = coder.recover(&set.lengths(), &shards, &[lost]);
        found.map_err(|error| unreadable(&error.to_string()))?.pop().ok_or(WRONG_OUTPUT)
    }

    /// The member that has a value of a set whole.
    pub(crate) fn primary_of_value(&self, set: &Set, at: usize) -> usize {
        placement::primary(&set.values[at].key, self.count())
    }

    /// A value of a set as its member has it, or what it keeps of it; and whether it may expire there.
    pub(crate) async fn shard_at(
        &self,
        device: &Rc<dyn Device>,
        container: ContainerId,
        value: &Packed,
        manner: &Manner,
    ) -> Result<(Vec<u8>, bool)> {
        let (of, key) = (placement::container(container, 0), value.key.clone());
        let mut failure = Error::NotFound;
        match self.stored(device, (of, key), manner).await {
            Ok(Item { bytes, expiry_ms, .. }) => {
                if let Ok(bytes) = of_version(bytes, value) {
                    return Ok((bytes, expiry_ms.is_some()));
                }
            }
            // It may be what is asked for: that it cannot be read does not mean that it is not there.
            Err(error @ Error::Unreadable(_)) => failure = error,
            Err(_) => {}
        }
        let keys = [ghost_key(&self.tag, value.version), lasting_key(&self.tag, value.version)];
        for key in keys {
            match self.stored(device, (placement::sets(container), key), manner).await {
                Ok(Item { bytes: mut stored, .. }) => {
                    stored.drain(..VERSION_BYTES.min(stored.len()));
                    return of_version(stored, value).map(|bytes| (bytes, false));
                }
                Err(Error::NotFound) => {}
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    async fn stored(
        &self,
        device: &Rc<dyn Device>,
        (container, key): (ContainerId, Vec<u8>),
        manner: &Manner,
    ) -> Result<Item> {
        match device.clone().execute(self.past_holds(manner, container, &key)).await?.output {
            Output::Found(item) => Ok(item),
            _ => Err(WRONG_OUTPUT),
        }
    }

    /// Reads what a transaction that asks holds itself, as it holds everything; else as anybody.
    fn past_holds(&self, manner: &Manner, container: ContainerId, key: &[u8]) -> Request {
        match self.holds_everything(manner) {
            true => manner.retrieve(container, key, None, false),
            false => {
                let key = key.to_vec();
                manner.request(Op::Retrieve { container, key, range: None, pin: false })
            }
        }
    }
}

/// What stands behind the header, if that is of this value.
fn of_version(mut stored: Vec<u8>, value: &Packed) -> Result<Vec<u8>> {
    let header = Header::decode(&stored).map_err(unreadable)?;
    stored.drain(..HEADER_BYTES);
    if header.version != value.version || header.is_stub || stored.len() != value.value_bytes as usize {
        return Err(unreadable("another version"));
    }
    Ok(stored)
}
