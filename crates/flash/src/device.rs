//! Formatting and inspecting a device.
//!
//! Place on the path: before partitions are opened. Invariant: what is not ours is never written
//! without force.

use crate::format::anchor::ANCHOR_BYTES;
use crate::format::superblock::{
    FEATURE_KEEPERS, FORMAT_VERSION, INCOMPATIBLE_KNOWN, MAGIC, PARTITIONS_MAX, READ_ONLY_KNOWN,
    SUPERBLOCK_BYTES, Superblock,
};
use crate::format::{Anchor, DecodeError, round_up};
use crate::layout::Layout;
use plimsoll_kv::Block;
use plimsoll_kv::block::Origin;
use plimsoll_reactor::Buf;
use std::io;
use std::rc::Rc;

/// Segments that a partition needs at least to clean itself.
const SEGMENTS_MIN: u64 = 24;
/// The smallest and the largest segment.
pub const SEGMENT_BYTES_MIN: u64 = 64 << 10;
const SEGMENT_BYTES_MAX: u64 = 8 << 20;
/// A segment in which header, footer and padding take less than 2 %.
const SEGMENT_BYTES_EFFICIENT: u64 = 1 << 20;
/// Bytes at each end of a device that must be zero for it to count as blank.
const BLANK_BYTES: u64 = 1 << 20;

/// How to format a device.
#[derive(Clone, Debug)]
pub struct FormatOptions {
    /// Partitions, fixed for good.
    pub partitions: u16,
    /// Bytes of a segment; chosen by the size of the device if absent.
    pub segment_bytes: Option<u32>,
    /// Write even if the device holds something else.
    pub force: bool,
    /// The device needs no writing ahead: it is a block device, or was written whole.
    pub written_ahead: bool,
    /// Names the device: 16 random bytes.
    pub device_id: [u8; 16],
    /// Keys the fingerprints: 8 random bytes.
    pub hash_secret: u64,
    /// Now, in wall-clock milliseconds.
    pub created_ms: u64,
}

/// Why a device cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The device failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// It holds nothing: zeros.
    #[error("not formatted; run `plimsoll device format`")]
    Blank,
    /// It holds something that is not ours.
    #[error("holds data that is not Plimsoll's; `plimsoll device format --force` would destroy it")]
    Foreign,
    /// It is a Plimsoll device already.
    #[error("is a Plimsoll device already; `plimsoll device format --force` would destroy its data")]
    Formatted,
    /// Both superblocks are damaged.
    #[error("both superblocks are damaged ({0}); restore the device from redundancy or a backup")]
    Damaged(DecodeError),
    /// Another version wrote it.
    #[error(
        "has format version {0}, and this server reads version {FORMAT_VERSION}; use the server that wrote it"
    )]
    Version(u32),
    /// It uses features that this version does not know.
    #[error("uses features that this server does not know ({0:#x}); use a newer server")]
    Features(u64),
    /// Its size has changed.
    #[error("has {actual} bytes and was formatted with {formatted}; give it its size back")]
    Size {
        /// Bytes now.
        actual: u64,
        /// Bytes when it was formatted.
        formatted: u64,
    },
    /// It is too small.
    #[error("has {actual} bytes; {partitions} partitions need at least {needed}")]
    TooSmall {
        /// Bytes.
        actual: u64,
        /// Bytes needed.
        needed: u64,
        /// For how many partitions.
        partitions: u16,
    },
    /// An option makes no sense.
    #[error("{0}")]
    Option(String),
}

/// Reads the superblock of a device: either copy will do.
///
/// # Errors
/// See [`DeviceError`].
pub async fn inspect(block: &dyn Block) -> Result<Superblock, DeviceError> {
    let size = block.size_bytes();
    if size < 4 * SUPERBLOCK_BYTES as u64 {
        return Err(DeviceError::TooSmall {
            actual: size,
            needed: 4 * SUPERBLOCK_BYTES as u64,
            partitions: 1,
        });
    }
    let last_offset = size / SUPERBLOCK_BYTES as u64 * SUPERBLOCK_BYTES as u64 - SUPERBLOCK_BYTES as u64;
    let first = match superblock_at(block, 0).await {
        Ok(Ok(superblock)) => return check(superblock, size),
        Ok(Err(damage)) => Ok(damage),
        Err(error) => Err(error),
    };
    match (first, superblock_at(block, last_offset).await?) {
        (_, Ok(superblock)) => {
            tracing::warn!("the first superblock cannot be read; its copy at the end of the device is used");
            check(superblock, size)
        }
        (Err(error), Err(_)) => Err(error.into()),
        (Ok((damage, first_is_ours)), Err((_, last_is_ours))) if first_is_ours || last_is_ours => {
            Err(DeviceError::Damaged(damage))
        }
        _ if is_blank(block).await? => Err(DeviceError::Blank),
        _ => Err(DeviceError::Foreign),
    }
}

/// The superblock at an offset; or why it is none, and whether it was to be one of ours.
async fn superblock_at(
    block: &dyn Block,
    offset: u64,
) -> io::Result<std::result::Result<Superblock, (DecodeError, bool)>> {
    let read = block.read(Origin::FOREGROUND, offset, SUPERBLOCK_BYTES).await?;
    Ok(Superblock::decode(&read).map_err(|damage| (damage, read[..8] == MAGIC)))
}

