//! Local tasks: a slab of futures and a queue of those that are ready.
//!
//! Role: polls each task on the one thread that owns it, in the order in which they became ready.
//!
//! Invariants:
//! * first in, first out: a task spawned or woken earlier is polled earlier, but for one that is polled
//!   where it is spawned. Per-key order rests on this: two operations that one task spawns in the same way
//!   reach the engine in order;
//! * a waker is a number (executor, task, generation): cloning it allocates nothing, and waking a
//!   finished task does nothing;
//! * a waker never crosses threads: cores talk through the mesh. One used elsewhere finds the
//!   executors of that thread only, so it can wake a task in vain but touch no foreign memory.
//!
//! Never: it reads no clock and knows no driver; time is passed in by the loop.

use crate::limits::CORES_MAX;
use crate::load::Work;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, RawWaker, RawWakerVTable, Waker};

type LocalFuture = Pin<Box<dyn Future<Output = ()>>>;

/// Identifies a task in a waker: 8 bits executor, 24 bits generation, 32 bits slot.
#[derive(Clone, Copy, PartialEq, Eq)]
struct TaskId(u64);

impl TaskId {
    fn new(executor: usize, generation: u32, slot: u32) -> TaskId {
        assert!(executor < 256);
        TaskId((executor as u64) << 56 | u64::from(generation & 0xff_ffff) << 32 | u64::from(slot))
    }
    fn executor(self) -> usize {
        (self.0 >> 56) as usize
    }
    fn generation(self) -> u32 {
        (self.0 >> 32) as u32 & 0xff_ffff
    }
    fn slot(self) -> usize {
        self.0 as u32 as usize
    }
}

struct Task {
    generation: u32,
    work: Work,
    queued: bool,
    /// Absent while the task is being polled and after it has finished.
    future: Option<LocalFuture>,
    live: bool,
}

#[derive(Default)]
struct Tasks {
    slots: Vec<Task>,
    free: Vec<u32>,
    live: usize,
}

/// The tasks of one reactor.
pub(crate) struct Executor {
    id: usize,
    tasks: RefCell<Tasks>,
    ready: RefCell<VecDeque<TaskId>>,
    closed: Cell<bool>,
}

thread_local! {
    /// The executors of this thread by id: one in a server thread, several in the simulator.
    static EXECUTORS: RefCell<Vec<Option<Rc<Executor>>>> = const { RefCell::new(Vec::new()) };
}

impl Executor {
    pub(crate) fn new() -> Rc<Executor> {
        EXECUTORS.with_borrow_mut(|all| {
            let id = all.iter().position(Option::is_none).unwrap_or(all.len());
            assert!(id < 2 * CORES_MAX, "more executors on one thread than cores_max allows");
            let executor = Rc::new(Executor {
                id,
                tasks: RefCell::default(),
                ready: RefCell::default(),
                closed: Cell::new(false),
            });
            if id == all.len() {
                all.push(None);
            }
            all[id] = Some(executor.clone());
            executor
        })
    }

    /// Adds a task at the end of the ready queue. On a closed executor the future is dropped.
    pub(crate) fn spawn(&self, work: Work, future: impl Future<Output = ()> + 'static) {
        if self.closed.get() {
            return;
        }
        let id = self.add(work, true);
        self.tasks.borrow_mut().slots[id.slot()].future = Some(Box::pin(future));
        self.ready.borrow_mut().push_back(id);
    }

    /// Adds a task and polls it at once, within the poll of the task that calls. It becomes ready like any
    /// other if it does not end there.
    pub(crate) fn spawn_now(&self, work: Work, future: impl Future<Output = ()> + 'static) {
        if self.closed.get() {
            return;
        }
        let id = self.add(work, false);
        self.poll(id, Box::pin(future));
    }

