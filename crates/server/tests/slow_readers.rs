//! Clients that read late, slowly, or not at all: what waits for them, and who is cut.

mod common;

use common::{Bench, Client, Setup, encoded, run, send_in_background, show};
use plimsoll_kv::delay::Delay;
use plimsoll_kv::memory::MemoryOptions;
use plimsoll_server::budget::Budget;

/// What clients may hold; a quarter of it waits for one that reads nothing.
const BUDGET: Budget = Budget { client_bytes_max: 32 << 20, ..Budget::NOT_GIVEN };

fn setup() -> Setup {
    Setup { cores: 1, partitions: 1, budget: BUDGET, ..Setup::default() }
}

fn cut(bench: &Bench) -> u64 {
    bench.shared.sum(|counters| counters.evicted.get())
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

/// 320 MiB of replies are asked for and nothing is read: 8 MiB of them wait, and as much is left for others.
#[test]
fn a_reader_that_does_not_read_is_not_read_from() {
    let memory = MemoryOptions { value_bytes_max: 64 << 10, ..MemoryOptions::default() };
    run(Setup { memory, ..setup() }, |bench| async move {
        stored(&bench).await;
        let mut c = deaf(&bench, 10_000).await;
        bench.pause_ms(50).await;
        // The limit, one send, and what was under way when the limit was reached.
        let held = held_by_reader(&bench).await;
        assert!((256 << 10..(3 << 20) + (256 << 10)).contains(&held), "{held}");
        let calls = bench.shared.sum(|counters| counters.calls());
        assert!(calls < 300, "{calls} commands were run for a client that has read nothing yet");
        bench.pause_ms(10_000).await;
        let held = held_by_reader(&bench).await;
        assert!((7 << 20..10 << 20).contains(&held), "{held}: a quarter of what clients may hold");
        for _ in 0..10_000 {
            let plimsoll_resp::Reply::Bulk(bytes) = c.next().await.unwrap() else { panic!() };
            assert_eq!(bytes.len(), 32 << 10);
        }
        assert!(held_by_reader(&bench).await < 1 << 20);
    });
}

/// It waits for nothing that could come, and holds what others need.
#[test]
fn a_reader_that_reads_nothing_for_a_minute_while_clients_hold_much_is_cut() {
    run(setup(), |bench| async move {
        let mut honest = stored(&bench).await;
        let deaf = deaf(&bench, 10_000).await;
        bench.pause_ms(50_000).await;
        assert_eq!(cut(&bench), 0);
        bench.pause_ms(30_000).await;
        assert_eq!(cut(&bench), 1);
        honest.expect("GET absent", "nil").await;
        drop(deaf);
    });
}

/// It has sent all that it has to send, and holds more than is left: others would wait for what it holds.
#[test]
fn a_reader_that_has_sent_all_and_reads_nothing_is_cut_for_those_who_come_later() {
    run(setup(), |bench| async move {
        let mut honest = stored(&bench).await;
        let mut silent = Vec::new();
        for gets in [250, 200, 150] {
            silent.push(deaf(&bench, gets).await);
            bench.pause_ms(2_000).await;
        }
        bench.pause_ms(100_000).await;
        assert!(cut(&bench) >= 1);
        let gets = 120;
        honest.send(encoded(&["GET", "k"]).repeat(gets)).await;
        for _ in 0..gets {
            assert!(matches!(honest.next().await, Some(plimsoll_resp::Reply::Bulk(_))));
        }
        drop(silent);
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
