//! Windows for reads: as many at the device as it serves without queueing, and no more.
//!
//! Role: the order and the bound of the I/Os of one core at one SSD. First in, first out among reads that
//! somebody waits for, among those of the background, and among all others; reads of either kind have a
//! window, which follows the latency of the device: see [`crate::reads`]. Place on the path: the policy of
//! [`crate::Gated`].
//!
//! Why less at the device is more: what waits here can still be ordered. And a virtual drive may work
//! its queue through and interrupt once, at its end: given all reads of a closed loop it answers them
//! together, and drive and core rest in turns. Given half of them, both work. Where many more wait than the
//! window holds, several windows may be at the drive, if that brings more reads: see [`crate::depth`].
//!
//! Why two windows: the background asks for megabytes at once, and who waits for a kilobyte would stand
//! behind all of them. So it gets a quarter of the other's window while that is used, and a whole one of its
//! own while it is not, which begins anew each time: one instant without other reads fills no drive.
//!
//! Invariants: reads in the windows, and I/Os altogether, are bounded; one read of each kind always goes,
//! though it is larger than the window.
//!
//! Never: writes and flushes do not wait for reads, nor foreground reads for the window of the background;
//! nothing is held back while nothing is at the device.

use crate::depth::Depth;
use crate::reads::{READS_MIN, Reads, reads_of};
use crate::{Ask, Kind, Policy, Ticket};
use plimsoll_kv::Class;
use std::collections::VecDeque;

/// The background has this part of the foreground's window while there are foreground reads.
const BACKGROUND_PART: u64 = 4;

/// The policy that follows the latency of reads.
pub struct Window {
    foreground: Reads,
    background: Reads,
    others: VecDeque<Ticket>,
    outstanding: usize,
    outstanding_max: usize,
    /// Several times as many foreground reads may be at the device where more wait.
    depth: Depth,
}

impl Window {
    /// At most `outstanding_max` I/Os go to the device at a time.
    ///
    /// # Panics
    /// The smallest window is larger than that.
    #[must_use]
    pub fn new(outstanding_max: usize) -> Window {
        let reads_max = outstanding_max as u64;
        assert!(reads_max >= READS_MIN);
        Window {
            foreground: Reads::new(reads_max),
            // Who comes while the background is alone finds room.
            background: Reads::new((reads_max / 2).max(READS_MIN)),
            others: VecDeque::new(),
            outstanding: 0,
            outstanding_max,
            depth: Depth::new(),
        }
    }

    /// The first foreground read, if its window has room for it.
    fn fitting_foreground(&mut self) -> Option<Ticket> {
        let (ticket, reads) = self.foreground.first()?;
        let fits = self.foreground.has_room(reads, self.reads_max());
        if !fits {
            self.foreground.was_full();
        }
        fits.then_some(ticket)
    }

    /// The first background read, if what is its window now has room for it.
    fn fitting_background(&mut self) -> Option<Ticket> {
        let (ticket, reads) = self.background.first()?;
        let is_alone = self.foreground.wanted() == 0;
        let beside = self.foreground.window() / BACKGROUND_PART;
        let fits = self.background.has_room(reads, if is_alone { self.background.window() } else { beside });
        if !fits && is_alone {
            self.background.was_full();
        }
        fits.then_some(ticket)
    }

    fn complete_read(&mut self, ask: Ask, device_ns: Option<u64>) {
        let reads = reads_of(ask);
        if ask.origin.class == Class::Background {
            self.background.complete(reads, device_ns);
            if self.foreground.wanted() > 0 {
                self.background.close();
            }
            return;
        }
        let (depth, wanted) = (self.foreground.reading(), self.foreground.wanted());
        if let Some(device_ns) = device_ns {
            self.depth.saw(reads, device_ns, depth, wanted / self.foreground.window());
        }
        self.foreground.complete(reads, device_ns);
    }
}

impl Policy for Window {
    fn arrive(&mut self, ticket: Ticket, ask: Ask) {
        match (ask.kind, ask.origin.class) {
            (Kind::Read, Class::Foreground) => self.foreground.arrive(ticket, reads_of(ask)),
            (Kind::Read, Class::Background) => self.background.arrive(ticket, reads_of(ask)),
            (Kind::Write | Kind::Flush, _) => self.others.push_back(ticket),
        }
    }

    fn admit(&mut self) -> Option<Ticket> {
        if self.outstanding == self.outstanding_max {
            return None;
        }
        let (foreground, background) = (self.fitting_foreground(), self.fitting_background());
        let other = self.others.front().copied();
        let ticket = [foreground, background, other].into_iter().flatten().min()?;
        if foreground == Some(ticket) {
            self.foreground.admit();
        } else if background == Some(ticket) {
            self.background.admit();
        } else {
            self.others.pop_front();
        }
        self.outstanding += 1;
        Some(ticket)
    }

    fn complete(&mut self, ask: Ask, device_ns: Option<u64>) {
        assert!(self.outstanding > 0, "an I/O completes once");
        self.outstanding -= 1;
        if ask.kind == Kind::Read {
            self.complete_read(ask, device_ns);
        }
    }

    fn withdraw(&mut self, ticket: Ticket) {
        self.foreground.withdraw(ticket);
        self.background.withdraw(ticket);
        self.others.retain(|waiting| *waiting != ticket);
    }

    fn reads_max(&self) -> u64 {
        let window = self.foreground.window();
        // Half of what is wanted at most: drive and core work beside each other.
        let deep = (window * self.depth.windows()).min(self.foreground.wanted() / 2);
        deep.max(window).min(self.outstanding_max as u64)
    }
}

#[cfg(test)]
#[path = "window_tests.rs"]
mod tests;
