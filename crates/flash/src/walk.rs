//! Walking a log segment: from its summary if it was closed, else frame by frame.
//!
//! Role: gives recovery, cleaning and verification the transitions of a segment. Place on the
//! path: reading what `log` wrote.
//!
//! Invariant: a frame counts only if it is whole: its header, every note and every record in it
//! are proved. A footer counts for all frames, because it is written after they are durable.

use crate::bulk::{Patchy, read_around, read_bulk};
use crate::format::chain::take_varint;
use crate::format::note::{NOTE_KIND, decode_note};
use crate::format::record::{self, verify_value};
use crate::format::{
    Chain, FrameHeader, RecordKind, SegmentFooter, SegmentHeader, SegmentKind, Transition, TransitionKind,
    UNIT_BYTES, crc32c, round_up,
};
use crate::layout::Layout;
use crate::segments::Segment;
use plimsoll_kv::block::{Block, Origin};
use std::io;
use std::ops::{Range, RangeInclusive};

/// A transition and the frame it stands in.
pub type Framed = (u64, Transition);

/// Reads a whole segment.
pub async fn read_segment(
    block: &dyn Block,
    layout: &Layout,
    segment: u32,
    origin: Origin,
) -> io::Result<Vec<u8>> {
    read_bulk(block, origin, layout.segment_offset(segment), layout.segment_bytes).await
}

/// Reads a whole segment, around the blocks of it that cannot be read.
pub(crate) async fn read_segment_around(
    block: &dyn Block,
    layout: &Layout,
    segment: u32,
    origin: Origin,
) -> io::Result<Patchy> {
    let start = layout.segment_offset(segment);
    read_around(block, origin, start, layout.segment_bytes, layout.block_bytes).await
}

/// Reads the header of a segment.
pub async fn read_header(
    block: &dyn Block,
    layout: &Layout,
    segment: u32,
) -> io::Result<Result<SegmentHeader, crate::format::DecodeError>> {
    let offset = layout.segment_offset(segment);
    let buf = block.read(Origin::FOREGROUND, offset, layout.block_bytes as usize).await?;
    Ok(SegmentHeader::decode(&buf, layout.identity, segment))
}

/// Reads the summary of a closed segment; nothing if it has none that is whole.
pub async fn read_summary(
    block: &dyn Block,
    origin: Origin,
    layout: &Layout,
    segment: u32,
    sequence: u64,
    first_frame: u64,
) -> io::Result<Option<(SegmentFooter, Vec<Framed>)>> {
    let end = layout.segment_offset(segment) + layout.segment_bytes;
    let footer_offset = end - layout.block_bytes;
    let buf = block.read(origin, footer_offset, layout.block_bytes as usize).await?;
    let Ok(footer) = SegmentFooter::decode(&buf, layout.identity, sequence) else { return Ok(None) };
    let summary_bytes = u64::from(footer.summary_bytes);
    if summary_bytes == 0 {
        return Ok(Some((footer, Vec::new())));
    }
    if !summary_bytes.is_multiple_of(layout.block_bytes)
        || summary_bytes > layout.segment_bytes - 2 * layout.block_bytes
    {
        return Ok(None);
    }
    let bytes = read_bulk(block, origin, footer_offset - summary_bytes, summary_bytes).await?;
    Ok(decode_summary(&bytes, &footer, first_frame).map(|transitions| (footer, transitions)))
}

/// Proves and decodes a summary of a segment that begins with `first_frame`.
#[must_use]
pub fn decode_summary(bytes: &[u8], footer: &SegmentFooter, first_frame: u64) -> Option<Vec<Framed>> {
    let mut rest = bytes.get(..footer.transitions_bytes as usize)?;
    if crc32c(rest) != footer.transitions_crc {
        return None;
    }
    let mut frame = first_frame;
    let (mut chain, mut transitions) = (Chain::default(), Vec::new());
    while !rest.is_empty() {
        frame = frame.checked_add(take_varint(&mut rest)?)?;
        transitions.push((frame, chain.decode(&mut rest).ok()?));
    }
    Some(transitions)
}

