//! Turns a key's history into what the search runs on, using that every written value is unique.
//!
//! Place: between `history.rs` and `search.rs`.
//!
//! Invariants: the prepared history can be ordered exactly if the given one can. Why each reduction
//! keeps that is argued beside it.
//!
//! Must never: drop an operation whose outcome is known.

use std::collections::BTreeMap;

use super::history::{
    Condition, Expiry, Input, KeyHistory, Lifetime, Moment, Operation, Output, ValueId, WallSpan,
};
use super::model::{Expectation, Live, Model, State};

/// Stands for every value that nobody observed: they cannot be told apart, so neither need the states
/// that hold them.
const UNOBSERVED: ValueId = ValueId(u64::MAX);

/// An operation as the search sees it. Values are numbered from 1, densely, in both directions.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) input: Input,
    pub(super) expectation: Expectation,
    pub(super) wall: WallSpan,
    /// The value that its known output shows; 0 for none.
    pub(super) observes: usize,
    /// Changes nothing wherever it stands, so it can be ordered as soon as it fits.
    pub(super) at_once: bool,
    /// Lower is tried earlier.
    pub(super) priority: u64,
}

/// Operations of unknown outcome that cannot be told apart but by when they were invoked. The search may
/// use any number of them, earliest first: as none has an end, one can stand in for a later one.
#[derive(Clone, Debug)]
pub(super) struct Class {
    pub(super) step: Step,
    /// Ranks of the invocations, ascending.
    pub(super) invoked: Vec<u32>,
}

/// A point of the time line; its rank is its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// Required operation number n is invoked.
    Call(usize),
    /// Its response arrives.
    Return(usize),
    /// An optional operation is invoked.
    Optional,
}

/// A key's history, ready for the search.
#[derive(Debug, Default)]
pub(super) struct Prepared {
    /// States to start from.
    pub(super) initial: Vec<State>,
    /// Operations that must be ordered, by invocation.
    pub(super) required: Vec<Step>,
    /// Operations that may be.
    pub(super) optional: Vec<Class>,
    /// All invocations and responses, in the order of time; at equal times invocations first.
    pub(super) events: Vec<Event>,
    /// How many required operations observe each value.
    pub(super) observers: Vec<u32>,
    /// Whether any operation sets a deadline.
    pub(super) deadlines: bool,
    /// A value was read that nobody had begun to write by then.
    pub(super) impossible: bool,
}

/// What is known of one observed value.
struct Observed {
    slot: usize,
    observers: u32,
    first_response: Moment,
}

/// Prepares a key's history that starts in one of the given states. Panics if a value is written twice:
/// the reductions would be wrong. A value held at the start must not be written by the history.
pub(super) fn prepare(history: &KeyHistory, initial: &[State], model: &Model) -> Prepared {
    let operations = &history.operations;
    let observed = observed_values(operations);
    let mut writers: BTreeMap<ValueId, &Operation> = BTreeMap::new();
    for operation in operations {
        if let Some(value) = operation.input.written() {
            let twice = writers.insert(value, operation).is_some();
            assert!(!twice, "value {} is written twice to one key", value.0);
        }
    }
    let mut prepared = Prepared {
        observers: vec![0; observed.len() + 1],
        deadlines: operations.iter().any(|operation| sets_deadline(&operation.input))
            || initial.iter().flatten().any(|live| live.deadline_ms.is_some()),
        impossible: observed.iter().any(|(value, seen)| {
            let held = initial.iter().flatten().any(|live| live.value == *value);
            !held && writers.get(value).is_none_or(|writer| writer.invoked > seen.first_response)
        }),
        ..Prepared::default()
    };
    for seen in observed.values() {
        prepared.observers[seen.slot] = seen.observers;
    }
    if prepared.impossible {
        return prepared;
    }
    let numbered = |live: Live| Live { value: number(live.value, &observed), ..live };
    prepared.initial = initial.iter().map(|state| state.map(numbered)).collect();
    let blind_writes_matter = blind_writes_matter(operations, &observed, model);
    let mut line = TimeLine::default();
    for operation in operations {
        let seen_as = operation.input.written().and_then(|value| observed.get(&value));
        let mut step = step_of(operation, &observed, seen_as);
        step.at_once = changes_nothing(&step);
        match (operation.outcome, seen_as) {
            (Some(outcome), _) => line.require(operation.invoked, outcome.at, step),
            // Somebody saw the value, and only this operation can have written it: it did apply, before
            // the first response that showed it. From here on its outcome is as good as known.
            (None, Some(seen)) => line.require(operation.invoked, seen.first_response, step),
            // A read changes nothing, so one without an answer says nothing.
            (None, None) if operation.input.is_read() => {}
            (None, None) if operation.input == Input::Persist && !prepared.deadlines => {}
            (None, None) if operation.input.written().is_some() && !blind_writes_matter => {}
            (None, None) => line.offer(operation.invoked, step, prepared.deadlines),
        }
    }
    line.finish(&mut prepared);
    prepared
}

