//! Many seeds on all processors: what the commands of all worlds share.
//!
//! Place: between `plimsoll sim fuzz` and a kind of worlds. Invariants: seeds are independent; what is told
//! of a seed does not depend on how many run beside it. Never: it decides nothing about a seed.

use std::fmt::Arguments;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Instant;

/// Takes a line of what is told: who prints knows whether anybody still reads.
pub type Say = dyn Fn(Arguments<'_>) + Sync;

/// A progress line stands after so many seeds.
const PROGRESS_SEEDS: u64 = 1000;

/// What a run over many seeds of one kind of worlds comes to.
pub(crate) trait Sum: Default + Send {
    /// What a seed came to.
    type Report;

    /// Runs a seed.
    fn run_seed(seed: u64) -> Self::Report;

    /// Adds a seed that has run.
    fn add(&mut self, report: Self::Report);

    /// Seeds that ran.
    fn seeds(&self) -> u64;

    /// Seeds in which a rule was broken, and how.
    fn violations(&mut self) -> &mut Vec<(u64, String)>;
}

/// Runs seeds on `threads` threads; stops at the first violation unless told to go on.
pub(crate) fn run<T: Sum>(
    seeds: Range<u64>,
    threads: usize,
    go_on: bool,
    progress: impl Fn(u64) + Sync,
) -> T {
    let (next, stop) = (AtomicU64::new(seeds.start), AtomicBool::new(false));
    let sum = Mutex::new(T::default());
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                while !stop.load(SeqCst) {
                    let seed = next.fetch_add(1, SeqCst);
                    if seed >= seeds.end {
                        return;
                    }
                    let report = T::run_seed(seed);
                    let mut sum = sum.lock().expect("worlds keep their panics to themselves");
                    sum.add(report);
                    if !go_on && !sum.violations().is_empty() {
                        stop.store(true, SeqCst);
                    }
                    if sum.seeds().is_multiple_of(PROGRESS_SEEDS) {
                        progress(sum.seeds());
                    }
                }
            });
        }
    });
    let mut sum = sum.into_inner().expect("worlds keep their panics to themselves");
    sum.violations().sort();
    sum
}

/// Runs seeds on all processors, with progress; what they came to, and the words that begin the table.
#[allow(clippy::disallowed_methods, reason = "seeds a second are measured in real time, outside the worlds")]
pub(crate) fn run_on_all_processors<T: Sum>(seeds: Range<u64>, go_on: bool, say: &Say) -> (T, String) {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let (start, count) = (Instant::now(), seeds.end - seeds.start);
    let sum: T = run(seeds, threads, go_on, |done| {
        say(format_args!("{done} of {count} seeds, {:.1} s", start.elapsed().as_secs_f64()));
    });
    let (seconds, done) = (start.elapsed().as_secs_f64(), sum.seeds());
    let rate = done as f64 / seconds;
    (sum, format!("{done} seeds in {seconds:.1} s ({rate:.0} a second on {threads} threads)"))
}

/// Tells the seeds in which a rule was broken, and how each is replayed with the command's options.
pub(crate) fn tell_violations(violations: &[(u64, String)], options: &str, say: &Say) {
    for (seed, text) in violations {
        say(format_args!("seed {seed}: {text}"));
        say(format_args!("replay it with: plimsoll sim fuzz {options}--seeds {seed}..{} --trace", seed + 1));
    }
}

/// Tells what happened in a seed, in order; true if no rule was broken.
pub(crate) fn tell_seed(seed: u64, trace: &[String], violation: Option<&str>, say: &Say) -> bool {
    trace.iter().for_each(|line| say(format_args!("{line}")));
    say(format_args!("seed {seed}: {}", violation.unwrap_or("no rule was broken")));
    violation.is_none()
}
