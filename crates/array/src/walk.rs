//! Walking over keys: listing, scanning, counting.
//!
//! Place on the path: KEYS, SCAN, DBSIZE; rebuilding and scrubbing go the same way.
//!
//! Invariants:
//! * every key is told once: by the member that holds its first copy, or, if that is not in, by the next that
//!   holds one;
//! * a page of a scan ends where the first of the members' pages does, so that nothing behind it is skipped;
//!   what others have told beyond it they tell again.

use crate::array::{Array, Manner};
use crate::placement::{self, ARRAY_CONTAINERS};
use crate::read::WRONG_OUTPUT;
use crate::reconcile::Told;
use futures_util::future::join_all;
use plimsoll_kv::{ContainerId, Device, Error, ListPage, Op, Output, Result, ScanPage, Stats};
use std::rc::Rc;

/// A scan's position is a slot, and so many bits within it.
const SLOT_SHIFT: u32 = 40;

/// Where the keys of a primary are told: a member, and its container.
pub(crate) struct Source {
    pub(crate) device: Rc<dyn Device>,
    pub(crate) container: ContainerId,
    pub(crate) member: usize,
}

impl Array {
    /// Where the keys of a primary can be read; `None`: nowhere, or they never were elsewhere.
    pub(crate) fn source(&self, primary: usize, container: ContainerId) -> Option<Source> {
        (0..self.roles).find_map(|role| {
            let member = placement::member(primary, role, self.count());
            let device = self.readable(member)?;
            Some(Source { device, container: placement::container(container, role), member })
        })
    }

    /// Where all keys of a container are told; an error if some are told nowhere.
    fn sources(&self, container: ContainerId) -> Result<Vec<Source>> {
        if container.0 >= ARRAY_CONTAINERS {
            return Err(Error::Invalid("a container beyond those that an array has"));
        }
        let each = (0..self.count()).map(|primary| {
            self.source(primary, container).ok_or_else(|| {
                let members = (0..self.roles).map(|role| placement::member(primary, role, self.count()));
                let names: Vec<String> = members.map(|member| self.name(member)).collect();
                Error::Unreadable(format!("the keys of {} cannot be told: out", names.join(", ")))
            })
        });
        each.collect()
    }

    /// The same request wherever the keys of a container are told. A member that has failed is taken out, and
    /// its keys are told by others.
    async fn ask_sources(
        self: &Rc<Self>,
        container: ContainerId,
        manner: &Manner,
        op: impl Fn(ContainerId) -> Op,
    ) -> Result<Vec<Output>> {
        loop {
            let each = self.sources(container)?.into_iter().map(|source| {
                let asked = source.device.execute(manner.request(op(source.container)));
                async move { (source.member, asked.await) }
            });
            let (mut outputs, mut failed) = (Vec::new(), None);
            for (member, result) in join_all(each).await {
                match result {
                    Ok(completion) => outputs.push(completion.output),
                    Err(Error::ReadOnly(what)) => failed = Some((member, what)),
                    Err(error) => return Err(error),
                }
            }
            let Some((member, what)) = failed else { return Ok(outputs) };
            self.take_out_now(member, &what).await?;
        }
    }

    pub(crate) async fn list(
        self: &Rc<Self>,
        container: ContainerId,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
        manner: &Manner,
    ) -> Result<Output> {
        let (prefix, after) = (prefix.to_vec(), after.map(<[u8]>::to_vec));
        let op = |container| Op::List { container, prefix: prefix.clone(), after: after.clone(), limit };
        let mut outputs = self.ask_sources(container, manner, op).await?;
        let mut untold = self.untold(container).await?;
        untold.retain(|key| key.starts_with(&prefix) && after.as_ref().is_none_or(|after| key > after));
        outputs.push(Output::Listed(ListPage { keys: untold, more: false }));
        let pages = outputs.into_iter().map(|output| match output {
            Output::Listed(page) => Ok(page),
            _ => Err(WRONG_OUTPUT),
        });
        Ok(Output::Listed(ListPage::merge(pages.collect::<Result<_>>()?, limit)))
    }

