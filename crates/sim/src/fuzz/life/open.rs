//! How a life opens what it serves: disks, their partitions, and above them caches, or arrays and caches.
//!
//! Place: each core of a life, before it serves.
//!
//! Invariants: a disk that may fail, and does, counts as one that is not there, and so does one on which rot
//! hides what has to be read; the failure of any other is a refusal. An array starts without its missing
//! members by itself if more than half of all are whole; else it is told to, as its operator would.
//!
//! Each partition of a disk has it open for itself, so that one can be opened anew alone.
//!
//! Never: it opens an array a second time in one life after the first had begun to write.

use super::{Life, Refusal, on_full};
use crate::fuzz::evictions::Evictions;
use crate::fuzz::ledger::Watch;
use plimsoll_array::{Array, ArrayOptions, Joining, OpenError as ArrayError};
use plimsoll_cache::Cache;
use plimsoll_flash::{DeviceError, OpenError, Options, Partition, Superblock, inspect};
use plimsoll_kv::{Above, Device};
use plimsoll_reactor::{File, FileOptions, Reactor};
use std::rc::Rc;

impl Life {
    /// Looks at the disks that are there.
    pub(super) async fn look_at_disks(&self, reactor: &Reactor) -> Result<Vec<Option<Superblock>>, Refusal> {
        let mut found = Vec::new();
        for member in 0..self.disks.len() {
            found.push(self.look_at_disk(reactor, member).await?);
        }
        Ok(found)
    }

    /// Looks at a disk; nothing if it is not there, or fails.
    pub(super) async fn look_at_disk(
        &self,
        reactor: &Reactor,
        member: usize,
    ) -> Result<Option<Superblock>, Refusal> {
        let disk = &self.disks[member];
        if disk.is_missing.get() {
            return Ok(None);
        }
        match inspect(&self.open_disk(reactor, member)?.1).await {
            Ok(superblock) => Ok(Some(superblock)),
            Err(DeviceError::Io(_)) if disk.may_fail.get() => Ok(None),
            Err(DeviceError::Io(error)) => Err(Refusal::Io(error.to_string())),
            Err(other) => Err(Refusal::Damaged(other.to_string())),
        }
    }

    fn open_disk(&self, reactor: &Reactor, member: usize) -> Result<(File, Watch), Refusal> {
        let disk = &self.disks[member];
        let file = reactor.open_file(&disk.path, &FileOptions::default());
        let file = file.map_err(|error| Refusal::Wrong(format!("opening the device: {error}")))?;
        let watch = Watch { inner: Rc::new(file.clone()), ledger: disk.ledger.clone() };
        Ok((file, watch))
    }

    /// Opens what serves a partition, on whichever disks.
    pub(super) async fn open_device(
        self: &Rc<Self>,
        reactor: &Reactor,
        disks: &[Option<Superblock>],
        number: u16,
    ) -> Result<Rc<dyn Device>, Refusal> {
        let mut partitions = Vec::new();
        for (member, disk) in disks.iter().enumerate() {
            let opened = match disk {
                Some(superblock) => self.open_partition(reactor, superblock, (number, member)).await?,
                None => None,
            };
            partitions.push(opened);
        }
        let secret = disks.iter().flatten().map(|superblock| superblock.hash_secret).next();
        let secret = secret.ok_or_else(|| Refusal::Wrong("no disk is there".to_owned()))?;
        if !self.shape.is_array() {
            let partition = partitions.pop().flatten().expect("its failure is a refusal");
            return Ok(self.serve_partition(partition, secret));
        }
        let ids = disks.iter().map(|it| it.as_ref().map_or([0; 16], |superblock| superblock.device_id));
        let array = self.open_array(reactor, &partitions, &ids.collect::<Vec<_>>(), number).await?;
        self.watch_array(reactor, number, &array);
        Ok(match self.shape.cache_bytes {
            0 => array,
            bytes => Cache::new(array.clone(), array.clock(), secret, bytes),
        })
    }

