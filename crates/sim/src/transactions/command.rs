//! `plimsoll sim fuzz --transactions`: many seeds, on all processors, with a table and an exit code.
//!
//! Place: called by the command line. Never: it decides nothing about a seed.

use super::world::{Report, run_seed};
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Instant;

/// What a run over many seeds came to.
#[derive(Debug, Default)]
pub struct Totals {
    /// Seeds that ran.
    pub seeds: u64,
    /// Transactions that were judged.
    pub transactions: u64,
    /// Ends of the server that it did not choose.
    pub crashes: u64,
    /// Those while it was recovering.
    pub crashes_in_recovery: u64,
    /// Seeds in which a rule was broken, and how.
    pub violations: Vec<(u64, String)>,
}

impl Totals {
    fn add(&mut self, report: Report) {
        self.seeds += 1;
        self.transactions += report.transactions;
        self.crashes += report.crashes;
        self.crashes_in_recovery += report.crashes_in_recovery;
        self.violations.extend(report.violation.map(|text| (report.seed, text)));
    }
}

/// Runs seeds on `threads` threads; stops at the first violation unless told to go on.
#[must_use]
pub fn run(seeds: Range<u64>, threads: usize, go_on: bool) -> Totals {
    let (next, stop) = (AtomicU64::new(seeds.start), AtomicBool::new(false));
    let totals = Mutex::new(Totals::default());
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                while !stop.load(SeqCst) {
                    let seed = next.fetch_add(1, SeqCst);
                    if seed >= seeds.end {
                        return;
                    }
                    let report = run_seed(seed, false);
                    if report.violation.is_some() && !go_on {
                        stop.store(true, SeqCst);
                    }
                    totals.lock().expect("worlds keep their panics to themselves").add(report);
                }
            });
        }
    });
    let mut totals = totals.into_inner().expect("worlds keep their panics to themselves");
    totals.violations.sort();
    totals
}

/// The command: runs seeds on all processors and prints what happened.
#[allow(clippy::disallowed_methods, reason = "seeds a second are measured in real time, outside the worlds")]
#[must_use]
pub fn command(seeds: Range<u64>, go_on: bool) -> Totals {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let start = Instant::now();
    let totals = run(seeds, threads, go_on);
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{} seeds in {seconds:.1} s ({:.0} a second on {threads} threads): {} transactions, {} crashes, {} of them during recovery",
        totals.seeds,
        totals.seeds as f64 / seconds,
        totals.transactions,
        totals.crashes,
        totals.crashes_in_recovery,
    );
    for (seed, text) in &totals.violations {
        println!("seed {seed}: {text}");
        println!("replay it with: plimsoll sim fuzz --transactions --seeds {seed}..{} --trace", seed + 1);
    }
    totals
}

/// Prints what happens in a seed, in order; true if no rule was broken.
#[must_use]
pub fn print_trace(seed: u64) -> bool {
    let report = run_seed(seed, true);
    report.trace.iter().for_each(|line| println!("{line}"));
    let told = report.violation.as_deref().unwrap_or("no rule was broken");
    println!("seed {seed}: {told}");
    report.violation.is_none()
}
