//! Threads that wait for the device in a core's stead.
//!
//! Role: reads, writes and flushes by blocking system calls. Place on the path: the last stage of a disk
//! operation.
//!
//! Invariants:
//! * a core has at most [`WORKERS_MAX`] of them, made as they are needed; what comes beside waits in a
//!   queue, bounded by the operations in flight of the core;
//! * each job given is done and told, whatever becomes of those who wait for it;
//! * both locks are held for a move of some words, never over a system call; the core takes each once a
//!   turn, and none in a turn without disk operations.
//!
//! Never: a worker runs a task, wakes a waker or touches anything of the core but the memory of its job.

use crate::driver::abort_on_panic;
use crate::driver::kernel::open::DirectFile;
use crate::driver::kernel::transfer::{self, Retries, Step, Transfer};
use crate::driver::wake::WakeCell;
use crate::ops::Token;
use rustix::io::{Errno, ReadWriteFlags};
use rustix::thread::CpuSet;
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// How many disk operations of a core the kernel has at once: 16 000 a second from a drive that takes a
/// millisecond for one. On a quick drive 8 are a tenth cheaper, and 32 a tenth dearer: with few, one finds
/// its next job waiting; with many, each is put to sleep and woken for every job.
const WORKERS_MAX: usize = 16;
/// A worker calls into the kernel and little else.
const STACK_BYTES: usize = 128 << 10;

/// What a worker is to do.
#[derive(Clone, Copy)]
pub(super) enum Work {
    Read(Transfer),
    Write { transfer: Transfer, durable: bool },
    Flush,
}

pub(super) struct Job {
    pub(super) token: Token,
    pub(super) file: Arc<DirectFile>,
    pub(super) work: Work,
}

// SAFETY: the file can be shared. The address of a transfer is that of memory that its operation owns
// until the core has taken the job's result: nobody else touches it meanwhile.
unsafe impl Send for Job {}

/// A job that is done.
pub(super) struct Done {
    pub(super) token: Token,
    pub(super) result: io::Result<u64>,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    /// Workers that wait to be called.
    idle: usize,
    ended: bool,
}

/// What a core and its workers share.
struct Shared {
    queue: Mutex<Queue>,
    called: Condvar,
    done: Mutex<Vec<Done>>,
    /// Set after something was put into `done`.
    has_done: AtomicBool,
    cell: Arc<WakeCell>,
    /// Where workers may run.
    cpus: CpuSet,
}

/// The workers of one core.
pub(super) struct Workers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// So many there may be; fewer from the first that could not be made.
    threads_max: usize,
    /// Jobs that no worker knows of yet.
    started: Vec<Job>,
    /// Jobs whose result was not taken.
    in_flight: usize,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic of a worker ends the process.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Workers {
    /// Workers that wake their core by `cell`, on the processors of all cores: whichever is idle.
    pub(super) fn new(cell: Arc<WakeCell>, cpus: &[usize]) -> io::Result<Workers> {
        let mut set = CpuSet::new();
        cpus.iter().filter(|cpu| **cpu < CpuSet::MAX_CPU).for_each(|cpu| set.set(*cpu));
        let shared = Arc::new(Shared {
            queue: Mutex::default(),
            called: Condvar::new(),
            done: Mutex::default(),
            has_done: AtomicBool::new(false),
            cell,
            cpus: set,
        });
        let (threads, started) = (Vec::new(), Vec::new());
        let mut workers = Workers { shared, threads, threads_max: WORKERS_MAX, started, in_flight: 0 };
        // With one, every job will be done; what cannot be made later only costs speed.
        workers.spawn()?;
        Ok(workers)
    }

    fn spawn(&mut self) -> io::Result<()> {
        let shared = self.shared.clone();
        let builder = std::thread::Builder::new().name("disk".to_owned()).stack_size(STACK_BYTES);
        self.threads.push(builder.spawn(move || abort_on_panic(|| shared.work()))?);
        Ok(())
    }

    /// Takes a job in; it is begun at the next [`Workers::call`].
    pub(super) fn start(&mut self, job: Job) {
        self.started.push(job);
        self.in_flight += 1;
    }

    /// Jobs whose result was not taken.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Lets workers begin what was started.
    pub(super) fn call(&mut self) {
        if self.started.is_empty() {
            return;
        }
        let mut queue = lock(&self.shared.queue);
        queue.jobs.extend(self.started.drain(..));
        let (jobs, idle) = (queue.jobs.len(), queue.idle);
        drop(queue);
        for _ in 0..jobs.min(idle) {
            self.shared.called.notify_one();
        }
        for _ in idle..jobs {
            if self.threads.len() == self.threads_max {
                return;
            }
            if let Err(error) = self.spawn() {
                self.threads_max = self.threads.len();
                tracing::warn!(
                    %error,
                    threads = self.threads_max,
                    "no further thread for disk operations: they wait longer"
                );
                return;
            }
        }
    }

    /// True if there are results to be taken.
    pub(super) fn has_done(&self) -> bool {
        self.shared.has_done.load(Ordering::Acquire)
    }

    /// Gives the results in exchange for an empty list.
    pub(super) fn take_done(&mut self, empty: Vec<Done>) -> Vec<Done> {
        assert!(empty.is_empty());
        if !self.has_done() {
            return empty;
        }
        let mut done = lock(&self.shared.done);
        self.shared.has_done.store(false, Ordering::Relaxed);
        let taken = std::mem::replace(&mut *done, empty);
        self.in_flight -= taken.len();
        taken
    }

    /// Leaves the workers to themselves: what they wait for does not end.
    pub(super) fn leave(&mut self) {
        self.threads.clear();
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        lock(&self.shared.queue).ended = true;
        self.shared.called.notify_all();
        for thread in self.threads.drain(..) {
            thread.join().expect("a panic of a worker ends the process");
        }
    }
}

