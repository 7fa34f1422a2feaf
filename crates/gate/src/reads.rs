//! The reads of one class: those that wait, those at the device, and how many may be there.
//!
//! Role: one of the two windows of [`crate::Window`], which follows the latency of the reads in it. Place on
//! the path: beside the policy, which says when what waits here may go.
//!
//! Source: the read window of eZNS (OSDI'23), which follows Gimbal (SIGCOMM'21, section 4.2). There the
//! threshold is a latency, 500 us; here it is a multiple of what the same device takes for a read of
//! that size when nothing is in its way, so that it fits a fast drive and a slow one.
//!
//! Invariants: first in, first out; the window never closes below [`READS_MIN`], so that a latency taken
//! wrongly slows no drive down.

use crate::{Ask, Ticket};
use std::collections::VecDeque;

/// Bytes of a read that count as one, and so do some more: what a drive moves for about the price of any
/// smaller read.
const READ_BYTES: u64 = 16 << 10;
/// The window at first, and the smallest: more than a core can ask of a fast drive.
pub(crate) const READS_MIN: u64 = 32;
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

/// A value of so many bytes is read with its header: rounded up each of 16 KiB would count as two, and half
/// as many be at the drive as it takes.
pub(crate) fn reads_of(ask: Ask) -> u64 {
    (ask.bytes / READ_BYTES).max(1)
}

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

/// Reads of one class, and their window.
pub(crate) struct Reads {
    queue: VecDeque<(Ticket, u64)>,
    /// Reads that wait, by size.
    waiting: u64,
    /// Reads at the device, by size.
    reading: u64,
    /// As many may be.
    window: u64,
    window_max: u64,
    rest: [Rest; SIZES],
    /// The mean of the last latencies, in shares of that at rest.
    loaded: u64,
    /// Reads that came back since the window was last judged.
    judged: u64,
    /// A read waited for the window since then.
    was_full: bool,
}

impl Reads {
    pub(crate) fn new(window_max: u64) -> Reads {
        Reads {
            queue: VecDeque::new(),
            waiting: 0,
            reading: 0,
            window: READS_MIN,
            window_max,
            rest: [Rest::UNKNOWN; SIZES],
            loaded: ONE,
            judged: 0,
            was_full: false,
        }
    }

    pub(crate) fn window(&self) -> u64 {
        self.window
    }

    pub(crate) fn reading(&self) -> u64 {
        self.reading
    }

    /// Reads that are at the device or wait for it, by size.
    pub(crate) fn wanted(&self) -> u64 {
        self.waiting + self.reading
    }

    pub(crate) fn arrive(&mut self, ticket: Ticket, reads: u64) {
        self.waiting += reads;
        self.queue.push_back((ticket, reads));
    }

    /// The first of those that wait, and how many it counts as.
    pub(crate) fn first(&self) -> Option<(Ticket, u64)> {
        self.queue.front().copied()
    }

    /// There is room for so many more among `reads_max`, or nothing at the device: one always goes.
    pub(crate) fn has_room(&self, reads: u64, reads_max: u64) -> bool {
        self.reading == 0 || self.reading + reads <= reads_max
    }

    /// One waits for the window alone: a wider one would let it go.
    pub(crate) fn was_full(&mut self) {
        self.was_full = true;
    }

    /// The first goes to the device.
    pub(crate) fn admit(&mut self) {
        let (_, reads) = self.queue.pop_front().expect("it was looked at");
        self.waiting -= reads;
        self.reading += reads;
    }

    pub(crate) fn withdraw(&mut self, ticket: Ticket) {
        if let Some(at) = self.queue.iter().position(|(waiting, _)| *waiting == ticket) {
            let (_, reads) = self.queue.remove(at).expect("it was found");
            self.waiting -= reads;
        }
    }

    /// A read is back; it took so long at the device, if its end was seen.
    pub(crate) fn complete(&mut self, reads: u64, device_ns: Option<u64>) {
        assert!(self.reading >= reads, "a read completes once");
        self.reading -= reads;
        let Some(device_ns) = device_ns else { return };
        let size = (reads.ilog2() as usize).min(SIZES - 1);
        let rest_ns = self.rest[size].saw(device_ns);
        let loaded = device_ns.saturating_mul(ONE) / rest_ns;
        self.loaded = (self.loaded * (SMOOTHING - 1)).saturating_add(loaded) / SMOOTHING;
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
            self.window = (self.window + self.window / 16).min(self.window_max);
        }
        (self.judged, self.was_full) = (0, false);
    }

    /// Closes the window as far as it closes.
    pub(crate) fn close(&mut self) {
        (self.window, self.was_full) = (READS_MIN, false);
    }
}
