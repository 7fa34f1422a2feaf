//! An era: a freshly formatted disk and the lives of the server on it.
//!
//! Place: a world is one era after the other; only damage that makes a partition refuse to open ends
//! an era before the world's operations are done.
//!
//! Invariants: every era ends in the judges; every crash is at an instant that the seed chose.

use super::extras::Extras;
use super::journal::{Excuses, Journal, Violation};
use super::judge::{Excuse, judge};
use super::ledger::{Ledger, WriteCounts};
use super::life::{CLIENTS, Ending, Life, Phase, Refusal, SERVER};
use super::paths::{PATHS, RARE, SUPERBLOCK};
use super::shape::{FaultClass, Shape};
use super::workload::{Key, keys_of};
use plimsoll_flash::{DeviceError, FormatOptions};
use plimsoll_kv::Durability;
use plimsoll_reactor::sim::{FaultCounts, FaultRates, Random, World};
use plimsoll_reactor::{FileOptions, Work};
use std::cell::RefCell;
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
}

pub(super) struct Era {
    world: World,
    shape: Shape,
    path: String,
    journal: Rc<Journal>,
    ledger: Rc<Ledger>,
    extras: Rc<Extras>,
    keys: Rc<Vec<Key>>,
    plan: Random,
    excuses: Vec<Excuse>,
    last_kill_ns: u64,
    report: EraReport,
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
        let path = format!("disk-{number}");
        world.add_disk(&path, shape.disk_bytes());
        world.set_network_delay_ns(shape.network_ns_max);
        let journal = Journal::new(world, shape.containers, traces);
        let partition_bytes = shape.segments * shape.segment_bytes;
        let ledger = Ledger::new(world, &path, (64 << 10, partition_bytes));
        *journal.ledger.borrow_mut() = Some(ledger.clone());
        journal.note(|| format!("{shape:?}"));
        Era {
            world: world.clone(),
            shape,
            path,
            journal,
            ledger,
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
        self.format();
        if self.journal.is_violated() {
            return self.journal.violation();
        }
        let mut refused = 0;
        loop {
            let done = self.journal.tally.get().operations >= operations && self.report.crashes >= crashes;
            let ended = self.live(operations, done);
            self.report.lives += 1;
            if self.journal.is_violated() {
                break;
            }
            match ended {
                Ended::Finished if done => break,
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
        let faults = self.world.with_disk(&self.path, |disk| disk.counts().clone());
        let writes = self.ledger.writes.borrow().clone();
        EraReport { faults, writes, tally: self.journal.tally.get(), ..self.report.clone() }
    }

    fn judge(&self) {
        let keys = self.keys.clone();
        let shape = self.shape;
        let is_async = move |name: &[u8]| {
            let key = keys.iter().find(|key| key.name.1 == name);
            key.is_some_and(|key| shape.durability(key.number) == Durability::Async)
        };
        if let Some(violation) = judge(&self.journal, &self.excuses, &is_async) {
            self.journal.violate(violation.rule, violation.explanation);
        }
    }

    /// Whether a partition that did not open ends the era.
    fn is_over(&mut self, refusal: &Refusal) -> bool {
        let excuses = self.journal.excuses.get();
        match refusal {
            Refusal::Io(_) if excuses.reads_fail || excuses.writes_fail => {
                self.report.opens_failed += 1;
                false
            }
            Refusal::Damaged(_) if self.ledger.was_damaged() => {
                self.report.ended_by_damage = true;
                true
            }
            other => {
                self.journal.violate("opening", format!("no fault explains it: {other:?}"));
                true
            }
        }
    }

    /// Formats the disk, perhaps not at the first attempt.
    fn format(&mut self) {
        let rates = self.shape.format_rates();
        self.world.with_disk(&self.path, |disk| disk.set_rates(rates));
        for attempt in 0.. {
            let result = self.start_format(attempt);
            let crashes = attempt == 0 && self.plan.chance_ppm(300_000);
            let superblocks = || self.ledger.count(SUPERBLOCK);
            let (before, aimed) = (superblocks(), self.plan.chance_ppm(500_000));
            let for_ns = if crashes && !aimed { self.plan.below(1_500_000) } else { ANSWER_NS_MAX };
            let is_over = || result.borrow().is_some() || (crashes && aimed && superblocks() > before);
            self.world.run_until(self.world.now_ns() + for_ns, is_over);
            if crashes && aimed {
                let further_ns = self.plan.below(WRITE_NS);
                self.world.run_until(self.world.now_ns() + further_ns, || result.borrow().is_some());
            }
            self.world.kill(SERVER, crashes && self.plan.chance_ppm(700_000));
            let fails = rates.write_error_ppm > 0 && attempt < 100;
            match result.take() {
                Some(Ok(())) => break,
                None if crashes => {}
                Some(Err(DeviceError::Io(_))) if fails => {}
                other => return self.journal.violate("formatting", format!("it gave {other:?}")),
            }
        }
    }

    /// Starts a process that formats the disk; what comes of it.
    fn start_format(&mut self, attempt: u32) -> Rc<RefCell<Option<Result<(), DeviceError>>>> {
        let options = FormatOptions {
            partitions: self.shape.partitions,
            segment_bytes: Some(self.shape.segment_bytes as u32),
            // What an attempt that was cut short left is not a device yet.
            force: attempt > 0,
            written_ahead: self.shape.written_ahead,
            device_id: self.plan.next_u64().to_le_bytes().repeat(2).try_into().expect("16 bytes"),
            hash_secret: self.plan.next_u64(),
            created_ms: 1,
        };
        let result = Rc::new(RefCell::new(None));
        let (given, path, ledger) = (result.clone(), self.path.clone(), self.ledger.clone());
        self.world.start_process(SERVER, 1, move |reactor| {
            let file = reactor.open_file(&path, &FileOptions::default()).expect("the disk exists");
            let watch = super::ledger::Watch { inner: Rc::new(file), ledger: ledger.clone() };
            let (options, given) = (options.clone(), given.clone());
            reactor.spawn(Work::Control, async move {
                let formatted = plimsoll_flash::format(&watch, &options).await;
                *given.borrow_mut() = Some(formatted.map(|_| ()));
            });
        });
        result
    }

    fn plan_life(&mut self, operations: u64, last: bool) -> (Ending, usize, u64) {
        let plan = &mut self.plan;
        let checks = last || plan.chance_ppm(250_000);
        let ending = Ending {
            reads_first: last || plan.chance_ppm(700_000),
            checks,
            empties: last,
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

    fn set_rates(&mut self, last: bool) {
        let rates = if last { FaultRates::default() } else { self.shape.rates(&mut self.plan) };
        self.world.with_disk(&self.path, |disk| disk.set_rates(rates));
        self.journal.note(|| format!("{rates:?}"));
        self.journal.excuses.set(Excuses {
            reads_fail: rates.read_error_ppm > 0,
            writes_fail: rates.write_error_ppm > 0 || rates.flush_error_ppm > 0,
        });
    }

    /// One life, from its start to its death.
    fn live(&mut self, operations: u64, last: bool) -> Ended {
        let (ending, cores, operations_max) = self.plan_life(operations, last);
        self.set_rates(last);
        let life = Life::new(
            &self.journal,
            &self.ledger,
            &self.extras,
            &self.keys,
            self.shape,
            &self.path,
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
        life.start(&self.world);
        life.start_clients(&self.world);
        let ended = self.lead(&life, last);
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
        if self.ledger.was_damaged() {
            self.journal.note(|| format!("damaged: {}", self.ledger.describe()));
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
        if let Some(from_ns) = self.ledger.excused_since() {
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
        let before = self.ledger.count(path);
        let operations_max = life.journal.tally.get().operations + STRIKE_OPERATIONS_MAX;
        let is_begun = || self.ledger.count(path) > before;
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
        self.ledger.opened();
        let numbers = life.partitions.borrow().len();
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
