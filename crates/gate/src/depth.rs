//! How many windows deep the drive's queue is, where more reads wait than a window holds.
//!
//! Role: finds out whether a deeper queue brings more reads. Place on the path: beside the window, which
//! asks how often it counts.
//!
//! A drive at its limit takes twice as long for twice as many, and a deeper queue is in the way of writes
//! for nothing. Another one works its queue through and interrupts once, at its end: it, and the core, do
//! more with each interrupt if there is more in it. Which of the two it is, Little's law tells: while the
//! queue is full what a read takes, divided by the depth, is the time from one read to the next. So depths
//! are tried in turns with what is used, and the one with more reads a second is used; the shallower one if
//! they are about the same. Of each the period in the middle counts: a drive may stand still for milliseconds
//! now and then, half as long as a period takes, whatever its depth.
//!
//! Invariants: a depth is tried only while at least as many reads wait as would be at the drive, so that
//! drive and core never rest in turns; trials in vain become rare.

/// Twice as deep, so often.
const DOUBLINGS_MAX: u32 = 2;
/// Reads of a period; a depth is used for that long before another one's turn comes.
const PERIOD_READS: u64 = 1024;
/// The first reads of a period, which began at the depth before.
const SETTLING_READS: u64 = 256;
/// Periods of a trial at either depth.
const PERIODS_OF_EITHER: usize = 5;
/// Periods from one trial to the next, twice as many after each that was in vain.
const REST_PERIODS_MIN: u32 = 32;
const REST_PERIODS_MAX: u32 = 1024;
/// A deeper queue is used if a read takes less than so many percent of what it took; a shallower one, too.
const DEEPER_PERCENT_MAX: u128 = 94;
const SHALLOWER_PERCENT_MAX: u128 = 103;
/// A period ends in vain if so many reads of it found too few that waited.
const FEW_READS_MAX: u64 = PERIOD_READS / 4;

/// Reads, and what they took from one to the next, in nanoseconds.
#[derive(Clone, Copy, Default)]
struct Seen {
    reads: u64,
    ns: u64,
}

impl Seen {
    /// It took less than so many percent of what the other did for each read.
    fn is_below(self, percent: u128, other: Seen) -> bool {
        let (mine, its) = (u128::from(self.ns), u128::from(other.ns));
        100 * mine * u128::from(other.reads) < percent * its * u128::from(self.reads)
    }
}

/// The period in the middle, by what a read took in it.
fn middle(mut periods: Vec<Seen>) -> Seen {
    let per_read = |seen: &Seen| seen.ns / seen.reads.max(1);
    periods.sort_by_key(per_read);
    periods[periods.len() / 2]
}

/// The depth that is used, and what is tried beside it.
pub(crate) struct Depth {
    used: u32,
    tried: Option<u32>,
    /// The last trial was of a deeper queue.
    was_deeper: bool,
    /// Of this period.
    settling: u64,
    seen: Seen,
    few_waited: u64,
    /// The periods of a trial: of what is used, and of what is tried.
    trial: [Vec<Seen>; 2],
    /// Since the trial began, or the last one ended.
    periods: u32,
    rest_periods: u32,
}

impl Depth {
    pub(crate) fn new() -> Depth {
        Depth {
            used: 0,
            tried: None,
            was_deeper: false,
            settling: 0,
            seen: Seen::default(),
            few_waited: 0,
            trial: Default::default(),
            periods: REST_PERIODS_MIN,
            rest_periods: REST_PERIODS_MIN,
        }
    }

    /// Windows that are one now.
    pub(crate) fn windows(&self) -> u64 {
        let doublings = self.tried.filter(|_| self.is_turn_of_tried()).unwrap_or(self.used);
        1 << doublings
    }

    fn is_turn_of_tried(&self) -> bool {
        self.periods % 2 == 1
    }

    /// So many reads came back that were at the drive for so long, while `depth` were there and as many as
    /// `windows_wanted` times the window were there or waited.
    pub(crate) fn saw(&mut self, reads: u64, device_ns: u64, depth: u64, windows_wanted: u64) {
        if windows_wanted < Self::wanted_for(self.used.max(self.tried.unwrap_or(0))) {
            self.few_waited += reads;
            if self.few_waited >= FEW_READS_MAX {
                self.give_up(windows_wanted);
            }
        } else if self.settling < SETTLING_READS {
            self.settling += reads;
        } else {
            self.seen.reads += reads;
            let ns = reads.saturating_mul(device_ns) / depth.max(1);
            self.seen.ns = self.seen.ns.saturating_add(ns);
            if self.seen.reads >= PERIOD_READS - SETTLING_READS {
                self.end_period(windows_wanted);
            }
        }
    }

    /// Windows that are at the drive or wait, for so many doublings to leave as much waiting as there is at
    /// the drive.
    fn wanted_for(doublings: u32) -> u64 {
        2 << doublings
    }

