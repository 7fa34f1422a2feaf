//! Tests of the checker: by hand, on generated histories, and against a search through all orders.

use std::collections::BTreeMap;

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng;

use super::*;
use crate::checker::generated::{Mutation, Shape, broken, linearizable, scrambled};
use crate::checker::history::{
    Condition, Expiry, Input, Moment, Operation, Outcome, Output, Scope, ValueId, WallSpan,
};
use crate::checker::model::{Expectation, State};

const CONFIG: CheckConfig = CheckConfig { slack_ms: 0, states_max: 1_000_000, steps_max: 30_000_000 };
const YES: Output = Output::Flag(true);
const NO: Output = Output::Flag(false);

/// One operation of a history written by hand: from, to (`None`: unknown), what, and the answer.
type Line = (u64, Option<u64>, Input, Output);

fn value(value: u64) -> Output {
    Output::Value(ValueId(value))
}

fn history(lines: &[Line]) -> History {
    let mut history = History::new();
    let key = history.intern(b"k");
    for (client, (from, to, input, output)) in lines.iter().enumerate() {
        history.push(Operation {
            client: client as u32,
            scope: if *input == Input::Clear { Scope::All } else { Scope::Key(key) },
            input: *input,
            invoked: Moment::at(*from),
            outcome: to.map(|to| Outcome { at: Moment::at(to), output: *output }),
            wall: WallSpan::new(*from, to.unwrap_or(1_000)),
        });
    }
    history
}

fn holds(lines: &[Line]) -> bool {
    match check(&history(lines), &CONFIG) {
        Verdict::Ok => true,
        Verdict::Violation(_) => false,
        Verdict::Unknown(exhausted) => panic!("not decided: {exhausted:?}"),
    }
}

fn set_with(value: u64, condition: Condition, expiry: Expiry) -> Input {
    Input::Set { value: ValueId(value), condition, expiry, get_old: false }
}

#[test]
fn writes_and_reads() {
    let set_1 = (0, Some(10), Input::set(1), YES);
    let set_2 = (5, Some(15), Input::set(2), YES);
    assert!(holds(&[]));
    assert!(holds(&[set_1, set_2, (20, Some(30), Input::Get, value(1))]));
    assert!(holds(&[set_1, set_2, (20, Some(30), Input::Get, value(2))]));
    assert!(!holds(&[set_1, set_2, (20, Some(30), Input::Get, value(0))]));
    assert!(!holds(&[set_1, (20, Some(30), Input::Get, value(3))]), "never written");
    assert!(!holds(&[(20, Some(30), Input::set(1), YES), (0, Some(10), Input::Get, value(1))]));
    assert!(holds(&[(10, Some(30), Input::set(1), YES), (0, Some(10), Input::Get, value(1))]));
}

#[test]
fn an_unknown_write_may_take_effect_late_or_never() {
    let lost = (0, None, Input::set(1), YES);
    let set_2 = (10, Some(20), Input::set(2), YES);
    let get = |at, v| (at, Some(at + 1), Input::Get, value(v));
    assert!(holds(&[lost, set_2, get(30, 2), get(40, 1)]));
    assert!(holds(&[lost, set_2, get(30, 2), get(40, 2)]));
    assert!(!holds(&[lost, set_2, get(30, 1), get(40, 2)]), "it takes effect once");
    let gone = (0, None, Input::Delete, YES);
    assert!(holds(&[gone, set_2, get(30, 0), get(40, 0)]));
    assert!(!holds(&[gone, set_2, get(30, 0), get(40, 2)]));
    let cleared = (0, None, Input::Clear, Output::Done);
    assert!(holds(&[cleared, set_2, get(30, 2), get(40, 0)]));
}

