//! The picker beside every choice that could have been made beforehand.
//!
//! Role: three traces that the picker has not seen, each by mechanisms that are picked, for each goal, and by
//! the mechanisms that could have been named instead: of one length all of them, of two each pair. Place:
//! `plimsoll sim run kvmd-auto`.
//!
//! Never: the picker is told which trace it is, or what comes.

use super::device::Model;
use super::kvmd::{KIB, Keys, MECHANISMS, Setup, options, run};
use super::{MODELS, Report, Table};
use plimsoll_array::{Goal, Mechanism, Policy, SizeRange};
use plimsoll_kv::Op;
use plimsoll_reactor::Reactor;

/// What is done.
#[derive(Clone, Copy, Debug)]
struct Trace {
    name: &'static str,
    keys: u64,
    /// Of ten keys so many have the longer of two lengths.
    long_of_ten: u64,
    value_bytes: [u64; 2],
    /// Of ten operations after all keys were stored so many are reads; the others are overwrites, or nothing
    /// is ever overwritten and they are new keys.
    reads_of_ten: u64,
    overwrites: bool,
}

const TRACES: [Trace; 3] = [
    Trace {
        name: "uniform small: 1 KiB, 7 reads to 3 overwrites",
        keys: 20_000,
        long_of_ten: 0,
        value_bytes: [KIB, KIB],
        reads_of_ten: 7,
        overwrites: true,
    },
    Trace {
        name: "bimodal with updates: 1 KiB and 64 KiB, 8 : 2, 4 reads to 6 overwrites",
        keys: 10_000,
        long_of_ten: 2,
        value_bytes: [KIB, 64 * KIB],
        reads_of_ten: 4,
        overwrites: true,
    },
    Trace {
        name: "large write-once: 128 KiB, 5 reads to 5 new keys",
        keys: 800,
        long_of_ten: 0,
        value_bytes: [128 * KIB, 128 * KIB],
        reads_of_ten: 5,
        overwrites: false,
    },
];

/// Values that are longer belong to the second length.
const BETWEEN_BYTES: u64 = 8 * KIB;
/// After this time everything has been packed, and moved.
const SETTLED_NS: u64 = 120_000_000_000;
const FAILURES: u32 = 2;

/// A number that has nothing to do with this one.
fn mixed(number: u64) -> u64 {
    let mixed = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb) >> 20
}

impl Trace {
    fn bytes_of(&self, key: u64) -> u64 {
        self.value_bytes[usize::from(mixed(key) % 10 < self.long_of_ten)]
    }

    /// Operations of a phase: twice as many as keys.
    fn operations(&self) -> u64 {
        2 * self.keys
    }

    /// Keys that there are after so many phases.
    fn keys_after(&self, phases: u64) -> u64 {
        let new = if self.overwrites { 0 } else { self.operations() * (10 - self.reads_of_ten) / 10 };
        self.keys + phases * new
    }

    /// An operation of a phase.
    fn op(&self, keys: Keys, (phase, number): (u64, u64)) -> Op {
        let drawn = mixed(phase * self.operations() + number);
        let there = self.keys_after(phase);
        if number % 10 < self.reads_of_ten {
            return keys.retrieve(drawn % there);
        }
        // Those of ten that are no reads, one after the other.
        let written = number / 10 * (10 - self.reads_of_ten) + number % 10 - self.reads_of_ten;
        let key = if self.overwrites { drawn % there } else { there + written };
        keys.store(key, self.bytes_of(key))
    }
}

/// What a trace came to: operations a second while it is new and when it no longer is, and bytes on devices
/// for each of its values.
#[derive(Clone, Copy, Debug)]
struct Came {
    new_per_s: f64,
    then_per_s: f64,
    space: f64,
}

async fn follow(reactor: Reactor, model: Model, policy: Policy, (trace, keys): (Trace, Keys)) -> Came {
    let setup = Setup::new(&reactor, model, Some(options(policy, 0))).await;
    setup.array().move_through(&setup.device());
    setup.measure(trace.keys, |number| keys.store(number, trace.bytes_of(number))).await;
    let new = setup.measure(trace.operations(), |number| trace.op(keys, (0, number))).await;
    reactor.sleep_ns(SETTLED_NS).await;
    let then = setup.measure(trace.operations(), |number| trace.op(keys, (1, number))).await;
    reactor.sleep_ns(SETTLED_NS).await;
    let stored: u64 = (0..trace.keys_after(2)).map(|key| trace.bytes_of(key)).sum();
    let mut kept = 0;
    for member in 0..setup.devices.len() {
        kept += setup.stored(member).await.bytes;
    }
    setup.array().close().await;
    Came { new_per_s: new.per_s, then_per_s: then.per_s, space: kept as f64 / stored as f64 }
}

