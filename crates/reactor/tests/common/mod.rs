//! What the tests of the reactor on a real kernel share.
//!
//! A failed assertion on a reactor thread ends the test process with its message: that is how
//! reactors treat panics.

#![allow(dead_code)] // Each test binary uses a part.
#![allow(clippy::disallowed_methods)] // Tests watch real time from outside the reactors.

use plimsoll_reactor::{DriverChoice, Reactor, Running, StartOptions, Work, start};
use std::future::Future;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// A test that takes longer hangs.
const HANG: Duration = Duration::from_secs(60);

/// Makes two tests of each function that takes a driver: one on io_uring, one on the portable driver.
#[macro_export]
macro_rules! on_every_driver {
    ($($test:ident),* $(,)?) => {
        mod uring {
            $(#[test]
            fn $test() {
                super::$test(plimsoll_reactor::DriverChoice::Uring);
            })*
        }
        mod portable {
            $(#[test]
            fn $test() {
                super::$test(plimsoll_reactor::DriverChoice::Portable);
            })*
        }
    };
}

/// The processors of `cores` reactors; they share when there are too few.
pub(crate) fn options(driver: DriverChoice, cores: usize) -> StartOptions {
    let count = std::thread::available_parallelism().map_or(1, usize::from);
    StartOptions { cpus: (0..cores).map(|core| core % count).collect(), driver }
}

/// Joins the reactors; a hang ends the process with a message.
pub(crate) fn join(running: Running) {
    let (done, finished) = channel();
    std::thread::spawn(move || {
        running.join();
        let _ = done.send(());
    });
    if finished.recv_timeout(HANG).is_err() {
        eprintln!("the reactors hang");
        std::process::abort();
    }
}

/// Runs a future on one reactor to its end.
pub(crate) fn block_on<F: Future<Output = ()> + 'static>(
    driver: DriverChoice,
    main: impl Fn(Reactor) -> F + Send + Sync + 'static,
) {
    let running = start(&options(driver, 1), move |reactor| {
        let (future, stopper) = (main(reactor.clone()), reactor.clone());
        reactor.spawn(Work::Control, async move {
            future.await;
            stopper.stop();
        });
    });
    join(running.expect("reactors start"));
}

/// A path of this test's own on a file system that keeps what is written, which does not exist.
pub(crate) fn fresh_path(name: &str) -> String {
    static PATHS: AtomicUsize = AtomicUsize::new(0);
    let (process, number) = (std::process::id(), PATHS.fetch_add(1, Ordering::Relaxed));
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{process}-{number}"));
    let _ = std::fs::remove_file(&path);
    path.to_str().expect("the target directory has a readable name").to_owned()
}

/// Runs `work` in a loop until it says that it is done; a hang ends the process.
pub(crate) fn wait_until(what: &str, mut work: impl FnMut() -> bool) {
    let start = Instant::now();
    while !work() {
        if start.elapsed() > HANG {
            eprintln!("waited in vain until {what}");
            std::process::abort();
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}
