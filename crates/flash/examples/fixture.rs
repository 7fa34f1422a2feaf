//! Writes the fixture of the on-flash format: a device image and the list of what is on it.
//!
//! Run it when the format has changed, with a name of the new version, and keep the old fixture as
//! long as the old format can be read:
//!
//! ```text
//! cargo run -p plimsoll-flash --example fixture -- crates/flash/tests/fixture v2
//! ```
//!
//! The same code gives the same image, for it runs in the simulator. Lines of the list: container,
//! key, then `absent`, or length, byte that fills the value, and expiry time in milliseconds (0:
//! never).

#[path = "../tests/fixture/image.rs"]
mod image;

use plimsoll_flash::{FormatOptions, Options, Partition, format};
use plimsoll_kv::{
    Block, Condition, ContainerId, Device, Durability, Error, Expiry, Kept, Op, Output, Request, Value,
};
use plimsoll_reactor::sim::{ProcessId, Random, World};
use plimsoll_reactor::{FileOptions, Reactor, Work};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::rc::Rc;

const DISK_BYTES: usize = (64 << 10) + 28 * (64 << 10) + (8 << 10);
/// The year 2096: later than any run of the test.
const FAR_MS: u64 = 4_000_000_000_000;

/// A checkpoint is written after so many transitions.
const CHECKPOINT_TRANSITIONS: u64 = 300;

/// What a key should hold: length, fill and expiry time.
type Model = BTreeMap<(u32, String), Option<(usize, u8, u64)>>;

struct Writer {
    partition: Rc<Partition>,
    model: Model,
    random: Random,
}

impl Writer {
    async fn execute(&self, op: Op) -> Result<Output, Error> {
        let request = Request::new(Durability::Sync, op);
        self.partition.clone().execute(request).await.map(|completion| completion.output)
    }

    fn store_op(container: u32, key: &str, value: Value, expiry_ms: u64, retain: bool) -> Op {
        Op::Store {
            container: ContainerId(container),
            key: key.as_bytes().to_vec(),
            value,
            condition: Condition::None,
            expiry: if expiry_ms == 0 { Expiry::Never } else { Expiry::At(expiry_ms) },
            retain,
            want_previous: false,
            form: None,
        }
    }

    async fn store(&mut self, container: u32, key: &str, length: usize, expiry_ms: u64) {
        let fill = self.random.range(1, 255) as u8;
        let value = Value::from(image::value(length, fill));
        let op = Self::store_op(container, key, value, expiry_ms, false);
        self.execute(op).await.expect("a store");
        self.model.insert((container, key.to_owned()), Some((length, fill, expiry_ms)));
    }

    async fn delete(&mut self, container: u32, key: &str) {
        let (container_id, bytes) = (ContainerId(container), key.as_bytes().to_vec());
        let op = Op::Delete { container: container_id, key: bytes, condition: Condition::None };
        match self.execute(op).await {
            Ok(_) | Err(Error::NotFound) => {}
            Err(error) => panic!("delete: {error}"),
        }
        self.model.insert((container, key.to_owned()), None);
    }

    /// Overwrites and deletes until segments have been cleaned, some of them twice.
    async fn churn(&mut self, operations: u32) {
        for _ in 0..operations {
            let key = format!("key:{}", self.random.below(160));
            let length = self.random.range(0, 4500) as usize;
            if self.random.below(12) == 0 {
                self.delete(0, &key).await;
            } else {
                self.store(0, &key, length, 0).await;
            }
        }
    }

    async fn long_value(&mut self, key: &str, length: usize, fill: u8) {
        let begin = Op::UploadBegin {
            container: ContainerId(0),
            key: key.as_bytes().to_vec(),
            length: length as u64,
            shared_bytes: 0,
            form: None,
        };
        let Ok(Output::Upload(upload)) = self.execute(begin).await else { panic!("an upload begins") };
        for part in image::value(length, fill).chunks(self.partition.part_bytes()) {
            let op = Op::UploadPart { upload, key: key.as_bytes().to_vec(), bytes: part.to_vec() };
            self.execute(op).await.expect("a part");
        }
        let op = Self::store_op(0, key, Value::Upload(upload), 0, false);
        self.execute(op).await.expect("the upload becomes a value");
        self.model.insert((0, key.to_owned()), Some((length, fill, 0)));
    }

    async fn set_expiry(&mut self, key: &str, expiry_ms: u64) {
        let op = Op::SetExpiry {
            container: ContainerId(0),
            key: key.as_bytes().to_vec(),
            expiry: if expiry_ms == 0 { Expiry::Never } else { Expiry::At(expiry_ms) },
            condition: Condition::None,
        };
        self.execute(op).await.expect("an expiry time");
        let held = self.model.get_mut(&(0, key.to_owned())).expect("known");
        held.as_mut().expect("stored").2 = expiry_ms;
    }

    /// Stores a value and then another that retains it.
    async fn retain(&mut self, key: &str, length: usize) {
        self.store(0, key, length, 0).await;
        let value = Value::from(image::value(length + 1, 0x77));
        self.execute(Self::store_op(0, key, value, 0, true)).await.expect("a retaining store");
        self.model.insert((0, key.to_owned()), Some((length + 1, 0x77, 0)));
    }