#[test]
fn an_unseen_value_can_still_be_needed() {
    let lost = (0, None, Input::set(1), YES);
    assert!(holds(&[lost, (10, Some(20), Input::Exists, YES)]));
    assert!(holds(&[lost, (10, Some(20), Input::Delete, YES)]));
    assert!(!holds(&[lost, (10, Some(20), Input::Delete, YES), (30, Some(40), Input::Exists, YES)]));
    let nx = |v| set_with(v, Condition::IfAbsent, Expiry::Discard);
    let xx = |v| set_with(v, Condition::IfPresent, Expiry::Discard);
    assert!(holds(&[lost, (10, Some(20), nx(2), NO)]));
    assert!(!holds(&[(10, Some(20), nx(2), NO)]));
    let read_3 = (30, Some(40), Input::Get, value(3));
    assert!(holds(&[lost, (1, None, xx(3), YES), read_3]), "XX on the unseen value");
    assert!(!holds(&[(1, None, xx(3), YES), read_3]));
    assert!(!holds(&[
        (10, Some(20), Input::set(1), YES),
        (11, None, nx(3), YES),
        (30, Some(40), Input::Get, value(3))
    ]));
    // Seen absent past the deadline of a write that nobody saw.
    let expiring = set_with(2, Condition::Always, Expiry::At(25));
    let set_1 = (5, Some(6), Input::set(1), YES);
    assert!(holds(&[set_1, (7, None, expiring, YES), (30, Some(40), Input::Get, value(0))]));
    assert!(!holds(&[set_1, (7, None, expiring, YES), (20, Some(24), Input::Get, value(0))]));
    // A lost write takes the deadline away before a PERSIST (found by the search through all orders).
    let expiring = (0, Some(1), set_with(2, Condition::Always, Expiry::At(500)), YES);
    assert!(holds(&[expiring, (2, None, Input::set(1), YES), (3, Some(4), Input::Persist, NO)]));
    assert!(!holds(&[expiring, (3, Some(4), Input::Persist, NO)]));
    // The same before a KEEPTTL.
    let keep = set_with(3, Condition::Always, Expiry::Keep);
    let lines = [
        (0, Some(1), set_with(2, Condition::Always, Expiry::At(25)), YES),
        (2, None, Input::set(1), YES),
        (3, Some(4), keep, YES),
        (100, Some(101), Input::Get, value(3)),
    ];
    assert!(holds(&lines));
    assert!(!holds(&[lines[0], lines[2], lines[3]]));
}

#[test]
fn deadlines() {
    let set = (0, Some(5), set_with(1, Condition::Always, Expiry::At(50)), YES);
    let get = |from, to, v| (from, Some(to), Input::Get, value(v));
    assert!(holds(&[set, get(10, 20, 1), get(60, 70, 0)]));
    assert!(!holds(&[set, get(60, 70, 1)]));
    assert!(!holds(&[set, get(10, 20, 0)]));
    assert!(!holds(&[set, get(45, 55, 0), get(46, 56, 1), get(57, 58, 1)]));
    assert!(holds(&[set, get(45, 55, 0), get(46, 56, 1)]));
    assert!(!holds(&[set, get(40, 51, 0), get(52, 53, 1)]));
    assert!(holds(&[set, (6, Some(7), Input::Persist, YES), get(60, 70, 1)]));
    assert!(holds(&[set, (6, None, Input::Persist, YES), get(60, 70, 1)]));
    assert!(holds(&[
        (0, Some(5), Input::set(1), YES),
        (6, None, Input::Expire { deadline_ms: 20 }, YES),
        get(60, 70, 0)
    ]));
    let slack = CheckConfig { slack_ms: 10, ..CONFIG };
    assert!(check(&history(&[set, get(60, 70, 1)]), &slack).is_ok());
}

#[test]
fn the_explanation_names_the_clash_among_its_neighbours() {
    let mut lines = vec![
        (0, Some(10), Input::set(1), YES),
        (20, Some(30), Input::set(2), YES),
        (21, Some(29), Input::Exists, YES),
        (40, Some(50), Input::Get, value(1)),
        (41, Some(60), Input::Get, value(2)),
    ];
    lines.extend((0..50).map(|i| (100 + i, Some(101 + i), Input::Get, value(2))));
    let Verdict::Violation(violation) = check(&history(&lines), &CONFIG) else {
        panic!("a stale read");
    };
    let core: Vec<Input> = violation.core.iter().map(|operation| operation.input).collect();
    assert_eq!(core, [Input::set(2), Input::Get]);
    assert_eq!(violation.window_ns, (20, 50));
    let expected = "\
key \"k\" is not linearizable: between 20 ns and 50 ns, the answers marked * \
cannot all be true (w: wrote what they show)
  w [           0 ..           10] client 0    SET v1 -> yes
  * [          20 ..           30] client 1    SET v2 -> yes
    [          21 ..           29] client 2    EXISTS -> yes
  * [          40 ..           50] client 3    GET -> v1
    [          41 ..           60] client 4    GET -> v2
";
    assert_eq!(violation.to_string(), expected);
}

