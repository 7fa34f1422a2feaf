//! An era: freshly formatted disks and the lives of the server on them.
//!
//! Place: a world is one era after the other; only damage that makes a partition refuse to open ends
//! an era before the world's operations are done.
//!
//! Invariants: every era ends in the judges; every crash is at an instant that the seed chose.

mod disks;

use super::disks::Disks;
use super::extras::Extras;
use super::journal::{Journal, Violation};
use super::judge::{Excuse, judge};
use super::ledger::WriteCounts;
use super::life::{CLIENTS, Ending, Life, Phase, Refusal, SERVER};
use super::members::{MemberCounts, Members};
use super::paths::{PATHS, RARE};
use super::shape::{FaultClass, Shape};
use super::workload::{Key, keys_of};
use plimsoll_reactor::sim::{FaultCounts, FaultRates, Random, World};
use std::rc::Rc;

/// An operation that no fault explains is answered within this time.
const ANSWER_NS_MAX: u64 = 30_000_000_000;
/// Nothing that a life does takes longer.
const LIFE_NS_MAX: u64 = 120_000_000_000;
/// Events of a life: more mean that something turns without end.
const EVENTS_MAX: u64 = 4_000_000;
/// What asynchronous durability may lose.
const ASYNC_NS: u64 = 1_000_000_000;
/// A short write takes about as long at most.
const WRITE_NS: u64 = 150_000;
/// A crash waits so long at most for the write that it is to strike, and for so many operations.
const STRIKE_NS_MAX: u64 = 100_000_000;
const STRIKE_OPERATIONS_MAX: u64 = 200;

/// How often a member of an array fails before a life begins.
const FAILS_AT_ONCE_PPM: u32 = 60_000;

/// What an era did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EraReport {
    /// Lives of the server.
    pub lives: u64,
    /// Lives that ended in power loss or the death of the process.
    pub crashes: u64,
    /// Crashes while partitions were being opened.
    pub crashes_in_recovery: u64,
    /// Opens that the device's errors prevented.
    pub opens_failed: u64,
    /// Ended because damage made a partition refuse to open.
    pub ended_by_damage: bool,
    /// Faults by kind and write path.
    pub faults: FaultCounts,
    /// Writes by path.
    pub writes: WriteCounts,
    /// What clients did.
    pub tally: super::journal::Tally,
    /// What happened to members of arrays.
    pub members: MemberCounts,
}

pub(super) struct Era {
    world: World,
    shape: Shape,
    journal: Rc<Journal>,
    disks: Disks,
    members: Members,
    device_ids: Vec<Option<[u8; 16]>>,
    hash_secret: Option<u64>,
    /// How often sound disks fail in this life.
    rates: FaultRates,
    extras: Rc<Extras>,
    keys: Rc<Vec<Key>>,
    plan: Random,
    excuses: Vec<Excuse>,
    last_kill_ns: u64,
    report: EraReport,
}

/// What a life of an era is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Faults and crashes.
    Work,
    /// All members of the arrays come back and are made whole.
    Heal,
    /// As many members as may be lost are, and everything is checked.
    Last,
}

/// How one life ended.
enum Ended {
    Crashed,
    Finished,
    Refused(Refusal),
}

impl Era {
    /// A blank disk of the world.
    pub(super) fn new(world: &World, shape: Shape, number: u64, traces: bool) -> Era {
        let disks = Disks::new(world, shape, number);
        world.set_network_delay_ns(shape.network_ns_max);
        let journal = Journal::new(world, shape.containers, traces);
        *journal.ledgers.borrow_mut() = disks.ledgers();
        journal.bears_damage.set(shape.is_array());
        journal.note(|| format!("{shape:?}"));
        Era {
            world: world.clone(),
            shape,
            journal,
            disks,
            members: Members::new(shape),
            device_ids: vec![None; shape.members],
            hash_secret: None,
            rates: FaultRates::default(),
            extras: Rc::new(Extras::new()),
            keys: Rc::new(keys_of(&shape)),
            plan: Random::stream(shape.seed, &format!("plan of era {number}")),
            excuses: Vec::new(),
            last_kill_ns: 0,
            report: EraReport::default(),
        }
    }

    pub(super) fn journal(&self) -> Rc<Journal> {
        self.journal.clone()
    }

