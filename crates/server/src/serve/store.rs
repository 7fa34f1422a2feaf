//! What a core has open: its gates to the devices, its partitions, and with several devices the arrays that
//! make them one.
//!
//! Role: between the task of a core, which follows commands, and the devices. Place on the path: none;
//! requests go to what stands here.
//!
//! Invariants:
//! * one device, and a partition that cannot be opened ends the start; several, and it is a member that is
//!   missing, which the array may bear;
//! * an array is closed before the partitions below it;
//! * what a member that is out does at the end holds up nobody for long.

use super::devices::{Found, Silence};
use super::gauges::{
    CACHE_GAUGES, DEVICE_GAUGES, PARTITION_GAUGES, Publishers, cache_values, device_values, label,
    partition_values,
};
use crate::config::GateName;
use crate::shared::Shared;
use futures_util::future::{Either, select};
use plimsoll_array::{Array, ArrayOptions, ArrayStatus, Joining, MemberState, is_member};
use plimsoll_cache::Cache;
use plimsoll_flash::{OnFull, Options, Partition, Superblock};
use plimsoll_gate::{Fifo, Gated, Policy, Window};
use plimsoll_kv::throttle::{Rates, ThrottleBlock};
use plimsoll_kv::{Above, Block, Device, WallClock};
use plimsoll_reactor::{File, FileOptions, Reactor, Work};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;

/// I/Os of one core that are at a device at a time; others wait at the gate.
const DEVICE_OUTSTANDING_MAX: usize = 256;
/// How long the end waits for a partition of a member that is out: its device may never answer.
const CLOSE_OUT_NS_MAX: u64 = 5_000_000_000;
/// Between two looks whether a device has answered everything.
const LOOK_NS: u64 = 1_000_000;

/// What is to be opened, and how.
#[derive(Clone, Debug)]
pub(super) struct Setup {
    /// In the order of the configuration.
    pub(super) devices: Vec<Found>,
    /// How they are one, if there are several.
    pub(super) array: Option<ArrayOptions>,
    pub(super) hash_secret: u64,
    /// Bytes of memory for the values of one partition; 0: none are kept.
    pub(super) cache_bytes: usize,
    pub(super) on_full: OnFull,
    pub(super) gate: GateName,
    /// What this core gets of each device.
    pub(super) rates: Option<Rates>,
    /// Bytes of memory for the known keys of one partition of one device.
    pub(super) known_bytes: usize,
    /// Objects of one partition of one device.
    pub(super) objects_max: u64,
}

/// A device as this core has it: a gate of its own.
struct OpenDevice {
    file: File,
    gated: Gated,
    silence: Silence,
}

/// A partition of the server.
struct Slice {
    number: u16,
    /// On each device; nothing where it is missing.
    members: RefCell<Vec<Option<Rc<Partition>>>>,
    /// What makes them one, if there are several devices.
    array: Option<Rc<Array>>,
}

/// What this core has open.
pub(super) struct Store {
    reactor: Reactor,
    shared: Arc<Shared>,
    setup: Setup,
    publishers: Rc<Publishers>,
    /// Or why one is missing.
    devices: RefCell<Vec<Result<Rc<OpenDevice>, String>>>,
    slices: RefCell<Vec<Rc<Slice>>>,
    /// Of the partitions, in no order.
    caches: RefCell<Vec<Weak<Cache>>>,
}

impl Slice {
    fn members(&self) -> Vec<Option<Rc<Partition>>> {
        self.members.borrow().clone()
    }

    /// Where its requests go, below the cache, and the clock by which its keys expire.
    fn device(&self) -> (Rc<dyn Device>, Rc<WallClock>) {
        match (&self.array, self.members.borrow().first()) {
            (Some(array), _) => (array.clone(), array.clock()),
            (None, Some(Some(partition))) => (partition.clone(), partition.clock()),
            (None, _) => unreachable!("one device is there, or the start has failed"),
        }
    }
}

