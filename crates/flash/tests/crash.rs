//! The engine alone on the simulated disk: random operations against a model, with power losses.
//! One client a key at a time, so that the model is exact: a key holds the last acknowledged
//! value, or one whose acknowledgement a crash cut off.

use crate::opening::{SERVER, open_with};
use crate::seeds::seeds;
use plimsoll_flash::{Options, Partition};
use plimsoll_kv::{Condition, ContainerId, Device, Durability, Error, Expiry, Op, Output, Request, Value};
use plimsoll_reactor::sim::{Random, World};
use plimsoll_reactor::{Reactor, Work};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// What a key may hold: one of these (`None`: nothing).
type Model = BTreeMap<Vec<u8>, Vec<Option<Vec<u8>>>>;

#[derive(Clone, Copy)]
struct Shape {
    fingerprint_bits: u32,
    disk_bytes: usize,
    keys: u64,
    value_bytes_max: u64,
    operations: u64,
    clears: bool,
}

struct Run {
    model: RefCell<Model>,
    random: RefCell<Random>,
    operations: Cell<u64>,
    stopped: Cell<bool>,
    partition: RefCell<Option<Rc<Partition>>>,
    stores: Cell<u64>,
    full: Cell<u64>,
}

fn classify(_: &[u8]) -> &'static str {
    "any"
}

async fn open_partition(reactor: &Reactor, shape: Shape) -> Rc<Partition> {
    let options = Options {
        fingerprint_bits: shape.fingerprint_bits,
        checkpoint_transitions_min: 300,
        ..Options::default()
    };
    open_with(reactor, 64 << 10, options).await
}

fn pick(random: &mut Random, shape: Shape) -> (Vec<u8>, u64) {
    (format!("key:{}", random.below(shape.keys)).into_bytes(), random.below(100))
}

/// One client: its keys are its own (by residue), so that nobody else changes them.
async fn client(run: Rc<Run>, partition: Rc<Partition>, shape: Shape, number: u64, clients: u64) {
    while !run.stopped.get() && run.operations.get() < shape.operations {
        run.operations.set(run.operations.get() + 1);
        let (key, what) = {
            let mut random = run.random.borrow_mut();
            let (_, what) = pick(&mut random, shape);
            let index = random.below(shape.keys / clients) * clients + number;
            (format!("key:{index}").into_bytes(), what)
        };
        let container = ContainerId(0);
        let execute = |op| partition.clone().execute(Request::new(Durability::Sync, op));
        match what {
            0..50 => {
                let value = {
                    let mut random = run.random.borrow_mut();
                    let length = random.below(shape.value_bytes_max);
                    let seed = random.next_u64();
                    (0..length).map(|at| (seed.rotate_left(at as u32 % 64) ^ at) as u8).collect::<Vec<u8>>()
                };
                may_become(&run, &key, Some(value.clone()));
                let op = Op::Store {
                    container,
                    key: key.clone(),
                    value: Value::from(value.clone()),
                    condition: Condition::None,
                    expiry: Expiry::Never,
                    retain: false,
                    want_previous: false,
                    form: None,
                };
                match execute(op).await {
                    Ok(_) => {
                        run.stores.set(run.stores.get() + 1);
                        is_now(&run, &key, Some(value));
                    }
                    Err(Error::NoSpace) => {
                        run.full.set(run.full.get() + 1);
                        did_not_become(&run, &key);
                    }
                    Err(error) => panic!("store failed: {error}"),
                }
            }
            50..60 => {
                may_become(&run, &key, None);
                match execute(Op::Delete { container, key: key.clone(), condition: Condition::None }).await {
                    Ok(_) | Err(Error::NotFound) => is_now(&run, &key, None),
                    Err(error) => panic!("delete failed: {error}"),
                }
            }
            60 if shape.clears && run.operations.get().is_multiple_of(97) && clients == 1 => {
                for key in known_keys(&run) {
                    may_become(&run, &key, None);
                }
                execute(Op::Clear { container }).await.expect("clear");
                run.model.borrow_mut().values_mut().for_each(|allowed| *allowed = vec![None]);
            }
            _ => check(&run, &partition, &key).await,
        }
    }
}

