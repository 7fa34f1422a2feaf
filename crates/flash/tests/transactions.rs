//! Transactions at one partition: they happen whole or not at all, whenever the server dies.

use crate::opening::{self, SERVER, format_options, live, open, run, world};
use plimsoll_flash::{Options, Partition, format, inspect};
use plimsoll_kv::transaction::{Action, Held, Outstanding, Status};
use plimsoll_kv::{
    Block, Condition, ContainerId, Error, Expiry, Op, Output, Result, TransactionId, UploadId, Value,
};
use plimsoll_reactor::sim::World;
use plimsoll_reactor::{Reactor, Work};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

const DATABASE: ContainerId = ContainerId(0);
const OTHER: ContainerId = ContainerId(1);

fn key(name: &str) -> Vec<u8> {
    name.as_bytes().to_vec()
}

fn store(container: ContainerId, name: &str, value: Value) -> Op {
    Op::Store {
        container,
        key: key(name),
        value,
        condition: Condition::None,
        expiry: Expiry::Never,
        retain: false,
        want_previous: false,
        form: None,
    }
}

fn put(name: &str, value: &[u8]) -> Op {
    store(DATABASE, name, Value::from(value.to_vec()))
}

fn delete(name: &str) -> Op {
    Op::Delete { container: DATABASE, key: key(name), condition: Condition::None }
}

fn retrieve(container: ContainerId, name: &str) -> Op {
    Op::Retrieve { container, key: key(name), range: None, pin: false }
}

async fn step(partition: &Rc<Partition>, id: Option<TransactionId>, action: Action) -> Result<Output> {
    run(partition, Op::Transaction { partition: 0, id, action }).await
}

async fn hold(partition: &Rc<Partition>, names: &[&str]) -> TransactionId {
    let keys = names.iter().map(|name| (DATABASE, key(name))).collect();
    held(partition, Held::keys(keys)).await
}

async fn held(partition: &Rc<Partition>, held: Held) -> TransactionId {
    match step(partition, None, Action::Hold(held)).await {
        Ok(Output::Held(id)) => id,
        other => panic!("{other:?}"),
    }
}

async fn outstanding(partition: &Rc<Partition>) -> Vec<Outstanding> {
    match step(partition, None, Action::Outstanding).await {
        Ok(Output::Outstanding(known)) => known,
        other => panic!("{other:?}"),
    }
}

/// The value of a key; nothing if it is absent.
async fn value(partition: &Rc<Partition>, container: ContainerId, name: &str) -> Option<Vec<u8>> {
    match run(partition, retrieve(container, name)).await {
        Ok(Output::Found(item)) => Some(item.bytes),
        Err(Error::NotFound) => None,
        other => panic!("{name}: {other:?}"),
    }
}

async fn upload(partition: &Rc<Partition>, container: ContainerId, name: &str, bytes: &[u8]) -> UploadId {
    let begin = Op::UploadBegin {
        container,
        key: key(name),
        length: bytes.len() as u64,
        shared_bytes: 0,
        form: None,
    };
    let Ok(Output::Upload(upload)) = run(partition, begin).await else { panic!("an upload begins") };
    let part_bytes = plimsoll_kv::Device::part_bytes(&**partition);
    for part in bytes.chunks(part_bytes) {
        let part = Op::UploadPart { upload, key: key(name), bytes: part.to_vec() };
        run(partition, part).await.unwrap();
    }
    upload
}

