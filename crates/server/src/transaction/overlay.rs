//! What a transaction has seen and written, before any of it is at a partition.
//!
//! Invariants: what was written hides what was there; versions grow with every write; a database that was
//! emptied has nothing in it but what was written since.
//!
//! Never: no I/O.

use super::Key;
use plimsoll_kv::{Condition, ContainerId, Error, Expiry, Form, Item, Op, Result, UploadId, Value, Version};
use std::collections::{BTreeMap, BTreeSet};

/// The epoch of versions that no partition has given.
const OWN_EPOCH: u32 = u32::MAX;

/// A value that was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Written {
    Bytes(Vec<u8>),
    /// In parts, of so many bytes.
    Upload(UploadId, u64),
}

impl Written {
    fn length(&self) -> u64 {
        match self {
            Written::Bytes(bytes) => bytes.len() as u64,
            Written::Upload(_, length) => *length,
        }
    }

    pub(super) fn held_bytes(&self) -> usize {
        if let Written::Bytes(bytes) = self { bytes.len() } else { 0 }
    }
}

/// What became of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Now {
    /// Nothing.
    Same,
    Absent,
    Value {
        written: Written,
        /// What it is to be made into, if its client wishes something.
        form: Option<Form>,
        expiry_ms: Option<u64>,
        version: Version,
    },
    Expiry {
        expiry_ms: Option<u64>,
        version: Version,
    },
}

/// A key that was touched.
struct Entry {
    /// What is at its partition, if that was looked at.
    base: Option<Option<Item>>,
    now: Now,
}

/// A change of the keys that exist.
pub(super) struct Change {
    pub(super) key: Vec<u8>,
    /// What is at its partition, if that was looked at.
    pub(super) base: Option<Option<Item>>,
    /// What is there now.
    pub(super) now: Option<Item>,
}

/// What a transaction has seen and written.
#[derive(Default)]
pub(super) struct Overlay {
    entries: BTreeMap<Key, Entry>,
    cleared: BTreeSet<ContainerId>,
    clock: u64,
    written_bytes: usize,
    /// Values in parts that were written, and written over since.
    superseded: Vec<(Key, UploadId)>,
}

impl Overlay {
    /// What a key holds now, without its bytes, if that is known.
    pub(super) fn known(&self, place: &Key) -> Option<Option<Item>> {
        match self.entries.get(place) {
            Some(entry) => entry.current(),
            None => self.cleared.contains(&place.0).then_some(None),
        }
    }

    /// What is at a key's partition.
    pub(super) fn found(&mut self, place: Key, item: Option<Item>) {
        let entry = self.entries.entry(place).or_insert(Entry { base: None, now: Now::Same });
        entry.base = Some(item);
    }

    /// What was written to a key, if something was.
    pub(super) fn written(&self, place: &Key) -> Option<Value> {
        match &self.entries.get(place)?.now {
            Now::Value { written: Written::Bytes(bytes), .. } => Some(Value::from(bytes.clone())),
            Now::Value { written: Written::Upload(upload, _), .. } => Some(Value::Upload(*upload)),
            _ => None,
        }
    }

    /// Judges a condition by what is known of a key.
    pub(super) fn judge(&self, place: &Key, condition: Condition) -> Result<()> {
        if condition == Condition::None {
            return Ok(());
        }
        let current = self.known(place).expect("looked at before it is judged");
        match (condition, current) {
            (Condition::None, _) | (Condition::MustExist, Some(_)) | (Condition::MustNotExist, None) => {
                Ok(())
            }
            (Condition::MustExist | Condition::IfVersion(_), None) => Err(Error::NotFound),
            (Condition::MustNotExist, Some(_)) => Err(Error::Exists),
            (Condition::IfVersion(wanted), Some(item)) if item.version == wanted => Ok(()),
            (Condition::IfVersion(_), Some(_)) => Err(Error::VersionMismatch),
        }
    }

    fn next_version(&mut self) -> Version {
        self.clock += 1;
        Version { epoch: OWN_EPOCH, clock: self.clock }
    }

    /// The entry of a key, whose written value is no longer counted.
    fn replaced(&mut self, place: Key) -> &mut Entry {
        let base = self.cleared.contains(&place.0).then_some(None);
        let entry = self.entries.entry(place.clone()).or_insert(Entry { base, now: Now::Same });
        match &entry.now {
            Now::Value { written: Written::Upload(upload, _), .. } => self.superseded.push((place, *upload)),
            Now::Value { written: Written::Bytes(bytes), .. } => self.written_bytes -= bytes.len(),
            _ => {}
        }
        entry
    }

