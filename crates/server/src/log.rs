//! The log: lines on stderr, by a thread of their own.
//!
//! Place on the path: none. Invariant: whoever reads the lines may go away, or read no more, and nobody else
//! waits or ends for that. Lines that do not fit meanwhile are lost, and counted.

use std::io::IsTerminal;
use std::sync::OnceLock;
use tracing_appender::non_blocking::{ErrorCounter, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::EnvFilter;

/// Lines that wait for whoever reads them, at most.
const LINES_MAX: usize = 4096;

/// Of the one log that a process has.
static LOST: OnceLock<ErrorCounter> = OnceLock::new();

/// Logs what the environment (`RUST_LOG`), or else `default`, lets through, until the guard is dropped.
///
/// # Panics
/// The process has a log already.
pub fn to_stderr(default: &str) -> WorkerGuard {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default));
    let lines = NonBlockingBuilder::default().buffered_lines_limit(LINES_MAX).thread_name("log");
    let (lines, guard) = lines.finish(std::io::stderr());
    LOST.set(lines.error_counter()).expect("a process has one log");
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_target(false)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(lines)
        .init();
    guard
}

/// Lines that were lost.
pub(crate) fn lines_lost() -> u64 {
    LOST.get().map_or(0, |lost| lost.dropped_lines() as u64)
}