impl Store {
    pub(super) fn new(reactor: &Reactor, shared: &Arc<Shared>, setup: Setup) -> Store {
        Store {
            reactor: reactor.clone(),
            shared: shared.clone(),
            setup,
            publishers: Publishers::new(reactor, shared),
            devices: RefCell::default(),
            slices: RefCell::default(),
            caches: RefCell::default(),
        }
    }

    /// Opens everything. What was opened before a failure is kept, to be closed.
    pub(super) async fn open(&self) -> Result<(), String> {
        for found in &self.setup.devices {
            let device = match (&found.superblock, self.is_array()) {
                (None, _) => Err(found.lacks.clone()),
                (Some(_), false) => Ok(self.open_device(&found.path)?),
                (Some(_), true) => self.open_device(&found.path).inspect_err(warn_missing),
            };
            self.devices.borrow_mut().push(device);
        }
        for number in self.shared.geometry.owned(self.reactor.core(), self.reactor.cores()) {
            self.open_slice(number).await?;
        }
        self.let_go_unused();
        Ok(())
    }

    /// Closes devices of an array of which nothing is open here: they may be formatted, and take their places
    /// anew.
    fn let_go_unused(&self) {
        let slices = self.slices.borrow();
        for (member, device) in self.devices.borrow_mut().iter_mut().enumerate() {
            let is_used = slices.iter().any(|slice| slice.members.borrow()[member].is_some());
            let is_idle = device.as_ref().is_ok_and(|device| device.file.in_flight() == 0);
            if self.is_array() && !is_used && is_idle {
                *device = Err("nothing of it is open".to_owned());
            }
        }
    }

    fn is_array(&self) -> bool {
        self.setup.array.is_some()
    }

    fn open_device(&self, path: &str) -> Result<Rc<OpenDevice>, String> {
        let file =
            self.reactor.open_file(path, &FileOptions::default()).map_err(|error| error.to_string())?;
        let policy: Box<dyn Policy> = match self.setup.gate {
            GateName::Window => Box::new(Window::new(DEVICE_OUTSTANDING_MAX)),
            GateName::Fifo => Box::new(Fifo::new(DEVICE_OUTSTANDING_MAX)),
        };
        let block: Rc<dyn Block> = match self.setup.rates {
            Some(rates) => ThrottleBlock::new(&self.reactor, Rc::new(file.clone()), rates),
            None => Rc::new(file.clone()),
        };
        let gated = Gated::new(&self.reactor, block, policy);
        let silence = Silence::of(&file, &self.reactor);
        let device = Rc::new(OpenDevice { file, gated, silence });
        let weak = Rc::downgrade(&device);
        self.publishers.publish(self.label("core", self.reactor.core().0, path), &DEVICE_GAUGES, move || {
            let device = weak.upgrade()?;
            let silence_s = device.silence.look();
            Some(device_values(&device.file.stats(), &device.gated.stats(), silence_s).to_vec())
        });
        Ok(device)
    }

    fn label(&self, what: &str, number: u16, path: &str) -> String {
        label(what, number, self.is_array().then_some(path))
    }

    /// A partition of a device.
    async fn open_partition(
        &self,
        device: &OpenDevice,
        superblock: &Superblock,
        number: u16,
    ) -> Result<Rc<Partition>, String> {
        let options = Options {
            on_full: self.setup.on_full,
            objects_max: self.setup.objects_max,
            known_bytes: self.setup.known_bytes,
            is_member: self.is_array(),
            ..Options::default()
        };
        let (path, block): (_, Rc<dyn Block>) = (device.file.path(), Rc::new(device.gated.clone()));
        let opening = Partition::open(&self.reactor, block, superblock, number, options);
        let partition = opening.await.map_err(|error| format!("{path}: {error}"))?;
        let weak = Rc::downgrade(&partition);
        self.publishers.publish(self.label("partition", number, path), &PARTITION_GAUGES, move || {
            Some(partition_values(&weak.upgrade()?.metrics()).to_vec())
        });
        Ok(partition)
    }