/// What could have been named beforehand for a trace.
fn named(trace: &Trace) -> Vec<(String, Policy)> {
    let survive = MECHANISMS.into_iter().filter(|(_, mechanism)| mechanism.fatal_losses() > FAILURES);
    let survive: Vec<(&str, Mechanism)> = survive.collect();
    if trace.long_of_ten == 0 {
        return survive.into_iter().map(|(name, it)| (name.to_owned(), it.into())).collect();
    }
    let mut pairs = Vec::new();
    for (short, of_short) in &survive {
        for (long, of_long) in &survive {
            let range = |value_bytes_max, mechanism| SizeRange { value_bytes_max, mechanism };
            let ranges = [range(BETWEEN_BYTES, *of_short), range(u64::MAX, *of_long)];
            pairs.push((format!("{short}, {long}"), Policy::by_size(&ranges).expect("they ascend")));
        }
    }
    pairs
}

/// Each trace over each kind of devices.
pub(super) fn auto(seed: u64) -> Report {
    let each = MODELS.into_iter().flat_map(|model| TRACES.map(|trace| (model, trace)));
    let tables = each.map(|(model, trace)| table(model, (trace, Keys { seed }))).collect();
    let conditions = "simulated: the array of the product over 6 modelled KV devices in virtual time; new: the first \
                      operations after all keys were stored, then: as many, two minutes later; space: bytes on devices for a \
                      byte of values, two minutes after that; all survive 2 failures; best: of those \
                      that were named, in that column";
    Report { seed, conditions: conditions.to_owned(), tables }
}

fn table(model: Model, (trace, keys): (Trace, Keys)) -> Table {
    let follows = |policy: &Policy| run(|reactor| follow(reactor, model, policy.clone(), (trace, keys)));
    let mut came: Vec<(String, Came)> =
        named(&trace).into_iter().map(|(name, policy)| (name, follows(&policy))).collect();
    let best =
        came.iter().fold(Came { new_per_s: 0.0, then_per_s: 0.0, space: f64::INFINITY }, |best, (_, it)| {
            Came {
                new_per_s: best.new_per_s.max(it.new_per_s),
                then_per_s: best.then_per_s.max(it.then_per_s),
                space: best.space.min(it.space),
            }
        });
    for goal in [Goal::Throughput, Goal::Space] {
        let policy = Policy::chosen(goal, FAILURES, 6).expect("failures are survived");
        came.push((format!("auto for {goal}"), follows(&policy)));
    }
    let row = |(name, it): (String, Came)| {
        let shares = [it.new_per_s / best.new_per_s, it.then_per_s / best.then_per_s];
        (name, vec![shares[0], shares[1], it.space, it.space / best.space])
    };
    let columns = ["mechanisms", "new: of best", "then: of best", "space", "of least"];
    Table {
        title: format!("{}; {model}", trace.name),
        columns: columns.map(str::to_owned).to_vec(),
        rows: came.into_iter().map(row).collect(),
        plotted: vec![1, 3],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_keys_follow_one_another_and_what_is_read_is_there() {
        let trace = TRACES[2];
        let mut stored = trace.keys;
        for phase in 0..2 {
            for number in 0..trace.operations() {
                match trace.op(Keys { seed: 1 }, (phase, number)) {
                    Op::Store { key, .. } => {
                        assert_eq!(key, Keys { seed: 1 }.name(stored));
                        stored += 1;
                    }
                    op => assert!(op.key().unwrap() < Keys { seed: 1 }.name(stored).as_slice()),
                }
            }
            assert_eq!(stored, trace.keys_after(phase + 1));
        }
    }

    /// The bar, where a trace is followed quickest.
    #[test]
    fn what_is_picked_is_nearly_as_good_as_the_best_that_could_have_been_named() {
        let trace = Trace { keys: 4000, ..TRACES[0] };
        let table = table(MODELS[0], (trace, Keys { seed: 1 }));
        let of = |name: &str| table.rows.iter().find(|(row, _)| row == name).unwrap().1.clone();
        assert!(of("auto for throughput")[1] >= 0.9, "{table}");
        assert!(of("auto for space")[3] <= 1.1, "{table}");
    }
}
