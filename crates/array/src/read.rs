//! Reading: one request to the first member that may be read, and what becomes of it if that fails.
//!
//! Place on the path: every retrieve. A value of one record is read from its first copy; if that cannot be
//! read, or does not come, from the next, and what was damaged is written again in the background.
//!
//! Invariants:
//! * what is given was on every member that is in, or will be: a read beside a write waits for it;
//! * a copy without a right header is no copy;
//! * an expired key is absent by the array's own clock, which no member's runs behind.

use crate::array::{Array, Manner, Place};
use crate::header::{HEADER_BYTES, Header};
use crate::member::{Verdict, verdict};
use crate::placement;
use crate::roster::MemberState;
use futures_util::future::{Either, select};
use futures_util::stream::{FuturesUnordered, StreamExt};
use plimsoll_kv::{Completion, Device, Error, Item, Op, Output, Request, Result};
use plimsoll_reactor::Work;
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;

/// A member that has not answered a read for so long is slow: the next copy is asked for, too, and the first
/// answer is given.
const HEDGE_NS: u64 = 20_000_000;
/// A member that has not answered a write for so long is taken out, if others have what it holds.
const STALL_NS: u64 = 10_000_000_000;

/// Which bytes of a value are asked for.
pub(crate) type Range = Option<(u64, u64)>;

impl Array {
    pub(crate) async fn retrieve(
        self: &Rc<Self>,
        place: &Place,
        range: Range,
        pin: bool,
        manner: &Manner,
    ) -> Result<Output> {
        if self.is_quiet(place) {
            let found = self.read(place, range, manner).await;
            let in_parts = pin && found.as_ref().is_ok_and(|item| item.upload.is_some());
            // If a write began meanwhile, a part of the members may have it.
            if self.is_quiet(place) && !in_parts {
                return found.map(Output::Found);
            }
        }
        let _guard = self.hold(place).await?;
        let item = self.read(place, range, manner).await?;
        if pin && item.upload.is_some() {
            return self.pin_everywhere(place, item).await.map(Output::Found);
        }
        Ok(Output::Found(item))
    }

    pub(crate) async fn exist(self: &Rc<Self>, place: &Place, manner: &Manner) -> Result<Output> {
        self.retrieve(place, Some((0, 0)), false, manner).await
    }

    /// Reads a key from the first member that can; from the next one, too, if that is slow.
    pub(crate) async fn read(self: &Rc<Self>, place: &Place, range: Range, manner: &Manner) -> Result<Item> {
        let sources = (0..self.copies).filter_map(|role| {
            let member = self.member_of(place, role);
            Some((role, member, self.readable(member)?))
        });
        let mut asked = FuturesUnordered::new();
        let mut failures = Vec::new();
        for (role, member, device) in sources.collect::<Vec<_>>() {
            asked.push(async move {
                (member, self.read_copy(&device, place, role, range, manner).await.map(|(item, _)| item))
            });
            let is_last = role + 1 == self.copies;
            if let Some(result) = self.first_answer(&mut asked, is_last, &mut failures).await {
                if !failures.is_empty() {
                    self.mend_later(place, &failures);
                }
                return result;
            }
        }
        match self.first_answer(&mut asked, true, &mut failures).await {
            Some(result) => result,
            None => Err(self.unreadable(place, &failures)),
        }
    }

    /// Waits for the first of those asked that gives an answer; nothing if none does, or the next copy is to
    /// be asked, too.
    async fn first_answer(
        &self,
        asked: &mut FuturesUnordered<impl Future<Output = (usize, Result<Item>)>>,
        is_last: bool,
        failures: &mut Vec<(usize, Error)>,
    ) -> Option<Result<Item>> {
        let mut slow = pin!(self.reactor.sleep_ns(HEDGE_NS));
        loop {
            let answer = if is_last {
                asked.next().await
            } else {
                match select(asked.next(), &mut slow).await {
                    Either::Left((answer, _)) => answer,
                    Either::Right(_) => return None,
                }
            };
            match answer? {
                (member, Err(error)) if verdict(&error) == Verdict::Broken => failures.push((member, error)),
                (_, result) => return Some(result),
            }
        }
    }

    /// Reads the copy in a role.
    pub(crate) async fn read_copy(
        &self,
        device: &Rc<dyn Device>,
        place: &Place,
        role: usize,
        range: Range,
        manner: &Manner,
    ) -> Result<(Item, Option<Header>)> {
        let (container, key) = (placement::container(place.container, role), place.key.clone());
        let op = Op::Retrieve { container, key, range: shifted(range), pin: false };
        let completion = device.clone().execute(manner.request(op)).await?;
        let Output::Found(item) = completion.output else { return Err(WRONG_OUTPUT) };
        if self.is_past(item.expiry_ms) {
            return Err(Error::NotFound);
        }
        self.user_part_of(item, role, range)
    }