    /// A partition of the server: on the one device, or on all that are there.
    async fn open_slice(&self, number: u16) -> Result<(), String> {
        let (mut opened, devices) = (Vec::new(), self.devices.borrow().clone());
        for (found, device) in self.setup.devices.iter().zip(devices) {
            let partition = match (device, &found.superblock) {
                (Ok(device), Some(superblock)) => {
                    let opened = self.open_partition(&device, superblock, number).await;
                    if self.is_array() { opened.inspect_err(warn_missing) } else { Ok(opened?) }
                }
                (device, _) => Err(device.err().unwrap_or_default()),
            };
            opened.push(partition);
        }
        let members: Vec<_> = opened.iter().map(|partition| partition.as_ref().ok().cloned()).collect();
        let array = match &self.setup.array {
            Some(options) => self.open_array(number, opened, options.clone()).await,
            None => self.check_alone(number, &members).await.map(|()| None),
        };
        let (array, result) = match array {
            Ok(array) => (array, Ok(())),
            Err(what) => (None, Err(what)),
        };
        self.slices.borrow_mut().push(Rc::new(Slice { number, members: RefCell::new(members), array }));
        result
    }

    async fn open_array(
        &self,
        number: u16,
        members: Vec<Result<Rc<Partition>, String>>,
        options: ArrayOptions,
    ) -> Result<Option<Rc<Array>>, String> {
        let each = self.setup.devices.iter().zip(members);
        let joining = each.map(|(found, partition)| joining(found, partition));
        let partitions = self.shared.geometry.partitions;
        let opening = Array::open(&self.reactor, number, partitions, joining.collect(), options);
        opening.await.map(Some).map_err(|error| format!("array: partition {number}: {error}"))
    }

    /// A device that is one of several holds a part of what was stored: alone it would serve that as all.
    async fn check_alone(&self, number: u16, members: &[Option<Rc<Partition>>]) -> Result<(), String> {
        let Some(Some(partition)) = members.first() else { return Ok(()) };
        let device: Rc<dyn Device> = partition.clone();
        let path = &self.setup.devices[0].path;
        let belongs = is_member(&device, number, self.shared.geometry.partitions).await;
        if belongs.map_err(|error| format!("{path}: partition {number}: {error}"))? {
            return Err(format!(
                "{path}: belongs to an array of several devices; name all of them (--device, once for each)"
            ));
        }
        Ok(())
    }

    /// Records on all devices, copies included.
    pub(super) fn objects(&self) -> u64 {
        let slices = self.slices.borrow();
        let members = slices.iter().flat_map(|slice| slice.members());
        members.flatten().map(|partition| partition.metrics().objects).sum()
    }

    /// The partitions as requests come to them.
    pub(super) fn partitions(&self) -> BTreeMap<u16, Rc<dyn Device>> {
        let slices = self.slices.borrow();
        let with_cache = |slice: &Rc<Slice>| {
            let device = self.cached(slice);
            if let Some(array) = &slice.array {
                array.move_through(&device);
            }
            (slice.number, device)
        };
        slices.iter().map(with_cache).collect()
    }

    /// A partition behind a cache, if there is one.
    fn cached(&self, slice: &Slice) -> Rc<dyn Device> {
        let (device, clock) = slice.device();
        if self.setup.cache_bytes == 0 {
            return device;
        }
        let cache = Cache::new(device, clock, self.setup.hash_secret, self.setup.cache_bytes);
        if let (None, Some(Some(partition))) = (&slice.array, slice.members.borrow().first()) {
            // An array does not evict: there is nobody who would tell.
            partition.tell(Rc::downgrade(&cache) as Weak<dyn Above>);
        }
        let weak = Rc::downgrade(&cache);
        self.caches.borrow_mut().push(weak.clone());
        self.publishers.publish(label("partition", slice.number, None), &CACHE_GAUGES, move || {
            Some(cache_values(&weak.upgrade()?.metrics()).to_vec())
        });
        cache
    }

    /// What publishes the gauges of everything here.
    pub(super) fn publishers(&self) -> Rc<Publishers> {
        self.publishers.clone()
    }

    fn arrays(&self) -> Vec<(u16, Rc<Array>)> {
        let slices = self.slices.borrow();
        slices.iter().filter_map(|slice| Some((slice.number, slice.array.clone()?))).collect()
    }

