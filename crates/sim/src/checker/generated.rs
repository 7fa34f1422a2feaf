//! Histories whose verdict is known, to test checkers: linearizable by construction, or broken on purpose.
//!
//! Place: the tests of this crate; a world can use it as the canary that its checker must catch.
//!
//! Invariants: [`linearizable`] runs a plain register per key, each operation at one instant between its
//! ends, so an order exists; it shares no code with the checker's model. [`broken`] plants a few
//! operations that no order allows, whatever else is in the history. The same generator state gives the
//! same history.
//!
//! Must never: use the checker to find out what it made.

use std::collections::BTreeMap;

use rand_core::RngCore;

use super::history::{
    Condition, Expiry, History, Input, KeyId, Lifetime, Moment, Operation, Outcome, Output, Scope, ValueId,
    WallSpan,
};
use super::recorder::{Now, OperationId, Recorder};

/// What a generated history is like.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Clients, each with one operation under way at a time.
    pub clients: u32,
    /// Keys.
    pub keys: u32,
    /// Operations in all.
    pub operations: u32,
    /// Operations that get no response, of a thousand. Half of them take effect, some long after.
    pub unknown_permille: u32,
    /// `Clear`s, of a thousand.
    pub clear_permille: u32,
    /// Whether there are deadlines, and a wall clock that steps.
    pub deadlines: bool,
}

/// The longest time from invocation to effect, and from effect to response.
const LATENCY_MAX_NS: u64 = 1_000;
/// Wall milliseconds at the start.
const WALL_START_MS: u64 = 1_000_000;
/// How fast the wall clock runs, so that deadlines pass within a short history.
const NS_PER_WALL_MS: u64 = 100;

/// A key's value and deadline, in a store that is one thread with one clock.
#[derive(Clone, Copy)]
struct Entry {
    value: ValueId,
    deadline_ms: Option<u64>,
}

#[derive(Clone, Copy)]
enum Happening {
    Send(u32),
    TakeEffect(usize),
    Respond(usize),
    StepWallClock,
    Sweep,
}

struct Sent {
    id: OperationId,
    client: u32,
    /// `None`: all keys.
    key: Option<u32>,
    input: Input,
    output: Option<Output>,
}

/// A world of clients and one atomic store.
struct Generator<'a, R: RngCore> {
    shape: Shape,
    random: &'a mut R,
    recorder: Recorder,
    queue: BTreeMap<(u64, u64), Happening>,
    queued: u64,
    sent: Vec<Sent>,
    store: Vec<Option<Entry>>,
    ns: u64,
    wall_offset_ms: u64,
}

/// A uniform number below `bound`, near enough for tests.
fn below(random: &mut impl RngCore, bound: u64) -> u64 {
    random.next_u64() % bound
}

/// A linearizable history.
pub fn linearizable(shape: Shape, random: &mut impl RngCore) -> History {
    let mut generator = Generator {
        shape,
        random,
        recorder: Recorder::new(),
        queue: BTreeMap::new(),
        queued: 0,
        sent: Vec::new(),
        store: vec![None; shape.keys as usize],
        ns: 0,
        wall_offset_ms: WALL_START_MS,
    };
    for client in 0..shape.clients {
        generator.after(LATENCY_MAX_NS, Happening::Send(client));
    }
    if shape.deadlines {
        generator.after(LATENCY_MAX_NS * 10, Happening::StepWallClock);
        generator.after(LATENCY_MAX_NS, Happening::Sweep);
    }
    while let Some(((ns, _), happening)) = generator.queue.pop_first() {
        generator.ns = ns;
        generator.happen(happening);
    }
    let now = generator.now();
    generator.recorder.finish(now)
}

