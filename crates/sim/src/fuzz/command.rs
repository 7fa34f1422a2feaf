//! `plimsoll sim fuzz`: what many seeds came to, as a table and an exit code.
//!
//! Place: called by the command line; `seeds` runs them. Never: it decides nothing about a seed.

use super::ledger::WriteCounts;
use super::paths::{NO_BYTES, PATHS, fault_name};
use super::world::{SeedReport, run_seed};
use crate::seeds::{self, Say, Sum};
use plimsoll_reactor::sim::{Fault, FaultCounts};
use std::ops::Range;

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

impl Sum for Totals {
    type Report = SeedReport;

    fn run_seed(seed: u64) -> SeedReport {
        run_seed(seed, false)
    }

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

    fn seeds(&self) -> u64 {
        self.seeds
    }

    fn violations(&mut self) -> &mut Vec<(u64, String)> {
        &mut self.violations
    }
}

/// Runs seeds on `threads` threads; stops at the first violation unless told to go on.
#[must_use]
pub fn run(seeds: Range<u64>, threads: usize, go_on: bool) -> Totals {
    seeds::run(seeds, threads, go_on, |_| {})
}

/// The command: runs seeds on all processors and tells what happened.
#[must_use]
pub fn command(seeds: Range<u64>, go_on: bool, say: &Say) -> Totals {
    let (totals, ran): (Totals, _) = seeds::run_on_all_processors(seeds, go_on, say);
    say(format_args!(
        "{ran}: {} operations, {} crashes, {} of them during recovery",
        totals.operations, totals.crashes, totals.crashes_in_recovery,
    ));
    for (path, count) in &totals.writes {
        say(format_args!("  {count:>8} writes {path}"));
    }
    tell_faults(&totals, say);
    seeds::tell_violations(&totals.violations, "", say);
    totals
}

/// Tells what happens in a seed, in order; true if no rule was broken.
#[must_use]
pub fn tell_trace(seed: u64, say: &Say) -> bool {
    let report = run_seed(seed, true);
    let told = report.violation.map(|violation| format!("{}: {}", violation.rule, violation.explanation));
    seeds::tell_seed(seed, &report.trace, told.as_deref(), say)
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
fn tell_faults(totals: &Totals, say: &Say) {
    for ((fault, path), count) in &totals.faults {
        say(format_args!("  {count:>8} {} {path}", fault_name(*fault)));
    }
    let never = totals.never();
    for (fault, path) in &never {
        say(format_args!("  never: {} {path}", fault_name(*fault)));
    }
    if never.is_empty() {
        say(format_args!("every fault struck every write path that it can strike"));
    }
}
