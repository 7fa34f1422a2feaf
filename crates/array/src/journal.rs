//! The journal: which keys may be half written.
//!
//! Role: every write of a key brings, in the same atomic batch on each member, a small record that names the
//! key. After a crash the keys named on any member are compared over all of them and made whole before
//! anybody sees them. Place on the path: beside the first request of every write.
//!
//! Invariants:
//! * a slot is given back only when the write that it names is durable on every member that is in, so the
//!   records of a bounded number of slots name every write that may be half done;
//! * what names a key that may have been half written when the array was opened goes on naming it until that
//!   is whole (`named`), if enough other slots are left;
//! * an entry that names a key that is whole costs a comparison and nothing else.
//!
//! Never: data. What a key holds stands in its records alone.

use crate::placement::JOURNAL;
use plimsoll_kv::{Condition, ContainerId, Op};
use plimsoll_reactor::sync::{Permit, Permits};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

/// Writes of one array under way at a time.
pub(crate) const WRITES_MAX: usize = 512;
/// Slots: for writes under way, for keys of which something is kept, and for keys that could not be made
/// whole.
const SLOTS: usize = 4 * WRITES_MAX;

/// The slots of an array.
pub(crate) struct Journal {
    tag: String,
    permits: Rc<Permits>,
    free: RefCell<Vec<u16>>,
    /// Those that name what may have been half written when the array was opened.
    reserved: RefCell<Vec<u16>>,
}

/// A slot while its write is under way; dropping gives it back.
pub(crate) struct Slot {
    journal: Rc<Journal>,
    number: u16,
    permit: Option<Permit>,
}

/// So many may be left as they are: the rest does for writes, and for as many again.
const RESERVED_MAX: usize = SLOTS - 2 * WRITES_MAX;

/// Slots that name one key that is not whole, each on the members of another try.
pub(crate) type Names = Vec<Slot>;

/// So many of them at most.
const NAMES_MAX: usize = 4;

impl Journal {
    pub(crate) fn new(tag: &str) -> Rc<Journal> {
        let free = RefCell::new((0..SLOTS as u16).collect());
        let (tag, permits) = (tag.to_owned(), Permits::new(WRITES_MAX));
        Rc::new(Journal { tag, permits, free, reserved: RefCell::default() })
    }

    /// Numbers of slots that are not used, before any is.
    pub(crate) fn unused(&self, is_used: impl Fn(u16) -> bool) -> Vec<u16> {
        self.free.borrow().iter().copied().filter(|number| !is_used(*number)).collect()
    }

    /// Leaves slots to what they name, before any is used. False, and none is, if too few others would be
    /// left.
    pub(crate) fn reserve(&self, numbers: &BTreeSet<u16>) -> bool {
        let (mut free, mut reserved) = (self.free.borrow_mut(), self.reserved.borrow_mut());
        assert!(free.len() == SLOTS && reserved.is_empty(), "before any is used");
        let fits = numbers.len() <= RESERVED_MAX;
        if fits {
            reserved.extend(free.extract_if(.., |number| numbers.contains(number)));
        }
        fits
    }

    /// Takes the slots whose names may go: nobody else does, and they are not used until they are given back.
    pub(crate) fn take_reserved(&self) -> Vec<u16> {
        self.reserved.take()
    }

    /// They name nothing any more, and are used again, behind those that are used now.
    pub(crate) fn give_back(&self, numbers: Vec<u16>) {
        self.free.borrow_mut().splice(..0, numbers);
    }

    /// Has a slot name nothing.
    pub(crate) fn delete(&self, number: u16) -> Op {
        Op::Delete { container: JOURNAL, key: self.entry_key(number), condition: Condition::None }
    }

    fn entry_key(&self, number: u16) -> Vec<u8> {
        format!("{}j{number}", self.tag).into_bytes()
    }

    /// What names a key as half written, by a slot.
    pub(crate) fn entry(&self, number: u16, container: ContainerId, key: &[u8]) -> Op {
        let mut value = container.0.to_le_bytes().to_vec();
        value.extend_from_slice(key);
        Op::store(JOURNAL, self.entry_key(number), value)
    }

    /// The number of the slot of an entry with this key.
    pub(crate) fn number(&self, key: &[u8]) -> Option<u16> {
        let digits = key.strip_prefix(self.tag.as_bytes())?.strip_prefix(b"j")?;
        std::str::from_utf8(digits).ok()?.parse().ok()
    }