    /// What is known of the arrays, by the partition's number.
    pub(super) fn statuses(&self) -> Vec<(u16, ArrayStatus)> {
        self.arrays().into_iter().map(|(number, array)| (number, array.status())).collect()
    }

    /// Takes a member out of all arrays.
    pub(super) fn take_out(&self, member: usize, reason: &str) {
        self.arrays().iter().for_each(|(_, array)| array.take_out(member, reason));
    }

    /// Begins, where a member is not in, to give it what it lacks; what is lost may be given up over it.
    pub(super) fn rebuild(&self, member: usize, accept_loss: bool) {
        for (_, array) in self.arrays() {
            if accept_loss {
                array.accept_loss();
            }
            array.rebuild(member);
        }
        if accept_loss {
            // What is given up is not read from memory either. Until then reading it fails.
            self.caches.borrow().iter().filter_map(Weak::upgrade).for_each(|cache| cache.lost_below());
        }
    }

    /// Begins to compare all members.
    pub(super) fn scrub(&self) {
        self.arrays().iter().for_each(|(_, array)| array.scrub());
    }

    /// Puts a device that was made for it in the place of a member, in all arrays.
    pub(super) async fn replace(&self, member: usize, found: &Found) -> Result<(), String> {
        let superblock = found.superblock.as_ref().ok_or_else(|| format!("{}: is missing", found.path))?;
        let device = self.open_device(&found.path)?;
        let slices = self.slices.borrow().clone();
        for slice in slices {
            let Some(array) = &slice.array else { continue };
            let partition = self.open_partition(&device, superblock, slice.number).await?;
            let joins = joining(found, Ok(partition.clone()));
            if let Err(error) = array.replace(member, joins).await {
                let number = slice.number;
                self.end(partition);
                return Err(format!("{}: partition {number}: {error}", found.path));
            }
            let before = slice.members.borrow_mut()[member].replace(partition);
            before.into_iter().for_each(|before| self.end(before));
        }
        self.devices.borrow_mut()[member] = Ok(device);
        Ok(())
    }

    /// Has nothing of a member open any more, if it is out of all arrays here: its device may be opened anew.
    /// What is still to be written goes there before, if the device takes it.
    pub(super) async fn let_go(&self, member: usize) -> Result<(), String> {
        let arrays = self.arrays();
        let is_used = |array: &Array| array.status().members[member].state != MemberState::Out;
        if let Some((number, _)) = arrays.iter().find(|(_, array)| is_used(array)) {
            let is_out = |slice: &&Rc<Slice>| slice.array.as_ref().is_some_and(|array| !is_used(array));
            let is_open = |slice: &&Rc<Slice>| slice.members.borrow()[member].is_some();
            return match self.slices.borrow().iter().filter(is_out).find(is_open) {
                Some(slice) => Err(format!("partition {} of it is out, and {number} in use", slice.number)),
                None => Ok(()),
            };
        }
        arrays.iter().for_each(|(_, array)| array.let_go(member));
        let slices = self.slices.borrow().clone();
        for slice in slices {
            let before = slice.members.borrow_mut()[member].take();
            if let Some(partition) = before {
                // It is out: what it has then is what it comes back with.
                let _ = self.close_partition(&partition, true).await;
            }
        }
        self.retire(member);
        let before = self.devices.borrow()[member].clone();
        let until_ns = self.reactor.now_ns() + CLOSE_OUT_NS_MAX;
        while before.as_ref().is_ok_and(|device| device.file.in_flight() > 0) {
            if self.reactor.now_ns() > until_ns {
                return Err("what was asked of it before does not end".to_owned());
            }
            self.reactor.sleep_ns(LOOK_NS).await;
        }
        self.devices.borrow_mut()[member] = Err("it was let go".to_owned());
        Ok(())
    }

    /// Asks the device of a member for nothing more, whoever has it.
    pub(super) fn retire(&self, member: usize) {
        if let Ok(device) = &self.devices.borrow()[member] {
            device.file.retire();
        }
    }

