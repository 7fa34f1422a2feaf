//! Walking over keys: listing and counting; who is asked.
//!
//! Place on the path: KEYS, DBSIZE, and SCAN (`scan`); rebuilding and scrubbing go the same way.
//!
//! Invariants:
//! * every key is told once: by the member that holds its first copy, or, if that is not in, by the next that
//!   holds one.

use crate::array::{Array, Place};
use crate::manner::Manner;
use crate::open::background;
use crate::placement::{self, ARRAY_CONTAINERS};
use crate::read::{STALL_NS, WRONG_OUTPUT};
use crate::told::{Proof, Told};
use futures_util::future::try_join_all;
use plimsoll_kv::{ContainerId, Device, Error, ListPage, Op, Output, Result, Stats};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Keys of a page.
pub(crate) const PAGE_KEYS: usize = 256;

/// Unsettled keys that are looked at together.
const LOOKS: usize = 32;

/// An unsettled key, as members told it.
struct Looked {
    place: Place,
    told: Vec<(usize, Told)>,
}

type LookedAt = BTreeMap<Vec<u8>, Looked>;

/// Where the keys of a primary are told: a member, and its container.
pub(crate) struct Source {
    pub(crate) device: Rc<dyn Device>,
    pub(crate) container: ContainerId,
    pub(crate) member: usize,
}

impl Source {
    pub(crate) async fn ask(&self, manner: &Manner, op: Op) -> Result<Output> {
        self.device.clone().execute(manner.request(op)).await.map(|done| done.output)
    }
}

/// After which key a place of a walk is to be gone on with that was cut short at another, behind a key;
/// nothing if it was through with that place.
pub(crate) fn rest<P: Ord>(from: Option<(P, &[u8])>, of: P) -> Option<Option<Vec<u8>>> {
    let Some((place, after)) = from else { return Some(None) };
    match of.cmp(&place) {
        Ordering::Less => None,
        Ordering::Equal => Some(Some(after.to_vec())),
        Ordering::Greater => Some(None),
    }
}

impl Array {
    /// Whose keys a member holds in a role.
    pub(crate) fn primary_of(&self, member: usize, role: usize) -> usize {
        placement::primary_of(member, role, self.count())
    }

