//! What a seed decides of its world.

use crate::fuzz::{cache_bytes, known_bytes};
use plimsoll_array::{Mechanism, Policy};
use plimsoll_flash::OnFull;
use plimsoll_kv::Durability;
use plimsoll_reactor::sim::{FaultRates, Random};
use plimsoll_server::Geometry;

pub(super) const SEGMENT_BYTES: u32 = 64 << 10;
pub(super) const HASH_SECRET: u64 = 99;

/// The name of a disk.
pub(super) fn disk(member: usize) -> String {
    format!("disk{member}")
}

/// What a seed decides.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// Disks; several are an array.
    pub(super) members: usize,
    pub(super) partitions: u16,
    pub(super) segments: u32,
    pub(super) clients: u32,
    pub(super) durability: Durability,
    pub(super) fingerprint_bits: u32,
    pub(super) network_ns_max: u64,
    /// Values of the token and of parts.
    pub(super) token_bytes: usize,
    pub(super) lives: u64,
    pub(super) rates: FaultRates,
    pub(super) fills: bool,
    pub(super) on_full: OnFull,
    /// Bytes of each partition's cache; 0: there is none.
    pub(super) cache_bytes: usize,
    /// Bytes of each partition's memory for keys that are known.
    pub(super) known_bytes: usize,
}

impl Shape {
    pub(super) fn of(seed: u64) -> Shape {
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
        let evicts = class == 3 && Random::stream(seed, "evict").chance_ppm(500_000);
        let partitions = pick(&[1, 2, 3, 5, 8]) as u16;
        let mut array = Random::stream(seed, "array");
        let joins = class < 2 && array.chance_ppm(400_000);
        Shape {
            members: if joins { 2 + array.below(3) as usize } else { 1 },
            // Few, so that they fill.
            partitions: if evicts { 1 + partitions % 3 } else { partitions },
            segments: if class == 3 { 26 } else { pick(&[30, 48]) as u32 },
            clients: pick(&[2, 4, 7]) as u32,
            durability: [Durability::Sync, Durability::Sync, Durability::Group][pick(&[0, 1, 2]) as usize],
            fingerprint_bits: pick(&[40, 40, 4]) as u32,
            network_ns_max: pick(&[60_000, 400_000]),
            token_bytes: pick(&[100, 3000, 40_000]) as usize,
            lives: pick(&[4, 6, 9]),
            rates,
            fills: class == 3,
            on_full: if evicts { OnFull::Evict } else { OnFull::Error },
            cache_bytes: cache_bytes(seed),
            known_bytes: known_bytes(seed),
        }
    }

    pub(super) fn geometry(&self) -> Geometry {
        let (value, part) = ((SEGMENT_BYTES / 4) as usize, (SEGMENT_BYTES / 8) as usize);
        let (value_bytes_max, part_bytes) =
            if self.members > 1 { plimsoll_array::geometry(value, part) } else { (value, part) };
        Geometry { partitions: self.partitions, value_bytes_max, part_bytes }
    }

    /// How an array of so many members keeps what it is given.
    pub(super) fn policy(&self) -> Policy {
        match self.members {
            3 => Mechanism::Splitting { data: 2, parities: 1 }.into(),
            4 => Mechanism::Packing { data: 2, parities: 1 }.into(),
            _ => Mechanism::Replication { copies: 2 }.into(),
        }
    }

    /// True if what is committed is applied, unless the server dies: devices do not fail.
    pub(super) fn applies(&self) -> bool {
        self.rates.write_error_ppm == 0 && self.rates.flush_error_ppm == 0
    }

    /// Bytes of each disk.
    pub(super) fn disk_bytes(&self) -> usize {
        let data = u64::from(self.partitions) * u64::from(self.segments) * u64::from(SEGMENT_BYTES);
        (data + (128 << 10) + (16 << 10)) as usize
    }
}
