//! Listing on the simulated disk: random stores, deletes, expiries, batches and clears with power
//! losses, against a model of which keys exist. Pages with random prefixes and limits are listed
//! while clients write, while runs are flushed and merged and segments cleaned: a key that did not
//! change meanwhile must be listed exactly if it exists.

use crate::list_model::{Model, Named};
use crate::list_support::{list_all, open_on, page};
use crate::opening::SERVER;
use crate::seeds::seeds;
use plimsoll_flash::{Partition, PartitionMetrics};
use plimsoll_kv::{Condition, ContainerId, Device, Durability, Error, Expiry, Op, Output, Request, Value};
use plimsoll_reactor::sim::{Random, World};
use plimsoll_reactor::{FileOptions, Reactor, Work};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

#[derive(Clone, Copy)]
struct Shape {
    fingerprint_bits: u32,
    disk_bytes: usize,
    keys: u64,
    key_bytes_max: u64,
    value_bytes_max: u64,
    operations: u64,
    clients: u64,
    expiries: bool,
    clears: bool,
}

struct Run {
    shape: Shape,
    model: RefCell<Model>,
    random: RefCell<Random>,
    operations: Cell<u64>,
    listed: Cell<u64>,
    partition: RefCell<Option<Rc<Partition>>>,
    totals: RefCell<PartitionMetrics>,
}

impl Run {
    fn below(&self, bound: u64) -> u64 {
        self.random.borrow_mut().below(bound)
    }

    /// A key of a client: the same number always gives the same bytes.
    fn key(&self, client: u64) -> Vec<u8> {
        let number = self.below(self.shape.keys / self.shape.clients) * self.shape.clients + client;
        let mut random = Random::stream(number, "key");
        let folder = random.below(26) as u8 + b'a';
        let mut key = vec![folder, b'/'];
        key.extend_from_slice(format!("{number}").as_bytes());
        let length = random.below(self.shape.key_bytes_max);
        key.extend((0..length).map(|_| random.below(4) as u8 + b'0'));
        key
    }

    fn prefix(&self) -> Vec<u8> {
        match self.below(4) {
            0 => Vec::new(),
            1 | 2 => vec![self.below(26) as u8 + b'a'],
            _ => vec![self.below(26) as u8 + b'a', b'/', self.below(10) as u8 + b'0'],
        }
    }
}

fn store(container: ContainerId, key: &[u8], value: Vec<u8>, expiry: Expiry) -> Op {
    Op::Store {
        container,
        key: key.to_vec(),
        value: Value::from(value),
        condition: Condition::None,
        expiry,
        retain: false,
        want_previous: false,
        form: None,
    }
}

/// One client: its keys are its own, so that nobody else changes them.
async fn client(run: Rc<Run>, reactor: Reactor, partition: Rc<Partition>, number: u64) {
    while run.operations.get() < run.shape.operations {
        run.operations.set(run.operations.get() + 1);
        let container = ContainerId(u32::from(number == 0));
        let named: Named = (container.0, run.key(number));
        match run.below(100) {
            0..55 => store_one(&run, &reactor, &partition, &named).await,
            55..72 => delete_one(&run, &partition, &named).await,
            72..78 if run.shape.expiries && number > 0 => {
                set_expiry(&run, &reactor, &partition, &named).await;
            }
            78..84 => batch(&run, &partition, container, number).await,
            84 if run.shape.clears && number == 0 && run.below(4) == 0 => clear(&run, &partition).await,
            85..88 => {
                let prefix = run.prefix();
                check(&run, &reactor, &partition, container.0, &prefix, false).await;
            }
            _ => {
                let (prefix, limit) = (run.prefix(), run.below(50) as usize + 1);
                page(&partition, container.0, &prefix, None, limit).await;
            }
        }
    }
}

async fn store_one(run: &Run, reactor: &Reactor, partition: &Rc<Partition>, named: &Named) {
    let value = vec![7; run.below(run.shape.value_bytes_max) as usize];
    let expires_ms = (run.shape.expiries && named.0 == 0 && run.below(5) == 0)
        .then(|| reactor.wall_ms() + 1 + run.below(60));
    let expiry = expires_ms.map_or(Expiry::Never, Expiry::At);
    run.model.borrow_mut().begin(named);
    let durability = if run.below(10) == 0 { Durability::Group } else { Durability::Sync };
    let op = store(ContainerId(named.0), &named.1, value, expiry);
    match partition.clone().execute(Request::new(durability, op)).await {
        Ok(_) => run.model.borrow_mut().end(named, true, expires_ms),
        Err(Error::NoSpace) => run.model.borrow_mut().unchanged(named),
        Err(error) => panic!("store failed: {error}"),
    }
}

