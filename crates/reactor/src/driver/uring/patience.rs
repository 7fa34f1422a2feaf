//! How long a core that finds nothing to do looks on before it sleeps.
//!
//! Place on the path: the reactor asks before it sleeps; the driver tells of what came of it.
//!
//! While few operations are at the disk, clients wait for them and for nothing else, and the core has little
//! to do. Going to sleep and being woken takes a third of the time of a durable write on a virtual machine;
//! so it looks on for twice as long as the disk took lately. When the last of them has ended, a client that
//! waited for it may ask for the next: for that it looks on for twice as long as clients took lately, if they
//! are quick. That pays if the core has its processor for itself: where the work that ends the write (the
//! kernel's, or a client's) needs the same one, looking on delays what is looked for. Nothing tells so
//! beforehand; a long look that was in vain does.
//!
//! Invariants: a core sleeps at last; where long looks are in vain, one is tried in ever longer intervals.

use crate::reactor::SPIN_NS;

/// What a disk is first taken to need.
const USUAL_NS: u64 = 100_000;
/// What a disk or a client needed counts one part in so many.
const SMOOTHING: u64 = 8;
/// No core looks on for longer while few operations are at the disk; one that needs as long is slept for.
const SPIN_FOR_DISK_NS_MAX: u64 = 1_000_000;
/// Nor for the next one.
const SPIN_FOR_NEXT_NS_MAX: u64 = 200_000;
/// So many are few. More keep the core busy, or come back together.
const FEW_AT_DISK: usize = 4;
/// After a long look in vain the next is tried so much later, and twice as much after each in a row.
const REST_NS_MIN: u64 = 10_000_000;
const REST_NS_MAX: u64 = 1_000_000_000;

/// Something that is looked for.
struct Look {
    /// How long it takes, smoothed.
    usual_ns: u64,
    /// No look for it is longer than this, and there is none if it takes as long.
    ns_max: u64,
    /// Until then there are no long looks.
    rests_until_ns: u64,
    rest_ns: u64,
}

impl Look {
    fn new(usual_ns: u64, ns_max: u64) -> Look {
        Look { usual_ns, ns_max, rests_until_ns: 0, rest_ns: 0 }
    }

    /// It came after so long.
    fn came(&mut self, took_ns: u64) {
        self.usual_ns = (self.usual_ns * (SMOOTHING - 1)).saturating_add(took_ns) / SMOOTHING;
    }

    /// It came while it was looked for.
    fn was_seen(&mut self, now_ns: u64) {
        if now_ns >= self.rests_until_ns {
            self.rest_ns = 0;
        }
    }

    /// It did not come while it was looked for.
    fn was_in_vain(&mut self, now_ns: u64) {
        self.rest_ns = (self.rest_ns * 2).clamp(REST_NS_MIN, REST_NS_MAX);
        self.rests_until_ns = now_ns + self.rest_ns;
    }

    /// How long to look for it.
    fn spin_ns(&self, now_ns: u64) -> u64 {
        if self.usual_ns < self.ns_max && now_ns >= self.rests_until_ns {
            (2 * self.usual_ns).clamp(SPIN_NS, self.ns_max)
        } else {
            SPIN_NS
        }
    }
}

/// What came of looking on.
pub(super) struct Patience {
    /// Operations of files that are under way.
    at_disk: usize,
    /// When the last of them began, or the last before them ended.
    since_ns: u64,
    /// The end of one of them.
    end: Look,
    /// The beginning of the next, while there is none.
    next: Look,
    /// The core slept since the operations under way began, or one of them ended.
    slept: bool,
}

impl Default for Patience {
    fn default() -> Patience {
        let end = Look::new(USUAL_NS, SPIN_FOR_DISK_NS_MAX);
        let next = Look::new(SPIN_FOR_NEXT_NS_MAX, SPIN_FOR_NEXT_NS_MAX);
        Patience { at_disk: 0, since_ns: 0, end, next, slept: false }
    }
}

