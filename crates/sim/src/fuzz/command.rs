//! `plimsoll sim fuzz`: many seeds, on all processors, with progress, a table and an exit code.
//!
//! Place: called by the command line. Invariants: seeds are independent; what is printed of a seed
//! does not depend on how many run beside it. Never: it decides nothing about a seed.

use super::ledger::WriteCounts;
use super::paths::{NO_BYTES, PATHS, fault_name};
use super::world::{SeedReport, run_seed};
use plimsoll_reactor::sim::{Fault, FaultCounts};
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Instant;

/// A progress line stands after so many seeds.
const PROGRESS_SEEDS: u64 = 1000;

/// What a run over many seeds came to.
#[derive(Debug, Default)]
pub struct Totals {
    /// Seeds that ran.
    pub seeds: u64,
    /// Operations begun.
    pub operations: u64,
    /// Power losses and deaths of the server.
    pub crashes: u64,
    /// Those while it was recovering.
    pub crashes_in_recovery: u64,
    /// Faults by kind and write path.
    pub faults: FaultCounts,
    /// Writes by path.
    pub writes: WriteCounts,
    /// Seeds in which a rule was broken: seed, class and what happened.
    pub violations: Vec<(u64, String)>,
}

impl Totals {
    fn add(&mut self, report: SeedReport) {
        self.seeds += 1;
        for era in &report.eras {
            self.operations += era.tally.operations;
            self.crashes += era.crashes;
            self.crashes_in_recovery += era.crashes_in_recovery;
            for (fault, count) in &era.faults {
                *self.faults.entry(*fault).or_default() += count;
            }
            for (path, count) in &era.writes {
                *self.writes.entry(path).or_default() += count;
            }
        }
        if let Some(violation) = report.violation {
            let text = format!("{:?}: {}: {}", report.class, violation.rule, violation.explanation);
            self.violations.push((report.seed, text));
        }
    }
}

/// Runs seeds on `threads` threads; stops at the first violation unless told to go on.
pub fn run(seeds: Range<u64>, threads: usize, go_on: bool, progress: impl Fn(u64) + Sync) -> Totals {
    let next = AtomicU64::new(seeds.start);
    let stop = AtomicBool::new(false);
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
                    let mut totals = totals.lock().expect("worlds keep their panics to themselves");
                    totals.add(report);
                    if totals.seeds.is_multiple_of(PROGRESS_SEEDS) {
                        progress(totals.seeds);
                    }
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
    let (start, count) = (Instant::now(), seeds.end - seeds.start);
    let totals = run(seeds, threads, go_on, |done| {
        println!("{done} of {count} seeds, {:.1} s", start.elapsed().as_secs_f64());
    });
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{} seeds in {seconds:.1} s ({:.0} a second on {threads} threads): {} operations, {} crashes, {} of them during recovery",
        totals.seeds,
        totals.seeds as f64 / seconds,
        totals.operations,
        totals.crashes,
        totals.crashes_in_recovery,
    );
    for (path, count) in &totals.writes {
        println!("  {count:>8} writes {path}");
    }
    print_faults(&totals);
    for (seed, text) in &totals.violations {
        println!("seed {seed}: {text}");
        println!("replay it with: plimsoll sim fuzz --seeds {seed}..{} --trace", seed + 1);
    }
    totals
}

/// Prints what happens in a seed, in order; true if no rule was broken.
#[must_use]
pub fn print_trace(seed: u64) -> bool {
    let report = run_seed(seed, true);
    report.trace.iter().for_each(|line| println!("{line}"));
    match report.violation {
        None => println!("seed {seed}: no rule was broken"),
        Some(ref violation) => println!("seed {seed}: {}: {}", violation.rule, violation.explanation),
    }
    report.violation.is_none()
}

impl Totals {
    /// The faults that could strike a write path, or an operation without bytes, and never did.
    #[must_use]
    pub fn never(&self) -> Vec<(Fault, &'static str)> {
        const ON_WRITES: [Fault; 6] = [
            Fault::Lost,
            Fault::Torn,
            Fault::Reordered,
            Fault::Misdirected,
            Fault::BitFlip,
            Fault::WriteError,
        ];
        const ON_OTHERS: [Fault; 3] = [Fault::ReadError, Fault::FlushError, Fault::Slow];
        let on_path = |(path, impossible): &(&'static str, &'static [Fault])| {
            let (path, impossible) = (*path, *impossible);
            ON_WRITES
                .into_iter()
                .filter(move |fault| !impossible.contains(fault))
                .map(move |fault| (fault, path))
        };
        let possible = PATHS.iter().flat_map(on_path).chain(ON_OTHERS.map(|fault| (fault, NO_BYTES)));
        possible.filter(|strike| !self.faults.contains_key(strike)).collect()
    }
}

/// Faults by kind and write path; those that never struck are named.
fn print_faults(totals: &Totals) {
    for ((fault, path), count) in &totals.faults {
        println!("  {count:>8} {} {path}", fault_name(*fault));
    }
    let never = totals.never();
    for (fault, path) in &never {
        println!("  never: {} {path}", fault_name(*fault));
    }
    if never.is_empty() {
        println!("every fault struck every write path that it can strike");
    }
}
