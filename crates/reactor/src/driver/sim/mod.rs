//! The simulation driver: many cores, disks and connections on one thread in virtual time.
//!
//! Role: the [`World`] owns the clock, the disks and the network; each simulated core is a
//! [`Reactor`] whose driver calls into it. Place on the path: where io_uring stands in a server.
//!
//! Invariants: everything that happens is an event with a time and a number; ties go by number;
//! every random draw comes from a stream of the seed. So one seed gives one run, byte for byte.
//!
//! Never: it knows no key, no engine and no protocol.

mod disk;
mod driver;
mod net;
mod random;

pub use disk::{Classify, Disk, Fault, FaultCounts, FaultRates, SECTOR_BYTES};
pub(crate) use driver::SimDriver;
pub use random::Random;

use super::Driver;
use super::wake::WakeCell;
use crate::load::Load;
use crate::ops::{Op, SocketId, Token};
use crate::reactor::{CoreId, Reactor};
use net::{Connection, Owner};
use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

/// A simulated process: its cores die together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessId(pub u32);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Action {
    /// The core looks for work.
    Run,
    Read(u64),
    Write {
        write: u64,
        durable: bool,
        disk: u32,
        bytes: u64,
    },
    Flush {
        disk: u32,
        covered: Vec<u64>,
    },
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Event {
    at_ns: u64,
    number: u64,
    core: usize,
    life: u64,
    token: u64,
    action: Action,
}

struct Core {
    reactor: Option<Reactor>,
    life: u64,
    process: ProcessId,
    busy_until_ns: u64,
    /// The times at which Run events are queued. Each stands: an early one does not see what
    /// arrives between it and a later one.
    runs_at_ns: BTreeSet<u64>,
    done: Vec<(Token, io::Result<u64>)>,
    /// Network operations that could not go on when started.
    blocked: Vec<Token>,
}

struct NamedDisk {
    path: String,
    disk: Disk,
    locked_by: Option<ProcessId>,
    created: bool,
}

struct ListenerState {
    address: SocketAddr,
    owner: Owner,
    backlog: VecDeque<usize>,
}

struct State {
    now_ns: u64,
    wall_offset_ms: u64,
    next_number: u64,
    next_write: u64,
    events: BinaryHeap<Reverse<Event>>,
    cores: Vec<Core>,
    disks: Vec<NamedDisk>,
    /// The disk of each file that was opened: the same one may be open several times.
    files: Vec<usize>,
    listeners: Vec<Option<ListenerState>>,
    connections: Vec<Connection>,
    /// What is sent takes up to this long.
    network_delay_ns_max: u64,
    random_schedule: Random,
    random_disk: Random,
    random_net: Random,
    random_product: Random,
    classify: Classify,
    /// How code outside the simulated cores, such as a control sender, makes them look for work.
    waker: Arc<WakeCell>,
    /// A running hash of every event: two runs of a seed must agree on it.
    trace: u64,
}

/// Everything outside the product. Clones share it.
#[derive(Clone)]
pub struct World(Rc<RefCell<State>>);

const LISTENER_BIT: u32 = 1 << 31;
/// 2026-01-01 in milliseconds: where virtual wall clocks start.
const WALL_START_MS: u64 = 1_767_225_600_000;

fn error(code: i32) -> io::Error {
    io::Error::from_raw_os_error(code)
}

impl World {
    /// A world in which everything follows from `seed`. `classify` names write paths in counters.
    #[must_use]
    pub fn new(seed: u64, classify: Classify) -> World {
        World(Rc::new(RefCell::new(State {
            now_ns: 1_000_000,
            wall_offset_ms: WALL_START_MS,
            next_number: 0,
            next_write: 0,
            events: BinaryHeap::new(),
            cores: Vec::new(),
            disks: Vec::new(),
            files: Vec::new(),
            listeners: Vec::new(),
            connections: Vec::new(),
            network_delay_ns_max: 60_000,
            random_schedule: Random::stream(seed, "schedule"),
            random_disk: Random::stream(seed, "disk"),
            random_net: Random::stream(seed, "net"),
            random_product: Random::stream(seed, "product"),
            classify,
            waker: Arc::new(WakeCell::for_simulation()),
            trace: 0,
        })))
    }

    /// Adds a disk of zeros, to be opened by `path`.
    pub fn add_disk(&self, path: &str, bytes: usize) {
        let mut state = self.0.borrow_mut();
        let disk = Disk::new(bytes, state.classify);
        state.disks.push(NamedDisk { path: path.to_owned(), disk, locked_by: None, created: true });
    }

    /// Looks at or changes a disk.
    ///
    /// # Panics
    /// There is no disk of that path.
    pub fn with_disk<T>(&self, path: &str, f: impl FnOnce(&mut Disk) -> T) -> T {
        let mut state = self.0.borrow_mut();
        let named = state.disks.iter_mut().find(|d| d.path == path).expect("no such disk");
        f(&mut named.disk)
    }

