//! One io_uring: set up as well as the kernel allows, fed without loss, entered as seldom as can be.
//!
//! Role: the queues and the system calls of one core. Place on the path: the last stage before
//! the kernel and the first after it.
//!
//! Invariants:
//! * an entry given to [`Ring::push`] reaches the kernel, in the order of the pushes: what does
//!   not fit the submission queue waits in a backlog, bounded by the operations in flight;
//! * [`Ring::submit`] enters the kernel once at most, and not at all when nothing was pushed and
//!   the kernel holds no deferred work;
//! * only the thread that made the ring touches it.
//!
//! Never: it knows no file, socket or operation; user data are opaque to it.

use crate::limits::OPS_MAX;
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use std::collections::VecDeque;
use std::io;

/// Entries submitted by one system call. Larger bursts take several turns.
const SUBMISSIONS_MAX: u32 = 1024;
/// Completions the kernel can post before it falls back to a list of its own.
const COMPLETIONS_MAX: u32 = 8192;
/// Each operation has one entry queued at most, and one that cancels it.
const BACKLOG_MAX: usize = 2 * OPS_MAX + 2;
/// `IORING_ENTER_GETEVENTS`: also run the work that the kernel deferred to us.
const ENTER_GETEVENTS: u32 = 1;

/// Set-ups from the best to the plainest, with the kernel that brought each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Setup {
    /// Completions are processed when this thread asks for them (6.1).
    Deferred,
    /// Completions are processed at this thread's next system call, without an interrupt (5.19).
    Cooperative,
    /// Completions may interrupt this thread.
    Plain,
}

pub(super) struct Ring {
    ring: IoUring,
    backlog: VecDeque<squeue::Entry>,
}

impl Ring {
    /// Makes the ring of the calling thread.
    pub(super) fn new() -> io::Result<Ring> {
        let ring = build()?;
        let features = ring.params();
        if !features.is_feature_ext_arg() || !features.is_feature_nodrop() {
            return Err(io::Error::new(io::ErrorKind::Unsupported, TOO_OLD));
        }
        Ok(Ring { ring, backlog: VecDeque::new() })
    }

    /// For registering files and buffers.
    pub(super) fn submitter(&self) -> io_uring::Submitter<'_> {
        self.ring.submitter()
    }

    /// Queues an entry.
    ///
    /// # Safety
    /// Memory that the entry names must stay valid, and if the kernel writes to it unused by
    /// others, until the entry's completion has been taken. Descriptors it names must stay open
    /// until it was submitted; in practice until its completion, too.
    pub(super) unsafe fn push(&mut self, entry: squeue::Entry) {
        if self.backlog.is_empty() {
            // SAFETY: the caller vouches for the entry.
            if unsafe { self.ring.submission().push(&entry) }.is_ok() {
                return;
            }
        }
        assert!(self.backlog.len() < BACKLOG_MAX, "more entries than operations in flight");
        self.backlog.push_back(entry);
    }

    /// Queues entries in their order.
    ///
    /// # Safety
    /// As for [`Ring::push`], for each of them.
    pub(super) unsafe fn push_all(&mut self, entries: impl Iterator<Item = squeue::Entry>) {
        for entry in entries {
            // SAFETY: the caller vouches for the entry.
            unsafe { self.push(entry) };
        }
    }

    /// Moves the backlog into the submission queue as far as it fits.
    fn fill(&mut self) {
        if self.backlog.is_empty() {
            return;
        }
        let mut queue = self.ring.submission();
        while let Some(entry) = self.backlog.front() {
            // SAFETY: whoever pushed the entry vouched for it until its completion.
            if unsafe { queue.push(entry) }.is_err() {
                return;
            }
            self.backlog.pop_front();
        }
    }

    /// Submits what was pushed and lets the kernel finish what it deferred; never waits.
    pub(super) fn submit(&mut self) {
        self.fill();
        let queue = self.ring.submission();
        let (count, deferred) = (queue.len(), queue.taskrun() || queue.cq_overflow());
        drop(queue);
        if count == 0 && !deferred {
            return;
        }
        let submitter = self.ring.submitter();
        // SAFETY: no argument is passed; the entries counted are in the queue, and their memory
        // is valid as `push` demands.
        let entered = unsafe { submitter.enter::<libc::sigset_t>(count as u32, 0, ENTER_GETEVENTS, None) };
        tolerate(entered);
    }

    /// Submits what was pushed and waits for a completion, at most `timeout_ns`. May return
    /// early; does when a backlog remains, so that nothing ever waits behind a sleep.
    pub(super) fn wait(&mut self, timeout_ns: Option<u64>) {
        self.fill();
        let want = usize::from(self.backlog.is_empty());
        let timespec;
        let mut arguments = types::SubmitArgs::new();
        if let Some(ns) = timeout_ns {
            timespec = types::Timespec::new().sec(ns / 1_000_000_000).nsec((ns % 1_000_000_000) as u32);
            arguments = arguments.timespec(&timespec);
        }
        tolerate(self.ring.submitter().submit_with_args(want, &arguments));
    }

    /// Takes every completion that is there.
    pub(super) fn take_completions(&mut self, into: &mut Vec<cqueue::Entry>) {
        into.extend(self.ring.completion());
    }
}