impl Shared {
    /// A worker's life.
    fn work(&self) {
        // The thread that made this one runs on one processor. Where others are refused that one serves.
        let _ = rustix::thread::sched_setaffinity(None, &self.cpus);
        while let Some(Job { token, file, work }) = self.next() {
            let result = run(&file, work);
            // The core's is the last hold of the file, so that it is closed there.
            drop(file);
            let mut done = lock(&self.done);
            done.push(Done { token, result });
            self.has_done.store(true, Ordering::Release);
            drop(done);
            self.cell.wake();
        }
    }

    /// Waits for a job; none: the core is gone.
    fn next(&self) -> Option<Job> {
        let mut queue = lock(&self.queue);
        loop {
            if let Some(job) = queue.jobs.pop_front() {
                return Some(job);
            }
            if queue.ended {
                return None;
            }
            queue.idle += 1;
            queue = self.called.wait(queue).unwrap_or_else(PoisonError::into_inner);
            queue.idle -= 1;
        }
    }
}

/// Does the work, however many system calls it takes.
fn run(file: &DirectFile, work: Work) -> io::Result<u64> {
    let (mut transfer, mut retries) = match work {
        Work::Flush => return flush(file),
        Work::Read(transfer) | Work::Write { transfer, .. } => (transfer, Retries::default()),
    };
    loop {
        let moved = match work {
            Work::Write { durable, .. } => write_some(file, transfer, durable),
            _ => read_some(file, transfer),
        };
        let result = moved.map_or_else(|error| -error.raw_os_error(), |count| count as i32);
        let Transfer { len, moved, .. } = &mut transfer;
        match transfer::judge(result, *len, file.block_bytes, moved, &mut retries) {
            Step::Done(result) => return result,
            Step::Again => {}
        }
    }
}

fn read_some(file: &DirectFile, transfer: Transfer) -> rustix::io::Result<usize> {
    let (address, len, offset) = transfer.rest();
    // SAFETY: initialised memory of the operation's buffer (see `Buf`), which lives in its slot and is
    // touched by this thread alone until the core has taken the result.
    let buf = unsafe { std::slice::from_raw_parts_mut(address, len as usize) };
    rustix::io::pread(&file.descriptor, buf, offset)
}

fn write_some(file: &DirectFile, transfer: Transfer, durable: bool) -> rustix::io::Result<usize> {
    let (address, len, offset) = transfer.rest();
    // SAFETY: as in `read_some`; the operation's owner reads it at most meanwhile, as this thread does.
    let buf = unsafe { std::slice::from_raw_parts(address, len as usize) };
    if !durable {
        return rustix::io::pwrite(&file.descriptor, buf, offset);
    }
    match rustix::io::pwritev2(&file.descriptor, &[IoSlice::new(buf)], offset, ReadWriteFlags::DSYNC) {
        // Sandboxes that stand in for a kernel may not have it.
        Err(Errno::NOSYS | Errno::OPNOTSUPP) => {
            let count = rustix::io::pwrite(&file.descriptor, buf, offset)?;
            rustix::fs::fdatasync(&file.descriptor).map(|()| count)
        }
        written => written,
    }
}

fn flush(file: &DirectFile) -> io::Result<u64> {
    let mut retries = Retries::default();
    loop {
        match rustix::fs::fdatasync(&file.descriptor) {
            Ok(()) => return Ok(0),
            Err(error) if retries.again(error.raw_os_error()) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
