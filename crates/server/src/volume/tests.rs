//! Routing between simulated cores: order, fan-out, bounds.

use super::*;
use plimsoll_kv::memory::{Memory, MemoryOptions};
use plimsoll_kv::{ContainerId, Durability, Output, Stats};
use plimsoll_reactor::Mesh;
use plimsoll_reactor::sim::{ProcessId, World};
use std::cell::Cell;
use std::future::Future;

const DB: ContainerId = ContainerId(0);

/// Runs a test on the last of several cores.
fn run<F: Future<Output = ()> + 'static>(
    cores: usize,
    partitions: u16,
    test: impl Fn(Reactor, Rc<Volume>) -> F,
) {
    let world = World::new(3, |_| "test");
    let geometry = Geometry { partitions, value_bytes_max: 1000, part_bytes: 100 };
    let ports = RefCell::new(Mesh::ports(cores).into_iter().map(Some).collect::<Vec<_>>());
    let (volumes, done) = (Rc::new(RefCell::new(Vec::new())), Rc::new(Cell::new(false)));
    world.start_process(ProcessId(0), cores, |reactor| {
        let options = MemoryOptions { value_bytes_max: 1000, part_bytes: 100, ..Default::default() };
        let device = |p| (p, Memory::new(reactor, options) as Rc<dyn Device>);
        let local = geometry.owned(reactor.core(), cores).map(device).collect();
        let port = ports.borrow_mut()[usize::from(reactor.core().0)].take().unwrap();
        let volume = Volume::new(reactor, port, geometry);
        volume.give(local);
        volumes.borrow_mut().push(volume.clone());
        if usize::from(reactor.core().0) + 1 == cores {
            let (future, done) = (test(reactor.clone(), volume), done.clone());
            reactor.spawn(Work::Kv, async move {
                future.await;
                done.set(true);
            });
        }
    });
    assert!(world.run_until(60_000_000_000, || done.get()), "the test did not end");
    world.kill(ProcessId(0), false);
}

async fn execute(volume: &Rc<Volume>, op: Op) -> Result<Output> {
    volume.clone().execute(Request::new(Durability::Sync, op)).await.map(|completion| completion.output)
}

fn store(key: &str, value: &[u8]) -> Op {
    Op::store(DB, key, value)
}

#[test]
fn keys_live_on_all_partitions_of_all_cores() {
    for (cores, partitions) in [(1, 1), (1, 5), (2, 1), (2, 5), (6, 4), (6, 16)] {
        run(cores, partitions, move |_, volume| async move {
            for n in 0..200 {
                execute(&volume, store(&format!("k{n}"), &[n as u8])).await.unwrap();
            }
            for n in 0..200 {
                let op = Op::Retrieve { container: DB, key: format!("k{n}").into(), range: None, pin: false };
                let Ok(Output::Found(item)) = execute(&volume, op).await else { panic!() };
                assert_eq!(item.bytes, [n as u8]);
            }
            let stats = execute(&volume, Op::Stats { container: DB }).await;
            assert!(matches!(stats, Ok(Output::Stats(Stats { keys: 200, .. }))), "{stats:?}");
            assert_eq!(execute(&volume, Op::Sync).await, Ok(Output::Done));
            execute(&volume, Op::Clear { container: DB }).await.unwrap();
            let stats = execute(&volume, Op::Stats { container: DB }).await;
            assert!(matches!(stats, Ok(Output::Stats(Stats { keys: 0, .. }))), "{stats:?}");
        });
    }
}

#[test]
fn many_requests_for_one_key_keep_their_order() {
    run(2, 2, |reactor, volume| async move {
        // More than may be under way at once, to both cores.
        for n in 0..3_000_u32 {
            for key in ["a", "b", "c", "d"] {
                let volume = volume.clone();
                reactor.spawn(Work::Kv, async move {
                    execute(&volume, store(key, &n.to_le_bytes())).await.unwrap();
                });
            }
        }
        let mut last = [0; 4];
        while last != [2_999; 4] {
            for (key, last) in ["a", "b", "c", "d"].into_iter().zip(&mut last) {
                let op = Op::Retrieve { container: DB, key: key.into(), range: None, pin: false };
                if let Ok(Output::Found(item)) = execute(&volume, op).await {
                    let n = u32::from_le_bytes(item.bytes.try_into().unwrap());
                    assert!(n >= *last, "{key}: {n} after {last}");
                    *last = n;
                }
            }
        }
    });
}

#[test]
fn listing_and_scanning_see_every_partition() {
    run(3, 7, |_, volume| async move {
        let mut expected: Vec<Vec<u8>> = (0..300).map(|n| format!("k{n}").into_bytes()).collect();
        for key in &expected {
            execute(&volume, store(std::str::from_utf8(key).unwrap(), b"")).await.unwrap();
        }
        expected.sort();
        let (mut listed, mut more): (Vec<Vec<u8>>, bool) = (Vec::new(), true);
        while more {
            let after = listed.last().cloned();
            let op = Op::List { container: DB, prefix: b"k".to_vec(), after, limit: 13 };
            let Ok(Output::Listed(page)) = execute(&volume, op).await else { panic!() };
            listed.extend(page.keys);
            more = page.more;
        }
        assert_eq!(listed, expected);
        for limit in [1, 10, 1000] {
            let (mut scanned, mut cursor): (Vec<Vec<u8>>, u64) = (Vec::new(), 0);
            loop {
                let op = Op::Scan { container: DB, cursor, limit };
                let Ok(Output::Scanned(page)) = execute(&volume, op).await else { panic!() };
                scanned.extend(page.keys);
                cursor = page.cursor;
                if cursor == 0 {
                    break;
                }
            }
            scanned.sort();
            assert_eq!(scanned, expected);
        }
    });
}

