//! The seam to the world outside: one type, one driver behind it.
//!
//! Role: starts operations and reports completions; gives time, randomness and wake-ups. All
//! non-determinism of the product passes here. Place on the path: below every file and socket.
//!
//! The contract of a driver:
//! * `start` never blocks and never completes at once; memory named by the operation stays valid
//!   until its completion has been given to [`Ops::complete`];
//! * `reap` submits what was started, or some turns later, and hands over completions, without blocking;
//! * `feed_drive` submits what was started for a drive that has nothing else to do, or leaves that to `reap`;
//! * `park` sleeps until a completion, the timeout or a wake-up; it may return early;
//! * `announce_sleep` comes before the last look for messages, `announce_awake` after the sleep;
//! * `waker` is what another thread wakes this core by;
//! * `spin_ns` is how long a core that finds nothing to do looks on before it sleeps;
//! * `now_ns` and `wall_us` say what the clock said at the last `look_at_clock`;
//! * after `give_up` nothing starts, and `in_flight` operations end soon; `leave` is for those that do not.

mod choice;
mod kernel;
mod portable;
pub mod sim;
mod start;
mod uring;
pub(crate) mod wake;

pub use choice::{DriverChoice, DriverKind, is_refusal};
pub use kernel::open::TMPFS_MAGIC;
pub use kernel::sockets::cannot_listen;
pub use start::{Running, StartOptions, start};

use crate::file::{FileOptions, Opened};
use crate::ops::{FileId, Op, Ops, SocketId, Token};
use crate::reactor::CoreId;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use wake::WakeCell;

/// How long a stop waits for operations in flight.
const DRAIN_NS_MAX: u64 = 5_000_000_000;

/// Runs what a thread of the reactor does; a panic ends the process. The panic hook has printed the
/// message by the time it is caught.
fn abort_on_panic(work: impl FnOnce()) {
    if std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).is_err() {
        std::process::abort();
    }
}

pub(crate) enum Driver {
    Uring(Box<uring::Uring>),
    Portable(Box<portable::Portable>),
    Sim(sim::SimDriver),
}

macro_rules! dispatch {
    ($(fn $name:ident(&mut self $(, $arg:ident: $type:ty)*) $(-> $out:ty)?;)*) => {
        impl Driver {
            $(pub(crate) fn $name(&mut self $(, $arg: $type)*) $(-> $out)? {
                match self {
                    Driver::Uring(driver) => driver.$name($($arg),*),
                    Driver::Portable(driver) => driver.$name($($arg),*),
                    Driver::Sim(driver) => driver.$name($($arg),*),
                }
            })*
        }
    };
}

dispatch! {
    fn start(&mut self, token: Token, op: &mut Op);
    fn cancel(&mut self, token: Token);
    fn reap(&mut self, ops: &mut Ops) -> usize;
    fn feed_drive(&mut self);
    fn announce_sleep(&mut self);
    fn announce_awake(&mut self);
    fn park(&mut self, timeout_ns: Option<u64>);
    fn wake(&mut self, core: CoreId);
    fn waker(&mut self) -> Arc<WakeCell>;
    fn spin_ns(&mut self) -> u64;
    fn look_at_clock(&mut self) -> u64;
    fn now_ns(&mut self) -> u64;
    fn wall_us(&mut self) -> u64;
    fn random_u64(&mut self) -> u64;
    fn open_file(&mut self, path: &str, options: &FileOptions) -> io::Result<Opened>;
    fn close_file(&mut self, file: FileId);
    fn listen(&mut self, address: SocketAddr) -> io::Result<(SocketId, SocketAddr)>;
    fn connect(&mut self, address: SocketAddr) -> io::Result<SocketId>;
    fn close_socket(&mut self, socket: SocketId);
    fn shutdown_socket(&mut self, socket: SocketId);
    fn abort_socket(&mut self, socket: SocketId);
    fn peer(&mut self, socket: SocketId) -> Option<SocketAddr>;
    fn give_up(&mut self);
    fn in_flight(&mut self) -> usize;
    fn leave(&mut self);
}

impl Driver {
    /// Gives up what may be given up, and waits for the end of the rest.
    pub(crate) fn drain(&mut self, core: CoreId, ops: &mut Ops) {
        self.give_up();
        ops.stop();
        let deadline_ns = self.look_at_clock() + DRAIN_NS_MAX;
        self.reap(ops);
        while self.in_flight() > 0 {
            let left_ns = deadline_ns.saturating_sub(self.look_at_clock());
            if left_ns == 0 {
                let in_flight = self.in_flight();
                let words = "operations do not end; their memory is left to the kernel";
                tracing::error!(core = core.0, in_flight, "{words}");
                ops.leak_in_flight();
                return self.leave();
            }
            self.announce_sleep();
            self.park(Some(left_ns));
            self.announce_awake();
            self.reap(ops);
        }
        // A simulated process may end with the machine: what was under way has no end then.
        assert!(matches!(self, Driver::Sim(_)) || ops.in_flight() == 0, "every operation has completed");
    }
}
