//! Retained versions: given up, or put back.
//!
//! Invariants: a retained record goes only when what retains it is durable; what was given up does not come
//! back, for its slot is durably empty or holds riders alone; what was put back has a sequence that is higher
//! than that of what it replaces, wherever copies of that are.

use crate::hosts::KeyOf;
use crate::index::{At, Body};
use crate::install::Spot;
use crate::object::{Kind, Record};
use crate::plan::Change;
use crate::slots::Slots;
use plimsoll_kv::{ContainerId, Durability, Error, Output, Result, Version};
use std::rc::Rc;

/// The key is there, and only its current version.
const NOTHING_RETAINED: Error = Error::Invalid("no version is retained");

impl Slots {
    pub(crate) async fn release(self: &Rc<Self>, container: ContainerId, key: &[u8]) -> Result<Output> {
        let _guard = self.lock_key(container, key).await;
        self.check_writable()?;
        let (of, slot, flush) = {
            let state = self.state.borrow();
            let of = state.key_of(container, key);
            self.check_whole(container, of.1, key)?;
            let entry = state.entry(container, key).ok_or(Error::NotFound)?;
            let current = entry.live(self.clock.now_ms()).ok_or(Error::NotFound)?;
            let flush = current.flush;
            (of, entry.retained_slot().ok_or(NOTHING_RETAINED)?, flush)
        };
        self.flushed(flush).await?;
        let is_husk = self.empty_slot(&of, slot).await?;
        let mut state = self.state.borrow_mut();
        if state.generation(container) == of.1 {
            let of_container = state.containers.get_mut(&container).expect("it has the key");
            of_container.update(key, |entry| {
                entry.retained = None;
                entry.occupied[usize::from(slot)] = is_husk;
            });
            if is_husk {
                self.keeper.tidy(container, key);
            }
        }
        drop(state);
        self.kick();
        Ok(Output::Done)
    }

    /// Takes away what stands in a slot, durably: true if riders stay there. The key is held.
    async fn empty_slot(&self, of: &KeyOf, slot: u8) -> Result<bool> {
        let key = self.place(of, slot);
        if self.state.borrow().hosts.carries(key) {
            let mut husk = Record::named(Kind::Husk, of.2.to_vec());
            (husk.container, husk.generation) = (of.0, of.1);
            let flush = self.store_in_slot((of, slot, true), &husk, &[], &[], &[]).await?;
            self.flushed(flush).await?;
            return Ok(true);
        }
        self.may_go(key).await?;
        self.delete_object(key).await?;
        Ok(false)
    }

    pub(crate) async fn revert(
        self: &Rc<Self>,
        container: ContainerId,
        key: &[u8],
        durability: Durability,
    ) -> Result<Output> {
        let _guard = self.lock_key(container, key).await;
        self.check_writable()?;
        let _under_way = self.begin();
        let (of, kept) = {
            let state = self.state.borrow();
            let of = state.key_of(container, key);
            self.check_whole(container, of.1, key)?;
            let entry = state.entry(container, key).ok_or(Error::NotFound)?;
            entry.current.as_ref().filter(|live| !live.is_gone()).ok_or(Error::NotFound)?;
            (of, entry.retained.clone().ok_or(NOTHING_RETAINED)?)
        };
        let At::Slot(slot) = kept.at else { unreachable!("what is retained stands in a slot") };
        let bytes = match kept.body {
            Body::Whole => self.read_held(&of, &kept).await?,
            _ => Vec::new(),
        };
        // In place: one store makes it the newest, and what it replaces is of no use from then on.
        let change = Change {
            container,
            generation: of.1,
            key: key.to_vec(),
            sequence: self.next_version(),
            version: kept.version,
            expiry_ms: kept.expiry_ms,
            body: kept.body.clone(),
            bytes,
            retains: false,
            keeps: false,
            below: Version::ZERO,
        };
        let place = (&of, slot, true);
        let flush = self.store_in_slot(place, &change.record(), &change.value(), &[], &[]).await?;
        if durability != Durability::Async {
            self.flushed(flush).await?;
        }
        self.install_alone(change, Spot::Slot(slot), flush);
        self.kick();
        Ok(Output::Done)
    }
}
