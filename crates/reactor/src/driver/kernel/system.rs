//! Clocks and random numbers of the system.
//!
//! Role: how time and chance enter a server. Place on the path: the clock is read once for every task
//! that goes on, however often the task asks for the time.

use rustix::rand::{GetRandomFlags, getrandom};
use rustix::time::ClockId;

/// How long the difference of the two clocks is believed: the wall clock may be set.
const DIFFERENCE_NS: u64 = 1_000_000;

/// The clocks as they were when last looked at.
pub(in crate::driver) struct Clock {
    now_ns: u64,
    /// What the wall clock is ahead of the monotonic one, and when that was found.
    ahead_ns: u64,
    compared_ns: u64,
}

impl Clock {
    pub(in crate::driver) fn new() -> Clock {
        let mut clock = Clock { now_ns: 0, ahead_ns: 0, compared_ns: 0 };
        clock.look();
        clock
    }

    /// Reads the clock: nanoseconds from an arbitrary start.
    pub(in crate::driver) fn look(&mut self) -> u64 {
        self.now_ns = nanoseconds(ClockId::Monotonic);
        if self.now_ns - self.compared_ns >= DIFFERENCE_NS {
            self.ahead_ns = nanoseconds(ClockId::Realtime).wrapping_sub(self.now_ns);
            self.compared_ns = self.now_ns;
        }
        self.now_ns
    }

    /// What the monotonic clock said.
    pub(in crate::driver) fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// What the wall clock said: microseconds since 1970.
    pub(in crate::driver) fn wall_us(&self) -> u64 {
        self.now_ns.wrapping_add(self.ahead_ns) / 1000
    }
}

fn nanoseconds(clock: ClockId) -> u64 {
    let now = rustix::time::clock_gettime(clock);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Random numbers, 64 for one system call.
#[derive(Default)]
pub(in crate::driver) struct Random(Vec<u64>);

impl Random {
    pub(in crate::driver) fn draw(&mut self) -> u64 {
        if self.0.is_empty() {
            self.refill();
        }
        self.0.pop().expect("just refilled")
    }

    fn refill(&mut self) {
        let mut bytes = [0_u8; 512];
        let mut filled = 0;
        while filled < bytes.len() {
            match getrandom(&mut bytes[filled..], GetRandomFlags::empty()) {
                Ok(count) => filled += count,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => panic!("the system gives no random numbers: {error}"),
            }
        }
        self.0.extend(bytes.as_chunks::<8>().0.iter().map(|chunk| u64::from_ne_bytes(*chunk)));
    }
}
