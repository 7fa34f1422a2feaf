//! Clients that read late, slowly, or not at all: what waits for them, and who is cut.

use crate::common::{Bench, Client, Setup, encoded, run, send_in_background, show};
use plimsoll_kv::delay::Delay;
use plimsoll_kv::memory::MemoryOptions;
use plimsoll_reactor::Work;
use plimsoll_server::budget::Budget;
use std::cell::Cell;
use std::rc::Rc;

/// What clients may hold. Of that 12 MiB may wait of commands of one that reads nothing.
const BUDGET: Budget = Budget { client_bytes_max: 32 << 20, ..Budget::NOT_GIVEN };

fn setup() -> Setup {
    Setup { cores: 1, partitions: 1, budget: BUDGET, ..Setup::default() }
}

/// A client that has stored 32 KiB.
async fn stored(bench: &Bench) -> Client {
    let mut client = bench.client().await;
    client.expect(&format!("SET k {}", "v".repeat(32 << 10)), "+OK").await;
    client
}

/// One that asks for them so many times and reads nothing.
async fn deaf(bench: &Bench, gets: usize) -> Client {
    let client = bench.client().await;
    send_in_background(bench, &client, encoded(&["GET", "k"]).repeat(gets));
    client
}

const SLOW: Delay = Delay { fixed_ns: 100_000, byte_ps: 0 };

/// Redis keeps replies for whoever sends first and reads then, as clients do with a pipeline.
#[test]
fn a_client_that_sends_all_of_a_pipeline_before_it_reads_is_answered() {
    run(Setup { cores: 1, partitions: 1, ..Setup::default() }, |bench| async move {
        let mut c = bench.client().await;
        let (value, begun_ns) = ("v".repeat(64 << 10), bench.reactor.now_ns());
        let both = [encoded(&["SET", "k", &value]), encoded(&["GET", "k"])].concat();
        let many = encoded(&[&["MGET"][..], &["k"; 200]].concat());
        c.send([both.repeat(300), many, both.repeat(100)].concat()).await;
        let seconds = (bench.reactor.now_ns() - begun_ns) / 1_000_000_000;
        assert!(seconds < 3, "it was sent in {seconds} s");
        for number in 0..401 {
            if number == 300 {
                let plimsoll_resp::Reply::Array(values) = c.next().await.unwrap() else { panic!() };
                assert!(values.len() == 200 && values.iter().all(|each| show(each) == value));
                continue;
            }
            assert_eq!(show(&c.next().await.unwrap()), "+OK");
            assert_eq!(show(&c.next().await.unwrap()), value, "{number}");
        }
    });
}

/// The field of CLIENT LIST that tells what the client holds whose last command was a GET.
async fn held_by_reader(bench: &Bench) -> usize {
    let list = show(&bench.client().await.call(&["CLIENT", "LIST"]).await);
    let line = list.lines().find(|line| line.contains("cmd=get")).unwrap();
    line.split(' ').find_map(|field| field.strip_prefix("tot-mem=")).unwrap().parse().unwrap()
}

/// 320 MiB of replies are asked for and nothing is read: few of them wait, and what asked for them.
#[test]
fn a_reader_that_does_not_read_is_not_read_from() {
    let memory = MemoryOptions { value_bytes_max: 64 << 10, ..MemoryOptions::default() };
    run(Setup { memory, ..setup() }, |bench| async move {
        stored(&bench).await;
        let mut c = deaf(&bench, 10_000).await;
        for ms in [50, 10_000, 100_000] {
            bench.pause_ms(ms).await;
            // The limit, one send, what was under way when the limit was reached; and the commands.
            let held = held_by_reader(&bench).await;
            assert!((256 << 10..(3 << 20) + (512 << 10)).contains(&held), "{held}");
            let calls = bench.shared.sum(|counters| counters.calls());
            assert!(calls < 300, "{calls} commands were run for a client that has read nothing yet");
        }
        for _ in 0..10_000 {
            let plimsoll_resp::Reply::Bulk(bytes) = c.next().await.unwrap() else { panic!() };
            assert_eq!(bytes.len(), 32 << 10);
        }
        assert!(held_by_reader(&bench).await < 1 << 20);
    });
}

