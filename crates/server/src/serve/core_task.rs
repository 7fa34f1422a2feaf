//! What `serve` does on each core: opens its partitions, serves, ends.
//!
//! Invariants: commands are followed in the order in which they came; each is answered by one
//! event, an error by another before it; the core's reactor stops after its partitions are closed.

use crate::config::GateName;
use crate::core::{Addresses, Core, serve_core};
use crate::counters::Gauges;
use crate::shared::Shared;
use crate::volume::Message;
use plimsoll_cache::{Cache, CacheMetrics};
use plimsoll_flash::{OnFull, Options, Partition, PartitionMetrics, Superblock};
use plimsoll_gate::{Fifo, GateStats, Gated, Policy, Window};
use plimsoll_kv::{Above, Block, Device};
use plimsoll_reactor::sync::WaitList;
use plimsoll_reactor::{ControlPort, File, FileOptions, FileStats, Port, Reactor, Work};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::rc::{Rc, Weak};
use std::sync::{Arc, Mutex};
use tokio::sync::mpsc::UnboundedSender;

/// What the control thread tells a core.
#[derive(Clone, Copy, Debug)]
pub(super) enum Command {
    /// Listen here.
    Serve(Addresses),
    /// Take no more commands, answer those begun.
    Drain,
    /// Close the partitions and end.
    Close,
}

/// What a core tells the control thread.
#[derive(Debug)]
pub(super) enum Event {
    /// Its partitions are open, with so many keys.
    Opened(u64),
    /// It listens.
    Serving(Addresses),
    /// Its connections have ended.
    Drained,
    /// Its partitions are closed.
    Closed,
    /// Something failed.
    Failed(String),
}

/// A core's ways to the other cores and to the control thread, taken when it starts.
pub(super) type Ports = Option<(Port<Message>, ControlPort<Command>)>;

/// What the cores are started with.
pub(super) struct Plan {
    pub(super) device: PathBuf,
    pub(super) superblock: Superblock,
    /// Bytes of memory for the values of one partition; 0: none are kept.
    pub(super) cache_bytes: usize,
    pub(super) on_full: OnFull,
    pub(super) gate: GateName,
    /// Bytes of memory for the known keys of one partition.
    pub(super) known_bytes: usize,
    /// Objects of one partition.
    pub(super) objects_max: u64,
    pub(super) shared: Arc<Shared>,
    pub(super) events: UnboundedSender<Event>,
    pub(super) ports: Mutex<Vec<Ports>>,
}

/// How often gauges are published.
const PUBLISH_NS: u64 = 1_000_000_000;
/// I/Os of one core that are at the device at a time; others wait at the gate.
const DEVICE_OUTSTANDING_MAX: usize = 256;

const PARTITION_GAUGES: [&str; 29] = [
    "objects",
    "objects_max",
    "index_bytes",
    "live_bytes",
    "capacity_bytes",
    "free_segments",
    "segments",
    "frames",
    "record_reads",
    "unreadable",
    "known_overwrites",
    "checkpoints",
    "checkpoint_bytes",
    "cleaned_segments",
    "cleaned_bytes",
    "stored_bytes",
    "expired",
    "evicted",
    "evicted_bytes",
    "mark_bytes",
    "live_bytes_max",
    "no_space",
    "read_only",
    "key_runs",
    "key_run_bytes",
    "key_table_bytes",
    "key_reads",
    "key_written_bytes",
    "key_rebuilds",
];
const CACHE_GAUGES: [&str; 6] =
    ["cache_hits", "cache_misses", "cache_entries", "cache_bytes", "cache_capacity_bytes", "cache_evictions"];
const DEVICE_GAUGES: [&str; 8] = [
    "reads",
    "read_bytes",
    "writes",
    "written_bytes",
    "flushes",
    "gate_waits",
    "gate_device_ns",
    "gate_reads_max",
];

