//! Replies that are made whole before any of them leaves: a few bytes ask for many, so they wait for room.

use crate::common::{Bench, Client, Setup, encoded, run, send_in_background, show};
use plimsoll_kv::delay::Delay;
use plimsoll_reactor::Work;
use plimsoll_resp::Reply;
use plimsoll_server::budget::Budget;
use std::cell::Cell;
use std::rc::Rc;

/// What clients may hold; the longest reply that is made whole is half of it.
const BUDGET: Budget = Budget { client_bytes_max: 32 << 20, ..Budget::NOT_GIVEN };
const VALUE_BYTES: usize = 200 << 10;
const SLOW: Delay = Delay { fixed_ns: 1_000_000, byte_ps: 0 };

fn setup() -> Setup {
    Setup { cores: 1, partitions: 1, budget: BUDGET, ..Setup::default() }
}

async fn store(bench: &Bench, key: &str, bytes: usize) -> Client {
    let mut client = bench.client().await;
    client.expect(&format!("SET {key} {}", "v".repeat(bytes)), "+OK").await;
    client
}

/// MULTI, then so many GETs, then EXEC.
fn transaction(gets: usize) -> Vec<u8> {
    [encoded(&["MULTI"]), encoded(&["GET", "k"]).repeat(gets), encoded(&["EXEC"])].concat()
}

/// Takes the replies of that: what EXEC gives.
async fn taken(client: &mut Client, gets: usize) -> Reply {
    for reply in 0..=gets {
        let expected = if reply == 0 { "+OK" } else { "+QUEUED" };
        assert_eq!(show(&client.next().await.unwrap()), expected, "{reply}");
    }
    client.next().await.unwrap()
}

/// Looks every now and then how much is held, for so long.
async fn most_held(bench: &Bench, ms: u64) -> usize {
    let mut most = 0;
    for _ in 0..ms {
        bench.pause_ms(1).await;
        most = most.max(bench.held_bytes());
    }
    most
}

/// So many clients send the same at once and read what comes; how many have read it by now.
async fn send_all(
    bench: &Bench,
    count: usize,
    command: Vec<u8>,
    read: impl AsyncFn(&mut Client) + Clone + 'static,
) -> Rc<Cell<usize>> {
    let ended = Rc::new(Cell::new(0));
    for _ in 0..count {
        let (mut client, command) = (bench.client().await, command.clone());
        let (ended, read) = (ended.clone(), read.clone());
        bench.reactor.spawn(Work::Network, async move {
            client.send(command).await;
            read(&mut client).await;
            ended.set(ended.get() + 1);
        });
    }
    ended
}

/// As [`send_all`]; none is cut, nor do they hold more than they may.
async fn all_are_answered(
    bench: &Bench,
    count: usize,
    command: Vec<u8>,
    read: impl AsyncFn(&mut Client) + Clone + 'static,
) {
    let ended = send_all(bench, count, command, read).await;
    let most = most_held(bench, 5_000).await;
    assert_eq!((ended.get(), bench.cut()), (count, 0), "ended, cut");
    assert!(most <= BUDGET.client_bytes_max, "{most} bytes");
    assert!(most > BUDGET.reply_bytes_max() / 2, "{most} bytes: what is made is counted");
    assert!(bench.held_bytes() < 1 << 20, "{} bytes are left", bench.held_bytes());
}

