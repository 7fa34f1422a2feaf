//! Installing: memory learns what was written.
//!
//! Place on the path: the last step of every write, in one instant.
//!
//! Invariants: what is installed is on the drive; a change of a container that was emptied meanwhile is none,
//! and what was stored for it goes.
//!
//! Never: it waits.

use crate::drive::DriveKey;
use crate::hosts::Encoded;
use crate::index::{At, Body, Container, Live};
use crate::intent::Intent;
use crate::plan::{Change, Plan};
use crate::slots::{GENERATIONS, Slots, State};
use plimsoll_kv::ContainerId;
use std::rc::Rc;

/// Where a change was written.
pub(crate) enum Spot {
    /// In a slot of its key.
    Slot(u8),
    /// With this object.
    Rider(DriveKey, Encoded),
    /// Nowhere: nothing is left of the key.
    Deleted,
}

/// Where changes were written.
pub(crate) struct Placed {
    /// Of each.
    pub(crate) spots: Vec<Spot>,
    /// The flush that makes all of them durable.
    pub(crate) flush: u64,
    /// The object that carries all of them, if there is one.
    pub(crate) intent: Option<(DriveKey, Intent)>,
}

impl Slots {
    pub(crate) fn install(self: &Rc<Self>, plan: Plan, placed: Placed) {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        assert_eq!(plan.changes.len(), placed.spots.len(), "every change has a place");
        for (change, spot) in plan.changes.into_iter().zip(placed.spots) {
            self.install_one(state, change, spot, placed.flush);
        }
        for upload in plan.uploads {
            state.uploads.pending.remove(&upload);
        }
        if let Some((key, intent)) = placed.intent {
            self.keeper.committed(key, intent);
            for (of, _) in state.hosts.riders(key) {
                self.keeper.give_home(of.0, &of.2);
            }
        }
    }

    /// A change that was written by itself.
    pub(crate) fn install_alone(&self, change: Change, spot: Spot, flush: u64) {
        self.install_one(&mut self.state.borrow_mut(), change, spot, flush);
    }

    fn install_one(&self, state: &mut State, change: Change, spot: Spot, flush: u64) {
        let of = Slots::key_of(&change);
        if state.generation(change.container) != change.generation {
            if let Spot::Slot(slot) = spot {
                self.doomed.add(self.place(&of, slot));
            }
            return;
        }
        let (length, is_gone) = (change.length(), matches!(change.body, Body::Gone));
        let at = match &spot {
            Spot::Slot(slot) => Some(At::Slot(*slot)),
            Spot::Rider(host, _) => Some(At::Rider(*host)),
            Spot::Deleted => None,
        };
        let current = at.map(|at| Live {
            sequence: change.sequence,
            version: change.version,
            expiry_ms: change.expiry_ms,
            length,
            body: change.body,
            at,
            flush,
        });
        let container = state.containers.entry(change.container).or_default();
        let (before, has_rest) = container.update(&change.key, |entry| {
            let before = std::mem::replace(&mut entry.current, current);
            let before_at = before.as_ref().map(|live| live.at);
            if change.retains {
                entry.retained = before.map(Box::new);
            } else if !change.keeps {
                entry.retained = None;
            }
            match spot {
                Spot::Slot(slot) => entry.occupied[usize::from(slot)] = true,
                Spot::Deleted => entry.occupied = [false; 2],
                Spot::Rider(..) => {}
            }
            (before_at, entry.stale_slots().next().is_some())
        });
        if let Some(At::Rider(host)) = before {
            state.hosts.remove(host, &of, flush);
        }
        if let Spot::Rider(host, encoded) = spot {
            if !is_gone {
                state.hosts.ride(of.clone(), change.sequence);
            }
            state.hosts.add(host, of, encoded);
        }
        if has_rest || is_gone {
            self.keeper.tidy(change.container, &change.key);
        }
        if change.container == GENERATIONS {
            self.emptied(state, &change.key, &change.bytes);
        }
    }

    /// A container is of a new generation. What the one before holds goes by and by.
    fn emptied(&self, state: &mut State, key: &[u8], bytes: &[u8]) {
        let number = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().expect("four bytes"));
        let (container, generation) = (ContainerId(number(key)), number(bytes));
        let before = state.containers.insert(container, Container::new(generation));
        assert!(before.as_ref().map_or(0, |before| before.generation) < generation, "generations grow");
        if let Some(before) = before {
            self.keeper.emptied(container, before);
        }
    }
}