#[test]
fn what_is_held_waits_and_what_is_committed_is_there_together() {
    let world = world(4 << 20);
    live(&world, |reactor| async move {
        let partition = open(&reactor).await;
        run(&partition, put("a", b"old")).await.unwrap();
        let id = hold(&partition, &["a", "b", "a"]).await;
        let seen = Rc::new(RefCell::new(None));
        let (reader, told) = (partition.clone(), seen.clone());
        reactor.spawn(Work::Kv, async move {
            *told.borrow_mut() = Some(value(&reader, DATABASE, "a").await);
        });
        let read = Action::Retrieve { container: DATABASE, key: key("a"), range: None, pin: false };
        let Ok(Output::Found(item)) = step(&partition, Some(id), read.clone()).await else { panic!() };
        assert_eq!(item.bytes, b"old");
        reactor.sleep_ns(1_000_000_000).await;
        assert_eq!(*seen.borrow(), None, "a reader waits while the key is held");
        let outside = Action::Retrieve { container: DATABASE, key: key("c"), range: None, pin: false };
        assert!(step(&partition, Some(id), outside).await.is_err(), "it does not hold that key");
        let writes = vec![put("c", b"never")];
        assert!(step(&partition, Some(id), Action::Commit { writes }).await.is_err());
        let writes = vec![put("a", b"new"), put("b", b"new")];
        step(&partition, Some(id), Action::Commit { writes }).await.unwrap();
        assert!(step(&partition, Some(id), read).await.is_err(), "it has ended");
        reactor.sleep_ns(1_000_000).await;
        assert_eq!(*seen.borrow(), Some(Some(b"new".to_vec())));
        assert!(outstanding(&partition).await.is_empty());
    });
    live(&world, |reactor| async move {
        let partition = open(&reactor).await;
        for name in ["a", "b"] {
            assert_eq!(value(&partition, DATABASE, name).await.as_deref(), Some(&b"new"[..]), "{name}");
        }
        assert_eq!(value(&partition, DATABASE, "c").await, None);
        partition.check_accounts().unwrap();
    });
}

#[test]
fn what_was_prepared_is_held_after_a_crash_until_it_is_known_what_became_of_it() {
    for applies in [true, false] {
        let world = world(4 << 20);
        live(&world, |reactor| async move {
            let partition = open(&reactor).await;
            run(&partition, put("a", b"old")).await.unwrap();
            run(&partition, put("gone", b"old")).await.unwrap();
            let id = hold(&partition, &["a", "b", "gone"]).await;
            let writes = vec![put("a", b"new"), put("b", b"new"), delete("gone")];
            let prepare = Action::Prepare { participants: vec![0, 1], writes };
            step(&partition, Some(id), prepare).await.unwrap();
        });
        live(&world, move |reactor| async move {
            let partition = open(&reactor).await;
            let known = outstanding(&partition).await;
            assert_eq!(known.len(), 1);
            assert_eq!((known[0].participants.as_slice(), known[0].status), (&[0, 1][..], Status::Prepared));
            let seen = Rc::new(Cell::new(false));
            let (reader, told) = (partition.clone(), seen.clone());
            reactor.spawn(Work::Kv, async move {
                value(&reader, DATABASE, "b").await;
                told.set(true);
            });
            reactor.sleep_ns(5_000_000_000).await;
            assert!(!seen.get(), "nobody looks at what is in doubt");
            let action = if applies { Action::Apply } else { Action::Release };
            step(&partition, Some(known[0].id), action).await.unwrap();
            let new = Some(b"new".to_vec());
            let (a, b, gone) = if applies {
                (new.clone(), new, None)
            } else {
                (Some(b"old".to_vec()), None, Some(b"old".to_vec()))
            };
            assert_eq!(value(&partition, DATABASE, "a").await, a);
            assert_eq!(value(&partition, DATABASE, "b").await, b);
            assert_eq!(value(&partition, DATABASE, "gone").await, gone);
            let left = outstanding(&partition).await;
            assert_eq!(
                left.iter().map(|t| t.status).collect::<Vec<_>>(),
                [Status::Applied][..usize::from(applies)]
            );
            for known in left {
                step(&partition, Some(known.id), Action::Forget).await.unwrap();
            }
            assert!(outstanding(&partition).await.is_empty());
            partition.check_accounts().unwrap();
        });
    }
}

