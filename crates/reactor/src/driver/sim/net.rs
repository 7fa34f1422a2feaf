//! Simulated stream connections: ordered, delayed, cut at any byte, broken by crashes.

use super::random::Random;
use std::collections::VecDeque;

/// Bytes one direction holds before a sender has to wait.
const WINDOW_BYTES: usize = 256 << 10;
/// What is sent takes so long at least.
pub(super) const DELAY_NS_MIN: u64 = 5_000;

/// Who owns an end: a simulated core in one of its lives.
pub(super) type Owner = (usize, u64);

#[derive(Default)]
struct Direction {
    /// Delivered and not yet received.
    ready: VecDeque<u8>,
    /// Sent and not yet delivered: when, what.
    travelling: VecDeque<(u64, Vec<u8>)>,
    closed: bool,
}

impl Direction {
    fn held(&self) -> usize {
        self.ready.len() + self.travelling.iter().map(|(_, bytes)| bytes.len()).sum::<usize>()
    }
    fn deliver(&mut self, now_ns: u64) {
        while self.travelling.front().is_some_and(|(at, _)| *at <= now_ns) {
            let (_, bytes) = self.travelling.pop_front().expect("just looked at");
            self.ready.extend(bytes);
        }
    }
}

/// A connection; end 0 connected, end 1 accepted.
pub(super) struct Connection {
    /// What each end receives.
    towards: [Direction; 2],
    pub(super) owners: [Option<Owner>; 2],
    pub(super) reset: bool,
    closed_by: [bool; 2],
}

impl Connection {
    pub(super) fn new(connector: Owner) -> Connection {
        Connection {
            towards: Default::default(),
            owners: [Some(connector), None],
            reset: false,
            closed_by: [false; 2],
        }
    }

    /// Takes what has arrived at `end`: some bytes, an end of stream (empty), or nothing yet.
    pub(super) fn receive(
        &mut self,
        end: usize,
        now_ns: u64,
        max: usize,
        random: &mut Random,
    ) -> Option<Vec<u8>> {
        let direction = &mut self.towards[end];
        direction.deliver(now_ns);
        if direction.ready.is_empty() {
            if self.closed_by[end] {
                return Some(Vec::new()); // This end has ended the connection in both directions.
            }
            return (direction.travelling.is_empty() && direction.closed).then(Vec::new);
        }
        let available = direction.ready.len().min(max);
        // Mostly all of it, sometimes cut anywhere: parsers must take any fragmentation.
        let count = if random.chance_ppm(100_000) {
            random.range(1, available as u64 + 1) as usize
        } else {
            available
        };
        Some(direction.ready.drain(..count).collect())
    }

    /// Takes bytes from `end` that arrive then, or after what was sent before; tells when they do and
    /// how many fit, or nothing if none do.
    pub(super) fn send(&mut self, end: usize, bytes: &[u8], arrival_ns: u64) -> Option<(u64, usize)> {
        let direction = &mut self.towards[1 - end];
        let room = WINDOW_BYTES.saturating_sub(direction.held());
        if room == 0 {
            return None;
        }
        let count = bytes.len().min(room);
        let earliest_ns = direction.travelling.back().map_or(0, |(at, _)| *at);
        let arrival_ns = earliest_ns.max(arrival_ns);
        direction.travelling.push_back((arrival_ns, bytes[..count].to_vec()));
        Some((arrival_ns, count))
    }

    /// No more bytes will come from `end`.
    pub(super) fn close(&mut self, end: usize) {
        self.towards[1 - end].closed = true;
        self.closed_by[end] = true;
    }

    /// True if `end` has closed, or its peer has: nothing it sends arrives.
    pub(super) fn is_closed_for(&self, end: usize) -> bool {
        self.closed_by[end] || self.towards[end].closed
    }

    /// When bytes that are on their way to `end` arrive.
    pub(super) fn arrivals(&self, end: usize) -> Vec<u64> {
        self.towards[end].travelling.iter().map(|(at, _)| *at).collect()
    }
}