#[test]
fn a_lost_write_is_explained_without_what_came_before() {
    let mut lines = Vec::new();
    for i in 1..=20 {
        let at = i * 100;
        lines.push((at, Some(at + 50), Input::set(i), YES));
        lines.push((at + 20, Some(at + 90), Input::Delete, YES));
        lines.push((at + 95, Some(at + 99), Input::Get, value(0)));
    }
    lines.push((5_000, Some(5_010), Input::set(99), YES));
    lines.push((5_020, Some(5_030), Input::Get, value(0)));
    let Verdict::Violation(violation) = check(&history(&lines), &CONFIG) else {
        panic!("a lost write");
    };
    let core: Vec<Input> = violation.core.iter().map(|operation| operation.input).collect();
    assert_eq!(core, [Input::set(99), Input::Get]);
    assert_eq!(violation.window_ns, (5_000, 5_030));
}

#[test]
fn a_spent_budget_is_unknown() {
    let lines: Vec<Line> = (1..=40).map(|v| (0, Some(100), Input::set(v), YES)).collect();
    let tight = CheckConfig { states_max: 10, ..CONFIG };
    let verdict = check(&history(&lines), &tight);
    assert!(matches!(verdict, Verdict::Unknown(Exhausted { states: 10, .. })), "{verdict:?}");
}

#[test]
#[should_panic(expected = "value 1 is written twice")]
fn a_value_written_twice_is_refused() {
    holds(&[(0, Some(1), Input::set(1), YES), (2, Some(3), Input::set(1), YES)]);
}

/// Tries every order. Shares the model of a single operation with the checker, nothing else. If
/// `physical`, an operation must not come after one that saw the key expire when all wall times up to its
/// own response were before that deadline.
fn any_order(history: &KeyHistory, physical: bool) -> bool {
    let operations: Vec<Operation> = history
        .operations
        .iter()
        // A read without an answer is no evidence: by the model's definition it is not there.
        .filter(|operation| operation.outcome.is_some() || !operation.input.is_read())
        .copied()
        .collect();
    let left = vec![true; operations.len()];
    Orders { operations, physical, left }.exist_from(None, 0)
}

struct Orders {
    operations: Vec<Operation>,
    physical: bool,
    left: Vec<bool>,
}

impl Orders {
    /// `passed_ms`: the latest deadline seen to have passed.
    fn exist_from(&mut self, state: State, passed_ms: u64) -> bool {
        let mut complete = true;
        for i in 0..self.operations.len() {
            if !self.left[i] {
                continue;
            }
            let operation = self.operations[i];
            complete &= operation.outcome.is_none();
            let preceded = self.operations.iter().zip(&self.left).any(|(other, left)| {
                *left && other.outcome.is_some_and(|outcome| outcome.at < operation.invoked)
            });
            if preceded || (self.physical && operation.wall.high_ms < passed_ms) {
                continue;
            }
            self.left[i] = false;
            let found = after(operation, state)
                .into_iter()
                .any(|(after, passed)| self.exist_from(after, passed_ms.max(passed)));
            self.left[i] = true;
            if found {
                return true;
            }
        }
        complete
    }
}

/// The states an operation can lead to, each with the deadline it saw to have passed.
fn after(operation: Operation, state: State) -> Vec<(State, u64)> {
    let model = Model { slack_ms: 0 };
    let Operation { input, outcome, wall, .. } = operation;
    let expectation = outcome.map_or(Expectation::Anything, |outcome| Expectation::Exactly(outcome.output));
    let deadline_ms = state.and_then(|live| live.deadline_ms);
    // Without expiry: as if the wall clock had never been higher than 0.
    let unexpired = WallSpan { high_ms: 0, ..wall };
    let successors = model.step(state, &input, expectation, unexpired);
    let mut all: Vec<(State, u64)> = successors.as_slice().iter().map(|state| (*state, 0)).collect();
    if let Some(deadline_ms) = deadline_ms.filter(|deadline_ms| wall.high_ms >= *deadline_ms) {
        let successors = model.step(None, &input, expectation, wall);
        all.extend(successors.as_slice().iter().map(|state| (*state, deadline_ms)));
    }
    all
}

