//! Tests of the sequential model, deadlines above all.

use super::*;

const MODEL: Model = Model { slack_ms: 5 };

fn held(value: u64, deadline_ms: Option<u64>) -> State {
    Some(Live { value: ValueId(value), deadline_ms })
}

fn step(state: State, input: Input, output: Output, wall: WallSpan) -> Vec<State> {
    let successors = MODEL.step(state, &input, Expectation::Exactly(output), wall);
    successors.as_slice().to_vec()
}

fn wall(ms: u64) -> WallSpan {
    WallSpan::new(ms, ms)
}

fn value(value: u64) -> Output {
    Output::Value(ValueId(value))
}

#[test]
fn a_key_is_present_up_to_its_deadline_and_absent_after_with_slack() {
    let state = held(1, Some(100));
    assert_eq!(step(state, Input::Get, value(1), wall(105)), [state]);
    assert!(step(state, Input::Get, value(1), wall(106)).is_empty());
    assert_eq!(step(state, Input::Get, value(0), wall(95)), [None]);
    assert!(step(state, Input::Get, value(0), wall(94)).is_empty());
    assert_eq!(step(state, Input::Get, value(1), WallSpan::new(90, 200)), [state]);
    assert_eq!(step(state, Input::Get, value(0), WallSpan::new(90, 200)), [None]);
}

#[test]
fn an_expired_key_may_have_been_swept_before_the_clock_was_stepped_back() {
    let stepped_back = WallSpan { high_ms: 300, ..WallSpan::new(10, 10) };
    let state = held(1, Some(100));
    assert_eq!(step(state, Input::Get, value(0), stepped_back), [None]);
    assert_eq!(step(state, Input::Get, value(1), stepped_back), [state]);
}

#[test]
fn a_key_without_a_deadline_stays() {
    assert!(step(held(1, None), Input::Get, value(0), wall(u64::MAX)).is_empty());
    assert_eq!(step(None, Input::Get, value(0), wall(0)), [None]);
}

#[test]
fn conditions_and_answers_of_set() {
    let set =
        |condition, get_old| Input::Set { value: ValueId(2), condition, expiry: Expiry::Discard, get_old };
    let (yes, no) = (Output::Flag(true), Output::Flag(false));
    let (old, new) = (held(1, None), held(2, None));
    for (from, input, output, to) in [
        (None, set(Condition::IfAbsent, false), yes, Some(new)),
        (None, set(Condition::IfAbsent, false), no, None),
        (None, set(Condition::IfAbsent, true), value(0), Some(new)),
        (old, set(Condition::IfAbsent, false), yes, None),
        (old, set(Condition::IfAbsent, false), no, Some(old)),
        (old, set(Condition::IfAbsent, true), value(1), Some(old)),
        (None, set(Condition::IfPresent, false), yes, None),
        (None, set(Condition::IfPresent, false), no, Some(None)),
        (None, set(Condition::IfPresent, true), value(0), Some(None)),
        (old, set(Condition::IfPresent, false), yes, Some(new)),
        (old, set(Condition::IfPresent, true), value(1), Some(new)),
        (old, set(Condition::Always, false), no, None),
        (old, set(Condition::Always, true), value(1), Some(new)),
        (old, set(Condition::Always, true), value(2), None),
    ] {
        let expected: Vec<State> = to.into_iter().collect();
        assert_eq!(step(from, input, output, wall(0)), expected, "{input:?} on {from:?}");
    }
}

#[test]
fn deadlines_are_set_kept_and_removed() {
    let yes = Output::Flag(true);
    let with_expiry =
        |expiry| Input::Set { value: ValueId(2), condition: Condition::Always, expiry, get_old: false };
    let state = held(1, Some(100));
    assert_eq!(step(state, with_expiry(Expiry::Keep), yes, wall(0)), [held(2, Some(100))]);
    assert_eq!(step(state, with_expiry(Expiry::Discard), yes, wall(0)), [held(2, None)]);
    assert_eq!(step(state, with_expiry(Expiry::At(7)), yes, wall(0)), [held(2, Some(7))]);
    let either = [held(2, Some(100)), held(2, None)];
    assert_eq!(step(state, with_expiry(Expiry::Keep), yes, wall(100)), either);
    let expire = Input::Expire { deadline_ms: 9 };
    assert_eq!(step(state, expire, yes, wall(0)), [held(1, Some(9))]);
    assert_eq!(step(None, expire, Output::Flag(false), wall(0)), [None]);
    assert_eq!(step(state, Input::Persist, yes, wall(0)), [held(1, None)]);
    assert!(step(held(1, None), Input::Persist, yes, wall(0)).is_empty());
    assert_eq!(step(state, Input::Delete, yes, wall(0)), [None]);
    assert_eq!(step(state, Input::Clear, Output::Done, wall(0)), [None]);
}

#[test]
fn lifetimes() {
    let ttl = |state, lifetime, ms| !step(state, Input::Ttl, Output::Lifetime(lifetime), wall(ms)).is_empty();
    let state = held(1, Some(1_000));
    assert!(ttl(state, Lifetime::Until(1_000), 0));
    assert!(!ttl(state, Lifetime::Until(1_001), 0));
    assert!(ttl(state, Lifetime::Remaining(400), 600));
    assert!(ttl(state, Lifetime::Remaining(405), 600));
    assert!(!ttl(state, Lifetime::Remaining(406), 600));
    assert!(!ttl(state, Lifetime::Unlimited, 0));
    assert!(ttl(held(1, None), Lifetime::Unlimited, 0));
    assert!(ttl(None, Lifetime::Absent, 0));
    assert!(ttl(state, Lifetime::Absent, 1_000));
    assert!(!ttl(state, Lifetime::Absent, 900));
}

#[test]
fn what_is_not_known_allows_all_that_could_be() {
    let any = |state, input: Input| {
        let successors = MODEL.step(state, &input, Expectation::Anything, wall(100));
        successors.as_slice().to_vec()
    };
    assert_eq!(any(held(1, Some(100)), Input::Get), [held(1, Some(100)), None]);
    let nx = Input::Set {
        value: ValueId(2),
        condition: Condition::IfAbsent,
        expiry: Expiry::Discard,
        get_old: false,
    };
    assert_eq!(any(held(1, Some(100)), nx), [held(1, Some(100)), held(2, None)]);
    let applied = MODEL.step(held(1, Some(100)), &nx, Expectation::Applied, wall(100));
    assert_eq!(applied.as_slice(), [held(2, None)]);
}
