//! Scrubbing: comparing every key over the members that are in, and mending what is damaged.
//!
//! Role: finds what nobody reads, and what was forgotten: half-written keys, values that were never packed,
//! sets that nobody needs. Place on the path: none; a task in the background.
//!
//! Invariants:
//! * a key is held while it is compared and mended;
//! * keys are told by every member that is in, in every role: what one lacks another tells;
//! * it reads no more bytes a second than a rebuild may copy, unless every read waits for its end;
//! * cut short by the end of the server it goes on where it was (`scrubbed`), unless every read waits.

use crate::array::Array;
use crate::open::background;
use crate::pace::Pace;
use crate::placement::{self, ARRAY_CONTAINERS};
use crate::rebuild::TOGETHER;
use crate::scrubbed::Scrubbed;
use crate::told::Proof;
use crate::walk::{Source, page};
use futures_util::future::join_all;
use plimsoll_kv::{ContainerId, Error, Op, Output, Result, Version};
use plimsoll_reactor::Work;
use std::rc::Rc;

/// How far a scrub is.
#[derive(Clone, Copy, Default)]
pub(crate) struct Scrub {
    pub(crate) keys: u64,
    /// Keys that it has to go through: 0 until they are counted.
    pub(crate) keys_total: u64,
    /// Bytes of values that it has read, of all devices.
    bytes: u64,
    pub(crate) errors: u64,
    pub(crate) runs: bool,
}

/// Keys of a primary, in a role and container.
pub(crate) type ToldKeys = (usize, usize, ContainerId);

/// So often who waits for a turn looks whether it is still to be waited for.
const TURN_LOOKS_NS: u64 = 100_000_000;
/// Keys that are compared at a time at a rate: a burst stands before clients' requests.
const TOGETHER_AT_RATE: usize = 4;

impl Array {
    /// Begins to compare every key over the members that are in, and to mend what is damaged; unless that is
    /// under way.
    pub fn scrub(self: &Rc<Self>) {
        self.scrub_from(None);
    }

    /// The same, from where one was that began before.
    pub(crate) fn scrub_from(self: &Rc<Self>, from: Option<Scrubbed>) {
        if self.scrub.get().runs {
            return;
        }
        let (keys, errors) = from.as_ref().map_or((0, 0), |from| (from.keys, from.errors));
        self.scrub.set(Scrub { keys, errors, runs: true, ..Scrub::default() });
        let array = self.clone();
        self.spawn(Work::Background, async move {
            let mut from = from;
            let whole = loop {
                let distrusts = array.distrusts.get();
                let whole = array.scrub_all(from.take()).await;
                // It was past keys of which a member that has come in since may have something else.
                if array.distrusts.get() == distrusts || !matches!(whole, Ok(true)) {
                    break whole;
                }
            };
            if let Ok(true) = whole {
                array.forget_scrubbed().await;
            }
            let scrub = Scrub { runs: false, ..array.scrub.get() };
            array.scrub.set(scrub);
            let Scrub { keys, errors, .. } = scrub;
            match whole {
                Ok(true) => tracing::info!(partition = array.partition, keys, errors, "scrubbed"),
                Ok(false) => {}
                Err(error) => tracing::error!(partition = array.partition, %error, "the scrub ended early"),
            }
        });
    }

    /// True if it came to its end.
    async fn scrub_all(self: &Rc<Self>, from: Option<Scrubbed>) -> Result<bool> {
        let (distrusts, pace) = (self.distrusts.get(), Pace::new(self.options.rebuild_bytes_per_s));
        // While every key is to be compared nothing counts that was compared before.
        let from = from.filter(|_| !self.distrusted.get());
        let counted = self.keys_told().await;
        // One that begins anew goes through all once more.
        let scrub = self.scrub.get();
        let keys_total = if from.is_some() { scrub.keys.max(counted) } else { scrub.keys + counted };
        self.scrub.set(Scrub { keys_total, ..scrub });
        let began = from.as_ref().map_or_else(|| self.next_version(), |from| from.begun);
        for (source, told) in self.told_by_all() {
            let Some(after) = Scrubbed::rest(from.as_ref(), told) else { continue };
            if !self.scrub_container(&source, (began, told), after, &pace).await? {
                return Ok(false);
            }
        }
        self.note_scrubbed(began, (self.count(), 0, ContainerId(0)), Vec::new()).await;
        // It is through all of them, though some have come or gone since they were counted.
        let scrub = self.scrub.get();
        self.scrub.set(Scrub { keys_total: scrub.keys, ..scrub });
        let (begun, were_all_in) = (self.next_version(), self.all_in());
        let were_told = self.sets_are_told(|_| false);
        // While every read compares its key nobody waits for a turn.
        let pace = if self.distrusted.get() { Pace::new(0) } else { pace };
        let mended = self.mend_sets((&pace, None), || !self.closing.get()).await?;
        let scrub = self.scrub.get();
        self.scrub.set(Scrub { errors: scrub.errors + mended.records, ..scrub });
        if self.closing.get() {
            return Ok(false);
        }
        // With devices out, too: who comes back begins with nothing (seeds 3465, 3834, 5856), unless so many
        // are that sets are not told.
        let are_told = were_told && self.sets_are_told(|_| false);
        let are_sure = !mended.in_doubt || were_all_in && self.all_in();
        if self.forms.has_packed() && are_told && are_sure {
            self.sweep_ghosts(begun).await?;
        }
        let is_decided = (0..self.count()).all(|member| self.is_told(member));
        let is_named = !self.claimant_comes_in() && !self.awaits_named();
        let ends_distrust = is_decided && self.distrusts.get() == distrusts && is_named;
        if ends_distrust && self.distrusted.replace(false) && self.unsettled.borrow().is_empty() {
            self.delete_names().await;
            self.mark_named().await?;
        }
        self.pack_all().await?;
        Ok(true)
    }

