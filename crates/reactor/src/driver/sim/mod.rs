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
mod net;
mod random;

pub use disk::{Classify, Disk, Fault, FaultCounts, FaultRates, SECTOR_BYTES};
pub use random::Random;

use super::Driver;
use crate::file::{FileOptions, Opened};
use crate::load::Load;
use crate::ops::{FileId, Op, Ops, SocketId, Token};
use crate::reactor::{CoreId, Reactor};
use net::{Connection, Owner};
use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

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
    /// The earliest time at which a Run event is queued.
    run_at_ns: Option<u64>,
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
    listeners: Vec<Option<ListenerState>>,
    connections: Vec<Connection>,
    random_schedule: Random,
    random_disk: Random,
    random_net: Random,
    random_product: Random,
    classify: Classify,
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
            listeners: Vec::new(),
            connections: Vec::new(),
            random_schedule: Random::stream(seed, "schedule"),
            random_disk: Random::stream(seed, "disk"),
            random_net: Random::stream(seed, "net"),
            random_product: Random::stream(seed, "product"),
            classify,
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
                    run_at_ns: None,
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
        self.0.borrow().wall_ms()
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
    fn wall_ms(&self) -> u64 {
        self.wall_offset_ms + self.now_ns / 1_000_000
    }

    fn push(&mut self, at_ns: u64, core: usize, token: Token, action: Action) {
        let number = self.next_number;
        self.next_number += 1;
        let life = self.cores[core].life;
        self.events.push(Reverse(Event { at_ns, number, core, life, token: token.0, action }));
    }

    fn run_core_at(&mut self, core: usize, at_ns: u64) {
        let at_ns = at_ns.max(self.now_ns).max(self.cores[core].busy_until_ns);
        if self.cores[core].run_at_ns.is_none_or(|queued| queued > at_ns) {
            self.cores[core].run_at_ns = Some(at_ns);
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
                if self.cores[core].run_at_ns != Some(event.at_ns) {
                    return None; // An earlier Run replaced this one.
                }
                self.cores[core].run_at_ns = None;
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
            if disk.locked_by == Some(process) {
                disk.locked_by = None;
            }
            if power_loss {
                disk.disk.power_loss(&mut self.random_disk);
            } else {
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

    fn disk_of(&mut self, file: FileId) -> &mut Disk {
        &mut self.disks[file.0 as usize].disk
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
                let (connection, end) = self.connection(*socket);
                if connection.reset || connection.is_closed_for(end) {
                    return Some(Err(error(libc::ECONNRESET)));
                }
                let (arrival_ns, count) = connection.send(end, &bytes[*from..], now_ns, &mut random)?;
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

/// One simulated core's way into the world.
pub(crate) struct SimDriver {
    world: World,
    index: usize,
    life: u64,
}

impl SimDriver {
    fn state(&self) -> std::cell::RefMut<'_, State> {
        self.world.0.borrow_mut()
    }

    pub(crate) fn start(&mut self, token: Token, op: &mut Op) {
        let mut guard = self.state();
        let state = &mut *guard;
        let now_ns = state.now_ns;
        match op {
            Op::Read { file, buf, .. } => {
                let disk = &mut state.disks[file.0 as usize].disk;
                let latency_ns = disk.latency_ns(&mut state.random_disk, buf.len());
                state.push(now_ns + latency_ns, self.index, token, Action::Read(buf.len() as u64));
            }
            Op::Write { file, offset, buf, durable } => {
                let write = state.next_write;
                state.next_write += 1;
                let disk = &mut state.disks[file.0 as usize].disk;
                let latency_ns = disk.latency_ns(&mut state.random_disk, buf.len());
                disk.start_write(write, *offset, buf);
                let (bytes, durable, disk) = (buf.len() as u64, *durable, file.0);
                let action = Action::Write { write, durable, disk, bytes };
                state.push(now_ns + latency_ns, self.index, token, action);
            }
            Op::Flush { file } => {
                let disk = &mut state.disks[file.0 as usize].disk;
                let latency_ns = disk.latency_ns(&mut state.random_disk, 0);
                let action = Action::Flush { disk: file.0, covered: disk.start_flush() };
                state.push(now_ns + latency_ns, self.index, token, action);
            }
            Op::Accept { .. } | Op::Receive { .. } | Op::Send { .. } => {
                state.cores[self.index].blocked.push(token);
                state.run_core_at(self.index, now_ns);
            }
        }
    }

    pub(crate) fn cancel(&mut self, token: Token) {
        let mut state = self.state();
        let core = &mut state.cores[self.index];
        if core.blocked.contains(&token) {
            core.blocked.retain(|blocked| *blocked != token);
            core.done.push((token, Err(error(libc::ECANCELED))));
            let now_ns = state.now_ns;
            state.run_core_at(self.index, now_ns);
        }
    }

    pub(crate) fn reap(&mut self, ops: &mut Ops) -> usize {
        let mut guard = self.state();
        let state = &mut *guard;
        let mut done = std::mem::take(&mut state.cores[self.index].done);
        let blocked = std::mem::take(&mut state.cores[self.index].blocked);
        for token in blocked {
            match state.try_network((self.index, self.life), ops.op_mut(token)) {
                Some(result) => done.push((token, result)),
                None => state.cores[self.index].blocked.push(token),
            }
        }
        let count = done.len();
        for (token, mut result) in done {
            if let (Op::Read { file, offset, buf }, Ok(_)) = (ops.op_mut(token), &result) {
                let disk = &mut state.disks[file.0 as usize].disk;
                if !disk.read(&mut state.random_disk, *offset, buf) {
                    result = Err(error(libc::EIO));
                }
            }
            if let Some(socket) = ops.complete(token, result) {
                let (connection, end) = state.connection(socket);
                connection.close(end);
            }
        }
        count
    }

    pub(crate) fn announce_sleep(&mut self) {}
    pub(crate) fn announce_awake(&mut self) {}
    pub(crate) fn park(&mut self, _timeout_ns: Option<u64>) {
        unreachable!("the world decides when a simulated core runs");
    }

    pub(crate) fn wake(&mut self, core: CoreId) {
        let mut state = self.state();
        let process = state.cores[self.index].process;
        let sought = |c: &Core| {
            c.process == process && c.reactor.as_ref().is_some_and(|reactor| reactor.core() == core)
        };
        let Some(index) = state.cores.iter().position(sought) else {
            return;
        };
        let delay_ns = state.random_schedule.range(200, 5_000);
        let at_ns = state.now_ns + delay_ns;
        state.run_core_at(index, at_ns);
    }

    pub(crate) fn drain(&mut self, _ops: &mut Ops) {
        let mut state = self.state();
        state.cores[self.index].blocked.clear();
        state.cores[self.index].done.clear();
    }

    pub(crate) fn now_ns(&mut self) -> u64 {
        self.state().now_ns
    }
    pub(crate) fn wall_ms(&mut self) -> u64 {
        self.state().wall_ms()
    }
    pub(crate) fn random_u64(&mut self) -> u64 {
        self.state().random_product.next_u64()
    }

    pub(crate) fn open_file(&mut self, path: &str, options: &FileOptions) -> io::Result<Opened> {
        let mut guard = self.state();
        let state = &mut *guard;
        let process = state.cores[self.index].process;
        let found = state.disks.iter().position(|disk| disk.path == path);
        let index = match (found, options.create_bytes) {
            (Some(index), _) => index,
            (None, None) => return Err(error(libc::ENOENT)),
            (None, Some(bytes)) => {
                let disk = Disk::new(bytes as usize, state.classify);
                state.disks.push(NamedDisk { path: path.to_owned(), disk, locked_by: None, created: true });
                state.disks.len() - 1
            }
        };
        let disk = &mut state.disks[index];
        if !options.read_only && disk.locked_by.is_some_and(|owner| owner != process) {
            return Err(error(libc::EWOULDBLOCK));
        }
        if !options.read_only {
            disk.locked_by = Some(process);
        }
        let created = std::mem::take(&mut disk.created);
        let size_bytes = disk.disk.size_bytes();
        Ok(Opened { id: FileId(index as u32), size_bytes, block_bytes: SECTOR_BYTES as u32, created })
    }

    pub(crate) fn close_file(&mut self, _file: FileId) {}

    pub(crate) fn listen(&mut self, address: SocketAddr) -> io::Result<(SocketId, SocketAddr)> {
        let owner = (self.index, self.life);
        let mut state = self.state();
        let id = state.listeners.len() as u32;
        state.listeners.push(Some(ListenerState { address, owner, backlog: VecDeque::new() }));
        Ok((SocketId(id | LISTENER_BIT), address))
    }

    pub(crate) fn connect(&mut self, address: SocketAddr) -> io::Result<SocketId> {
        let owner = (self.index, self.life);
        let mut guard = self.state();
        let state = &mut *guard;
        let open = |l: &Option<ListenerState>| l.as_ref().is_some_and(|l| l.address == address);
        let listening: Vec<usize> =
            (0..state.listeners.len()).filter(|index| open(&state.listeners[*index])).collect();
        if listening.is_empty() {
            return Err(error(libc::ECONNREFUSED));
        }
        let chosen = listening[state.random_net.below(listening.len() as u64) as usize];
        let connection = state.connections.len();
        state.connections.push(Connection::new(owner));
        let listener = state.listeners[chosen].as_mut().expect("chosen among the open ones");
        listener.backlog.push_back(connection);
        let core = listener.owner.0;
        let at_ns = state.now_ns + state.random_net.range(5_000, 60_000);
        state.run_core_at(core, at_ns);
        Ok(SocketId(connection as u32 * 2))
    }

    pub(crate) fn close_socket(&mut self, socket: SocketId) {
        if socket.0 & LISTENER_BIT != 0 {
            self.state().listeners[(socket.0 & !LISTENER_BIT) as usize] = None;
            return;
        }
        self.shutdown_socket(socket);
    }

    pub(crate) fn shutdown_socket(&mut self, socket: SocketId) {
        let mut state = self.state();
        let now_ns = state.now_ns;
        let (connection, end) = state.connection(socket);
        connection.close(end);
        state.run_peer(socket, now_ns);
    }

    pub(crate) fn peer(&mut self, socket: SocketId) -> Option<SocketAddr> {
        Some(SocketAddr::from(([127, 0, 0, 1], 10_000 + (socket.0 % 50_000) as u16)))
    }
}
