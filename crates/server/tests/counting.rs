//! DBSIZE and INFO beside transactions over several partitions or databases: each is seen whole or not at
//! all.

use crate::common::{Bench, Client, Setup, run, show};
use plimsoll_kv::delay::Delay;
use plimsoll_reactor::Work;
use std::cell::Cell;
use std::rc::Rc;

const SLOW: Delay = Delay { fixed_ns: 20_000, byte_ps: 0 };
/// Times that the writers do their part.
const ROUNDS: usize = 60;

/// Stores and deletes twenty keys as one.
async fn write(bench: Bench, done: Rc<Cell<usize>>) {
    let mut c = bench.client().await;
    let keys: Vec<String> = (0..20).map(|number| format!("k{number}")).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    for _ in 0..ROUNDS {
        let stores = [&["MSET"][..], &keys.iter().flat_map(|key| [*key, "v"]).collect::<Vec<_>>()].concat();
        assert_eq!(show(&c.call(&stores).await), "+OK");
        c.call(&["MULTI"]).await;
        c.call(&[&["DEL"][..], &keys].concat()).await;
        assert_eq!(show(&c.call(&["EXEC"]).await), "[:20]");
    }
    done.set(done.get() + 1);
}

/// Renames the one key of another database, round and round.
async fn rename(bench: Bench, done: Rc<Cell<usize>>) {
    let mut c = bench.client().await;
    c.expect("SELECT 3", "+OK").await;
    for round in 0..2 * ROUNDS {
        let (from, to) = (format!("k{}", round % 7), format!("k{}", (round + 1) % 7));
        c.expect(&format!("RENAME {from} {to}"), "+OK").await;
    }
    done.set(done.get() + 1);
}

/// Moves one key from a database to another and back: it stays at its partition.
async fn move_between(bench: Bench, done: Rc<Cell<usize>>) {
    let mut c = bench.client().await;
    for round in 0..2 * ROUNDS {
        let [from, to] = [[4, 5], [5, 4]][round % 2];
        c.call(&["MULTI"]).await;
        for command in [format!("SELECT {from}"), "DEL k".into(), format!("SELECT {to}"), "SET k v".into()] {
            c.expect(&command, "+QUEUED").await;
        }
        c.call(&["EXEC"]).await;
    }
    done.set(done.get() + 1);
}

/// What INFO says of the keys of each database.
async fn told(c: &mut Client) -> [u64; 6] {
    let text = show(&c.call(&["INFO", "keyspace"]).await);
    let keys_of = |database: usize| {
        let keys = text.split(&format!("db{database}:keys=")).nth(1)?;
        keys.split(',').next().map(|keys| keys.parse().expect("a number"))
    };
    std::array::from_fn(|database| keys_of(database).unwrap_or(0))
}

#[test]
fn a_count_sees_no_transaction_half_done() {
    for (cores, partitions) in [(1, 3), (2, 2), (3, 8)] {
        run(Setup { cores, partitions, delay: SLOW, ..Setup::default() }, |bench| async move {
            let mut c = bench.client().await;
            c.expect("SELECT 3", "+OK").await;
            c.expect("SET k0 v", "+OK").await;
            let done = Rc::new(Cell::new(0));
            bench.reactor.spawn(Work::Kv, write(bench.clone(), done.clone()));
            bench.reactor.spawn(Work::Kv, rename(bench.clone(), done.clone()));
            c.expect("SELECT 4", "+OK").await;
            c.expect("SET k v", "+OK").await;
            bench.reactor.spawn(Work::Kv, move_between(bench.clone(), done.clone()));
            let (mut none, mut all) = (0, 0);
            while done.get() < 3 {
                c.expect("SELECT 3", "+OK").await;
                c.expect("DBSIZE", ":1").await;
                let keys = told(&mut c).await;
                assert!([0, 20].contains(&keys[0]), "{keys:?}");
                assert_eq!((keys[3], keys[4] + keys[5]), (1, 1), "{keys:?}");
                c.expect("SELECT 0", "+OK").await;
                match show(&c.call(&["DBSIZE"]).await).as_str() {
                    ":0" => none += 1,
                    ":20" => all += 1,
                    size => panic!("{size} of 20 keys"),
                }
            }
            assert!(none > 10 && all > 10, "{none} times none, {all} times all");
        });
    }
}

/// The other way round: who counts without a pause does not keep transactions from their end.
#[test]
fn who_counts_without_a_pause_holds_no_transaction_up() {
    run(Setup { cores: 2, partitions: 2, delay: SLOW, ..Setup::default() }, |bench| async move {
        let done = Rc::new(Cell::new(0));
        for _ in 0..4 {
            let (bench, done) = (bench.clone(), done.clone());
            bench.clone().reactor.spawn(Work::Kv, async move {
                let mut c = bench.client().await;
                while done.get() < 1 {
                    c.call(&["DBSIZE"]).await;
                }
            });
        }
        let from_ns = bench.reactor.now_ns();
        write(bench.clone(), done.clone()).await;
        let took_ms = (bench.reactor.now_ns() - from_ns) / 1_000_000;
        assert!(took_ms < 1000, "{took_ms} ms for {} transactions", 2 * ROUNDS);
    });
}
