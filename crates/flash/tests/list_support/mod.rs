//! What tests of listing share: pages and opening.

use crate::opening;
use plimsoll_flash::{Options, Partition};
use plimsoll_kv::{Block, ContainerId, Device, Durability, ListPage, Op, Output, Request};
use plimsoll_reactor::Reactor;
use std::rc::Rc;

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

/// Opens a device, formatting it if it is blank.
pub(crate) async fn open_on(
    reactor: &Reactor,
    block: Rc<dyn Block>,
    fingerprint_bits: u32,
    segment_bytes: u32,
    checkpoint_transitions_min: u64,
) -> Rc<Partition> {
    let options = Options { fingerprint_bits, checkpoint_transitions_min, ..Options::default() };
    opening::open_on(reactor, block, segment_bytes, options).await
}
