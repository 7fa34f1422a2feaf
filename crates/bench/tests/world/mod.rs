//! A server and loads on it in virtual time: what the tests of the load generator share.
#![allow(dead_code, unreachable_pub)] // Each test binary uses a part.

use plimsoll_bench::{BenchError, Options, Plan, Protocol, Tally, Tenant, run_core};
use plimsoll_reactor::sim::{ProcessId, World};
use plimsoll_reactor::{Reactor, Socket, Work};
use plimsoll_resp::{Limits, Parser, Step};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;

pub const SERVER: ProcessId = ProcessId(0);
pub const CLIENT: ProcessId = ProcessId(1);
pub const OTHER_CLIENT: ProcessId = ProcessId(2);
pub const CONNECTIONS: usize = 4;
/// Keys that every load finds.
pub const KEYS: u64 = 100;
/// The server answers nothing from here, in nanoseconds after its beginning,
const STALL_NS: u64 = 1_000_000_000;
/// to here.
const STALL_END_NS: u64 = 1_200_000_000;

/// What a server has.
pub type Stored = BTreeMap<Vec<u8>, Vec<u8>>;
/// What a server replies to the words of a command.
pub type Answer = fn(&[&[u8]], &mut Stored) -> Vec<u8>;

pub fn address() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 6379))
}

/// What a server of GET, SET and PING replies that does its work.
pub fn right(words: &[&[u8]], stored: &mut Stored) -> Vec<u8> {
    match words[0] {
        b"SET" => {
            stored.insert(words[1].to_vec(), words[2].to_vec());
            b"+OK\r\n".to_vec()
        }
        b"GET" => value(stored.get(words[1])),
        b"MGET" => {
            let head = format!("*{}\r\n", words.len() - 1).into_bytes();
            words[1..].iter().fold(head, |reply, key| [reply, value(stored.get(*key))].concat())
        }
        _ => b"+PONG\r\n".to_vec(),
    }
}

fn value(value: Option<&Vec<u8>>) -> Vec<u8> {
    let Some(value) = value else { return b"$-1\r\n".to_vec() };
    [format!("${}\r\n", value.len()).as_bytes(), value, b"\r\n"].concat()
}

async fn serve(reactor: Reactor, socket: Socket, stored: Rc<RefCell<Stored>>, answer: Answer) {
    let (mut parser, mut received, mut replies) = (Parser::new(Limits::DEFAULT), Vec::new(), Vec::new());
    loop {
        let (consumed, is_whole) = match parser.parse(&received) {
            Step::Command(command) => {
                let words: Vec<&[u8]> = (0..command.args.len()).map(|at| &command.args[at]).collect();
                replies.extend_from_slice(&answer(&words, &mut stored.borrow_mut()));
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
            if sent.is_err() {
                return; // The load has ended.
            }
        }
        let (count, buffer) = socket.receive(std::mem::take(&mut received), 1 << 16).await;
        received = buffer;
        if !matches!(count, Ok(1..)) {
            return;
        }
    }
}

/// A load on the server.
pub fn options(workload: &str, rate: Option<f64>) -> Options {
    let workload: plimsoll_bench::Workload = workload.parse().unwrap();
    let tenant = Tenant {
        name: "load".to_owned(),
        distribution: workload.distribution,
        workload,
        rate,
        connections: CONNECTIONS,
        pipeline: 1,
        database: 0,
        keys: KEYS,
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

/// A world with a server that answers so, and stands still for a while.
pub fn world(answer: Answer) -> World {
    let world = World::new(1, |_| "other");
    world.set_network_delay_ns(100_000);
    world.start_process(SERVER, 1, move |reactor| {
        let (listener, stored) = (reactor.listen(address()).unwrap(), Rc::default());
        let reactor = reactor.clone();
        reactor.clone().spawn(Work::Network, async move {
            while let Ok(socket) = listener.accept().await {
                let serving = serve(reactor.clone(), socket, Rc::clone(&stored), answer);
                reactor.spawn(Work::Network, serving);
            }
        });
    });
    world
}

/// What stores all keys.
pub fn filling(options: &Options) -> Plan {
    let fill = Tenant { workload: "fillseq".parse().unwrap(), rate: None, ..options.tenants[0].clone() };
    Plan::measured(&Options { tenants: vec![fill], requests: None, ..options.clone() })
}

/// What came of a phase that was run on so many cores, all together.
pub fn outcome(world: &World, client: ProcessId, cores: usize, plan: Plan) -> Result<Tally, BenchError> {
    let results: Rc<RefCell<Vec<Result<Tally, BenchError>>>> = Rc::default();
    let (telling, plan) = (results.clone(), Rc::new(plan));
    world.start_process(client, cores, move |reactor| {
        let (inner, telling, plan) = (reactor.clone(), telling.clone(), plan.clone());
        reactor.spawn(Work::Control, async move {
            inner.sleep_ns(1_000_000).await;
            let told = run_core(&inner, &plan).await.map(|mut tallies| tallies.remove(0));
            telling.borrow_mut().push(told);
        });
    });
    let are_all_told = || results.borrow().len() == cores;
    assert!(world.run_until(200_000_000_000, are_all_told), "the load comes to its end");
    let mut all = Tally::default();
    for told in results.take() {
        all.add(&told?);
    }
    Ok(all)
}

/// What a load comes to, once all keys are stored.
pub fn load(options: &Options, answer: Answer) -> Result<Tally, BenchError> {
    let world = world(answer);
    outcome(&world, CLIENT, 1, filling(options))?;
    outcome(&world, OTHER_CLIENT, 1, Plan::measured(options))
}
