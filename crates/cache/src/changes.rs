//! Which keys are being changed, and which were since a read began.
//!
//! Role: what decides whether a value may be given or kept. Place on the path: asked by every read, told by
//! every change, at its beginning and its end.
//!
//! Keys are counted in stripes by their hash. Two keys of one stripe hinder each other: a read passes
//! through without need. That is rare, and a change costs two additions and no memory.
//!
//! Invariants: a change counts from its beginning until its [`Changing`] is dropped, also if it is given up
//! half-way; a read that began before a change of its stripe ended, or after which one began, fills nothing.
//!
//! Never: it knows what is kept.

use std::cell::Cell;
use std::rc::Rc;

/// Bytes of a cache for each stripe, and how many stripes there are at least and at most: enough that of a
/// hundred writes under way few reads notice.
const BYTES_PER_STRIPE: usize = 1024;
const STRIPES_MIN: usize = 16;
const STRIPES_MAX: usize = 4096;

/// An instant between changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Instant(u64);

#[derive(Clone, Debug, Default)]
struct Stripe {
    /// Changes under way.
    open: Cell<u32>,
    /// When the last one began.
    began: Cell<u64>,
}

/// The changes of a partition.
pub(crate) struct Changes {
    /// Changes that have ever begun.
    count: Cell<u64>,
    stripes: Box<[Stripe]>,
    /// Changes of any key.
    everything: Stripe,
}

/// Which keys a change concerns, by their stripes.
#[derive(Debug)]
enum Extent {
    One(u32),
    Many(Vec<u32>),
    Everything,
}

/// A change under way: it has ended when this is dropped.
pub(crate) struct Changing {
    changes: Rc<Changes>,
    extent: Extent,
}

impl Changes {
    /// For a cache of so many bytes.
    pub(crate) fn new(budget_bytes: usize) -> Rc<Changes> {
        let sought = (budget_bytes / BYTES_PER_STRIPE).clamp(STRIPES_MIN, STRIPES_MAX);
        let stripes = vec![Stripe::default(); sought.next_power_of_two()].into_boxed_slice();
        Rc::new(Changes { count: Cell::new(0), stripes, everything: Stripe::default() })
    }

    /// Bytes that this takes.
    pub(crate) fn bytes(&self) -> usize {
        size_of::<Changes>() + size_of_val(&*self.stripes)
    }

    fn stripe_of(&self, hash: u64) -> u32 {
        (hash as u32) & (self.stripes.len() as u32 - 1)
    }

    fn each<'a>(&'a self, extent: &'a Extent) -> impl Iterator<Item = &'a Stripe> {
        let (stripes, everything): (&[u32], _) = match extent {
            Extent::One(stripe) => (std::slice::from_ref(stripe), None),
            Extent::Many(stripes) => (stripes, None),
            Extent::Everything => (&[], Some(&self.everything)),
        };
        stripes.iter().map(|stripe| &self.stripes[*stripe as usize]).chain(everything)
    }

    fn begin(self: &Rc<Changes>, extent: Extent) -> Changing {
        self.count.set(self.count.get() + 1);
        for stripe in self.each(&extent) {
            stripe.open.set(stripe.open.get() + 1);
            stripe.began.set(self.count.get());
        }
        Changing { changes: self.clone(), extent }
    }

    /// A change of a key begins.
    pub(crate) fn begin_one(self: &Rc<Changes>, hash: u64) -> Changing {
        self.begin(Extent::One(self.stripe_of(hash)))
    }

    /// A change of some keys begins.
    pub(crate) fn begin_many(self: &Rc<Changes>, hashes: impl Iterator<Item = u64>) -> Changing {
        self.begin(Extent::Many(hashes.map(|hash| self.stripe_of(hash)).collect()))
    }

    /// A change of perhaps every key begins.
    pub(crate) fn begin_everything(self: &Rc<Changes>) -> Changing {
        self.begin(Extent::Everything)
    }

    /// True if a key may be being changed.
    pub(crate) fn is_open(&self, hash: u64) -> bool {
        self.everything.open.get() > 0 || self.stripes[self.stripe_of(hash) as usize].open.get() > 0
    }

    /// Now: after every change that has begun.
    pub(crate) fn now(&self) -> Instant {
        Instant(self.count.get())
    }

    /// True if no change of a key has begun since an instant at which none was under way.
    pub(crate) fn is_quiet_since(&self, instant: Instant, hash: u64) -> bool {
        let stripe = &self.stripes[self.stripe_of(hash) as usize];
        stripe.began.get() <= instant.0 && self.everything.began.get() <= instant.0
    }
}

impl Drop for Changing {
    fn drop(&mut self) {
        for stripe in self.changes.each(&self.extent) {
            let open = stripe.open.get().checked_sub(1);
            stripe.open.set(open.expect("a change ends once"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_open_until_its_guard_is_dropped() {
        let changes = Changes::new(1 << 20);
        let before = changes.now();
        assert!(!changes.is_open(7) && changes.is_quiet_since(before, 7));
        let (first, second) = (changes.begin_one(7), changes.begin_many([7, 8, 7].into_iter()));
        assert!(changes.is_open(7) && changes.is_open(8) && !changes.is_open(9));
        drop(first);
        assert!(changes.is_open(7), "the second goes on");
        drop(second);
        assert!(!changes.is_open(7) && !changes.is_open(8));
        assert!(!changes.is_quiet_since(before, 7) && !changes.is_quiet_since(before, 8));
        assert!(changes.is_quiet_since(before, 9) && changes.is_quiet_since(changes.now(), 7));
    }

    #[test]
    fn a_change_of_everything_is_one_of_every_key() {
        let changes = Changes::new(0);
        let before = changes.now();
        let all = changes.begin_everything();
        assert!((0..100).all(|hash| changes.is_open(hash)));
        drop(all);
        assert!((0..100).all(|hash| !changes.is_open(hash) && !changes.is_quiet_since(before, hash)));
    }

    #[test]
    fn the_number_of_stripes_follows_the_budget() {
        let bytes = |budget_bytes| Changes::new(budget_bytes).bytes();
        assert!(bytes(0) < 1024);
        assert!(bytes(1 << 20) <= (1 << 20) / 32);
        assert!(bytes(1 << 40) <= 128 << 10);
    }
}
