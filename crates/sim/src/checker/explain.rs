//! Finds the few operations of a violation that clash, and prints them among their neighbours.
//!
//! Place: called by `linearizable.rs` on a history that is known to have no order.
//!
//! Invariants: what is left is itself a violation: knowledge is only ever given up (what came later, what
//! came before a window, outcomes), and a history of which less is known allows more. Probes that run out
//! of budget count as linearizable, so the explanation may be larger than it need be, but is never wrong.
//!
//! Must never: change the verdict, or take much longer than the check itself.

use std::fmt;

use super::history::{Expiry, Input, KeyHistory, KeyId, Moment, Operation, Output};
use super::linearizable::{CheckConfig, decide};
use super::model::State;
use super::search::Ending;
use super::window::Window;

/// Configurations that one probe may enter.
const PROBE_STATES_MAX: u64 = 20_000;
/// Operations that one probe may try.
const PROBE_STEPS_MAX: u64 = 400_000;
/// Operations that the probes of one explanation may try, each way of making it smaller.
const PROBES_STEPS_MAX: u64 = 4_000_000;

/// Neighbours printed.
const NEIGHBOURS_MAX: usize = 40;

/// A key whose history is not linearizable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The key.
    pub key: KeyId,
    /// Its bytes.
    pub name: Vec<u8>,
    /// The operations whose outcomes clash, whatever the key held before and whatever the others were
    /// told; were any one of these outcomes unknown, the rest could be ordered (as far as the budget
    /// allowed to find out). By invocation.
    pub core: Vec<Operation>,
    /// The writers of the values that the core's answers show, if they are not in it.
    pub writers: Vec<Operation>,
    /// Other operations that overlap the core in time, by invocation.
    pub neighbours: Vec<Operation>,
    /// How many operations of unknown outcome were invoked before all of these.
    pub unknown_before: usize,
    /// From the first invocation to the last response of the core.
    pub window_ns: (u64, u64),
    /// The same, in full; with the name, why.
    pub explanation: String,
}

/// Explains a key history that is known to be a violation.
pub(super) fn explain(history: &KeyHistory, held: State, config: &CheckConfig) -> Violation {
    let mut prober = Prober {
        held,
        config: CheckConfig { states_max: PROBE_STATES_MAX, steps_max: PROBE_STEPS_MAX, ..*config },
        steps: 0,
    };
    let whole = Window::whole(history, held);
    let prefix = prober.shortest_prefix(history).unwrap_or(whole);
    let cut = prober.latest_cut(&prefix).unwrap_or(prefix);
    let forgetful = prober.forget_outcomes(cut);
    describe(history, &forgetful.answered())
}

/// Asks again and again whether what is left of a history is still a violation.
struct Prober {
    /// What the key held at the start.
    held: State,
    config: CheckConfig,
    steps: u64,
}

impl Prober {
    fn is_violation(&mut self, window: &Window) -> bool {
        if self.steps > PROBES_STEPS_MAX {
            return false;
        }
        let (ending, spent) = decide(&window.history, &window.initial, &self.config);
        self.steps += spent.steps + (window.history.operations.len() + window.initial.len()) as u64;
        ending == Ending::Impossible
    }

