//! One seed: its world from the first event to the verdict.
//!
//! Invariants: everything follows from the seed; what nobody answers for long is a violation; a panic
//! anywhere in the world is one too.

use super::client::{Client, Shared};
use super::devices::Devices;
use super::graph;
use super::history::History;
use super::shape::{HASH_SECRET, SEGMENT_BYTES, Shape, disk};
use crate::panics::catch;
use plimsoll_flash::{FormatOptions, OnFull, Superblock, format};
use plimsoll_kv::Above;
use plimsoll_reactor::sim::{FaultRates, ProcessId, Random, World};
use plimsoll_reactor::{FileOptions, Mesh, Port, Reactor, Work};
use plimsoll_server::budget::Budget;
use plimsoll_server::config::DebugCommand;
use plimsoll_server::parameters::Values;
use plimsoll_server::{Core, Message, Settings, serve_core};
use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

const SERVER: ProcessId = ProcessId(1);
const CLIENTS: ProcessId = ProcessId(2);
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
    /// Keys that were evicted.
    pub evicted: u64,
    /// It ended before its time, as one that it is judged by was evicted.
    pub has_lost_evidence: bool,
    /// What happened, if it was asked for.
    pub trace: Vec<String>,
}

fn address() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 6379))
}

/// A life of the server.
struct Life {
    shape: Shape,
    told: Rc<Shared>,
    cores: usize,
    /// Cores that serve.
    serving: Cell<usize>,
    /// Cores that have ended in order.
    stopped: Cell<usize>,
    stops: Cell<bool>,
    /// Why a core could not begin.
    refusal: RefCell<Option<String>>,
    kept: RefCell<Vec<Rc<Core>>>,
    /// What hears of evictions.
    above: RefCell<Vec<Rc<dyn Above>>>,
}

impl Life {
    fn new(shape: Shape, told: Rc<Shared>, cores: usize) -> Life {
        Life {
            shape,
            told,
            cores,
            serving: Cell::default(),
            stopped: Cell::default(),
            stops: Cell::default(),
            refusal: RefCell::default(),
            kept: RefCell::default(),
            above: RefCell::default(),
        }
    }

    /// Its memory is gone with its process.
    fn forget(&self) {
        self.kept.borrow_mut().clear();
        self.above.borrow_mut().clear();
    }

