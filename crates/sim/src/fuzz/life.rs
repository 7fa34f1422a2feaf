//! One life of the server: from opening its partitions to a crash or a clean stop.
//!
//! Place: a world starts one after the other; each runs the library that `plimsoll serve` runs, on
//! simulated cores, with clients beside it and a conductor on its first core.
//!
//! Invariants: clients begin when all partitions are open (and, in most lives, every key was read);
//! the cores of a life tell each other through their own mesh when to begin and to stop.
//!
//! Never: a task of one core touches what belongs to another but to look at it.

mod back;
mod open;
mod watch;

use super::audit;
use super::caller::Caller;
use super::connection::Client;
use super::disks::Disk;
use super::extras::Extras;
use super::journal::Journal;
use super::shape::{FaultClass, Shape};
use super::workload::{Key, Workload};
use plimsoll_array::Array;
use plimsoll_flash::{OnFull, Partition};
use plimsoll_kv::{Above, Device};
use plimsoll_reactor::sim::{ProcessId, World};
use plimsoll_reactor::sync::WaitList;
use plimsoll_reactor::{CoreId, File, Mailbox, Mesh, Port, Reactor, Work};
use plimsoll_server::budget::Budget;
use plimsoll_server::config::DebugCommand;
use plimsoll_server::parameters::Values;
use plimsoll_server::{Core, Geometry, Message, Settings, Shared, serve_core};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

/// The server's process.
pub(super) const SERVER: ProcessId = ProcessId(1);
/// Calls that the conductor makes are not a client's.
const CONDUCTOR: u32 = 9_000;
/// The clients' process.
pub(super) const CLIENTS: ProcessId = ProcessId(2);
/// Clients on connections are numbered from here on.
const CONNECTED: u32 = 100;
/// What a client rests after something that took no time.
const REST_NS_MIN: u64 = 1_000;

/// Where a life stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    Opening,
    Reading,
    Working,
    Stopping,
    Checking,
    Closing,
    Over,
}

/// How a life is to end, and what comes before.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ending {
    /// Every key is read before clients begin.
    pub(super) reads_first: bool,
    /// Clients stop by themselves and everything is checked.
    pub(super) checks: bool,
    /// Everything is deleted, and space has to come back.
    pub(super) empties: bool,
    /// The partitions are closed.
    pub(super) closes: bool,
}

/// Why a partition was not opened.
#[derive(Clone, Debug)]
#[expect(dead_code, reason = "explanations print the texts through Debug")]
pub(super) enum Refusal {
    /// The device failed.
    Io(String),
    /// The device is damaged.
    Damaged(String),
    /// Something that must not be.
    Wrong(String),
}

/// From core to core.
enum Order {
    Opened,
    Work,
    Finished,
    Close,
    Closed,
}

/// What the parts of a life share.
pub(super) struct Life {
    pub(super) journal: Rc<Journal>,
    pub(super) disks: Vec<Rc<Disk>>,
    pub(super) extras: Rc<Extras>,
    pub(super) shape: Shape,
    pub(super) keys: Rc<Vec<Key>>,
    pub(super) number: u64,
    pub(super) cores: usize,
    pub(super) ending: Ending,
    pub(super) phase: Cell<Phase>,
    /// Clients stop when the journal has this many operations.
    pub(super) operations_max: Cell<u64>,
    /// Clients on connections that have not finished.
    pub(super) connected: Cell<u32>,
    /// By number and disk.
    pub(super) partitions: RefCell<BTreeMap<(u16, usize), Rc<Partition>>>,
    /// As each of them has its disk.
    files: RefCell<BTreeMap<(u16, usize), File>>,
    backs: back::Backs,
    pub(super) arrays: RefCell<BTreeMap<u16, Rc<Array>>>,
    /// Members that are in, by partition, and a write has been acknowledged since.
    members_in: RefCell<BTreeSet<(u16, usize)>>,
    scrubs: watch::Scrubs,
    pub(super) refusal: RefCell<Option<Refusal>>,
    servers: RefCell<BTreeMap<usize, Rc<Core>>>,
    /// What hears of evictions.
    above: RefCell<Vec<Rc<dyn Above>>>,
    mailboxes: RefCell<BTreeMap<usize, Rc<Mailbox<Order>>>>,
    /// Orders that came to the conductor: opened, finished, closed.
    heard: [Cell<usize>; 3],
    news: WaitList,
}

/// Where RESP is served.
pub(super) fn address() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 6379))
}

/// What becomes of stores when the device is full.
fn on_full(shape: &Shape) -> OnFull {
    if shape.evicts { OnFull::Evict } else { OnFull::Error }
}

