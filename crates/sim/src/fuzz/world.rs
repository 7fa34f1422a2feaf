//! One seed: its world from the first event to the verdict.
//!
//! Invariants: everything follows from the seed; a panic anywhere in the world is a violation, and
//! its message and place are the explanation.

use super::era::{Era, EraReport};
use super::journal::Violation;
use super::paths::classify;
use super::shape::{FaultClass, Shape};
use crate::panics::catch;
use plimsoll_reactor::sim::World;

/// What became of one seed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeedReport {
    /// The seed.
    pub seed: u64,
    /// What went wrong in it, besides crashes.
    pub class: FaultClass,
    /// What it did, era by era.
    pub eras: Vec<EraReport>,
    /// The rule that was broken, if one was.
    pub violation: Option<Violation>,
    /// The hash of every event: equal in every run of the seed.
    pub trace_hash: u64,
    /// What happened, if it was asked for.
    pub trace: Vec<String>,
}

/// Runs the world of a seed.
#[must_use]
pub fn run_seed(seed: u64, traces: bool) -> SeedReport {
    run_shape(Shape::of(seed), traces)
}

/// Runs the world of arrays of a seed.
#[must_use]
pub fn run_array_seed(seed: u64, traces: bool) -> SeedReport {
    run_shape(Shape::of_array(seed), traces)
}

fn run_shape(shape: Shape, traces: bool) -> SeedReport {
    let seed = shape.seed;
    let world = World::new(seed, classify);
    let mut report = SeedReport {
        seed,
        class: shape.class,
        eras: Vec::new(),
        violation: None,
        trace_hash: 0,
        trace: Vec::new(),
    };
    let (mut operations, mut crashes) = (shape.operations, shape.crashes);
    for number in 0.. {
        let mut era = Era::new(&world, shape, number, traces);
        debug_assert_eq!(era.class(), shape.class);
        report.violation = catch(|| era.run(operations, crashes)).unwrap_or_else(|explanation| {
            era.journal().violate("no panic", explanation.clone());
            Some(Violation { rule: "no panic", explanation })
        });
        report.trace.extend(era.journal().take_trace());
        let done = era.report();
        operations = operations.saturating_sub(done.tally.operations);
        crashes = crashes.saturating_sub(done.crashes);
        let over = !done.ended_by_damage || number > 20;
        report.eras.push(done);
        if report.violation.is_some() || over || (operations == 0 && crashes == 0) {
            break;
        }
    }
    report.trace_hash = world.trace();
    // A world whose processes live holds itself.
    drop(catch(|| {
        world.kill(super::life::SERVER, false);
        world.kill(super::life::CLIENTS, false);
    }));
    report
}