    /// The values in parts that nobody will store, since this was last asked.
    pub(super) fn take_superseded(&mut self) -> Vec<(Key, UploadId)> {
        std::mem::take(&mut self.superseded)
    }

    pub(super) fn store(
        &mut self,
        place: Key,
        (written, form): (Written, Option<Form>),
        expiry: Expiry,
    ) -> Version {
        let expiry_ms = match expiry {
            Expiry::Never => None,
            Expiry::At(at_ms) => Some(at_ms),
            Expiry::Keep => self.known(&place).flatten().and_then(|item| item.expiry_ms),
        };
        let version = self.next_version();
        let bytes = written.held_bytes();
        self.replaced(place).now = Now::Value { written, form, expiry_ms, version };
        self.written_bytes += bytes;
        version
    }

    pub(super) fn delete(&mut self, place: Key) {
        self.replaced(place).now = Now::Absent;
    }

    /// Changes when a key that exists expires; what it holds then.
    pub(super) fn set_expiry(&mut self, place: &Key, expiry: Expiry) -> Item {
        let mut item = self.known(place).flatten().expect("looked at, and there");
        item.expiry_ms = match expiry {
            Expiry::Never => None,
            Expiry::At(at_ms) => Some(at_ms),
            Expiry::Keep => item.expiry_ms,
        };
        item.version = self.next_version();
        let entry = self.entries.get_mut(place).expect("looked at");
        let (to_ms, to_version) = (item.expiry_ms, item.version);
        match &mut entry.now {
            Now::Value { expiry_ms, version, .. } => (*expiry_ms, *version) = (to_ms, to_version),
            now => *now = Now::Expiry { expiry_ms: to_ms, version: to_version },
        }
        item
    }

    /// Empties a database.
    pub(super) fn clear(&mut self, container: ContainerId) {
        let gone: Vec<Key> = self.entries.keys().filter(|place| place.0 == container).cloned().collect();
        for place in gone {
            self.replaced(place.clone()).now = Now::Same;
            self.entries.remove(&place);
        }
        self.cleared.insert(container);
    }

    pub(super) fn is_cleared(&self, container: ContainerId) -> bool {
        self.cleared.contains(&container)
    }

    /// Bytes of the values written.
    pub(super) fn written_bytes(&self) -> usize {
        self.written_bytes
    }

    /// The keys of a database that were written, in order.
    pub(super) fn changes(&self, container: ContainerId) -> Vec<Change> {
        let of_container = self.entries.range((container, Vec::new())..);
        let of_container = of_container.take_while(|(place, _)| place.0 == container);
        let changed = of_container.filter(|(_, entry)| entry.now != Now::Same);
        let change = |(place, entry): (&Key, &Entry)| Change {
            key: place.1.clone(),
            base: entry.base.clone(),
            now: entry.current().flatten(),
        };
        changed.map(change).collect()
    }

    /// The databases to be emptied first, and what is to be written then.
    pub(super) fn into_writes(self) -> (BTreeSet<ContainerId>, Vec<Op>) {
        let cleared = self.cleared;
        let write = |((container, key), entry): (Key, Entry)| {
            let condition = Condition::None;
            let expiry = |expiry_ms: Option<u64>| expiry_ms.map_or(Expiry::Never, Expiry::At);
            match entry.now {
                Now::Same => None,
                Now::Absent => entry.base.is_none_or(|base| base.is_some()).then_some(Op::Delete {
                    container,
                    key,
                    condition,
                }),
                Now::Expiry { expiry_ms, .. } => {
                    Some(Op::SetExpiry { container, key, expiry: expiry(expiry_ms), condition })
                }
                Now::Value { written, form, expiry_ms, .. } => Some(Op::Store {
                    container,
                    key,
                    value: match written {
                        Written::Bytes(bytes) => bytes.into(),
                        Written::Upload(upload, _) => Value::Upload(upload),
                    },
                    condition,
                    expiry: expiry(expiry_ms),
                    retain: false,
                    want_previous: false,
                    form,
                }),
            }
        };
        (cleared, self.entries.into_iter().filter_map(write).collect())
    }
}

