//! A socket that seals what is sent and opens what is received.
//!
//! Role: offers a session what a socket offers. Place on the path: between both.
//!
//! Invariants: one task at a time sends, so that records leave in the order in which they were sealed;
//! after the handshake a receive sends nothing but the alert of an error; memory is bounded by one
//! receive of the session, one record and one sealed chunk.
//!
//! A stream that ends without a `close_notify` counts as ended: a command is known to be whole by its own
//! lengths.

use super::handshake::Shaken;
use crate::limits::{RECEIVE_BYTES, TLS_IDLE_BYTES, TLS_SEAL_BYTES_MAX};
use plimsoll_reactor::Socket;
use plimsoll_reactor::sync::WaitList;
use rustls::ServerConnection;
use std::cell::{Cell, RefCell};
use std::io::{self, BufRead, ErrorKind, Write};

/// A connection over TLS, after its handshake.
pub(crate) struct TlsSocket {
    socket: Socket,
    state: RefCell<State>,
    is_sending: Cell<bool>,
    /// Wakes those who wait to send.
    sent: WaitList,
}

struct State {
    connection: ServerConnection,
    /// What was received and not given to the connection, from `start`.
    incoming: Vec<u8>,
    start: usize,
    /// Sealed bytes with the socket.
    outgoing_bytes: usize,
}

/// What a step of opening came to.
enum Opened {
    Bytes(usize),
    More,
    Closed,
}

/// The turn to send, until it is dropped.
struct Turn<'a>(&'a TlsSocket);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.is_sending.set(false);
        self.0.sent.wake_all();
    }
}

impl State {
    /// Opens what was received, to at most `bytes_max` bytes.
    fn open(&mut self, into: &mut Vec<u8>, bytes_max: usize) -> io::Result<Opened> {
        let mut count = 0;
        loop {
            let mut reader = self.connection.reader();
            match reader.fill_buf() {
                Ok([]) => return Ok(if count > 0 { Opened::Bytes(count) } else { Opened::Closed }),
                Ok(bytes) => {
                    let taken = bytes.len().min(bytes_max - count);
                    into.extend_from_slice(&bytes[..taken]);
                    reader.consume(taken);
                    count += taken;
                    if count == bytes_max {
                        return Ok(Opened::Bytes(count));
                    }
                    continue;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            let mut rest = &self.incoming[self.start..];
            if rest.is_empty() {
                return Ok(if count > 0 { Opened::Bytes(count) } else { Opened::More });
            }
            // One record or a part of one: what it holds is taken above before the next.
            let taken = self.connection.read_tls(&mut rest)?;
            self.start += taken;
            if taken == 0 {
                // After the peer's last word nothing is read.
                self.start = self.incoming.len();
            }
            self.connection.process_new_packets().map_err(io::Error::other)?;
        }
    }

    /// Seals the next chunk of `bytes`; what is to be sent, empty when there is nothing.
    fn seal(&mut self, bytes: &[u8], from: &mut usize) -> io::Result<Vec<u8>> {
        let end = bytes.len().min(*from + TLS_SEAL_BYTES_MAX);
        if *from < end {
            *from += self.connection.writer().write(&bytes[*from..end])?;
        }
        let mut sealed = Vec::new();
        while self.connection.wants_write() {
            self.connection.write_tls(&mut sealed)?;
        }
        self.outgoing_bytes = sealed.capacity();
        let is_stuck = sealed.is_empty() && *from < end;
        if is_stuck { Err(ErrorKind::WriteZero.into()) } else { Ok(sealed) }
    }
}

impl TlsSocket {
    /// After the handshake over a socket.
    pub(crate) fn new(socket: Socket, shaken: Shaken) -> TlsSocket {
        let Shaken { mut connection, incoming } = shaken;
        connection.set_buffer_limit(Some(TLS_SEAL_BYTES_MAX));
        TlsSocket {
            socket,
            state: RefCell::new(State { connection, incoming, start: 0, outgoing_bytes: 0 }),
            is_sending: Cell::new(false),
            sent: WaitList::default(),
        }
    }

    pub(crate) fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Bytes that it holds.
    pub(crate) fn held_bytes(&self) -> usize {
        let state = self.state.borrow();
        TLS_IDLE_BYTES + state.incoming.capacity() + state.outgoing_bytes
    }

    /// As [`Socket::receive`].
    pub(crate) async fn receive(&self, mut into: Vec<u8>, bytes_max: usize) -> (io::Result<usize>, Vec<u8>) {
        assert!(bytes_max > 0);
        loop {
            let opened = self.state.borrow_mut().open(&mut into, bytes_max);
            match opened {
                Ok(Opened::Bytes(count)) => return (Ok(count), into),
                Ok(Opened::Closed) => return (Ok(0), into),
                Ok(Opened::More) => {}
                Err(error) => {
                    // Whoever sends at the moment sends the alert too.
                    if !self.is_sending.get() {
                        let _ = self.send(Vec::new()).await;
                    }
                    return (Err(error), into);
                }
            }
            // An idle connection keeps no buffer.
            self.state.borrow_mut().incoming = Vec::new();
            self.state.borrow_mut().start = 0;
            let (received, incoming) = self.socket.receive(Vec::new(), bytes_max.max(RECEIVE_BYTES)).await;
            self.state.borrow_mut().incoming = incoming;
            match received {
                Ok(0) => return (Ok(0), into),
                Ok(_) => {}
                Err(error) => return (Err(error), into),
            }
        }
    }

    /// As [`Socket::send`]. Without bytes: what the connection itself has to say.
    pub(crate) async fn send(&self, bytes: Vec<u8>) -> (io::Result<()>, Vec<u8>) {
        self.sent.wait_for(|| (!self.is_sending.replace(true)).then_some(())).await;
        let turn = Turn(self);
        let mut from = 0;
        let result = loop {
            let sealed = self.state.borrow_mut().seal(&bytes, &mut from);
            match sealed {
                Ok(sealed) if sealed.is_empty() => break Ok(()),
                Ok(sealed) => {
                    if let Err(error) = self.socket.send(sealed).await.0 {
                        break Err(error);
                    }
                }
                Err(error) => break Err(error),
            }
        };
        self.state.borrow_mut().outgoing_bytes = 0;
        drop(turn);
        (result, bytes)
    }

    /// Tells the peer that nothing more comes. Waits for room in the socket: who calls it cuts it short by
    /// a shutdown.
    pub(crate) async fn close(&self) {
        self.state.borrow_mut().connection.send_close_notify();
        // Who has gone already does not hear it.
        let _ = self.send(Vec::new()).await;
    }
}