    /// Starts a process of `cores` cores; `main` is called for each, in order.
    pub fn start_process(&self, process: ProcessId, cores: usize, main: impl Fn(&Reactor)) {
        for core in 0..cores {
            let (index, life) = {
                let mut state = self.0.borrow_mut();
                let life = state.next_number;
                state.next_number += 1;
                let fresh = Core {
                    reactor: None,
                    life,
                    process,
                    busy_until_ns: 0,
                    runs_at_ns: BTreeSet::new(),
                    done: Vec::new(),
                    blocked: Vec::new(),
                };
                let index = state.cores.iter().position(|c| c.reactor.is_none()).unwrap_or(state.cores.len());
                if index == state.cores.len() {
                    state.cores.push(fresh);
                } else {
                    state.cores[index] = fresh;
                }
                (index, life)
            };
            let driver = Driver::Sim(SimDriver { world: self.clone(), index, life });
            let reactor = Reactor::new(CoreId(core as u16), cores, driver, Load::default());
            self.0.borrow_mut().cores[index].reactor = Some(reactor.clone());
            main(&reactor);
            self.0.borrow_mut().run_core_at(index, 0);
        }
    }

    /// Kills a process; with `power_loss` every disk loses what was not flushed.
    pub fn kill(&self, process: ProcessId, power_loss: bool) {
        let dying: Vec<(usize, Reactor)> = {
            let state = self.0.borrow();
            let of_process = state.cores.iter().enumerate().filter(|(_, core)| core.process == process);
            of_process.filter_map(|(index, core)| Some((index, core.reactor.clone()?))).collect()
        };
        let mut lives = Vec::new();
        for (index, reactor) in dying {
            reactor.close();
            let mut state = self.0.borrow_mut();
            lives.push((index, state.cores[index].life));
            state.cores[index].reactor = None;
            state.cores[index].life = u64::MAX;
        }
        self.0.borrow_mut().after_death(process, &lives, power_loss);
    }

    /// Sets how long what is sent takes at most; at least 5 us.
    pub fn set_network_delay_ns(&self, max: u64) {
        assert!(max > net::DELAY_NS_MIN);
        self.0.borrow_mut().network_delay_ns_max = max;
    }

    /// Steps the wall clock.
    pub fn step_wall_ms(&self, by_ms: i64) {
        let mut state = self.0.borrow_mut();
        state.wall_offset_ms = state.wall_offset_ms.saturating_add_signed(by_ms);
    }

    /// Virtual time in nanoseconds.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.0.borrow().now_ns
    }

    /// Virtual wall-clock time in milliseconds.
    #[must_use]
    pub fn wall_ms(&self) -> u64 {
        self.0.borrow().wall_us() / 1000
    }

    /// A hash of everything that has happened.
    #[must_use]
    pub fn trace(&self) -> u64 {
        self.0.borrow().trace
    }

    /// Runs events until `done` says so (asked after each) or `deadline_ns` is reached; true if
    /// `done` was.
    pub fn run_until(&self, deadline_ns: u64, mut done: impl FnMut() -> bool) -> bool {
        loop {
            if done() {
                return true;
            }
            if !self.step(deadline_ns) {
                let mut state = self.0.borrow_mut();
                state.now_ns = state.now_ns.max(deadline_ns);
                return false;
            }
        }
    }

    /// Runs the next event if it is not past the deadline.
    fn step(&self, deadline_ns: u64) -> bool {
        let running = {
            let mut state = self.0.borrow_mut();
            if state.waker.take_woken() {
                let now_ns = state.now_ns;
                for core in 0..state.cores.len() {
                    state.run_core_at(core, now_ns);
                }
            }
            if state.events.peek().is_none_or(|Reverse(event)| event.at_ns > deadline_ns) {
                return false;
            }
            let Reverse(event) = state.events.pop().expect("just looked at");
            state.apply(event)
        };
        let Some((index, reactor)) = running else {
            return true;
        };
        let worked = reactor.turn();
        let mut state = self.0.borrow_mut();
        let cost_ns = if worked { state.random_schedule.range(500, 3_000) } else { 0 };
        let now_ns = state.now_ns;
        state.cores[index].busy_until_ns = now_ns + cost_ns;
        if worked || reactor.has_ready() {
            state.run_core_at(index, now_ns + cost_ns);
        } else if let Some(deadline_ns) = reactor.next_deadline_ns() {
            state.run_core_at(index, deadline_ns.max(now_ns));
        }
        true
    }
}

impl State {
    fn wall_us(&self) -> u64 {
        self.wall_offset_ms * 1000 + self.now_ns / 1000
    }

    fn push(&mut self, at_ns: u64, core: usize, token: Token, action: Action) {
        let number = self.next_number;
        self.next_number += 1;
        let life = self.cores[core].life;
        self.events.push(Reverse(Event { at_ns, number, core, life, token: token.0, action }));
    }

    fn run_core_at(&mut self, core: usize, at_ns: u64) {
        let at_ns = at_ns.max(self.now_ns).max(self.cores[core].busy_until_ns);
        if self.cores[core].runs_at_ns.insert(at_ns) {
            self.push(at_ns, core, Token(0), Action::Run);
        }
    }

