//! Sends that let the drive go first.
//!
//! Role: what the drive is asked for in a turn reaches it before the replies of that turn leave. Place on the
//! path: between the driver's operations and its ring.
//!
//! A send takes the core some 5 us, nearly all of it in the kernel, and of what one system call submits the
//! drive is told at its end: with the replies of a turn in the same call it would rest for as long as they
//! take. Nor is anything else looked at meanwhile, neither what the drive has ended nor what clients ask for
//! next; so while it reads few go at a time.
//!
//! Invariants: sends go out in the order in which they came, some of them in each turn, and all before the
//! core rests.

use io_uring::squeue;
use std::collections::VecDeque;

/// Fewer go with what the drive is asked for: a system call more would cost as much as it brings.
const APART_MIN: usize = 4;
/// Sends of a turn while the drive reads.
const BESIDE_READS_MAX: usize = 8;

/// Sends not yet given to the kernel.
#[derive(Default)]
pub(super) struct Sends(VecDeque<squeue::Entry>);

impl Sends {
    /// One more.
    pub(super) fn hold(&mut self, entry: squeue::Entry) {
        self.0.push_back(entry);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What the drive is asked for is worth a system call before them.
    pub(super) fn go_apart(&self) -> bool {
        self.0.len() >= APART_MIN
    }

    /// Those that go out in this turn.
    pub(super) fn due(&mut self, drive_reads: bool) -> impl Iterator<Item = squeue::Entry> {
        let count = if drive_reads { self.0.len().min(BESIDE_READS_MAX) } else { self.0.len() };
        self.0.drain(..count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use io_uring::opcode;

    #[test]
    fn few_go_at_a_time_while_the_drive_reads_and_all_go_at_last() {
        let mut sends = Sends::default();
        (0..3).for_each(|_| sends.hold(opcode::Nop::new().build()));
        assert!(!sends.go_apart());
        (3..20).for_each(|_| sends.hold(opcode::Nop::new().build()));
        assert!(sends.go_apart());
        assert_eq!([true, true, true, true].map(|reads| sends.due(reads).count()), [8, 8, 4, 0]);
        (0..20).for_each(|_| sends.hold(opcode::Nop::new().build()));
        assert_eq!(sends.due(false).count(), 20);
        assert!(sends.is_empty());
    }
}