/// Their replies were counted when all were made: 30 of 120 MiB took 3.6 GiB with `--memory 512MiB`, and all
/// were cut (found by an audit).
#[test]
fn transactions_with_long_replies_wait_for_room() {
    run(setup(), |bench| async move {
        store(&bench, "k", VALUE_BYTES).await;
        all_are_answered(&bench, 8, transaction(60), async |client| {
            let Reply::Array(values) = taken(client, 60).await else { panic!() };
            assert!(values.len() == 60 && values.iter().all(|value| show(value).len() == VALUE_BYTES));
        })
        .await;
        let mget = encoded(&[&["MGET"][..], &["k"; 60]].concat());
        let inside = [encoded(&["MULTI"]), mget, encoded(&["EXEC"])].concat();
        all_are_answered(&bench, 8, inside, async |client| {
            let Reply::Array(arrays) = taken(client, 1).await else { panic!() };
            let [Reply::Array(values)] = &arrays[..] else { panic!("{arrays:?}") };
            assert!(values.len() == 60 && values.iter().all(|value| show(value).len() == VALUE_BYTES));
        })
        .await;
        let stats = show(&bench.client().await.call(&["INFO", "commandstats"]).await);
        assert!(stats.contains("cmdstat_get:calls=480,"), "each is counted once: {stats}");
    });
}

/// 120 of 60 MiB took 6.6 GiB with `--memory 512MiB` (found by an audit).
#[test]
fn dumps_of_long_values_wait_for_room() {
    run(setup(), |bench| async move {
        let mut first = store(&bench, "long", 10 << 20).await;
        all_are_answered(&bench, 8, encoded(&["DUMP", "long"]), async |client| {
            let Reply::Bulk(payload) = client.next().await.unwrap() else { panic!() };
            assert!(payload.len() > 10 << 20);
        })
        .await;
        let Reply::Bulk(alone) = first.call(&["DUMP", "long"]).await else { panic!() };
        first.dialogue(&[("MULTI", "+OK"), ("DUMP long", "+QUEUED"), ("STRLEN long", "+QUEUED")]).await;
        let Reply::Array(replies) = first.call(&["EXEC"]).await else { panic!() };
        assert!(matches!(&replies[0], Reply::Bulk(inside) if *inside == alone));
        assert_eq!(show(&replies[1]), format!(":{}", 10 << 20));
        first.dialogue(&[("MULTI", "+OK"), ("DUMP long", "+QUEUED"), ("DUMP long", "+QUEUED")]).await;
        let refused = show(&first.call(&["EXEC"]).await);
        assert!(
            refused.starts_with("-ERR the replies of this transaction have more than 16777216"),
            "{refused}"
        );
    });
}

#[test]
fn listings_of_many_keys_wait_for_room() {
    // So that listing takes time.
    run(Setup { delay: SLOW, ..setup() }, |bench| async move {
        let mut client = bench.client().await;
        let keys: Vec<String> = (0..3_000).map(|number| format!("{number:01000}")).collect();
        let words = keys.iter().flat_map(|key| [key.as_str(), "v"]);
        client.send(encoded(&std::iter::once("MSET").chain(words).collect::<Vec<_>>())).await;
        assert_eq!(show(&client.next().await.unwrap()), "+OK");
        all_are_answered(&bench, 8, encoded(&["KEYS", "*"]), async |client| {
            let Reply::Array(keys) = client.next().await.unwrap() else { panic!() };
            assert_eq!(keys.len(), 3_000);
        })
        .await;
        let inside = [encoded(&["MULTI"]), encoded(&["KEYS", "*"]).repeat(3), encoded(&["EXEC"])].concat();
        all_are_answered(&bench, 8, inside, async |client| {
            let Reply::Array(lists) = taken(client, 3).await else { panic!() };
            assert!(lists.iter().all(|keys| matches!(keys, Reply::Array(keys) if keys.len() == 3_000)));
        })
        .await;
    });
}

