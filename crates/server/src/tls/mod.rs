//! TLS for clients: certificates, the handshake, and a socket that seals and opens.
//!
//! Role: below the sessions, which know nothing of it. Place on the path: between a session and its
//! socket, for connections to `tls-resp`.
//!
//! Invariants: rustls does no I/O here, every byte goes through the reactor's socket; the memory of a
//! connection is bounded before its client has proved anything; certificates that cannot be used never
//! replace those in use. No session is resumed: each connection proves itself against what is in force.
//!
//! Randomness and the time of certificates are the system's here, not the reactor's: simulated worlds
//! that have to repeat byte for byte do not serve TLS.

mod certificates;
mod handshake;
mod socket;

pub use certificates::{Tls, TlsFiles};
pub(crate) use handshake::{HandshakeError, handshake};
pub(crate) use socket::TlsSocket;
