//! The engine on io_uring and a file, with every write and flush recorded; then, for instants of
//! that run, the images that a power loss could have left: each is recovered, and every key holds
//! what was acknowledged by then, or the one change that was under way.

use crate::opening::format_options;
use plimsoll_flash::{FormatOptions, Options, Partition, format, inspect};
use plimsoll_kv::record::{Event, Images, RecordingBlock};
use plimsoll_kv::{
    Block, Completion, Condition, ContainerId, Device, Durability, Error, Expiry, Op, Output, Request,
    Result, Value,
};
use plimsoll_reactor::sim::{ProcessId, Random, World};
use plimsoll_reactor::{FileOptions, Reactor, StartOptions, Work, start};
use std::cell::{Cell, RefCell};
use std::path::Path;
use std::rc::Rc;
use std::sync::mpsc::channel;

const BYTES: usize = 12 << 20;
const SEGMENT_BYTES: u32 = 64 << 10;
const CLIENTS: usize = 16;
const KEYS: usize = 960;
/// Of each client: its first keys hold values in parts.
const LONG_KEYS: usize = 2;
const CHANGES: usize = 8000;
const CUTS: usize = 300;
const DEADLINE_NS: u64 = 600_000_000_000;

/// The bytes of a value follow from these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Content {
    seed: u64,
    length: usize,
}

impl Content {
    fn bytes(self) -> Vec<u8> {
        let byte = |at: usize| (self.seed.rotate_left(at as u32 % 64) as usize ^ at) as u8;
        (0..self.length).map(byte).collect()
    }
}

/// A change of a key, and between which events of the device it was asked for and acknowledged.
#[derive(Clone, Copy, Debug)]
struct Done {
    content: Option<Content>,
    asked: usize,
    acknowledged: usize,
}

/// A recorded run.
struct Recorded {
    events: Vec<Event>,
    /// The changes of each key, in order.
    changes: Vec<Vec<Done>>,
    /// When the partition was open.
    opened: usize,
    /// Cleaned segments and checkpoints.
    cleaned: u64,
    checkpoints: u64,
    no_space: u64,
}

fn options() -> Options {
    Options { checkpoint_transitions_min: 300, ..Options::default() }
}

fn name(key: usize) -> Vec<u8> {
    format!("key:{key}").into_bytes()
}

async fn execute(partition: &Rc<Partition>, durability: Durability, op: Op) -> Result<Completion> {
    partition.clone().execute(Request::new(durability, op)).await
}

async fn delete(partition: &Rc<Partition>, durability: Durability, key: usize) -> Result<()> {
    let op = Op::Delete { container: ContainerId(0), key: name(key), condition: Condition::None };
    match execute(partition, durability, op).await {
        Ok(_) | Err(Error::NotFound) => Ok(()),
        Err(error) => Err(error),
    }
}

async fn store(partition: &Rc<Partition>, durability: Durability, key: usize, bytes: Vec<u8>) -> Result<()> {
    let container = ContainerId(0);
    let value = if bytes.len() <= partition.value_bytes_max() {
        Value::from(bytes)
    } else {
        let op = Op::UploadBegin {
            container,
            key: name(key),
            length: bytes.len() as u64,
            shared_bytes: 0,
            form: None,
        };
        let Output::Upload(upload) = execute(partition, durability, op).await?.output else {
            panic!("an upload begins with its name")
        };
        for part in bytes.chunks(partition.part_bytes()) {
            let op = Op::UploadPart { upload, key: name(key), bytes: part.to_vec() };
            if let Err(error) = execute(partition, durability, op).await {
                execute(partition, durability, Op::UploadAbort { upload, key: name(key) }).await?;
                return Err(error);
            }
        }
        Value::Upload(upload)
    };
    let op = Op::Store {
        container,
        key: name(key),
        value,
        condition: Condition::None,
        expiry: Expiry::Never,
        retain: false,
        want_previous: false,
        form: None,
    };
    execute(partition, durability, op).await.map(|_| ())
}

async fn retrieve(partition: &Rc<Partition>, key: usize) -> Option<Vec<u8>> {
    let op = Op::Retrieve { container: ContainerId(0), key: name(key), range: None, pin: true };
    let item = match execute(partition, Durability::Sync, op).await {
        Ok(Completion { output: Output::Found(item), .. }) => item,
        Err(Error::NotFound) => return None,
        other => panic!("{other:?}"),
    };
    let Some(upload) = item.upload else { return Some(item.bytes) };
    let mut bytes = Vec::new();
    for part in 0..item.length.div_ceil(partition.part_bytes() as u64) as u32 {
        let op = Op::RetrievePart { upload, key: name(key), part, range: None };
        match execute(partition, Durability::Sync, op).await {
            Ok(Completion { output: Output::Found(item), .. }) => bytes.extend(item.bytes),
            other => panic!("{other:?}"),
        }
    }
    let unpinned = execute(partition, Durability::Sync, Op::Unpin { upload, key: name(key) }).await;
    unpinned.expect("it was pinned");
    Some(bytes)
}