/// Pairs of a SET and a GET, so many bytes in all.
fn pairs(value_bytes: usize, bytes: usize) -> (Vec<u8>, usize) {
    let pair = [encoded(&["SET", "k", &"v".repeat(value_bytes)]), encoded(&["GET", "k"])].concat();
    let count = bytes / pair.len();
    (pair.repeat(count), count)
}

/// Takes the replies of so many.
async fn take(client: &mut Client, pairs: usize, value_bytes: usize) {
    for number in 0..pairs {
        assert_eq!(show(&client.next().await.unwrap()), "+OK", "{number}");
        let plimsoll_resp::Reply::Bulk(bytes) = client.next().await.unwrap() else { panic!("{number}") };
        assert!(bytes.len() == value_bytes && bytes.iter().all(|byte| *byte == b'v'), "{number}");
    }
}

/// Values in parts keep their space until they are taken, so few may wait. They began as their commands came,
/// and a pipeline of them that was sent whole was cut (found by an audit).
#[test]
fn a_pipeline_of_long_values_that_is_sent_whole_is_answered() {
    run(setup(), |bench| async move {
        let mut c = bench.client().await;
        let (both, count) = pairs(300 << 10, 11 << 20);
        let begun_ns = bench.reactor.now_ns();
        c.send(both).await;
        assert!(bench.reactor.now_ns() - begun_ns < 3_000_000_000, "it was sent");
        take(&mut c, count, 300 << 10).await;
        assert_eq!(bench.cut(), 0);
    });
}

/// More than they may hold at once: they come in one after the other. All were cut (found by an audit).
#[test]
fn several_pipelines_that_are_sent_whole_are_answered() {
    run(setup(), |bench| async move {
        let mut clients = Vec::new();
        let (both, count) = pairs(20 << 10, 11 << 20);
        for _ in 0..6 {
            let (mut client, both, ended) = (bench.client().await, both.clone(), Rc::new(Cell::new(false)));
            clients.push(ended.clone());
            bench.reactor.spawn(Work::Network, async move {
                client.send(both).await;
                take(&mut client, count, 20 << 10).await;
                ended.set(true);
            });
        }
        bench.pause_ms(30_000).await;
        assert!(clients.iter().all(|ended| ended.get()), "all have ended");
        assert_eq!(bench.cut(), 0);
    });
}

/// It would stand still for ever.
#[test]
fn a_client_that_sends_more_than_may_wait_and_reads_nothing_for_a_minute_is_cut() {
    run(setup(), |bench| async move {
        let mut honest = stored(&bench).await;
        let deaf = bench.client().await;
        send_in_background(&bench, &deaf, pairs(32 << 10, 30 << 20).0);
        bench.pause_ms(50_000).await;
        let held = bench.held_bytes();
        assert!((12 << 20..16 << 20).contains(&held), "{held}: the longest command, and some replies");
        assert_eq!(bench.cut(), 0);
        bench.pause_ms(30_000).await;
        assert_eq!(bench.cut(), 1);
        honest.expect("GET absent", "nil").await;
        assert!(bench.held_bytes() < 1 << 20, "what it held is free");
        drop(deaf);
    });
}

/// It was cut while it read, for taking nothing (found by an audit): what had left was looked at too
/// coarsely, and what waited for it was more than was left for others.
#[test]
fn a_client_that_reads_slowly_is_never_cut_and_holds_little() {
    run(setup(), |bench| async move {
        stored(&bench).await;
        let mut c = deaf(&bench, 300).await;
        for number in 0..300 {
            let plimsoll_resp::Reply::Bulk(bytes) = c.next().await.unwrap() else { panic!("{number}") };
            assert_eq!(bytes.len(), 32 << 10);
            bench.pause_ms(500).await;
            assert!(bench.held_bytes() < 4 << 20);
        }
        assert_eq!(bench.cut(), 0);
    });
}