impl Entry {
    /// What the key holds now, without its bytes, if that is known.
    fn current(&self) -> Option<Option<Item>> {
        match &self.now {
            Now::Same => self.base.clone(),
            Now::Absent => Some(None),
            Now::Value { written, expiry_ms, version, .. } => Some(Some(Item {
                version: *version,
                length: written.length(),
                expiry_ms: *expiry_ms,
                stored_bytes: written.length(),
                ..Item::default()
            })),
            Now::Expiry { expiry_ms, version } => {
                let base = self.base.clone()?;
                Some(base.map(|item| Item { expiry_ms: *expiry_ms, version: *version, ..item }))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATABASE: ContainerId = ContainerId(2);

    fn place(name: &str) -> Key {
        (DATABASE, name.as_bytes().to_vec())
    }

    fn bytes(text: &str) -> (Written, Option<Form>) {
        (Written::Bytes(text.as_bytes().to_vec()), None)
    }

    fn item(clock: u64) -> Item {
        Item { version: Version { epoch: 1, clock }, length: 3, expiry_ms: Some(9), ..Item::default() }
    }

    #[test]
    fn what_was_written_hides_what_was_there() {
        let mut overlay = Overlay::default();
        assert_eq!(overlay.known(&place("a")), None, "nobody has looked");
        overlay.found(place("a"), Some(item(1)));
        assert_eq!(overlay.known(&place("a")), Some(Some(item(1))));
        let kept = overlay.store(place("a"), bytes("longer"), Expiry::Keep);
        let now = overlay.known(&place("a")).flatten().unwrap();
        assert_eq!((now.version, now.length, now.expiry_ms), (kept, 6, Some(9)));
        assert_eq!(overlay.judge(&place("a"), Condition::IfVersion(kept)), Ok(()));
        assert_eq!(
            overlay.judge(&place("a"), Condition::IfVersion(item(1).version)),
            Err(Error::VersionMismatch)
        );
        overlay.delete(place("a"));
        assert_eq!(overlay.judge(&place("a"), Condition::MustExist), Err(Error::NotFound));
        assert_eq!(overlay.judge(&place("a"), Condition::MustNotExist), Ok(()));
        assert_eq!(overlay.written_bytes(), 0);
    }

    #[test]
    fn what_a_value_is_to_be_made_into_goes_with_it() {
        let mut overlay = Overlay::default();
        overlay.store(place("a"), (bytes("1").0, Some(Form::Copies(2))), Expiry::Never);
        overlay.set_expiry(&place("a"), Expiry::At(9));
        overlay.store(place("b"), (bytes("1").0, Some(Form::Copies(2))), Expiry::Never);
        overlay.store(place("b"), bytes("2"), Expiry::Never);
        let (_, writes) = overlay.into_writes();
        let forms = writes.iter().map(|write| match write {
            Op::Store { form, .. } => *form,
            other => panic!("{other:?}"),
        });
        assert_eq!(forms.collect::<Vec<_>>(), [Some(Form::Copies(2)), None]);
    }

    #[test]
    fn an_emptied_database_holds_what_was_written_since() {
        let mut overlay = Overlay::default();
        overlay.store(place("before"), bytes("1"), Expiry::Never);
        overlay.clear(DATABASE);
        assert_eq!(overlay.known(&place("before")), Some(None));
        overlay.store(place("after"), bytes("2"), Expiry::At(7));
        overlay.delete(place("neither"));
        assert_eq!(overlay.changes(DATABASE).len(), 2);
        let (cleared, writes) = overlay.into_writes();
        assert_eq!(cleared.into_iter().collect::<Vec<_>>(), [DATABASE]);
        assert_eq!(writes.len(), 1, "what the clear takes anyway is not deleted: {writes:?}");
        assert!(matches!(&writes[0], Op::Store { expiry: Expiry::At(7), .. }));
    }

    #[test]
    fn a_change_of_expiry_alone_does_not_write_the_value() {
        let mut overlay = Overlay::default();
        overlay.found(place("a"), Some(item(1)));
        let changed = overlay.set_expiry(&place("a"), Expiry::Never);
        assert_eq!((changed.expiry_ms, changed.length), (None, 3));
        let (_, writes) = overlay.into_writes();
        assert!(matches!(&writes[..], [Op::SetExpiry { expiry: Expiry::Never, .. }]));
    }
}