    /// Gives a key what another one holds, which is replaced at the same instant.
    async fn keep(&mut self, key: &str, of: &str) {
        let kept =
            Kept { head: Vec::new(), bytes: None, container: ContainerId(0), key: of.as_bytes().to_vec() };
        let keeps = Self::store_op(4, key, Value::Kept(kept), 0, false);
        let value = Value::from(image::value(800, 0x3c));
        let replaces = Self::store_op(0, of, value, 0, false);
        self.execute(Op::Batch(vec![keeps, replaces])).await.expect("kept");
        let held = self.model.insert((0, of.to_owned()), Some((800, 0x3c, 0))).expect("known");
        self.model.insert((4, key.to_owned()), held);
    }

    async fn clear(&mut self, container: u32) {
        self.execute(Op::Clear { container: ContainerId(container) }).await.expect("a clear");
        for ((of, _), held) in &mut self.model {
            if *of == container {
                *held = None;
            }
        }
    }

    async fn write(&mut self) {
        self.store(0, "empty", 0, 0).await;
        self.store(0, "short:expiring", 100, FAR_MS).await;
        self.store(0, "long:expiring", 5000, FAR_MS).await;
        self.long_value("in parts", 20_000, 0xa5).await;
        for number in 0..20 {
            self.store(1, &format!("cleared:{number}"), 300, 0).await;
        }
        self.clear(1).await;
        self.store(1, "after the clear", 10, 0).await;
        self.churn(1500).await;
        // What the last checkpoint holds beside its tables.
        self.store(0, "note:later", 4000, 0).await;
        self.set_expiry("note:later", FAR_MS + 1).await;
        self.retain("retained", 900).await;
        self.store(0, "kept", 1100, 0).await;
        self.keep("keeper", "kept").await;
        for _ in 0..CHECKPOINT_TRANSITIONS + 100 {
            self.store(0, "often", 0, 0).await;
        }
        // What only the log holds.
        self.store(2, "in another container", 700, 0).await;
        self.store(0, "note:never", 4000, FAR_MS).await;
        self.set_expiry("note:never", 0).await;
        self.store(0, "short:later", 50, 0).await;
        self.set_expiry("short:later", FAR_MS + 2).await;
        self.long_value("in parts, replaced", 9000, 0x5a).await;
        self.long_value("in parts, replaced", 17_000, 0x5b).await;
        self.retain("retained later", 500).await;
        self.store(0, "kept later", 3000, 0).await;
        self.keep("keeper later", "kept later").await;
        self.store(3, "gone again", 40, 0).await;
        self.clear(3).await;
        self.churn(20).await;
    }
}

async fn run(reactor: Reactor, done: Rc<Cell<Option<Model>>>) {
    let file = reactor.open_file("disk", &FileOptions::default()).expect("the disk");
    let block: Rc<dyn Block> = Rc::new(file);
    let options = FormatOptions {
        partitions: 1,
        segment_bytes: Some(64 << 10),
        force: false,
        written_ahead: true,
        device_id: *b"plimsoll fixture",
        hash_secret: 0x5eed,
        created_ms: reactor.wall_ms(),
    };
    let superblock = format(&*block, &options).await.expect("formatted");
    let options = Options { checkpoint_transitions_min: CHECKPOINT_TRANSITIONS, ..Options::default() };
    let partition = Partition::open(&reactor, block, &superblock, 0, options).await.expect("opened");
    let random = Random::stream(1, "fixture");
    let mut writer = Writer { partition: partition.clone(), model: Model::new(), random };
    writer.write().await;
    let metrics = partition.metrics();
    assert!(metrics.cleaned_segments > 20 && metrics.checkpoints > 2, "{metrics:?}");
    done.set(Some(writer.model));
}

fn list(model: &Model) -> String {
    let mut text = String::new();
    for ((container, key), held) in model {
        let line = match held {
            None => writeln!(text, "{container}\t{key}\tabsent"),
            Some((length, fill, expiry_ms)) => {
                writeln!(text, "{container}\t{key}\t{length}\t{fill}\t{expiry_ms}")
            }
        };
        line.expect("writing to a string does not fail");
    }
    text
}

fn main() {
    let mut args = std::env::args().skip(1);
    let (Some(folder), Some(name)) = (args.next(), args.next()) else {
        eprintln!("usage: fixture FOLDER NAME");
        std::process::exit(2);
    };
    let world = World::new(1, |_| "any");
    world.add_disk("disk", DISK_BYTES);
    let done = Rc::new(Cell::new(None));
    let given = done.clone();
    world.start_process(ProcessId(1), 1, move |reactor| {
        reactor.spawn(Work::Control, run(reactor.clone(), given.clone()));
    });
    let mut model = None;
    let ended = world.run_until(u64::MAX, || {
        model = model.take().or_else(|| done.take());
        model.is_some()
    });
    assert!(ended, "the writer came to its end");
    let encoded = world.with_disk("disk", |disk| image::encode(disk.durable()));
    println!("{} bytes", encoded.len());
    std::fs::write(format!("{folder}/{name}.image"), encoded).expect("the image can be written");
    std::fs::write(format!("{folder}/{name}.keys"), list(&model.expect("it ended")))
        .expect("the list can be written");
}
