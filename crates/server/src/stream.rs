//! What a session sends and receives over: a socket, or TLS over one.
//!
//! Place on the path: between a session and its socket. Invariant: a plain socket pays a branch for it
//! and nothing else; what a session sees is the same either way.

use crate::tls::TlsSocket;
use plimsoll_reactor::Socket;
use std::io;
use std::net::SocketAddr;

/// A connection to a client.
pub(crate) enum Stream {
    Plain(Socket),
    Tls(Box<TlsSocket>),
}

impl Stream {
    /// Appends at most `bytes_max` bytes to `into`; tells how many, 0 when the peer has closed.
    pub(crate) async fn receive(&self, into: Vec<u8>, bytes_max: usize) -> (io::Result<usize>, Vec<u8>) {
        match self {
            Stream::Plain(socket) => socket.receive(into, bytes_max).await,
            // On the heap, so that the futures of plain sockets stay small.
            Stream::Tls(socket) => Box::pin(socket.receive(into, bytes_max)).await,
        }
    }

    /// Sends all of `bytes` and gives the vector back.
    pub(crate) async fn send(&self, bytes: Vec<u8>) -> (io::Result<()>, Vec<u8>) {
        match self {
            Stream::Plain(socket) => socket.send(bytes).await,
            Stream::Tls(socket) => Box::pin(socket.send(bytes)).await,
        }
    }

    /// True if a send may be posted ([`Socket::post`]). One over TLS may not: its records are made in order.
    pub(crate) fn may_post(&self) -> bool {
        matches!(self, Stream::Plain(socket) if socket.may_post())
    }

    /// Sends all of `bytes`, for which nobody waits.
    pub(crate) fn post(&self, bytes: Vec<u8>) {
        self.socket().post(bytes);
    }

    /// Bytes of a posted send that is under way.
    pub(crate) fn posted_bytes(&self) -> usize {
        self.socket().posted_bytes()
    }

    /// Waits until nothing that was posted is under way.
    pub(crate) async fn posted(&self) -> io::Result<()> {
        self.socket().posted().await
    }

    /// Memory to send from, empty.
    pub(crate) fn send_buffer(&self) -> Vec<u8> {
        self.socket().send_buffer()
    }

    /// Keeps memory that was sent from, if it is small.
    pub(crate) fn keep_send_buffer(&self, memory: Vec<u8>) {
        self.socket().keep_send_buffer(memory);
    }

    /// Everything has been sent: tells the peer, where the protocol has words for it.
    pub(crate) async fn close(&self) {
        if let Stream::Tls(socket) = self {
            Box::pin(socket.close()).await;
        }
    }

    /// Ends the connection in both directions: pending receives and sends complete.
    pub(crate) fn shutdown(&self) {
        self.socket().shutdown();
    }

    /// The same at once: the peer is told by a reset.
    pub(crate) fn abort(&self) {
        self.socket().abort();
    }

    /// Bytes that have left.
    pub(crate) fn sent_bytes(&self) -> u64 {
        self.socket().sent_bytes()
    }

    /// The peer's address.
    pub(crate) fn peer(&self) -> Option<SocketAddr> {
        self.socket().peer()
    }

    /// Bytes that it holds beside those of the session.
    pub(crate) fn held_bytes(&self) -> usize {
        match self {
            Stream::Plain(_) => 0,
            Stream::Tls(socket) => socket.held_bytes(),
        }
    }

    fn socket(&self) -> &Socket {
        match self {
            Stream::Plain(socket) => socket,
            Stream::Tls(socket) => socket.socket(),
        }
    }
}
