//! Unfinished sets: what stands of one that was being made, or taken apart, when that was cut short.
//!
//! Role: packing, rounds and regrouping change several keys, one member after the other. Cut short, one key
//! may have stubs of a set while another that the set names has none, and would leave it without keeping what
//! the first needs. A key that was half written leaves such a set; until all have been looked at, whatever a
//! set may name is kept when it goes. Place on the path: when a half-written key is made whole, and before
//! every change of a key, where values are packed.
//!
//! Invariants:
//! * the journal names every key that has a stub of a set that was cut short: packing names a key beside its
//!   stub, and taking apart names all that live in the set beside each copy;
//! * when none of them is left that was not looked at, every value that a set names, of which any key has a
//!   stub, is in that set, or kept for it;
//! * until then a value that is older than a set that was cut short does not go without being kept.
//!
//! Never: it takes a key from a set before what the others need of it is kept.

use crate::array::{Array, Place};
use crate::gather::Piece;
use crate::journal::Slot;
use crate::leave::Membership;
use crate::manner::Manner;
use crate::member::{Verdict, verdict};
use crate::placement;
use crate::recover::SetState;
use crate::set::{Packed, Set, Stub, ghost_key};
use plimsoll_kv::{ContainerId, Error, Op, Result, Version};
use std::rc::Rc;

impl Array {
    /// Whether sets may name values that are not known to be in any.
    pub(crate) fn has_doubts(&self) -> bool {
        self.forms.has_packed() && (self.distrusted.get() || !self.cut_short.borrow().is_empty())
    }

    /// Whether such a set may name a value: none that is newer than the set.
    pub(crate) fn is_in_doubt(&self, version: Version) -> bool {
        self.has_doubts() && version <= self.cut_short_at.get()
    }

    /// A write of a key, or of its set, may have been cut short.
    pub(crate) fn may_be_cut_short(&self, key: (ContainerId, Vec<u8>)) {
        self.half_written.borrow_mut().entry(key.clone()).or_default();
        self.cut_short.borrow_mut().insert(key.clone());
        self.unsettled.borrow_mut().insert(key);
    }

    /// Keys whose set, of this name, was being made, or taken apart, stay named in the journal, and are made
    /// whole soon.
    pub(crate) async fn leave_cut_short<'a>(
        self: &Rc<Self>,
        each: impl IntoIterator<Item = (&'a Place, Slot)>,
        set: Version,
    ) {
        self.cut_short_at.set(self.cut_short_at.get().max(set));
        for (place, slot) in each {
            self.cut_short.borrow_mut().insert((place.container, place.key.clone()));
            self.leave_unsettled(place, slot).await;
        }
        self.settle_soon();
    }

    /// Puts copies in the place of the stubs of held keys of one set, all of which are named beside each;
    /// false if a member could not say what it has, which may be a stub.
    pub(crate) async fn put_copies_of_all(self: &Rc<Self>, places: &[&Place], set: Version) -> Result<bool> {
        let mut slots = Vec::new();
        for place in places {
            slots.push(self.slot_for(place).await);
        }
        let named = places.iter().zip(&slots);
        let names: Vec<Op> = named.map(|(place, slot)| slot.entry(place.container, &place.key)).collect();
        let mut all_told = true;
        for place in places {
            match self.put_copies_named(place, &names).await {
                Ok(told) => all_told &= told,
                Err(error) => {
                    self.leave_cut_short(places.iter().copied().zip(slots), set).await;
                    return Err(error);
                }
            }
        }
        places.iter().zip(slots).for_each(|(place, slot)| self.return_slot(place, slot));
        Ok(all_told)
    }

    /// What is to name a held key: what names it already, if it is half written, so that one slot does
    /// however often that is tried.
    pub(crate) async fn slot_for(&self, place: &Place) -> Slot {
        let key = (place.container, place.key.clone());
        let kept = self.half_written.borrow_mut().get_mut(&key).and_then(Vec::pop);
        match kept {
            Some(slot) => slot,
            None => self.journal.slot().await,
        }
    }

    /// What named a key goes on if that is still half written.
    pub(crate) fn return_slot(&self, place: &Place, slot: Slot) {
        if let Some(slots) = self.half_written.borrow_mut().get_mut(&(place.container, place.key.clone())) {
            slots.push(slot);
        }
    }

    /// Puts copies in the place of the stubs of a held key that was half written, if its set is not finished:
    /// a member lacks what it should have of it, or another key that it names is not in it.
    pub(crate) async fn leave_unfinished_set(self: &Rc<Self>, place: &Place) -> Result<()> {
        let manner = Manner::background();
        let Membership::Of { stub, .. } = self.membership(place, &manner).await? else { return Ok(()) };
        let is_whole = self.state_of_set(place.container, &stub, &manner).await? != SetState::Partial;
        if is_whole && self.are_others_in(place, &stub).await? {
            return Ok(());
        }
        // Of others that it names it may turn out to give the value: they go on relying on it.
        self.leave_any_set(place).await?;
        self.put_copies(place).await?;
        self.regroup_later(place.container, &stub);
        Ok(())
    }

    /// Whether every other value of the set of a held key is in it, or kept for it. If nobody can read the
    /// set that is not known, and it gives nobody anything.
    pub(crate) async fn are_others_in(self: &Rc<Self>, place: &Place, stub: &Stub) -> Result<bool> {
        let set = match self.find_set(place.container, stub).await {
            Ok(Some(set)) => set,
            Ok(None) => return Ok(false),
            Err(error) if verdict(&error) == Verdict::Broken => return Ok(true),
            Err(error) => return Err(error),
        };
        for (at, value) in set.values.iter().enumerate().filter(|(_, value)| value.key != place.key) {
            let other = self.place(place.container, &value.key)?;
            if !self.is_in(&other, (&set, value)).await?
                && !self.is_kept_for(place.container, &set, (at, value)).await?
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether a key has a stub of a set; also if nobody can tell whether it has: then it counts as packed
    /// until somebody can.
    async fn is_in(self: &Rc<Self>, place: &Place, (set, value): (&Set, &Packed)) -> Result<bool> {
        let mut all_silent = true;
        for role in 1..set.form().roles() {
            let Some(device) = self.readable(self.member_of(place, role)) else { continue };
            match self.read_piece(&device, place, role, Some((0, 0)), &Manner::background()).await {
                Ok(Piece { stub: Some(stub), header: Some(header), .. })
                    if stub.set == set.name && header.version == value.version =>
                {
                    return Ok(true);
                }
                Ok(_) | Err(Error::NotFound) => all_silent = false,
                Err(error) if verdict(&error) == Verdict::Broken => {}
                Err(error) => return Err(error),
            }
        }
        Ok(all_silent)
    }

    /// Whether the member of a value keeps it for this set: what it keeps for whichever needs it goes when
    /// the value turns out to have been in none. One that is coming in was given it before (seed 4929).
    async fn is_kept_for(
        self: &Rc<Self>,
        container: ContainerId,
        set: &Set,
        (at, value): (usize, &Packed),
    ) -> Result<bool> {
        let Some(device) = self.writable(self.primary_of_value(set, at)) else { return Ok(false) };
        let key = ghost_key(&self.tag, value.version);
        let name = self.ghost_name(&device, placement::sets(container), &key).await?;
        Ok(name == Some(set.name))
    }
}
