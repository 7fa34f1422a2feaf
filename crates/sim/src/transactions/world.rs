//! One seed: its world from the first event to the verdict.
//!
//! Invariants: everything follows from the seed; what nobody answers for long is a violation; a panic
//! anywhere in the world is one too.

use super::client::{Client, Shared};
use super::graph;
use super::history::History;
use crate::fuzz::{cache_bytes, known_bytes};
use crate::panics::catch;
use plimsoll_cache::Cache;
use plimsoll_flash::{FormatOptions, OnFull, Options, Partition, Superblock, format, inspect};
use plimsoll_kv::{Block, Device, Durability};
use plimsoll_reactor::sim::{FaultRates, ProcessId, Random, World};
use plimsoll_reactor::{FileOptions, Mesh, Port, Reactor, Work};
use plimsoll_server::budget::Budget;
use plimsoll_server::config::DebugCommand;
use plimsoll_server::parameters::Values;
use plimsoll_server::{Core, Geometry, Message, Settings, serve_core};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

const SERVER: ProcessId = ProcessId(1);
const CLIENTS: ProcessId = ProcessId(2);
const DISK: &str = "disk";
const SEGMENT_BYTES: u32 = 64 << 10;
const HASH_SECRET: u64 = 99;
/// Everything is answered within this time.
const ANSWER_NS_MAX: u64 = 60_000_000_000;
/// A life ends after so many transactions, about.
const TRANSACTIONS_PER_LIFE: u64 = 60;

/// What came of a seed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// The rule that was broken, if one was.
    pub violation: Option<String>,
    /// Transactions in its history.
    pub transactions: u64,
    /// Ends of the server that it did not choose.
    pub crashes: u64,
    /// Those while it was recovering.
    pub crashes_in_recovery: u64,
    /// What happened, if it was asked for.
    pub trace: Vec<String>,
}

/// What a seed decides.
#[derive(Clone, Copy, Debug)]
struct Shape {
    partitions: u16,
    segments: u32,
    clients: u32,
    durability: Durability,
    fingerprint_bits: u32,
    network_ns_max: u64,
    /// Values of the token and of parts.
    token_bytes: usize,
    lives: u64,
    rates: FaultRates,
    fills: bool,
    /// Bytes of each partition's cache; 0: there is none.
    cache_bytes: usize,
    /// Bytes of each partition's memory for keys that are known.
    known_bytes: usize,
}

impl Shape {
    fn of(seed: u64) -> Shape {
        let mut random = Random::stream(seed, "shape of transactions");
        let mut pick = |choices: &[u64]| choices[random.below(choices.len() as u64) as usize];
        let none = FaultRates::default();
        let class = seed % 4;
        let rates = match class {
            1 => FaultRates { slow_ppm: pick(&[1000, 20_000]) as u32, ..none },
            2 => FaultRates {
                write_error_ppm: pick(&[0, 500, 3000]) as u32,
                flush_error_ppm: pick(&[0, 1000]) as u32,
                ..none
            },
            _ => none,
        };
        Shape {
            partitions: pick(&[1, 2, 3, 5, 8]) as u16,
            segments: if class == 3 { 26 } else { pick(&[30, 48]) as u32 },
            clients: pick(&[2, 4, 7]) as u32,
            durability: [Durability::Sync, Durability::Sync, Durability::Group][pick(&[0, 1, 2]) as usize],
            fingerprint_bits: pick(&[40, 40, 4]) as u32,
            network_ns_max: pick(&[60_000, 400_000]),
            token_bytes: pick(&[100, 3000, 40_000]) as usize,
            lives: pick(&[4, 6, 9]),
            rates,
            fills: class == 3,
            cache_bytes: cache_bytes(seed),
            known_bytes: known_bytes(seed),
        }
    }

    fn geometry(&self) -> Geometry {
        Geometry {
            partitions: self.partitions,
            value_bytes_max: (SEGMENT_BYTES / 4) as usize,
            part_bytes: (SEGMENT_BYTES / 8) as usize,
        }
    }
}

fn address() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 6379))
}

