//! Scanning: pages of keys, each told by who tells the keys of its primary.
//!
//! Place on the path: SCAN.
//!
//! Invariants:
//! * a key that is there from the first page to the last is told: a page ends where the first of the members'
//!   pages does, so that nothing behind it is skipped; what others have told beyond it they tell again;
//! * members have the same order of slots, and each its own within a slot. So a page may end within a slot
//!   only as long as the same members tell: once one has gone or come, pages are of whole slots;
//! * a key that one member cannot read another tells.

use crate::array::Array;
use crate::manner::Manner;
use crate::read::WRONG_OUTPUT;
use crate::roster::MemberState;
use crate::walk::Source;
use futures_util::future::try_join_all;
use plimsoll_kv::{ContainerId, Error, Op, Output, Result, ScanPage};
use std::cell::RefCell;
use std::rc::Rc;

/// A scan's position is a slot, and so many bits within it.
const SLOT_SHIFT: u32 = 40;
/// Keys that a member is asked for at least, where slots are told whole.
const KEYS_MIN: usize = 16;

/// Where a slot begins.
fn start_of_slot(cursor: u64) -> u64 {
    cursor >> SLOT_SHIFT << SLOT_SHIFT
}

impl Array {
    pub(crate) async fn scan(
        self: &Rc<Self>,
        container: ContainerId,
        cursor: u64,
        limit: usize,
        manner: &Manner,
    ) -> Result<Output> {
        self.place(container, b"")?;
        let share = limit.div_ceil(self.count());
        let mut keys = Vec::new();
        if start_of_slot(cursor) == cursor {
            keys = self.unsettled_keys(container).await?;
        }
        let same = match self.tellers_vary() {
            false => self.scan_same(container, cursor, share, manner).await?,
            true => None,
        };
        let pages = match same {
            Some(pages) => pages,
            None => self.scan_slots(container, start_of_slot(cursor), share, manner).await?,
        };
        let mut merged = ScanPage { keys, cursor: u64::MAX, lacks_some: false };
        for page in pages {
            merged.keys.extend(page.keys);
            merged.lacks_some |= page.lacks_some;
            if page.cursor != 0 {
                merged.cursor = merged.cursor.min(page.cursor);
            }
        }
        if merged.cursor == u64::MAX {
            merged.cursor = 0;
        }
        Ok(Output::Scanned(merged))
    }

    /// Whether the keys of a primary may have been told by another member, or in another order, on the page
    /// before.
    fn tellers_vary(&self) -> bool {
        let members = self.members.borrow();
        members.iter().any(|member| member.status.state != MemberState::In || member.resyncs > 0)
    }

    /// A page of each primary, told by its first member; nothing if another had to, or one could not read
    /// all.
    async fn scan_same(
        self: &Rc<Self>,
        container: ContainerId,
        cursor: u64,
        limit: usize,
        manner: &Manner,
    ) -> Result<Option<Vec<ScanPage>>> {
        let op = |container| Op::Scan { container, cursor, limit };
        let mut pages = Vec::new();
        for (primary, (member, output)) in
            self.ask_sources(container, manner, op).await?.into_iter().enumerate()
        {
            let Output::Scanned(page) = output else { return Err(WRONG_OUTPUT) };
            if member != primary || page.lacks_some {
                return Ok(None);
            }
            pages.push(page);
        }
        Ok(Some(pages))
    }

    /// Whole slots of each primary, from the beginning of one on.
    async fn scan_slots(
        self: &Rc<Self>,
        container: ContainerId,
        cursor: u64,
        limit: usize,
        manner: &Manner,
    ) -> Result<Vec<ScanPage>> {
        let each = (0..self.count()).map(|it| self.slots_of(it, container, (cursor, limit), manner));
        let mut pages = try_join_all(each).await?;
        pages.iter_mut().for_each(|page| page.cursor = start_of_slot(page.cursor));
        Ok(pages)
    }

    /// Whole slots of one primary: as the first of its members tells them that can read all, or, if none can,
    /// all that they can.
    async fn slots_of(
        self: &Rc<Self>,
        primary: usize,
        container: ContainerId,
        (cursor, limit): (u64, usize),
        manner: &Manner,
    ) -> Result<ScanPage> {
        let damaged: RefCell<Option<ScanPage>> = RefCell::default();
        let whole = async |source: &Source| {
            let page = slots_at(source, (cursor, limit), manner).await?;
            if !page.lacks_some {
                return Ok(page);
            }
            let before = damaged.take().unwrap_or_default();
            let ends = [before.cursor, page.cursor].into_iter().filter(|end| *end != 0).min();
            let keys = before.keys.into_iter().chain(page.keys).collect();
            damaged.replace(Some(ScanPage { keys, cursor: ends.unwrap_or(0), lacks_some: true }));
            Err(Error::Unreadable("the record of a key".to_owned()))
        };
        let told = self.first_that_tells((primary, self.forms.sure_roles()), container, whole).await;
        match (told, damaged.take()) {
            (Err(Error::Unreadable(_)), Some(page)) => Ok(page),
            (told, _) => told.map(|(_, page)| page),
        }
    }
}

/// Slots as one member tells them, at least one and to the end of the last.
async fn slots_at(source: &Source, (first, limit): (u64, usize), manner: &Manner) -> Result<ScanPage> {
    let mut slots = ScanPage { cursor: first, ..ScanPage::default() };
    loop {
        let limit = limit.max(KEYS_MIN);
        let op = Op::Scan { container: source.container, cursor: slots.cursor, limit };
        let Output::Scanned(page) = source.ask(manner, op).await? else { return Err(WRONG_OUTPUT) };
        slots.keys.extend(page.keys);
        slots.lacks_some |= page.lacks_some;
        slots.cursor = page.cursor;
        if slots.cursor == 0 || start_of_slot(slots.cursor) > first {
            return Ok(slots);
        }
    }
}