/// True if both ends of a device are zeros: file systems and volume managers leave their first
/// blocks free, and keep their marks behind them or at the end.
async fn is_blank(block: &dyn Block) -> io::Result<bool> {
    let size = block.size_bytes();
    let length = BLANK_BYTES.min(size) / SUPERBLOCK_BYTES as u64 * SUPERBLOCK_BYTES as u64;
    let end = size / SUPERBLOCK_BYTES as u64 * SUPERBLOCK_BYTES as u64;
    for offset in [0, end - length] {
        let piece = block.read(Origin::FOREGROUND, offset, length as usize).await?;
        if piece.iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn check(superblock: Superblock, size: u64) -> Result<Superblock, DeviceError> {
    if superblock.format_version != FORMAT_VERSION {
        return Err(DeviceError::Version(superblock.format_version));
    }
    let unknown = superblock.features_incompatible & !INCOMPATIBLE_KNOWN
        | superblock.features_read_only & !READ_ONLY_KNOWN;
    if unknown != 0 {
        return Err(DeviceError::Features(unknown));
    }
    if superblock.device_bytes != size {
        return Err(DeviceError::Size { actual: size, formatted: superblock.device_bytes });
    }
    Ok(superblock)
}

/// Formats a device. Everything on it is lost.
///
/// # Errors
/// It holds something and `force` is not set, or the options do not fit it.
pub async fn format(block: &dyn Block, options: &FormatOptions) -> Result<Superblock, DeviceError> {
    if !options.force {
        match inspect(block).await {
            Err(DeviceError::Blank) => {}
            Ok(_) | Err(DeviceError::Version(_) | DeviceError::Features(_) | DeviceError::Size { .. }) => {
                return Err(DeviceError::Formatted);
            }
            Err(error) => return Err(error),
        }
    }
    let superblock = lay_out(block.size_bytes(), block.block_bytes(), options)?;
    // Anchors first: a superblock promises that they are there.
    for partition in 0..superblock.partitions {
        let layout = Layout::new(&superblock, partition);
        let anchor = Anchor { generation: 1, log_number: 1, frame_number: 1, ..Anchor::default() };
        crate::checkpoint::write_anchor(block, &layout, &anchor, 0).await?;
    }
    let mut buf = Buf::zeroed(SUPERBLOCK_BYTES);
    buf.copy_from_slice(&superblock.encode());
    let buf = Rc::new(buf);
    let last =
        superblock.device_bytes / SUPERBLOCK_BYTES as u64 * SUPERBLOCK_BYTES as u64 - SUPERBLOCK_BYTES as u64;
    block.write(Origin::FOREGROUND, last, buf.clone(), true).await?;
    block.write(Origin::FOREGROUND, 0, buf, true).await?;
    Ok(superblock)
}

/// Looks whether a device of so many bytes could be formatted: before a file is made for it.
///
/// # Errors
/// It is too small, or the options contradict themselves.
pub fn check_format(size: u64, options: &FormatOptions) -> Result<(), DeviceError> {
    lay_out(size, SUPERBLOCK_BYTES as u32, options).map(|_| ())
}

fn lay_out(size: u64, block_bytes: u32, options: &FormatOptions) -> Result<Superblock, DeviceError> {
    let partitions = options.partitions;
    if partitions == 0 || partitions > PARTITIONS_MAX {
        return Err(DeviceError::Option(format!(
            "partitions must be 1 to {PARTITIONS_MAX}, not {partitions}"
        )));
    }
    let anchors = u64::from(partitions) * 2 * ANCHOR_BYTES as u64;
    let data_offset = round_up(SUPERBLOCK_BYTES as u64 + anchors, 64 << 10);
    let room = size.saturating_sub(data_offset + 2 * SUPERBLOCK_BYTES as u64) / u64::from(partitions);
    let segment_bytes = options.segment_bytes.map_or_else(|| segment_bytes_for(room), u64::from);
    if !segment_bytes.is_power_of_two() || !(SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&segment_bytes) {
        return Err(DeviceError::Option(format!(
            "a segment must be a power of two from {SEGMENT_BYTES_MIN} to {SEGMENT_BYTES_MAX} bytes, not {segment_bytes}"
        )));
    }
    let segments = room / segment_bytes;
    if segments < SEGMENTS_MIN {
        let needed =
            data_offset + u64::from(partitions) * SEGMENTS_MIN * segment_bytes + 2 * SUPERBLOCK_BYTES as u64;
        return Err(DeviceError::TooSmall { actual: size, needed, partitions });
    }
    let segments_max = (1_u64 << crate::index::LOCATION_BITS) * crate::format::UNIT_BYTES / segment_bytes;
    if segments > segments_max {
        return Err(DeviceError::Option(format!(
            "a partition of {room} bytes is too large; format with more partitions"
        )));
    }
    Ok(Superblock {
        format_version: FORMAT_VERSION,
        features_compatible: 0,
        features_read_only: 0,
        features_incompatible: FEATURE_KEEPERS,
        device_id: options.device_id,
        created_ms: options.created_ms,
        device_bytes: size,
        data_offset,
        hash_secret: options.hash_secret,
        segment_bytes: segment_bytes as u32,
        block_bytes,
        segments_per_partition: segments as u32,
        placement_epoch: 0,
        partitions,
        written_ahead: options.written_ahead,
    })
}

/// A segment size for a partition of so many bytes. What is kept free is counted in segments, and every
/// percent of it costs several percent of writing when full: so about a thousand segments up to the size
/// at which header and padding weigh little, and about four thousand beyond.
fn segment_bytes_for(room: u64) -> u64 {
    let of_about = |segments: u64| 1_u64 << (room / (segments * 3 / 4)).max(1).ilog2();
    let sought = of_about(1024).min(SEGMENT_BYTES_EFFICIENT).max(of_about(4096));
    sought.clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX)
}
