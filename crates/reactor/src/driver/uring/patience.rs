//! How long a core that finds nothing to do looks on before it sleeps.
//!
//! Place on the path: the reactor asks before it sleeps; the driver tells of what came of it.
//!
//! While few operations are at the disk, clients wait for them and for nothing else, and the core has little
//! to do. Going to sleep and being woken takes a third of the time of a durable write on a virtual machine;
//! so it looks on for twice as long as the disk took lately. That pays if the core has its processor for
//! itself: where the work that ends the write (the kernel's, or a client's) needs the same one, looking on
//! delays what is looked for. Nothing tells so beforehand; a long look that was in vain does.
//!
//! Invariants: a core sleeps at last; where long looks are in vain, one is tried in ever longer intervals.

use crate::reactor::SPIN_NS;

/// What a disk is first taken to need.
const USUAL_NS: u64 = 100_000;
/// What a disk needed counts one part in so many.
const SMOOTHING: u64 = 8;
/// No core looks on for longer while few operations are at the disk; one that needs as long is slept for.
const SPIN_FOR_DISK_NS_MAX: u64 = 1_000_000;
/// So many are few. More keep the core busy, or come back together.
const FEW_AT_DISK: usize = 4;
/// After a long look in vain the next is tried so much later, and twice as much after each in a row.
const REST_NS_MIN: u64 = 10_000_000;
const REST_NS_MAX: u64 = 1_000_000_000;

/// What came of looking on.
pub(super) struct Patience {
    /// Operations of files that are under way.
    at_disk: usize,
    /// When the last of them began, or the last before them ended.
    since_ns: u64,
    /// From there to the next end, smoothed.
    usual_ns: u64,
    /// Until then there are no long looks.
    rests_until_ns: u64,
    rest_ns: u64,
    /// The core slept since the operations under way began, or one of them ended.
    slept: bool,
}

impl Default for Patience {
    fn default() -> Patience {
        Patience { at_disk: 0, since_ns: 0, usual_ns: USUAL_NS, rests_until_ns: 0, rest_ns: 0, slept: false }
    }
}

impl Patience {
    /// Operations of files that are under way.
    pub(super) fn at_disk(&self) -> usize {
        self.at_disk
    }

    /// An operation of a file began.
    pub(super) fn begin(&mut self, now_ns: u64) {
        self.since_ns = now_ns;
        if self.at_disk == 0 {
            self.slept = false; // Before there was anything to look for.
        }
        self.at_disk += 1;
    }

    /// An operation of a file ended, and was seen.
    pub(super) fn end(&mut self, now_ns: u64) {
        self.at_disk -= 1;
        let took_ns = now_ns.saturating_sub(std::mem::replace(&mut self.since_ns, now_ns));
        // Of those that are seen together the first says how long they took.
        if took_ns > 0 {
            self.usual_ns = (self.usual_ns * (SMOOTHING - 1)).saturating_add(took_ns) / SMOOTHING;
        }
        if !std::mem::take(&mut self.slept) && now_ns >= self.rests_until_ns {
            self.rest_ns = 0;
        }
    }

    /// How long to look on.
    pub(super) fn spin_ns(&self, now_ns: u64) -> u64 {
        if self.looks_long(now_ns) {
            (2 * self.usual_ns).clamp(SPIN_NS, SPIN_FOR_DISK_NS_MAX)
        } else {
            SPIN_NS
        }
    }

    /// The core goes to sleep.
    pub(super) fn sleep(&mut self, now_ns: u64) {
        self.slept = true;
        if self.spin_ns(now_ns) > SPIN_NS {
            self.rest_ns = (self.rest_ns * 2).clamp(REST_NS_MIN, REST_NS_MAX);
            self.rests_until_ns = now_ns + self.rest_ns;
        }
    }

    fn looks_long(&self, now_ns: u64) -> bool {
        let is_quick = self.usual_ns < SPIN_FOR_DISK_NS_MAX;
        is_quick && (1..=FEW_AT_DISK).contains(&self.at_disk) && now_ns >= self.rests_until_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_operations_at_the_disk_are_waited_for() {
        let mut patience = Patience::default();
        assert_eq!(patience.spin_ns(0), SPIN_NS);
        for _ in 0..FEW_AT_DISK {
            patience.begin(0);
            assert_eq!(patience.spin_ns(0), 2 * USUAL_NS);
        }
        patience.begin(0);
        assert_eq!(patience.spin_ns(0), SPIN_NS, "there are many");
    }

    /// What a core looks on for after so many operations at a time, which took so long and ended together.
    fn spin_after_ns(took_ns: u64, together: u64) -> u64 {
        let mut patience = Patience::default();
        for at in 0..100 {
            (0..together).for_each(|_| patience.begin(at * took_ns));
            (0..together).for_each(|_| patience.end((at + 1) * took_ns));
        }
        patience.begin(100 * took_ns);
        patience.spin_ns(100 * took_ns)
    }

    #[test]
    fn how_long_it_looks_follows_the_disk() {
        assert_eq!(spin_after_ns(1_000, 1), SPIN_NS);
        for together in [1, 2, 4, 64] {
            let spin_ns = spin_after_ns(300_000, together);
            assert!((595_000..600_000).contains(&spin_ns), "{together} together: {spin_ns}");
        }
        assert_eq!(spin_after_ns(900_000, 1), SPIN_FOR_DISK_NS_MAX);
        assert_eq!(spin_after_ns(5_000_000, 1), SPIN_NS, "that long it sleeps");
    }

    #[test]
    fn looks_in_vain_become_rare() {
        let mut patience = Patience::default();
        let (mut now_ns, mut long) = (0, 0);
        while now_ns < 10_000_000_000 {
            patience.begin(now_ns);
            let spin_ns = patience.spin_ns(now_ns);
            long += u32::from(spin_ns > SPIN_NS);
            now_ns += spin_ns;
            patience.sleep(now_ns);
            now_ns += 100_000;
            patience.end(now_ns);
        }
        assert!((10..30).contains(&long), "{long} long looks in ten seconds");
        // The processor is free again: the first that is not in vain brings the others back.
        now_ns += REST_NS_MAX;
        for _ in 0..100 {
            patience.begin(now_ns);
            assert!(patience.spin_ns(now_ns) > SPIN_NS);
            now_ns += 100_000;
            patience.end(now_ns);
            patience.sleep(now_ns); // Until a client asks for something again.
        }
        patience.begin(now_ns);
        patience.sleep(now_ns);
        assert_eq!(patience.rests_until_ns, now_ns + REST_NS_MIN);
    }
}
