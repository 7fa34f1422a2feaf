//! Which driver serves: io_uring, or where it is forbidden the portable one.
//!
//! Role: the choice that a user makes, and what becomes of it on this machine. Place on the path: none.
//!
//! Invariants: all reactors that were started together have the same kind, and once io_uring was refused, all
//! that are started without a choice; that it is refused is said once, with the reason, the cost and the
//! mend. Never: it gives another driver than the one that was asked for by name.

use super::uring;
use std::io;
use std::sync::OnceLock;

/// How the reactors are to speak to the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DriverChoice {
    /// io_uring. Where the kernel, a container's profile or a sandbox refuses it, it is too old, or there is
    /// no memory that may be locked for it: the portable driver, with one warning.
    #[default]
    Auto,
    /// io_uring or nothing.
    Uring,
    /// epoll for sockets and a few threads for files.
    Portable,
}

/// What speaks to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriverKind {
    /// One io_uring a core.
    Uring,
    /// epoll for sockets and a few threads for files.
    Portable,
}

impl DriverKind {
    /// The name of the choice that leads to it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            DriverKind::Uring => "uring",
            DriverKind::Portable => "portable",
        }
    }

    /// The kernel's interface by which it learns of events.
    #[must_use]
    pub fn interface(self) -> &'static str {
        match self {
            DriverKind::Uring => "io_uring",
            DriverKind::Portable => "epoll",
        }
    }
}

/// Why io_uring is refused, if it is; found out once.
static REFUSAL: OnceLock<Option<String>> = OnceLock::new();
/// Why there was no ring for one of several cores, though there was one to try.
static SHORTAGE: OnceLock<String> = OnceLock::new();

/// True if this error means that io_uring is not to be had here, and the server runs without: the kernel or a
/// filter forbids it, or memory may not be locked for it. That descriptors are short is none: without
/// io_uring they are as short.
#[must_use]
pub fn is_refusal(error: &io::Error) -> bool {
    use io::ErrorKind::{OutOfMemory, PermissionDenied, Unsupported};
    matches!(error.kind(), PermissionDenied | Unsupported | OutOfMemory)
}

/// Notes that not every core could have a ring: the portable driver serves from now on.
pub(super) fn fall_short(error: &io::Error) {
    SHORTAGE.get_or_init(|| {
        let reason = error.to_string();
        warn(&reason);
        reason
    });
}

impl DriverChoice {
    /// The kind of driver that serves. The first [`DriverChoice::Auto`] of a process tries io_uring, and
    /// warns if it is refused.
    #[must_use]
    pub fn settle(self) -> DriverKind {
        match self {
            DriverChoice::Uring => DriverKind::Uring,
            DriverChoice::Portable => DriverKind::Portable,
            DriverChoice::Auto => {
                let refusal = REFUSAL.get_or_init(|| {
                    let refusal = uring::try_out().err().filter(is_refusal).map(|error| error.to_string());
                    refusal.as_deref().inspect(|reason| warn(reason));
                    refusal
                });
                let is_refused = refusal.is_some() || SHORTAGE.get().is_some();
                if is_refused { DriverKind::Portable } else { DriverKind::Uring }
            }
        }
    }
}

fn warn(reason: &str) {
    tracing::warn!(
        reason,
        "io_uring cannot be used: the portable driver (epoll and threads) serves instead. It keeps every \
         promise and takes up to twice the processor time for what comes from the device"
    );
}