async fn delete_one(run: &Run, partition: &Rc<Partition>, named: &Named) {
    run.model.borrow_mut().begin(named);
    let op = Op::Delete { container: ContainerId(named.0), key: named.1.clone(), condition: Condition::None };
    match partition.clone().execute(Request::new(Durability::Sync, op)).await {
        Ok(_) | Err(Error::NotFound) => run.model.borrow_mut().end(named, false, None),
        Err(error) => panic!("delete failed: {error}"),
    }
}

async fn set_expiry(run: &Run, reactor: &Reactor, partition: &Rc<Partition>, named: &Named) {
    run.model.borrow_mut().begin(named);
    let expires_ms = (run.below(3) > 0).then(|| reactor.wall_ms() + 1 + run.below(60));
    let op = Op::SetExpiry {
        container: ContainerId(named.0),
        key: named.1.clone(),
        expiry: expires_ms.map_or(Expiry::Never, Expiry::At),
        condition: Condition::None,
    };
    match partition.clone().execute(Request::new(Durability::Sync, op)).await {
        Ok(_) => run.model.borrow_mut().end(named, true, expires_ms),
        Err(Error::NotFound) => run.model.borrow_mut().end(named, false, None),
        Err(Error::NoSpace) => run.model.borrow_mut().unchanged(named),
        Err(error) => panic!("setting an expiry failed: {error}"),
    }
}

async fn batch(run: &Run, partition: &Rc<Partition>, container: ContainerId, number: u64) {
    let mut names: Vec<Named> = (0..run.below(6) + 1).map(|_| (container.0, run.key(number))).collect();
    names.sort();
    names.dedup();
    let stored: Vec<bool> = names.iter().map(|_| run.below(2) == 0).collect();
    let ops = names.iter().zip(&stored).map(|(named, stored)| match stored {
        true => store(container, &named.1, vec![9; 20], Expiry::Never),
        false => Op::Delete { container, key: named.1.clone(), condition: Condition::None },
    });
    let op = Op::Batch(ops.collect());
    names.iter().for_each(|named| run.model.borrow_mut().begin(named));
    let done = partition.clone().execute(Request::new(Durability::Sync, op)).await;
    for (named, stored) in names.iter().zip(stored) {
        match &done {
            Ok(_) => run.model.borrow_mut().end(named, stored, None),
            Err(Error::NoSpace) => run.model.borrow_mut().unchanged(named),
            Err(error) => panic!("batch failed: {error}"),
        }
    }
}

/// Container 1 belongs to the first client alone.
async fn clear(run: &Run, partition: &Rc<Partition>) {
    let names = run.model.borrow().names(1);
    names.iter().for_each(|named| run.model.borrow_mut().begin(named));
    let op = Op::Clear { container: ContainerId(1) };
    partition.clone().execute(Request::new(Durability::Sync, op)).await.expect("clear");
    names.iter().for_each(|named| run.model.borrow_mut().end(named, false, None));
}

/// Lists everything with a prefix; what did not change meanwhile must be as the model has it.
async fn check(
    run: &Run,
    reactor: &Reactor,
    partition: &Rc<Partition>,
    container: u32,
    prefix: &[u8],
    quiet: bool,
) {
    let before_ms = reactor.wall_ms();
    let before = run.model.borrow().clone();
    let limit = || run.below(80) as usize + 1;
    let found = list_all(partition, container, prefix, limit, quiet && container == 1).await;
    let after_ms = reactor.wall_ms();
    let model = run.model.borrow();
    model.compare(&before, container, prefix, &found, before_ms, after_ms);
    run.listed.set(run.listed.get() + found.len() as u64);
}

/// After a restart: what was under way is looked up; then listings must agree.
async fn settle(run: &Run, reactor: &Reactor, partition: &Rc<Partition>) {
    // One listing before anything else is asked: it waits for the keys of the log.
    check(run, reactor, partition, 0, b"", false).await;
    let unsure = run.model.borrow().under_way();
    for named in unsure {
        let op = Op::Exist { container: ContainerId(named.0), key: named.1.clone() };
        match partition.clone().execute(Request::new(Durability::Sync, op)).await {
            Ok(completion) => {
                let Output::Found(item) = completion.output else { panic!("exist finds an item") };
                run.model.borrow_mut().end(&named, true, item.expiry_ms);
            }
            Err(Error::NotFound) => run.model.borrow_mut().end(&named, false, None),
            Err(error) => panic!("exist failed: {error}"),
        }
    }
    for container in [0, 1] {
        check(run, reactor, partition, container, b"", true).await;
        let prefix = run.prefix();
        check(run, reactor, partition, container, &prefix, true).await;
    }
}

async fn open_partition(reactor: &Reactor, shape: Shape) -> Rc<Partition> {
    let file = reactor.open_file("disk", &FileOptions::default()).expect("the disk exists");
    open_on(reactor, Rc::new(file), shape.fingerprint_bits, 64 << 10, 300).await
}