impl Patience {
    /// Operations of files that are under way.
    pub(super) fn at_disk(&self) -> usize {
        self.at_disk
    }

    /// An operation of a file began.
    pub(super) fn begin(&mut self, now_ns: u64) {
        let since_ns = std::mem::replace(&mut self.since_ns, now_ns);
        if self.at_disk == 0 {
            self.next.came(now_ns.saturating_sub(since_ns).min(2 * SPIN_FOR_NEXT_NS_MAX));
            if !std::mem::take(&mut self.slept) {
                self.next.was_seen(now_ns);
            }
        }
        self.at_disk += 1;
    }

    /// An operation of a file ended, and was seen.
    pub(super) fn end(&mut self, now_ns: u64) {
        self.at_disk -= 1;
        let took_ns = now_ns.saturating_sub(std::mem::replace(&mut self.since_ns, now_ns));
        // Of those that are seen together the first says how long they took.
        if took_ns > 0 {
            self.end.came(took_ns);
        }
        if !std::mem::take(&mut self.slept) {
            self.end.was_seen(now_ns);
        }
    }

    /// How long to look on.
    pub(super) fn spin_ns(&self, now_ns: u64) -> u64 {
        self.look().map_or(SPIN_NS, |look| look.spin_ns(now_ns))
    }

    /// The core goes to sleep.
    pub(super) fn sleep(&mut self, now_ns: u64) {
        let looked_long = self.spin_ns(now_ns) > SPIN_NS;
        self.slept = true;
        if looked_long {
            let look = if self.at_disk == 0 { &mut self.next } else { &mut self.end };
            look.was_in_vain(now_ns);
        }
    }

    /// What there is to look for. For the next one it is looked once: what else wakes the core says nothing
    /// of it.
    fn look(&self) -> Option<&Look> {
        match self.at_disk {
            0 => Some(&self.next).filter(|_| !self.slept),
            1..=FEW_AT_DISK => Some(&self.end),
            _ => None,
        }
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
        assert_eq!(patience.end.rests_until_ns, now_ns + REST_NS_MIN);
    }

    /// A disk that takes 100 us, and a client that comes so much later again, so often.
    fn after_clients_of(gap_ns: u64, times: u64) -> (Patience, u64) {
        let (mut patience, mut now_ns) = (Patience::default(), 0);
        for _ in 0..times {
            patience.begin(now_ns);
            now_ns += 100_000;
            patience.end(now_ns);
            now_ns += gap_ns;
        }
        (patience, now_ns)
    }

    #[test]
    fn clients_that_are_quick_are_waited_for() {
        assert_eq!(Patience::default().spin_ns(0), SPIN_NS, "nobody came yet");
        let (patience, now_ns) = after_clients_of(40_000, 100);
        assert!((80_000..90_000).contains(&patience.spin_ns(now_ns)), "{}", patience.spin_ns(now_ns));
        let (patience, now_ns) = after_clients_of(250_000, 100);
        assert_eq!(patience.spin_ns(now_ns), SPIN_NS, "that long it sleeps");
        let (patience, now_ns) = after_clients_of(1_000, 100);
        assert_eq!(patience.spin_ns(now_ns), SPIN_NS);
    }

    #[test]
    fn a_client_that_stays_away_is_waited_for_once() {
        let (mut patience, mut now_ns) = after_clients_of(40_000, 100);
        patience.sleep(now_ns);
        assert_eq!(patience.spin_ns(now_ns), SPIN_NS, "something else woke it");
        now_ns += 100_000;
        patience.begin(now_ns);
        assert!(patience.spin_ns(now_ns) > SPIN_NS, "what is at the disk is waited for");
        patience.end(now_ns + 100_000);
        assert_eq!(patience.spin_ns(now_ns + 100_000), SPIN_NS, "the look before was in vain");
        assert!(patience.spin_ns(now_ns + REST_NS_MIN) > SPIN_NS);
    }
}
