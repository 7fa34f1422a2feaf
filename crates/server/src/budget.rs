//! What `--memory` is divided into: the shares of the server itself, the cache, the clients and the keys.
//!
//! Role: one number from the operator, a bound for each thing that grows. Place on the path: before the
//! start.
//!
//! Invariants: the shares together are no more than the number; a number that cannot be honoured is
//! refused, and the words say what would do; without a number, what was bounded stays bounded as it was.
//!
//! Never: it measures nothing. That the shares hold is shown by the tests that look at the process.

use crate::config::{Shares, Size};
use crate::limits::{
    CLIENT_BYTES_MAX, CONNECTION_BYTES, HANDSHAKE_BYTES_MAX, HANDSHAKES_MAX, QUERY_BUFFER_BYTES_MAX,
    SLOWLOG_ENTRY_BYTES, WHOLE_REPLY_BYTES_MAX,
};

/// The program, its threads, and what the allocator keeps: an idle server has 29 MiB.
const PROCESS_BYTES: u64 = 32 << 20;
/// A core: 16 MiB of registered buffers, what it reads and sends at a time.
const CORE_BYTES: u64 = 24 << 20;
/// A partition: 16 MiB of log that is being written, 4 MiB of keys on their way into order, 8 MiB of small
/// segments that are cleaned together, and what checkpoints gather.
const PARTITION_BYTES: u64 = 32 << 20;
/// Segments that cleaning and eviction hold in memory.
const SEGMENTS: u64 = 2;
/// What the process takes for a byte that a client is reckoned to hold, in halves: buffers have spare
/// room, and the allocator keeps what was given back for a while (1.3 was measured under attack).
const CLIENT_HALVES: u64 = 3;
/// The least that the clients of a core may hold: a command of 6 MiB while others go on.
const CLIENT_BYTES_MIN: u64 = 16 << 20;
const _: () = assert!(
    (CLIENT_BYTES_MIN / 8 * 3) as usize > plimsoll_kv::limits::RECORD_VALUE_BYTES_MAX + (1 << 20),
    "a value of one record is held with the command that it is in"
);
/// What a key costs at most: its index entry and its share of checkpoints under way (bar 2 in
/// `docs/benchmarks.md`: 23.0 bytes of the whole process were measured).
pub const OBJECT_BYTES: u64 = 24;
/// The fewest keys that are worth a server.
const OBJECTS_MIN: u64 = 100_000;
/// The part of what is left for clients and keys that is the clients', unless that is more than they get
/// without a number.
const CLIENTS_PART: u64 = 3;

/// What is known when memory is divided.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    /// Cores that serve.
    pub cores: u64,
    /// Partitions of the device.
    pub partitions: u64,
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// Connections at most.
    pub clients_max: u64,
    /// What remembers which records were read, if the device evicts.
    pub mark_bytes: u64,
    /// Entries of the slow log at most, on each core.
    pub slow_log_max: u64,
    /// Whether TLS is served.
    pub tls: bool,
}

/// The shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Bytes of memory altogether; 0: not given.
    pub memory_bytes: u64,
    /// Bytes that the clients of one core may hold.
    pub client_bytes_max: usize,
    /// Objects that one partition may hold.
    pub objects_max: u64,
}

/// What a server takes of so much memory before there is a key.
struct Needs {
    server: u64,
    cache: u64,
    clients_min: u64,
}

impl Needs {
    fn of(memory: Size, shares: &Shares, machine: &Machine) -> Needs {
        let handshakes = if machine.tls { (HANDSHAKES_MAX * HANDSHAKE_BYTES_MAX) as u64 } else { 0 };
        let server = PROCESS_BYTES
            + machine.mark_bytes
            + shares.known_keys(Some(memory)).0
            + machine.cores * (CORE_BYTES + handshakes + machine.slow_log_max * SLOWLOG_ENTRY_BYTES as u64)
            + machine.partitions * (PARTITION_BYTES + SEGMENTS * machine.segment_bytes);
        let connections = machine.clients_max.saturating_mul(CONNECTION_BYTES as u64);
        Needs {
            server: server.saturating_add(connections),
            cache: shares.cache(Some(memory)).0,
            clients_min: machine.cores * CLIENT_BYTES_MIN * CLIENT_HALVES / 2,
        }
    }

