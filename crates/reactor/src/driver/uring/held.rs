//! Reads that wait for others, so that the drive is told of several at once.
//!
//! Role: what one system call submits to a drive, the drive is told of once. On a virtual machine that
//! leaves the machine, and costs the core 5 to 10 us if the drive's side of it has gone to sleep: as much as
//! all the rest of a read. Place on the path: between the driver's operations and its ring.
//!
//! A read waits only while the drive was seen to have work, and the core has other things to do; as with
//! small segments of a TCP connection (Nagle, RFC 896) what is under way sets how much is put together. To
//! those above it is at the drive meanwhile: the latencies that they see have it in them.
//!
//! Invariants: what is held goes out in the order in which it came, after [`TURNS_MAX`] turns at the latest,
//! and before the core rests.

use io_uring::squeue;

/// With fewer operations at the drive each read goes out at once: the drive could run out of work.
const AT_DRIVE_MIN: usize = 8;
/// Reads go out when there is one of them for each so many operations at the drive.
const SHARE: usize = 2;
/// Turns that a read waits at most.
const TURNS_MAX: u32 = 6;

/// Reads not yet given to the kernel.
#[derive(Default)]
pub(super) struct HeldReads {
    entries: Vec<squeue::Entry>,
    /// Turns that the first of them has waited.
    turns: u32,
}

impl HeldReads {
    /// One more.
    pub(super) fn hold(&mut self, entry: squeue::Entry) {
        self.entries.push(entry);
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.entries.len()
    }

    /// Those that go out in this turn: all or none. `under_way` are the operations of files, these included.
    pub(super) fn due(&mut self, under_way: usize, is_idle: bool) -> std::vec::Drain<'_, squeue::Entry> {
        let at_drive = under_way - self.entries.len();
        self.turns += u32::from(!self.entries.is_empty());
        let is_time = is_idle || self.turns > TURNS_MAX;
        if is_time || at_drive < AT_DRIVE_MIN || self.entries.len() * SHARE >= at_drive {
            return self.all();
        }
        self.entries.drain(..0)
    }

    /// All of them.
    pub(super) fn all(&mut self) -> std::vec::Drain<'_, squeue::Entry> {
        self.turns = 0;
        self.entries.drain(..)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use io_uring::opcode;

    fn held(reads: usize) -> HeldReads {
        let mut held = HeldReads::default();
        (0..reads).for_each(|_| held.hold(opcode::Nop::new().build()));
        held
    }

    #[test]
    fn a_drive_with_little_to_do_gets_each_read_at_once() {
        assert_eq!(held(1).due(1, false).count(), 1, "alone");
        assert_eq!(held(1).due(AT_DRIVE_MIN, false).count(), 1, "one fewer than enough");
        assert_eq!(held(1).due(1 + AT_DRIVE_MIN, false).count(), 0, "enough to do without it");
    }

    #[test]
    fn reads_go_out_when_they_are_half_of_those_at_the_drive() {
        assert_eq!(held(9).due(9 + 20, false).count(), 0);
        assert_eq!(held(10).due(10 + 20, false).count(), 10);
    }

    #[test]
    fn nothing_waits_while_the_core_is_idle_or_for_long() {
        assert_eq!(held(1).due(1 + 30, true).count(), 1, "idle");
        let mut waits = held(1);
        let turns = (1..).find(|_| waits.due(1 + 30, false).count() == 1);
        assert_eq!(turns, Some(TURNS_MAX + 1));
        waits.hold(opcode::Nop::new().build());
        assert_eq!(waits.due(1 + 30, false).count(), 0, "the next waits anew");
    }
}