fn settings(shape: &Shape, life: u64) -> Settings {
    Settings {
        durability: shape.durability(0),
        on_full: on_full(shape),
        devices: Vec::new(),
        policy: shape.is_array().then(|| shape.policy(life)),
        parameters: Values::default(),
        budget: Budget::NOT_GIVEN,
        debug_command: DebugCommand::No,
        password: None,
        tls: None,
        data_dir: "/data".to_owned(),
        config_file: None,
        run_id: "0".repeat(40),
        started_ms: 0,
        process_id: 1,
        driver: plimsoll_reactor::DriverKind::Uring,
    }
}

impl Life {
    pub(super) fn new(
        journal: &Rc<Journal>,
        disks: &[Rc<Disk>],
        extras: &Rc<Extras>,
        keys: &Rc<Vec<Key>>,
        shape: Shape,
        (number, cores): (u64, usize),
        ending: Ending,
    ) -> Rc<Life> {
        Rc::new(Life {
            journal: journal.clone(),
            disks: disks.to_vec(),
            extras: extras.clone(),
            shape,
            keys: keys.clone(),
            number,
            cores,
            ending,
            phase: Cell::new(Phase::Opening),
            operations_max: Cell::new(u64::MAX),
            connected: Cell::new(0),
            partitions: RefCell::default(),
            files: RefCell::default(),
            backs: back::Backs::default(),
            arrays: RefCell::default(),
            members_in: RefCell::default(),
            scrubs: watch::Scrubs::default(),
            refusal: RefCell::default(),
            servers: RefCell::default(),
            above: RefCell::default(),
            mailboxes: RefCell::default(),
            heard: Default::default(),
            news: WaitList::default(),
        })
    }

    /// Starts the server's process.
    pub(super) fn start(self: &Rc<Self>, world: &World) {
        let segment_bytes = self.shape.segment_bytes as usize;
        let (value_bytes_max, part_bytes) = match self.shape.is_array() {
            true => plimsoll_array::geometry(segment_bytes / 4, segment_bytes / 8),
            false => (segment_bytes / 4, segment_bytes / 8),
        };
        let geometry = Geometry { partitions: self.shape.partitions, value_bytes_max, part_bytes };
        let shared = Arc::new(Shared::new(settings(&self.shape, self.number), geometry, self.cores));
        let some = |ports: Vec<Port<_>>| RefCell::new(ports.into_iter().map(Some).collect::<Vec<_>>());
        let ports = some(Mesh::ports::<Message>(self.cores));
        let orders = RefCell::new(Mesh::ports::<Order>(self.cores).into_iter().map(Some).collect::<Vec<_>>());
        world.start_process(SERVER, self.cores, |reactor| {
            let core = usize::from(reactor.core().0);
            let order_port = orders.borrow_mut()[core].take().expect("each core starts once");
            let (life, handle) = (self.clone(), reactor.clone());
            let mailbox = order_port.open(reactor, move |_, order| life.hear(&handle, order));
            self.mailboxes.borrow_mut().insert(core, mailbox);
            let port = ports.borrow_mut()[core].take().expect("each core starts once");
            let (life, handle, shared) = (self.clone(), reactor.clone(), shared.clone());
            reactor.spawn(Work::Control, async move {
                match life.open(&handle, port, &shared).await {
                    Ok(()) => life.report(core, Order::Opened).await,
                    Err(refusal) => {
                        life.journal.note(|| format!("core {core} cannot open: {refusal:?}"));
                        life.refusal.borrow_mut().get_or_insert(refusal);
                    }
                }
            });
            if core == 0 {
                let (life, handle) = (self.clone(), reactor.clone());
                reactor.spawn(Work::Control, async move { life.conduct(handle).await });
            }
        });
    }

    /// Starts the clients on connections, in a process of their own.
    pub(super) fn start_clients(self: &Rc<Self>, world: &World) {
        self.connected.set(self.shape.connections);
        world.start_process(CLIENTS, 1, |reactor| {
            for number in 0..self.shape.connections {
                let client = Client::new(self, reactor, CONNECTED + number);
                reactor.spawn(Work::Kv, client.work());
            }
        });
    }

    /// True if what connections are told may be lost for a while after.
    pub(super) fn loses_acknowledged(&self) -> bool {
        self.shape.loses_acknowledged(0)
    }

    /// True if a disk ever was damaged.
    pub(super) fn was_damaged(&self) -> bool {
        self.disks.iter().any(|disk| disk.ledger.was_damaged())
    }