#[test]
fn a_batch_has_one_partition() {
    run(2, 2, |_, volume| async move {
        let together = Op::Batch(vec![store("{x}1", b"1"), store("{x}2", b"2")]);
        assert!(matches!(execute(&volume, together).await, Ok(Output::Batch(outputs)) if outputs.len() == 2));
        let apart = Op::Batch((0..20).map(|n| store(&n.to_string(), b"")).collect());
        assert_eq!(execute(&volume, apart).await, Err(Error::Invalid("a batch over several partitions")));
        assert_eq!(execute(&volume, Op::Batch(Vec::new())).await, Ok(Output::Batch(Vec::new())));
        let keyless = Op::Batch(vec![Op::Sync]);
        assert!(matches!(execute(&volume, keyless).await, Err(Error::Invalid(_))));
    });
}

#[test]
fn a_future_that_is_dropped_gives_its_permit_back() {
    run(2, 2, |reactor, volume| async move {
        for n in 0..2_000 {
            let mut dropped =
                volume.clone().execute(Request::new(Durability::Sync, store(&n.to_string(), b"")));
            let polled =
                std::future::poll_fn(|cx| std::task::Poll::Ready(dropped.as_mut().poll(cx).is_ready())).await;
            drop((dropped, polled));
            if n % 100 == 0 {
                reactor.sleep_ns(100_000).await;
            }
        }
        reactor.sleep_ns(10_000_000).await;
        let free: Vec<usize> = volume.permits.iter().map(|permits| permits.free()).collect();
        assert_eq!(free, [REMOTE_IN_FLIGHT_MAX, LOCAL_IN_FLIGHT_MAX]);
    });
}

/// A device that has every key in memory.
struct Remembers;

impl Device for Remembers {
    fn execute(self: Rc<Self>, _: Request) -> LocalFuture<Result<Completion>> {
        unreachable!("nobody goes on to a retrieve")
    }
    fn recall(&self, _: ContainerId, key: &[u8], give: &mut dyn FnMut(&[u8])) -> bool {
        give(key);
        true
    }
    fn value_bytes_max(&self) -> usize {
        1000
    }
    fn part_bytes(&self) -> usize {
        100
    }
}

#[test]
fn memory_is_asked_for_keys_of_this_core_while_nobody_waits_for_a_permit() {
    run(2, 4, |_, volume| async move {
        let mut local: BTreeMap<u16, Rc<dyn Device>> = BTreeMap::new();
        local.extend(volume.local().map(|(partition, _)| (partition, Rc::new(Remembers) as Rc<dyn Device>)));
        let port = Mesh::ports(2).pop().unwrap();
        let volume = Volume::new(&volume.reactor, port, volume.geometry);
        assert!(!volume.recall(DB, b"k", &mut |_| unreachable!()), "no partition is open yet");
        volume.give(local);
        let recalled = |key: &str| {
            let mut given = None;
            let gave = volume.recall(DB, key.as_bytes(), &mut |bytes| given = Some(bytes.to_vec()));
            assert_eq!(gave, given.is_some());
            given
        };
        let is_local = |key: &&&str| volume.own(volume.geometry.partition(key.as_bytes())).is_some();
        let keys = ["a", "b", "c", "d", "e", "f"];
        let (near, far): (Vec<&str>, Vec<&str>) = keys.iter().partition(is_local);
        assert!(!near.is_empty() && !far.is_empty());
        assert!(near.iter().all(|key| recalled(key).as_deref() == Some(key.as_bytes())));
        assert!(far.iter().all(|key| recalled(key).is_none()), "memory of another core");
        // A store that came before may be among those who wait: nobody overtakes it.
        let all = volume.permits[1].acquire(LOCAL_IN_FLIGHT_MAX).await;
        assert_eq!(recalled(near[0]), None);
        drop(all);
        assert!(recalled(near[0]).is_some());
    });
}

/// What waits for others is refused when it has waited for too long, and nothing of it is done.
#[test]
fn a_request_that_cannot_be_begun_in_time_is_refused() {
    run(1, 1, |reactor, volume| async move {
        volume.set_patience(Box::new(|| 5_000_000));
        let all = volume.permits[0].acquire(LOCAL_IN_FLIGHT_MAX).await;
        let execute = async |op| {
            let deadline_ns = volume.deadline_ns();
            let request = Request { deadline_ns, ..Request::new(Durability::Sync, op) };
            volume.clone().execute(request).await.map(|completion| completion.output)
        };
        let begun_ns = reactor.now_ns();
        assert_eq!(execute(store("k", b"late")).await, Err(Error::Overloaded));
        assert_eq!(reactor.now_ns() - begun_ns, 5_000_000);
        // Before its time is over it goes on.
        let later = reactor.clone();
        reactor.spawn(Work::Kv, async move {
            later.sleep_ns(4_000_000).await;
            drop(all);
        });
        assert!(execute(store("k", b"in time")).await.is_ok());
        let transactions = volume.transactions.acquire(TRANSACTIONS_MAX).await;
        assert!(matches!(volume.transaction().await, Err(Error::Overloaded)));
        drop(transactions);
        assert!(volume.transaction().await.is_ok());
        let got = execute(Op::Retrieve { container: DB, key: b"k".to_vec(), range: None, pin: false });
        assert!(matches!(got.await, Ok(Output::Found(item)) if item.bytes == b"in time"));
    });
}
