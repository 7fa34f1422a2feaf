//! The io_uring driver: one ring a core.
//!
//! Role: turns operations into entries of the core's ring and completions back into results.
//! Place on the path: under [`crate::ops`], above the kernel.
//!
//! Invariants:
//! * every entry pushed has exactly one completion, and the operation's memory stays in its slot
//!   until that was taken: also when nobody waits any more;
//! * a descriptor outlives the operations that name it (see `kernel::table`);
//! * sockets are in blocking mode: with a non-blocking one the kernel would hand `EAGAIN` back
//!   instead of waiting for it;
//! * nothing blocks but [`Uring::park`], [`Uring::drain`] and what start-up calls.
//!
//! Never: it retries nothing whose outcome the caller could tell apart.

mod buffers;
mod files;
mod held;
mod order;
mod patience;
mod receive;
mod ring;
mod sends;
mod standing;

pub(super) use ring::try_out;

use super::kernel::sockets::{self, Sockets};
use super::kernel::system::{Clock, Random};
use super::kernel::transfer::{self, Retries, Step, Transfer};
use super::wake::WakeCell;
use crate::file::{FileOptions, Opened};
use crate::limits::{RECEIVE_DIRECT_BYTES_MIN, SEND_BYTES_MAX};
use crate::ops::{FileId, Left, Op, Ops, SocketId, Token};
use crate::reactor::CoreId;
use buffers::ReceiveBuffers;
use files::Files;
use held::HeldReads;
use io_uring::{cqueue, opcode, squeue, types};
use patience::Patience;
use ring::Ring;
use sends::Sends;
use standing::Inbox;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;

/// User data of the read that ends a sleep. Tokens have a slot below `OPS_MAX` in their low half.
const WAKE_DATA: u64 = u64::MAX;
/// User data of entries that cancel others.
const CANCEL_DATA: u64 = u64::MAX - 1;
/// What the driver knows of an operation that the kernel has.
#[derive(Clone, Copy)]
struct Flight {
    token: Token,
    active: bool,
    cancelled: bool,
    /// It may wait for a peer for ever; disk operations end by themselves.
    network: bool,
    /// A receive that takes one of the shared buffers.
    shared: bool,
    /// A receive of this socket that has no entry of its own: see `standing`.
    stands: Option<SocketId>,
    retries: Retries,
    /// Bytes moved by earlier entries of a disk operation.
    moved: usize,
}

pub(crate) struct Uring {
    /// First, so that it is dropped before the memory that it names.
    ring: Ring,
    core: CoreId,
    wakes: Arc<[Arc<WakeCell>]>,
    /// By slot of the token.
    flights: Vec<Flight>,
    /// Entries whose completion has not been taken, those that cancel others apart.
    in_flight: usize,
    patience: Patience,
    held: HeldReads,
    sends: Sends,
    /// Writes and flushes that were pushed in this turn: the kernel has not been told of them.
    unsent: usize,
    /// The last look at the ring found nothing, and no send was left.
    is_idle: bool,
    files: Files,
    sockets: Sockets<Inbox>,
    /// The kernel knows no receives that stand.
    none_stand: bool,
    /// Receives that may be served at once, or were given up.
    ready: Vec<Token>,
    receive: Option<ReceiveBuffers>,
    /// Where the read that ends a sleep puts its count; leaked, so that it outlives the ring.
    wake_count: *mut u64,
    draining: bool,
    random: Random,
    clock: Clock,
    batch: Vec<cqueue::Entry>,
}

impl Uring {
    /// Makes the driver of the calling thread.
    pub(super) fn new(core: CoreId, wakes: Arc<[Arc<WakeCell>]>) -> io::Result<Uring> {
        let ring = Ring::new()?;
        let files = Files::register(&ring);
        let receive = ReceiveBuffers::register(&ring.submitter());
        if let Err(error) = &receive {
            tracing::warn!(%error, "no shared receive buffers: every waiting connection holds its own");
        }
        let mut uring = Uring {
            ring,
            core,
            wakes,
            flights: Vec::new(),
            in_flight: 0,
            patience: Patience::default(),
            held: HeldReads::default(),
            sends: Sends::default(),
            unsent: 0,
            is_idle: true,
            files,
            sockets: Sockets::default(),
            none_stand: false,
            ready: Vec::new(),
            receive: receive.ok(),
            wake_count: Box::leak(Box::new(0)),
            draining: false,
            random: Random::default(),
            clock: Clock::new(),
            batch: Vec::new(),
        };
        uring.arm_wake();
        Ok(uring)
    }

    fn cell(&self) -> &Arc<WakeCell> {
        &self.wakes[self.core.0 as usize]
    }