    /// Where the keys of a primary can be read, among the first of its roles.
    pub(crate) fn sources(
        &self,
        (primary, roles): (usize, usize),
        container: ContainerId,
    ) -> impl Iterator<Item = Source> + use<'_> {
        (0..roles).filter_map(move |role| {
            let member = placement::member(primary, role, self.count());
            let device = self.readable(member)?;
            Some(Source { device, container: placement::container(container, role), member })
        })
    }

    /// The same request wherever the keys of a container are told: for each primary, who answered, and what.
    pub(crate) async fn ask_sources(
        self: &Rc<Self>,
        container: ContainerId,
        manner: &Manner,
        op: impl Fn(ContainerId) -> Op,
    ) -> Result<Vec<(usize, Output)>> {
        if container.0 >= ARRAY_CONTAINERS {
            return Err(Error::Invalid("a container beyond those that an array has"));
        }
        // Those that every key is told by.
        let roles = self.forms.sure_roles();
        let each = (0..self.count()).map(|it| self.ask_source((it, roles), container, manner, &op));
        try_join_all(each).await
    }

    /// Asks for the keys of one primary: the first that can tell them.
    pub(crate) async fn ask_source(
        self: &Rc<Self>,
        (primary, roles): (usize, usize),
        container: ContainerId,
        manner: &Manner,
        op: impl Fn(ContainerId) -> Op,
    ) -> Result<(usize, Output)> {
        let ask = async |source: &Source| source.ask(manner, op(source.container)).await;
        self.first_that_tells((primary, roles), container, ask).await
    }

    /// What the first that can tell of the keys of one primary does, and which member that is. One that has
    /// failed is taken out.
    pub(crate) async fn first_that_tells<T>(
        self: &Rc<Self>,
        (primary, roles): (usize, usize),
        container: ContainerId,
        ask: impl AsyncFn(&Source) -> Result<T>,
    ) -> Result<(usize, T)> {
        let (mut failure, mut tried) = (None, Vec::new());
        // One that was not in when this began may be by the time that others have failed.
        while let Some(source) =
            self.sources((primary, roles), container).find(|source| !tried.contains(&source.member))
        {
            let member = source.member;
            tried.push(member);
            match ask(&source).await {
                Ok(told) => return Ok((member, told)),
                Err(Error::ReadOnly(what)) => self.take_out_now(member, &what).await?,
                Err(error @ Error::Unreadable(_)) => {
                    let device = self.name(member);
                    tracing::warn!(partition = self.partition, device, %error, "keys are told by another device");
                    self.note(member, |status| status.failed_requests += 1);
                    failure = Some(error);
                }
                Err(error) => return Err(error),
            }
        }
        Err(failure.unwrap_or_else(|| {
            let members = (0..roles).map(|role| placement::member(primary, role, self.count()));
            let names: Vec<String> = members.map(|member| self.name(member)).collect();
            Error::Unreadable(format!("the keys of {} cannot be told: out", names.join(", ")))
        }))
    }

    /// The next page of the keys of a primary, as the first tells them that can, and where it ended; nothing
    /// at the end.
    pub(crate) async fn next_keys(
        self: &Rc<Self>,
        primary: usize,
        container: ContainerId,
        after: &mut Option<Vec<u8>>,
    ) -> Result<Option<Vec<Vec<u8>>>> {
        let list = |container| page_op(container, after);
        let manner = Manner::background();
        let (_, listed) = self.ask_source((primary, self.roles), container, &manner, list).await?;
        Ok(page_of(listed, after))
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
        let mut unsettled = self.unsettled_keys(container).await?;
        unsettled.retain(|key| key.starts_with(&prefix) && after.as_ref().is_none_or(|after| key > after));
        let mut pages = vec![ListPage { keys: unsettled, more: false }];
        for (_, output) in self.ask_sources(container, manner, op).await? {
            let Output::Listed(page) = output else { return Err(WRONG_OUTPUT) };
            pages.push(page);
        }
        Ok(Output::Listed(ListPage::merge(pages, limit)))
    }

    /// Keys that are there, though who tells of the others may lack them: on full devices a key may wait for
    /// room. They are looked at first: what is settled meanwhile is told twice, and nothing not at all. Who
    /// asks may hold them itself.
    pub(crate) async fn unsettled_keys(self: &Rc<Self>, container: ContainerId) -> Result<Vec<Vec<u8>>> {
        let (manner, mut keys) = (Manner::background(), Vec::new());
        for some in self.unsettled_of(container).chunks(LOOKS) {
            let looked_at = self.look_aside(container, some.iter(), &manner).await?;
            let is_there = |(_, looked): &(_, Looked)| self.exists(&looked.told);
            keys.extend(looked_at.into_iter().filter(is_there).map(|(key, _)| key));
        }
        Ok(keys)
    }

    fn unsettled_of(&self, container: ContainerId) -> Vec<Vec<u8>> {
        let unsettled = self.unsettled.borrow();
        unsettled.iter().filter(|(of, _)| *of == container).map(|(_, key)| key.clone()).collect()
    }

    /// The counters of a container: keys once, bytes of all their copies. It waits for nobody's keys: who
    /// holds some may wait for who counts. Where keys go on being found to differ it ends all the same, with
    /// an error: who writes waits for who counts.
    pub(crate) async fn stats(self: &Rc<Self>, container: ContainerId, manner: &Manner) -> Result<Output> {
        let (mut looked_at, mut counts_since_ns) = (LookedAt::new(), None);
        let mut sum = loop {
            let unsettled = self.unsettled_of(container);
            let new = unsettled.iter().filter(|key| !looked_at.contains_key(*key)).take(LOOKS);
            let new = self.look_aside(container, new, manner).await?;
            if !new.is_empty() {
                looked_at.extend(new);
                continue;
            }
            // What was made whole meanwhile is told as it is by now.
            looked_at.retain(|key, _| unsettled.contains(key));
            let now_ns = self.reactor.now_ns();
            if now_ns - *counts_since_ns.get_or_insert(now_ns) > STALL_NS {
                return Err(Error::Overloaded);
            }
            let Some(counted) = self.count_keys(container, &looked_at, manner).await? else {
                looked_at.clear();
                continue;
            };
            if self.unsettled_of(container) != unsettled {
                continue;
            }
            // Who holds a key may be making it whole: it was counted as what it was, or what it is.
            let is_held = |Looked { place, .. }: &Looked| !self.locks.is_free(place.id.0, place.id.1);
            let held = looked_at.iter().filter(|(_, looked)| is_held(looked));
            let again = self.look_aside(container, held.map(|(key, _)| key), manner).await?;
            if again.iter().all(|(key, Looked { told, .. })| looked_at[key].told == *told) {
                break counted;
            }
            looked_at.extend(again);
        };
        for member in 0..self.count() {
            let Some(device) = self.readable(member) else { continue };
            let sets = self.forms.has_packed().then(|| placement::sets(container));
            let below = (0..self.roles).map(|role| placement::container(container, role)).chain(sets);
            sum.bytes += stored_bytes(&device, below, manner).await?;
        }
        Ok(Output::Stats(sum))
    }

    /// What members have of some keys, whoever holds them.
    async fn look_aside(
        self: &Rc<Self>,
        container: ContainerId,
        keys: impl Iterator<Item = &Vec<u8>>,
        manner: &Manner,
    ) -> Result<LookedAt> {
        let aside = manner.aside(self.partition);
        let look = async |key: &Vec<u8>| -> Result<(Vec<u8>, Looked)> {
            let place = self.place(container, key)?;
            let told = self.ask_all(&place, Proof::Record, &aside).await?;
            Ok((key.clone(), Looked { place, told }))
        };
        Ok(try_join_all(keys.map(look)).await?.into_iter().collect())
    }

    /// Keys as they are told, with the unsettled ones as they should be told; nothing if others tell them by
    /// now.
    async fn count_keys(
        self: &Rc<Self>,
        container: ContainerId,
        unsettled: &LookedAt,
        manner: &Manner,
    ) -> Result<Option<Stats>> {
        let (mut sum, mut tellers) = (Stats::default(), Vec::new());
        for (member, output) in
            self.ask_sources(container, manner, |container| Op::Stats { container }).await?
        {
            let Output::Stats(stats) = output else { return Err(WRONG_OUTPUT) };
            sum.keys += stats.keys;
            sum.expiring_keys += stats.expiring_keys;
            tellers.push(member);
        }
        for Looked { place, told } in unsettled.values() {
            let is_teller = |role: usize| self.member_of(place, role) == tellers[place.primary];
            let Some((_, at_source)) = told.iter().find(|(role, _)| is_teller(*role)) else {
                return Ok(None);
            };
            let right = self.right(told);
            let (is_there, was_told) = (self.exists(told), *at_source != Told::Absent);
            let expires = |told: &Told| u64::from(told.expiry_ms().is_some());
            let count = |right: u64, told: u64, sum: u64| (sum + right).saturating_sub(told);
            sum.keys = count(u64::from(is_there), u64::from(was_told), sum.keys);
            sum.expiring_keys = count(expires(&right), expires(at_source), sum.expiring_keys);
        }
        Ok(Some(sum))
    }

    /// Everything acknowledged is durable on every member that is in.
    pub(crate) async fn sync(self: &Rc<Self>, manner: &Manner) -> Result<Output> {
        let each = (0..self.count()).map(|member| (member, manner.request(Op::Sync)));
        let sent = self.send(each.collect()).await?;
        sent.refused.map_or(Ok(Output::Done), Err)
    }
}