    async fn run(
        self: Rc<Self>,
        reactor: Reactor,
        port: Port<Message>,
        shared: Arc<plimsoll_server::Shared>,
    ) {
        let numbers = shared.geometry.owned(reactor.core(), reactor.cores());
        let devices = match Devices::open(&reactor, numbers, (self.shape, &self.told)).await {
            Ok(opened) => opened,
            Err(refusal) => {
                self.refusal.borrow_mut().get_or_insert(refusal);
                return;
            }
        };
        let core = serve_core(&reactor, port, &shared, address()).expect("nobody else listens");
        self.above.borrow_mut().extend(devices.above.iter().cloned());
        core.give(devices.served.clone());
        core.serve_keys();
        self.kept.borrow_mut().push(core.clone());
        self.serving.set(self.serving.get() + 1);
        while !self.stops.get() {
            reactor.sleep_ns(100_000).await;
        }
        core.stop().await;
        self.stopped.set(self.stopped.get() + 1);
        while self.stopped.get() < self.cores {
            reactor.sleep_ns(100_000).await;
        }
        devices.close().await;
        self.stopped.set(self.stopped.get() + 1);
    }
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
        evicts: shape.on_full == OnFull::Evict,
        applies: shape.applies(),
        evicted: Cell::new(0),
        has_lost_evidence: Cell::new(false),
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
    let panic = catch(|| run.run()).err();
    run.report.violation = shared.violation.take().or(panic);
    (run.report.evicted, run.report.has_lost_evidence) =
        (shared.evicted.get(), shared.has_lost_evidence.get());
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
        for member in 0..self.shape.members {
            self.world.add_disk(&disk(member), self.shape.disk_bytes());
        }
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
            if self.is_over() {
                return;
            }
        }
        self.end();
    }

    /// There is nothing more to find.
    fn is_over(&self) -> bool {
        self.shared.violation.borrow().is_some() || self.shared.has_lost_evidence.get()
    }

    fn set_rates(&self, rates: FaultRates) {
        for member in 0..self.shape.members {
            self.world.with_disk(&disk(member), |disk| disk.set_rates(rates));
        }
    }

    fn format(&self) {
        let (formatted, shape) = (Rc::new(Cell::new(0)), self.shape);
        let done = formatted.clone();
        self.world.start_process(SERVER, 1, move |reactor| {
            for member in 0..shape.members {
                let file = reactor.open_file(&disk(member), &FileOptions::default());
                let file = file.expect("the disk exists");
                let done = done.clone();
                reactor.spawn(Work::Control, async move {
                    let options = FormatOptions {
                        partitions: shape.partitions,
                        segment_bytes: Some(SEGMENT_BYTES),
                        force: false,
                        written_ahead: true,
                        device_id: [1 + member as u8; 16],
                        hash_secret: HASH_SECRET,
                        created_ms: 1,
                    };
                    let superblock: Superblock = format(&file, &options).await.expect("the disk is sound");
                    assert_eq!(superblock.partitions, shape.partitions);
                    done.set(done.get() + 1);
                });
            }
        });
        let deadline_ns = self.world.now_ns() + ANSWER_NS_MAX;
        assert!(self.world.run_until(deadline_ns, || formatted.get() == shape.members));
        self.world.kill(SERVER, false);
    }

    /// Starts a life of the server.
    fn start(&mut self) -> Rc<Life> {
        let cores = [1, 2, 3, 6][self.random.below(4) as usize];
        let life = Rc::new(Life::new(self.shape, self.shared.clone(), cores));
        let settings = Settings {
            durability: self.shape.durability,
            on_full: self.shape.on_full,
            devices: Vec::new(),
            policy: (self.shape.members > 1).then(|| self.shape.policy()),
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
        self.shared.note(|| format!("{:>14} ns  a server begins on {cores} cores", self.world.now_ns()));
        self.world.start_process(SERVER, cores, |reactor| {
            let port =
                ports.borrow_mut()[usize::from(reactor.core().0)].take().expect("each core starts once");
            let run = life.clone().run(reactor.clone(), port, shared.clone());
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
        if !self.world.run_until(deadline_ns, || life.stopped.get() == 2 * life.cores) {
            self.shared.violate("the server does not stop".to_owned());
        }
        self.world.kill(SERVER, false);
        life.forget();
    }

    /// One life with clients, to its end.
    fn live(&mut self) {
        let rates = self.shape.rates;
        self.set_rates(rates);
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
            let is_enough = self.shared.answered.get() >= wanted || life.refusal.borrow().is_some();
            is_enough || self.is_over()
        });
        if let Some(refusal) = life.refusal.borrow().clone() {
            if self.shape.applies() {
                self.shared.violate(format!("a partition does not open: {refusal}"));
            }
        } else if !reached && !dies_early {
            self.shared.violate("nothing goes on".to_owned());
        }
        let scale = self.random.range(10, 22);
        let further_ns = self.random.below(1 << scale);
        self.world.run_until(self.world.now_ns() + further_ns, || false);
        let serves = life.serving.get() == life.cores;
        if serves && self.random.chance_ppm(200_000) && !self.is_over() {
            self.stop(&life);
        } else {
            let power = self.random.chance_ppm(700_000);
            self.report.crashes += 1;
            self.report.crashes_in_recovery += u64::from(!serves);
            self.shared
                .note(|| format!("{:>14} ns  the server dies, power is lost: {power}", self.world.now_ns()));
            self.world.kill(SERVER, power);
            life.forget();
        }
        // Clients see that their connections are gone.
        self.world.run_until(self.world.now_ns() + 1_000_000, || false);
        self.world.kill(CLIENTS, false);
    }

    /// The last life, without faults: what there is, and the verdict.
    fn end(&mut self) {
        self.set_rates(FaultRates::default());
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