    /// A task whose future is still to be put there.
    fn add(&self, work: Work, queued: bool) -> TaskId {
        let mut tasks = self.tasks.borrow_mut();
        let slot = match tasks.free.pop() {
            Some(slot) => slot,
            None => {
                let slot = u32::try_from(tasks.slots.len()).expect("tasks are bounded far below 2^32");
                tasks.slots.push(Task { generation: 0, work, queued: false, future: None, live: false });
                slot
            }
        };
        tasks.live += 1;
        let task = &mut tasks.slots[slot as usize];
        assert!(!task.live && task.future.is_none());
        task.generation = (task.generation + 1) & 0xff_ffff;
        (task.work, task.queued, task.live) = (work, queued, true);
        TaskId::new(self.id, task.generation, slot)
    }

    fn wake(&self, id: TaskId) {
        let mut tasks = self.tasks.borrow_mut();
        let Some(task) = tasks.slots.get_mut(id.slot()) else {
            return;
        };
        if task.live && task.generation == id.generation() && !task.queued {
            task.queued = true;
            self.ready.borrow_mut().push_back(id);
        }
    }

    /// Its tasks are being dropped, or were.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.get()
    }

    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.borrow().is_empty()
    }

    /// Tasks that have not finished.
    pub(crate) fn live(&self) -> usize {
        self.tasks.borrow().live
    }

    /// Polls the oldest ready task; tells its kind of work, or nothing if none is ready.
    pub(crate) fn poll_one(&self) -> Option<Work> {
        loop {
            let id = self.ready.borrow_mut().pop_front()?;
            let (future, work) = {
                let mut tasks = self.tasks.borrow_mut();
                let task = &mut tasks.slots[id.slot()];
                if !task.live || task.generation != id.generation() {
                    continue;
                }
                task.queued = false;
                let Some(future) = task.future.take() else {
                    continue;
                };
                (future, task.work)
            };
            self.poll(id, future);
            return Some(work);
        }
    }

    /// Polls a task whose future was taken out, and puts that back if it has not ended.
    fn poll(&self, id: TaskId, mut future: LocalFuture) {
        let waker = waker(id);
        if future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
            drop(future);
            self.finish(id);
        } else {
            self.tasks.borrow_mut().slots[id.slot()].future = Some(future);
        }
    }

    fn finish(&self, id: TaskId) {
        let mut tasks = self.tasks.borrow_mut();
        tasks.live -= 1;
        let task = &mut tasks.slots[id.slot()];
        assert!(task.live && task.future.is_none());
        task.live = false;
        tasks.free.push(id.slot() as u32);
    }

    /// Drops every task, in slot order, and refuses new ones.
    pub(crate) fn close(&self) {
        self.closed.set(true);
        self.ready.borrow_mut().clear();
        let count = self.tasks.borrow().slots.len();
        for slot in 0..count {
            let future = self.tasks.borrow_mut().slots[slot].future.take();
            drop(future);
            self.tasks.borrow_mut().slots[slot].live = false;
        }
        EXECUTORS.with_borrow_mut(|all| all[self.id] = None);
    }
}

fn with_executor(id: TaskId, f: impl FnOnce(&Executor)) {
    let found = EXECUTORS.with_borrow(|all| all.get(id.executor()).cloned().flatten());
    if let Some(executor) = found {
        f(&executor);
    }
}

fn waker(id: TaskId) -> Waker {
    const VTABLE: RawWakerVTable =
        RawWakerVTable::new(|data| RawWaker::new(data, &VTABLE), wake_raw, wake_raw, |_| {});
    // SAFETY: the data is a number, never dereferenced; clone copies it and drop does nothing, so
    // the contract of RawWakerVTable holds trivially on every thread. `wake_raw` touches only
    // executors registered in the calling thread.
    unsafe { Waker::from_raw(RawWaker::new(std::ptr::without_provenance(id.0 as usize), &VTABLE)) }
}

fn wake_raw(data: *const ()) {
    let id = TaskId(data.addr() as u64);
    with_executor(id, |executor| executor.wake(id));
}

/// Lets every other ready task run before the caller goes on.
pub(crate) async fn yield_now() {
    let mut yielded = false;
    std::future::poll_fn(|cx| {
        if yielded {
            return Poll::Ready(());
        }
        yielded = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
