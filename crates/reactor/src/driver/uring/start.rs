//! Starting the reactor threads of a server.
//!
//! Role: one pinned thread and one ring a core; handles to watch and to join them. Place on the
//! path: none.
//!
//! Invariants: either every core has its ring before `main` runs on any, or none runs; a panic
//! on one core ends the process, for a server that has lost a core would keep promises by halves.

use super::Uring;
use crate::buf;
use crate::driver::Driver;
use crate::driver::wake::WakeCell;
use crate::limits::{ARENA_BYTES_PER_CORE, CORES_MAX};
use crate::load::Load;
use crate::reactor::{CoreId, Reactor};
use rustix::thread::CpuSet;
use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// How to start the reactors of a server.
#[derive(Clone, Debug)]
pub struct UringOptions {
    /// The processors to run on, one reactor each, in the order of their core ids.
    pub cpus: Vec<usize>,
}

/// Reactor threads that run. Dropping it leaves them running.
pub struct Running {
    loads: Vec<Load>,
    threads: Vec<JoinHandle<()>>,
}

impl Running {
    /// Where each core's time goes, in the order of the cores.
    #[must_use]
    pub fn loads(&self) -> &[Load] {
        &self.loads
    }

    /// Waits until every reactor has stopped.
    pub fn join(self) {
        for thread in self.threads {
            thread.join().expect("a panic of a reactor ends the process");
        }
    }
}

/// Starts a reactor thread for each processor and runs `main` on each. `main` gets the reactor
/// before its loop begins, to spawn the first tasks; the loop ends with [`Reactor::stop`].
///
/// # Errors
/// A ring could not be made (io_uring is forbidden or limits are too low), a processor does not
/// exist, or a thread could not be started. Nothing runs then.
pub fn start_uring(
    options: &UringOptions,
    main: impl Fn(&Reactor) + Send + Sync + 'static,
) -> io::Result<Running> {
    let cores = options.cpus.len();
    if !(1..=CORES_MAX).contains(&cores) {
        let words = format!("{cores} cores were asked for: between 1 and {CORES_MAX} can be served");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, words));
    }
    buf::make_arena(cores * ARENA_BYTES_PER_CORE);
    let wakes: io::Result<Vec<_>> = (0..cores).map(|_| WakeCell::for_thread().map(Arc::new)).collect();
    let wakes: Arc<[Arc<WakeCell>]> = wakes?.into();
    let main = Arc::new(main);
    let loads: Vec<Load> = (0..cores).map(|_| Load::default()).collect();
    let (ready_sender, ready) = channel();
    let mut threads = Vec::with_capacity(cores);
    let mut starts = Vec::with_capacity(cores);
    for (core, cpu) in options.cpus.iter().enumerate() {
        let (start_sender, start) = channel();
        starts.push(start_sender);
        let thread = Thread {
            core: CoreId(core as u16),
            cores,
            cpu: *cpu,
            wakes: wakes.clone(),
            load: loads[core].clone(),
            ready: ready_sender.clone(),
            start,
        };
        let main = main.clone();
        let builder = std::thread::Builder::new().name(format!("reactor-{core}"));
        threads.push(builder.spawn(move || thread.run(&*main))?);
    }
    drop(ready_sender);
    // An error here drops `starts`, and with it every thread that waits for its start.
    for outcome in ready {
        outcome?;
    }
    for start in starts {
        start.send(()).expect("a thread that is ready waits for its start");
    }
    Ok(Running { loads, threads })
}

/// What a reactor thread is born with.
struct Thread {
    core: CoreId,
    cores: usize,
    cpu: usize,
    wakes: Arc<[Arc<WakeCell>]>,
    load: Load,
    ready: Sender<io::Result<()>>,
    start: Receiver<()>,
}

impl Thread {
    fn run(self, main: &dyn Fn(&Reactor)) {
        // The panic hook has printed the message by the time the panic is caught.
        let caught = std::panic::catch_unwind(AssertUnwindSafe(|| self.serve(main)));
        if caught.is_err() {
            std::process::abort();
        }
    }

    fn serve(self, main: &dyn Fn(&Reactor)) {
        let made = pin(self.cpu).and_then(|()| Uring::new(self.core, self.wakes.clone()));
        let driver = match made {
            Ok(driver) => driver,
            Err(error) => {
                let words = format!("{}: {error}", self.core);
                // Nobody listens any more if another core failed first.
                let _ = self.ready.send(Err(io::Error::new(error.kind(), words)));
                return;
            }
        };
        let _ = self.ready.send(Ok(()));
        drop(self.ready);
        if self.start.recv().is_err() {
            return;
        }
        let reactor = Reactor::new(self.core, self.cores, Driver::Uring(Box::new(driver)), self.load);
        main(&reactor);
        reactor.run();
    }
}

fn pin(cpu: usize) -> io::Result<()> {
    if cpu >= CpuSet::MAX_CPU {
        let words = format!("processor {cpu}: numbers go up to {}", CpuSet::MAX_CPU - 1);
        return Err(io::Error::new(io::ErrorKind::InvalidInput, words));
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set).map_err(|error| {
        let error = io::Error::from(error);
        let words =
            format!("cannot run on processor {cpu}: does it exist, and may this process use it? ({error})");
        io::Error::new(error.kind(), words)
    })
}
