//! The loop of one core: reap completions, fire timers, take messages, run tasks, sleep.
//!
//! Role: ties executor, timers, operations and driver together; the handle that everything above
//! holds. Place on the path: first and last.
//!
//! Invariants: one turn runs at most [`POLLS_PER_TURN_MAX`] tasks before completions are looked at again, and
//! fewer while a drive reads or long values wait for the next; a core sleeps only after it has spun in vain
//! for as long as its driver says, and a sleeping core has no ready task, no due timer and no unread message.

use crate::bulk::{Bulk, Way};
use crate::driver::Driver;
use crate::driver::wake::WakeCell;
use crate::executor::{self, Executor};
use crate::limits::{POLLS_PER_FEED, POLLS_PER_SHORT_TURN_MAX, POLLS_PER_TURN_MAX};
use crate::load::{Load, Work};
use crate::ops::Ops;
use crate::remains::Remains;
use crate::timer::Timers;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

/// Idle turns are spun through for this long before the core sleeps: about the time of one flash
/// read. Longer would take the cycles that the file system and the client need on a small machine.
pub(crate) const SPIN_NS: u64 = 20_000;

/// A core of this process: its place in `--cores`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CoreId(pub u16);

impl fmt::Display for CoreId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "core {}", self.0)
    }
}

/// A handle to the reactor of this thread (or, in the simulator, of this simulated core).
#[derive(Clone)]
pub struct Reactor(pub(crate) Rc<Inner>);

pub(crate) type Poller = Box<dyn FnMut() -> bool>;

pub(crate) struct Inner {
    pub(crate) core: CoreId,
    pub(crate) cores: usize,
    pub(crate) executor: Rc<Executor>,
    pub(crate) timers: RefCell<Timers>,
    pub(crate) ops: RefCell<Ops>,
    pub(crate) driver: RefCell<Driver>,
    pollers: RefCell<Vec<Poller>>,
    bulk: Bulk,
    remains: RefCell<Remains>,
    load: Load,
    stopping: Cell<bool>,
}

impl Reactor {
    pub(crate) fn new(core: CoreId, cores: usize, driver: Driver, load: Load) -> Reactor {
        assert!((core.0 as usize) < cores);
        Reactor(Rc::new(Inner {
            core,
            cores,
            executor: Executor::new(),
            timers: RefCell::default(),
            ops: RefCell::default(),
            driver: RefCell::new(driver),
            pollers: RefCell::default(),
            bulk: Bulk::default(),
            remains: RefCell::default(),
            load,
            stopping: Cell::new(false),
        }))
    }

    /// This core.
    #[must_use]
    pub fn core(&self) -> CoreId {
        self.0.core
    }

    /// How many cores serve together.
    #[must_use]
    pub fn cores(&self) -> usize {
        self.0.cores
    }

    /// Where this core's time goes.
    #[must_use]
    pub fn load(&self) -> Load {
        self.0.load.clone()
    }

    /// Starts a task on this core. Tasks become ready in the order in which they are started.
    pub fn spawn(&self, work: Work, future: impl Future<Output = ()> + 'static) {
        self.0.executor.spawn(work, future);
    }

    /// Starts a task and polls it at once, within the task that calls: for what mostly ends there. Its time
    /// there counts as the caller's.
    pub fn spawn_now(&self, work: Work, future: impl Future<Output = ()> + 'static) {
        self.0.executor.spawn_now(work, future);
    }

