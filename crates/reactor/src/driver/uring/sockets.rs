//! The sockets of one core and their descriptors.
//!
//! Role: makes, names and closes sockets. Place on the path: beside the ring, off the data path.
//!
//! Invariants:
//! * a descriptor is closed only when no operation names it: its number cannot be reused by a
//!   new connection while an old operation is still queued;
//! * sockets are in blocking mode: with a non-blocking one the kernel would hand `EAGAIN` back
//!   instead of waiting for it.

use crate::limits::SOCKETS_MAX;
use crate::ops::SocketId;
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, sockopt};
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// Connections that may wait to be accepted; the kernel clamps it to net.core.somaxconn.
const ACCEPT_BACKLOG_MAX: i32 = 4096;

struct Slot {
    descriptor: OwnedFd,
    /// Operations that name the descriptor.
    in_flight: u32,
    closing: bool,
}

#[derive(Default)]
pub(super) struct Sockets {
    slots: Vec<Option<Slot>>,
    free: Vec<u32>,
}

impl Sockets {
    /// Takes a descriptor in. At the limit it is closed and the answer is `EMFILE`.
    pub(super) fn insert(&mut self, descriptor: OwnedFd) -> io::Result<SocketId> {
        if self.free.is_empty() {
            if self.slots.len() >= SOCKETS_MAX {
                return Err(io::Error::from_raw_os_error(libc::EMFILE));
            }
            self.free.push(self.slots.len() as u32);
            self.slots.push(None);
        }
        let index = self.free.pop().expect("made room above");
        let kept = &mut self.slots[index as usize];
        assert!(kept.is_none(), "a free slot holds no socket");
        *kept = Some(Slot { descriptor, in_flight: 0, closing: false });
        Ok(SocketId(index))
    }

    fn slot(&mut self, socket: SocketId) -> &mut Slot {
        self.slots[socket.0 as usize].as_mut().expect("a socket in use is open")
    }

    /// Notes an operation on the socket and gives its descriptor.
    pub(super) fn hold(&mut self, socket: SocketId) {
        let slot = self.slot(socket);
        assert!(!slot.closing, "no operation starts on a closed socket");
        slot.in_flight += 1;
    }

    /// Notes the end of an operation; the last one of a closed socket closes the descriptor.
    pub(super) fn release(&mut self, socket: SocketId) {
        let slot = self.slot(socket);
        slot.in_flight -= 1;
        if slot.closing && slot.in_flight == 0 {
            self.remove(socket);
        }
    }

    fn remove(&mut self, socket: SocketId) {
        self.slots[socket.0 as usize] = None;
        self.free.push(socket.0);
    }

    pub(super) fn descriptor(&mut self, socket: SocketId) -> RawFd {
        self.slot(socket).descriptor.as_raw_fd()
    }

    /// Closes the socket now or, while operations name it, when the last of them is over.
    pub(super) fn close(&mut self, socket: SocketId) {
        let slot = self.slot(socket);
        assert!(!slot.closing, "a socket is closed once");
        slot.closing = true;
        if slot.in_flight == 0 {
            self.remove(socket);
        } else {
            self.shutdown(socket);
        }
    }

    /// Ends the connection: operations in flight complete.
    pub(super) fn shutdown(&mut self, socket: SocketId) {
        // Fails if the peer was faster, and then there is nothing left to end.
        let _ = rustix::net::shutdown(&self.slot(socket).descriptor, Shutdown::Both);
    }

    pub(super) fn peer(&mut self, socket: SocketId) -> Option<SocketAddr> {
        let address = rustix::net::getpeername(&self.slot(socket).descriptor).ok()??;
        SocketAddr::try_from(address).ok()
    }

    pub(super) fn listen(&mut self, address: SocketAddr) -> io::Result<(SocketId, SocketAddr)> {
        let in_words = |error: rustix::io::Errno| {
            let mend = match error {
                rustix::io::Errno::ADDRINUSE => {
                    ": another process listens there; stop it or choose another port"
                }
                rustix::io::Errno::ADDRNOTAVAIL => ": no interface of this machine has that address",
                rustix::io::Errno::ACCESS => ": ports below 1024 need CAP_NET_BIND_SERVICE",
                _ => "",
            };
            let error = io::Error::from(error);
            io::Error::new(error.kind(), format!("cannot listen on {address}{mend} ({error})"))
        };
        let (descriptor, actual) = listening(address).map_err(in_words)?;
        Ok((self.insert(descriptor)?, actual.unwrap_or(address)))
    }

    pub(super) fn connect(&mut self, address: SocketAddr) -> io::Result<SocketId> {
        let stream = TcpStream::connect(address)
            .map_err(|error| io::Error::new(error.kind(), format!("cannot connect to {address}: {error}")))?;
        stream.set_nodelay(true)?;
        self.insert(stream.into())
    }
}

/// A peer that is silent so long is asked whether it is still there, so often at this interval.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(300);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(100);
const KEEPALIVE_PROBES: u32 = 3;

/// A listening descriptor and the address it got. Accepted connections inherit `TCP_NODELAY` and the
/// keep-alive, so none needs a system call of its own.
fn listening(address: SocketAddr) -> rustix::io::Result<(OwnedFd, Option<SocketAddr>)> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let descriptor = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_reuseaddr(&descriptor, true)?;
    sockopt::set_socket_reuseport(&descriptor, true)?;
    sockopt::set_tcp_nodelay(&descriptor, true)?;
    sockopt::set_socket_keepalive(&descriptor, true)?;
    sockopt::set_tcp_keepidle(&descriptor, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(&descriptor, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(&descriptor, KEEPALIVE_PROBES)?;
    rustix::net::bind(&descriptor, &address)?;
    rustix::net::listen(&descriptor, ACCEPT_BACKLOG_MAX)?;
    let actual = rustix::net::getsockname(&descriptor)?;
    Ok((descriptor, SocketAddr::try_from(actual).ok()))
}