    /// Starts the read that completes when somebody wakes this core.
    fn arm_wake(&mut self) {
        let event = types::Fd(self.cell().event().as_raw_fd());
        let entry = opcode::Read::new(event, self.wake_count.cast(), 8).build().user_data(WAKE_DATA);
        // SAFETY: the count is leaked and used by nothing else; the event lives in `wakes`, which
        // is dropped after the ring.
        unsafe { self.ring.push(entry) };
        self.in_flight += 1;
    }

    pub(crate) fn start(&mut self, token: Token, op: &mut Op) {
        assert!(!self.draining, "no operation starts while the reactor stops");
        let network = match op {
            Op::Read { file, .. } | Op::Write { file, .. } | Op::Flush { file } => {
                self.files.hold(*file);
                self.patience.begin(self.clock.now_ns());
                false
            }
            Op::Accept { listener: socket } | Op::Receive { socket, .. } | Op::Send { socket, .. } => {
                self.sockets.hold(*socket);
                true
            }
        };
        let shared = matches!(op, Op::Receive { bytes_max, .. }
            if *bytes_max < RECEIVE_DIRECT_BYTES_MIN && self.receive.is_some());
        let flight = Flight {
            token,
            active: true,
            cancelled: false,
            network,
            shared,
            stands: None,
            retries: Retries::default(),
            moved: 0,
        };
        let slot = token.slot();
        if slot >= self.flights.len() {
            let fresh = Flight { active: false, ..flight };
            self.flights.resize(slot + 1, fresh);
        }
        assert!(!self.flights[slot].active, "one operation a slot");
        self.flights[slot] = flight;
        match op {
            Op::Receive { socket, .. } => {
                let socket = *socket;
                self.begin_receive(token, socket, op);
            }
            _ => self.submit(token, op),
        }
    }

    fn descriptor(&mut self, socket: SocketId) -> RawFd {
        self.sockets.get(socket).descriptor.as_raw_fd()
    }

    fn entry(&mut self, flight: Flight, op: &mut Op) -> squeue::Entry {
        let moved = flight.moved;
        match op {
            Op::Read { file, offset, buf } => {
                let transfer = Transfer { address: buf.as_mut_ptr(), len: buf.len(), offset: *offset, moved };
                self.files.read_entry(*file, transfer)
            }
            Op::Write { file, offset, buf, durable } => {
                let address = buf.as_ptr().cast_mut();
                let transfer = Transfer { address, len: buf.len(), offset: *offset, moved };
                self.files.write_entry(*file, transfer, *durable)
            }
            Op::Flush { file } => self.files.flush_entry(*file),
            Op::Accept { listener } => {
                let listener = types::Fd(self.descriptor(*listener));
                let (nowhere, no_len) = (std::ptr::null_mut(), std::ptr::null_mut());
                opcode::Accept::new(listener, nowhere, no_len).flags(libc::SOCK_CLOEXEC).build()
            }
            Op::Receive { socket, into, bytes_max } => {
                self.receive_entry(*socket, into, *bytes_max, flight.shared)
            }
            Op::Send { socket, bytes, from } => {
                let socket = types::Fd(self.descriptor(*socket));
                let rest = &bytes[*from..];
                let len = rest.len().min(SEND_BYTES_MAX) as u32;
                // WAITALL: the kernel goes on by itself when a slow reader makes room.
                let flags = libc::MSG_NOSIGNAL | libc::MSG_WAITALL;
                opcode::Send::new(socket, rest.as_ptr(), len).flags(flags).build()
            }
        }
    }

    pub(crate) fn cancel(&mut self, token: Token) {
        let Some(flight) = self.flights.get_mut(token.slot()) else { return };
        if flight.active && flight.token == token && flight.network && !flight.cancelled {
            flight.cancelled = true;
            match flight.stands {
                Some(socket) => {
                    self.sockets.get(socket).state.forget(token);
                    self.ready.push(token);
                }
                None => self.push_cancel(token.0),
            }
        }
    }

    pub(crate) fn reap(&mut self, ops: &mut Ops) -> usize {
        self.let_go(false);
        self.push_sends(ops.has_short_reads());
        self.ring.submit();
        let mut batch = std::mem::take(&mut self.batch);
        self.ring.take_completions(&mut batch);
        let count = batch.len() + self.ready.len();
        for completion in batch.drain(..) {
            self.complete(ops, &completion);
        }
        self.batch = batch;
        for token in std::mem::take(&mut self.ready) {
            self.serve(ops, token);
        }
        let worked = count + usize::from(!self.sends.is_empty());
        self.is_idle = worked == 0;
        worked
    }