/// A life of the server.
#[derive(Default)]
struct Life {
    cores: Cell<usize>,
    /// Cores that serve.
    serving: Cell<usize>,
    /// Cores that have ended in order.
    stopped: Cell<usize>,
    stops: Cell<bool>,
    /// Why a core could not begin.
    refusal: RefCell<Option<String>>,
    kept: RefCell<Vec<Rc<Core>>>,
}

impl Life {
    async fn run(
        self: Rc<Self>,
        reactor: Reactor,
        port: Port<Message>,
        shape: Shape,
        shared: Arc<plimsoll_server::Shared>,
    ) {
        let local = match open(&reactor, shape, &shared).await {
            Ok(local) => local,
            Err(refusal) => {
                self.refusal.borrow_mut().get_or_insert(refusal);
                return;
            }
        };
        let devices: BTreeMap<u16, Rc<dyn Device>> =
            local.iter().map(|(number, partition)| (*number, cached(partition, shape))).collect();
        let core = serve_core(&reactor, port, devices, &shared, address()).expect("nobody else listens");
        self.kept.borrow_mut().push(core.clone());
        self.serving.set(self.serving.get() + 1);
        while !self.stops.get() {
            reactor.sleep_ns(100_000).await;
        }
        core.stop().await;
        self.stopped.set(self.stopped.get() + 1);
        while self.stopped.get() < self.cores.get() {
            reactor.sleep_ns(100_000).await;
        }
        for partition in local.values() {
            // A device that fails keeps what was acknowledged all the same.
            drop(partition.close().await);
        }
        self.stopped.set(self.stopped.get() + 1);
    }
}

/// A partition as requests come to it.
fn cached(partition: &Rc<Partition>, shape: Shape) -> Rc<dyn Device> {
    match shape.cache_bytes {
        0 => partition.clone(),
        bytes => Cache::new(partition.clone(), partition.clock(), HASH_SECRET, bytes),
    }
}

type Opened = BTreeMap<u16, Rc<Partition>>;

async fn open(reactor: &Reactor, shape: Shape, shared: &plimsoll_server::Shared) -> Result<Opened, String> {
    let file = reactor.open_file(DISK, &FileOptions::default()).expect("the disk exists");
    let block: Rc<dyn Block> = Rc::new(file);
    let superblock = inspect(&*block).await.map_err(|error| error.to_string())?;
    let options = Options {
        fingerprint_bits: shape.fingerprint_bits,
        checkpoint_transitions_min: 300,
        known_bytes: shape.known_bytes,
        ..Options::default()
    };
    let mut opened = Opened::new();
    for number in shared.geometry.owned(reactor.core(), reactor.cores()) {
        let partition = Partition::open(reactor, block.clone(), &superblock, number, options).await;
        let partition = partition.map_err(|error| error.to_string())?;
        partition.check_accounts()?;
        opened.insert(number, partition);
    }
    Ok(opened)
}

/// A world of one seed.
struct Run {
    world: World,
    shape: Shape,
    shared: Rc<Shared>,
    random: Random,
    report: Report,
}

/// Runs the world of a seed.
#[must_use]
pub fn run_seed(seed: u64, traces: bool) -> Report {
    let shape = Shape::of(seed);
    let shared = Rc::new(Shared {
        history: History::default(),
        violation: RefCell::default(),
        trace: traces.then(RefCell::default),
        token_bytes: shape.token_bytes,
        grown: RefCell::default(),
        fills: shape.fills,
        answered: Cell::new(0),
    });
    let mut run = Run {
        world: World::new(seed, |_| "other"),
        shape,
        shared: shared.clone(),
        random: Random::stream(seed, "lives of transactions"),
        report: Report { seed, ..Report::default() },
    };
    shared.note(|| format!("{shape:?}"));
    if let Err(panic) = catch(|| run.run()) {
        shared.violate(panic);
    }
    run.report.violation = shared.violation.take();
    run.report.trace = shared.trace.as_ref().map(RefCell::take).unwrap_or_default();
    // A world whose processes live holds itself.
    drop(catch(|| {
        run.world.kill(SERVER, false);
        run.world.kill(CLIENTS, false);
    }));
    run.report
}