    /// Applies an event; the reactor to run, if any.
    fn apply(&mut self, event: Event) -> Option<(usize, Reactor)> {
        assert!(event.at_ns >= self.now_ns, "time runs forward");
        self.now_ns = event.at_ns;
        self.trace = (self.trace ^ event.at_ns ^ event.number << 20 ^ event.token << 40)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(29);
        let core = event.core;
        if self.cores[core].life != event.life || self.cores[core].reactor.is_none() {
            return None;
        }
        let token = Token(event.token);
        match event.action {
            Action::Run => {
                self.cores[core].runs_at_ns.remove(&event.at_ns);
                let busy_until_ns = self.cores[core].busy_until_ns;
                if busy_until_ns > self.now_ns {
                    self.run_core_at(core, busy_until_ns);
                    return None;
                }
                return Some((core, self.cores[core].reactor.clone()?));
            }
            Action::Read(bytes) => self.cores[core].done.push((token, Ok(bytes))),
            Action::Write { write, durable, disk, bytes } => {
                let disk = &mut self.disks[disk as usize].disk;
                let ok = disk.finish_write(&mut self.random_disk, write, durable);
                let result = if ok { Ok(bytes) } else { Err(error(libc::EIO)) };
                self.cores[core].done.push((token, result));
            }
            Action::Flush { disk, covered } => {
                let disk = &mut self.disks[disk as usize].disk;
                let ok = disk.finish_flush(&mut self.random_disk, &covered);
                let result = if ok { Ok(0) } else { Err(error(libc::EIO)) };
                self.cores[core].done.push((token, result));
            }
        }
        self.run_core_at(core, self.now_ns);
        None
    }

    fn after_death(&mut self, process: ProcessId, lives: &[Owner], power_loss: bool) {
        for disk in &mut self.disks {
            let held = disk.locked_by == Some(process);
            if held {
                disk.locked_by = None;
            }
            if power_loss {
                disk.disk.power_loss(&mut self.random_disk);
            } else if held {
                disk.disk.process_death(&mut self.random_disk);
            }
        }
        for listener in &mut self.listeners {
            if listener.as_ref().is_some_and(|l| lives.contains(&l.owner)) {
                *listener = None;
            }
        }
        let mut wake = Vec::new();
        for connection in &mut self.connections {
            let dead_end = (0..2).find(|end| connection.owners[*end].is_some_and(|o| lives.contains(&o)));
            if let Some(end) = dead_end {
                connection.reset = true;
                wake.extend(connection.owners[1 - end].map(|(core, _)| core));
            }
        }
        for core in wake {
            self.run_core_at(core, self.now_ns);
        }
    }

    fn connection(&mut self, socket: SocketId) -> (&mut Connection, usize) {
        assert!(socket.0 & LISTENER_BIT == 0);
        (&mut self.connections[socket.0 as usize / 2], socket.0 as usize % 2)
    }

    fn run_peer(&mut self, socket: SocketId, at_ns: u64) {
        let (connection, end) = self.connection(socket);
        if let Some((core, life)) = connection.owners[1 - end]
            && self.cores[core].life == life
        {
            self.run_core_at(core, at_ns);
        }
    }

    /// Goes on with a network operation: its result, or nothing if it still has to wait.
    fn try_network(&mut self, owner: Owner, op: &mut Op) -> Option<io::Result<u64>> {
        let now_ns = self.now_ns;
        match op {
            Op::Accept { listener } => {
                let index = (listener.0 & !LISTENER_BIT) as usize;
                let listener = self.listeners[index].as_mut().expect("a listener in use is open");
                let connection = listener.backlog.pop_front()?;
                self.connections[connection].owners[1] = Some(owner);
                // What was sent before the accept wakes this core when it arrives.
                for arrival_ns in self.connections[connection].arrivals(1) {
                    self.run_core_at(owner.0, arrival_ns);
                }
                Some(Ok(connection as u64 * 2 + 1))
            }
            Op::Receive { socket, into, bytes_max } => {
                let mut random = self.random_net.clone();
                let (connection, end) = self.connection(*socket);
                if connection.reset {
                    return Some(Err(error(libc::ECONNRESET)));
                }
                let bytes = connection.receive(end, now_ns, *bytes_max, &mut random)?;
                self.random_net = random;
                self.run_peer(*socket, now_ns);
                into.extend_from_slice(&bytes);
                Some(Ok(bytes.len() as u64))
            }
            Op::Send { socket, bytes, from } => {
                let mut random = self.random_net.clone();
                let delay_ns = random.range(net::DELAY_NS_MIN, self.network_delay_ns_max);
                let (connection, end) = self.connection(*socket);
                if connection.reset || connection.is_closed_for(end) {
                    return Some(Err(error(libc::ECONNRESET)));
                }
                let (arrival_ns, count) = connection.send(end, &bytes[*from..], now_ns + delay_ns)?;
                self.random_net = random;
                self.run_peer(*socket, arrival_ns);
                Some(Ok(count as u64))
            }
            Op::Read { .. } | Op::Write { .. } | Op::Flush { .. } => {
                unreachable!("not a network operation")
            }
        }
    }
}
