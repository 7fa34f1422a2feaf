use super::sieve::PASSED_MAX;
use super::*;
use proptest::prelude::*;

fn place(key: &[u8], space: u64) -> Place<'_> {
    // A hash with few values, so that chains grow.
    let hash = key.iter().fold(3_u64, |hash, byte| hash.wrapping_mul(31) + u64::from(*byte)) % 7;
    Place { hash: hash << 32 | hash, space, key }
}

fn item(bytes: Vec<u8>) -> Item {
    Item { length: bytes.len() as u64, bytes, stored_bytes: 64, ..Item::default() }
}

fn put(table: &mut Table, place: Place<'_>, item: &Item) -> bool {
    table.insert(place, item, &item.bytes)
}

fn bytes_of(table: &mut Table, key: &[u8], space: u64) -> Option<Vec<u8>> {
    table.get(place(key, space)).map(|entry| entry.item((0, u64::MAX)).bytes)
}

/// The bytes that a table uses, counted anew.
fn recount(table: &Table, empty_bytes: usize) -> usize {
    let full = table.chunks.iter().flatten().map(|slot| slot.bytes.len());
    empty_bytes + table.chunks.len() * CHUNK_BYTES + full.sum::<usize>()
}

#[test]
fn what_is_kept_is_found_until_it_is_removed() {
    let mut table = Table::new(64 << 10, 0);
    let kept =
        Item { version: Version { epoch: 3, clock: 9 }, expiry_ms: Some(500), ..item(b"value".to_vec()) };
    assert!(put(&mut table, place(b"k", 1), &kept));
    assert_eq!(table.get(place(b"k", 1)).unwrap().item((0, u64::MAX)), kept);
    assert!(table.get(place(b"k", 2)).is_none(), "the container was emptied");
    assert!(table.get(place(b"K", 1)).is_none());
    let entry = table.get(place(b"k", 1)).unwrap();
    assert!(entry.expires() && !entry.is_expired(499) && entry.is_expired(500));
    assert!(table.remove(place(b"k", 1)) && !table.remove(place(b"k", 1)));
    assert!(table.get(place(b"k", 1)).is_none());
    assert_eq!((table.entries(), table.evictions()), (0, 0));
}

#[test]
fn ranges_are_cut_as_the_partition_cuts_them() {
    let mut table = Table::new(64 << 10, 0);
    put(&mut table, place(b"k", 0), &item(b"0123456789".to_vec()));
    let entry = table.get(place(b"k", 0)).unwrap();
    for (range, bytes) in [
        ((0, 0), ""),
        ((2, 3), "234"),
        ((8, 100), "89"),
        ((10, 1), ""),
        ((50, 1), ""),
        ((5, u64::MAX), "56789"),
    ] {
        let item = entry.item(range);
        assert_eq!((item.bytes.as_slice(), item.length), (bytes.as_bytes(), 10), "{range:?}");
    }
}

#[test]
fn one_value_takes_a_sixteenth_at_most() {
    let mut table = Table::new(160 << 10, 0);
    assert!(!put(&mut table, place(b"k", 0), &item(vec![0; 10 << 10])));
    assert!(put(&mut table, place(b"k", 0), &item(vec![0; 9 << 10])));
    assert!(!put(&mut table, place(b"k", 0), &item(vec![0; 10 << 10])), "too long");
    assert!(table.get(place(b"k", 0)).is_none(), "and what it replaces is gone");
}

#[test]
fn a_budget_for_nothing_keeps_nothing() {
    for budget_bytes in [0, 1, 100, 1000, 4000] {
        let mut table = Table::new(budget_bytes, 64);
        assert!(!put(&mut table, place(b"k", 0), &item(vec![1])));
        assert_eq!(table.entries(), 0);
    }
}

#[test]
fn who_was_asked_for_stays() {
    let mut table = Table::new(64 << 10, 0);
    let mut number = 0_u32;
    while table.evictions() == 0 {
        put(&mut table, place(&number.to_be_bytes(), 0), &item(vec![0; 1000]));
        assert!(
            bytes_of(&mut table, &0_u32.to_be_bytes(), 0).is_some(),
            "the first is asked for again and again"
        );
        number += 1;
    }
    for _ in 0..1000 {
        put(&mut table, place(&number.to_be_bytes(), 0), &item(vec![0; 1000]));
        assert!(bytes_of(&mut table, &0_u32.to_be_bytes(), 0).is_some());
        number += 1;
    }
}

/// To bring entries closer is not to ask for them.
#[test]
fn what_is_touched_is_not_asked_for() {
    let mut table = Table::new(64 << 10, 0);
    assert_eq!(table.touch(&[1, 2])[..2], [false, false]);
    assert!(!table.approach(1) && !table.touch_lone(1));
    put(&mut table, place(b"k", 0), &item(Vec::new()));
    put(&mut table, place(b"long", 0), &item(vec![1; 1000]));
    let places = [b"k".as_slice(), b"long", b"other"].map(|key| place(key, 0).hash);
    assert_eq!(table.touch(&places)[..3], [true, true, false]);
    assert!(table.approach(places[0]) && table.touch_lone(places[0]));
    assert!(!table.take_visited(place(b"k", 0)) && !table.take_visited(place(b"long", 0)));
}