/// It is applied, so nothing is done by it any more: what of it has rotted keeps nothing from opening, and
/// others that took part are told how it ended.
#[test]
fn an_applied_transaction_that_has_rotted_is_known_and_keeps_nothing_from_opening() {
    let world = world(4 << 20);
    let id = Rc::new(Cell::new(None));
    let kept = id.clone();
    live(&world, move |reactor| {
        let id = kept.clone();
        async move {
            let partition = open(&reactor).await;
            run(&partition, put("a", b"old")).await.unwrap();
            let held = hold(&partition, &["a"]).await;
            let prepare =
                Action::Prepare { participants: vec![0, 1], writes: vec![put("a", b"in the intent")] };
            step(&partition, Some(held), prepare).await.unwrap();
            step(&partition, Some(held), Action::Apply).await.unwrap();
            id.set(Some(held));
            partition.close().await.unwrap();
        }
    });
    world.with_disk("disk", |disk| {
        let sought = b"in the intent";
        let at = disk.durable().windows(sought.len()).position(|bytes| bytes == sought);
        disk.flip_bit(at.expect("the intent is on the disk"), 3);
    });
    let id = id.get();
    live(&world, move |reactor| async move {
        let partition = open(&reactor).await;
        assert!(outstanding(&partition).await.is_empty(), "who took part is not known any more");
        let told = step(&partition, id, Action::Status).await;
        assert_eq!(told, Ok(Output::Status(Status::Applied)));
        assert_eq!(value(&partition, DATABASE, "a").await, Some(b"in the intent".to_vec()));
        step(&partition, id, Action::Forget).await.unwrap();
        partition.check_accounts().unwrap();
    });
}

const LONG: usize = 100_000;
const MANY: usize = 200;

/// Begins with a database of some keys, and does a transaction too large for one frame that empties
/// another, stores many values and one in parts.
async fn large_transaction(partition: &Rc<Partition>) {
    run(partition, store(OTHER, "before", Value::from(b"old".to_vec()))).await.unwrap();
    run(partition, put("k0", b"old")).await.unwrap();
    let upload = upload(partition, OTHER, "long", &vec![7; LONG]).await;
    let id = held(partition, Held::everything()).await;
    let mut writes = vec![Op::Clear { container: OTHER }];
    writes.extend((0..MANY).map(|number| put(&format!("k{number}"), &[number as u8; 500])));
    writes.push(store(OTHER, "long", Value::Upload(upload)));
    writes.push(store(OTHER, "after", Value::from(b"new".to_vec())));
    let prepared = step(partition, Some(id), Action::Commit { writes }).await;
    assert_eq!(prepared, Ok(Output::Status(Status::Prepared)), "it takes several frames");
    step(partition, Some(id), Action::Apply).await.unwrap();
    step(partition, Some(id), Action::Forget).await.unwrap();
}

/// Looks whether all of it is there, or none; gives which.
async fn check_large(partition: &Rc<Partition>) -> bool {
    for known in outstanding(partition).await {
        assert_eq!(known.participants, [0]);
        if known.status == Status::Prepared {
            step(partition, Some(known.id), Action::Apply).await.unwrap();
        }
        step(partition, Some(known.id), Action::Forget).await.unwrap();
    }
    let done = value(partition, OTHER, "after").await.is_some();
    let before = value(partition, OTHER, "before").await;
    for number in 0..MANY {
        let found = value(partition, DATABASE, &format!("k{number}")).await;
        if done {
            assert_eq!(found.unwrap(), [number as u8; 500]);
        } else if number > 0 {
            assert_eq!(found, None, "k{number}");
        }
    }
    let Op::Retrieve { container, key, range, .. } = retrieve(OTHER, "long") else { unreachable!() };
    match run(partition, Op::Retrieve { container, key: key.clone(), range, pin: true }).await {
        Ok(Output::Found(item)) => {
            assert!(done && item.length == LONG as u64);
            let upload = item.upload.unwrap();
            let mut bytes = Vec::new();
            for part in 0.. {
                match run(partition, Op::RetrievePart { upload, key: key.clone(), part, range: None }).await {
                    Ok(Output::Found(item)) => bytes.extend(item.bytes),
                    _ => break,
                }
            }
            assert_eq!(bytes, vec![7; LONG]);
            run(partition, Op::Unpin { upload, key }).await.unwrap();
        }
        found => assert!(!done, "{found:?}"),
    }
    assert!(!done || before.is_none(), "the database was emptied");
    partition.check_accounts().unwrap();
    done
}