    /// What was known at the first response after which no order was left.
    fn shortest_prefix(&mut self, history: &KeyHistory) -> Option<Window> {
        self.steps = 0;
        let outcomes = history.operations.iter().filter_map(|operation| operation.outcome);
        let mut responses: Vec<Moment> = outcomes.map(|outcome| outcome.at).collect();
        responses.sort();
        let mut shortest = None;
        // The whole is a violation; look for the first response that makes one.
        let (mut low, mut high) = (0, responses.len());
        while low < high {
            let middle = low + (high - low) / 2;
            let prefix = Window::whole(&history.until(responses[middle]), self.held);
            if self.is_violation(&prefix) {
                shortest = Some(prefix);
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        shortest
    }

    /// The latest window that is a violation whatever the key held before it.
    fn latest_cut(&mut self, prefix: &Window) -> Option<Window> {
        self.steps = 0;
        let operations = &prefix.history.operations;
        let starts = operations.iter().rev().map(|operation| operation.invoked);
        let held = self.held;
        let mut windows = starts.filter_map(|start| Window::from(&prefix.history, held, start));
        windows.find(|window| self.is_violation(window))
    }

    /// Forgets every outcome that the violation does not need, in ever smaller blocks, the oldest first.
    fn forget_outcomes(&mut self, mut window: Window) -> Window {
        self.steps = 0;
        let mut block = window.history.operations.len().div_ceil(2).max(1);
        loop {
            for start in (0..window.history.operations.len()).step_by(block) {
                let end = (start + block).min(window.history.operations.len());
                let mut weaker = window.clone();
                for operation in &mut weaker.history.operations[start..end] {
                    operation.outcome = None;
                }
                let forgot = weaker.history.operations != window.history.operations;
                if forgot && self.is_violation(&weaker) {
                    window = weaker;
                }
            }
            if block == 1 {
                return window;
            }
            block = block.div_ceil(2);
        }
    }
}

fn describe(history: &KeyHistory, core: &[usize]) -> Violation {
    let operations = &history.operations;
    let is_core = |i: usize| core.contains(&i);
    let from = core.iter().map(|i| operations[*i].invoked).min();
    let to = core.iter().filter_map(|i| operations[*i].outcome).map(|outcome| outcome.at).max();
    let (from, to) = (from.unwrap_or(Moment::at(0)), to.unwrap_or(Moment::at(0)));
    let answers = core.iter().filter_map(|i| operations[*i].outcome).map(|outcome| outcome.output);
    let shown: Vec<Output> = answers.collect();
    let wrote = |operation: &Operation| {
        operation.input.written().is_some_and(|value| shown.contains(&Output::Value(value)))
    };
    let overlaps = |operation: &Operation| {
        let ended = operation.outcome.map_or(operation.invoked, |outcome| outcome.at);
        operation.invoked <= to && ended >= from
    };
    let mut violation = Violation {
        key: history.key,
        name: history.name.clone(),
        core: core.iter().map(|i| operations[*i]).collect(),
        writers: (0..operations.len())
            .filter(|i| !is_core(*i) && wrote(&operations[*i]))
            .map(|i| operations[i])
            .collect(),
        neighbours: (0..operations.len())
            .filter(|i| !is_core(*i) && !wrote(&operations[*i]) && overlaps(&operations[*i]))
            .map(|i| operations[i])
            .collect(),
        unknown_before: operations
            .iter()
            .filter(|operation| operation.outcome.is_none() && operation.invoked < from)
            .count(),
        window_ns: (from.ns, to.ns),
        explanation: String::new(),
    };
    violation.explanation = words(&violation);
    violation
}

fn words(violation: &Violation) -> String {
    let mut text = format!(
        "key \"{}\" is not linearizable: between {} ns and {} ns, the answers marked * \
         cannot all be true (w: wrote what they show)\n",
        violation.name.escape_ascii(),
        violation.window_ns.0,
        violation.window_ns.1,
    );
    if violation.unknown_before > 0 {
        text += &format!(
            "    ({} operations of unknown outcome were invoked before)\n",
            violation.unknown_before
        );
    }
    let left_out = violation.neighbours.len().saturating_sub(NEIGHBOURS_MAX);
    // The neighbours nearest to the end matter most.
    let neighbours = violation.neighbours[left_out..].iter().map(|operation| (operation, ' '));
    let core = violation.core.iter().map(|operation| (operation, '*'));
    let writers = violation.writers.iter().map(|operation| (operation, 'w'));
    let mut lines: Vec<(&Operation, char)> = core.chain(writers).chain(neighbours).collect();
    lines.sort_by_key(|(operation, _)| operation.invoked);
    let with_wall = lines.iter().any(|(operation, _)| has_deadline(&operation.input));
    if left_out > 0 {
        text += &format!("    ({left_out} other operations that overlap are left out)\n");
    }
    for (operation, mark) in lines {
        let (end, told) = match operation.outcome {
            Some(outcome) => (outcome.at.ns.to_string(), outcome.output.to_string()),
            None => ("?".to_string(), "unknown".to_string()),
        };
        text += &format!(
            "  {mark} [{:>12} .. {:>12}] client {:<4} {} -> {}",
            operation.invoked.ns, end, operation.client, operation.input, told,
        );
        if with_wall {
            text += &format!("   (wall {}..{} ms)", operation.wall.min_ms, operation.wall.max_ms);
        }
        text += "\n";
    }
    text
}

fn has_deadline(input: &Input) -> bool {
    match input {
        Input::Expire { .. } => true,
        Input::Set { expiry, .. } => matches!(expiry, Expiry::At(_)),
        _ => false,
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.explanation)
    }
}
