//! Records that are kept though their key may point elsewhere: what a store was asked to retain, and what
//! another key was given.
//!
//! Role: tells what is kept below which record, and who keeps a record. Place on the path: part of the state;
//! transitions change it, cleaning and readers look.
//!
//! Invariants:
//! * a record has at most one other below it; it may be below several;
//! * a record goes when nobody keeps it and its key points elsewhere, and not before: which of those that are
//!   kept are what their key points to is known here, as the index may be ahead of what is replayed.

use std::collections::btree_map::{BTreeMap, Iter};
use std::collections::btree_set::BTreeSet;

/// A record that is kept below another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptRecord {
    /// Where its record is.
    pub location: u64,
    /// How long it is.
    pub length: u32,
    /// True if it had an expiry time when it was kept: that may have changed since, and another keeper has
    /// what it was then.
    pub expiring: bool,
    /// The slot of its key.
    pub slot: u16,
    /// The fingerprint of its key.
    pub fingerprint: u64,
    /// The container's generation.
    pub generation: u32,
}

/// All of them.
#[derive(Default)]
pub struct KeptRecords {
    /// By the location of the record above.
    below: BTreeMap<u64, KeptRecord>,
    /// What is kept, and below which.
    above: BTreeSet<(u64, u64)>,
    /// Of what is kept, what its key points to as well.
    current: BTreeSet<u64>,
}

impl KeptRecords {
    /// What is kept below the record at a location.
    #[must_use]
    pub fn below(&self, above: u64) -> Option<&KeptRecord> {
        self.below.get(&above)
    }

    /// True if a record is kept below another one.
    #[must_use]
    pub fn is_kept(&self, location: u64) -> bool {
        self.above.range((location, 0)..).next().is_some_and(|(kept, _)| *kept == location)
    }

    /// True if the key of a record that is kept points to it as well.
    #[must_use]
    pub fn is_current(&self, location: u64) -> bool {
        self.current.contains(&location)
    }

    /// Whether all that is said of a record by those above it is this, but for what each found of its expiry.
    #[must_use]
    pub fn agrees(&self, kept: &KeptRecord, is_current: bool) -> bool {
        let others = self.above.range((kept.location, 0)..=(kept.location, u64::MAX));
        let mut others = others.map(|(_, above)| &self.below[above]);
        let lasting = |record: &KeptRecord| KeptRecord { expiring: false, ..*record };
        let is_same = |other| lasting(other) == lasting(kept);
        others.all(|other| is_same(other) && self.current.contains(&kept.location) == is_current)
    }

    /// How many there are, by the records above.
    #[must_use]
    pub fn len(&self) -> usize {
        self.below.len()
    }

    /// True if nothing is kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.below.is_empty()
    }

    /// What is kept below which location.
    pub fn iter(&self) -> Iter<'_, u64, KeptRecord> {
        self.below.iter()
    }

    /// Location and length of each record that is here because it is kept: no key points to it.
    pub fn records(&self) -> impl Iterator<Item = (u64, u32)> {
        let mut last = 0;
        let each = self.above.iter().filter(move |(kept, _)| std::mem::replace(&mut last, *kept) != *kept);
        let alone = each.filter(|(kept, _)| !self.current.contains(kept));
        alone.map(|(kept, above)| (*kept, self.below[above].length))
    }

    /// Keeps a record below another one; whether its key goes on pointing to it.
    pub fn keep(&mut self, above: u64, kept: KeptRecord, is_current: bool) {
        assert!(above != kept.location, "a record is kept below itself");
        assert!(self.below.insert(above, kept).is_none(), "two records are kept below the one at {above}");
        self.above.insert((kept.location, above));
        if is_current {
            self.current.insert(kept.location);
        } else {
            self.current.remove(&kept.location);
        }
    }

    /// The key of a record points elsewhere from now on; true if the record goes.
    #[must_use]
    pub fn leave(&mut self, location: u64) -> bool {
        self.current.remove(&location);
        !self.is_kept(location)
    }

    /// Gives up what is kept below a record, and tells whether it goes; nothing if there is nothing.
    pub fn release(&mut self, above: u64) -> Option<(KeptRecord, bool)> {
        let kept = self.below.remove(&above)?;
        self.above.remove(&(kept.location, above));
        let goes = !self.is_kept(kept.location) && !self.current.remove(&kept.location);
        Some((kept, goes))
    }

    /// What was kept below a record is what its key points to from now on.
    pub fn revert(&mut self, above: u64) -> Option<KeptRecord> {
        let kept = self.below.remove(&above)?;
        self.above.remove(&(kept.location, above));
        if self.is_kept(kept.location) {
            self.current.insert(kept.location);
        }
        Some(kept)
    }

    /// A record has moved; true if its key points to it.
    #[must_use]
    pub fn relocate(&mut self, from: u64, to: u64) -> bool {
        if let Some(kept) = self.below.remove(&from) {
            self.above.remove(&(kept.location, from));
            self.above.insert((kept.location, to));
            self.below.insert(to, kept);
        }
        if !self.is_kept(from) {
            return true;
        }
        let keepers: Vec<u64> =
            self.above.range((from, 0)..=(from, u64::MAX)).map(|(_, above)| *above).collect();
        for above in keepers {
            self.above.remove(&(from, above));
            self.above.insert((to, above));
            self.below.get_mut(&above).expect("who keeps a record has it below").location = to;
        }
        let is_current = self.current.remove(&from);
        if is_current {
            self.current.insert(to);
        }
        is_current
    }

    /// Nothing is kept any more.
    pub fn clear(&mut self) {
        *self = KeptRecords::default();
    }
}