/// Puts the transitions of long notes in the place of their references; nothing if one of the
/// notes cannot be read.
pub async fn resolve_notes(
    block: &dyn Block,
    layout: &Layout,
    sequence: u64,
    summary: Vec<Framed>,
) -> io::Result<Option<Vec<Framed>>> {
    let mut transitions = Vec::with_capacity(summary.len());
    for (frame, transition) in summary {
        if transition.kind != TransitionKind::Note {
            transitions.push((frame, transition));
            continue;
        }
        let units = u64::from(layout.segments) * layout.segment_units();
        if transition.location.saturating_add(u64::from(transition.length)) > units || transition.length == 0
        {
            return Ok(None);
        }
        let start = layout.device_offset(transition.location);
        let length = u64::from(transition.length) * UNIT_BYTES;
        let first = start / layout.block_bytes * layout.block_bytes;
        let end = round_up(start + length, layout.block_bytes);
        let buf = block.read(Origin::FOREGROUND, first, (end - first) as usize).await?;
        let Ok((noted, _)) = decode_note(&buf[(start - first) as usize..], sequence, transition.location)
        else {
            return Ok(None);
        };
        transitions.extend(noted.into_iter().map(|noted| (frame, noted)));
    }
    Ok(Some(transitions))
}

/// A frame found in a segment.
#[derive(Clone, Debug)]
pub struct Frame {
    /// Its header.
    pub header: FrameHeader,
    /// Where the next one begins in the segment.
    pub end: u64,
    /// Its transitions, as far as its notes are proved.
    pub transitions: Vec<Transition>,
    /// Heads and notes are proved: the transitions are all there.
    pub heads_whole: bool,
    /// Values are proved too: the frame was written whole.
    pub whole: bool,
}

/// Decodes the frame at `offset` of a segment whose bytes are given; nothing if none begins there.
#[must_use]
pub fn frame_at(bytes: &[u8], layout: &Layout, segment: u32, sequence: u64, offset: u64) -> Option<Frame> {
    let place = u64::from(segment) * layout.segment_bytes + offset;
    let rest = bytes.get(offset as usize..)?;
    let header = FrameHeader::decode(rest, layout.identity, place, sequence).ok()?;
    let head = crate::format::frame::FRAME_HEADER_BYTES;
    let payload = rest.get(head..)?.get(..header.payload_bytes as usize)?;
    let end = offset + round_up(head as u64 + u64::from(header.payload_bytes), layout.block_bytes);
    let mut frame = Frame { header, end, transitions: Vec::new(), heads_whole: true, whole: true };
    let mut at = 0;
    for _ in 0..header.items {
        let Some(item) = payload.get(at..).filter(|item| item.len() > 4) else {
            (frame.heads_whole, frame.whole) = (false, false);
            break;
        };
        let location = layout.location(segment, offset + (head + at) as u64);
        let Some(length) = item_at(item, layout, sequence, location, &mut frame) else {
            (frame.heads_whole, frame.whole) = (false, false);
            break;
        };
        at += length;
    }
    Some(frame)
}

/// Proves one item of a frame; its length, or nothing if its head is damaged.
fn item_at(item: &[u8], layout: &Layout, sequence: u64, location: u64, frame: &mut Frame) -> Option<usize> {
    if item[4] == NOTE_KIND {
        let (transitions, length) = decode_note(item, sequence, location).ok()?;
        frame.transitions.extend(transitions);
        return Some(length);
    }
    let header = record::verify_head(item, sequence, location).ok()?;
    if verify_value(item, &header).is_err() {
        frame.whole = false;
    }
    let key = record::key(item, &header);
    frame.transitions.push(header.transition(key, layout.fingerprint(header.container, key), location));
    Some(header.record_bytes() as usize)
}

