//! What an era does with its disks before a life begins: it formats them, says how often they fail, and, of
//! arrays, which of them are there.
//!
//! Place: between the lives of an era.
//!
//! Invariants: what is drawn is drawn from the era's plan.

use super::{ANSWER_NS_MAX, Era, Stage, WRITE_NS};
use crate::fuzz::journal::Excuses;
use crate::fuzz::ledger::Watch;
use crate::fuzz::life::{Life, Phase, SERVER};
use crate::fuzz::members::Arrival;
use crate::fuzz::paths::SUPERBLOCK;
use crate::fuzz::shape::FaultClass;
use plimsoll_flash::{DeviceError, FormatOptions};
use plimsoll_reactor::sim::FaultRates;
use plimsoll_reactor::{FileOptions, Work};
use std::cell::RefCell;
use std::rc::Rc;

/// What comes of a process that formats a disk.
type Formatting = Rc<RefCell<Option<Result<(), DeviceError>>>>;

/// How often one more member is lost at the beginning of a life; and at that of an era's last life.
const LOSSES_PPM: u32 = 350_000;
const LAST_LOSSES_PPM: u32 = 800_000;
/// How often a member fails while clients work, at each of a few instants.
const FAILS_PPM: u32 = 450_000;
/// How often one that has failed answers again, at each of them.
const RECOVERS_PPM: u32 = 500_000;
/// Operations up to such an instant.
const FAILS_OPERATIONS_MAX: u64 = 120;

impl Era {
    /// Formats all disks.
    pub(super) fn format_all(&mut self) {
        for member in 0..self.disks.all().len() {
            self.format(member, 0);
        }
    }