/// SIEVE, as its paper has it, with the bytes of `Table`: the newest last.
struct Model {
    queue: Vec<(Vec<u8>, u64, Vec<u8>, bool)>,
    hand: usize,
    used_bytes: usize,
    slots: usize,
    budget_bytes: usize,
}

impl Model {
    fn position(&self, key: &[u8], space: u64) -> Option<usize> {
        self.queue.iter().position(|(k, s, _, _)| k == key && *s == space)
    }

    fn remove_at(&mut self, at: usize) {
        let (key, _, value, _) = self.queue.remove(at);
        self.used_bytes -= HEAD_BYTES + key.len() + value.len();
        if at < self.hand {
            self.hand -= 1;
        }
        // Past the newest it stands nowhere: who comes next is not where it stands.
        if self.hand >= self.queue.len() {
            self.hand = 0;
        }
    }

    fn evict(&mut self) {
        let mut passed = 0;
        loop {
            self.hand = if self.hand >= self.queue.len() { 0 } else { self.hand };
            let entry = &mut self.queue[self.hand];
            if !entry.3 || passed == PASSED_MAX {
                return self.remove_at(self.hand);
            }
            entry.3 = false;
            passed += 1;
            self.hand += 1;
        }
    }

    fn insert(&mut self, key: &[u8], space: u64, value: &[u8]) {
        if let Some(at) = self.position(key, space) {
            self.remove_at(at);
        }
        let bytes = HEAD_BYTES + key.len() + value.len();
        if bytes > self.budget_bytes / SHARE_MAX {
            return;
        }
        let slot_bytes = |model: &Model| if model.queue.len() == model.slots { CHUNK_BYTES } else { 0 };
        while self.used_bytes + slot_bytes(self) + bytes > self.budget_bytes {
            if self.queue.is_empty() {
                return;
            }
            self.evict();
        }
        if self.queue.len() == self.slots {
            self.slots += CHUNK_SLOTS;
            self.used_bytes += CHUNK_BYTES;
        }
        self.used_bytes += bytes;
        self.queue.push((key.to_vec(), space, value.to_vec(), false));
    }
}

#[derive(Clone, Debug)]
enum Step {
    Insert(u16, u64, usize),
    Get(u16, u64),
    Remove(u16, u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (key, space) = (0_u16..700, 0_u64..2);
    let length = prop_oneof![0_usize..20, 0_usize..2500];
    let step = prop_oneof![
        4 => (key.clone(), space.clone(), length).prop_map(|(k, s, l)| Step::Insert(k, s, l)),
        4 => (key.clone(), space.clone()).prop_map(|(k, s)| Step::Get(k, s)),
        1 => (key, space).prop_map(|(k, s)| Step::Remove(k, s)),
    ];
    prop::collection::vec(step, 1..1500)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn it_keeps_what_the_model_keeps(steps in steps(), budget_bytes in 8_000_usize..120_000) {
        let mut table = Table::new(budget_bytes, 100);
        let empty_bytes = table.used_bytes();
        let mut model = Model {
            queue: Vec::new(), hand: 0, used_bytes: empty_bytes, slots: 0, budget_bytes,
        };
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                Step::Insert(key, space, length) => {
                    let value = vec![number as u8; length];
                    let key = key.to_be_bytes();
                    put(&mut table, place(&key, space), &item(value.clone()));
                    model.insert(&key, space, &value);
                }
                Step::Get(key, space) => {
                    let key = key.to_be_bytes();
                    let found = model.position(&key, space).map(|at| &mut model.queue[at]);
                    let value = found.map(|found| { found.3 = true; found.2.clone() });
                    prop_assert_eq!(bytes_of(&mut table, &key, space), value);
                }
                Step::Remove(key, space) => {
                    let key = key.to_be_bytes();
                    let at = model.position(&key, space);
                    at.into_iter().for_each(|at| model.remove_at(at));
                    prop_assert_eq!(table.remove(place(&key, space)), at.is_some());
                }
            }
            prop_assert_eq!(table.entries(), model.queue.len() as u64);
            prop_assert_eq!(table.used_bytes(), model.used_bytes);
            prop_assert!(table.used_bytes() <= budget_bytes.max(empty_bytes));
        }
        prop_assert_eq!(recount(&table, empty_bytes), table.used_bytes());
        for (key, space, value, _) in &model.queue {
            prop_assert_eq!(bytes_of(&mut table, key, *space), Some(value.clone()));
        }
    }
}