    /// Where keys are told by a member that is in, and which: what one lacks another tells.
    fn told_by_all(&self) -> impl Iterator<Item = (Source, ToldKeys)> + use<'_> {
        let each = (0..self.count()).flat_map(|primary| (0..self.roles).map(move |role| (primary, role)));
        each.flat_map(move |(primary, role)| {
            let member = placement::member(primary, role, self.count());
            let device = self.readable(member);
            (0..ARRAY_CONTAINERS).map(ContainerId).filter_map(move |container| {
                let below = placement::container(container, role);
                let source = Source { device: device.clone()?, container: below, member };
                Some((source, (primary, role, container)))
            })
        })
    }

    /// The keys that a scrub goes through: those of each member, in each role.
    async fn keys_told(&self) -> u64 {
        let mut keys = 0;
        for (source, _) in self.told_by_all() {
            if self.closing.get() {
                break;
            }
            // A failure shows itself when the keys are told.
            if let Ok(Output::Stats(stats)) =
                background(&source.device, Op::Stats { container: source.container }).await
            {
                keys += stats.keys;
            }
        }
        keys
    }

    /// A piece has been read, and proved.
    pub(crate) fn scrub_has_read(&self, bytes: u64) {
        let scrub = self.scrub.get();
        self.scrub.set(Scrub { bytes: scrub.bytes + bytes, ..scrub });
    }

    /// False if the array ends before its turn comes. While every read compares its key nobody waits for one.
    async fn has_its_turn(self: &Rc<Self>, at_ns: u64) -> bool {
        while self.reactor.now_ns() < at_ns && !self.closing.get() && !self.distrusted.get() {
            self.rest_until(at_ns.min(self.reactor.now_ns() + TURN_LOOKS_NS)).await;
        }
        !self.closing.get()
    }

    async fn scrub_container(
        self: &Rc<Self>,
        source: &Source,
        (began, told): (Version, ToldKeys),
        mut after: Option<Vec<u8>>,
        pace: &Pace,
    ) -> Result<bool> {
        let (.., container) = told;
        loop {
            let keys = match page(source, &mut after).await {
                Ok(Some(keys)) => keys,
                Ok(None) => return Ok(true),
                // What it has others have, too: they tell it.
                Err(Error::ReadOnly(what)) => {
                    self.take_out_now(source.member, &what).await?;
                    return Ok(true);
                }
                Err(error @ Error::Unreadable(_)) => {
                    let device = self.name(source.member);
                    tracing::error!(partition = self.partition, device, %error, "keys cannot be told");
                    let scrub = self.scrub.get();
                    self.scrub.set(Scrub { errors: scrub.errors + 1, ..scrub });
                    return Ok(true);
                }
                Err(error) => return Err(error),
            };
            let is_at_rate = self.options.rebuild_bytes_per_s > 0 && !self.distrusted.get();
            for some in keys.chunks(if is_at_rate { TOGETHER_AT_RATE } else { TOGETHER }) {
                let (turn, bytes_before) = (pace.turn(self.reactor.now_ns()), self.scrub.get().bytes);
                if !self.has_its_turn(turn.at_ns).await {
                    return Ok(false);
                }
                let each = some.iter().map(|key| self.scrub_key(container, key));
                let errors: u64 = join_all(each).await.into_iter().sum();
                let scrub = self.scrub.get();
                pace.end(turn, scrub.bytes - bytes_before);
                let (keys, errors) = (scrub.keys + some.len() as u64, scrub.errors + errors);
                self.scrub.set(Scrub { keys, errors, ..scrub });
                self.reactor.yield_now().await;
            }
            self.note_scrubbed(began, told, after.clone().unwrap_or_default()).await;
        }
    }

    async fn scrub_key(self: &Rc<Self>, container: ContainerId, key: &[u8]) -> u64 {
        let scrubbed = async {
            let place = self.place(container, key)?;
            let _guard = self.hold(&place).await?;
            self.finish_kept(&place).await;
            loop {
                match self.reconcile(&place, Proof::All).await {
                    // It expired while it was mended, or the member that had it went out.
                    Err(Error::NotFound) => {}
                    reconciled => return reconciled,
                }
            }
        };
        scrubbed.await.unwrap_or_else(|error: Error| {
            tracing::error!(partition = self.partition, %error, "a key cannot be mended");
            let key = (container, key.to_vec());
            if self.distrusted.get() {
                // That ends with this scrub, and nothing is known of this one yet.
                self.may_be_cut_short(key);
            } else {
                self.unsettled.borrow_mut().insert(key);
            }
            1
        })
    }
}
