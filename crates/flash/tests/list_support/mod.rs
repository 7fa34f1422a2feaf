//! What tests of listing share: a model of which keys exist, pages, opening.

use plimsoll_flash::{FormatOptions, Options, Partition, Superblock, format, inspect};
use plimsoll_kv::{Block, ContainerId, Device, Durability, ListPage, Op, Output, Request};
use plimsoll_reactor::sim::ProcessId;
use plimsoll_reactor::{FileOptions, Reactor};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// The process that serves.
pub(crate) const SERVER: ProcessId = ProcessId(1);

/// A container and a key.
pub(crate) type Named = (u32, Vec<u8>);

#[derive(Clone, Default)]
struct KeyState {
    present: bool,
    expires_ms: Option<u64>,
    /// Grows whenever an operation on the key begins or ends.
    touched: u64,
    under_way: bool,
}

/// Which keys exist.
#[derive(Clone, Default)]
pub(crate) struct Model(BTreeMap<Named, KeyState>);

impl Model {
    /// An operation on a key begins.
    pub(crate) fn begin(&mut self, named: &Named) {
        let state = self.0.entry(named.clone()).or_default();
        state.touched += 1;
        state.under_way = true;
    }

    /// It ended, and the key is now so.
    pub(crate) fn end(&mut self, named: &Named, present: bool, expires_ms: Option<u64>) {
        let state = self.0.get_mut(named).expect("begun before");
        *state = KeyState { present, expires_ms, touched: state.touched + 1, under_way: false };
    }

    /// It ended, and the key is as before.
    pub(crate) fn unchanged(&mut self, named: &Named) {
        let state = self.0.get_mut(named).expect("begun before");
        state.touched += 1;
        state.under_way = false;
    }

    /// Keys ever touched in a container.
    pub(crate) fn names(&self, container: u32) -> Vec<Named> {
        self.0.keys().filter(|named| named.0 == container).cloned().collect()
    }

    /// Keys with an operation under way.
    pub(crate) fn under_way(&self) -> Vec<Named> {
        self.0.iter().filter(|(_, state)| state.under_way).map(|(named, _)| named.clone()).collect()
    }

    /// Compares a listing, begun when the model was as `before`.
    pub(crate) fn compare(
        &self,
        before: &Model,
        container: u32,
        prefix: &[u8],
        found: &[Vec<u8>],
        before_ms: u64,
        after_ms: u64,
    ) {
        let listed: BTreeSet<&Vec<u8>> = found.iter().collect();
        for key in found {
            assert!(self.0.contains_key(&(container, key.clone())), "a key that was never stored");
        }
        for (named, state) in self.0.iter().filter(|(named, _)| named.0 == container) {
            let touched = before.0.get(named).map_or(0, |state| state.touched);
            if state.touched != touched || state.under_way || !named.1.starts_with(prefix) {
                continue;
            }
            let expired = state.expires_ms.is_some_and(|at_ms| at_ms <= before_ms);
            let expiring = state.expires_ms.is_some_and(|at_ms| at_ms <= after_ms);
            if state.present && expiring && !expired {
                continue; // It may be listed or not.
            }
            assert_eq!(
                listed.contains(&named.1),
                state.present && !expired,
                "key {:?} of container {container}",
                String::from_utf8_lossy(&named.1)
            );
        }
    }
}

/// One page, looked over.
pub(crate) async fn page(
    partition: &Rc<Partition>,
    container: u32,
    prefix: &[u8],
    after: Option<Vec<u8>>,
    limit: usize,
) -> ListPage {
    let op =
        Op::List { container: ContainerId(container), prefix: prefix.to_vec(), after: after.clone(), limit };
    let done = partition.clone().execute(Request::new(Durability::Sync, op)).await.expect("list");
    let Output::Listed(page) = done.output else { panic!("a listing gives a page") };
    assert!(page.keys.len() <= limit && (!page.more || !page.keys.is_empty()));
    assert!(page.keys.is_sorted_by(|a, b| a < b));
    assert!(page.keys.iter().all(|key| key.starts_with(prefix)));
    assert!(page.keys.first().zip(after.as_ref()).is_none_or(|(first, after)| first > after));
    page
}

/// All pages. `quiet`: nothing changes meanwhile, so that `more` must be exact.
pub(crate) async fn list_all(
    partition: &Rc<Partition>,
    container: u32,
    prefix: &[u8],
    limit: impl Fn() -> usize,
    quiet: bool,
) -> Vec<Vec<u8>> {
    let (mut after, mut found) = (None, Vec::new());
    loop {
        let page = page(partition, container, prefix, after.clone(), limit()).await;
        assert!(!quiet || after.is_none() || !page.keys.is_empty(), "more was promised");
        found.extend(page.keys);
        if !page.more {
            return found;
        }
        after = found.last().cloned();
    }
}

/// Opens the disk, formatting it if it is blank.
pub(crate) async fn open_partition(
    reactor: &Reactor,
    fingerprint_bits: u32,
    segment_bytes: u32,
    checkpoint_transitions_min: u64,
) -> Rc<Partition> {
    let file = reactor.open_file("disk", &FileOptions::default()).expect("the disk exists");
    open_on(reactor, Rc::new(file), fingerprint_bits, segment_bytes, checkpoint_transitions_min).await
}

/// Opens a device, formatting it if it is blank.
pub(crate) async fn open_on(
    reactor: &Reactor,
    block: Rc<dyn Block>,
    fingerprint_bits: u32,
    segment_bytes: u32,
    checkpoint_transitions_min: u64,
) -> Rc<Partition> {
    let superblock: Superblock = match inspect(&*block).await {
        Ok(superblock) => superblock,
        Err(_) => {
            let options = FormatOptions {
                partitions: 1,
                segment_bytes: Some(segment_bytes),
                force: false,
                written_ahead: true,
                device_id: [7; 16],
                hash_secret: 99,
                created_ms: 1,
            };
            format(&*block, &options).await.expect("a blank disk can be formatted")
        }
    };
    let options = Options { fingerprint_bits, checkpoint_transitions_min };
    Partition::open(reactor, block, &superblock, 0, options).await.expect("the partition opens")
}
