//! The simulator proves itself: every planted bug of engine and cache is caught within [`SEEDS`] seeds.
//!
//! A checker that finds nothing says nothing until it has been seen to find something. Each bug in
//! `plimsoll_flash::planted` breaks one rule of the engine, each of `plimsoll_cache` one of the cache; worlds
//! run with it, seed after seed, until a rule is broken. A panic of the product's own assertions counts: the
//! world reports it as one.
//!
//! Needs the feature `planted`, with which `make test` builds all tests; alone it is
//! `cargo test --workspace --features plimsoll-sim/planted --test planted`.

use plimsoll_flash::planted::Bug;
use plimsoll_sim::fuzz::run_seed;
use plimsoll_sim::transactions;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// A bug has to be caught in so many seeds. The rarest is seen in one of some 300: a hit of the cache while a
/// transaction holds the key.
const SEEDS: u64 = 500;

/// Bugs of transactions: worlds of their own.
const OF_TRANSACTIONS: [Planted; 4] = [
    Planted::Engine(Bug::EarlyPrepare),
    Planted::Engine(Bug::HastyAbort),
    Planted::Engine(Bug::EarlyRelease),
    Planted::Cache(plimsoll_cache::Bug::HitWhileHeld),
];

/// A bug, by the crate that it is planted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Planted {
    Engine(Bug),
    Cache(plimsoll_cache::Bug),
}

fn plant(planted: Option<Planted>) {
    plimsoll_kv::planted::plant(planted.map(|planted| match planted {
        Planted::Engine(bug) => bug.into(),
        Planted::Cache(bug) => bug.into(),
    }));
}

/// The first seed in which a bug is caught, and how.
fn hunt(bug: Planted) -> Option<(u64, String)> {
    plant(Some(bug));
    let caught = (0..SEEDS).find_map(|seed| {
        if OF_TRANSACTIONS.contains(&bug) {
            return transactions::run_seed(seed, false).violation.map(|text| (seed, text));
        }
        let violation = run_seed(seed, false).violation?;
        let explanation = violation.explanation.lines().next().unwrap_or_default().to_owned();
        Some((seed, format!("{}: {explanation}", violation.rule)))
    });
    plant(None);
    caught
}

#[test]
fn every_planted_bug_is_caught() {
    let engine = Bug::ALL.into_iter().map(Planted::Engine);
    let all: Vec<Planted> = engine.chain(plimsoll_cache::Bug::ALL.into_iter().map(Planted::Cache)).collect();
    let next = AtomicUsize::new(0);
    let missed = Mutex::new(Vec::new());
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(all.len());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            // The switch is the thread's: a bug and all of its worlds stay on one.
            scope.spawn(|| {
                while let Some(&bug) = all.get(next.fetch_add(1, SeqCst)) {
                    match hunt(bug) {
                        Some((seed, text)) => println!("{bug:?}: seed {seed}: {text}"),
                        None => missed.lock().expect("no hunt panics").push(bug),
                    }
                }
            });
        }
    });
    let missed = missed.into_inner().expect("no hunt panics");
    assert!(missed.is_empty(), "not caught in {SEEDS} seeds: {missed:?}");
}
