//! Requests that concern every partition.
//!
//! Invariants: each partition gets its share in the first poll, so that a clear or a count stands
//! between the requests before and after it; a scan goes from partition to partition in the order
//! of slots, and its cursor tells by its slot where it is.

use super::{Lane, Volume};
use futures_util::future::join_all;
use plimsoll_kv::{
    Completion, ContainerId, Error, ListPage, Op, Output, Request, Result, SLOTS, ScanPage, Slot, Stats,
};
use std::rc::Rc;

/// Bits of a scan's cursor below the slot.
const CURSOR_SLOT_SHIFT: u32 = 40;

impl Volume {
    pub(super) async fn execute_everywhere(
        self: Rc<Self>,
        request: Request,
        lane: Lane,
    ) -> Result<Completion> {
        match &request.op {
            Op::Scan { container, cursor, limit } => {
                let (container, cursor, limit) = (*container, *cursor, *limit);
                self.scan((&request, lane), container, cursor, limit).await
            }
            Op::List { limit, .. } => {
                let limit = *limit;
                self.list(request, lane, limit).await
            }
            Op::Stats { .. } => {
                let mut sum = Stats::default();
                let mut device_ns = 0;
                for completion in self.all(request, lane).await? {
                    device_ns = device_ns.max(completion.device_ns);
                    let Output::Stats(stats) = completion.output else { return Err(WRONG_OUTPUT) };
                    sum.keys += stats.keys;
                    sum.expiring_keys += stats.expiring_keys;
                    sum.bytes += stats.bytes;
                }
                Ok(Completion { output: Output::Stats(sum), device_ns, credit: 0 })
            }
            Op::Clear { .. } | Op::Sync => {
                let completions = self.all(request, lane).await?;
                let device_ns = completions.iter().map(|completion| completion.device_ns).max();
                Ok(Completion { output: Output::Done, device_ns: device_ns.unwrap_or(0), credit: 0 })
            }
            _ => unreachable!("every other operation has a key"),
        }
    }

    /// The same request at every partition at once. After an error, other partitions have done it.
    async fn all(self: &Rc<Self>, request: Request, lane: Lane) -> Result<Vec<Completion>> {
        let partitions = 0..self.geometry.partitions;
        let each = partitions.map(|partition| self.clone().execute_at(partition, request.clone(), lane));
        join_all(each).await.into_iter().collect()
    }

    async fn scan(
        self: &Rc<Self>,
        (request, lane): (&Request, Lane),
        container: ContainerId,
        mut cursor: u64,
        limit: usize,
    ) -> Result<Completion> {
        let partitions = self.geometry.partitions;
        let mut page = ScanPage::default();
        let mut device_ns = 0;
        loop {
            let slot = cursor >> CURSOR_SLOT_SHIFT;
            if slot >= u64::from(SLOTS) {
                // Not a cursor of ours: nothing is left behind it.
                page.cursor = 0;
                break;
            }
            let partition = Slot(slot as u16).partition(partitions);
            let op = Op::Scan { container, cursor, limit: limit.saturating_sub(page.keys.len()).max(1) };
            let completion =
                self.clone().execute_at(partition, Request { op, ..request.clone() }, lane).await?;
            device_ns += completion.device_ns;
            let Output::Scanned(part) = completion.output else { return Err(WRONG_OUTPUT) };
            page.keys.extend(part.keys);
            let range = Slot::range_of(partition, partitions);
            page.cursor = match part.cursor {
                0 if range.end == SLOTS => 0,
                0 => u64::from(range.end) << CURSOR_SLOT_SHIFT,
                inside => {
                    let slot = (inside >> CURSOR_SLOT_SHIFT) as u32;
                    assert!(range.contains(&slot), "a partition's cursor stays in its slots");
                    inside
                }
            };
            if page.cursor == 0 || part.cursor != 0 || page.keys.len() >= limit {
                break;
            }
            cursor = page.cursor;
        }
        Ok(Completion { output: Output::Scanned(page), device_ns, credit: 0 })
    }

    async fn list(self: &Rc<Self>, request: Request, lane: Lane, limit: usize) -> Result<Completion> {
        let mut pages = Vec::with_capacity(usize::from(self.geometry.partitions));
        let mut device_ns = 0;
        for completion in self.all(request, lane).await? {
            device_ns = device_ns.max(completion.device_ns);
            let Output::Listed(page) = completion.output else { return Err(WRONG_OUTPUT) };
            pages.push(page);
        }
        Ok(Completion { output: Output::Listed(ListPage::merge(pages, limit)), device_ns, credit: 0 })
    }
}

const WRONG_OUTPUT: Error = Error::Unsupported("a partition gave the output of another operation");
