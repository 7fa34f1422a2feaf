//! Is every key of a history linearizable?
//!
//! Place: the face of the checker; `prepare.rs` and `search.rs` do the work, `explain.rs` finds the words.
//!
//! The algorithm is the search of J. M. Wing and C. Gong, "Testing and Verifying Concurrent Objects"
//! (Journal of Parallel and Distributed Computing 17, 1993), with the memory of configurations of
//! G. Lowe, "Testing for linearizability" (Concurrency and Computation: Practice and Experience 29(4),
//! 2017). Keys are checked one by one: linearizability is local (M. P. Herlihy and J. M. Wing,
//! "Linearizability: A Correctness Condition for Concurrent Objects", TOPLAS 12(3), 1990).
//!
//! Invariants: `Ok` and `Violation` are proven under the model (of wall times, `search.rs` says which
//! orders count); the budget bounds time and memory, and
//! is counted in work, so that the verdict does not depend on the machine.
//!
//! Must never: call a history `Ok` that was not searched to its end.

use super::explain::{Violation, explain};
use super::history::{History, KeyHistory, KeyId, ValueId};
use super::model::{Live, Model, State};
use super::prepare::prepare;
use super::search::{Budget, Ending, search};

/// How to check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckConfig {
    /// How far the clocks that judge deadlines may differ from the recorded wall times.
    pub slack_ms: u64,
    /// Configurations entered, at most, for each key. Bounds memory: about 150 bytes each.
    pub states_max: u64,
    /// Operations tried, at most, for each key. Bounds time.
    pub steps_max: u64,
}

impl Default for CheckConfig {
    fn default() -> CheckConfig {
        CheckConfig { slack_ms: 0, states_max: 1_000_000, steps_max: 30_000_000 }
    }
}

/// A search that did not end within its budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exhausted {
    /// The key.
    pub key: KeyId,
    /// Its bytes.
    pub name: Vec<u8>,
    /// Configurations entered.
    pub states: u64,
    /// Operations tried.
    pub steps: u64,
}

/// What a check found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Linearizable.
    Ok,
    /// Not linearizable, and why.
    Violation(Box<Violation>),
    /// Not decided within the budget.
    Unknown(Exhausted),
}

impl Verdict {
    /// Whether it is `Ok`.
    pub fn is_ok(&self) -> bool {
        matches!(self, Verdict::Ok)
    }

    /// Whether it is a violation.
    pub fn is_violation(&self) -> bool {
        matches!(self, Verdict::Violation(_))
    }
}

/// Checks all keys, each from absence: the first violation in the order of keys; else `Unknown` if a key
/// could not be decided; else `Ok`. Panics if a key has a value that is written twice.
pub fn check(history: &History, config: &CheckConfig) -> Verdict {
    let mut verdict = Verdict::Ok;
    for key_history in history.by_key() {
        match check_key(&key_history, config) {
            Verdict::Ok => {}
            Verdict::Unknown(exhausted) => {
                if verdict.is_ok() {
                    verdict = Verdict::Unknown(exhausted);
                }
            }
            violation => return violation,
        }
    }
    verdict
}

/// What a key holds at the start of a history: a value and its deadline, or nothing.
pub type Held = Option<(ValueId, Option<u64>)>;

/// Checks one key, from absence.
pub fn check_key(history: &KeyHistory, config: &CheckConfig) -> Verdict {
    check_key_from(history, None, config)
}

/// Checks one key that holds something at the start. The value must not be written by the history.
pub fn check_key_from(history: &KeyHistory, held: Held, config: &CheckConfig) -> Verdict {
    let initial = [held.map(|(value, deadline_ms)| Live { value, deadline_ms })];
    match decide(history, &initial, config) {
        (Ending::Ordered, _) => Verdict::Ok,
        (Ending::Impossible, _) => Verdict::Violation(Box::new(explain(history, initial[0], config))),
        (Ending::Exhausted, spent) => Verdict::Unknown(Exhausted {
            key: history.key,
            name: history.name.clone(),
            states: spent.states,
            steps: spent.steps,
        }),
    }
}

/// The verdict without the words, on a history that starts in one of the given states.
pub(super) fn decide(history: &KeyHistory, initial: &[State], config: &CheckConfig) -> (Ending, Budget) {
    let model = Model { slack_ms: config.slack_ms };
    let allowed = Budget { states: config.states_max, steps: config.steps_max };
    search(&prepare(history, initial, &model), &model, allowed)
}

#[cfg(test)]
mod tests;