fn observed_values(operations: &[Operation]) -> BTreeMap<ValueId, Observed> {
    let mut observed: BTreeMap<ValueId, Observed> = BTreeMap::new();
    for outcome in operations.iter().filter_map(|operation| operation.outcome) {
        let Output::Value(value) = outcome.output else {
            continue;
        };
        if value == ValueId::ABSENT {
            continue;
        }
        let slot = observed.len() + 1;
        let seen =
            observed.entry(value).or_insert(Observed { slot, observers: 0, first_response: outcome.at });
        seen.observers += 1;
        seen.first_response = seen.first_response.min(outcome.at);
    }
    observed
}

/// The number of a written value.
fn number(value: ValueId, observed: &BTreeMap<ValueId, Observed>) -> ValueId {
    observed.get(&value).map_or(UNOBSERVED, |seen| ValueId(seen.slot as u64))
}

fn sets_deadline(input: &Input) -> bool {
    let by_set = matches!(input, Input::Set { expiry: Expiry::At(_), .. });
    by_set || matches!(input, Input::Expire { .. })
}

/// Whether a write of unknown outcome whose value nobody observed can explain anything at all. If not,
/// all such writes are dropped.
///
/// Take an order that holds such a write W, and look at the operations after W up to the next one that
/// overwrites or removes W's value. With the answer `false` none of them can depend on W:
/// * an operation that shows a value would show W's, which nobody observed;
/// * an operation that tells presence without the value (EXISTS or DEL with yes, an applied XX, a refused
///   NX, a deadline answered or changed), that tells there is no deadline (PERSIST with no), or that takes
///   over W's deadline (KEEPTTL) is not in the history, nor one of unknown outcome that needs the presence
///   to change anything but W (XX, KEEPTTL; PEXPIREAT is counted too, as it brings a deadline);
/// * an operation that tells absence cannot come there, as W's deadline is never reached in the history;
/// * an NX of unknown outcome there was refused, and a PERSIST of unknown outcome changed W alone, so they
///   can be left out with W.
///
/// What remains are operations of unknown outcome without effect, and then an overwrite or removal that
/// does not look at what was there. So W can be left out and the rest of the order still holds. With W,
/// the condition of W does not matter: leaving out a refused write changes nothing.
fn blind_writes_matter(
    operations: &[Operation],
    observed: &BTreeMap<ValueId, Observed>,
    model: &Model,
) -> bool {
    let high_ms = operations.iter().map(|operation| operation.wall.high_ms).max();
    operations.iter().any(|operation| {
        let unknown = operation.outcome.is_none();
        let told = operation.outcome.map(|outcome| outcome.output);
        match operation.input {
            Input::Set { expiry: Expiry::Keep, .. } => true,
            Input::Set { value, condition, expiry, .. } => {
                let tells_presence = match condition {
                    Condition::Always => false,
                    Condition::IfAbsent => told == Some(Output::Flag(false)),
                    Condition::IfPresent => unknown || told == Some(Output::Flag(true)),
                };
                let droppable = unknown && !observed.contains_key(&value);
                let expires = match expiry {
                    Expiry::At(d) => high_ms.is_some_and(|h| h >= d.saturating_sub(model.slack_ms)),
                    Expiry::Discard | Expiry::Keep => false,
                };
                tells_presence || (droppable && expires)
            }
            Input::Expire { .. } => unknown || told == Some(Output::Flag(true)),
            Input::Delete | Input::Exists => told == Some(Output::Flag(true)),
            Input::Persist => !unknown,
            Input::Ttl => !unknown && told != Some(Output::Lifetime(Lifetime::Absent)),
            Input::Get | Input::Clear => false,
        }
    })
}

fn step_of(
    operation: &Operation,
    observed: &BTreeMap<ValueId, Observed>,
    seen_as: Option<&Observed>,
) -> Step {
    let slot = |value: ValueId| observed.get(&value).map_or(0, |seen| seen.slot);
    let mut input = operation.input;
    if let Input::Set { value, .. } = &mut input {
        *value = number(*value, observed);
    }
    let mut observes = 0;
    let expectation = match operation.outcome.map(|outcome| outcome.output) {
        Some(Output::Value(value)) => {
            observes = slot(value);
            Expectation::Exactly(Output::Value(ValueId(observes as u64)))
        }
        Some(output) => Expectation::Exactly(output),
        None if seen_as.is_some() => Expectation::Applied,
        None => Expectation::Anything,
    };
    Step { input, expectation, wall: operation.wall, observes, at_once: false, priority: 0 }
}

