//! The snapshot: what a partition knows besides its tables, as bytes of a checkpoint.
//!
//! Role: encodes and decodes segment table, containers, uploads, kept records, expiry
//! overrides and prepared transactions at the instant at which a checkpoint begins. Invariant: decoding
//! takes nothing on trust: every count is bounded by the bytes that are there.

use crate::format::SegmentKind;
use crate::kept::KeptRecord;
use crate::segments::SegmentState;
use crate::state::{Counters, ExpiryOverride, Prepared, State};
use crate::uploads::{Upload, UploadState, Uploads};
use plimsoll_kv::{TransactionId, Version};

/// Reads numbers off a slice; nothing once the slice is too short.
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }
    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.take(8).and_then(|bytes| bytes.try_into().ok()).map(u64::from_le_bytes)
    }
    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.take(4).and_then(|bytes| bytes.try_into().ok()).map(u32::from_le_bytes)
    }
    fn u8(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }
    /// Reads a list: its length, then items.
    fn list<T>(&mut self, mut item: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let count = self.u32()?;
        let mut items = Vec::new();
        for _ in 0..count {
            items.push(item(self)?);
        }
        Some(items)
    }
}

fn put_u64(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_le_bytes());
}
fn put_u32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_le_bytes());
}
fn put_count(out: &mut Vec<u8>, count: usize) {
    put_u32(out, u32::try_from(count).expect("lists are bounded far below 2^32"));
}

/// Appends the snapshot of a state.
pub(crate) fn encode(state: &State, out: &mut Vec<u8>) {
    put_u32(out, state.segments.prepared());
    put_count(out, state.segments.all().len());
    for segment in state.segments.all() {
        out.push(segment.kind as u8);
        out.push(u8::from(segment.state != SegmentState::Free) | u8::from(segment.damaged) << 1);
        put_u64(out, segment.sequence);
        put_u64(out, segment.log_number);
        put_u64(out, segment.opened_frame);
        put_u64(out, segment.live_units);
    }
    put_u32(out, state.next_generation);
    put_u64(out, state.next_upload);
    put_count(out, state.generations.len());
    for (container, generation) in &state.generations {
        put_u32(out, *container);
        put_u32(out, *generation);
    }
    put_count(out, state.counters.len());
    for (generation, counters) in &state.counters {
        put_u32(out, *generation);
        [counters.keys, counters.expiring, counters.units].into_iter().for_each(|n| put_u64(out, n));
    }
    put_count(out, state.dead.len());
    for (generation, left) in &state.dead {
        put_u32(out, *generation);
        put_u64(out, *left);
    }
    encode_uploads(&state.uploads, out);
    put_count(out, state.kept.len());
    for (location, kept) in state.kept.iter() {
        put_u64(out, *location);
        put_u64(out, kept.location);
        put_u64(out, kept.fingerprint);
        put_u32(out, kept.length);
        put_u32(out, kept.generation);
        let is_current = state.kept.is_current(kept.location);
        put_u32(out, u32::from(kept.slot) | u32::from(kept.expiring) << 16 | u32::from(is_current) << 17);
    }
    put_count(out, state.expiry_overrides.len());
    for (location, kept) in &state.expiry_overrides {
        put_u64(out, *location);
        put_u64(out, kept.expiry_ms);
        put_u64(out, kept.version.clock);
        put_u32(out, kept.version.epoch);
    }
    put_count(out, state.transactions.len());
    for (id, prepared) in &state.transactions {
        put_u32(out, u32::from(id.partition) | u32::from(prepared.applied) << 16);
        put_u32(out, id.version.epoch);
        put_u64(out, id.version.clock);
        put_u64(out, prepared.intent);
    }
}

fn encode_uploads(uploads: &Uploads, out: &mut Vec<u8>) {
    put_count(out, uploads.len());
    for (id, upload) in uploads.iter() {
        put_u64(out, *id);
        out.push(match upload.state {
            UploadState::Open => 0,
            UploadState::Live => 1,
            UploadState::Doomed => 2,
            UploadState::Promised => 3,
        });
        put_u32(out, u32::from(upload.slot));
        put_u32(out, upload.generation);
        put_u64(out, upload.length);
        put_count(out, upload.parts.len());
        for (part, (location, length)) in &upload.parts {
            put_u32(out, *part);
            put_u64(out, *location);
            put_u32(out, *length);
        }
    }
}

/// Loads a snapshot into the state of an empty partition; false if it is not one.
#[must_use]
pub(crate) fn decode(bytes: &[u8], state: &mut State) -> bool {
    decode_into(&mut Reader(bytes), state).is_some()
}