/// They took turns with commands that came in, and held more than half of what clients may: a SET of 100 KB
/// took seconds as long as they were there (found by an audit).
#[test]
fn clients_that_send_much_and_read_nothing_hold_nobody_back() {
    run(setup(), |bench| async move {
        let mut deaf = Vec::new();
        for _ in 0..4 {
            let client = bench.client().await;
            send_in_background(&bench, &client, encoded(&["PING"]).repeat(700_000));
            deaf.push(client);
        }
        let mut honest = bench.client().await;
        for _ in 0..5 {
            bench.pause_ms(10_000).await;
            let begun_ns = bench.reactor.now_ns();
            honest.expect(&format!("SET k {}", "v".repeat(100 << 10)), "+OK").await;
            assert!(bench.reactor.now_ns() - begun_ns < 50_000_000, "it waited");
            assert!(bench.held_bytes() < 22 << 20, "so that the longest command has room still");
        }
        bench.pause_ms(22_000).await;
        let cut = bench.cut();
        assert!((1..=2).contains(&cut), "{cut}: one after the other, while they hold more than their part");
        drop(deaf);
    });
}

#[test]
fn what_a_client_without_the_password_sends_waits_with_the_kernel() {
    run(Setup { password: Some("secret"), ..setup() }, |bench| async move {
        let stranger = bench.client().await;
        send_in_background(&bench, &stranger, encoded(&["GET", "k"]).repeat(400_000));
        for _ in 0..5 {
            bench.pause_ms(10_000).await;
            assert!(bench.held_bytes() < 3 << 20);
        }
        bench.pause_ms(40_000).await;
        assert_eq!(bench.cut(), 1, "it stands still for ever");
    });
}

/// Each of them holds less than who stores: that one was cut, again and again, and waited (found by an
/// audit).
#[test]
fn readers_that_read_nothing_are_cut_before_who_stores() {
    run(setup(), |bench| async move {
        let mut honest = stored(&bench).await;
        let mut silent = Vec::new();
        for _ in 0..60 {
            silent.push(deaf(&bench, 300).await);
        }
        bench.pause_ms(2_000).await;
        assert!(bench.cut() > 0, "they hold too much together");
        let long = "v".repeat(2 << 20);
        for round in 0..20 {
            let begun_ns = bench.reactor.now_ns();
            honest.expect(&format!("SET long {long}"), "+OK").await;
            let waited_ms = (bench.reactor.now_ns() - begun_ns) / 1_000_000;
            assert!(
                round < 15 || waited_ms < 100,
                "{waited_ms} ms: who reads nothing is gone after a minute"
            );
            bench.pause_ms(5_000).await;
        }
        drop(silent);
    });
}

/// As Redis does; it had 10 s (found by an audit).
#[test]
fn a_client_that_quits_before_it_reads_gets_all_replies() {
    run(setup(), |bench| async move {
        stored(&bench).await;
        let mut c = bench.client().await;
        let many = [encoded(&["GET", "k"]).repeat(700), encoded(&["QUIT"])].concat();
        c.send(many).await;
        bench.pause_ms(40_000).await;
        for number in 0..700 {
            assert!(matches!(c.next().await, Some(plimsoll_resp::Reply::Bulk(_))), "{number}");
        }
        assert_eq!(show(&c.next().await.unwrap()), "+OK");
        assert!(c.next().await.is_none());
    });
}

/// Messages that wait for the end of an array made no room for its elements, and nothing ever did.
#[test]
fn a_long_message_that_comes_beside_a_long_array_waits_for_its_end() {
    run(Setup { delay: SLOW, ..setup() }, |bench| async move {
        let (mut c, mut other) = (bench.client().await, bench.client().await);
        c.call(&["HELLO", "3"]).await;
        c.call(&["SUBSCRIBE", "news"]).await;
        c.send(encoded(&[&["MGET"][..], &["absent"; 5_000]].concat())).await;
        bench.pause_ms(2).await;
        other.expect(&format!("PUBLISH news {}", "n".repeat(2 << 20)), ":1").await;
        let plimsoll_resp::Reply::Array(values) = c.next().await.unwrap() else { panic!("the array first") };
        assert_eq!(values.len(), 5_000);
        let message = c.next().await.unwrap();
        assert!(matches!(&message, plimsoll_resp::Reply::Push(words) if words.len() == 3), "{message:.60?}");
    });
}

