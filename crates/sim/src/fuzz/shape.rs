//! The shape of a world: everything about it that its seed decides before it begins.
//!
//! Place: drawn once for a seed; every other part of a world reads it.
//!
//! Invariants: the shape follows from the seed alone; six seeds in a row cover every fault class.
//!
//! Never: it changes during a run.

use super::paths::{PATHS, RARE};
use crate::checker::ValueId;
use plimsoll_array::{Mechanism, Policy, SizeRange};
use plimsoll_kv::{Durability, Form};
use plimsoll_reactor::sim::{FaultRates, Random};

/// What goes wrong in a world, besides crashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FaultClass {
    /// Nothing else.
    Crashes,
    /// The wall clock steps.
    Clock,
    /// Reads, writes and flushes fail.
    Errors,
    /// Operations of the device are slow.
    Slow,
    /// Bits flip and writes land elsewhere.
    Damage,
    /// The device is full most of the time.
    Full,
}

/// All classes, in the order in which seeds take them.
pub const CLASSES: [FaultClass; 6] = [
    FaultClass::Crashes,
    FaultClass::Clock,
    FaultClass::Errors,
    FaultClass::Slow,
    FaultClass::Damage,
    FaultClass::Full,
];

/// Whether the clock steps in worlds of arrays. A key that one member has seen expired, and another not,
/// comes back with the other when the clock is set back before a restart: arrays do not hold that yet.
const CLOCK_STEPS: bool = cfg!(feature = "array-limits");

/// A roster, a mark, and a record for each write that was ever under way beside others.
const BOOKS_MAX: u64 = 2 + 64;
/// A record of the journal names a key.
const BOOK_BYTES_MAX: u64 = 1024;

/// In a hundred commands drawn, so many stores more write a small device over several times.
const STORES_OF_CHURN: u64 = 150;

/// What an acknowledgement is worth in a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Worth {
    /// The same for all keys.
    All(Durability),
    /// By the key's number: each third another one.
    Mixed,
}

/// A world.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) seed: u64,
    pub(super) class: FaultClass,
    /// Disks; several are an array.
    pub(super) members: usize,
    /// Shards of data of each value; 1: its copies are whole.
    pub(super) data: u32,
    /// Members that may be lost at a time: copies besides the first, or parities.
    pub(super) losses: u32,
    /// Values of up to so many bytes are kept in the other way: copies instead of shards, or shards instead
    /// of copies. What is longer is kept so in every other life.
    pub(super) mixed_bytes: Option<u64>,
    /// Clients of an array ask for mechanisms, value by value.
    pub(super) wishes: bool,
    /// Instead of being cut into shards, values share parities.
    pub(super) packs: bool,
    /// Arrays do not ask the memory of their members, in even lives and in odd ones.
    pub(super) stateless: [bool; 2],
    pub(super) partitions: u16,
    pub(super) segments: u64,
    pub(super) segment_bytes: u64,
    /// The device needs no writing ahead.
    pub(super) written_ahead: bool,
    pub(super) fingerprint_bits: u32,
    pub(super) checkpoint_transitions_min: u64,
    /// Clients inside the server's process, which call the device.
    pub(super) callers: u32,
    /// Clients on connections, in a process of their own.
    pub(super) connections: u32,
    /// What is sent takes up to this long.
    pub(super) network_ns_max: u64,
    pub(super) keys: u64,
    /// Keys share this many slots; 0: each has its own.
    pub(super) tags: u64,
    /// A few keys get half of all operations.
    pub(super) is_skewed: bool,
    pub(super) containers: u32,
    /// In a hundred commands drawn, so many stores more.
    pub(super) stores_more: u64,
    /// Most values are shorter.
    pub(super) value_bytes_max: u64,
    /// Values in parts, in a thousand stores.
    pub(super) long_per_mille: u64,
    pub(super) worth: Worth,
    /// A client rests up to this long between two operations.
    pub(super) rest_ns_max: u64,
    /// Operations whose caller goes away, in parts per million.
    pub(super) cut_ppm: u32,
    pub(super) clears: bool,
    /// Batches over key pairs and retained versions, each with one client of its own.
    pub(super) extras: bool,
    pub(super) steps_clock: bool,
    /// Bytes of each partition's cache; 0: there is none.
    pub(super) cache_bytes: usize,
    /// Bytes of each partition's memory for keys that are known.
    pub(super) known_bytes: usize,
    /// A full device makes room.
    pub(super) evicts: bool,
    /// Operations at least.
    pub(super) operations: u64,
    /// Crashes at least.
    pub(super) crashes: u64,
}