/// The first frame behind `offset` whose number is among these, of this epoch or a later one: where it
/// begins, and its number.
#[must_use]
pub fn next_frame_after(
    bytes: &[u8],
    layout: &Layout,
    (segment, sequence): (u32, u64),
    (offset, epoch): (u64, u32),
    numbers: RangeInclusive<u64>,
) -> Option<(u64, u64)> {
    let places = (offset..layout.segment_bytes).step_by(layout.block_bytes as usize).skip(1);
    let mut frames = places.filter_map(|at| {
        let place = u64::from(segment) * layout.segment_bytes + at;
        let header = FrameHeader::decode(bytes.get(at as usize..)?, layout.identity, place, sequence).ok()?;
        (header.epoch >= epoch && numbers.contains(&header.number)).then_some((at, header.number))
    });
    frames.next()
}

/// The highest `durable` that any frame from `offset` on states: proof of what was acknowledged.
#[must_use]
pub fn durable_stated_after(bytes: &[u8], layout: &Layout, segment: u32, sequence: u64, offset: u64) -> u64 {
    let mut highest = 0;
    let mut at = offset;
    while at < layout.segment_bytes {
        let place = u64::from(segment) * layout.segment_bytes + at;
        let rest = bytes.get(at as usize..).unwrap_or_default();
        if let Ok(header) = FrameHeader::decode(rest, layout.identity, place, sequence) {
            highest = highest.max(header.durable);
        }
        at += layout.block_bytes;
    }
    highest
}

/// The highest `durable` that frames of this epoch or a later one state, in whatever use of a segment.
#[must_use]
pub fn durable_stated_since(bytes: &[u8], layout: &Layout, segment: u32, epoch: u32) -> u64 {
    let start = u64::from(segment) * layout.segment_bytes;
    let places = (0..layout.segment_bytes).step_by(layout.block_bytes as usize);
    let stated = places.filter_map(|at| {
        let rest = bytes.get(at as usize..)?;
        FrameHeader::decode_of_any_use(rest, layout.identity, start + at).ok()
    });
    stated.filter(|header| header.epoch >= epoch).map(|header| header.durable).max().unwrap_or(0)
}

/// The locations of the records in a segment whose bytes are given: from its summary or its frames
/// if it is of the log, else one after the other.
pub async fn record_locations(
    block: &dyn Block,
    layout: &Layout,
    segment: u32,
    info: &Segment,
    bytes: &[u8],
) -> Vec<u64> {
    let stored = |t: &Transition| matches!(t.kind, TransitionKind::Store | TransitionKind::StorePart);
    if info.kind != SegmentKind::Log {
        let all = layout.block_bytes..layout.segment_bytes;
        return records_in_row(layout, (segment, info.sequence), bytes, all);
    }
    if let Ok(Some((_, transitions))) =
        read_summary(block, Origin::BACKGROUND, layout, segment, info.sequence, 0).await
    {
        return transitions.iter().filter(|(_, t)| stored(t)).map(|(_, t)| t.location).collect();
    }
    let mut locations = Vec::new();
    let mut offset = layout.block_bytes;
    while let Some(frame) = frame_at(bytes, layout, segment, info.sequence, offset) {
        if frame.heads_whole {
            locations.extend(frame.transitions.iter().filter(|t| stored(t)).map(|t| t.location));
        } else {
            // A damaged head hides what stands behind it in its frame.
            locations.extend(records_in_row(layout, (segment, info.sequence), bytes, offset..frame.end));
        }
        offset = frame.end;
    }
    locations
}

/// Records that were stored, in these bytes of a segment. In a cleaned one they stand one after the other;
/// writes begin on fresh blocks.
fn records_in_row(
    layout: &Layout,
    (segment, sequence): (u32, u64),
    bytes: &[u8],
    within: Range<u64>,
) -> Vec<u64> {
    let mut locations = Vec::new();
    let mut at = within.start;
    while at < within.end {
        let location = layout.location(segment, at);
        match record::verify_head(&bytes[at as usize..], sequence, location) {
            Ok(header) => {
                if header.kind != RecordKind::Tombstone {
                    locations.push(location);
                }
                at += header.record_bytes();
            }
            // The rest of a block, or a damaged record: look for the next one.
            Err(_) => at += UNIT_BYTES,
        }
    }
    locations
}
