//! Filling: what a member that comes in is given of sets.
//!
//! Role: walks over all sets, each once, and gives a new member the records that it should hold; of values
//! it has been given what their keys have. Place on the path: none; behind the rebuilding of keys. Scrubbing
//! walks the same way.
//!
//! Invariants:
//! * a set is told once, whoever holds records of it;
//! * all keys of a set are held while a record of it is made;
//! * a record that the member has is right: it was given it before the server ended, perhaps, and what a set
//!   is never changes under its name;
//! * whatever is not plain (others are out, too; a value of the set that was overwritten) is left to `sets`,
//!   which looks at everything.

use crate::array::Array;
use crate::manner::Manner;
use crate::member::gives_nothing;
use crate::open::background;
use crate::placement;
use crate::read::WRONG_OUTPUT;
use crate::roster::MemberState;
use crate::set::{Packed, Set, set_key, set_named, set_prefix};
use crate::sets::Mended;
use crate::walk::PAGE_KEYS;
use futures_util::future::join_all;
use futures_util::stream::{self, Stream, TryStreamExt};
use plimsoll_kv::{Condition, ContainerId, Device, Error, Form, Op, Output, Result, Version};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Bytes of most descriptions of sets, at least: a longer one is read whole.
const DESCRIPTION_BYTES: u64 = 1024;

/// A set, and the members that say that they have a record of it.
pub(crate) type Told = (Version, Vec<usize>);

impl Array {
    /// All sets of a container: the next page of them is asked for while the last one is looked through.
    pub(crate) fn each_set(self: &Rc<Self>, container: ContainerId) -> impl Stream<Item = Result<Told>> {
        let pages = stream::try_unfold(None, move |mut after| async move {
            let page = self.next_sets(container, &mut after).await?;
            Ok::<_, Error>(page.map(|page| (stream::iter(page.into_iter().map(Ok)), after)))
        });
        pages.try_flatten()
    }

    /// The next sets behind a key, in the order of their keys; nothing at the end.
    async fn next_sets(
        self: &Rc<Self>,
        container: ContainerId,
        after: &mut Option<Vec<u8>>,
    ) -> Result<Option<Vec<Told>>> {
        let op = Op::List {
            container: placement::sets(container),
            prefix: set_prefix(&self.tag),
            after: after.clone(),
            limit: PAGE_KEYS,
        };
        let readable = (0..self.count()).filter_map(|member| Some((member, self.readable(member)?)));
        let pages = readable.map(async |(member, device)| (member, background(&device, op.clone()).await));
        let mut told: BTreeMap<Vec<u8>, Vec<usize>> = BTreeMap::new();
        // A page may end early: of what follows its last key nothing is known yet.
        let mut known: Option<Vec<u8>> = None;
        let mut failures = Vec::new();
        for (member, page) in join_all(pages).await {
            let page = match page {
                Ok(Output::Listed(page)) => page,
                Ok(_) => return Err(WRONG_OUTPUT),
                Err(error) => {
                    self.untold(member, error.clone()).await?;
                    failures.push((member, error));
                    continue;
                }
            };
            if page.more {
                let last = page.keys.last().cloned();
                known = known.into_iter().chain(last).min();
            }
            page.keys.into_iter().for_each(|key| told.entry(key).or_default().push(member));
        }
        if let Some((_, error)) = failures.first()
            && !self.sets_are_told(|member| failures.iter().any(|(failed, _)| *failed == member))
        {
            return Err(error.clone());
        }
        told.retain(|key, _| known.as_ref().is_none_or(|known| key <= known));
        let Some((last, _)) = told.last_key_value() else { return Ok(None) };
        *after = Some(last.clone());
        let named = |(key, members): (Vec<u8>, _)| Some((set_named(&self.tag, &key)?, members));
        Ok(Some(told.into_iter().filter_map(named).collect()))
    }

    /// Whether those that are in tell of every set that anybody relies on, without some that cannot: of its
    /// holders, one more than parities, one is among them.
    pub(crate) fn sets_are_told(&self, cannot: impl Fn(usize) -> bool) -> bool {
        let silent = (0..self.count()).filter(|member| self.readable(*member).is_none() || cannot(*member));
        let parities = self.forms.each().filter(|form| form.is_packed()).map(|form| form.roles() - 1);
        silent.count() <= parities.min().unwrap_or(0)
    }

    /// A member cannot tell which sets it has, so others have to: of the holders of a set as many may be lost
    /// as it has parities. It may fail for good where nobody writes, and so nobody finds out (seed 7513).
    async fn untold(self: &Rc<Self>, member: usize, error: Error) -> Result<()> {
        match error {
            Error::ReadOnly(what) => self.take_out_now(member, &what).await,
            Error::Unreadable(_) => {
                let device = self.name(member);
                tracing::warn!(partition = self.partition, device, %error, "sets are told by other devices");
                self.note(member, |status| status.failed_requests += 1);
                Ok(())
            }
            error => Err(error),
        }
    }