#[test]
fn agrees_with_a_search_through_all_orders() {
    let mut verdicts = BTreeMap::new();
    for seed in 0..20_000 {
        let random = &mut Xoshiro256PlusPlus::seed_from_u64(seed);
        let shape = Shape {
            clients: 2 + (seed % 3) as u32,
            keys: 1,
            operations: 3 + (seed % 5) as u32,
            unknown_permille: [0, 200, 500][(seed / 5 % 3) as usize],
            clear_permille: 50,
            deadlines: seed / 15 % 2 == 0,
        };
        let mut history = linearizable(shape, random);
        for _ in 0..seed % 4 {
            history = scrambled(&history, random).unwrap_or(history);
        }
        for key_history in history.by_key() {
            let verdict = check_key(&key_history, &CONFIG);
            let physical = any_order(&key_history, true);
            if physical {
                assert!(verdict.is_ok(), "seed {seed}: {key_history:#?} {verdict:?}");
            } else if !any_order(&key_history, false) {
                assert!(verdict.is_violation(), "seed {seed}: {key_history:#?} {verdict:?}");
            }
            if let Verdict::Violation(violation) = verdict {
                let from = violation.core.iter().map(|operation| operation.invoked).min();
                let mut core = key_history.clone();
                for operation in &mut core.operations {
                    let kept = violation.core.contains(operation);
                    operation.outcome = operation.outcome.filter(|outcome| kept || Some(outcome.at) < from);
                }
                assert!(
                    !any_order(&core, true),
                    "seed {seed}: the core, after what came before: {violation}"
                );
            }
            let only_modelled = !physical && any_order(&key_history, false);
            *verdicts.entry((physical, only_modelled)).or_insert(0) += 1;
        }
    }
    assert!(verdicts[&(true, false)] > 4_000 && verdicts[&(false, false)] > 4_000, "{verdicts:?}");
    // The orders that the two definitions disagree on are as good as none.
    assert!(verdicts.get(&(false, true)).is_none_or(|count| *count < 20), "{verdicts:?}");
}

fn shape(seed: u64) -> Shape {
    Shape {
        clients: [2, 8, 16][(seed % 3) as usize],
        keys: [1, 3][(seed / 3 % 2) as usize],
        operations: 200,
        unknown_permille: [0, 20, 150, 400][(seed / 6 % 4) as usize],
        clear_permille: 10,
        deadlines: seed / 24 % 2 == 1,
    }
}

#[test]
fn generated_histories_are_linearizable() {
    for seed in 0..480 {
        let history = linearizable(shape(seed), &mut Xoshiro256PlusPlus::seed_from_u64(seed));
        let verdict = check(&history, &CONFIG);
        assert!(verdict.is_ok(), "seed {seed}: {verdict:?}");
    }
}

#[test]
fn broken_histories_are_not() {
    let mut met = BTreeMap::new();
    for seed in 0..240 {
        let random = &mut Xoshiro256PlusPlus::seed_from_u64(seed);
        let history = linearizable(shape(seed), random);
        let mutation = Mutation::ALL[(seed / 6 % 5) as usize];
        let Some(history) = broken(&history, mutation, random) else {
            continue;
        };
        let verdict = check(&history, &CONFIG);
        let Verdict::Violation(violation) = verdict else {
            panic!("seed {seed}, {mutation:?}: {verdict:?}");
        };
        assert!(violation.core.len() <= 4, "seed {seed}, {mutation:?}: {violation}");
        *met.entry(format!("{mutation:?}")).or_insert(0) += 1;
    }
    assert!(met.len() == 5 && met.values().all(|count| *count >= 10), "{met:?}");
}

#[test]
fn a_verdict_is_the_same_every_time() {
    let random = &mut Xoshiro256PlusPlus::seed_from_u64(1);
    let history = linearizable(shape(8), random);
    let history = broken(&history, Mutation::TwoOrders, random).expect("always possible");
    let verdict = check(&history, &CONFIG);
    assert!(verdict.is_violation());
    assert_eq!(verdict, check(&history, &CONFIG));
}
