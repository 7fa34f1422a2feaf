//! A window for reads: as many at the device as it serves without queueing, and no more.
//!
//! Role: the order and the bound of the I/Os of one core at one SSD. First in, first out among reads and
//! among all others; reads have a window, which follows the latency of the device. Place on the path:
//! the policy of [`crate::Gated`].
//!
//! Source: the read window of eZNS (OSDI'23), which follows Gimbal (SIGCOMM'21, section 4.2). There the
//! threshold is a latency, 500 us; here it is a multiple of what the same device takes for a read of
//! that size when nothing is in its way, so that it fits a fast drive and a slow one.
//!
//! Why less at the device is more: what waits here can still be ordered. And a virtual drive may work
//! its queue through and interrupt once, at its end: given all reads of a closed loop it answers them
//! together, and drive and core rest in turns. Given half of them, both work. Where many more wait than the
//! window holds, several windows may be at the drive, if that brings more reads: see [`crate::depth`].
//!
//! Invariants: reads in the window, and I/Os altogether, are bounded; the window never closes below
//! [`READS_MIN`], so that a latency taken wrongly slows no drive down; a read larger than the window
//! passes alone.
//!
//! Never: writes and flushes do not wait for reads; nothing is held back while nothing is at the device.

use crate::depth::Depth;
use crate::{Ask, Kind, Policy, Ticket};
use std::collections::VecDeque;

/// Bytes of a read that count as one, and so do some more: what a drive moves for about the price of any
/// smaller read.
const READ_BYTES: u64 = 16 << 10;
/// The window at first, and the smallest: more than a core can ask of a fast drive.
const READS_MIN: u64 = 32;
/// A read at a loaded device may take so many times what it takes at rest.
const LOADED_BY_REST: u64 = 6;
/// Sizes of reads by powers of two of [`READ_BYTES`], up to 8 MiB; larger ones are as the last.
const SIZES: usize = 10;
/// Reads after which the shortest latency is looked for anew; the one before counts as long again.
const REST_READS: u64 = 1 << 20;
/// Latencies as shares of that at rest have so many steps to one.
const ONE: u64 = 256;
/// A new latency counts one part in so many.
const SMOOTHING: u64 = 16;

/// What reads of one size take at rest: the shortest latency of the last one to two million.
#[derive(Clone, Copy, Debug)]
struct Rest {
    before_ns: u64,
    now_ns: u64,
    reads: u64,
}

impl Rest {
    const UNKNOWN: Rest = Rest { before_ns: u64::MAX, now_ns: u64::MAX, reads: 0 };

    /// Takes a latency, and tells the shortest.
    fn saw(&mut self, device_ns: u64) -> u64 {
        self.now_ns = self.now_ns.min(device_ns.max(1));
        let shortest_ns = self.now_ns.min(self.before_ns);
        self.reads += 1;
        if self.reads == REST_READS {
            *self = Rest { before_ns: self.now_ns, now_ns: u64::MAX, reads: 0 };
        }
        shortest_ns
    }
}

/// The policy that follows the latency of reads.
pub struct Window {
    reads: VecDeque<(Ticket, u64)>,
    others: VecDeque<Ticket>,
    outstanding: usize,
    outstanding_max: usize,
    /// Reads that wait, by size.
    waiting: u64,
    /// Reads at the device, by size.
    reading: u64,
    /// As many may be,
    window: u64,
    /// or several times as many where more wait.
    depth: Depth,
    rest: [Rest; SIZES],
    /// The mean of the last latencies, in shares of that at rest.
    loaded: u64,
    /// Reads that came back since the window was last judged.
    judged: u64,
    /// A read waited for the window since then.
    was_full: bool,
}

impl Window {
    /// At most `outstanding_max` I/Os go to the device at a time.
    ///
    /// # Panics
    /// The smallest window is larger than that.
    #[must_use]
    pub fn new(outstanding_max: usize) -> Window {
        assert!(outstanding_max as u64 >= READS_MIN);
        Window {
            reads: VecDeque::new(),
            others: VecDeque::new(),
            outstanding: 0,
            outstanding_max,
            waiting: 0,
            reading: 0,
            window: READS_MIN,
            depth: Depth::new(),
            rest: [Rest::UNKNOWN; SIZES],
            loaded: ONE,
            judged: 0,
            was_full: false,
        }
    }