    /// Opens what was let go of a member, or was never open, and gives it to the arrays; which partitions
    /// cannot be opened.
    pub(super) async fn bring_back(&self, member: usize, found: &Found) -> Result<(), String> {
        let superblock = found.superblock.as_ref().ok_or_else(|| format!("{}: is missing", found.path))?;
        let lacks = |slice: &Rc<Slice>| slice.members.borrow()[member].is_none();
        let lacking: Vec<_> = self.slices.borrow().iter().filter(|slice| lacks(slice)).cloned().collect();
        if lacking.is_empty() {
            return Ok(());
        }
        let open = self.devices.borrow()[member].clone();
        let device = open.or_else(|_| self.open_device(&found.path))?;
        // From here on it is what would have to be let go, also where this ends early.
        self.devices.borrow_mut()[member] = Ok(device.clone());
        let mut failures = Vec::new();
        for slice in lacking {
            let Some(array) = &slice.array else { continue };
            let opened = self.open_partition(&device, superblock, slice.number).await;
            failures.extend(opened.clone().err());
            match array.bring_back(member, joining(found, opened.clone())).await {
                Ok(()) => slice.members.borrow_mut()[member] = opened.ok(),
                Err(error) => {
                    failures.push(format!("partition {}: {error}", slice.number));
                    // It is nobody's: nothing is written to it any more.
                    if let Ok(partition) = opened {
                        let _ = self.close_partition(&partition, true).await;
                    }
                }
            }
        }
        self.let_go_unused();
        if failures.is_empty() { Ok(()) } else { Err(failures.join("; ")) }
    }

    /// Ends a partition that belongs to no array any more, whenever its device lets it.
    fn end(&self, partition: Rc<Partition>) {
        self.reactor.spawn(Work::Control, async move {
            if let Err(error) = partition.close().await {
                let number = partition.number();
                tracing::info!(partition = number, %error, "a device that was replaced could not be closed in order");
            }
        });
    }

    /// Closes everything; what went wrong.
    pub(super) async fn close(&self) -> Vec<String> {
        let slices = self.slices.borrow().clone();
        let mut failures = Vec::new();
        for slice in slices {
            let states = slice.array.as_ref().map(|array| array.status().members);
            if let Some(array) = &slice.array {
                array.close().await;
            }
            for (member, partition) in slice.members().into_iter().enumerate() {
                let Some(partition) = partition else { continue };
                let is_out = states.as_ref().is_some_and(|members| members[member].state == MemberState::Out);
                let device = self.devices.borrow()[member].clone();
                let path = device.map(|device| device.file.path().to_owned()).unwrap_or_default();
                match self.close_partition(&partition, is_out).await {
                    Err(what) if is_out => tracing::warn!(
                        device = path,
                        partition = slice.number,
                        error = what,
                        "a device that is out of the array could not be closed in order"
                    ),
                    Err(what) => failures.push(format!("{path}: partition {}: {what}", slice.number)),
                    Ok(()) => {}
                }
            }
        }
        failures
    }

    async fn close_partition(&self, partition: &Rc<Partition>, is_out: bool) -> Result<(), String> {
        if !is_out {
            return partition.close().await.map_err(|error| error.to_string());
        }
        match select(pin!(partition.close()), pin!(self.reactor.sleep_ns(CLOSE_OUT_NS_MAX))).await {
            Either::Left((closed, _)) => closed.map_err(|error| error.to_string()),
            Either::Right(_) => Err("it does not answer".to_owned()),
        }
    }
}

fn joining(found: &Found, partition: Result<Rc<Partition>, String>) -> Joining {
    Joining {
        name: found.path.clone(),
        id: found.superblock.as_ref().map_or([0; 16], |superblock| superblock.device_id),
        device: partition.map(|partition| partition as Rc<dyn Device>),
    }
}

/// A member that cannot be opened is missing: the array says whether it can do without.
fn warn_missing(what: &String) {
    tracing::warn!(reason = what, "a device of the array cannot be opened: it counts as missing");
}
