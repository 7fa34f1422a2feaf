//! Opening an array: what its last end left half done.
//!
//! Role: begins a new epoch with those who belong to it (`join`), brings transactions among the members to
//! their ends, and names the keys that have to be compared before they are used. Place on the path: after the
//! members' partitions are open, before any request.
//!
//! Invariant: the epoch of this opening is durable on the members before it is used.

use crate::array::{Array, ArrayOptions};
use crate::join::{OpenError, join};
use crate::journal::named;
use crate::manner::Manner;
use crate::member::Joining;
use crate::named::Entries;
use crate::placement::{self, JOURNAL};
use crate::roster::MemberState;
use crate::walk::{Source, page};
use plimsoll_kv::{Condition, ContainerId, Device, Error, Op, Output};
use plimsoll_reactor::{Reactor, Work};
use std::rc::Rc;

/// An entry of a member's journal that cannot be read.
pub(crate) struct Rotten {
    member: usize,
    entry: Vec<u8>,
}

/// What a journal says.
#[derive(Default)]
pub(crate) struct Journaled {
    /// Keys that may be half written.
    pub(crate) entries: Entries,
    rotten: Vec<Rotten>,
}

impl Journaled {
    pub(crate) fn keys(self) -> impl Iterator<Item = (ContainerId, Vec<u8>)> {
        self.entries.into_values().flatten().map(|(_, key)| key)
    }

    /// Adds what another member's says.
    pub(crate) fn add(&mut self, other: Journaled) {
        for (number, mut by) in other.entries {
            self.entries.entry(number).or_default().append(&mut by);
        }
        self.rotten.extend(other.rotten);
    }
}