    /// Runs lives until the operations and crashes are enough, then judges.
    pub(super) fn run(&mut self, operations: u64, crashes: u64) -> Option<Violation> {
        self.format_all();
        if self.journal.is_violated() {
            return self.journal.violation();
        }
        let (mut refused, mut healed) = (0, !self.shape.is_array());
        loop {
            let done = self.journal.tally.get().operations >= operations && self.report.crashes >= crashes;
            let stage = match (done, healed) {
                (false, _) => Stage::Work,
                (true, false) => Stage::Heal,
                (true, true) => Stage::Last,
            };
            let ended = self.live(operations, stage);
            self.report.lives += 1;
            if self.journal.is_violated() {
                break;
            }
            match ended {
                Ended::Finished if stage == Stage::Last => break,
                Ended::Finished if stage == Stage::Heal => healed = true,
                Ended::Refused(refusal) => {
                    if self.is_over(&refusal) {
                        break;
                    }
                    refused += 1;
                }
                Ended::Finished | Ended::Crashed => refused = 0,
            }
            if refused > 200 || self.report.lives > 500 {
                let text = format!("after {} lives the world is not done", self.report.lives);
                self.journal.violate("progress", text);
                break;
            }
        }
        if !self.journal.is_violated() {
            self.judge();
        }
        self.journal.violation()
    }

    pub(super) fn report(&self) -> EraReport {
        let (faults, writes) = (self.disks.faults(), self.disks.writes());
        let (tally, members) = (self.journal.tally.get(), self.members.counts);
        EraReport { faults, writes, tally, members, ..self.report.clone() }
    }

    fn judge(&self) {
        let keys = self.keys.clone();
        let shape = self.shape;
        let is_async = move |name: &[u8]| {
            let key = keys.iter().find(|key| key.name.1 == name);
            key.is_some_and(|key| shape.loses_acknowledged(key.number))
        };
        if let Some(violation) = judge(&self.journal, &self.excuses, &is_async, !shape.is_array()) {
            self.journal.violate(violation.rule, violation.explanation);
        }
    }

    /// Whether a partition that did not open ends the era.
    fn is_over(&mut self, refusal: &Refusal) -> bool {
        let excuses = self.journal.excuses.get();
        let may_fail = self.disks.all().iter().any(|disk| disk.may_fail.get());
        match refusal {
            Refusal::Io(_) if excuses.reads_fail || excuses.writes_fail || may_fail => {
                self.report.opens_failed += 1;
                false
            }
            Refusal::Damaged(_) if self.disks.was_damaged() && !self.shape.is_array() => {
                self.report.ended_by_damage = true;
                true
            }
            other => {
                self.journal.violate("opening", format!("no fault explains it: {other:?}"));
                true
            }
        }
    }

    fn plan_life(&mut self, operations: u64, stage: Stage) -> (Ending, usize, u64) {
        let (plan, last) = (&mut self.plan, stage != Stage::Work);
        let checks = last || plan.chance_ppm(250_000);
        let ending = Ending {
            reads_first: last || plan.chance_ppm(700_000),
            checks,
            empties: stage == Stage::Last,
            closes: checks && plan.chance_ppm(500_000),
        };
        let cores = [1, 2, 6][plan.below(3) as usize];
        let quota = if last { 60 } else { 20 + plan.below(plan_share(operations)) };
        (ending, cores, self.journal.tally.get().operations + self.reading_operations(ending) + quota)
    }

    /// Operations of the audit before clients begin.
    fn reading_operations(&self, ending: Ending) -> u64 {
        if ending.reads_first { self.keys.len() as u64 } else { 0 }
    }

