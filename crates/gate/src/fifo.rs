//! First in, first out, with a bound on what is outstanding.

use crate::{Ask, Policy, Ticket};
use std::collections::VecDeque;

/// The policy that changes no order.
pub struct Fifo {
    waiting: VecDeque<Ticket>,
    outstanding: usize,
    outstanding_max: usize,
}

impl Fifo {
    /// At most `outstanding_max` I/Os go to the device at a time.
    #[must_use]
    pub fn new(outstanding_max: usize) -> Fifo {
        assert!(outstanding_max > 0);
        Fifo { waiting: VecDeque::new(), outstanding: 0, outstanding_max }
    }
}

impl Policy for Fifo {
    fn arrive(&mut self, ticket: Ticket, _ask: Ask) {
        self.waiting.push_back(ticket);
    }

    fn admit(&mut self) -> Option<Ticket> {
        if self.outstanding == self.outstanding_max {
            return None;
        }
        let ticket = self.waiting.pop_front()?;
        self.outstanding += 1;
        Some(ticket)
    }

    fn complete(&mut self, _ask: Ask, _device_ns: Option<u64>) {
        assert!(self.outstanding > 0, "an I/O completes once");
        self.outstanding -= 1;
    }

    fn withdraw(&mut self, ticket: Ticket) {
        self.waiting.retain(|waiting| *waiting != ticket);
    }

    fn reads_max(&self) -> u64 {
        self.outstanding_max as u64
    }
}

#[cfg(test)]
#[path = "fifo_tests.rs"]
mod tests;