impl<R: RngCore> Generator<'_, R> {
    fn now(&self) -> Now {
        Now { ns: self.ns, wall_ms: self.wall_offset_ms + self.ns / NS_PER_WALL_MS }
    }

    fn one_in(&mut self, n: u64) -> bool {
        below(self.random, n) == 0
    }

    fn after(&mut self, max_ns: u64, happening: Happening) {
        let at = self.ns + below(self.random, max_ns);
        self.queue.insert((at, self.queued), happening);
        self.queued += 1;
    }

    fn done(&self) -> bool {
        self.sent.len() >= self.shape.operations as usize
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Send(client) if !self.done() => self.send(client),
            Happening::Send(_) => {}
            Happening::TakeEffect(n) => self.take_effect(n),
            Happening::Respond(n) => {
                let output = self.sent[n].output.expect("effect comes before response");
                self.recorder.respond(self.sent[n].id, output, self.now());
                self.after(LATENCY_MAX_NS, Happening::Send(self.sent[n].client));
            }
            Happening::StepWallClock => {
                let before_ms = self.now().wall_ms;
                self.wall_offset_ms = WALL_START_MS - 50 + below(self.random, 100);
                self.recorder.wall_stepped(before_ms, self.now().wall_ms);
                if !self.done() {
                    self.after(LATENCY_MAX_NS * 20, Happening::StepWallClock);
                }
            }
            Happening::Sweep => {
                let wall_ms = self.now().wall_ms;
                for entry in &mut self.store {
                    *entry = live(*entry, wall_ms);
                }
                if !self.done() {
                    self.after(LATENCY_MAX_NS * 20, Happening::Sweep);
                }
            }
        }
    }

    fn send(&mut self, client: u32) {
        let clears = below(self.random, 1_000) < u64::from(self.shape.clear_permille);
        let key = below(self.random, u64::from(self.shape.keys)) as u32;
        let (key, input) = if clears { (None, Input::Clear) } else { (Some(key), self.choose()) };
        let now = self.now();
        let id = match key {
            Some(key) => self.recorder.invoke(client, &key_name(key), input, now),
            None => self.recorder.invoke_clear(client, now),
        };
        let n = self.sent.len();
        self.sent.push(Sent { id, client, key, input, output: None });
        if below(self.random, 1_000) < u64::from(self.shape.unknown_permille) {
            if self.one_in(2) {
                let delay_ns = if self.one_in(4) { 30 } else { 2 } * LATENCY_MAX_NS;
                self.after(delay_ns, Happening::TakeEffect(n));
            }
            // The client gives up and goes on.
            self.after(LATENCY_MAX_NS, Happening::Send(client));
        } else {
            let effect_ns = self.ns + below(self.random, LATENCY_MAX_NS);
            let response_ns = effect_ns + below(self.random, LATENCY_MAX_NS);
            self.queue.insert((effect_ns, self.queued), Happening::TakeEffect(n));
            self.queue.insert((response_ns, self.queued + 1), Happening::Respond(n));
            self.queued += 2;
        }
    }

    fn choose(&mut self) -> Input {
        let kinds = if self.shape.deadlines { 14 } else { 11 };
        match below(self.random, kinds) {
            0..=3 => Input::Get,
            4..=7 => self.choose_set(),
            8 | 9 => Input::Delete,
            10 => Input::Exists,
            11 => Input::Expire { deadline_ms: self.choose_deadline() },
            12 => Input::Persist,
            _ => Input::Ttl,
        }
    }

    fn choose_set(&mut self) -> Input {
        Input::Set {
            value: ValueId(self.sent.len() as u64 + 1),
            condition: match below(self.random, 6) {
                0 => Condition::IfAbsent,
                1 => Condition::IfPresent,
                _ => Condition::Always,
            },
            expiry: match below(self.random, 4) {
                0 | 1 if self.shape.deadlines => Expiry::At(self.choose_deadline()),
                2 if self.shape.deadlines => Expiry::Keep,
                _ => Expiry::Discard,
            },
            get_old: self.one_in(5),
        }
    }

    fn choose_deadline(&mut self) -> u64 {
        self.now().wall_ms - 10 + below(self.random, 60)
    }

    fn take_effect(&mut self, n: usize) {
        let wall_ms = self.now().wall_ms;
        let Some(key) = self.sent[n].key else {
            self.store.fill(None);
            self.sent[n].output = Some(Output::Done);
            return;
        };
        let entry = &mut self.store[key as usize];
        *entry = live(*entry, wall_ms);
        self.sent[n].output = Some(execute(entry, &self.sent[n].input, wall_ms));
    }
}

fn key_name(key: u32) -> Vec<u8> {
    format!("key:{key}").into_bytes()
}