fn pick<T: Copy>(random: &mut Random, choices: &[T]) -> T {
    choices[random.below(choices.len() as u64) as usize]
}

/// The cache of a partition in two of three worlds: mostly so small that it has to let go of much.
pub(crate) fn cache_bytes(seed: u64) -> usize {
    pick(&mut Random::stream(seed, "cache"), &[0, 0, 16 << 10, 64 << 10, 64 << 10, 1 << 20])
}

/// The memory of a partition for keys that are known: none, too little, or enough.
pub(crate) fn known_bytes(seed: u64) -> usize {
    pick(&mut Random::stream(seed, "known"), &[0, 64, 512, 64 << 10, 64 << 10])
}

/// Whether a full device makes room: in half of the worlds that are full, and in some others.
fn evicts(seed: u64, class: FaultClass) -> bool {
    let often = if class == FaultClass::Full { 500_000 } else { 150_000 };
    Random::stream(seed, "evict").chance_ppm(often)
}

/// In which lives of a world arrays do without the memory of their members: each toss is one of its own.
fn stateless(seed: u64) -> [bool; 2] {
    let mut random = Random::stream(seed, "stateless");
    [(); 2].map(|()| random.chance_ppm(500_000))
}

impl Shape {
    /// The shape of a seed's world.
    pub(super) fn of(seed: u64) -> Shape {
        let mut random = Random::stream(seed, "shape");
        let r = &mut random;
        let class = CLASSES[(seed % CLASSES.len() as u64) as usize];
        let full = class == FaultClass::Full;
        // The device is written several times over, and most of it stays live: cleaning has to work.
        let churns = r.chance_ppm(if full { 700_000 } else { 250_000 });
        let small = full || churns;
        let partitions = if small { 1 } else { pick(r, &[1, 1, 2, 2, 3, 4]) };
        let segments = if small { r.range(24, 34) } else { r.range(25, 130 / u64::from(partitions).max(2)) };
        let segment_bytes = if partitions == 1 && r.chance_ppm(150_000) { 128 << 10 } else { 64 << 10 };
        let keys = if churns { pick(r, &[80, 120, 160]) } else { pick(r, &[12, 30, 60, 120, 250]) };
        let long_per_mille = pick(r, &[0, 5, 30]);
        // How much of the room that stores can have at all the keys would take, in per cent.
        let fill = match (full, churns) {
            (true, _) => r.range(90, 170),
            (_, true) => r.range(60, 85),
            _ => r.range(5, 65),
        };
        let room = u64::from(partitions) * (segments - 12).max(6) * segment_bytes;
        let value_bytes_max = (room * fill / 100 * 2 / keys).clamp(40, segment_bytes / 5);
        let worth = match r.below(10) {
            0 => Worth::All(Durability::Async),
            1 | 2 => Worth::All(Durability::Group),
            3 => Worth::Mixed,
            _ => Worth::All(Durability::Sync),
        };
        let clients = pick(r, &[2, 4, 8]);
        let connections = r.below(u64::from(clients) + 1) as u32;
        Shape {
            seed,
            class,
            members: 1,
            data: 1,
            losses: 0,
            mixed_bytes: None,
            wishes: false,
            packs: false,
            stateless: [false; 2],
            partitions,
            segments,
            segment_bytes,
            written_ahead: r.chance_ppm(700_000),
            fingerprint_bits: pick(r, &[40, 40, 8, 3]),
            checkpoint_transitions_min: pick(r, &[60, 300, 1000]),
            callers: clients - connections,
            connections,
            network_ns_max: pick(r, &[60_000, 60_000, 400_000, 3_000_000]),
            keys,
            tags: pick(r, &[0, 2, 7]),
            is_skewed: r.chance_ppm(500_000),
            containers: pick(r, &[1, 2]),
            stores_more: if churns { STORES_OF_CHURN } else { 18 * u64::from(full) },
            value_bytes_max,
            long_per_mille,
            worth,
            rest_ns_max: pick(r, &[0, 0, 300_000, 4_000_000]),
            cut_ppm: pick(r, &[0, 0, 20_000]),
            clears: r.chance_ppm(400_000),
            extras: r.chance_ppm(500_000),
            steps_clock: class == FaultClass::Clock || r.chance_ppm(100_000),
            cache_bytes: cache_bytes(seed),
            known_bytes: known_bytes(seed),
            evicts: evicts(seed, class),
            operations: r.range(1000, 1600),
            crashes: 3,
        }
    }

