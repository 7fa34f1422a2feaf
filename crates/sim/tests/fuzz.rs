//! Fault worlds as a test: two hundred seeds without a broken rule, and the same seed twice gives the
//! same run, byte for byte.
//!
//! `make sim SEEDS=10000` runs more; there every fault also has to strike every write path.

use plimsoll_sim::fuzz::{CLASSES, run, run_seed};

const SEEDS: u64 = 200;
/// Every class of faults once, and twice more.
const REPEATED: u64 = 3 * CLASSES.len() as u64;

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

#[test]
fn two_hundred_seeds_break_no_rule() {
    let totals = run(0..SEEDS, threads(), false);
    if let Some((seed, text)) = totals.violations.first() {
        panic!("seed {seed}: {text}\nreplay it with: plimsoll sim fuzz --seeds {seed}..{} --trace", seed + 1);
    }
    assert_eq!(totals.seeds, SEEDS);
    assert!(totals.crashes > SEEDS && totals.crashes_in_recovery > 0, "too few crashes: {totals:?}");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in 1000..1000 + REPEATED {
        let (first, second) = (run_seed(seed, true), run_seed(seed, true));
        let differs = first.trace.iter().zip(&second.trace).find(|(one, other)| one != other);
        assert_eq!(differs, None, "seed {seed} differs");
        assert!(!first.trace.is_empty() && first == second, "seed {seed} ends differently");
        // What is written down does not change what happens.
        assert_eq!(run_seed(seed, false).trace_hash, first.trace_hash, "seed {seed} minds its trace");
    }
}
