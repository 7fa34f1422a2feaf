//! Reading parts of long values, and slices of parts.
//!
//! Place on the path: from an upload, which knows where its parts are, to a flash read. Invariants: of a
//! slice only the checksum spans that it touches are read, and all of these are proved, with the head that
//! holds their checksums; what is read belongs to the part that was asked for, though cleaning moves it
//! meanwhile.

use crate::fetch::{Extent, ReadFrom, RecordBytes};
use crate::format::record::{self, CHECKSUM_SPAN_BYTES, part_key, verify_spans};
use crate::format::{DecodeError, RecordHeader};
use crate::index::Entry;
use crate::partition::Partition;
use futures_util::future::join;
use plimsoll_kv::{Error, Item, Output, Result, UploadId};
use std::ops::Range;

/// A slice that begins so many bytes after the head, or fewer, is read together with it.
const GAP_BYTES_MAX: usize = CHECKSUM_SPAN_BYTES;

impl Partition {
    pub(crate) async fn retrieve_part(
        &self,
        upload: UploadId,
        part: u32,
        range: Option<(u64, u64)>,
    ) -> Result<Output> {
        let (location, length, value_bytes) = {
            let state = self.state.borrow();
            let upload = state.uploads.get(&upload.0).ok_or(Error::NotFound)?;
            let (location, length) = *upload.parts.get(&part).ok_or(Error::NotFound)?;
            (location, length, self.bytes_of_part(upload.length, part))
        };
        let entry = Entry { fingerprint: 0, location, length };
        let (first, count) = range.unwrap_or((0, value_bytes));
        let end = first.saturating_add(count).min(value_bytes);
        if first == 0 && end == value_bytes {
            let found = self.read_record(entry, Extent::Whole, ReadFrom::Flash).await?;
            let bytes = self.value(&found)?.to_vec();
            return Ok(Output::Found(self.item(&found, bytes)?));
        }
        let (header, bytes) = self.slice(entry, value_bytes, first.min(end) as usize..end as usize).await?;
        Ok(Output::Found(Item { version: header.version, length: value_bytes, bytes, ..Item::default() }))
    }

    /// Reads and proves some bytes of a part whose value has `value_bytes`.
    async fn slice(
        &self,
        entry: Entry,
        value_bytes: u64,
        range: Range<usize>,
    ) -> Result<(RecordHeader, Vec<u8>)> {
        let head_bytes = record::head_bytes(part_key(0, 0).len(), value_bytes as u32);
        let first_span = range.start / CHECKSUM_SPAN_BYTES;
        let from = first_span * CHECKSUM_SPAN_BYTES;
        let to = range.end.next_multiple_of(CHECKSUM_SPAN_BYTES).min(value_bytes as usize);
        let place = head_bytes + from..head_bytes + to;
        let (guard, sequence) = {
            let state = self.state.borrow();
            let sequence = state.segments.sequence_at(entry.location);
            (state.segments.guard(entry.location), sequence)
        };
        let (head, apart) = self.read_slice(entry.location, head_bytes, &place).await?;
        drop(guard);
        let unreadable = |error: DecodeError| self.unreadable(entry.location, &error.to_string());
        let header = record::verify_head(&head, sequence, entry.location).map_err(unreadable)?;
        if u64::from(header.value_bytes) != value_bytes || header.head_bytes() != head_bytes {
            return Err(self.unreadable(entry.location, "part of another length"));
        }
        let spans = apart.as_deref().unwrap_or_else(|| &head[place]);
        verify_spans(&head, &header, first_span, spans).map_err(unreadable)?;
        Ok((header, spans[range.start - from..range.end - from].to_vec()))
    }

    /// The head of a record and a place in it, in one piece or apart.
    async fn read_slice(
        &self,
        location: u64,
        head_bytes: usize,
        place: &Range<usize>,
    ) -> Result<(RecordBytes, Option<RecordBytes>)> {
        if let Some(bytes) = self.log.with_pending(location, place.end as u64, <[u8]>::to_vec) {
            return Ok((RecordBytes::Copied(bytes), None));
        }
        if place.start - head_bytes <= GAP_BYTES_MAX {
            return Ok((self.read_flash(location, 0..place.end as u64).await?, None));
        }
        let head = self.read_flash(location, 0..head_bytes as u64);
        let spans = self.read_flash(location, place.start as u64..place.end as u64);
        let (head, spans) = join(head, spans).await;
        Ok((head?, Some(spans?)))
    }
}