    /// The shape of a seed's world of arrays: as [`Shape::of`], over several disks. Damage is rot of values
    /// that stand on members (`members`). Devices that lie are left out: a copy that was taken back without a
    /// trace looks like one that was never written, and arrays do not compare copies at each read.
    pub(super) fn of_array(seed: u64) -> Shape {
        let single = Shape::of(seed);
        let mut random = Random::stream(seed, "array");
        let r = &mut random;
        let (members, data, losses) = if seed % 3 != 2 {
            let (data, losses) = (pick(r, &[2, 2, 3]), pick(r, &[1, 1, 2]));
            ((data + losses) as usize + pick(r, &[0, 0, 1]), data, losses)
        } else {
            let members = pick(r, &[2, 2, 3, 3, 4]);
            (members, 1, pick(r, &[0, 1, 1, 1, 1, 2, 2]).min(members as u32 - 1))
        };
        let packs = data > 1 && Random::stream(seed, "packing").chance_ppm(500_000);
        // What all keys take spreads over the members; of shards, what was there before stays a while. What
        // is packed stands as copies first, and what it replaces stays until its set is regrouped.
        let held = match packs {
            true => u64::from(data) * (2 * u64::from(losses + 1) + 2),
            false => u64::from(data + losses) * u64::from(data.min(2)),
        };
        let value_bytes_max = single.value_bytes_max * members as u64 * u64::from(data) / held;
        // What may be asked for are more copies than all have.
        let wishes = Random::stream(seed, "wishes").chance_ppm(400_000);
        let value_bytes_max = if wishes { (value_bytes_max / 2).max(40) } else { value_bytes_max };
        let value_bytes_max = value_bytes_max.min(single.segment_bytes / 5);
        let mixed_bytes = (seed % 3 == 1).then(|| value_bytes_max / pick(r, &[2, 4, 16]));
        Shape {
            class: match single.class {
                FaultClass::Clock if !CLOCK_STEPS => FaultClass::Crashes,
                class => class,
            },
            members,
            data,
            losses,
            mixed_bytes,
            wishes,
            packs,
            stateless: stateless(seed),
            value_bytes_max,
            // Batches and retained versions are operations on one device.
            extras: false,
            evicts: false,
            steps_clock: CLOCK_STEPS && single.steps_clock,
            ..single
        }
    }

    /// Whether the members of an array are asked in a life what they have in memory.
    pub(super) fn is_stateless(&self, life: u64) -> bool {
        self.stateless[(life % 2) as usize]
    }

    /// True if the server's devices are arrays.
    pub(super) fn is_array(&self) -> bool {
        self.members > 1
    }

    /// How an array keeps what it is given in a life, and what its clients may ask for.
    pub(super) fn policy(&self, life: u64) -> Policy {
        self.by_size(life).with_custom(&self.custom()).expect("they are few")
    }

    /// By which mechanism so many devices hold data, and so many parities.
    fn set(&self, data: u32, parities: u32) -> Mechanism {
        match self.packs {
            true => Mechanism::Packing { data, parities },
            false => Mechanism::Splitting { data, parities },
        }
    }

    /// What may be asked for: as many members may be lost of each.
    fn custom(&self) -> Vec<Mechanism> {
        let copies = |copies| Mechanism::Replication { copies };
        let shards = self.set(self.data.max(2), self.losses.max(1));
        let all = [copies(self.losses + 1), copies(self.losses + 2), shards];
        let fits = |mechanism: &Mechanism| mechanism.checked(self.members as u32).is_ok();
        all.into_iter().filter(|it| self.wishes && fits(it)).collect()
    }

