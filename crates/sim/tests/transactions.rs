//! Worlds of transactions: no seed breaks a rule, and a seed is a run.

use plimsoll_sim::transactions::{run, run_seed};

#[test]
fn three_hundred_seeds_break_no_rule() {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let totals = run(0..300, threads, true);
    assert!(totals.violations.is_empty(), "{:#?}", totals.violations);
    assert!(totals.transactions > 20_000 && totals.crashes > 1000 && totals.crashes_in_recovery > 100);
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in 40..44 {
        assert_eq!(run_seed(seed, true), run_seed(seed, true), "seed {seed}");
    }
}
