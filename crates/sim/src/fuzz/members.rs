//! What becomes of the members of arrays: which of them fails, goes away, comes back, and as what.
//!
//! Place: an era asks before each life and while clients work.
//!
//! Invariants: at any time at most `losses` members are not whole: they fail or have failed, are or were
//! away, hold nothing, or hold values that have rotted. Such a member is whole again when the arrays of all
//! partitions have said that it is in, and a write after that was acknowledged; one with rot, when it has
//! been opened and scrubbed since, too. Before all arrays were made once nothing happens.
//!
//! Never: it lets a second member go because the first is nearly back.

use super::disks::Disks;
use super::life::Life;
use super::shape::{FaultClass, Shape};
use plimsoll_reactor::sim::{FaultRates, Random};

/// What happened to members, in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemberCounts {
    /// Failed from an instant on.
    pub failed: u64,
    /// Not there for a life.
    pub missing: u64,
    /// Came back with what they had.
    pub returned: u64,
    /// Came back formatted anew.
    pub formatted: u64,
    /// Others took their places.
    pub replaced: u64,
    /// Opened anew for a partition while it was served, after they had failed.
    pub reopened: u64,
    /// Came back as they were at an earlier time, and nobody said so.
    pub put_back: u64,
    /// Whole again.
    pub rebuilt: u64,
    /// Times that values on one rotted.
    pub rotted: u64,
    /// Scrubbed after that.
    pub scrubbed: u64,
}

impl MemberCounts {
    pub(super) fn add(&mut self, other: &MemberCounts) {
        self.failed += other.failed;
        self.missing += other.missing;
        self.returned += other.returned;
        self.formatted += other.formatted;
        self.replaced += other.replaced;
        self.reopened += other.reopened;
        self.put_back += other.put_back;
        self.rebuilt += other.rebuilt;
        self.rotted += other.rotted;
        self.scrubbed += other.scrubbed;
    }
}

/// How a member comes into a life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// With what it has.
    AsItIs,
    Missing,
    /// Formatted anew: below, what it had is still there.
    Formatted,
    /// Another disk in its place.
    Replaced,
    /// Another disk that says that it is the same.
    Wiped,
    /// With what it had before arrays were opened last.
    PutBack,
}

/// The members of a world's arrays.
pub(super) struct Members {
    shape: Shape,
    /// Times that all arrays were open; once, and they were made.
    opens: u64,
    pub(super) counts: MemberCounts,
}

impl Members {
    pub(super) fn new(shape: Shape) -> Members {
        Members { shape, opens: 0, counts: MemberCounts::default() }
    }

    /// All arrays are open.
    pub(super) fn opened(&mut self) {
        self.opens += 1;
    }

    /// True if one more may fail.
    fn has_room(&self, disks: &Disks) -> bool {
        let lost = disks.all().iter().filter(|disk| !disk.is_whole.get()).count();
        self.opens > 0 && lost < self.shape.losses as usize
    }

    /// A whole member that may be lost, if one may.
    fn pick(&self, disks: &Disks, plan: &mut Random) -> Option<usize> {
        if !self.has_room(disks) {
            return None;
        }
        let whole = (0..disks.all().len()).filter(|member| disks.all()[*member].is_whole.get());
        let whole: Vec<usize> = whole.collect();
        Some(whole[plan.below(whole.len() as u64) as usize])
    }

    /// Who comes into the next life, and how: those that were lost before, and perhaps others.
    pub(super) fn arrive(&mut self, disks: &Disks, plan: &mut Random, losses: u32) -> Vec<(usize, Arrival)> {
        let mut arrivals = Vec::new();
        for (member, disk) in disks.all().iter().enumerate() {
            disk.is_missing.set(false);
            disk.may_fail.set(false);
            if !disk.is_whole.get() {
                let comes = losses == 0 || plan.chance_ppm(800_000);
                arrivals.push((member, if comes { self.comes(plan) } else { Arrival::Missing }));
            }
        }
        while losses > 0 && plan.chance_ppm(losses) {
            let Some(member) = self.pick(disks, plan) else { break };
            disks.all()[member].is_whole.set(false);
            let arrival = match plan.below(10) {
                0..6 => Arrival::Missing,
                6 | 7 if disks.all()[member].has_earlier(self.opens) => Arrival::PutBack,
                _ => self.comes(plan),
            };
            arrivals.push((member, arrival));
        }
        for (member, arrival) in &arrivals {
            disks.all()[*member].is_missing.set(*arrival == Arrival::Missing);
            if *arrival == Arrival::Formatted {
                disks.all()[*member].is_rotten.set(false);
                disks.all()[*member].forget_earlier();
            }
            let counts = &mut self.counts;
            *match arrival {
                Arrival::AsItIs => &mut counts.returned,
                Arrival::Missing => &mut counts.missing,
                Arrival::Formatted => &mut counts.formatted,
                Arrival::Replaced | Arrival::Wiped => &mut counts.replaced,
                Arrival::PutBack => &mut counts.put_back,
            } += 1;
        }
        arrivals
    }