#[test]
fn a_large_transaction_is_whole_or_absent_whenever_the_server_dies() {
    let formatted = || {
        let world = world(8 << 20);
        live(&world, |reactor| async move { drop(open(&reactor).await) });
        world
    };
    let lasts_ns = {
        let world = formatted();
        let start_ns = world.now_ns();
        live(&world, |reactor| async move {
            let partition = open(&reactor).await;
            large_transaction(&partition).await;
            assert!(check_large(&partition).await);
        });
        world.now_ns() - start_ns
    };
    let (mut whole, mut absent) = (0, 0);
    let steps = 150;
    for number in 0..steps {
        let world = formatted();
        world.start_process(SERVER, 1, |reactor: &Reactor| {
            let inner = reactor.clone();
            reactor.spawn(Work::Control, async move {
                let partition = open(&inner).await;
                large_transaction(&partition).await;
                std::future::pending::<()>().await;
            });
        });
        let until_ns = world.now_ns() + lasts_ns * number / steps;
        world.run_until(until_ns, || false);
        world.kill(SERVER, true);
        let done = Rc::new(Cell::new(false));
        // The second life dies too, somewhere on its way.
        let second_ns = world.now_ns() + lasts_ns / 4 * (number % 7) / 7;
        world.start_process(SERVER, 1, |reactor: &Reactor| {
            let inner = reactor.clone();
            reactor.spawn(Work::Control, async move {
                let partition = open(&inner).await;
                check_large(&partition).await;
            });
        });
        world.run_until(second_ns, || false);
        world.kill(SERVER, true);
        let told = done.clone();
        live(&world, move |reactor| {
            let told = told.clone();
            async move {
                let partition = open(&reactor).await;
                let first = check_large(&partition).await;
                assert_eq!(check_large(&partition).await, first);
                told.set(first);
            }
        });
        if done.get() { whole += 1 } else { absent += 1 }
    }
    assert!(whole > 5 && absent > 5, "crashes before and after: {whole} whole, {absent} absent");
}

#[test]
fn space_that_was_promised_is_not_given_to_others() {
    let world = world(4 << 20);
    live(&world, |reactor| async move {
        let partition = open(&reactor).await;
        let names: Vec<String> = (0..40).map(|number| format!("held{number}")).collect();
        let id = hold(&partition, &names.iter().map(String::as_str).collect::<Vec<_>>()).await;
        let writes: Vec<Op> = names.iter().map(|name| put(name, &[1; 6000])).collect();
        step(&partition, Some(id), Action::Prepare { participants: vec![0, 1], writes }).await.unwrap();
        // Everything else is filled to the brim.
        let mut number = 0;
        while run(&partition, put(&format!("fill{number}"), &[2; 3000])).await.is_ok() {
            number += 1;
        }
        assert!(number > 100, "{number} others");
        step(&partition, Some(id), Action::Apply).await.unwrap();
        for name in &names {
            assert_eq!(value(&partition, DATABASE, name).await.unwrap(), [1; 6000]);
        }
        partition.check_accounts().unwrap();
    });
}

#[test]
fn a_failed_step_leaves_nothing_behind() {
    let world = world(4 << 20);
    live(&world, |reactor| async move {
        let partition = open(&reactor).await;
        let id = hold(&partition, &["a"]).await;
        let writes = vec![put("a", &vec![1; 8 << 20])];
        let refused = step(&partition, Some(id), Action::Prepare { participants: vec![0], writes }).await;
        assert_eq!(refused, Err(Error::ValueTooLong));
        let writes = vec![Op::Clear { container: DATABASE }];
        assert!(step(&partition, Some(id), Action::Commit { writes }).await.is_err(), "it holds one key");
        let writes = vec![put("a", b"1"), put("a", b"2")];
        assert!(step(&partition, Some(id), Action::Commit { writes }).await.is_err(), "a key twice");
        step(&partition, Some(id), Action::Release).await.unwrap();
        assert!(step(&partition, Some(id), Action::Release).await.is_err());
        assert_eq!(value(&partition, DATABASE, "a").await, None);
        assert!(outstanding(&partition).await.is_empty());
    });
}

