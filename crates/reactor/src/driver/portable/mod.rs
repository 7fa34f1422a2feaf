//! The portable driver: epoll for sockets, a few threads for files.
//!
//! Role: serves where io_uring is forbidden or missing, as containers and sandboxes have it. Place on the
//! path: under [`crate::ops`], above the kernel.
//!
//! Invariants:
//! * an operation is tried at the next [`Portable::reap`] at the earliest, and each completes once;
//! * an operation's memory stays in its slot until its completion was given to [`Ops::complete`]: a
//!   worker has it until then, also when nobody waits any more;
//! * a descriptor outlives the operations that name it (see `kernel::table`);
//! * nothing blocks but [`Portable::park`], [`Portable::drain`], what start-up calls and the workers.
//!
//! Never: it gives up a disk operation; one that is dropped runs to its end.

mod poll;
mod sockets;
mod workers;

use super::kernel::open::{self, DirectFile};
use super::kernel::system::{Clock, Random};
use super::kernel::table::Table;
use super::kernel::transfer::Transfer;
use super::wake::WakeCell;
use crate::file::{FileOptions, Opened};
use crate::ops::{FileId, Left, Op, Ops, SocketId, Token};
use crate::reactor::{CoreId, SPIN_NS};
use sockets::{Network, Progress, socket_of};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use workers::{Done, Job, Work, Workers};

/// What the driver knows of an operation in flight.
#[derive(Clone, Copy)]
struct Flight {
    token: Token,
    active: bool,
    /// Nobody waits for it any more, and it may be given up.
    cancelled: bool,
    /// The socket it is on; disk operations end by themselves.
    socket: Option<SocketId>,
    progress: Progress,
}

pub(crate) struct Portable {
    core: CoreId,
    wakes: Arc<[Arc<WakeCell>]>,
    /// By slot of the token.
    flights: Vec<Flight>,
    in_flight: usize,
    network: Network,
    files: Table<Arc<DirectFile>>,
    workers: Workers,
    random: Random,
    clock: Clock,
    draining: bool,
    /// Empty lists, kept for their memory.
    attempts: Vec<Token>,
    done: Vec<Done>,
}

impl Portable {
    /// Makes the driver of the calling thread; its workers run on any of `cpus`.
    pub(super) fn new(core: CoreId, wakes: Arc<[Arc<WakeCell>]>, cpus: &[usize]) -> io::Result<Portable> {
        let cell = wakes[core.0 as usize].clone();
        Ok(Portable {
            core,
            network: Network::new(cell.event())?,
            workers: Workers::new(cell, cpus)?,
            wakes,
            flights: Vec::new(),
            in_flight: 0,
            files: Table::default(),
            random: Random::default(),
            clock: Clock::new(),
            draining: false,
            attempts: Vec::new(),
            done: Vec::new(),
        })
    }

    fn cell(&self) -> &Arc<WakeCell> {
        &self.wakes[self.core.0 as usize]
    }

    pub(crate) fn start(&mut self, token: Token, op: &mut Op) {
        assert!(!self.draining, "no operation starts while the reactor stops");
        let socket = socket_of(op);
        let flight = Flight { token, active: true, cancelled: false, socket, progress: Progress::default() };
        let slot = token.slot();
        if slot >= self.flights.len() {
            self.flights.resize(slot + 1, Flight { active: false, ..flight });
        }
        assert!(!self.flights[slot].active, "one operation a slot");
        self.flights[slot] = flight;
        self.in_flight += 1;
        match socket {
            Some(socket) => self.network.start(token, socket, op),
            None => self.start_on_disk(token, op),
        }
    }

    fn start_on_disk(&mut self, token: Token, op: &mut Op) {
        let (file, work) = match op {
            Op::Read { file, offset, buf } => {
                let transfer =
                    Transfer { address: buf.as_mut_ptr(), len: buf.len(), offset: *offset, moved: 0 };
                (*file, Work::Read(transfer))
            }
            Op::Write { file, offset, buf, durable } => {
                let address = buf.as_ptr().cast_mut();
                let transfer = Transfer { address, len: buf.len(), offset: *offset, moved: 0 };
                (*file, Work::Write { transfer, durable: *durable })
            }
            Op::Flush { file } => (*file, Work::Flush),
            Op::Accept { .. } | Op::Receive { .. } | Op::Send { .. } => unreachable!("not on a file"),
        };
        self.files.hold(file.0);
        self.workers.start(Job { token, file: self.files.get(file.0).clone(), work });
    }

    pub(crate) fn cancel(&mut self, token: Token) {
        let Some(flight) = self.flights.get_mut(token.slot()) else { return };
        if flight.active
            && flight.token == token
            && !flight.cancelled
            && let Some(socket) = flight.socket
        {
            flight.cancelled = true;
            self.network.call_back(token, socket);
        }
    }

    /// Workers hear of what was started at the end of a turn: calling each of them costs the core as much
    /// as it would bring.
    pub(crate) fn feed_drive(&mut self) {}

    pub(crate) fn reap(&mut self, ops: &mut Ops) -> usize {
        self.workers.call();
        self.network.wait(Some(0));
        self.complete_ready(ops) + self.complete_done(ops)
    }

