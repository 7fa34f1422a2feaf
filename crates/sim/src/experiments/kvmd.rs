//! KVMD's experiments (FAST'20, its evaluation) over six modelled KV devices.
//!
//! Role: what each mechanism costs and gives, as a share of the same devices without redundancy, beside the
//! share that its requests and bytes allow. Place: `plimsoll sim run kvmd-…`.
//!
//! Its comparison with block RAID: `raid`, `rebuild`.

use super::device::{Kind, Member, Model, Modelled};
use super::load::{CLIENTS, Measured, measure};
use super::{MODELS, Report, Table};
use plimsoll_array::{Array, ArrayOptions, Joining, Mechanism, Policy, SizeRange};
use plimsoll_kv::{
    Completion, Condition, ContainerId, Device, Durability, Error, Expiry, LocalFuture, Op, Request, Result,
    Stats, Value,
};
use plimsoll_reactor::sim::{ProcessId, World};
use plimsoll_reactor::{Reactor, Work};
use std::cell::RefCell;
use std::future::Future;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;

pub(super) const DEVICES: usize = 6;
const DB: ContainerId = ContainerId(0);
/// Bytes of values of one measurement, and keys at most.
const STORED_BYTES: u64 = 256 << 20;
const KEYS_MAX: u64 = 20_000;
/// No experiment takes longer.
const DEADLINE_NS: u64 = 3_600_000_000_000;
pub(super) const KIB: u64 = 1024;

const REPLICATION: Mechanism = Mechanism::Replication { copies: 3 };
const SPLITTING: Mechanism = Mechanism::Splitting { data: 4, parities: 2 };
const PACKING: Mechanism = Mechanism::Packing { data: 4, parities: 2 };

/// Runs something on a simulated core, to its end.
pub(super) fn run<T: 'static, F: Future<Output = T> + 'static>(work: impl Fn(Reactor) -> F) -> T {
    let world = World::new(1, |_| "experiment");
    let done = Rc::new(RefCell::new(None));
    world.start_process(ProcessId(0), 1, |reactor| {
        let (future, done) = (work(reactor.clone()), done.clone());
        reactor.spawn(Work::Kv, async move {
            let result = future.await;
            *done.borrow_mut() = Some(result);
        });
    });
    assert!(world.run_until(DEADLINE_NS, || done.borrow().is_some()), "the experiment did not end");
    world.kill(ProcessId(0), false);
    done.take().expect("it has ended")
}

/// The devices without redundancy: each key on one, by its hash, as it is.
struct Plain(Vec<Rc<dyn Device>>);

impl Device for Plain {
    fn execute(self: Rc<Self>, request: Request) -> LocalFuture<Result<Completion>> {
        let mut hasher = DefaultHasher::new();
        request.op.key().hash(&mut hasher);
        self.0[(hasher.finish() % self.0.len() as u64) as usize].clone().execute(request)
    }

    fn value_bytes_max(&self) -> usize {
        self.0[0].value_bytes_max()
    }

    fn part_bytes(&self) -> usize {
        self.0[0].part_bytes()
    }
}

/// Six devices, and what makes one of them.
pub(super) struct Setup<D: Member = Modelled> {
    pub(super) reactor: Reactor,
    pub(super) devices: Vec<Rc<D>>,
    array: Option<Rc<Array>>,
}

impl<D: Member + 'static> Setup<D> {
    /// With options an array.
    pub(super) async fn new(
        reactor: &Reactor,
        kind: impl Kind<Member = D>,
        options: Option<ArrayOptions>,
    ) -> Setup<D> {
        let mut devices = Vec::new();
        for number in 0..DEVICES {
            devices.push(kind.open(reactor, number).await);
        }
        let array = match options {
            None => None,
            Some(options) => {
                let joining = devices.iter().enumerate().map(|(number, device)| joining(number, device));
                let opened = Array::open(reactor, 0, 1, joining.collect(), options).await;
                Some(opened.expect("six empty devices"))
            }
        };
        Setup { reactor: reactor.clone(), devices, array }
    }

    pub(super) fn has_array(&self) -> bool {
        self.array.is_some()
    }

    pub(super) fn array(&self) -> Rc<Array> {
        self.array.clone().expect("with redundancy")
    }

    /// The array, or the devices without redundancy.
    pub(super) fn device(&self) -> Rc<dyn Device> {
        match &self.array {
            Some(array) => array.clone(),
            None => Rc::new(Plain(self.devices.iter().map(|device| device.clone().device()).collect())),
        }
    }

    pub(super) async fn measure(&self, count: u64, op: impl Fn(u64) -> Op) -> Measured {
        let device = self.device();
        let done = async |number| done(&device, op(number)).await;
        measure(&self.reactor, &self.devices, (CLIENTS, count), done).await
    }
}