    /// With the fewest keys that are worth a server.
    fn least(&self) -> u64 {
        self.server.saturating_add(self.cache + self.clients_min + OBJECTS_MIN * OBJECT_BYTES)
    }

    fn refusal(&self, memory: Size, machine: &Machine, least: Size) -> String {
        format!(
            "memory: {memory} are too few: {}MiB for the server with {} cores, {} partitions and {} clients, {}MiB \
             for the cache, {}MiB for what clients send and {}MiB for keys are the least; cache and known keys grow \
             with it unless they are set: at least {}MiB",
            mib(self.server),
            machine.cores,
            machine.partitions,
            machine.clients_max,
            mib(self.cache),
            mib(self.clients_min),
            mib(OBJECTS_MIN * OBJECT_BYTES),
            mib(least.0),
        )
    }
}

fn mib(bytes: u64) -> u64 {
    bytes.div_ceil(1 << 20)
}

/// The least memory that does, in whole MiB: what the cache and the known keys get of it included.
fn least_memory(shares: &Shares, machine: &Machine) -> Size {
    let mut memory = Size(0);
    loop {
        let least = mib(Needs::of(memory, shares, machine).least()).saturating_mul(1 << 20);
        if least <= memory.0 {
            return memory;
        }
        memory = Size(least); // Parts of it are its shares, which have bounds: this comes to an end.
    }
}

impl Budget {
    /// No number was given: clients are bounded, and keys by the device.
    pub const NOT_GIVEN: Budget =
        Budget { memory_bytes: 0, client_bytes_max: CLIENT_BYTES_MAX, objects_max: u64::MAX };

    /// Divides memory.
    ///
    /// # Errors
    /// It is too little: in words, with how much would do.
    pub fn divide(memory: Option<Size>, shares: &Shares, machine: &Machine) -> Result<Budget, String> {
        let Some(memory) = memory else { return Ok(Budget::NOT_GIVEN) };
        let needs = Needs::of(memory, shares, machine);
        if memory.0 < needs.least() {
            return Err(needs.refusal(memory, machine, least_memory(shares, machine)));
        }
        let rest = memory.0 - needs.server - needs.cache;
        let clients = (rest / CLIENTS_PART).max(needs.clients_min) * 2 / CLIENT_HALVES / machine.cores;
        let clients = clients.min(CLIENT_BYTES_MAX as u64);
        let keys = rest - machine.cores * clients * CLIENT_HALVES / 2;
        Ok(Budget {
            memory_bytes: memory.0,
            client_bytes_max: clients as usize,
            objects_max: keys / OBJECT_BYTES / machine.partitions,
        })
    }

    /// Bytes of the longest command that is held in memory: one that comes in last, when clients hold half of
    /// what they may ([`crate::core`]), fits with what came in above that meanwhile.
    #[must_use]
    pub fn command_bytes_max(&self) -> usize {
        QUERY_BUFFER_BYTES_MAX.min(self.client_bytes_max / 8 * 3)
    }

    /// Bytes of the longest reply that is made whole before any of it leaves: it fits beside the longest
    /// command.
    #[must_use]
    pub fn reply_bytes_max(&self) -> usize {
        WHOLE_REPLY_BYTES_MAX.min(self.client_bytes_max / 2)
    }

