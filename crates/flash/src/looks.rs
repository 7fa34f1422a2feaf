//! Reads that look for a value, until they have what they looked for.
//!
//! Role: keeps the parts of a value that was replaced or deleted until every read that began before has come
//! to pin them: who asks first gets what was there first, however long the read of its record takes. Place
//! on the path: around the look-up of a retrieve; asked before a doomed upload ends. Writers do not wait for
//! readers here, as in an array (`KeyLocks::read`): a record that was replaced stays readable, but for parts.
//!
//! Invariants: an upload that is doomed does not end before the reads end that were under way when that was
//! first seen; reads that begin later do not keep it, for they cannot find it.
//!
//! Never: a read is counted while it waits for a lock or for space, which may wait for this.

use crate::partition::Partition;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

/// Reads under way, by the age in which they began. An age ends when a doomed upload is seen.
#[derive(Default)]
pub(crate) struct Looks {
    age: Cell<u64>,
    /// The ages that had reads, with how many of them are under way, the oldest first.
    under_way: RefCell<VecDeque<(u64, u32)>>,
    /// The doomed uploads that wait, with the age in which each was seen.
    waiting: RefCell<BTreeMap<u64, u64>>,
}

impl Looks {
    fn begin(&self) -> u64 {
        let age = self.age.get();
        let mut under_way = self.under_way.borrow_mut();
        match under_way.back_mut() {
            Some((last, count)) if *last == age => *count += 1,
            _ => under_way.push_back((age, 1)),
        }
        age
    }

    /// A read of an age has ended; true if an upload may have waited for it.
    fn end(&self, age: u64) -> bool {
        let mut under_way = self.under_way.borrow_mut();
        let (_, count) =
            under_way.iter_mut().rev().find(|(of, _)| *of == age).expect("what ends is under way");
        *count -= 1;
        let is_last = *count == 0;
        while under_way.len() > 1 && under_way.front().is_some_and(|(_, count)| *count == 0) {
            under_way.pop_front();
        }
        is_last && !self.waiting.borrow().is_empty()
    }

    /// True if no read is under way that may still come to a doomed upload.
    pub(crate) fn lets_end(&self, upload: u64) -> bool {
        let under_way = self.under_way.borrow();
        let oldest = under_way.iter().find(|(_, count)| *count > 0).map(|(age, _)| *age);
        let mut waiting = self.waiting.borrow_mut();
        let seen = waiting.get(&upload).copied();
        let is_over = oldest.is_none_or(|oldest| seen.is_some_and(|seen| oldest > seen));
        if is_over {
            waiting.remove(&upload);
        } else if seen.is_none() {
            waiting.insert(upload, self.age.get());
            self.age.set(self.age.get() + 1);
        }
        is_over
    }
}

/// A read that looks for a value. Dropping it ends it.
pub(crate) struct Look {
    partition: Rc<Partition>,
    age: u64,
}

impl Look {
    pub(crate) fn new(partition: &Rc<Partition>) -> Look {
        Look { partition: partition.clone(), age: partition.looks.begin() }
    }
}

impl Drop for Look {
    fn drop(&mut self) {
        if self.partition.looks.end(self.age) {
            self.partition.background.ring();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Looks;

    #[test]
    fn an_upload_ends_after_the_reads_that_were_under_way_when_it_was_doomed() {
        let looks = Looks::default();
        assert!(looks.lets_end(1), "nobody reads");
        let (first, second) = (looks.begin(), looks.begin());
        assert!(!looks.lets_end(1));
        let later = looks.begin();
        assert!(!looks.end(first));
        assert!(!looks.lets_end(1), "the second is under way");
        assert!(!looks.lets_end(2), "so it is for another, which the later may find too");
        assert!(looks.end(second), "one waits");
        assert!(looks.lets_end(1) && !looks.lets_end(2));
        assert!(looks.end(later));
        assert!(looks.lets_end(2));
        let last = looks.begin();
        assert!(!looks.end(last), "nothing waits");
        assert!(looks.waiting.borrow().is_empty() && looks.under_way.borrow().len() <= 1);
    }
}
