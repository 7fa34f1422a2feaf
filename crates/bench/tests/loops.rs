//! Closed and open loops in virtual time, against a server that stands still for a while.

use plimsoll_bench::{Operation, Options, Plan, Protocol, Tally, Tenant, run_core};
use plimsoll_reactor::sim::{ProcessId, World};
use plimsoll_reactor::{Reactor, Socket, Work};
use plimsoll_resp::{Limits, Parser, Step};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;

const SERVER: ProcessId = ProcessId(0);
const CLIENT: ProcessId = ProcessId(1);
const CONNECTIONS: usize = 4;
const RATE: f64 = 1000.0;
/// The server answers nothing from here, in nanoseconds after its beginning,
const STALL_NS: u64 = 1_000_000_000;
/// to here.
const STALL_END_NS: u64 = 1_200_000_000;

type Stored = Rc<RefCell<BTreeMap<Vec<u8>, Vec<u8>>>>;

/// What the server does to values that it is given.
type Spoil = fn(&mut Vec<u8>);

fn address() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 6379))
}

/// A server of GET, SET and PING.
async fn serve(reactor: Reactor, socket: Socket, stored: Stored, spoil: Spoil) {
    let (mut parser, mut received, mut replies) = (Parser::new(Limits::DEFAULT), Vec::new(), Vec::new());
    loop {
        let (consumed, is_whole) = match parser.parse(&received) {
            Step::Command(command) => {
                match &command.args[0] {
                    b"SET" => {
                        let mut value = command.args[2].to_vec();
                        spoil(&mut value);
                        stored.borrow_mut().insert(command.args[1].to_vec(), value);
                        replies.extend_from_slice(b"+OK\r\n");
                    }
                    b"GET" => match stored.borrow().get(&command.args[1]) {
                        Some(value) => {
                            replies.extend_from_slice(format!("${}\r\n", value.len()).as_bytes());
                            replies.extend_from_slice(value);
                            replies.extend_from_slice(b"\r\n");
                        }
                        None => replies.extend_from_slice(b"$-1\r\n"),
                    },
                    _ => replies.extend_from_slice(b"+PONG\r\n"),
                }
                (command.consumed, true)
            }
            step => (step.consumed(), false),
        };
        received.drain(..consumed);
        if is_whole {
            continue;
        }
        if !replies.is_empty() {
            let now_ns = reactor.now_ns();
            if (STALL_NS..STALL_END_NS).contains(&now_ns) {
                reactor.sleep_until(STALL_END_NS).await;
            }
            let (sent, _) = socket.send(std::mem::take(&mut replies)).await;
            sent.expect("the client is there");
        }
        let (count, buffer) = socket.receive(std::mem::take(&mut received), 1 << 16).await;
        received = buffer;
        if !matches!(count, Ok(1..)) {
            return;
        }
    }
}

/// A load on the server.
fn options(workload: &str, rate: Option<f64>) -> Options {
    let workload: plimsoll_bench::Workload = workload.parse().unwrap();
    let tenant = Tenant {
        name: "load".to_owned(),
        distribution: workload.distribution,
        workload,
        rate,
        connections: CONNECTIONS,
        pipeline: 1,
        database: 0,
        keys: 100,
        key_bytes: 16,
        sizes: "100:1,1000:1".parse().unwrap(),
    };
    Options {
        address: address(),
        protocol: Protocol::Resp,
        password: None,
        cpus: vec![0],
        tenants: vec![tenant],
        load: false,
        seconds: 2.0,
        warmup_seconds: 0.0,
        requests: None,
        seed: 1,
        server: None,
    }
}