    /// Too few wait to tell anything of this depth.
    fn give_up(&mut self, windows_wanted: u64) {
        if self.tried.take().is_some() {
            self.periods = 0;
        }
        while self.used > 0 && windows_wanted < Self::wanted_for(self.used) {
            self.used -= 1;
        }
        self.begin_period();
    }

    fn begin_period(&mut self) -> Seen {
        (self.settling, self.few_waited) = (0, 0);
        std::mem::take(&mut self.seen)
    }

    fn end_period(&mut self, windows_wanted: u64) {
        let seen = self.begin_period();
        if self.tried.is_some() {
            self.trial[usize::from(self.is_turn_of_tried())].push(seen);
        }
        self.periods += 1;
        match self.tried {
            Some(tried) if self.periods as usize >= 2 * PERIODS_OF_EITHER => self.judge(tried),
            None if self.periods >= self.rest_periods => self.try_another(windows_wanted),
            _ => {}
        }
    }

    /// Begins a trial: of the deepest queue and of half of what is used in turns, where there are both. The
    /// deepest, as what it brings is the easiest to tell from chance.
    fn try_another(&mut self, windows_wanted: u64) {
        let has_enough = |doublings: &u32| windows_wanted >= Self::wanted_for(*doublings);
        let deepest = (self.used + 1..=DOUBLINGS_MAX).rev().find(has_enough);
        let shallower = self.used.checked_sub(1);
        self.tried = deepest.filter(|_| !(self.was_deeper && shallower.is_some()));
        self.was_deeper = self.tried.is_some();
        self.tried = self.tried.or(shallower);
        if self.tried.is_some() {
            (self.trial, self.periods) = (Default::default(), 0);
        }
    }

    fn judge(&mut self, tried: u32) {
        let [used, other] = std::mem::take(&mut self.trial).map(middle);
        (self.tried, self.periods) = (None, 0);
        let percent = if tried > self.used { DEEPER_PERCENT_MAX } else { SHALLOWER_PERCENT_MAX };
        if other.is_below(percent, used) {
            self.rest_periods = REST_PERIODS_MIN;
            if tried > self.used {
                // And the next, at once.
                (self.periods, self.was_deeper) = (REST_PERIODS_MIN, false);
            }
            self.used = tried;
        } else {
            self.rest_periods = (2 * self.rest_periods).min(REST_PERIODS_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many periods before a drive that takes so long from one read to the next, by windows that are one.
    fn run(depth: &mut Depth, periods: u64, windows_wanted: u64, read_ns: impl Fn(u64) -> u64) -> Vec<u64> {
        let reads = periods * PERIOD_READS;
        let used = (0..reads).map(|_| {
            let windows = depth.windows();
            let at_drive = 32 * windows;
            depth.saw(1, at_drive * read_ns(windows), at_drive, windows_wanted);
            windows
        });
        used.collect()
    }

    fn deeper_is_quicker(windows: u64) -> u64 {
        10_000 + 9_000 / windows
    }

    #[test]
    fn it_goes_as_deep_as_brings_more_and_back() {
        let mut depth = Depth::new();
        run(&mut depth, 40, 100, deeper_is_quicker);
        assert_eq!(depth.used, DOUBLINGS_MAX);
        run(&mut depth, 4_000, 100, |_| 10_000);
        assert_eq!(depth.used, 0, "as good and shallower");
    }

    /// One period in which the drive stood still decided a trial (2026-11-30: it took seconds to go deeper).
    #[test]
    fn a_drive_that_stands_still_now_and_then_is_judged_all_the_same() {
        let quicker = |windows| [12_300, 10_900, 0, 10_150][windows as usize - 1];
        for still in 0..8 {
            let (mut depth, mut reads) = (Depth::new(), 0);
            for _ in 0..80 * PERIOD_READS {
                reads += 1;
                let windows = depth.windows();
                let stands_still = (reads / PERIOD_READS) % 8 == still;
                let read_ns = quicker(windows) * if stands_still { 3 } else { 2 } / 2;
                depth.saw(1, 32 * windows * read_ns, 32 * windows, 100);
            }
            assert_eq!(depth.used, DOUBLINGS_MAX, "period {still} of eight");
        }
    }

    #[test]
    fn trials_in_vain_become_rare() {
        let mut depth = Depth::new();
        let used = run(&mut depth, 4_000, 100, |_| 10_000);
        let tried = used.iter().filter(|windows| **windows > 1).count() as u64;
        assert!((1..40).contains(&(tried / PERIOD_READS)), "{tried}");
    }

    #[test]
    fn as_many_wait_as_are_at_the_drive() {
        for (windows_wanted, windows_max) in [(1, 1), (3, 1), (4, 2), (7, 2), (8, 4), (1_000, 4)] {
            let used = run(&mut Depth::new(), 100, windows_wanted, deeper_is_quicker);
            assert_eq!(used.into_iter().max(), Some(windows_max), "{windows_wanted}");
        }
        let mut depth = Depth::new();
        run(&mut depth, 40, 8, deeper_is_quicker);
        run(&mut depth, 1, 5, deeper_is_quicker);
        assert_eq!(depth.windows(), 2, "fewer wait now");
    }
}