    /// Tries what may be done on sockets; how many operations that completed.
    fn complete_ready(&mut self, ops: &mut Ops) -> usize {
        let empty = std::mem::take(&mut self.attempts);
        let mut attempts = self.network.take_ready(empty);
        let mut completed = 0;
        for token in attempts.drain(..) {
            let op = ops.op_mut(token);
            let flight = &mut self.flights[token.slot()];
            assert!(flight.active && flight.token == token, "an operation that is not in flight is tried");
            let result = if flight.cancelled {
                Some(Err(io::Error::from_raw_os_error(libc::ECANCELED)))
            } else {
                self.network.attempt(token, op, &mut flight.progress)
            };
            if let Some(result) = result {
                self.complete(ops, token, result);
                completed += 1;
            }
        }
        self.attempts = attempts;
        completed
    }

    /// Takes what workers have done; how many operations that completed.
    fn complete_done(&mut self, ops: &mut Ops) -> usize {
        let empty = std::mem::take(&mut self.done);
        let mut done = self.workers.take_done(empty);
        let completed = done.len();
        for Done { token, result } in done.drain(..) {
            self.complete(ops, token, result);
        }
        self.done = done;
        completed
    }

    fn complete(&mut self, ops: &mut Ops, token: Token, result: io::Result<u64>) {
        let flight = &mut self.flights[token.slot()];
        assert!(flight.active && flight.token == token, "completion of an operation not in flight");
        flight.active = false;
        self.in_flight -= 1;
        match ops.op_mut(token) {
            Op::Read { file, .. } | Op::Write { file, .. } | Op::Flush { file } => {
                drop(self.files.release(file.0));
            }
            Op::Accept { listener: socket } | Op::Receive { socket, .. } | Op::Send { socket, .. } => {
                self.network.release(*socket);
            }
        }
        match ops.complete(token, result) {
            Left::Nothing => {}
            Left::Unclaimed(socket) => self.network.close(socket),
            Left::Failed(socket) => self.network.shutdown(socket),
            Left::Rest => self.start(token, ops.op_mut(token)),
        }
    }

    pub(crate) fn announce_sleep(&mut self) {
        self.cell().announce_sleep();
    }

    pub(crate) fn announce_awake(&mut self) {
        self.cell().announce_awake();
    }

    /// Sleeps, unless something is there. A worker that is done after this look sees that the core has
    /// announced its sleep, and wakes it.
    pub(crate) fn park(&mut self, timeout_ns: Option<u64>) {
        self.workers.call();
        if !self.workers.has_done() && !self.network.has_ready() {
            self.network.wait(timeout_ns);
        }
    }

    pub(crate) fn wake(&mut self, core: CoreId) {
        self.wakes[core.0 as usize].wake();
    }

    pub(crate) fn waker(&mut self) -> Arc<WakeCell> {
        self.cell().clone()
    }

    /// Calls back what may be given up; nothing starts any more.
    pub(super) fn give_up(&mut self) {
        self.draining = true;
        for slot in 0..self.flights.len() {
            if self.flights[slot].active {
                self.cancel(self.flights[slot].token);
            }
        }
    }

    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Leaves the workers to what does not end.
    pub(super) fn leave(&mut self) {
        self.workers.leave();
    }

    /// While a worker is at work its core does not look on: it may be on the same processor.
    pub(crate) fn spin_ns(&mut self) -> u64 {
        if self.workers.in_flight() > 0 { 0 } else { SPIN_NS }
    }

    pub(crate) fn look_at_clock(&mut self) -> u64 {
        self.clock.look()
    }

    pub(crate) fn now_ns(&mut self) -> u64 {
        self.clock.now_ns()
    }

    pub(crate) fn wall_us(&mut self) -> u64 {
        self.clock.wall_us()
    }

    pub(crate) fn random_u64(&mut self) -> u64 {
        self.random.draw()
    }

    pub(crate) fn open_file(&mut self, path: &str, options: &FileOptions) -> io::Result<Opened> {
        let (file, created) = open::open(path, options)?;
        let (size_bytes, block_bytes) = (file.size_bytes, file.block_bytes);
        Ok(Opened { id: FileId(self.files.insert(file)), size_bytes, block_bytes, created })
    }

    pub(crate) fn close_file(&mut self, file: FileId) {
        drop(self.files.close(file.0));
    }

    pub(crate) fn listen(&mut self, address: SocketAddr) -> io::Result<(SocketId, SocketAddr)> {
        self.network.listen(address)
    }

    pub(crate) fn connect(&mut self, address: SocketAddr) -> io::Result<SocketId> {
        self.network.connect(address)
    }

    pub(crate) fn close_socket(&mut self, socket: SocketId) {
        self.network.close(socket);
    }

    pub(crate) fn shutdown_socket(&mut self, socket: SocketId) {
        self.network.shutdown(socket);
    }

    pub(crate) fn abort_socket(&mut self, socket: SocketId) {
        self.network.abort(socket);
    }

    pub(crate) fn peer(&mut self, socket: SocketId) -> Option<SocketAddr> {
        self.network.peer(socket)
    }
}