    pub(super) async fn open_partition(
        &self,
        reactor: &Reactor,
        superblock: &Superblock,
        (number, member): (u16, usize),
    ) -> Result<Option<Rc<Partition>>, Refusal> {
        let options = Options {
            fingerprint_bits: self.shape.fingerprint_bits,
            checkpoint_transitions_min: self.shape.checkpoint_transitions_min,
            on_full: on_full(&self.shape),
            known_bytes: self.shape.known_bytes,
            is_member: self.disks.len() > 1,
            ..Options::default()
        };
        let (file, watch) = self.open_disk(reactor, member)?;
        self.files.borrow_mut().insert((number, member), file);
        let opened = Partition::open(reactor, Rc::new(watch), superblock, number, options).await;
        let partition = match opened {
            Ok(partition) => partition,
            Err(OpenError::Io { .. }) if self.disks[member].may_fail.get() => return Ok(None),
            Err(error @ OpenError::Io { .. }) => return Err(Refusal::Io(error.to_string())),
            Err(OpenError::Damaged { .. }) if self.disks[member].is_rotten.get() => {
                self.journal.note(|| format!("partition {number} of disk {member} does not open: rot"));
                self.disks[member].may_fail.set(true);
                return Ok(None);
            }
            Err(error @ OpenError::Damaged { .. }) => return Err(Refusal::Damaged(error.to_string())),
            Err(error @ OpenError::Full(_)) => return Err(Refusal::Wrong(error.to_string())),
        };
        self.check_accounts(&partition, "after recovery");
        self.journal.note(|| format!("partition {number} is open on disk {member}"));
        self.partitions.borrow_mut().insert((number, member), partition.clone());
        Ok(Some(partition))
    }

    fn serve_partition(self: &Rc<Self>, partition: Rc<Partition>, secret: u64) -> Rc<dyn Device> {
        let cache = match self.shape.cache_bytes {
            0 => None,
            bytes => Some(Cache::new(partition.clone(), partition.clock(), secret, bytes)),
        };
        let above: Rc<dyn Above> = Evictions::new(self, cache.clone());
        partition.tell(Rc::downgrade(&above));
        self.above.borrow_mut().push(above);
        cache.map_or(partition as Rc<dyn Device>, |cache| cache)
    }

    async fn open_array(
        &self,
        reactor: &Reactor,
        partitions: &[Option<Rc<Partition>>],
        ids: &[[u8; 16]],
        number: u16,
    ) -> Result<Rc<Array>, Refusal> {
        let joining = |member: usize, is_there: bool| Joining {
            name: self.disks[member].path.clone(),
            id: ids[member],
            device: match &partitions[member] {
                Some(partition) if is_there => Ok(partition.clone()),
                _ => Err("it is missing".to_owned()),
            },
        };
        let policy = self.shape.policy(self.number);
        let (mut degraded, mut strangers) = (false, Vec::new());
        let array = loop {
            let members = (0..ids.len()).map(|member| joining(member, !strangers.contains(&member)));
            let options = ArrayOptions {
                policy: policy.clone(),
                degraded,
                rebuild_bytes_per_s: 0,
                stateless: self.shape.is_stateless(self.number),
            };
            let numbers = (number, self.shape.partitions);
            match Array::open(reactor, numbers.0, numbers.1, members.collect(), options).await {
                Ok(array) => break array,
                Err(ArrayError::TooManyMissing { .. }) if !degraded && !self.is_majority_whole() => {
                    degraded = true;
                }
                Err(ArrayError::Stranger(name) | ArrayError::Empty(name))
                    if self.stranger(&name).is_some() =>
                {
                    strangers.extend(self.stranger(&name));
                }
                Err(error @ ArrayError::Device { .. }) if self.disks.iter().any(|it| it.may_fail.get()) => {
                    return Err(Refusal::Io(error.to_string()));
                }
                Err(error) => return Err(Refusal::Wrong(error.to_string())),
            }
        };
        for member in strangers {
            self.journal.note(|| format!("partition {number}: disk {member} takes another's place"));
            let replaced = array.replace(member, joining(member, true)).await;
            replaced.map_err(|error| Refusal::Wrong(format!("replacing: {error}")))?;
        }
        Ok(array)
    }

    /// True if an array has to start without being told that it may.
    fn is_majority_whole(&self) -> bool {
        2 * self.disks.iter().filter(|disk| disk.is_whole.get()).count() > self.disks.len()
    }

    /// The disk of this name, if it may be new.
    fn stranger(&self, name: &str) -> Option<usize> {
        self.disks.iter().position(|disk| disk.path == name && !disk.is_whole.get())
    }
}