#[test]
fn a_device_of_several_partitions_opens_with_what_they_prepared() {
    // Each partition is opened by itself: what one has prepared holds up none of the others.
    let world: World = world(16 << 20);
    let each = |reactor: Reactor, prepares: bool| async move {
        let block: Rc<dyn Block> = Rc::new(opening::disk(&reactor));
        let superblock = match inspect(&*block).await {
            Ok(superblock) => superblock,
            Err(_) => {
                let options = plimsoll_flash::FormatOptions { partitions: 4, ..format_options(64 << 10) };
                format(&*block, &options).await.unwrap()
            }
        };
        for number in 0..4 {
            let opened = Partition::open(&reactor, block.clone(), &superblock, number, Options::default());
            let partition = opened.await.unwrap();
            if prepares {
                let everything = Held::everything();
                let id = held(&partition, everything).await;
                let writes = vec![Op::Clear { container: DATABASE }];
                let prepare = Action::Prepare { participants: vec![0, 1, 2, 3], writes };
                step(&partition, Some(id), prepare).await.unwrap();
            } else {
                assert_eq!(outstanding(&partition).await.len(), 1, "partition {number}");
            }
        }
    };
    live(&world, move |reactor| each(reactor, true));
    live(&world, move |reactor| each(reactor, false));
}

/// Found by a client that waited for ever: nothing was pushed, and the frame that it waited for was never
/// written on a server that was idle.
#[test]
fn a_transaction_that_changes_nothing_ends() {
    live(&world(4 << 20), |reactor| async move {
        let partition = open(&reactor).await;
        run(&partition, put("kept", b"1")).await.unwrap();
        for _ in 0..3 {
            let id = hold(&partition, &["a", "b"]).await;
            let absent =
                |name| Op::Delete { container: DATABASE, key: key(name), condition: Condition::None };
            let writes = vec![absent("a"), absent("b")];
            step(&partition, Some(id), Action::Commit { writes }).await.unwrap();
            reactor.sleep_ns(1_000_000_000).await;
        }
        assert_eq!(value(&partition, DATABASE, "kept").await, Some(b"1".to_vec()));
    });
}

/// A transaction goes on to see a key that expires while it is held; one that had expired before nobody sees
/// (seeds 473 and 654 of the simulator: whatever was held was told).
#[test]
fn a_scan_beside_a_transaction_tells_only_what_had_not_expired_when_it_began() {
    for held_keys in
        [Held::everything(), Held::keys(vec![(DATABASE, key("before")), (DATABASE, key("within"))])]
    {
        live(&world(opening::DISK_BYTES), move |reactor| {
            let held_keys = held_keys.clone();
            async move {
                let partition = open(&reactor).await;
                let start_ms = reactor.wall_ms();
                for (name, at_ms) in [("before", start_ms + 1000), ("within", start_ms + 3000)] {
                    run(&partition, put(name, b"v")).await.unwrap();
                    let (container, condition) = (DATABASE, Condition::None);
                    let expiry = Expiry::At(at_ms);
                    let expires = Op::SetExpiry { container, key: key(name), expiry, condition };
                    run(&partition, expires).await.unwrap();
                }
                reactor.sleep_ns(2_000_000_000).await;
                let id = held(&partition, held_keys).await;
                reactor.sleep_ns(2_000_000_000).await;
                assert_eq!(scanned(&partition).await, [key("within")]);
                step(&partition, Some(id), Action::Release).await.unwrap();
                assert!(scanned(&partition).await.is_empty());
            }
        });
    }
}

async fn scanned(partition: &Rc<Partition>) -> Vec<Vec<u8>> {
    match run(partition, Op::Scan { container: DATABASE, cursor: 0, limit: 10 }).await {
        Ok(Output::Scanned(page)) => page.keys,
        other => panic!("{other:?}"),
    }
}
