//! The Redis protocol (RESP2 and RESP3), sans-I/O.
//!
//! Role: bytes to commands on the way in ([`request`]), results to bytes on the way out ([`reply`]). A
//! small client side ([`request::encode`], [`reply_decode`]) serves the load generator, the simulator's
//! clients and the tests.
//!
//! Place on the request path: first and last hop. The connection's owner reads from the socket into its
//! buffer, calls [`Parser::parse`], runs the command, appends the result with a [`ReplyWriter`] and writes
//! the buffer to the socket.
//!
//! Invariants:
//! * no input makes this crate panic; a broken rule of the protocol is a [`ProtocolError`] with Redis' text;
//! * memory is bounded by what has arrived and by [`Limits`], never by what a header claims;
//! * how the bytes are cut into reads changes neither the commands nor the errors, and each byte is looked
//!   at O(1) times;
//! * the hot path (multibulk command, reply) allocates nothing once the reused vectors have grown.
//!
//! Never: do I/O, read a clock, know what a command means, or copy an argument of a multibulk command.
#![forbid(unsafe_code)]

pub mod fuzz;
mod header;
mod limits;
mod name;
mod protocol_error;
pub mod reply;
pub mod reply_decode;
pub mod request;

pub use limits::Limits;
pub use name::CommandName;
pub use protocol_error::ProtocolError;
pub use reply::{ReplyWriter, Version};
pub use reply_decode::{Decoded, Reply, ReplyDecoder, ReplyError, ReplyLimits};
pub use request::{Args, Command, LargeArg, OwnedArgs, Parser, SHARED_BYTES_MIN, Step};
