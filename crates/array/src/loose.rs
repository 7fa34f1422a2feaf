//! Loose sets: those that have lost values, or were not finished, and wait to be judged.
//!
//! Role: remembers which they are, and what is known to have gone of them. Place on the path: filled behind
//! writes that take values out of sets; emptied by regrouping.
//!
//! Invariant: sets that lost values and were not touched since are bounded in number: a scrub finds others.
//!
//! Never: it forgets a set of which something was begun. What is left of that may name versions that another
//! set would name, too.

use crate::set::Stub;
use plimsoll_kv::{ContainerId, Op, Version};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

/// Sets that have lost values and wait to be judged at most, whoever writes.
const LOOSE_MAX: usize = 16_384;

/// Values of a set that are known to have gone: where their ghosts are, and of which versions.
type Gone = BTreeSet<(usize, Version)>;

/// A set that is to be judged.
pub(crate) struct Loose {
    pub(crate) stub: Stub,
    pub(crate) gone: Gone,
    /// It was found to live while a member was out: it waits until all are in, or it loses another value.
    pub(crate) waits: bool,
}

impl Loose {
    /// True if it is known that nobody needs it any more.
    pub(crate) fn is_dead(&self) -> bool {
        self.gone.len() >= self.stub.values.into()
    }
}

/// Sets that are to be judged.
#[derive(Default)]
pub(crate) struct LooseSets {
    sets: RefCell<BTreeMap<(ContainerId, Version), Loose>>,
    /// So many of them are dead.
    dead: Cell<usize>,
    /// So many were taken, and are being judged.
    judged: Cell<usize>,
    /// Sets lost values of which nobody knows any more: they were too many.
    forgot: Cell<bool>,
    /// Ghosts that turned out to be of no set: members, and what deletes them.
    pub(crate) unneeded: RefCell<Vec<(usize, Op)>>,
}

impl LooseSets {
    /// A set is judged when there is time.
    pub(crate) fn add(&self, container: ContainerId, stub: &Stub) {
        let loose = Loose { stub: stub.clone(), gone: Gone::new(), waits: false };
        self.put(container, loose);
    }

    /// A set has lost a value, and nothing was done about that: the same, unless as many wait as may.
    pub(crate) fn add_if_few(&self, container: ContainerId, stub: &Stub, gone: Option<(usize, Version)>) {
        let is_known = self.sets.borrow().contains_key(&(container, stub.set));
        if !is_known && self.count() + self.judged.get() >= LOOSE_MAX {
            self.forgot.set(true);
            return;
        }
        let gone = gone.into_iter().collect();
        self.put(container, Loose { stub: stub.clone(), gone, waits: false });
    }

    /// A set waits, or waits again, to be judged, with what was known of it before.
    pub(crate) fn put(&self, container: ContainerId, loose: Loose) {
        let mut sets = self.sets.borrow_mut();
        let Loose { stub, gone, waits } = loose;
        let new = Loose { stub, gone: Gone::new(), waits };
        let known = sets.entry((container, new.stub.set)).or_insert(new);
        let was_dead = known.is_dead();
        known.gone.extend(gone);
        // What has lost another one may live no more, whoever is out.
        known.waits &= waits;
        self.dead.set(self.dead.get() + usize::from(!was_dead && known.is_dead()));
    }

    /// Takes those that are to be judged: those that are dead, first or alone.
    pub(crate) fn take(&self, only_dead: bool, all_in: bool) -> Vec<(ContainerId, Loose)> {
        let mut sets = self.sets.borrow_mut();
        let mut taken: Vec<_> = sets.extract_if(.., |_, loose| loose.is_dead()).collect();
        self.dead.set(0);
        if !only_dead {
            taken.extend(sets.extract_if(.., |_, loose| all_in || !loose.waits));
        }
        self.judged.set(taken.len());
        taken.into_iter().map(|((container, _), loose)| (container, loose)).collect()
    }

    /// Those that were taken have been judged, or wait again.
    pub(crate) fn end_judging(&self) {
        self.judged.set(0);
    }

    /// Whether anything is to be judged now.
    pub(crate) fn has_any(&self, all_in: bool) -> bool {
        let is_next = |loose: &Loose| all_in || !loose.waits || loose.is_dead();
        self.sets.borrow().values().any(is_next) || !self.unneeded.borrow().is_empty()
    }

    /// Sets, and ghosts without one, that are known to be needed by nobody.
    pub(crate) fn dead_count(&self) -> usize {
        self.dead.get() + self.unneeded.borrow().len()
    }

    /// Sets that are to be judged.
    pub(crate) fn count(&self) -> usize {
        self.sets.borrow().len()
    }

    /// True if as many wait as may.
    pub(crate) fn is_full(&self) -> bool {
        self.count() >= LOOSE_MAX
    }

    /// True, once, if some were too many to be remembered.
    pub(crate) fn take_forgot(&self) -> bool {
        self.forgot.take()
    }

    /// A container was emptied.
    pub(crate) fn forget(&self, container: ContainerId) {
        self.sets.borrow_mut().retain(|(of, _), _| *of != container);
    }
}
