//! What is asked for: operations and their shares, by the names that people know.
//!
//! Sources: YCSB's core workloads A to F (Cooper et al., SoCC 2010); RocksDB's db_bench. A scan of YCSB is an
//! MGET of up to 100 keys that follow one another: Redis has no order of keys.

use crate::keys::{Distribution, below};
use rand_core::RngCore;
use std::str::FromStr;

/// Keys of one scan at most (YCSB).
pub(crate) const SCAN_KEYS_MAX: u64 = 100;

/// What one operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    /// GET.
    Read,
    /// SET of a key that is there.
    Update,
    /// SET of the next key.
    Insert,
    /// MGET of keys that follow one another.
    Scan,
    /// GET, then SET, reckoned as one.
    ReadModifyWrite,
}

impl Operation {
    /// All, in the order of reports.
    pub const ALL: [Operation; 5] =
        [Operation::Read, Operation::Update, Operation::Insert, Operation::Scan, Operation::ReadModifyWrite];

    /// The name in reports and in mixes.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Operation::Read => "read",
            Operation::Update => "update",
            Operation::Insert => "insert",
            Operation::Scan => "scan",
            Operation::ReadModifyWrite => "rmw",
        }
    }
}

/// Operations, each with its weight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mix([u32; Operation::ALL.len()]);

impl Mix {
    fn of(parts: &[(Operation, u32)]) -> Mix {
        let mut mix = Mix::default();
        parts.iter().for_each(|(operation, weight)| mix.0[*operation as usize] += weight);
        mix
    }

    /// True if some of them are this one.
    #[must_use]
    pub fn has(&self, operation: Operation) -> bool {
        self.0[operation as usize] > 0
    }

    /// Draws one.
    pub(crate) fn draw(&self, random: &mut impl RngCore) -> Operation {
        let total = self.0.iter().map(|weight| u64::from(*weight)).sum();
        let mut place = below(random, total);
        for operation in Operation::ALL {
            let weight = u64::from(self.0[operation as usize]);
            if place < weight {
                return operation;
            }
            place -= weight;
        }
        unreachable!("a place lies below the total")
    }
}

/// What a tenant does.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// As it was asked for.
    pub name: String,
    /// Its operations.
    pub mix: Mix,
    /// How it chooses keys, unless that is said otherwise.
    pub distribution: Distribution,
    /// It stores every key once, in order, and ends.
    pub fills: bool,
}

impl FromStr for Workload {
    type Err = String;

    /// Reads a name, or shares: `read=95,update=5`.
    fn from_str(text: &str) -> Result<Workload, String> {
        use Operation::{Insert, Read, ReadModifyWrite, Scan, Update};
        let zipf = Distribution::Zipf(0.99);
        let (mix, distribution): (&[(Operation, u32)], Distribution) = match text {
            "get" | "readrandom" => (&[(Read, 1)], Distribution::Uniform),
            "set" | "overwrite" | "fillrandom" => (&[(Update, 1)], Distribution::Uniform),
            "fillseq" => (&[(Insert, 1)], Distribution::Uniform),
            "ycsb-a" => (&[(Read, 50), (Update, 50)], zipf),
            "ycsb-b" => (&[(Read, 95), (Update, 5)], zipf),
            "ycsb-c" => (&[(Read, 1)], zipf),
            "ycsb-d" => (&[(Read, 95), (Insert, 5)], Distribution::Latest(0.99)),
            "ycsb-e" => (&[(Scan, 95), (Insert, 5)], zipf),
            "ycsb-f" => (&[(Read, 50), (ReadModifyWrite, 50)], zipf),
            shares => return Workload::of_shares(shares),
        };
        let fills = text == "fillseq";
        Ok(Workload { name: text.to_owned(), mix: Mix::of(mix), distribution, fills })
    }
}

impl Workload {
    fn of_shares(text: &str) -> Result<Workload, String> {
        let mut parts = Vec::new();
        for share in text.split(',') {
            let wrong = || {
                format!(
                    "'{share}': a workload is get, set, ycsb-a to ycsb-f, fillseq, fillrandom, overwrite, \
                     readrandom, or shares of read, update, insert, scan and rmw, as read=95,update=5"
                )
            };
            let (name, weight) = share.split_once('=').ok_or_else(wrong)?;
            let operation = Operation::ALL.into_iter().find(|operation| operation.name() == name);
            parts.push((operation.ok_or_else(wrong)?, weight.parse().map_err(|_| wrong())?));
        }
        if parts.iter().all(|(_, weight)| *weight == 0) {
            return Err(format!("'{text}': nothing has a share"));
        }
        let mix = Mix::of(&parts);
        Ok(Workload { name: text.to_owned(), mix, distribution: Distribution::Uniform, fills: false })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand_core::SeedableRng;
    use rand_xoshiro::Xoshiro256PlusPlus;

    #[test]
    fn operations_have_their_shares() {
        let workload: Workload = "ycsb-b".parse().unwrap();
        let mut random = Xoshiro256PlusPlus::seed_from_u64(1);
        let reads = (0..10_000).filter(|_| workload.mix.draw(&mut random) == Operation::Read).count();
        assert!((9400..9600).contains(&reads), "{reads}");
        let shares: Workload = "read=1,rmw=3".parse().unwrap();
        let reads = (0..10_000).filter(|_| shares.mix.draw(&mut random) == Operation::Read).count();
        assert!((2300..2700).contains(&reads), "{reads}");
        for wrong in ["", "ycsb-g", "read", "read=x", "delete=1", "read=0"] {
            assert!(wrong.parse::<Workload>().is_err(), "{wrong}");
        }
    }
}
