//! The log: lines on stderr, by a thread of their own.
//!
//! Place on the path: none. Invariant: whoever reads the lines may go away, or read no more, and nobody else
//! waits or ends for that. Lines that do not fit meanwhile are lost, and counted; those that stderr refuses
//! are lost.

use std::io::{IsTerminal, Write};
use std::sync::{OnceLock, mpsc};
use std::time::Duration;
use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::EnvFilter;

/// Lines that wait for whoever reads them, at most.
const LINES_MAX: usize = 4096;

/// How long the end of a log waits for whoever reads it.
const END_MAX: Duration = Duration::from_secs(2);

/// Of the one log that a process has.
static LOST: OnceLock<ErrorCounter> = OnceLock::new();

/// The log of this process, until it is dropped.
pub struct Log {
    lines: NonBlocking,
    guard: Option<WorkerGuard>,
}

impl Log {
    /// The last words of a process, behind all other lines.
    pub fn say(&mut self, words: &str) {
        // It takes everything, or counts it as lost.
        let _ = self.lines.write_all(format!("{words}\n").as_bytes());
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        let (guard, (ended, end)) = (self.guard.take(), mpsc::channel());
        // Where nobody reads, it tells of that on stdout, which may be what nobody reads.
        let ends = std::thread::Builder::new().name("log-end".to_owned()).spawn(move || {
            drop(guard);
            let _ = ended.send(());
        });
        if ends.is_ok() {
            let _ = end.recv_timeout(END_MAX);
        }
    }
}

/// Logs what the environment (`RUST_LOG`), or else `default`, lets through.
///
/// # Panics
/// The process has a log already.
#[must_use]
pub fn to_stderr(default: &str) -> Log {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default));
    let lines = NonBlockingBuilder::default().buffered_lines_limit(LINES_MAX).thread_name("log");
    let (lines, guard) = lines.finish(std::io::stderr());
    LOST.set(lines.error_counter()).expect("a process has one log");
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_target(false)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(lines.clone())
        .init();
    Log { lines, guard: Some(guard) }
}

/// Lines that were lost.
pub(crate) fn lines_lost() -> u64 {
    LOST.get().map_or(0, |lost| lost.dropped_lines() as u64)
}
