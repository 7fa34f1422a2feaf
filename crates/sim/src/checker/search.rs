//! The search for an order: Wing and Gong's depth-first search with Lowe's memory of configurations.
//!
//! Place: runs on what `prepare.rs` made; `linearizable.rs` is its face.
//!
//! A configuration is the set of required operations ordered so far, how many of each class of optional
//! ones were used, and the key's state. An operation may come next if no required operation that is still
//! to be ordered had its response before the other's invocation. The history is linearizable if all
//! required operations can be ordered.
//!
//! Prunings, each of which keeps at least one way to an order if there is one:
//! * *Memory, with dominance.* A configuration is not entered if one with the same required set and state
//!   and no more optional operations used was entered before: whatever completes it completes that one.
//! * *Observers.* A value is written once, so it must not be overwritten, removed or expired while an
//!   operation that observed it is still to be ordered.
//! * *Reads at once.* An operation that, given its answer, changes nothing wherever it stands, and that fits
//!   here, can go first in every completion, so nothing else is tried. If elsewhere in the order it would
//!   have been the first to see that the key expired, then the next one can be, for the wall clock had
//!   passed the deadline before that one's response too. (So said, the search looks for orders in which no
//!   operation comes after one that saw a deadline pass, but met only wall times before that deadline.
//!   The model allows such an order, of operations that ran at once; no run has one.)
//! * *Optional operations must be of use.* After one, the next operation must be one that would not have
//!   led to the same state without it: else the optional one can be left out.
//!
//! The number of ways to use up optional operations can be exponential, so the search first runs with
//! [`Supply::Endless`]: each optional operation may be used again and again, and the memory need not tell
//! how many were used. That allows more orders: if it finds none, there is none. If the order it finds
//! uses none too often, it is an order; only otherwise is the search run again, with exact supply, and
//! then it need not enter the configurations that the first search found to be dead ends.
//!
//! That the prunings do so together: take, of all configurations entered, one with the shortest completion,
//! and the first operation of it. If the configuration that leads to was not entered, a pruning refused it
//! in favour of one that was entered and whose completion is no longer, which contradicts the choice; or in
//! favour of what the configuration before a useless optional operation leads to, and then the same holds
//! of that one, with one optional operation fewer to argue about.
//!
//! Invariants: deterministic; what is undone is undone in the reverse order of doing.
//!
//! Must never: recurse (histories are long), or exceed its budget.

use std::collections::{BTreeMap, BTreeSet};

use super::model::{Model, State};
use super::prepare::{Class, Event, Prepared};

/// How the search ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// There is an order.
    Ordered,
    /// There is none.
    Impossible,
    /// The budget was spent before that was known.
    Exhausted,
}

/// How often an optional operation may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Supply {
    /// Once.
    Exact,
    /// Any number of times, from its invocation on.
    Endless,
}

/// What the search may spend, and has spent.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Budget {
    /// Configurations entered.
    pub(super) states: u64,
    /// Operations tried.
    pub(super) steps: u64,
}

#[derive(Clone, Copy, Debug)]
enum Move {
    Start,
    Required(usize),
    Optional(usize),
}

#[derive(Clone, Copy, Debug)]
struct Candidate {
    priority: u64,
    step: Move,
    state: State,
    /// An optional operation that was used before, or was not invoked yet: of endless supply.
    overdrawn: bool,
}

/// A configuration on the way.
struct Frame {
    led_here: Candidate,
    /// Its candidates: from here to the end of the stack of candidates when it is on top.
    first_candidate: usize,
    next_candidate: usize,
}

/// The required operations ordered so far: from the first word that is not full to the last that is not
/// empty.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Ordered {
    first_word: usize,
    words: Box<[u64]>,
}

/// What has been ordered, and the state it led to.
type Configuration = (Ordered, State);

/// The invocations and responses still on the time line: a doubly linked list over ranks, in which rank r
/// is node r + 1 and node 0 is both ends.
struct Line {
    next: Vec<u32>,
    previous: Vec<u32>,
}

