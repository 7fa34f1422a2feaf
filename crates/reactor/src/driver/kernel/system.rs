//! Clocks and random numbers of the system.
//!
//! Role: how time and chance enter a server. Place on the path: read several times for every request,
//! without a system call where the clock allows it.

use rustix::rand::{GetRandomFlags, getrandom};
use rustix::time::ClockId;

/// The monotonic clock in nanoseconds.
pub(in crate::driver) fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The wall clock in milliseconds since 1970.
pub(in crate::driver) fn wall_ms() -> u64 {
    let now = rustix::time::clock_gettime(ClockId::Realtime);
    now.tv_sec as u64 * 1_000 + now.tv_nsec as u64 / 1_000_000
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
