//! The anchor: where a partition's recovery begins. Two copies, written one after the other, so
//! that one of them is whole at any instant and both after a quiet one.

use super::{DecodeError, crc32c_of, field};
use std::collections::BTreeSet;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of one copy.
pub const ANCHOR_BYTES: usize = 4096;
const MAGIC: [u8; 4] = *b"PANC";
/// Bytes of a piece of a checkpoint, without its list of segments.
pub const PIECE_BYTES: usize = 24;
/// Bytes of pieces and of lists of segments that fit one anchor.
pub const PIECES_BYTES_MAX: usize = ANCHOR_BYTES - RAW_BYTES;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Raw {
    magic: [u8; 4],
    crc: U32,
    generation: U64,
    epoch: U32,
    clean: U32,
    log_segment: U32,
    pieces: U32,
    log_number: U64,
    frame_number: U64,
    checkpoint_id: U64,
    reserved: U64,
}
const RAW_BYTES: usize = size_of::<Raw>();
const _: () = assert!(RAW_BYTES == 64);

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawPiece {
    id: U64,
    chunks: U32,
    offset: U32,
    end_slot: U32,
    segments: U32,
}
const _: () = assert!(size_of::<RawPiece>() == PIECE_BYTES);

/// A piece of a checkpoint: a row of chunks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    /// Its name in its chunks.
    pub id: u64,
    /// Its chunks.
    pub chunks: u32,
    /// Where the first chunk stands in the first segment, in bytes.
    pub offset: u32,
    /// It holds no table of this slot or one after it.
    pub end_slot: u32,
    /// The segments that hold it, in order. The first may be the last one of the piece before.
    pub segments: Vec<u32>,
}

/// Where recovery begins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Anchor {
    /// Grows with every anchor written.
    pub generation: u64,
    /// Starts of this partition's owner.
    pub epoch: u32,
    /// True if the log was complete and closed when this was written.
    pub clean: bool,
    /// The log segment in which replay begins.
    pub log_segment: u32,
    /// That segment's number in the log.
    pub log_number: u64,
    /// The first frame to replay.
    pub frame_number: u64,
    /// The piece with the snapshot and the names of the runs of keys; 0: none, recovery begins with
    /// nothing.
    pub checkpoint_id: u64,
    /// The pieces. Of a slot of which several have a table the last one counts.
    pub pieces: Vec<Piece>,
}

impl Anchor {
    /// The segments that it names.
    #[must_use]
    pub fn segments(&self) -> BTreeSet<u32> {
        self.pieces.iter().flat_map(|piece| &piece.segments).copied().collect()
    }

    /// True if its pieces fit one copy.
    #[must_use]
    pub fn fits(&self) -> bool {
        let bytes = |piece: &Piece| PIECE_BYTES + 4 * piece.segments.len();
        self.pieces.iter().map(bytes).sum::<usize>() <= PIECES_BYTES_MAX
    }

    /// Encodes one copy for the partition that `identity` names.
    #[must_use]
    pub fn encode(&self, identity: u64) -> [u8; ANCHOR_BYTES] {
        assert!(self.fits());
        let raw = Raw {
            magic: MAGIC,
            crc: 0.into(),
            generation: self.generation.into(),
            epoch: self.epoch.into(),
            clean: u32::from(self.clean).into(),
            log_segment: self.log_segment.into(),
            pieces: (self.pieces.len() as u32).into(),
            log_number: self.log_number.into(),
            frame_number: self.frame_number.into(),
            checkpoint_id: self.checkpoint_id.into(),
            reserved: 0.into(),
        };
        let mut bytes = [0; ANCHOR_BYTES];
        bytes[..RAW_BYTES].copy_from_slice(raw.as_bytes());
        let lists = self.pieces.iter().flat_map(|piece| &piece.segments).map(|segment| segment.to_le_bytes());
        let list = self.pieces.iter().flat_map(Piece::encode).chain(lists.flatten());
        bytes[RAW_BYTES..].iter_mut().zip(list).for_each(|(place, byte)| *place = byte);
        let crc = crc32c_of(&[&identity.to_le_bytes(), &bytes]);
        bytes[4..8].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes one copy.
    ///
    /// # Errors
    /// Not an anchor, damaged, or of another partition.
    pub fn decode(bytes: &[u8], identity: u64) -> Result<Anchor, DecodeError> {
        const NAME: &str = "anchor";
        let bytes = bytes.get(..ANCHOR_BYTES).ok_or(DecodeError::Short(NAME))?;
        let (raw, _) = Raw::read_from_prefix(bytes).map_err(|_| DecodeError::Short(NAME))?;
        if raw.magic != MAGIC {
            return Err(DecodeError::Absent(NAME));
        }
        let crc = crc32c_of(&[&identity.to_le_bytes(), &bytes[..4], &[0; 4], &bytes[8..]]);
        if crc != raw.crc.get() {
            return Err(DecodeError::Checksum(NAME));
        }
        let pieces = Piece::decode_list(&bytes[RAW_BYTES..], raw.pieces.get());
        let pieces = pieces.ok_or(field(NAME, "list of pieces"))?;
        Ok(Anchor {
            generation: raw.generation.get(),
            epoch: raw.epoch.get(),
            clean: raw.clean.get() != 0,
            log_segment: raw.log_segment.get(),
            log_number: raw.log_number.get(),
            frame_number: raw.frame_number.get(),
            checkpoint_id: raw.checkpoint_id.get(),
            pieces,
        })
    }
}

impl Piece {
    fn encode(&self) -> [u8; PIECE_BYTES] {
        let raw = RawPiece {
            id: self.id.into(),
            chunks: self.chunks.into(),
            offset: self.offset.into(),
            end_slot: self.end_slot.into(),
            segments: (self.segments.len() as u32).into(),
        };
        let mut bytes = [0; PIECE_BYTES];
        bytes.copy_from_slice(raw.as_bytes());
        bytes
    }

    /// Decodes `count` pieces, then the segments of each; nothing if they do not fit `bytes`.
    fn decode_list(bytes: &[u8], count: u32) -> Option<Vec<Piece>> {
        let (pieces, mut lists) = bytes.split_at_checked((count as usize).checked_mul(PIECE_BYTES)?)?;
        let piece = |bytes: &[u8]| {
            let (raw, _) = RawPiece::read_from_prefix(bytes).ok()?;
            let (list, rest) = lists.split_at_checked((raw.segments.get() as usize).checked_mul(4)?)?;
            lists = rest;
            Some(Piece {
                id: raw.id.get(),
                chunks: raw.chunks.get(),
                offset: raw.offset.get(),
                end_slot: raw.end_slot.get(),
                segments: list.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect(),
            })
        };
        pieces.chunks_exact(PIECE_BYTES).map(piece).collect()
    }
}
