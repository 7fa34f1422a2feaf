//! Memory and restart of the engine at full size, on the io_uring driver, without a server.
//!
//! `capacity PATH GIB OBJECTS MODE`: `load` formats and stores OBJECTS keys of 16 bytes with values
//! of 100 bytes, then overwrites a quarter, and closes; `open` opens, reads 1 000 random keys,
//! stores one and closes; `kill` opens, overwrites until shortly before the next checkpoint and ends the
//! process at once; `list` opens and lists pages of 100 keys by prefix. Prints a line of figures a step.

use plimsoll_flash::{FormatOptions, Options, Partition, format, inspect};
use plimsoll_kv::{
    Block, Condition, ContainerId, Device, Durability, Expiry, Op, Output, Request, Slot, Value,
};
use plimsoll_reactor::{FileOptions, Reactor, StartOptions, Work, start};
use std::cell::Cell;
use std::rc::Rc;

const PARTITIONS: u16 = 2;
const CLIENTS: u64 = 256;

fn key(number: u64) -> Vec<u8> {
    format!("{number:016}").into_bytes()
}

fn rss_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or("VmHWM: 0 kB");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<f64>().ok()).unwrap_or(0.0) / 1024.0
}

fn store(number: u64, durability: Durability) -> Request {
    let op = Op::Store {
        container: ContainerId(0),
        key: key(number),
        value: Value::from(vec![number as u8; 100]),
        condition: Condition::None,
        expiry: Expiry::Never,
        retain: false,
        want_previous: false,
        form: None,
    };
    Request::new(durability, op)
}

async fn many(
    reactor: &Reactor,
    partitions: &[Rc<Partition>],
    count: u64,
    number: impl Fn(u64) -> u64 + Copy + 'static,
) {
    let next = Rc::new(Cell::new(0));
    let done = Rc::new(Cell::new(0));
    let finished = Rc::new(plimsoll_reactor::sync::WaitList::default());
    for _ in 0..CLIENTS {
        let (next, done, finished) = (next.clone(), done.clone(), finished.clone());
        let partitions = partitions.to_vec();
        reactor.spawn(Work::Kv, async move {
            while next.get() < count {
                let at = next.replace(next.get() + 1);
                let number = number(at);
                let partition = Slot::of(&key(number)).partition(PARTITIONS);
                let device = partitions[partition as usize].clone();
                device.execute(store(number, Durability::Async)).await.expect("store");
            }
            done.set(done.get() + 1);
            finished.wake_all();
        });
    }
    finished.wait_for(|| (done.get() == CLIENTS).then_some(())).await;
}

/// Pages of 100 keys by prefix, each from every partition: the reads that each takes.
async fn list(reactor: &Reactor, partitions: &[Rc<Partition>], file: &plimsoll_reactor::File, objects: u64) {
    const PAGES: u64 = 1000;
    let op = |page: u64| {
        let first = page.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (objects / 100) * 100;
        let prefix = key(first)[..14].to_vec();
        Op::List { container: ContainerId(0), prefix, after: None, limit: 100 }
    };
    // The first listing waits until the keys are there again.
    let started_ns = reactor.now_ns();
    for partition in partitions {
        partition.clone().execute(Request::new(Durability::Sync, op(0))).await.expect("list");
    }
    let ready_s = (reactor.now_ns() - started_ns) as f64 / 1e9;
    let (mut all, mut most, started_ns) = (0, 0, reactor.now_ns());
    for page in 0..PAGES {
        let before = file.stats().reads;
        let mut keys = 0;
        for partition in partitions {
            let listed = partition.clone().execute(Request::new(Durability::Sync, op(page))).await;
            let Ok(Output::Listed(listed)) = listed.map(|c| c.output) else { panic!("no list") };
            keys += listed.keys.len();
        }
        assert_eq!(keys, 100, "a prefix of 14 digits stands for 100 keys");
        let reads = file.stats().reads - before;
        (all, most) = (all + reads, most.max(reads));
    }
    println!(
        "keys ready after {ready_s:.2} s; {PAGES} pages of 100 keys: {:.1} reads a page, {most} at most, {:.2} ms a page, peak {:.0} MiB",
        all as f64 / PAGES as f64,
        (reactor.now_ns() - started_ns) as f64 / 1e6 / PAGES as f64,
        rss_mib()
    );
}