/// Does one operation.
pub(super) async fn done(device: &Rc<dyn Device>, op: Op) {
    match device.clone().execute(Request::new(Durability::Sync, op)).await {
        Ok(_) | Err(Error::NotFound) => {}
        Err(error) => panic!("an operation failed: {error}"),
    }
}

/// Operations a second, if all devices were busy with what an operation asks of them.
pub(super) fn limit(kind: impl Kind, measured: &Measured) -> f64 {
    DEVICES as f64 * 1e9 / kind.cost_ns(measured.load.0, measured.load.1)
}

pub(super) fn joining<D: Member>(number: usize, device: &Rc<D>) -> Joining {
    Joining { name: format!("d{number}"), id: [number as u8 + 1; 16], device: Ok(device.clone().device()) }
}

/// Bytes of a key.
pub(super) const KEY_BYTES: usize = 16;

/// The keys of a seed.
#[derive(Clone, Copy)]
pub(super) struct Keys {
    pub(super) seed: u64,
}

impl Keys {
    pub(super) fn name(self, number: u64) -> Vec<u8> {
        format!("{:04}:{number:011}", self.seed % 10_000).into_bytes()
    }

    pub(super) fn store(self, number: u64, value_bytes: u64) -> Op {
        Op::Store {
            container: DB,
            key: self.name(number),
            value: Value::from(vec![number as u8; value_bytes as usize]),
            condition: Condition::None,
            expiry: Expiry::Never,
            retain: false,
            want_previous: false,
            form: None,
        }
    }

    pub(super) fn retrieve(self, number: u64) -> Op {
        Op::Retrieve { container: DB, key: self.name(number), range: None, pin: false }
    }

    fn delete(self, number: u64) -> Op {
        Op::Delete { container: DB, key: self.name(number), condition: Condition::None }
    }
}

/// Another order than that in which keys were stored.
pub(super) fn scattered(number: u64, keys: u64) -> u64 {
    (number * 7_919 + 13) % keys
}

/// How long values are.
#[derive(Clone, Copy)]
pub(super) enum Sizes {
    All(u64),
    /// 4, 16 and 64 KiB, 30 : 40 : 30.
    Mixture,
}

impl Sizes {
    /// Bytes of the value of a key.
    fn of(self, number: u64) -> u64 {
        match self {
            Sizes::All(bytes) => bytes,
            Sizes::Mixture => match number % 10 {
                0..3 => 4 * KIB,
                3..7 => 16 * KIB,
                _ => 64 * KIB,
            },
        }
    }

    fn keys(self) -> u64 {
        let ten_bytes: u64 = (0..10).map(|number| self.of(number)).sum();
        (10 * STORED_BYTES / ten_bytes).min(KEYS_MAX)
    }
}

/// Store, update, retrieve and delete of as many values as there are keys; and what is seen after each.
pub(super) async fn each_operation<K: Kind, T>(
    reactor: Reactor,
    kind: K,
    options: Option<ArrayOptions>,
    (sizes, count, keys): (Sizes, u64, Keys),
    look: impl AsyncFn(&Setup<K::Member>) -> T,
) -> [(Measured, T); 4] {
    let setup = Setup::new(&reactor, kind, options).await;
    let other = |number| scattered(number, count);
    let measured = async |op: &dyn Fn(u64) -> Op| {
        let measured = setup.measure(count, op).await;
        let is_possible = measured.per_s <= 1.02 * limit(kind, &measured);
        assert!(is_possible, "nothing is faster than its devices: {measured:?}");
        (measured, look(&setup).await)
    };
    [
        measured(&|number| keys.store(number, sizes.of(number))).await,
        measured(&|number| keys.store(other(number), sizes.of(other(number)))).await,
        measured(&|number| keys.retrieve(other(number))).await,
        measured(&|number| keys.delete(other(number))).await,
    ]
}

/// The same, if there is nothing to see.
async fn only_measured(
    reactor: Reactor,
    model: Model,
    options: Option<ArrayOptions>,
    load: (Sizes, u64, Keys),
) -> [Measured; 4] {
    each_operation(reactor, model, options, load, async |_| ()).await.map(|(measured, ())| measured)
}

const OPERATIONS: [&str; 4] = ["store", "update", "retrieve", "delete"];

/// The mechanisms that are compared.
pub(super) const MECHANISMS: [(&str, Mechanism); 4] = [
    ("hashing", Mechanism::Hashing),
    ("replication 3", REPLICATION),
    ("splitting 4+2", SPLITTING),
    ("packing 4+2", PACKING),
];

