//! Values in parts, and the records that hold their parts.
//!
//! Role: who needs the record of a part. A value that was changed in a few places shares the records of
//! the others with the value before, as long as somebody reads that. Place on the path: inside the state.
//!
//! Invariants: a record is live as long as an upload holds it; every part of every upload stands in the
//! list of its record's holders, and nothing else does. The lists are not stored: they follow from the
//! uploads.

use plimsoll_kv::Slot;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;

/// Where an upload stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UploadState {
    /// Parts are being written.
    Open,
    /// It is the value of its key.
    Live,
    /// It is nobody's value; its parts go when its last reader has.
    Doomed,
    /// A transaction that has prepared needs it: what it is to write, or a value of that.
    Promised,
}

/// A value in parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upload {
    /// Where it stands.
    pub state: UploadState,
    /// The slot of its key.
    pub slot: u16,
    /// The container's generation: when it was begun, then that of its key.
    pub generation: u32,
    /// Bytes of the whole value.
    pub length: u64,
    /// Location and length of each part.
    pub parts: BTreeMap<u32, (u64, u32)>,
}

/// The record of a part.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Held {
    /// Units.
    length: u32,
    /// Uploads and the number of the part in each; never empty.
    holders: Vec<(u64, u32)>,
}

/// All uploads of a partition, by number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Uploads {
    all: BTreeMap<u64, Upload>,
    /// By location.
    records: BTreeMap<u64, Held>,
    /// Those that are open.
    open: BTreeSet<u64>,
    /// Those that are doomed. Both are looked for often, among many that are values.
    doomed: BTreeSet<u64>,
}

impl Deref for Uploads {
    type Target = BTreeMap<u64, Upload>;
    fn deref(&self) -> &BTreeMap<u64, Upload> {
        &self.all
    }
}

/// Notes a holder of a record: whether it is the first, and nothing if the record has another length.
fn hold(
    records: &mut BTreeMap<u64, Held>,
    (location, length): (u64, u32),
    holder: (u64, u32),
) -> Option<bool> {
    match records.entry(location) {
        Entry::Vacant(vacant) => {
            vacant.insert(Held { length, holders: vec![holder] });
            Some(true)
        }
        Entry::Occupied(mut occupied) => {
            occupied.get_mut().holders.push(holder);
            (occupied.get().length == length).then_some(false)
        }
    }
}

impl Uploads {
    /// All of these; nothing if they contradict each other.
    pub(crate) fn new(uploads: impl IntoIterator<Item = (u64, Upload)>) -> Option<Uploads> {
        let mut made = Uploads { all: uploads.into_iter().collect(), ..Uploads::default() };
        for (id, upload) in &made.all {
            match upload.state {
                UploadState::Open => drop(made.open.insert(*id)),
                UploadState::Doomed => drop(made.doomed.insert(*id)),
                UploadState::Live | UploadState::Promised => {}
            }
            for (part, record) in &upload.parts {
                hold(&mut made.records, *record, (*id, *part))?;
            }
        }
        Some(made)
    }

    /// Adds one.
    pub(crate) fn begin(&mut self, id: u64, upload: Upload) {
        assert!(upload.parts.is_empty() && upload.state == UploadState::Open, "parts come after it");
        self.all.insert(id, upload);
        self.open.insert(id);
    }

    /// Whether a value of a key in a slot, of a generation of a container, stands in parts.
    pub(crate) fn has_value(&self, slot: Slot, generation: u32) -> bool {
        let is_value = |upload: &Upload| matches!(upload.state, UploadState::Live | UploadState::Promised);
        let is_its = |upload: &Upload| upload.slot == slot.0 && upload.generation == generation;
        self.all.values().any(|upload| is_value(upload) && is_its(upload))
    }

    /// Says where one stands now, if it is there.
    pub(crate) fn set_state(&mut self, id: u64, state: UploadState) {
        let Some(upload) = self.all.get_mut(&id) else { return };
        upload.state = state;
        self.open.remove(&id);
        self.doomed.remove(&id);
        match state {
            UploadState::Open => drop(self.open.insert(id)),
            UploadState::Doomed => drop(self.doomed.insert(id)),
            UploadState::Live | UploadState::Promised => {}
        }
    }

    /// One became the value of a key of this generation.
    pub(crate) fn commit(&mut self, id: u64, generation: u32) {
        if let Some(upload) = self.all.get_mut(&id) {
            upload.generation = generation;
            self.set_state(id, UploadState::Live);
        }
    }

    /// Gives up those that a crash left open.
    pub(crate) fn doom_open(&mut self) {
        for id in std::mem::take(&mut self.open) {
            self.set_state(id, UploadState::Doomed);
        }
    }

    /// Gives up the values of a generation. What is still being sent is none of them: it becomes a value
    /// after this.
    pub(crate) fn doom_values(&mut self, generation: u32) {
        let is_value = |upload: &Upload| upload.state == UploadState::Live && upload.generation == generation;
        let values: Vec<u64> = self.all.iter().filter(|(_, of)| is_value(of)).map(|(id, _)| *id).collect();
        for id in values {
            self.set_state(id, UploadState::Doomed);
        }
    }

    /// A record is the part of an upload; true if nobody held it before.
    pub(crate) fn hold(&mut self, id: u64, part: u32, location: u64, length: u32) -> bool {
        let upload = self.all.get_mut(&id).expect("parts belong to an upload");
        let before = upload.parts.insert(part, (location, length));
        assert!(before.is_none(), "a part is written once");
        hold(&mut self.records, (location, length), (id, part)).expect("a record has one length")
    }

    /// A record was moved.
    pub(crate) fn relocate(&mut self, from: u64, to: u64) {
        let held = self.records.remove(&from).expect("only what is held is moved");
        for (id, part) in &held.holders {
            let upload = self.all.get_mut(id).expect("holders are uploads");
            upload.parts.insert(*part, (to, held.length));
        }
        self.records.insert(to, held);
    }

    /// Forgets an upload; gives the records that nobody holds any more, each with its units.
    pub(crate) fn end(&mut self, id: u64) -> Vec<(u64, u32)> {
        let Some(upload) = self.all.remove(&id) else { return Vec::new() };
        self.open.remove(&id);
        self.doomed.remove(&id);
        let mut freed = Vec::new();
        for (part, (location, length)) in upload.parts {
            let held = self.records.get_mut(&location).expect("parts are held");
            held.holders.retain(|holder| *holder != (id, part));
            if held.holders.is_empty() {
                self.records.remove(&location);
                freed.push((location, length));
            }
        }
        freed
    }

    /// Forgets all that no transaction needs.
    pub(crate) fn keep_promised(&mut self) {
        let all = std::mem::take(&mut self.all).into_iter();
        let promised = all.filter(|(_, upload)| upload.state == UploadState::Promised);
        *self = Uploads::new(promised).expect("a record has one length");
    }

    /// How many are open.
    pub(crate) fn open_count(&self) -> usize {
        self.open.len()
    }

    /// Those that are doomed.
    pub(crate) fn doomed(&self) -> &BTreeSet<u64> {
        &self.doomed
    }

    /// True if a record of so many units is a part of an upload.
    pub(crate) fn is_held(&self, location: u64, length: u32) -> bool {
        self.records.get(&location).is_some_and(|held| held.length == length)
    }

    /// Location and units of the records of all parts.
    pub(crate) fn records(&self) -> impl Iterator<Item = (u64, u32)> {
        self.records.iter().map(|(location, held)| (*location, held.length))
    }
}
