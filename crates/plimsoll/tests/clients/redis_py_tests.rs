//! redis-py's own tests for what Plimsoll serves, unmodified: commands, pipelines and transactions,
//! messages, locks, connections.
//!
//! `redis_py_tests.txt` lists every exception with its reason. A listed test that passes, one that fails
//! otherwise than listed, and an unlisted one that fails each fail the test here, as does a file that is
//! neither run nor listed as left out.

use super::matrix::{installed, programs};
use super::process::{directory, told};
use super::{port, python, run_any, start};
use std::collections::BTreeMap;
use std::process::Command;

/// One line of the list.
struct Exception {
    /// A test, or a file that is left out, or a folder.
    test: &'static str,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// What stands in the exception that the test ends with.
    Fails(&'static str),
    NotRun,
    LeftOut,
}

impl Exception {
    /// Whether it means this test, of one kind or of all.
    fn is_of(&self, test: &str) -> bool {
        test.strip_prefix(self.test).is_some_and(|rest| rest.is_empty() || rest.starts_with('['))
    }
}

/// The list: sections `[fails]`, with lines `TEST: REASON: WORDS`, `[not run]`, with lines `TEST: REASON`,
/// and `[left out]`, with lines `FILE: REASON`.
fn exceptions() -> Vec<Exception> {
    let (mut section, mut found) = ("", Vec::new());
    let lines = include_str!("redis_py_tests.txt").lines();
    for line in lines.filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if line.starts_with('[') {
            section = line;
            continue;
        }
        let parts: Vec<&str> = line.splitn(3, ": ").collect();
        found.push(match (section, parts[..].iter().all(|part| !part.is_empty()), &parts[..]) {
            ("[fails]", true, &[test, _, words]) => Exception { test, kind: Kind::Fails(words) },
            ("[not run]", true, &[test, _]) => Exception { test, kind: Kind::NotRun },
            ("[left out]", true, &[test, _]) => Exception { test, kind: Kind::LeftOut },
            _ => panic!("redis_py_tests.txt: {section}: {line}"),
        });
    }
    found
}

/// What became of a test, and the words of its exception.
type Outcomes = BTreeMap<String, (String, String)>;

fn outcomes(name: &str, files: &[&str], left_out: &[&str]) -> Outcomes {
    let server = start(name, "256MiB");
    let folder = directory(&format!("{name}-outcomes"));
    let (to_write, to_leave_out) = (folder.join("outcomes"), folder.join("left-out"));
    std::fs::write(&to_leave_out, left_out.join("\n")).unwrap();
    let mut pytest = Command::new(python());
    pytest.args([
        "-m",
        "pytest",
        "-q",
        "--tb",
        "no",
        "-W",
        "ignore",
        "-p",
        "no:cacheprovider",
        "-p",
        "outcomes",
    ]);
    pytest.args(["-m", "not onlycluster and not ssl and not redismod and not replica"]);
    pytest.arg("--outcomes").arg(&to_write).arg("--leave-out").arg(&to_leave_out);
    pytest.arg(format!("--redis-url=redis://127.0.0.1:{}/9", port(&server))).args(files);
    pytest.current_dir(installed("clients/redis-py"));
    pytest.env("PYTHONPATH", programs("python")).env("PYTHONDONTWRITEBYTECODE", "1");
    let output = run_any(&mut pytest);
    // 1 says that tests failed.
    assert!(matches!(output.status.code(), Some(0 | 1)), "{}", told(&output));
    server.stop();
    let lines = std::fs::read_to_string(&to_write).unwrap();
    let lines = lines.lines().map(|line| line.splitn(3, '\t').map(str::to_owned).collect::<Vec<_>>());
    lines.map(|line| (line[1].clone(), (line[0].clone(), line[2].clone()))).collect()
}

/// Everything in which the outcomes differ from the list.
fn differences(outcomes: &Outcomes, listed: &[&Exception]) -> Vec<String> {
    let mut found = Vec::new();
    for exception in listed {
        let Kind::Fails(words) = exception.kind else { continue };
        let mut its = outcomes.iter().filter(|(test, _)| exception.is_of(test)).peekable();
        if its.peek().is_none() {
            found.push(format!("{}: listed, but there is none", exception.test));
        }
        for (test, (outcome, given)) in its {
            if outcome != "failed" {
                found.push(format!("{test}: listed, but {outcome}"));
            } else if !given.contains(words) {
                found.push(format!("{test}: listed with other words than: {given}"));
            }
        }
    }
    for (test, (outcome, words)) in outcomes {
        let is_listed = |one: &&Exception| matches!(one.kind, Kind::Fails(_)) && one.is_of(test);
        if outcome == "failed" && !listed.iter().any(is_listed) {
            found.push(format!("{test}: {words}"));
        }
    }
    found
}

fn pass_but_for_the_list(name: &str, files: &[&str], passed_min: usize) {
    let all = exceptions();
    let listed: Vec<&Exception> =
        all.iter().filter(|exception| files.iter().any(|file| exception.test.starts_with(file))).collect();
    let not_run = listed.iter().filter(|exception| exception.kind == Kind::NotRun);
    let not_run: Vec<&str> = not_run.map(|exception| exception.test).collect();
    let outcomes = outcomes(name, files, &not_run);
    let differences = differences(&outcomes, &listed);
    assert!(differences.is_empty(), "{} differences:\n{}", differences.len(), differences.join("\n"));
    let count = |wanted: &str| outcomes.values().filter(|(outcome, _)| outcome == wanted).count();
    let (passed, failed, skipped) = (count("passed"), count("failed"), count("skipped"));
    println!("{name}: {passed} passed, {failed} fail as listed, {skipped} skipped by themselves");
    assert!(passed >= passed_min, "only {passed} passed: were they all found?");
}