    /// The first read, if the window has room for it.
    fn fitting_read(&mut self) -> Option<Ticket> {
        let (ticket, reads) = *self.reads.front()?;
        let fits = self.reading == 0 || self.reading + reads <= self.reads_max();
        self.was_full |= !fits;
        fits.then_some(ticket)
    }

    /// Reads that are at the device or wait for it, by size.
    fn wanted(&self) -> u64 {
        self.waiting + self.reading
    }

    /// A read came back.
    fn saw(&mut self, reads: u64, device_ns: u64) {
        let size = (reads.ilog2() as usize).min(SIZES - 1);
        let rest_ns = self.rest[size].saw(device_ns);
        let loaded = device_ns.saturating_mul(ONE) / rest_ns;
        self.loaded = (self.loaded * (SMOOTHING - 1)).saturating_add(loaded) / SMOOTHING;
        self.depth.saw(reads, device_ns, self.reading + reads, (self.wanted() + reads) / self.window);
        self.judged += reads;
        if self.judged >= self.window {
            self.judge();
        }
    }

    /// Opens or closes the window: once for as many reads as it holds, as those saw the last change.
    fn judge(&mut self) {
        if self.loaded > LOADED_BY_REST * ONE {
            self.window = (self.window - self.window / 8).max(READS_MIN);
        } else if self.was_full {
            self.window = (self.window + self.window / 16).min(self.outstanding_max as u64);
        }
        (self.judged, self.was_full) = (0, false);
    }
}

/// A value of so many bytes is read with its header: rounded up each of 16 KiB would count as two, and half
/// as many be at the drive as it takes.
fn reads_of(ask: Ask) -> u64 {
    (ask.bytes / READ_BYTES).max(1)
}

impl Policy for Window {
    fn arrive(&mut self, ticket: Ticket, ask: Ask) {
        match ask.kind {
            Kind::Read => {
                self.waiting += reads_of(ask);
                self.reads.push_back((ticket, reads_of(ask)));
            }
            Kind::Write | Kind::Flush => self.others.push_back(ticket),
        }
    }

    fn admit(&mut self) -> Option<Ticket> {
        if self.outstanding == self.outstanding_max {
            return None;
        }
        let ticket = match (self.fitting_read(), self.others.front().copied()) {
            (Some(read), Some(other)) if read < other => read,
            (_, Some(other)) => other,
            (Some(read), None) => read,
            (None, None) => return None,
        };
        if self.others.front() == Some(&ticket) {
            self.others.pop_front();
        } else {
            let (_, reads) = self.reads.pop_front().expect("it was looked at");
            self.waiting -= reads;
            self.reading += reads;
        }
        self.outstanding += 1;
        Some(ticket)
    }

    fn complete(&mut self, ask: Ask, device_ns: Option<u64>) {
        assert!(self.outstanding > 0, "an I/O completes once");
        self.outstanding -= 1;
        if ask.kind != Kind::Read {
            return;
        }
        let reads = reads_of(ask);
        assert!(self.reading >= reads, "a read completes once");
        self.reading -= reads;
        if let Some(device_ns) = device_ns {
            self.saw(reads, device_ns);
        }
    }

    fn withdraw(&mut self, ticket: Ticket) {
        if let Some(at) = self.reads.iter().position(|(waiting, _)| *waiting == ticket) {
            let (_, reads) = self.reads.remove(at).expect("it was found");
            self.waiting -= reads;
        }
        self.others.retain(|waiting| *waiting != ticket);
    }

    fn reads_max(&self) -> u64 {
        // Half of what is wanted at most: drive and core work beside each other.
        let deep = (self.window * self.depth.windows()).min(self.wanted() / 2);
        deep.max(self.window).min(self.outstanding_max as u64)
    }
}

#[cfg(test)]
#[path = "window_tests.rs"]
mod tests;
