//! What operations name by a number: files and sockets.
//!
//! Role: gives numbers, and keeps what they name as long as an operation needs it. Place on the path:
//! off it; a look-up is an index.
//!
//! Invariant: a thing is given back for closing only when no operation names it: neither its number
//! nor its descriptor can be reused while an old operation is still under way.

struct Slot<T> {
    value: T,
    /// Operations that name it.
    in_flight: u32,
    closing: bool,
}

pub(in crate::driver) struct Table<T> {
    slots: Vec<Option<Slot<T>>>,
    free: Vec<u32>,
}

impl<T> Default for Table<T> {
    fn default() -> Table<T> {
        Table { slots: Vec::new(), free: Vec::new() }
    }
}

impl<T> Table<T> {
    /// Whether one more can be named without there being more than `most`.
    pub(in crate::driver) fn has_room(&self, most: usize) -> bool {
        !self.free.is_empty() || self.slots.len() < most
    }

    /// Takes a thing in and names it.
    pub(in crate::driver) fn insert(&mut self, value: T) -> u32 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            u32::try_from(self.slots.len() - 1).expect("descriptors are 31-bit numbers")
        });
        let kept = &mut self.slots[index as usize];
        assert!(kept.is_none(), "a free slot holds nothing");
        *kept = Some(Slot { value, in_flight: 0, closing: false });
        index
    }

    fn slot(&mut self, index: u32) -> &mut Slot<T> {
        self.slots[index as usize].as_mut().expect("what is in use is open")
    }

    pub(in crate::driver) fn get(&mut self, index: u32) -> &mut T {
        &mut self.slot(index).value
    }

    /// All that is named.
    pub(in crate::driver) fn all(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        (0..).zip(&mut self.slots).filter_map(|(index, slot)| Some((index, &mut slot.as_mut()?.value)))
    }

    /// What the number names, if it names anything any more.
    pub(in crate::driver) fn find(&mut self, index: u32) -> Option<&mut T> {
        self.slots.get_mut(index as usize)?.as_mut().map(|slot| &mut slot.value)
    }

    /// Notes an operation on it.
    pub(in crate::driver) fn hold(&mut self, index: u32) {
        let slot = self.slot(index);
        assert!(!slot.closing, "no operation starts on what is closed");
        slot.in_flight += 1;
    }

    /// Notes the end of an operation; the last one gives back what was closed meanwhile.
    pub(in crate::driver) fn release(&mut self, index: u32) -> Option<T> {
        let slot = self.slot(index);
        slot.in_flight -= 1;
        (slot.closing && slot.in_flight == 0).then(|| self.remove(index))
    }

    /// Gives it back now or, while operations name it, when the last of them is over.
    pub(in crate::driver) fn close(&mut self, index: u32) -> Option<T> {
        let slot = self.slot(index);
        assert!(!slot.closing, "a thing is closed once");
        slot.closing = true;
        (slot.in_flight == 0).then(|| self.remove(index))
    }

    fn remove(&mut self, index: u32) -> T {
        let slot = self.slots[index as usize].take().expect("a thing is removed once");
        self.free.push(index);
        slot.value
    }
}