    /// A copy as its user knows it.
    pub(crate) fn user_item(&self, item: Item, role: usize, range: Range) -> Result<Item> {
        self.user_part_of(item, role, range).map(|(item, _)| item)
    }

    fn user_part_of(&self, mut item: Item, role: usize, range: Range) -> Result<(Item, Option<Header>)> {
        if item.upload.is_some() {
            item.length = self.user_bytes(item.length);
            return Ok((item, None));
        }
        let with_header = range.is_none_or(|(first, _)| first == 0);
        let header = if with_header { Some(take_header(&mut item, role)?) } else { None };
        item.length = item.length.saturating_sub(HEADER_BYTES as u64);
        if header.is_some_and(|header| header.value_bytes != item.length) {
            return Err(Error::Unreadable("a header of another value".to_owned()));
        }
        Ok((item, header))
    }

    /// A request to a member, which has to answer in time if others have what it holds.
    pub(crate) async fn in_time(&self, device: Rc<dyn Device>, request: Request) -> Result<Completion> {
        let answered = device.execute(request);
        if self.copies == 1 {
            return answered.await;
        }
        match select(answered, pin!(self.reactor.sleep_ns(STALL_NS))).await {
            Either::Left((result, _)) => result,
            Either::Right(_) => {
                Err(Error::ReadOnly(format!("it has not answered for {} seconds", STALL_NS / 1_000_000_000)))
            }
        }
    }

    /// What a reader is told of a key of which no copy can be read.
    fn unreadable(&self, place: &Place, failures: &[(usize, Error)]) -> Error {
        let members = (0..self.copies).map(|role| self.member_of(place, role));
        let each = members.map(|member| {
            let name = self.name(member);
            match failures.iter().find(|(failed, _)| *failed == member) {
                Some((_, error)) => format!("{name}: {error}"),
                None if self.state(member) == MemberState::Resyncing => {
                    format!("{name} is being resynchronised")
                }
                None => format!("{name} is out"),
            }
        });
        let each: Vec<String> = each.collect();
        Error::Unreadable(format!("no copy of the key is left ({})", each.join("; ")))
    }

    /// Writes again, in the background, what could not be read.
    fn mend_later(self: &Rc<Self>, place: &Place, failures: &[(usize, Error)]) {
        for (member, error) in failures {
            self.note(*member, |status| status.failed_requests += 1);
            let device = self.name(*member);
            tracing::warn!(partition = self.partition, device, %error, "read from another device");
        }
        self.suspect(place);
        let (array, place) = (self.clone(), place.clone());
        self.spawn(Work::Background, async move {
            // What could not be mended stays unsettled, and is tried again when it is used.
            let _ = array.hold(&place).await;
        });
    }

    /// Bytes of the user's value, of so many that stand in parts on a member.
    pub(crate) fn user_bytes(&self, stored_bytes: u64) -> u64 {
        let part_bytes = (self.part_bytes() + HEADER_BYTES) as u64;
        stored_bytes - stored_bytes.div_ceil(part_bytes) * HEADER_BYTES as u64
    }

    /// Bytes that a user's value takes in parts on a member.
    pub(crate) fn stored_bytes(&self, user_bytes: u64) -> u64 {
        user_bytes + user_bytes.div_ceil(self.part_bytes() as u64) * HEADER_BYTES as u64
    }
}

pub(crate) const WRONG_OUTPUT: Error = Error::Unsupported("a member gave the output of another operation");

/// The range of a stored value or part, of one of the user's; what begins at 0 brings the header along.
pub(crate) fn shifted(range: Range) -> Range {
    let header = HEADER_BYTES as u64;
    range.map(|(first, length)| match first {
        0 => (0, length.saturating_add(header)),
        first => (first.saturating_add(header), length),
    })
}

/// Takes the header off a value that was read from its start.
fn take_header(item: &mut Item, role: usize) -> Result<Header> {
    let header = Header::decode(&item.bytes).map_err(|what| Error::Unreadable(what.to_owned()))?;
    if usize::from(header.role) != role {
        return Err(Error::Unreadable("a header of another copy".to_owned()));
    }
    item.bytes.drain(..HEADER_BYTES);
    Ok(header)
}