/// Each kept what it had of its list while it waited for room for all of it: for ten seconds, and then all
/// but one were refused (found by an audit).
#[test]
fn listings_that_grow_long_together_do_not_wait_for_each_other() {
    // Many pages of a listing, so that each holds a part of its list.
    const COUNT: usize = 15_000;
    let budget = Budget { client_bytes_max: 8 << 20, ..BUDGET };
    run(Setup { delay: SLOW, budget, ..setup() }, |bench| async move {
        let mut client = bench.client().await;
        let keys: Vec<String> = (0..COUNT).map(|number| format!("{number:0100}")).collect();
        let words = keys.iter().flat_map(|key| [key.as_str(), "v"]);
        client.send(encoded(&std::iter::once("MSET").chain(words).collect::<Vec<_>>())).await;
        assert_eq!(show(&client.next().await.unwrap()), "+OK");
        let ended = send_all(&bench, 8, encoded(&["KEYS", "*"]), async |client| {
            let Reply::Array(keys) = client.next().await.unwrap() else { panic!() };
            assert_eq!(keys.len(), COUNT);
        })
        .await;
        bench.pause_ms(5_000).await;
        assert_eq!((ended.get(), bench.cut()), (8, 0), "ended, cut");
    });
}

/// It was done, and its client cut before it was told.
#[test]
fn a_transaction_whose_replies_get_no_room_does_nothing_and_says_so() {
    run(setup(), |bench| async move {
        store(&bench, "k", VALUE_BYTES).await;
        let mut late = bench.client().await;
        send_in_background(&bench, &late, transaction(60));
        bench.pause_ms(1_000).await;
        assert!(bench.held_bytes() > 10 << 20, "{} bytes wait for who does not read", bench.held_bytes());
        let mut other = bench.client().await;
        let begin = [encoded(&["MULTI"]), encoded(&["INCR", "done"])].concat();
        other.send([begin, transaction(60)[encoded(&["MULTI"]).len()..].to_vec()].concat()).await;
        let begun_ns = bench.reactor.now_ns();
        assert_eq!(show(&taken(&mut other, 61).await), "-TRYAGAIN overloaded, try again");
        let seconds = (bench.reactor.now_ns() - begun_ns) / 1_000_000_000;
        assert!((9..=10).contains(&seconds), "{seconds}: tryagain-after");
        other.expect("EXISTS done", ":0").await;
        let Reply::Array(values) = taken(&mut late, 60).await else { panic!() };
        assert_eq!((values.len(), bench.cut()), (60, 0));
        other.send(transaction(60)).await;
        let Reply::Array(values) = taken(&mut other, 60).await else { panic!() };
        assert_eq!(values.len(), 60);
    });
}

/// As soon as one was gone its replies were counted no more, and all that waited behind it were made at once
/// (found by an audit).
#[test]
fn replies_for_clients_that_have_gone_are_counted() {
    // So that making them takes time.
    run(Setup { delay: SLOW, ..setup() }, |bench| async move {
        store(&bench, "k", VALUE_BYTES).await;
        let mut clients = Vec::new();
        for _ in 0..20 {
            let client = bench.client().await;
            client.send(transaction(60)).await;
            clients.push(client);
        }
        bench.pause_ms(30).await;
        let killer = bench.client().await;
        killer.send(encoded(&["CLIENT", "KILL", "TYPE", "normal"])).await;
        let most = most_held(&bench, 20_000).await;
        assert!(most <= BUDGET.client_bytes_max, "{most} bytes");
        assert!(bench.held_bytes() < 1 << 20, "{} bytes are left", bench.held_bytes());
        bench.client().await.expect("EXISTS k", ":1").await;
    });
}

/// 24 000 of them took a gigabyte, and nobody counted (found by an audit).
#[test]
fn replies_of_commands_of_no_key_have_room_in_a_transaction_or_are_errors() {
    run(setup(), |bench| async move {
        let mut client = store(&bench, "k", VALUE_BYTES).await;
        let many = encoded(&["COMMAND", "DOCS"]).repeat(100);
        let both = [encoded(&["MULTI"]), encoded(&["INCR", "n"]), many, encoded(&["EXEC"])].concat();
        client.send(both).await;
        let Reply::Array(replies) = taken(&mut client, 101).await else { panic!() };
        assert_eq!(show(&replies[0]), ":1");
        assert!(show(&replies[1]).len() > 1_000);
        assert_eq!(
            show(&replies[100]),
            "-ERR the reply of this command is too long for a transaction: it was done"
        );
        let both =
            [transaction(5)[..transaction(5).len() - encoded(&["EXEC"]).len()].to_vec(), encoded(&["INFO"])];
        client.send([both.concat(), encoded(&["EXEC"])].concat()).await;
        let Reply::Array(replies) = taken(&mut client, 6).await else { panic!() };
        assert!(show(&replies[5]).contains("redis_version"), "beside a megabyte there is room for INFO");
    });
}