    /// Breaks the circles of references after the process is dead.
    pub(super) fn forget(&self) {
        self.servers.borrow_mut().clear();
        self.above.borrow_mut().clear();
        self.mailboxes.borrow_mut().clear();
        self.arrays.borrow_mut().clear();
        self.partitions.borrow_mut().clear();
        self.files.borrow_mut().clear();
    }

    async fn open(
        self: &Rc<Self>,
        reactor: &Reactor,
        port: Port<Message>,
        shared: &Arc<Shared>,
    ) -> Result<(), Refusal> {
        let disks = self.look_at_disks(reactor).await?;
        let mut local: BTreeMap<u16, Rc<dyn Device>> = BTreeMap::new();
        for number in shared.geometry.owned(reactor.core(), self.cores) {
            local.insert(number, self.open_device(reactor, &disks, number).await?);
        }
        let core = serve_core(reactor, port, shared, address());
        let core = core.map_err(|error| Refusal::Wrong(format!("listening: {error}")))?;
        core.give(local);
        core.serve_keys();
        self.servers.borrow_mut().insert(usize::from(reactor.core().0), core);
        Ok(())
    }

    fn check_accounts(&self, partition: &Partition, when: &str) {
        if let Err(text) = partition.check_accounts() {
            let number = partition.number();
            self.journal.violate("accounts", format!("partition {number} {when}: {text}"));
        }
        let damaged_bytes = partition.metrics().damaged_bytes;
        // Cleaning takes what a disk that fails does not give for damaged.
        let fails = |disk: &Rc<Disk>| disk.may_fail.get() || disk.recovered_in.get() == self.number;
        if damaged_bytes > 0 && !self.was_damaged() && !self.disks.iter().any(fails) {
            let (number, what) = (partition.number(), "bytes taken for damaged, which no fault explains");
            self.journal.violate("damage", format!("partition {number} {when}: {damaged_bytes} {what}"));
        }
    }

    /// Checks the counters of every partition, at any instant between two turns.
    pub(super) fn check_all_accounts(&self, when: &str) {
        for partition in self.partitions.borrow().values() {
            self.check_accounts(partition, when);
        }
    }

    /// True if no partition has a reason to refuse stores: half of what is left of it beside what
    /// cleaning, checkpoints and keys take is free. (A device that fails writes, or is damaged, may
    /// not be able to make room.)
    pub(super) fn is_nearly_empty(&self) -> bool {
        let fails = self.journal.excuses.get().writes_fail || self.was_damaged();
        if self.shape.evicts {
            return !fails; // It makes room, always.
        }
        !fails && self.has_room()
    }

    /// Keys deleted to make room so far.
    pub(super) fn evicted(&self) -> u64 {
        self.partitions.borrow().values().map(|partition| partition.metrics().evicted).sum()
    }

    fn hear(self: &Rc<Self>, reactor: &Reactor, order: Order) {
        let life = self.clone();
        match order {
            Order::Opened => self.hear_news(0),
            Order::Finished => self.hear_news(1),
            Order::Closed => self.hear_news(2),
            Order::Work => life.start_callers(reactor),
            Order::Close => {
                let core = usize::from(reactor.core().0);
                let handle = reactor.clone();
                reactor.spawn(Work::Control, async move {
                    life.until_none_comes_back(&handle).await;
                    life.close(core).await;
                    life.report(core, Order::Closed).await;
                });
            }
        }
    }

    fn hear_news(&self, which: usize) {
        self.heard[which].set(self.heard[which].get() + 1);
        self.news.wake_all();
    }

    /// Tells the conductor, from another core.
    async fn report(&self, from: usize, order: Order) {
        let mailbox = self.mailboxes.borrow().get(&from).cloned();
        if let Some(mailbox) = mailbox {
            mailbox.send(CoreId(0), order).await;
        }
    }

    async fn close(&self, core: usize) {
        let server = self.servers.borrow().get(&core).cloned();
        if let Some(server) = server {
            server.stop().await;
        }
        let is_own = |number: u16| usize::from(number) % self.cores == core;
        let arrays: Vec<Rc<Array>> = {
            let arrays = self.arrays.borrow();
            arrays.iter().filter(|(number, _)| is_own(**number)).map(|(_, array)| array.clone()).collect()
        };
        for array in arrays {
            array.close().await;
        }
        let own: Vec<(usize, Rc<Partition>)> = {
            let partitions = self.partitions.borrow();
            let own = partitions.iter().filter(|((number, _), _)| is_own(*number));
            own.map(|((_, member), partition)| (*member, partition.clone())).collect()
        };
        for (member, partition) in own {
            match partition.close().await {
                Err(error) if self.disks[member].is_whole.get() => {
                    let trouble = super::journal::Trouble::of(&error);
                    self.journal.explain("closing a partition", &trouble);
                }
                _ => {}
            }
        }
    }

