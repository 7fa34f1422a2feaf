//! Sockets: making, naming and closing them.
//!
//! Role: from an address to a descriptor, and from a descriptor to a number that operations name.
//! Place on the path: off it.
//!
//! Invariants:
//! * a descriptor is closed only when no operation names it (see `table`);
//! * a socket that is closed while operations name it is shut down: they end, and its peer is told.

use super::table::Table;
use crate::limits::SOCKETS_MAX;
use crate::ops::SocketId;
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, sockopt};
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Duration;

/// Connections that may wait to be accepted; the kernel clamps it to net.core.somaxconn.
const ACCEPT_BACKLOG_MAX: i32 = 4096;

/// A descriptor, and what its driver has to know of it beside.
pub(in crate::driver) struct Kept<S> {
    pub(in crate::driver) descriptor: OwnedFd,
    pub(in crate::driver) state: S,
}

impl<S> Kept<S> {
    /// Ends the connection: operations in flight complete.
    fn shutdown(&self) {
        // Fails if the peer was faster, and then there is nothing left to end.
        let _ = rustix::net::shutdown(&self.descriptor, Shutdown::Both);
    }
}

/// The sockets of one core.
pub(in crate::driver) struct Sockets<S>(Table<Kept<S>>);

impl<S> Default for Sockets<S> {
    fn default() -> Sockets<S> {
        Sockets(Table::default())
    }
}

impl<S: Default> Sockets<S> {
    /// Takes a descriptor in. At the limit it is closed and the answer is `EMFILE`.
    pub(in crate::driver) fn insert(&mut self, descriptor: OwnedFd) -> io::Result<SocketId> {
        if !self.0.has_room(SOCKETS_MAX) {
            return Err(io::Error::from_raw_os_error(libc::EMFILE));
        }
        Ok(SocketId(self.0.insert(Kept { descriptor, state: S::default() })))
    }

    pub(in crate::driver) fn get(&mut self, socket: SocketId) -> &mut Kept<S> {
        self.0.get(socket.0)
    }

    /// All sockets, those that are being closed too.
    pub(in crate::driver) fn all(&mut self) -> impl Iterator<Item = (SocketId, &mut Kept<S>)> {
        self.0.all().map(|(index, kept)| (SocketId(index), kept))
    }

    /// The socket of that number, if there still is one.
    pub(in crate::driver) fn find(&mut self, socket: SocketId) -> Option<&mut Kept<S>> {
        self.0.find(socket.0)
    }

    /// Notes an operation on the socket.
    pub(in crate::driver) fn hold(&mut self, socket: SocketId) {
        self.0.hold(socket.0);
    }

    /// Notes the end of an operation; the last one of a closed socket closes the descriptor.
    pub(in crate::driver) fn release(&mut self, socket: SocketId) {
        drop(self.0.release(socket.0));
    }

    /// Closes the socket now or, while operations name it, when the last of them is over.
    pub(in crate::driver) fn close(&mut self, socket: SocketId) {
        if self.0.close(socket.0).is_none() {
            self.0.get(socket.0).shutdown();
        }
    }

    /// Ends the connection: operations in flight complete.
    pub(in crate::driver) fn shutdown(&mut self, socket: SocketId) {
        self.0.get(socket.0).shutdown();
    }

    /// The same, and closing it will reset the connection.
    pub(in crate::driver) fn abort(&mut self, socket: SocketId) {
        let kept = self.0.get(socket.0);
        // Fails if the peer was faster, and then there is nothing left to end.
        let _ = rustix::net::sockopt::set_socket_linger(&kept.descriptor, Some(Duration::ZERO));
        kept.shutdown();
    }

    pub(in crate::driver) fn peer(&mut self, socket: SocketId) -> Option<SocketAddr> {
        let address = rustix::net::getpeername(&self.0.get(socket.0).descriptor).ok()??;
        SocketAddr::try_from(address).ok()
    }
}

/// What keeps a socket from listening on `address`, in words, and what helps.
#[must_use]
pub fn cannot_listen(address: SocketAddr, error: &io::Error) -> io::Error {
    let mend = match error.kind() {
        io::ErrorKind::AddrInUse => ": another process listens there; stop it or choose another port",
        io::ErrorKind::AddrNotAvailable => ": no interface of this machine has that address",
        io::ErrorKind::PermissionDenied => ": ports below 1024 need CAP_NET_BIND_SERVICE",
        _ => "",
    };
    io::Error::new(error.kind(), format!("cannot listen on {address}{mend} ({error})"))
}

/// A socket that listens on `address`, and the address it got.
pub(in crate::driver) fn listen(address: SocketAddr) -> io::Result<(OwnedFd, SocketAddr)> {
    let in_words = |error: rustix::io::Errno| cannot_listen(address, &error.into());
    let (descriptor, actual) = listening(address).map_err(in_words)?;
    Ok((descriptor, actual.unwrap_or(address)))
}

/// A connection to `address`.
pub(in crate::driver) fn connect(address: SocketAddr) -> io::Result<OwnedFd> {
    let stream = TcpStream::connect(address)
        .map_err(|error| io::Error::new(error.kind(), format!("cannot connect to {address}: {error}")))?;
    stream.set_nodelay(true)?;
    Ok(stream.into())
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
