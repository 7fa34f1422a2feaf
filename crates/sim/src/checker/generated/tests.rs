//! Tests of the generator: the same seed gives the same history, and all kinds of operations are met.

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng;

use super::*;

const SHAPE: Shape =
    Shape { clients: 6, keys: 3, operations: 600, unknown_permille: 50, clear_permille: 10, deadlines: true };

fn history(seed: u64) -> History {
    linearizable(SHAPE, &mut Xoshiro256PlusPlus::seed_from_u64(seed))
}

#[test]
fn a_seed_gives_one_history() {
    assert_eq!(history(1).operations(), history(1).operations());
    assert_ne!(history(1).operations(), history(2).operations());
}

#[test]
fn all_kinds_of_operations_and_answers_are_met() {
    let history = history(3);
    let operations = history.operations();
    assert_eq!(operations.len(), 600);
    assert!(operations.iter().any(|operation| operation.outcome.is_none()));
    assert!(operations.iter().any(|operation| operation.wall.high_ms > operation.wall.max_ms));
    let met = |text: &str| {
        operations.iter().any(|operation| {
            let output = operation.outcome.map(|outcome| outcome.output.to_string());
            let all = format!("{} -> {}", operation.input, output.unwrap_or_default());
            all.contains(text)
        })
    };
    for text in [
        "GET -> v",
        "GET -> absent",
        "DEL -> yes",
        "DEL -> no",
        "EXISTS -> yes",
        "NX -> yes",
        "NX",
        "XX -> yes",
        "XX",
        "KEEPTTL",
        "PXAT",
        " GET -> v",
        "PEXPIREAT",
        "PERSIST -> yes",
        "PTTL -> no deadline",
        "PTTL -> absent",
        "ms left",
        "deadline 1",
        "FLUSHDB -> done",
    ] {
        assert!(met(text), "no {text}");
    }
}

#[test]
fn mutations_change_the_history() {
    let history = history(4);
    let random = &mut Xoshiro256PlusPlus::seed_from_u64(4);
    let stale = broken(&history, Mutation::StaleRead, random).expect("always possible");
    assert_eq!(stale.operations().len(), history.operations().len() + 3);
    let scrambled = scrambled(&history, random).expect("it has answers");
    assert_eq!(scrambled.operations().len(), history.operations().len());
}