    /// Monotonic time in nanoseconds, from an arbitrary start: when the task that asks was begun, or went
    /// on. It stands still until the task waits for something.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.0.driver.borrow_mut().now_ns()
    }

    /// Wall-clock time in milliseconds since 1970; it may step, backwards too. It stands still as
    /// [`Reactor::now_ns`] does.
    #[must_use]
    pub fn wall_ms(&self) -> u64 {
        self.wall_us() / 1000
    }

    /// The same in microseconds.
    #[must_use]
    pub fn wall_us(&self) -> u64 {
        self.0.driver.borrow_mut().wall_us()
    }

    /// Reads the clock anew: what it says from now on.
    fn look_at_clock(&self) -> u64 {
        self.0.driver.borrow_mut().look_at_clock()
    }

    /// A random number: from the system in a server, from the seed in the simulator.
    #[must_use]
    pub fn random_u64(&self) -> u64 {
        self.0.driver.borrow_mut().random_u64()
    }

    /// Sleeps until the monotonic clock reaches `deadline_ns`.
    pub fn sleep_until(&self, deadline_ns: u64) -> impl Future<Output = ()> + use<> {
        Sleep { reactor: self.clone(), deadline_ns, key: None }
    }

    /// Sleeps for `duration_ns` nanoseconds.
    pub fn sleep_ns(&self, duration_ns: u64) -> impl Future<Output = ()> + use<> {
        self.sleep_until(self.now_ns().saturating_add(duration_ns))
    }

    /// True if other tasks wait for their turn.
    #[must_use]
    pub fn has_ready(&self) -> bool {
        self.0.executor.has_ready()
    }

    /// Lets every other ready task run before the caller goes on: the end of a background slice.
    pub async fn yield_now(&self) {
        executor::yield_now().await;
    }

    /// Waits until this turn, or a later one, has room for receiving so many bytes of a long value: asked for
    /// before a long receive, so that short requests never wait for many of them. While short reads are with
    /// the drive, a quarter of a millisecond goes by without any.
    pub async fn share_to_receive(&self, bytes: usize) {
        self.0.bulk.share(Way::Receive, bytes).await;
    }

    /// The same before a long send, which waits for no reads.
    pub async fn share_to_send(&self, bytes: usize) {
        self.0.bulk.share(Way::Send, bytes).await;
    }

    /// Gives a block of memory back of which so many bytes were used, a slice each turn if they are many: at
    /// once others would wait for that.
    pub fn discard(&self, block: Vec<u8>, used: usize) {
        self.0.remains.borrow_mut().discard(block, used);
    }

    /// Registers a function that looks for work once a turn and says whether it found some.
    pub(crate) fn add_poller(&self, poller: Poller) {
        self.0.pollers.borrow_mut().push(poller);
    }

    /// Wakes another core if it sleeps. Called after a message to it is in its ring.
    pub(crate) fn wake_core(&self, core: CoreId) {
        self.0.driver.borrow_mut().wake(core);
    }

    /// By what another thread wakes this core.
    pub(crate) fn waker(&self) -> Arc<WakeCell> {
        self.0.driver.borrow_mut().waker()
    }

    /// Ends [`Reactor::run`] after the current turn. Tasks that still live are dropped.
    pub fn stop(&self) {
        self.0.stopping.set(true);
    }

    /// True once its tasks are being dropped: what they leave begins nothing new.
    #[must_use]
    pub fn is_closing(&self) -> bool {
        self.0.executor.is_closed()
    }

    fn poll_pollers(&self) -> bool {
        let mut worked = false;
        let count = self.0.pollers.borrow().len();
        for index in 0..count {
            // Taken out while it runs, so that a poller may register another.
            let mut poller = std::mem::replace(&mut self.0.pollers.borrow_mut()[index], Box::new(|| false));
            worked |= poller();
            self.0.pollers.borrow_mut()[index] = poller;
        }
        worked
    }

    fn reap(&self) -> bool {
        let mut ops = self.0.ops.borrow_mut();
        self.0.driver.borrow_mut().reap(&mut ops) > 0
    }

    /// A slice of what nobody needs any more, and of what operations have left.
    fn give_back_slice(&self) -> bool {
        let mut remains = self.0.remains.borrow_mut();
        while let Some(block) = self.0.ops.borrow_mut().take_left() {
            let used = block.len();
            remains.discard(block, used);
        }
        remains.give_back_slice()
    }

    fn fire_timers(&self, now_ns: u64) -> bool {
        let mut worked = false;
        loop {
            let due = self.0.timers.borrow_mut().pop_due(now_ns);
            let Some(waker) = due else { return worked };
            waker.wake();
            worked = true;
        }
    }

    /// True if short reads are with the drive, or on their way to it.
    fn reads(&self) -> bool {
        self.0.ops.borrow().has_short_reads()
    }

    /// One turn; true if there was anything to do.
    pub(crate) fn turn(&self) -> bool {
        let start_ns = self.look_at_clock();
        self.0.bulk.begin_turn(start_ns, self.reads());
        let mut worked = self.reap();
        worked |= self.give_back_slice();
        worked |= self.fire_timers(start_ns);
        worked |= self.poll_pollers();
        let mut last_ns = self.look_at_clock();
        self.0.load.polled(last_ns.saturating_sub(start_ns));
        // What a turn sends leaves after it: who gets several replies is woken once. A drive with nothing to
        // do is not left waiting for that.
        for polls in 0..POLLS_PER_TURN_MAX {
            if polls >= POLLS_PER_SHORT_TURN_MAX && (self.reads() || self.0.bulk.has_waiting()) {
                break;
            }
            if polls > 0 && polls % POLLS_PER_FEED == 0 {
                self.0.driver.borrow_mut().feed_drive();
            }
            let Some(work) = self.0.executor.poll_one() else {
                break;
            };
            worked = true;
            let now_ns = self.look_at_clock();
            self.0.load.busy(work, now_ns.saturating_sub(last_ns));
            last_ns = now_ns;
        }
        worked
    }

    /// When there is something to do next for which nothing completes, if there is.
    pub(crate) fn next_deadline_ns(&self) -> Option<u64> {
        let timer_ns = self.0.timers.borrow().next_deadline_ns();
        timer_ns.into_iter().chain(self.0.bulk.deadline_ns()).min()
    }

    /// Runs turns until [`Reactor::stop`]. Only for drivers that own their thread.
    pub(crate) fn run(&self) {
        let mut worked_ns = self.now_ns();
        while !self.0.stopping.get() {
            if self.turn() {
                worked_ns = self.now_ns();
                continue;
            }
            let now_ns = self.now_ns();
            let spin_ns = self.0.driver.borrow_mut().spin_ns();
            if now_ns.saturating_sub(worked_ns) >= spin_ns {
                self.park(now_ns);
            }
        }
        self.close();
    }

    /// Sleeps until a completion, a timer or a message. The order matters: first tell the others
    /// that this core sleeps, then look for messages once more, then sleep. A sender does the
    /// opposite (message first, then look whether to wake), so one of the two sees the other.
    fn park(&self, now_ns: u64) {
        self.0.driver.borrow_mut().announce_sleep();
        let found = self.poll_pollers() || self.has_ready();
        if !found {
            let timeout_ns = self.next_deadline_ns().map(|deadline_ns| deadline_ns.saturating_sub(now_ns));
            self.0.driver.borrow_mut().park(timeout_ns);
            self.0.load.idle(self.look_at_clock().saturating_sub(now_ns));
        }
        self.0.driver.borrow_mut().announce_awake();
    }

    /// Drops every task, timer and poller. The driver is drained by its own drop.
    pub(crate) fn close(&self) {
        self.0.executor.close();
        self.0.timers.borrow_mut().clear_all();
        self.0.pollers.borrow_mut().clear();
        self.0.remains.borrow_mut().clear();
        let mut ops = self.0.ops.borrow_mut();
        ops.forget_waiters();
        self.0.driver.borrow_mut().drain(self.0.core, &mut ops);
    }

    /// Tasks that have not finished.
    #[must_use]
    pub fn tasks_live(&self) -> usize {
        self.0.executor.live()
    }
}

struct Sleep {
    reactor: Reactor,
    deadline_ns: u64,
    key: Option<(u64, u64)>,
}

impl Future for Sleep {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.reactor.now_ns() >= self.deadline_ns {
            return Poll::Ready(());
        }
        let deadline_ns = self.deadline_ns;
        match self.key {
            Some(key) => self.reactor.0.timers.borrow_mut().reset(key, cx.waker()),
            None => {
                let key = self.reactor.0.timers.borrow_mut().set(deadline_ns, cx.waker().clone());
                self.key = Some(key);
            }
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.reactor.0.timers.borrow_mut().clear(key);
        }
    }
}
