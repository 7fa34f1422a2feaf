//! Tests of how histories are kept and split.

use super::*;

fn operation(scope: Scope, input: Input, from_ns: u64, to_ns: Option<u64>) -> Operation {
    Operation {
        client: 1,
        scope,
        input,
        invoked: Moment::at(from_ns),
        outcome: to_ns.map(|ns| Outcome { at: Moment::at(ns), output: Output::Done }),
        wall: WallSpan::new(0, 0),
    }
}

#[test]
fn a_clear_stands_in_every_key() {
    let mut history = History::new();
    let (a, b) = (history.intern(b"a"), history.intern(b"b"));
    assert_eq!(history.intern(b"a"), a);
    history.push(operation(Scope::Key(b), Input::Get, 5, None));
    history.push(operation(Scope::All, Input::Clear, 3, Some(4)));
    history.push(operation(Scope::Key(a), Input::Get, 1, None));
    let split = history.by_key();
    let inputs =
        |n: usize| -> Vec<Input> { split[n].operations.iter().map(|operation| operation.input).collect() };
    assert_eq!(inputs(0), [Input::Get, Input::Clear], "in the order of invocation");
    assert_eq!(inputs(1), [Input::Clear, Input::Get]);
    assert_eq!(split[1].name, b"b");
    assert_eq!(history.name(b), b"b");
}

#[test]
fn until_forgets_what_came_later() {
    let mut history = History::new();
    let key = Scope::Key(history.intern(b"k"));
    history.push(operation(key, Input::set(1), 1, Some(2)));
    history.push(operation(key, Input::set(2), 3, Some(9)));
    history.push(operation(key, Input::set(3), 6, Some(7)));
    let cut = history.by_key()[0].until(Moment::at(5));
    assert_eq!(cut.operations.len(), 2);
    assert!(cut.operations[0].outcome.is_some());
    assert!(cut.operations[1].outcome.is_none(), "not answered yet");
}

#[test]
#[should_panic(expected = "Clear alone has all keys")]
fn a_clear_of_one_key_is_refused() {
    let mut history = History::new();
    let key = Scope::Key(history.intern(b"k"));
    history.push(operation(key, Input::Clear, 1, None));
}