async fn check(run: &Run, partition: &Rc<Partition>, key: &[u8]) {
    let op = Op::Retrieve { container: ContainerId(0), key: key.to_vec(), range: None, pin: false };
    let got = match partition.clone().execute(Request::new(Durability::Sync, op)).await {
        Ok(completion) => match completion.output {
            Output::Found(item) => Some(item.bytes),
            other => panic!("{other:?}"),
        },
        Err(Error::NotFound) => None,
        Err(error) => panic!("retrieve failed: {error}"),
    };
    let mut model = run.model.borrow_mut();
    let allowed = model.entry(key.to_vec()).or_insert_with(|| vec![None]);
    assert!(
        allowed.contains(&got),
        "key {:?}: got {:?} bytes, allowed lengths {:?}",
        String::from_utf8_lossy(key),
        got.as_ref().map(Vec::len),
        allowed.iter().map(|value| value.as_ref().map(Vec::len)).collect::<Vec<_>>()
    );
    *allowed = vec![got];
}

fn known_keys(run: &Run) -> Vec<Vec<u8>> {
    run.model.borrow().keys().cloned().collect()
}
fn may_become(run: &Run, key: &[u8], value: Option<Vec<u8>>) {
    run.model.borrow_mut().entry(key.to_vec()).or_insert_with(|| vec![None]).push(value);
}
fn did_not_become(run: &Run, key: &[u8]) {
    run.model.borrow_mut().get_mut(key).expect("tried before").pop();
}
fn is_now(run: &Run, key: &[u8], value: Option<Vec<u8>>) {
    run.model.borrow_mut().insert(key.to_vec(), vec![value]);
}

fn run_seed(seed: u64, shape: Shape, clients: u64) -> u64 {
    let world = World::new(seed, classify);
    world.add_disk("disk", shape.disk_bytes);
    let run = Rc::new(Run {
        model: RefCell::default(),
        random: RefCell::new(Random::stream(seed, "workload")),
        operations: Cell::new(0),
        stopped: Cell::new(false),
        partition: RefCell::default(),
        stores: Cell::new(0),
        full: Cell::new(0),
    });
    let mut plan = Random::stream(seed, "crashes");
    let mut lives = 0;
    while run.operations.get() < shape.operations {
        lives += 1;
        assert!(lives < 200, "no progress");
        let done = Rc::new(Cell::new(0));
        let (started, finished) = (run.clone(), done.clone());
        world.start_process(SERVER, 1, move |reactor| {
            let (run, done, handle) = (started.clone(), finished.clone(), reactor.clone());
            reactor.spawn(Work::Control, async move {
                let partition = open_partition(&handle, shape).await;
                partition.check_accounts().expect("accounts after recovery");
                *run.partition.borrow_mut() = Some(partition.clone());
                for key in known_keys(&run) {
                    check(&run, &partition, &key).await;
                }
                for number in 0..clients {
                    let (run, done, partition) = (run.clone(), done.clone(), partition.clone());
                    handle.spawn(Work::Kv, async move {
                        client(run, partition, shape, number, clients).await;
                        done.set(done.get() + 1);
                    });
                }
            });
        });
        let deadline = world.now_ns() + plan.range(1_000_000, 400_000_000);
        world.run_until(deadline, || done.get() == clients);
        if let Some(partition) = run.partition.borrow_mut().take() {
            partition.check_accounts().expect("accounts before the crash");
        }
        world.kill(SERVER, plan.below(4) > 0);
    }
    run.stores.get()
}

const SHAPE: Shape = Shape {
    fingerprint_bits: 40,
    disk_bytes: 4 << 20,
    keys: 200,
    value_bytes_max: 3000,
    operations: 3000,
    clears: false,
};

#[test]
fn nothing_acknowledged_is_lost_over_power_losses() {
    for seed in seeds(0, 20) {
        assert!(run_seed(seed, SHAPE, 8) > 500);
    }
}

#[test]
fn colliding_fingerprints_lose_and_hide_nothing() {
    for seed in seeds(100_000, 15) {
        let shape = Shape { fingerprint_bits: 8, keys: 2000, value_bytes_max: 200, ..SHAPE };
        run_seed(seed, shape, 8);
    }
}

#[test]
fn a_full_device_refuses_stores_and_keeps_what_it_has() {
    for seed in seeds(200_000, 10) {
        let shape = Shape { keys: 4000, value_bytes_max: 6000, ..SHAPE };
        run_seed(seed, shape, 8);
    }
}

#[test]
fn emptying_is_durable() {
    for seed in seeds(300_000, 10) {
        run_seed(seed, Shape { clears: true, ..SHAPE }, 1);
    }
}

/// A process that dies leaves a frame in the device's volatile cache; the next life builds on it;
/// then power is lost. Recovery has to flush before it reads.
#[test]
fn a_frame_left_in_the_volatile_cache_is_not_built_upon() {
    for seed in [300_048, 300_140, 300_145] {
        run_seed(seed, Shape { clears: true, ..SHAPE }, 1);
    }
}