impl Run {
    fn run(&mut self) {
        let data =
            u64::from(self.shape.partitions) * u64::from(self.shape.segments) * u64::from(SEGMENT_BYTES);
        self.world.add_disk(DISK, (data + (128 << 10) + (16 << 10)) as usize);
        self.world.set_network_delay_ns(self.shape.network_ns_max);
        self.format();
        let life = self.start();
        let begun = self.ask("the beginning", |client| async move { client.begin().await });
        self.stop(&life);
        if begun != Some(true) {
            return self.shared.violate("the token cannot be set".to_owned());
        }
        for _ in 0..self.shape.lives {
            self.live();
            if self.shared.violation.borrow().is_some() {
                return;
            }
        }
        self.end();
    }

    fn format(&self) {
        let (formatted, told) = (Rc::new(Cell::new(false)), self.shape);
        let done = formatted.clone();
        self.world.start_process(SERVER, 1, move |reactor| {
            let (file, done) = (reactor.open_file(DISK, &FileOptions::default()).unwrap(), done.clone());
            reactor.spawn(Work::Control, async move {
                let options = FormatOptions {
                    partitions: told.partitions,
                    segment_bytes: Some(SEGMENT_BYTES),
                    force: false,
                    written_ahead: true,
                    device_id: [7; 16],
                    hash_secret: HASH_SECRET,
                    created_ms: 1,
                };
                let superblock: Superblock = format(&file, &options).await.expect("the disk is sound");
                assert_eq!(superblock.partitions, told.partitions);
                done.set(true);
            });
        });
        assert!(self.world.run_until(self.world.now_ns() + ANSWER_NS_MAX, || formatted.get()));
        self.world.kill(SERVER, false);
    }

    /// Starts a life of the server.
    fn start(&mut self) -> Rc<Life> {
        let cores = [1, 2, 3, 6][self.random.below(4) as usize];
        let life = Rc::new(Life::default());
        life.cores.set(cores);
        let settings = Settings {
            durability: self.shape.durability,
            on_full: OnFull::Error,
            devices: Vec::new(),
            policy: None,
            parameters: Values::default(),
            budget: Budget::NOT_GIVEN,
            debug_command: DebugCommand::No,
            password: None,
            data_dir: "/data".to_owned(),
            config_file: None,
            run_id: "0".repeat(40),
            started_ms: 0,
            process_id: 1,
            driver: plimsoll_reactor::DriverKind::Uring,
            tls: None,
        };
        let shared = Arc::new(plimsoll_server::Shared::new(settings, self.shape.geometry(), cores));
        let ports = RefCell::new(Mesh::ports::<Message>(cores).into_iter().map(Some).collect::<Vec<_>>());
        let shape = self.shape;
        self.shared.note(|| format!("{:>14} ns  a server begins on {cores} cores", self.world.now_ns()));
        self.world.start_process(SERVER, cores, |reactor| {
            let port =
                ports.borrow_mut()[usize::from(reactor.core().0)].take().expect("each core starts once");
            let run = life.clone().run(reactor.clone(), port, shape, shared.clone());
            reactor.spawn(Work::Control, run);
        });
        life
    }

    fn client(&self, reactor: &Reactor, number: u32) -> Client {
        let name = format!("client {number} at {}", self.world.now_ns());
        Client {
            shared: self.shared.clone(),
            reactor: reactor.clone(),
            number,
            random: RefCell::new(Random::stream(self.report.seed, &name)),
            address: address(),
        }
    }

