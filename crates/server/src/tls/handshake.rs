//! The handshake: from a socket to one that seals and opens.
//!
//! Place on the path: after the accept, before the session. Invariants: no byte of a command is looked at
//! before the handshake is over; what has to be held meanwhile is bounded by rustls (64 KiB of a message)
//! and by one receive; who waits for it bounds its time.

use crate::limits::RECEIVE_BYTES;
use plimsoll_reactor::Socket;
use rustls::{ServerConfig, ServerConnection};
use std::io;
use std::sync::Arc;

/// The first byte of every TLS connection: a record of the handshake.
const HANDSHAKE_RECORD: u8 = 22;

/// Why a client did not come through.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HandshakeError {
    /// It went without a word: somebody looked whether the port is open.
    #[error("closed without a byte")]
    Silent,
    #[error("closed in the middle of the handshake")]
    Closed,
    #[error("does not speak TLS: is the client configured for it?")]
    NotTls,
    #[error("{0}")]
    Refused(rustls::Error),
    #[error("{0}")]
    Socket(io::Error),
}

/// Sends what a connection has to send.
async fn flush(connection: &mut ServerConnection, socket: &Socket) -> io::Result<()> {
    let mut bytes = Vec::new();
    while connection.wants_write() {
        connection.write_tls(&mut bytes)?;
    }
    if bytes.is_empty() { Ok(()) } else { socket.send(bytes).await.0 }
}

/// Gives a connection what has come, until the handshake is over; how many bytes it took.
fn feed(connection: &mut ServerConnection, bytes: &[u8]) -> Result<usize, HandshakeError> {
    let mut rest = bytes;
    while !rest.is_empty() && connection.is_handshaking() {
        if connection.read_tls(&mut rest).map_err(HandshakeError::Socket)? == 0 {
            // It has said good-bye, and takes nothing more.
            return Err(HandshakeError::Closed);
        }
        connection.process_new_packets().map_err(HandshakeError::Refused)?;
    }
    Ok(bytes.len() - rest.len())
}

/// What a handshake leaves: the connection, and what came behind it.
pub(crate) struct Shaken {
    pub(super) connection: ServerConnection,
    pub(super) incoming: Vec<u8>,
}

/// Shakes hands over a socket.
pub(crate) async fn handshake(socket: &Socket, config: Arc<ServerConfig>) -> Result<Shaken, HandshakeError> {
    let mut connection = ServerConnection::new(config).map_err(HandshakeError::Refused)?;
    let (mut bytes, mut is_first) = (Vec::new(), true);
    loop {
        let (received, buffer) = socket.receive(bytes, RECEIVE_BYTES).await;
        bytes = buffer;
        match received {
            Ok(0) if is_first => return Err(HandshakeError::Silent),
            Ok(0) => return Err(HandshakeError::Closed),
            Ok(_) if is_first && bytes[0] != HANDSHAKE_RECORD => return Err(HandshakeError::NotTls),
            Ok(_) => is_first = false,
            Err(error) => return Err(HandshakeError::Socket(error)),
        }
        let fed = feed(&mut connection, &bytes);
        // Before an error is told there may be an alert that says why.
        let flushed = flush(&mut connection, socket).await;
        let taken = fed?;
        flushed.map_err(HandshakeError::Socket)?;
        bytes.drain(..taken);
        if !connection.is_handshaking() {
            return Ok(Shaken { connection, incoming: bytes });
        }
    }
}