    /// Looks whether the keys that are there have memory.
    ///
    /// # Errors
    /// They are more than the number allows: in words, with how much would do.
    pub fn check(&self, objects: u64, partitions: u64) -> Result<(), String> {
        let objects_max = self.objects_max.saturating_mul(partitions);
        if objects <= objects_max {
            return Ok(());
        }
        let lacking = (objects - objects_max) * OBJECT_BYTES;
        // A third of what is added may become the clients'.
        let more_mib = (lacking + lacking / 2).div_ceil(1 << 20);
        Err(format!(
            "memory: the device holds {objects} objects, and {} leave room for the index of {objects_max}: \
             {more_mib}MiB more are needed",
            Size(self.memory_bytes)
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MACHINE: Machine = Machine {
        cores: 2,
        partitions: 4,
        segment_bytes: 4 << 20,
        clients_max: 10_000,
        mark_bytes: 1 << 20,
        slow_log_max: 128,
        tls: false,
    };
    const CACHE: Size = Size(64 << 20);

    fn shares() -> Shares {
        Shares::new(Some(CACHE), Some(Size(8 << 20))).unwrap()
    }

    fn least(shares: &Shares, machine: &Machine) -> u64 {
        let error = Budget::divide(Some(Size(1)), shares, machine).unwrap_err();
        let mib = error.rsplit(' ').next().unwrap().strip_suffix("MiB").unwrap();
        mib.parse::<u64>().unwrap() << 20
    }

    #[test]
    fn the_shares_fit_and_are_worth_having() {
        for tls in [false, true] {
            for cores in [1, 2, 16, 64] {
                let machine = Machine { cores, tls, ..MACHINE };
                let least = least(&shares(), &machine);
                for memory in [least, least + 1, 2 * least, 10 * least, 100 * least] {
                    let budget = Budget::divide(Some(Size(memory)), &shares(), &machine).unwrap();
                    let clients = cores * budget.client_bytes_max as u64;
                    let keys = budget.objects_max * machine.partitions * OBJECT_BYTES;
                    assert!(clients * 3 / 2 + keys + CACHE.0 < memory, "{budget:?}");
                    assert!(budget.client_bytes_max as u64 >= CLIENT_BYTES_MIN, "{budget:?}");
                    assert!(budget.objects_max * machine.partitions >= OBJECTS_MIN - 64, "{budget:?}");
                    assert!(budget.client_bytes_max <= CLIENT_BYTES_MAX);
                    assert!(
                        memory < 100 * least || keys > memory / 10 * 8,
                        "the rest is for keys: {budget:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn what_is_said_to_do_does() {
        let least = least(&shares(), &MACHINE);
        let words = Budget::divide(Some(Size(least - (1 << 20))), &shares(), &MACHINE).unwrap_err();
        assert!(words.starts_with("memory: ") && words.contains("are too few"), "{words}");
        let budget = Budget::divide(Some(Size(least)), &shares(), &MACHINE).unwrap();
        assert_eq!(budget.check(budget.objects_max * 4, 4), Ok(()));
        let objects = budget.objects_max * 4 + 50_000_000;
        let words = budget.check(objects, 4).unwrap_err();
        let more = words.rsplit(' ').nth(3).unwrap().strip_suffix("MiB").unwrap();
        let more = more.parse::<u64>().unwrap_or_else(|_| panic!("{words}")) << 20;
        let larger = Budget::divide(Some(Size(least + more)), &shares(), &MACHINE).unwrap();
        assert_eq!(larger.check(objects, 4), Ok(()));
    }

    /// It had been refused with a larger one, and so on.
    #[test]
    fn what_is_said_to_do_does_though_the_shares_grow_with_it() {
        for cores in [1, 2, 16, 64] {
            let machine = Machine { cores, ..MACHINE };
            let given = [(None, None), (Some(CACHE), None), (None, Some(Size(0))), (Some(Size(0)), None)];
            for (cache, known_keys) in given {
                let shares = Shares::new(cache, known_keys).unwrap();
                let least = least(&shares, &machine);
                Budget::divide(Some(Size(least)), &shares, &machine).unwrap();
                let words = Budget::divide(Some(Size(least - (1 << 20))), &shares, &machine).unwrap_err();
                assert!(words.ends_with(&format!("at least {}MiB", least >> 20)), "{words}");
            }
        }
    }

    #[test]
    fn without_a_number_nothing_changes() {
        let budget = Budget::divide(None, &shares(), &MACHINE).unwrap();
        assert_eq!(budget, Budget::NOT_GIVEN);
        assert_eq!(budget.check(1 << 40, 4), Ok(()));
    }
}