    /// One life, from its start to its death.
    fn live(&mut self, operations: u64, stage: Stage) -> Ended {
        let (ending, cores, operations_max) = self.plan_life(operations, stage);
        self.arrive(stage);
        self.set_rates(stage);
        if self.journal.is_violated() {
            return Ended::Finished;
        }
        let life = Life::new(
            &self.journal,
            self.disks.all(),
            &self.extras,
            &self.keys,
            self.shape,
            (self.report.lives, cores),
            ending,
        );
        life.operations_max.set(operations_max);
        self.journal.note(|| format!("life {} begins on {cores} cores: {ending:?}", self.report.lives));
        let weak = Rc::downgrade(&life);
        let is_roomy = move || weak.upgrade().is_some_and(|life| life.is_nearly_empty());
        *self.journal.is_roomy.borrow_mut() = Some(Box::new(is_roomy));
        let weak = Rc::downgrade(&life);
        let unreadable = move || weak.upgrade().map_or(0, |life| life.unreadable());
        *self.journal.unreadable.borrow_mut() = Some(Box::new(unreadable));
        if stage == Stage::Work {
            self.fail_one(&life, FAILS_AT_ONCE_PPM);
        }
        life.start(&self.world);
        life.start_clients(&self.world);
        let ended = self.lead(&life, stage != Stage::Work);
        self.members.look(&self.disks, &life);
        life.check_all_accounts("at the end of a life");
        let power = matches!(ended, Ended::Crashed | Ended::Refused(_)) && self.plan.chance_ppm(650_000);
        if matches!(ended, Ended::Crashed) {
            self.report.crashes += 1;
            self.report.crashes_in_recovery += u64::from(life.phase.get() == Phase::Opening);
        }
        self.kill(&life, power);
        ended
    }

    fn kill(&mut self, life: &Life, power: bool) {
        self.journal.note(|| format!("the server dies{}", if power { ", power is lost" } else { "" }));
        let now_ns = self.world.now_ns();
        self.last_kill_ns = now_ns;
        let from_ns = now_ns.saturating_sub(ASYNC_NS);
        self.excuses.push(Excuse { from_ns, to_ns: now_ns, async_only: true });
        if self.disks.was_damaged() {
            self.journal.note(|| format!("damaged: {}", self.disks.describe()));
        }
        self.world.kill(SERVER, power);
        *self.journal.is_roomy.borrow_mut() = None;
        *self.journal.unreadable.borrow_mut() = None;
        self.excuse_damage();
        // Clients on connections see that theirs are gone.
        let seen_ns = self.world.now_ns() + 2_000_000;
        self.world.run_until(seen_ns, || false);
        self.world.kill(CLIENTS, false);
        self.journal.killed();
        life.forget();
    }

    /// Forgives the loss of what was acknowledged last, if damage took it.
    fn excuse_damage(&mut self) {
        if self.shape.is_array() {
            return; // Others have it.
        }
        if let Some(from_ns) = self.disks.excused_since() {
            self.journal.note(|| format!("damage excuses losses since {from_ns} ns"));
            self.excuses.push(Excuse { from_ns, to_ns: self.last_kill_ns, async_only: false });
            self.extras.forget();
        }
    }

    /// Steps the world through a life, to where it ends.
    fn lead(&mut self, life: &Rc<Life>, last: bool) -> Ended {
        let dies_opening = !last && self.plan.chance_ppm(120_000);
        if dies_opening {
            let for_ns = 1 << self.plan.range(12, 23);
            let for_ns = for_ns + self.plan.below(for_ns);
            let open = self.step(life, for_ns, |life| life.phase.get() > Phase::Opening);
            if !open {
                return life.refusal.borrow_mut().take().map_or(Ended::Crashed, Ended::Refused);
            }
        }
        self.step(life, LIFE_NS_MAX, |life| life.phase.get() > Phase::Opening);
        if let Some(refusal) = life.refusal.borrow_mut().take() {
            return Ended::Refused(refusal);
        }
        if life.phase.get() == Phase::Opening && !self.journal.is_violated() {
            self.journal.violate("liveness", "it does not open".to_owned());
        }
        if self.journal.is_violated() {
            return Ended::Crashed;
        }
        self.opened(life);
        let reading_ns =
            if !last && self.plan.chance_ppm(60_000) { self.plan.below(8_000_000) } else { LIFE_NS_MAX };
        let read = self.step(life, reading_ns, |life| life.phase.get() >= Phase::Working);
        if !read && reading_ns < LIFE_NS_MAX {
            return Ended::Crashed;
        }
        if self.is_stuck(life, Phase::Working) {
            return Ended::Crashed;
        }
        self.step_clock(life);
        if !last {
            self.fail_members(life);
        }
        if life.ending.checks {
            self.step(life, LIFE_NS_MAX, |life| life.phase.get() == Phase::Over);
            self.is_stuck(life, Phase::Over);
            return Ended::Finished;
        }
        let quota = life.operations_max.get();
        life.operations_max.set(u64::MAX);
        self.step(life, LIFE_NS_MAX, |life| life.journal.tally.get().operations >= quota);
        if life.journal.tally.get().operations < quota {
            self.is_stuck(life, Phase::Over);
        }
        let strikes_ppm = if self.shape.churns() { 600_000 } else { 300_000 };
        if self.plan.chance_ppm(strikes_ppm) && self.strike(life) {
            return Ended::Crashed;
        }
        let scale = self.plan.range(1, 21);
        let longer_ns = self.plan.below(1 << scale);
        self.step(life, longer_ns, |_| false);
        Ended::Crashed
    }