/// The message left each time that EXEC ran its commands, also when nothing was done (found by an audit).
#[test]
fn a_script_that_tells_inside_of_a_transaction_tells_once_when_it_is_done() {
    const TELL: &str = "local v = redis.call('get', KEYS[1]) if v == ARGV[1] and redis.call('unlink', KEYS[1]) == 1 \
                        then redis.call('publish', ARGV[2], KEYS[1]) return true end return false";
    run(setup(), |bench| async move {
        let (mut client, mut listener) = (store(&bench, "k", VALUE_BYTES).await, bench.client().await);
        listener.call(&["SUBSCRIBE", "free"]).await;
        for gets in [0, 10, 100] {
            client.expect("SET lock a", "+OK").await;
            let words = ["EVAL", TELL, "1", "lock", "a", "free"];
            let inside = [encoded(&words), encoded(&["GET", "k"]).repeat(gets)].concat();
            client.send([encoded(&["MULTI"]), inside, encoded(&["EXEC"])].concat()).await;
            let is_done = matches!(taken(&mut client, gets + 1).await, Reply::Array(_));
            assert_eq!(is_done, gets < 100, "{gets}");
            client.expect("EXISTS lock", if is_done { ":0" } else { ":1" }).await;
            if is_done {
                assert_eq!(show(&listener.next().await.unwrap()), "[message free lock]", "{gets}");
            }
        }
        client.expect("PUBLISH free last", ":1").await;
        assert_eq!(show(&listener.next().await.unwrap()), "[message free last]", "nothing came between");
    });
}

/// What its client held itself was taken for what others hold: on an idle server it was refused (found by an
/// audit).
#[test]
fn a_transaction_of_long_commands_with_long_replies_is_done_where_nobody_else_is() {
    run(setup(), |bench| async move {
        let mut client = store(&bench, "k", VALUE_BYTES).await;
        let set = encoded(&["SET", "w", &"v".repeat(VALUE_BYTES)]);
        let inside = [set.repeat(40), encoded(&["GET", "k"]).repeat(70)].concat();
        client.send([encoded(&["MULTI"]), inside, encoded(&["EXEC"])].concat()).await;
        let Reply::Array(replies) = taken(&mut client, 110).await else { panic!() };
        assert_eq!((replies.len(), bench.cut()), (110, 0));
    });
}

/// They were counted at an eighth of what they take, and who sent too many was cut (found by an audit).
#[test]
fn short_commands_that_a_transaction_queues_are_counted_and_refused_in_words() {
    run(setup(), |bench| async move {
        let mut client = bench.client().await;
        client.send([encoded(&["MULTI"]), encoded(&["PING"]).repeat(150_000)].concat()).await;
        let (mut queued, mut refused) = (0, 0);
        assert_eq!(show(&client.next().await.unwrap()), "+OK");
        for _ in 0..150_000 {
            match show(&client.next().await.unwrap()).as_str() {
                "+QUEUED" => queued += 1,
                "-ERR the commands of a transaction have too many bytes" => refused += 1,
                other => panic!("{other}"),
            }
        }
        assert!(queued > 50_000 && refused > 10_000, "{queued} queued, {refused} refused");
        assert!(bench.held_bytes() > 10 << 20, "{} bytes", bench.held_bytes());
        client.expect("EXEC", "-EXECABORT Transaction discarded because of previous errors.").await;
        assert_eq!(bench.cut(), 0);
    });
}