    /// A member of which is kept what it holds, to be put back later. Not where values rot: that is reckoned
    /// by what a disk held last.
    pub(super) fn keep_earlier(&self, disks: &Disks, plan: &mut Random) -> Option<usize> {
        if self.opens == 0 || self.shape.class == FaultClass::Damage || !plan.chance_ppm(500_000) {
            return None;
        }
        let member = plan.below(disks.all().len() as u64) as usize;
        disks.keep_earlier(member, self.opens);
        Some(member)
    }

    fn comes(&self, plan: &mut Random) -> Arrival {
        match plan.below(10) {
            0..6 => Arrival::AsItIs,
            6 | 7 => Arrival::Formatted,
            8 => Arrival::Replaced,
            _ => Arrival::Wiped,
        }
    }

    /// A member that fails now and then in the coming life, if the world has such faults and one may.
    pub(super) fn afflict(&mut self, disks: &Disks, plan: &mut Random) -> Option<usize> {
        let candidate = || disks.all().iter().position(|disk| !disk.is_whole.get() && !disk.is_missing.get());
        if self.shape.class != FaultClass::Errors || self.opens == 0 {
            return None;
        }
        let member = self.pick(disks, plan).or_else(candidate)?;
        self.lose(disks, member);
        Some(member)
    }

    /// A member that fails for good from now on, if one may; and how.
    pub(super) fn fail(
        &mut self,
        disks: &Disks,
        plan: &mut Random,
        rates: FaultRates,
    ) -> Option<(usize, FaultRates)> {
        let member = self.pick(disks, plan)?;
        self.lose(disks, member);
        let reads_too = plan.chance_ppm(400_000);
        let always = 1_000_000;
        let read_error_ppm = if reads_too { always } else { rates.read_error_ppm };
        Some((
            member,
            FaultRates { write_error_ppm: always, flush_error_ppm: always, read_error_ppm, ..rates },
        ))
    }

    /// A member that has failed and answers again from now on, if there is one. In worlds where one fails now
    /// and then it goes on doing so.
    pub(super) fn recover(&mut self, disks: &Disks, life: &Life) -> Option<usize> {
        if self.shape.class == FaultClass::Errors {
            return None;
        }
        let member = disks.all().iter().position(|disk| disk.may_fail.get() && !disk.is_missing.get())?;
        disks.all()[member].may_fail.set(false);
        disks.all()[member].recovered_in.set(life.number);
        Some(member)
    }

    /// A member on which values are to rot, if the world has such faults and one may.
    pub(super) fn rot(&self, disks: &Disks, plan: &mut Random) -> Option<usize> {
        if self.shape.class != FaultClass::Damage || self.opens == 0 {
            return None;
        }
        let again = || disks.all().iter().position(|disk| disk.is_rotten.get() && !disk.is_missing.get());
        self.pick(disks, plan).or_else(again)
    }

    /// So many bits of values have flipped.
    pub(super) fn rotted(&mut self, disks: &Disks, (member, life): (usize, u64), flips: u64) {
        if flips > 0 {
            disks.all()[member].rotted_in.set(life);
            self.counts.rotted += 1;
            disks.all()[member].is_whole.set(false);
            disks.all()[member].is_rotten.set(true);
        }
    }

    fn lose(&mut self, disks: &Disks, member: usize) {
        self.counts.failed += 1;
        disks.all()[member].is_whole.set(false);
        disks.all()[member].may_fail.set(true);
    }

    /// Notes who has been scrubbed, and who rebuilt.
    pub(super) fn look(&mut self, disks: &Disks, life: &Life) {
        self.counts.reopened += life.take_reopened();
        for (member, disk) in disks.all().iter().enumerate() {
            // In the last frame of a log segment that was not closed rot looks like the end of the log, and a
            // partition that knows that it is not does not open (seed 82). One that was opened since has
            // none.
            let is_opened = life.number > disk.rotted_in.get();
            if disk.is_rotten.get() && is_opened && life.is_scrubbed() && life.is_in(member) {
                disk.is_rotten.set(false);
                self.counts.scrubbed += 1;
            }
            let fails = disk.may_fail.get() || disk.is_missing.get() || disk.is_rotten.get();
            let has_failed = disk.recovered_in.get() == life.number;
            if !disk.is_whole.get() && !fails && !has_failed && life.is_in(member) {
                disk.is_whole.set(true);
                self.counts.rebuilt += 1;
                life.journal.note(|| format!("{} is whole again", disk.path));
            }
        }
    }
}
