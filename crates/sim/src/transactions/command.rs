//! `plimsoll sim fuzz --transactions`: what many seeds came to, as a table and an exit code.
//!
//! Place: called by the command line; `seeds` runs them. Never: it decides nothing about a seed.

use super::world::{Report, run_seed};
use crate::seeds::{self, Say, Sum};
use std::ops::Range;

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
    /// Keys that were evicted.
    pub evicted: u64,
    /// Seeds that ended early for it.
    pub ended_early: u64,
    /// Seeds in which a rule was broken, and how.
    pub violations: Vec<(u64, String)>,
}

impl Sum for Totals {
    type Report = Report;

    fn run_seed(seed: u64) -> Report {
        run_seed(seed, false)
    }

    fn add(&mut self, report: Report) {
        self.seeds += 1;
        self.transactions += report.transactions;
        self.crashes += report.crashes;
        self.crashes_in_recovery += report.crashes_in_recovery;
        self.evicted += report.evicted;
        self.ended_early += u64::from(report.has_lost_evidence);
        self.violations.extend(report.violation.map(|text| (report.seed, text)));
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
        "{ran}: {} transactions, {} crashes, {} of them during recovery; {} keys evicted, {} worlds ended early \
         as one of those was what they are judged by",
        totals.transactions, totals.crashes, totals.crashes_in_recovery, totals.evicted, totals.ended_early,
    ));
    seeds::tell_violations(&totals.violations, "--transactions ", say);
    totals
}

/// Tells what happens in a seed, in order; true if no rule was broken.
#[must_use]
pub fn tell_trace(seed: u64, say: &Say) -> bool {
    let report = run_seed(seed, true);
    seeds::tell_seed(seed, &report.trace, report.violation.as_deref(), say)
}