fn decode_into(reader: &mut Reader<'_>, state: &mut State) -> Option<()> {
    let prepared = reader.u32()?;
    let count = reader.u32()?;
    if count as usize != state.segments.all().len() || prepared > count {
        return None;
    }
    state.segments.set_prepared(prepared);
    for segment in 0..count {
        decode_segment(reader, state, segment)?;
    }
    state.next_generation = reader.u32()?;
    state.next_upload = reader.u64()?;
    state.generations = reader.list(|r| Some((r.u32()?, r.u32()?)))?.into_iter().collect();
    let counters = |r: &mut Reader<'_>| {
        Some((r.u32()?, Counters { keys: r.u64()?, expiring: r.u64()?, units: r.u64()? }))
    };
    state.counters = reader.list(counters)?.into_iter().collect();
    state.dead = reader.list(|r| Some((r.u32()?, r.u64()?)))?.into_iter().collect();
    state.uploads = Uploads::new(reader.list(decode_upload)?)?;
    for (above, kept, is_current) in reader.list(decode_kept)? {
        let is_right = kept.location != 0
            && kept.location != above
            && state.kept.below(above).is_none()
            && state.kept.agrees(&kept, is_current);
        is_right.then(|| state.kept.keep(above, kept, is_current))?;
    }
    state.expiry_overrides = reader.list(decode_override)?.into_iter().collect();
    state.transactions = reader.list(decode_prepared)?.into_iter().collect();
    (reader.0.is_empty() && all_are_held(state)).then_some(())
}

/// Whether parts and kept records stand where there is a segment: whoever reads or gives one up looks
/// for it there.
fn all_are_held(state: &State) -> bool {
    let parts = state.uploads.values().flat_map(|upload| upload.parts.values().copied());
    let kept = state.kept.iter().map(|(_, kept)| (kept.location, kept.length));
    let mut records = parts.chain(kept);
    records.all(|(location, length)| length > 0 && state.segments.holds(location, length))
}

fn decode_segment(reader: &mut Reader<'_>, state: &mut State, segment: u32) -> Option<()> {
    let kind = SegmentKind::from_byte(reader.u8()?)?;
    let flags = reader.u8()?;
    let (sequence, log_number) = (reader.u64()?, reader.u64()?);
    let (opened_frame, live_units) = (reader.u64()?, reader.u64()?);
    if flags & 1 == 0 {
        return (live_units == 0).then_some(());
    }
    if live_units > state.segments.units_per_segment() {
        return None;
    }
    state.segments.open(segment, kind, sequence, opened_frame);
    let info = state.segments.get_mut(segment);
    (info.log_number, info.damaged, info.state) = (log_number, flags & 2 != 0, SegmentState::Closed);
    let location = u64::from(segment) * state.segments.units_per_segment();
    state.segments.add_live(location, u32::try_from(live_units).ok()?);
    Some(())
}

fn decode_upload(reader: &mut Reader<'_>) -> Option<(u64, Upload)> {
    let id = reader.u64()?;
    let state = match reader.u8()? {
        0 => UploadState::Open,
        1 => UploadState::Live,
        2 => UploadState::Doomed,
        3 => UploadState::Promised,
        _ => return None,
    };
    let slot = u16::try_from(reader.u32()?).ok()?;
    let (generation, length) = (reader.u32()?, reader.u64()?);
    let parts = reader.list(|r| Some((r.u32()?, (r.u64()?, r.u32()?))))?.into_iter().collect();
    Some((id, Upload { state, slot, generation, length, parts }))
}

fn decode_override(reader: &mut Reader<'_>) -> Option<(u64, ExpiryOverride)> {
    let (location, expiry_ms) = (reader.u64()?, reader.u64()?);
    let (clock, epoch) = (reader.u64()?, reader.u32()?);
    Some((location, ExpiryOverride { expiry_ms, version: Version { epoch, clock } }))
}

fn decode_prepared(reader: &mut Reader<'_>) -> Option<(TransactionId, Prepared)> {
    let (partition, epoch) = (reader.u32()?, reader.u32()?);
    let version = Version { epoch, clock: reader.u64()? };
    let id = TransactionId { partition: partition as u16, version };
    Some((id, Prepared { intent: reader.u64()?, applied: partition >> 16 != 0 }))
}

fn decode_kept(reader: &mut Reader<'_>) -> Option<(u64, KeptRecord, bool)> {
    let current = reader.u64()?;
    let (location, fingerprint) = (reader.u64()?, reader.u64()?);
    let (length, generation, slot) = (reader.u32()?, reader.u32()?, reader.u32()?);
    let (slot, expiring, is_current) = (slot as u16, slot & 1 << 16 != 0, slot & 1 << 17 != 0);
    Some((current, KeptRecord { location, length, expiring, slot, fingerprint, generation }, is_current))
}
