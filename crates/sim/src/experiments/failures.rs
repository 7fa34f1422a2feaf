//! What is left when devices fail: reads without one and two of them, and filling new ones.
//!
//! Role: what every mechanism gives without devices, at once and when it has been read for a while, and how
//! long it takes to fill a new device beside what that needs to write. Place: `plimsoll sim run
//! kvmd-failures`.

use super::device::{Kind, Model, Modelled};
use super::kvmd::{KIB, Keys, Setup, conditions, joining, options, policies, run, scattered};
use super::{MODELS, Report, Table};
use plimsoll_array::{Joining, MemberState, Policy};
use plimsoll_reactor::Reactor;

/// Keys that a new device is filled from: so many that what is the same for any number does not count.
const KEYS: u64 = 60_000;

/// K5, and reads without one and two devices.
pub(super) fn failures(seed: u64) -> Report {
    let mut tables = Vec::new();
    for model in MODELS {
        let mut rows = Vec::new();
        for (name, policy) in policies().into_iter().skip(1) {
            let row = run(move |reactor| failing(reactor, model, policy.clone(), (KEYS, Keys { seed })));
            rows.push((name.to_owned(), row));
        }
        let columns = [
            "mechanism",
            "one out: at first",
            "in the end",
            "two out: at first",
            "in the end",
            "rebuild ms",
            "its writes ms",
            "ratio",
        ];
        let title = format!(
            "{KEYS} values of 4 KiB; {model}; retrieves, share of all in: every value once, and once \
             more when hardly any is kept any more by those who read; its writes: what the new device needs to \
             write its share, alone"
        );
        tables.push(Table {
            title,
            columns: columns.map(str::to_owned).to_vec(),
            rows,
            plotted: vec![0, 1, 2, 3, 6],
        });
    }
    Report { seed, conditions: conditions(), tables }
}

async fn failing(reactor: Reactor, model: Model, policy: Policy, (count, keys): (u64, Keys)) -> Vec<f64> {
    let mut setup = Setup::new(&reactor, model, Some(options(policy, 0))).await;
    setup.measure(count, |number| keys.store(number, 4 * KIB)).await;
    let array = setup.array();
    let retrieve =
        async || setup.measure(count, |number| keys.retrieve(scattered(number, count))).await.per_s;
    let all_in = retrieve().await;
    let mut shares = Vec::new();
    for member in [0, 1] {
        array.take_out(member, "for the experiment");
        reactor.sleep_ns(1_000_000_000).await;
        shares.push(retrieve().await / all_in);
        // As long as a good many of those that are read are kept behind their stubs.
        let mut kept = 0;
        while array.status().values_kept > kept + count / 2000 {
            kept = array.status().values_kept;
            retrieve().await;
        }
        shares.push(retrieve().await / all_in);
    }
    for member in [1, 0] {
        let fresh = Modelled::new(&reactor, model);
        let start_ns = reactor.now_ns();
        let joining = Joining { id: [100 + member as u8; 16], ..joining(member, &fresh) };
        array.replace(member, joining).await.expect("others are in");
        while array.status().members[member].state != MemberState::In {
            reactor.sleep_ns(1_000_000).await;
        }
        setup.devices[member] = fresh;
        if member == 0 {
            let took_ns = (reactor.now_ns() - start_ns) as f64;
            let stored = setup.stored(member).await;
            let writes_ns = model.cost_ns(stored.keys as f64, stored.bytes as f64);
            let ms = 1e6;
            return [shares.as_slice(), &[took_ns / ms, writes_ns / ms, took_ns / writes_ns]].concat();
        }
    }
    unreachable!("two members were filled")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_left_does_the_work_and_a_new_device_is_filled_as_fast_as_it_writes() {
        for (name, policy) in policies().into_iter().skip(1) {
            let row =
                run(move |reactor| failing(reactor, MODELS[1], policy.clone(), (10_000, Keys { seed: 1 })));
            // A packed value without its device takes five requests, one of each of the others; kept behind a
            // stub one, of those that have stubs.
            let is_packed = name == "packing 4+2";
            let (one_out, two_out) = if is_packed { (0.5, 0.3) } else { (0.7, 0.6) };
            let (one_kept, two_kept) = if is_packed { (0.65, 0.49) } else { (one_out, two_out) };
            assert!(row[0] > one_out && row[2] > two_out, "{name}: {row:?}");
            assert!(row[1] > one_kept && row[3] > two_kept, "{name}: {row:?}");
            assert!(row[6] <= 1.3, "{name}: {row:?}");
        }
    }
}