    pub(crate) async fn scan(
        self: &Rc<Self>,
        container: ContainerId,
        cursor: u64,
        limit: usize,
        manner: &Manner,
    ) -> Result<Output> {
        let share = limit.div_ceil(self.count());
        let op = |container| Op::Scan { container, cursor, limit: share };
        let mut merged = ScanPage { keys: Vec::new(), cursor: u64::MAX };
        if cursor.trailing_zeros() >= SLOT_SHIFT {
            merged.keys = self.untold(container).await?;
        }
        for output in self.ask_sources(container, manner, op).await? {
            let Output::Scanned(page) = output else { return Err(WRONG_OUTPUT) };
            merged.keys.extend(page.keys);
            if page.cursor != 0 {
                merged.cursor = merged.cursor.min(page.cursor);
            }
        }
        if merged.cursor == u64::MAX {
            merged.cursor = 0;
        }
        Ok(Output::Scanned(merged))
    }

    /// Keys that are there, though who tells of them has not got them: on full devices a key may wait for
    /// room.
    async fn untold(self: &Rc<Self>, container: ContainerId) -> Result<Vec<Vec<u8>>> {
        let compared = self.compared(container).await?.into_iter();
        let untold = compared.filter(|(_, right, told)| *told == Told::Absent && *right != Told::Absent);
        Ok(untold.map(|(key, ..)| key).collect())
    }

    /// Of the keys that may differ between members: what is right, and what is told where keys are told.
    async fn compared(self: &Rc<Self>, container: ContainerId) -> Result<Vec<(Vec<u8>, Told, Told)>> {
        let unsettled = self.unsettled.borrow().clone().into_iter().filter(|(of, _)| *of == container);
        let mut compared = Vec::new();
        for (_, key) in unsettled {
            let place = self.place(container, &key)?;
            let told = self.ask_all(&place).await?;
            let Some((_, at_source)) = told.first().cloned() else { continue };
            let right = told.into_iter().map(|(_, told)| told).max_by_key(Told::version);
            compared.push((key, right.unwrap_or(Told::Absent), at_source));
        }
        Ok(compared)
    }

    /// The counters of a container: keys once, bytes of all their copies.
    pub(crate) async fn stats(self: &Rc<Self>, container: ContainerId, manner: &Manner) -> Result<Output> {
        let mut sum = Stats::default();
        for output in self.ask_sources(container, manner, |container| Op::Stats { container }).await? {
            let Output::Stats(stats) = output else { return Err(WRONG_OUTPUT) };
            sum.keys += stats.keys;
            sum.expiring_keys += stats.expiring_keys;
        }
        for (_, right, told) in self.compared(container).await? {
            let expires = |told: &Told| u64::from(told.expiry_ms().is_some());
            let is_there = |told: &Told| u64::from(*told != Told::Absent);
            sum.keys = (sum.keys + is_there(&right)).saturating_sub(is_there(&told));
            sum.expiring_keys = (sum.expiring_keys + expires(&right)).saturating_sub(expires(&told));
        }
        for member in 0..self.count() {
            let Some(device) = self.readable(member) else { continue };
            sum.bytes += stored_bytes(&device, container, self.roles, manner).await?;
        }
        Ok(Output::Stats(sum))
    }

    /// Everything acknowledged is durable on every member that is in.
    pub(crate) async fn sync(self: &Rc<Self>, manner: &Manner) -> Result<Output> {
        let each = (0..self.count()).map(|member| (member, manner.request(Op::Sync)));
        let sent = self.send(each.collect()).await?;
        sent.refused.map_or(Ok(Output::Done), Err)
    }
}

/// Bytes of a container's copies on a member, in all roles.
async fn stored_bytes(
    device: &Rc<dyn Device>,
    container: ContainerId,
    copies: usize,
    manner: &Manner,
) -> Result<u64> {
    let mut bytes = 0;
    for role in 0..copies {
        let op = Op::Stats { container: placement::container(container, role) };
        let Output::Stats(stats) = device.clone().execute(manner.request(op)).await?.output else {
            return Err(WRONG_OUTPUT);
        };
        bytes += stats.bytes;
    }
    Ok(bytes)
}
