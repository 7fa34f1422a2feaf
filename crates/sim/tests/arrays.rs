//! Fault worlds over arrays as a test: no seed breaks a rule, whatever happens to members, and a seed is a
//! run.
//!
//! `make sim SEEDS=10000` runs more.

use plimsoll_sim::fuzz::arrays::{run, run_seed};

const SEEDS: u64 = 60;

#[test]
fn no_seed_breaks_a_rule() {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let totals = run(0..SEEDS, threads, true);
    assert!(totals.all.violations.is_empty(), "{:#?}", totals.all.violations);
    let it = totals.members;
    let all = [it.failed, it.missing, it.returned, it.formatted, it.replaced, it.reopened, it.rebuilt];
    assert!(all.iter().all(|count| *count > SEEDS / 3), "too little happens to members: {it:?}");
    assert!(totals.all.crashes > 2 * SEEDS && totals.all.crashes_in_recovery > 0, "too few crashes");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in 1000..1004 {
        let (first, second) = (run_seed(seed, true), run_seed(seed, true));
        let differs = first.trace.iter().zip(&second.trace).find(|(one, other)| one != other);
        assert_eq!(differs, None, "seed {seed} differs");
        assert!(!first.trace.is_empty() && first == second, "seed {seed} ends differently");
    }
}

/// They waited at their opening for a transaction that holds everything until the other partitions are open.
#[test]
fn arrays_open_though_a_transaction_of_several_partitions_holds_everything() {
    let totals = [420, 534, 1687].map(|seed| run(seed..seed + 1, 1, true));
    for totals in totals {
        assert!(totals.all.violations.is_empty(), "{:#?}", totals.all.violations);
    }
}
