//! The short way of a read: a whole value that stands in one record, whose key nobody holds.
//!
//! Role: what most reads are, without what only others need: a second candidate, waiting for a writer,
//! an expiry to be made durable. Place on the path: before `read`, which takes every other read from its
//! beginning on.
//!
//! Invariants: those of `read` and `fetch`; a value is given where it was read, proved. Whether a read goes
//! this way is seen from memory, before the drive is asked: it then costs one flash read at most, and ends
//! with what was there when it began, whatever is written meanwhile.
//!
//! Never: it takes the long way after that, which sees later writes, but where the record went or moved.

use crate::fetch::{Extent, Found, ReadFrom};
use crate::format::RecordKind;
use crate::index::Entry;
use crate::looks::Look;
use crate::partition::{Partition, Place};
use plimsoll_kv::limits::KEY_BYTES_MAX;
use plimsoll_kv::{ContainerId, Error, Output, Result, Retrieved};
use std::rc::Rc;

impl Partition {
    /// Retrieves the whole value of a key, pinned if that is asked for and it stands in parts.
    pub(crate) async fn retrieve_directly(
        self: Rc<Self>,
        container: ContainerId,
        key: Rc<[u8]>,
        pin: bool,
        from: ReadFrom,
    ) -> Result<Retrieved> {
        if key.len() > KEY_BYTES_MAX {
            return Err(Error::KeyTooLong);
        }
        if let Some((place, entry)) = self.alone(container, &key)
            && let Some(retrieved) = self.read_alone(&place, entry, &key, (pin, from)).await?
        {
            return Ok(retrieved);
        }
        // Apart, so that what most reads need no room for takes none.
        let long = Box::pin(async move { self.retrieve(container, &key, None, pin, from).await });
        long.await.map(Output::into_retrieved)
    }

    /// The place of a key and the one record that may be its, if nothing has to be waited for.
    fn alone(&self, container: ContainerId, key: &[u8]) -> Option<(Place, Entry)> {
        let place = self.place(container, key);
        let is_free = self.locks.is_free(place.slot.0, place.fingerprint)
            && !self.transactions.is_stale(place.lock_id());
        let state = self.state.borrow();
        let mut candidates = state.index.find(place.slot, place.fingerprint);
        let entry = candidates.next().filter(|_| is_free)?;
        candidates.next().is_none().then_some((place, entry))
    }

    /// The value in a record that may be a key's; nothing if it has to be looked for again.
    async fn read_alone(
        self: &Rc<Self>,
        place: &Place,
        entry: Entry,
        key: &[u8],
        (pin, from): (bool, ReadFrom),
    ) -> Result<Option<Retrieved>> {
        let since_ms = self.now_ms();
        let look = Look::new(self);
        let read = self.read_record(entry, Extent::Whole, from).await;
        let record = match read {
            Ok(record) if self.is_same_key(&record, place, key) => record,
            // An error, or another key, says something only of what is still there.
            _ if !self.is_current(place, &entry) => return Ok(None),
            Ok(_) => return self.absent(place).await,
            Err(error) => return Err(error),
        };
        if record.is_expired(since_ms) {
            drop((look, record));
            let has_gone = Box::pin(self.expire(place, key)).await?;
            return if has_gone { self.absent(place).await } else { Ok(None) };
        }
        self.state.borrow().segments.marks.set(entry.location);
        self.settle(place).await?;
        if record.header.kind == RecordKind::Value {
            return self.value_of(record).map(Some);
        }
        let output = Box::pin(async move { self.output_of(&record, None, pin).await });
        Ok(output.await?.map(Output::into_retrieved))
    }

    /// There is no such key, and may be told.
    async fn absent(&self, place: &Place) -> Result<Option<Retrieved>> {
        self.settle(place).await?;
        Err(Error::NotFound)
    }

    /// The value of a record that is the value itself, proved.
    fn value_of(&self, record: Found) -> Result<Retrieved> {
        let bytes = self.value(&record)?.len();
        let (item, head) = (self.item(&record, Vec::new())?, record.header.head_bytes());
        Ok(Retrieved { item, value: record.bytes.into_range(head..head + bytes) })
    }
}
