//! Sockets that are tried, and wait for their readiness when there is nothing to do.
//!
//! Role: receives, sends and accepts. Place on the path: the first and the last system call of a request.
//!
//! Invariants:
//! * sockets are non-blocking. Each direction of one is open until a call finds nothing to do, and opens
//!   with the next event; an operation on an open direction is tried, one on a closed direction waits;
//! * operations of one direction are tried in the order in which they came;
//! * a connection that waits for a request holds no memory for it; only a receive of at least
//!   [`RECEIVE_DIRECT_BYTES_MIN`], which the caller asks for when more is announced, reserves what it may
//!   bring, at most [`RECEIVE_BYTES_MAX`].
//!
//! Never: it calls into a socket from anywhere but [`Network::attempt`].

use super::poll::Poll;
use crate::driver::kernel::sockets::{self, Sockets};
use crate::driver::kernel::transfer::Retries;
use crate::limits::{RECEIVE_BYTES_MAX, RECEIVE_DIRECT_BYTES_MIN, SEND_BYTES_MAX};
use crate::ops::{Op, SocketId, Token};
use rustix::io::{Errno, ioctl_fionbio};
use rustix::net::{RecvFlags, SendFlags, SocketFlags};
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

/// Bytes of the memory into which all small receives of a core go first.
const RECEIVE_SHARED_BYTES: usize = 16 << 10;

/// One direction of a socket.
struct Direction {
    /// A call may find something to do.
    open: bool,
    /// Operations that wait for that.
    waiting: VecDeque<Token>,
}

impl Default for Direction {
    fn default() -> Direction {
        // Nothing is known yet: the first operation is tried.
        Direction { open: true, waiting: VecDeque::new() }
    }
}

/// What is known of a socket.
#[derive(Default)]
struct Readiness {
    reading: Direction,
    writing: Direction,
    /// A receive that brought less than it could take does not mean that nothing is left.
    wary: bool,
}

impl Readiness {
    fn direction(&mut self, op: &Op) -> &mut Direction {
        if matches!(op, Op::Send { .. }) { &mut self.writing } else { &mut self.reading }
    }
}

/// How far an operation is.
#[derive(Clone, Copy, Default)]
pub(super) struct Progress {
    retries: Retries,
    /// Bytes sent.
    sent: usize,
}

pub(super) struct Network {
    poll: Poll,
    sockets: Sockets<Readiness>,
    /// Operations to be tried.
    ready: Vec<Token>,
    shared: Vec<u8>,
}

/// The socket that an operation is on.
pub(super) fn socket_of(op: &Op) -> Option<SocketId> {
    match op {
        Op::Accept { listener: socket } | Op::Receive { socket, .. } | Op::Send { socket, .. } => {
            Some(*socket)
        }
        Op::Read { .. } | Op::Write { .. } | Op::Flush { .. } => None,
    }
}

impl Network {
    pub(super) fn new(wake: impl AsFd) -> io::Result<Network> {
        Ok(Network {
            poll: Poll::new(wake)?,
            sockets: Sockets::default(),
            ready: Vec::new(),
            shared: vec![0; RECEIVE_SHARED_BYTES],
        })
    }

    /// Takes an operation in; it is tried at the next [`Network::take_ready`] or when its socket is ready.
    pub(super) fn start(&mut self, token: Token, socket: SocketId, op: &Op) {
        self.sockets.hold(socket);
        let direction = self.sockets.get(socket).state.direction(op);
        if direction.open && direction.waiting.is_empty() {
            self.ready.push(token);
        } else {
            direction.waiting.push_back(token);
        }
    }

    /// Lets an operation be given up at the next [`Network::take_ready`], wherever it waits.
    pub(super) fn call_back(&mut self, token: Token, socket: SocketId) {
        let state = &mut self.sockets.get(socket).state;
        for direction in [&mut state.reading, &mut state.writing] {
            if let Some(place) = direction.waiting.iter().position(|waiting| *waiting == token) {
                direction.waiting.remove(place);
                self.ready.push(token);
            }
        }
    }

    /// Looks for events, and waits for one: see [`Poll::wait`].
    pub(super) fn wait(&mut self, timeout_ns: Option<u64>) {
        self.poll.wait(timeout_ns);
        for event in self.poll.ready() {
            let Some(kept) = self.sockets.find(SocketId(event.socket)) else { continue };
            kept.state.wary |= event.wary;
            for (opens, direction) in
                [(event.reading, &mut kept.state.reading), (event.writing, &mut kept.state.writing)]
            {
                if opens {
                    direction.open = true;
                    self.ready.extend(direction.waiting.drain(..));
                }
            }
        }
    }

    pub(super) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Gives the operations to be tried in exchange for an empty list.
    pub(super) fn take_ready(&mut self, empty: Vec<Token>) -> Vec<Token> {
        assert!(empty.is_empty());
        std::mem::replace(&mut self.ready, empty)
    }