fn partition_values(m: &PartitionMetrics) -> [u64; PARTITION_GAUGES.len()] {
    [
        m.objects,
        m.objects_max,
        m.index_bytes,
        m.live_bytes,
        m.capacity_bytes,
        m.free_segments,
        m.segments,
        m.frames,
        m.record_reads,
        m.unreadable,
        m.known_overwrites,
        m.checkpoints,
        m.checkpoint_bytes,
        m.cleaned_segments,
        m.cleaned_bytes,
        m.stored_bytes,
        m.expired,
        m.evicted,
        m.evicted_bytes,
        m.mark_bytes,
        m.live_bytes_max,
        m.no_space,
        m.read_only,
        m.key_runs,
        m.key_run_bytes,
        m.key_table_bytes,
        m.key_reads,
        m.key_written_bytes,
        m.key_rebuilds,
    ]
}

fn cache_values(m: &CacheMetrics) -> [u64; CACHE_GAUGES.len()] {
    [m.hits, m.misses, m.entries, m.bytes, m.capacity_bytes, m.evictions]
}

fn device_values(s: &FileStats, gate: &GateStats) -> [u64; DEVICE_GAUGES.len()] {
    [s.reads, s.read_bytes, s.writes, s.written_bytes, s.flushes, gate.waited, gate.device_ns, gate.reads_max]
}

/// Publishes the gauges of a device; false if it is gone.
type Publisher = Rc<dyn Fn() -> bool>;

/// A core on its way.
struct Task {
    reactor: Reactor,
    device: String,
    shared: Arc<Shared>,
    cache_bytes: usize,
    on_full: OnFull,
    gate: GateName,
    known_bytes: usize,
    objects_max: u64,
    events: UnboundedSender<Event>,
    commands: RefCell<VecDeque<Command>>,
    arrived: WaitList,
    /// Those of this core's devices.
    publishers: RefCell<Vec<Publisher>>,
}

/// Starts this core's part of a server.
pub(super) fn start(reactor: &Reactor, plan: &Plan) {
    let mut ports = plan.ports.lock().expect("nobody panics while holding it");
    let (port, control) = ports[usize::from(reactor.core().0)].take().expect("a core starts once");
    let task = Rc::new(Task {
        reactor: reactor.clone(),
        device: plan.device.display().to_string(),
        shared: plan.shared.clone(),
        cache_bytes: plan.cache_bytes,
        on_full: plan.on_full,
        gate: plan.gate,
        known_bytes: plan.known_bytes,
        objects_max: plan.objects_max,
        events: plan.events.clone(),
        commands: RefCell::default(),
        arrived: WaitList::default(),
        publishers: RefCell::default(),
    });
    let own = task.clone();
    control.open(reactor, move |command| {
        own.commands.borrow_mut().push_back(command);
        own.arrived.wake_all();
    });
    let superblock = plan.superblock.clone();
    reactor.spawn(Work::Control, async move { task.run(port, &superblock).await });
}

impl Task {
    fn tell(&self, event: Event) {
        // The control thread listens until every core has ended.
        let _ = self.events.send(event);
    }

    async fn command(&self) -> Command {
        self.arrived.wait_for(|| self.commands.borrow_mut().pop_front()).await
    }

    async fn run(&self, port: Port<Message>, superblock: &Superblock) {
        let (mut partitions, mut port, mut core) = (Vec::new(), Some(port), None::<Rc<Core>>);
        match self.open(superblock, &mut partitions).await {
            Ok(()) => self.tell(Event::Opened(partitions.iter().map(|p| p.metrics().objects).sum())),
            Err(what) => self.tell(Event::Failed(what)),
        }
        loop {
            match self.command().await {
                Command::Serve(addresses) => {
                    let port = port.take().expect("a core serves once");
                    match self.serve(port, &partitions, superblock, addresses) {
                        Ok(serving) => {
                            self.tell(Event::Serving(serving.addresses()));
                            core = Some(serving);
                        }
                        Err(what) => self.tell(Event::Failed(what)),
                    }
                }
                Command::Drain => {
                    if let Some(core) = &core {
                        core.stop().await;
                    }
                    self.tell(Event::Drained);
                }
                Command::Close => {
                    self.close(&partitions).await;
                    self.reactor.stop();
                    return self.tell(Event::Closed);
                }
            }
        }
    }

