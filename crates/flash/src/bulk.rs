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
//! Bytes with bad blocks among them are told from whole ones by their type.

use futures_util::stream::{self, StreamExt, TryStreamExt};
use plimsoll_kv::Class;
use plimsoll_kv::block::{Block, Origin};
use std::io;
use std::ops::Range;

/// Bytes of one read of the background.
pub(crate) const BACKGROUND_READ_BYTES: u64 = 128 << 10;
/// Bytes of one read while nobody else reads.
const READ_BYTES: u64 = 1 << 20;
/// Pieces of one long read that are asked for at a time.
const PIECES_MAX: usize = 8;

/// Of a device with more bad blocks in one long read it is told that it fails.
const BAD_BLOCKS_MAX: usize = 64;

/// Bytes of which the device cannot read some blocks: zeros stand in their place.
#[derive(Default)]
pub(crate) struct Patchy {
    pub(crate) bytes: Vec<u8>,
    block_bytes: u64,
    /// Where a block begins that cannot be read, and why it cannot.
    bad: Vec<(u64, io::Error)>,
}

impl Patchy {
    /// An error if a byte of these cannot be read.
    pub(crate) fn prove_read(&self, within: Range<u64>) -> io::Result<()> {
        let is_within = |start: u64| start < within.end && start + self.block_bytes > within.start;
        match self.bad.iter().find(|(start, _)| is_within(*start)) {
            Some((_, error)) => Err(io::Error::new(error.kind(), error.to_string())),
            None => Ok(()),
        }
    }
}

/// An error of a device that says where.
pub(crate) fn at(error: &io::Error, offset: u64) -> io::Error {
    io::Error::new(error.kind(), format!("{error}, device offset {offset}"))
}

/// Reads bytes that may be more than one read should take, around the blocks that cannot be read.
pub(crate) async fn read_around(
    block: &dyn Block,
    origin: Origin,
    offset: u64,
    bytes: u64,
    block_bytes: u64,
) -> io::Result<Patchy> {
    if let Ok(bytes) = read_bulk(block, origin, offset, bytes).await {
        return Ok(Patchy { bytes, block_bytes, bad: Vec::new() });
    }
    let mut patchy = Patchy { bytes: Vec::with_capacity(bytes as usize), block_bytes, bad: Vec::new() };
    for start in (0..bytes).step_by(block_bytes as usize) {
        match block.read(origin, offset + start, block_bytes as usize).await {
            Ok(piece) => patchy.bytes.extend_from_slice(&piece),
            Err(error) if patchy.bad.len() == BAD_BLOCKS_MAX => return Err(error),
            Err(error) => {
                tracing::warn!(offset = offset + start, %error, "a block cannot be read");
                patchy.bytes.resize((start + block_bytes) as usize, 0);
                patchy.bad.push((start, at(&error, offset + start)));
            }
        }
    }
    Ok(patchy)
}

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