/// Whether an operation with this answer, wherever it stands, leaves every state as it is, but for seeing
/// that a key expired.
fn changes_nothing(step: &Step) -> bool {
    let Expectation::Exactly(output) = step.expectation else {
        return false;
    };
    let absent = output == Output::Value(ValueId::ABSENT);
    match step.input {
        Input::Get | Input::Exists | Input::Ttl => true,
        Input::Delete | Input::Expire { .. } | Input::Persist => output == Output::Flag(false),
        Input::Clear => false,
        Input::Set { condition, get_old, .. } => match condition {
            Condition::Always => false,
            Condition::IfAbsent if get_old => !absent,
            Condition::IfPresent if get_old => absent,
            Condition::IfAbsent | Condition::IfPresent => output == Output::Flag(false),
        },
    }
}

/// Gathers the operations, then ranks their ends.
#[derive(Default)]
struct TimeLine {
    required: Vec<(Moment, Moment, Step)>,
    optional: BTreeMap<(Input, Option<WallSpan>), (Step, Vec<Moment>)>,
}

impl TimeLine {
    fn require(&mut self, invoked: Moment, response: Moment, step: Step) {
        debug_assert!(invoked <= response, "an operation runs forward");
        self.required.push((invoked, response, step));
    }

    fn offer(&mut self, invoked: Moment, mut step: Step, deadlines: bool) {
        match &mut step.input {
            // What they would have answered does not matter; what they do is the same.
            input @ (Input::Delete | Input::Clear) => *input = Input::Delete,
            Input::Set { get_old, .. } => *get_old = false,
            _ => {}
        }
        // The wall time matters only to operations whose effect depends on whether the key is there.
        let blind = match step.input {
            Input::Delete => true,
            Input::Set { condition, expiry, .. } => condition == Condition::Always && expiry != Expiry::Keep,
            _ => false,
        };
        let wall = (deadlines && !blind).then_some(step.wall);
        let class = self.optional.entry((step.input, wall));
        class.or_insert((step, Vec::new())).1.push(invoked);
    }

    fn finish(mut self, prepared: &mut Prepared) {
        self.required.sort_by_key(|(invoked, ..)| *invoked);
        let optional: Vec<(Step, Vec<Moment>)> = self.optional.into_values().collect();
        // (when, whether a response, which): at equal times invocations come first.
        let mut points: Vec<(Moment, bool, Event, usize)> = Vec::new();
        for (n, (invoked, response, _)) in self.required.iter().enumerate() {
            points.push((*invoked, false, Event::Call(n), 0));
            points.push((*response, true, Event::Return(n), 0));
        }
        for (class, (_, invoked)) in optional.iter().enumerate() {
            points.extend(invoked.iter().map(|at| (*at, false, Event::Optional, class)));
        }
        points.sort_by_key(|(at, is_response, ..)| (*at, *is_response));

        let mut classes: Vec<Class> =
            optional.into_iter().map(|(step, _)| Class { step, invoked: Vec::new() }).collect();
        let mut responses = vec![0u32; self.required.len()];
        let mut first_seen = vec![u32::MAX; prepared.observers.len()];
        for (rank, (_, _, event, class)) in points.iter().enumerate() {
            let rank = u32::try_from(rank).expect("fewer than 2^32 events");
            match event {
                Event::Call(_) => {}
                Event::Return(n) => {
                    responses[*n] = rank;
                    let seen = &mut first_seen[self.required[*n].2.observes];
                    *seen = (*seen).min(rank);
                }
                Event::Optional => classes[*class].invoked.push(rank),
            }
        }
        prepared.events = points.into_iter().map(|(_, _, event, _)| event).collect();
        prepared.optional = classes;
        prepared.required = self.required.into_iter().map(|(_, _, step)| step).collect();
        for (step, response) in prepared.required.iter_mut().zip(responses) {
            step.priority = priority(step, response, &first_seen);
        }
    }
}

/// Operations that show nothing of what follows come first, by their responses; writes of observed
/// values after them, by the first response that shows the value: the search would else overwrite a
/// value that is still to be read.
fn priority(step: &Step, response: u32, first_seen: &[u32]) -> u64 {
    const AFTER_UNOBSERVED: u64 = 1 << 32;
    match step.input.written() {
        Some(value) if value != UNOBSERVED => {
            let slot = usize::try_from(value.0).expect("a slot");
            AFTER_UNOBSERVED + u64::from(first_seen[slot])
        }
        _ => u64::from(response),
    }
}