/// Makes a ring and sends nothing through it: a filter may allow the one and forbid the other.
pub(in crate::driver) fn try_out() -> io::Result<()> {
    let mut ring = Ring::new()?;
    // SAFETY: a NOP names no memory.
    unsafe { ring.push(opcode::Nop::new().build()) };
    ring.ring.submit_and_wait(1).map(|_| ()).map_err(explain)
}

/// Entering may fail for a while; what was not submitted stays queued for the next time.
fn tolerate(entered: io::Result<usize>) {
    let Err(error) = entered else { return };
    match error.raw_os_error() {
        Some(libc::EINTR | libc::ETIME | libc::EAGAIN | libc::EBUSY) => {}
        // Completions were lost (EBADR) or the ring is unusable: no operation's fate is known any
        // more, and going on could acknowledge what was never written.
        _ => panic!("io_uring_enter failed: {error}"),
    }
}

/// Makes the best ring that this kernel has.
fn build() -> io::Result<IoUring> {
    for setup in [Setup::Deferred, Setup::Cooperative, Setup::Plain] {
        match build_as(setup) {
            Ok(ring) => {
                tracing::debug!(?setup, "io_uring is ready");
                return Ok(ring);
            }
            // The kernel does not know one of the flags: ask for less.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
            Err(error) => return Err(explain(error)),
        }
    }
    Err(io::Error::new(io::ErrorKind::Unsupported, TOO_OLD))
}

fn build_as(setup: Setup) -> io::Result<IoUring> {
    let mut builder = IoUring::builder();
    builder.dontfork().setup_clamp().setup_cqsize(COMPLETIONS_MAX);
    if setup != Setup::Plain {
        builder.setup_submit_all().setup_coop_taskrun().setup_taskrun_flag();
    }
    if setup == Setup::Deferred {
        builder.setup_single_issuer().setup_defer_taskrun();
    }
    builder.build(SUBMISSIONS_MAX)
}

const TOO_OLD: &str = "this kernel's io_uring is too old: Linux 5.19 or newer is needed";

/// Says in words why there is no ring, and the mend.
fn explain(error: io::Error) -> io::Error {
    let words = match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            "io_uring is forbidden to this process: set the sysctl kernel.io_uring_disabled to 0, or allow \
             io_uring_setup, io_uring_enter and io_uring_register in the container's seccomp profile"
        }
        Some(libc::ENOSYS) => {
            "this kernel has no io_uring: Linux 5.19 or newer is needed, built with CONFIG_IO_URING; some \
             sandboxes and containers hide it"
        }
        Some(libc::ENOMEM) => {
            "no memory for io_uring: raise the limit of locked memory (ulimit -l unlimited, \
             LimitMEMLOCK=infinity in the service file) or that of the control group"
        }
        Some(libc::EMFILE | libc::ENFILE) => {
            "no descriptor left for io_uring: raise the limit of open files (ulimit -n, LimitNOFILE=)"
        }
        _ => "io_uring cannot be set up",
    };
    io::Error::new(error.kind(), format!("{words} ({error})"))
}

#[cfg(test)]
mod tests;
