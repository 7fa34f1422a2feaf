//! Tests of the order of events and of the wall times they met.

use super::*;

fn now(ns: u64, wall_ms: u64) -> Now {
    Now { ns, wall_ms }
}

#[test]
fn events_of_one_nanosecond_keep_their_order() {
    let mut recorder = Recorder::new();
    let first = recorder.invoke(1, b"k", Input::Get, now(7, 0));
    recorder.respond(first, Output::Flag(true), now(7, 0));
    recorder.invoke(2, b"k", Input::Get, now(7, 0));
    let history = recorder.finish(now(7, 0));
    let [first, second] = history.operations() else {
        panic!("two operations");
    };
    let answered = first.outcome.expect("answered").at;
    assert!(first.invoked < answered && answered < second.invoked);
}

#[test]
fn wall_spans_cover_steps_and_remember_the_highest() {
    let mut recorder = Recorder::new();
    let early = recorder.invoke(1, b"k", Input::Get, now(0, 100));
    let lost = recorder.invoke(2, b"k", Input::Get, now(1, 101));
    recorder.wall_stepped(103, 500);
    recorder.respond(early, Output::Flag(true), now(2, 501));
    recorder.wall_stepped(502, 90);
    let late = recorder.invoke(3, b"k", Input::Get, now(3, 91));
    recorder.respond(late, Output::Flag(true), now(4, 92));
    let history = recorder.finish(now(5, 93));
    let span = |id: OperationId| history.operations()[id.0].wall;
    let spans = [span(early), span(lost), span(late)];
    let expected = [(100, 501, 501), (90, 502, 502), (91, 92, 502)];
    for (span, (min_ms, max_ms, high_ms)) in spans.into_iter().zip(expected) {
        let expected = WallSpan { min_ms, max_ms, high_ms };
        assert_eq!(span, expected);
    }
}

#[test]
#[should_panic(expected = "one response per operation")]
fn a_second_response_is_refused() {
    let mut recorder = Recorder::new();
    let id = recorder.invoke(1, b"k", Input::Get, now(0, 0));
    recorder.respond(id, Output::Flag(true), now(1, 0));
    recorder.respond(id, Output::Flag(true), now(2, 0));
}

#[test]
#[should_panic(expected = "monotonic time does not run back")]
fn time_that_runs_back_is_refused() {
    let mut recorder = Recorder::new();
    recorder.invoke(1, b"k", Input::Get, now(5, 0));
    recorder.invoke(1, b"k", Input::Get, now(4, 0));
}
