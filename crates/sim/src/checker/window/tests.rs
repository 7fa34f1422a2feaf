//! Tests of windows: no cut of a linearizable history is a violation.

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng;

use super::*;
use crate::checker::CheckConfig;
use crate::checker::generated::{Shape, linearizable};
use crate::checker::linearizable::decide;
use crate::checker::search::Ending;

#[test]
fn a_window_of_a_linearizable_history_has_an_order() {
    let mut cuts = 0;
    for seed in 0..300 {
        let shape = Shape {
            clients: 4,
            keys: 1,
            operations: 30,
            unknown_permille: [0, 150][(seed % 2) as usize],
            clear_permille: 30,
            deadlines: seed / 2 % 2 == 0,
        };
        let history = linearizable(shape, &mut Xoshiro256PlusPlus::seed_from_u64(seed));
        for key_history in history.by_key() {
            for start in key_history.operations.iter().map(|operation| operation.invoked) {
                let Some(window) = Window::from(&key_history, None, start) else {
                    continue;
                };
                let (ending, _) = decide(&window.history, &window.initial, &CheckConfig::default());
                assert_eq!(ending, Ending::Ordered, "seed {seed}, from {start:?}");
                cuts += 1;
            }
        }
    }
    assert!(cuts > 4_000, "{cuts} cuts");
}

#[test]
fn what_ended_before_is_left_behind_in_the_initial_states() {
    let mut history = crate::checker::History::new();
    let key = crate::checker::Scope::Key(history.intern(b"k"));
    let mut push = |input, from_ns, to_ns: u64, output| {
        history.push(Operation {
            client: 1,
            scope: key,
            input,
            invoked: Moment::at(from_ns),
            outcome: Some(crate::checker::Outcome { at: Moment::at(to_ns), output }),
            wall: crate::checker::WallSpan::new(0, 0),
        });
    };
    push(Input::set(1), 0, 1, Output::Flag(true));
    push(Input::set(2), 2, 3, Output::Flag(true));
    push(Input::Delete, 4, 9, Output::Flag(true));
    push(Input::Get, 6, 7, Output::Value(ValueId(2)));
    let key_history = &history.by_key()[0];
    let window = Window::from(key_history, None, Moment::at(5)).expect("no writer is under way");
    assert_eq!(window.answered(), [3], "the delete is under way at the cut");
    let held = |value| Some(Live { value, deadline_ms: None });
    assert_eq!(window.initial, [None, held(ValueId(2)), held(ANY_VALUE)]);
    assert!(Window::from(key_history, None, Moment::at(3)).is_none(), "the writer of 2 is under way");
}