    /// Opens the partitions of this core; those that were opened before a failure are kept, to be
    /// closed.
    async fn open(&self, superblock: &Superblock, opened: &mut Vec<Rc<Partition>>) -> Result<(), String> {
        let words = |error: &dyn std::fmt::Display| format!("{}: {error}", self.device);
        let file = self.reactor.open_file(&self.device, &FileOptions::default());
        let file = file.map_err(|error| error.to_string())?;
        let policy: Box<dyn Policy> = match self.gate {
            GateName::Window => Box::new(Window::new(DEVICE_OUTSTANDING_MAX)),
            GateName::Fifo => Box::new(Fifo::new(DEVICE_OUTSTANDING_MAX)),
        };
        let gated = Gated::new(&self.reactor, Rc::new(file.clone()), policy);
        let block: Rc<dyn Block> = Rc::new(gated.clone());
        for number in self.shared.geometry.owned(self.reactor.core(), self.reactor.cores()) {
            let options = Options {
                on_full: self.on_full,
                objects_max: self.objects_max,
                known_bytes: self.known_bytes,
                ..Options::default()
            };
            let opening = Partition::open(&self.reactor, block.clone(), superblock, number, options);
            let partition = opening.await.map_err(|error| words(&error))?;
            self.publish_partition(&partition);
            opened.push(partition);
        }
        self.publish_device(file, gated);
        Ok(())
    }

    fn serve(
        &self,
        port: Port<Message>,
        opened: &[Rc<Partition>],
        superblock: &Superblock,
        addresses: Addresses,
    ) -> Result<Rc<Core>, String> {
        let mut partitions: BTreeMap<u16, Rc<dyn Device>> = BTreeMap::new();
        for partition in opened {
            partitions.insert(partition.number(), self.cached(partition, superblock));
        }
        let core = serve_core(&self.reactor, port, partitions, &self.shared, addresses)
            .map_err(|error| format!("resp: {error}"))?;
        let publishers = self.publishers.borrow().clone();
        core.set_publisher(Rc::new(move || {
            for publish in &publishers {
                publish();
            }
        }));
        Ok(core)
    }

    /// A partition as requests come to it: behind a cache, if there is one.
    fn cached(&self, partition: &Rc<Partition>, superblock: &Superblock) -> Rc<dyn Device> {
        if self.cache_bytes == 0 {
            return partition.clone();
        }
        let secret = superblock.hash_secret;
        let cache = Cache::new(partition.clone(), partition.clock(), secret, self.cache_bytes);
        let above: Weak<dyn Above> = Rc::downgrade(&cache) as Weak<dyn Above>;
        partition.tell(above);
        let label = format!("partition=\"{}\"", partition.number());
        let gauges = self.shared.add_gauges(Gauges::new(label, &CACHE_GAUGES));
        let weak = Rc::downgrade(&cache);
        self.publish(gauges, move || Some(cache_values(&weak.upgrade()?.metrics()).to_vec()));
        cache
    }

    async fn close(&self, partitions: &[Rc<Partition>]) {
        for partition in partitions {
            if let Err(error) = partition.close().await {
                let number = partition.number();
                self.tell(Event::Failed(format!("{}: partition {number}: {error}", self.device)));
            }
        }
    }

    fn publish_partition(&self, partition: &Rc<Partition>) {
        let label = format!("partition=\"{}\"", partition.number());
        let gauges = self.shared.add_gauges(Gauges::new(label, &PARTITION_GAUGES));
        let partition = Rc::downgrade(partition);
        self.publish(gauges, move || Some(partition_values(&partition.upgrade()?.metrics()).to_vec()));
    }

    fn publish_device(&self, file: File, gated: Gated) {
        let label = format!("core=\"{}\"", self.reactor.core().0);
        let gauges = self.shared.add_gauges(Gauges::new(label, &DEVICE_GAUGES));
        self.publish(gauges, move || Some(device_values(&file.stats(), &gated.stats()).to_vec()));
    }

    /// Publishes values now, every second for those who look from outside, and when a core asks.
    fn publish(&self, gauges: Arc<Gauges>, read: impl Fn() -> Option<Vec<u64>> + 'static) {
        let publish: Publisher = Rc::new(move || read().map(|values| gauges.publish(&values)).is_some());
        self.publishers.borrow_mut().push(publish.clone());
        let reactor = self.reactor.clone();
        self.reactor.spawn(Work::Control, async move {
            while publish() {
                reactor.sleep_ns(PUBLISH_NS).await;
            }
        });
    }
}
