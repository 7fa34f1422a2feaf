//! `plimsoll sim fuzz --arrays`: fault worlds whose devices are arrays, and what many seeds came to.
//!
//! Place: called by the command line; `seeds` runs them. A world is as every fault world, over several disks
//! of which some fail, go away and come back (`members`); the judges are the same, and excuse no error at
//! all.
//!
//! Never: it decides nothing about a seed.

use super::command::Totals as AllTotals;
use super::members::MemberCounts;
use super::world::{SeedReport, run_array_seed};
use crate::seeds::{self, Say, Sum};
use std::ops::Range;

pub use super::world::run_array_seed as run_seed;

/// What a run over many seeds came to.
#[derive(Debug, Default)]
pub struct Totals {
    /// As of all worlds.
    pub all: AllTotals,
    /// What happened to members.
    pub members: MemberCounts,
}

impl Sum for Totals {
    type Report = SeedReport;

    fn run_seed(seed: u64) -> SeedReport {
        run_array_seed(seed, false)
    }

    fn add(&mut self, report: SeedReport) {
        for era in &report.eras {
            self.members.add(&era.members);
        }
        self.all.add(report);
    }

    fn seeds(&self) -> u64 {
        self.all.seeds
    }

    fn violations(&mut self) -> &mut Vec<(u64, String)> {
        &mut self.all.violations
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
    let Totals { all, members } = &totals;
    say(format_args!(
        "{ran}: {} operations, {} crashes, {} of them during recovery",
        all.operations, all.crashes, all.crashes_in_recovery,
    ));
    say(format_args!(
        "members: {} failed, {} missing for a life, {} came back as they were, {} formatted anew, {} replaced, \
         {} put back to an earlier time, {} opened anew while they were served; {} rebuilt; {} times values \
         rotted, {} scrubbed",
        members.failed,
        members.missing,
        members.returned,
        members.formatted,
        members.replaced,
        members.put_back,
        members.reopened,
        members.rebuilt,
        members.rotted,
        members.scrubbed,
    ));
    seeds::tell_violations(&all.violations, "--arrays ", say);
    totals
}

/// Tells what happens in a seed, in order; true if no rule was broken.
#[must_use]
pub fn tell_trace(seed: u64, say: &Say) -> bool {
    let report = run_array_seed(seed, true);
    let told = report.violation.map(|violation| format!("{}: {}", violation.rule, violation.explanation));
    seeds::tell_seed(seed, &report.trace, told.as_deref(), say)
}
