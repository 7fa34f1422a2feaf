//! Named: what may be half written when an array is opened stays named, on every member, until it is whole.
//!
//! Role: a write names its key on the members that it reaches. What makes such a key whole after a crash
//! gives it to others without a name: cut short, and with the first member lost, nobody would know that these
//! differ. So all that any member names is named on every other, too, before anything is served. Place on the
//! path: none; when an array is opened.
//!
//! Invariants:
//! * no entry of another key is overwritten for that: what is cut short here leaves what there was;
//! * slots that name such keys are not used until all of those are whole;
//! * a key that all name alike needs nothing, and names go when all are whole: neither a server that is
//!   killed again and again, nor one that is started often, runs out of slots.

use crate::array::Array;
use crate::manner::Manner;
use plimsoll_kv::{ContainerId, Op, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// Entries that are written together, and bytes of their keys, but for one: they have to fit a frame of the
/// smallest segments.
const TOGETHER: usize = 64;
const TOGETHER_BYTES: usize = 8 << 10;

/// What members name, by the number of the slot: each member, and the key.
pub(crate) type Entries = BTreeMap<u16, Vec<(usize, (ContainerId, Vec<u8>))>>;

/// A slot, and the key that it is to name.
type Named<'a> = (u16, &'a (ContainerId, Vec<u8>));

/// Takes those off that are written together.
fn together<'a, 'b>(rest: &mut &'a [Named<'b>]) -> &'a [Named<'b>] {
    let mut bytes = 0;
    let fits = |(_, (_, key)): &&Named<'b>| {
        bytes += key.len();
        bytes <= TOGETHER_BYTES
    };
    let count = rest.iter().take(TOGETHER).take_while(fits).count().max(1);
    let (some, others) = rest.split_at(count);
    *rest = others;
    some
}

impl Array {
    /// Has every member that takes writes name what any does. False if there are too few slots, or no room,
    /// or a transaction that may hold everything waits for other partitions to be opened (seed 1687): then
    /// who opens the array next has to compare every key, until these are whole.
    pub(crate) async fn name_everywhere(self: &Rc<Self>, entries: &Entries) -> Result<bool> {
        if !self.transactions.have_all_ended() {
            return Ok(false);
        }
        let members: Vec<usize> = (0..self.count()).filter(|it| self.writable(*it).is_some()).collect();
        let (mut lacking, mut slots) = (BTreeSet::new(), BTreeSet::new());
        for by in entries.values() {
            lacking.extend(by.iter().map(|(_, key)| key));
        }
        for (number, by) in entries {
            let (_, key) = by.first().expect("a slot names something");
            let names = |member: &usize| by.iter().any(|(by, other)| by == member && other == key);
            if members.iter().all(names) && lacking.remove(key) {
                slots.insert(*number);
            }
        }
        let unused = self.journal.unused(|number| entries.contains_key(&number));
        if unused.len() < lacking.len() {
            return Ok(false);
        }
        let named: Vec<Named<'_>> = unused.into_iter().zip(lacking).collect();
        slots.extend(named.iter().map(|(number, _)| number));
        if !self.journal.reserve(&slots) {
            return Ok(false);
        }
        let mut rest = &named[..];
        while !rest.is_empty() {
            let some = together(&mut rest).iter();
            let entries = some.map(|(number, (container, key))| self.journal.entry(*number, *container, key));
            let batch = Op::Batch(entries.collect());
            let each = members.iter().map(|it| (*it, Manner::background().request(batch.clone()).keeping()));
            if self.send(each.collect()).await?.refused.is_some() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// What was half written is whole: its names go. One that stays costs a comparison by the next start.
    pub(crate) async fn delete_names(self: &Rc<Self>) {
        let numbers = self.journal.take_reserved();
        for some in numbers.chunks(TOGETHER) {
            let batch = Op::Batch(some.iter().map(|number| self.journal.delete(*number)).collect());
            let members = (0..self.count()).filter(|member| self.writable(*member).is_some());
            let each = members.map(|member| (member, Manner::background().request(batch.clone())));
            let _ = self.send(each.collect()).await;
        }
        self.journal.give_back(numbers);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_keys_are_named_by_few_entries_at_a_time() {
        let lengths = [10, 20, TOGETHER_BYTES, 1, 1].map(|bytes| (ContainerId(0), vec![7; bytes]));
        let keys: Vec<Named<'_>> = lengths.iter().map(|key| (0, key)).collect();
        let (mut rest, mut counts) = (&keys[..], Vec::new());
        while !rest.is_empty() {
            counts.push(together(&mut rest).len());
        }
        assert_eq!(counts, [2, 1, 2]);
    }
}
