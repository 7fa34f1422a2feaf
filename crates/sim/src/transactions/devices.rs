//! What a life serves: partitions of one disk, or arrays over those of several, and caches above them.
//!
//! Place: each core of a life, before it serves. Invariant: every partition's accounts are right when it is
//! open.

use super::client::Shared as Told;
use super::evictions::Evictions;
use super::shape::{HASH_SECRET, Shape, disk};
use plimsoll_array::{Array, ArrayOptions, Joining};
use plimsoll_cache::Cache;
use plimsoll_flash::{Options, Partition, inspect};
use plimsoll_kv::{Above, Block, Device};
use plimsoll_reactor::{FileOptions, Reactor};
use std::collections::BTreeMap;
use std::rc::Rc;

/// What a core has opened.
#[derive(Default)]
pub(super) struct Devices {
    partitions: Vec<Rc<Partition>>,
    arrays: Vec<Rc<Array>>,
    /// What hears of evictions.
    pub(super) above: Vec<Rc<dyn Above>>,
    pub(super) served: BTreeMap<u16, Rc<dyn Device>>,
}

impl Devices {
    /// Opens the partitions of a core.
    pub(super) async fn open(
        reactor: &Reactor,
        numbers: impl Iterator<Item = u16>,
        (shape, told): (Shape, &Rc<Told>),
    ) -> Result<Devices, String> {
        let mut blocks: Vec<Rc<dyn Block>> = Vec::new();
        for member in 0..shape.members {
            let file = reactor.open_file(&disk(member), &FileOptions::default());
            blocks.push(Rc::new(file.expect("the disk exists")));
        }
        let mut devices = Devices::default();
        for number in numbers {
            let mut opened = Vec::new();
            for block in &blocks {
                opened.push(open_partition(reactor, block, number, shape).await?);
            }
            devices.partitions.extend(opened.iter().cloned());
            let served = match opened.as_slice() {
                [alone] => devices.serve(alone, shape, told),
                members => devices.join(reactor, members, number, shape).await?,
            };
            devices.served.insert(number, served);
        }
        Ok(devices)
    }

    fn serve(&mut self, partition: &Rc<Partition>, shape: Shape, told: &Rc<Told>) -> Rc<dyn Device> {
        let cache = (shape.cache_bytes > 0)
            .then(|| Cache::new(partition.clone(), partition.clock(), HASH_SECRET, shape.cache_bytes));
        let above: Rc<dyn Above> = Rc::new(Evictions { shared: told.clone(), cache: cache.clone() });
        partition.tell(Rc::downgrade(&above));
        self.above.push(above);
        assert_eq!(partition.metrics().evicted, 0, "every eviction is told of");
        cache.map_or(partition.clone() as Rc<dyn Device>, |cache| cache)
    }

    async fn join(
        &mut self,
        reactor: &Reactor,
        members: &[Rc<Partition>],
        number: u16,
        shape: Shape,
    ) -> Result<Rc<dyn Device>, String> {
        let joining = members.iter().enumerate().map(|(member, partition)| Joining {
            name: disk(member),
            id: [1 + member as u8; 16],
            device: Ok(partition.clone() as Rc<dyn Device>),
        });
        let options = ArrayOptions {
            policy: shape.policy(),
            degraded: false,
            rebuild_bytes_per_s: 0,
            stateless: false,
        };
        let array = Array::open(reactor, number, shape.partitions, joining.collect(), options).await;
        let array = array.map_err(|error| error.to_string())?;
        self.arrays.push(array.clone());
        Ok(match shape.cache_bytes {
            0 => array,
            bytes => Cache::new(array.clone(), array.clock(), HASH_SECRET, bytes),
        })
    }

    /// Closes all; a device that fails keeps what was acknowledged all the same.
    pub(super) async fn close(&self) {
        for array in &self.arrays {
            array.close().await;
        }
        for partition in &self.partitions {
            drop(partition.close().await);
        }
    }
}

async fn open_partition(
    reactor: &Reactor,
    block: &Rc<dyn Block>,
    number: u16,
    shape: Shape,
) -> Result<Rc<Partition>, String> {
    let superblock = inspect(&**block).await.map_err(|error| error.to_string())?;
    let options = Options {
        fingerprint_bits: shape.fingerprint_bits,
        checkpoint_transitions_min: 300,
        known_bytes: shape.known_bytes,
        on_full: shape.on_full,
        is_member: shape.members > 1,
        ..Options::default()
    };
    let partition = Partition::open(reactor, block.clone(), &superblock, number, options).await;
    let partition = partition.map_err(|error| error.to_string())?;
    partition.check_accounts()?;
    Ok(partition)
}
