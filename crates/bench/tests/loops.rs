//! Closed and open loops in virtual time, against a server that stands still for a while.

mod world;

use plimsoll_bench::{Operation, Plan, Tally};
use world::{Answer, CLIENT, CONNECTIONS, OTHER_CLIENT, filling, load, options, outcome, right};

const RATE: f64 = 1000.0;

/// What a load is told by a server that has stood still.
fn told(workload: &str, rate: Option<f64>, answer: Answer) -> Tally {
    load(&options(workload, rate), answer).unwrap()
}

/// Operations that took half of the stall or more.
fn slow(tally: &Tally, operation: Operation) -> u64 {
    tally.latencies[&operation].count_between(100_000_000, u64::MAX)
}

#[test]
fn an_open_loop_counts_everything_that_was_due_while_the_server_stood_still() {
    let tally = told("get", Some(RATE), right);
    assert!(tally.is_clean(), "{tally:?}");
    assert_eq!(tally.latencies[&Operation::Read].len(), 2000, "every operation that was due is done");
    let slow = slow(&tally, Operation::Read);
    assert!(
        (95..=105).contains(&slow),
        "half of the 200 that were due in the stall wait for half of it: {slow}"
    );
}

#[test]
fn a_closed_loop_sees_a_stall_once_a_connection() {
    let tally = told("get", None, right);
    assert!(tally.is_clean(), "{tally:?}");
    assert_eq!(slow(&tally, Operation::Read), CONNECTIONS as u64);
}

#[test]
fn every_operation_is_proved() {
    for workload in ["ycsb-a", "ycsb-d", "ycsb-f", "set"] {
        let tally = told(workload, Some(RATE), right);
        assert!(tally.is_clean(), "{workload}: {:?}", tally.first_wrong);
        let done: u64 = tally.latencies.values().map(hdrhistogram::Histogram::len).sum();
        assert_eq!(done + tally.not_yet, 2000, "{workload}");
    }
}

#[test]
fn a_server_that_changes_values_is_found_out() {
    let change: Answer = |words, stored| {
        let reply = right(words, stored);
        if words[0] == b"SET" {
            *stored.get_mut(words[1]).unwrap().last_mut().unwrap() ^= 1;
        }
        reply
    };
    let tally = told("get", Some(RATE), change);
    assert_eq!(tally.wrong, 2000);
    assert!(tally.first_wrong.unwrap().contains("byte"));
    let cut: Answer = |words, stored| {
        let reply = right(words, stored);
        if words[0] == b"SET" {
            stored.get_mut(words[1]).unwrap().pop();
        }
        reply
    };
    let tally = told("get", Some(RATE), cut);
    assert_eq!(tally.wrong, 2000);
}

/// Half of it was the share of a core that had nothing to send it by.
#[test]
fn all_of_a_rate_is_sent_with_fewer_connections_than_cores() {
    for (connections, cores) in [(1, 2), (2, 3), (4, 2)] {
        let mut options = options("get", Some(RATE));
        options.tenants[0].connections = connections;
        let world = world::world(right);
        outcome(&world, CLIENT, 1, filling(&options)).unwrap();
        let tally = outcome(&world, OTHER_CLIENT, cores, Plan::measured(&options)).unwrap();
        let done = tally.latencies[&Operation::Read].len();
        assert!((1998..=2002).contains(&done), "{connections} connections on {cores} cores: {done}");
    }
}

/// It waited for ever.
#[test]
fn a_server_that_answers_nothing_any_more_ends_the_load() {
    let falls_silent: Answer = |words, stored| {
        let reply = right(words, stored);
        if stored.len() > 10 { Vec::new() } else { reply }
    };
    let plan = Plan::measured(&options("set", None));
    let error = outcome(&world::world(falls_silent), CLIENT, 1, plan).expect_err("nobody answers");
    assert_eq!(error.to_string(), "the server has not answered anything for 60 s");
}
