//! Sends that let the drive go first.
//!
//! Role: what the drive is asked for in a turn reaches it before the replies of that turn leave. Place on the
//! path: between the driver's operations and its ring.
//!
//! A send takes the core some 5 us, nearly all of it in the kernel, and of what one system call submits the
//! drive is told at its end: with the replies of a turn in the same call it would rest for as long as they
//! take. Nor is anything else looked at meanwhile, neither what the drive has ended nor what clients ask for
//! next; so few go at a time while it reads, and no more than a turn has tasks at other times.
//!
//! Invariants: sends go out in the order in which they came, some of them in each turn, and all before the
//! core rests; of long ones a turn has as many bytes as it moves for long values ([`crate::bulk`]), or one.

use crate::limits::{BULK_BYTES_PER_TURN, POLLS_PER_TURN_MAX, RECEIVE_DIRECT_BYTES_MIN};
use io_uring::squeue;
use std::collections::VecDeque;

/// Fewer go with what the drive is asked for: a system call more would cost as much as it brings.
const APART_MIN: usize = 4;
/// Sends of a turn while the drive reads.
const BESIDE_READS_MAX: usize = 8;

/// Sends not yet given to the kernel.
#[derive(Default)]
pub(super) struct Sends(VecDeque<Held>);

struct Held {
    entry: squeue::Entry,
    bytes: usize,
}

impl Sends {
    /// One more, of so many bytes.
    pub(super) fn hold(&mut self, entry: squeue::Entry, bytes: usize) {
        self.0.push_back(Held { entry, bytes });
    }

    /// The entry with this user data is among them.
    pub(super) fn holds(&self, data: u64) -> bool {
        self.0.iter().any(|held| held.entry.get_user_data() == data)
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
        let count_max = if drive_reads { BESIDE_READS_MAX } else { POLLS_PER_TURN_MAX };
        let mut long_bytes = 0;
        let fits = |held: &&Held| {
            long_bytes += if held.bytes >= RECEIVE_DIRECT_BYTES_MIN { held.bytes } else { 0 };
            long_bytes <= BULK_BYTES_PER_TURN
        };
        let count = self.0.iter().take(count_max).take_while(fits).count();
        self.take(count.max(1))
    }

    /// All of them.
    pub(super) fn all(&mut self) -> impl Iterator<Item = squeue::Entry> {
        self.take(usize::MAX)
    }

    fn take(&mut self, count: usize) -> impl Iterator<Item = squeue::Entry> {
        let count = count.min(self.0.len());
        self.0.drain(..count).map(|held| held.entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use io_uring::opcode;

    fn sends(count: u64, bytes: usize) -> Sends {
        let mut sends = Sends::default();
        (0..count).for_each(|data| sends.hold(opcode::Nop::new().build().user_data(data), bytes));
        sends
    }

    #[test]
    fn few_go_at_a_time_while_the_drive_reads_and_in_their_order() {
        let mut sends = sends(20, 1000);
        let mut gone = Vec::new();
        for count in [8, 8, 4, 0] {
            let due: Vec<_> = sends.due(true).map(|entry| entry.get_user_data()).collect();
            assert_eq!(due.len(), count);
            gone.extend(due);
        }
        assert!(gone == (0..20).collect::<Vec<_>>() && sends.is_empty());
    }

    /// What came together while the drive read went at once when it had ended (found in review).
    #[test]
    fn no_turn_has_more_than_it_has_tasks() {
        let mut sends = sends(1000, 1000);
        assert_eq!(sends.due(false).count(), POLLS_PER_TURN_MAX);
        assert!(sends.holds(999) && !sends.holds(0));
        assert_eq!(sends.all().count(), 1000 - POLLS_PER_TURN_MAX, "before the core rests");
    }

    #[test]
    fn of_long_ones_a_turn_has_a_share_and_one_at_least() {
        let mut long = sends(8, BULK_BYTES_PER_TURN / 2);
        assert_eq!(long.due(false).count(), 2);
        assert_eq!(long.due(true).count(), 2);
        assert_eq!(sends(2, 2 * BULK_BYTES_PER_TURN).due(false).count(), 1);
        assert_eq!(sends(20, RECEIVE_DIRECT_BYTES_MIN - 1).due(false).count(), 20, "these are short");
    }

    #[test]
    fn a_few_do_not_go_apart() {
        assert!(!sends(3, 1000).go_apart() && sends(4, 1000).go_apart());
    }
}