async fn run(reactor: Reactor, args: Vec<String>) {
    let (path, gib, objects, mode) = (&args[1], &args[2], &args[3], args[4].as_str());
    let objects: u64 = objects.parse().expect("OBJECTS");
    let bytes = gib.parse::<u64>().expect("GIB") << 30;
    let seconds = |from_ns: u64, reactor: &Reactor| (reactor.now_ns() - from_ns) as f64 / 1e9;
    let start = reactor.now_ns();
    let file = reactor
        .open_file(path, &FileOptions { create_bytes: Some(bytes), ..FileOptions::default() })
        .expect("open");
    let block: Rc<dyn Block> = Rc::new(file.clone());
    let superblock = if mode == "load" {
        let options = FormatOptions {
            partitions: PARTITIONS,
            segment_bytes: None,
            force: true,
            written_ahead: false,
            device_id: [3; 16],
            hash_secret: 5,
            created_ms: reactor.wall_ms(),
        };
        format(&*block, &options).await.expect("format")
    } else {
        inspect(&*block).await.expect("inspect")
    };
    let mut partitions = Vec::new();
    for number in 0..PARTITIONS {
        let opened = Partition::open(&reactor, block.clone(), &superblock, number, Options::default());
        partitions.push(opened.await.expect("open"));
    }
    let opened = seconds(start, &reactor);
    let mut random = 88_172_645_463_325_252_u64;
    let mut draw = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    if mode == "load" {
        let from = reactor.now_ns();
        many(&reactor, &partitions, objects, |at| at).await;
        println!("loaded {objects} in {:.1} s, peak {:.0} MiB", seconds(from, &reactor), rss_mib());
        let from = reactor.now_ns();
        many(&reactor, &partitions, objects / 4, move |at| at.wrapping_mul(2_654_435_761) % objects).await;
        println!("overwrote a quarter in {:.1} s", seconds(from, &reactor));
    } else {
        let from = reactor.now_ns();
        for _ in 0..1000 {
            let number = draw() % objects;
            let partition = Slot::of(&key(number)).partition(PARTITIONS);
            let op = Op::Retrieve { container: ContainerId(0), key: key(number), range: None, pin: false };
            let got =
                partitions[partition as usize].clone().execute(Request::new(Durability::Sync, op)).await;
            let Ok(Output::Found(item)) = got.map(|c| c.output) else { panic!("key {number} is gone") };
            assert_eq!(item.bytes, vec![number as u8; 100]);
        }
        let partition = Slot::of(&key(1)).partition(PARTITIONS);
        partitions[partition as usize].clone().execute(store(1, Durability::Sync)).await.expect("store");
        println!(
            "open {opened:.3} s, then 1000 retrieves and a store {:.3} s, peak {:.0} MiB",
            seconds(from, &reactor),
            rss_mib()
        );
    }
    if mode == "list" {
        list(&reactor, &partitions, &file, objects).await;
    }
    if mode == "kill" {
        // A checkpoint is due after as many changes as three quarters of the objects.
        many(&reactor, &partitions, objects * 7 / 10, move |at| at.wrapping_mul(2_654_435_761) % objects)
            .await;
        for partition in &partitions {
            println!("{:?}", partition.metrics());
        }
        std::process::exit(0);
    }
    for partition in &partitions {
        let metrics = partition.metrics();
        println!("{metrics:?}");
        println!("index {:.2} bytes an object", metrics.index_bytes as f64 / metrics.objects as f64);
        partition.close().await.expect("close");
    }
    println!(
        "closed; device {:?}; peak {:.0} MiB, {:.1} bytes an object",
        file.stats(),
        rss_mib(),
        rss_mib() * 1048576.0 / objects as f64
    );
    reactor.stop();
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    assert_eq!(args.len(), 5, "capacity PATH GIB OBJECTS load|open|kill|list");
    let running = start(&StartOptions::on(vec![0]), move |reactor| {
        reactor.spawn(Work::Control, run(reactor.clone(), args.clone()));
    });
    running.expect("the reactor starts").join();
}