    /// Goes on until a write path that the seed chose is in the middle of a write; false if it
    /// rests.
    fn strike(&mut self, life: &Rc<Life>) -> bool {
        // Where cleaning works, mostly at what it writes: then its moves are hardly durable yet.
        let rare = self.shape.churns() && self.plan.chance_ppm(700_000);
        let paths = if rare { &PATHS[RARE] } else { &PATHS[..] };
        let path = paths[self.plan.below(paths.len() as u64) as usize].0;
        let before = self.disks.count(path);
        let operations_max = life.journal.tally.get().operations + STRIKE_OPERATIONS_MAX;
        let is_begun = || self.disks.count(path) > before;
        let is_over = || is_begun() || life.journal.tally.get().operations > operations_max;
        self.step(life, STRIKE_NS_MAX, |_| is_over());
        let begun = is_begun();
        if begun {
            let further_ns = self.plan.below(WRITE_NS);
            self.step(life, further_ns, |_| false);
        }
        begun
    }

    fn opened(&mut self, life: &Life) {
        self.excuse_damage();
        self.disks.opened();
        self.members.opened();
        let array = self.shape.is_array();
        let numbers = if array { life.arrays.borrow().len() } else { life.partitions.borrow().len() };
        assert_eq!(numbers, usize::from(self.shape.partitions), "all partitions are open");
    }

    /// Steps the wall clock now and then while clients work.
    fn step_clock(&mut self, life: &Rc<Life>) {
        if !self.shape.steps_clock {
            return;
        }
        for _ in 0..self.plan.below(4) {
            let now = life.journal.tally.get().operations;
            let next = now + self.plan.below(60);
            let reached = |life: &Life| life.journal.tally.get().operations >= next;
            self.step(life, LIFE_NS_MAX, move |life| reached(life) || life.phase.get() > Phase::Working);
            let far = [30, 3000, 100_000_000][self.plan.below(3) as usize];
            let by_ms = self.plan.below(2 * far) as i64 - far as i64;
            self.journal.step_wall(by_ms);
        }
    }

    /// Runs events until `done`, for so long at most; true if it was.
    fn step(&self, life: &Rc<Life>, for_ns: u64, done: impl Fn(&Life) -> bool) -> bool {
        let mut events = 0;
        let deadline_ns = self.world.now_ns() + for_ns;
        let ended = self.world.run_until(deadline_ns, || {
            events += 1;
            if events > EVENTS_MAX {
                self.journal.violate("progress", format!("{EVENTS_MAX} events without an end"));
            }
            done(life) || life.refusal.borrow().is_some() || self.journal.is_violated()
        });
        ended && done(life)
    }

    /// True (and a violation) if a life has not come to a phase.
    fn is_stuck(&self, life: &Life, phase: Phase) -> bool {
        if self.journal.is_violated() || life.phase.get() >= phase {
            return self.journal.is_violated();
        }
        let now = life.phase.get();
        let what = self.journal.overdue(ANSWER_NS_MAX);
        let text = what.unwrap_or_else(|| {
            format!("in phase {now:?} nothing goes on; {} operations wait", self.journal.under_way())
        });
        self.journal.violate("liveness", text);
        true
    }

    /// The fault class, for reports.
    pub(super) fn class(&self) -> FaultClass {
        self.shape.class
    }
}

/// Operations of one life, roughly.
fn plan_share(operations: u64) -> u64 {
    operations / 4 + 1
}
