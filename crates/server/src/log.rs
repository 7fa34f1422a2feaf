//! The log: lines on stderr, by a thread of their own.
//!
//! Place on the path: none. Invariants: whoever reads the lines may go away, or read no more, and nobody else
//! waits or ends for that; a process that ends, by a panic too, tells first what waits, and its last words as
//! one more line. Lines that do not fit meanwhile are lost, and counted; those that stderr refuses are lost.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::{IsTerminal, Write};
use std::panic::PanicHookInfo;
use std::sync::{Mutex, OnceLock, PoisonError, mpsc};
use std::thread;
use std::time::Duration;
use tracing_appender::non_blocking::{NonBlocking, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::EnvFilter;

/// Lines that wait for whoever reads them, at most.
const LINES_MAX: usize = 4096;

/// How long the end of a log waits for whoever reads it.
const END_MAX: Duration = Duration::from_secs(2);

/// The one log that a process has.
static LINES: OnceLock<Lines> = OnceLock::new();

/// The lines that wait, and the thread that writes them until they end.
struct Lines {
    waiting: NonBlocking,
    writer: Mutex<Option<WorkerGuard>>,
}

impl Lines {
    fn say(&self, words: &str) {
        // It takes everything, or counts it as lost.
        let _ = self.waiting.clone().write_all(format!("{words}\n").as_bytes());
    }

    /// Has what waits written. Whoever comes second waits for that, too.
    fn end(&self) {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(writer) = writer.take() else { return };
        let (ended, end) = mpsc::channel();
        // Where nobody reads, it tells of that on stdout, which may be what nobody reads.
        let ends = thread::Builder::new().name("log-end".to_owned()).spawn(move || {
            drop(writer);
            let _ = ended.send(());
        });
        if ends.is_ok() {
            let _ = end.recv_timeout(END_MAX);
        }
    }

    /// The last words of a process: what panics is not gone on with, whichever thread it is. That of the main
    /// thread has the end, and the exit code, of any program.
    fn end_with_panic(&self, panic: &PanicHookInfo) {
        let thread = thread::current();
        self.say(&format!("thread '{}' {panic}", thread.name().unwrap_or("without a name")));
        let backtrace = Backtrace::capture();
        if backtrace.status() == BacktraceStatus::Captured {
            self.say(&backtrace.to_string());
        }
        self.end();
        if thread.name() != Some("main") {
            std::process::abort();
        }
    }
}

/// The log of this process, until it is dropped.
pub struct Log(&'static Lines);

impl Log {
    /// The last words of a process, behind all other lines.
    pub fn say(&self, words: &str) {
        self.0.say(words);
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Logs what the environment (`RUST_LOG`), or else `default`, lets through; and panics, which end the
/// process.
///
/// # Panics
/// The process has a log already.
#[must_use]
pub fn to_stderr(default: &str) -> Log {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default));
    let lines = NonBlockingBuilder::default().buffered_lines_limit(LINES_MAX).thread_name("log");
    let (waiting, writer) = lines.finish(std::io::stderr());
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_target(false)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(waiting.clone())
        .init();
    let lines = LINES.get_or_init(|| Lines { waiting, writer: Mutex::new(Some(writer)) });
    std::panic::set_hook(Box::new(|panic| lines.end_with_panic(panic)));
    Log(lines)
}

/// Lines that were lost.
pub(crate) fn lines_lost() -> u64 {
    LINES.get().map_or(0, |lines| lines.waiting.error_counter().dropped_lines() as u64)
}