/// The run under way.
struct Run {
    block: Rc<RecordingBlock>,
    partition: Rc<Partition>,
    random: RefCell<Random>,
    changes: RefCell<Vec<Vec<Done>>>,
    left: Cell<usize>,
    clients: Cell<usize>,
    no_space: Cell<u64>,
}

async fn client(run: Rc<Run>, number: usize) {
    while run.left.get() > 0 {
        run.left.set(run.left.get() - 1);
        let (key, content, durability) = {
            let mut random = run.random.borrow_mut();
            let ranks = if random.below(30) == 0 { LONG_KEYS } else { KEYS / CLIENTS };
            let rank = random.below(ranks as u64);
            let length = if rank < LONG_KEYS as u64 { 60_000 } else { 6_000 };
            let content = Content { seed: random.next_u64(), length: random.below(length) as usize };
            let durability = if random.below(2) == 0 { Durability::Sync } else { Durability::Group };
            (rank as usize * CLIENTS + number, (random.below(5) > 0).then_some(content), durability)
        };
        let asked = run.block.position();
        let result = match content {
            Some(content) => store(&run.partition, durability, key, content.bytes()).await,
            None => delete(&run.partition, durability, key).await,
        };
        match result {
            Ok(()) => {
                let acknowledged = run.block.position();
                run.changes.borrow_mut()[key].push(Done { content, asked, acknowledged });
            }
            Err(Error::NoSpace) => run.no_space.set(run.no_space.get() + 1),
            Err(error) => panic!("{error}"),
        }
    }
    run.clients.set(run.clients.get() - 1);
}

async fn record_on(reactor: Reactor, path: String) -> Recorded {
    let file_options = FileOptions { create_bytes: Some(BYTES as u64), read_only: false };
    let file = reactor.open_file(&path, &file_options).expect("a file can be made");
    let block = RecordingBlock::new(Rc::new(file));
    let format_options = FormatOptions { written_ahead: false, ..format_options(SEGMENT_BYTES) };
    let superblock = format(&*block, &format_options).await.expect("a new file can be formatted");
    let partition = Partition::open(&reactor, block.clone(), &superblock, 0, options()).await;
    let partition = partition.expect("a fresh partition opens");
    let opened = block.position();
    let run = Rc::new(Run {
        block: block.clone(),
        partition: partition.clone(),
        random: RefCell::new(Random::stream(1, "workload")),
        changes: RefCell::new(vec![Vec::new(); KEYS]),
        left: Cell::new(CHANGES),
        clients: Cell::new(CLIENTS),
        no_space: Cell::new(0),
    });
    for number in 0..CLIENTS {
        reactor.spawn(Work::Kv, client(run.clone(), number));
    }
    while run.clients.get() > 0 {
        reactor.sleep_ns(1_000_000).await;
    }
    let metrics = partition.metrics();
    partition.close().await.expect("it closes");
    Recorded {
        events: block.take(),
        changes: run.changes.take(),
        opened,
        cleaned: metrics.cleaned_segments,
        checkpoints: metrics.checkpoints,
        no_space: run.no_space.get(),
    }
}

/// A run of an engine on a thread of its own, with a planted bug if one is asked for.
fn record(name: &str, plant: fn()) -> Recorded {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_file(&path);
    let device = path.to_str().expect("the target directory has a readable name").to_owned();
    let (sender, receiver) = channel();
    let main = move |reactor: &Reactor| {
        plant();
        let (reactor, sender, device) = (reactor.clone(), sender.clone(), device.clone());
        reactor.clone().spawn(Work::Control, async move {
            let recorded = record_on(reactor.clone(), device).await;
            sender.send(recorded).expect("the test waits");
            reactor.stop();
        });
    };
    let running = start(&StartOptions::on(vec![0]), main).expect("the reactor starts");
    running.join();
    std::fs::remove_file(&path).expect("it was made");
    receiver.recv().expect("the run has ended")
}

/// What a key may hold if power was lost at an instant: what was acknowledged, then what was asked.
fn allowed(changes: &[Done], position: usize) -> Vec<Option<Content>> {
    let acknowledged = changes.iter().take_while(|done| done.acknowledged <= position).count();
    let last = acknowledged.checked_sub(1).map(|last| changes[last].content);
    let asked = changes[acknowledged..].iter().take_while(|done| done.asked <= position);
    std::iter::once(last.flatten()).chain(asked.map(|done| done.content)).collect()
}

