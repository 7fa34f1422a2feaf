//! Filling a new device: beside block RAID, and beside clients.
//!
//! Role: what a rebuild of live data alone takes, and what it costs those who are served meanwhile. Place:
//! `plimsoll sim run kvmd-rebuild`, `kvmd-rebuild-load`.
//!
//! Invariants: a block RAID copies all of a device, whatever of it is used; clients come when they come
//! (an open loop, as Poisson has it), and a latency begins when they do.

use super::device::{Kind, Model, Modelled};
use super::kvmd::{DEVICES, KIB, Keys, Setup, conditions, done, joining, options, policies, run, scattered};
use super::raid::{Level, rebuild_ns};
use super::{MODELS, Report, Table};
use plimsoll_array::{Joining, MemberState, Policy};
use plimsoll_reactor::{Reactor, Work};
use rand_core::{RngCore, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use std::cell::RefCell;
use std::rc::Rc;

/// Bytes of values that an array holds that is compared with block RAID.
const COMPARED_BYTES: u64 = 60_000 * 4 * KIB;
/// Copies that fill a device, of which the shares are taken.
const COPIES: u64 = 3;
const FILLS: [u64; 4] = [100, 50, 25, 10];
/// Keys of what clients feel, and operations of each without a rebuild.
const KEYS: u64 = 20_000;
const ALONE: u64 = 3;
/// Requests that wait at once at most: with more of them the array does not keep up.
const WAITING_MAX: u64 = 50_000;
/// Rates of a rebuild, in hundredths of what one device writes.
const RATES: [u64; 4] = [2, 10, 25, 0];

impl Setup {
    /// Puts an empty device in the place of one, and rebuilds it.
    async fn replace(&mut self, model: Model, member: usize) {
        let fresh = Modelled::new(&self.reactor, model);
        let joining = Joining { id: [100 + member as u8; 16], ..joining(member, &fresh) };
        self.array().replace(member, joining).await.expect("others are in");
        self.devices[member] = fresh;
    }

    fn is_in(&self, member: usize) -> bool {
        self.array().status().members[member].state == MemberState::In
    }
}

/// K5: the array's rebuild beside those of block RAID, on devices that the same data fills more or less.
pub(super) fn beside_raid(seed: u64) -> Report {
    let each = MODELS.into_iter().flat_map(|model| [4 * KIB, 64 * KIB].map(|bytes| (model, bytes)));
    let tables = each.map(|(model, bytes)| raid_table(model, bytes, seed)).collect();
    let conditions = format!(
        "{}; block RAID: which requests it makes, {} MiB of values as here, all of the device in pieces of 256 KiB",
        conditions(),
        COMPARED_BYTES >> 20
    );
    Report { seed, conditions, tables }
}

fn raid_table(model: Model, value_bytes: u64, seed: u64) -> Table {
    let count = COMPARED_BYTES / value_bytes;
    let arrays: Vec<(&str, f64)> = policies()
        .into_iter()
        .skip(1)
        .map(|(name, policy)| {
            (name, run(|reactor| rebuilt_ms(reactor, model, policy.clone(), (count, value_bytes, seed))))
        })
        .collect();
    let levels = [("mirror", Level::Mirror), ("raid5", Level::Raid5), ("raid6", Level::Raid6)];
    let row = |fill: u64| {
        let device_bytes = COMPARED_BYTES * COPIES / DEVICES as u64 * 100 / fill;
        let blocks = levels.map(|(_, level)| rebuild_ns(model, level, device_bytes) as f64 / 1e6);
        let all = arrays.iter().map(|(_, ms)| *ms).chain(blocks).collect();
        (format!("{fill} % full"), all)
    };
    let names = arrays.iter().map(|(name, _)| *name).chain(levels.map(|(name, _)| name));
    let columns: Vec<String> = std::iter::once("ms".to_owned()).chain(names.map(str::to_owned)).collect();
    Table {
        title: format!(
            "rebuild, ms: values of {} KiB; {model}; full: if there were three copies",
            value_bytes / KIB
        ),
        plotted: (0..columns.len() - 1).collect(),
        columns,
        rows: FILLS.map(row).into(),
    }
}

async fn rebuilt_ms(
    reactor: Reactor,
    model: Model,
    policy: Policy,
    (count, value_bytes, seed): (u64, u64, u64),
) -> f64 {
    let keys = Keys { seed };
    let mut setup = Setup::new(&reactor, model, Some(options(policy, 0))).await;
    setup.measure(count, |number| keys.store(number, value_bytes)).await;
    let start_ns = reactor.now_ns();
    setup.replace(model, 0).await;
    while !setup.is_in(0) {
        reactor.sleep_ns(100_000).await;
    }
    (reactor.now_ns() - start_ns) as f64 / 1e6
}

/// What clients at half of what the array can feel of a rebuild.
pub(super) fn beside_load(seed: u64) -> Report {
    let each = MODELS.into_iter().flat_map(|model| policies().into_iter().skip(1).map(move |it| (model, it)));
    let tables = each.map(|(model, (name, policy))| load_table(model, name, &policy, seed)).collect();
    let conditions = format!(
        "{}; {KEYS} values of 4 KiB, as many retrieves as updates, half of what 384 clients reach in a closed loop, \
         in an open loop; the limit: what the rebuild copies, as a part of what one device writes",
        conditions()
    );
    Report { seed, conditions, tables }
}

fn load_table(model: Model, name: &str, policy: &Policy, seed: u64) -> Table {
    let device_bytes_per_s = 4.0 * KIB as f64 * 1e9 / model.cost_ns(1.0, 4.0 * KIB as f64);
    let row = |percent: u64| {
        let rate = (device_bytes_per_s * percent as f64 / 100.0) as u64;
        let row = run(|reactor| loaded(reactor, model, (policy.clone(), rate), (Keys { seed }, KEYS)));
        let limit = if percent == 0 { "no limit".to_owned() } else { format!("limit {percent} %") };
        (limit, row)
    };
    let columns =
        ["rebuild", "p99 alone us", "p99 beside us", "ratio", "p99 one out us", "median ratio", "rebuild ms"];
    Table {
        title: format!("{name}; {model}: times of clients without a rebuild and beside it"),
        columns: columns.map(str::to_owned).to_vec(),
        rows: RATES.map(row).into(),
        plotted: vec![2],
    }
}

async fn loaded(
    reactor: Reactor,
    model: Model,
    (policy, rate): (Policy, u64),
    (keys, count): (Keys, u64),
) -> Vec<f64> {
    let mut setup = Setup::new(&reactor, model, Some(options(policy, rate))).await;
    setup.measure(count, |number| keys.store(number, 4 * KIB)).await;
    let op = move |number: u64| match number % 2 {
        0 => keys.retrieve(scattered(number / 2, count)),
        _ => keys.store(scattered(number * 31, count), 4 * KIB),
    };
    let per_s = setup.measure(count, op).await.per_s / 2.0;
    let arrivals = RefCell::new(Xoshiro256PlusPlus::seed_from_u64(keys.seed));
    let gap_ns = || {
        let share = (arrivals.borrow_mut().next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        (-(1.0 - share).ln() * 1e9 / per_s) as u64
    };
    let alone = setup.open_loop(gap_ns, op, |number| number < ALONE * count).await;
    let start_ns = reactor.now_ns();
    setup.replace(model, 0).await;
    let beside = setup.open_loop(gap_ns, op, |_| !setup.is_in(0)).await;
    let took_ns = reactor.now_ns() - start_ns;
    setup.array().take_out(1, "for the experiment");
    reactor.sleep_ns(1_000_000_000).await;
    let out = setup.open_loop(gap_ns, op, |number| number < ALONE * count).await;
    let us = |times: &[u64], hundredth: usize| times[times.len() * hundredth / 100] as f64 / 1000.0;
    let (p99_alone, p99_beside) = (us(&alone, 99), us(&beside, 99));
    let medians = us(&beside, 50) / us(&alone, 50);
    vec![p99_alone, p99_beside, p99_beside / p99_alone, us(&out, 99), medians, took_ns as f64 / 1e6]
}

impl Setup {
    /// Operations that come after gaps, until they need not; the latencies of all, in order.
    async fn open_loop(
        &self,
        gap_ns: impl Fn() -> u64,
        op: impl Fn(u64) -> plimsoll_kv::Op,
        goes_on: impl Fn(u64) -> bool,
    ) -> Vec<u64> {
        let (times, mut number, mut due_ns) =
            (Rc::new(RefCell::new(Vec::<u64>::new())), 0, self.reactor.now_ns());
        while goes_on(number) {
            let waiting = number - times.borrow().len() as u64;
            assert!(waiting < WAITING_MAX, "the array does not keep up: {waiting} of {number} wait");
            due_ns += gap_ns();
            self.reactor.sleep_until(due_ns).await;
            let (device, times, reactor, op) =
                (self.device(), times.clone(), self.reactor.clone(), op(number));
            self.reactor.spawn(Work::Kv, async move {
                done(&device, op).await;
                times.borrow_mut().push(reactor.now_ns() - due_ns);
            });
            number += 1;
        }
        while (times.borrow().len() as u64) < number {
            self.reactor.sleep_ns(1_000_000).await;
        }
        let mut times = times.take();
        times.sort_unstable();
        times
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bar of a rebuild beside clients: what is packed asks several devices for each value, and the limit
    /// is by bytes.
    #[test]
    fn a_rebuild_of_a_tenth_or_of_packed_values_of_a_fiftieth_is_hardly_felt() {
        for (name, policy) in policies().into_iter().skip(1) {
            let model = MODELS[1];
            let part = if name == "packing 4+2" { 0.02 } else { 0.1 };
            let rate = (part * 4.0 * KIB as f64 * 1e9 / model.cost_ns(1.0, 4.0 * KIB as f64)) as u64;
            let row = run(|reactor| loaded(reactor, model, (policy.clone(), rate), (Keys { seed: 1 }, 3000)));
            assert!(row[2] < 1.5, "{name}: {row:?}");
        }
    }
}