pub(super) fn policies() -> [(&'static str, Policy); 4] {
    MECHANISMS.map(|(name, mechanism)| (name, mechanism.into()))
}

/// An array by a policy, whose rebuild has so many bytes a second; 0: as fast as it goes.
pub(super) fn options(policy: Policy, rebuild_bytes_per_s: u64) -> ArrayOptions {
    ArrayOptions { policy, degraded: false, rebuild_bytes_per_s, stateless: false }
}

/// How something is called, and the array that does it.
type Named = (&'static str, ArrayOptions);

fn named((name, policy): (&'static str, Policy)) -> Named {
    (name, options(policy, 0))
}

/// The same arrays, which do not ask the memory of the devices.
fn stateless(arrays: &[Named]) -> Vec<Named> {
    arrays
        .iter()
        .map(|(name, options)| (*name, ArrayOptions { stateless: true, ..options.clone() }))
        .collect()
}

/// K2 and K3: each mechanism alone.
pub(super) fn mechanisms(seed: u64) -> Report {
    let sizes = [KIB, 4 * KIB, 16 * KIB, 64 * KIB];
    let each = MODELS.into_iter().flat_map(|model| sizes.map(|bytes| (model, bytes)));
    let arrays = policies().map(named);
    let table = |(model, bytes)| {
        compared(model, &format!("values of {} KiB", bytes / KIB), (Sizes::All(bytes), seed), &arrays)
    };
    Report { seed, conditions: conditions(), tables: each.map(table).collect() }
}

/// K4: a mixture of sizes; and the same without the devices' memory, as the paper has it.
pub(super) fn hybrid(seed: u64) -> Report {
    let range = |value_bytes_max, mechanism| SizeRange { value_bytes_max, mechanism };
    let ranges = [range(16 * KIB, REPLICATION), range(u64::MAX, SPLITTING)];
    let three = [range(4 * KIB, REPLICATION), range(16 * KIB, PACKING), range(u64::MAX, SPLITTING)];
    let by_size = |ranges: &[SizeRange]| Policy::by_size(ranges).expect("they ascend");
    let mut arrays: Vec<Named> = policies().map(named).to_vec();
    arrays.extend([("by size", by_size(&ranges)), ("three ways", by_size(&three))].map(named));
    let without_memory = stateless(&arrays);
    let mixture = "4, 16 and 64 KiB, 30 : 40 : 30";
    let titles = [
        format!("{mixture}; by size: copies to 16 KiB; three ways: copies to 4 KiB, packed to 16 KiB"),
        format!("{mixture}; stateless"),
    ];
    let each = MODELS.into_iter().flat_map(|model| {
        let [asking, reading] = &titles;
        [(model, asking, &arrays), (model, reading, &without_memory)]
    });
    let tables = each.map(|(model, title, arrays)| compared(model, title, (Sizes::Mixture, seed), arrays));
    Report { seed, conditions: conditions(), tables: tables.collect() }
}

/// Each operation by each array, beside the devices without redundancy.
fn compared(model: Model, title: &str, (sizes, seed): (Sizes, u64), arrays: &[Named]) -> Table {
    let keys = Keys { seed };
    let measured = |options: Option<&ArrayOptions>| {
        run(|reactor| only_measured(reactor, model, options.cloned(), (sizes, sizes.keys(), keys)))
    };
    let plain = measured(None);
    let row = |(name, options): &Named| ((*name).to_owned(), shares(model, &measured(Some(options)), &plain));
    shown(format!("{title}; {model}"), arrays.iter().map(row).collect())
}

/// Shares of each operation, as a table.
pub(super) fn shown(title: String, rows: Vec<(String, Vec<f64>)>) -> Table {
    let each = OPERATIONS.iter();
    let each = each.flat_map(|name| [format!("{name}: share"), "of limit".into(), "requests".into()]);
    let columns = std::iter::once("mechanism".to_owned()).chain(each).collect();
    Table { title, columns, rows, plotted: (0..OPERATIONS.len()).map(|operation| 3 * operation).collect() }
}

/// For each operation its share of what devices without redundancy do, that share as one of what its requests
/// and bytes allow, and its requests.
pub(super) fn shares(kind: impl Kind, measured: &[Measured; 4], plain: &[Measured; 4]) -> Vec<f64> {
    let of_one = |(one, plain): (&Measured, &Measured)| {
        [one.per_s / plain.per_s, one.per_s / limit(kind, one), one.requests]
    };
    measured.iter().zip(plain).flat_map(of_one).collect()
}

pub(super) fn conditions() -> String {
    format!(
        "simulated: the array of the product over {DEVICES} modelled KV devices in virtual time; keys of 16 bytes, if not said otherwise at most \
         {KEYS_MAX} of them and {} MiB; share: throughput as one of the same devices without redundancy; of limit: of what \
         the devices could do if they were busy all the time with the requests that an operation makes",
        STORED_BYTES >> 20
    )
}

impl Setup {
    /// Keys and bytes on a device, those of what belongs to sets included.
    pub(super) async fn stored(&self, member: usize) -> Stats {
        let mut sum = Stats::default();
        for container in plimsoll_array::containers_of(ContainerId::default(), DEVICES) {
            let request = Request::new(Durability::Sync, Op::Stats { container });
            let done = self.devices[member].clone().execute(request).await.expect("counted");
            if let plimsoll_kv::Output::Stats(stats) = done.output {
                sum.keys += stats.keys;
                sum.bytes += stats.bytes;
            }
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bars of the request counts, and of shares where requests weigh more than bytes.
    #[test]
    fn each_mechanism_asks_for_no_more_than_it_has_to() {
        let measure = |policy: Option<Policy>, value_bytes| {
            let sizes = (Sizes::All(value_bytes), 4000, Keys { seed: 1 });
            let given = policy.map(|policy| options(policy, 0));
            let measured = run(|reactor| only_measured(reactor, MODELS[0], given.clone(), sizes));
            let [stored, updated, retrieved, deleted] = measured;
            // A few more are made once.
            let requests = [stored, retrieved, deleted].map(|it| (it.requests * 100.0).round() / 100.0);
            (requests, stored.per_s, retrieved.per_s, [updated, deleted])
        };
        let (_, stored, retrieved, _) = measure(None, KIB);
        let (requests, copied, read, _) = measure(Some(REPLICATION.into()), KIB);
        assert_eq!(requests, [3.0, 1.0, 3.0]);
        assert!(copied / stored >= 0.97 / 3.0 && read / retrieved >= 0.97, "{copied} {read}");
        let (requests, split, _, [updated, _]) = measure(Some(SPLITTING.into()), KIB);
        assert_eq!(requests, [6.0, 4.0, 6.0]);
        assert!(split / stored >= 0.97 / 6.0 && updated.requests <= 8.0, "{split} {updated:?}");
        let (requests, packed, read, [updated, deleted]) = measure(Some(PACKING.into()), KIB);
        assert!(requests[0] <= 1.6 && requests[1] == 1.0, "four stores may take ten: {requests:?}");
        assert!(packed / stored >= 0.6 && read / retrieved >= 0.97, "{packed} {read}");
        assert!(updated.per_s / packed >= 0.55, "{updated:?} of {packed}");
        assert!(deleted.per_s / packed >= 0.5 && deleted.requests <= 1.3, "{deleted:?} of {packed}");
        let (_, packed, _, [updated, _]) = measure(Some(PACKING.into()), 64 * KIB);
        assert!(
            updated.per_s / packed >= 0.7,
            "{updated:?} of {packed}: the old value is not stored once more"
        );
        let range = |value_bytes_max, mechanism| SizeRange { value_bytes_max, mechanism };
        let by_size = Policy::by_size(&[range(2 * KIB, REPLICATION), range(u64::MAX, SPLITTING)]).unwrap();
        assert_eq!(measure(Some(by_size.clone()), KIB).0[..2], [3.0, 1.0]);
        assert_eq!(measure(Some(by_size), 4 * KIB).0[..2], [6.0, 4.0]);
    }

    /// The request counts of the paper: a read more before each store and delete where there are several
    /// ways, and before each store where values are packed.
    #[test]
    fn without_the_devices_memory_each_write_reads_once_more() {
        let requests = |policy: &Policy, value_bytes| {
            let sizes = (Sizes::All(value_bytes), 4000, Keys { seed: 1 });
            let given = ArrayOptions { stateless: true, ..options(policy.clone(), 0) };
            let measured = run(|reactor| only_measured(reactor, MODELS[0], Some(given.clone()), sizes));
            let [stored, _, retrieved, deleted] = measured;
            [stored, retrieved, deleted].map(|it| (it.requests * 100.0).round() / 100.0)
        };
        let range = |value_bytes_max, mechanism| SizeRange { value_bytes_max, mechanism };
        let by_size = Policy::by_size(&[range(2 * KIB, REPLICATION), range(u64::MAX, SPLITTING)]).unwrap();
        assert_eq!(requests(&by_size, KIB), [4.0, 1.0, 4.0]);
        assert_eq!(requests(&by_size, 4 * KIB), [7.0, 4.0, 7.0]);
        assert_eq!(requests(&REPLICATION.into(), KIB), [3.0, 1.0, 3.0]);
        assert_eq!(requests(&SPLITTING.into(), KIB), [6.0, 4.0, 6.0]);
        let packed = requests(&PACKING.into(), KIB);
        assert!((2.5..=2.7).contains(&packed[0]) && packed[1] == 1.0, "{packed:?}");
    }
}