    /// Tries an operation; no result: it waits for its socket.
    pub(super) fn attempt(
        &mut self,
        token: Token,
        op: &mut Op,
        progress: &mut Progress,
    ) -> Option<io::Result<u64>> {
        let socket = socket_of(op).expect("an operation on a socket");
        loop {
            let kept = self.sockets.get(socket);
            if !kept.state.direction(op).open {
                kept.state.direction(op).waiting.push_back(token);
                return None;
            }
            match self.call(socket, op, progress) {
                Ok(Some(count)) => return Some(Ok(count)),
                Ok(None) => {}
                Err(Errno::WOULDBLOCK) => self.sockets.get(socket).state.direction(op).open = false,
                Err(error) if progress.retries.again(error.raw_os_error()) => {}
                // What was sent is told; the next send meets the error again.
                Err(_) if progress.sent > 0 => return Some(Ok(progress.sent as u64)),
                Err(error) => return Some(Err(error.into())),
            }
        }
    }

    /// One system call; the result of the operation if that completes it.
    fn call(
        &mut self,
        socket: SocketId,
        op: &mut Op,
        progress: &mut Progress,
    ) -> rustix::io::Result<Option<u64>> {
        match op {
            Op::Accept { listener } => {
                let listener = &self.sockets.get(*listener).descriptor;
                let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
                let accepted = rustix::net::accept_with(listener, flags)?;
                let id = self.insert(accepted).map_err(|error| {
                    Errno::from_io_error(&error).expect("what the kernel or the limit says is a code")
                })?;
                Ok(Some(u64::from(id.0)))
            }
            Op::Receive { into, bytes_max, .. } => {
                self.receive(socket, into, *bytes_max).map(|count| Some(count as u64))
            }
            Op::Send { bytes, from, .. } => {
                let rest = &bytes[*from..];
                let rest = &rest[..rest.len().min(SEND_BYTES_MAX)];
                let descriptor = &self.sockets.get(socket).descriptor;
                progress.sent += rustix::net::send(descriptor, &rest[progress.sent..], SendFlags::NOSIGNAL)?;
                Ok((progress.sent == rest.len()).then_some(progress.sent as u64))
            }
            Op::Read { .. } | Op::Write { .. } | Op::Flush { .. } => unreachable!("not on a socket"),
        }
    }

    fn receive(
        &mut self,
        socket: SocketId,
        into: &mut Vec<u8>,
        bytes_max: usize,
    ) -> rustix::io::Result<usize> {
        let kept = self.sockets.get(socket);
        let (count, room);
        if bytes_max < RECEIVE_DIRECT_BYTES_MIN {
            room = bytes_max.min(RECEIVE_SHARED_BYTES);
            (_, count) = rustix::net::recv(&kept.descriptor, &mut self.shared[..room], RecvFlags::empty())?;
            into.extend_from_slice(&self.shared[..count]);
        } else {
            room = bytes_max.min(RECEIVE_BYTES_MAX);
            into.reserve(room);
            let spare = &mut into.spare_capacity_mut()[..room];
            (_, count) = rustix::net::recv(&kept.descriptor, spare, RecvFlags::empty())?;
            assert!(count <= room, "the kernel received more than asked");
            // SAFETY: the kernel has initialised `count` bytes of the spare capacity, as asserted.
            unsafe { into.set_len(into.len() + count) };
        }
        // Less than there was room for is all there was (epoll(7)): the next byte is an event.
        kept.state.reading.open = count == room || count == 0 || kept.state.wary;
        Ok(count)
    }

    /// Takes a connection or a listener in.
    fn insert(&mut self, descriptor: OwnedFd) -> io::Result<SocketId> {
        let socket = self.sockets.insert(descriptor)?;
        if let Err(error) = self.poll.add(&self.sockets.get(socket).descriptor, socket.0) {
            self.sockets.close(socket);
            return Err(error);
        }
        Ok(socket)
    }

    pub(super) fn listen(&mut self, address: SocketAddr) -> io::Result<(SocketId, SocketAddr)> {
        let (descriptor, actual) = sockets::listen(address)?;
        ioctl_fionbio(&descriptor, true)?;
        Ok((self.insert(descriptor)?, actual))
    }

    pub(super) fn connect(&mut self, address: SocketAddr) -> io::Result<SocketId> {
        let descriptor = sockets::connect(address)?;
        ioctl_fionbio(&descriptor, true)?;
        self.insert(descriptor)
    }

    /// Notes the end of an operation.
    pub(super) fn release(&mut self, socket: SocketId) {
        self.sockets.release(socket);
    }

    pub(super) fn close(&mut self, socket: SocketId) {
        self.sockets.close(socket);
    }

    pub(super) fn shutdown(&mut self, socket: SocketId) {
        self.sockets.shutdown(socket);
    }

    pub(super) fn abort(&mut self, socket: SocketId) {
        self.sockets.abort(socket);
    }

    pub(super) fn peer(&mut self, socket: SocketId) -> Option<SocketAddr> {
        self.sockets.peer(socket)
    }
}