fn live(entry: Option<Entry>, wall_ms: u64) -> Option<Entry> {
    entry.filter(|entry| entry.deadline_ms.is_none_or(|deadline_ms| wall_ms < deadline_ms))
}

/// Runs one operation on a key, as a store without concurrency would.
fn execute(entry: &mut Option<Entry>, input: &Input, wall_ms: u64) -> Output {
    let before = *entry;
    let value_before = before.map_or(ValueId::ABSENT, |entry| entry.value);
    match *input {
        Input::Get => Output::Value(value_before),
        Input::Exists => Output::Flag(before.is_some()),
        Input::Delete => Output::Flag(entry.take().is_some()),
        Input::Clear => unreachable!("a clear runs on the whole store"),
        Input::Expire { deadline_ms } => {
            if let Some(entry) = entry {
                entry.deadline_ms = Some(deadline_ms);
            }
            Output::Flag(before.is_some())
        }
        Input::Persist => {
            let deadline_ms = entry.as_mut().and_then(|entry| entry.deadline_ms.take());
            Output::Flag(deadline_ms.is_some())
        }
        Input::Ttl => Output::Lifetime(match before.map(|entry| entry.deadline_ms) {
            None => Lifetime::Absent,
            Some(None) => Lifetime::Unlimited,
            Some(Some(deadline_ms)) if deadline_ms % 2 == 0 => Lifetime::Until(deadline_ms),
            Some(Some(deadline_ms)) => Lifetime::Remaining(deadline_ms - wall_ms),
        }),
        Input::Set { value, condition, expiry, get_old } => {
            let refused = match condition {
                Condition::Always => false,
                Condition::IfAbsent => before.is_some(),
                Condition::IfPresent => before.is_none(),
            };
            if !refused {
                let kept_ms = before.and_then(|entry| entry.deadline_ms);
                let deadline_ms = match expiry {
                    Expiry::At(deadline_ms) => Some(deadline_ms),
                    Expiry::Keep => kept_ms,
                    Expiry::Discard => None,
                };
                *entry = Some(Entry { value, deadline_ms });
            }
            if get_old { Output::Value(value_before) } else { Output::Flag(!refused) }
        }
    }
}

/// A way to break a promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// A read gives a value that was overwritten before it was sent.
    StaleRead,
    /// A read misses a write that was acknowledged before it was sent.
    LostWrite,
    /// A read gives a value that was deleted before it was sent.
    ResurrectedDelete,
    /// Two clients see two writes in different orders.
    TwoOrders,
    /// A value is read after it was seen to have expired.
    ReadAfterExpiry,
}

impl Mutation {
    /// All of them.
    pub const ALL: [Mutation; 5] = [
        Mutation::StaleRead,
        Mutation::LostWrite,
        Mutation::ResurrectedDelete,
        Mutation::TwoOrders,
        Mutation::ReadAfterExpiry,
    ];
}

/// Plants a violation into a history, at a random time in a random key, by clients of its own. `None` if
/// the history leaves no place where this one is sure to be a violation.
pub fn broken(history: &History, mutation: Mutation, random: &mut impl RngCore) -> Option<History> {
    let mut history = history.clone();
    let last_ns = history.operations().iter().map(end_ns).max().unwrap_or(0);
    let keys = history.keys().count() as u64;
    let key = KeyId(u32::try_from(below(random, keys.max(1))).expect("a key id"));
    let mut ns = below(random, last_ns + 1);
    if keys == 0 {
        history.intern(&key_name(0));
    }
    if mutation == Mutation::LostWrite {
        // An operation of unknown outcome might have removed what the read misses.
        let uncertain = |operation: &&Operation| {
            operation.outcome.is_none() && !operation.input.is_read() && concerns(operation, key)
        };
        if history.operations().iter().any(|operation| uncertain(&operation)) {
            return None;
        }
        ns = last_ns + 1;
    }
    // Not used by `linearizable`.
    let value = ValueId((1 << 40) + random.next_u64() % (1 << 20) * 2);
    for (i, planted) in clash(mutation, value).into_iter().enumerate() {
        let (from, to, input, output, wall) = planted;
        // Within one nanosecond, after all that was recorded in it.
        let moment = |order: u32| Moment { ns, order: (1 << 31) + order };
        history.push(Operation {
            client: 1_000 + i as u32,
            scope: Scope::Key(key),
            input,
            invoked: moment(from),
            outcome: Some(Outcome { at: moment(to), output }),
            wall,
        });
    }
    Some(history)
}