    /// Formats a disk, perhaps not at the first attempt.
    fn format(&mut self, member: usize, from_attempt: u32) {
        let rates = self.shape.format_rates();
        self.disks.set_rates(member, rates);
        let ledger = self.disks.all()[member].ledger.clone();
        for attempt in from_attempt.. {
            let result = self.start_format(member, attempt);
            let crashes = attempt == 0 && self.plan.chance_ppm(300_000);
            let superblocks = || ledger.count(SUPERBLOCK);
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
    fn start_format(&mut self, member: usize, attempt: u32) -> Formatting {
        let (device_id, hash_secret) = (self.plan.next_u64(), self.plan.next_u64());
        // All members of an array have the same.
        let hash_secret = *self.hash_secret.get_or_insert(hash_secret);
        let device_id = match self.device_ids[member] {
            Some(kept) => kept,
            None => device_id.to_le_bytes().repeat(2).try_into().expect("16 bytes"),
        };
        self.device_ids[member] = Some(device_id);
        let options = FormatOptions {
            partitions: self.shape.partitions,
            segment_bytes: Some(self.shape.segment_bytes as u32),
            // What an attempt that was cut short left is not a device yet.
            force: attempt > 0,
            written_ahead: self.shape.written_ahead,
            device_id,
            hash_secret,
            created_ms: 1,
        };
        let result = Rc::new(RefCell::new(None));
        let disk = self.disks.all()[member].clone();
        let given = result.clone();
        self.world.start_process(SERVER, 1, move |reactor| {
            let file = reactor.open_file(&disk.path, &FileOptions::default()).expect("the disk exists");
            let watch = Watch { inner: Rc::new(file), ledger: disk.ledger.clone() };
            let (options, given) = (options.clone(), given.clone());
            reactor.spawn(Work::Control, async move {
                let formatted = plimsoll_flash::format(&watch, &options).await;
                *given.borrow_mut() = Some(formatted.map(|_| ()));
            });
        });
        result
    }

    /// Says how often disks fail in the coming life.
    pub(super) fn set_rates(&mut self, stage: Stage) {
        let calm = stage != Stage::Work;
        let rates = if calm { FaultRates::default() } else { self.shape.rates(&mut self.plan) };
        let excuses = Excuses {
            reads_fail: rates.read_error_ppm > 0,
            writes_fail: rates.write_error_ppm > 0 || rates.flush_error_ppm > 0,
        };
        let have_failed = &self.journal.reads_have_failed;
        have_failed.set(have_failed.get() || excuses.reads_fail);
        self.journal.note(|| format!("{rates:?}"));
        if !self.shape.is_array() {
            self.disks.set_rates(0, rates);
            self.journal.excuses.set(excuses);
            return;
        }
        // An array excuses nothing: what fails is one of its members.
        let sound = if self.shape.class == FaultClass::Errors { FaultRates::default() } else { rates };
        (0..self.disks.all().len()).for_each(|member| self.disks.set_rates(member, sound));
        let afflicted = if calm { None } else { self.members.afflict(&self.disks, &mut self.plan) };
        if let Some(member) = afflicted {
            self.journal.note(|| format!("disk {member} has these"));
            self.disks.set_rates(member, rates);
        }
        self.rates = sound;
    }

    /// Who of the members is there in the coming life, and as what.
    pub(super) fn arrive(&mut self, stage: Stage) {
        if !self.shape.is_array() {
            return;
        }
        let losses = match stage {
            Stage::Work => LOSSES_PPM,
            Stage::Heal => 0,
            Stage::Last => LAST_LOSSES_PPM,
        };
        for (member, arrival) in self.members.arrive(&self.disks, &mut self.plan, losses) {
            self.journal.note(|| format!("disk {member}: {arrival:?}"));
            match arrival {
                Arrival::AsItIs | Arrival::Missing => {}
                Arrival::PutBack => self.disks.put_back(member),
                Arrival::Formatted => {
                    self.device_ids[member] = None;
                    self.format(member, 1);
                }
                Arrival::Replaced | Arrival::Wiped => {
                    self.disks.replace(member);
                    if arrival == Arrival::Replaced {
                        self.device_ids[member] = None;
                    }
                    *self.journal.ledgers.borrow_mut() = self.disks.ledgers();
                    self.format(member, 1);
                }
            }
        }
        if let Some(member) = self.members.keep_earlier(&self.disks, &mut self.plan) {
            self.journal.note(|| format!("disk {member} may be put back to this time"));
        }
    }

    /// Lets members fail now and then while clients work.
    pub(super) fn fail_members(&mut self, life: &Rc<Life>) {
        if !self.shape.is_array() {
            return;
        }
        for _ in 0..self.plan.below(4) {
            let now = life.journal.tally.get().operations;
            let next = now + self.plan.below(FAILS_OPERATIONS_MAX);
            let reached = |life: &Life| life.journal.tally.get().operations >= next;
            let further_ns = self.plan.below(2 * WRITE_NS);
            self.step(life, super::LIFE_NS_MAX, |life| reached(life) || life.phase.get() > Phase::Working);
            self.step(life, further_ns, |_| false);
            self.recover_one(life);
            self.fail_one(life, FAILS_PPM);
            self.rot_one(life);
        }
    }

    /// Lets a member that has failed answer again, if there is one, and has it brought back.
    fn recover_one(&mut self, life: &Life) {
        if !self.plan.chance_ppm(RECOVERS_PPM) {
            return;
        }
        if let Some(member) = self.members.recover(&self.disks, life) {
            self.journal.note(|| format!("disk {member} answers again"));
            self.disks.set_rates(member, self.rates);
            life.bring_back(member);
        }
    }

    /// Lets values on a member rot, if they may.
    fn rot_one(&mut self, life: &Life) {
        self.members.look(&self.disks, life);
        if let Some(member) = self.members.rot(&self.disks, &mut self.plan) {
            let flips = self.disks.rot(member, &mut self.plan);
            self.members.rotted(&self.disks, (member, life.number), flips);
            self.journal.note(|| format!("disk {member}: {flips} bits of values flip"));
        }
    }

    /// Lets a member fail from now on, if one may.
    pub(super) fn fail_one(&mut self, life: &Life, ppm: u32) {
        self.members.look(&self.disks, life);
        if !self.shape.is_array() || !self.plan.chance_ppm(ppm) {
            return;
        }
        if let Some((member, rates)) = self.members.fail(&self.disks, &mut self.plan, self.rates) {
            self.journal.note(|| format!("disk {member} fails from now on: {rates:?}"));
            self.disks.set_rates(member, rates);
        }
    }
}