impl Array {
    /// Opens an array, or makes one of empty devices.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub async fn open(
        reactor: &Reactor,
        partition: u16,
        partitions: u16,
        members: Vec<Joining>,
        options: ArrayOptions,
    ) -> Result<Rc<Array>, OpenError> {
        let tag = placement::tag(partition, partitions);
        let (mut roster, members) = join(reactor, &tag, members, &options).await?;
        roster.opens += 1;
        roster.epoch += 1;
        let array = Array::assemble(reactor, (partition, partitions), members, roster, options);
        let failed = |error| OpenError::Device { name: "the array".to_owned(), error };
        array.roster_settled().await.map_err(failed)?;
        // All have that one: whoever comes with an older one from now on was put back to an earlier time.
        array.roster.borrow_mut().epoch += 1;
        array.roster_settled().await.map_err(failed)?;
        let were_all_applied = array.resolve().await.map_err(failed)?;
        let mut left = array.read_journal().await.map_err(failed)?;
        array.go_on_filling(were_all_applied, &mut left).await.map_err(failed)?;
        array.begin_background(left).await.map_err(failed)?;
        Ok(array)
    }

    /// The keys that the journals of the members name have to be compared. Gives back what they say.
    async fn read_journal(self: &Rc<Self>) -> plimsoll_kv::Result<Journaled> {
        let mut all = Journaled::default();
        for member in 0..self.count() {
            if let Some(device) = self.readable(member) {
                all.add(self.named_by(member, &device).await?);
            }
        }
        let named = all.entries.values().flatten();
        named.for_each(|(_, key)| self.may_be_cut_short(key.clone()));
        let lacks_mark = self.lacks_mark().await?;
        if lacks_mark {
            self.distrust();
        }
        Ok(all)
    }

    /// The keys that a member's journal names, and its entries that cannot be read.
    pub(crate) async fn named_by(
        &self,
        member: usize,
        device: &Rc<dyn Device>,
    ) -> plimsoll_kv::Result<Journaled> {
        let source = Source { device: device.clone(), container: JOURNAL, member };
        let (mut after, mut all) = (None, Journaled::default());
        while let Some(entries) = page(&source, &mut after).await? {
            for key in entries {
                let op = Op::Retrieve { container: JOURNAL, key: key.clone(), range: None, pin: false };
                match background(device, op).await {
                    Ok(Output::Found(item)) => {
                        if let (Some(number), Some(key)) = (self.journal.number(&key), named(&item.bytes)) {
                            all.entries.entry(number).or_default().push((member, key));
                        }
                    }
                    Ok(_) | Err(Error::NotFound) => {}
                    // Which key that was is not known: all are compared.
                    Err(Error::Unreadable(_)) => {
                        self.distrust();
                        all.rotten.push(Rotten { member, entry: key });
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(all)
    }

    /// Takes away what cannot be read of the journals, before any slot is used: that every key is compared is
    /// told without it, by the mark that is gone.
    async fn drop_rotten(self: &Rc<Self>, all: Vec<Rotten>) -> plimsoll_kv::Result<()> {
        assert!(all.is_empty() || self.distrusted.get() && !self.marked.get(), "every key is compared");
        for Rotten { member, entry } in all {
            let device = self.name(member);
            tracing::warn!(partition = self.partition, device, "what named a half-written key has rotted");
            let delete = Op::Delete { container: JOURNAL, key: entry, condition: Condition::None };
            let deleted = self.sent_one(member, delete).await;
            self.unless_out(member, deleted)?;
        }
        Ok(())
    }

    /// Begins to make the keys whole that may not be, though nobody asks for them.
    pub(crate) fn settle_soon(self: &Rc<Self>) {
        let array = self.clone();
        self.spawn(Work::Background, async move { array.settle_in_time().await });
    }

    /// The same; when they are the next start has to compare no others.
    pub(crate) fn settle_and_mark(self: &Rc<Self>) {
        let array = self.clone();
        self.spawn(Work::Background, async move {
            while array.settles.get() && !array.closing.get() {
                array.rest_until(array.reactor.now_ns() + SETTLE_RETRY_NS).await;
            }
            array.settle_in_time().await;
            let is_whole = || !array.closing.get() && !array.distrusted.get() && !array.awaits_named();
            if is_whole() {
                array.delete_names().await;
            }
            if is_whole()
                && let Err(error) = array.mark_named().await
            {
                tracing::warn!(partition = array.partition, %error, "the next start compares every key");
            }
        });
    }

    /// Makes them whole, unless that is under way.
    async fn settle_in_time(self: &Rc<Self>) {
        if self.settles.replace(true) {
            return;
        }
        let mut retry_ns = SETTLE_RETRY_NS;
        while !self.closing.get() {
            match self.settle_all(false).await {
                Ok(0) => break,
                Ok(keys) => tracing::warn!(partition = self.partition, keys, "keys are compared again later"),
                Err(error) => {
                    tracing::warn!(partition = self.partition, %error, "keys are compared again later")
                }
            }
            self.rest_until(self.reactor.now_ns() + retry_ns).await;
            retry_ns = (2 * retry_ns).min(SETTLE_RETRY_NS_MAX);
        }
        self.settles.set(false);
    }

    /// True while a member is not in whose journal, as it was, names keys: it has not been compared.
    pub(crate) fn awaits_named(&self) -> bool {
        self.members.borrow().iter().any(|member| !member.named.is_empty())
    }

    /// Compares what has to be compared, and goes on with what the last end interrupted.
    async fn begin_background(
        self: &Rc<Self>,
        Journaled { entries, rotten }: Journaled,
    ) -> plimsoll_kv::Result<()> {
        if self.unsettled.borrow().is_empty() && !self.distrusted.get() && !self.awaits_named() {
            self.mark_named().await?;
        } else {
            self.marked.set(true);
            if self.distrusted.get() || !self.name_everywhere(&entries).await? {
                self.unmark_named().await?;
            }
        }
        self.settle_and_mark();
        if self.distrusted.get() {
            let what = match rotten.is_empty() {
                true => {
                    "nothing says that those at work were named: there was no room for it, or it has rotted"
                }
                false => "what named those at work when the server ended has rotted",
            };
            tracing::warn!(partition = self.partition, "every key is compared: {what}");
            self.drop_rotten(rotten).await?;
            self.scrub();
        } else {
            self.go_on_scrubbing().await?;
        }
        self.recall_unpacked().await?;
        for member in 0..self.count() {
            if self.state(member) != MemberState::In && self.members.borrow()[member].device.is_some() {
                self.rebuild(member);
            }
        }
        Ok(())
    }
}

/// How long keys that cannot be made whole wait until that is tried again, at first and at most.
const SETTLE_RETRY_NS: u64 = 100_000_000;
const SETTLE_RETRY_NS_MAX: u64 = 60_000_000_000;

pub(crate) async fn background(device: &Rc<dyn Device>, op: Op) -> plimsoll_kv::Result<Output> {
    let request = Manner::background().request(op);
    device.clone().execute(request).await.map(|completion| completion.output)
}
