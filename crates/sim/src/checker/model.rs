//! The sequential model: what one key may answer, one operation at a time.
//!
//! Place: the search asks it which states an operation can lead to.
//!
//! Invariants: pure. A key past its deadline may be seen present only by an operation that met a wall
//! time not above the deadline plus the slack, and seen absent only if the wall clock had reached the
//! deadline less the slack by its response; once seen absent it is absent, until it is written again.
//!
//! Must never: know of concurrency.

use super::history::{Condition, Expiry, Input, Lifetime, Output, ValueId, WallSpan};

/// A key's value and deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Live {
    pub(super) value: ValueId,
    pub(super) deadline_ms: Option<u64>,
}

/// A key's state. `Some` may be past its deadline, as long as nobody has seen it gone.
pub(super) type State = Option<Live>;

/// What is known of an operation's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Expectation {
    /// It was this.
    Exactly(Output),
    /// Unknown, but the write applied.
    Applied,
    /// Nothing.
    Anything,
}

/// At most two states: a key that may or may not have expired gives one of each.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Successors {
    states: [State; 2],
    count: usize,
}

impl Successors {
    fn add(&mut self, state: State) {
        if !self.contains(state) {
            self.states[self.count] = state;
            self.count += 1;
        }
    }

    pub(super) fn as_slice(&self) -> &[State] {
        &self.states[..self.count]
    }

    pub(super) fn contains(&self, state: State) -> bool {
        self.as_slice().contains(&state)
    }
}

/// The model and its one parameter.
#[derive(Clone, Copy, Debug)]
pub(super) struct Model {
    /// How far the clocks that judge a deadline may differ from the one that recorded the history.
    pub(super) slack_ms: u64,
}

impl Model {
    /// The states that `input` can lead to from `state`, if it is to give the expected answer.
    pub(super) fn step(
        &self,
        state: State,
        input: &Input,
        expectation: Expectation,
        wall: WallSpan,
    ) -> Successors {
        let mut successors = Successors::default();
        let mut seen = |view: State| {
            let (applied, after) = apply(view, input);
            let fits = match expectation {
                Expectation::Exactly(output) => self.answers(view, input, output, wall),
                Expectation::Applied => applied,
                Expectation::Anything => true,
            };
            if fits {
                successors.add(after);
            }
        };
        match state {
            None => seen(None),
            Some(live) => {
                let deadline_ms = live.deadline_ms;
                if deadline_ms.is_none_or(|d| wall.min_ms <= d.saturating_add(self.slack_ms)) {
                    seen(state);
                }
                if deadline_ms.is_some_and(|d| wall.high_ms >= d.saturating_sub(self.slack_ms)) {
                    seen(None);
                }
            }
        }
        successors
    }

    /// Whether a key that is seen as `view` gives this output.
    fn answers(&self, view: State, input: &Input, output: Output, wall: WallSpan) -> bool {
        let present = view.is_some();
        match (input, output) {
            (Input::Set { get_old: true, .. } | Input::Get, Output::Value(value)) => {
                value == view.map_or(ValueId::ABSENT, |live| live.value)
            }
            (Input::Set { get_old: false, .. }, Output::Flag(flag)) => flag == apply(view, input).0,
            (Input::Delete | Input::Exists | Input::Expire { .. }, Output::Flag(flag)) => flag == present,
            (Input::Persist, Output::Flag(flag)) => {
                flag == view.is_some_and(|live| live.deadline_ms.is_some())
            }
            (Input::Ttl, Output::Lifetime(lifetime)) => self.lives(view, lifetime, wall),
            (Input::Clear | Input::Delete, Output::Done) => true,
            _ => panic!("{output:?} is no answer to {input:?}"),
        }
    }

    fn lives(&self, view: State, lifetime: Lifetime, wall: WallSpan) -> bool {
        let deadline_ms = view.map(|live| live.deadline_ms);
        match (lifetime, deadline_ms) {
            (Lifetime::Absent, None) | (Lifetime::Unlimited, Some(None)) => true,
            (Lifetime::Until(until_ms), Some(Some(deadline_ms))) => until_ms == deadline_ms,
            (Lifetime::Remaining(left_ms), Some(Some(deadline_ms))) => {
                // The wall time at which the answer is exact.
                let asked_ms = i128::from(deadline_ms) - i128::from(left_ms);
                let slack_ms = i128::from(self.slack_ms);
                asked_ms >= i128::from(wall.min_ms) - slack_ms
                    && asked_ms <= i128::from(wall.max_ms) + slack_ms
            }
            _ => false,
        }
    }
}

/// Whether a key seen as `view` is changed, and its state afterwards.
fn apply(view: State, input: &Input) -> (bool, State) {
    match input {
        Input::Get | Input::Exists | Input::Ttl => (false, view),
        Input::Delete | Input::Clear => (view.is_some(), None),
        Input::Expire { deadline_ms } => {
            let deadline_ms = Some(*deadline_ms);
            (view.is_some(), view.map(|live| Live { deadline_ms, ..live }))
        }
        Input::Persist => {
            let deadline_ms = None;
            (view.is_some(), view.map(|live| Live { deadline_ms, ..live }))
        }
        Input::Set { value, condition, expiry, .. } => {
            let applies = match condition {
                Condition::Always => true,
                Condition::IfAbsent => view.is_none(),
                Condition::IfPresent => view.is_some(),
            };
            if !applies {
                return (false, view);
            }
            let deadline_ms = match expiry {
                Expiry::Discard => None,
                Expiry::Keep => view.and_then(|live| live.deadline_ms),
                Expiry::At(deadline_ms) => Some(*deadline_ms),
            };
            let value = *value;
            (true, Some(Live { value, deadline_ms }))
        }
    }
}

#[cfg(test)]
mod tests;
