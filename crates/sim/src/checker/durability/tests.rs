//! Tests of final reads.

use super::*;
use crate::checker::{CheckConfig, Recorder, check};

const AFTER: Now = Now { ns: 9, wall_ms: 9 };

fn recorded(answered: bool) -> History {
    let now = |ns| Now { ns, wall_ms: ns };
    let mut recorder = Recorder::new();
    let a = recorder.invoke(1, b"a", Input::set(1), now(1));
    recorder.respond(a, Output::Flag(true), now(2));
    let b = recorder.invoke(1, b"a", Input::set(2), now(3));
    if answered {
        recorder.respond(b, Output::Flag(true), now(4));
    }
    recorder.finish(now(5))
}

fn holds(answered: bool, contents: &[(&[u8], u64)]) -> bool {
    let mut history = recorded(answered);
    let read = |value| FinalRead { value: ValueId(value), lifetime: Some(Lifetime::Unlimited) };
    let contents = contents.iter().map(|(name, value)| (name.to_vec(), read(*value)));
    add_final_reads(&mut history, &contents.collect(), AFTER);
    check(&history, &CheckConfig::default()).is_ok()
}

#[test]
fn an_acknowledged_write_must_be_there() {
    assert!(holds(true, &[(b"a", 2)]));
    assert!(!holds(true, &[(b"a", 1)]), "an older version");
    assert!(!holds(true, &[]), "nothing");
}

#[test]
fn a_write_of_unknown_outcome_may_be_there() {
    assert!(holds(false, &[(b"a", 2)]));
    assert!(holds(false, &[(b"a", 1)]));
    assert!(!holds(false, &[]));
}

#[test]
fn what_nobody_wrote_must_not_be_there() {
    assert!(!holds(true, &[(b"a", 7)]));
    assert!(!holds(true, &[(b"a", 2), (b"b", 7)]));
}

#[test]
fn a_stored_deadline_is_checked() {
    let mut history = recorded(true);
    let read = FinalRead { value: ValueId(2), lifetime: Some(Lifetime::Until(500)) };
    add_final_reads(&mut history, &BTreeMap::from([(b"a".to_vec(), read)]), AFTER);
    assert!(check(&history, &CheckConfig::default()).is_violation(), "it was given none");
}