impl Line {
    fn new(events: &[Event]) -> Line {
        let mut line = Line { next: vec![0; events.len() + 1], previous: vec![0; events.len() + 1] };
        let mut last = 0;
        for (rank, event) in events.iter().enumerate() {
            if *event != Event::Optional {
                let node = node_of(rank);
                line.next[last as usize] = node;
                line.previous[node as usize] = last;
                last = node;
            }
        }
        line.previous[0] = last;
        line
    }

    fn lift(&mut self, node: u32) {
        let (previous, next) = (self.previous[node as usize], self.next[node as usize]);
        self.next[previous as usize] = next;
        self.previous[next as usize] = previous;
    }

    /// Undoes the last `lift` that is not undone.
    fn put_back(&mut self, node: u32) {
        let (previous, next) = (self.previous[node as usize], self.next[node as usize]);
        self.next[previous as usize] = node;
        self.previous[next as usize] = node;
    }
}

fn node_of(rank: usize) -> u32 {
    u32::try_from(rank + 1).expect("fewer than 2^32 events")
}

struct Search<'a> {
    prepared: &'a Prepared,
    model: &'a Model,
    supply: Supply,
    line: Line,
    /// Nodes of each required operation's invocation and response.
    nodes: Vec<(u32, u32)>,
    remaining: usize,
    ordered: Vec<u64>,
    /// Words below this one are full.
    full_words: usize,
    /// How many of each class of optional operations were used.
    used: Vec<u32>,
    /// How many of them were overdrawn.
    overdrafts: u32,
    observers_left: Vec<u32>,
    /// Configurations entered, each with the least used optional operations.
    memory: BTreeMap<Configuration, Vec<Box<[u32]>>>,
    /// Configurations that cannot be completed even with endless supply.
    dead: BTreeSet<Configuration>,
    stack: Vec<Frame>,
    candidates: Vec<Candidate>,
    spent: Budget,
}

/// Looks for an order of the prepared history.
pub(super) fn search(prepared: &Prepared, model: &Model, allowed: Budget) -> (Ending, Budget) {
    if prepared.impossible {
        return (Ending::Impossible, Budget::default());
    }
    let mut search = Search::new(prepared, model, Supply::Endless);
    let ending = search.run(allowed);
    let settled = match ending {
        Ending::Ordered => search.overdrafts == 0,
        Ending::Impossible => true,
        Ending::Exhausted => prepared.optional.is_empty(),
    };
    if settled {
        return (ending, search.spent);
    }
    let mut exact = Search::new(prepared, model, Supply::Exact);
    exact.dead = search.dead_ends();
    let ending = exact.run(allowed);
    let (first, second) = (search.spent, exact.spent);
    let spent = Budget { states: first.states + second.states, steps: first.steps + second.steps };
    (ending, spent)
}