fn end_ns(operation: &Operation) -> u64 {
    operation.outcome.map_or(operation.invoked, |outcome| outcome.at).ns
}

fn concerns(operation: &Operation, key: KeyId) -> bool {
    operation.scope == Scope::All || operation.scope == Scope::Key(key)
}

type Planted = (u32, u32, Input, Output, WallSpan);

/// Operations that no order allows: when, what, and what was answered.
fn clash(mutation: Mutation, value: ValueId) -> Vec<Planted> {
    const YES: Output = Output::Flag(true);
    const DEADLINE_MS: u64 = WALL_START_MS;
    let (a, b) = (value, ValueId(value.0 + 1));
    let (set_a, set_b) = (Input::set(a.0), Input::set(b.0));
    let (is_a, is_b) = (Output::Value(a), Output::Value(b));
    let any = WallSpan::new(0, u64::MAX);
    match mutation {
        Mutation::StaleRead => {
            vec![(0, 1, set_a, YES, any), (2, 3, set_b, YES, any), (4, 5, Input::Get, is_a, any)]
        }
        Mutation::LostWrite => {
            vec![(0, 1, set_a, YES, any), (2, 3, Input::Get, Output::Value(ValueId::ABSENT), any)]
        }
        Mutation::ResurrectedDelete => {
            vec![(0, 1, set_a, YES, any), (2, 3, Input::Delete, YES, any), (4, 5, Input::Get, is_a, any)]
        }
        Mutation::TwoOrders => vec![
            (0, 9, set_a, YES, any),
            (0, 9, set_b, YES, any),
            (1, 2, Input::Get, is_a, any),
            (3, 4, Input::Get, is_b, any),
            (1, 2, Input::Get, is_b, any),
            (3, 4, Input::Get, is_a, any),
        ],
        Mutation::ReadAfterExpiry => {
            let before = WallSpan::new(DEADLINE_MS - 2, DEADLINE_MS - 1);
            let after = WallSpan::new(DEADLINE_MS + 1, DEADLINE_MS + 2);
            let stepped_back = WallSpan { high_ms: after.high_ms, ..before };
            let set_a = Input::Set {
                value: a,
                condition: Condition::Always,
                expiry: Expiry::At(DEADLINE_MS),
                get_old: false,
            };
            let absent = Output::Value(ValueId::ABSENT);
            vec![
                (0, 1, set_a, YES, before),
                (2, 3, Input::Get, absent, after),
                (4, 5, Input::Get, is_a, stepped_back),
            ]
        }
    }
}

/// Changes one answer at random. The history may or may not still be linearizable. `None` if it has no
/// answer to change.
pub fn scrambled(history: &History, random: &mut impl RngCore) -> Option<History> {
    let mut history = history.clone();
    let answered: Vec<usize> = (0..history.operations().len())
        .filter(|i| {
            let operation = &history.operations()[*i];
            operation.outcome.is_some() && operation.scope != Scope::All
        })
        .collect();
    if answered.is_empty() {
        return None;
    }
    let changed = answered[below(random, answered.len() as u64) as usize];
    let scope = history.operations()[changed].scope;
    let mut values: Vec<ValueId> = vec![ValueId::ABSENT];
    let same_key = history.operations().iter().filter(|operation| operation.scope == scope);
    values.extend(same_key.filter_map(|operation| operation.input.written()));
    let outcome = history.operations_mut()[changed].outcome.as_mut().expect("it was answered");
    outcome.output = match outcome.output {
        Output::Flag(flag) => Output::Flag(!flag),
        Output::Value(_) => Output::Value(values[below(random, values.len() as u64) as usize]),
        Output::Lifetime(Lifetime::Absent) => Output::Lifetime(Lifetime::Unlimited),
        Output::Lifetime(_) => Output::Lifetime(Lifetime::Absent),
        Output::Done => Output::Done,
    };
    Some(history)
}

#[cfg(test)]
mod tests;
