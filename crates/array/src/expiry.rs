//! Changing when a key expires, on every member that has a piece of it.
//!
//! Place on the path: EXPIRE and its like, beside `write`. Values stay where they are: no batch, so the key
//! is named in the journal by a request of its own.
//!
//! Invariants:
//! * what a condition is judged by, and whether the key is there, is seen once, before anything is changed: a
//!   change that lets the key expire at once is not taken for its absence;
//! * where members judge differently whether it has expired meanwhile, it is gone, everywhere; but those that
//!   were not in do not count, and get it again.

use crate::array::{Array, Place, expiry_of};
use crate::manner::Manner;
use crate::placement;
use crate::read::WRONG_OUTPUT;
use crate::roster::MemberState;
use crate::write::{Change, is_full, judge};
use plimsoll_kv::{Condition, Error, Expiry, Form, Item, Op, Output, Result};
use std::rc::Rc;

/// Times that a key is made whole for one change: what was written again may rot again meanwhile (seed 9856).
const MENDS_MAX: usize = 3;

impl Array {
    pub(crate) async fn set_expiry(
        self: &Rc<Self>,
        place: &Place,
        expiry: Expiry,
        condition: Condition,
        manner: &Manner,
    ) -> Result<Output> {
        let _guard = self.hold(place).await?;
        let found = self.look(place, Some((0, 0)), manner).await?;
        let Some((item, form)) = found else { return Err(Error::NotFound) };
        judge(condition, Some(&item))?;
        let mut set = self.set_expiry_held(place, (&item, form), expiry, manner).await;
        for _ in 0..MENDS_MAX {
            if !matches!(set, Err(Error::Unreadable(_))) || !self.is_unsettled(place) {
                break;
            }
            set = match self.set_expiry_again(place, expiry, manner).await {
                // Others have changed it before.
                Err(error) if is_full(&error) => Err(self.not_undone(error)),
                set => set,
            };
        }
        match (set, expiry) {
            // It has expired meanwhile, as was asked (seeds 502, 20074).
            (Err(Error::NotFound), Expiry::At(at_ms))
                if at_ms <= self.now_ms() && item.expiry_ms.is_none_or(|before_ms| before_ms > at_ms) =>
            {
                Ok(Output::ExpirySet(Item { expiry_ms: Some(at_ms), ..item }))
            }
            (set, _) => set,
        }
    }

    /// A member could not read its piece: it is written again, and then its time is changed.
    async fn set_expiry_again(
        self: &Rc<Self>,
        place: &Place,
        expiry: Expiry,
        manner: &Manner,
    ) -> Result<Output> {
        self.settle(place).await?;
        match self.look(place, Some((0, 0)), manner).await? {
            Some((item, form)) => self.set_expiry_held(place, (&item, form), expiry, manner).await,
            None => Err(Error::NotFound),
        }
    }

    /// Changes when a held key expires, on every member.
    async fn set_expiry_held(
        self: &Rc<Self>,
        place: &Place,
        (item, form): (&Item, Form),
        expiry: Expiry,
        manner: &Manner,
    ) -> Result<Output> {
        let expiry = expiry_of(expiry, item.expiry_ms);
        self.keep_nothing(place).await?;
        self.leave_set(place, manner).await?;
        let slot = self.name_half_written(place, manner).await?;
        let requests = (0..form.roles()).map(|role| {
            let container = placement::container(place.container, role);
            let (key, condition) = (place.key.clone(), Condition::None);
            let op = Op::SetExpiry { container, key, expiry, condition };
            (self.member_of(place, role), manner.request(op))
        });
        let is_in = |member: &usize| self.state(*member) == MemberState::In;
        let were_in: Vec<usize> = (0..self.count()).filter(is_in).collect();
        let (done, slot) = self.write(place, (slot, Change::Expiry), requests.collect()).await?;
        // It expired while this was done: for one member before, perhaps, and for another after. One that has
        // come in meanwhile may never have had it: where it has expired, by this change, it is not given.
        let is_gone = |(member, output): &(usize, Output)| {
            *output == Output::Done && were_in.contains(member) && is_in(member)
        };
        if done.iter().any(is_gone) {
            return match self.write_delete(place, (slot, Some(self.roles)), manner).await {
                Err(error) if is_full(&error) => Err(self.not_undone(error)),
                deleted => deleted.and(Err(Error::NotFound)),
            };
        }
        // One that was not in then had it, perhaps, until it expired there before the change came.
        let has_none = done.iter().filter(|(_, output)| *output == Output::Done);
        let late: Vec<usize> = has_none.map(|(member, _)| *member).collect();
        if !late.is_empty()
            && let Err(error) = self.bring_to(place, &late).await
        {
            tracing::warn!(partition = self.partition, %error, "keys are compared again later");
            // Those that are in by now by whoever asks for the key, the others as they are filled once more.
            self.leave_unsettled(place, slot).await;
            late.iter().for_each(|member| self.rebuild(*member));
        }
        match self.first_of(place, done)? {
            Output::ExpirySet(set) => {
                let expiry_ms = set.expiry_ms;
                Ok(Output::ExpirySet(Item { version: set.version, expiry_ms, ..item.clone() }))
            }
            _ => Err(WRONG_OUTPUT),
        }
    }
}
