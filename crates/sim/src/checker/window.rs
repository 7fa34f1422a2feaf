//! The later part of a key's history, with all that the earlier part may have left.
//!
//! Place: `explain.rs` cuts off what a violation does not need.
//!
//! Invariants: every order of the whole history gives an order of the window, from one of its initial
//! states; so if the window has none, the whole has none.
//!
//! Must never: assume what the key held at the cut.

use std::collections::BTreeSet;

use super::history::{Expiry, Input, KeyHistory, Moment, Operation, Output, ValueId};
use super::model::{Live, State};

/// A part of a key's history that is judged by itself.
#[derive(Clone, Debug)]
pub(super) struct Window {
    pub(super) history: KeyHistory,
    /// The states that the key may have been in at the start.
    pub(super) initial: Vec<State>,
    /// For each operation, its place in the history it was cut from.
    origin: Vec<usize>,
}

/// Stands for a value that nobody observes.
const ANY_VALUE: ValueId = ValueId(u64::MAX);

impl Window {
    /// All of a history, from what the key held.
    pub(super) fn whole(history: &KeyHistory, held: State) -> Window {
        let origin = (0..history.operations.len()).collect();
        Window { history: history.clone(), initial: vec![held], origin }
    }

    /// The history from `start` on. Operations that had their response before are gone; all they can have
    /// done is to leave the key in one of the initial states: absent, or with any value written by then
    /// and any deadline at all. Operations under way at the cut may have taken effect on either side, so
    /// they are of unknown outcome in the window.
    ///
    /// `None` if the writer of a value that is observed in the window was under way: the value would be
    /// both an initial state and still to be written, and the checker counts on one writing per value.
    pub(super) fn from(history: &KeyHistory, held: State, start: Moment) -> Option<Window> {
        let ended = |operation: &Operation| operation.outcome.is_some_and(|outcome| outcome.at < start);
        let under_way = |operation: &Operation| operation.invoked < start && !ended(operation);
        let mut window = Window { history: history.clone(), initial: vec![None], origin: Vec::new() };
        window.history.operations.clear();
        for (i, operation) in history.operations.iter().enumerate() {
            if ended(operation) {
                continue;
            }
            let mut kept = *operation;
            kept.outcome = kept.outcome.filter(|_| !under_way(operation));
            window.history.operations.push(kept);
            window.origin.push(i);
        }
        let observed = window.observed();
        let mut values = BTreeSet::new();
        let mut deadlines: BTreeSet<Option<u64>> = BTreeSet::from([None]);
        if let Some(live) = held {
            deadlines.insert(live.deadline_ms);
            values.insert(if observed.contains(&live.value) { live.value } else { ANY_VALUE });
        }
        for operation in &history.operations {
            match operation.input {
                Input::Set { expiry: Expiry::At(deadline_ms), .. } | Input::Expire { deadline_ms } => {
                    deadlines.insert(Some(deadline_ms));
                }
                _ => {}
            }
            let Some(value) = operation.input.written() else {
                continue;
            };
            if operation.invoked < start {
                let seen = observed.contains(&value);
                if seen && under_way(operation) {
                    return None;
                }
                values.insert(if seen { value } else { ANY_VALUE });
            }
        }
        for value in values {
            let lives = deadlines.iter().map(|deadline_ms| Live { value, deadline_ms: *deadline_ms });
            window.initial.extend(lives.map(Some));
        }
        Some(window)
    }

    /// The operations with a known outcome, by their places in the history the window was cut from.
    pub(super) fn answered(&self) -> Vec<usize> {
        let operations = self.history.operations.iter().zip(&self.origin);
        operations.filter(|(operation, _)| operation.outcome.is_some()).map(|(_, i)| *i).collect()
    }

    fn observed(&self) -> BTreeSet<ValueId> {
        let outcomes = self.history.operations.iter().filter_map(|operation| operation.outcome);
        outcomes
            .filter_map(|outcome| match outcome.output {
                Output::Value(value) if value != ValueId::ABSENT => Some(value),
                _ => None,
            })
            .collect()
    }
}

#[cfg(test)]
mod tests;