    /// Waits for a slot: until a write under way has ended. Nothing that a write waits for waits for it.
    pub(crate) async fn slot(self: &Rc<Self>) -> Slot {
        let permit = Some(self.permits.acquire(1).await);
        let number = self.free.borrow_mut().pop().expect("slots that are parked are fewer than there are");
        Slot { journal: self.clone(), number, permit }
    }

    /// Slots that may be parked or kept besides those of writes.
    fn spare(&self) -> usize {
        self.free.borrow().len().saturating_sub(self.permits.free())
    }
}

impl Slot {
    /// What names a key as half written.
    pub(crate) fn entry(&self, container: ContainerId, key: &[u8]) -> Op {
        self.journal.entry(self.number, container, key)
    }

    /// Goes on naming its key, though its write has ended: others take its place among those under way. False
    /// if there are too many of such slots.
    pub(crate) fn park(&mut self) -> bool {
        if self.permit.is_some() && self.journal.spare() == 0 {
            return false;
        }
        self.permit = None;
        true
    }

    /// Goes on naming its key, beside these. False if there are too many of such slots: who opens the array
    /// next has to be told otherwise.
    pub(crate) fn keep(mut self, names: &mut Names) -> bool {
        let is_kept = names.len() < NAMES_MAX && self.park();
        if is_kept {
            names.push(self);
        }
        is_kept
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.journal.free.borrow_mut().push(self.number);
    }
}

/// The key that an entry names.
pub(crate) fn named(entry: &[u8]) -> Option<(ContainerId, Vec<u8>)> {
    let (container, key) = entry.split_first_chunk::<4>()?;
    Some((ContainerId(u32::from_le_bytes(*container)), key.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_kv::Value;

    #[test]
    fn an_entry_names_its_key() {
        let journal = Journal::new("{7}");
        let slot = futures_util::FutureExt::now_or_never(journal.slot()).expect("slots are free");
        let Op::Store { key, value: Value::Bytes(value), .. } = slot.entry(ContainerId(3), b"a key") else {
            panic!("an entry is a store")
        };
        assert_eq!(key, b"{7}j2047");
        assert_eq!(named(value.start()), Some((ContainerId(3), b"a key".to_vec())));
        assert_eq!(named(b"abc"), None);
        assert_eq!(journal.number(&key), Some(2047));
        assert_eq!((journal.number(b"{7}roster"), journal.number(b"{7}j70000")), (None, None));
    }

    #[test]
    fn slots_that_are_left_as_they_are_are_not_used() {
        let journal = Journal::new("{0}");
        let left: BTreeSet<u16> = (1..=RESERVED_MAX as u16).map(|number| number + 1000).collect();
        assert!(journal.reserve(&left));
        let take = || futures_util::FutureExt::now_or_never(journal.slot()).expect("as many as there are");
        let mut taken: Vec<_> = (0..WRITES_MAX).map(|_| take()).collect();
        assert!(taken.iter_mut().all(|slot| slot.park() && !left.contains(&slot.number)));
        let rest: Vec<_> = (0..WRITES_MAX).map(|_| take()).collect();
        assert!(rest.iter().all(|slot| !left.contains(&slot.number)));
        drop((taken, rest));
        journal.give_back(journal.take_reserved());
        assert_eq!(journal.free.borrow().len(), SLOTS);
        let journal = Journal::new("{0}");
        assert!(!journal.reserve(&(0..=RESERVED_MAX as u16).collect()), "too many");
    }

    #[test]
    fn slots_are_bounded_and_come_back() {
        let journal = Journal::new("{0}");
        let take = || futures_util::FutureExt::now_or_never(journal.slot());
        let taken: Vec<_> = (0..WRITES_MAX).map(|_| take().expect("as many as there are")).collect();
        assert!(take().is_none());
        drop(taken);
        let mut parked = Vec::new();
        loop {
            let mut slot = take().expect("those that are parked hold up nobody");
            if !slot.park() {
                break;
            }
            parked.push(slot);
        }
        assert_eq!(parked.len(), SLOTS - WRITES_MAX);
        assert!(!take().unwrap().keep(&mut Names::new()), "there are too many");
        let mut names = Names::new();
        assert!(parked.pop().unwrap().keep(&mut names), "it is parked");
        parked.extend(names);
        let rest: Vec<_> = (0..WRITES_MAX).map(|_| take().expect("they are left for writes")).collect();
        let all = rest.iter().chain(&parked).map(|slot| slot.number);
        assert_eq!(all.collect::<std::collections::BTreeSet<u16>>().len(), SLOTS);
    }
}
