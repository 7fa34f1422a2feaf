//! Edits of one key by many at once: none is lost, none is made twice, whenever the server dies.

use crate::opening::{self, DISK_BYTES, SERVER, open, run, world};
use plimsoll_flash::Partition;
use plimsoll_kv::{Condition, ContainerId, Edit, EditError, Error, Expiry, Op, Output, Value};
use plimsoll_reactor::sim::Random;
use plimsoll_reactor::{Reactor, Work};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

const CLIENTS: u64 = 12;
const COUNTERS: usize = 3;

fn edit(key: &str, edit: Edit) -> Op {
    Op::Store {
        container: ContainerId(0),
        key: key.as_bytes().to_vec(),
        value: Value::Edit(edit),
        condition: Condition::None,
        expiry: Expiry::Keep,
        retain: false,
        want_previous: false,
        form: None,
    }
}

fn get(key: &str) -> Op {
    Op::Retrieve { container: ContainerId(0), key: key.as_bytes().to_vec(), range: None, pin: false }
}

async fn text(partition: &Rc<Partition>, key: &str) -> String {
    match run(partition, get(key)).await {
        Ok(Output::Found(item)) => String::from_utf8(item.bytes).unwrap(),
        Err(Error::NotFound) => String::new(),
        other => panic!("{key}: {other:?}"),
    }
}

/// What was tried and what was acknowledged, over all lives.
#[derive(Default)]
struct Told {
    tried: [i64; COUNTERS],
    added: [i64; COUNTERS],
    /// Words appended and acknowledged, in the order of each client.
    appended: Vec<String>,
    /// The next word of each client.
    next: [u64; CLIENTS as usize],
}

async fn client(partition: Rc<Partition>, told: Rc<RefCell<Told>>, number: u64) {
    let mut random = Random::stream(number, "edits");
    loop {
        let counter = random.below(COUNTERS as u64) as usize;
        told.borrow_mut().tried[counter] += 1;
        let added = run(&partition, edit(&format!("counter:{counter}"), Edit::Add(1))).await;
        match added {
            Ok(Output::Edited { .. }) => told.borrow_mut().added[counter] += 1,
            other => panic!("{other:?}"),
        }
        let word = {
            let next = &mut told.borrow_mut().next[number as usize];
            *next += 1;
            format!("{number}.{next};")
        };
        let appended = run(&partition, edit("words", Edit::Append(word.clone().into_bytes()))).await;
        match appended {
            Ok(Output::Edited { bytes, .. }) => assert!(bytes.ends_with(word.as_bytes())),
            Err(Error::ValueTooLong) => return,
            other => panic!("{other:?}"),
        }
        told.borrow_mut().appended.push(word);
    }
}

async fn check(partition: &Rc<Partition>, told: &RefCell<Told>) {
    for counter in 0..COUNTERS {
        let value: i64 = text(partition, &format!("counter:{counter}")).await.parse().unwrap_or(0);
        let mut told = told.borrow_mut();
        assert!(
            (told.added[counter]..=told.tried[counter]).contains(&value),
            "counter {counter}: {value}, of {} acknowledged and {} tried",
            told.added[counter],
            told.tried[counter]
        );
        // What was under way when the server died has happened or not: that is known now.
        (told.added[counter], told.tried[counter]) = (value, value);
    }
    let words = text(partition, "words").await;
    let found: Vec<&str> = words.split_inclusive(';').collect();
    let distinct: std::collections::BTreeSet<&&str> = found.iter().collect();
    assert_eq!(distinct.len(), found.len(), "a word stands there twice");
    for word in &told.borrow().appended {
        assert!(found.contains(&word.as_str()), "{word} is lost");
    }
}

#[test]
fn edits_of_many_clients_survive_crashes() {
    for seed in 0..6 {
        let world = world(DISK_BYTES);
        let told = Rc::new(RefCell::new(Told::default()));
        let mut random = Random::stream(seed, "crashes");
        for _ in 0..8 {
            let checked = Rc::new(Cell::new(false));
            let (given, done) = (told.clone(), checked.clone());
            world.start_process(SERVER, 1, move |reactor| {
                let (inner, told, done) = (reactor.clone(), given.clone(), done.clone());
                reactor.spawn(Work::Control, live(inner, told, done));
            });
            assert!(world.run_until(world.now_ns() + 60_000_000_000, || checked.get()), "it opens");
            let until_ns = world.now_ns() + random.below(20_000_000);
            world.run_until(until_ns, || false);
            world.kill(SERVER, true);
        }
        assert!(told.borrow().added.iter().sum::<i64>() > 200, "the worlds are busy");
    }
}

async fn live(reactor: Reactor, told: Rc<RefCell<Told>>, checked: Rc<Cell<bool>>) {
    let partition = open(&reactor).await;
    check(&partition, &told).await;
    checked.set(true);
    for number in 0..CLIENTS {
        reactor.spawn(Work::Kv, client(partition.clone(), told.clone(), number));
    }
}

#[test]
fn an_edit_that_cannot_be_made_changes_nothing() {
    opening::live(&world(DISK_BYTES), |reactor| async move {
        let partition = open(&reactor).await;
        run(&partition, edit("k", Edit::Append(b"abc".to_vec()))).await.unwrap();
        let refused = run(&partition, edit("k", Edit::Add(1))).await;
        assert_eq!(refused, Err(Error::Edit(EditError::NotAnInteger)));
        let long = Edit::WriteAt { offset: 1 << 30, bytes: b"x".to_vec() };
        assert_eq!(run(&partition, edit("k", long)).await, Err(Error::ValueTooLong));
        let written = run(&partition, edit("k", Edit::WriteAt { offset: 5, bytes: b"x".to_vec() })).await;
        assert!(matches!(written, Ok(Output::Edited { bytes, .. }) if bytes == b"abc\0\0x"));
        assert_eq!(text(&partition, "k").await, "abc\0\0x");
        partition.close().await.unwrap();
    });
}