const COMMANDS: [&str; 1] = ["tests/test_commands.py"];
const ASYNC_COMMANDS: [&str; 1] = ["tests/test_asyncio/test_commands.py"];
const OTHERS: [&str; 13] = [
    "tests/test_command_parser.py",
    "tests/test_pipeline.py",
    "tests/test_pubsub.py",
    "tests/test_lock.py",
    "tests/test_connect.py",
    "tests/test_connection.py",
    "tests/test_connection_pool.py",
    "tests/test_encoding.py",
    "tests/test_client.py",
    "tests/test_max_connections_error.py",
    "tests/test_multiprocessing.py",
    "tests/test_monitor.py",
    "tests/test_retry.py",
];
const ASYNC_OTHERS: [&str; 12] = [
    "tests/test_asyncio/test_client.py",
    "tests/test_asyncio/test_command_parser.py",
    "tests/test_asyncio/test_connection.py",
    "tests/test_asyncio/test_connection_pool.py",
    "tests/test_asyncio/test_cwe_404.py",
    "tests/test_asyncio/test_encoding.py",
    "tests/test_asyncio/test_pipeline.py",
    "tests/test_asyncio/test_pubsub.py",
    "tests/test_asyncio/test_lock.py",
    "tests/test_asyncio/test_monitor.py",
    "tests/test_asyncio/test_retry.py",
    "tests/test_asyncio/test_usage_counter.py",
];

#[test]
fn redis_py_commands() {
    pass_but_for_the_list("redis-py-commands", &COMMANDS, 150);
}

#[test]
fn redis_py_commands_of_asyncio() {
    pass_but_for_the_list("redis-py-asyncio-commands", &ASYNC_COMMANDS, 250);
}

#[test]
fn redis_py_pipelines_messages_locks_and_connections() {
    pass_but_for_the_list("redis-py-others", &OTHERS, 450);
}

#[test]
fn redis_py_pipelines_messages_locks_and_connections_of_asyncio() {
    pass_but_for_the_list("redis-py-asyncio-others", &ASYNC_OTHERS, 400);
}

fn run() -> impl Iterator<Item = &'static str> {
    COMMANDS.iter().chain(&ASYNC_COMMANDS).chain(&OTHERS).chain(&ASYNC_OTHERS).copied()
}

#[test]
fn every_exception_is_listed_once_and_is_of_a_file_that_is_run() {
    let all = exceptions();
    let mut seen = std::collections::BTreeSet::new();
    for exception in &all {
        let file = exception.test.split("::").next();
        let is_run = run().any(|run| Some(run) == file);
        assert_eq!(is_run, exception.kind != Kind::LeftOut, "{}: whether its file is run", exception.test);
        assert!(seen.insert(exception.test), "{}: listed twice", exception.test);
    }
}

#[test]
fn every_file_is_run_or_left_out_for_a_reason() {
    let folder = installed("clients/redis-py");
    let (mut unseen, mut files) = (vec![folder.join("tests")], Vec::new());
    while let Some(path) = unseen.pop() {
        if path.is_dir() {
            unseen.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with("test_") && name.ends_with(".py") {
            files.push(path.strip_prefix(&folder).unwrap().to_string_lossy().into_owned());
        }
    }
    let left_out: Vec<_> = exceptions().into_iter().filter(|one| one.kind == Kind::LeftOut).collect();
    let is_left_out = |file: &str| {
        let names = |of: &Exception| file == of.test || of.test.ends_with('/') && file.starts_with(of.test);
        left_out.iter().any(names)
    };
    assert!(files.len() > 100, "only {} files are there", files.len());
    files.retain(|file| !is_left_out(file) && !run().any(|run| run == file));
    assert_eq!(files, [""; 0], "neither run nor listed");
}

#[test]
fn what_differs_from_the_list_is_told() {
    let fails = |test, words| Exception { test, kind: Kind::Fails(words) };
    let listed = [
        fails("passes", "no lists"),
        fails("fails", "no lists"),
        fails("fails otherwise", "no lists"),
        fails("is gone", "no lists"),
        fails("of both", "no lists"),
        Exception { test: "is not run", kind: Kind::NotRun },
    ];
    let outcome =
        |test: &str, outcome: &str, words: &str| (test.to_owned(), (outcome.to_owned(), words.to_owned()));
    let outcomes = Outcomes::from([
        outcome("passes", "passed", ""),
        outcome("fails", "failed", "there are no lists"),
        outcome("fails otherwise", "failed", "a panic"),
        outcome("of both[single]", "failed", "there are no lists"),
        outcome("of both[pool]", "passed", ""),
        outcome("unlisted", "failed", "a panic"),
        outcome("unlisted too", "skipped", ""),
    ]);
    let wanted = [
        "passes: listed, but passed",
        "fails otherwise: listed with other words than: a panic",
        "is gone: listed, but there is none",
        "of both[pool]: listed, but passed",
        "unlisted: a panic",
    ];
    assert_eq!(differences(&outcomes, &listed.iter().collect::<Vec<_>>()), wanted);
}
