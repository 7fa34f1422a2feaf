//! Compares the verdicts of this crate's checker with those of porcupine, a checker of other authors.
//!
//! Place: drives the Go program in `tests/porcupine/`, which has a model of its own.
//!
//! Invariants: every generated history is judged by both, and they agree on every one. A missing Go is a
//! failure, not a reason to skip: Go is a prerequisite of `make test`.
//!
//! Must never: filter out histories on which the two differ.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use plimsoll_sim::checker::generated::{Mutation, Shape, broken, linearizable, scrambled};
use plimsoll_sim::checker::{
    CheckConfig, Condition, History, Input, KeyHistory, Moment, Operation, Output, Verdict, check_key,
};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng;
use serde_json::{Value, json};

const SEEDS: u64 = 600;

#[test]
fn porcupine_agrees_on_every_history() {
    let judge = build_judge();
    let histories: Vec<(u64, KeyHistory)> = (0..SEEDS)
        .flat_map(|seed| generate(seed).by_key().into_iter().map(move |history| (seed, history)))
        .collect();
    let lines: Vec<String> = histories.iter().map(|(_, history)| line(history)).collect();
    let theirs = run_judge(&judge, &lines);
    assert_eq!(theirs.len(), histories.len(), "one verdict per history");

    let (mut ok, mut illegal) = (0, 0);
    for ((seed, history), theirs) in histories.iter().zip(&theirs) {
        let ours = match check_key(history, &CheckConfig::default()) {
            Verdict::Ok => "ok",
            Verdict::Violation(_) => "illegal",
            Verdict::Unknown(exhausted) => panic!("seed {seed}: not decided: {exhausted:?}"),
        };
        assert_eq!(ours, theirs, "seed {seed}: ours is left, porcupine's right\n{}", line(history));
        match ours {
            "ok" => ok += 1,
            _ => illegal += 1,
        }
    }
    assert!(ok > 200 && illegal > 200, "both kinds are met: {ok} ok, {illegal} illegal");
}

/// A history that is linearizable, or has something planted in it, or has answers changed at random.
fn generate(seed: u64) -> History {
    let random = &mut Xoshiro256PlusPlus::seed_from_u64(seed);
    let shape = Shape {
        clients: 2 + (seed % 5) as u32,
        keys: 1 + (seed / 5 % 2) as u32,
        operations: [12, 30, 60][(seed / 10 % 3) as usize],
        unknown_permille: [0, 50, 120][(seed / 30 % 3) as usize],
        clear_permille: 20,
        deadlines: false,
    };
    let history = linearizable(shape, random);
    // Porcupine's model has no deadlines.
    let planted =
        [Mutation::StaleRead, Mutation::LostWrite, Mutation::ResurrectedDelete, Mutation::TwoOrders];
    let mutated = match seed % 8 {
        0 | 1 => None,
        n @ 2..=5 => broken(&history, planted[(n - 2) as usize], random),
        6 => scrambled(&history, random),
        _ => scrambled(&history, random).and_then(|once| scrambled(&once, random)),
    };
    mutated.unwrap_or(history)
}

fn build_judge() -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/porcupine");
    let judge = Path::new(env!("CARGO_TARGET_TMPDIR")).join("porcupine-judge");
    let built = Command::new("go")
        .args(["build", "-o"])
        .arg(&judge)
        .arg(".")
        .current_dir(&source)
        .env("GOTOOLCHAIN", "local")
        .output();
    let built = match built {
        Ok(built) => built,
        Err(error) => panic!(
            "cannot run `go` ({error}): this test compares with porcupine, which is written in Go; \
             install Go 1.19 or newer (Debian: golang-go) and see that it is on the PATH"
        ),
    };
    assert!(
        built.status.success(),
        "`go build` failed in {}:\n{}",
        source.display(),
        String::from_utf8_lossy(&built.stderr)
    );
    judge
}

/// The verdicts of porcupine, one per line given.
fn run_judge(judge: &Path, lines: &[String]) -> Vec<String> {
    let mut child = Command::new(judge)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program that was just built runs");
    let mut input = child.stdin.take().expect("it was piped");
    // Verdicts are short: those of all histories fit in the pipe while the histories are written.
    for line in lines {
        writeln!(input, "{line}").expect("the program reads to the end");
    }
    drop(input);
    let output = child.wait_with_output().expect("the program ends");
    assert!(output.status.success(), "porcupine's program failed: {}", output.status);
    let verdicts = String::from_utf8(output.stdout).expect("verdicts are words");
    verdicts.lines().map(str::to_string).collect()
}

/// A history as a line of JSON. Times are ranks: only their order matters.
fn line(history: &KeyHistory) -> String {
    let mut moments: Vec<Moment> = Vec::new();
    for operation in &history.operations {
        moments.push(operation.invoked);
        moments.extend(operation.outcome.map(|outcome| outcome.at));
    }
    moments.sort();
    moments.dedup();
    let rank = |moment: Moment| moments.binary_search(&moment).expect("it is among them");
    let operations: Vec<Value> = history.operations.iter().map(|operation| object(operation, rank)).collect();
    Value::from(operations).to_string()
}

fn object(operation: &Operation, rank: impl Fn(Moment) -> usize) -> Value {
    let kind = match operation.input {
        Input::Set { .. } => "set",
        Input::Get => "get",
        Input::Delete => "delete",
        Input::Exists => "exists",
        Input::Clear => "clear",
        Input::Expire { .. } | Input::Persist | Input::Ttl => unreachable!("deadlines are not generated"),
    };
    let mut object = json!({
        "client": operation.client,
        "call": rank(operation.invoked),
        "return": operation.outcome.map(|outcome| rank(outcome.at)),
        "kind": kind,
    });
    if let Input::Set { value, condition, get_old, .. } = operation.input {
        object["value"] = value.0.into();
        object["old"] = get_old.into();
        object["condition"] = match condition {
            Condition::Always => "",
            Condition::IfAbsent => "NX",
            Condition::IfPresent => "XX",
        }
        .into();
    }
    match operation.outcome.map(|outcome| outcome.output) {
        Some(Output::Flag(flag)) => object["flag"] = flag.into(),
        Some(Output::Value(value)) => object["read"] = value.0.into(),
        Some(Output::Done) | None => {}
        Some(Output::Lifetime(_)) => unreachable!("deadlines are not generated"),
    }
    object
}