    pub(super) fn caller(&self, reactor: &Reactor, client: u32, name: &str) -> Option<Rc<Caller>> {
        let core = usize::from(reactor.core().0);
        let volume = self.servers.borrow().get(&core)?.volume().clone();
        let name = format!("life {} {name}", self.number);
        // The conductor means what it asks.
        let cut_ppm = if client == CONDUCTOR { 0 } else { self.shape.cut_ppm };
        Some(Rc::new(Caller {
            journal: self.journal.clone(),
            device: volume,
            reactor: reactor.clone(),
            shape: Shape { cut_ppm, ..self.shape },
            client,
            workload: RefCell::new(Workload::new(self.shape, self.keys.clone(), &name)),
        }))
    }

    /// Starts the callers of a core.
    fn start_callers(self: &Rc<Self>, reactor: &Reactor) {
        let core = usize::from(reactor.core().0);
        let extras = if self.shape.extras { 2 } else { 0 };
        for client in (0..self.shape.callers + extras).filter(|client| *client as usize % self.cores == core)
        {
            let Some(caller) = self.caller(reactor, client, &format!("caller {client}")) else { return };
            let life = self.clone();
            reactor.spawn(Work::Kv, async move {
                if client < life.shape.callers {
                    life.work(&caller).await;
                } else {
                    life.extras.work(&life, &caller, client - life.shape.callers).await;
                }
                life.report(core, Order::Finished).await;
            });
        }
    }

    /// False when clients have to stop.
    pub(super) fn goes_on(&self) -> bool {
        if self.phase.get() == Phase::Working
            && self.journal.tally.get().operations >= self.operations_max.get()
        {
            self.phase.set(Phase::Stopping);
        }
        self.phase.get() == Phase::Working
    }

    async fn work(&self, caller: &Caller) {
        while self.goes_on() {
            let (key, command) = caller.workload.borrow_mut().next(caller.reactor.wall_ms());
            let begun_ns = caller.reactor.now_ns();
            caller.perform(&key, command).await;
            // What is refused at once, because the log has failed, takes no time: without a rest
            // time would stand still.
            let at_once = caller.reactor.now_ns() == begun_ns;
            let rest_ns = match self.shape.rest_ns_max {
                0 => u64::from(at_once) * REST_NS_MIN,
                max => caller.workload.borrow_mut().random.below(max).max(u64::from(at_once) * REST_NS_MIN),
            };
            if rest_ns > 0 {
                caller.reactor.sleep_ns(rest_ns).await;
            }
        }
    }

    /// Waits until so many cores or clients have told the same.
    async fn wait_for(&self, which: usize, count: usize) {
        self.news.wait_for(|| (self.heard[which].get() >= count).then_some(())).await;
    }

    /// Leads a life from phase to phase.
    async fn conduct(self: Rc<Self>, reactor: Reactor) {
        self.wait_for(0, self.cores).await;
        let caller = self.caller(&reactor, CONDUCTOR, "conductor").expect("core 0 serves");
        self.phase.set(Phase::Reading);
        if self.ending.reads_first {
            audit::read_all(&self, &caller, true).await;
            self.extras.check_all(&self, &caller).await;
        }
        self.phase.set(Phase::Working);
        for core in 0..self.cores {
            self.order(core, Order::Work).await;
        }
        let clients = self.shape.callers + if self.shape.extras { 2 } else { 0 };
        self.wait_for(1, clients as usize).await;
        while self.connected.get() > 0 {
            reactor.sleep_ns(200_000).await;
        }
        self.phase.set(Phase::Checking);
        if self.ending.checks {
            if self.shape.is_array() {
                self.wait_for_rebuild(&reactor).await;
                if self.shape.class == FaultClass::Damage {
                    self.scrub(&reactor).await;
                }
            }
            audit::check(&self, &caller).await;
        }
        if self.ending.empties {
            audit::empty(&self, &caller).await;
        }
        if self.ending.closes {
            self.phase.set(Phase::Closing);
            for core in 0..self.cores {
                self.order(core, Order::Close).await;
            }
            self.wait_for(2, self.cores).await;
        }
        self.phase.set(Phase::Over);
    }

    /// Sends an order from the conductor's core.
    async fn order(&self, core: usize, order: Order) {
        let mailbox = self.mailboxes.borrow().get(&0).cloned().expect("core 0 has a mailbox");
        mailbox.send(CoreId(core as u16), order).await;
    }
}