/// A client that sends 40 MiB of pairs, then SETs of a MiB, reads at its pace, and stays.
fn pipelines(bench: &Bench, client: Client, tail: usize, pause_ms: u64) -> Rc<Cell<bool>> {
    let (both, count) = pairs(64 << 10, 40 << 20);
    let tail_bytes = encoded(&["SET", "t", &"v".repeat(1 << 20)]).repeat(tail);
    let (ended, bench) = (Rc::new(Cell::new(false)), bench.clone());
    let has_ended = ended.clone();
    bench.reactor.clone().spawn(Work::Network, async move {
        let mut client = client;
        client.send([both, tail_bytes].concat()).await;
        for _ in 0..count {
            take(&mut client, 1, 64 << 10).await;
            bench.pause_ms(pause_ms).await;
        }
        for _ in 0..tail {
            assert_eq!(show(&client.next().await.unwrap()), "+OK");
        }
        ended.set(true);
        bench.pause_ms(120_000).await;
        drop(client);
    });
    has_ended
}

/// Who had come to the end of a pipeline kept the headroom as long as the connection was open, as those of a
/// pool are: others waited for 30 s each, and were cut (found by an audit).
#[test]
fn who_has_come_to_an_end_keeps_nobody_waiting() {
    for tail in [0, 12] {
        run(Setup { cores: 1, partitions: 1, ..Setup::default() }, move |bench| async move {
            let mut ended = Vec::new();
            for _ in 0..5 {
                ended.push(pipelines(&bench, bench.client().await, tail, 0));
            }
            bench.pause_ms(8_000).await;
            let done = ended.iter().filter(|ended| ended.get()).count();
            assert_eq!((done, bench.cut()), (5, 0), "have ended, were cut; {tail} long commands behind");
        });
    }
}

/// Who had sent all kept the headroom until it had read all: those behind waited for a minute, and were cut
/// (found by an audit).
#[test]
fn who_has_sent_all_and_reads_slowly_keeps_nobody_waiting() {
    run(Setup { cores: 1, partitions: 1, ..Setup::default() }, |bench| async move {
        let (mut slow, mut fast) = (Vec::new(), Vec::new());
        for _ in 0..3 {
            slow.push(pipelines(&bench, bench.client().await, 0, 50));
        }
        bench.pause_ms(2_000).await;
        for _ in 0..3 {
            fast.push(pipelines(&bench, bench.client().await, 0, 0));
        }
        bench.pause_ms(5_000).await;
        assert!(fast.iter().all(|ended| ended.get()), "who reads fast has ended");
        bench.pause_ms(75_000).await;
        assert!(slow.iter().all(|ended| ended.get()), "who reads slowly has ended, too");
        assert_eq!(bench.cut(), 0);
    });
}

/// One that had closed its side stayed (found by an audit): the simulated network has no streams that are
/// half closed, so this one sends more than may wait.
#[test]
fn a_client_that_has_taken_the_beginning_of_a_long_array_and_takes_no_more_is_cut() {
    run(setup(), |bench| async move {
        let client = stored(&bench).await;
        client.send(encoded(&[&["MGET"][..], &["k"; 600]].concat())).await;
        send_in_background(&bench, &client, encoded(&["PING"]).repeat(2 << 20));
        bench.pause_ms(2_000).await;
        let mut taken = Vec::new();
        while taken.len() < 4 << 20 {
            taken = client.socket.receive(taken, 1 << 20).await.1;
        }
        bench.pause_ms(90_000).await;
        assert_eq!(bench.cut(), 1);
    });
}