/// Bytes of what stands in some containers of a member.
async fn stored_bytes(
    device: &Rc<dyn Device>,
    containers: impl Iterator<Item = ContainerId>,
    manner: &Manner,
) -> Result<u64> {
    let mut bytes = 0;
    for container in containers {
        let op = Op::Stats { container };
        let Output::Stats(stats) = device.clone().execute(manner.request(op)).await?.output else {
            return Err(WRONG_OUTPUT);
        };
        bytes += stats.bytes;
    }
    Ok(bytes)
}

/// The next page of keys of a member, and where it ended; nothing at the end.
pub(crate) async fn page(source: &Source, after: &mut Option<Vec<u8>>) -> Result<Option<Vec<Vec<u8>>>> {
    let listed = background(&source.device, page_op(source.container, after)).await?;
    Ok(page_of(listed, after))
}

fn page_op(container: ContainerId, after: &Option<Vec<u8>>) -> Op {
    Op::List { container, prefix: Vec::new(), after: after.clone(), limit: PAGE_KEYS }
}

/// The keys of a page, and where it ended; nothing at the end.
fn page_of(listed: Output, after: &mut Option<Vec<u8>>) -> Option<Vec<Vec<u8>>> {
    let Output::Listed(page) = listed else { return None };
    *after = Some(page.keys.last()?.clone());
    Some(page.keys)
}