    fn complete(&mut self, ops: &mut Ops, completion: &cqueue::Entry) {
        match completion.user_data() {
            CANCEL_DATA => return,
            WAKE_DATA => {
                self.in_flight -= 1;
                if !self.draining {
                    self.arm_wake();
                }
                return;
            }
            data => {
                if let Some(socket) = standing::socket_of(data) {
                    return self.brought(ops, socket, completion);
                }
                self.in_flight -= 1;
            }
        }
        let token = Token(completion.user_data());
        let op = ops.op_mut(token);
        let flight = self.flights[token.slot()];
        assert!(flight.active && flight.token == token, "completion of an operation not in flight");
        let step = self.judge(token, op, completion.result(), completion.flags());
        let result = match step {
            Step::Done(result) => result,
            Step::Again if flight.cancelled => Err(io::Error::from_raw_os_error(libc::ECANCELED)),
            Step::Again => return self.submit(token, op),
        };
        self.finish(ops, token, result);
    }

    /// The end of an operation.
    fn finish(&mut self, ops: &mut Ops, token: Token, result: io::Result<u64>) {
        self.flights[token.slot()].active = false;
        match ops.op_mut(token) {
            Op::Read { file, .. } | Op::Write { file, .. } | Op::Flush { file } => {
                self.patience.end(self.clock.now_ns());
                self.files.release(&self.ring, *file);
            }
            Op::Accept { listener: socket } | Op::Receive { socket, .. } | Op::Send { socket, .. } => {
                self.sockets.release(*socket);
            }
        }
        match ops.complete(token, result) {
            Left::Nothing => {}
            Left::Unclaimed(socket) => self.sockets.close(socket),
            Left::Failed(socket) => self.sockets.shutdown(socket),
            Left::Rest => self.start(token, ops.op_mut(token)),
        }
    }

    /// What follows from a completion.
    fn judge(&mut self, token: Token, op: &mut Op, result: i32, flags: u32) -> Step {
        let flight = &mut self.flights[token.slot()];
        if let Some((file, len)) = op.transfer() {
            let block_bytes = self.files.block_bytes(file);
            return transfer::judge(result, len, block_bytes, &mut flight.moved, &mut flight.retries);
        }
        if let Op::Receive { into, socket, .. } = op {
            let shared = flight.shared;
            self.take_received(into, result, flags, shared);
            self.sockets.get(*socket).state.received(result.max(0) as usize);
        }
        let flight = &mut self.flights[token.slot()];
        match -result {
            code if code <= 0 => {}
            libc::ENOBUFS if flight.shared => {
                flight.shared = false;
                return Step::Again;
            }
            code if flight.retries.again(code) => return Step::Again,
            code => return Step::Done(Err(io::Error::from_raw_os_error(code))),
        }
        if matches!(op, Op::Accept { .. }) {
            // SAFETY: an accept's result is a new descriptor that nobody else knows.
            let descriptor = unsafe { OwnedFd::from_raw_fd(result) };
            return Step::Done(self.sockets.insert(descriptor).map(|socket| u64::from(socket.0)));
        }
        Step::Done(Ok(result as u64))
    }

    pub(crate) fn announce_sleep(&mut self) {
        self.cell().announce_sleep();
    }

    pub(crate) fn announce_awake(&mut self) {
        self.cell().announce_awake();
    }

    pub(crate) fn park(&mut self, timeout_ns: Option<u64>) {
        if self.ready.is_empty() {
            self.let_go(true);
            self.push_all_sends();
            self.patience.sleep(self.clock.now_ns());
            self.ring.wait(timeout_ns);
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
        let stand = self.sockets.all().filter(|(_, kept)| kept.state.stands());
        for socket in stand.map(|(socket, _)| socket).collect::<Vec<_>>() {
            self.push_cancel(standing::data_of(socket));
        }
        self.push_cancel(WAKE_DATA);
    }

    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Leaves to the kernel what it may still write to.
    pub(super) fn leave(&mut self) {
        std::mem::forget(self.receive.take());
    }

    pub(crate) fn spin_ns(&mut self) -> u64 {
        self.patience.spin_ns(self.clock.now_ns())
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
        self.files.open(&self.ring, path, options)
    }

    pub(crate) fn close_file(&mut self, file: FileId) {
        self.files.close(&self.ring, file);
    }

    pub(crate) fn listen(&mut self, address: SocketAddr) -> io::Result<(SocketId, SocketAddr)> {
        let (descriptor, actual) = sockets::listen(address)?;
        Ok((self.sockets.insert(descriptor)?, actual))
    }

    pub(crate) fn connect(&mut self, address: SocketAddr) -> io::Result<SocketId> {
        self.sockets.insert(sockets::connect(address)?)
    }

    pub(crate) fn close_socket(&mut self, socket: SocketId) {
        if let Some(buffers) = &mut self.receive {
            self.sockets.get(socket).state.clear(buffers);
        }
        self.sockets.close(socket);
    }

    pub(crate) fn shutdown_socket(&mut self, socket: SocketId) {
        self.sockets.shutdown(socket);
    }

    pub(crate) fn abort_socket(&mut self, socket: SocketId) {
        self.sockets.abort(socket);
    }

    pub(crate) fn peer(&mut self, socket: SocketId) -> Option<SocketAddr> {
        self.sockets.peer(socket)
    }
}
