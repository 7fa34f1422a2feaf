//! Servers that do not keep what they acknowledge, or answer more than they are asked: found out, in virtual
//! time.

mod world;

use plimsoll_bench::{BenchError, Operation, Plan};
use plimsoll_reactor::sim::World;
use plimsoll_reactor::{Reactor, Socket, Work};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use world::{Answer, CLIENT, KEYS, SERVER, Stored, address, load, options, outcome, right};

/// The number in the name of a key.
fn number(name: &[u8]) -> u64 {
    std::str::from_utf8(name).unwrap().strip_prefix("key:").unwrap().parse().unwrap()
}

#[test]
fn a_server_that_forgets_an_acknowledged_insert_is_found_out() {
    let forget: Answer = |words, stored| {
        let reply = right(words, stored);
        if words[0] == b"SET" && number(words[1]) >= KEYS && number(words[1]).is_multiple_of(3) {
            stored.remove(words[1]);
        }
        reply
    };
    for workload in ["ycsb-d", "ycsb-e", "read=1,insert=1"] {
        for pipeline in [1, 8] {
            let mut options = options(workload, Some(1000.0));
            options.tenants[0].pipeline = pipeline;
            let tally = load(&options, forget).unwrap();
            assert!(tally.lost > 0 && !tally.is_clean(), "{workload}: {tally:?}");
            let tally = load(&options, right).unwrap();
            assert!(tally.lost == 0 && tally.is_clean(), "{workload}: {tally:?}");
        }
    }
}

#[test]
fn an_insert_that_was_refused_is_not_expected_to_be_there() {
    let refuse: Answer = |words, stored| {
        let is_refused = words[0] == b"SET" && number(words[1]) >= KEYS && number(words[1]).is_multiple_of(3);
        if is_refused { b"-OOM no room\r\n".to_vec() } else { right(words, stored) }
    };
    let tally = load(&options("ycsb-d", Some(1000.0)), refuse).unwrap();
    assert!(tally.lost == 0 && tally.not_yet > 0 && tally.errors["OOM"].0 > 0, "{tally:?}");
}

#[test]
fn a_server_that_answers_twice_ends_the_load() {
    fn twice(word: &[u8], words: &[&[u8]], stored: &mut Stored) -> Vec<u8> {
        let reply = right(words, stored);
        if words[0] == word { [reply.clone(), reply].concat() } else { reply }
    }
    // One that comes late is seen when the load takes leave, whose own reply is still on its way then.
    let late: Answer = |words, stored| match words[0] {
        b"PING" if stored.len() as u64 == KEYS => b"+OK\r\n".to_vec(),
        _ => right(words, stored),
    };
    let answers: [Answer; 4] = [
        |words, stored| twice(b"SET", words, stored),
        |words, stored| twice(b"GET", words, stored),
        |words, stored| twice(b"PING", words, stored),
        late,
    ];
    for (at, answer) in answers.into_iter().enumerate() {
        for workload in ["read=1,update=1", "rmw=1"] {
            let ended = load(&options(workload, None), answer);
            assert!(matches!(ended, Err(BenchError::Surplus)), "{at} {workload}: {ended:?}");
        }
    }
    assert!(BenchError::Surplus.to_string().contains("answers more often than it is asked"));
}

#[test]
fn errors_of_a_server_do_not_steer_the_terminal() {
    let steer: Answer = |words, stored| match words[0] {
        b"GET" => b"-\x1b[2JERR \x1b]0;title\x07 gone\r\n".to_vec(),
        _ => right(words, stored),
    };
    let tally = load(&options("get", Some(100.0)), steer).unwrap();
    let (code, (count, text)) = tally.errors.first_key_value().unwrap();
    assert!(*count == 200 && code.contains(r"\u{1b}[2JERR"), "{code}");
    assert!(!code.contains(char::is_control) && !text.contains(char::is_control), "{text}");
    let refuse: Answer = |_, _| b"-NO \x1b[2J\r\n".to_vec();
    let refused = load(&options("get", None), refuse).unwrap_err().to_string();
    assert!(refused.contains("the server refuses") && !refused.contains(char::is_control), "{refused}");
}

/// How often some words are there.
fn occurrences(bytes: &[u8], words: &[u8]) -> usize {
    bytes.windows(words.len()).filter(|window| *window == words).count()
}

/// Acknowledges what has come when nothing more comes for a while, and notes the most that came at once.
async fn acknowledge_when_quiet(reactor: Reactor, socket: Socket, bytes_max: Rc<Cell<usize>>) {
    const QUIET_NS: u64 = 5_000_000;
    let (socket, received) = (Rc::new(socket), Rc::new(RefCell::new(Vec::new())));
    let (receiving, into) = (socket.clone(), received.clone());
    reactor.spawn(Work::Network, async move {
        while let (Ok(1..), more) = receiving.receive(Vec::new(), 1 << 16).await {
            into.borrow_mut().extend(more);
        }
    });
    let mut before = 0;
    loop {
        reactor.sleep_ns(QUIET_NS).await;
        let bytes = received.borrow().len();
        if std::mem::replace(&mut before, bytes) != bytes || bytes == 0 {
            continue;
        }
        let came = received.take();
        bytes_max.set(bytes_max.get().max(bytes));
        let mut replies = b"+OK\r\n".repeat(occurrences(&came, b"$3\r\nSET\r\n"));
        replies.extend(b"+PONG\r\n".repeat(occurrences(&came, b"$4\r\nPING\r\n")));
        if socket.send(replies).await.0.is_err() {
            return;
        }
    }
}

/// All values of a pipeline stood in memory, of every connection: as many as were asked for, however long.
#[test]
fn a_pipeline_of_long_values_is_bounded_by_its_bytes() {
    const MIB: usize = 1 << 20;
    for (value_bytes, least, most) in [(MIB, 4 * MIB, 5 * MIB), (6 * MIB, 6 * MIB, 7 * MIB)] {
        let (world, bytes_max) = (World::new(1, |_| "other"), Rc::new(Cell::new(0)));
        let noting = bytes_max.clone();
        world.start_process(SERVER, 1, move |reactor| {
            let (listener, noting) = (reactor.listen(address()).unwrap(), noting.clone());
            let reactor = reactor.clone();
            reactor.clone().spawn(Work::Network, async move {
                while let Ok(socket) = listener.accept().await {
                    let serving = acknowledge_when_quiet(reactor.clone(), socket, noting.clone());
                    reactor.spawn(Work::Network, serving);
                }
            });
        });
        let mut options = options("fillseq", None);
        let tenant = &mut options.tenants[0];
        tenant.sizes = value_bytes.to_string().parse().unwrap();
        (tenant.keys, tenant.connections, tenant.pipeline) = (10, 1, 16);
        let tally = outcome(&world, CLIENT, 1, Plan::measured(&options)).unwrap();
        assert_eq!(tally.latencies[&Operation::Insert].len(), 10, "all are stored");
        assert!((least..most).contains(&bytes_max.get()), "{value_bytes}: {}", bytes_max.get());
    }
}