/// What a load is told by a server that has stood still.
fn told(workload: &str, rate: Option<f64>, spoil: Spoil) -> Tally {
    let options = options(workload, rate);
    let fill = Tenant { workload: "fillseq".parse().unwrap(), rate: None, ..options.tenants[0].clone() };
    let filled = Plan::measured(&Options { tenants: vec![fill], ..options.clone() });
    let measured = Plan::measured(&options);
    let world = World::new(1, |_| "other");
    world.set_network_delay_ns(100_000);
    world.start_process(SERVER, 1, move |reactor| {
        let (listener, stored) = (reactor.listen(address()).unwrap(), Stored::default());
        let reactor = reactor.clone();
        reactor.clone().spawn(Work::Network, async move {
            while let Ok(socket) = listener.accept().await {
                let serving = serve(reactor.clone(), socket, stored.clone(), spoil);
                reactor.spawn(Work::Network, serving);
            }
        });
    });
    let result: Rc<RefCell<Option<Tally>>> = Rc::default();
    let (telling, plans) = (result.clone(), RefCell::new(Some((filled, measured))));
    world.start_process(CLIENT, 1, move |reactor| {
        let (inner, telling) = (reactor.clone(), telling.clone());
        let (filled, measured) = plans.borrow_mut().take().expect("started once");
        reactor.spawn(Work::Control, async move {
            inner.sleep_ns(1_000_000).await;
            let stored = run_core(&inner, &filled).await.unwrap().remove(0);
            assert_eq!(stored.latencies[&Operation::Insert].len(), 100);
            *telling.borrow_mut() = Some(run_core(&inner, &measured).await.unwrap().remove(0));
        });
    });
    assert!(world.run_until(60_000_000_000, || result.borrow().is_some()), "the load comes to its end");
    result.take().unwrap()
}

/// Operations that took half of the stall or more.
fn slow(tally: &Tally, operation: Operation) -> u64 {
    tally.latencies[&operation].count_between(100_000_000, u64::MAX)
}

#[test]
fn an_open_loop_counts_everything_that_was_due_while_the_server_stood_still() {
    let tally = told("get", Some(RATE), |_| {});
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
    let tally = told("get", None, |_| {});
    assert!(tally.is_clean(), "{tally:?}");
    assert_eq!(slow(&tally, Operation::Read), CONNECTIONS as u64);
}

#[test]
fn every_operation_is_proved() {
    for workload in ["ycsb-a", "ycsb-d", "ycsb-f", "set"] {
        let tally = told(workload, Some(RATE), |_| {});
        assert!(tally.is_clean(), "{workload}: {:?}", tally.first_wrong);
        let done: u64 = tally.latencies.values().map(hdrhistogram::Histogram::len).sum();
        assert_eq!(done + tally.not_yet, 2000, "{workload}");
    }
}

#[test]
fn a_server_that_changes_values_is_found_out() {
    let tally = told("get", Some(RATE), |value| *value.last_mut().unwrap() ^= 1);
    assert_eq!(tally.wrong, 2000);
    assert!(tally.first_wrong.unwrap().contains("byte"));
    let tally = told("get", Some(RATE), |value| value.truncate(value.len() - 1));
    assert_eq!(tally.wrong, 2000);
}

/// It waited for ever.
#[test]
fn a_server_that_answers_nothing_any_more_ends_the_load() {
    const ANSWERED: usize = 10;
    let world = World::new(1, |_| "other");
    world.start_process(SERVER, 1, |reactor| {
        let listener = reactor.listen(address()).unwrap();
        let reactor = reactor.clone();
        reactor.clone().spawn(Work::Network, async move {
            while let Ok(socket) = listener.accept().await {
                reactor.spawn(Work::Network, async move {
                    for answered in 0.. {
                        let (count, _) = socket.receive(Vec::new(), 1 << 16).await;
                        if !matches!(count, Ok(1..)) {
                            return;
                        }
                        if answered < ANSWERED {
                            socket.send(b"+OK\r\n".to_vec()).await.0.expect("the client is there");
                        }
                    }
                });
            }
        });
    });
    let result: Rc<RefCell<Option<String>>> = Rc::default();
    let (telling, plan) = (result.clone(), RefCell::new(Some(Plan::measured(&options("set", None)))));
    world.start_process(CLIENT, 1, move |reactor| {
        let (inner, telling) = (reactor.clone(), telling.clone());
        let plan = plan.borrow_mut().take().expect("started once");
        reactor.spawn(Work::Control, async move {
            inner.sleep_ns(1_000_000).await;
            let error = run_core(&inner, &plan).await.expect_err("nobody answers");
            *telling.borrow_mut() = Some(error.to_string());
        });
    });
    assert!(world.run_until(90_000_000_000, || result.borrow().is_some()), "the load ends");
    assert_eq!(result.take().unwrap(), "the server has not answered anything for 60 s");
}
