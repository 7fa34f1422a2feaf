//! What tests of listing share: pages and opening.

use plimsoll_flash::{FormatOptions, Options, Partition, Superblock, format, inspect};
use plimsoll_kv::{Block, ContainerId, Device, Durability, ListPage, Op, Output, Request};
use plimsoll_reactor::Reactor;
use plimsoll_reactor::sim::ProcessId;
use std::rc::Rc;

/// The process that serves.
pub(crate) const SERVER: ProcessId = ProcessId(1);

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