impl<'a> Search<'a> {
    fn new(prepared: &'a Prepared, model: &'a Model, supply: Supply) -> Search<'a> {
        let mut nodes = vec![(0, 0); prepared.required.len()];
        for (rank, event) in prepared.events.iter().enumerate() {
            match event {
                Event::Call(n) => nodes[*n].0 = node_of(rank),
                Event::Return(n) => nodes[*n].1 = node_of(rank),
                Event::Optional => {}
            }
        }
        Search {
            prepared,
            model,
            supply,
            line: Line::new(&prepared.events),
            nodes,
            remaining: prepared.required.len(),
            ordered: vec![0; prepared.required.len().div_ceil(64)],
            full_words: 0,
            used: vec![0; prepared.optional.len()],
            overdrafts: 0,
            observers_left: prepared.observers.clone(),
            memory: BTreeMap::new(),
            dead: BTreeSet::new(),
            stack: Vec::new(),
            candidates: Vec::new(),
            spent: Budget::default(),
        }
    }

    fn run(&mut self, allowed: Budget) -> Ending {
        let mut starts = self.prepared.initial.iter();
        let mut entered: Option<(Candidate, Option<State>)> = None;
        loop {
            if let Some((led_here, before_optional)) = entered.take() {
                let first_candidate = self.candidates.len();
                self.stack.push(Frame { led_here, first_candidate, next_candidate: first_candidate });
                if self.remaining == 0 {
                    return Ending::Ordered;
                }
                if self.spent.states >= allowed.states || self.spent.steps >= allowed.steps {
                    return Ending::Exhausted;
                }
                self.gather(led_here.state, before_optional);
            }
            let Some(top) = self.stack.last_mut() else {
                let Some(state) = starts.next().copied() else {
                    return Ending::Impossible;
                };
                let step = Move::Start;
                if self.remember(state) {
                    entered = Some((Candidate { priority: 0, step, state, overdrawn: false }, None));
                }
                continue;
            };
            if let Some(candidate) = self.candidates.get(top.next_candidate).copied() {
                top.next_candidate += 1;
                let from = top.led_here.state;
                self.apply(&candidate);
                if self.remember(candidate.state) {
                    let optional = matches!(candidate.step, Move::Optional(_));
                    entered = Some((candidate, optional.then_some(from)));
                } else {
                    self.undo(&candidate);
                }
            } else {
                let led_here = top.led_here;
                self.candidates.truncate(top.first_candidate);
                self.stack.pop();
                self.undo(&led_here);
            }
        }
    }

    /// Lists what may come next, the most promising first.
    fn gather(&mut self, state: State, before_optional: Option<State>) {
        let start = self.candidates.len();
        let mut node = self.line.next[0];
        let first_return = loop {
            // The list ends in a response as long as operations remain.
            let rank = node as usize - 1;
            let Event::Call(n) = self.prepared.events[rank] else {
                break rank;
            };
            if self.gather_required(n, state, before_optional, start) {
                return;
            }
            node = self.line.next[node as usize];
        };
        self.candidates[start..].sort_by_key(|candidate| candidate.priority);
        let required = self.candidates.len();
        for class in 0..self.prepared.optional.len() {
            self.gather_optional(class, state, before_optional, first_return);
        }
        self.candidates[required..].sort_by_key(|candidate| candidate.overdrawn);
    }

    /// Whether the operation goes next and nothing else need be tried.
    fn gather_required(
        &mut self,
        n: usize,
        state: State,
        before_optional: Option<State>,
        start: usize,
    ) -> bool {
        let step = &self.prepared.required[n];
        self.spent.steps += 1;
        let successors = self.model.step(state, &step.input, step.expectation, step.wall);
        for after in successors.as_slice().iter().copied() {
            let unchanged = after == state;
            if unchanged && step.at_once {
                self.candidates.truncate(start);
                let step = Move::Required(n);
                self.candidates.push(Candidate { priority: 0, step, state, overdrawn: false });
                return true;
            }
            let useless = before_optional.is_some_and(|before| {
                self.spent.steps += 1;
                let without = self.model.step(before, &step.input, step.expectation, step.wall);
                without.contains(after)
            });
            if useless || self.hides_a_value(state, after, step.observes) {
                continue;
            }
            self.candidates.push(Candidate {
                priority: if unchanged { 0 } else { step.priority + 1 },
                step: Move::Required(n),
                state: after,
                overdrawn: false,
            });
        }
        false
    }

    fn gather_optional(
        &mut self,
        class: usize,
        state: State,
        before_optional: Option<State>,
        first_return: usize,
    ) {
        let Class { step, invoked } = &self.prepared.optional[class];
        let may_come = |nth: usize| invoked.get(nth).is_some_and(|rank| (*rank as usize) < first_return);
        let overdrawn = !may_come(self.used[class] as usize);
        if overdrawn && (self.supply == Supply::Exact || !may_come(0)) {
            return;
        }
        self.spent.steps += 1;
        let successors = self.model.step(state, &step.input, step.expectation, step.wall);
        for after in successors.as_slice().iter().copied() {
            let useless = before_optional.is_some_and(|before| {
                self.spent.steps += 1;
                let without = self.model.step(before, &step.input, step.expectation, step.wall);
                without.contains(after)
            });
            // Back to where the last optional operation began, or nowhere at all: of no use either.
            let nowhere = after == state || before_optional == Some(after);
            if useless || nowhere || self.hides_a_value(state, after, 0) {
                continue;
            }
            let step = Move::Optional(class);
            self.candidates.push(Candidate { priority: 0, step, state: after, overdrawn });
        }
    }

    /// Whether going from one state to the other ends a value that is still to be observed, other than
    /// by the operation that goes.
    fn hides_a_value(&self, from: State, to: State, observes: usize) -> bool {
        let slot = |state: State| {
            let value = state.map_or(0, |live| live.value.0);
            usize::try_from(value).ok().filter(|slot| *slot < self.observers_left.len()).unwrap_or(0)
        };
        let held = slot(from);
        held != 0 && held != slot(to) && self.observers_left[held] > u32::from(observes == held)
    }

    fn apply(&mut self, candidate: &Candidate) {
        match candidate.step {
            Move::Start => {}
            Move::Optional(class) => {
                self.used[class] += 1;
                self.overdrafts += u32::from(candidate.overdrawn);
            }
            Move::Required(n) => {
                self.line.lift(self.nodes[n].0);
                self.line.lift(self.nodes[n].1);
                self.ordered[n / 64] |= 1 << (n % 64);
                while self.ordered.get(self.full_words) == Some(&u64::MAX) {
                    self.full_words += 1;
                }
                self.observers_left[self.prepared.required[n].observes] =
                    self.observers_left[self.prepared.required[n].observes].wrapping_sub(1);
                self.remaining -= 1;
            }
        }
    }

    fn undo(&mut self, candidate: &Candidate) {
        match candidate.step {
            Move::Start => {}
            Move::Optional(class) => {
                self.used[class] -= 1;
                self.overdrafts -= u32::from(candidate.overdrawn);
            }
            Move::Required(n) => {
                self.remaining += 1;
                self.observers_left[self.prepared.required[n].observes] =
                    self.observers_left[self.prepared.required[n].observes].wrapping_add(1);
                self.full_words = self.full_words.min(n / 64);
                self.ordered[n / 64] &= !(1 << (n % 64));
                self.line.put_back(self.nodes[n].1);
                self.line.put_back(self.nodes[n].0);
            }
        }
    }

    /// After a run of endless supply: configurations that cannot be completed. They were entered and left
    /// again, and no configuration that is still under way has the same set of ordered operations: only
    /// from one that has could a way have been refused as already under way, for there is no way back
    /// from a larger set.
    fn dead_ends(&mut self) -> BTreeSet<Configuration> {
        let mut under_way = BTreeSet::new();
        while let Some(frame) = self.stack.pop() {
            under_way.insert(self.ordered_now());
            self.undo(&frame.led_here);
        }
        let memory = std::mem::take(&mut self.memory);
        memory.into_keys().filter(|(ordered, _)| !under_way.contains(ordered)).collect()
    }

    fn ordered_now(&self) -> Ordered {
        let words = &self.ordered[self.full_words..];
        let length = words.iter().rposition(|word| *word != 0).map_or(0, |last| last + 1);
        Ordered { first_word: self.full_words, words: words[..length].into() }
    }

    /// Notes the present configuration; `false` if it, or a better one, was noted before.
    fn remember(&mut self, state: State) -> bool {
        let configuration = (self.ordered_now(), state);
        if self.dead.contains(&configuration) {
            return false;
        }
        let used: &[u32] = match self.supply {
            Supply::Exact => &self.used,
            Supply::Endless => &[],
        };
        let entered = self.memory.entry(configuration).or_default();
        self.spent.steps += entered.len() as u64;
        let covers = |a: &[u32], b: &[u32]| a.iter().zip(b).all(|(a, b)| a <= b);
        if entered.iter().any(|other| covers(other, used)) {
            return false;
        }
        entered.retain(|other| !covers(used, other));
        entered.push(used.into());
        self.spent.states += 1;
        true
    }
}