async fn check(reactor: Reactor, recorded: Rc<Recorded>, position: usize) {
    let file = reactor.open_file("disk", &FileOptions::default()).expect("the disk is there");
    let block: Rc<dyn Block> = Rc::new(file);
    let superblock = inspect(&*block).await.expect("formatting was durable");
    let partition = Partition::open(&reactor, block, &superblock, 0, options()).await;
    let partition = partition.unwrap_or_else(|error| panic!("cut at event {position}: {error}"));
    partition.check_accounts().unwrap_or_else(|what| panic!("cut at event {position}: {what}"));
    let mut found = 0;
    for (key, changes) in recorded.changes.iter().enumerate() {
        let value = retrieve(&partition, key).await;
        found += u64::from(value.is_some());
        let allowed = allowed(changes, position);
        assert!(
            allowed.iter().any(|content| content.map(Content::bytes) == value),
            "cut at event {position}: key {key} holds {:?} bytes, and may hold {allowed:?}",
            value.map(|value| value.len())
        );
    }
    assert_eq!(partition.metrics().objects, found, "cut at event {position}: keys that nobody stored");
    // And it goes on.
    store(&partition, Durability::Sync, 0, b"new".to_vec()).await.expect("there is room for one more");
    assert_eq!(retrieve(&partition, 0).await, Some(b"new".to_vec()));
}

fn recover(recorded: &Rc<Recorded>, image: &[u8], position: usize) {
    let world = World::new(position as u64, |_| "any");
    world.add_disk("disk", BYTES);
    world.with_disk("disk", |disk| disk.load(image));
    let done = Rc::new(Cell::new(false));
    world.start_process(ProcessId(1), 1, |reactor| {
        let (checking, done) = (check(reactor.clone(), recorded.clone(), position), done.clone());
        reactor.spawn(Work::Control, async move {
            checking.await;
            done.set(true);
        });
    });
    assert!(world.run_until(DEADLINE_NS, || done.get()), "cut at event {position}: it hangs");
    world.kill(ProcessId(1), false);
}

/// Seeded instants: about flushes and durable writes, just before and just after their end.
fn instants(recorded: &Recorded, random: &mut Random) -> Vec<usize> {
    let mut durable = std::collections::BTreeSet::new();
    let mut flushed = Vec::new();
    for (index, event) in recorded.events.iter().enumerate() {
        let ends = match event {
            Event::WriteBegan { write, durable: true, .. } => {
                durable.insert(*write);
                false
            }
            Event::WriteEnded { write, .. } => durable.contains(write),
            Event::FlushEnded { .. } => true,
            _ => false,
        };
        if ends && index >= recorded.opened {
            flushed.push(index);
        }
    }
    random.shuffle(&mut flushed);
    flushed.truncate(CUTS);
    // Before the event: it may all be lost. After it: it must all be there.
    let mut instants: Vec<_> =
        flushed.iter().enumerate().map(|(number, index)| index + usize::from(number % 3 == 0)).collect();
    instants.push(recorded.events.len());
    instants.sort_unstable();
    instants
}

/// Recovers an image of every instant; the writes that were at stake.
fn recover_all(recorded: &Rc<Recorded>, instants: &[usize], random: &mut Random) -> usize {
    let (mut images, mut position, mut pending) = (Images::new(BYTES), 0, 0);
    for instant in instants {
        for event in &recorded.events[position..*instant] {
            images.step(event);
        }
        position = *instant;
        pending += images.pending();
        recover(recorded, &images.cut(random), position);
    }
    pending
}

#[test]
fn every_image_that_a_power_loss_may_leave_recovers() {
    let recorded = Rc::new(record("images", || {}));
    let mut random = Random::stream(2, "cuts");
    let instants = instants(&recorded, &mut random);
    let acknowledged: usize = recorded.changes.iter().map(Vec::len).sum();
    assert!(recorded.cleaned > 20 && recorded.checkpoints > 3, "no cleaning: {}", recorded.cleaned);
    assert!(acknowledged > CHANGES / 2 && instants.len() > CUTS / 2, "no load: {acknowledged} changes");
    let pending = recover_all(&recorded, &instants, &mut random);
    println!(
        "{} instants of {} events: {acknowledged} changes, {} refused for room, {} segments cleaned, {} \
         checkpoints, {pending} writes not durable when power was lost",
        instants.len(),
        recorded.events.len(),
        recorded.no_space,
        recorded.cleaned,
        recorded.checkpoints
    );
    assert!(pending > instants.len(), "no write was at stake");
}

/// The test sees: an engine that breaks a rule about durability leaves an image that shows it.
#[cfg(feature = "planted")]
#[test]
fn planted_bugs_leave_an_image_that_shows_them() {
    use plimsoll_flash::planted::Bug;
    use plimsoll_kv::planted::plant;
    let bugs: [(Bug, fn()); 3] = [
        (Bug::SkippedFlush, || plant(Some(Bug::SkippedFlush.into()))),
        (Bug::EarlyAcknowledge, || plant(Some(Bug::EarlyAcknowledge.into()))),
        (Bug::CheckpointBeforeData, || plant(Some(Bug::CheckpointBeforeData.into()))),
    ];
    for (bug, plant) in bugs {
        let recorded = Rc::new(record("planted-images", plant));
        let mut random = Random::stream(3, "cuts");
        let instants = instants(&recorded, &mut random);
        let recover_all = || recover_all(&recorded, &instants, &mut random);
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(recover_all));
        assert!(caught.is_err(), "{bug:?} was not seen");
    }
}