    /// What the client of a value wishes that it is made into: nothing of every other one.
    pub(super) fn wish(&self, value: ValueId) -> Option<Form> {
        let custom = self.custom();
        let wished = (value.0 / 2) as usize;
        let wishes = value.0.is_multiple_of(2) && !custom.is_empty();
        wishes.then(|| custom[wished % custom.len()].form())
    }

    fn by_size(&self, life: u64) -> Policy {
        let copies = match self.losses {
            0 => Mechanism::Hashing,
            losses => Mechanism::Replication { copies: losses + 1 },
        };
        if self.data == 1 {
            return copies.into();
        }
        let shards = self.set(self.data, self.losses);
        let Some(mixed_bytes) = self.mixed_bytes else { return shards.into() };
        let (short, longer) = if life.is_multiple_of(2) { (copies, shards) } else { (shards, copies) };
        let range = |value_bytes_max, mechanism| SizeRange { value_bytes_max, mechanism };
        Policy::by_size(&[range(mixed_bytes, short), range(u64::MAX, longer)]).expect("they ascend")
    }

    /// True if containers are emptied as a whole: by clients, or when a member comes back.
    pub(super) fn sweeps(&self) -> bool {
        self.clears || self.is_array()
    }

    /// What a member of an array holds for the array itself when no key is left, at most: objects and bytes.
    pub(super) fn books(&self) -> (u64, u64) {
        if self.is_array() { (BOOKS_MAX, BOOKS_MAX * BOOK_BYTES_MAX) } else { (0, 0) }
    }

    /// True if what is acknowledged for a key may be lost for a while after. Arrays have no such writes.
    pub(super) fn loses_acknowledged(&self, key: u64) -> bool {
        !self.is_array() && self.durability(key) == Durability::Async
    }

    /// The size of the disk in bytes: what the partitions take, and superblocks and anchors.
    pub(super) fn disk_bytes(&self) -> usize {
        let data = u64::from(self.partitions) * self.segments * self.segment_bytes;
        (data + (128 << 10) + 8192) as usize
    }

    /// How often faults strike while the server runs.
    pub(super) fn rates(&self, random: &mut Random) -> FaultRates {
        // Mostly at one write path above all: many are written too rarely to be hit otherwise.
        let rare = self.churns() && random.chance_ppm(500_000);
        let path = if rare { pick(random, &PATHS[RARE]) } else { pick(random, &PATHS) };
        let aim = (path.0, pick(random, &[30_000, 300_000]));
        let none = FaultRates { aim: random.chance_ppm(700_000).then_some(aim), ..FaultRates::default() };
        match self.class {
            FaultClass::Crashes | FaultClass::Clock | FaultClass::Full => none,
            FaultClass::Damage if self.is_array() => none,
            FaultClass::Errors => FaultRates {
                read_error_ppm: pick(random, &[0, 200, 3000]),
                write_error_ppm: pick(random, &[0, 300, 2500]),
                flush_error_ppm: pick(random, &[0, 1000, 30_000]),
                ..none
            },
            FaultClass::Slow => FaultRates { slow_ppm: pick(random, &[500, 5000, 40_000]), ..none },
            FaultClass::Damage => FaultRates {
                misdirect_ppm: pick(random, &[0, 300, 1500]),
                bit_flip_ppm: pick(random, &[0, 1000, 5000]),
                ..none
            },
        }
    }

    /// True if stores are so many that cleaning has to work.
    pub(super) fn churns(&self) -> bool {
        self.stores_more >= STORES_OF_CHURN
    }

    /// How often faults strike while the device is formatted: few writes, so each is in danger.
    pub(super) fn format_rates(&self) -> FaultRates {
        let none = FaultRates::default();
        match self.class {
            _ if self.is_array() => none,
            FaultClass::Errors => FaultRates { write_error_ppm: 50_000, flush_error_ppm: 20_000, ..none },
            FaultClass::Damage => FaultRates { misdirect_ppm: 20_000, bit_flip_ppm: 20_000, ..none },
            _ => none,
        }
    }

    /// What an acknowledgement of a write to a key is worth.
    pub(super) fn durability(&self, key: u64) -> Durability {
        match self.worth {
            Worth::All(durability) => durability,
            Worth::Mixed => [Durability::Sync, Durability::Group, Durability::Async][(key % 3) as usize],
        }
    }
}