fn add_totals(run: &Run, partition: &Partition) {
    let (metrics, mut totals) = (partition.metrics(), run.totals.borrow_mut());
    (totals.objects, totals.live_bytes) = (metrics.objects, metrics.live_bytes);
    (totals.free_segments, totals.key_segments) = (metrics.free_segments, metrics.key_segments);
    totals.key_merges += metrics.key_merges;
    totals.key_written_bytes += metrics.key_written_bytes;
    totals.key_rebuilds += metrics.key_rebuilds;
    totals.cleaned_segments += metrics.cleaned_segments;
    totals.checkpoints += metrics.checkpoints;
    totals.expired += metrics.expired;
    totals.key_runs = totals.key_runs.max(metrics.key_runs);
    totals.key_table_bytes = totals.key_table_bytes.max(metrics.key_table_bytes);
}

fn run_seed(seed: u64, shape: Shape) -> PartitionMetrics {
    let world = World::new(seed, |_| "any");
    world.add_disk("disk", shape.disk_bytes);
    let run = Rc::new(Run {
        shape,
        model: RefCell::default(),
        random: RefCell::new(Random::stream(seed, "workload")),
        operations: Cell::new(0),
        listed: Cell::new(0),
        partition: RefCell::default(),
        totals: RefCell::default(),
    });
    let mut plan = Random::stream(seed, "crashes");
    let mut lives = 0;
    while run.operations.get() < shape.operations {
        lives += 1;
        assert!(lives < 300, "no progress with seed {seed}: {:?}", run.totals.borrow());
        let done = Rc::new(Cell::new(0));
        let (started, finished) = (run.clone(), done.clone());
        world.start_process(SERVER, 1, move |reactor| {
            let (run, done, reactor) = (started.clone(), finished.clone(), reactor.clone());
            reactor.clone().spawn(Work::Control, async move {
                let partition = open_partition(&reactor, shape).await;
                *run.partition.borrow_mut() = Some(partition.clone());
                settle(&run, &reactor, &partition).await;
                partition.check_accounts().expect("accounts after recovery");
                for number in 0..shape.clients {
                    let (run, done, partition) = (run.clone(), done.clone(), partition.clone());
                    let handle = reactor.clone();
                    reactor.spawn(Work::Kv, async move {
                        client(run, handle, partition, number).await;
                        done.set(done.get() + 1);
                    });
                }
            });
        });
        let deadline = world.now_ns() + plan.range(1_000_000, 60_000_000);
        world.run_until(deadline, || done.get() == shape.clients);
        if let Some(partition) = run.partition.borrow_mut().take() {
            partition.check_accounts().expect("accounts before the crash");
            add_totals(&run, &partition);
        }
        world.kill(SERVER, plan.below(4) > 0);
    }
    assert!(run.listed.get() > shape.operations / 10, "only {} keys listed", run.listed.get());
    *run.totals.borrow()
}

const SHAPE: Shape = Shape {
    fingerprint_bits: 40,
    disk_bytes: 8 << 20,
    keys: 4000,
    key_bytes_max: 200,
    value_bytes_max: 400,
    operations: 8000,
    clients: 8,
    expiries: true,
    clears: true,
};

#[test]
fn listings_agree_with_the_model_over_power_losses() {
    let (mut merges, mut expired, mut runs, mut tables) = (0, 0, 0, 0);
    for seed in seeds(0, 12) {
        let totals = run_seed(seed, SHAPE);
        assert_eq!(totals.key_rebuilds, 0, "nothing was damaged, and there was space");
        (merges, expired) = (merges + totals.key_merges, expired + totals.expired);
        (runs, tables) = (runs.max(totals.key_runs), tables.max(totals.key_table_bytes));
    }
    assert!(merges > 0 && expired > 0 && runs > 2, "merges {merges}, expired {expired}, runs {runs}");
    // On so small a device the tables may take 128 KiB.
    assert!(tables < 160 << 10, "tables of {tables} bytes");
}

#[test]
fn colliding_fingerprints_do_not_confuse_listings() {
    for seed in seeds(100_000, 6) {
        run_seed(seed, Shape { fingerprint_bits: 8, key_bytes_max: 30, ..SHAPE });
    }
}

#[test]
fn listings_agree_while_segments_are_cleaned() {
    let mut cleaned = 0;
    for seed in seeds(200_000, 6) {
        let shape = Shape { disk_bytes: 4 << 20, value_bytes_max: 2500, keys: 2400, ..SHAPE };
        cleaned += run_seed(seed, shape).cleaned_segments;
    }
    assert!(cleaned > 20, "only {cleaned} segments were cleaned");
}

#[test]
fn listings_agree_on_a_device_that_is_full() {
    for seed in seeds(300_000, 6) {
        let shape = Shape { disk_bytes: 3 << 20, value_bytes_max: 3000, expiries: false, ..SHAPE };
        run_seed(seed, shape);
    }
}

#[test]
fn long_keys_are_listed() {
    for seed in seeds(400_000, 3) {
        let shape = Shape { key_bytes_max: 6000, keys: 400, operations: 2500, ..SHAPE };
        run_seed(seed, shape);
    }
}