    /// A set as one of some members has it that has a right record: they take turns.
    pub(crate) async fn set_told(
        &self,
        container: ContainerId,
        (name, members): &Told,
    ) -> Result<Option<(Set, Rc<dyn Device>)>> {
        let first = name.clock as usize % members.len();
        let (before, from_first) = members.split_at(first);
        for device in from_first.iter().chain(before).filter_map(|member| self.readable(*member)) {
            match self.described(&device, container, *name).await {
                Ok(set) => return Ok(Some((set, device))),
                // Another has it, and writes it again.
                Err(error) if gives_nothing(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// A set as a record of it describes it, of which no more is read than that takes.
    pub(crate) async fn described(
        &self,
        device: &Rc<dyn Device>,
        container: ContainerId,
        name: Version,
    ) -> Result<Set> {
        let (of, key) = (placement::sets(container), set_key(&self.tag, name));
        let range = Some((0, DESCRIPTION_BYTES));
        let op = Op::Retrieve { container: of, key, range, pin: false };
        let Output::Found(item) = background(device, op).await? else { return Err(WRONG_OUTPUT) };
        match Set::decode(&item.bytes) {
            Ok((set, ..))
                if set.name == name && self.forms.has(set.form()) && self.are_members(&set.holders) =>
            {
                Ok(set)
            }
            _ => self.record(device, container, name, &Manner::background()).await.map(|record| record.set),
        }
    }

    /// Whether a record of a set has gone since a member told it.
    pub(crate) async fn has_gone(
        &self,
        device: &Rc<dyn Device>,
        container: ContainerId,
        name: Version,
    ) -> bool {
        let (container, key) = (placement::sets(container), set_key(&self.tag, name));
        let op = Op::Retrieve { container, key, range: Some((0, 0)), pin: false };
        matches!(background(device, op).await, Err(Error::NotFound))
    }

    /// Gives a member the record of a set that it should hold, where nothing else is to be done; what was
    /// written. Nothing where it takes more to tell.
    pub(crate) async fn fill_set(
        self: &Rc<Self>,
        container: ContainerId,
        (set, source): (&Set, &Rc<dyn Device>),
        member: usize,
    ) -> Result<Option<Mended>> {
        if !self.may_fill(member) {
            return Ok(None);
        }
        let its = (0..set.values.len()).find(|at| self.primary_of_value(set, *at) == member);
        if let Some(at) = its
            && !self.was_given(container, (set, &set.values[at])).await?
        {
            return Ok(None);
        }
        let Some(number) = set.holders.iter().position(|holder| usize::from(*holder) == member) else {
            return Ok(Some(Mended::default()));
        };
        // It was given it before the server ended, perhaps.
        let Some(device) = self.writable(member) else { return Ok(Some(Mended::default())) };
        if self.has_record(&device, container, set).await? {
            return Ok(Some(Mended::default()));
        }
        let (_guards, _) = self.hold_set(container, set).await?;
        if self.has_gone(source, container, set.name).await {
            return Ok(Some(Mended::default()));
        }
        let Some(record) = self.record_for(container, set, number).await? else { return Ok(None) };
        let (bytes, key) = (record.len() as u64, set_key(&self.tag, set.name));
        let mut store = Op::store(placement::sets(container), key, record);
        if let Op::Store { condition, .. } = &mut store {
            *condition = Condition::MustNotExist;
        }
        match self.in_time(device, Manner::background().request(store).keeping()).await {
            Ok(_) => {
                self.note(member, |status| status.copied_bytes += bytes);
                Ok(Some(Mended { bytes, ..Mended::default() }))
            }
            // One is there, or the member takes no writes: what becomes of it is decided where they are sent.
            Err(_) => Ok(None),
        }
    }

    /// Whether what a member lacks of sets can be told by others: all of them are in and sure of what they
    /// have, and with more than one parity there is always another that knows whose stubs it lacks.
    pub(crate) fn may_fill(&self, member: usize) -> bool {
        let has_others = |form: Form| !form.is_packed() || form.roles() > 2;
        self.forms.each().all(has_others) && !self.distrusted.get() && !self.are_out_beside(member)
    }

    /// Whether others than this one are not in.
    pub(crate) fn are_out_beside(&self, member: usize) -> bool {
        (0..self.count()).any(|other| other != member && self.state(other) != MemberState::In)
    }

    /// Whether a value of a set is what its key holds, as one of those says that have a stub: then its member
    /// was given it.
    async fn was_given(
        self: &Rc<Self>,
        container: ContainerId,
        (set, value): (&Set, &Packed),
    ) -> Result<bool> {
        let place = self.place(container, &value.key)?;
        let role = self.teller(&place);
        let Some(device) = self.readable(self.member_of(&place, role)) else { return Ok(false) };
        let piece = self.read_piece(&device, &place, role, Some((0, 0)), &Manner::background()).await;
        Ok(piece.is_ok_and(|piece| {
            let is_of_it = piece.header.is_some_and(|header| header.version == value.version);
            let is_in_it = piece.stub.is_some_and(|stub| stub.set == set.name);
            is_of_it && is_in_it && piece.item.expiry_ms.is_none()
        }))
    }

    /// The record of a set that its holder with this number should have; nothing if a value cannot be read.
    async fn record_for(
        self: &Rc<Self>,
        container: ContainerId,
        set: &Set,
        number: usize,
    ) -> Result<Option<Vec<u8>>> {
        if number == set.parities() {
            return Ok(Some(set.record(number, &[])));
        }
        let values = set.values.iter().enumerate().map(async |(at, value)| {
            let device = self.readable(self.primary_of_value(set, at))?;
            let shard = self.shard_at(&device, container, value, &Manner::background()).await.ok()?;
            // What may expire there is kept for the set first.
            (!shard.1).then_some(shard.0)
        });
        let values: Option<Vec<Vec<u8>>> = join_all(values).await.into_iter().collect();
        let Some(values) = values else { return Ok(None) };
        let data: Vec<&[u8]> = values.iter().map(Vec::as_slice).collect();
        Ok(Some(self.records(set, &data).swap_remove(number)))
    }
}
