//! Long reads: many bytes in a row, in pieces.
//!
//! Role: reads what is too long for one read: segments, their summaries, records longer than a piece. Place
//! on the path: between cleaning, walks and recovery, and the gate.
//!
//! Why pieces: a drive does not stop a read that it has begun, so whoever waits for a kilobyte waits for
//! what is there. The background reads short pieces, which the gate lets go one by one; where nobody else
//! reads (recovery, verification) they are long, for each costs something.
//!
//! Invariants: what is given is whole and in order, or an error; so many pieces are asked for at a time.

use futures_util::stream::{self, StreamExt, TryStreamExt};
use plimsoll_kv::Class;
use plimsoll_kv::block::{Block, Origin};
use std::io;

/// Bytes of one read of the background.
pub(crate) const BACKGROUND_READ_BYTES: u64 = 128 << 10;
/// Bytes of one read while nobody else reads.
const READ_BYTES: u64 = 1 << 20;
/// Pieces of one long read that are asked for at a time.
const PIECES_MAX: usize = 8;

/// Reads bytes that may be more than one read should take.
pub(crate) async fn read_bulk(
    block: &dyn Block,
    origin: Origin,
    offset: u64,
    bytes: u64,
) -> io::Result<Vec<u8>> {
    let step = match origin.class {
        Class::Background => BACKGROUND_READ_BYTES,
        Class::Foreground => READ_BYTES,
    };
    let starts = (0..bytes).step_by(step as usize);
    let reads = starts.map(|start| block.read(origin, offset + start, step.min(bytes - start) as usize));
    let mut pieces = stream::iter(reads).buffered(PIECES_MAX);
    let mut whole = Vec::with_capacity(bytes as usize);
    while let Some(piece) = pieces.try_next().await? {
        whole.extend_from_slice(&piece);
    }
    Ok(whole)
}