    /// Lets one client do something, when the server answers; what it gives.
    fn ask<T: 'static, F: Future<Output = T> + 'static>(
        &self,
        what: &str,
        body: impl Fn(Rc<Client>) -> F + 'static,
    ) -> Option<T> {
        let given = Rc::new(RefCell::new(None));
        let (told, body) = (given.clone(), Rc::new(body));
        self.world.start_process(CLIENTS, 1, |reactor| {
            let (client, told, body) = (Rc::new(self.client(reactor, 999)), told.clone(), body.clone());
            reactor.spawn(Work::Kv, async move {
                while client.reactor.connect(address()).is_err() {
                    client.reactor.sleep_ns(100_000).await;
                }
                let given = body(client).await;
                *told.borrow_mut() = Some(given);
            });
        });
        let deadline_ns = self.world.now_ns() + ANSWER_NS_MAX;
        if !self.world.run_until(deadline_ns, || given.borrow().is_some()) {
            self.shared.violate(format!("{what} is not answered"));
        }
        self.world.kill(CLIENTS, false);
        given.take()
    }

    /// Stops a server in order.
    fn stop(&self, life: &Rc<Life>) {
        life.stops.set(true);
        let deadline_ns = self.world.now_ns() + ANSWER_NS_MAX;
        if !self.world.run_until(deadline_ns, || life.stopped.get() == 2 * life.cores.get()) {
            self.shared.violate("the server does not stop".to_owned());
        }
        self.world.kill(SERVER, false);
        life.kept.borrow_mut().clear();
    }

    /// One life with clients, to its end.
    fn live(&mut self) {
        let rates = self.shape.rates;
        self.world.with_disk(DISK, |disk| disk.set_rates(rates));
        let life = self.start();
        self.world.start_process(CLIENTS, 1, |reactor| {
            for number in 0..self.shape.clients {
                reactor.spawn(Work::Kv, self.client(reactor, number).work());
            }
        });
        let wanted = self.shared.answered.get() + 1 + self.random.below(TRANSACTIONS_PER_LIFE);
        let dies_early = self.random.chance_ppm(250_000);
        let for_ns = if dies_early { 1 + self.random.below(12_000_000) } else { ANSWER_NS_MAX };
        let deadline_ns = self.world.now_ns() + for_ns;
        let reached = self.world.run_until(deadline_ns, || {
            let is_over = self.shared.answered.get() >= wanted || life.refusal.borrow().is_some();
            is_over || self.shared.violation.borrow().is_some()
        });
        if let Some(refusal) = life.refusal.borrow().clone() {
            if self.shape.rates.write_error_ppm == 0 && self.shape.rates.flush_error_ppm == 0 {
                self.shared.violate(format!("a partition does not open: {refusal}"));
            }
        } else if !reached && !dies_early {
            self.shared.violate("nothing goes on".to_owned());
        }
        let scale = self.random.range(10, 22);
        let further_ns = self.random.below(1 << scale);
        self.world.run_until(self.world.now_ns() + further_ns, || false);
        let serves = life.serving.get() == life.cores.get();
        if serves && self.random.chance_ppm(200_000) && self.shared.violation.borrow().is_none() {
            self.stop(&life);
        } else {
            let power = self.random.chance_ppm(700_000);
            self.report.crashes += 1;
            self.report.crashes_in_recovery += u64::from(!serves);
            self.shared
                .note(|| format!("{:>14} ns  the server dies, power is lost: {power}", self.world.now_ns()));
            self.world.kill(SERVER, power);
            life.kept.borrow_mut().clear();
        }
        // Clients see that their connections are gone.
        self.world.run_until(self.world.now_ns() + 1_000_000, || false);
        self.world.kill(CLIENTS, false);
    }

    /// The last life, without faults: what there is, and the verdict.
    fn end(&mut self) {
        self.world.with_disk(DISK, |disk| disk.set_rates(FaultRates::default()));
        let life = self.start();
        let lists = self.ask("the end", |client| async move { client.read_all().await }).flatten();
        if let Some(refusal) = life.refusal.borrow().clone() {
            return self.shared.violate(format!("a partition does not open: {refusal}"));
        }
        self.stop(&life);
        let Some(lists) = lists else { return self.shared.violate("the lists cannot be read".to_owned()) };
        self.report.transactions = self.shared.history.len() as u64;
        if let Err(text) = graph::judge(&self.shared.history.take(), &lists) {
            self.shared.violate(text);
        }
    }
}
