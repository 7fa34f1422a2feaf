//! What the tests of the adapter share: a drive that stays, requests in one line.

use crate::{FormatOptions, Medium, OpenError, Slots};
use plimsoll_kv::{
    Condition, ContainerId, Device, Durability, Error, Expiry, Item, Op, Output, Request, Result, Value,
};
use plimsoll_reactor::sim::{ProcessId, World};
use plimsoll_reactor::{Reactor, Work};
use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;

/// An hour of virtual time: no test waits longer.
const DEADLINE_NS: u64 = 3_600_000_000_000;

pub(super) const DB: ContainerId = ContainerId(0);

pub(super) fn options(value_bytes_max: usize, part_bytes: usize) -> FormatOptions {
    FormatOptions { value_bytes_max: Some(value_bytes_max), part_bytes: Some(part_bytes) }
}

/// Runs a test on a simulated core, to its end.
pub(super) fn run<F: Future<Output = ()> + 'static>(seed: u64, test: impl Fn(Reactor) -> F) {
    let world = World::new(seed, |_| "test");
    let done = Rc::new(Cell::new(false));
    world.start_process(ProcessId(0), 1, |reactor| {
        let (future, done) = (test(reactor.clone()), done.clone());
        reactor.spawn(Work::Kv, async move {
            future.await;
            done.set(true);
        });
    });
    assert!(world.run_until(DEADLINE_NS, || done.get()), "the test did not end");
    world.kill(ProcessId(0), false);
}

/// A drive, formatted for short values and parts.
pub(super) async fn formatted(reactor: &Reactor) -> Medium {
    let medium = Medium::new(1 << 20, u64::MAX);
    Slots::format(reactor, medium.connect(), options(4000, 100)).await.unwrap();
    medium
}

pub(super) async fn open(reactor: &Reactor, medium: &Medium) -> Rc<Slots> {
    try_open(reactor, medium).await.unwrap()
}

pub(super) async fn try_open(
    reactor: &Reactor,
    medium: &Medium,
) -> std::result::Result<Rc<Slots>, OpenError> {
    Slots::open(reactor, medium.connect()).await
}

pub(super) async fn execute<D: Device + ?Sized>(device: &Rc<D>, op: Op) -> Result<Output> {
    execute_as(device, op, Durability::Sync).await
}

pub(super) async fn execute_as<D: Device + ?Sized>(
    device: &Rc<D>,
    op: Op,
    durability: Durability,
) -> Result<Output> {
    let request = Request::new(durability, op);
    device.clone().execute(request).await.map(|completion| completion.output)
}

pub(super) fn store_op(container: ContainerId, key: &str, value: Value, retain: bool) -> Op {
    Op::Store {
        container,
        key: key.as_bytes().to_vec(),
        value,
        condition: Condition::None,
        expiry: Expiry::Never,
        retain,
        want_previous: false,
        form: None,
    }
}

pub(super) fn set_op(key: &str, value: &[u8]) -> Op {
    store_op(DB, key, Value::from(value.to_vec()), false)
}

pub(super) fn retain_op(key: &str, value: &[u8]) -> Op {
    store_op(DB, key, Value::from(value.to_vec()), true)
}

pub(super) fn del_op(key: &str) -> Op {
    Op::Delete { container: DB, key: key.as_bytes().to_vec(), condition: Condition::None }
}

pub(super) fn release_op(key: &str) -> Op {
    Op::Release { container: DB, key: key.as_bytes().to_vec() }
}

pub(super) fn revert_op(key: &str) -> Op {
    Op::Revert { container: DB, key: key.as_bytes().to_vec() }
}

pub(super) async fn get<D: Device + ?Sized>(device: &Rc<D>, key: &str) -> Result<Item> {
    let op = Op::Retrieve { container: DB, key: key.as_bytes().to_vec(), range: None, pin: false };
    match execute(device, op).await? {
        Output::Found(item) => Ok(item),
        other => panic!("a retrieve gave {other:?}"),
    }
}

pub(super) async fn bytes<D: Device + ?Sized>(device: &Rc<D>, key: &str) -> Option<Vec<u8>> {
    match get(device, key).await {
        Ok(item) => Some(item.bytes),
        Err(Error::NotFound) => None,
        Err(error) => panic!("{key}: {error}"),
    }
}
