//! Starting the reactor threads of a server.
//!
//! Role: one pinned thread and one driver a core; handles to watch and to join them. Place on the
//! path: none.
//!
//! Invariants: either every core has its driver before `main` runs on any, or none runs; all cores
//! have the same kind; a panic on one core ends the process, for a server that has lost a core would
//! keep promises by halves.

use super::choice::{self, DriverChoice, DriverKind};
use super::portable::Portable;
use super::uring::{self, Uring};
use super::wake::WakeCell;
use super::{Driver, abort_on_panic};
use crate::buf;
use crate::limits::{ARENA_BYTES_PER_CORE, CORES_MAX};
use crate::load::Load;
use crate::reactor::{CoreId, Reactor};
use rustix::thread::CpuSet;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// How to start the reactors of a server.
#[derive(Clone, Debug)]
pub struct StartOptions {
    /// The processors to run on, one reactor each, in the order of their core ids.
    pub cpus: Vec<usize>,
    /// How they speak to the kernel.
    pub driver: DriverChoice,
}

impl StartOptions {
    /// Reactors on these processors, with the driver that suits the machine.
    #[must_use]
    pub fn on(cpus: Vec<usize>) -> StartOptions {
        StartOptions { cpus, driver: DriverChoice::Auto }
    }
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
/// A driver could not be made (io_uring was asked for and is forbidden, or limits are too low), a
/// processor does not exist, or a thread could not be started. Nothing runs then.
pub fn start(options: &StartOptions, main: impl Fn(&Reactor) + Send + Sync + 'static) -> io::Result<Running> {
    let cores = options.cpus.len();
    if !(1..=CORES_MAX).contains(&cores) {
        let words = format!("{cores} cores were asked for: between 1 and {CORES_MAX} can be served");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, words));
    }
    let driver = options.driver.settle();
    if options.driver == DriverChoice::Uring {
        uring::try_out()?;
    }
    buf::make_arena(cores * ARENA_BYTES_PER_CORE);
    let main = Arc::new(main);
    match start_with(driver, options, main.clone()) {
        // There was a ring to try, and then not one for each core.
        Err(error) if driver == DriverKind::Uring && error.kind() == io::ErrorKind::OutOfMemory => {
            if options.driver == DriverChoice::Uring {
                return Err(error);
            }
            choice::fall_short(&error);
            start_with(DriverKind::Portable, options, main)
        }
        started => started,
    }
}

/// The same with this kind of driver, or not at all.
fn start_with(
    driver: DriverKind,
    options: &StartOptions,
    main: Arc<impl Fn(&Reactor) + Send + Sync + 'static>,
) -> io::Result<Running> {
    let cores = options.cpus.len();
    let cpus: Arc<[usize]> = options.cpus.as_slice().into();
    let wakes: io::Result<Vec<_>> = (0..cores).map(|_| WakeCell::for_thread().map(Arc::new)).collect();
    let wakes: Arc<[Arc<WakeCell>]> = wakes?.into();
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
            cpus: cpus.clone(),
            driver,
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
    cpus: Arc<[usize]>,
    driver: DriverKind,
    wakes: Arc<[Arc<WakeCell>]>,
    load: Load,
    ready: Sender<io::Result<()>>,
    start: Receiver<()>,
}

impl Thread {
    fn run(self, main: &dyn Fn(&Reactor)) {
        abort_on_panic(|| self.serve(main));
    }

    fn driver(&self) -> io::Result<Driver> {
        pin(self.cpu)?;
        let (core, wakes) = (self.core, self.wakes.clone());
        Ok(match self.driver {
            DriverKind::Uring => Driver::Uring(Box::new(Uring::new(core, wakes)?)),
            DriverKind::Portable => Driver::Portable(Box::new(Portable::new(core, wakes, &self.cpus)?)),
        })
    }

    fn serve(self, main: &dyn Fn(&Reactor)) {
        let driver = match self.driver() {
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
        let reactor = Reactor::new(self.core, self.cores, driver, self.load);
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
